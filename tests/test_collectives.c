/* copy, scatter, reduce, gather: values, and adjoints that a single process would give. */
#include "support/host.h"
#include "support/job.h"

#include "tensor/tensor.h"

#include <stdlib.h>

/* Rows of member r: uneven, and none for one of them. */
static int64_t rows_of(int rank)
{
    return rank == 1 ? 0 : rank + 1;
}

static int64_t rows_before(int rank)
{
    int64_t rows = 0;
    for (int i = 0; i < rank; i++)
        rows += rows_of(i);
    return rows;
}

static shard_tensor *own_part(shard_shape shape, int dim, shard_group *group, int64_t start, int64_t whole, uint64_t seed)
{
    shard_tensor *part = shard_as_split(shard_empty(shape, .dtype = SHARD_FLOAT64), dim, group, start, whole);
    fill_made_up(part, seed);
    shard_set_requires_grad(part, true);
    return part;
}

/* sum(gather(x) * w): the gradient of x is its part of w. */
static void gathers(shard_group *world, int dim, shard_shape shape, int64_t start, int64_t whole_size)
{
    shard_tensor *x = own_part(shape, dim, world, start, whole_size, 1);
    shard_shape whole = shape;
    whole.dim[dim] = whole_size;
    shard_tensor *w = made_up(whole, 2, SHARD_FLOAT64), *expected = made_up(whole, 1, SHARD_FLOAT64);
    shard_tensor *y = shard_gather_from_group(x, dim - shape.ndim, world);
    check_close(y, expected, 0);
    ck_assert_int_eq(shard_tensor_placement(y).kind, SHARD_LOCAL);
    check_ok(shard_backward(shard_sum(shard_mul(y, w))));
    double *wanted = values_of(w);
    check_part(shard_grad(x), wanted, 0);
    free(wanted);
}

static void gathers_rows(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        gathers(world, 0, SHARD_SHAPE(rows_of(rank), 3), rows_before(rank), rows_before(size));
    }
}

static void gathers_columns(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        gathers(world, 2, SHARD_SHAPE(2, 2, rows_of(rank)), rows_before(rank), rows_before(size));
    }
}

static void gathers_middle(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        gathers(world, 1, SHARD_SHAPE(2, rows_of(rank), 3), rows_before(rank), rows_before(size));
        gathers(world, 2, SHARD_SHAPE(2, 2, rows_of(rank), 3), rows_before(rank), rows_before(size));
        /* What no tensor says is split; its gradient is the same part. */
        shard_shape shape = SHARD_SHAPE(2, rows_before(size), 3);
        shard_tensor *whole = made_up(shape, 1, SHARD_FLOAT64), *w = made_up(shape, 2, SHARD_FLOAT64);
        shard_tensor *part = own_part(SHARD_SHAPE(2, rows_of(rank), 3), 1, world, rows_before(rank), rows_before(size), 1);
        shard_tensor *x = shard_detach(part);
        x->placement = (shard_placement){0};
        shard_set_requires_grad(x, true);
        shard_tensor *y = shard_gather_from_group(x, 1, world);
        check_close(y, whole, 0);
        check_ok(shard_backward(shard_sum(shard_mul(y, w))));
        double *wanted = values_of(w), *own = values_of(shard_grad(x));
        for (int64_t i = 0; i < 2; i++)
            for (int64_t j = 0; j < 3 * rows_of(rank); j++)
                ck_assert_double_eq(own[i * 3 * rows_of(rank) + j], wanted[3 * (i * rows_before(size) + rows_before(rank)) + j]);
        free(wanted);
        free(own);
    }
}

/* Element i of rank r of any integer type. */
static uint8_t integer_at(int rank, int64_t i)
{
    return (uint8_t)(7 * rank + 3 * i + 1);
}

static void put_integer(void *to, int64_t at, shard_dtype dtype, int64_t value)
{
    if (dtype == SHARD_INT64)
        ((int64_t *)to)[at] = value;
    else if (dtype == SHARD_INT32)
        ((int32_t *)to)[at] = (int32_t)value;
    else
        ((uint8_t *)to)[at] = (uint8_t)value;
}

/* Along the middle, and added up. */
static void takes_integers(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    int64_t all = rows_before(size);
    for (shard_dtype dtype = 0; dtype < SHARD_DTYPES; dtype++) {
        if (shard_dtype_is_float(dtype))
            continue;
        SHARD_SCOPE
        {
            int64_t mine[256], wanted[256];
            for (int64_t i = 0; i < 6 * rows_of(rank); i++)
                put_integer(mine, i, dtype, integer_at(rank, i));
            for (int member = 0; member < size; member++)
                for (int64_t i = 0; i < 6 * rows_of(member); i++) {
                    int64_t width = 3 * rows_of(member);
                    put_integer(wanted, i / width * 3 * all + 3 * rows_before(member) + i % width, dtype, integer_at(member, i));
                }
            shard_tensor *y =
                shard_gather_from_group(shard_from_host(mine, SHARD_SHAPE(2, rows_of(rank), 3), .dtype = dtype), 1, world);
            void *values = host_copy(y);
            ck_assert_mem_eq(values, wanted, (size_t)(6 * all) * shard_dtype_size(dtype));
            free(values);
            for (int64_t i = 0; i < 5; i++) {
                int64_t sum = 0;
                for (int member = 0; member < size; member++)
                    sum += integer_at(member, i);
                put_integer(mine, i, dtype, integer_at(rank, i));
                put_integer(wanted, i, dtype, sum);
            }
            shard_tensor *x = shard_from_host(mine, SHARD_SHAPE(5), .dtype = dtype);
            y = shard_reduce_from_group(x, world);
            ck_assert_int_eq(shard_tensor_dtype(y), dtype);
            values = host_copy(y);
            ck_assert_mem_eq(values, wanted, 5 * shard_dtype_size(dtype));
            free(values);
            values = host_copy(x); /* as it was */
            ck_assert_mem_eq(values, mine, 5 * shard_dtype_size(dtype));
            free(values);
        }
    }
}

static void gathers_labels(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        int64_t mine[2] = {rank * 10, rank * 10 + 1};
        shard_tensor *all = shard_gather_from_group(shard_from_host(mine, SHARD_SHAPE(2), .dtype = SHARD_INT64), 0, world);
        ck_assert_ptr_nonnull(all);
        int64_t *values = host_copy(all);
        for (int i = 0; i < size; i++)
            ck_assert_int_eq(values[2 * i + 1], i * 10 + 1);
        free(values);
    }
}

/* A gathered batch through a layer split over the same group: each member's gradient of
 * the batch is a part of the sum, and comes back reduce-scattered. */
static void reduces_and_scatters(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    int64_t rows = rows_before(size), in = 5, out = 2 * size + 1;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(rows, in), 1, SHARD_FLOAT64);
        shard_set_requires_grad(x, true);
        shard_tensor *w = made_up_leaf(SHARD_SHAPE(out, in), 2, SHARD_FLOAT64);
        shard_tensor *g = made_up(SHARD_SHAPE(rows, out), 3, SHARD_FLOAT64);
        check_ok(shard_backward_from(shard_linear(x, w, NULL), g));

        shard_range part = shard_split_range(out, size, rank);
        shard_tensor *own_x = own_part(SHARD_SHAPE(rows_of(rank), in), 0, world, rows_before(rank), rows, 1);
        shard_tensor *own_w = own_part(SHARD_SHAPE(part.size, in), 0, world, part.start, out, 2);
        shard_tensor *y = shard_linear(shard_gather_from_group(own_x, 0, world), own_w, NULL);
        shard_tensor *own_g =
            shard_as_split(shard_empty(SHARD_SHAPE(rows, part.size), .dtype = SHARD_FLOAT64), 1, world, part.start, out);
        fill_made_up(own_g, 3);
        check_ok(shard_backward_from(y, own_g));
        double *dx = values_of(shard_grad(x)), *dw = values_of(shard_grad(w));
        check_part(shard_grad(own_x), dx, 1e-14);
        check_part(shard_grad(own_w), dw, 1e-14);
        free(dx);
        free(dw);
    }
}

/* The same along a middle dimension. */
static void reduces_and_scatters_middle(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    int64_t rows = rows_before(size), in = 5, out = 2 * size + 1;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(2, rows, in), 1, SHARD_FLOAT64);
        shard_tensor *w = made_up_leaf(SHARD_SHAPE(out, in), 2, SHARD_FLOAT64);
        shard_tensor *c = made_up(SHARD_SHAPE(2, rows, out), 3, SHARD_FLOAT64);
        check_ok(shard_backward(shard_sum(shard_mul(shard_linear(x, w, NULL), c))));

        shard_range part = shard_split_range(out, size, rank);
        shard_tensor *own_x = own_part(SHARD_SHAPE(2, rows_of(rank), in), 1, world, rows_before(rank), rows, 1);
        shard_tensor *own_w = own_part(SHARD_SHAPE(part.size, in), 0, world, part.start, out, 2);
        shard_tensor *y = shard_linear(shard_gather_from_group(own_x, 1, world), own_w, NULL);
        check_ok(shard_backward(shard_reduce_from_group(shard_sum(shard_mul(y, shard_scatter_to_group(c, 2, world))), world)));
        double *dx = values_of(shard_grad(x)), *dw = values_of(shard_grad(w));
        check_part(shard_grad(own_x), dx, 1e-14);
        check_part(shard_grad(own_w), dw, 1e-14);
        free(dx);
        free(dw);
    }
}

static void scatters(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        for (int dim = 0; dim < 3; dim++) {
            shard_shape shape = SHARD_SHAPE(5, 4, 7);
            shard_tensor *x = made_up_leaf(shape, 4, SHARD_FLOAT64), *w = made_up(shape, 5, SHARD_FLOAT64);
            shard_tensor *part = shard_scatter_to_group(x, dim, world);
            double *whole = values_of(x), *wanted = values_of(w);
            check_part(part, whole, 0);
            shard_tensor *loss =
                shard_reduce_from_group(shard_sum(shard_mul(part, shard_scatter_to_group(w, dim, world))), world);
            check_ok(shard_backward(loss));
            check_part(shard_grad(x), wanted, 0);
            free(whole);
            free(wanted);
        }
    }
}

static void reduces(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(3), rank + 1.0, .requires_grad = true);
        shard_tensor *y = shard_reduce_from_group(x, world);
        ck_assert_double_eq(value_at(y, 1), size * (size + 1) / 2.0);
        shard_tensor *w = made_up(SHARD_SHAPE(3), 6, SHARD_FLOAT32);
        check_ok(shard_backward(shard_sum(shard_mul(y, w))));
        check_close(shard_grad(x), w, 0);
    }
}

static shard_tensor *summand(int rank, shard_group *group)
{
    return shard_as_placed(shard_full(SHARD_SHAPE(2), rank + 1), (shard_placement){.kind = SHARD_PARTIAL, .group = group});
}

static void check_sum(shard_tensor *x, shard_group *group, shard_placement_kind kind, double sum)
{
    check_ok(shard_all_reduce(x, SHARD_SUM, group));
    ck_assert_int_eq(shard_tensor_placement(x).kind, kind);
    ck_assert_double_eq(value_at(shard_as_placed(x, (shard_placement){0}), 1), sum);
}

/* In place: a sum of summands is the whole value, and their maximum is nothing. */
static void reduces_summands(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    ck_assert_msg(mesh != NULL, "%s", shard_last_error());
    shard_group *model = shard_mesh_model_group(mesh), *data = shard_mesh_data_group(mesh);
    double in_model = rank < 2 ? 3 : 7, in_data = rank % 2 ? 6 : 4;
    SHARD_SCOPE
    {
        shard_tensor *x = summand(rank, model);
        check_sum(x, model, SHARD_LOCAL, in_model);
        ck_assert_double_eq(value_at(shard_add(x, x), 0), 2 * in_model); /* as of any local tensor */
        check_sum(summand(rank, model), data, SHARD_PARTIAL, in_data);
        check_sum(summand(rank, model), world, SHARD_LOCAL, 10);
        check_sum(summand(rank, world), world, SHARD_LOCAL, 10);
        for (shard_reduce_op op = SHARD_MAX; op <= SHARD_MIN; op++) {
            x = summand(rank, world);
            ck_assert_int_eq(shard_all_reduce(x, op, world), SHARD_ERROR_UNSUPPORTED);
            check_error(SHARD_ERROR_UNSUPPORTED, "rank 0: shard_all_reduce: no rule *");
            check_sum(x, world, SHARD_LOCAL, 10);
        }
        ck_assert_int_eq(shard_all_reduce(summand(rank, world), SHARD_SUM, model), SHARD_ERROR_UNSUPPORTED); /* a part */
        check_error(SHARD_ERROR_UNSUPPORTED, "rank * shard_all_reduce: no rule *");
        ck_assert_int_eq(shard_broadcast(summand(rank, world), 1, model), SHARD_ERROR_UNSUPPORTED);
        check_error(SHARD_ERROR_UNSUPPORTED, "rank * shard_broadcast: no rule *");
        x = summand(rank, model);
        check_ok(shard_broadcast(x, 1, data)); /* summands of another group's sum */
        check_sum(x, model, SHARD_LOCAL, 7);
        x = rank == 1 ? summand(rank, world) : shard_ones(SHARD_SHAPE(2));
        ck_assert_int_ne(shard_all_reduce(x, SHARD_MAX, world), SHARD_OK);
        check_error(rank == 1 ? SHARD_ERROR_UNSUPPORTED : SHARD_ERROR_PEER, "rank 1: shard_all_reduce: no rule *");

        /* Shards of one group's ranks are not the same elements; those of the other group's are. */
        x = shard_as_split(shard_full(SHARD_SHAPE(2), rank), 0, model, rank % 2 * 2, 4);
        shard_group *const mixing[] = {model, world};
        for (int i = 0; i < 2; i++) {
            ck_assert_int_eq(shard_all_reduce(x, SHARD_SUM, mixing[i]), SHARD_ERROR_UNSUPPORTED);
            check_error(SHARD_ERROR_UNSUPPORTED, "rank * shard_all_reduce: no rule for *split*");
            ck_assert_int_eq(shard_broadcast(x, 0, mixing[i]), SHARD_ERROR_UNSUPPORTED);
            check_error(SHARD_ERROR_UNSUPPORTED, "rank * shard_broadcast: no rule for *split*");
        }
        check_ok(shard_all_reduce(x, SHARD_SUM, data));
        ck_assert_double_eq(value_at(x, 1), 2 * (rank % 2) + 2);

        /* A gradient before a gather: its summands are summed, and nothing else. */
        shard_tensor *leaf = shard_full(SHARD_SHAPE(1), 1, .requires_grad = true);
        check_ok(shard_backward(shard_sum(shard_gather_from_group(leaf, 0, model))));
        ck_assert_int_eq(shard_all_reduce(shard_grad(leaf), SHARD_MAX, model), SHARD_ERROR_UNSUPPORTED);
        check_error(SHARD_ERROR_UNSUPPORTED, "rank * shard_all_reduce: a gradient of shape *still to be summed over 2 ranks*");
        ck_assert_int_eq(shard_broadcast(shard_grad(leaf), 0, world), SHARD_ERROR_UNSUPPORTED);
        check_error(SHARD_ERROR_UNSUPPORTED, "rank * shard_broadcast: a gradient of shape *still to be summed over 2 ranks*");
        check_ok(shard_all_reduce(shard_grad(leaf), SHARD_MAX, data));
        check_ok(shard_all_reduce(shard_grad(leaf), SHARD_SUM, model));
        ck_assert_double_eq(value_at(shard_grad(leaf), 0), 2);
        check_ok(shard_broadcast(shard_grad(leaf), 0, model)); /* the sum is there now */
        leaf = shard_full(SHARD_SHAPE(1), 1, .requires_grad = true);
        check_ok(shard_backward(shard_sum(shard_gather_from_group(leaf, 0, world))));
        ck_assert_int_eq(shard_all_reduce(shard_grad(leaf), SHARD_SUM, data), SHARD_ERROR_UNSUPPORTED);
        check_error(SHARD_ERROR_UNSUPPORTED,
                    "rank * shard_all_reduce: a gradient *summed over 4 ranks, of which 2 are in the group*");
        check_ok(shard_all_reduce(shard_grad(leaf), SHARD_SUM, world));
        ck_assert_double_eq(value_at(shard_grad(leaf), 0), 4);
    }
    shard_mesh_destroy(mesh);
}

START_TEST(test_reduce_summands)
{
    run_job(4, reduces_summands, NULL);
}
END_TEST

/* copy forward is nothing; backward it sums what members' own parts made of it. */
static void copies(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(4), 7, SHARD_FLOAT64);
        shard_tensor *y = shard_copy_to_group(x, world);
        check_close(y, x, 0);
        check_ok(shard_backward(shard_sum(shard_scale(y, rank + 1.0))));
        shard_tensor *wanted = shard_full(SHARD_SHAPE(4), size * (size + 1) / 2.0, .dtype = SHARD_FLOAT64);
        check_close(shard_grad(x), wanted, 0);
    }
}

/* Losses of the members' own, through copies that are nested, beside each other, and above a sum over the group. */
static void copies_for_own_losses(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    double times = size * (size + 1) / 2.0;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(4), 7, SHARD_FLOAT64);
        shard_tensor *y = shard_copy_to_group(shard_mul(shard_copy_to_group(x, world), x), world);
        check_ok(shard_backward(shard_sum(shard_scale(y, rank + 1.0))));
        check_close(shard_grad(x), shard_scale(shard_detach(x), 2 * times), 1e-14);

        /* A gradient that is PARTIAL as it is given is summed once. */
        shard_zero_grad(x);
        shard_placement partial = {.kind = SHARD_PARTIAL, .group = world};
        shard_tensor *given = shard_as_placed(shard_full(SHARD_SHAPE(4), rank + 1.0, .dtype = SHARD_FLOAT64), partial);
        check_ok(shard_backward_from(shard_copy_to_group(x, world), given));
        check_close(shard_grad(x), shard_full(SHARD_SHAPE(4), times, .dtype = SHARD_FLOAT64), 0);

        shard_tensor *a = made_up_leaf(SHARD_SHAPE(4), 7, SHARD_FLOAT64), *b = made_up_leaf(SHARD_SHAPE(4), 8, SHARD_FLOAT64);
        shard_tensor *first = shard_copy_to_group(shard_gelu(a), world);
        shard_tensor *second = shard_copy_to_group(shard_reduce_from_group(shard_scale(b, 1.0 / size), world), world);
        check_ok(shard_backward(shard_scale(shard_sum(shard_add(first, second)), rank + 1.0)));
        shard_tensor *wanted = made_up_leaf(SHARD_SHAPE(4), 7, SHARD_FLOAT64);
        check_ok(shard_backward(shard_scale(shard_sum(shard_gelu(wanted)), times)));
        check_close(shard_grad(a), shard_grad(wanted), 1e-14);
        if (size > 1)
            check_ok(shard_all_reduce(shard_grad(b), SHARD_SUM, world));
        check_close(shard_grad(b), shard_full(SHARD_SHAPE(4), times, .dtype = SHARD_FLOAT64), 1e-14);
    }
}

static void notices_shapes(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        ck_assert_ptr_null(shard_gather_from_group(shard_zeros(SHARD_SHAPE(2, rank == 2 ? 4 : 3)), 0, world));
        check_error(SHARD_ERROR_MISMATCH, "rank 2 *with shards * [[]-1, 4] along 0 while ranks 0 and 1 *[[]-1, 3] along 0");
        ck_assert_ptr_null(shard_gather_from_group(rank == 1 ? NULL : shard_zeros(SHARD_SHAPE(2)), 0, world));
        check_joint_error(SHARD_ERROR_ARGUMENT, "*rank 1: shard_gather_from_group: *NULL*");
        ck_assert_ptr_null(
            shard_gather_from_group(shard_zeros(SHARD_SHAPE(INT64_C(1) << 62, 0), .dtype = SHARD_UINT8), 0, world));
        check_error(SHARD_ERROR_MEMORY, "shard_gather_from_group: *dimension 0*");
        ck_assert_ptr_nonnull(shard_gather_from_group(shard_zeros(SHARD_SHAPE(2)), 0, world)); /* the group works on */
    }
}

/* Nothing is left behind where there is no memory, also without a scope (the sanitizers look). */
static void lacks_memory(shard_group *world, void *context)
{
    (void)context;
    shard_tensor *x = shard_zeros(SHARD_SHAPE(INT64_C(1) << 45));
    ck_assert_ptr_null(shard_reduce_from_group(x, world));
    check_error(SHARD_ERROR_MEMORY, "rank 0: *no memory for 140737488355328 bytes*");
    shard_release(x);
}

START_TEST(test_lacks_memory)
{
    run_job(2, lacks_memory, NULL);
}
END_TEST

#define RANKS_TEST(test, body)                                                                                                   \
    START_TEST(test)                                                                                                             \
    {                                                                                                                            \
        run_job(rank_counts[_i], body, NULL);                                                                                    \
    }                                                                                                                            \
    END_TEST
RANKS_TEST(test_gather_rows, gathers_rows)
RANKS_TEST(test_gather_columns, gathers_columns)
RANKS_TEST(test_gather_middle, gathers_middle)
RANKS_TEST(test_gather_labels, gathers_labels)
RANKS_TEST(test_integers, takes_integers)
RANKS_TEST(test_reduce_scatter, reduces_and_scatters)
RANKS_TEST(test_reduce_scatter_middle, reduces_and_scatters_middle)
RANKS_TEST(test_scatter, scatters)
RANKS_TEST(test_reduce, reduces)
RANKS_TEST(test_copy, copies)
RANKS_TEST(test_copy_for_own_losses, copies_for_own_losses)

START_TEST(test_shapes_that_differ)
{
    run_job(3, notices_shapes, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collectives");
    TCase *tcase = test_case(suite, "collectives");
    add_ranks_test(tcase, test_gather_rows);
    add_ranks_test(tcase, test_gather_columns);
    add_ranks_test(tcase, test_gather_middle);
    add_ranks_test(tcase, test_gather_labels);
    add_ranks_test(tcase, test_integers);
    add_ranks_test(tcase, test_reduce_scatter);
    add_ranks_test(tcase, test_reduce_scatter_middle);
    add_ranks_test(tcase, test_scatter);
    add_ranks_test(tcase, test_reduce);
    add_ranks_test(tcase, test_copy);
    add_ranks_test(tcase, test_copy_for_own_losses);
    tcase_add_test(tcase, test_reduce_summands);
    tcase_add_test(tcase, test_shapes_that_differ);
    tcase_add_test(tcase, test_lacks_memory);
    return test_run(suite);
}
