/* where: elements of two tensors, selected by a condition. */
#include "op/autocast.h"
#include "op/expansion.h"

enum { CONDITION, A, B };

static shard_status choose(shard_tensor *condition, shard_tensor *a, shard_tensor *b, shard_tensor *y)
{
    void *memory[4];
    if (!y || !shard_load(SHARD_INPUTS(condition, a, b, y), memory))
        return shard_last_status();
    const shard_expansion over = shard_expansion_operands(&y->shape, SHARD_INPUTS(condition, a, b));
    return SHARD_RUN(y, where, &over, memory[0], memory[1], memory[2], memory[3], y->dtype);
}

/* dy where the operand was selected, 0 elsewhere. */
static shard_status where_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    shard_tensor *condition = shard_saved(node, CONDITION);
    shard_tensor *zero = condition ? shard_tensor_make(SHARD_SCALAR, dy->dtype, shard_device_of(dy)) : NULL;
    void *memory[1];
    if (!zero || !shard_load(SHARD_INPUTS(zero), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(dy, fill, 1, 0.0, memory[0], dy->dtype));
    for (int input = B; input >= A; input--) {
        if (!shard_wants(node, input))
            continue;
        shard_tensor *each = shard_gradient_each(node, input, dy, input == A || !shard_wants(node, A));
        SHARD_TRY(choose(condition, input == A ? dy : zero, input == A ? zero : dy, each));
        dx[input] = shard_gradient_summed(node, input, each, dy);
        if (!dx[input])
            return shard_last_status();
    }
    return SHARD_OK;
}

static const shard_node_type where_type = {.name = "where", .backward = where_backward};

static bool check(const char *function, shard_tensor *const *operand)
{
    shard_device *device[3];
    for (int i = CONDITION; i <= B; i++) {
        if (!shard_check_operand(function, operand[i]))
            return false;
        device[i] = shard_device_of(operand[i]);
    }
    if (operand[CONDITION]->dtype != SHARD_UINT8)
        shard_error(SHARD_ERROR_SHAPE, "%s: the condition is %s; uint8 is needed, as shard_eq and its like give", function,
                    shard_dtype_name(operand[CONDITION]->dtype));
    else if (operand[A]->dtype != operand[B]->dtype)
        shard_error(SHARD_ERROR_SHAPE, "%s: a is %s, b is %s; one dtype is needed (shard_cast)", function,
                    shard_dtype_name(operand[A]->dtype), shard_dtype_name(operand[B]->dtype));
    else if (device[A] != device[CONDITION] || device[B] != device[CONDITION])
        shard_error(SHARD_ERROR_SHAPE, "%s: the condition is on %s, a on %s, b on %s; one device is needed (shard_to_device)",
                    function, device[CONDITION]->name, device[A]->name, device[B]->name);
    else
        return true;
    return false;
}

shard_tensor *shard_where(shard_tensor *condition, shard_tensor *a, shard_tensor *b)
{
    static const char function[] = "shard_where";
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *operand[] = {condition, a, b}, *y = NULL;
    shard_autocast_promote(2, operand + A);
    if (check(function, operand))
        y = shard_expansion_result(function, false, 3, operand, operand[A]->dtype);
    y = shard_result(y, choose(operand[CONDITION], operand[A], operand[B], y));
    shard_node *node = shard_record(&where_type, y, 3, operand, 0);
    shard_save_for_backward(node, CONDITION, condition);
    y = shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    return y;
}
