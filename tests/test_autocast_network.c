/* A small network and a layer of many classes under autocast: what they learn from, and the
 * memory that they take. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/kernels.h"
#include "support/ranks.h"

#include "device/cpu/cpu.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>

static const shard_dtype modes[] = {SHARD_BFLOAT16, SHARD_FLOAT16};

static shard_tensor *some_labels(void)
{
    static const int64_t labels[] = {4, 0, 2, 4, 1, 3};
    return shard_from_host(labels, SHARD_SHAPE(6), .dtype = SHARD_INT64);
}

/* ---- a small network ---- */

static shard_tensor *network(shard_tensor *const *p, shard_tensor *images, shard_tensor *labels, bool training)
{
    shard_tensor *x = shard_conv2d(images, p[0], NULL, .padding = 1);
    shard_tensor *mean = shard_zeros(SHARD_SHAPE(8)), *var = shard_ones(SHARD_SHAPE(8));
    x = shard_batch_norm(x, mean, var, p[1], p[2], .training = training, .relu = true);
    x = shard_avg_pool2d(x, 2);
    shard_tensor *y = shard_conv2d(x, p[3], NULL, .padding = 1);
    y = shard_batch_norm(y, mean, var, NULL, NULL, .training = training, .relu = true, .residual = x);
    shard_tensor *logits = shard_linear(shard_global_avg_pool2d(y), p[4], p[5]);
    return labels ? shard_cross_entropy(logits, labels) : logits;
}

enum { PARAMETERS = 6 };

static void make_network(shard_tensor **p)
{
    static const shard_shape shapes[PARAMETERS] = {SHARD_SHAPE(8, 3, 3, 3), SHARD_SHAPE(8),    SHARD_SHAPE(8),
                                                   SHARD_SHAPE(8, 8, 3, 3), SHARD_SHAPE(5, 8), SHARD_SHAPE(5)};
    for (int i = 0; i < PARAMETERS; i++)
        p[i] = make_up_tensor(shapes[i], (unsigned)i + 11, .requires_grad = true);
}

/* |x - expected| / |expected|: where rounding turns a maximum or a relu over, single
 * elements are far off. */
static double distance(shard_tensor *x, shard_tensor *expected)
{
    double *a = values_of(x), *b = values_of(expected), off = 0, size = 0;
    for (int64_t i = 0; i < shard_numel(expected); i++) {
        off += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    free(a);
    free(b);
    return sqrt(off / size);
}

START_TEST(trains_a_network)
{
    SHARD_SCOPE
    {
        shard_tensor *p[PARAMETERS], *q[PARAMETERS], *loss = NULL, *labels = some_labels();
        shard_tensor *images = make_up_tensor(SHARD_SHAPE(6, 8, 8, 3), 7);
        make_network(p);
        make_network(q);
        SHARD_AUTOCAST(modes[_i])
            loss = network(p, images, labels, true);
        check_ok(shard_backward(loss)); /* behind the scope */
        shard_tensor *wanted = network(q, images, labels, true);
        check_ok(shard_backward(wanted));
        ck_assert_double_eq_tol(shard_item(loss), shard_item(wanted), 8 * unit(modes[_i]) * shard_item(wanted));
        for (int i = 0; i < PARAMETERS; i++) {
            ck_assert_int_eq(shard_tensor_dtype(shard_grad(p[i])), SHARD_FLOAT32);
            double off = distance(shard_grad(p[i]), shard_grad(q[i]));
            ck_assert_msg(off > 0 && off <= 16 * unit(modes[_i]), "gradient %d is off by %g of its size", i, off);
        }
    }
}
END_TEST

START_TEST(evaluates)
{
    SHARD_SCOPE SHARD_NO_GRAD
    {
        shard_tensor *p[PARAMETERS], *logits = NULL, *rank = NULL, *labels = some_labels();
        shard_tensor *images = make_up_tensor(SHARD_SHAPE(6, 8, 8, 3), 7);
        make_network(p);
        SHARD_AUTOCAST(modes[_i])
        {
            logits = network(p, images, NULL, false);
            rank = shard_label_rank(logits, labels, -100);
        }
        ck_assert_int_eq(shard_tensor_dtype(logits), modes[_i]);
        double *value = values_of(logits);
        static const int64_t label[] = {4, 0, 2, 4, 1, 3};
        int64_t *got = host_copy(rank);
        for (int i = 0; i < 6; i++) {
            int64_t before = 0;
            for (int k = 0; k < 5; k++)
                before +=
                    value[5 * i + k] > value[5 * i + label[i]] || (value[5 * i + k] == value[5 * i + label[i]] && k < label[i]);
            ck_assert_int_eq(got[i], before);
        }
        free(value);
        free(got);
        value = values_of(network(p, images, NULL, false));
        check_tensor("logits", logits, value, 8 * unit(modes[_i]));
        free(value);
    }
}
END_TEST

/* ---- memory ---- */

enum { ROWS = 32, CLASSES = 40000 };

/* The most that a layer's step took on top of the layer and its gradient. */
static int64_t peak_of_step(shard_dtype mode, bool keeps_logits)
{
    shard_cpu_wide_elements = 1 << 14; /* where the processor has no 16-bit products */
    shard_device *device = shard_device_open(NULL);
    int64_t peak = 0;
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_full(SHARD_SHAPE(CLASSES, 1), 0.5, .requires_grad = true);
        shard_tensor *x = shard_ones(SHARD_SHAPE(ROWS, 1)), *labels = shard_zeros(SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        for (int step = 0; step < 2; step++) { /* the first makes what stays */
            shard_zero_grad(weight);
            shard_reset_peak_memory(device);
            int64_t before = shard_get_memory_stats(device).current;
            SHARD_SCOPE SHARD_AUTOCAST(mode)
            {
                shard_tensor *logits = shard_linear(x, weight, NULL), *loss = shard_cross_entropy(logits, labels);
                if (!keeps_logits)
                    shard_release(logits);
                check_ok(shard_backward(loss));
            }
            peak = shard_get_memory_stats(device).peak - before;
        }
    }
    return peak;
}

/* Logits and their gradient, and nothing else of that size: half of float32's. */
START_TEST(halves_the_memory)
{
    for (int keeps = 0; keeps < 2; keeps++) {
        double elements = (1.0 + keeps) * ROWS * CLASSES;
        double wide = (double)peak_of_step(SHARD_FLOAT32, keeps), narrow = (double)peak_of_step(modes[_i], keeps);
        ck_assert_msg(wide >= 4 * elements && wide <= 4.4 * elements, "float32 takes %g bytes an element", wide / elements);
        ck_assert_msg(narrow >= 2 * elements && narrow <= 2.4 * elements, "%s takes %g bytes an element",
                      shard_dtype_name(modes[_i]), narrow / elements);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("autocast_network");
    TCase *tcase = test_case(suite, "autocast_network");
    tcase_add_loop_test(tcase, trains_a_network, 0, 2);
    tcase_add_loop_test(tcase, evaluates, 0, 2);
    tcase_add_loop_test(tcase, halves_the_memory, 0, 2);
    return test_run(suite);
}
