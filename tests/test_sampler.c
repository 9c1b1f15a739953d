/* Epochs are permutations; any number of ranks sees the same batches. */
#include "support/check.h"

#include "sampler.h"

#include <math.h>
#include <stdlib.h>

static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097};
static const int ranks[] = {1, 2, 3, 4, 8};

static int64_t *epoch_of(const sampler *sampling, int64_t epoch)
{
    int64_t *samples = malloc((size_t)(sampling->samples + 1) * sizeof *samples);
    for (int64_t i = 0; i < sampling->samples; i++)
        samples[i] = sampler_sample(sampling, epoch, i);
    return samples;
}

static void check_permutation(const int64_t *samples, int64_t count)
{
    bool *seen = calloc((size_t)count + 1, sizeof *seen);
    for (int64_t i = 0; i < count; i++) {
        ck_assert(samples[i] >= 0 && samples[i] < count);
        ck_assert_msg(!seen[samples[i]], "%d twice", (int)samples[i]);
        seen[samples[i]] = true;
    }
    free(seen);
}

START_TEST(test_each_once)
{
    for (uint64_t seed = 0; seed < 5; seed++)
        for (int64_t epoch = 0; epoch < 5; epoch++) {
            sampler sampling = {.samples = sizes[_i], .batch = 8, .seed = seed, .shuffle = true};
            int64_t *samples = epoch_of(&sampling, epoch);
            check_permutation(samples, sizes[_i]);
            free(samples);
        }
}
END_TEST

/* Put together in rank order, the ranks' parts are the single rank's batches. */
START_TEST(test_same_for_any_ranks)
{
    sampler sampling = {.samples = sizes[_i], .batch = 13, .seed = 3, .shuffle = true};
    ck_assert_int_eq(sampler_steps(&sampling), (sizes[_i] + 12) / 13);
    for (int n = 0; n < 5; n++) {
        int64_t position = 0;
        for (int64_t step = 0; step < sampler_steps(&sampling); step++) {
            int64_t start = position, largest = 0, smallest = 13;
            for (int rank = 0; rank < ranks[n]; rank++) {
                shard_range part = sampler_part(&sampling, step, ranks[n], rank);
                ck_assert_int_eq(part.start, position);
                position += part.size;
                largest = part.size > largest ? part.size : largest;
                smallest = part.size < smallest ? part.size : smallest;
            }
            int64_t left = sizes[_i] - start;
            ck_assert_int_eq(position - start, left < 13 ? left : 13);
            ck_assert_int_le(largest - smallest, 1);
        }
        ck_assert_int_eq(position, sizes[_i]);
    }
}
END_TEST

static double correlation(const int64_t *a, const int64_t *b, int64_t count)
{
    double middle = (double)(count - 1) / 2, both = 0, own = 0;
    for (int64_t i = 0; i < count; i++) {
        both += ((double)a[i] - middle) * ((double)b[i] - middle);
        own += ((double)a[i] - middle) * ((double)a[i] - middle);
    }
    return both / own;
}

/* Neighbours, other epochs and other seeds have nothing to do with one another. */
START_TEST(test_shuffles)
{
    enum { COUNT = 20000 };
    sampler sampling = {.samples = COUNT, .batch = 10, .seed = 1, .shuffle = true}, other = sampling;
    other.seed = 2;
    int64_t *a = epoch_of(&sampling, 0), *b = epoch_of(&sampling, 1), *c = epoch_of(&other, 0), *again = epoch_of(&sampling, 0);
    int64_t *in_order = malloc(COUNT * sizeof *in_order);
    for (int64_t i = 0; i < COUNT; i++)
        in_order[i] = i;
    ck_assert_mem_eq(a, again, COUNT * sizeof *a);
    double limit = 4 / sqrt(COUNT);
    ck_assert_double_lt(fabs(correlation(a, in_order, COUNT)), limit);
    ck_assert_double_lt(fabs(correlation(a, b, COUNT)), limit);
    ck_assert_double_lt(fabs(correlation(a, c, COUNT)), limit);
    ck_assert_double_lt(fabs(correlation(a + 1, a, COUNT - 1)), limit);
    int64_t fixed = 0;
    for (int64_t i = 0; i < COUNT; i++)
        fixed += a[i] == i;
    ck_assert_int_lt(fixed, 10); /* 1 is expected */
    free(a), free(b), free(c), free(again), free(in_order);
}
END_TEST

/* All 24 orders of four samples come, each about as often. */
START_TEST(test_small_permutations)
{
    enum { SEEDS = 24000 };
    int count[256] = {0}, orders = 0;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        sampler sampling = {.samples = 4, .batch = 1, .seed = seed, .shuffle = true};
        unsigned order = 0;
        for (int64_t i = 0; i < 4; i++)
            order = order << 2 | (unsigned)sampler_sample(&sampling, 0, i);
        count[order]++;
    }
    for (int i = 0; i < 256; i++) {
        orders += count[i] > 0;
        ck_assert(count[i] == 0 || abs(count[i] - 1000) < 200);
    }
    ck_assert_int_eq(orders, 24);
}
END_TEST

START_TEST(test_in_order)
{
    sampler sampling = {.samples = 50, .batch = 8, .seed = 1};
    for (int64_t i = 0; i < 50; i++)
        ck_assert_int_eq(sampler_sample(&sampling, 7, i), i);
}
END_TEST

START_TEST(test_large)
{
    sampler sampling = {.samples = (int64_t)1 << 40, .batch = 1, .seed = 1, .shuffle = true};
    for (int64_t i = 0; i < 1000; i++) {
        int64_t sample = sampler_sample(&sampling, 0, i << 20);
        ck_assert(sample >= 0 && sample < sampling.samples);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("sampler");
    TCase *tcase = test_case(suite, "sampler");
    tcase_add_loop_test(tcase, test_each_once, 0, sizeof sizes / sizeof *sizes);
    tcase_add_loop_test(tcase, test_same_for_any_ranks, 0, sizeof sizes / sizeof *sizes);
    tcase_add_test(tcase, test_shuffles);
    tcase_add_test(tcase, test_small_permutations);
    tcase_add_test(tcase, test_in_order);
    tcase_add_test(tcase, test_large);
    return test_run(suite);
}
