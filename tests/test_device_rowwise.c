/* Row-wise steps against their formulas in long double, and by any division into rows to the bit. */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

enum { ARRAYS = 4 /* gradient, value, rows' numbers, exp_avg */, SHAPES = 6 };
static const int64_t shapes[SHAPES][2] = {{33, 1}, {5000, 1}, {7, 3}, {130, 64}, {70, 512}, {3, 2500}};

typedef struct kind {
    const char *name;
    shard_rowwise_arguments options;
    double decay;
} kind;
static const kind kinds[] = {
    {"adagrad", {.eps = 0.01}, 0},
    {"adagrad with decay", {.eps = 0.01}, 0.05},
    {"adam", {.adam = true, .beta1 = 0.8, .beta2 = 0.95, .eps = 0.01}, 0.05},
    {"adam without average", {.adam = true, .beta2 = 0.95, .eps = 0.01}, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* One row, of the definition. */
static void reference(const kind *k, const shard_update *u, int64_t columns, double scale, const long double *gradient,
                      long double *value, long double *number, long double *average)
{
    const shard_rowwise_arguments *o = &k->options;
    long double mean = 0, step = (long double)u->step, g[2500];
    bool first = u->step == 1;
    for (int64_t i = 0; i < columns; i++) {
        g[i] = scale * gradient[i] + (o->adam ? 0 : k->decay * value[i]);
        mean += g[i] * g[i] / (long double)columns;
    }
    *number = o->adam ? (first ? 0 : o->beta2 * *number) + (1 - o->beta2) * mean : (first ? 0 : *number) + mean;
    long double under = sqrtl(o->adam ? *number / (1 - powl(o->beta2, step)) : *number) + o->eps;
    for (int64_t i = 0; i < columns; i++) {
        long double direction = g[i];
        if (o->adam && o->beta1 > 0) {
            average[i] = (first ? 0 : o->beta1 * average[i]) + (1 - o->beta1) * g[i];
            direction = average[i] / (1 - powl(o->beta1, step));
        }
        value[i] = (o->adam ? 1 - u->lr * k->decay : 1) * value[i] - u->lr * direction / under;
    }
}

static void read_array(const void *array, shard_dtype dtype, int64_t start, int64_t n, long double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] = array_get(array, start + i, dtype);
}

static void check_step(shard_device *device, shard_update_types types, const kind *k, const int64_t *shape, int64_t step)
{
    static long double gradient[2500], value[2500], average[2500];
    int64_t rows = shape[0], columns = shape[1], n = rows * columns;
    const shard_dtype dtype[ARRAYS] = {types.gradient, types.value, types.state[0], types.state[1]};
    double scale = step == 1 ? 1 : 0.5;
    void *x[ARRAYS], *old[ARRAYS];
    for (int a = 0; a < ARRAYS; a++) {
        x[a] = array_noise(n, dtype[a], (uint64_t)a, a == 2 ? 0.1 : -1, 1);
        old[a] = array_noise(n, dtype[a], (uint64_t)a, a == 2 ? 0.1 : -1, 1);
        for (int64_t i = 0; step == 1 && a > 1 && i < n; i++)
            array_put(x[a], i, dtype[a], NAN);
    }
    shard_update u = {.size = n,
                      .columns = columns,
                      .lr = 0.1,
                      .weight_decay = k->decay,
                      .step = step,
                      .grad_scale = scale == 1 ? NULL : array_of(1, SHARD_FLOAT64, &scale),
                      .gradient = x[0],
                      .value = x[1],
                      .state = {x[2], k->options.beta1 > 0 ? x[3] : NULL}};
    RUN(device, rowwise, 1, &u, &k->options, types);
    long double error = 64 * compute_unit(types.value);
    for (int64_t row = 0; row < rows; row++) {
        long double number = array_get(old[2], row, dtype[2]);
        read_array(old[0], dtype[0], row * columns, columns, gradient);
        read_array(old[1], dtype[1], row * columns, columns, value);
        read_array(old[3], dtype[3], row * columns, columns, average);
        reference(k, &u, columns, scale, gradient, value, &number, average);
        check_close(dtype[2], array_get(x[2], row, dtype[2]), number, error, k->name, row);
        for (int64_t i = 0; i < columns; i++) {
            check_close(dtype[1], array_get(x[1], row * columns + i, dtype[1]), value[i], error, k->name, row * columns + i);
            if (k->options.beta1 > 0)
                check_close(dtype[3], array_get(x[3], row * columns + i, dtype[3]), average[i], error, k->name, i);
        }
    }
    for (int a = 0; a < ARRAYS; a++) {
        array_free(x[a], n, dtype[a]);
        array_free(old[a], n, dtype[a]);
    }
}

/* Of the four types, and mixtures of them. */
static shard_update_types types_at(int i)
{
    if (i >= 4)
        return i == 4 ? (shard_update_types){SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_BFLOAT16}}
                      : (shard_update_types){SHARD_FLOAT32, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_BFLOAT16}};
    shard_update_types types = shard_update_types_of(float_dtypes[i]);
    types.state[0] = float_dtypes[i] == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
    return types;
}

START_TEST(steps)
{
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int k = 0; k < KINDS; k++)
            for (int s = 0; s < SHAPES; s++)
                for (int64_t step = 1; step < 4; step += 2)
                    check_step(device, types_at(_i), &kinds[k], shapes[s], step);
}
END_TEST

/* Runs of rows give the bits of the whole: rounded at random, and with a compensation. */
START_TEST(rows_make_the_whole)
{
    enum { ROWS = 200, COLS = 300, N = ROWS * COLS };
    static const int64_t runs[] = {1, 24, 48, 3, 500};
    shard_update_types types = {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_BFLOAT16}, .stochastic = _i == 0};
    static const shard_rowwise_arguments options = {.adam = true, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        float *gradient = array_noise(N, SHARD_FLOAT32, 1, -1, 1), *number[2];
        uint16_t *value[2], *average[2], *rest[2];
        for (int i = 0; i < 2; i++) {
            number[i] = array_noise(ROWS, SHARD_FLOAT32, 2, 0.5, 1);
            value[i] = array_noise(N, SHARD_BFLOAT16, 3, -1, 1);
            average[i] = array_noise(N, SHARD_BFLOAT16, 4, -1, 1);
            rest[i] = array_noise(N, SHARD_BFLOAT16, 5, -0.001, 0.001);
        }
        for (int way = 0; way < 2; way++)
            for (int64_t row = 0, k = 0, count; row < ROWS; row += count) {
                count = way == 0 ? ROWS : runs[k++ % 5] < ROWS - row ? runs[(k - 1) % 5] : ROWS - row;
                shard_update u = {.size = count * COLS,
                                  .columns = COLS,
                                  .lr = 0.01,
                                  .weight_decay = 0.1,
                                  .step = 4,
                                  .gradient = gradient + row * COLS,
                                  .value = value[way] + row * COLS,
                                  .state = {number[way] + row, average[way] + row * COLS},
                                  .compensation = types.stochastic ? NULL : rest[way] + row * COLS,
                                  .key = 17,
                                  .place.first = row * COLS};
                RUN(device, rowwise, 1, &u, &options, types);
            }
        check_same(SHARD_FLOAT32, ROWS, number[0], number[1], "numbers");
        check_same(SHARD_BFLOAT16, N, value[0], value[1], "values");
        check_same(SHARD_BFLOAT16, N, average[0], average[1], "averages");
        check_same(SHARD_BFLOAT16, N, rest[0], rest[1], "compensations");
    }
}
END_TEST

/* Many matrices and vectors in one call: each is what it is alone. */
START_TEST(a_list_is_its_items)
{
    enum { ITEMS = 70, MOST = 200 * 9 };
    static const shard_rowwise_arguments options = {.adam = true, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
    shard_update_types types = {SHARD_BFLOAT16, SHARD_BFLOAT16, {SHARD_FLOAT32, SHARD_BFLOAT16}, .stochastic = true};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        uint16_t *gradient = array_noise(ITEMS * MOST, SHARD_BFLOAT16, 1, -1, 1), *value[2], *average[2];
        float *number[2];
        shard_update updates[2][ITEMS];
        for (int way = 0; way < 2; way++) {
            value[way] = array_noise(ITEMS * MOST, SHARD_BFLOAT16, 2, -1, 1);
            average[way] = array_noise(ITEMS * MOST, SHARD_BFLOAT16, 3, -1, 1);
            number[way] = array_noise(ITEMS * 200, SHARD_FLOAT32, 4, 0.5, 1);
            for (int64_t i = 0; i < ITEMS; i++)
                updates[way][i] = (shard_update){.size = (i % 5 ? i + 1 : 200) * (i % 9 + 1),
                                                 .columns = i % 9 + 1,
                                                 .lr = 0.1,
                                                 .step = 1 + i % 3,
                                                 .gradient = gradient + i * MOST,
                                                 .value = value[way] + i * MOST,
                                                 .state = {number[way] + i * 200, average[way] + i * MOST},
                                                 .key = (uint64_t)i};
        }
        RUN(device, rowwise, ITEMS, updates[0], &options, types);
        for (int i = 0; i < ITEMS; i++)
            RUN(device, rowwise, 1, &updates[1][i], &options, types);
        check_same(SHARD_BFLOAT16, ITEMS * MOST, value[0], value[1], "values");
        check_same(SHARD_BFLOAT16, ITEMS * MOST, average[0], average[1], "averages");
        check_same(SHARD_FLOAT32, ITEMS * 200, number[0], number[1], "numbers");
        uint16_t *before = array_noise(ITEMS * MOST, SHARD_BFLOAT16, 2, -1, 1);
        for (int64_t i = 0; i < ITEMS; i++) /* neither leaves an item out */
            ck_assert_msg(memcmp(value[0] + i * MOST, before + i * MOST, (size_t)updates[0][i].size * 2) != 0, "item %d", (int)i);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_rowwise");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, steps, 0, 6);
    tcase_add_loop_test(all, rows_make_the_whole, 0, 2);
    tcase_add_test(all, a_list_is_its_items);
    return test_run(suite);
}
