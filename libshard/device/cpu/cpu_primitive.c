#include "device/cpu/cpu_primitive.h"

#include "base/error.h"
#include "base/memory.h"
#include "device/cpu/cpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#define BUCKETS 256
#define MOST_PRIMITIVES 1024

typedef struct primitive {
    struct primitive *next; /* in its bucket */
    shard_cpu_key key;
    int threads;
    int users;
    uint64_t last_use;
    shard_cpu_plan plan;
    dnnl_primitive_t main; /* NULL: oneDNN has no such computation */
    struct {
        size_t bytes; /* of the array in oneDNN's layout; 0: it is taken as it is */
        dnnl_primitive_desc_t descriptor;
        dnnl_primitive_t reorder; /* NULL: packed by the plan's packer */
    } array[SHARD_CPU_ARRAYS];
    size_t scratch_bytes;
} primitive;

static struct {
    pthread_mutex_t lock;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_attr_t attributes;
    primitive *bucket[BUCKETS];
    int count;
    uint64_t uses;
} cache = {.lock = PTHREAD_MUTEX_INITIALIZER};

shard_status shard_cpu_dnnl_error(const char *what, dnnl_status_t status)
{
    static const char *const names[] = {"success",        "out of memory", "invalid arguments", "unimplemented",
                                        "iterator ended", "runtime error", "not required"};
    return shard_error(status == dnnl_out_of_memory ? SHARD_ERROR_MEMORY : SHARD_ERROR_DEVICE, "cpu: oneDNN's %s failed: %s",
                       what, (unsigned)status < sizeof names / sizeof *names ? names[status] : "unknown status");
}

dnnl_data_type_t shard_cpu_dnnl_type(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 ? dnnl_bf16 : dnnl_f32;
}

static bool has_instructions(dnnl_cpu_isa_t needed)
{
    return ((unsigned)dnnl_get_effective_cpu_isa() & (unsigned)needed) == (unsigned)needed;
}

bool shard_cpu_multiplies(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 && has_instructions(dnnl_cpu_isa_avx512_core_bf16);
}

bool shard_cpu_multiplies_tiles(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 && has_instructions(dnnl_cpu_isa_avx512_core_amx);
}

static bool is_output(int argument)
{
    return argument == DNNL_ARG_DST || argument == DNNL_ARG_DIFF_SRC || argument == DNNL_ARG_DIFF_WEIGHTS ||
           argument == DNNL_ARG_DIFF_BIAS;
}

int shard_cpu_threads(void)
{
#ifdef _OPENMP
    return omp_get_max_threads();
#else
    return 1;
#endif
}

void shard_cpu_set_threads(int threads)
{
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

#define DNNL_TRY(call)                                                                                                           \
    do {                                                                                                                         \
        dnnl_status_t dnnl_try_ = (call);                                                                                        \
        if (dnnl_try_ != dnnl_success)                                                                                           \
            return dnnl_try_;                                                                                                    \
    } while (0)

dnnl_status_t shard_cpu_plan_array(shard_cpu_plan *plan, int argument, int ndim, const dnnl_dims_t dims,
                                   const dnnl_dims_t strides, dnnl_data_type_t type, bool any)
{
    int i = plan->count++;
    plan->argument[i] = argument;
    DNNL_TRY(shard_dnnl_layout_create(&plan->plain[i], ndim, dims, type, strides));
    return shard_dnnl_layout_create(&plan->asked[i], ndim, dims, type, any ? NULL : strides);
}

static shard_dnnl_layout_borrowed layout_of(const_dnnl_primitive_desc_t descriptor, int argument)
{
    return dnnl_primitive_desc_query_md(descriptor, dnnl_query_exec_arg_md, argument);
}

static shard_dnnl_layout_borrowed scratch_layout(const primitive *p)
{
    return dnnl_primitive_desc_query_md(p->plan.descriptor, dnnl_query_scratchpad_md, 0);
}

static dnnl_status_t start(void)
{
    if (cache.stream)
        return dnnl_success;
    if (!cache.engine)
        DNNL_TRY(dnnl_engine_create(&cache.engine, dnnl_cpu, 0));
    if (!cache.attributes)
        DNNL_TRY(dnnl_primitive_attr_create(&cache.attributes));
    DNNL_TRY(dnnl_primitive_attr_set_scratchpad_mode(cache.attributes, dnnl_scratchpad_mode_user));
    return dnnl_stream_create(&cache.stream, cache.engine, dnnl_stream_default_flags);
}

static dnnl_status_t prepare_reorder(primitive *p, int i)
{
    shard_dnnl_layout_borrowed plain = SHARD_DNNL_BORROW(&p->plan.plain[i]);
    shard_dnnl_layout_borrowed used = layout_of(p->plan.descriptor, p->plan.argument[i]);
    if (dnnl_memory_desc_equal(plain, used))
        return dnnl_success;
    p->array[i].bytes = dnnl_memory_desc_get_size(used);
    if (p->plan.packer && p->plan.packed == i)
        return dnnl_success;
    bool output = is_output(p->plan.argument[i]);
    DNNL_TRY(dnnl_reorder_primitive_desc_create(&p->array[i].descriptor, output ? used : plain, cache.engine,
                                                output ? plain : used, cache.engine, NULL));
    return dnnl_primitive_create(&p->array[i].reorder, p->array[i].descriptor);
}

static dnnl_status_t prepare(primitive *p, shard_cpu_planner *planner)
{
    DNNL_TRY(start());
    DNNL_TRY(planner(&p->key, &p->plan, cache.engine, cache.attributes));
    p->scratch_bytes = dnnl_memory_desc_get_size(scratch_layout(p));
    for (int i = 0; i < p->plan.count; i++)
        DNNL_TRY(prepare_reorder(p, i));
    return dnnl_primitive_create(&p->main, p->plan.descriptor);
}

static void destroy(primitive *p)
{
    dnnl_primitive_destroy(p->main);
    dnnl_primitive_desc_destroy(p->plan.descriptor);
    for (int i = 0; i < p->plan.count; i++) {
        dnnl_primitive_destroy(p->array[i].reorder);
        dnnl_primitive_desc_destroy(p->array[i].descriptor);
        shard_dnnl_layout_destroy(&p->plan.plain[i]);
        shard_dnnl_layout_destroy(&p->plan.asked[i]);
    }
    free(p);
}

static primitive **bucket_of(const shard_cpu_key *key)
{
    uint64_t hash = 0;
    for (int i = 0; i < SHARD_CPU_KEY_WORDS; i++)
        hash = (hash ^ (uint64_t)key->word[i]) * 0x9E3779B97F4A7C15u;
    return &cache.bucket[hash >> 56];
}

/* Removes the least recently used primitive that is not in use. */
static void evict(void)
{
    primitive **oldest = NULL;
    for (int b = 0; b < BUCKETS; b++) {
        for (primitive **link = &cache.bucket[b]; *link; link = &(*link)->next) {
            if ((*link)->users == 0 && (!oldest || (*link)->last_use < (*oldest)->last_use))
                oldest = link;
        }
    }
    if (!oldest)
        return;
    primitive *p = *oldest;
    *oldest = p->next;
    cache.count--;
    destroy(p);
}

static primitive *find(const shard_cpu_key *key, int threads)
{
    for (primitive *p = *bucket_of(key); p; p = p->next) {
        if (p->threads == threads && memcmp(&p->key, key, sizeof *key) == 0)
            return p;
    }
    return NULL;
}

/* With the lock held: the key's primitive, with one user more. */
static primitive *obtain(const shard_cpu_key *key, shard_cpu_planner *planner)
{
    int threads = shard_cpu_threads();
    primitive *p = find(key, threads);
    if (!p) {
        p = shard_calloc(1, sizeof *p);
        if (!p)
            return NULL;
        p->key = *key;
        p->threads = threads;
        dnnl_status_t status = prepare(p, planner);
        if (status != dnnl_success && status != dnnl_unimplemented) {
            shard_cpu_dnnl_error("preparation of a computation", status);
            destroy(p);
            return NULL;
        }
        if (cache.count >= MOST_PRIMITIVES)
            evict();
        primitive **bucket = bucket_of(key);
        p->next = *bucket;
        *bucket = p;
        cache.count++;
    }
    p->users++;
    p->last_use = ++cache.uses;
    return p;
}

/* The memory objects and workspaces of one execution. */
typedef struct execution {
    void *scratch;
    dnnl_memory_t scratch_memory;
    void *workspace[SHARD_CPU_ARRAYS];
    dnnl_memory_t plain[SHARD_CPU_ARRAYS], used[SHARD_CPU_ARRAYS];
} execution;

static dnnl_status_t make_memory(dnnl_memory_t *memory, shard_dnnl_layout_borrowed layout, const void *data)
{
    return dnnl_memory_create(memory, layout, cache.engine, (void *)(uintptr_t)data);
}

static shard_status make_workspaces(shard_device *device, const primitive *p, execution *e)
{
    if (p->scratch_bytes > 0 && !(e->scratch = shard_cpu_scratch(device, p->scratch_bytes)))
        return SHARD_ERROR_MEMORY;
    for (int i = 0; i < p->plan.count; i++) {
        if (p->array[i].bytes > 0 && !(e->workspace[i] = shard_cpu_scratch(device, p->array[i].bytes)))
            return SHARD_ERROR_MEMORY;
    }
    return SHARD_OK;
}

/* An array of another layout, into the workspace or back. */
static dnnl_status_t reorder(const primitive *p, int i, const void *data, execution *e)
{
    bool output = is_output(p->plan.argument[i]);
    if (!p->array[i].reorder) {
        p->plan.packer(&p->key, p->plan.block, data, e->workspace[i]);
        return dnnl_success;
    }
    DNNL_TRY(make_memory(&e->plain[i], SHARD_DNNL_BORROW(&p->plan.plain[i]), data));
    dnnl_exec_arg_t arguments[] = {{DNNL_ARG_FROM, output ? e->used[i] : e->plain[i]},
                                   {DNNL_ARG_TO, output ? e->plain[i] : e->used[i]}};
    return dnnl_primitive_execute(p->array[i].reorder, cache.stream, 2, arguments);
}

static dnnl_status_t execute(const primitive *p, const void *const *data, execution *e)
{
    dnnl_exec_arg_t arguments[SHARD_CPU_ARRAYS + 1];
    int count = p->plan.count;
    if (e->scratch) {
        DNNL_TRY(make_memory(&e->scratch_memory, scratch_layout(p), e->scratch));
        arguments[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, e->scratch_memory};
    }
    for (int i = 0; i < p->plan.count; i++) {
        int argument = p->plan.argument[i];
        DNNL_TRY(make_memory(&e->used[i], layout_of(p->plan.descriptor, argument), e->workspace[i] ? e->workspace[i] : data[i]));
        arguments[i] = (dnnl_exec_arg_t){argument, e->used[i]};
        if (e->workspace[i] && !is_output(argument))
            DNNL_TRY(reorder(p, i, data[i], e));
    }
    DNNL_TRY(dnnl_primitive_execute(p->main, cache.stream, count, arguments));
    for (int i = 0; i < p->plan.count; i++) {
        if (e->workspace[i] && is_output(p->plan.argument[i]))
            DNNL_TRY(reorder(p, i, data[i], e));
    }
    return dnnl_stream_wait(cache.stream);
}

static void end_execution(shard_device *device, const primitive *p, execution *e)
{
    for (int i = 0; i < p->plan.count; i++) {
        dnnl_memory_destroy(e->plain[i]);
        dnnl_memory_destroy(e->used[i]);
        shard_cpu_scratch_release(device, e->workspace[i], p->array[i].bytes);
    }
    dnnl_memory_destroy(e->scratch_memory);
    shard_cpu_scratch_release(device, e->scratch, p->scratch_bytes);
}

shard_status shard_cpu_run(shard_device *device, const shard_cpu_key *key, shard_cpu_planner *planner, const void *const *data,
                           bool *there)
{
    pthread_mutex_lock(&cache.lock);
    primitive *p = obtain(key, planner);
    pthread_mutex_unlock(&cache.lock);
    if (!p)
        return shard_last_status();
    shard_status status = SHARD_OK;
    if (there)
        *there = p->main != NULL;
    if (p->main) {
        execution e = {0};
        status = make_workspaces(device, p, &e);
        dnnl_status_t result = status == SHARD_OK ? execute(p, data, &e) : dnnl_success;
        if (result != dnnl_success)
            status = shard_cpu_dnnl_error("computation", result);
        end_execution(device, p, &e);
    } else if (!there) {
        status = shard_cpu_dnnl_error("preparation of a computation", dnnl_unimplemented);
    }
    pthread_mutex_lock(&cache.lock);
    p->users--;
    pthread_mutex_unlock(&cache.lock);
    return status;
}
