/* eq, ne, lt, le, gt, ge: of two tensors, or of a tensor and a number. */
#include "op/autocast.h"
#include "op/expansion.h"

#include <math.h>

static shard_status apply(shard_comparison kind, shard_tensor *a, shard_tensor *b, shard_tensor *y)
{
    void *memory[3];
    if (!y || !shard_load(SHARD_INPUTS(a, b, y), memory))
        return shard_last_status();
    const shard_expansion over = shard_expansion_operands(&y->shape, SHARD_INPUTS(a, b));
    return SHARD_RUN(y, compare, kind, &over, memory[0], memory[1], memory[2], a->dtype);
}

static shard_tensor *compare(const char *function, shard_comparison kind, shard_tensor *a, shard_tensor *b)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *x[] = {a, b}, *y = NULL;
    shard_autocast_promote(2, x);
    if (shard_check_same(function, 2, x))
        y = shard_expansion_result(function, false, 2, x, SHARD_UINT8);
    y = shard_scope_return(shard_result(y, apply(kind, x[0], x[1], y)), &scope);
    shard_scope_close(&scope);
    return y;
}

/* ---- with a number ---- */

static shard_status fill(shard_tensor *x, double value)
{
    void *memory = x ? shard_tensor_memory(x) : NULL;
    return memory ? SHARD_RUN(x, fill, shard_numel(x), value, memory, x->dtype) : shard_last_status();
}

/* Converts a number to one of the integer dtype for which the comparison has the same result. False if there is
 * none: the comparison then has the result *always for all elements. */
static bool convert_number(shard_dtype dtype, shard_comparison *kind, double *number, bool *always)
{
    double low = dtype == SHARD_INT64 ? -0x1p63 : dtype == SHARD_INT32 ? -0x1p31 : 0;
    double end = dtype == SHARD_INT64 ? 0x1p63 : dtype == SHARD_INT32 ? 0x1p31 : 0x1p8;
    double below = floor(*number);
    bool less = *kind == SHARD_LT || *kind == SHARD_LE, greater = *kind == SHARD_GT || *kind == SHARD_GE;
    *always = *kind == SHARD_NE;
    if (isnan(*number))
        return false;
    if (below < low || below >= end) {
        *always |= below < low ? greater : less;
        return false;
    }
    if (below != *number) { /* x < 2.5 where x <= 2, x >= 2.5 where x > 2 */
        if (!less && !greater)
            return false;
        *kind = less ? SHARD_LE : SHARD_GT;
    }
    *number = below;
    return true;
}

static shard_tensor *compare_number(const char *function, shard_comparison kind, shard_tensor *x, double number)
{
    bool always;
    if (!shard_check_operand(function, x) || !shard_check_carried(function, x, SHARD_MAX_DIMS))
        return NULL;
    if (!shard_dtype_is_float(x->dtype) && !convert_number(x->dtype, &kind, &number, &always)) {
        shard_tensor *y = shard_tensor_make(x->shape, SHARD_UINT8, shard_device_of(x));
        if (y)
            y->placement = x->placement;
        return shard_result(y, fill(y, always));
    }
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *other = shard_tensor_make(SHARD_SCALAR, x->dtype, shard_device_of(x)), *y = NULL;
    if (fill(other, number) == SHARD_OK)
        y = compare(function, kind, x, other);
    y = shard_scope_return(y, &scope);
    shard_scope_close(&scope);
    return y;
}

#define COMPARISON(name, kind)                                                                                                   \
    shard_tensor *shard_##name(shard_tensor *a, shard_tensor *b)                                                                 \
    {                                                                                                                            \
        return compare("shard_" #name, kind, a, b);                                                                              \
    }                                                                                                                            \
    shard_tensor *shard_##name##_scalar(shard_tensor *x, double number)                                                          \
    {                                                                                                                            \
        return compare_number("shard_" #name "_scalar", kind, x, number);                                                        \
    }
COMPARISON(eq, SHARD_EQ)
COMPARISON(ne, SHARD_NE)
COMPARISON(lt, SHARD_LT)
COMPARISON(le, SHARD_LE)
COMPARISON(gt, SHARD_GT)
COMPARISON(ge, SHARD_GE)
