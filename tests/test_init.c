/* Initial values in place: those of PyTorch's formulas, and the same for any number of ranks. */
#include "support/gradcheck.h"
#include "support/job.h"

#include "tensor/tensor.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>

enum { OUT = 7, IN = 5 };

static shard_status kaiming_fan_out(shard_tensor *t)
{
    return shard_nn_init_kaiming_normal(t, .mode = SHARD_FAN_OUT, .nonlinearity = SHARD_NONLINEARITY_TANH);
}
static shard_status uniform(shard_tensor *t)
{
    return shard_nn_init_uniform(t, -2, 0.5);
}
static shard_status normal(shard_tensor *t)
{
    return shard_nn_init_normal(t, 0.25, 3);
}
static shard_status xavier_uniform(shard_tensor *t)
{
    return shard_nn_init_xavier_uniform(t, 5.0 / 3);
}
static shard_status xavier_normal(shard_tensor *t)
{
    return shard_nn_init_xavier_normal(t, 1);
}
static shard_status kaiming_uniform(shard_tensor *t)
{
    return shard_nn_init_kaiming_uniform(t, .a = 0.5);
}
static shard_status trunc_normal(shard_tensor *t)
{
    return shard_nn_init_trunc_normal(t, 0.5, 2, -1, 3);
}
static shard_status constant(shard_tensor *t)
{
    return shard_nn_init_constant(t, -1.5);
}

/* Of a linear layer [7, 5]: fan in 5, fan out 7. What makes the same numbers: torch.nn.init's formulas. */
static const struct {
    const char *name;
    shard_status (*init)(shard_tensor *);
    shard_recipe same; /* without its draw */
} cases[] = {
    {"uniform", uniform, {SHARD_UNIFORM, -2, 0.5}},
    {"normal", normal, {SHARD_NORMAL, 0.25, 3}},
    {"xavier_uniform", xavier_uniform, {SHARD_UNIFORM, -1.1785113019775793, 1.1785113019775793}},
    {"xavier_normal", xavier_normal, {SHARD_NORMAL, 0, 0.40824829046386302}},
    {"kaiming_uniform", kaiming_uniform, {SHARD_UNIFORM, -0.97979589711327120, 0.97979589711327120}},
    {"kaiming_normal", kaiming_fan_out, {SHARD_NORMAL, 0, 0.62994078834871203}},
    {"trunc_normal", trunc_normal, {SHARD_TRUNCATED_NORMAL, 0.5, 2, -1, 3}},
    {"zeros", shard_nn_init_zeros, {SHARD_CONSTANT, 0}},
    {"ones", shard_nn_init_ones, {SHARD_CONSTANT, 1}},
    {"constant", constant, {SHARD_CONSTANT, -1.5}},
};
enum { CASES = sizeof cases / sizeof *cases };

static double *expected_values(int k, shard_shape shape)
{
    double *values = NULL;
    SHARD_SCOPE
    {
        shard_tensor *whole = shard_empty(shape, .dtype = SHARD_FLOAT64);
        shard_make_leaf(whole)->recipe = cases[k].same;
        whole->leaf->recipe.draw = shard_next_draw();
        values = values_of(whole);
    }
    return values;
}

typedef struct state {
    int ranks;
    shard_split split;
    enum { FRESH, MADE, DATA_PARALLEL, ZERO } how;
    zero_way zero;
} state;

static void initializes(shard_group *world, void *context)
{
    const state *s = context;
    shard_mesh *mesh = shard_mesh_create(.model = s->split ? shard_group_size(world) : 1);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model =
        shard_nn_sequential(shard_nn_parallel_linear(IN, OUT, s->split, group, .dtype = SHARD_FLOAT64),
                            shard_nn_parallel_linear(OUT, 3, s->split == SHARD_SPLIT_COLUMN ? SHARD_SPLIT_ROW : SHARD_SPLIT_NONE,
                                                     group, .dtype = SHARD_FLOAT64));
    shard_tensor *weight = shard_module_tensor(shard_module_child_at(model, 0), "weight");
    shard_tensor *bias = shard_module_tensor(shard_module_child_at(model, 0), "bias");
    shard_tensors *parameters = shard_parameters(model);
    shard_optimizer *optimizer = s->how == ZERO ? zero_with(sgd_of_list(shard_parameters(model)), s->zero) : NULL;
    shard_data_parallel *dp = s->how == DATA_PARALLEL ? shard_data_parallel_create(parameters) : NULL;
    if (s->how == MADE)
        ck_assert_ptr_nonnull(shard_tensor_memory(weight));
    for (int k = 0; k < CASES; k++) {
        if (k % 2 && s->how >= DATA_PARALLEL) /* values that were gathered before are old */
            SHARD_SCOPE
        ck_assert_ptr_nonnull(shard_forward(model, shard_ones(SHARD_SHAPE(2, IN), .dtype = SHARD_FLOAT64)));
        shard_manual_seed(40 + (uint64_t)k);
        double *expected = expected_values(k, SHARD_SHAPE(OUT, IN));
        shard_manual_seed(40 + (uint64_t)k);
        uint64_t before = shard_tensor_version(weight);
        ck_assert_msg(cases[k].init(weight) == SHARD_OK, "%s: %s", cases[k].name, shard_last_error());
        ck_assert(shard_tensor_version(weight) > before);
        ck_assert(s->how != FRESH || !weight->storage->memory || k > 0);
        shard_tensor *result;
        SHARD_SCOPE
        {
            check_part(weight, expected, 1e-15);
            result = shard_forward(model, shard_ones(SHARD_SHAPE(2, IN), .dtype = SHARD_FLOAT64));
            ck_assert_ptr_nonnull(result);
        }
        free(expected);
        shard_manual_seed(90);
        double *of_bias = expected_values(1, SHARD_SHAPE(OUT));
        shard_manual_seed(90);
        check_ok(shard_nn_init_normal(bias, 0.25, 3));
        check_part(bias, of_bias, 1e-15);
        free(of_bias);
    }
    shard_tensors_destroy(parameters);
    shard_data_parallel_destroy(dp);
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

static const state states[] = {
    {1, SHARD_SPLIT_NONE, FRESH},
    {1, SHARD_SPLIT_NONE, MADE},
    {2, SHARD_SPLIT_ROW, FRESH},
    {3, SHARD_SPLIT_ROW, MADE},
    {2, SHARD_SPLIT_COLUMN, MADE},
    {3, SHARD_SPLIT_COLUMN, FRESH},
    {2, SHARD_SPLIT_NONE, DATA_PARALLEL},
    {3, SHARD_SPLIT_COLUMN, DATA_PARALLEL},
    {2, SHARD_SPLIT_NONE, ZERO, {.stage = 1}},
    {3, SHARD_SPLIT_NONE, ZERO, {.stage = 2}},
    {2, SHARD_SPLIT_NONE, ZERO, {.stage = 3}},
    {3, SHARD_SPLIT_NONE, ZERO, {.stage = 3}},
    {3, SHARD_SPLIT_NONE, ZERO, {.stage = 3, .bucket_mib = 1e-6}},
    {3, SHARD_SPLIT_NONE, ZERO, {.stage = 3, .partition = SHARD_ZERO_WHOLE}},
    {2, SHARD_SPLIT_ROW, ZERO, {.stage = 3}},
};

START_TEST(test_states)
{
    state s = states[_i];
    run_job(s.ranks, initializes, &s);
}
END_TEST

/* Shards of a weight whose replicas partition them, of both splits. */
static void on_a_mesh(shard_group *world, void *context)
{
    shard_split split = *(shard_split *)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_module *model =
        shard_nn_sequential(shard_nn_parallel_linear(IN, OUT, split, shard_mesh_model_group(mesh), .dtype = SHARD_FLOAT64));
    shard_optimizer *optimizer = shard_zero_optimizer(sgd_of_list(shard_parameters(model)), .stage = 3);
    shard_manual_seed(46);
    double *expected = expected_values(6, SHARD_SHAPE(OUT, IN));
    shard_manual_seed(46);
    shard_tensor *weight = shard_module_tensor(shard_module_child_at(model, 0), "weight");
    ck_assert_ptr_nonnull(weight->leaf->local_range);
    check_ok(trunc_normal(weight));
    check_part(weight, expected, 0);
    free(expected);
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    (void)world;
}

START_TEST(test_on_a_mesh)
{
    shard_split split = _i ? SHARD_SPLIT_ROW : SHARD_SPLIT_COLUMN;
    run_job(4, on_a_mesh, &split);
}
END_TEST

/* A matrix that is streamed in row blocks. */
static void in_row_blocks(shard_group *world, void *context)
{
    enum { ROWS = 9001, COLS = 3 };
    (void)world, (void)context;
    shard_module *model = shard_nn_sequential(shard_nn_linear(COLS, ROWS, .dtype = SHARD_FLOAT64));
    shard_optimizer *optimizer = shard_zero_optimizer(sgd_of_list(shard_parameters(model)), .stage = 3, .bucket_mib = 0.01);
    shard_tensor *weight = shard_module_tensor(shard_module_child_at(model, 0), "weight");
    ck_assert_ptr_nonnull(weight->leaf->rows);
    shard_manual_seed(3);
    double *expected = expected_values(1, SHARD_SHAPE(ROWS, COLS));
    shard_manual_seed(3);
    check_ok(normal(weight));
    shard_tensors *list = shard_parameters(model), *all = shard_collect_state_dict(list, -1);
    check_part(shard_tensors_find(all, "0.weight"), expected, 1e-15);
    free(expected);
    shard_tensors_destroy(list);
    shard_tensors_destroy(all);
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(model);
}

START_TEST(test_in_row_blocks)
{
    run_job(3, in_row_blocks, NULL);
}
END_TEST

/* A convolution's kernels count, of all its groups' inputs: torch's fans of [8, 3, 5, 5]. */
START_TEST(test_kernels)
{
    SHARD_SCOPE
    {
        shard_tensor *kernel = shard_empty(SHARD_SHAPE(8, 3, 5, 5));
        check_ok(shard_nn_init_kaiming_normal(kernel, .mode = SHARD_FAN_OUT));
        ck_assert_double_eq_tol(kernel->leaf->recipe.b, 0.1, 1e-15); /* sqrt(2 / 200) */
        check_ok(shard_nn_init_kaiming_uniform(kernel, .nonlinearity = SHARD_NONLINEARITY_LINEAR));
        ck_assert_double_eq_tol(kernel->leaf->recipe.b, 0.2, 1e-15); /* sqrt(3 / 75) */
        check_ok(shard_nn_init_xavier_normal(kernel, -2));
        ck_assert_double_eq_tol(kernel->leaf->recipe.b, 0.17056057308448835, 1e-15); /* 2 sqrt(2 / 275) */
        check_ok(shard_nn_init_kaiming_normal(shard_empty(SHARD_SHAPE(0, 0))));
    }
    ck_assert_double_eq_tol(shard_nn_init_gain(SHARD_NONLINEARITY_LEAKY_RELU, 0.01), 1.4141428569978354, 1e-15);
    ck_assert_double_eq_tol(shard_nn_init_gain(SHARD_NONLINEARITY_RELU, 0), 1.4142135623730951, 1e-15);
    ck_assert_double_eq(shard_nn_init_gain(SHARD_NONLINEARITY_SIGMOID, 0), 1);
    ck_assert_double_eq(shard_nn_init_gain(SHARD_NONLINEARITY_LINEAR, 0), 1);
    ck_assert_double_eq(shard_nn_init_gain(SHARD_NONLINEARITY_SELU, 0), 0.75);
    ck_assert_double_eq_tol(shard_nn_init_gain(SHARD_NONLINEARITY_TANH, 0), 5.0 / 3, 1e-15);
}
END_TEST

static void check_status(shard_status status, shard_status expected, const char *pattern)
{
    ck_assert_int_eq(status, expected);
    check_error(expected, pattern);
}

START_TEST(test_refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(3, 2), .requires_grad = true), *y = shard_scale(x, 2);
        check_status(shard_nn_init_normal(NULL, 0, 1), SHARD_ERROR_ARGUMENT, "shard_nn_init_normal: tensor is NULL*");
        check_status(shard_nn_init_zeros(y), SHARD_ERROR_ARGUMENT,
                     "shard_nn_init_zeros: the tensor is the result of an operation*");
        check_status(shard_nn_init_normal(x, 0, -1), SHARD_ERROR_ARGUMENT, "shard_nn_init_normal: mean 0, std -1*");
        check_status(shard_nn_init_uniform(x, 1, -1), SHARD_ERROR_ARGUMENT, "shard_nn_init_uniform: low 1, high -1*");
        check_status(shard_nn_init_trunc_normal(x, 0, 0, -1, 1), SHARD_ERROR_ARGUMENT, "*std 0, low -1, high 1*");
        check_status(shard_nn_init_trunc_normal(x, 0, 1, 1, 1), SHARD_ERROR_ARGUMENT, "*low 1, high 1*");
        check_status(shard_nn_init_trunc_normal(x, 0, 1, 1e39, 2e39), SHARD_ERROR_ARGUMENT, "*high 2e+39*of float32");
        shard_tensor *half = shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_FLOAT16, .requires_grad = true);
        check_status(shard_nn_init_trunc_normal(half, 0, 1, -7e4, 0), SHARD_ERROR_ARGUMENT, "*low -70000*of float16");
        check_status(shard_nn_init_xavier_normal(x, NAN), SHARD_ERROR_ARGUMENT, "shard_nn_init_xavier_normal:*std *nan*");
        check_status(shard_nn_init_xavier_normal(shard_zeros(SHARD_SHAPE(3)), 1), SHARD_ERROR_SHAPE,
                     "*shape [[]3] has no numbers of inputs and outputs*");
        check_status(shard_nn_init_kaiming_normal(x, .mode = (shard_fan)2), SHARD_ERROR_ARGUMENT, "*mode 2 is neither*");
        check_status(shard_nn_init_kaiming_uniform(x, .nonlinearity = (shard_nonlinearity)9), SHARD_ERROR_ARGUMENT,
                     "*9 is no nonlinearity*");
        ck_assert(isnan(shard_nn_init_gain(SHARD_NONLINEARITY_LEAKY_RELU, NAN)));
        check_error(SHARD_ERROR_ARGUMENT, "shard_nn_init_gain: the negative slope is NaN*");
        check_status(shard_nn_init_kaiming_normal(x, .a = NAN), SHARD_ERROR_ARGUMENT, "*slope is NaN*");
        check_status(shard_nn_init_normal(shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64), 0, 1), SHARD_ERROR_ARGUMENT,
                     "*int64 is not a floating dtype*");
        ck_assert_double_eq(shard_item(shard_sum(x)), 0);
        check_refused(shard_uniform(SHARD_SHAPE(2), 1.0, -1.0), SHARD_ERROR_ARGUMENT, "shard_uniform: low 1, high -1:*");
        check_refused(shard_uniform(SHARD_SHAPE(2), NAN, 1.0), SHARD_ERROR_ARGUMENT, "shard_uniform: low *nan*");
        check_refused(shard_uniform(SHARD_SHAPE(2), -2e38, 2e38), SHARD_ERROR_ARGUMENT,
                      "shard_uniform: *at most 3.4*e+38 in size*float32");
        check_refused(shard_uniform(SHARD_SHAPE(2), 0.0, 1e39), SHARD_ERROR_ARGUMENT, "shard_uniform: low 0, high 1e+39:*");
        check_refused(shard_uniform(SHARD_SHAPE(2), -1e308, 1e308, .dtype = SHARD_FLOAT64), SHARD_ERROR_ARGUMENT, "*float64*");
        check_refused(shard_uniform(SHARD_SHAPE(2), 0.0, 7e4, .dtype = SHARD_FLOAT16), SHARD_ERROR_ARGUMENT, "*float16*");
        check_refused(shard_uniform(SHARD_SHAPE(2), 0.0, 3.4e38, .dtype = SHARD_BFLOAT16), SHARD_ERROR_ARGUMENT, "*bfloat16*");
        check_status(shard_nn_init_uniform(x, -1e39, 0), SHARD_ERROR_ARGUMENT, "shard_nn_init_uniform: low -1e+39, high 0:*");
        const double most[] = {3.4028234e38, 1.7e308, 65504, 3.3e38};
        const shard_dtype dtypes[] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_FLOAT16, SHARD_BFLOAT16};
        for (int i = 0; i < 4; i++)
            ck_assert(isfinite(shard_item(shard_uniform(SHARD_SCALAR, 0.0, most[i], .dtype = dtypes[i]))));
        check_refused(shard_normal(SHARD_SHAPE(2), 0.0, -1.0), SHARD_ERROR_ARGUMENT, "shard_normal: mean 0, std -1:*");
        check_refused(shard_normal(SHARD_SHAPE(2), INFINITY, 1.0), SHARD_ERROR_ARGUMENT, "shard_normal: mean inf*");
        check_refused(shard_normal(SHARD_SHAPE(2), 1e39, 1.0), SHARD_ERROR_ARGUMENT, "shard_normal: mean 1e+39*float32");
        check_refused(shard_normal(SHARD_SHAPE(2), 0.0, 7e4, .dtype = SHARD_FLOAT16), SHARD_ERROR_ARGUMENT,
                      "*std 70000:*float16");
        check_status(shard_nn_init_normal(x, -1e39, 1), SHARD_ERROR_ARGUMENT, "shard_nn_init_normal: mean -1e+39*float32");
        ck_assert(isfinite(shard_item(shard_normal(SHARD_SCALAR, 1e39, 1.0, .dtype = SHARD_FLOAT64))));
    }
}
END_TEST

/* PyTorch's fan out of a convolution does not depend on its groups. */
START_TEST(test_groups)
{
    shard_module *convolution = shard_nn_conv2d(8, 8, 5, .groups = 4);
    shard_tensor *weight = shard_module_tensor(convolution, "weight");
    ck_assert_double_eq_tol(weight->leaf->recipe.b, sqrt(2.0 / 200), 1e-12);
    shard_module_destroy(convolution);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("init");
    TCase *tcase = test_case(suite, "init");
    tcase_add_loop_test(tcase, test_states, 0, (int)(sizeof states / sizeof *states));
    tcase_add_loop_test(tcase, test_on_a_mesh, 0, 2);
    tcase_add_test(tcase, test_in_row_blocks);
    tcase_add_test(tcase, test_kernels);
    tcase_add_test(tcase, test_groups);
    tcase_add_test(tcase, test_refuses);
    return test_run(suite);
}
