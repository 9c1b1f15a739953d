#include "device/cuda/cuda_dnn.h"

#include "base/log.h"
#include "base/memory.h"
#include "device/cuda/cuda_cache.h"
#include "device/cuda/cuda_room.h"

#include <cudnn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { X = 1, WEIGHT, Y };      /* the tensors' names in a graph */
enum { MOST_DESCRIPTORS = 16 }; /* of one graph */
enum { ALIGNMENT = 16 };        /* that engines can make use of */
#define MOST_WORKSPACE ((int64_t)2 << 30)

struct shard_cuda_dnn {
    cudnnHandle_t handle;
    cudaStream_t stream; /* the handle's; NULL: none yet */
    shard_cuda_cache plans;
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
    cudnnBackendDescriptor_t configuration; /* must exist as long as plans made of it */
    int64_t index;                          /* cuDNN's number */
    unsigned numerical, behavior;           /* bits of its notes */
    choice choice;
} engine;

/* A convolution's engines; the one before `next` is in use, and those before that one have failed. */
typedef struct plan {
    engine *engines;
    int64_t count, next;
    cudnnBackendDescriptor_t execution;
    int64_t workspace;
    bool told;    /* which engine computes it */
    bool refused; /* by all engines */
} plan;

/* The handle and the plans are used by one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool lacks_memory(cudnnStatus_t status)
{
    return status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED;
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

static void destroy_execution(plan *p)
{
    if (p->execution)
        cudnnBackendDestroyDescriptor(p->execution);
    p->execution = NULL;
}

static void destroy_plan(void *value)
{
    plan *p = value;
    destroy_execution(p);
    for (int64_t i = 0; i < p->count; i++)
        cudnnBackendDestroyDescriptor(p->engines[i].configuration);
    free(p->engines);
    free(p);
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
        made->plans.destroy = destroy_plan;
        cuda->dnn = made;
    }
    *dnn = cuda->dnn;
    if ((*dnn)->stream == cuda->stream)
        return SHARD_OK;
    SHARD_TRY(check(cudnnSetStream((*dnn)->handle, cuda->stream), "cudnnSetStream"));
    (*dnn)->stream = cuda->stream;
    return SHARD_OK;
}

/* ---- descriptors ---- */

/* Descriptors as they are made, one after the other; the first failure stays. */
typedef struct graph {
    cudnnStatus_t status;
    int count;
    cudnnBackendDescriptor_t made[MOST_DESCRIPTORS];
} graph;

static cudnnBackendDescriptor_t begin(graph *g, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendCreateDescriptor(type, &descriptor);
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->made[g->count++] = descriptor;
    return descriptor;
}

static void set(graph *g, cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendSetAttribute(descriptor, name, type, count, values);
}

static void finish(graph *g, cudnnBackendDescriptor_t descriptor)
{
    if (g->status == CUDNN_STATUS_SUCCESS)
        g->status = cudnnBackendFinalize(descriptor);
}

static void destroy_graph(graph *g)
{
    for (int i = 0; i < g->count; i++)
        cudnnBackendDestroyDescriptor(g->made[i]);
}

static cudnnDataType_t type_of(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 ? CUDNN_DATA_BFLOAT16 : dtype == SHARD_FLOAT16 ? CUDNN_DATA_HALF : CUDNN_DATA_FLOAT;
}

/* Images [n, h, w, c], named in cuDNN's order n, c, h, w; weights are o images. */
static cudnnBackendDescriptor_t describe_images(graph *g, int64_t name, int64_t n, int64_t h, int64_t w, int64_t c,
                                                shard_dtype dtype, int64_t alignment)
{
    cudnnDataType_t type = type_of(dtype);
    cudnnBackendDescriptor_t images = begin(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(g, images, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &name);
    set(g, images, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, images, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    set(g, images, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, (const int64_t[]){n, c, h, w});
    set(g, images, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, (const int64_t[]){h * w * c, 1, w * c, c});
    finish(g, images);
    return images;
}

static cudnnBackendDescriptor_t describe_windows(graph *g, const shard_conv_shape *s)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    int64_t dimensions = 2, pads[] = {s->pad_h, s->pad_w}, strides[] = {s->stride_h, s->stride_w},
            dilations[] = {s->dilation_h, s->dilation_w};
    cudnnBackendDescriptor_t windows = begin(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, 1, &dimensions);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    set(g, windows, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    finish(g, windows);
    return windows;
}

/* The names of the three operations' attributes. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t windows, x, weight, y, alpha, beta;
} operations[] = {
    [SHARD_CUDA_CONV_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [SHARD_CUDA_CONV_BACKWARD_DATA] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                       CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
    [SHARD_CUDA_CONV_BACKWARD_WEIGHT] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
};

/* The channels of the images and of the weights determine the groups. */
static cudnnBackendDescriptor_t describe(graph *g, cudnnHandle_t handle, const shard_cuda_conv *c)
{
    const shard_conv_shape *s = c->shape;
    cudnnBackendDescriptor_t x = describe_images(g, X, s->n, s->h, s->w, s->c, c->dtype, shard_cuda_alignment(c->x, ALIGNMENT));
    cudnnBackendDescriptor_t weight =
        describe_images(g, WEIGHT, s->o, s->kh, s->kw, s->c / s->groups, c->dtype, shard_cuda_alignment(c->weight, ALIGNMENT));
    cudnnBackendDescriptor_t y = describe_images(g, Y, s->n, s->oh, s->ow, s->o, c->dtype, shard_cuda_alignment(c->y, ALIGNMENT));
    cudnnBackendDescriptor_t windows = describe_windows(g, s), operation = begin(g, operations[c->kind].type);
    float alpha = 1, beta = c->accumulate ? 1 : 0;
    set(g, operation, operations[c->kind].windows, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &windows);
    set(g, operation, operations[c->kind].x, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
    set(g, operation, operations[c->kind].weight, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &weight);
    set(g, operation, operations[c->kind].y, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
    set(g, operation, operations[c->kind].alpha, CUDNN_TYPE_FLOAT, 1, &alpha);
    set(g, operation, operations[c->kind].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    finish(g, operation);
    cudnnBackendDescriptor_t whole = begin(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(g, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &operation);
    finish(g, whole);
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
    graph g = {0};
    cudnnBackendDescriptor_t execution = begin(&g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(&g, execution, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    set(&g, execution, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
    finish(&g, execution);
    if (g.status == CUDNN_STATUS_SUCCESS)
        g.status =
            cudnnBackendGetAttribute(execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, workspace);
    if (g.status == CUDNN_STATUS_SUCCESS && *workspace > MOST_WORKSPACE)
        g.status = CUDNN_STATUS_NOT_SUPPORTED;
    *status = g.status;
    if (g.status == CUDNN_STATUS_SUCCESS)
        return execution;
    destroy_graph(&g);
    return NULL;
}

/* A heuristic, and how many configurations it names; none if it has not got such a graph. */
typedef struct advice {
    graph asked;
    cudnnBackendDescriptor_t heuristic;
    int64_t named;
} advice;

static advice ask(cudnnBackendDescriptor_t whole, cudnnBackendHeurMode_t mode)
{
    advice a = {0};
    a.heuristic = begin(&a.asked, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(&a.asked, a.heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &whole);
    set(&a.asked, a.heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    finish(&a.asked, a.heuristic);
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

static shard_cuda_key key_of(const shard_cuda_conv *c, bool allow_tf32)
{
    const shard_conv_shape *s = c->shape;
    int64_t alignments = shard_cuda_alignment(c->x, ALIGNMENT) | shard_cuda_alignment(c->weight, ALIGNMENT) << 8 |
                         shard_cuda_alignment(c->y, ALIGNMENT) << 16;
    return (shard_cuda_key){{(int64_t)c->kind << 8 | (int64_t)c->dtype << 2 | c->accumulate << 1 | allow_tf32, alignments, s->n,
                             s->h, s->w, s->c, s->o, s->kh, s->kw, s->oh, s->ow, s->stride_h, s->stride_w, s->pad_h, s->pad_w,
                             s->dilation_h, s->dilation_w, s->groups}};
}

/* Without engines if cuDNN has not got such a graph. NULL with the error set. */
static plan *make_plan(cudnnHandle_t handle, const shard_cuda_conv *c, bool allow_tf32)
{
    plan *p = shard_calloc(1, sizeof *p);
    if (!p)
        return NULL;
    graph g = {0};
    cudnnBackendDescriptor_t whole = describe(&g, handle, c);
    cudnnStatus_t category = CUDNN_STATUS_CATEGORY(g.status);
    shard_status status = SHARD_OK;
    if (g.status == CUDNN_STATUS_SUCCESS)
        status = add_engines(p, whole, c->dtype, allow_tf32);
    else if (category != CUDNN_STATUS_NOT_SUPPORTED && !(c->accumulate && category == CUDNN_STATUS_BAD_PARAM))
        status = check(g.status, "cudnnBackendFinalize");
    destroy_graph(&g);
    if (status == SHARD_OK)
        return p;
    destroy_plan(p);
    return NULL;
}

static shard_status find_plan(shard_device *device, struct shard_cuda_dnn *dnn, const shard_cuda_conv *c, plan **found)
{
    bool allow_tf32 = c->dtype == SHARD_FLOAT32 && device->allow_tf32;
    shard_cuda_key key = key_of(c, allow_tf32);
    void **kept = shard_cuda_cache_find(&dnn->plans, &key);
    if (!*kept)
        *kept = make_plan(dnn->handle, c, allow_tf32);
    *found = *kept;
    return *kept ? SHARD_OK : shard_last_status();
}

/* ---- logging ---- */

static const char *name_of(const shard_cuda_conv *c)
{
    static _Thread_local char text[160];
    static const char *const kinds[] = {"forward", "backward of the data", "backward of the weights"};
    const shard_conv_shape *s = c->shape;
    snprintf(text, sizeof text, "(%s, %s, %lld channels to %lld in %lld groups, kernel %lld x %lld)", kinds[c->kind],
             shard_dtype_name(c->dtype), (long long)s->c, (long long)s->o, (long long)s->groups, (long long)s->kh,
             (long long)s->kw);
    return text;
}

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

static void log_engine(const engine *e, const shard_cuda_conv *c, int64_t workspace)
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
    shard_log_message(
        SHARD_LOG_DEBUG,
        "cuda: cuDNN: a convolution %s is computed by engine %lld (numerical notes %s; behavior notes %s), %lld bytes "
        "of workspace",
        name_of(c), (long long)e->index,
        list(of_numbers, sizeof of_numbers, e->numerical, sizeof numerical / sizeof *numerical, numerical),
        list(of_behavior, sizeof of_behavior, e->behavior, sizeof behavior / sizeof *behavior, behavior), (long long)workspace);
    static bool warned;
    if (e->choice == REDUCED_PRECISION && !warned) {
        warned = true;
        shard_log_message(
            SHARD_LOG_WARN,
            "cuda: cuDNN has a convolution %s with sums of reduced precision only; this and others like it are computed "
            "so (SHARD_LOG=debug names each)",
            name_of(c));
    }
}

/* That engines are not there for a shape is usual; that one fails otherwise is not. */
static void log_failure(const plan *p, const shard_cuda_conv *c, bool usual, const char *why)
{
    shard_log_message(usual ? SHARD_LOG_DEBUG : SHARD_LOG_WARN,
                      "cuda: cuDNN: engine %lld fails to compute a convolution %s and is not tried again: %s",
                      (long long)p->engines[p->next - 1].index, name_of(c), why);
}

static void log_refused(const shard_cuda_conv *c)
{
    shard_log_message(SHARD_LOG_WARN,
                      "cuda: cuDNN refuses a convolution %s: it is computed as products of windows, which is slower", name_of(c));
}

/* ---- running ---- */

static cudnnStatus_t execute(cudnnHandle_t handle, const plan *p, const shard_cuda_conv *c, void *workspace)
{
    graph g = {0};
    cudnnBackendDescriptor_t pack = begin(&g, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, (const int64_t[]){X, WEIGHT, Y});
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, (void *const[]){c->x, c->weight, c->y});
    set(&g, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    finish(&g, pack);
    if (g.status == CUDNN_STATUS_SUCCESS)
        g.status = cudnnBackendExecute(handle, p->execution, pack);
    destroy_graph(&g);
    return g.status;
}

static bool next_execution(cudnnHandle_t handle, plan *p, const shard_cuda_conv *c)
{
    while (!p->execution && p->next < p->count) {
        cudnnStatus_t status;
        p->execution = make_execution(handle, p->engines[p->next++].configuration, &p->workspace, &status);
        if (!p->execution)
            log_failure(p, c, true, text_of(status));
    }
    return p->execution != NULL;
}

/* Runs the plan's current engine; *computed unless it fails. An error is one that no engine could avoid. */
static shard_status run_engine(shard_device *device, cudnnHandle_t handle, plan *p, const shard_cuda_conv *c, bool *computed,
                               bool *begun)
{
    bool fine = shard_last_status() == SHARD_OK;
    void *workspace = shard_cuda_scratch(device, (size_t)p->workspace);
    *computed = *begun = false;
    if (!workspace) {
        if (!fine || shard_last_status() != SHARD_ERROR_MEMORY)
            return shard_last_status();
        log_failure(p, c, false, shard_last_error());
        shard_clear_error();
        return SHARD_OK;
    }
    cudnnStatus_t status = SHARD_CUDA_WITH_ROOM(device, lacks_memory, execute(handle, p, c, workspace));
    shard_cuda_scratch_release(device, workspace, (size_t)p->workspace);
    *computed = status == CUDNN_STATUS_SUCCESS;
    *begun =
        CUDNN_STATUS_CATEGORY(status) != CUDNN_STATUS_NOT_SUPPORTED && CUDNN_STATUS_CATEGORY(status) != CUDNN_STATUS_BAD_PARAM;
    if (!*computed)
        log_failure(p, c, CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED, text_of(status));
    else if (!p->told)
        log_engine(&p->engines[p->next - 1], c, p->workspace);
    p->told = p->told || *computed;
    return SHARD_OK;
}

static shard_status convolve(shard_device *device, const shard_cuda_conv *c, bool *there)
{
    struct shard_cuda_dnn *dnn = NULL;
    plan *p;
    bool begun = false;
    *there = false;
    SHARD_TRY(open_dnn(device, &dnn));
    SHARD_TRY(find_plan(device, dnn, c, &p));
    /* An engine that failed may have added to the result, so the caller begins again. */
    while (!(begun && c->accumulate) && next_execution(dnn->handle, p, c)) {
        SHARD_TRY(run_engine(device, dnn->handle, p, c, there, &begun));
        if (*there)
            return SHARD_OK;
        destroy_execution(p);
        p->told = false;
    }
    if (!p->refused && !c->accumulate) /* which is tried without as well */
        log_refused(c);
    p->refused = true;
    return SHARD_OK;
}

shard_status shard_cuda_dnn_convolve(shard_device *device, const shard_cuda_conv *c, bool *there)
{
    pthread_mutex_lock(&lock);
    shard_status status = convolve(device, c, there);
    pthread_mutex_unlock(&lock);
    return status;
}
