#include "device/cuda/cuda_dnn.h"

#include "base/log.h"
#include "base/memory.h"
#include "device/cuda/cuda_room.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

struct shard_cuda_dnn {
    const shard_cuda *cuda;
    cudnnHandle_t handle;
    cudaStream_t stream; /* the handle's; NULL: none yet */
    shard_cuda_cache plans;
    struct plan *evicted; /* that graphs may use */
};

/* In the order in which they are tried, and within each in the order of cuDNN's heuristic. A fallback may be many
 * times slower than an engine that is compiled at run time, which costs seconds once. */
typedef enum choice {
    PRECOMPILED,
    RUNTIME_COMPILED,
    FALLBACK, /* as cuDNN calls its second heuristic */
    REDUCED_PRECISION,
    UNFIT,
} choice;

/* An engine as a heuristic configures it. */
typedef struct engine {
    cudnnBackendDescriptor_t configuration; /* must exist as long as the execution plan made of it */
    cudnnBackendDescriptor_t execution;     /* the execution plan; NULL: not made, or no longer needed */
    int64_t index;                          /* cuDNN's number */
    unsigned numerical, behavior;           /* bits of its notes */
    choice choice;
} engine;

/* A graph's engines; the one before `next` is in use, and those before that one have failed. */
typedef struct plan {
    struct shard_cuda_dnn *dnn;
    engine *engines;
    int64_t count, next;
    cudnnBackendDescriptor_t execution; /* of the engine in use; NULL: none is in use */
    int64_t workspace;
    bool logged;   /* which engine computes it */
    bool refused;  /* by all engines */
    bool captured; /* CUDA graphs may have its kernels, which exist as long as the execution plans */
    struct plan *next_evicted;
} plan;

/* The handle and the plans are used by one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool lacks_memory(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
}

/* Also what a kernel may end with whose code CUDA had no memory to load. */
static bool may_lack_memory(cudnnStatus_t status)
{
    return lacks_memory(status) || CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_EXECUTION_FAILED;
}

/* The status' name, and cuDNN's text for it. */
static const char *text_of(cudnnStatus_t status)
{
    static _Thread_local char text[640];
    char why[512] = "";
    cudnnGetLastErrorString(why, sizeof why);
    why[strcspn(why, "\n")] = '\0';
    snprintf(text, sizeof text, "%s%s%s", cudnnGetErrorString(status), *why ? ": " : "", why);
    return text;
}

static shard_status check(cudnnStatus_t status, const char *call)
{
    if (status == CUDNN_STATUS_SUCCESS)
        return SHARD_OK;
    return shard_error(lacks_memory(status) ? SHARD_ERROR_MEMORY : SHARD_ERROR_DEVICE, "cuda: %.*s: %s", (int)strcspn(call, "("),
                       call, text_of(status));
}

static void destroy_execution(engine *e)
{
    if (e->execution)
        cudnnBackendDestroyDescriptor(e->execution);
    e->execution = NULL;
}

/* The engine in use has failed. */
static void leave_engine(plan *p)
{
    if (!p->captured)
        destroy_execution(&p->engines[p->next - 1]);
    p->execution = NULL;
    p->logged = false;
}

static void destroy_plan(plan *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        destroy_execution(&p->engines[i]);
        cudnnBackendDestroyDescriptor(p->engines[i].configuration);
    }
    free(p->engines);
    free(p);
}

static void destroy_evicted(struct shard_cuda_dnn *dnn)
{
    while (dnn->evicted && !dnn->cuda->graphs) {
        plan *p = dnn->evicted;
        dnn->evicted = p->next_evicted;
        destroy_plan(p);
    }
}

static void evict_plan(void *value)
{
    plan *p = value;
    struct shard_cuda_dnn *dnn = p->dnn;
    if (p->captured) {
        p->next_evicted = dnn->evicted;
        dnn->evicted = p;
    } else {
        destroy_plan(p);
    }
    destroy_evicted(dnn);
}

/* With the lock held: the device's handle, made now if this is its first use. */
static shard_status open_dnn(shard_device *device, struct shard_cuda_dnn **dnn)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (!cuda->dnn) {
        struct shard_cuda_dnn *made = shard_calloc(1, sizeof *made);
        if (!made)
            return SHARD_ERROR_MEMORY;
        shard_status status = check(SHARD_CUDA_WITH_ROOM(device, lacks_memory, cudnnCreate(&made->handle)), "cudnnCreate");
        if (status != SHARD_OK) {
            free(made);
            return status;
        }
        made->cuda = cuda;
        made->plans.destroy = evict_plan;
        cuda->dnn = made;
    }
    *dnn = cuda->dnn;
    if ((*dnn)->stream == cuda->stream)
        return SHARD_OK;
    SHARD_TRY(check(cudnnSetStream((*dnn)->handle, cuda->stream), "cudnnSetStream"));
    (*dnn)->stream = cuda->stream;
    return SHARD_OK;
}

/* ---- graphs ---- */

static void destroy_graph(shard_cuda_dnn_graph *g)
{
    for (int i = 0; i < g->count; i++)
        cudnnBackendDestroyDescriptor(g->made[i]);
}

static cudnnBackendDescriptor_t describe(shard_cuda_dnn_graph *g, cudnnHandle_t handle, const shard_cuda_dnn_call *c)
{
    c->describe(g, c->of);
    cudnnBackendDescriptor_t whole = shard_cuda_dnn_begin(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    shard_cuda_dnn_set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    shard_cuda_dnn_set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->operation_count, g->operations);
    shard_cuda_dnn_finish(g, whole);
    return whole;
}

/* ---- choosing an engine ---- */

#define BIT(note) (1u << (note))

/* Bits of an engine's notes; all bits if cuDNN does not report them, or there are more than `known`. */
static unsigned notes_of(cudnnBackendDescriptor_t described, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         int64_t known)
{
    int notes[32]; /* of either enumeration */
    int64_t count = 0;
    unsigned bits = 0;
    if (cudnnBackendGetAttribute(described, name, type, known, &count, notes) != CUDNN_STATUS_SUCCESS || count > known)
        return UINT_MAX;
    for (int64_t i = 0; i < count; i++)
        bits |= notes[i] >= 0 && notes[i] < known ? BIT(notes[i]) : UINT_MAX;
    return bits;
}

/* Winograd's and Fourier's ways lose digits of float32. */
static choice choose(const engine *e, bool fallback, shard_dtype dtype, bool allow_tf32)
{
    unsigned fit = BIT(CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP);
    if (dtype != SHARD_FLOAT32 || allow_tf32)
        fit |= BIT(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
    if (dtype != SHARD_FLOAT32)
        fit |= BIT(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION);
    if (e->numerical & ~fit)
        return UNFIT;
    if (e->numerical & BIT(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION))
        return REDUCED_PRECISION;
    return fallback ? FALLBACK : e->behavior & BIT(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) ? RUNTIME_COMPILED : PRECOMPILED;
}

static engine engine_of(cudnnBackendDescriptor_t configuration, bool fallback, shard_dtype dtype, bool allow_tf32)
{
    engine e = {.configuration = configuration, .index = -1, .choice = UNFIT};
    cudnnBackendDescriptor_t described = NULL;
    int64_t count = 0;
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &described) != CUDNN_STATUS_SUCCESS)
        return e;
    if (cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count,
                                 &described) == CUDNN_STATUS_SUCCESS) {
        cudnnBackendGetAttribute(described, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &count, &e.index);
        e.numerical =
            notes_of(described, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT);
        e.behavior =
            notes_of(described, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, CUDNN_BEHAVIOR_NOTE_TYPE_COUNT);
        e.choice = choose(&e, fallback, dtype, allow_tf32);
    }
    cudnnBackendDestroyDescriptor(described);
    return e;
}

/* The plan of this configuration; NULL if there is none or it needs too much memory. */
static cudnnBackendDescriptor_t make_execution(cudnnHandle_t handle, cudnnBackendDescriptor_t configuration, int64_t *workspace,
                                               cudnnStatus_t *status)
{
    int64_t count = 0;
    shard_cuda_dnn_graph g = {0};
    cudnnBackendDescriptor_t execution = shard_cuda_dnn_begin(&g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    shard_cuda_dnn_set(&g, execution, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    shard_cuda_dnn_set(&g, execution, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
    shard_cuda_dnn_finish(&g, execution);
    if (g.status == CUDNN_STATUS_SUCCESS)
        g.status =
            cudnnBackendGetAttribute(execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, workspace);
    if (g.status == CUDNN_STATUS_SUCCESS && *workspace > SHARD_CUDA_DNN_MOST_WORKSPACE)
        g.status = CUDNN_STATUS_NOT_SUPPORTED;
    *status = g.status;
    if (g.status == CUDNN_STATUS_SUCCESS)
        return execution;
    destroy_graph(&g);
    return NULL;
}

/* A heuristic, and how many configurations it names; none if it has not got such a graph. */
typedef struct advice {
    shard_cuda_dnn_graph asked;
    cudnnBackendDescriptor_t heuristic;
    int64_t named;
} advice;

static advice ask(cudnnBackendDescriptor_t whole, cudnnBackendHeurMode_t mode)
{
    advice a = {0};
    a.heuristic = shard_cuda_dnn_begin(&a.asked, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    shard_cuda_dnn_set(&a.asked, a.heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &whole);
    shard_cuda_dnn_set(&a.asked, a.heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    shard_cuda_dnn_finish(&a.asked, a.heuristic);
    if (a.asked.status != CUDNN_STATUS_SUCCESS ||
        cudnnBackendGetAttribute(a.heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &a.named, NULL) !=
            CUDNN_STATUS_SUCCESS)
        a.named = 0;
    return a;
}

/* Puts an engine behind those that are tried before it; there is room. */
static void insert(plan *p, engine e)
{
    int64_t at = p->count++;
    for (; at > 0 && p->engines[at - 1].choice > e.choice; at--)
        p->engines[at] = p->engines[at - 1];
    p->engines[at] = e;
}

/* Adds the usable configurations of a heuristic; all: room for as many. */
static void take_advice(plan *p, const advice *a, cudnnBackendDescriptor_t *all, bool fallback, shard_dtype dtype,
                        bool allow_tf32)
{
    int64_t made = 0, filled = 0;
    while (made < a->named &&
           cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &all[made]) == CUDNN_STATUS_SUCCESS)
        made++;
    if (made > 0 && cudnnBackendGetAttribute(a->heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, made,
                                             &filled, all) != CUDNN_STATUS_SUCCESS)
        filled = 0;
    for (int64_t i = 0; i < made; i++) {
        engine e = {.choice = UNFIT};
        if (i < filled)
            e = engine_of(all[i], fallback, dtype, allow_tf32);
        if (e.choice == UNFIT)
            cudnnBackendDestroyDescriptor(all[i]);
        else
            insert(p, e);
    }
}

static shard_status add_engines(plan *p, cudnnBackendDescriptor_t whole, shard_dtype dtype, bool allow_tf32)
{
    advice best = ask(whole, CUDNN_HEUR_MODE_A), others = ask(whole, CUDNN_HEUR_MODE_FALLBACK);
    int64_t named = best.named + others.named + 1;
    cudnnBackendDescriptor_t *all = shard_calloc((size_t)named, sizeof *all);
    p->engines = shard_calloc((size_t)named, sizeof *p->engines);
    bool fits = all && p->engines;
    if (fits) {
        take_advice(p, &best, all, false, dtype, allow_tf32);
        take_advice(p, &others, all, true, dtype, allow_tf32);
    }
    destroy_graph(&best.asked);
    destroy_graph(&others.asked);
    free(all);
    return fits ? SHARD_OK : SHARD_ERROR_MEMORY;
}

/* cuDNN allocates memory and loads kernels for it. */
static shard_status refuse_in_capture(shard_device *device, const shard_cuda_dnn_call *c)
{
    char what[300];
    snprintf(what, sizeof what, "making cuDNN's plan for %s", c->name(c->of));
    return shard_cuda_refuse_in_capture(shard_cuda_of(device), what);
}

/* Without engines if cuDNN has not got such a graph. NULL with the error set. */
static plan *make_plan(struct shard_cuda_dnn *dnn, const shard_cuda_dnn_call *c, bool allow_tf32)
{
    plan *p = shard_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    p->dnn = dnn;
    shard_cuda_dnn_graph g = {0};
    cudnnBackendDescriptor_t whole = describe(&g, dnn->handle, c);
    cudnnStatus_t category = CUDNN_STATUS_CATEGORY(g.status);
    shard_status status = SHARD_OK;
    if (g.status == CUDNN_STATUS_SUCCESS)
        status = add_engines(p, whole, c->dtype, allow_tf32);
    else if (category != CUDNN_STATUS_NOT_SUPPORTED && !(c->optional && category == CUDNN_STATUS_BAD_PARAM))
        status = check(g.status, "cudnnBackendFinalize");
    else
        shard_log_message(SHARD_LOG_DEBUG, "cuda: cuDNN has no graph for %s: %s", c->name(c->of), text_of(g.status));
    destroy_graph(&g);
    if (status == SHARD_OK)
        return p;
    destroy_plan(p);
    return NULL;
}

static shard_status find_plan(shard_device *device, struct shard_cuda_dnn *dnn, const shard_cuda_dnn_call *c, plan **found)
{
    bool allow_tf32 = c->dtype == SHARD_FLOAT32 && device->allow_tf32;
    shard_cuda_key key = c->key;
    key.word[SHARD_CUDA_KEY_WORDS - 2] = (int64_t)(intptr_t)c->describe;
    key.word[SHARD_CUDA_KEY_WORDS - 1] = allow_tf32;
    void **kept = shard_cuda_cache_find(&dnn->plans, &key);
    if (!*kept && refuse_in_capture(device, c) == SHARD_OK)
        *kept = make_plan(dnn, c, allow_tf32);
    *found = *kept;
    return *kept ? SHARD_OK : shard_last_status();
}

/* ---- logging ---- */

/* The set bits' names after the other, "none" without. */
static const char *list(char *text, size_t room, unsigned bits, int count, const char *const *names)
{
    size_t used = 0;
    snprintf(text, room, "none");
    for (int i = 0; i < count; i++)
        if (bits & BIT(i) && used < room)
            used += (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "", names[i]);
    return text;
}

static void log_engine(const engine *e, const shard_cuda_dnn_call *c, int64_t workspace)
{
    static const char *const numerical[] = {
        [CUDNN_NUMERICAL_NOTE_TENSOR_CORE] = "TENSOR_CORE",
        [CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS] = "DOWN_CONVERT_INPUTS",
        [CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION] = "REDUCED_PRECISION_REDUCTION",
        [CUDNN_NUMERICAL_NOTE_FFT] = "FFT",
        [CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC] = "NONDETERMINISTIC",
        [CUDNN_NUMERICAL_NOTE_WINOGRAD] = "WINOGRAD",
        [CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4] = "WINOGRAD_TILE_4x4",
        [CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6] = "WINOGRAD_TILE_6x6",
        [CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13] = "WINOGRAD_TILE_13x13",
        [CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP] = "STRICT_NAN_PROP",
    };
    static const char *const behavior[] = {"RUNTIME_COMPILATION", "REQUIRES_FILTER_INT8x32_REORDER",
                                           "REQUIRES_BIAS_INT8x32_REORDER", "SUPPORTS_CUDA_GRAPH_NATIVE_API",
                                           "CUBLASLT_DEPENDENCY"};
    char of_numbers[200], of_behavior[200];
    shard_log_message(SHARD_LOG_DEBUG,
                      "cuda: cuDNN: %s is computed by engine %lld (numerical notes %s; behavior notes %s), %lld bytes "
                      "of workspace",
                      c->name(c->of), (long long)e->index,
                      list(of_numbers, sizeof of_numbers, e->numerical, sizeof numerical / sizeof *numerical, numerical),
                      list(of_behavior, sizeof of_behavior, e->behavior, sizeof behavior / sizeof *behavior, behavior),
                      (long long)workspace);
    static bool warned;
    if (e->choice == REDUCED_PRECISION && !warned) {
        warned = true;
        shard_log_message(SHARD_LOG_WARN,
                          "cuda: cuDNN has %s with sums of reduced precision only; this and others like it are computed "
                          "so (SHARD_LOG=debug names each)",
                          c->name(c->of));
    }
}

/* That engines are not there for a shape is usual; that one fails otherwise is not. */
static void log_failure(const plan *p, const shard_cuda_dnn_call *c, bool usual, const char *why)
{
    shard_log_message(usual ? SHARD_LOG_DEBUG : SHARD_LOG_WARN,
                      "cuda: cuDNN: engine %lld fails to compute %s and is not tried again: %s",
                      (long long)p->engines[p->next - 1].index, c->name(c->of), why);
}

static void log_refused(const shard_cuda_dnn_call *c)
{
    shard_log_message(SHARD_LOG_WARN, "cuda: cuDNN refuses %s: it is computed %s, which is slower", c->name(c->of), c->instead);
}

/* ---- running ---- */

static cudnnStatus_t execute(cudnnHandle_t handle, const plan *p, const shard_cuda_dnn_call *c, void *workspace)
{
    shard_cuda_dnn_graph g = {0};
    cudnnBackendDescriptor_t pack = shard_cuda_dnn_begin(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    shard_cuda_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, c->count, c->names);
    shard_cuda_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, c->count, c->data);
    shard_cuda_dnn_set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    shard_cuda_dnn_finish(&g, pack);
    if (g.status == CUDNN_STATUS_SUCCESS)
        g.status = cudnnBackendExecute(handle, p->execution, pack);
    destroy_graph(&g);
    return g.status;
}

/* Makes the next engine's execution plan if none is in use. False: there is none, or with the error set that no engine could
 * avoid. */
static bool next_execution(shard_device *device, cudnnHandle_t handle, plan *p, const shard_cuda_dnn_call *c)
{
    bool fine = shard_last_status() == SHARD_OK;
    while (!p->execution && p->next < p->count) {
        cudnnStatus_t status;
        engine *e = &p->engines[p->next++];
        e->execution = make_execution(handle, e->configuration, &p->workspace, &status);
        if (!e->execution && may_lack_memory(status) && shard_cuda_make_room(device))
            e->execution = make_execution(handle, e->configuration, &p->workspace, &status);
        if (fine && shard_last_status() != SHARD_OK) { /* the wait for room has failed, not the engine */
            p->next--;
            return false;
        }
        p->execution = e->execution;
        if (!p->execution)
            log_failure(p, c, !may_lack_memory(status), text_of(status));
    }
    return p->execution != NULL;
}

/* Runs the plan's current engine; *computed unless it fails, *begun where it may have written, *waits where it is to be tried
 * again. An error is one that no engine could avoid. */
static shard_status run_engine(shard_device *device, cudnnHandle_t handle, plan *p, const shard_cuda_dnn_call *c, bool *computed,
                               bool *begun, bool *waits)
{
    bool fine = shard_last_status() == SHARD_OK;
    void *workspace = shard_cuda_scratch(device, (size_t)p->workspace);
    *computed = *begun = *waits = false;
    if (!workspace) {
        if (!fine || shard_last_status() != SHARD_ERROR_MEMORY)
            return shard_last_status();
        *waits = c->asks_again;
        if (!*waits)
            log_failure(p, c, false, shard_last_error());
        shard_clear_error();
        return SHARD_OK;
    }
    cudnnStatus_t status = execute(handle, p, c, workspace);
    /* One that failed in execution may have added to the result. */
    if ((c->accumulate ? lacks_memory(status) : may_lack_memory(status)) && shard_cuda_make_room(device))
        status = execute(handle, p, c, workspace);
    bool waited = !fine || shard_last_status() == SHARD_OK;
    shard_cuda_scratch_release(device, workspace, (size_t)p->workspace);
    if (!waited) /* for room */
        return shard_last_status();
    *computed = status == CUDNN_STATUS_SUCCESS;
    *begun =
        CUDNN_STATUS_CATEGORY(status) != CUDNN_STATUS_NOT_SUPPORTED && CUDNN_STATUS_CATEGORY(status) != CUDNN_STATUS_BAD_PARAM;
    if (!*computed)
        log_failure(p, c, CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED, text_of(status));
    else if (!p->logged)
        log_engine(&p->engines[p->next - 1], c, p->workspace);
    p->logged = p->logged || *computed;
    p->captured = p->captured || shard_cuda_of(device)->capture;
    return SHARD_OK;
}

static shard_status run(shard_device *device, const shard_cuda_dnn_call *c, bool *there)
{
    struct shard_cuda_dnn *dnn = NULL;
    plan *p;
    bool begun = false, waits, fine = shard_last_status() == SHARD_OK;
    *there = false;
    if (!shard_cuda_of(device)->dnn)
        SHARD_TRY(refuse_in_capture(device, c));
    SHARD_TRY(open_dnn(device, &dnn));
    SHARD_TRY(find_plan(device, dnn, c, &p));
    /* An engine that failed may have added to the result, so the caller begins again. */
    while (!(begun && c->accumulate) && next_execution(device, dnn->handle, p, c)) {
        SHARD_TRY(run_engine(device, dnn->handle, p, c, there, &begun, &waits));
        if (*there || waits)
            return SHARD_OK;
        leave_engine(p);
    }
    if (fine && shard_last_status() != SHARD_OK)
        return shard_last_status();
    if (!p->refused && !c->accumulate) /* which is tried without as well */
        log_refused(c);
    p->refused = true;
    return SHARD_OK;
}

shard_status shard_cuda_dnn_run(shard_device *device, const shard_cuda_dnn_call *c, bool *there)
{
    pthread_mutex_lock(&lock);
    shard_status status = run(device, c, there);
    pthread_mutex_unlock(&lock);
    return status;
}
