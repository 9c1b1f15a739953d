/* The stash of a head: results and memory for every .stash_share, and what the option refuses. */
#include "support/head.h"
#include "support/kernels.h"
#include "support/loss.h"
#include "support/threads.h"

#include "device/cpu/cpu_head_products.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>

enum { TILE = 8, GPU_TILE = 32 };
static const double whole = 1000; /* a share that keeps all logits */

static double default_share(void)
{
    const shard_cross_entropy_options softmax = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    const shard_binary_cross_entropy_options binary = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    ck_assert_double_eq(softmax.stash_share, binary.stash_share);
    return softmax.stash_share;
}

static void set_share(head_call *c, double share)
{
    c->softmax.stash_share = c->binary.stash_share = share;
}

static int64_t small_tile(void)
{
    return on_other_device() ? GPU_TILE : TILE;
}

/* A CPU without AVX2 and FMA has none of the head. */
static bool has_cpu_kernels(void)
{
    return !on_other_device() && shard_cpu_head_tiler(SHARD_FLOAT32) != NULL;
}

static bool has_stash(head_form form, int d)
{
    if (head_dtypes[d].x == SHARD_FLOAT64 || form == MARGIN || form == SAMPLE || form == SAMPLE_MARGIN)
        return false;
    return has_cpu_kernels() || (on_other_device() && head_dtypes[d].x == SHARD_BFLOAT16 && form != CAPPED);
}

/* ---- results ---- */

/* Relative to the largest number: a stash rounds each logit. */
static void compare(const char *what, const double *found, const double *expected, int64_t count, double tolerance, int form,
                    int d, double share)
{
    check_doubles(found, expected, count, tolerance, 0, "form %d, dtypes %d, share %g: %s", form, d, share, what);
}

static void same_results(shard_group *world, void *context)
{
    static head_result none, found;
    const double shares[] = {whole, 0.03, 0.1, 1};
    const int count = sizeof shares / sizeof *shares;
    (void)context;
    shard_head_tile = small_tile();
    shard_head_part = GPU_TILE / 2 + 1;
    for (int form = 0; form < HEAD_FORMS; form++)
        for (int d = 0; d < HEAD_DTYPES; d++)
            SHARD_SCOPE
            {
                double tolerance = 4 * unit(head_dtypes[d].x);
                double rounded = has_stash((head_form)form, d) ? 0x1p-12 : 0;
                head_call c;
                head_make(&c, (head_form)form, d, world);
                set_share(&c, 0);
                head_run(&c, world, NULL, &none);
                for (int i = 0; i < count; i++) {
                    set_share(&c, shares[i]);
                    head_run(&c, world, NULL, &found);
                    compare("loss", found.loss, none.loss, HEAD_ROWS, tolerance, form, d, shares[i]);
                    compare("dx", found.dx, none.dx, HEAD_ROWS * HEAD_IN, tolerance, form, d, shares[i]);
                    compare("dweight", found.dweight, none.dweight, HEAD_CLASSES * HEAD_IN, tolerance + rounded, form, d,
                            shares[i]);
                    compare("dbias", found.dbias, none.dbias, HEAD_CLASSES, tolerance + rounded, form, d, shares[i]);
                }
            }
    shard_head_tile = shard_head_part = 0;
}

START_TEST(test_same_results)
{
    run_ranks(_i + 1, same_results);
}
END_TEST

/* With and without a stash: within 2^-11 of each number, and `least`. */
static void check_range(const char *what, double least, shard_tensor *weight, shard_tensor *bias, shard_tensor *x,
                        shard_tensor *target, const shard_cross_entropy_options *softmax,
                        const shard_binary_cross_entropy_options *binary)
{
    enum { MOST = 4096 };
    static float found[2][MOST];
    int64_t classes = shard_tensor_size(weight, 0), in = shard_tensor_size(weight, 1);
    bool binary_loss = target->shape.ndim == 2;
    for (int stashes = 0; stashes < 2; stashes++)
        SHARD_SCOPE
        {
            shard_cross_entropy_options of_softmax = *softmax;
            shard_binary_cross_entropy_options of_binary = *binary;
            of_softmax.stash_share = of_binary.stash_share = stashes ? whole : 0;
            shard_zero_grad(weight);
            check_ok(shard_backward(binary_loss ? shard_linear_binary_cross_entropy_with(x, weight, bias, target, &of_binary)
                                                : shard_linear_cross_entropy_with(x, weight, bias, target, &of_softmax, NULL)));
            check_ok(shard_copy_to_host(shard_grad(weight), found[stashes], (size_t)(classes * in) * sizeof(float)));
        }
    for (int64_t i = 0; i < classes * in; i++)
        ck_assert_msg(is_within((double)found[1][i], (double)found[0][i], 0x1p-11 * fabs((double)found[0][i]) + least),
                      "%s: gradient %lld is %g, not %g", what, (long long)i, (double)found[1][i], (double)found[0][i]);
}

/* Logits of a stash that rise or fall by more than 100, in a tile by 28 and 42, above 17, that are nearly or quite the same, and
 * of a class that a bias masks. One row, so that each gradient is one exponential, or derivative, times a number. A derivative of
 * the binary loss is that of 17 for logits above it, within 2^-24. */
START_TEST(test_range)
{
    enum { CLASSES = 4 * TILE, IN = 2 };
    static const double steps[] = {8, -0.55, -4, -6, 4, 1e-36, 0};
    enum { STEPS = sizeof steps / sizeof *steps };
    const shard_cross_entropy_options softmax = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    shard_binary_cross_entropy_options binary = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    const int64_t label = 1, pair[] = {0, 0, 5, CLASSES - 1};
    if (on_other_device())
        return;
    binary.reduction = SHARD_REDUCTION_SUM;
    shard_head_tile = TILE;
    set_threads(1); /* all tiles in one lane, whose largest logits rise */
    for (int i = 0; i < 2 * STEPS; i++)
        SHARD_SCOPE
        {
            float numbers[CLASSES * IN], masked[CLASSES] = {[2] = -INFINITY};
            double step = steps[i / 2];
            for (int c = 0; c < CLASSES; c++) {
                numbers[c * IN] = (float)(step * (step == 8 ? c / TILE : c));
                numbers[c * IN + 1] = 0.001F * (float)c;
            }
            shard_tensor *weight = shard_from_host(numbers, SHARD_SHAPE(CLASSES, IN), .requires_grad = true);
            shard_tensor *x = shard_ones(SHARD_SHAPE(1, IN));
            shard_tensor *bias = i % 2 ? shard_from_host(masked, SHARD_SHAPE(CLASSES)) : NULL;
            check_range("softmax", 1e-14, weight, bias, x, shard_from_host(&label, SHARD_SHAPE(1), .dtype = SHARD_INT64),
                        &softmax, &binary);
            shard_tensor *pairs = shard_from_host(pair, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
            check_range("binary", step > 0.1 ? 0x1p-24 : 0x1p-60, weight, bias, x, pairs, &softmax, &binary);
        }
    shard_head_tile = 0;
}
END_TEST

enum { NUMBERS = 4 * TILE };

/* One row of one feature, 1: the logits are `numbers`. `pairs` ones of classes, or, if that is 0, a label. */
static void check_logits(const char *what, double least, const float *numbers, const int64_t *target, int64_t pairs,
                         const shard_cross_entropy_options *softmax, const shard_binary_cross_entropy_options *binary)
{
    if (on_other_device())
        return;
    shard_head_tile = TILE;
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_from_host(numbers, SHARD_SHAPE(NUMBERS, 1), .requires_grad = true);
        shard_shape shape = pairs ? SHARD_SHAPE(2, pairs) : SHARD_SHAPE(1);
        check_range(what, least, weight, NULL, shard_ones(SHARD_SHAPE(1, 1)),
                    shard_from_host(target, shape, .dtype = SHARD_INT64), softmax, binary);
    }
    shard_head_tile = 0;
}

/* A learned one, whose derivative is nearly 0 while its weight is large. */
START_TEST(test_learned_one)
{
    shard_binary_cross_entropy_options binary = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    const float numbers[NUMBERS] = {[5] = 30, [6] = 0.5F, [20] = 18};
    const int64_t pair[] = {0, 0, 5, 20};
    binary.reduction = SHARD_REDUCTION_SUM;
    binary.pos_weight = shard_full(SHARD_SHAPE(NUMBERS), 1e6);
    check_logits("a learned one", 1e-14, numbers, pair, 2, &(shard_cross_entropy_options)SHARD_CROSS_ENTROPY_OPTIONS_INIT,
                 &binary);
    shard_release(binary.pos_weight);
}
END_TEST

/* Next to a soft cap of 32, the largest one with a stash: within 2^-11 of the number, and 2^-15 of the largest. */
START_TEST(test_cap)
{
    shard_cross_entropy_options softmax = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    const int64_t label = 1;
    float numbers[NUMBERS];
    for (int c = 0; c < NUMBERS; c++)
        numbers[c] = 250 * sinf((float)c);
    softmax.soft_cap = 32;
    check_logits("capped", 0x1p-15, numbers, &label, 0, &softmax,
                 &(shard_binary_cross_entropy_options)SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT);
}
END_TEST

/* A stash that only a later update reads, of features without a gradient and a loss that is not computed. */
START_TEST(test_gradient_only)
{
    shard_binary_cross_entropy_options binary = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    const int64_t pair[] = {0, 0, 5, 20};
    float numbers[NUMBERS];
    for (int c = 0; c < NUMBERS; c++)
        numbers[c] = 3 * sinf((float)c);
    binary.gradient_only = true;
    check_logits("gradient only", 0x1p-60, numbers, pair, 2, &(shard_cross_entropy_options)SHARD_CROSS_ENTROPY_OPTIONS_INIT,
                 &binary);
}
END_TEST

/* ---- memory ---- */

static shard_memory_stats activations(void)
{
    return shard_get_memory_by_kind(shard_default_device(), SHARD_MEMORY_ACTIVATIONS);
}

/* Bytes that the state of a forward has. */
static int64_t saved_bytes(head_call *c, double share)
{
    static head_result result;
    shard_head_saved *saved;
    int64_t bytes = 0;
    set_share(c, share);
    SHARD_SCOPE
    {
        int64_t before = activations().current;
        head_forward(c, c->target, &saved, &result);
        bytes = activations().current - before;
        shard_head_saved_destroy(saved);
    }
    return bytes;
}

START_TEST(test_memory)
{
    const head_form form = (head_form)_i;
    shard_head_tile = small_tile();
    for (int d = 0; d < HEAD_DTYPES; d++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, form, d, NULL);
            int64_t weight = (int64_t)shard_tensor_bytes(c.weight), none = saved_bytes(&c, 0);
            int64_t place = on_other_device() ? 512 + 256 : 16 * (TILE * 2 + 8) + 64 /* alignment */;
            for (int i = 1; i <= 4; i++) {
                int64_t most = weight * i / 16, bytes = saved_bytes(&c, i / 16.0) - none;
                ck_assert_int_le(bytes, most);
                ck_assert_int_ge(bytes, has_stash(form, d) ? most - place : 0);
            }
            ck_assert_int_le(saved_bytes(&c, default_share()) - none, weight / 20);
            int64_t all = saved_bytes(&c, whole) - none;
            ck_assert_int_eq(saved_bytes(&c, 1e300) - none, all);
            ck_assert_int_ge(all, has_stash(form, d) ? HEAD_ROWS * HEAD_CLASSES * 2 : 0);
            ck_assert(has_stash(form, d) || all == 0);
        }
    shard_head_tile = 0;
}
END_TEST

/* Logits of a large soft cap have no stash on a CPU: their steps would be coarse. */
START_TEST(test_large_cap)
{
    if (!has_cpu_kernels())
        return;
    shard_head_tile = TILE;
    for (int cap = 32; cap <= 33; cap++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, CAPPED, 0, NULL);
            c.softmax.soft_cap = cap;
            int64_t bytes = saved_bytes(&c, whole) - saved_bytes(&c, 0);
            ck_assert(cap == 32 ? bytes > 0 : bytes == 0);
        }
    shard_head_tile = 0;
}
END_TEST

/* The peak of a classifier's step of so many micro-batches with this share. */
static int64_t step_peak(double share, bool binary, int batches)
{
    enum { WIDE = 64, MANY = 20000, FEW = 64 };
    shard_manual_seed(5);
    shard_module *layer = shard_nn_parallel_classifier(WIDE, MANY, NULL);
    shard_optimizer *optimizer = shard_sgd(layer, .lr = 0.1, .momentum = 0.9);
    const int64_t pair[] = {0, 3, 7, MANY - 1};
    for (int step = 0; step < 3 * batches; step++)
        SHARD_SCOPE
        {
            if (step == batches)
                shard_reset_peak_memory(shard_default_device());
            shard_tensor *x = shard_normal(SHARD_SHAPE(FEW, WIDE), 0, 1, .requires_grad = true);
            shard_tensor *labels = shard_zeros(SHARD_SHAPE(FEW), .dtype = SHARD_INT64), *logits = shard_forward(layer, x);
            shard_tensor *pairs = shard_from_host(pair, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
            check_ok(shard_backward(binary ? shard_binary_cross_entropy_with_logits(logits, pairs, .stash_share = share)
                                           : shard_cross_entropy(logits, labels, .stash_share = share)));
            if (step % batches == batches - 1)
                check_ok(shard_step(optimizer));
        }
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(layer);
    return shard_get_memory_stats(shard_default_device()).peak;
}

/* By default at most 5 % of a weight without state, and less of one with state; with micro-batches no more. */
START_TEST(test_peak_of_classifier)
{
    const int64_t weight = 64 * 20000 * sizeof(float), place = 16 * 4 * (2 * 768 + 8);
    if (!has_cpu_kernels())
        return;
    for (int binary = 0; binary < 2; binary++) {
        int64_t none = step_peak(0, binary, 1), quarter = step_peak(0.25, binary, 1) - none;
        int64_t usual = step_peak(default_share(), binary, 1) - none;
        ck_assert_int_le(usual, weight / 20);
        ck_assert_int_ge(usual, weight / 20 - place);
        ck_assert_int_le(quarter, weight / 4);
        ck_assert_int_ge(quarter, weight / 4 - place);
        ck_assert_int_le(step_peak(0.25, binary, 2) - step_peak(0, binary, 2), weight / 4);
    }
}
END_TEST

/* ---- refused values ---- */

START_TEST(test_refuses)
{
    const double wrong[] = {-0.5, NAN, INFINITY};
    for (int form = 0; form < HEAD_FORMS; form++)
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
            SHARD_SCOPE
            {
                head_call c;
                shard_head_saved *saved;
                bool binary = form == BINARY || form == GRADIENT_ONLY;
                head_make(&c, (head_form)form, 0, NULL);
                set_share(&c, wrong[i]);
                ck_assert_ptr_null(binary ? shard_linear_binary_cross_entropy_with(c.x, c.weight, c.bias, c.target, &c.binary)
                                          : shard_linear_cross_entropy_with(c.x, c.weight, c.bias, c.target, &c.softmax, NULL));
                check_error(SHARD_ERROR_ARGUMENT, "*cross_entropy: stash_share *; a finite number of at least 0 is needed");
                ck_assert_ptr_null(
                    binary ? shard_linear_binary_cross_entropy_forward_with(c.x, c.weight, c.bias, c.target, &c.binary, &saved)
                           : shard_linear_cross_entropy_forward_with(c.x, c.weight, c.bias, c.target, &c.softmax, &saved, NULL));
                check_error(SHARD_ERROR_ARGUMENT, "*_forward: stash_share *");
                ck_assert_ptr_null(saved);
            }
}
END_TEST

static void differ(shard_group *world, void *context)
{
    (void)context;
    for (int form = 0; form < HEAD_FORMS; form++)
        for (int wrong = 0; wrong < 2; wrong++)
            SHARD_SCOPE
            {
                head_call c;
                shard_head_saved *saved;
                head_make(&c, (head_form)form, 0, world);
                if (shard_group_rank(world) == 1)
                    set_share(&c, wrong ? -1 : 0.5);
                bool binary = form == BINARY || form == GRADIENT_ONLY;
                ck_assert_ptr_null(
                    binary ? shard_linear_binary_cross_entropy_forward_with(c.x, c.weight, c.bias, c.target, &c.binary, &saved)
                           : shard_linear_cross_entropy_forward_with(c.x, c.weight, c.bias, c.target, &c.softmax, &saved, NULL));
                if (!wrong)
                    check_error(SHARD_ERROR_MISMATCH, "*options*on rank 1 differ*");
                else
                    check_error(shard_group_rank(world) == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "*stash_share -1;*");
            }
}

START_TEST(test_ranks_differ)
{
    run_ranks(3, differ);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("head stash");
    TCase *tcase = test_case(suite, "head stash");
    tcase_add_loop_test(tcase, test_same_results, 0, 3);
    tcase_add_test(tcase, test_range);
    tcase_add_test(tcase, test_learned_one);
    tcase_add_test(tcase, test_cap);
    tcase_add_test(tcase, test_gradient_only);
    tcase_add_test(tcase, test_large_cap);
    tcase_add_loop_test(tcase, test_memory, 0, HEAD_FORMS);
    tcase_add_test(tcase, test_peak_of_classifier);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_ranks_differ);
    return test_run(suite);
}
