/* Steps that compute a matrix's gradient as a product (shard_update.product), against a product and a step one after the other: a
 * classifier's weight and states after some steps on a GPU. Other devices have no such steps. */
#include "support/kernels.h"
#include "support/loss.h"

#include "device/device.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>

enum { STEPS = 2, RULES = 4, ROUNDINGS = 3, MOST = 1 << 18 };

/* Blocks of a step have 128 rows and columns, and 16 summands at a time: of each less, some, and a rest. Of 300 and 130 classes the
 * last ones are no multiple of 8. */
static const struct {
    int64_t classes, features, rows;
} shapes[] = {{300, 24, 7}, {130, 136, 40}, {64, 8, 16}, {520, 264, 65}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct {
    shard_dtype weight, autocast, state; /* autocast: of products, or the weight's type */
} types[] = {{SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_BFLOAT16},
             {SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_FLOAT32},
             {SHARD_FLOAT16, SHARD_FLOAT16, SHARD_FLOAT32},
             {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT32},
             {SHARD_FLOAT32, SHARD_FLOAT16, SHARD_FLOAT32}};
enum { TYPES = sizeof types / sizeof *types };

static bool (*device_steps)(const shard_update_product *);
static int taken;

static bool counted(const shard_update_product *product)
{
    bool takes = device_steps(product);
    taken += takes;
    return takes;
}

static shard_optimizer *make_optimizer(shard_module *model, int rule, int type, shard_rounding rounding)
{
    int state = types[type].state;
    if (rule < 2)
        return shard_sgd(model, .lr = 0.05, .momentum = rule ? 0.9 : 0, .nesterov = rule == 1, .weight_decay = 1e-2,
                         .rounding = rounding, .seed = 3, .state_dtype = state);
    if (rule == 2)
        return shard_adamw(model, .lr = 1e-2, .weight_decay = 0.1, .rounding = rounding, .seed = 3, .state_dtype = state);
    return shard_adam(model, .lr = 1e-2, .amsgrad = true, .rounding = rounding, .seed = 3, .state_dtype = state);
}

static shard_tensor *noise_of(int64_t rows, int64_t columns, shard_dtype dtype, uint64_t seed)
{
    float *numbers = malloc((size_t)(rows * columns) * sizeof *numbers);
    for (int64_t i = 0; i < rows * columns; i++)
        numbers[i] = (float)noise(seed, i);
    shard_tensor *x = shard_cast(shard_from_host(numbers, SHARD_SHAPE(rows, columns)), dtype);
    shard_synchronize(shard_default_device());
    free(numbers);
    return x;
}

/* The weight after some steps, as numbers. */
static int64_t train(int shape, int type, int rule, shard_rounding rounding, float *weight)
{
    int64_t classes = shapes[shape].classes, features = shapes[shape].features, rows = shapes[shape].rows, size = 0;
    shard_manual_seed(5);
    SHARD_SCOPE
    {
        shard_module *model = shard_nn_parallel_classifier(features, classes, NULL, .bias = false, .dtype = types[type].weight);
        shard_optimizer *optimizer = make_optimizer(model, rule, type, rounding);
        ck_assert_msg(model && optimizer, "%s", shard_last_error());
        for (int step = 0; step < STEPS; step++)
            SHARD_SCOPE
            {
                int64_t *label = malloc((size_t)rows * sizeof *label);
                for (int64_t i = 0; i < rows; i++)
                    label[i] = (i * 37 + step) % classes;
                shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
                shard_synchronize(shard_default_device());
                free(label);
                shard_tensor *x = noise_of(rows, features, types[type].weight, (uint64_t)step);
                SHARD_AUTOCAST(types[type].autocast)
                {
                    check_ok(shard_backward(shard_cross_entropy(shard_forward(model, x), labels)));
                }
                check_ok(shard_step(optimizer));
                shard_optimizer_zero_grad(optimizer);
            }
        shard_tensor *found = shard_cast(shard_module_tensor(model, "weight"), SHARD_FLOAT32);
        size = shard_numel(found);
        ck_assert_int_le(size, MOST);
        check_ok(shard_copy_to_host(found, weight, (size_t)size * sizeof *weight));
        shard_optimizer_destroy(optimizer);
        shard_module_destroy(model);
    }
    return size;
}

/* Sums of products in another order round otherwise: Adam's first steps are as large for small gradients as for others. */
static void check_near(const float *a, const float *b, int64_t size, double unit_of, int rule, const char *what)
{
    double most = rule >= 2 ? 0.02 : 4 * unit_of, different = 0;
    for (int64_t i = 0; i < size; i++) {
        ck_assert_msg(fabs((double)a[i] - (double)b[i]) <= most, "%s: element %lld is %g and %g", what, (long long)i,
                      (double)a[i], (double)b[i]);
        different += fabs((double)a[i] - (double)b[i]) > 2 * unit_of;
    }
    ck_assert_msg(different <= 0.02 * (double)size, "%s: %g of %lld elements differ", what, different, (long long)size);
}

START_TEST(test_as_product_and_step)
{
    static float together[MOST], apart[MOST];
    shard_device *device = shard_default_device();
    device_steps = device->steps_product;
    if (!device_steps)
        return;
    int type = _i / SHAPES, shape = _i % SHAPES;
    for (int rule = 0; rule < RULES; rule++)
        for (int rounding = 0; rounding < (types[type].weight == SHARD_FLOAT32 ? 1 : ROUNDINGS); rounding++) {
            char what[96];
            snprintf(what, sizeof what, "shape %d, types %d, rule %d, rounding %d", shape, type, rule, rounding);
            taken = 0;
            device->steps_product = counted;
            train(shape, type, rule, (shard_rounding)rounding, together);
            ck_assert_msg(taken >= STEPS, "%s: %d products were stepped", what, taken);
            device->steps_product = NULL;
            int64_t size = train(shape, type, rule, (shard_rounding)rounding, apart);
            check_near(together, apart, size, unit(types[type].weight), rule, what);
        }
    device->steps_product = device_steps;
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("product step");
    TCase *tcase = test_case(suite, "product step");
    tcase_add_loop_test(tcase, test_as_product_and_step, 0, TYPES * SHAPES);
    return test_run(suite);
}
