/* Steps that compute a matrix's gradient as a product (shard_update.product), against a product and a step one after the other: a
 * classifier's weight and states after some steps on a GPU. Other devices have no such steps. */
#include "support/kernels.h"
#include "support/loss.h"

#include "device/device.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 2, RULES = 4, ROUNDINGS = 3, MOST_TENSORS = 6, MOST = 1 << 16 /* elements of each */ };

/* Blocks of a step have 128 rows and columns, and 16 summands at a time: of each less, some, and a rest. Of 300 and 130 classes
 * the last ones are no multiple of 8. */
static const struct {
    int64_t classes, features, rows;
} shapes[] = {{300, 24, 7}, {130, 136, 40}, {64, 8, 16}, {200, 264, 33}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static const struct {
    shard_dtype weight, autocast, state; /* autocast: of products, or the weight's type */
} types[] = {{SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_BFLOAT16},
             {SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_FLOAT32},
             {SHARD_FLOAT16, SHARD_FLOAT16, SHARD_FLOAT32},
             {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT32},
             {SHARD_FLOAT32, SHARD_FLOAT16, SHARD_FLOAT32}};
enum { TYPES = sizeof types / sizeof *types };

static bool (*device_steps)(const shard_update_product *); /* the device's own; NULL: it has none */
static int taken;

/* In one process for all tests the device may have `counted` by then. */
static void find_steps(void)
{
    static bool found;
    if (!found)
        device_steps = shard_default_device()->steps_product;
    found = true;
    shard_default_device()->steps_product = device_steps;
}

static bool counted(const shard_update_product *product)
{
    bool takes = device_steps(product);
    taken += takes;
    return takes;
}

static shard_optimizer *make_optimizer(shard_module *model, int rule, int type, shard_rounding rounding)
{
    int state = (int)types[type].state;
    if (rule < 2)
        return shard_sgd(model, .lr = 0.05, .momentum = rule ? 0.9 : 0, .nesterov = rule == 1, .weight_decay = 1e-2,
                         .rounding = rounding, .seed = 3, .state_dtype = state);
    if (rule == 2)
        return shard_adamw(model, .lr = 0.05, .weight_decay = 0.1, .eps = 0.01, .rounding = rounding, .seed = 3,
                           .state_dtype = state);
    return shard_adam(model, .lr = 0.05, .eps = 0.01, .amsgrad = true, .rounding = rounding, .seed = 3, .state_dtype = state);
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

/* The optimizer's states and the weight, as numbers; the first tensor is the weight before any step. */
typedef struct trained {
    int count;
    char name[MOST_TENSORS][64];
    int64_t size[MOST_TENSORS];
    float number[MOST_TENSORS][MOST];
} trained;

static void keep(trained *t, const char *name, const shard_tensor *tensor)
{
    ck_assert_int_lt(t->count, MOST_TENSORS);
    SHARD_SCOPE
    {
        shard_tensor *found = shard_cast((shard_tensor *)tensor, SHARD_FLOAT32);
        t->size[t->count] = shard_numel(found);
        ck_assert_int_le(t->size[t->count], MOST);
        snprintf(t->name[t->count], sizeof t->name[0], "%s", name);
        check_ok(shard_copy_to_host(found, t->number[t->count], (size_t)t->size[t->count] * sizeof(float)));
        t->count++;
    }
}

static void take_step(shard_module *model, shard_optimizer *optimizer, int shape, int type, int step)
{
    int64_t rows = shapes[shape].rows, *label = malloc((size_t)rows * sizeof *label);
    for (int64_t i = 0; i < rows; i++)
        label[i] = (i * 37 + step) % shapes[shape].classes;
    shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(rows), .dtype = SHARD_INT64);
    shard_synchronize(shard_default_device());
    free(label);
    shard_tensor *x = noise_of(rows, shapes[shape].features, types[type].weight, (uint64_t)step);
    SHARD_AUTOCAST(types[type].autocast)
    {
        check_ok(shard_backward(shard_cross_entropy(shard_forward(model, x), labels, .reduction = SHARD_REDUCTION_SUM)));
    }
    check_ok(shard_step(optimizer));
    shard_optimizer_zero_grad(optimizer);
}

static void train(int shape, int type, int rule, shard_rounding rounding, trained *t)
{
    shard_manual_seed(5);
    t->count = 0;
    SHARD_SCOPE
    {
        shard_module *model = shard_nn_parallel_classifier(shapes[shape].features, shapes[shape].classes, NULL, .bias = false,
                                                           .dtype = types[type].weight);
        shard_optimizer *optimizer = make_optimizer(model, rule, type, rounding);
        ck_assert_msg(model && optimizer, "%s", shard_last_error());
        keep(t, "weight before", shard_module_tensor(model, "weight"));
        for (int step = 0; step < STEPS; step++)
            SHARD_SCOPE
            {
                take_step(model, optimizer, shape, type, step);
            }
        keep(t, "weight", shard_module_tensor(model, "weight"));
        shard_tensors *states = shard_optimizer_state_dict(optimizer);
        for (int64_t i = 0; i < shard_tensors_count(states); i++)
            if (shard_tensor_shape(shard_tensors_at(states, i)).ndim == 2)
                keep(t, shard_tensors_name(states, i), shard_tensors_at(states, i));
        shard_tensors_destroy(states);
        shard_optimizer_destroy(optimizer);
        shard_module_destroy(model);
    }
}

/* The 2-norm of a - b. */
static double distance(const float *a, const float *b, int64_t size)
{
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        sum += ((double)a[i] - (double)(b ? b[i] : 0)) * ((double)a[i] - (double)(b ? b[i] : 0));
    return sqrt(sum);
}

/* Sums of products in another order round otherwise, and now and then a result of 16 bits with them: of the weight, in relation
 * to what the steps do to it, of a state to its size. */
static void check_near(const trained *a, const trained *b, double most, const char *what)
{
    ck_assert_int_eq(a->count, b->count);
    double moved = distance(b->number[1], b->number[0], b->size[0]);
    ck_assert_msg(moved > 0.02 * distance(b->number[0], NULL, b->size[0]), "%s: the steps are small", what);
    for (int i = 1; i < a->count; i++) {
        double size = i == 1 ? moved : distance(b->number[i], NULL, b->size[i]);
        double different = distance(a->number[i], b->number[i], b->size[i]);
        ck_assert_msg(different <= most * size, "%s, %s: a difference of %g of %g", what, b->name[i], different, size);
    }
}

START_TEST(test_as_product_and_step)
{
    static trained together, apart;
    shard_device *device = shard_default_device();
    find_steps();
    ck_assert(device_steps || !on_other_device()); /* a GPU has them, from sm_80 on */
    int type = _i / SHAPES, shape = _i % SHAPES;
    for (int rule = 0; rule < RULES && device_steps; rule++)
        for (int rounding = 0; rounding < (types[type].weight == SHARD_FLOAT32 ? 1 : ROUNDINGS); rounding++) {
            char what[96];
            snprintf(what, sizeof what, "shape %d, types %d, rule %d, rounding %d", shape, type, rule, rounding);
            taken = 0;
            device->steps_product = counted;
            train(shape, type, rule, (shard_rounding)rounding, &together);
            device->steps_product = NULL;
            train(shape, type, rule, (shard_rounding)rounding, &apart);
            device->steps_product = device_steps;
            ck_assert_msg(taken >= STEPS, "%s: %d products were stepped", what, taken);
            check_near(&together, &apart, types[type].weight == SHARD_FLOAT32 ? 1e-3 : 0.05, what);
        }
}
END_TEST

/* Products that steps do not compute: of many summands, of other types, or whose rows are not read 16 bytes at a time. */
START_TEST(test_takes)
{
    const shard_update_product good = {.rows = 64, .columns = 24, .inner = 512, .ld_a = 64, .dtype = SHARD_BFLOAT16};
    shard_update_product bad[7];
    for (int i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].inner = 513;
    bad[1].columns = 20;
    bad[2].rows = 60;
    bad[3].ld_a = 68;
    bad[4].dtype = SHARD_FLOAT32;
    bad[5].b = (const void *)(uintptr_t)8;
    bad[6].inner = 0;
    find_steps();
    if (!device_steps)
        return;
    ck_assert(device_steps(&good));
    for (int i = 0; i < 7; i++)
        ck_assert_msg(!device_steps(&bad[i]), "product %d", i);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("product step");
    TCase *tcase = test_case(suite, "product step");
    tcase_add_loop_test(tcase, test_as_product_and_step, 0, TYPES * SHAPES);
    tcase_add_test(tcase, test_takes);
    return test_run(suite);
}
