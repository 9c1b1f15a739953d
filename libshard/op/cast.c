/* cast: another dtype. */
#include "op/op.h"

/* The elements between padded rows are cast too. */
static shard_status convert(shard_tensor *x, shard_tensor *y)
{
    void *memory[2];
    int64_t pitch, n = shard_numel(x), cols = x->shape.ndim ? x->shape.dim[x->shape.ndim - 1] : 1;
    if (!y || !shard_load_alike(x, y, memory, &pitch))
        return shard_last_status();
    return SHARD_RUN(x, cast, pitch > cols ? n / cols * pitch : n, memory[0], x->dtype, memory[1], y->dtype);
}

static shard_status cast_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = shard_make_gradient(node, 0);
    shard_place_partial(dx[0], dy);
    return convert(dy, dx[0]);
}

static const shard_node_type cast_type = {.name = "cast", .backward = cast_backward, .takes_partial = true};

shard_tensor *shard_cast(shard_tensor *x, shard_dtype dtype)
{
    if (!shard_check_operand("shard_cast", x))
        return NULL;
    if (x->dtype == dtype)
        return shard_reshape(x, x->shape);
    int64_t numel;
    if (shard_shape_check("shard_cast", &x->shape, dtype, &numel) != SHARD_OK)
        return NULL;
    if (x->placement.kind == SHARD_PARTIAL && !shard_dtype_is_float(dtype))
        return shard_refuse_placement("shard_cast to an integer dtype", x), NULL;
    shard_tensor *y = shard_tensor_make(x->shape, dtype, shard_device_of(x));
    y = shard_result(y, convert(x, y));
    if (!y)
        return NULL;
    y->placement = x->placement;
    if (shard_dtype_is_float(dtype))
        shard_record(&cast_type, y, SHARD_INPUTS(x), 0);
    return y;
}
