/* Tensors to and from host memory. */
#include "tensor/tensor.h"

#include "base/dtype.h"

#include <math.h>

static shard_status check_bytes(const char *function, const shard_tensor *tensor, const void *data, size_t bytes)
{
    if (!tensor)
        return shard_null_argument(function, "tensor");
    if (!data && bytes)
        return shard_null_argument(function, "data");
    if (bytes != shard_tensor_bytes(tensor))
        return shard_error(SHARD_ERROR_SHAPE, "%s: %zu bytes for a %s tensor of shape %s, which has %zu", function, bytes,
                           shard_dtype_name(tensor->dtype), shard_shape_text(&tensor->shape), shard_tensor_bytes(tensor));
    return SHARD_OK;
}

shard_status shard_copy_to_host(shard_tensor *tensor, void *data, size_t bytes)
{
    SHARD_TRY(check_bytes("shard_copy_to_host", tensor, data, bytes));
    const void *memory = shard_tensor_values(tensor);
    return memory ? shard_ops(tensor)->copy_out(shard_device_of(tensor), data, memory, bytes) : shard_last_status();
}

shard_status shard_copy_to_host_async(shard_tensor *tensor, void *data, size_t bytes)
{
    SHARD_TRY(check_bytes("shard_copy_to_host_async", tensor, data, bytes));
    const void *memory = shard_tensor_values(tensor);
    return memory ? shard_ops(tensor)->copy_out_async(shard_device_of(tensor), data, memory, bytes) : shard_last_status();
}

static shard_status copy_from_host(const char *function, shard_tensor *tensor, const void *data, size_t bytes)
{
    SHARD_TRY(check_bytes(function, tensor, data, bytes));
    void *memory = shard_tensor_memory_to_replace(tensor);
    return memory ? shard_ops(tensor)->copy_in(shard_device_of(tensor), memory, data, bytes) : shard_last_status();
}

shard_status shard_copy_from_host(shard_tensor *tensor, const void *data, size_t bytes)
{
    return copy_from_host("shard_copy_from_host", tensor, data, bytes);
}

shard_tensor *shard_from_host_with(const void *data, shard_shape shape, const shard_tensor_options *options)
{
    shard_tensor *tensor = shard_empty_for("shard_from_host", shape, options);
    if (tensor && copy_from_host("shard_from_host", tensor, data, shard_tensor_bytes(tensor)) != SHARD_OK) {
        shard_release(tensor);
        return NULL;
    }
    return tensor;
}

shard_tensor *shard_from_host_async_with(const void *data, shard_shape shape, const shard_tensor_options *options)
{
    shard_tensor *tensor = shard_empty_for("shard_from_host_async", shape, options);
    if (!tensor)
        return NULL;
    size_t bytes = shard_tensor_bytes(tensor);
    shard_storage *storage = tensor->storage;
    shard_device *device = storage->device;
    shard_status status = check_bytes("shard_from_host_async", tensor, data, bytes);
    if (status == SHARD_OK && bytes > 0) {
        storage->memory = device->ops->copy_in_async(device, data, bytes, &storage->arrival);
        if (storage->memory)
            shard_memory_count_add(&device->memory[storage->kind], (int64_t)bytes);
        else
            status = shard_last_status();
    }
    return status == SHARD_OK ? tensor : (shard_release(tensor), NULL);
}

double shard_item(shard_tensor *tensor)
{
    if (!tensor)
        return shard_null_argument("shard_item", "tensor"), NAN;
    if (shard_numel(tensor) != 1) {
        shard_error(SHARD_ERROR_SHAPE, "shard_item: a tensor of shape %s is not one element", shard_shape_text(&tensor->shape));
        return NAN;
    }
    if (tensor->placement.kind == SHARD_PARTIAL) {
        shard_error(
            SHARD_ERROR_UNSUPPORTED,
            "shard_item: the tensor is partial, this rank's summand; shard_reduce_from_group takes the sum over its ranks "
            "first, shard_copy_to_host copies the summand");
        return NAN;
    }
    union {
        float float32;
        double float64;
        uint16_t half;
        int64_t int64;
        int32_t int32;
        uint8_t uint8;
    } value;
    if (shard_copy_to_host(tensor, &value, shard_dtype_size(tensor->dtype)) != SHARD_OK)
        return NAN;
    switch (tensor->dtype) {
    case SHARD_FLOAT32:
        return value.float32;
    case SHARD_FLOAT64:
        return value.float64;
    case SHARD_BFLOAT16:
        return shard_bfloat16_to_float(value.half);
    case SHARD_FLOAT16:
        return shard_float16_to_float(value.half);
    case SHARD_INT64:
        return (double)value.int64;
    case SHARD_INT32:
        return value.int32;
    case SHARD_UINT8:
        return value.uint8;
    }
    return NAN;
}
