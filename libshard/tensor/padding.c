/*
 * Rows of a matrix that lie further apart than they are long, as products read and write them
 * fastest. That is a state of the memory alone: tensors count their offsets in it as if it were
 * dense, whoever asks for a tensor's memory gets dense memory, and only who takes a pitch
 * (shard_tensor_rows) sees the rows apart.
 */
#include "tensor/tensor.h"

/* Bytes that rows go through on their way to where they are dense. */
enum { PASSING = 16 << 20 };

void shard_tensor_pad_rows(shard_tensor *tensor, int64_t pitch)
{
    shard_storage *storage = tensor->storage;
    int last = tensor->shape.ndim - 1;
    size_t size = shard_dtype_size(tensor->dtype), bytes;
    int64_t rows = last < 0 ? 0 : shard_shape_product(&tensor->shape, 0, last), cols = last < 0 ? 0 : tensor->shape.dim[last];
    if (rows < 2 || cols == 0 || pitch <= cols || storage->memory || storage->shares > 1 ||
        __builtin_mul_overflow((size_t)rows, (size_t)pitch * size, &bytes))
        return;
    storage->padding = (shard_padding){.rows = (size_t)rows, .width = (size_t)cols * size, .pitch = (size_t)pitch * size};
    storage->bytes = bytes;
}

/* Moves the rows to where they are dense, in the memory that they are in: some at a time, through other memory. */
static shard_status move_rows(shard_storage *storage)
{
    const shard_padding p = storage->padding;
    const shard_device_ops *ops = storage->device->ops;
    size_t most = PASSING / p.width ? PASSING / p.width : 1, bytes;
    most = most < p.rows ? most : p.rows;
    void *passing = shard_device_allocate(storage->device, SHARD_MEMORY_WORKSPACE, most * p.width);
    shard_status status = passing ? SHARD_OK : shard_last_status();
    for (size_t row = 1, count; row < p.rows && status == SHARD_OK; row += count) { /* the first one is where it belongs */
        count = p.rows - row < most ? p.rows - row : most;
        bytes = count * p.width;
        status =
            ops->copy_rows(storage->device, passing, p.width, (char *)storage->memory + row * p.pitch, p.pitch, p.width, count);
        if (status == SHARD_OK)
            status = ops->copy_rows(storage->device, (char *)storage->memory + row * p.width, bytes, passing, bytes, bytes, 1);
    }
    shard_device_release(storage->device, SHARD_MEMORY_WORKSPACE, passing, most * p.width);
    return status;
}

shard_status shard_storage_make_dense(shard_storage *storage)
{
    if (!storage->padding.pitch)
        return SHARD_OK;
    if (!storage->memory)
        storage->bytes = storage->padding.rows * storage->padding.width;
    else
        SHARD_TRY(move_rows(storage));
    storage->padding = (shard_padding){0};
    return SHARD_OK;
}

void *shard_tensor_rows(shard_tensor *tensor, int64_t *pitch)
{
    const shard_padding *padding = &tensor->storage->padding;
    size_t size = shard_dtype_size(tensor->dtype);
    int64_t cols = tensor->shape.ndim ? tensor->shape.dim[tensor->shape.ndim - 1] : 1;
    bool apart = padding->pitch && padding->width == (size_t)cols * size && tensor->offset % padding->width == 0;
    *pitch = apart ? (int64_t)(padding->pitch / size) : cols;
    if (!apart)
        return shard_tensor_memory(tensor);
    char *memory = shard_storage_made(tensor->storage);
    return memory ? memory + tensor->offset / padding->width * padding->pitch : NULL;
}
