#include "support/rules.h"

#include "tensor/tensor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- whole and parts ---- */

static int64_t count_of(shard_shape shape)
{
    return shard_shape_product(&shape, 0, shape.ndim);
}

/* Copies the range of dimension dim (or all) out of whole values; freed by free. */
static double *part_of(const double *whole, shard_shape shape, int dim, shard_range range)
{
    double *part = calloc((size_t)count_of(shape) + 1, sizeof *part);
    ck_assert_ptr_nonnull(part);
    if (dim < 0)
        return memcpy(part, whole, (size_t)count_of(shape) * sizeof *part);
    int64_t before = shard_shape_product(&shape, 0, dim), after = shard_shape_product(&shape, dim + 1, shape.ndim);
    for (int64_t i = 0; i < before; i++)
        memcpy(part + i * range.size * after, whole + (i * shape.dim[dim] + range.start) * after,
               (size_t)(range.size * after) * sizeof *part);
    return part;
}

static shard_range even_range(const shard_group *group, shard_shape whole, int dim)
{
    if (dim < 0)
        return (shard_range){0};
    return shard_split_range(whole.dim[dim], shard_group_size(group), shard_group_rank(group));
}

/* The range of whole values as a tensor that is placed so. */
static shard_tensor *place(const double *whole, shard_shape shape, int dim, shard_range range, shard_group *group)
{
    double *part = part_of(whole, shape, dim, range);
    shard_shape own = shape;
    if (dim >= 0)
        own.dim[dim] = range.size;
    shard_tensor *tensor = shard_from_host(part, own, .dtype = SHARD_FLOAT64);
    free(part);
    return dim >= 0 ? shard_as_split(tensor, dim, group, range.start, shape.dim[dim]) : tensor;
}

/* The tensor, summed over `sum`, is this rank's part of the whole values. */
static void check_part(const rule *r, const char *what, shard_tensor *tensor, const double *whole, shard_shape shape, int dim,
                       shard_range range, shard_group *sum)
{
    double *values = values_of(tensor), *expected = part_of(whole, shape, dim, range);
    check_ok(shard_group_all_reduce(sum, NULL, values, shard_numel(tensor), SHARD_FLOAT64, SHARD_SUM));
    check_doubles(values, expected, shard_numel(tensor), r->tolerance > 0 ? r->tolerance : 1e-13, 0, "%s: %s", r->name, what);
    free(values);
    free(expected);
}

void make_leaves(const rule *r, shard_group *group, shard_tensor **leaf)
{
    for (int i = 0; i < r->inputs; i++) {
        double *values = calloc((size_t)count_of(r->shape[i]) + 1, sizeof *values);
        make_up(values, count_of(r->shape[i]), (unsigned)i);
        int dim = group ? r->at[i] : WHOLE;
        leaf[i] = place(values, r->shape[i], dim, even_range(group, r->shape[i], dim), group);
        shard_set_requires_grad(leaf[i], true);
        free(values);
    }
}

void check_rule(const rule *r, shard_group *world)
{
    shard_tensor *whole[OPERATION_INPUTS], *leaf[OPERATION_INPUTS];
    make_leaves(r, NULL, whole);
    make_leaves(r, world, leaf);
    shard_tensor *expected = r->make(whole, r->options), *y = r->make(leaf, r->options);
    ck_assert_msg(y && expected, "%s: %s", r->name, shard_last_error());
    shard_shape shape = shard_tensor_shape(expected);
    shard_placement placement = shard_tensor_placement(y);
    if (shard_group_size(world) == 1 || r->result == WHOLE)
        ck_assert_int_eq(placement.kind, SHARD_LOCAL);
    else if (r->result == PARTIAL)
        ck_assert_msg(placement.kind == SHARD_PARTIAL && placement.group == world, "%s: not partial", r->name);
    else
        ck_assert_msg(placement.kind == SHARD_SPLIT && placement.dim == r->result && placement.group == world &&
                          placement.whole == shape.dim[r->result],
                      "%s: split along %d of %lld", r->name, placement.dim, (long long)placement.whole);
    shard_range part = {0};
    if (r->result >= 0)
        part = (shard_range){placement.kind == SHARD_SPLIT ? placement.start : 0, shard_tensor_size(y, r->result)};
    double *values = values_of(expected);
    check_part(r, "result", y, values, shape, r->result, part, r->result == PARTIAL ? world : NULL);
    double *dy = calloc((size_t)count_of(shape) + 1, sizeof *dy);
    make_up(dy, count_of(shape), 9);
    check_ok(shard_backward_from(expected, place(dy, shape, WHOLE, part, NULL)));
    check_ok(shard_backward_from(y, place(dy, shape, r->result, part, world)));
    for (int i = 0; i < r->inputs; i++) {
        /* Of split columns the sum is taken on the way; of split rows it is pending for whoever averages gradients. */
        if (r->result > 0)
            ck_assert_msg(shard_grad(leaf[i])->pending.count == 0, "%s: the gradient of input %d is a pending sum", r->name, i);
        double *gradient = values_of(shard_grad(whole[i]));
        ck_assert_msg(count_of(shape) == 0 || largest_of(gradient, count_of(r->shape[i])) > 0,
                      "%s: the gradient of input %d is 0", r->name, i);
        check_part(r, "gradient", shard_grad(leaf[i]), gradient, r->shape[i], r->at[i], even_range(world, r->shape[i], r->at[i]),
                   shard_grad(leaf[i])->pending.count ? world : NULL);
        free(gradient);
    }
    free(values);
    free(dy);
}

void check_each_rule(const rule *rules, size_t count, shard_group *world)
{
    for (size_t i = 0; i < count; i++)
        SHARD_SCOPE
        {
            check_rule(&rules[i], world);
        }
}
