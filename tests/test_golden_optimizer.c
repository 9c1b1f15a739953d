/* Optimizers and clipping against PyTorch's results: golden/optimizers.txt, which
 * golden/make_optimizers.py wrote. */
#include "support/golden.h"
#include "support/gradcheck.h"
#include "support/job.h"
#include "support/options.h"

#include <math.h>
#include <stdio.h>

enum { STEPS = 5 };

static shard_optimizer *sgd_nesterov(shard_tensors *p)
{
    return sgd_of_list(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true);
}
static shard_optimizer *adam(shard_tensors *p)
{
    return adam_of_list(p, .lr = 0.1);
}
static shard_optimizer *adam_decay(shard_tensors *p)
{
    return adam_of_list(p, .lr = 0.1, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.05);
}
static shard_optimizer *adam_amsgrad(shard_tensors *p)
{
    return adam_of_list(p, .lr = 0.1, .beta1 = 0.8, .beta2 = 0.6, .weight_decay = 0.05, .amsgrad = true);
}
static shard_optimizer *adamw(shard_tensors *p)
{
    return adamw_of_list(p, .lr = 0.1);
}
static shard_optimizer *adamw_amsgrad(shard_tensors *p)
{
    return adamw_of_list(p, .lr = 0.1, .beta1 = 0.8, .beta2 = 0.6, .weight_decay = 0.3, .amsgrad = true);
}

static shard_optimizer *sgd(shard_tensors *p)
{
    return sgd_of_list(p, .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05);
}
static shard_optimizer *adam_large_eps(shard_tensors *p)
{
    return adam_of_list(p, .lr = 0.1, .eps = 0.1);
}

static const struct {
    const char *name;
    shard_optimizer *(*make)(shard_tensors *);
    double max_norm, norm_type, value; /* 0: not clipped by it */
} cases[] = {
    {.name = "sgd", .make = sgd_nesterov},
    {.name = "adam", .make = adam},
    {.name = "adam_decay", .make = adam_decay},
    {.name = "adam_amsgrad", .make = adam_amsgrad},
    {.name = "adamw", .make = adamw},
    {.name = "adamw_amsgrad", .make = adamw_amsgrad},
    {.name = "clip_norm", .make = sgd, .max_norm = 3.7, .norm_type = 2},
    {.name = "clip_norm_inf", .make = sgd, .max_norm = 1.25, .norm_type = INFINITY},
    {.name = "clip_norm_3", .make = sgd, .max_norm = 1.5, .norm_type = 3},
    {.name = "clip_value", .make = sgd, .value = 0.75},
    {.name = "clip_norm_adam", .make = adam_large_eps, .max_norm = 0.5, .norm_type = 2},
};
enum { CASES = sizeof cases / sizeof *cases };

static shard_tensor *numbered(const golden_case *c, const char *name, int number, shard_dtype dtype)
{
    char full[24];
    snprintf(full, sizeof full, "%s%d", name, number);
    return golden_tensor(golden_find(c, full), dtype);
}

static shard_tensor *leaf_of(const golden_case *start, const char *name, shard_dtype dtype)
{
    shard_tensor *leaf = numbered(start, name, 0, dtype);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

static void clip(int index, const golden_case *expected, int step, shard_optimizer *optimizer, double tolerance)
{
    char name[20];
    double norm;
    if (cases[index].value > 0)
        check_ok(shard_clip_grad_value(optimizer, cases[index].value));
    if (cases[index].max_norm == 0)
        return;
    check_ok(shard_clip_grad_norm(optimizer, cases[index].max_norm, &norm, .norm_type = cases[index].norm_type));
    snprintf(name, sizeof name, "norm%d", step);
    ck_assert_double_eq_tol(norm, golden_find(expected, name)->values[0], tolerance);
}

static void compare(int index, shard_dtype dtype, double tolerance)
{
    golden_case start = golden_read(test_file("golden/optimizers.txt"), "start");
    golden_case expected = golden_read(test_file("golden/optimizers.txt"), cases[index].name);
    SHARD_SCOPE
    {
        shard_tensor *weight = leaf_of(&start, "weight", dtype), *bias = leaf_of(&start, "bias", dtype);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "weight", weight));
        check_ok(shard_tensors_add(list, "bias", bias));
        shard_optimizer *optimizer = cases[index].make(list);
        for (int step = 1; step <= STEPS; step++) {
            char name[2][20];
            check_ok(shard_backward_from(shard_scale(weight, 1.0), numbered(&start, "weight_gradient", step, dtype)));
            check_ok(shard_backward_from(shard_scale(bias, 1.0), numbered(&start, "bias_gradient", step, dtype)));
            clip(index, &expected, step, optimizer, tolerance);
            check_ok(shard_step(optimizer));
            snprintf(name[0], sizeof *name, "weight%d", step);
            snprintf(name[1], sizeof *name, "bias%d", step);
            check_golden(&expected, name[0], weight, tolerance);
            check_golden(&expected, name[1], bias, tolerance);
        }
        shard_optimizer_destroy(optimizer);
    }
    golden_free(&start);
    golden_free(&expected);
}

START_TEST(float64)
{
    compare(_i, SHARD_FLOAT64, 1e-13);
}
END_TEST

START_TEST(float32)
{
    compare(_i, SHARD_FLOAT32, 2e-6);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("golden_optimizer");
    TCase *tcase = test_case(suite, "optimizers");
    tcase_add_loop_test(tcase, float64, 0, CASES);
    tcase_add_loop_test(tcase, float32, 0, CASES);
    return test_run(suite);
}
