/* shard_scaled_dot_product_attention. */
#include "support/gradcheck.h"
#include "support/options.h"
#include "support/rules.h"

#include <shard/distributed.h>

#include "device/device.h"
#include "tensor/tensor.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef shard_scaled_dot_product_attention_options attention_options;
#define OPTIONS(...) (&(const attention_options){SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_VALUES, __VA_ARGS__})

static shard_tensor *attention(shard_tensor *const *x, const void *options)
{
    return shard_scaled_dot_product_attention_with(x[0], x[1], x[2], options);
}

static shard_tensor *with_itself(shard_tensor *const *x, const void *options)
{
    return shard_scaled_dot_product_attention_with(x[0], x[0], x[0], options);
}

/* ---- gradients ---- */

#define OPERANDS(heads, key_heads, queries, keys, in, out)                                                                       \
    3,                                                                                                                           \
    {                                                                                                                            \
        SHARD_SHAPE(2, heads, queries, in), SHARD_SHAPE(2, key_heads, keys, in), SHARD_SHAPE(2, key_heads, keys, out)            \
    }

static const operation operations[] = {
    {"plain", attention, OPTIONS(), OPERANDS(2, 2, 3, 4, 5, 3), .needs = 7, .rounding = 32},
    {"causal", attention, OPTIONS(.is_causal = true), OPERANDS(2, 2, 4, 4, 3, 3), .needs = 7, .rounding = 32},
    {"more queries", attention, OPTIONS(.is_causal = true), OPERANDS(1, 1, 5, 3, 3, 2), .needs = 7, .rounding = 32},
    {"more keys", attention, OPTIONS(.is_causal = true), OPERANDS(1, 1, 3, 5, 3, 2), .needs = 7, .rounding = 32},
    {"offset", attention, OPTIONS(.is_causal = true, .offset = 2), OPERANDS(1, 1, 3, 5, 3, 2), .needs = 7, .rounding = 32},
    {"grouped", attention, OPTIONS(.is_causal = true), OPERANDS(4, 2, 3, 4, 2, 3), .needs = 7, .rounding = 32},
    {"one key head", attention, OPTIONS(.scale = -0.3), OPERANDS(3, 1, 3, 4, 2, 3), .needs = 7, .rounding = 32},
    {"matrices", attention, OPTIONS(), 3, {SHARD_SHAPE(3, 2), SHARD_SHAPE(4, 2), SHARD_SHAPE(4, 3)}, .needs = 7, .rounding = 32},
    {"five dimensions",
     attention,
     OPTIONS(),
     3,
     {SHARD_SHAPE(2, 1, 2, 3, 2), SHARD_SHAPE(2, 1, 2, 2, 2), SHARD_SHAPE(2, 1, 2, 2, 1)},
     .needs = 7,
     .rounding = 32},
    {"itself", with_itself, OPTIONS(.is_causal = true), 1, {SHARD_SHAPE(2, 1, 4, 3)}, .needs = 1, .rounding = 32},
    {"no queries", attention, OPTIONS(), OPERANDS(2, 2, 0, 4, 5, 3), .needs = 7},
    {"no keys", attention, OPTIONS(), OPERANDS(2, 2, 3, 0, 5, 3), .needs = 7},
    {"no heads", attention, OPTIONS(), OPERANDS(0, 0, 3, 4, 5, 3), .needs = 7},
    {"no features", attention, OPTIONS(), OPERANDS(2, 1, 3, 4, 0, 3), .needs = 7},
    {"no values", attention, OPTIONS(), OPERANDS(2, 1, 3, 4, 2, 0), .needs = 7},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* ---- against the operations that it is made of ---- */

enum { HEADS = 2, QUERIES = 70, KEYS = 101, IN = 20, OUT = 24 };

/* The same by products, a mask and a softmax. */
static shard_tensor *composed(shard_tensor *query, shard_tensor *key, shard_tensor *value, bool causal, int64_t offset)
{
    int64_t queries = shard_tensor_size(query, 2), keys = shard_tensor_size(key, 2);
    shard_tensor *scores = shard_matmul(query, shard_transpose(key, 2, 3));
    scores = shard_scale(scores, 1 / sqrt((double)shard_tensor_size(query, 3)));
    if (causal) {
        uint8_t *seen = malloc((size_t)(queries * keys) + 1);
        for (int64_t i = 0; i < queries * keys; i++)
            seen[i] = i % keys <= i / keys + offset;
        shard_tensor *mask = shard_from_host(seen, SHARD_SHAPE(queries, keys), .dtype = SHARD_UINT8);
        scores = shard_where(mask, scores, shard_full(SHARD_SCALAR, -INFINITY, .dtype = shard_tensor_dtype(scores)));
        free(seen);
    }
    return shard_matmul(shard_softmax(scores), value);
}

START_TEST(as_composed)
{
    bool causal = _i > 0;
    int64_t offset = _i > 1 ? KEYS - QUERIES : 0;
    SHARD_SCOPE
    {
        shard_tensor *x[2][3], *y[2];
        for (int i = 0; i < 2; i++) {
            x[i][0] = make_up_tensor(SHARD_SHAPE(1, HEADS, QUERIES, IN), 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
            x[i][1] = make_up_tensor(SHARD_SHAPE(1, HEADS, KEYS, IN), 2, .dtype = SHARD_FLOAT64, .requires_grad = true);
            x[i][2] = make_up_tensor(SHARD_SHAPE(1, HEADS, KEYS, OUT), 3, .dtype = SHARD_FLOAT64, .requires_grad = true);
        }
        y[0] = composed(x[0][0], x[0][1], x[0][2], causal, offset);
        y[1] = shard_scaled_dot_product_attention(x[1][0], x[1][1], x[1][2], .is_causal = causal, .offset = offset);
        shard_tensor *dy = make_up_tensor(SHARD_SHAPE(1, HEADS, QUERIES, OUT), 4, .dtype = SHARD_FLOAT64);
        double *want = values_of(y[0]);
        check_tensor("y", y[1], want, 1e-12);
        free(want);
        check_ok(shard_backward_from(y[0], dy));
        check_ok(shard_backward_from(y[1], dy));
        for (int i = 0; i < 3; i++) {
            want = values_of(shard_grad(x[0][i]));
            check_tensor("gradient", shard_grad(x[1][i]), want, 1e-12);
            free(want);
        }
    }
}
END_TEST

/* A scale of 0 is 0: each query has the mean of the values. INFINITY is the default, 1 / sqrt(in). */
START_TEST(scales)
{
    SHARD_SCOPE
    {
        shard_tensor *x[3];
        for (int i = 0; i < 3; i++)
            x[i] = make_up_tensor(SHARD_SHAPE(1, HEADS, i ? KEYS : QUERIES, IN), (unsigned)i + 1, .dtype = SHARD_FLOAT64);
        double *of_default = values_of(shard_scaled_dot_product_attention(x[0], x[1], x[2]));
        double *mean = values_of(
            shard_add(shard_mean_dim(x[2], 2, true), shard_zeros(SHARD_SHAPE(1, HEADS, QUERIES, IN), .dtype = SHARD_FLOAT64)));
        check_tensor("infinity", shard_scaled_dot_product_attention(x[0], x[1], x[2], .scale = INFINITY), of_default, 0);
        check_tensor("sqrt", shard_scaled_dot_product_attention(x[0], x[1], x[2], .scale = 1 / sqrt(IN)), of_default, 1e-14);
        check_tensor("zero", shard_scaled_dot_product_attention(x[0], x[1], x[2], .scale = 0), mean, 1e-14);
        free(of_default);
        free(mean);
    }
}
END_TEST

/* A query at a time, with a cache of the keys and values before it, has the rows of all at once. */
START_TEST(generates_with_a_cache)
{
    enum { LENGTH = 9 };
    SHARD_SCOPE
    {
        shard_tensor *x[3];
        for (int i = 0; i < 3; i++)
            x[i] = make_up_tensor(SHARD_SHAPE(2, 3, LENGTH, 4), 5 + (unsigned)i, .dtype = SHARD_FLOAT64);
        shard_tensor *all = shard_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = true), *row[LENGTH];
        for (int64_t i = 0; i < LENGTH; i++)
            row[i] = shard_scaled_dot_product_attention(shard_narrow(x[0], 2, i, 1), shard_narrow(x[1], 2, 0, i + 1),
                                                        shard_narrow(x[2], 2, 0, i + 1), .is_causal = true, .offset = i);
        double *want = values_of(all);
        check_tensor("rows", shard_concatenate(row, LENGTH, 2), want, 1e-14);
        free(want);
    }
}
END_TEST

/* ---- memory ---- */

static int64_t peak_of(int64_t length)
{
    shard_device *device = shard_default_device();
    int64_t peak = 0;
    SHARD_SCOPE
    {
        shard_tensor *x[3];
        for (int i = 0; i < 3; i++)
            x[i] = make_up_tensor(SHARD_SHAPE(1, 2, length, 8), 1 + (unsigned)i, .requires_grad = true);
        shard_reset_peak_memory(device);
        check_ok(shard_backward(shard_sum(shard_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = true))));
        peak = shard_get_memory_stats(device).peak;
    }
    return peak;
}

/* Four times the length takes at most four times the memory, and not even 16 bits for each query and key. */
START_TEST(memory_is_linear)
{
    peak_of(16); /* what is made once */
    int64_t some = peak_of(512), more = peak_of(2048);
    ck_assert_msg(more < 4 * some, "%lld and %lld bytes", (long long)some, (long long)more);
    ck_assert_msg(more < (int64_t)2 * 2 * 2048 * 2048, "%lld bytes", (long long)more);
}
END_TEST

/* ---- placements ---- */

#define SHAPES(heads, key_heads)                                                                                                 \
    {                                                                                                                            \
        SHARD_SHAPE(5, heads, 3, 2), SHARD_SHAPE(5, key_heads, 4, 2), SHARD_SHAPE(5, key_heads, 4, 3)                            \
    }

static const rule kept[] = {
    {"local", attention, OPTIONS(.is_causal = true), 3, SHAPES(2, 2), {WHOLE, WHOLE, WHOLE}, WHOLE, 0},
    {"batch", attention, OPTIONS(.is_causal = true), 3, SHAPES(4, 2), {0, 0, 0}, 0, 0},
    {"heads", attention, OPTIONS(.is_causal = true), 3, SHAPES(5, 5), {1, 1, 1}, 1, 0},
};

static void check_rules(shard_group *world, void *context)
{
    (void)context;
    check_each_rule(kept, sizeof kept / sizeof *kept, world);
}

/* Weights that are not divided yet stay small: large values do not overflow where their mean does not. */
START_TEST(large_values)
{
    enum { MANY = 200 };
    static float key[MANY];
    for (int j = 0; j < MANY; j++)
        key[j] = j < MANY / 2 ? 0 : 39;
    SHARD_SCOPE
    {
        shard_tensor *q = shard_ones(SHARD_SHAPE(1, 1, 1, 1)), *k = shard_from_host(key, SHARD_SHAPE(1, 1, MANY, 1));
        shard_tensor *v = shard_full(SHARD_SHAPE(1, 1, MANY, 1), 1e22);
        double y = shard_item(shard_scaled_dot_product_attention(q, k, v, .scale = 1));
        ck_assert_double_eq_tol(y / 1e22, 1, 1e-5);
    }
}
END_TEST

START_TEST(rules)
{
    run_ranks(rank_counts[_i], check_rules);
}
END_TEST

/* Heads by key heads: each rank has the heads of its key heads, which may be none. */
static void check_grouped_heads(shard_group *world, void *context)
{
    (void)context;
    enum { KEY_HEADS = 3, GROUP = 2 };
    SHARD_SCOPE
    {
        shard_range own = shard_split_range(KEY_HEADS, shard_group_size(world), shard_group_rank(world));
        shard_tensor *whole[3], *part[3];
        for (int i = 0; i < 3; i++) {
            int64_t each = i == 0 ? GROUP : 1, features = i == 2 ? 3 : 2;
            whole[i] = make_up_tensor(SHARD_SHAPE(2, each * KEY_HEADS, 4, features), 1 + (unsigned)i, .dtype = SHARD_FLOAT64,
                                      .requires_grad = true);
            part[i] = shard_detach(shard_clone(shard_narrow(whole[i], 1, each * own.start, each * own.size)));
            part[i] = shard_as_split(part[i], 1, world, each * own.start, each * KEY_HEADS);
            shard_set_requires_grad(part[i], true);
        }
        shard_tensor *y = shard_scaled_dot_product_attention(whole[0], whole[1], whole[2], .is_causal = true);
        shard_tensor *mine = shard_scaled_dot_product_attention(part[0], part[1], part[2], .is_causal = true);
        ck_assert_msg(mine, "%s", shard_last_error());
        double *want = values_of(shard_narrow(y, 1, GROUP * own.start, GROUP * own.size));
        check_tensor("y", mine, want, 1e-14);
        free(want);
        check_ok(shard_backward(shard_sum(y)));
        check_ok(shard_backward(shard_reduce_from_group(shard_sum(mine), world)));
        for (int i = 0; i < 3; i++) {
            int64_t each = i == 0 ? GROUP : 1;
            want = values_of(shard_narrow(shard_grad(whole[i]), 1, each * own.start, each * own.size));
            check_tensor("gradient", shard_grad(part[i]), want, 1e-14);
            free(want);
        }
    }
}

START_TEST(grouped_heads)
{
    run_ranks(rank_counts[_i], check_grouped_heads);
}
END_TEST

static void check_refuses_placements(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_size(world) == 1)
        return;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 3, 4, 5)), *split[4];
        int64_t ranks = shard_group_size(world), rank = shard_group_rank(world);
        for (int i = 0; i < 4; i++)
            split[i] = shard_as_split(shard_ones(SHARD_SHAPE(2, 3, 4, 5)), i, world, rank * shard_tensor_size(x, i),
                                      ranks * shard_tensor_size(x, i));
        shard_tensor *partial = shard_as_placed(x, (shard_placement){.kind = SHARD_PARTIAL, .group = world});
        for (int i = 2; i < 4; i++)
            check_refused(shard_scaled_dot_product_attention(split[i], split[i], split[i]), SHARD_ERROR_UNSUPPORTED,
                          "shard_scaled_dot_product_attention: no rule *");
        check_refused(shard_scaled_dot_product_attention(partial, partial, partial), SHARD_ERROR_UNSUPPORTED,
                      "shard_scaled_dot_product_attention: no rule *");
        check_refused(shard_scaled_dot_product_attention(split[0], x, x), SHARD_ERROR_UNSUPPORTED,
                      "shard_scaled_dot_product_attention: query is split *");
        check_refused(shard_scaled_dot_product_attention(x, split[0], split[0]), SHARD_ERROR_UNSUPPORTED,
                      "shard_scaled_dot_product_attention: query is local*");
        check_refused(shard_scaled_dot_product_attention(split[1], split[0], split[0]), SHARD_ERROR_UNSUPPORTED, "*group*");
        check_refused(shard_scaled_dot_product_attention(split[1], split[1], x), SHARD_ERROR_UNSUPPORTED, "*value is local*");
    }
}

START_TEST(refuses_placements)
{
    run_ranks(rank_counts[_i], check_refuses_placements);
}
END_TEST

/* ---- errors ---- */

START_TEST(refuses)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 4, 3, 5)), *other = shard_ones(SHARD_SHAPE(2, 3, 3, 5));
        check_refused(shard_scaled_dot_product_attention(x, x, shard_ones(SHARD_SHAPE(2, 4, 2, 5))), SHARD_ERROR_SHAPE,
                      "shard_scaled_dot_product_attention: query, key and value have shapes *");
        check_refused(shard_scaled_dot_product_attention(x, shard_ones(SHARD_SHAPE(2, 4, 3, 4)), x), SHARD_ERROR_SHAPE,
                      "*shapes*");
        check_refused(shard_scaled_dot_product_attention(x, other, other), SHARD_ERROR_SHAPE, "*multiple of key heads*");
        check_refused(shard_scaled_dot_product_attention(shard_ones(SHARD_SHAPE(3, 4, 3, 5)), x, x), SHARD_ERROR_SHAPE,
                      "*shapes*");
        check_refused(shard_scaled_dot_product_attention(shard_ones(SHARD_SHAPE(5)), x, x), SHARD_ERROR_SHAPE, "*shapes*");
        check_refused(shard_scaled_dot_product_attention(x, shard_cast(x, SHARD_FLOAT64), x), SHARD_ERROR_SHAPE, "*dtype*");
        check_refused(shard_scaled_dot_product_attention(x, x, NULL), SHARD_ERROR_ARGUMENT, "*operand is NULL*");
        check_refused(shard_scaled_dot_product_attention(x, x, x, .offset = 1), SHARD_ERROR_ARGUMENT, "*offset of 1*is_causal*");
        check_refused(shard_scaled_dot_product_attention(x, x, x, .is_causal = true, .offset = -1), SHARD_ERROR_ARGUMENT,
                      "*offset of -1*");
        check_refused(shard_scaled_dot_product_attention(x, x, x, .scale = NAN), SHARD_ERROR_ARGUMENT, "*scale of *nan*");
        check_refused(shard_scaled_dot_product_attention(x, x, x, .scale = -INFINITY), SHARD_ERROR_ARGUMENT, "*scale of -inf*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("attention");
    TCase *tcase = test_case(suite, "attention");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_loop_test(tcase, as_composed, 0, 3);
    tcase_add_test(tcase, scales);
    tcase_add_test(tcase, generates_with_a_cache);
    tcase_add_test(tcase, memory_is_linear);
    tcase_add_test(tcase, refuses);
    TCase *ranks = test_case(suite, "ranks");
    tcase_add_test(tcase, large_values);
    add_ranks_test(ranks, rules);
    add_ranks_test(ranks, grouped_heads);
    add_ranks_test(ranks, refuses_placements);
    return test_run(suite);
}
