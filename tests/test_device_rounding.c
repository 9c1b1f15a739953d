/* Steps whose arrays are of several types, and how they round 16-bit values: to the nearest, at random, with a compensation. */
#include "support/check.h"
#include "support/kernels.h"

#include "base/rounding.h"

#include <string.h>

enum { N = 3001, LONG = 40001 /* several threads */ };

static const shard_dtype halves[] = {SHARD_BFLOAT16, SHARD_FLOAT16};

static shard_update_types types_of(shard_dtype value, shard_dtype gradient, shard_dtype state, bool stochastic)
{
    return (shard_update_types){value, gradient, {state, state, state}, stochastic};
}

/* The reference: element `index` of array `which` in that step. */
static float rounded(shard_dtype dtype, float x, uint64_t key, int64_t step, int which, uint64_t index)
{
    shard_philox block = shard_rounding_words(shard_rounding_draw(key, step, which), index);
    uint32_t bits = shard_rounding_bits(&block, index);
    return dtype == SHARD_BFLOAT16 ? shard_round_to_bfloat16(x, bits) : shard_round_to_float16(x, bits);
}

/* ---- values are written at random ---- */

/* Numbers of every size that the type has, infinities, NaN and zeros. */
static float value_of(int64_t i, shard_dtype dtype)
{
    static const float some[] = {0, -0.0f, 1, -1, 65504, -65519, 3e38f, 1e-8f, -3e-6f, 5.96e-8f, INFINITY, -INFINITY, NAN};
    double largest = dtype == SHARD_FLOAT16 ? 15 : 126;
    if (i < (int64_t)(sizeof some / sizeof *some))
        return some[i];
    return (float)(noise(5, i) * exp2(largest * noise(6, i)));
}

START_TEST(values_are_rounded_by_the_definition)
{
    shard_dtype dtype = halves[_i];
    float *gradient = array_new(LONG, SHARD_FLOAT32);
    for (int64_t i = 0; i < LONG; i++)
        gradient[i] = -value_of(i, dtype);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int64_t offset = 0; offset < 2; offset++) {
            void *value = array_noise(LONG, dtype, 1, 0, 0), *other = array_new(LONG, dtype);
            shard_update u = {.size = LONG - offset,
                              .lr = 1,
                              .step = 3,
                              .gradient = gradient + offset,
                              .value = (char *)value + 2 * offset,
                              .key = 99,
                              .place.first = 5 + offset};
            RUN(device, sgd, 1, &u, &(shard_sgd_arguments){0}, types_of(dtype, SHARD_FLOAT32, dtype, true));
            for (int64_t i = offset; i < LONG; i++) {
                float x = 0 - 1.0f * (-value_of(i, dtype)), want = rounded(dtype, x, 99, 3, 0, (uint64_t)(5 + i));
                array_put(other, i, dtype, (double)want);
                double got = array_get(value, i, dtype), expected = array_get(other, i, dtype);
                ck_assert_msg(got == expected || (isnan(got) && isnan(expected)), "%s: element %d of %g is %g, not %g",
                              device->name, (int)i, (double)x, got, expected);
            }
            array_free(value, LONG, dtype);
            array_free(other, LONG, dtype);
        }
}
END_TEST

/* Each number becomes one of its neighbours, and the mean of many roundings is the number. */
START_TEST(rounding_has_no_bias)
{
    static const float numbers[] = {1.001f, -1.0037f, 300.3f, 0.1f, -7.77e-3f, 1.9999f, 3e-5f, -2.34e-6f, 8e-8f};
    enum { DRAWS = 40000 };
    shard_dtype dtype = halves[_i];
    uint16_t *place = array_new(1, dtype);
    for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++) {
        double x = (double)numbers[k], low = INFINITY, high = -INFINITY, sum = 0;
        for (int64_t i = 0; i < DRAWS; i++) {
            double y = (double)rounded(dtype, numbers[k], 4, i / 1000, 0, (uint64_t)i);
            array_put(place, 0, dtype, y);
            ck_assert_double_eq(array_get(place, 0, dtype), y); /* a value of the type */
            low = fmin(low, y);
            high = fmax(high, y);
            sum += y;
        }
        double exponent = floor(log2(fabs(x))), digits = dtype == SHARD_BFLOAT16 ? 7 : 10;
        double quantum = exp2((dtype == SHARD_FLOAT16 && exponent < -14 ? -14 : exponent) - digits);
        ck_assert_msg(low <= x && x <= high && high - low <= quantum, "%g is rounded to %g and %g", x, low, high);
        ck_assert_msg(low < high, "%g is always rounded to %g", x, low);
        double deviation = (high - low) / 2 / sqrt(DRAWS);
        ck_assert_msg(fabs(sum / DRAWS - x) < 4 * deviation, "the mean of %g is %.9g", x, sum / DRAWS);
    }
}
END_TEST

/* The whole matrix in one update, in flat ranges, and in two halves of its columns. */
START_TEST(division_does_not_matter)
{
    enum { ROWS = 77, COLS = 52, LEFT = 19, CUT = 1003 };
    shard_dtype dtype = halves[_i];
    shard_update_types types = types_of(dtype, SHARD_FLOAT32, SHARD_BFLOAT16, true);
    shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .decoupled = true};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        uint16_t *x[3][3]; /* [way][value and states] */
        float *gradient = array_noise(ROWS * COLS, SHARD_FLOAT32, 9, -1, 1), *part = array_new(ROWS * COLS, SHARD_FLOAT32);
        for (int way = 0; way < 3; way++)
            for (int k = 0; k < 3; k++)
                x[way][k] = array_noise(ROWS * COLS, k ? SHARD_BFLOAT16 : dtype, (uint64_t)k, 0, 1);
        shard_update whole = {.size = ROWS * COLS, .lr = 0.01, .weight_decay = 0.1, .step = 2, .key = 12345};
        whole.gradient = gradient;
        whole.value = x[0][0];
        whole.state[0] = x[0][1];
        whole.state[1] = x[0][2];
        RUN(device, adam, 1, &whole, &adam, types);
        for (int64_t start = 0, size; start < ROWS * COLS; start += size) {
            size = start + CUT < ROWS * COLS ? CUT : ROWS * COLS - start;
            shard_update u = whole;
            u.size = size;
            u.gradient = gradient + start;
            u.value = x[1][0] + start;
            u.state[0] = x[1][1] + start;
            u.state[1] = x[1][2] + start;
            u.place.first = start;
            RUN(device, adam, 1, &u, &adam, types);
        }
        for (int right = 0; right < 2; right++) { /* each half is dense in memory, and stepped in two ranges */
            int64_t from = right ? LEFT : 0, width = right ? COLS - LEFT : LEFT, size = ROWS * width;
            uint16_t *half[3];
            for (int k = 0; k < 3; k++) {
                half[k] = array_new(size, dtype);
                for (int64_t i = 0; i < size; i++)
                    half[k][i] = x[2][k][i / width * COLS + from + i % width];
            }
            for (int64_t i = 0; i < size; i++)
                part[i] = gradient[i / width * COLS + from + i % width];
            for (int64_t start = 0; start < size; start += size - size / 3) {
                shard_update u = whole;
                u.size = start ? size / 3 : size - size / 3;
                u.gradient = part + start;
                u.value = half[0] + start;
                u.state[0] = half[1] + start;
                u.state[1] = half[2] + start;
                u.place = (shard_update_place){.first = from, .offset = start, .width = width, .pitch = COLS};
                RUN(device, adam, 1, &u, &adam, types);
            }
            for (int k = 0; k < 3; k++) {
                for (int64_t i = 0; i < size; i++)
                    x[2][k][i / width * COLS + from + i % width] = half[k][i];
                array_free(half[k], size, dtype);
            }
        }
        for (int k = 0; k < 3; k++) {
            check_same(k ? SHARD_BFLOAT16 : dtype, ROWS * COLS, x[0][k], x[1][k], "flat ranges");
            check_same(k ? SHARD_BFLOAT16 : dtype, ROWS * COLS, x[0][k], x[2][k], "columns");
        }
    }
}
END_TEST

/* ---- several types ---- */

static const shard_update_types mixtures[] = {
    {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_BFLOAT16}},
    {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
    {SHARD_BFLOAT16, SHARD_BFLOAT16, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
    {SHARD_FLOAT32, SHARD_FLOAT32, {SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_BFLOAT16}},
    {SHARD_FLOAT16, SHARD_FLOAT32, {SHARD_BFLOAT16, SHARD_FLOAT32, SHARD_FLOAT16}},
};
enum { MIXTURES = sizeof mixtures / sizeof *mixtures };

/* A step of a mixture is that of float32 arrays with the same elements, each result rounded. */
START_TEST(mixtures_are_float32_rounded)
{
    enum { ARRAYS = 5 /* gradient, value, states */, ENTRIES = 4 };
    shard_update_types types = mixtures[_i], plain = shard_update_types_of(SHARD_FLOAT32);
    const shard_dtype dtype[ARRAYS] = {types.gradient, types.value, types.state[0], types.state[1], types.state[2]};
    static const int64_t sizes[] = {1, 1023, N, LONG};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int entry = 0; entry < ENTRIES; entry++)
            for (int s = 0; s < 4; s++)
                for (int64_t step = 1; step < 3; step++) {
                    int64_t n = sizes[s];
                    void *x[ARRAYS], *y[ARRAYS];
                    shard_update of_x = {.size = n, .lr = 0.1, .weight_decay = 0.02, .step = step}, of_y = of_x;
                    for (int k = 0; k < ARRAYS; k++) {
                        x[k] = array_noise(n, dtype[k], (uint64_t)k, k < 3 ? -2 : 0.25, 2);
                        y[k] = array_new(n, SHARD_FLOAT32);
                        for (int64_t i = 0; i < n; i++)
                            array_put(y[k], i, SHARD_FLOAT32, array_get(x[k], i, dtype[k]));
                        *(k == 0 ? &of_x.gradient : k == 1 ? &of_x.value : &of_x.state[k - 2]) = x[k];
                        *(k == 0 ? &of_y.gradient : k == 1 ? &of_y.value : &of_y.state[k - 2]) = y[k];
                    }
                    shard_sgd_arguments sgd = {.momentum = entry == 1 ? 0.9 : 0};
                    shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .amsgrad = entry == 3};
                    for (int way = 0; way < 2; way++) {
                        shard_update *u = way ? &of_y : &of_x;
                        if (entry < 2)
                            RUN(device, sgd, 1, u, &sgd, way ? plain : types);
                        else if (entry == 2)
                            RUN(device, lamb_update, 1, u, &adam, way ? plain : types);
                        else
                            RUN(device, adam, 1, u, &adam, way ? plain : types);
                    }
                    for (int k = 0; k < ARRAYS; k++) {
                        for (int64_t i = 0; i < n; i++)
                            check_close(dtype[k], array_get(x[k], i, dtype[k]), array_get(y[k], i, SHARD_FLOAT32), 0,
                                        device->name, i);
                        array_free(x[k], n, dtype[k]);
                        array_free(y[k], n, SHARD_FLOAT32);
                    }
                }
}
END_TEST

/* Types that a device may have kernels of their own for. */
static const shard_update_types common[] = {
    {SHARD_BFLOAT16, SHARD_BFLOAT16, {SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_BFLOAT16}},
    {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_BFLOAT16, SHARD_BFLOAT16, SHARD_BFLOAT16}},
    {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
    {SHARD_BFLOAT16, SHARD_BFLOAT16, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
    {SHARD_FLOAT16, SHARD_FLOAT16, {SHARD_FLOAT16, SHARD_FLOAT16, SHARD_FLOAT16}},
    {SHARD_FLOAT16, SHARD_FLOAT32, {SHARD_FLOAT16, SHARD_FLOAT16, SHARD_FLOAT16}},
    {SHARD_FLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
    {SHARD_FLOAT16, SHARD_FLOAT16, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
    {SHARD_FLOAT32, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
};
enum { COMMON = sizeof common / sizeof *common };

enum { SOME = 9 /* updates of a list */, KINDS = 6 };

/* Rows of the gradient, and columns; of the value are twice as many rows. */
static const int64_t some_rows[SOME] = {1, 7, 5, 0, 8, 3, 33, 1, 41}, some_columns[SOME] = {1, 1, 12, 8, 8, 64, 31, 33001, 264};

/* The arrays of an update number i, some of which are not aligned. */
static shard_update some_update(int i, const shard_update_types *types, bool listed, bool replayed, int64_t step)
{
    int64_t rows = some_rows[i], columns = some_columns[i], size = rows * columns, offset = i % 3 == 1 ? 1 : 0;
    double factors[] = {0.5, 1.25}, of_replay[] = {0.07, step == 1, 1.1, 0.98, -0.2, (double)step};
    shard_update u = {.size = size, .columns = columns, .lr = 0.1 + 0.01 * i, .weight_decay = i % 4 ? 0.02 : 0, .step = step};
    u.grad_scale = i % 2 ? array_of(1, SHARD_FLOAT64, &factors[0]) : NULL;
    u.trust_ratio = i % 5 ? array_of(1, SHARD_FLOAT64, &factors[1]) : NULL;
    u.factors = replayed && i % 2 ? array_of(6, SHARD_FLOAT64, of_replay) : NULL;
    u.gradient = (char *)array_noise(size + offset, types->gradient, (uint64_t)i, -2, 2) +
                 offset * (int64_t)shard_dtype_size(types->gradient);
    u.value = (char *)array_noise(2 * size + offset, types->value, (uint64_t)i + 20, -2, 2) +
              offset * (int64_t)shard_dtype_size(types->value);
    for (int s = 0; s < SHARD_OPTIMIZER_STATES; s++)
        u.state[s] = array_noise(2 * size, types->state[s], (uint64_t)(i + 40 + s), s ? 0.25 : -2, 2);
    if (listed) {
        int64_t *row = array_new(rows + 1, SHARD_INT64);
        for (int64_t k = 0; k < rows; k++)
            row[k] = 5 + (k % 2 ? 2 * rows - k : k);
        u.rows = row;
        u.row0 = 5;
    }
    return u;
}

static void take_step(shard_device *device, int kind, int64_t count, const shard_update *updates, shard_update_types types)
{
    shard_sgd_arguments sgd = {.momentum = kind ? 0.9 : 0, .dampening = kind == 2 ? 0 : 0.125, .nesterov = kind == 2};
    shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .decoupled = kind == 4, .amsgrad = kind == 5};
    if (kind < 3)
        RUN(device, sgd, count, updates, &sgd, types);
    else if (kind == 3)
        RUN(device, lamb_update, count, updates, &adam, types);
    else
        RUN(device, adam, count, updates, &adam, types);
}

/* With an update more that has a compensation, for which a device's kernels for certain types are not made, a list gives the same
 * bits. The rows of a list, and the factors of a replay, are for devices that have them. */
START_TEST(a_compensation_elsewhere_changes_no_bits)
{
    shard_update_types types = common[_i];
    bool half = shard_dtype_size(types.value) == 2;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int kind = 0; kind < KINDS; kind++)
            for (int listed = half ? 0 : 1; listed <= (device->lists_rows ? 1 : 0); listed++)
                for (int64_t step = 1; step < 3; step++) {
                    shard_update x[SOME], y[SOME + 1];
                    for (int i = 0; i < SOME; i++) {
                        x[i] = some_update(i, &types, listed, device->lists_rows, step);
                        y[i] = some_update(i, &types, listed, device->lists_rows, step);
                    }
                    y[SOME] = some_update(0, &types, listed, false, step);
                    y[SOME].compensation = array_noise(2, types.value, 1, 0, 0);
                    take_step(device, kind, SOME, x, types);
                    take_step(device, kind, SOME + 1, y, types);
                    for (int i = 0; i < SOME; i++) {
                        check_same(types.gradient, x[i].size, x[i].gradient, y[i].gradient, "gradient");
                        check_same(types.value, 2 * x[i].size, x[i].value, y[i].value, "value");
                        for (int s = 0; s < SHARD_OPTIMIZER_STATES; s++)
                            check_same(types.state[s], 2 * x[i].size, x[i].state[s], y[i].state[s], "state");
                    }
                }
}
END_TEST

/* exp_avg_sq in bfloat16 follows the squares of the gradients if it is rounded at random, and not if to the nearest. */
START_TEST(slow_averages_move)
{
    enum { STEPS = 3000 };
    shard_device *device;
    shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    for (int set = 0; (device = kernel_device(set)) && set < 1; set++)
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            enum { SIZE = 1000 };
            shard_update_types types = types_of(SHARD_FLOAT32, SHARD_FLOAT32, SHARD_BFLOAT16, stochastic);
            float *gradient = array_noise(SIZE, SHARD_FLOAT32, 1, 1, 1), *value = array_noise(SIZE, SHARD_FLOAT32, 1, 1, 1);
            void *average = array_noise(SIZE, SHARD_BFLOAT16, 1, 0, 0), *square = array_noise(SIZE, SHARD_BFLOAT16, 1, 0, 0);
            shard_update u = {
                .size = SIZE, .lr = 1e-3, .gradient = gradient, .value = value, .state = {average, square}, .key = 3};
            double sum = 0, want = 1 - pow(0.999, STEPS);
            for (u.step = 1; u.step <= STEPS; u.step++)
                ck_assert_int_eq(device->ops->adam(device, 1, &u, &adam, types), SHARD_OK);
            ck_assert_int_eq(device->ops->synchronize(device), SHARD_OK);
            for (int64_t i = 0; i < SIZE; i++)
                sum += array_get(square, i, SHARD_BFLOAT16) / SIZE;
            if (stochastic)
                ck_assert_double_eq_tol(sum, want, 0.01);
            else
                ck_assert_double_lt(sum, 0.5 * want);
        }
}
END_TEST

/* ---- compensation ---- */

/* Values of [size, 2 size), and steps of less than half of the distance of two of them. */
static const struct {
    shard_dtype dtype;
    double size, part;
} compensated[] = {{SHARD_BFLOAT16, 1, 0x1p-11},      {SHARD_FLOAT16, 1, 0x1p-14},       {SHARD_BFLOAT16, 0x1p-40, 0x1p-51},
                   {SHARD_FLOAT16, 0x1p-14, 0x1p-28}, {SHARD_FLOAT16, 0x1p-15, 0x1p-28}, {SHARD_FLOAT16, 0x1p-20, 0x1p-28},
                   {SHARD_FLOAT16, 0x1p-26, 0x1p-28}};
enum { COMPENSATED = sizeof compensated / sizeof *compensated };

/* The sum is kept to about twice its digits, also of values and compensations below 2^-14, which in float16 have fewer. */
START_TEST(compensation_keeps_what_rounding_takes)
{
    enum { STEPS = 500 };
    shard_dtype dtype = compensated[_i].dtype;
    double size = compensated[_i].size, part = compensated[_i].part;
    double unit = (double)shard_rounding_unit(dtype == SHARD_BFLOAT16);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        float *gradient = array_noise(N, SHARD_FLOAT32, 3, 0.5, 1);
        void *value = array_noise(N, dtype, 1, size, 1.5 * size), *rest = array_noise(N, dtype, 1, 0, 0);
        void *old = array_noise(N, dtype, 1, size, 1.5 * size), *lost = array_noise(N, dtype, 1, size, 1.5 * size);
        shard_update_types types = types_of(dtype, SHARD_FLOAT32, dtype, false);
        shard_update u = {.size = N, .lr = -part, .gradient = gradient, .value = value, .compensation = rest};
        shard_update without = u;
        without.value = lost;
        without.compensation = NULL;
        for (u.step = 1; u.step <= STEPS; u.step++) {
            RUN(device, sgd, 1, &u, &(shard_sgd_arguments){0}, types);
            RUN(device, sgd, 1, &without, &(shard_sgd_arguments){0}, types);
        }
        for (int64_t i = 0; i < N; i++) {
            double want = array_get(old, i, dtype) + STEPS * part * (double)gradient[i], nearest = array_get(lost, i, dtype);
            double got = array_get(value, i, dtype), whole = got + array_get(rest, i, dtype) / unit;
            ck_assert_msg(fabs(whole - want) < 0.02 * STEPS * part, "%s: %d: %.9g, not %.9g", device->name, (int)i, whole, want);
            ck_assert_msg(fabs(got - want) < 0.1 * STEPS * part, "%s: %d: %.9g, not %.9g", device->name, (int)i, got, want);
            ck_assert_double_eq(nearest, array_get(old, i, dtype));
        }
    }
}
END_TEST

/* An infinity leaves no NaN in the compensation; zeros stay zeros, so that gaps may be stepped along. */
START_TEST(infinities_and_zeros)
{
    enum { SIZE = 64 };
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            void *value = array_noise(SIZE, SHARD_FLOAT16, 1, 0, 0), *rest = array_noise(SIZE, SHARD_FLOAT16, 1, 0, 0);
            float *gradient = array_noise(SIZE, SHARD_FLOAT32, 1, 0, 0);
            shard_update u = {.size = SIZE, .lr = 1, .step = 1, .gradient = gradient, .value = value};
            u.compensation = stochastic ? NULL : rest;
            gradient[1] = -1e30f;
            RUN(device, sgd, 1, &u, &(shard_sgd_arguments){0}, types_of(SHARD_FLOAT16, SHARD_FLOAT32, SHARD_FLOAT16, stochastic));
            for (int64_t i = 0; i < SIZE; i++) {
                ck_assert_double_eq(array_get(value, i, SHARD_FLOAT16), i == 1 ? INFINITY : 0);
                ck_assert_double_eq(array_get(rest, i, SHARD_FLOAT16), 0);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_rounding");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, values_are_rounded_by_the_definition, 0, 2);
    tcase_add_loop_test(all, rounding_has_no_bias, 0, 2);
    tcase_add_loop_test(all, division_does_not_matter, 0, 2);
    tcase_add_loop_test(all, mixtures_are_float32_rounded, 0, MIXTURES);
    tcase_add_loop_test(all, a_compensation_elsewhere_changes_no_bits, 0, COMMON);
    tcase_add_test(all, slow_averages_move);
    tcase_add_loop_test(all, compensation_keeps_what_rounding_takes, 0, COMPENSATED);
    tcase_add_test(all, infinities_and_zeros);
    return test_run(suite);
}
