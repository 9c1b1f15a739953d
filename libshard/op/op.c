#include "op/op.h"

bool shard_check_operand(const char *function, shard_tensor *x)
{
    if (x)
        return true;
    shard_null_argument(function, "an operand");
    return false;
}

bool shard_check_operands(const char *function, int count, shard_tensor *const *operand)
{
    for (int i = 0; i < count; i++)
        if (!shard_check_operand(function, operand[i]))
            return false;
    for (int i = 0; i < count; i++) {
        if (!shard_dtype_is_float(operand[i]->dtype) || operand[i]->dtype != operand[0]->dtype) {
            shard_error(SHARD_ERROR_SHAPE, "%s: operand %d is %s, operand 0 is %s; one floating dtype is needed (shard_cast)",
                        function, i, shard_dtype_name(operand[i]->dtype), shard_dtype_name(operand[0]->dtype));
            return false;
        }
        if (shard_device_of(operand[i]) != shard_device_of(operand[0])) {
            shard_error(SHARD_ERROR_SHAPE, "%s: operand %d is on %s, operand 0 on %s", function, i,
                        shard_device_of(operand[i])->name, shard_device_of(operand[0])->name);
            return false;
        }
    }
    return true;
}

bool shard_refuse_placement(const char *function, const shard_tensor *x)
{
    shard_error(SHARD_ERROR_UNSUPPORTED, "%s: no rule for a tensor of shape %s that is %s", function, shard_shape_text(&x->shape),
                shard_placement_text(&x->placement));
    return false;
}

bool shard_check_carried(const char *function, const shard_tensor *x, int before)
{
    if (shard_is_replicated(x) || (x->placement.kind == SHARD_SPLIT && x->placement.dim < before))
        return true;
    return shard_refuse_placement(function, x);
}

shard_tensor *shard_result(shard_tensor *y, shard_status status)
{
    if (status == SHARD_OK)
        return y;
    shard_release(y);
    return NULL;
}

bool shard_load(int count, shard_tensor *const *tensor, void **memory)
{
    for (int i = 0; i < count; i++) {
        memory[i] = tensor[i] ? shard_tensor_memory(tensor[i]) : NULL;
        if (tensor[i] && !memory[i])
            return false;
    }
    return true;
}

shard_tensor *shard_workspace(const shard_tensor *like, int64_t count, shard_dtype dtype)
{
    return shard_tensor_make(SHARD_SHAPE(count), dtype, shard_device_of(like));
}
