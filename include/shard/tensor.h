/*
 * shard/tensor.h: tensors, their placement over ranks, scopes, named lists.
 *
 * A tensor is contiguous, row-major, of up to 8 dimensions; images are [n, h, w, c]. A maker's result belongs to the
 * thread's innermost open scope, which releases it. With no scope open it belongs to the caller, which releases it (a
 * thread with 10,000 such tensors logs one warning). A tensor belongs to one thread.
 */
#ifndef SHARD_TENSOR_H
#define SHARD_TENSOR_H

#include <shard/comm.h>
#include <shard/device.h>

SHARD_BEGIN_C

typedef struct shard_tensor shard_tensor;

#define SHARD_MAX_DIMS 8

/* Passed by value, so that a call has the literal in it: shard_zeros(SHARD_SHAPE(2, 3)). */
typedef struct shard_shape {
    int ndim; /* 0: one element, a scalar */
    int64_t dim[SHARD_MAX_DIMS];
} shard_shape;

/* SHARD_SHAPE(2, 3); a scalar is SHARD_SCALAR. */
#define SHARD_SHAPE(...) \
    ((shard_shape){.ndim = (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), .dim = {__VA_ARGS__}})
#define SHARD_SCALAR ((shard_shape){.ndim = 0})

/*
 * The placement of a tensor: the relation of its value to a whole value over a group.
 *   LOCAL       this rank has the whole value. Other ranks may have the same value or another one.
 *   SPLIT       this rank has the range [start, start + size) of `whole` along dim, the group's other ranks the rest.
 *   PARTIAL     the whole value is the sum of the ranks' tensors.
 * Over a group of one rank a tensor is LOCAL: a program for any number of ranks reads the placement before it reduces.
 * A PARTIAL placement has kind and group alone.
 * Every operation has a rule for the placements of its operands, or refuses them. As Replicate, Shard and Partial of
 * PyTorch's DTensor.
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
    shard_dtype dtype;    /* of the elements */
    shard_device *device; /* NULL: shard_device_open(NULL) */
    bool requires_grad;   /* a leaf whose gradient shard_backward computes */
} shard_tensor_options;
#define SHARD_TENSOR_OPTIONS_INIT {sizeof(shard_tensor_options), SHARD_FLOAT32, NULL, false}

/*
 * The makers' arguments: first those by position, then the options by name, in one initializer. So an argument may
 * also be a compound literal: its commas divide the arguments of a macro but not an initializer, as in
 * shard_from_host((float[]){1, 2, 3}, SHARD_SHAPE(3)). Each macro calls the function of its name and _with; shard_zeros and
 * shard_ones, which have none, call shard_full_with.
 *
 * The macro adds a value of a type of its own after them. It fits only after the last argument by position or after
 * an option, so a call that leaves an argument out does not compile.
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

/* Tensors of one value, as torch.empty, zeros, ones and full. The values of shard_empty are undefined. An integer dtype gets the
 * value as shard_cast converts it.
 *     shard_zeros(SHARD_SHAPE(2, 3), .dtype = SHARD_FLOAT64) */
#define shard_empty(...) shard_empty_of(SHARD_ARGUMENTS(shard_empty_arguments, __VA_ARGS__))
#define shard_zeros(...) shard_filled_of(0.0, SHARD_ARGUMENTS(shard_empty_arguments, __VA_ARGS__))
#define shard_ones(...) shard_filled_of(1.0, SHARD_ARGUMENTS(shard_empty_arguments, __VA_ARGS__))
#define shard_full(...) shard_full_of(SHARD_ARGUMENTS(shard_full_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_empty_with(shard_shape shape, const shard_tensor_options *options);
SHARD_API shard_tensor *shard_full_with(shard_shape shape, double value, const shard_tensor_options *options);

/* Copies numel elements of options.dtype from host memory, as torch.from_numpy(data).clone(). */
#define shard_from_host(...) shard_from_host_of(SHARD_ARGUMENTS(shard_from_host_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_from_host_with(const void *data, shard_shape shape, const shard_tensor_options *options);

/* As shard_from_host without waiting: data is memory of shard_device_allocate_host (or other pinned memory). The copy runs
 * concurrently with the device's computation, and operations on the tensor wait for it on the device. data may be
 * overwritten after the shard_event_synchronize of an event that was recorded later, or after shard_synchronize, but
 * not after shard_item or shard_copy_to_host. The CPU copies at once. As tensor.to(device, non_blocking=True) on a
 * stream of its own in torch. */
#define shard_from_host_async(...) shard_from_host_async_of(SHARD_ARGUMENTS(shard_from_host_arguments, __VA_ARGS__))
SHARD_API shard_tensor *shard_from_host_async_with(const void *data, shard_shape shape, const shard_tensor_options *options);

/* Frees memory that was given to shard_from_memory. Called once, in the thread of the last tensor on it. */
typedef void shard_release_memory(void *context);

/* A tensor on the caller's memory (NULL if it has no elements), row-major and aligned to dtype's size, without a copy; of a
 * device's own memory where device is a GPU. The memory must stay until release(context), which is called when the last tensor on
 * it is released and the device has done what was queued, or at once if there are no elements; after an error it is not called.
 * NULL for release: nothing is called, and the memory stays longer than all tensors on it. It is not in the memory statistics.
 * NULL for device: shard_device_open(NULL). A parameter that moves (shard_data_parallel_create, shard_zero_optimizer) leaves this
 * memory: training no longer writes to it, and release is called. NULL with the error set: ARGUMENT, memory that is not aligned,
 * or a dtype that there is not; SHAPE; MEMORY; UNAVAILABLE, the device. As torch.from_blob. Not collective. */
SHARD_API shard_tensor *shard_from_memory(void *memory, shard_shape shape, shard_dtype dtype, shard_device *device,
                                          shard_release_memory *release, void *context);

/* Random tensors: uniform in [low, high), or normal. A uniform value may be rounded to high, as in 16 bits and in a narrow
 * range far from 0. Each takes the next draw of the thread's generator. The values are made when they are first
 * needed. Errors: ARGUMENT, a distribution that does not exist, bounds or a difference of them that the dtype does not have, or
 * a dtype that is not floating. As torch.rand and torch.randn, scaled. */
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

/* A view of the tensor without its history, as torch.Tensor.detach. NULL gives NULL. */
SHARD_API shard_tensor *shard_detach(shard_tensor *tensor);

/* A view of the tensor as the local shard [start, start + size(dim)) of `whole` along dim (negative: from the end).
 * The group's other ranks have the other ranges, in rank order, which is not checked. A random tensor without values
 * gets those of that range of the whole tensor, if dim is its first or last dimension (else UNSUPPORTED, when they
 * are made). A split parameter is made by
 *     shard_range range = shard_split_range(out, size, rank);
 *     shard_as_split(shard_uniform(SHARD_SHAPE(range.size, in), low, high), 0, group, range.start, out)
 * If group is that of a mesh's axis, the replica group is shard_mesh_replica_group(mesh, axis). Errors: ARGUMENT, a tensor that
 * requires a gradient, or a dimension that it does not have; SHAPE, a range outside of whole, or a part of it over one rank;
 * MEMORY, a whole that overflows. A tensor whose values were not needed yet is not shared: the result makes its own. Not
 * collective. */
SHARD_API shard_tensor *shard_as_split(shard_tensor *tensor, int dim, shard_group *group, int64_t start, int64_t whole);

/* A view of the tensor with another placement: that of another tensor (shard_tensor_placement), split, PARTIAL, or
 * local ((shard_placement){0}). For results and gradients of custom operations (shard_custom_op_apply). The library
 * does not check that the placement is true. Errors: ARGUMENT, a tensor that requires a gradient (shard_detach it).
 * Not collective. As PyTorch's DTensor.from_local and to_local. */
SHARD_API shard_tensor *shard_as_placed(shard_tensor *tensor, shard_placement placement);

/* ---- properties ---- */

/* The local shape: of a split tensor that of this rank's shard. */
SHARD_API shard_shape shard_tensor_shape(const shard_tensor *tensor);
/* The size of this rank's tensor along dim (negative: from the end); -1 with the error set. */
SHARD_API int64_t shard_tensor_size(const shard_tensor *tensor, int dim);
/* The number of elements of this rank's tensor. */
SHARD_API int64_t shard_numel(const shard_tensor *tensor);
/* The dtype of its elements, and the device that has its memory. */
SHARD_API shard_dtype shard_tensor_dtype(const shard_tensor *tensor);
SHARD_API shard_device *shard_tensor_device(const shard_tensor *tensor);
/* Where the whole value is; local for NULL. */
SHARD_API shard_placement shard_tensor_placement(const shard_tensor *tensor);
/* The shape of the whole tensor whose local shard this tensor is; the tensor's shape if it is not split. */
SHARD_API shard_shape shard_tensor_whole_shape(const shard_tensor *tensor);
/* Makes the tensor's values be in this rank's memory: gathers those of a parameter that stage 3 (parallel.h) partitions.
 * Operations and shard_copy_to_host call it themselves. The values stay until the parameter's module has been used, or a
 * step or a load changes them. Collective over the parameter's replicas in stage 3, else local. As FSDP2's
 * FSDPModule.unshard. */
SHARD_API SHARD_CHECKED shard_status shard_materialize(shard_tensor *tensor);
/* The device's memory of the tensor, [numel], valid while the tensor exists, and in stage 3 while its values stay
 * (shard_materialize). NULL for an empty tensor, or with the error set: ARGUMENT in stage 3 if the values are not in
 * this rank's memory. Never collective.
 * The host may access the CPU's memory only. A GPU's is an address for work on that GPU's stream; shard_copy_to_host
 * and shard_copy_from_host reach its values. The library does not notice writes through this pointer between a
 * forward and its backward, or to a leaf that SHARD_AUTOCAST has a copy of; it does notice shard_copy_from_host. */
SHARD_API void *shard_data(shard_tensor *tensor);

/* ---- to and from host memory; bytes must be numel * dtype size ----
 * The source may be overwritten on return, except pinned memory (of shard_device_allocate_host, cudaMallocHost and the
 * like): see shard_device_allocate_host. */

/* Copies all values to host memory; waits for the device. Of a parameter in stage 3 (parallel.h) the values are gathered, as by
 * shard_materialize. Not collective, but for such a parameter: then over its replicas. */
SHARD_API SHARD_CHECKED shard_status shard_copy_to_host(shard_tensor *tensor, void *data, size_t bytes);
/* As shard_copy_to_host without waiting: data, memory of shard_device_allocate_host, has the values after the
 * shard_event_synchronize of an event that was recorded later, or after shard_synchronize. data must exist until then; the
 * tensor may be released. The CPU copies at once. Not collective, but for a parameter in stage 3, as shard_copy_to_host. As
 * torch's copy_(non_blocking=True). */
SHARD_API SHARD_CHECKED shard_status shard_copy_to_host_async(shard_tensor *tensor, void *data, size_t bytes);
/* Replaces all values by those in host memory, outside of the record: the backward of a result is still that of the operation
 * that made it; one that needs the values from before is an error. Errors: UNSUPPORTED, a parameter that stage 3 partitions. Not
 * collective. As x.copy_(torch.from_numpy(data)) in torch.no_grad. */
SHARD_API SHARD_CHECKED shard_status shard_copy_from_host(shard_tensor *tensor, const void *data, size_t bytes);
/* The value of a tensor of one element, as torch.Tensor.item, but an int64 beyond 2^53 is rounded; NAN with the error set:
 * SHAPE, more elements or none; UNSUPPORTED, a PARTIAL tensor (shard_reduce_from_group makes the sum; shard_copy_to_host copies
 * this rank's summand). Of a split tensor the element is that of the local shard. Waits for the device. Not collective, but for
 * a parameter in stage 3, as shard_copy_to_host. */
SHARD_API double shard_item(shard_tensor *tensor);

/* ---- parameters ---- */

/* Whether backward computes the gradient of a tensor. */
SHARD_API bool shard_requires_grad(const shard_tensor *tensor);
/* Switches that on or off for a leaf. It returns no status; the thread's error is ARGUMENT for a result of an operation, and for
 * true of an integer dtype. A backward gives no gradient to a leaf for which it is off then. As torch.Tensor.requires_grad_. */
SHARD_API void shard_set_requires_grad(shard_tensor *leaf, bool requires_grad);
/* The gradient that shard_backward has accumulated in a leaf; NULL if there is none. It belongs to the leaf and is
 * placed as the leaf; of a PARTIAL leaf it is that of the whole sum, which each rank has. If a leaf is used before a gather or a
 * sum over a group, its gradient is a pending sum (shard/distributed.h). As torch.Tensor.grad. */
SHARD_API shard_tensor *shard_grad(shard_tensor *leaf);
/* The group over which a parameter is replicated. NULL is the world, or, for a split parameter, this rank alone: no
 * other rank is known to have the same local shard. It is set before shard_data_parallel_create and shard_zero_optimizer. */
SHARD_API shard_group *shard_tensor_replica_group(const shard_tensor *parameter);
SHARD_API void shard_tensor_set_replica_group(shard_tensor *parameter, shard_group *group);

/* ---- ownership ---- */

/* Releases a tensor before its scope ends, or one that was kept. NULL is fine. */
SHARD_API void shard_release(shard_tensor *tensor);
/* Moves a tensor out of its scope and returns it: the caller releases it. */
SHARD_API shard_tensor *shard_keep(shard_tensor *tensor);

/* SHARD_SCOPE { ... }: tensors that are made inside and not kept are released at its end, also if the block is left
 * by return, goto, break or continue. break and continue leave only the block: a loop around it goes on. Scopes nest.
 * Without the macro, shard_scope_open fills a struct of the caller's, which stays where it is until shard_scope_close. Scopes are
 * closed in the reverse order, by the thread that opened them. */
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
    for (shard_scope scope __attribute__((cleanup(shard_scope_close))) = {NULL, NULL, -1}, *turn = &scope;         \
         turn && (shard_scope_open(turn), true); turn = NULL)

/* ---- named lists: parameters, state dicts ---- */

/* Tensors by name, in the order in which they were added. A name is in the list once. The list has a reference to
 * each of its tensors. */
typedef struct shard_tensors shard_tensors;

/* An empty list, the caller's to destroy; its tensors live on while others refer to them. NULL with the error set. */
SHARD_API shard_tensors *shard_tensors_create(void);
SHARD_API void shard_tensors_destroy(shard_tensors *list);
/* Adds a tensor, to which the list takes a reference: the caller may release the tensor afterwards. Errors:
 * ARGUMENT, a name that is in the list already. */
SHARD_API SHARD_CHECKED shard_status shard_tensors_add(shard_tensors *list, const char *name, shard_tensor *tensor);
/* Adds all tensors of `from`, with prefix before each name. `from` may be the list itself: its present names are
 * added. After an error the list is unchanged. As list.update({prefix + k: v for k, v in from.items()}). */
SHARD_API SHARD_CHECKED shard_status shard_tensors_extend(shard_tensors *list, const char *prefix, const shard_tensors *from);
/* A new list of the tensors whose names begin with prefix, without the prefix; the caller destroys it. For a
 * checkpoint of several state dicts or of a wrapped module ("module."). NULL with the error set. As
 * {k[len(prefix):]: v for k, v in list.items() if k.startswith(prefix)}. */
SHARD_API shard_tensors *shard_tensors_subset(const shard_tensors *list, const char *prefix);
/* Renames a tensor, which keeps its position, as list[to] = list.pop(name); or removes one, as del list[name].
 * Errors: ARGUMENT, a name that is not in the list, or a new name that another tensor has. */
SHARD_API SHARD_CHECKED shard_status shard_tensors_rename(shard_tensors *list, const char *name, const char *to);
SHARD_API SHARD_CHECKED shard_status shard_tensors_remove(shard_tensors *list, const char *name);
/* The number of tensors, and a name and a tensor by index, which are the list's: they are not released. NULL, without an error,
 * for an index that is out of range. */
SHARD_API int64_t shard_tensors_count(const shard_tensors *list);
SHARD_API const char *shard_tensors_name(const shard_tensors *list, int64_t index);
SHARD_API shard_tensor *shard_tensors_at(const shard_tensors *list, int64_t index);
/* The tensor of that name; NULL, without an error, if there is none. */
SHARD_API shard_tensor *shard_tensors_find(const shard_tensors *list, const char *name);

SHARD_END_C

#endif
