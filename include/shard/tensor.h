/*
 * shard/tensor.h: tensors, their placement over ranks, scopes, named lists.
 *
 * A tensor is contiguous, row-major, of up to 8 dimensions; images are [n, h, w,
 * c]. What a maker returns belongs to the innermost open scope of the thread and
 * goes with it; with no scope open it belongs to the caller, who releases it (a thread
 * on which 10,000 of these live logs one warning).
 * Tensors belong to one thread.
 */
#ifndef SHARD_TENSOR_H
#define SHARD_TENSOR_H

#include <shard/comm.h>
#include <shard/device.h>

SHARD_BEGIN_C

typedef struct shard_tensor shard_tensor;

#define SHARD_MAX_DIMS 8

typedef struct shard_shape {
    int ndim; /* 0: one element, a scalar */
    int64_t dim[SHARD_MAX_DIMS];
} shard_shape;

/* SHARD_SHAPE(2, 3); a scalar is SHARD_SCALAR. */
#define SHARD_SHAPE(...) \
    ((shard_shape){.ndim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .dim = {__VA_ARGS__}})
#define SHARD_SCALAR ((shard_shape){.ndim = 0})

/*
 * Where a tensor's whole value is:
 *   LOCAL       here. Nothing is said of other ranks: they may hold the same value or another;
 *   SPLIT       this rank has part [start, start + own size) of `whole` along
 *               dim, the group's other members the rest;
 *   PARTIAL     the whole value is the sum of the members' tensors.
 * Every operation has a rule that carries it on, and refuses what it has no rule
 * for. As PyTorch's DTensor: Replicate, Shard, Partial.
 */
typedef enum shard_placement_kind { SHARD_LOCAL = 0, SHARD_SPLIT, SHARD_PARTIAL } shard_placement_kind;

typedef struct shard_placement {
    shard_placement_kind kind;
    int dim;
    shard_group *group;
    int64_t start, whole;
} shard_placement;

typedef struct shard_tensor_options {
    size_t size;
    shard_dtype dtype;    /* float32 */
    shard_device *device; /* NULL: shard_device_open(NULL) */
    bool requires_grad;   /* a leaf whose gradient shard_backward computes */
} shard_tensor_options;
#define SHARD_TENSOR_OPTIONS_INIT {sizeof(shard_tensor_options), SHARD_FLOAT32, NULL, false}

/*
 * The makers' arguments: first those by position, then the options by name, in one initialiser. So an argument
 * may also be a compound literal, whose commas divide the arguments of a macro but not an initialiser:
 * shard_from_host((float[]){1, 2, 3}, SHARD_SHAPE(3)). Each macro hands them to the function of its name and
 * _with.
 *
 * The macro adds a value of a type of its own behind them. It fits only behind the last argument by position or
 * behind an option, so a call that leaves an argument out does not compile.
 */
typedef struct shard_missing_argument {
    char reserved;
} shard_missing_argument;
#define SHARD_ARGUMENTS(type, ...) ((type){__VA_ARGS__, (shard_missing_argument){0}, .reserved = 0})
#define SHARD_ARGUMENT_OPTIONS              \
    shard_missing_argument after_arguments; \
    shard_dtype dtype;                      \
    shard_missing_argument after_dtype;     \
    shard_device *device;                   \
    shard_missing_argument after_device;    \
    bool requires_grad;                     \
    shard_missing_argument after_grad;      \
    int reserved;
#define SHARD_OPTIONS_OF(all) \
    (&(shard_tensor_options){sizeof(shard_tensor_options), (all).dtype, (all).device, (all).requires_grad})

typedef struct shard_empty_arguments {
    shard_shape shape;
    SHARD_ARGUMENT_OPTIONS
} shard_empty_arguments;

typedef struct shard_full_arguments {
    shard_shape shape;
    double value;
    SHARD_ARGUMENT_OPTIONS
} shard_full_arguments;

typedef struct shard_from_host_arguments {
    const void *data;
    shard_shape shape;
    SHARD_ARGUMENT_OPTIONS
} shard_from_host_arguments;

typedef struct shard_random_arguments {
    shard_shape shape;
    double first, second;
    SHARD_ARGUMENT_OPTIONS
} shard_random_arguments;

/* ---- makers; NULL with the error set. Not collective. ---- */

/* shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64). Content of shard_empty
 * is undefined. */
#define shard_empty(...) shard_empty_of(SHARD_ARGUMENTS(shard_empty_arguments, __VA_ARGS__))
#define shard_zeros(...) shard_filled_of(0.0, SHARD_ARGUMENTS(shard_empty_arguments, __VA_ARGS__))
#define shard_ones(...) shard_filled_of(1.0, SHARD_ARGUMENTS(shard_empty_arguments, __VA_ARGS__))
#define shard_full(...) shard_full_of(SHARD_ARGUMENTS(shard_full_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_empty_with(shard_shape shape, const shard_tensor_options *options);
SHARD_API shard_tensor *shard_full_with(shard_shape shape, double value, const shard_tensor_options *options);

/* Copies numel elements of options.dtype from host memory. */
#define shard_from_host(...) shard_from_host_of(SHARD_ARGUMENTS(shard_from_host_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_from_host_with(const void *data, shard_shape shape, const shard_tensor_options *options);

/* The same without waiting, from memory of shard_allocate_host (or other pinned memory): the copy goes beside
 * what the device computes, and what is computed with the tensor waits for it there. A batch that is
 * copied so while the step before it is computed costs no time. data may be overwritten after the
 * shard_event_synchronize of an event that was recorded later, or after shard_synchronize, but not
 * after shard_item or shard_copy_to_host. As tensor.to(device, non_blocking=True) on a stream of its own
 * in torch. The CPU copies at once. */
#define shard_from_host_async(...) shard_from_host_async_of(SHARD_ARGUMENTS(shard_from_host_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_from_host_async_with(const void *data, shard_shape shape, const shard_tensor_options *options);

/* Frees memory that was given to shard_from_memory. Called once, in the thread of the last tensor on it. */
typedef void shard_release_memory(void *context);

/* A tensor on the caller's memory, row-major and aligned to dtype's size, without a copy; of a device's own memory
 * where device is a GPU. The memory must stay until release(context), which is called when the last tensor on it is
 * released and the device has done what was queued; after an error it is not called. NULL for release: nothing is
 * called, and the memory stays longer than all tensors on it. It is not in the memory statistics. NULL for device:
 * shard_device_open(NULL). NULL with the error set (ARGUMENT). As torch.from_blob. Not collective. */
SHARD_API shard_tensor *shard_from_memory(void *memory, shard_shape shape, shard_dtype dtype, shard_device *device,
                                          shard_release_memory *release, void *context);

/* Uniform in [low, high) and normal; take the next draw of the thread's
 * generator. The values are made when they are first needed. */
#define shard_uniform(...) shard_uniform_of(SHARD_ARGUMENTS(shard_random_arguments, __VA_ARGS__))
#define shard_normal(...) shard_normal_of(SHARD_ARGUMENTS(shard_random_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_uniform_with(shard_shape shape, double low, double high, const shard_tensor_options *options);
SHARD_API shard_tensor *shard_normal_with(shard_shape shape, double mean, double std, const shard_tensor_options *options);

#ifndef __cplusplus
static inline shard_tensor *shard_empty_of(shard_empty_arguments all)
{
    return shard_empty_with(all.shape, SHARD_OPTIONS_OF(all));
}

static inline shard_tensor *shard_filled_of(double value, shard_empty_arguments all)
{
    return shard_full_with(all.shape, value, SHARD_OPTIONS_OF(all));
}

static inline shard_tensor *shard_full_of(shard_full_arguments all)
{
    return shard_full_with(all.shape, all.value, SHARD_OPTIONS_OF(all));
}

static inline shard_tensor *shard_from_host_of(shard_from_host_arguments all)
{
    return shard_from_host_with(all.data, all.shape, SHARD_OPTIONS_OF(all));
}

static inline shard_tensor *shard_from_host_async_of(shard_from_host_arguments all)
{
    return shard_from_host_async_with(all.data, all.shape, SHARD_OPTIONS_OF(all));
}

static inline shard_tensor *shard_uniform_of(shard_random_arguments all)
{
    return shard_uniform_with(all.shape, all.first, all.second, SHARD_OPTIONS_OF(all));
}

static inline shard_tensor *shard_normal_of(shard_random_arguments all)
{
    return shard_normal_with(all.shape, all.first, all.second, SHARD_OPTIONS_OF(all));
}
#endif

/* The same memory, without history. */
SHARD_API shard_tensor *shard_detach(shard_tensor *tensor);

/* Says that this tensor is part [start, start + size(dim)) of `whole` along dim
 * (negative: from the end), the group's other members holding the rest in rank
 * order (not checked). The same memory. A random tensor whose values were not made
 * yet gets those of that part of the whole tensor, if dim is its first or last dimension
 * (else UNSUPPORTED, when they are made). So a split parameter is
 *     shard_range part = shard_split_range(out, size, rank);
 *     shard_as_split(shard_uniform(SHARD_SHAPE(part.size, in), low, high), 0, group, part.start, out)
 * Of a mesh's model group, it is replicated over the data group (shard_replica_group).
 * Refused for a tensor that requires a gradient. Not collective. */
SHARD_API shard_tensor *shard_as_split(shard_tensor *tensor, int dim, shard_group *group, int64_t start, int64_t whole);

/* The same memory with another placement: that of another tensor (shard_tensor_placement), split, PARTIAL, or local
 * ((shard_placement){0}). For the results and gradients of own operations (shard_custom_op_apply). Whether the
 * placement is true is not checked. Errors: ARGUMENT, a tensor that requires a gradient (shard_detach it). Not
 * collective. As PyTorch's DTensor.from_local and to_local. */
SHARD_API shard_tensor *shard_as_placed(shard_tensor *tensor, shard_placement placement);

/* ---- what it is ---- */

/* The local shape: of a split tensor that of this rank's shard. */
SHARD_API shard_shape shard_tensor_shape(const shard_tensor *tensor);
/* Its own size along dim (negative: from the end); -1 with the error set. */
SHARD_API int64_t shard_tensor_size(const shard_tensor *tensor, int dim);
SHARD_API int64_t shard_numel(const shard_tensor *tensor);
SHARD_API shard_dtype shard_tensor_dtype(const shard_tensor *tensor);
SHARD_API shard_device *shard_tensor_device(const shard_tensor *tensor);
SHARD_API shard_placement shard_tensor_placement(const shard_tensor *tensor);
/* The shape of the whole tensor that a split one is part of. */
SHARD_API shard_shape shard_tensor_whole_shape(const shard_tensor *tensor);
/* Its device's memory, [numel]; valid while the tensor lives (of a parameter in stage 3 of
 * shard_zero_optimizer, until another one is needed). NULL for an empty tensor, or with the error
 * set. Only the CPU's is for the host to read and write: of a GPU's it is the address, for
 * what is queued on that GPU's stream, and shard_copy_to_host and shard_copy_from_host
 * reach what is there. What is written there between a forward and its backward, or to a
 * leaf of which SHARD_AUTOCAST has a copy, is not noticed (shard_copy_from_host is). */
SHARD_API void *shard_data(shard_tensor *tensor);

/* ---- to and from host memory; bytes must be numel * dtype size ----
 * What is copied from may be overwritten on return; memory that is pinned (of
 * shard_allocate_host, cudaMallocHost and the like) when the device has it: see
 * shard_allocate_host. */

/* Copies all values to host memory; waits for the device. */
SHARD_API shard_status shard_copy_to_host(shard_tensor *tensor, void *data, size_t bytes);
/* The same without waiting: data, memory of shard_allocate_host, has the values after the
 * shard_event_synchronize of an event that was recorded later, or after shard_synchronize. Until then it is not
 * freed; the tensor may be. As torch's copy_(non_blocking=True). The CPU copies at once. */
SHARD_API shard_status shard_copy_to_host_async(shard_tensor *tensor, void *data, size_t bytes);
SHARD_API shard_status shard_copy_from_host(shard_tensor *tensor, const void *data, size_t bytes);
/* The value of a tensor of one element; NAN with the error set. */
SHARD_API double shard_item(shard_tensor *tensor);

/* ---- parameters ---- */

/* Whether backward computes the gradient of a tensor; and switches that on or off for a leaf. */
SHARD_API bool shard_requires_grad(const shard_tensor *tensor);
SHARD_API void shard_set_requires_grad(shard_tensor *leaf, bool requires_grad);
/* The gradient that backward has accumulated in a leaf; NULL if there is none. Placed
 * as the leaf; below a gather or a sum over a group it is this rank's contribution, to
 * be summed (shard/distributed.h). Belongs to the leaf. */
SHARD_API shard_tensor *shard_grad(shard_tensor *leaf);
/* The group over whose ranks a parameter is replicated. NULL is the world, or, for a
 * parameter that is split, this rank alone: no one else is known to have its part. */
SHARD_API shard_group *shard_replica_group(const shard_tensor *parameter);
SHARD_API void shard_set_replica_group(shard_tensor *parameter, shard_group *group);

/* ---- ownership ---- */

/* Lets go of a tensor before its scope ends, or of a kept one. NULL is fine. */
SHARD_API void shard_release(shard_tensor *tensor);
/* Takes a tensor out of its scope: the caller releases it. Returns it. */
SHARD_API shard_tensor *shard_keep(shard_tensor *tensor);

/* SHARD_SCOPE { ... }: what is made inside and not kept is freed at its end, by
 * whichever way it is left (return, goto, break, which leaves just the scope).
 * Scopes nest. */
typedef struct shard_scope {
    struct shard_scope *outer;
    shard_tensor *first;
    int open;
} shard_scope;
SHARD_API void shard_scope_open(shard_scope *scope);
SHARD_API void shard_scope_close(shard_scope *scope);

#define SHARD_JOIN_(name, line) name##line
#define SHARD_JOIN(name, line) SHARD_JOIN_(name, line)
#define SHARD_SCOPE SHARD_SCOPE_IN(SHARD_JOIN(shard_scope_, __LINE__), SHARD_JOIN(shard_scope_turn_, __LINE__))
#define SHARD_SCOPE_IN(scope, turn)                                                                                \
    for (shard_scope scope __attribute__((cleanup(shard_scope_close))) = {.open = -1}, *turn = &scope;             \
         turn && (shard_scope_open(turn), true); turn = NULL)

/* ---- named lists: parameters, state dicts ---- */

/* Names in the order they were added, each once, each with a tensor that the
 * list holds a share of. */
typedef struct shard_tensors shard_tensors;

/* An empty list, the caller's to destroy; its tensors live on while others refer to them. NULL with the error set. */
SHARD_API shard_tensors *shard_tensors_create(void);
SHARD_API void shard_tensors_destroy(shard_tensors *list);
/* Adds name; a name that is there already is an error. A share is taken: the
 * tensor may be released afterwards. */
SHARD_API shard_status shard_tensors_add(shard_tensors *list, const char *name, shard_tensor *tensor);
/* Adds all of `from`, each name behind prefix: those that it has now, where it is the list itself.
 * After an error the list is as it was. As {prefix + k: v for k, v in from.items()}. */
SHARD_API shard_status shard_tensors_extend(shard_tensors *list, const char *prefix, const shard_tensors *from);
/* The tensors whose names begin with prefix, by the rest of their names: a new list, the caller's
 * to destroy, that shares them. As {k[len(prefix):]: v for k, v in list.items() if
 * k.startswith(prefix)}, for a checkpoint of several parts or of a wrapped module ("module."). */
SHARD_API shard_tensors *shard_tensors_subset(const shard_tensors *list, const char *prefix);
/* Another name for the tensor of that name, in its place, as list[to] = list.pop(name); and takes
 * it out of the list, as del list[name]. Errors (ARGUMENT): there is none of that name, another
 * one has the new name. */
SHARD_API shard_status shard_tensors_rename(shard_tensors *list, const char *name, const char *to);
SHARD_API shard_status shard_tensors_remove(shard_tensors *list, const char *name);
SHARD_API int64_t shard_tensors_count(const shard_tensors *list);
SHARD_API const char *shard_tensors_name(const shard_tensors *list, int64_t index);
SHARD_API shard_tensor *shard_tensors_at(const shard_tensors *list, int64_t index);
/* NULL, without an error, if there is none of that name. */
SHARD_API shard_tensor *shard_tensors_find(const shard_tensors *list, const char *name);

SHARD_END_C

#endif
