/* linear; what becomes of a split weight stands in test_placement. */
#include "support/gradcheck.h"
#include "support/ranks.h"

#include <stdlib.h>

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

/* Two layers of one weight. */
static shard_tensor *tied(shard_tensor *const *x, const void *options)
{
    (void)options;
    return shard_linear(shard_linear(x[0], x[1], x[2]), x[1], x[2]);
}

static const operation operations[] = {
    {"linear", linear, NULL, 2, {SHARD_SHAPE(3, 4), SHARD_SHAPE(5, 4)}, .needs = 3},
    {"biased", biased, NULL, 3, {SHARD_SHAPE(3, 4), SHARD_SHAPE(5, 4), SHARD_SHAPE(5)}, .needs = 3},
    {"of a vector", biased, NULL, 3, {SHARD_SHAPE(4), SHARD_SHAPE(5, 4), SHARD_SHAPE(5)}, .needs = 3},
    {"of a batch", biased, NULL, 3, {SHARD_SHAPE(2, 3, 4), SHARD_SHAPE(5, 4), SHARD_SHAPE(5)}, .needs = 3},
    {"odd rows", biased, NULL, 3, {SHARD_SHAPE(3, 8), SHARD_SHAPE(37, 8), SHARD_SHAPE(37)}, .needs = 3},
    {"tied", tied, NULL, 3, {SHARD_SHAPE(3, 4), SHARD_SHAPE(4, 4), SHARD_SHAPE(4)}, .needs = 3, .rounding = 16},
    {"no rows", biased, NULL, 3, {SHARD_SHAPE(0, 4), SHARD_SHAPE(5, 4), SHARD_SHAPE(5)}, .needs = 3},
    {"no inputs", biased, NULL, 3, {SHARD_SHAPE(3, 0), SHARD_SHAPE(5, 0), SHARD_SHAPE(5)}, .needs = 3},
    {"no outputs", biased, NULL, 3, {SHARD_SHAPE(3, 4), SHARD_SHAPE(0, 4), SHARD_SHAPE(0)}, .needs = 3},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* A million-class weight's gradient is never there twice: backward writes and adds
 * into the leaf's own. */
START_TEST(writes_into_the_gradient)
{
    shard_device *device = shard_device_open(NULL);
    const int64_t in = 64, out = 4096, weight_bytes = in * out * 8;
    SHARD_SCOPE {
        shard_tensor *weight = make_up_tensor(SHARD_SHAPE(out, in), 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *x = make_up_tensor(SHARD_SHAPE(2, in), 2, .dtype = SHARD_FLOAT64);
        shard_tensor *dy = make_up_tensor(SHARD_SHAPE(2, out), 3, .dtype = SHARD_FLOAT64);
        check_ok(shard_backward_from(shard_linear(x, weight, NULL), dy));
        const void *first = shard_data(shard_grad(weight));
        double *once = values_of(shard_grad(weight));
        for (int64_t i = 0; i < in * out; i++)
            once[i] *= 2;
        for (int turn = 0; turn < 2; turn++) {
            int64_t before = shard_get_memory_stats(device).current;
            shard_reset_peak_memory(device);
            check_ok(shard_backward_from(shard_linear(x, weight, NULL), dy));
            ck_assert_int_lt(shard_get_memory_stats(device).peak - before, weight_bytes / 2);
            ck_assert_ptr_eq(shard_data(shard_grad(weight)), first);
            if (turn == 0) {
                check_tensor("gradient", shard_grad(weight), once, 1e-14);
                shard_zero_grad(weight);
                ck_assert_ptr_null(shard_grad(weight));
            }
        }
        free(once);
    }
}
END_TEST

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_zeros(SHARD_SHAPE(2, 3)), *weight = shard_zeros(SHARD_SHAPE(5, 3));
        check_refused(shard_linear(x, shard_zeros(SHARD_SHAPE(3, 5)), NULL), SHARD_ERROR_SHAPE,
                      "shard_linear: x of shape [[]2, 3] and a weight of shape [[]3, 5]; *are needed");
        check_refused(shard_linear(x, weight, shard_zeros(SHARD_SHAPE(3))), SHARD_ERROR_SHAPE,
                      "shard_linear: a bias of shape [[]3] for a weight of shape [[]5, 3]; *");
        check_refused(shard_linear(x, shard_zeros(SHARD_SHAPE(3)), NULL), SHARD_ERROR_SHAPE, "shard_linear: x of *");
        check_refused(shard_linear(shard_zeros(SHARD_SCALAR), weight, NULL), SHARD_ERROR_SHAPE, "shard_linear: x of *");
        check_refused(shard_linear(x, NULL, NULL), SHARD_ERROR_ARGUMENT, "shard_linear: *");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("linear");
    TCase *tcase = test_case(suite, "linear");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, writes_into_the_gradient);
    tcase_add_test(tcase, refuses);
    return test_run(suite);
}
