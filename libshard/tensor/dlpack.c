/* Tensors in memory of others: shard_from_memory, and DLPack in and out. */
#include <shard/dlpack.h>

#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- in ---- */

/* A tensor of the thread's scope on memory that is released by the caller's function. */
static shard_tensor *make_on(void *memory, shard_shape shape, shard_dtype dtype, shard_device *device,
                             shard_release_memory *release, void *context)
{
    shard_tensor *tensor = shard_tensor_make(shape, dtype, device);
    if (!tensor || shard_numel(tensor) == 0) {
        if (tensor && release)
            release(context);
        return tensor;
    }
    tensor->storage->memory = memory;
    tensor->storage->foreign = true;
    tensor->storage->release = release;
    tensor->storage->release_context = context;
    return tensor;
}

static bool is_aligned(const char *function, const void *memory, shard_dtype dtype)
{
    if ((uintptr_t)memory % shard_dtype_size(dtype) == 0)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT, "%s: memory at %p is not aligned to the %zu bytes of a %s", function, memory,
                shard_dtype_size(dtype), shard_dtype_name(dtype));
    return false;
}

shard_tensor *shard_from_memory(void *memory, shard_shape shape, shard_dtype dtype, shard_device *device,
                                shard_release_memory *release, void *context)
{
    static const char function[] = "shard_from_memory";
    int64_t numel;
    if (shard_shape_check(function, &shape, dtype, &numel) != SHARD_OK)
        return NULL;
    if (!memory && numel > 0)
        return shard_null_argument(function, "memory"), NULL;
    return is_aligned(function, memory, dtype) ? make_on(memory, shape, dtype, device, release, context) : NULL;
}

static const struct {
    shard_dtype dtype;
    DLDataType type;
} types[] = {
    {SHARD_FLOAT32, {kDLFloat, 32, 1}}, {SHARD_FLOAT64, {kDLFloat, 64, 1}}, {SHARD_BFLOAT16, {kDLBfloat, 16, 1}},
    {SHARD_FLOAT16, {kDLFloat, 16, 1}}, {SHARD_INT64, {kDLInt, 64, 1}},     {SHARD_INT32, {kDLInt, 32, 1}},
    {SHARD_UINT8, {kDLUInt, 8, 1}},
};
enum { TYPES = sizeof types / sizeof *types };
_Static_assert(TYPES == SHARD_DTYPES, "each dtype has a type of DLPack's");

static bool find_dtype(const char *function, DLDataType type, shard_dtype *dtype)
{
    for (int i = 0; i < TYPES; i++)
        if (types[i].type.code == type.code && types[i].type.bits == type.bits && types[i].type.lanes == type.lanes) {
            *dtype = types[i].dtype;
            return true;
        }
    shard_error(SHARD_ERROR_UNSUPPORTED, "%s: there is no dtype for DLPack's code %d of %d bits, %d lanes", function, type.code,
                type.bits, type.lanes);
    return false;
}

/* Whether elements with these strides (NULL: none are given) follow each other, row by row. */
static bool is_dense(const shard_shape *shape, const int64_t *strides)
{
    int64_t stride = 1;
    bool empty = false, dense = true;
    for (int i = shape->ndim - 1; i >= 0; i--) {
        empty = empty || shape->dim[i] == 0;
        dense = dense && (!strides || shape->dim[i] == 1 || strides[i] == stride);
        stride *= shape->dim[i];
    }
    return dense || empty;
}

/* The device that DLPack names; NULL with the error set. */
static shard_device *find_device(const char *function, DLDevice device)
{
    char name[24];
    switch ((int)device.device_type) {
    case kDLCPU:
    case kDLCUDAHost:
        return shard_cpu();
    case kDLCUDA:
        snprintf(name, sizeof name, "cuda:%d", (int)device.device_id);
        return shard_device_open(name);
    default:
        return shard_fail_null(SHARD_ERROR_UNSUPPORTED,
                               "%s: a tensor on DLPack's device %d; host memory (1, 3) and CUDA's (2) are read", function,
                               (int)device.device_type);
    }
}

static bool check_version(const char *function, const DLManagedTensorVersioned *managed)
{
    if (managed->version.major != DLPACK_MAJOR_VERSION) {
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: a tensor of DLPack %" PRIu32 ".%" PRIu32 "; version 1 is read", function,
                    managed->version.major, managed->version.minor);
        return false;
    }
    if (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) {
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: the memory is read-only: export a copy", function);
        return false;
    }
    return true;
}

/* A tensor on the memory, which release frees; NULL with the error set. */
static shard_tensor *import(const char *function, const DLTensor *tensor, shard_release_memory *release, void *context)
{
    shard_dtype dtype;
    if (!find_dtype(function, tensor->dtype, &dtype))
        return NULL;
    int64_t numel;
    bool fits = tensor->ndim >= 0 && tensor->ndim <= SHARD_MAX_DIMS;
    shard_shape shape = {.ndim = fits ? tensor->ndim : 0};
    for (int i = 0; i < shape.ndim; i++)
        shape.dim[i] = tensor->shape[i];
    if (shard_shape_check(function, &shape, dtype, &numel) != SHARD_OK)
        return NULL;
    if (!fits || !is_dense(&shape, tensor->strides)) {
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "%s: a tensor of %d dimensions, %s; at most %d, without gaps, are read: export a copy", function,
                    (int)tensor->ndim, tensor->strides ? "with strides" : "without strides", SHARD_MAX_DIMS);
        return NULL;
    }
    if (!tensor->data && numel > 0) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: a tensor of shape %s without data", function, shard_shape_text(&shape));
        return NULL;
    }
    shard_device *device = find_device(function, tensor->device);
    if (!device)
        return NULL;
    char *memory = (char *)tensor->data + tensor->byte_offset;
    return is_aligned(function, memory, dtype) ? make_on(memory, shape, dtype, device, release, context) : NULL;
}

static void delete_versioned(void *context)
{
    DLManagedTensorVersioned *managed = context;
    if (managed->deleter)
        managed->deleter(managed);
}

static void delete_unversioned(void *context)
{
    DLManagedTensor *managed = context;
    if (managed->deleter)
        managed->deleter(managed);
}

shard_tensor *shard_from_dlpack(DLManagedTensorVersioned *managed)
{
    static const char function[] = "shard_from_dlpack";
    if (!managed)
        return shard_null_argument(function, "managed"), NULL;
    return check_version(function, managed) ? import(function, &managed->dl_tensor, delete_versioned, managed) : NULL;
}

shard_tensor *shard_from_dlpack_unversioned(DLManagedTensor *managed)
{
    static const char function[] = "shard_from_dlpack_unversioned";
    if (!managed)
        return shard_null_argument(function, "managed"), NULL;
    return import(function, &managed->dl_tensor, delete_unversioned, managed);
}

/* ---- out ---- */

typedef struct exported {
    union {
        DLManagedTensorVersioned versioned;
        DLManagedTensor unversioned;
    };
    shard_storage *storage; /* a reference */
    int64_t shape[SHARD_MAX_DIMS], strides[SHARD_MAX_DIMS];
} exported;

static void delete_exported(exported *e)
{
    shard_storage_unref(e->storage);
    free(e);
}

static void delete_exported_versioned(DLManagedTensorVersioned *managed)
{
    delete_exported(managed->manager_ctx);
}

static void delete_exported_unversioned(DLManagedTensor *managed)
{
    delete_exported(managed->manager_ctx);
}

/* Sets *described; NULL with the error set. */
static exported *export(const char *function, shard_tensor *tensor, DLTensor *described)
{
    if (!tensor)
        return shard_null_argument(function, "tensor"), NULL;
    const shard_materializer *materializer = tensor->storage->materializer;
    if (materializer && (!materializer->local || materializer->transient))
        return shard_fail_null(SHARD_ERROR_UNSUPPORTED, "%s: %s: export a shard_clone", function,
                               materializer->local
                                   ? "a classifier's gradient with data parallel, whose memory the next step frees"
                                   : "a parameter that stage 3 of shard_zero_optimizer keeps on several ranks");
    char *memory = shard_tensor_memory(tensor);
    exported *e = memory ? shard_calloc(1, sizeof *e) : NULL;
    if (!e)
        return NULL;
    e->storage = tensor->storage;
    e->storage->references++;
    int64_t stride = 1;
    for (int i = tensor->shape.ndim - 1; i >= 0; i--) {
        e->shape[i] = tensor->shape.dim[i];
        e->strides[i] = stride;
        stride *= e->shape[i];
    }
    const shard_device *device = shard_device_of(tensor);
    DLDevice place = {device->ops->host_memory ? kDLCPU : kDLCUDA, device->ordinal};
    DLDataType type = types[0].type;
    for (int i = 0; i < TYPES; i++)
        if (types[i].dtype == tensor->dtype)
            type = types[i].type;
    /* DLPack's data is NULL where there are no elements */
    *described = (DLTensor){.data = stride ? memory : NULL,
                            .device = place,
                            .ndim = tensor->shape.ndim,
                            .dtype = type,
                            .shape = e->shape,
                            .strides = e->strides};
    return e;
}

DLManagedTensorVersioned *shard_to_dlpack(shard_tensor *tensor)
{
    DLTensor described;
    exported *e = export("shard_to_dlpack", tensor, &described);
    if (!e)
        return NULL;
    e->versioned = (DLManagedTensorVersioned){.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                                              .manager_ctx = e,
                                              .deleter = delete_exported_versioned,
                                              .dl_tensor = described};
    return &e->versioned;
}

DLManagedTensor *shard_to_dlpack_unversioned(shard_tensor *tensor)
{
    DLTensor described;
    exported *e = export("shard_to_dlpack_unversioned", tensor, &described);
    if (!e)
        return NULL;
    e->unversioned = (DLManagedTensor){.dl_tensor = described, .manager_ctx = e, .deleter = delete_exported_unversioned};
    return &e->unversioned;
}
