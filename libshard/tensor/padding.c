/*
 * Padded rows of a matrix: the pitch is larger than the length of a row, for the fastest products. Only the memory
 * is padded: tensors count their offsets in it as if it were dense. A request for a tensor's memory makes it dense.
 * Callers that accept a pitch call shard_tensor_rows.
 */
#include "tensor/tensor.h"

#include "device/graph.h"

/* Bytes of temporary memory with which padded rows are made dense. */
enum { PASSING = 16 << 20 };

/* Storages that were padded in this thread's capture and are padded now. */
static _Thread_local shard_storage *of_capture;

void shard_storage_forget_padding(const shard_storage *storage)
{
    for (shard_storage **link = &of_capture; *link; link = &(*link)->next_padded)
        if (*link == storage) {
            *link = storage->next_padded;
            return;
        }
}

/* A replay writes the padded rows again. Rows that outlive the capture are made dense inside it, and so in each
 * replay. */
static void end_capture(bool sound)
{
    while (of_capture) {
        shard_storage *storage = of_capture;
        of_capture = storage->next_padded;
        if (sound)
            shard_storage_make_dense(storage);
    }
}

void shard_tensor_pad_rows(shard_tensor *tensor, int64_t pitch)
{
    shard_storage *storage = tensor->storage;
    int last = tensor->shape.ndim - 1;
    size_t size = shard_dtype_size(tensor->dtype), bytes;
    int64_t rows = last < 0 ? 0 : shard_shape_product(&tensor->shape, 0, last), cols = last < 0 ? 0 : tensor->shape.dim[last];
    if (rows < 2 || cols == 0 || pitch <= cols || storage->memory || storage->references > 1 ||
        __builtin_mul_overflow((size_t)rows, (size_t)pitch * size, &bytes))
        return;
    storage->padding = (shard_padding){.rows = (size_t)rows, .width = (size_t)cols * size, .pitch = (size_t)pitch * size};
    storage->bytes = bytes;
    if (shard_is_capturing()) {
        storage->next_padded = of_capture;
        of_capture = storage;
        shard_graph_at_end(end_capture);
    }
}

/* Copies the rows, dense, to new memory, which replaces the old one. */
static shard_status move_all(shard_storage *storage, size_t bytes)
{
    const shard_padding *p = &storage->padding;
    shard_device *device = storage->device;
    void *memory = shard_device_allocate(device, storage->kind, bytes);
    if (!memory)
        return shard_last_status();
    shard_status status = device->ops->copy_rows(device, memory, p->width, storage->memory, p->pitch, p->width, p->rows);
    if (status != SHARD_OK) {
        shard_device_release(device, storage->kind, memory, bytes);
        return status;
    }
    shard_storage_free_memory(storage);
    storage->memory = memory;
    storage->bytes = bytes;
    return SHARD_OK;
}

/* Makes the rows dense in place, some at a time. */
static shard_status move_rows(shard_storage *storage)
{
    const shard_padding p = storage->padding;
    const shard_device_ops *ops = storage->device->ops;
    size_t most = PASSING / p.width ? PASSING / p.width : 1, bytes;
    void *passing = shard_device_allocate(storage->device, SHARD_MEMORY_WORKSPACE, most * p.width);
    shard_status status = passing ? SHARD_OK : shard_last_status();
    for (size_t row = 1, count; row < p.rows && status == SHARD_OK; row += count) { /* the first row stays in place */
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
    size_t bytes = storage->padding.rows * storage->padding.width;
    if (!storage->padding.pitch)
        return SHARD_OK;
    SHARD_TRY(shard_storage_check_replayed(storage));
    if (storage->memory && shard_is_capturing() && storage->capture != shard_graph_number())
        return shard_graph_refuse("the first use of a padded tensor from before the capture where dense rows are needed");
    shard_storage_forget_padding(storage);
    if (!storage->memory)
        storage->bytes = bytes;
    else
        SHARD_TRY(bytes <= PASSING ? move_all(storage, bytes) : move_rows(storage));
    storage->padding = (shard_padding){0};
    return SHARD_OK;
}

void *shard_tensor_rows(shard_tensor *tensor, int64_t *pitch)
{
    const shard_padding *padding = &tensor->storage->padding;
    size_t size = shard_dtype_size(tensor->dtype);
    int64_t cols = tensor->shape.ndim ? tensor->shape.dim[tensor->shape.ndim - 1] : 1;
    bool apart = padding->pitch && padding->width == (size_t)cols * size && tensor->offset % padding->width == 0;
    bool several = tensor->shape.ndim > 1 && shard_shape_product(&tensor->shape, 0, tensor->shape.ndim - 1) > 1;
    *pitch = apart && several ? (int64_t)(padding->pitch / size) : cols; /* a single row is dense */
    if (!apart)
        return shard_tensor_memory(tensor);
    char *memory = shard_storage_made(tensor->storage);
    return memory ? memory + tensor->offset / padding->width * padding->pitch : NULL;
}
