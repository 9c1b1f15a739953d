/* P@k and PSP@k of multi-label predictions, on the host. */
#include "op/op.h"

#include "base/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static const char function[] = "shard_precision_at_k";

/* Host copies of the operands. */
typedef struct ranking {
    int64_t rows, width, k; /* of the indices [rows, width] the first k of each row count */
    int64_t pairs, classes; /* classes: those with a propensity; 0: all count 1 */
    int64_t *index, *pair;  /* [rows, width], [2, pairs] */
    double *inverse;        /* [classes] */
    double *best;           /* memory for the inverse propensities of a row's classes */
} ranking;

static void *copy_of(shard_tensor *x, size_t size)
{
    size_t count = (size_t)shard_numel(x);
    void *copy = shard_calloc(count + 1, size);
    if (copy && shard_copy_to_host(x, copy, count * size) == SHARD_OK)
        return copy;
    free(copy);
    return NULL;
}

static bool check(const shard_tensor *indices, const shard_tensor *pairs, int64_t k, const shard_tensor *inverse)
{
    int last = indices->shape.ndim - 1;
    if (indices->dtype != SHARD_INT64 || last < 0 || k < 1 || k > indices->shape.dim[last])
        shard_error(SHARD_ERROR_SHAPE, "%s: k is %" PRId64 " for indices of dtype %s and shape %s; int64 [rows, >= k] is needed",
                    function, k, shard_dtype_name(indices->dtype), shard_shape_text(&indices->shape));
    else if (pairs->dtype != SHARD_INT64 || pairs->shape.ndim != 2 || pairs->shape.dim[0] != 2)
        shard_error(SHARD_ERROR_SHAPE, "%s: pairs of dtype %s and shape %s; int64 [2, n] is needed", function,
                    shard_dtype_name(pairs->dtype), shard_shape_text(&pairs->shape));
    else if (inverse && (!shard_dtype_is_float(inverse->dtype) || inverse->shape.ndim != 1 || !shard_is_local(inverse)))
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: inverse_propensity of dtype %s and shape %s that is %s; a local floating [classes] is "
                    "needed",
                    function, shard_dtype_name(inverse->dtype), shard_shape_text(&inverse->shape),
                    shard_placement_text(&inverse->placement));
    else
        return true;
    return false;
}

/* Whether pair i is larger than the one before it, and its class has a propensity; else the error is set. */
static bool check_pair(const ranking *r, int64_t i)
{
    const int64_t *row = r->pair, *class = r->pair + r->pairs;
    if (i > 0 && (row[i] < row[i - 1] || (row[i] == row[i - 1] && class[i] <= class[i - 1])))
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: row %" PRId64 " and class %" PRId64 " of pair %" PRId64 " do not follow the pair "
                    "before it; pairs are sorted by row and class, and each is there once",
                    function, row[i], class[i], i);
    else if (row[i] < 0 || row[i] >= r->rows)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: row %" PRId64 " of pair %" PRId64 " is outside [0, %" PRId64 ")", function, row[i],
                    i, r->rows);
    else if (r->inverse && (class[i] < 0 || class[i] >= r->classes))
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: class %" PRId64 " of pair %" PRId64 " is outside [0, %" PRId64 ") of inverse_propensity", function,
                    class[i], i, r -> classes);
    else if (class[i] < 0)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: class %" PRId64 " of pair %" PRId64 " is negative", function, class[i], i);
    else if (r->inverse && !(r->inverse[class[i]] >= 0 && isfinite(r->inverse[class[i]])))
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: inverse_propensity of class %" PRId64 " is %g; a finite number of at least 0 is needed", function,
                    class[i], r -> inverse[class[i]]);
    else
        return true;
    return false;
}

static int descending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Adds the gain of a row's first k indices to *gain, and the largest possible one to *most; the row has the pairs
 * [first, end). */
static void add_row(const ranking *r, int64_t row, int64_t first, int64_t end, double *gain, double *most)
{
    const int64_t *index = r->index + row * r->width, *class = r->pair + r->pairs;
    for (int64_t i = first; i < end; i++) {
        double value = r->inverse ? r->inverse[class[i]] : 1;
        r->best[i - first] = value;
        for (int64_t j = 0; j < r->k; j++)
            *gain += index[j] == class[i] ? value : 0;
    }
    qsort(r->best, (size_t)(end - first), sizeof *r->best, descending);
    for (int64_t i = 0; i < end - first && i < r->k; i++)
        *most += r->best[i];
}

static double evaluate(const ranking *r)
{
    double gain = 0, most = 0;
    for (int64_t i = 0; i < r->pairs; i++)
        if (!check_pair(r, i))
            return -1;
    for (int64_t row = 0, first = 0, end; row < r->rows; row++, first = end) {
        for (end = first; end < r->pairs && r->pair[end] == row; end++)
            ;
        add_row(r, row, first, end, &gain, &most);
    }
    if (!r->inverse)
        most = (double)(r->rows * r->k);
    return most > 0 ? gain / most : 0;
}

double shard_precision_at_k(shard_tensor *indices, shard_tensor *pairs, int64_t k, shard_tensor *inverse_propensity)
{
    bool failed = !inverse_propensity && shard_last_status() != SHARD_OK; /* NULL may be a failed operation's result */
    if (failed || !shard_check_operand(function, indices) || !shard_check_operand(function, pairs) ||
        !check(indices, pairs, k, inverse_propensity))
        return -1;
    shard_scope scope;
    shard_scope_open(&scope);
    int last = indices->shape.ndim - 1;
    shard_tensor *wide = NULL;
    SHARD_NO_GRAD
    {
        wide = inverse_propensity ? shard_cast(shard_detach(inverse_propensity), SHARD_FLOAT64) : NULL;
    }
    ranking r = {.rows = shard_shape_product(&indices->shape, 0, last),
                 .width = indices->shape.dim[last],
                 .k = k,
                 .pairs = pairs->shape.dim[1],
                 .classes = wide ? shard_numel(wide) : 0,
                 .index = copy_of(indices, sizeof(int64_t)),
                 .pair = copy_of(pairs, sizeof(int64_t)),
                 .inverse = wide ? copy_of(wide, sizeof(double)) : NULL};
    r.best = shard_calloc((size_t)r.pairs + 1, sizeof *r.best);
    bool ready = r.index && r.pair && r.best && (r.inverse || !inverse_propensity);
    double precision = ready ? evaluate(&r) : -1;
    free(r.index);
    free(r.pair);
    free(r.inverse);
    free(r.best);
    shard_scope_close(&scope);
    return precision;
}
