/* Attention by cuDNN. The heads are computed some at a time, so that what a backward stores of their scores stays small. */
#include "device/cuda/cuda_attention.h"

#include "base/log.h"
#include "base/math.h"
#include "device/cuda/cuda_dnn.h"
#include "device/cuda/cuda_dnn_attention_graph.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>

enum {
    LEAST_QUERIES = 64,    /* no plan for fewer, as where text is generated, with another number of keys in each step */
    LEAST_VERSION = 91600, /* errs where keys are no multiple of 128 before it */
    HOPPER = 9,            /* the last compute capability on which the backward's form is known to repeat its bits */
    FEATURES = 8,          /* are multiples of it */
    TILE = 128,            /* scores are stored in whole tiles */
    MOST_HEADS = 32768,    /* key heads at a time, of 65535 that a dimension of a launch can have */
};

typedef struct attention {
    shard_attention_graph graph;
    bool backward;
    char *data[ATTENTION_SCALE]; /* of the tensors in memory, by their names */
} attention;

static void describe(shard_cuda_dnn_graph *g, const void *of)
{
    shard_cuda_dnn_describe_attention(g, &((const attention *)of)->graph);
}

static void describe_backward(shard_cuda_dnn_graph *g, const void *of)
{
    shard_cuda_dnn_describe_attention_backward(g, &((const attention *)of)->graph);
}

static const char *name_of(const void *of)
{
    static _Thread_local char text[250];
    const attention *a = of;
    const shard_attention_shape *s = &a->graph.shape;
    snprintf(text, sizeof text,
             "attention (%s, %s, %lld queries, %lld keys, %lld key heads of %lld heads, %lld and %lld features%s)",
             a->backward ? "backward" : "forward", shard_dtype_name(a->graph.dtype), (long long)s->queries, (long long)s->keys,
             (long long)s->batch, (long long)s->heads, (long long)s->in, (long long)s->out, s->causal ? ", causal" : "");
    return text;
}

static void put(shard_cuda_dnn_call *call, int64_t name, const void *data)
{
    call->names[call->count] = name;
    call->data[call->count++] = (void *)(uintptr_t)data;
}

static shard_status run(shard_device *device, const attention *a, bool *there)
{
    const shard_attention_shape *s = &a->graph.shape;
    const float scale = (float)s->scale, one = 1, lowest = -INFINITY;
    const int32_t offset = (int32_t)shard_min(s->offset, s->keys);
    bool shifted = s->causal && s->offset > 0;
    shard_cuda_dnn_call call = {
        .describe = a->backward ? describe_backward : describe,
        .name = name_of,
        .instead = "by kernels without tensor cores",
        .of = a,
        .key = {{a->graph.dtype, s->batch, s->heads, s->queries, s->keys, s->in, s->out, s->causal, shifted}},
        .dtype = a->graph.dtype,
        .optional = true,
        .asks_again = true,
    };
    for (int64_t name = ATTENTION_QUERY; name <= (a->backward ? ATTENTION_TERM : ATTENTION_LSE); name++)
        put(&call, name, a->data[name]);
    put(&call, ATTENTION_SCALE, &scale);
    if (a->backward)
        put(&call, ATTENTION_ONE, &one);
    if (s->causal)
        put(&call, ATTENTION_LOWEST, &lowest);
    if (shifted)
        put(&call, ATTENTION_OFFSET, &offset);
    return shard_cuda_dnn_run(device, &call, there);
}

/* The bytes of the gradients of a key head's scores. */
static double score_bytes(const attention *a)
{
    const shard_attention_shape *s = &a->graph.shape;
    return (double)s->heads * (double)shard_round_up(s->queries, TILE) * (double)shard_round_up(s->keys, TILE) *
           (double)shard_dtype_size(a->graph.dtype);
}

/* Whether it is for cuDNN at all. */
static bool suits(const attention *a)
{
    const shard_attention_shape *s = &a->graph.shape;
    const int64_t sizes[] = {s->batch, s->heads, s->queries, s->keys, s->in, s->out};
    for (int i = 0; i < (int)(sizeof sizes / sizeof *sizes); i++)
        if (sizes[i] < 1 || sizes[i] > INT32_MAX / 2)
            return false;
    return shard_dtype_size(a->graph.dtype) == 2 && s->queries >= LEAST_QUERIES;
}

/* Why cuDNN is not asked. */
typedef enum hindrance { OLD, OTHER_FEATURES, UNALIGNED, OTHER_BITS, LARGE, NONE } hindrance;

static const char *const hindrances[NONE] = {
    [OLD] = "cuDNN is older than 9.16",
    [OTHER_FEATURES] = "its features are no multiples of 8",
    [UNALIGNED] = "an operand is not aligned to 16 bytes",
    [OTHER_BITS] = "on this GPU cuDNN's backward is not known to give the same bits in each run",
    [LARGE] = "the gradients of a key head's scores take 2 GiB or more",
};

static hindrance hindrance_of(const shard_device *device, const attention *a)
{
    const shard_attention_shape *s = &a->graph.shape;
    if (cudnnGetVersion() < LEAST_VERSION)
        return OLD;
    if (s->in % FEATURES != 0 || s->out % FEATURES != 0)
        return OTHER_FEATURES;
    for (int name = ATTENTION_QUERY; name < ATTENTION_SCALE; name++)
        if (shard_cuda_alignment(a->data[name], ATTENTION_ALIGNMENT) < ATTENTION_ALIGNMENT)
            return UNALIGNED;
    if (a->backward && shard_cuda_of(device)->major > HOPPER)
        return OTHER_BITS;
    return a->backward && score_bytes(a) >= (double)SHARD_CUDA_DNN_MOST_WORKSPACE ? LARGE : NONE;
}

/* Each reason once. */
static void log_hindrance(const attention *a, hindrance why)
{
    static atomic_bool warned[NONE];
    if (!atomic_exchange(&warned[why], true))
        shard_log_message(SHARD_LOG_WARN, "cuda: %s is computed by kernels without tensor cores, which is slower: %s", name_of(a),
                          hindrances[why]);
}

/* So many that the parts have one size, or the last one a few less. */
static int64_t heads_at_a_time(const shard_device *device, const attention *a)
{
    double most = a->backward ? (double)shard_cuda_of(device)->attention_workspace / score_bytes(a) : MOST_HEADS;
    int64_t batch = a->graph.shape.batch, step = most < 1 ? 1 : most < MOST_HEADS ? (int64_t)most : MOST_HEADS;
    return shard_divide_up(batch, shard_divide_up(batch, step));
}

/* The bytes of a tensor of one key head. */
static size_t bytes_of(const attention *a, int64_t name)
{
    const shard_attention_shape *s = &a->graph.shape;
    size_t queries = (size_t)(s->heads * s->queries), keys = (size_t)s->keys, size = shard_dtype_size(a->graph.dtype);
    switch (name) {
    case ATTENTION_QUERY:
    case ATTENTION_DQUERY:
        return queries * (size_t)s->in * size;
    case ATTENTION_KEY:
    case ATTENTION_DKEY:
        return keys * (size_t)s->in * size;
    case ATTENTION_VALUE:
    case ATTENTION_DVALUE:
        return keys * (size_t)s->out * size;
    case ATTENTION_Y:
    case ATTENTION_DY:
        return queries * (size_t)s->out * size;
    default:
        return queries * sizeof(float);
    }
}

/* The memory of the tensors that the caller has not got is scratch: of as many key heads as are computed at a time. The last ones
 * are as many as all others, of which few are computed twice, so that one plan computes all. */
static shard_status run_all(shard_device *device, const attention *all, double *lse, bool *there)
{
    const shard_attention_shape *s = &all->graph.shape;
    int64_t step = heads_at_a_time(device, all), rows = s->heads * s->queries;
    int64_t last = all->backward ? ATTENTION_TERM : ATTENTION_LSE;
    size_t bytes = 0, at[ATTENTION_SCALE] = {0};
    bool fine = shard_last_status() == SHARD_OK;
    for (int64_t name = ATTENTION_QUERY; name <= last; name++)
        if (!all->data[name]) {
            at[name] = bytes;
            bytes += (size_t)shard_round_up((int64_t)bytes_of(all, name) * step, SHARD_CUDA_ALIGN);
        }
    char *scratch = shard_cuda_scratch(device, bytes);
    if (!scratch && fine && shard_last_status() == SHARD_ERROR_MEMORY) { /* the kernels need less */
        shard_clear_error();
        return SHARD_OK;
    }
    shard_status status = scratch ? SHARD_OK : shard_last_status();
    *there = true;
    for (int64_t next = 0; next < s->batch && status == SHARD_OK && *there; next += step) {
        int64_t from = shard_min(next, s->batch - step);
        attention a = *all;
        a.graph.shape.batch = step;
        for (int64_t name = ATTENTION_QUERY; name <= last; name++)
            a.data[name] = all->data[name] ? all->data[name] + (size_t)from * bytes_of(all, name) : scratch + at[name];
        if (a.backward)
            status = shard_cuda_cast(device, step * rows, lse + from * rows, SHARD_FLOAT64, a.data[ATTENTION_LSE], SHARD_FLOAT32);
        if (status == SHARD_OK)
            status = run(device, &a, there);
        if (status == SHARD_OK && *there && !a.backward)
            status = shard_cuda_cast(device, step * rows, a.data[ATTENTION_LSE], SHARD_FLOAT32, lse + from * rows, SHARD_FLOAT64);
    }
    shard_cuda_scratch_release(device, scratch, bytes);
    return status;
}

static shard_status run_if_suited(shard_device *device, const attention *a, double *lse, bool *there)
{
    *there = false;
    if (!suits(a))
        return SHARD_OK;
    hindrance why = hindrance_of(device, a);
    if (why == NONE)
        return run_all(device, a, lse, there);
    log_hindrance(a, why);
    return SHARD_OK;
}

static attention attention_of(const shard_attention_shape *s, shard_dtype dtype, bool backward)
{
    attention a = {.graph = {*s, dtype}, .backward = backward};
    a.graph.shape.batch = s->batch * s->key_heads;
    a.graph.shape.heads = shard_attention_group(s);
    a.graph.shape.key_heads = 1;
    return a;
}

shard_status shard_cuda_dnn_attention(shard_device *device, const shard_attention_shape *s, const void *query, const void *key,
                                      const void *value, void *y, double *lse, shard_dtype dtype, bool *there)
{
    attention a = attention_of(s, dtype, false);
    a.data[ATTENTION_QUERY] = (char *)(uintptr_t)query;
    a.data[ATTENTION_KEY] = (char *)(uintptr_t)key;
    a.data[ATTENTION_VALUE] = (char *)(uintptr_t)value;
    a.data[ATTENTION_Y] = y;
    return run_if_suited(device, &a, lse, there);
}

shard_status shard_cuda_dnn_attention_backward(shard_device *device, const shard_attention_shape *s, const void *query,
                                               const void *key, const void *value, const void *y, const double *lse,
                                               const void *dy, void *dquery, void *dkey, void *dvalue, shard_dtype dtype,
                                               bool *there)
{
    attention a = attention_of(s, dtype, true);
    a.data[ATTENTION_QUERY] = (char *)(uintptr_t)query;
    a.data[ATTENTION_KEY] = (char *)(uintptr_t)key;
    a.data[ATTENTION_VALUE] = (char *)(uintptr_t)value;
    a.data[ATTENTION_Y] = (char *)(uintptr_t)y;
    a.data[ATTENTION_DY] = (char *)(uintptr_t)dy;
    a.data[ATTENTION_DQUERY] = dquery;
    a.data[ATTENTION_DKEY] = dkey;
    a.data[ATTENTION_DVALUE] = dvalue;
    return run_if_suited(device, &a, (double *)(uintptr_t)lse, there);
}
