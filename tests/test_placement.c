/*
 * What operations do with split and partial operands: the table of their rules. Each
 * rank has its parts of made-up operands, and gets its part of the result and of the
 * gradients that one process gets of the whole ones. And what they refuse.
 */
#include "support/gradcheck.h"
#include "support/rules.h"

#include <shard/distributed.h>
#include <shard/loss.h>

#include "tensor/tensor.h"

#include <stdlib.h>

/* ---- operations ---- */

static shard_tensor *to_rows(shard_tensor *const *x, const void *columns)
{
    return shard_reshape(x[0], SHARD_SHAPE(-1, *(const int64_t *)columns));
}

/* The split dimension becomes two, of which the first is split. */
static shard_tensor *to_heads(shard_tensor *const *x, const void *size)
{
    return shard_reshape(x[0], SHARD_SHAPE(shard_tensor_size(x[0], 0), -1, *(const int64_t *)size));
}

static shard_tensor *to_itself(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_reshape(x[0], shard_tensor_shape(x[0]));
}

static shard_tensor *flatten(shard_tensor *const *x, const void *options)
{
    const int *range = options;
    return shard_flatten(x[0], range[0], range[1]);
}

static shard_tensor *narrow(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_narrow(x[0], 0, 1, 2);
}

static shard_tensor *narrow_columns(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_narrow(x[0], 1, 1, 2);
}

static shard_tensor *transpose(shard_tensor *const *x, const void *options)
{
    const int *dims = options;
    return shard_transpose(x[0], dims[0], dims[1]);
}

static shard_tensor *turn(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_permute(x[0], (int[]){2, 0, 1});
}

static shard_tensor *elements(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_scale(shard_cast(shard_gelu(shard_relu(x[0])), SHARD_FLOAT64), 3);
}

/* Functions of one element, one after the other. */
static shard_tensor *functions(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *y = shard_clamp(shard_log(shard_add_scalar(shard_exp(shard_neg(x[0])), 2)), 0.5, 2);
    y = shard_silu(shard_leaky_relu(shard_softplus(y, 2, 3), 0.1));
    return shard_tanh(shard_pow_scalar(shard_rsqrt(shard_sqrt(shard_log1p(shard_abs(shard_sigmoid(y))))), 1.5));
}

static shard_tensor *add(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add(x[0], x[1]);
}

static shard_tensor *mul(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mul(x[0], x[1]);
}

static shard_tensor *sub(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_sub(x[0], x[1]);
}

static shard_tensor *prelu(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_prelu(x[0], x[1]);
}

/* All functions of two numbers, of operands that are repeated along with x[0]. */
static shard_tensor *of_two(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *y = shard_div(shard_sub(x[0], x[1]), shard_add_scalar(shard_mul(x[1], x[1]), 1));
    y = shard_minimum(y, shard_maximum(x[1], shard_scale(x[0], 0.5)));
    return shard_pow(shard_add_scalar(shard_abs(y), 0.5), x[1]);
}

/* The same from the other side. */
static shard_tensor *of_two_turned(shard_tensor *const *x, const void *options)
{
    return of_two((shard_tensor *[]){x[1], x[0]}, options);
}

/* A condition of both operands, and a choice between them. */
static shard_tensor *choice(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *both = shard_where(shard_lt(x[0], x[1]), x[0], shard_scale(x[1], 2));
    return shard_where(shard_ge_scalar(x[0], 0.5), x[1], both);
}

static shard_tensor *chosen_by(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add(shard_where(shard_gt_scalar(x[0], 0), x[1], x[2]), x[0]);
}

static shard_tensor *copy_of(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_to_device(shard_clone(x[0]), shard_tensor_device(x[0]));
}

static shard_tensor *squared_error(shard_tensor *const *x, const void *reduction)
{
    return shard_mse_loss(x[0], x[1], .reduction = *(const shard_reduction *)reduction);
}

static shard_tensor *sum(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_sum(x[0]);
}

static shard_tensor *mean(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_mean(x[0]);
}

static shard_tensor *matmul(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_matmul(x[0], x[1]);
}

static shard_tensor *linear(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_linear(x[0], x[1], NULL);
}

static shard_tensor *biased(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_linear(x[0], x[1], x[2]);
}

/* COLUMN into ROW without anything in between but elements. */
static shard_tensor *chain(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_linear(shard_gelu(shard_linear(x[0], x[1], x[2])), x[3], NULL);
}

/* Operations that hand a partial gradient on. */
static shard_tensor *hand_on(shard_tensor *x)
{
    x = shard_flatten(shard_scale(shard_transpose(x, 0, 1), 2), 0, 0);
    return shard_cast(shard_cast(shard_narrow(x, 0, 0, 3), SHARD_FLOAT32), SHARD_FLOAT64);
}

/* The input's gradient is the sum of two partial ones. */
static shard_tensor *two_columns(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *y = hand_on(x[0]);
    return shard_add(shard_linear(y, x[1], NULL), shard_linear(y, x[2], NULL));
}

/* It is the sum of a partial and a whole one. */
static shard_tensor *two_kinds(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *y = hand_on(x[0]);
    return shard_add(shard_linear(y, x[1], NULL), shard_linear(shard_relu(y), x[2], NULL));
}

static shard_tensor *conv2d(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_conv2d(x[0], x[1], x[2], .padding = 1);
}

static shard_tensor *pools(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_global_avg_pool2d(shard_avg_pool2d(shard_max_pool2d(x[0], 2, .stride = 1), 2, .stride = 1));
}

static shard_tensor *batch_norm(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *mean_and_variance = shard_full(SHARD_SHAPE(3), 0.75, .dtype = SHARD_FLOAT64);
    return shard_batch_norm(x[0], mean_and_variance, mean_and_variance, x[1], x[2]);
}

static shard_tensor *layer_norm(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_layer_norm(x[0], x[1], x[2], 1e-5);
}

static shard_tensor *softmax(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_softmax(shard_log_softmax(x[0]));
}

static shard_tensor *embedding(shard_tensor *const *x, const void *options)
{
    (void)options;
    static const int64_t index[] = {8, 0, 3, 3, 5, 8};
    return shard_embedding(x[0], shard_from_host(index, SHARD_SHAPE(2, 3), .dtype = SHARD_INT64), 3);
}

/* Partial sums, and what takes them. */
static shard_tensor *of_partial(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_tensor *y = shard_scale(shard_cast(embedding(x, NULL), SHARD_FLOAT64), 3);
    y = shard_sub(shard_clone(y), shard_scale(y, 0.5));
    y = shard_narrow(shard_transpose(shard_flatten(shard_neg(y), 0, 1), 0, 1), 0, 0, 2);
    return shard_add(shard_reshape(y, SHARD_SHAPE(3, -1)), shard_reshape(shard_flatten(y, 0, 1), SHARD_SHAPE(3, 4)));
}

/* ---- rules ---- */

#define ALIKE SHARD_SHAPE(9, 4), SHARD_SHAPE(9, 4)
static const rule rules[] = {
    {"reshape to itself", to_itself, NULL, 1, {SHARD_SHAPE(3, 1, 9)}, {2}, 2},
    {"reshape, rows after rows", to_rows, &(int64_t){4}, 1, {SHARD_SHAPE(9, 2, 4)}, {0}, 0},
    {"reshape to heads", to_heads, &(int64_t){1}, 1, {SHARD_SHAPE(2, 9)}, {1}, 1},
    {"flatten behind the split", flatten, (int[]){1, 2}, 1, {SHARD_SHAPE(9, 2, 2)}, {0}, 0},
    {"flatten before the split", flatten, (int[]){0, 1}, 1, {SHARD_SHAPE(2, 3, 9)}, {2}, 1},
    {"narrow", narrow, NULL, 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"narrow columns", narrow_columns, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"narrow beside the split", narrow_columns, NULL, 1, {SHARD_SHAPE(2, 4, 9)}, {2}, 2},
    {"transpose", transpose, (int[]){0, 2}, 1, {SHARD_SHAPE(2, 3, 9)}, {2}, 0},
    {"permute", turn, NULL, 1, {SHARD_SHAPE(9, 2, 3)}, {0}, 1},
    {"transpose others", transpose, (int[]){0, 2}, 1, {SHARD_SHAPE(2, 9, 3)}, {1}, 1},
    {"elements by rows", elements, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"elements by columns", elements, NULL, 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"functions by rows", functions, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, 0},
    {"functions by columns", functions, NULL, 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"add alike", add, NULL, 2, {ALIKE}, {0, 0}, 0},
    {"add, repeated over rows", add, NULL, 2, {SHARD_SHAPE(9, 4), SHARD_SHAPE(4)}, {0, WHOLE}, 0},
    {"add, repeated over the middle", add, NULL, 2, {SHARD_SHAPE(2, 9, 4), SHARD_SHAPE(4)}, {1, WHOLE}, 1},
    {"add, both by columns", add, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(9)}, {1, 0}, 1},
    {"mul alike", mul, NULL, 2, {ALIKE}, {0, 0}, 0},
    {"mul by a scalar", mul, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SCALAR}, {1, WHOLE}, 1},
    {"mul, repeated over the middle", mul, NULL, 2, {SHARD_SHAPE(2, 9, 4), SHARD_SHAPE(4)}, {1, WHOLE}, 1},
    {"mul, both by columns", mul, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(9)}, {1, 0}, 1},
    {"prelu", prelu, NULL, 2, {SHARD_SHAPE(9, 2, 4), SHARD_SHAPE(4)}, {0, WHOLE}, 0},
    {"prelu by channels", prelu, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(9)}, {1, 0}, 1},
    {"prelu by channels, one slope", prelu, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(1)}, {1, WHOLE}, 1},
    {"sub alike", sub, NULL, 2, {ALIKE}, {0, 0}, 0},
    {"two by rows", of_two, NULL, 2, {ALIKE}, {0, 0}, 0},
    {"two by columns, a whole column", of_two, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(4, 1)}, {1, WHOLE}, 1},
    {"two by columns, a whole scalar", of_two, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SCALAR}, {1, WHOLE}, 1},
    {"two by columns, a row of parts", of_two, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(9)}, {1, 0}, 1},
    {"two by columns, more rows of parts", of_two, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(1, 9)}, {1, 1}, 1},
    {"two by rows, a whole row", of_two, NULL, 2, {SHARD_SHAPE(9, 4), SHARD_SHAPE(1, 4)}, {0, WHOLE}, 0},
    {"two by rows, a column of parts", of_two, NULL, 2, {SHARD_SHAPE(9, 4), SHARD_SHAPE(9, 1)}, {0, 0}, 0},
    {"two by the middle, whole", of_two, NULL, 2, {SHARD_SHAPE(2, 9, 4), SHARD_SHAPE(2, 1, 1)}, {1, WHOLE}, 1},
    {"two, a whole column first", of_two_turned, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(4, 1)}, {1, WHOLE}, 1},
    {"two, a row of parts with a whole column", of_two, NULL, 2, {SHARD_SHAPE(9), SHARD_SHAPE(4, 1)}, {0, WHOLE}, 1},
    {"two, a part of one column each", of_two, NULL, 2, {SHARD_SHAPE(4, 2), SHARD_SHAPE(4, 1)}, {1, WHOLE}, 1},
    {"where by rows", choice, NULL, 2, {ALIKE}, {0, 0}, 0},
    {"where by columns, a whole column", choice, NULL, 2, {SHARD_SHAPE(4, 9), SHARD_SHAPE(4, 1)}, {1, WHOLE}, 1},
    {"where, conditions in parts",
     chosen_by,
     NULL,
     3,
     {SHARD_SHAPE(9), SHARD_SHAPE(4, 1), SHARD_SHAPE(4, 1)},
     {0, WHOLE, WHOLE},
     1},
    {"where, one of three in parts",
     chosen_by,
     NULL,
     3,
     {SHARD_SHAPE(4, 1), SHARD_SHAPE(9), SHARD_SHAPE(4, 1)},
     {WHOLE, 0, WHOLE},
     1},
    {"clone", copy_of, NULL, 1, {SHARD_SHAPE(4, 9)}, {1}, 1},
    {"mse_loss, mean", squared_error, &(shard_reduction){SHARD_REDUCTION_MEAN}, 2, {ALIKE}, {0, 0}, PARTIAL},
    {"mse_loss, sum", squared_error, &(shard_reduction){SHARD_REDUCTION_SUM}, 2, {ALIKE}, {0, 0}, PARTIAL},
    {"mse_loss, none", squared_error, &(shard_reduction){SHARD_REDUCTION_NONE}, 2, {ALIKE}, {0, 0}, 0},
    {"sum", sum, NULL, 1, {SHARD_SHAPE(4, 9)}, {1}, PARTIAL},
    {"mean", mean, NULL, 1, {SHARD_SHAPE(9, 4)}, {0}, PARTIAL},
    {"matmul by batch", matmul, NULL, 2, {SHARD_SHAPE(9, 2, 3), SHARD_SHAPE(9, 3, 2)}, {0, 0}, 0},
    {"matmul by heads", matmul, NULL, 2, {SHARD_SHAPE(2, 9, 2, 3), SHARD_SHAPE(2, 9, 3, 2)}, {1, 1}, 1},
    {"matmul, one for the batch", matmul, NULL, 2, {SHARD_SHAPE(9, 2, 3), SHARD_SHAPE(3, 2)}, {0, WHOLE}, 0},
    {"matmul by rows", matmul, NULL, 2, {SHARD_SHAPE(2, 9, 3), SHARD_SHAPE(2, 3, 2)}, {1, WHOLE}, 1},
    {"matmul by rows, one for the batch", matmul, NULL, 2, {SHARD_SHAPE(2, 9, 3), SHARD_SHAPE(3, 2)}, {1, WHOLE}, 1},
    {"linear by rows", biased, NULL, 3, {SHARD_SHAPE(9, 4), SHARD_SHAPE(3, 4), SHARD_SHAPE(3)}, {0, WHOLE, WHOLE}, 0},
    {"linear by the middle", biased, NULL, 3, {SHARD_SHAPE(2, 9, 4), SHARD_SHAPE(3, 4), SHARD_SHAPE(3)}, {1, WHOLE, WHOLE}, 1},
    {"linear COLUMN", linear, NULL, 2, {SHARD_SHAPE(2, 3, 4), SHARD_SHAPE(9, 4)}, {WHOLE, 0}, 2},
    {"linear COLUMN, biased", biased, NULL, 3, {SHARD_SHAPE(3, 4), SHARD_SHAPE(9, 4), SHARD_SHAPE(9)}, {WHOLE, 0, 0}, 1},
    {"linear ROW", linear, NULL, 2, {SHARD_SHAPE(2, 3, 9), SHARD_SHAPE(4, 9)}, {2, 1}, PARTIAL},
    {"linear COLUMN, then ROW",
     chain,
     NULL,
     4,
     {SHARD_SHAPE(3, 4), SHARD_SHAPE(9, 4), SHARD_SHAPE(9), SHARD_SHAPE(4, 9)},
     {WHOLE, 0, 0, 1},
     PARTIAL},
    {"linear COLUMN, two of one",
     two_columns,
     NULL,
     3,
     {SHARD_SHAPE(4, 3), SHARD_SHAPE(9, 4), SHARD_SHAPE(9, 4)},
     {WHOLE, 0, 0},
     1,
     1e-6},
    {"linear COLUMN, partial and whole",
     two_kinds,
     NULL,
     3,
     {SHARD_SHAPE(4, 3), SHARD_SHAPE(9, 4), SHARD_SHAPE(9, 4)},
     {WHOLE, 0, 0},
     1,
     1e-6},
    {"conv2d", conv2d, NULL, 3, {SHARD_SHAPE(9, 3, 3, 2), SHARD_SHAPE(2, 2, 3, 3), SHARD_SHAPE(2)}, {0, WHOLE, WHOLE}, 0},
    {"pooling", pools, NULL, 1, {SHARD_SHAPE(9, 4, 4, 2)}, {0}, 0},
    {"batch_norm", batch_norm, NULL, 3, {SHARD_SHAPE(9, 2, 3), SHARD_SHAPE(3), SHARD_SHAPE(3)}, {0, WHOLE, WHOLE}, 0},
    {"batch_norm by the middle",
     batch_norm,
     NULL,
     3,
     {SHARD_SHAPE(2, 9, 3), SHARD_SHAPE(3), SHARD_SHAPE(3)},
     {1, WHOLE, WHOLE},
     1},
    {"layer_norm", layer_norm, NULL, 3, {SHARD_SHAPE(9, 4), SHARD_SHAPE(4), SHARD_SHAPE(4)}, {0, WHOLE, WHOLE}, 0},
    {"layer_norm by the middle",
     layer_norm,
     NULL,
     3,
     {SHARD_SHAPE(2, 9, 4), SHARD_SHAPE(4), SHARD_SHAPE(4)},
     {1, WHOLE, WHOLE},
     1},
    {"softmax", softmax, NULL, 1, {SHARD_SHAPE(2, 9, 4)}, {1}, 1},
    {"embedding by rows", embedding, NULL, 1, {SHARD_SHAPE(9, 2)}, {0}, PARTIAL},
    {"embedding by columns", embedding, NULL, 1, {SHARD_SHAPE(9, 11)}, {1}, 2},
    {"sums of parts", of_partial, NULL, 1, {SHARD_SHAPE(9, 2)}, {0}, PARTIAL},
};

/* ---- the rules hold ---- */

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(rules, sizeof rules / sizeof *rules, world);
}

START_TEST(parts_make_the_whole)
{
    run_ranks(rank_counts[_i], check_rules);
}
END_TEST

/* ---- what there is no rule for ---- */

static shard_tensor *to_columns(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_reshape(x[0], SHARD_SHAPE(shard_numel(x[0])));
}

static shard_tensor *to_integers(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_cast(x[0], SHARD_INT64);
}

static shard_tensor *relu(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_relu(x[0]);
}

static shard_tensor *shift(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_add_scalar(x[0], 1);
}

static shard_tensor *dropout(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_dropout(x[0], 0.5);
}

static shard_tensor *max_pool(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_max_pool2d(x[0], 2);
}

static const rule refused[] = {
    {"flatten into the split", to_columns, NULL, 1, {SHARD_SHAPE(3, 9)}, {1}},
    {"narrow the split", narrow, NULL, 1, {SHARD_SHAPE(8, 2)}, {0}},
    {"narrow the split columns", narrow_columns, NULL, 1, {SHARD_SHAPE(2, 8)}, {1}},
    {"partial sums as integers", to_integers, NULL, 1, {SHARD_SHAPE(3)}, {PARTIAL}},
    {"relu of partial sums", relu, NULL, 1, {SHARD_SHAPE(3)}, {PARTIAL}},
    {"functions of partial sums", functions, NULL, 1, {SHARD_SHAPE(3)}, {PARTIAL}},
    {"a number added to partial sums", shift, NULL, 1, {SHARD_SHAPE(3)}, {PARTIAL}},
    {"dropout of partial sums", dropout, NULL, 1, {SHARD_SHAPE(3)}, {PARTIAL}},
    {"dropout in the middle", dropout, NULL, 1, {SHARD_SHAPE(3, 9, 2)}, {1}},
    {"sum of partial sums", sum, NULL, 1, {SHARD_SHAPE(3)}, {PARTIAL}},
    {"add a part to a whole", add, NULL, 2, {SHARD_SHAPE(3, 8), SHARD_SHAPE(3, 4)}, {1, WHOLE}},
    {"add a whole to a part", add, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(3, 8)}, {WHOLE, 1}},
    {"add other parts", add, NULL, 2, {SHARD_SHAPE(8, 4), SHARD_SHAPE(4, 8)}, {0, 1}},
    {"add a bias to partial sums", add, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4)}, {PARTIAL, WHOLE}},
    {"multiply partial sums", mul, NULL, 2, {SHARD_SHAPE(3), SHARD_SHAPE(3)}, {PARTIAL, PARTIAL}},
    {"prelu of partial sums", prelu, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4)}, {PARTIAL, WHOLE}},
    {"prelu, weight split", prelu, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(8)}, {WHOLE, 0}},
    {"prelu of one channel, weight split", prelu, NULL, 2, {SHARD_SHAPE(3, 1), SHARD_SHAPE(2)}, {WHOLE, 0}},
    {"subtract from partial sums", sub, NULL, 2, {SHARD_SHAPE(3), SHARD_SHAPE(3)}, {PARTIAL, WHOLE}},
    {"two partial sums", of_two, NULL, 2, {SHARD_SHAPE(3), SHARD_SHAPE(3)}, {PARTIAL, PARTIAL}},
    {"a whole column for rows", of_two, NULL, 2, {SHARD_SHAPE(8, 3), SHARD_SHAPE(4, 1)}, {0, WHOLE}},
    {"parts of one column, more columns", of_two, NULL, 2, {SHARD_SHAPE(3, 2), SHARD_SHAPE(3, 5)}, {1, WHOLE}},
    {"where of a part and a whole", choice, NULL, 2, {SHARD_SHAPE(3, 8), SHARD_SHAPE(3, 4)}, {1, WHOLE}},
    {"where of other parts", choice, NULL, 2, {SHARD_SHAPE(8, 4), SHARD_SHAPE(4, 8)}, {0, 1}},
    {"where of partial sums", choice, NULL, 2, {SHARD_SHAPE(3), SHARD_SHAPE(3)}, {PARTIAL, PARTIAL}},
    {"where by partial sums", chosen_by, NULL, 3, {SHARD_SHAPE(3), SHARD_SHAPE(3), SHARD_SHAPE(3)}, {PARTIAL, WHOLE, WHOLE}},
    {"matmul along k", matmul, NULL, 2, {SHARD_SHAPE(3, 8), SHARD_SHAPE(8, 2)}, {1, 0}},
    {"matmul by columns", matmul, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4, 8)}, {WHOLE, 1}},
    {"matmul by half a batch", matmul, NULL, 2, {SHARD_SHAPE(8, 3, 4), SHARD_SHAPE(4, 4, 2)}, {0, WHOLE}},
    {"matmul of partial sums", matmul, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4, 2)}, {PARTIAL, WHOLE}},
    {"linear, x along in", linear, NULL, 2, {SHARD_SHAPE(3, 8), SHARD_SHAPE(5, 4)}, {1, WHOLE}},
    {"linear, bias split", biased, NULL, 3, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4, 4), SHARD_SHAPE(8)}, {WHOLE, WHOLE, 0}},
    {"COLUMN, bias whole", biased, NULL, 3, {SHARD_SHAPE(3, 4), SHARD_SHAPE(8, 4), SHARD_SHAPE(4)}, {WHOLE, 0, WHOLE}},
    {"COLUMN by rows", linear, NULL, 2, {SHARD_SHAPE(8, 4), SHARD_SHAPE(8, 4)}, {0, 0}},
    {"ROW, x whole", linear, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(5, 8)}, {WHOLE, 1}},
    {"ROW, biased", biased, NULL, 3, {SHARD_SHAPE(3, 8), SHARD_SHAPE(5, 8), SHARD_SHAPE(5)}, {1, 1, WHOLE}},
    {"linear, partial weight", linear, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(5, 4)}, {WHOLE, PARTIAL}},
    {"conv2d, image parts",
     conv2d,
     NULL,
     3,
     {SHARD_SHAPE(1, 8, 3, 2), SHARD_SHAPE(2, 2, 3, 3), SHARD_SHAPE(2)},
     {1, WHOLE, WHOLE}},
    {"conv2d, weight parts",
     conv2d,
     NULL,
     3,
     {SHARD_SHAPE(1, 3, 3, 2), SHARD_SHAPE(4, 2, 3, 3), SHARD_SHAPE(2)},
     {WHOLE, 0, WHOLE}},
    {"conv2d, bias parts",
     conv2d,
     NULL,
     3,
     {SHARD_SHAPE(1, 3, 3, 2), SHARD_SHAPE(2, 2, 3, 3), SHARD_SHAPE(4)},
     {WHOLE, WHOLE, 0}},
    {"pool, image parts", max_pool, NULL, 1, {SHARD_SHAPE(1, 4, 8, 2)}, {2}},
    {"batch_norm by channels", batch_norm, NULL, 3, {SHARD_SHAPE(4, 6), SHARD_SHAPE(3), SHARD_SHAPE(3)}, {1, WHOLE, WHOLE}},
    {"batch_norm, weight split", batch_norm, NULL, 3, {SHARD_SHAPE(4, 3), SHARD_SHAPE(6), SHARD_SHAPE(3)}, {WHOLE, 0, WHOLE}},
    {"layer_norm by columns", layer_norm, NULL, 3, {SHARD_SHAPE(4, 6), SHARD_SHAPE(3), SHARD_SHAPE(3)}, {1, WHOLE, WHOLE}},
    {"softmax of partial sums", softmax, NULL, 1, {SHARD_SHAPE(4, 6)}, {PARTIAL}},
    {"embedding, partial weight", embedding, NULL, 1, {SHARD_SHAPE(9, 6)}, {PARTIAL}},
};

static void check_refusals(shard_group *world, void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        SHARD_SCOPE
        {
            shard_tensor *leaf[OPERATION_INPUTS];
            make_leaves(&refused[i], world, leaf);
            for (int j = 0; j < refused[i].inputs; j++)
                if (refused[i].at[j] == PARTIAL)
                    leaf[j]->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = world};
            ck_assert_msg(!refused[i].make(leaf, refused[i].options), "%s: not refused", refused[i].name);
            ck_assert_msg(shard_last_status() == SHARD_ERROR_UNSUPPORTED, "%s: %s", refused[i].name, shard_last_error());
            shard_clear_error();
        }
}

START_TEST(refuses_what_has_no_rule)
{
    run_ranks(2, check_refusals);
}
END_TEST

/* Parts of another range. */
static void check_ranges(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_as_split(shard_zeros(SHARD_SHAPE(4, 4)), 0, world, 4 * rank, 9);
        shard_tensor *bias = shard_as_split(shard_zeros(SHARD_SHAPE(4)), 0, world, 4 * rank + 1, 9);
        check_refused(shard_linear(shard_zeros(SHARD_SHAPE(2, 4)), weight, bias), SHARD_ERROR_UNSUPPORTED,
                      "shard_linear: *bias*");
        check_refused(shard_add(weight, shard_as_split(shard_zeros(SHARD_SHAPE(4, 4)), 0, world, 4 * rank + 1, 9)),
                      SHARD_ERROR_UNSUPPORTED, "shard_add: no rule *");
        /* A part of one row is not repeated over a part of four. */
        check_refused(shard_add(weight, shard_as_split(shard_zeros(SHARD_SHAPE(1, 4)), 0, world, 4 * rank, 9)),
                      SHARD_ERROR_UNSUPPORTED, "shard_add: no rule *");
        check_refused(shard_as_split(shard_zeros(SHARD_SHAPE(4, 512)), 0, world, 4 * rank, INT64_C(1) << 60), SHARD_ERROR_MEMORY,
                      "*overflows*");
    }
}

START_TEST(refuses_other_ranges)
{
    run_ranks(2, check_ranges);
}
END_TEST

/* A reshape of parts is refused where sizes of 1 leave open what is split. */
static void check_reshapes(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_split(shard_zeros(SHARD_SHAPE(3, 4)), 1, world, 4 * rank, 8);
        shard_placement heads = shard_tensor_placement(shard_reshape(x, SHARD_SHAPE(3, -1, 4)));
        ck_assert(heads.kind == SHARD_SPLIT && heads.dim == 1 && heads.start == rank && heads.whole == 2);
        shard_tensor *empty = shard_as_split(shard_zeros(SHARD_SHAPE(0, 128)), 1, world, 128 * rank, 256);
        shard_placement of_none = shard_tensor_placement(shard_reshape(empty, SHARD_SHAPE(0, 2, 64)));
        ck_assert(of_none.kind == SHARD_SPLIT && of_none.dim == 1 && of_none.start == 2 * rank && of_none.whole == 4);
        shard_placement last = shard_tensor_placement(shard_reshape(x, SHARD_SHAPE(3, 1, 4)));
        ck_assert(last.kind == SHARD_SPLIT && last.dim == 2 && last.start == 4 * rank && last.whole == 8);
        check_refused(shard_reshape(x, SHARD_SHAPE(3, 1, 2, 2)), SHARD_ERROR_UNSUPPORTED,
                      "shard_reshape: no rule*split along 1*");
        /* One of two rows: the first rank's could be either. */
        shard_tensor *row = shard_as_split(shard_zeros(SHARD_SHAPE(2, 1, 4)), 1, world, rank, 2);
        check_refused(shard_reshape(row, SHARD_SHAPE(2, 1, 1, 4)), SHARD_ERROR_UNSUPPORTED,
                      "shard_reshape: no rule *; -1 as a size says which one is split");
        ck_assert_int_eq(shard_tensor_placement(shard_reshape(row, SHARD_SHAPE(2, -1, 1, 4))).dim, 1);
        ck_assert_int_eq(shard_tensor_placement(shard_reshape(row, SHARD_SHAPE(2, 1, -1, 4))).dim, 2);
        ck_assert_int_eq(shard_tensor_placement(shard_reshape(row, SHARD_SHAPE(2, 1, 4))).dim, 1);
        /* 5 columns from 3 on are no whole heads of 2. */
        shard_tensor *uneven = shard_as_split(shard_zeros(SHARD_SHAPE(3, 4)), 1, world, 3, 8);
        check_refused(shard_reshape(uneven, SHARD_SHAPE(3, -1, 2)), SHARD_ERROR_UNSUPPORTED, "shard_reshape: no rule *");
    }
}

START_TEST(reshapes_what_is_clear)
{
    run_ranks(2, check_reshapes);
}
END_TEST

/* [rows, -1], [-1, columns] and [rows, -1, size] mean the same where a rank has one row, column, position or head as where it has
 * more. */
static void check_reshapes_of_one(shard_group *world, void *context)
{
    (void)context;
    static const struct {
        shard_shape local;
        int split; /* dimension of local */
        shard_shape shape;
        int at; /* dimension of shape */
    } cases[] = {
        {SHARD_SHAPE(2, 12), 0, SHARD_SHAPE(2, -1), 0},         {SHARD_SHAPE(1, 12), 0, SHARD_SHAPE(1, -1), 0},
        {SHARD_SHAPE(1, 3, 4), 0, SHARD_SHAPE(1, -1), 0},       {SHARD_SHAPE(1, 12), 0, SHARD_SHAPE(1, -1, 4), 0},
        {SHARD_SHAPE(1, 2, 4), 2, SHARD_SHAPE(-1, 4), 1},       {SHARD_SHAPE(1, 1, 4), 2, SHARD_SHAPE(-1, 4), 1},
        {SHARD_SHAPE(1, 4), 1, SHARD_SHAPE(-1, 1, 4), 2},       {SHARD_SHAPE(1, 1, 4), 2, SHARD_SHAPE(1, -1, 4), 2},
        {SHARD_SHAPE(2, 2, 3, 4), 1, SHARD_SHAPE(2, 2, -1), 1}, {SHARD_SHAPE(2, 1, 3, 4), 1, SHARD_SHAPE(2, 1, -1), 1},
        {SHARD_SHAPE(2, 3, 1, 4), 2, SHARD_SHAPE(2, 3, -1), 2}, {SHARD_SHAPE(6, 8), 1, SHARD_SHAPE(2, 3, -1, 4), 2},
        {SHARD_SHAPE(6, 4), 1, SHARD_SHAPE(2, 3, -1, 4), 2},    {SHARD_SHAPE(1, 4), 1, SHARD_SHAPE(1, 1, -1, 4), 2},
        {SHARD_SHAPE(1, 4), 0, SHARD_SHAPE(1, -1, 4), 1},       {SHARD_SHAPE(1, 4), 0, SHARD_SHAPE(-1, 1, 4), 0},
    };
    int ranks = shard_group_size(world), rank = shard_group_rank(world);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        SHARD_SCOPE
        {
            int split = cases[i].split;
            int64_t size = cases[i].local.dim[split];
            shard_tensor *x = shard_as_split(shard_zeros(cases[i].local), split, world, rank * size, ranks * size);
            shard_tensor *y = shard_reshape(x, cases[i].shape);
            ck_assert_msg(y != NULL, "case %zu: %s", i, shard_last_error());
            ck_assert_msg(shard_is_split(y, cases[i].at), "case %zu: %s", i, shard_placement_text(&y->placement));
        }
}

START_TEST(reshapes_one_as_several)
{
    run_ranks(2, check_reshapes_of_one);
}
END_TEST

/* Of a loss that is split each rank may have one element, which is no scalar, and one rank the only element. */
static void check_split_loss(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_split(shard_ones(SHARD_SHAPE(1)), 0, world, rank, 2);
        shard_set_requires_grad(x, true);
        ck_assert_int_eq(shard_backward(shard_scale(x, 2)), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_backward: the loss has shape [[]2], not one *");
        ck_assert_ptr_null(shard_grad(x));
        x = shard_as_split(shard_ones(SHARD_SHAPE(rank == 0)), 0, world, rank != 0, 1);
        shard_set_requires_grad(x, true);
        check_ok(shard_backward(shard_scale(x, 2)));
        ck_assert(shard_has_grad(x) && shard_numel(shard_grad(x)) == (rank == 0));
        if (rank == 0)
            ck_assert_double_eq(value_at(shard_grad(x), 0), 2);
    }
}

START_TEST(refuses_a_split_loss)
{
    run_ranks(2, check_split_loss);
}
END_TEST

/* Over one rank the local shard is the whole tensor. */
START_TEST(refuses_a_part_of_one_rank)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3));
        check_refused(shard_as_split(x, 0, NULL, 0, 4), SHARD_ERROR_SHAPE, "shard_as_split: over one rank *2 of 4 elements*");
        ck_assert_ptr_nonnull(shard_as_split(x, 1, NULL, 0, 3));
    }
}
END_TEST

/* A group is its ranks: a tensor over the world goes with one over another group of all ranks. */
static void check_equal_groups(shard_group *world, void *context)
{
    (void)context;
    int ranks = shard_group_size(world);
    shard_group *all = shard_group_split(world, 0);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(4, 5), 2.0, .requires_grad = true);
        shard_tensor *sum = shard_add(shard_scatter_to_group(x, 1, world), shard_scatter_to_group(x, 1, all));
        shard_tensor *weight =
            shard_as_split(shard_ones(SHARD_SHAPE(3, shard_tensor_size(sum, 1))), 1, world, shard_tensor_placement(sum).start, 5);
        shard_tensor *y = shard_reduce_from_group(shard_linear(sum, weight, NULL), all);
        shard_tensor *z = shard_gather_from_group(sum, 1, all);
        ck_assert_msg(y && z, "%s", shard_last_error());
        ck_assert(shard_tensor_placement(y).kind == SHARD_LOCAL && shard_tensor_placement(z).kind == SHARD_LOCAL);
        check_ok(shard_backward(shard_add(shard_sum(y), shard_sum(z))));
        double expected[20];
        for (int i = 0; i < 20; i++)
            expected[i] = 8;
        check_tensor("x's gradient", shard_grad(x), expected, 1e-6);
    }
    shard_group_destroy(all);
    if (ranks != 4)
        return;
    shard_group *row = shard_group_split(world, shard_group_rank(world) / 2);
    shard_group *column = shard_group_split(world, shard_group_rank(world) % 2);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(4, 4));
        shard_tensor *split = shard_scatter_to_group(x, 1, row);
        check_refused(shard_gather_from_group(split, 1, column), SHARD_ERROR_UNSUPPORTED,
                      "*shard_gather_from_group: a tensor of shape * is split along 1 over another group of 2 ranks*");
        check_refused(shard_reduce_from_group(shard_sum(split), column), SHARD_ERROR_UNSUPPORTED,
                      "*shard_reduce_from_group: a tensor of shape * is partial over another group of 2 ranks*");
        check_refused(shard_add(split, shard_scatter_to_group(x, 1, column)), SHARD_ERROR_UNSUPPORTED,
                      "shard_add: no rule * over another group");
    }
    shard_group_destroy(row);
    shard_group_destroy(column);
}

START_TEST(groups_of_the_same_ranks)
{
    run_ranks(2, check_equal_groups);
    run_ranks(4, check_equal_groups);
}
END_TEST

/* Over a group of one rank a view is local, whatever the tensor was, and has its values. */
static void check_group_of_one(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_group *one = shard_group_split(world, rank);
    SHARD_SCOPE
    {
        shard_tensor *random = shard_as_split(shard_normal(SHARD_SHAPE(2, 3), 0, 1), 0, world, 2 * rank, 4);
        check_refused(shard_as_placed(random, (shard_placement){.kind = SHARD_SPLIT, .group = world, .start = 3, .whole = 4}),
                      SHARD_ERROR_SHAPE, "*shard_as_placed: 2 elements from 3 on are no part of 4");
        shard_tensor *x[] = {random, shard_as_split(shard_ones(SHARD_SHAPE(2, 3)), 0, world, 2 * rank, 4)};
        for (int i = 0; i < 2; i++) {
            shard_placement to[] = {{.kind = SHARD_PARTIAL, .group = one},
                                    {.kind = SHARD_SPLIT, .dim = 1, .group = one, .whole = 3}};
            for (int j = 1; j >= 0; j--) {
                shard_tensor *y = shard_as_placed(x[i], to[j]);
                ck_assert_msg(y != NULL, "%s", shard_last_error());
                ck_assert_int_eq(shard_tensor_placement(y).kind, SHARD_LOCAL);
                double *values = values_of(x[i]);
                check_tensor("the view", y, values, 0);
                free(values);
            }
        }
    }
    shard_group_destroy(one);
}

/* The gradient of a summand is that of the whole sum, which each rank has. */
static void check_gradient_of_summand(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_as_placed(shard_ones(SHARD_SHAPE(2)), (shard_placement){.kind = SHARD_PARTIAL, .group = world});
        shard_set_requires_grad(x, true);
        for (int step = 1; step <= 2; step++) {
            check_ok(shard_backward(shard_sum(shard_reduce_from_group(shard_scale(x, 3), world))));
            ck_assert_int_eq(shard_tensor_placement(shard_grad(x)).kind, SHARD_LOCAL);
            check_tensor("the gradient", shard_grad(x), (double[]){3 * step, 3 * step}, 0);
        }
    }
}

START_TEST(gradients_of_summands)
{
    run_ranks(2, check_gradient_of_summand);
}
END_TEST

START_TEST(groups_of_one_rank)
{
    run_ranks(2, check_group_of_one);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("placement");
    TCase *tcase = test_case(suite, "placement");
    add_ranks_test(tcase, parts_make_the_whole);
    tcase_add_test(tcase, refuses_what_has_no_rule);
    tcase_add_test(tcase, refuses_other_ranges);
    tcase_add_test(tcase, reshapes_what_is_clear);
    tcase_add_test(tcase, reshapes_one_as_several);
    tcase_add_test(tcase, refuses_a_split_loss);
    tcase_add_test(tcase, refuses_a_part_of_one_rank);
    tcase_add_test(tcase, groups_of_the_same_ranks);
    tcase_add_test(tcase, groups_of_one_rank);
    tcase_add_test(tcase, gradients_of_summands);
    return test_run(suite);
}
