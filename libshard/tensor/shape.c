/* Shapes, and the texts of shapes and placements for messages. */
#include "tensor/tensor.h"

#include <inttypes.h>
#include <stdio.h>

int64_t shard_shape_product(const shard_shape *shape, int from, int to)
{
    int64_t product = 1;
    for (int i = from; i < to; i++)
        product *= shape->dim[i];
    return product;
}

bool shard_shape_equal(const shard_shape *a, const shard_shape *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != b->dim[i])
            return false;
    return true;
}

shard_status shard_shape_check(const char *function, const shard_shape *shape, shard_dtype dtype, int64_t *numel)
{
    if (shape->ndim < 0 || shape->ndim > SHARD_MAX_DIMS)
        return shard_error(SHARD_ERROR_SHAPE, "%s: a tensor of %d dimensions: 0 to %d are possible", function, shape->ndim,
                           SHARD_MAX_DIMS);
    size_t size = shard_dtype_size(dtype);
    if (!size)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no dtype %d", function, (int)dtype);
    /* The product without its zeros is checked too, so that partial products
     * (strides, rows) of an empty tensor cannot overflow either. */
    int64_t bytes = (int64_t)size;
    bool empty = false;
    for (int i = 0; i < shape->ndim; i++) {
        if (shape->dim[i] < 0)
            return shard_error(SHARD_ERROR_SHAPE, "%s: a tensor of shape %s: a size is negative", function,
                               shard_shape_text(shape));
        empty |= shape->dim[i] == 0;
        if (shape->dim[i] != 0 && !shard_multiply(bytes, shape->dim[i], &bytes))
            return shard_error(SHARD_ERROR_MEMORY, "%s: a tensor of shape %s: its size overflows", function,
                               shard_shape_text(shape));
    }
    *numel = empty ? 0 : bytes / (int64_t)size;
    return SHARD_OK;
}

shard_status shard_resolve_dim(const char *function, const shard_shape *shape, int dim, int *resolved)
{
    *resolved = dim < 0 ? dim + shape->ndim : dim;
    if (*resolved < 0 || *resolved >= shape->ndim)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: dimension %d of a tensor of shape %s: dimensions count from 0, or from -1 backwards", function,
                           dim, shard_shape_text(shape));
    return SHARD_OK;
}

/* A message has at most this many shapes. */
#define TEXT_BUFFERS 6
#define TEXT_BYTES 420
static char *next_text(void)
{
    static _Thread_local char buffers[TEXT_BUFFERS][TEXT_BYTES];
    static _Thread_local unsigned turn;
    return buffers[turn++ % TEXT_BUFFERS];
}

/* Appends the shape to a text of that length; the new length. */
static int add_shape(char *text, int used, const shard_shape *shape)
{
    used += snprintf(text + used, (size_t)(TEXT_BYTES - used), "[");
    for (int i = 0; i < shape->ndim && i < SHARD_MAX_DIMS; i++)
        used += snprintf(text + used, (size_t)(TEXT_BYTES - used), "%s%" PRId64, i ? ", " : "", shape->dim[i]);
    return used + snprintf(text + used, (size_t)(TEXT_BYTES - used), "]");
}

const char *shard_shape_text(const shard_shape *shape)
{
    char *text = next_text();
    add_shape(text, 0, shape);
    return text;
}

const char *shard_tensor_shape_text(const shard_tensor *x)
{
    char *text = next_text();
    int used = add_shape(text, 0, &x->shape);
    if (x->placement.kind != SHARD_SPLIT)
        return text;
    shard_shape whole = shard_tensor_whole_shape(x);
    used += snprintf(text + used, (size_t)(TEXT_BYTES - used), " (the local shard of ");
    used = add_shape(text, used, &whole);
    snprintf(text + used, (size_t)(TEXT_BYTES - used), ", split along dimension %d)", x->placement.dim);
    return text;
}

const char *shard_placement_text(const shard_placement *placement)
{
    if (placement->kind == SHARD_LOCAL)
        return "local";
    if (placement->kind == SHARD_PARTIAL)
        return "partial";
    char *text = next_text();
    snprintf(text, TEXT_BYTES, "split along %d", placement->dim);
    return text;
}
