/* clone, to_device: the same values in other memory. */
#include "op/op.h"

#include <stdlib.h>

/* Copies between two devices, by way of the host. */
static shard_status through_host(shard_tensor *x, const void *from, shard_tensor *y, void *to, size_t bytes)
{
    void *staged = shard_calloc(1, bytes);
    if (!staged)
        return shard_last_status();
    shard_status status = SHARD_RUN(x, copy_out, staged, from, bytes);
    if (status == SHARD_OK)
        status = SHARD_RUN(y, copy_in, to, staged, bytes);
    free(staged);
    return status;
}

static shard_status copy(shard_tensor *x, shard_tensor *y)
{
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_last_status();
    size_t bytes = (size_t)shard_numel(x) * shard_dtype_size(x->dtype);
    if (bytes == 0)
        return SHARD_OK;
    if (shard_device_of(x) == shard_device_of(y))
        return SHARD_RUN(x, copy_rows, memory[1], bytes, memory[0], bytes, bytes, 1);
    if (shard_ops(x)->host_memory)
        return SHARD_RUN(y, copy_in, memory[1], memory[0], bytes);
    if (shard_ops(y)->host_memory)
        return SHARD_RUN(x, copy_out, memory[1], memory[0], bytes);
    return through_host(x, memory[0], y, memory[1], bytes);
}

static shard_status clone_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    (void)node;
    dx[0] = dy;
    return SHARD_OK;
}

static shard_status to_device_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    dx[0] = shard_make_gradient(node, 0);
    shard_place_partial(dx[0], dy);
    return copy(dy, dx[0]);
}

static const shard_node_type clone_type = {.name = "clone", .backward = clone_backward, .takes_partial = true};
static const shard_node_type to_device_type = {.name = "to_device", .backward = to_device_backward, .takes_partial = true};

static shard_tensor *forward(const shard_node_type *type, shard_tensor *x, shard_device *device)
{
    shard_tensor *y = shard_tensor_make(x->shape, x->dtype, device);
    y = shard_result(y, copy(x, y));
    if (!y)
        return NULL;
    y->placement = x->placement;
    shard_record(type, y, SHARD_INPUTS(x), 0);
    return y;
}

shard_tensor *shard_clone(shard_tensor *x)
{
    return shard_check_operand("shard_clone", x) ? forward(&clone_type, x, shard_device_of(x)) : NULL;
}

shard_tensor *shard_to_device(shard_tensor *x, shard_device *device)
{
    if (!shard_check_operand("shard_to_device", x))
        return NULL;
    if (!device)
        return shard_null_argument("shard_to_device", "device"), NULL;
    if (device == shard_device_of(x))
        return shard_reshape(x, x->shape);
    return forward(&to_device_type, x, device);
}
