/*
 * Operations of a program's own: their gradients against finite differences and against one
 * process, and what is said of each misuse.
 */
#include "support/gradcheck.h"
#include "support/job.h"

#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>

/* ---- softplus, log(1 + exp(beta x)) / beta, on the host ---- */

typedef struct softplus {
    double beta;
    int *ended;
} softplus;

static int ended; /* contexts that were freed */

static void *make_softplus(double beta)
{
    softplus *context = malloc(sizeof *context);
    ck_assert_ptr_nonnull(context);
    *context = (softplus){.beta = beta, .ended = &ended};
    return context;
}

static void destroy_softplus(void *context)
{
    ++*((softplus *)context)->ended;
    free(context);
}

/* y[i] = function(beta, x[i]), of x's dtype and placement. */
static shard_tensor *map(double (*function)(double beta, double x), double beta, shard_tensor *x)
{
    double *values = values_of(x);
    for (int64_t i = 0; i < shard_numel(x); i++)
        values[i] = function(beta, values[i]);
    shard_tensor *y = shard_from_host(values, shard_tensor_shape(x), .dtype = SHARD_FLOAT64, .device = shard_tensor_device(x));
    free(values);
    return shard_as_placed(shard_cast(y, shard_tensor_dtype(x)), shard_tensor_placement(x));
}

static double softplus_of(double beta, double x)
{
    return log1p(exp(beta * x)) / beta;
}

static double slope_of(double beta, double x)
{
    return 1 / (1 + exp(-beta * x));
}

static shard_tensor *softplus_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    const softplus *context = shard_custom_op_context(op);
    ck_assert_int_eq(inputs, 1);
    check_ok(shard_custom_op_save(op, 0, input[0]));
    return map(softplus_of, context->beta, input[0]);
}

static shard_status softplus_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    const softplus *context = shard_custom_op_context(op);
    ck_assert_int_eq(inputs, 1);
    shard_tensor *x = shard_custom_op_saved(op, 0);
    dx[0] = x ? shard_mul(dy, map(slope_of, context->beta, x)) : NULL;
    return shard_last_status();
}

static const shard_custom_op_type softplus_type = {
    .name = "softplus", .forward = softplus_forward, .backward = softplus_backward, .destroy = destroy_softplus};

static shard_tensor *apply_softplus(shard_tensor *const *x, const void *options)
{
    return shard_custom_op_apply(&softplus_type, make_softplus(*(const double *)options), x[0]);
}

/* ---- x a + b: of public operations; b may be left out ---- */

enum { X, A, B };

static shard_tensor *affine_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    ck_assert_int_eq(inputs, 3);
    if (shard_custom_op_wants_gradient(op, X))
        check_ok(shard_custom_op_save(op, A, input[A]));
    if (shard_custom_op_wants_gradient(op, A))
        check_ok(shard_custom_op_save(op, X, input[X]));
    shard_tensor *y = shard_mul(input[X], input[A]);
    return input[B] ? shard_add(y, input[B]) : y;
}

static shard_tensor *sum_rows(shard_tensor *x)
{
    shard_placement none = {0};
    x = shard_as_placed(shard_detach(x), none);
    shard_tensor *ones = shard_ones(SHARD_SHAPE(1, shard_tensor_size(x, 0)), .dtype = shard_tensor_dtype(x));
    return shard_reshape(shard_matmul(ones, x), SHARD_SHAPE(shard_tensor_size(x, 1)));
}

static shard_status affine_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    ck_assert_int_eq(inputs, 3);
    if (shard_custom_op_wants_gradient(op, X))
        dx[X] = shard_mul(dy, shard_custom_op_saved(op, A));
    if (shard_custom_op_wants_gradient(op, A))
        dx[A] = sum_rows(shard_mul(dy, shard_custom_op_saved(op, X)));
    if (shard_custom_op_wants_gradient(op, B))
        dx[B] = sum_rows(dy);
    return shard_last_status();
}

static const shard_custom_op_type affine_type = {.name = "affine", .forward = affine_forward, .backward = affine_backward};

static shard_tensor *apply_affine(shard_tensor *const *x, const void *options)
{
    return shard_custom_op_apply(&affine_type, NULL, x[X], x[A], options ? NULL : x[B]);
}

static const double beta = 1.5;
static const operation operations[] = {
    {"softplus", apply_softplus, &beta, 1, {SHARD_SHAPE(5, 7)}, .needs = 1, .rounding = 16, .tolerance = 1e-8},
    {"softplus of a scalar", apply_softplus, &beta, 1, {SHARD_SCALAR}, .needs = 1, .rounding = 16, .tolerance = 1e-8},
    {"softplus of nothing", apply_softplus, &beta, 1, {SHARD_SHAPE(0, 3)}, .needs = 1},
    {"affine", apply_affine, NULL, 3, {SHARD_SHAPE(6, 4), SHARD_SHAPE(4), SHARD_SHAPE(4)}, .needs = 3, .rounding = 16},
    {"affine without b", apply_affine, &beta, 2, {SHARD_SHAPE(6, 4), SHARD_SHAPE(4)}, .needs = 3, .rounding = 16},
};

START_TEST(test_gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* ---- placements ---- */

enum { ROWS = 5, IN = 7, OUT = 8 };

/* x W^T of a W that is split along out: the gradient of x is PARTIAL. */
static shard_tensor *columns_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    for (int i = 0; i < inputs; i++)
        check_ok(shard_custom_op_save(op, i, input[i]));
    shard_placement placement = shard_tensor_placement(input[1]), none = {0};
    shard_tensor *y = shard_matmul(input[0], shard_transpose(shard_as_placed(shard_detach(input[1]), none), 0, 1));
    placement.dim = 1;
    return placement.kind == SHARD_SPLIT ? shard_as_placed(shard_detach(y), placement) : y;
}

static shard_status columns_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    shard_placement none = {0}, of_w = shard_tensor_placement(shard_custom_op_saved(op, 1));
    shard_tensor *own_dy = shard_as_placed(dy, none), *own_w = shard_as_placed(shard_custom_op_saved(op, 1), none);
    shard_tensor *own_x =
        shard_as_placed(shard_matmul(own_dy, own_w), (shard_placement){.kind = SHARD_PARTIAL, .group = of_w.group});
    dx[0] = of_w.kind == SHARD_SPLIT ? own_x : shard_matmul(own_dy, own_w);
    dx[1] = shard_matmul(shard_transpose(own_dy, 0, 1), shard_custom_op_saved(op, 0));
    return shard_last_status();
}

static const shard_custom_op_type columns_type = {.name = "columns", .forward = columns_forward, .backward = columns_backward};

/* The sum of squares: of a split x, PARTIAL. */
static shard_tensor *squares_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    check_ok(shard_custom_op_save(op, 0, input[0]));
    shard_placement placement = shard_tensor_placement(input[0]), none = {0};
    shard_tensor *own = shard_as_placed(shard_detach(input[0]), none);
    shard_tensor *y = shard_sum(shard_mul(own, own));
    return placement.kind == SHARD_SPLIT ? shard_as_placed(y, (shard_placement){.kind = SHARD_PARTIAL, .group = placement.group})
                                         : y;
}

static shard_status squares_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    dx[0] = shard_scale(shard_custom_op_saved(op, 0), 2 * shard_item(dy)); /* placed as x: as saved */
    return shard_last_status();
}

static const shard_custom_op_type squares_type = {.name = "squares", .forward = squares_forward, .backward = squares_backward};

/* This rank's rows: a scatter, whose backward gathers; context is the group. */
static shard_tensor *rows_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    return shard_scatter_to_group(input[0], 0, shard_custom_op_context(op));
}

static shard_status rows_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    dx[0] = shard_gather_from_group(dy, 0, shard_custom_op_context(op));
    return shard_last_status();
}

static const shard_custom_op_type rows_type = {
    .name = "rows", .forward = rows_forward, .backward = rows_backward, .whole_gradients = true};

/* 2 x, of any placement; what its backward gives says nothing of where it is. */
static shard_tensor *twice_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)op, (void)inputs;
    return shard_scale(input[0], 2);
}

static shard_status twice_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)op, (void)inputs;
    dx[0] = shard_as_placed(shard_scale(dy, 2), (shard_placement){0});
    return shard_last_status();
}

static const shard_custom_op_type twice_type = {.name = "twice", .forward = twice_forward, .backward = twice_backward};
static const shard_custom_op_type twice_whole_type = {
    .name = "twice", .forward = twice_forward, .backward = twice_backward, .whole_gradients = true};

enum { LEAF_X, LEAF_GAIN, LEAF_BIAS, LEAF_W, LEAVES };

/* All of them in one; group NULL: on one process. */
static shard_tensor *network(shard_tensor *const *leaf, shard_group *group)
{
    shard_tensor *x = shard_custom_op_apply(&rows_type, group, leaf[LEAF_X]);
    x = shard_custom_op_apply(&softplus_type, make_softplus(2), x);
    x = shard_custom_op_apply(&affine_type, NULL, x, leaf[LEAF_GAIN], leaf[LEAF_BIAS]);
    x = shard_custom_op_apply(&twice_type, NULL, shard_custom_op_apply(&twice_whole_type, NULL, x));
    x = shard_relu(shard_copy_to_group(shard_gather_from_group(x, 0, group), group));
    x = shard_custom_op_apply(&columns_type, NULL, x, leaf[LEAF_W]);
    x = shard_custom_op_apply(&softplus_type, make_softplus(0.5), x);
    x = shard_custom_op_apply(&twice_whole_type, NULL, shard_custom_op_apply(&squares_type, NULL, x));
    return shard_reduce_from_group(x, group);
}

static void make_leaves(shard_tensor **leaf, shard_group *group)
{
    const shard_shape shapes[] = {SHARD_SHAPE(ROWS, IN), SHARD_SHAPE(IN), SHARD_SHAPE(IN), SHARD_SHAPE(OUT, IN)};
    for (int i = 0; i < LEAVES; i++) {
        shard_range part = shard_split_range(OUT, shard_group_size(group), shard_group_rank(group));
        if (i == LEAF_W)
            leaf[i] = shard_as_split(shard_empty(SHARD_SHAPE(part.size, IN), .dtype = SHARD_FLOAT64), 0, group, part.start, OUT);
        else
            leaf[i] = shard_empty(shapes[i], .dtype = SHARD_FLOAT64);
        fill_made_up(leaf[i], 20 + (uint64_t)i);
        shard_set_requires_grad(leaf[i], true);
    }
}

static void splits_operands(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *whole[LEAVES], *own[LEAVES];
        make_leaves(whole, NULL);
        make_leaves(own, world);
        shard_tensor *expected = network(whole, NULL), *loss = network(own, world);
        check_close(loss, expected, 1e-13);
        check_ok(shard_backward(expected));
        check_ok(shard_backward(loss));
        for (int i = 0; i < LEAVES; i++) {
            bool pending = world->size > 1 && (i == LEAF_GAIN || i == LEAF_BIAS); /* summands of the own rows */
            ck_assert_int_eq(shard_grad(own[i])->pending.count, pending);
            if (pending)
                check_ok(shard_all_reduce(shard_grad(own[i]), SHARD_SUM, world));
            double *values = values_of(shard_grad(whole[i]));
            check_part(shard_grad(own[i]), values, 1e-12);
            free(values);
        }
        SHARD_NO_GRAD
        ck_assert(!shard_requires_grad(network(own, world)));
    }
}

START_TEST(test_split_operands)
{
    run_job(_i, splits_operands, NULL);
}
END_TEST

/* ---- contexts, saved tensors, modes ---- */

/* A context is freed once, however its record ends. */
START_TEST(test_ends)
{
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(3), 1, SHARD_FLOAT64);
        shard_tensor *y = shard_custom_op_apply(&softplus_type, make_softplus(1), x);
        ck_assert_int_eq(ended, 0);
        check_ok(shard_backward(shard_sum(y)));
        ck_assert_int_eq(ended, 1);
        SHARD_SCOPE
        shard_custom_op_apply(&softplus_type, make_softplus(1), x); /* no backward */
        ck_assert_int_eq(ended, 2);
        SHARD_NO_GRAD
        ck_assert(!shard_requires_grad(shard_custom_op_apply(&softplus_type, make_softplus(1), x)));
        ck_assert_int_eq(ended, 3);
        ck_assert(!shard_requires_grad(shard_custom_op_apply(&softplus_type, make_softplus(1), shard_detach(x))));
        ck_assert_int_eq(ended, 4);
        check_refused(shard_custom_op_apply(&softplus_type, make_softplus(1), NULL, x, x, x, x, x, x, x, x), SHARD_ERROR_ARGUMENT,
                      "shard_custom_op_apply: *9 inputs*");
        ck_assert_int_eq(ended, 5);
        /* After an error nothing runs, and the error stays. */
        shard_error(SHARD_ERROR_IO, "an earlier one");
        check_refused(shard_custom_op_apply(&softplus_type, make_softplus(1), NULL), SHARD_ERROR_IO, "an earlier one");
        ck_assert_int_eq(ended, 6);
        check_fails(shard_backward(shard_sum(y)), SHARD_ERROR_ARGUMENT, "shard_backward: *softplus*freed*");
    }
}
END_TEST

/* Every slot, an input as the result, two inputs that are one tensor, dy handed on. */
static shard_tensor *identity_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    for (int i = 0; i < SHARD_CUSTOM_OP_SAVED; i++)
        check_ok(shard_custom_op_save(op, i, shard_full(SHARD_SHAPE(1), i)));
    ck_assert(!shard_grad_enabled());
    return input[inputs - 1];
}

static shard_status identity_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    for (int i = 0; i < SHARD_CUSTOM_OP_SAVED; i++)
        ck_assert_double_eq(shard_item(shard_custom_op_saved(op, i)), i);
    ck_assert(!shard_grad_enabled());
    dx[inputs - 1] = dy;
    for (int i = 0; i < inputs - 1; i++) {
        dx[i] = shard_custom_op_make_gradient(op, i);
        double *values = values_of(dy);
        check_ok(shard_copy_from_host(dx[i], values, (size_t)shard_numel(dy) * sizeof *values));
        free(values);
    }
    return SHARD_OK;
}

static const shard_custom_op_type identity_type = {
    .name = "identity", .forward = identity_forward, .backward = identity_backward};

START_TEST(test_identity)
{
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(3), 1, SHARD_FLOAT64);
        shard_tensor *y = shard_custom_op_apply(&identity_type, NULL, x, x, x, x, x, x, x, x);
        ck_assert(y != x && shard_requires_grad(x) && shard_requires_grad(y));
        check_close(y, x, 0);
        check_ok(shard_backward(shard_sum(shard_scale(y, 0.5))));
        check_close(shard_grad(x), shard_full(SHARD_SHAPE(3), 4, .dtype = SHARD_FLOAT64), 0);
    }
}
END_TEST

/* Products in 16 bits by autocast, backward outside of it; the gradient of a float32 input is float32. */
START_TEST(test_autocast)
{
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(4, IN), 1, SHARD_FLOAT32),
                     *w = made_up_leaf(SHARD_SHAPE(OUT, IN), 2, SHARD_FLOAT32);
        shard_tensor *y = NULL;
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        y = shard_custom_op_apply(&columns_type, NULL, x, w);
        ck_assert_int_eq(shard_tensor_dtype(y), SHARD_BFLOAT16);
        check_ok(shard_backward(shard_sum(y)));
        ck_assert_int_eq(shard_tensor_dtype(shard_grad(x)), SHARD_FLOAT32);
        ck_assert_int_eq(shard_autocast_dtype(), SHARD_FLOAT32);
        shard_tensor *x2 = made_up_leaf(SHARD_SHAPE(4, IN), 1, SHARD_FLOAT32),
                     *w2 = made_up_leaf(SHARD_SHAPE(OUT, IN), 2, SHARD_FLOAT32);
        check_ok(shard_backward(shard_sum(shard_linear(x2, w2, NULL))));
        check_close(shard_grad(x), shard_grad(x2), 0.03);
        check_close(shard_grad(w), shard_grad(w2), 0.03);
    }
}
END_TEST

/* ---- misuse: what the functions do is said by a number ---- */

enum {
    GOOD,
    NO_RESULT,
    FAILS,
    OPERATION_FAILS,
    NO_GRADIENT,
    WRONG_SHAPE,
    WRONG_DTYPE,
    WRONG_PART,
    PARTIAL_OF_SPLIT,
    FAILS_BACK,
    SAYS_NO,
    WRITES_DY,
    SAVES_BACK,
    WRONG_SLOT,
    IGNORES_ERROR,
    MISUSES
};

static shard_tensor *misuse_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    int what = *(const int *)shard_custom_op_context(op);
    (void)inputs;
    if (what == NO_RESULT)
        return NULL;
    if (what == FAILS)
        return shard_error(SHARD_ERROR_IO, "the disk is full"), NULL;
    if (what == OPERATION_FAILS)
        return shard_matmul(input[0], shard_zeros(SHARD_SHAPE(4)));
    if (what == WRONG_SLOT)
        shard_custom_op_save(op, SHARD_CUSTOM_OP_SAVED, input[0]);
    if (what == IGNORES_ERROR)
        shard_matmul(input[0], shard_zeros(SHARD_SHAPE(4)));
    shard_custom_op_make_gradient(what == SAVES_BACK ? NULL : op, 0);
    shard_status status = shard_last_status();
    if (what == GOOD || what == SAVES_BACK)
        ck_assert_int_eq(status, SHARD_ERROR_ARGUMENT);
    if (what != WRONG_SLOT && what != IGNORES_ERROR)
        shard_clear_error();
    return shard_scale(input[0], 2);
}

static shard_status misuse_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    int what = *(const int *)shard_custom_op_context(op);
    (void)inputs;
    dx[0] = shard_scale(dy, 2);
    if (what == NO_GRADIENT)
        dx[0] = NULL;
    if (what == WRONG_SHAPE)
        dx[0] = shard_zeros(SHARD_SHAPE(7));
    if (what == WRONG_DTYPE)
        dx[0] = shard_zeros(shard_tensor_shape(dy), .dtype = SHARD_INT64);
    if (what == WRONG_PART)
        dx[0] = shard_as_placed(dx[0], (shard_placement){.kind = SHARD_SPLIT, .dim = 0, .group = shard_world(), .whole = 99});
    if (what == PARTIAL_OF_SPLIT)
        dx[0] = shard_as_placed(dx[0], (shard_placement){.kind = SHARD_PARTIAL, .group = shard_world()});
    if (what == FAILS_BACK)
        return shard_error(SHARD_ERROR_IO, "the disk is full");
    if (what == SAYS_NO)
        return SHARD_ERROR_UNAVAILABLE;
    if (what == WRITES_DY) {
        double zeros[16] = {0};
        shard_copy_from_host(dy, zeros, (size_t)shard_numel(dy) * sizeof *zeros);
    }
    return what == SAVES_BACK ? shard_custom_op_save(op, 0, dy) : SHARD_OK;
}

static const shard_custom_op_type misuse_type = {.name = "own", .forward = misuse_forward, .backward = misuse_backward};

static const struct {
    shard_status status;
    const char *text;
} said[MISUSES] = {
    [NO_RESULT] = {SHARD_ERROR_ARGUMENT, "forward of own failed and gave no reason (shard_error)"},
    [FAILS] = {SHARD_ERROR_IO, "forward of own: the disk is full"},
    [OPERATION_FAILS] = {SHARD_ERROR_SHAPE, "forward of own: shard_matmul: *"},
    [NO_GRADIENT] = {SHARD_ERROR_ARGUMENT, "backward of own: no gradient *"},
    [WRONG_SHAPE] = {SHARD_ERROR_SHAPE, "backward of own: *shape [[]7]*"},
    [WRONG_DTYPE] = {SHARD_ERROR_SHAPE, "backward of own: *int64*float64*"},
    [WRONG_PART] = {SHARD_ERROR_UNSUPPORTED, "backward of own: *split along 0*"},
    [PARTIAL_OF_SPLIT] = {SHARD_ERROR_UNSUPPORTED, "backward of own: *partial*"},
    [FAILS_BACK] = {SHARD_ERROR_IO, "backward of own: the disk is full"},
    [SAYS_NO] = {SHARD_ERROR_UNAVAILABLE, "backward of own failed and gave no reason (shard_error)"},
    [WRITES_DY] = {SHARD_ERROR_ARGUMENT, "backward of own: *written to dy*"},
    [SAVES_BACK] = {SHARD_ERROR_ARGUMENT, "backward of own: shard_custom_op_save: *backward*"},
    [WRONG_SLOT] = {SHARD_ERROR_ARGUMENT, "forward of own: shard_custom_op_save: slot 16 *"},
    [IGNORES_ERROR] = {SHARD_ERROR_SHAPE, "forward of own: shard_matmul: *"},
};

static void misuses(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world), rank = shard_group_rank(world);
    SHARD_SCOPE
    {
        for (int what = 0; what < MISUSES; what++) {
            if (size == 1 && (what == WRONG_PART || what == PARTIAL_OF_SPLIT))
                continue;
            shard_tensor *x = shard_as_split(made_up(SHARD_SHAPE(2, 3), 1, SHARD_FLOAT64), 0, world, 2 * rank, 2 * size);
            shard_set_requires_grad(x, true);
            shard_tensor *y = shard_custom_op_apply(&misuse_type, &what, x);
            shard_status status = y ? shard_backward(shard_sum(y)) : shard_last_status();
            ck_assert_int_eq(status, said[what].status);
            if (status != SHARD_OK)
                check_error(status, said[what].text);
        }
    }
}

START_TEST(test_misuse)
{
    run_job(_i, misuses, NULL);
}
END_TEST

START_TEST(test_refuses)
{
    static const shard_custom_op_type forward_only = {.name = "own", .forward = identity_forward};
    static const shard_custom_op_type no_forward = {.name = "own", .destroy = destroy_softplus};
    int good = GOOD, before = ended;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(3), 1, SHARD_FLOAT64);
        check_refused(shard_custom_op_apply(NULL, NULL, x), SHARD_ERROR_ARGUMENT, "shard_custom_op_apply: type *");
        check_refused(shard_custom_op_apply(&no_forward, make_softplus(1), x), SHARD_ERROR_ARGUMENT, "*type->forward is NULL");
        ck_assert_int_eq(ended, before + 1);
        check_refused(shard_custom_op_apply_with(&misuse_type, &good, 1, NULL), SHARD_ERROR_ARGUMENT, "*input is NULL");
        check_refused(shard_custom_op_apply(&forward_only, NULL, x), SHARD_ERROR_ARGUMENT, "own has no backward*");
        ck_assert_ptr_nonnull(shard_custom_op_apply(&forward_only, NULL, shard_detach(x)));
        check_refused(shard_custom_op_saved(NULL, 0), SHARD_ERROR_ARGUMENT, "shard_custom_op_saved: op *");
        check_refused(shard_custom_op_make_gradient(NULL, 0), SHARD_ERROR_ARGUMENT, "*op is NULL");
        check_fails(shard_custom_op_save(NULL, 0, x), SHARD_ERROR_ARGUMENT, "shard_custom_op_save: op *");
        ck_assert(!shard_custom_op_wants_gradient(NULL, 0) && !shard_custom_op_context(NULL));
        check_refused(shard_as_placed(x, (shard_placement){0}), SHARD_ERROR_ARGUMENT, "*requires a gradient*");
        check_refused(shard_as_placed(shard_detach(x), (shard_placement){.kind = 7}), SHARD_ERROR_ARGUMENT, "*no placement 7");
        /* A saved tensor that was written to. */
        shard_tensor *y = shard_custom_op_apply(&softplus_type, make_softplus(1), x);
        check_ok(shard_copy_from_host(x, (double[]){1, 2, 3}, 3 * sizeof(double)));
        check_fails(shard_backward(shard_sum(y)), SHARD_ERROR_ARGUMENT, "backward of softplus: *written to*");
    }
}
END_TEST

/* One rank alone fails in its backward: all fail, with its text. */
static void fails_on_one(shard_group *world, void *context)
{
    (void)context;
    int what = shard_group_rank(world) == 1 ? FAILS_BACK : GOOD;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(2, 3), 1, SHARD_FLOAT64);
        shard_tensor *y = shard_custom_op_apply(&misuse_type, &what, shard_gelu(shard_copy_to_group(x, world)));
        shard_backward(shard_sum(shard_gather_from_group(y, 0, world)));
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
        check_joint_error(SHARD_ERROR_IO, "rank 1: backward of own: the disk is full");
    }
}

START_TEST(test_fails_on_one)
{
    run_job(_i, fails_on_one, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("custom_op");
    TCase *tcase = test_case(suite, "custom_op");
    tcase_add_loop_test(tcase, test_gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_loop_test(tcase, test_split_operands, 1, 4);
    tcase_add_test(tcase, test_ends);
    tcase_add_test(tcase, test_identity);
    tcase_add_test(tcase, test_autocast);
    tcase_add_loop_test(tcase, test_misuse, 1, 4);
    tcase_add_test(tcase, test_refuses);
    tcase_add_loop_test(tcase, test_fails_on_one, 2, 4);
    return test_run(suite);
}
