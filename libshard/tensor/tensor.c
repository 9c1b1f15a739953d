/* Tensors and their memory. */
#include "tensor/scope.h"
#include "base/options.h"
#include "tensor/tensor.h"

#include "base/dtype.h"
#include "device/graph.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- storage ---- */

shard_storage *shard_storage_make(shard_device *device, size_t bytes)
{
    shard_storage *storage = shard_calloc(1, sizeof *storage);
    if (storage)
        *storage = (shard_storage){.references = 1,
                                   .device = device,
                                   .bytes = bytes ? bytes : 1,
                                   .kind = SHARD_MEMORY_ACTIVATIONS,
                                   .capture = shard_graph_number()};
    return storage;
}

void shard_storage_set_kind(shard_storage *storage, shard_memory_kind kind)
{
    shard_memory_count *memory = storage->device->memory;
    if (storage->memory && !storage->foreign && kind != storage->kind) {
        shard_memory_count_add(&memory[storage->kind], -(int64_t)storage->bytes);
        shard_memory_count_add(&memory[kind], (int64_t)storage->bytes);
    }
    storage->kind = kind;
}

void shard_storage_become(shard_storage *storage, shard_memory_kind kind)
{
    if (storage->kind == SHARD_MEMORY_ACTIVATIONS || storage->kind == SHARD_MEMORY_WORKSPACE)
        shard_storage_set_kind(storage, kind);
}

void *shard_storage_allocate(shard_storage *storage)
{
    return storage->memory = shard_device_allocate(storage->device, storage->kind, storage->bytes);
}

bool shard_storage_begin(shard_storage *storage)
{
    if (!storage->materializer)
        return shard_storage_allocate(storage);
    if (storage->materializer->start(storage->materializer) != SHARD_OK)
        storage->materializer->evict(storage->materializer);
    return storage->memory;
}

/* A replay would materialize such memory again. */
static shard_status refuse_in_capture(const shard_storage *storage)
{
    if (storage->device->ops->host_memory || storage->capture == shard_graph_number())
        return SHARD_OK;
    return shard_graph_refuse("the first use of a tensor that was made before the capture");
}

/* Makes the device's later work wait for the copy; the host does not wait. */
static shard_status wait_arrival(shard_storage *storage)
{
    SHARD_TRY(storage->device->ops->wait_arrival(storage->device, storage->arrival));
    storage->arrival = NULL;
    return SHARD_OK;
}

void *shard_storage_made(shard_storage *storage)
{
    shard_materializer *materializer = storage->materializer;
    if (!storage->memory && shard_is_capturing() && refuse_in_capture(storage) != SHARD_OK)
        return NULL;
    if (!storage->memory && !shard_storage_begin(storage))
        return NULL;
    if (materializer) {
        materializer->evictable = false;
        if (materializer->wait(materializer) != SHARD_OK) {
            shard_storage_release(storage);
            return NULL;
        }
    }
    if (storage->arrival && wait_arrival(storage) != SHARD_OK)
        return NULL;
    return storage->memory;
}

/* The storage's memory from an offset on: allocated if it was not, and dense. */
static char *storage_memory(shard_storage *storage, size_t offset)
{
    if (shard_storage_make_dense(storage) != SHARD_OK)
        return NULL;
    char *memory = shard_storage_made(storage);
    return memory ? memory + offset : NULL;
}

void *shard_storage_memory(shard_storage *storage)
{
    return storage_memory(storage, 0);
}

void shard_storage_release(shard_storage *storage)
{
    if (storage->materializer)
        storage->materializer->evict(storage->materializer);
    else
        shard_storage_give_back(storage);
}

/* Synchronizes first: queued operations may still use the memory. */
static void release_foreign(shard_storage *storage)
{
    if (!storage->device->ops->host_memory)
        storage->device->ops->synchronize(storage->device);
    if (storage->release)
        storage->release(storage->release_context);
    storage->foreign = false;
}

void shard_storage_give_back(shard_storage *storage)
{
    if (storage->arrival)
        wait_arrival(storage);
    storage->arrival = NULL;
    if (storage->foreign)
        release_foreign(storage);
    else
        shard_device_release(storage->device, storage->kind, storage->memory, storage->bytes);
    storage->memory = NULL;
}

void shard_storage_unref(shard_storage *storage)
{
    if (!storage || --storage->references)
        return;
    if (storage->materializer)
        storage->materializer->destroy(storage->materializer);
    else
        shard_storage_give_back(storage);
    if (storage->padding.pitch)
        shard_storage_forget_padding(storage);
    free(storage);
}

shard_status shard_storage_zero(shard_storage *storage)
{
    char *memory = storage_memory(storage, 0);
    storage->version++;
    return memory ? storage->device->ops->zero(storage->device, memory, storage->bytes) : shard_last_status();
}

static size_t byte_count(const shard_tensor *tensor)
{
    return (size_t)shard_shape_product(&tensor->shape, 0, tensor->shape.ndim) * shard_dtype_size(tensor->dtype);
}

shard_status shard_tensor_copy_rows(shard_tensor *matrix, int64_t first, int64_t count, void *to)
{
    size_t row = (size_t)matrix->shape.dim[1] * shard_dtype_size(matrix->dtype), bytes = (size_t)count * row;
    if (matrix->recipe.kind != SHARD_NO_RECIPE) {
        shard_region region;
        SHARD_TRY(shard_tensor_region(matrix, &region));
        region.row0 += first;
        region.rows = count;
        return shard_recipe_follow_in(matrix, &region, to);
    }
    const char *from = shard_tensor_memory(matrix);
    return from ? shard_ops(matrix)->copy_rows(shard_device_of(matrix), to, bytes, from + (size_t)first * row, bytes, bytes, 1)
                : shard_last_status();
}

/* The values of a recipe are dense. */
static bool make_values(shard_tensor *tensor)
{
    if (tensor->recipe.kind == SHARD_NO_RECIPE)
        return shard_storage_made(tensor->storage);
    char *memory = storage_memory(tensor->storage, tensor->offset);
    if (!memory || shard_recipe_follow(tensor, memory) != SHARD_OK)
        return false;
    tensor->recipe.kind = SHARD_NO_RECIPE;
    return true;
}

void *shard_tensor_memory(shard_tensor *tensor)
{
    if (tensor->recipe.kind != SHARD_NO_RECIPE && !make_values(tensor))
        return NULL;
    return storage_memory(tensor->storage, tensor->offset);
}

void *shard_tensor_memory_to_write(shard_tensor *tensor)
{
    if (tensor->storage->materializer)
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

shard_status shard_tensor_set_recipe(shard_tensor *tensor, shard_recipe recipe)
{
    shard_storage *storage = tensor->storage;
    shard_tensor *own = tensor->kept ? tensor->kept : tensor;
    own->recipe = recipe;
    if (own == tensor && !storage->memory && !storage->materializer && storage->references == 1) {
        shard_tensor_count_write(tensor);
        return SHARD_OK;
    }
    void *memory = shard_tensor_memory_to_write(own);
    if (!memory) {
        own->recipe.kind = SHARD_NO_RECIPE;
        return shard_last_status();
    }
    if (own != tensor) {
        shard_tensor_count_write(tensor);
        shard_storage_release(storage); /* the gathered values are out of date */
    }
    return SHARD_OK;
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

static shard_tensor *share_writes(shard_tensor *view, const shard_tensor *x)
{
    if (view && x->writes) {
        view->writes = x->writes;
        view->writes->references++;
    }
    return view;
}

shard_tensor *shard_tensor_beside(const shard_tensor *x)
{
    return share_writes(shard_tensor_on(x->storage, x->offset, x->shape, x->dtype), x);
}

shard_status shard_tensor_set_slice(shard_tensor *tensor, const shard_flat_range *slice)
{
    if (!tensor->slice && !(tensor->slice = shard_calloc(1, sizeof *slice)))
        return shard_last_status();
    *tensor->slice = *slice;
    return SHARD_OK;
}

shard_tensor *shard_tensor_make(shard_shape shape, shard_dtype dtype, shard_device *device)
{
    int64_t numel;
    if (shard_shape_check(&shape, dtype, &numel) != SHARD_OK)
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
    if (!x || !make_values(x))
        return NULL;
    shard_tensor *view = make_on(x->storage, x->offset + (size_t)element * shard_dtype_size(x->dtype), shape, x->dtype);
    return share_writes(view, x);
}

static void release_derived(shard_tensor *tensor)
{
    if (tensor->derived)
        tensor->derived->drop(tensor->derived);
    tensor->derived = NULL;
}

static void unref_writes(shard_writes *writes)
{
    if (writes && --writes->references == 0)
        free(writes);
}

static shard_status move_values(shard_tensor *tensor, shard_storage *storage, size_t offset)
{
    char *memory = storage_memory(storage, offset);
    if (!memory)
        return shard_last_status();
    if (tensor->recipe.kind != SHARD_NO_RECIPE) {
        SHARD_TRY(shard_recipe_follow(tensor, memory));
    } else if (tensor->storage->memory || tensor->storage->materializer) {
        if (!storage_memory(tensor->storage, 0))
            return shard_last_status();
        size_t bytes = byte_count(tensor);
        SHARD_TRY(storage->device->ops->copy_rows(storage->device, memory, bytes,
                                                  (char *)tensor->storage->memory + tensor->offset, bytes, bytes, 1));
    }
    return SHARD_OK;
}

shard_status shard_tensor_move(shard_tensor *tensor, shard_storage *storage, size_t offset)
{
    SHARD_TRY(move_values(tensor, storage, offset));
    return shard_tensor_put(tensor, storage, offset);
}

shard_status shard_tensor_put(shard_tensor *tensor, shard_storage *storage, size_t offset)
{
    shard_writes *writes = shard_calloc(1, sizeof *writes);
    if (!writes)
        return shard_last_status();
    *writes = (shard_writes){.references = 1};
    unref_writes(tensor->writes);
    tensor->writes = writes;
    release_derived(tensor);
    shard_storage_unref(tensor->storage);
    storage->references++;
    tensor->storage = storage;
    tensor->offset = offset;
    tensor->recipe.kind = SHARD_NO_RECIPE;
    return SHARD_OK;
}

static shard_tensor *make_with_recipe(shard_shape shape, shard_tensor_options options, shard_recipe recipe)
{
    shard_tensor *tensor = shard_tensor_make(shape, options.dtype, options.device);
    if (!tensor)
        return NULL;
    tensor->recipe = recipe;
    shard_set_requires_grad(tensor, options.requires_grad);
    return tensor;
}

shard_tensor *shard_empty_with(shard_shape shape, const shard_tensor_options *given)
{
    SHARD_READ_OPTIONS(shard_tensor_options, SHARD_TENSOR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_with_recipe(shape, options, (shard_recipe){0});
}

shard_tensor *shard_full_with(shard_shape shape, double value, const shard_tensor_options *given)
{
    SHARD_READ_OPTIONS(shard_tensor_options, SHARD_TENSOR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return make_with_recipe(shape, options, (shard_recipe){.kind = SHARD_CONSTANT, .a = value});
}

static shard_tensor *make_random(const char *function, shard_recipe_kind kind, shard_shape shape, double a, double b,
                                 const shard_tensor_options *given)
{
    SHARD_READ_OPTIONS(shard_tensor_options, SHARD_TENSOR_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (!shard_dtype_is_float(options.dtype))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: %s is not a floating dtype", function, shard_dtype_name(options.dtype));
    return make_with_recipe(shape, options, (shard_recipe){.kind = kind, .a = a, .b = b, .draw = shard_next_draw()});
}

shard_tensor *shard_uniform_with(shard_shape shape, double low, double high, const shard_tensor_options *options)
{
    if (shard_check_uniform("shard_uniform", low, high) != SHARD_OK)
        return NULL;
    return make_random("shard_uniform", SHARD_UNIFORM, shape, low, high, options);
}

shard_tensor *shard_normal_with(shard_shape shape, double mean, double std, const shard_tensor_options *options)
{
    if (shard_check_normal("shard_normal", mean, std) != SHARD_OK)
        return NULL;
    return make_random("shard_normal", SHARD_NORMAL, shape, mean, std, options);
}

shard_tensor *shard_detach(shard_tensor *tensor)
{
    shard_tensor *view = tensor ? shard_tensor_view(tensor, 0, tensor->shape) : NULL;
    if (view)
        view->placement = tensor->placement;
    return view;
}

shard_tensor *shard_as_split(shard_tensor *tensor, int dim, shard_group *group, int64_t start, int64_t whole)
{
    if (!tensor)
        return NULL;
    if (shard_resolve_dim("shard_as_split", &tensor->shape, dim, &dim) != SHARD_OK)
        return NULL;
    if (tensor->history || tensor->requires_grad)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_as_split: the tensor requires a gradient");
    if (start < 0 || whole < start || tensor->shape.dim[dim] > whole - start)
        return shard_fail_null(SHARD_ERROR_SHAPE,
                               "shard_as_split: %" PRId64 " elements from %" PRId64 " on are no part of %" PRId64,
                               tensor->shape.dim[dim], start, whole);
    shard_shape whole_shape = tensor->shape;
    int64_t numel;
    whole_shape.dim[dim] = whole;
    /* the whole tensor's elements are counted in files and by random numbers */
    if (shard_shape_check(&whole_shape, tensor->dtype, &numel) != SHARD_OK)
        return NULL;
    bool pending = tensor->recipe.kind != SHARD_NO_RECIPE && !tensor->storage->memory;
    shard_tensor *view = pending ? shard_tensor_like(tensor) : shard_detach(tensor);
    if (view && pending)
        view->recipe = tensor->recipe;
    if (view && shard_group_size(group) > 1) {
        view->placement = (shard_placement){.kind = SHARD_SPLIT, .dim = dim, .group = group, .start = start, .whole = whole};
        view->replicas = group->replicas;
    }
    return view;
}

shard_tensor *shard_as_placed(shard_tensor *tensor, shard_placement placement)
{
    if (!tensor)
        return NULL;
    if (tensor->history || tensor->requires_grad)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_as_placed: the tensor requires a gradient; shard_detach it");
    if ((unsigned)placement.kind > SHARD_PARTIAL)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_as_placed: there is no placement %d", (int)placement.kind);
    if (placement.kind == SHARD_SPLIT)
        return shard_as_split(tensor, placement.dim, placement.group, placement.start, placement.whole);
    shard_tensor *view = shard_detach(tensor);
    bool partial = placement.kind == SHARD_PARTIAL && shard_group_size(placement.group) > 1;
    if (view)
        view->placement = partial ? (shard_placement){.kind = SHARD_PARTIAL, .group = placement.group} : (shard_placement){0};
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
    bool sliced = tensor && tensor->slice;
    shard_shape shape = sliced ? tensor->slice->shape : shard_tensor_shape(tensor);
    shard_placement placement = sliced ? tensor->slice->placement : shard_tensor_placement(tensor);
    if (placement.kind == SHARD_SPLIT)
        shape.dim[placement.dim] = placement.whole;
    return shape;
}

void *shard_data(shard_tensor *tensor)
{
    if (!tensor)
        return NULL;
    void *memory = shard_tensor_memory(tensor);
    return shard_numel(tensor) ? memory : NULL;
}

/* ---- to and from the host ---- */

static shard_status check_bytes(const char *function, const shard_tensor *tensor, const void *data, size_t bytes)
{
    if (!tensor)
        return shard_null_argument(function, "tensor");
    if (!data && bytes)
        return shard_null_argument(function, "data");
    if (bytes != byte_count(tensor))
        return shard_error(SHARD_ERROR_SHAPE, "%s: %zu bytes for a %s tensor of shape %s, which has %zu", function, bytes,
                           shard_dtype_name(tensor->dtype), shard_shape_text(&tensor->shape), byte_count(tensor));
    return SHARD_OK;
}

shard_status shard_copy_to_host(shard_tensor *tensor, void *data, size_t bytes)
{
    SHARD_TRY(check_bytes("shard_copy_to_host", tensor, data, bytes));
    const void *memory = shard_tensor_memory(tensor);
    return memory ? shard_ops(tensor)->copy_out(shard_device_of(tensor), data, memory, bytes) : shard_last_status();
}

shard_status shard_copy_to_host_async(shard_tensor *tensor, void *data, size_t bytes)
{
    SHARD_TRY(check_bytes("shard_copy_to_host_async", tensor, data, bytes));
    const void *memory = shard_tensor_memory(tensor);
    return memory ? shard_ops(tensor)->copy_out_async(shard_device_of(tensor), data, memory, bytes) : shard_last_status();
}

static shard_status copy_from_host(const char *function, shard_tensor *tensor, const void *data, size_t bytes)
{
    SHARD_TRY(check_bytes(function, tensor, data, bytes));
    tensor->recipe.kind = SHARD_NO_RECIPE;
    void *memory = shard_tensor_memory_to_write(tensor);
    return memory ? shard_ops(tensor)->copy_in(shard_device_of(tensor), memory, data, bytes) : shard_last_status();
}

shard_status shard_copy_from_host(shard_tensor *tensor, const void *data, size_t bytes)
{
    return copy_from_host("shard_copy_from_host", tensor, data, bytes);
}

shard_tensor *shard_from_host_with(const void *data, shard_shape shape, const shard_tensor_options *options)
{
    shard_tensor *tensor = shard_empty_with(shape, options);
    if (tensor && copy_from_host("shard_from_host", tensor, data, byte_count(tensor)) != SHARD_OK) {
        shard_release(tensor);
        return NULL;
    }
    return tensor;
}

shard_tensor *shard_from_host_async_with(const void *data, shard_shape shape, const shard_tensor_options *options)
{
    shard_tensor *tensor = shard_empty_with(shape, options);
    if (!tensor)
        return NULL;
    size_t bytes = byte_count(tensor);
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

/* ---- parameters and ownership ---- */

bool shard_requires_grad(const shard_tensor *tensor)
{
    return tensor && tensor->requires_grad;
}

void shard_set_requires_grad(shard_tensor *leaf, bool requires_grad)
{
    if (!leaf)
        return;
    if (leaf->history)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: the tensor is a result, not a leaf");
    else if (requires_grad && !shard_dtype_is_float(leaf->dtype))
        shard_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: %s has no gradient", shard_dtype_name(leaf->dtype));
    else
        leaf->requires_grad = requires_grad;
    if (leaf->requires_grad)
        shard_storage_become(leaf->storage, SHARD_MEMORY_PARAMETERS);
}

shard_tensor *shard_grad(shard_tensor *leaf)
{
    return leaf && leaf->has_grad ? leaf->grad : NULL;
}

shard_group *shard_tensor_replica_group(const shard_tensor *parameter)
{
    return parameter ? parameter->replicas : NULL;
}

void shard_tensor_set_replica_group(shard_tensor *parameter, shard_group *group)
{
    if (parameter)
        parameter->replicas = group;
}

shard_tensor *shard_tensor_ref(shard_tensor *tensor)
{
    tensor->references++;
    return tensor;
}

void shard_tensor_unref(shard_tensor *tensor)
{
    if (!tensor || --tensor->references)
        return;
    if (tensor->unscoped)
        shard_scope_count_freed();
    if (tensor->history)
        tensor->history->drop(tensor->history);
    release_derived(tensor);
    shard_tensor_unref(tensor->grad);
    shard_storage_unref(tensor->storage);
    unref_writes(tensor->writes);
    shard_tensor_unref(tensor->kept);
    free(tensor->slice);
    free(tensor);
}
