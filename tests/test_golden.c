/* Operations against PyTorch's results and gradients: golden/operations.txt, which
 * golden/make_operations.py wrote. */
#include "support/golden.h"
#include "support/gradcheck.h"
#include "support/ranks.h"

#include <shard/nn.h>

#include <stdio.h>

/* ---- the operations ---- */

/* What a call of batch_norm updates. */
static shard_tensor *running_mean, *running_var;

#define OPERATION(name, call)                                                                                                    \
    static shard_tensor *name(shard_tensor *const *x, const void *options)                                                       \
    {                                                                                                                            \
        (void)options;                                                                                                           \
        return call;                                                                                                             \
    }

static shard_tensor *lookup(shard_tensor *weight, int64_t padding_idx)
{
    static const int64_t index[] = {4, 0, 2, 2, 4, 1};
    return shard_embedding(weight, shard_from_host(index, SHARD_SHAPE(2, 3), .dtype = SHARD_INT64), padding_idx);
}

static shard_tensor *nn_flatten(shard_tensor *const *x, const void *options)
{
    (void)options;
    shard_module *flatten = shard_nn_flatten();
    shard_tensor *y = shard_forward(flatten, x[0]);
    shard_module_destroy(flatten);
    return y;
}

OPERATION(relu, shard_relu(x[0]))
OPERATION(gelu, shard_gelu(x[0]))
OPERATION(gelu_tanh, shard_gelu_tanh(x[0]))
OPERATION(silu, shard_silu(x[0]))
OPERATION(leaky_relu, shard_leaky_relu(x[0], 0.25))
OPERATION(softplus, shard_softplus(x[0], 2, 1))
OPERATION(softmax, shard_softmax(x[0]))
OPERATION(log_softmax, shard_log_softmax(x[0]))
OPERATION(logsumexp, shard_logsumexp(x[0], 1, false))
OPERATION(logsumexp_last, shard_logsumexp(x[0], -1, true))
OPERATION(add, shard_add(x[0], x[1]))
OPERATION(mul, shard_mul(x[0], x[1]))
OPERATION(sum, shard_sum(x[0]))
OPERATION(mean, shard_mean(x[0]))
OPERATION(permute, shard_permute(x[0], (int[]){2, 0, 1}))
OPERATION(narrow, shard_narrow(x[0], 0, 1, 2))
OPERATION(matmul, shard_matmul(x[0], x[1]))
OPERATION(linear, shard_linear(x[0], x[1], NULL))
OPERATION(linear_bias, shard_linear(x[0], x[1], x[2]))
OPERATION(embedding, lookup(x[0], -1))
OPERATION(embedding_padding, lookup(x[0], 2))
OPERATION(conv2d_1x1, shard_conv2d(x[0], x[1], x[2]))
OPERATION(conv2d_3x3, shard_conv2d(x[0], x[1], x[2], .padding = 1))
OPERATION(conv2d_stride, shard_conv2d(x[0], x[1], NULL, .stride = 2, .padding = 1))
OPERATION(conv2d_stem, shard_conv2d(x[0], x[1], NULL, .stride = 2, .padding = 3))
OPERATION(conv2d_directions, shard_conv2d(x[0], x[1], x[2], .stride_h = 2, .stride_w = 3, .padding_h = 1, .padding_w = 2))
OPERATION(conv2d_dilation, shard_conv2d(x[0], x[1], NULL, .dilation = 2, .padding = 2))
OPERATION(conv2d_groups, shard_conv2d(x[0], x[1], x[2], .groups = 2, .padding = 1))
OPERATION(conv2d_depthwise, shard_conv2d(x[0], x[1], NULL, .groups = 4, .padding = 1, .stride = 2))
OPERATION(max_pool, shard_max_pool2d(x[0], 3, .stride = 2, .padding = 1))
OPERATION(max_pool_ceil, shard_max_pool2d(x[0], 3, .stride = 2, .ceil_mode = true))
OPERATION(max_pool_default, shard_max_pool2d(x[0], 2))
OPERATION(avg_pool, shard_avg_pool2d(x[0], 3, .stride = 2, .padding = 1))
OPERATION(avg_pool_inside, shard_avg_pool2d(x[0], 3, .stride = 2, .padding = 1, .count_include_pad = false))
OPERATION(avg_pool_ceil, shard_avg_pool2d(x[0], 3, .stride = 2, .padding = 1, .ceil_mode = true))
OPERATION(avg_pool_ceil_inside, shard_avg_pool2d(x[0], 4, .stride = 3, .padding = 2, .ceil_mode = true, .count_include_pad = false))
OPERATION(global_avg_pool, shard_global_avg_pool2d(x[0]))
OPERATION(layer_norm, shard_layer_norm(x[0], NULL, NULL, 1e-5))
OPERATION(layer_norm_affine, shard_layer_norm(x[0], x[1], x[2], 0.01))

#define BATCH_NORM(name, weight, bias, ...)                                                                                      \
    OPERATION(name, shard_batch_norm(x[0], running_mean, running_var, weight, bias, __VA_ARGS__))
BATCH_NORM(batch_norm, x[1], x[2], .training = true)
BATCH_NORM(batch_norm_plain, NULL, NULL, .training = true, .momentum = 0.3, .eps = 0.01)
BATCH_NORM(batch_norm_relu, x[1], x[2], .training = true, .relu = true)
BATCH_NORM(batch_norm_residual_relu, x[1], x[2], .training = true, .residual = x[3], .relu = true)
BATCH_NORM(batch_norm_eval, x[1], x[2], .training = false)
BATCH_NORM(batch_norm_eval_residual_relu, x[1], x[2], .residual = x[3], .relu = true)

static const struct {
    const char *name;
    operation_maker *make;
} cases[] = {
    {"relu", relu},
    {"gelu", gelu},
    {"gelu_tanh", gelu_tanh},
    {"silu", silu},
    {"leaky_relu", leaky_relu},
    {"softplus", softplus},
    {"softmax", softmax},
    {"log_softmax", log_softmax},
    {"add", add},
    {"mul", mul},
    {"sum", sum},
    {"mean", mean},
    {"permute", permute},
    {"narrow", narrow},
    {"matmul", matmul},
    {"matmul_batch", matmul},
    {"matmul_one", matmul},
    {"linear", linear},
    {"linear_bias", linear_bias},
    {"embedding", embedding},
    {"embedding_padding", embedding_padding},
    {"conv2d_1x1", conv2d_1x1},
    {"conv2d_3x3", conv2d_3x3},
    {"conv2d_stride", conv2d_stride},
    {"conv2d_stem", conv2d_stem},
    {"conv2d_directions", conv2d_directions},
    {"conv2d_dilation", conv2d_dilation},
    {"conv2d_groups", conv2d_groups},
    {"conv2d_depthwise", conv2d_depthwise},
    {"max_pool", max_pool},
    {"max_pool_ceil", max_pool_ceil},
    {"max_pool_default", max_pool_default},
    {"avg_pool", avg_pool},
    {"avg_pool_inside", avg_pool_inside},
    {"avg_pool_ceil", avg_pool_ceil},
    {"avg_pool_ceil_inside", avg_pool_ceil_inside},
    {"global_avg_pool", global_avg_pool},
    {"layer_norm", layer_norm},
    {"layer_norm_affine", layer_norm_affine},
    {"batch_norm", batch_norm},
    {"batch_norm_plain", batch_norm_plain},
    {"batch_norm_relu", batch_norm_relu},
    {"batch_norm_residual_relu", batch_norm_residual_relu},
    {"batch_norm_eval", batch_norm_eval},
    {"batch_norm_eval_residual_relu", batch_norm_eval_residual_relu},
    {"nn_flatten", nn_flatten},
    {"nn_flatten_1x1", nn_flatten},
    {"nn_flatten_3d", nn_flatten},
    {"logsumexp", logsumexp},
    {"logsumexp_last", logsumexp_last},
};

/* ---- the comparison ---- */

static void compare(int index, shard_dtype dtype, double tolerance)
{
    golden_case c = golden_read(test_file("golden/operations.txt"), cases[index].name);
    char name[20];
    int operands = 0;
    SHARD_SCOPE {
        shard_tensor *x[OPERATION_INPUTS];
        for (const golden *given; snprintf(name, sizeof name, "x%d", operands), (given = golden_find(&c, name)); operands++) {
            ck_assert_int_lt(operands, OPERATION_INPUTS);
            x[operands] = golden_tensor(given, dtype);
            shard_set_requires_grad(x[operands], true);
        }
        running_mean = shard_full(SHARD_SHAPE(3), 0.25, .dtype = dtype);
        running_var = shard_full(SHARD_SHAPE(3), 1.5, .dtype = dtype);
        shard_tensor *y = cases[index].make(x, NULL);
        check_golden(&c, "y", y, tolerance);
        check_ok(shard_backward_from(y, golden_tensor(golden_find(&c, "dy"), dtype)));
        for (int i = 0; i < operands; i++) {
            snprintf(name, sizeof name, "d%d", i);
            check_golden(&c, name, shard_grad(x[i]), tolerance);
        }
        if (golden_find(&c, "running_mean")) {
            check_golden(&c, "running_mean", running_mean, tolerance);
            check_golden(&c, "running_var", running_var, tolerance);
        }
    }
    ck_assert_int_gt(operands, 0);
    golden_free(&c);
}

START_TEST(float64)
{
    compare(_i, SHARD_FLOAT64, 1e-13);
}
END_TEST

START_TEST(float32)
{
    compare(_i, SHARD_FLOAT32, 1e-6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("golden");
    TCase *tcase = test_case(suite, "operations");
    tcase_add_loop_test(tcase, float64, 0, sizeof cases / sizeof *cases);
    tcase_add_loop_test(tcase, float32, 0, sizeof cases / sizeof *cases);
    return test_run(suite);
}
