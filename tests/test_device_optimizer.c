/* Norms, clipping and the optimizers' steps against the formulas in long double. */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

static const int64_t sizes[] = {0, 1, 31, 1024, 1025, 33001};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* An operation's operands are as large as 4: a few roundings in the type computed in. */
static long double few(shard_dtype dtype)
{
    return 16 * compute_unit(dtype);
}

/* A float64 in the device's memory, NULL for 1. */
static double *factor_of(double factor)
{
    return factor == 1 ? NULL : array_of(1, SHARD_FLOAT64, &factor);
}

/* n elements behind the first `offset` ones of an array, so that they need not be aligned. */
typedef struct operand {
    char *array;
    int64_t n, offset;
    shard_dtype dtype;
} operand;

static void *at(operand x)
{
    return x.array + (size_t)x.offset * shard_dtype_size(x.dtype);
}
static operand operand_of(int64_t n, int64_t offset, shard_dtype dtype, uint64_t seed, double low, double high)
{
    return (operand){array_noise(n + offset, dtype, seed, low, high), n, offset, dtype};
}
static double get(operand x, int64_t i)
{
    return array_get(x.array, i + x.offset, x.dtype);
}
static void put(operand x, int64_t i, double value)
{
    array_put(x.array, i + x.offset, x.dtype, value);
}
static void done(operand x)
{
    array_free(x.array, x.n + x.offset, x.dtype);
}

/* ---- norms ---- */

static const double powers[] = {2, 1, INFINITY, 3, 0.5};
enum { POWERS = sizeof powers / sizeof *powers };

START_TEST(power_sum)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++)
            for (int k = 0; k < POWERS; k++)
                for (int64_t offset = 0; offset < 2 && (k < 3 || sizes[s] < 2000 /* pow is slow */); offset++) {
                    double *sum = array_new(1, SHARD_FLOAT64);
                    operand x = operand_of(sizes[s], offset, dtype, 1, -3, 3);
                    long double want = 0;
                    for (int64_t i = 0; i < sizes[s]; i++) {
                        long double size = fabsl((long double)get(x, i));
                        want = isinf(powers[k]) ? fmaxl(want, size) : want + powl(size, powers[k]);
                    }
                    *sum = NAN;
                    RUN(device, power_sum, sizes[s], powers[k], at(x), sum, dtype);
                    check_close(SHARD_FLOAT64, *sum, want, isinf(powers[k]) ? 0 : 1e-13L * want, device->name, k);
                    array_free(sum, 1, SHARD_FLOAT64);
                    done(x);
                }
}
END_TEST

/* The largest numbers there are do not overflow; an infinity or NaN anywhere is seen. */
START_TEST(power_sum_finds_what_is_not_finite)
{
    static const shard_dtype dtypes[] = {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_FLOAT16};
    static const double largest[] = {0x1.fffffep+127, 0x1.fep+127, 65504};
    enum { N = 5003 };
    shard_dtype dtype = dtypes[_i];
    double *sum = array_new(1, SHARD_FLOAT64);
    operand x = {array_new(N, dtype), N, 0, dtype};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        for (int64_t i = 0; i < N; i++)
            put(x, i, i % 2 ? largest[_i] : -largest[_i]);
        RUN(device, power_sum, N, 2, at(x), sum, dtype);
        check_close(SHARD_FLOAT64, *sum, (long double)largest[_i] * largest[_i] * N, 1e-13L * largest[_i] * largest[_i] * N,
                    device->name, 0);
        RUN(device, power_sum, N, INFINITY, at(x), sum, dtype);
        ck_assert_double_eq(*sum, largest[_i]);
        static const int64_t places[] = {0, 1, 1023, 1024, 4999, N - 1};
        static const double bad[] = {INFINITY, -INFINITY, NAN};
        for (size_t p = 0; p < sizeof places / sizeof *places; p++)
            for (int b = 0; b < 3; b++) {
                double was = get(x, places[p]);
                put(x, places[p], bad[b]);
                RUN(device, power_sum, N, 2, at(x), sum, dtype);
                ck_assert_msg(isnan(bad[b]) ? isnan(*sum) : *sum == INFINITY, "%s: %g", device->name, *sum);
                RUN(device, power_sum, N, INFINITY, at(x), sum, dtype);
                ck_assert_msg(isnan(bad[b]) ? isnan(*sum) : *sum == INFINITY, "%s: %g", device->name, *sum);
                put(x, places[p], was);
            }
    }
}
END_TEST

/* ---- clipping ---- */

START_TEST(clip_scale)
{
    static const struct {
        double power, max_norm, sum, scale;
        double norm, then;
    } cases[] = {
        {2, 1, 16, 1, 4, 1 / (4 + 1e-6)},
        {2, 1, 16, 0.5, 2, 0.5 / (2 + 1e-6)},
        {2, 5, 16, 1, 4, 1},
        {2, 5, 0, 0.25, 0, 0.25},
        {1, 1, 16, 1, 16, 1 / (16 + 1e-6)},
        {3, 1, 27, 1, 3, 1 / (3 + 1e-6)},
        {INFINITY, 1, 16, 0.5, 8, 0.5 / (8 + 1e-6)},
        {2, 1, INFINITY, 1, INFINITY, 0},
        {2, 1, NAN, 1, NAN, NAN},
    };
    shard_device *device;
    double *sum = array_new(1, SHARD_FLOAT64), *norm = array_new(1, SHARD_FLOAT64), *scale = array_new(1, SHARD_FLOAT64);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            *sum = cases[k].sum;
            *scale = cases[k].scale;
            RUN(device, clip_scale, cases[k].power, cases[k].max_norm, sum, norm, scale);
            check_close(SHARD_FLOAT64, *norm, cases[k].norm, 1e-15L * cases[k].norm, device->name, (int64_t)k);
            check_close(SHARD_FLOAT64, *scale, cases[k].then, 1e-15L, device->name, (int64_t)k);
        }
}
END_TEST

START_TEST(clip_value)
{
    shard_dtype dtype = float_dtypes[_i];
    static const double scales[] = {1, 0.25};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++)
            for (int64_t k = 0; k < 4; k++) {
                int64_t n = sizes[s], offset = k / 2;
                double bound = 0.375, high = bound / scales[k % 2], *scale = factor_of(scales[k % 2]);
                operand x = operand_of(n, offset, dtype, 1, -2, 2), old = operand_of(n, offset, dtype, 1, -2, 2);
                if (n > 3) {
                    put(x, 0, NAN);
                    put(x, 1, INFINITY);
                    put(x, n - 1, -INFINITY);
                    memcpy(at(old), at(x), (size_t)n * shard_dtype_size(dtype));
                }
                RUN(device, clip_value, n, bound, scale, at(x), dtype);
                for (int64_t i = 0; i < n; i++) {
                    double was = get(old, i);
                    check_close(dtype, get(x, i), was > high ? high : was < -high ? -high : was, 0, device->name, i);
                }
                array_free(scale, 1, SHARD_FLOAT64);
                done(x);
                done(old);
            }
}
END_TEST

/* ---- SGD ---- */

/* torch.optim.SGD, step by step. */
static void reference_step(const shard_update *u, const shard_sgd_arguments *o, double scale, double trust, long double gradient,
                           long double *buffer, long double *parameter)
{
    long double g = trust * (scale * gradient + (long double)u->weight_decay * *parameter);
    if (o->momentum != 0) {
        *buffer = u->step == 1 ? g : (long double)o->momentum * *buffer + (1 - (long double)o->dampening) * g;
        g = o->nesterov ? g + (long double)o->momentum * *buffer : *buffer;
    }
    *parameter -= (long double)u->lr * g;
}

static void check_sgd(shard_device *device, shard_dtype dtype, int64_t n, int64_t step, double decay, shard_sgd_arguments o,
                      double scale, double trust)
{
    int64_t offset = step == 1; /* aligned and not */
    operand gradient = operand_of(n, offset, dtype, 1, -2, 2), parameter = operand_of(n, offset, dtype, 2, -2, 2);
    operand old = operand_of(n, offset, dtype, 2, -2, 2), old_buffer = operand_of(n, offset, dtype, 3, -2, 2);
    operand buffer = operand_of(n, offset, dtype, 3, -2, 2);
    shard_update u = {.size = n,
                      .lr = 0.1,
                      .weight_decay = decay,
                      .step = step,
                      .grad_scale = factor_of(scale),
                      .trust_ratio = factor_of(trust),
                      .gradient = at(gradient),
                      .value = at(parameter),
                      .state = {o.momentum == 0 ? NULL : at(buffer)}};
    for (int64_t i = 0; step == 1 && i < n; i++)
        put(buffer, i, NAN);
    RUN(device, sgd, 1, &u, &o, shard_update_types_of(dtype));
    for (int64_t i = 0; i < n; i++) {
        long double p = get(old, i), b = get(old_buffer, i);
        reference_step(&u, &o, scale, trust, get(gradient, i), &b, &p);
        check_close(dtype, get(parameter, i), p, few(dtype), device->name, i);
        if (o.momentum != 0)
            check_close(dtype, get(buffer, i), b, few(dtype), device->name, i);
    }
    operand all[] = {gradient, parameter, old, old_buffer, buffer};
    for (size_t k = 0; k < sizeof all / sizeof *all; k++)
        done(all[k]);
}

START_TEST(sgd)
{
    static const shard_sgd_arguments options[] = {
        {0}, {0}, {.momentum = 0.9}, {.momentum = 0.9, .dampening = 0.2}, {.momentum = 0.9, .nesterov = true},
    };
    static const double decays[] = {0, 0.01, 0.01, 0, 0.01};
    static const double factors[][2] = {{1, 1}, {0.3, 1}, {1, 0.7}, {0.3, 0.7}}; /* grad_scale, trust_ratio */
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++)
            for (int k = 0; k < 5; k++)
                for (int64_t step = 1; step < 3; step++) {
                    const double *factor = factors[(s + k) % 4];
                    check_sgd(device, float_dtypes[_i], sizes[s], step, decays[k], options[k], factor[0], factor[1]);
                }
}
END_TEST

/* ---- Adam and LAMB ---- */

typedef struct moments {
    long double average, square, highest;
} moments;

/* exp_avg / sqrt(exp_avg_sq), corrected, after a step with that gradient. */
static long double direction(const shard_adam_arguments *o, const long double *correction, bool amsgrad, long double g,
                             moments *m)
{
    m->average = o->beta1 * m->average + (1 - (long double)o->beta1) * g;
    m->square = o->beta2 * m->square + (1 - (long double)o->beta2) * g * g;
    m->highest = fmaxl(m->highest, m->square);
    return m->average / correction[0] / (sqrtl((amsgrad ? m->highest : m->square) / correction[1]) + o->eps);
}

enum { ADAM, ADAMW, AMSGRAD, LAMB, KINDS };

static void check_adam(shard_device *device, shard_dtype dtype, int64_t n, int kind, int64_t step, double scale, int64_t offset)
{
    shard_adam_arguments o = {
        .beta1 = 0.8, .beta2 = 0.95, .eps = 0.01, .decoupled = kind == ADAMW || kind == LAMB, .amsgrad = kind == AMSGRAD};
    shard_update u = {.size = n, .lr = 0.1, .weight_decay = 0.03, .step = step, .grad_scale = factor_of(scale)};
    const long double correction[] = {1 - powl(o.beta1, (long double)step), 1 - powl(o.beta2, (long double)step)};
    bool amsgrad = kind == AMSGRAD, first = step == 1;
    operand x[5], old[5]; /* gradient, parameter, the averages */
    for (int k = 0; k < 5; k++) {
        x[k] = operand_of(n, offset, dtype, (uint64_t)k + 1, k < 3 ? -2 : 0.25, 2);
        old[k] = operand_of(n, offset, dtype, (uint64_t)k + 1, k < 3 ? -2 : 0.25, 2);
        for (int64_t i = 0; first && k > 1 && i < n; i++)
            put(x[k], i, NAN);
    }
    u.gradient = at(x[0]);
    u.value = at(x[1]);
    for (int k = 0; k < (amsgrad ? 3 : 2); k++)
        u.state[k] = at(x[2 + k]);
    if (kind == LAMB)
        RUN(device, lamb_update, 1, &u, &o, shard_update_types_of(dtype));
    else
        RUN(device, adam, 1, &u, &o, shard_update_types_of(dtype));
    for (int64_t i = 0; i < n; i++) {
        moments m = {get(old[2], i), get(old[3], i), get(old[4], i)};
        if (first)
            m = (moments){0};
        long double p = get(old[1], i), g = scale * (long double)get(old[0], i);
        long double taken = direction(&o, correction, amsgrad, g + (o.decoupled ? 0 : u.weight_decay * p), &m);
        taken += o.decoupled ? u.weight_decay * p : 0;
        /* Relative to the direction's size, which in the first step can be 1 for the smallest gradient. */
        long double error = 8 * few(dtype);
        if (kind == LAMB)
            check_close(dtype, get(x[0], i), taken, error, "update", i);
        else
            check_close(dtype, get(x[1], i), p - u.lr * taken, error, "parameter", i);
        check_close(dtype, get(x[2], i), m.average, few(dtype), "exp_avg", i);
        check_close(dtype, get(x[3], i), m.square, few(dtype), "exp_avg_sq", i);
        if (amsgrad)
            check_close(dtype, get(x[4], i), m.highest, few(dtype), "max_exp_avg_sq", i);
    }
    array_free((void *)u.grad_scale, 1, SHARD_FLOAT64);
    for (int k = 0; k < 5; k++) {
        done(x[k]);
        done(old[k]);
    }
}

START_TEST(adam)
{
    int kind = _i / 4;
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SIZES; s++)
            for (int64_t step = 1; step < 30; step += 14)
                for (int64_t offset = 0; offset < 2; offset++)
                    check_adam(device, float_dtypes[_i % 4], sizes[s], kind, step, (s + offset) % 2 ? 0.3 : 1, offset);
}
END_TEST

/* Zeros stay zeros, so that the gaps of a flat buffer may be stepped along. */
START_TEST(zeros_stay)
{
    enum { N = 100 };
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int64_t step = 1; step < 3; step++) {
            void *x[5];
            for (int k = 0; k < 5; k++)
                x[k] = array_noise(N, dtype, 1, 0, 0);
            shard_update u = {.size = N,
                              .lr = 1,
                              .weight_decay = 0.1,
                              .step = step,
                              .gradient = x[0],
                              .value = x[1],
                              .state = {x[2], x[3], x[4]}};
            shard_adam_arguments a = {.beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8, .amsgrad = true};
            RUN(device, adam, 1, &u, &a, shard_update_types_of(dtype));
            RUN(device, lamb_update, 1, &u, &a, shard_update_types_of(dtype));
            shard_sgd_arguments o = {.momentum = 0.9};
            RUN(device, sgd, 1, &u, &o, shard_update_types_of(dtype));
            for (int k = 0; k < 5; k++)
                for (int64_t i = 0; i < N; i++)
                    ck_assert_double_eq(array_get(x[k], i, dtype), 0);
        }
}
END_TEST

START_TEST(trust_ratio)
{
    enum { LAYERS = 700 };
    double *squares = array_new(2 * LAYERS, SHARD_FLOAT64), *ratio = array_new(LAYERS, SHARD_FLOAT64);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int scaled = 0; scaled < 2; scaled++) {
            double scale = scaled ? 0.3 : 1;
            shard_trust_options o = {.trust_coefficient = 0.02, .weight_decay = 0.1, .eps = 1e-3, .grad_scale = factor_of(scale)};
            for (int i = 0; i < LAYERS; i++) {
                squares[2 * i] = i % 5 == 1 ? 0 : 4 + noise(1, i);
                squares[2 * i + 1] = i % 7 == 1 ? 0 : 2 + noise(2, i);
                ratio[i] = NAN;
            }
            RUN(device, trust_ratio, 0, &o, squares, ratio);
            ck_assert(isnan(ratio[0]));
            RUN(device, trust_ratio, LAYERS, &o, squares, ratio);
            for (int i = 0; i < LAYERS; i++) {
                long double w = sqrtl(squares[2 * i]), g = scale * sqrtl(squares[2 * i + 1]);
                long double want = w == 0 || g == 0 ? 1 : o.trust_coefficient * w / (g + o.weight_decay * w + o.eps);
                check_close(SHARD_FLOAT64, ratio[i], want, 1e-15L, device->name, i);
            }
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_optimizer");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, power_sum, 0, 4);
    tcase_add_loop_test(all, power_sum_finds_what_is_not_finite, 0, 3);
    tcase_add_test(all, clip_scale);
    tcase_add_loop_test(all, clip_value, 0, 4);
    tcase_add_loop_test(all, sgd, 0, 4);
    tcase_add_loop_test(all, adam, 0, 4 * KINDS);
    tcase_add_loop_test(all, zeros_stay, 0, 4);
    tcase_add_test(all, trust_ratio);
    return test_run(suite);
}
