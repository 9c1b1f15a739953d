#include "support/gradcheck.h"
#include "support/ranks.h"

#include <stdio.h>
#include <stdlib.h>

/* ---- values ---- */

void make_up(double *values, int64_t count, unsigned seed)
{
    for (int64_t i = 0; i < count; i++) {
        values[i] = 4 * ((double)i + 0.5) / (double)count - 2;
        values[i] *= values[i] > 0 ? 1.25 : 1; /* or their sum would be 0 */
    }
    if (count % 2) /* the middle one is 0 */
        values[count / 2] = count > 1 ? 2.75 : 2.75 - 0.25 * (seed % 4);
    for (int64_t i = count - 1; i > 0; i--) {
        int64_t other = (int64_t)(mix(((uint64_t)seed << 32) + (uint64_t)i) % (uint64_t)(i + 1));
        double value = values[i];
        values[i] = values[other];
        values[other] = value;
    }
}

static void *allocate(int64_t count, size_t size)
{
    void *memory = calloc((size_t)count + 1, size);
    ck_assert_ptr_nonnull(memory);
    return memory;
}

static shard_tensor *from_doubles(const double *values, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *doubles = shard_from_host(values, shape, .dtype = SHARD_FLOAT64), *tensor = NULL;
    SHARD_NO_GRAD
        tensor = shard_detach(shard_cast(doubles, dtype));
    ck_assert_msg(tensor != NULL, "%s", shard_last_error());
    return tensor;
}

static int64_t elements(shard_shape shape)
{
    int64_t count = 1;
    for (int i = 0; i < shape.ndim; i++)
        count *= shape.dim[i];
    return count;
}

shard_tensor *make_up_tensor_with(shard_shape shape, unsigned seed, shard_tensor_options options)
{
    double *values = allocate(elements(shape), sizeof *values);
    make_up(values, elements(shape), seed);
    shard_tensor *tensor = from_doubles(values, shape, options.dtype);
    free(values);
    shard_set_requires_grad(tensor, options.requires_grad);
    return tensor;
}

void check_tensor(const char *what, shard_tensor *tensor, const double *expected, double tolerance)
{
    double *values = values_of(tensor);
    check_doubles(values, expected, shard_numel(tensor), tolerance, 0, "%s", what);
    free(values);
}

void check_refused(const shard_tensor *made, shard_status status, const char *pattern)
{
    ck_assert_msg(!made, "a tensor was made where \"%s\" was expected", pattern);
    check_error(status, pattern);
}

/* ---- running an operation ---- */

typedef enum mode {
    PLAIN,
    THROUGH_RESULTS, /* its inputs are results of operations, not leaves */
    IN_PLACE,        /* its gradient comes from an operation, so that nobody else has it */
    USED_TWICE,      /* two of it, added */
    TWO_BACKWARDS,   /* added up in the leaves */
    OVER_OLD_GRADIENT,
    MODES
} mode;

static const char *const mode_names[] = {"plain",      "through results", "in place",
                                         "used twice", "two backwards",   "over an old gradient"};

typedef struct outcome {
    double *y, *gradient[OPERATION_INPUTS];
    int64_t count;
} outcome;

static void free_outcome(outcome *out)
{
    free(out->y);
    for (int i = 0; i < OPERATION_INPUTS; i++)
        free(out->gradient[i]);
}

static shard_dtype input_dtype(const operation *op, int input, shard_dtype dtype)
{
    bool keeps = op->parameters >> input & 1 && dtype != SHARD_FLOAT64;
    return keeps ? SHARD_FLOAT32 : dtype;
}

static shard_tensor *make(const operation *op, shard_tensor *const *x)
{
    shard_tensor *y = op->make(x, op->options);
    ck_assert_msg(y != NULL, "%s: %s", op->name, shard_last_error());
    return y;
}

/* What the result is multiplied with: eighths, which every dtype has. */
static shard_tensor *result_weights(const shard_tensor *y)
{
    int64_t count = shard_numel(y);
    double *values = allocate(count, sizeof *values);
    for (int64_t i = 0; i < count; i++)
        values[i] = (double)(mix((uint64_t)i) % 16) / 8 - 0.9375;
    shard_tensor *weights = from_doubles(values, shard_tensor_shape(y), shard_tensor_dtype(y));
    free(values);
    return weights;
}

static void backward(const operation *op, mode how, shard_tensor *const *leaf)
{
    shard_tensor *x[OPERATION_INPUTS];
    for (int i = 0; i < op->inputs; i++)
        x[i] = how == THROUGH_RESULTS ? shard_scale(leaf[i], 1.0) : leaf[i];
    shard_tensor *y = make(op, x), *z = y;
    if (how == USED_TWICE)
        z = shard_add(y, make(op, x));
    else if (how == IN_PLACE)
        z = shard_scale(y, 1.0);
    ck_assert(shard_requires_grad(y));
    shard_tensor *weights = result_weights(z);
    check_ok(shard_backward_from(z, weights));
    ck_assert_int_ne(shard_backward_from(z, weights), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "shard_backward: the record of *freed*");
}

/* Makes the leaves in the open scope. */
static void make_leaves(const operation *op, double *const *values, shard_dtype dtype, unsigned wants, shard_tensor **leaf)
{
    for (int i = 0; i < op->inputs; i++) {
        leaf[i] = from_doubles(values[i], op->shape[i], input_dtype(op, i, dtype));
        shard_set_requires_grad(leaf[i], wants >> i & 1);
    }
}

static outcome run(const operation *op, double *const *values, shard_dtype dtype, unsigned wants, mode how)
{
    outcome out = {0};
    SHARD_SCOPE {
        shard_tensor *leaf[OPERATION_INPUTS];
        make_leaves(op, values, dtype, wants, leaf);
        SHARD_NO_GRAD {
            shard_tensor *y = make(op, leaf);
            ck_assert(!shard_requires_grad(y));
            out.y = values_of(y);
            out.count = shard_numel(y);
        }
        if (wants)
            backward(op, how, leaf);
        for (int i = 0; i < op->inputs && how == OVER_OLD_GRADIENT; i++)
            shard_zero_grad(leaf[i]);
        if (wants && (how == OVER_OLD_GRADIENT || how == TWO_BACKWARDS))
            backward(op, how, leaf);
        for (int i = 0; i < op->inputs; i++) {
            ck_assert_msg((shard_grad(leaf[i]) != NULL) == (wants >> i & 1), "%s: gradient of input %d", op->name, i);
            if (wants >> i & 1)
                out.gradient[i] = values_of(shard_grad(leaf[i]));
        }
    }
    return out;
}

/* ---- what is checked ---- */

static double weighted_result(const operation *op, double *const *values)
{
    double sum = 0;
    SHARD_SCOPE SHARD_NO_GRAD {
        shard_tensor *leaf[OPERATION_INPUTS];
        make_leaves(op, values, SHARD_FLOAT64, 0, leaf);
        shard_tensor *y = make(op, leaf);
        double *results = values_of(y), *weights = values_of(result_weights(y));
        for (int64_t i = 0; i < shard_numel(y); i++)
            sum += results[i] * weights[i];
        free(results);
        free(weights);
    }
    return sum;
}

/* By a formula of fourth order. */
static double difference(const operation *op, double *const *values, int input, int64_t element)
{
    const double h = 1e-3;
    static const double steps[] = {-2, -1, 1, 2}, factors[] = {1, -8, 8, -1};
    double *at = &values[input][element], before = *at, slope = 0;
    for (int i = 0; i < 4; i++) {
        *at = before + steps[i] * h;
        slope += factors[i] * weighted_result(op, values);
    }
    *at = before;
    return slope / (12 * h);
}

static bool is_empty(const operation *op, const outcome *out)
{
    bool empty = out->count == 0;
    for (int i = 0; i < op->inputs; i++)
        empty |= elements(op->shape[i]) == 0;
    return empty;
}

static void check_differences(const operation *op, double **values, const outcome *reference)
{
    double tolerance = op->tolerance > 0 ? op->tolerance : 1e-9;
    for (int i = 0; i < op->inputs; i++) {
        int64_t count = elements(op->shape[i]);
        double *expected = allocate(count, sizeof *expected);
        for (int64_t j = 0; j < count; j++)
            expected[j] = difference(op, values, i, j);
        /* A gradient that is all 0 has no scale of its own. */
        bool zero = largest_of(expected, count) < 1e-9;
        ck_assert_msg(zero == (op->constant >> i & 1) || (zero && is_empty(op, reference)), "%s: the result %s on input %d",
                      op->name, zero ? "does not depend" : "depends", i);
        double least = zero ? 1e-9 / tolerance : 0;
        check_doubles(reference->gradient[i], expected, count, tolerance, least, "%s: gradient of input %d", op->name, i);
        free(expected);
    }
}

static void compare(const operation *op, const char *how, const outcome *out, const outcome *reference, double factor,
                    double tolerance)
{
    ck_assert_int_eq(out->count, reference->count);
    check_doubles(out->y, reference->y, out->count, tolerance, 0, "%s, %s: result", op->name, how);
    for (int i = 0; i < op->inputs; i++) {
        int64_t count = elements(op->shape[i]);
        if (!out->gradient[i])
            continue;
        double *expected = allocate(count, sizeof *expected);
        for (int64_t j = 0; j < count; j++)
            expected[j] = factor * reference->gradient[i][j];
        check_doubles(out->gradient[i], expected, count, tolerance, 0, "%s, %s: gradient of input %d", op->name, how, i);
        free(expected);
    }
}

static void check_modes(const operation *op, double *const *values, const outcome *reference)
{
    unsigned all = (1u << op->inputs) - 1;
    for (mode how = THROUGH_RESULTS; how < MODES; how++) {
        outcome out = run(op, values, SHARD_FLOAT64, all, how);
        compare(op, mode_names[how], &out, reference, how == USED_TWICE || how == TWO_BACKWARDS ? 2 : 1, 1e-13);
        free_outcome(&out);
    }
    for (unsigned wants = 0; wants < all; wants++)
        for (mode how = PLAIN; how <= TWO_BACKWARDS; how++) {
            outcome out = run(op, values, SHARD_FLOAT64, wants, how);
            compare(op, "only some gradients", &out, reference, how == USED_TWICE || how == TWO_BACKWARDS ? 2 : 1, 1e-13);
            free_outcome(&out);
        }
}

/* The rounded inputs are the float64 ones too, so that only the operation's own
 * rounding is left. */
static void check_dtypes(const operation *op, double *const *values)
{
    static const struct {
        shard_dtype dtype;
        double error;
    } dtypes[] = {{SHARD_FLOAT32, 0x1p-24}, {SHARD_BFLOAT16, 0x1p-8}, {SHARD_FLOAT16, 0x1p-11}};
    unsigned all = (1u << op->inputs) - 1;
    for (int d = 0; d < 3; d++) {
        shard_dtype dtype = dtypes[d].dtype;
        double *rounded[OPERATION_INPUTS];
        SHARD_SCOPE
            for (int i = 0; i < op->inputs; i++)
                rounded[i] = values_of(from_doubles(values[i], op->shape[i], dtype));
        outcome expected = run(op, rounded, SHARD_FLOAT64, all, PLAIN), out = run(op, rounded, dtype, all, PLAIN);
        compare(op, shard_dtype_name(dtype), &out, &expected, 1, (op->rounding > 0 ? op->rounding : 8) * dtypes[d].error);
        free_outcome(&out);
        free_outcome(&expected);
        for (int i = 0; i < op->inputs; i++)
            free(rounded[i]);
    }
}

static void check_stale(const operation *op, double *const *values)
{
    unsigned all = (1u << op->inputs) - 1;
    for (int i = 0; i < op->inputs; i++)
        SHARD_SCOPE {
            shard_tensor *leaf[OPERATION_INPUTS];
            make_leaves(op, values, SHARD_FLOAT64, all, leaf);
            shard_tensor *y = make(op, leaf);
            check_ok(shard_copy_from_host(leaf[i], values[i], (size_t)elements(op->shape[i]) * sizeof **values));
            shard_status status = shard_backward_from(y, result_weights(y));
            ck_assert_msg((status != SHARD_OK) == (op->needs >> i & 1), "%s: backward behind a write to input %d: %s", op->name,
                          i, status ? shard_last_error() : "no error");
            if (status)
                check_error(SHARD_ERROR_ARGUMENT, "backward of *: *written to*");
        }
}

void check_operation(const operation *op)
{
    double *values[OPERATION_INPUTS];
    int64_t before = shard_get_memory_stats(shard_device_open("cpu")).current;
    for (int i = 0; i < op->inputs; i++) {
        int64_t count = elements(op->shape[i]);
        values[i] = allocate(count, sizeof *values[i]);
        make_up(values[i], count, op->seed * OPERATION_INPUTS + (unsigned)i);
    }
    outcome reference = run(op, values, SHARD_FLOAT64, (1u << op->inputs) - 1, PLAIN);
    check_differences(op, values, &reference);
    check_modes(op, values, &reference);
    check_dtypes(op, values);
    check_stale(op, values);
    free_outcome(&reference);
    for (int i = 0; i < op->inputs; i++)
        free(values[i]);
    ck_assert_int_eq(shard_get_memory_stats(shard_device_open("cpu")).current, before);
}
