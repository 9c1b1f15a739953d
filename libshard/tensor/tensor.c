/* Tensors: their memory, views, properties and references. */
#include "tensor/scope.h"
#include "tensor/tensor.h"

#include "comm/function.h"

#include <stdlib.h>

shard_status shard_tensor_copy_rows(shard_tensor *matrix, int64_t first, int64_t count, void *to)
{
    size_t row = (size_t)matrix->shape.dim[1] * shard_dtype_size(matrix->dtype), bytes = (size_t)count * row;
    if (shard_has_recipe(matrix)) {
        shard_region region;
        SHARD_TRY(shard_tensor_region(matrix, &region));
        region.row0 += first;
        region.rows = count;
        return shard_recipe_follow_in(matrix, &region, to);
    }
    const char *from = shard_tensor_values(matrix);
    return from ? shard_ops(matrix)->copy_rows(shard_device_of(matrix), to, bytes, from + (size_t)first * row, bytes, bytes, 1)
                : shard_last_status();
}

/* The values of a recipe are dense. */
static bool make_values(shard_tensor *tensor)
{
    if (!shard_has_recipe(tensor))
        return shard_storage_made(tensor->storage);
    char *memory = shard_storage_memory(tensor->storage);
    if (!memory || shard_recipe_follow(tensor, memory + tensor->offset) != SHARD_OK)
        return false;
    shard_tensor_forget_recipe(tensor);
    return true;
}

void *shard_tensor_memory(shard_tensor *tensor)
{
    if (!shard_storage_is_usable(tensor->storage))
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "the values of a tensor of shape %s are partitioned over several ranks (stage 3) and are not in "
                               "this rank's memory: call shard_materialize first, on all ranks",
                               shard_shape_text(&tensor->shape));
    if (shard_has_recipe(tensor) && !make_values(tensor))
        return NULL;
    char *memory = shard_storage_memory(tensor->storage);
    return memory ? memory + tensor->offset : NULL;
}

void *shard_tensor_values(shard_tensor *tensor)
{
    return shard_tensor_materialize(tensor) == SHARD_OK ? shard_tensor_memory(tensor) : NULL;
}

void *shard_tensor_memory_to_write(shard_tensor *tensor)
{
    if (tensor->storage->materializer && !tensor->storage->materializer->local)
        return shard_fail_null(
            SHARD_ERROR_UNSUPPORTED,
            "cannot write to a tensor of shape %s that shard_zero_optimizer (stage 3) partitions over several ranks; "
            "shard_load and optimizers can",
            shard_shape_text(&tensor->shape));
    void *memory = shard_tensor_memory(tensor);
    if (memory)
        shard_tensor_count_write(tensor);
    return memory;
}

/* ---- making ---- */

static shard_tensor *make_on(shard_storage *storage, size_t offset, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *tensor = shard_calloc(1, sizeof *tensor);
    if (!tensor)
        return NULL;
    storage->references++;
    *tensor = (shard_tensor){.references = 1, .storage = storage, .offset = offset, .shape = shape, .dtype = dtype};
    shard_scope_adopt(tensor);
    return tensor;
}

shard_tensor *shard_tensor_on(shard_storage *storage, size_t offset, shard_shape shape, shard_dtype dtype)
{
    return shard_keep(make_on(storage, offset, shape, dtype));
}

shard_tensor *shard_tensor_make(shard_shape shape, shard_dtype dtype, shard_device *device)
{
    int64_t numel;
    if (shard_shape_check("an operation's result", &shape, dtype, &numel) != SHARD_OK)
        return NULL;
    device = device ? device : shard_default_device();
    shard_storage *storage = device ? shard_storage_make(device, (size_t)numel * shard_dtype_size(dtype)) : NULL;
    if (!storage)
        return NULL;
    shard_tensor *tensor = make_on(storage, 0, shape, dtype);
    shard_storage_unref(storage);
    return tensor;
}

shard_tensor *shard_tensor_like(const shard_tensor *x)
{
    shard_tensor *tensor = x ? shard_tensor_make(x->shape, x->dtype, shard_device_of(x)) : NULL;
    if (tensor)
        tensor->placement = x->placement;
    return tensor;
}

shard_tensor *shard_tensor_view(shard_tensor *x, int64_t element, shard_shape shape)
{
    if (!x || (!x->storage->materializer && !make_values(x)))
        return NULL;
    shard_tensor *view = make_on(x->storage, x->offset + (size_t)element * shard_dtype_size(x->dtype), shape, x->dtype);
    if (view && x->writes) {
        view->writes = x->writes;
        view->writes->references++;
    }
    return view;
}

static void unref_writes(shard_writes *writes)
{
    if (writes && --writes->references == 0)
        free(writes);
}

static shard_status copy_values(shard_tensor *tensor, shard_storage *storage, size_t offset)
{
    char *memory = shard_storage_memory(storage);
    if (!memory)
        return shard_last_status();
    memory += offset;
    if (shard_has_recipe(tensor)) {
        SHARD_TRY(shard_recipe_follow(tensor, memory));
    } else if (tensor->storage->memory || tensor->storage->materializer) {
        const char *from = shard_tensor_values(tensor);
        if (!from)
            return shard_last_status();
        size_t bytes = shard_tensor_bytes(tensor);
        SHARD_TRY(storage->device->ops->copy_rows(storage->device, memory, bytes, from, bytes, bytes, 1));
    }
    return SHARD_OK;
}

shard_status shard_tensor_prepare_move(shard_tensor *tensor, shard_storage *storage, size_t offset, shard_writes **writes)
{
    *writes = shard_calloc(1, sizeof **writes);
    if (!*writes)
        return shard_last_status();
    **writes = (shard_writes){.references = 1};
    return copy_values(tensor, storage, offset);
}

shard_status shard_tensor_move(shard_tensor *tensor, shard_storage *storage, size_t offset)
{
    shard_writes *writes;
    shard_status status = shard_tensor_prepare_move(tensor, storage, offset, &writes);
    if (status == SHARD_OK)
        shard_tensor_put(tensor, storage, offset, writes);
    else
        free(writes);
    return status;
}

void shard_tensor_put(shard_tensor *tensor, shard_storage *storage, size_t offset, shard_writes *writes)
{
    unref_writes(tensor->writes);
    tensor->writes = writes;
    shard_leaf_release_derived(tensor->leaf);
    shard_storage_unref(tensor->storage);
    storage->references++;
    tensor->storage = storage;
    tensor->offset = offset;
    shard_tensor_forget_recipe(tensor);
}

shard_tensor *shard_detach(shard_tensor *tensor)
{
    shard_tensor *view = tensor ? shard_tensor_view(tensor, 0, tensor->shape) : NULL;
    if (view)
        view->placement = tensor->placement;
    return view;
}

/* ---- properties ---- */

shard_shape shard_tensor_shape(const shard_tensor *tensor)
{
    return tensor ? tensor->shape : (shard_shape){0};
}

int64_t shard_tensor_size(const shard_tensor *tensor, int dim)
{
    if (!tensor)
        return shard_null_argument("shard_tensor_size", "tensor"), -1;
    return shard_resolve_dim("shard_tensor_size", &tensor->shape, dim, &dim) == SHARD_OK ? tensor->shape.dim[dim] : -1;
}

int64_t shard_numel(const shard_tensor *tensor)
{
    return tensor ? shard_shape_product(&tensor->shape, 0, tensor->shape.ndim) : 0;
}

shard_dtype shard_tensor_dtype(const shard_tensor *tensor)
{
    return tensor ? tensor->dtype : SHARD_FLOAT32;
}

shard_device *shard_tensor_device(const shard_tensor *tensor)
{
    return tensor ? shard_device_of(tensor) : NULL;
}

shard_placement shard_tensor_placement(const shard_tensor *tensor)
{
    return tensor ? tensor->placement : (shard_placement){0};
}

shard_shape shard_tensor_whole_shape(const shard_tensor *tensor)
{
    const shard_flat_range *range = tensor ? shard_flat_range_of(tensor) : NULL;
    shard_shape shape = range ? range->shape : shard_tensor_shape(tensor);
    shard_placement placement = range ? range->placement : shard_tensor_placement(tensor);
    if (placement.kind == SHARD_SPLIT)
        shape.dim[placement.dim] = placement.whole;
    return shape;
}

shard_status shard_materialize(shard_tensor *tensor)
{
    SHARD_FUNCTION("shard_materialize");
    if (!tensor)
        return shard_null_argument("shard_materialize", "tensor");
    return shard_tensor_values(tensor) ? SHARD_OK : shard_last_status();
}

void *shard_data(shard_tensor *tensor)
{
    if (!tensor)
        return NULL;
    void *memory = shard_tensor_memory(tensor);
    return shard_numel(tensor) ? memory : NULL;
}

/* ---- references ---- */

shard_tensor *shard_tensor_ref(shard_tensor *tensor)
{
    tensor->references++;
    return tensor;
}

void shard_tensor_unref(shard_tensor *tensor)
{
    if (!tensor || --tensor->references)
        return;
    shard_scope_forget_unscoped(tensor);
    if (tensor->history)
        tensor->history->unref(tensor->history);
    shard_free_leaf(tensor->leaf);
    shard_storage_unref(tensor->storage);
    unref_writes(tensor->writes);
    free(tensor);
}
