/* Autocast on one rank: which types come out, and what is rounded and what is not. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/kernels.h"
#include "support/ranks.h"

#include "op/op.h"

#include <shard/shard.h>

#include <stdlib.h>

static const shard_dtype modes[] = {SHARD_BFLOAT16, SHARD_FLOAT16};

/* ---- one operation ---- */

/* Types: of 16 bits as the mode is and as it is not, float32, float64. */
enum { N, O, F, D };

static shard_dtype type_of(int which, shard_dtype mode)
{
    switch (which) {
    case N:
        return mode;
    case O:
        return mode == SHARD_BFLOAT16 ? SHARD_FLOAT16 : SHARD_BFLOAT16;
    default:
        return which == F ? SHARD_FLOAT32 : SHARD_FLOAT64;
    }
}

typedef shard_tensor *maker(shard_tensor *const *x);

typedef struct cast_case {
    const char *name;
    maker *make;
    int inputs;
    shard_shape shape[3];
    int from[3], to;
    bool rounds; /* a float32 input's gradient is rounded to 16 bits once */
    bool uses_result; /* and is computed from the rounded result */
} cast_case;

static shard_tensor *linear(shard_tensor *const *x)
{
    return shard_linear(x[0], x[1], x[2]);
}

static shard_tensor *matmul(shard_tensor *const *x)
{
    return shard_matmul(x[0], x[1]);
}

static shard_tensor *attention(shard_tensor *const *x)
{
    return shard_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = true);
}

static shard_tensor *conv2d(shard_tensor *const *x)
{
    return shard_conv2d(x[0], x[1], x[2], .padding = 1);
}

static shard_tensor *softmax(shard_tensor *const *x)
{
    return shard_softmax(x[0]);
}

static shard_tensor *log_softmax(shard_tensor *const *x)
{
    return shard_log_softmax(x[0]);
}

static shard_tensor *logsumexp(shard_tensor *const *x)
{
    return shard_logsumexp(x[0], 0, true);
}

static shard_tensor *layer_norm(shard_tensor *const *x)
{
    return shard_layer_norm(x[0], x[1], x[2], 1e-5);
}

static shard_tensor *normalize(shard_tensor *const *x)
{
    return shard_normalize(x[0], 1, 1e-12);
}

static shard_tensor *sum(shard_tensor *const *x)
{
    return shard_sum(x[0]);
}

static shard_tensor *sum_dim(shard_tensor *const *x)
{
    return shard_sum_dim(x[0], 1, false);
}

static shard_tensor *mean_dim(shard_tensor *const *x)
{
    return shard_mean_dim(x[0], 0, true);
}

static shard_tensor *max_dim(shard_tensor *const *x)
{
    return shard_max_dim(shard_min_dim(x[0], 1, true, NULL), 0, false, NULL);
}

static shard_tensor *top_k(shard_tensor *const *x)
{
    return shard_top_k(x[0], 2, NULL);
}

static shard_tensor *mean(shard_tensor *const *x)
{
    return shard_mean(x[0]);
}

static shard_tensor *add(shard_tensor *const *x)
{
    return shard_add(x[0], x[1]);
}

static shard_tensor *mul(shard_tensor *const *x)
{
    return shard_mul(x[0], x[1]);
}

static shard_tensor *batch_norm(shard_tensor *const *x)
{
    return shard_batch_norm(x[0], NULL, NULL, x[1], x[2], .training = true);
}

static shard_tensor *with_residual(shard_tensor *const *x)
{
    return shard_batch_norm(x[0], NULL, NULL, NULL, NULL, .training = true, .residual = x[1]);
}

static shard_tensor *relu(shard_tensor *const *x)
{
    return shard_relu(x[0]);
}

static shard_tensor *gelu(shard_tensor *const *x)
{
    return shard_gelu(x[0]);
}

#define MAKER(name, call)                                                                                                        \
    static shard_tensor *name(shard_tensor *const *x)                                                                            \
    {                                                                                                                            \
        return call;                                                                                                             \
    }
MAKER(exponential, shard_exp(x[0]))
MAKER(logarithm, shard_log(shard_add_scalar(x[0], 4)))
MAKER(logarithm_of_next, shard_log1p(shard_abs(x[0])))
MAKER(inverse_root, shard_rsqrt(shard_add_scalar(x[0], 4)))
MAKER(cube, shard_pow_scalar(x[0], 3))
MAKER(root, shard_sqrt(shard_abs(x[0])))
MAKER(negative, shard_neg(x[0]))
MAKER(size, shard_abs(x[0]))
MAKER(hyperbolic_tangent, shard_tanh(x[0]))
MAKER(sigmoid, shard_sigmoid(x[0]))
MAKER(clamp, shard_clamp(x[0], -1, 1))
MAKER(silu, shard_silu(x[0]))
MAKER(leaky_relu, shard_leaky_relu(x[0], 0.01))
MAKER(softplus, shard_softplus(x[0], 1, 20))
MAKER(difference, shard_sub(x[0], x[1]))
MAKER(quotient, shard_div(x[0], shard_add_scalar(x[1], 4)))
MAKER(power, shard_pow(shard_add_scalar(x[0], 4), x[1]))
MAKER(prelu, shard_prelu(x[0], x[1]))
MAKER(minimum, shard_minimum(x[0], x[1]))
MAKER(choice, shard_where(shard_lt(x[0], x[1]), x[1], x[0]))
MAKER(squared_error, shard_mse_loss(x[0], x[1]))
MAKER(copy_of, shard_clone(x[0]))

static shard_tensor *dropout(shard_tensor *const *x)
{
    shard_manual_seed(5);
    return shard_dropout(x[0], 0.5);
}

static shard_tensor *max_pool(shard_tensor *const *x)
{
    return shard_max_pool2d(x[0], 2);
}

static shard_tensor *avg_pool(shard_tensor *const *x)
{
    return shard_avg_pool2d(x[0], 2);
}

static shard_tensor *global_avg_pool(shard_tensor *const *x)
{
    return shard_global_avg_pool2d(x[0]);
}

static shard_tensor *flatten(shard_tensor *const *x)
{
    return shard_flatten(shard_narrow(shard_transpose(x[0], 0, 1), 0, 1, 2), 1, -1);
}

static shard_tensor *embedding(shard_tensor *const *x)
{
    static const int64_t rows[] = {3, 0, 3};
    return shard_embedding(x[0], shard_from_host(rows, SHARD_SHAPE(3), .dtype = SHARD_INT64), -1);
}

static shard_tensor *some_labels(void)
{
    static const int64_t labels[] = {4, 0, 2, 4, 1, 3};
    return shard_from_host(labels, SHARD_SHAPE(6), .dtype = SHARD_INT64);
}

static shard_tensor *concatenate(shard_tensor *const *x)
{
    return shard_narrow(shard_concatenate(x, 2, 0), 1, 1, 3);
}

static shard_tensor *pick_labels(shard_tensor *const *x)
{
    return shard_pick_labels(x[0], some_labels(), -100);
}

static shard_tensor *add_at_labels(shard_tensor *const *x)
{
    return shard_add_at_labels(x[0], some_labels(), x[1], -2, -100);
}

static shard_tensor *cross_entropy(shard_tensor *const *x)
{
    return shard_cross_entropy(x[0], some_labels(), .label_smoothing = 0.25);
}

static shard_tensor *each_loss(shard_tensor *const *x)
{
    return shard_cross_entropy(x[0], some_labels(), .reduction = SHARD_REDUCTION_NONE);
}

static shard_tensor *weighted(shard_tensor *const *x)
{
    shard_tensor *weight = shard_cast(shard_full(SHARD_SHAPE(5), 0.3), shard_tensor_dtype(x[1]));
    return shard_cross_entropy(x[0], some_labels(), .weight = shard_detach(weight));
}

static shard_tensor *soft_labels(shard_tensor *const *x)
{
    return shard_cross_entropy(x[0], shard_detach(x[1]), .reduction = SHARD_REDUCTION_SUM);
}

static shard_tensor *margin_logits(shard_tensor *const *x)
{
    return shard_margin_logits(shard_scale(x[0], 0.25), some_labels(), .scale = 4, .m2 = 0.25, .m3 = 0.125);
}

static shard_tensor *some_pairs(void)
{
    static const int64_t pairs[] = {0, 0, 3, 1, 4, 2};
    return shard_from_host(pairs, SHARD_SHAPE(2, 3), .dtype = SHARD_INT64);
}

static shard_tensor *binary_loss(shard_tensor *const *x)
{
    return shard_binary_cross_entropy_with_logits(x[0], some_pairs());
}

static shard_tensor *each_binary_loss(shard_tensor *const *x)
{
    return shard_binary_cross_entropy_with_logits(x[0], some_pairs(), .reduction = SHARD_REDUCTION_NONE);
}

static shard_tensor *binary_targets(shard_tensor *const *x)
{
    return shard_binary_cross_entropy_with_logits(x[0], shard_detach(x[1]));
}

static shard_tensor *positive_weights(shard_tensor *const *x)
{
    shard_tensor *weight = shard_cast(shard_full(SHARD_SHAPE(5), 0.3), shard_tensor_dtype(x[1]));
    return shard_binary_cross_entropy_with_logits(x[0], some_pairs(), .pos_weight = shard_detach(weight));
}

#define MATRIX SHARD_SHAPE(6, 5)
#define IMAGES SHARD_SHAPE(2, 4, 4, 3)

static const cast_case cases[] = {
    {"linear", linear, 3, {SHARD_SHAPE(6, 5), SHARD_SHAPE(4, 5), SHARD_SHAPE(4)}, {F, F, F}, N},
    {"linear of 16 bits", linear, 3, {SHARD_SHAPE(6, 5), SHARD_SHAPE(4, 5), SHARD_SHAPE(4)}, {N, F, F}, N},
    {"linear of other 16 bits", linear, 3, {SHARD_SHAPE(6, 5), SHARD_SHAPE(4, 5), SHARD_SHAPE(4)}, {O, F, N}, N},
    {"linear of float64", linear, 3, {SHARD_SHAPE(6, 5), SHARD_SHAPE(4, 5), SHARD_SHAPE(4)}, {D, D, D}, D},
    {"matmul", matmul, 2, {SHARD_SHAPE(6, 5), SHARD_SHAPE(5, 3)}, {F, F}, N},
    {"matmul of both", matmul, 2, {SHARD_SHAPE(2, 6, 5), SHARD_SHAPE(2, 5, 3)}, {F, N}, N},
    {"matmul of float64", matmul, 2, {SHARD_SHAPE(6, 5), SHARD_SHAPE(5, 3)}, {D, D}, D},
    {"attention",
     attention,
     3,
     {SHARD_SHAPE(2, 4, 5), SHARD_SHAPE(2, 3, 5), SHARD_SHAPE(2, 3, 4)},
     {F, F, F},
     N,
     .uses_result = true},
    {"attention of 16 bits",
     attention,
     3,
     {SHARD_SHAPE(2, 4, 5), SHARD_SHAPE(2, 3, 5), SHARD_SHAPE(2, 3, 4)},
     {N, F, N},
     N,
     .rounds = true},
    {"attention of float64", attention, 3, {SHARD_SHAPE(2, 4, 5), SHARD_SHAPE(2, 3, 5), SHARD_SHAPE(2, 3, 4)}, {D, D, D}, D},
    {"conv2d", conv2d, 3, {IMAGES, SHARD_SHAPE(4, 3, 3, 3), SHARD_SHAPE(4)}, {F, F, F}, N, .rounds = true},
    {"conv2d of 16 bits", conv2d, 3, {IMAGES, SHARD_SHAPE(4, 3, 3, 3), SHARD_SHAPE(4)}, {N, F, F}, N, .rounds = true},
    {"softmax", softmax, 1, {MATRIX}, {N}, F},
    {"log_softmax", log_softmax, 1, {MATRIX}, {N}, F},
    {"logsumexp", logsumexp, 1, {MATRIX}, {N}, F},
    {"layer_norm", layer_norm, 3, {MATRIX, SHARD_SHAPE(5), SHARD_SHAPE(5)}, {N, F, F}, F},
    {"normalize", normalize, 1, {MATRIX}, {N}, F},
    {"sum", sum, 1, {MATRIX}, {N}, F},
    {"mean", mean, 1, {MATRIX}, {N}, N},
    {"sum_dim", sum_dim, 1, {MATRIX}, {N}, F},
    {"mean_dim", mean_dim, 1, {MATRIX}, {N}, N},
    {"max_dim", max_dim, 1, {MATRIX}, {N}, N},
    {"top_k", top_k, 1, {MATRIX}, {N}, N},
    {"cross_entropy", cross_entropy, 1, {MATRIX}, {N}, F},
    {"cross_entropy of float32", cross_entropy, 1, {MATRIX}, {F}, F},
    {"cross_entropy of float64", cross_entropy, 1, {MATRIX}, {D}, D},
    {"each row's loss", each_loss, 1, {MATRIX}, {N}, F},
    {"class weights", weighted, 2, {MATRIX, SHARD_SHAPE(1)}, {N, F}, F},
    {"class weights of 16 bits", weighted, 2, {MATRIX, SHARD_SHAPE(1)}, {F, N}, F},
    {"probabilities", soft_labels, 2, {MATRIX, MATRIX}, {N, F}, F},
    {"probabilities of 16 bits", soft_labels, 2, {MATRIX, MATRIX}, {F, N}, F},
    {"binary_cross_entropy", binary_loss, 1, {MATRIX}, {N}, F},
    {"binary_cross_entropy of float64", binary_loss, 1, {MATRIX}, {D}, D},
    {"each element's loss", each_binary_loss, 1, {MATRIX}, {N}, F},
    {"binary targets", binary_targets, 2, {MATRIX, MATRIX}, {N, F}, F},
    {"binary targets of 16 bits", binary_targets, 2, {MATRIX, MATRIX}, {F, N}, F},
    {"positive weights", positive_weights, 2, {MATRIX, SHARD_SHAPE(1)}, {N, F}, F},
    {"margin_logits", margin_logits, 1, {MATRIX}, {N}, N},
    {"margin_logits of float32", margin_logits, 1, {MATRIX}, {F}, F},
    {"concatenate", concatenate, 2, {MATRIX, SHARD_SHAPE(2, 5)}, {N, N}, N},
    {"concatenate of two types", concatenate, 2, {MATRIX, SHARD_SHAPE(2, 5)}, {N, F}, F},
    {"pick_labels", pick_labels, 1, {MATRIX}, {N}, N},
    {"add_at_labels", add_at_labels, 2, {MATRIX, SHARD_SHAPE(6)}, {N, F}, F},
    {"add_at_labels of 16 bits", add_at_labels, 2, {MATRIX, SHARD_SHAPE(6)}, {N, N}, N},
    {"add", add, 2, {MATRIX, MATRIX}, {N, N}, N},
    {"add of two types", add, 2, {MATRIX, SHARD_SHAPE(5)}, {N, F}, F},
    {"add of both 16 bits", add, 2, {MATRIX, MATRIX}, {N, O}, F},
    {"add of float64", add, 2, {MATRIX, MATRIX}, {N, D}, D},
    {"mul of two types", mul, 2, {MATRIX, SHARD_SHAPE(5)}, {F, N}, F},
    {"batch_norm", batch_norm, 3, {IMAGES, SHARD_SHAPE(3), SHARD_SHAPE(3)}, {N, F, F}, N},
    {"residual of two types", with_residual, 2, {IMAGES, IMAGES}, {N, F}, F},
    {"residual of 16 bits", with_residual, 2, {IMAGES, IMAGES}, {F, N}, F},
    {"relu", relu, 1, {MATRIX}, {N}, N},
    {"gelu", gelu, 1, {MATRIX}, {N}, N},
    {"prelu", prelu, 2, {MATRIX, SHARD_SHAPE(5)}, {N, F}, N},
    {"prelu of float32", prelu, 2, {MATRIX, SHARD_SHAPE(5)}, {F, F}, F},
    {"sub of two types", difference, 2, {MATRIX, SHARD_SHAPE(5)}, {N, F}, F},
    {"sub", difference, 2, {MATRIX, MATRIX}, {N, N}, N},
    {"div of two types", quotient, 2, {MATRIX, SHARD_SHAPE(6, 1)}, {F, N}, F},
    {"pow", power, 2, {MATRIX, MATRIX}, {N, N}, F},
    {"pow of two types", power, 2, {MATRIX, MATRIX}, {N, O}, F},
    {"minimum of two types", minimum, 2, {MATRIX, MATRIX}, {N, F}, F},
    {"where of two types", choice, 2, {MATRIX, MATRIX}, {N, F}, F},
    {"where", choice, 2, {MATRIX, MATRIX}, {N, N}, N},
    {"mse_loss", squared_error, 2, {MATRIX, MATRIX}, {N, N}, F},
    {"mse_loss of two types", squared_error, 2, {MATRIX, MATRIX}, {N, O}, F},
    {"clone", copy_of, 1, {MATRIX}, {N}, N},
    {"exp", exponential, 1, {MATRIX}, {N}, F},
    {"log", logarithm, 1, {MATRIX}, {N}, F},
    {"log1p", logarithm_of_next, 1, {MATRIX}, {N}, F},
    {"rsqrt", inverse_root, 1, {MATRIX}, {N}, F},
    {"pow_scalar", cube, 1, {MATRIX}, {N}, F},
    {"sqrt", root, 1, {MATRIX}, {N}, N},
    {"neg", negative, 1, {MATRIX}, {N}, N},
    {"abs", size, 1, {MATRIX}, {N}, N},
    {"tanh", hyperbolic_tangent, 1, {MATRIX}, {N}, N},
    {"sigmoid", sigmoid, 1, {MATRIX}, {N}, N},
    {"clamp", clamp, 1, {MATRIX}, {N}, N},
    {"silu", silu, 1, {MATRIX}, {N}, N},
    {"leaky_relu", leaky_relu, 1, {MATRIX}, {N}, N},
    {"softplus", softplus, 1, {MATRIX}, {N}, F},
    {"dropout", dropout, 1, {MATRIX}, {N}, N},
    {"max_pool2d", max_pool, 1, {IMAGES}, {N}, N},
    {"avg_pool2d", avg_pool, 1, {IMAGES}, {N}, N},
    {"global_avg_pool2d", global_avg_pool, 1, {IMAGES}, {N}, N},
    {"shapes", flatten, 1, {IMAGES}, {N}, N},
    {"embedding", embedding, 1, {MATRIX}, {F}, F},
};

/* Sixteenths, which no type here rounds: a cast alone changes nothing. */
static shard_tensor *sixteenths(shard_shape shape, unsigned seed, shard_dtype dtype)
{
    shard_tensor *x = make_up_tensor(shape, seed, .dtype = SHARD_FLOAT64);
    double *values = values_of(x);
    for (int64_t i = 0; i < shard_numel(x); i++)
        values[i] = (double)(int)(16 * values[i]) / 16;
    x = shard_detach(shard_cast(shard_from_host(values, shape, .dtype = SHARD_FLOAT64), dtype));
    free(values);
    return x;
}

/* A gradient with elements of its own for y. */
static void go_back(shard_tensor *y)
{
    shard_tensor *w =
        sixteenths(shard_tensor_shape(y), 99, shard_tensor_dtype(y) == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32);
    check_ok(shard_backward(shard_sum(shard_mul(y, w))));
}

static void compare(const cast_case *c, shard_dtype mode)
{
    shard_tensor *x[3] = {NULL}, *exact[3] = {NULL}, *y = NULL;
    for (int i = 0; i < c->inputs; i++) {
        x[i] = sixteenths(c->shape[i], (unsigned)i + 1, type_of(c->from[i], mode));
        exact[i] = sixteenths(c->shape[i], (unsigned)i + 1, SHARD_FLOAT64);
        shard_set_requires_grad(x[i], true);
        shard_set_requires_grad(exact[i], true);
    }
    SHARD_AUTOCAST(mode)
    {
        y = c->make(x);
        ck_assert_msg(y != NULL, "%s: %s", c->name, shard_last_error());
        ck_assert_msg(shard_tensor_dtype(y) == type_of(c->to, mode), "%s gives %s, not %s", c->name,
                      shard_dtype_name(shard_tensor_dtype(y)), shard_dtype_name(type_of(c->to, mode)));
        go_back(y);
    }
    shard_tensor *wanted = c->make(exact);
    go_back(wanted);
    double *values = values_of(wanted), rounding = unit(mode), float32 = 1e-5;
    check_tensor(c->name, y, values, c->to == N ? 1.01 * rounding : float32);
    free(values);
    for (int i = 0; i < c->inputs; i++) {
        ck_assert_msg((shard_grad(x[i]) != NULL) == (shard_grad(exact[i]) != NULL), "%s: gradient of input %d", c->name, i);
        if (!shard_grad(x[i]))
            continue;
        ck_assert_int_eq(shard_tensor_dtype(shard_grad(x[i])), shard_tensor_dtype(x[i]));
        values = values_of(shard_grad(exact[i]));
        bool narrow = c->from[i] == N || c->from[i] == O || c->uses_result;
        /* on the way to a 16-bit input: of dy, of the gradient, of the other type */
        check_tensor(c->name, shard_grad(x[i]), values, narrow ? 3 * 0x1p-8 : c->rounds ? 1.01 * rounding : float32);
        free(values);
    }
}

START_TEST(types_and_values)
{
    for (int m = 0; m < 2; m++)
        SHARD_SCOPE
            compare(&cases[_i], modes[m]);
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
}
END_TEST

/* ---- the mode ---- */

static shard_dtype leaves_early(void)
{
    SHARD_AUTOCAST(SHARD_FLOAT16)
        return shard_autocast_dtype();
    return SHARD_FLOAT64;
}

START_TEST(nests)
{
    ck_assert_int_eq(shard_autocast_dtype(), SHARD_FLOAT32);
    int turns = 0;
    SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        ck_assert_int_eq(shard_autocast_dtype(), SHARD_BFLOAT16);
        ck_assert_int_eq(leaves_early(), SHARD_FLOAT16);
        ck_assert_int_eq(shard_autocast_dtype(), SHARD_BFLOAT16);
        SHARD_AUTOCAST(SHARD_FLOAT32)
        {
            ck_assert_int_eq(shard_autocast_dtype(), SHARD_FLOAT32);
            turns++;
        }
        for (int i = 0; i < 2; i++)
            SHARD_AUTOCAST(SHARD_FLOAT16)
                break; /* leaves just the scope */
        ck_assert_int_eq(shard_autocast_dtype(), SHARD_BFLOAT16);
        turns++;
    }
    ck_assert_int_eq(turns, 2);
    ck_assert_int_eq(shard_autocast_dtype(), SHARD_FLOAT32);
    ck_assert_int_eq(shard_set_autocast(SHARD_FLOAT64), SHARD_FLOAT32);
    check_error(SHARD_ERROR_ARGUMENT, "shard_set_autocast: float64; *");
    ck_assert_int_eq(shard_autocast_dtype(), SHARD_FLOAT32);
}
END_TEST

/* Off, operands of two types are refused as ever, and a product keeps its type. */
START_TEST(needs_one_type_when_off)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(MATRIX), *y = shard_ones(MATRIX, .dtype = SHARD_BFLOAT16);
        check_refused(shard_add(x, y), SHARD_ERROR_SHAPE, "shard_add: operand 1 is bfloat16, *");
        ck_assert_int_eq(shard_tensor_dtype(shard_linear(x, shard_ones(MATRIX), NULL)), SHARD_FLOAT32);
        ck_assert_int_eq(shard_tensor_dtype(shard_softmax(y)), SHARD_BFLOAT16);
    }
}
END_TEST

/* A failed operand is the error that it was. */
START_TEST(passes_failure_on)
{
    SHARD_SCOPE SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        shard_tensor *x = shard_ones(MATRIX);
        check_refused(shard_linear(NULL, x, NULL), SHARD_ERROR_ARGUMENT, "shard_linear: *");
        check_refused(shard_matmul(x, NULL), SHARD_ERROR_ARGUMENT, "shard_matmul: *");
        check_refused(shard_conv2d(x, NULL, NULL), SHARD_ERROR_ARGUMENT, "shard_conv2d: *");
        check_refused(shard_softmax(NULL), SHARD_ERROR_ARGUMENT, "shard_softmax: *");
        check_refused(shard_add(NULL, x), SHARD_ERROR_ARGUMENT, "shard_add: *");
        check_refused(shard_layer_norm(NULL, NULL, NULL, 1e-5), SHARD_ERROR_ARGUMENT, "shard_layer_norm: *");
        shard_tensor *integers = shard_zeros(MATRIX, .dtype = SHARD_INT64);
        check_refused(shard_linear(x, integers, NULL), SHARD_ERROR_SHAPE, "shard_linear: operand 1 is int64; *");
        check_refused(shard_add(x, integers), SHARD_ERROR_SHAPE, "shard_add: operand 1 is int64; *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("autocast");
    TCase *tcase = test_case(suite, "autocast");
    tcase_add_loop_test(tcase, types_and_values, 0, sizeof cases / sizeof *cases);
    tcase_add_test(tcase, nests);
    tcase_add_test(tcase, needs_one_type_when_off);
    tcase_add_test(tcase, passes_failure_on);
    return test_run(suite);
}
