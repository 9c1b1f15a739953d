#include "support/job.h"

#include "base/dtype.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

static shard_group *open_job(void)
{
    check_ok(shard_init(NULL, NULL));
    return shard_world();
}

static void close_job(shard_group *world)
{
    (void)world;
    shard_finalize();
}

void run_job_of(ranks_run run)
{
    ranks_open = open_job;
    ranks_close = close_job;
    run_these_ranks(run);
}

void run_job(int size, ranks_body *body, void *context)
{
    run_job_of((ranks_run){.size = size, .body = body, .context = context});
}

static double number_at(uint64_t seed, uint64_t index)
{
    return (double)(mix(seed * 0x9e3779b97f4a7c15u + index * 0xbf58476d1ce4e5b9u) >> 11) * 0x1p-52 - 1.0;
}

/* The index in the whole tensor of a part's element. */
static int64_t whole_index(const shard_tensor *x, int64_t index)
{
    shard_shape own = shard_tensor_shape(x), whole = shard_tensor_whole_shape(x);
    shard_placement placement = shard_tensor_placement(x);
    int64_t result = 0, stride = 1;
    for (int d = own.ndim - 1; d >= 0; d--) {
        int64_t at = index % own.dim[d];
        index /= own.dim[d];
        if (placement.kind == SHARD_SPLIT && placement.dim == d)
            at += placement.start;
        result += at * stride;
        stride *= whole.dim[d];
    }
    return result;
}

void fill_made_up(shard_tensor *x, uint64_t seed)
{
    ck_assert_msg(x != NULL, "%s", shard_last_error());
    size_t bytes = (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x));
    void *data = malloc(bytes + 1);
    ck_assert_ptr_nonnull(data);
    for (int64_t i = 0; i < shard_numel(x); i++) {
        double value = number_at(seed, (uint64_t)whole_index(x, i));
        if (shard_tensor_dtype(x) == SHARD_FLOAT64)
            ((double *)data)[i] = value;
        else if (shard_tensor_dtype(x) == SHARD_BFLOAT16)
            ((uint16_t *)data)[i] = shard_float_to_bfloat16((float)value);
        else if (shard_tensor_dtype(x) == SHARD_FLOAT16)
            ((uint16_t *)data)[i] = shard_float_to_float16((float)value);
        else
            ((float *)data)[i] = (float)value;
    }
    check_ok(shard_copy_from_host(x, data, bytes));
    free(data);
}

shard_tensor *made_up(shard_shape shape, uint64_t seed, shard_dtype dtype)
{
    shard_tensor *x = shard_empty(shape, .dtype = dtype);
    fill_made_up(x, seed);
    return x;
}

shard_tensor *made_up_leaf(shard_shape shape, uint64_t seed, shard_dtype dtype)
{
    shard_tensor *x = made_up(shape, seed, dtype);
    shard_set_requires_grad(x, true);
    return x;
}

static void check_value(const char *file, int line, const char *name, int64_t index, double got, double wanted, double tolerance)
{
    double bound = tolerance * (1.0 + fabs(wanted));
    if (!is_within(got, wanted, bound))
        ck_abort_msg("%s:%d: %s[%lld] is %.17g, not %.17g (off by %g, allowed %g)", file, line, name, (long long)index, got, wanted,
                     fabs(got - wanted), bound);
}

/* The parts of the group's ranks are the whole, one after the other: so that none is empty or short by mistake. */
static void check_parts_fit(const char *file, int line, const char *name, shard_tensor *x)
{
    const shard_placement *at = &x->placement;
    int rank = shard_group_rank(at->group), ranks = shard_group_size(at->group);
    int64_t size[64] = {0}, start = 0, end = 0;
    ck_assert_int_le(ranks, 64);
    size[rank] = x->shape.dim[at->dim];
    check_ok(shard_group_all_reduce(at->group, NULL, size, ranks, SHARD_INT64, SHARD_SUM));
    for (int i = 0; i < ranks; i++) {
        start += i < rank ? size[i] : 0;
        end += size[i];
    }
    ck_assert_msg(start == at->start && end == at->whole,
                  "%s:%d: the parts of %s are %lld of %lld; this one starts at %lld, not %lld", file, line, name, (long long)end,
                  (long long)at->whole, (long long)at->start, (long long)start);
}

void check_part_at(const char *file, int line, const char *name, shard_tensor *x, const double *whole, double tolerance)
{
    double *values = values_of(x);
    if (shard_tensor_placement(x).kind == SHARD_SPLIT)
        check_parts_fit(file, line, name, x);
    for (int64_t i = 0; i < shard_numel(x); i++)
        check_value(file, line, name, i, values[i], whole[whole_index(x, i)], tolerance);
    free(values);
}

void check_close_at(const char *file, int line, const char *name, shard_tensor *a, shard_tensor *b, double tolerance)
{
    double *left = values_of(a), *right = values_of(b);
    ck_assert_msg(shard_shape_equal(&a->shape, &b->shape), "%s:%d: %s is %s, not %s", file, line, name,
                  shard_shape_text(&a->shape), shard_shape_text(&b->shape));
    for (int64_t i = 0; i < shard_numel(a); i++)
        check_value(file, line, name, i, left[i], right[i], tolerance);
    free(left);
    free(right);
}
