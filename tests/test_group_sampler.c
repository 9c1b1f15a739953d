/* Epochs are permutations; any number of ranks sees the same batches, a model group the same one. */
#include "support/job.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 16, 17, 100, 1000, 4097};
#define SIZES ((int)(sizeof sizes / sizeof *sizes))
static const int ranks[] = {1, 2, 3, 4, 8};

#define make(samples, ...) made(shard_group_sampler_create(samples, __VA_ARGS__))
static shard_group_sampler *made(shard_group_sampler *sampler)
{
    ck_assert_msg(sampler != NULL, "%s", shard_last_error());
    return sampler;
}

static int64_t *epoch_of(uint64_t seed, int64_t epoch, int64_t count)
{
    shard_group_sampler *sampler = make(count, .batch = 8, .seed = seed, .shuffle = true);
    int64_t *samples = malloc((size_t)(count + 1) * sizeof *samples);
    for (int64_t i = 0; i < count; i++)
        samples[i] = shard_group_sampler_sample_at(sampler, epoch, i);
    shard_group_sampler_destroy(sampler);
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
            int64_t *samples = epoch_of(seed, epoch, sizes[_i]);
            check_permutation(samples, sizes[_i]);
            free(samples);
        }
}
END_TEST

/* Put together in rank order, the ranks' parts are the single rank's batches. */
START_TEST(test_same_for_any_ranks)
{
    int64_t *whole = epoch_of(3, 2, sizes[_i]), samples[13], count;
    for (int n = 0; n < 5; n++) {
        shard_group_sampler *sampler[8];
        for (int r = 0; r < ranks[n]; r++) {
            sampler[r] = make(sizes[_i], .batch = 13, .ranks = ranks[n], .rank = r, .seed = 3, .shuffle = true,
                              .last_batch = SHARD_LAST_BATCH_EXACT);
            ck_assert_int_eq(shard_group_sampler_last_batch_size(sampler[r]), 0);
            ck_assert_int_eq(shard_group_sampler_steps(sampler[r]), (sizes[_i] + 12) / 13);
            ck_assert_int_eq(shard_group_sampler_max_local_batch(sampler[r]), 13 / ranks[n] + (r < 13 % ranks[n]));
            check_ok(shard_group_sampler_set_epoch(sampler[r], 2));
        }
        int64_t position = 0;
        for (int64_t step = 0; step < (sizes[_i] + 12) / 13; step++) {
            int64_t start = position, largest = 0, smallest = 13;
            for (int r = 0; r < ranks[n]; r++) {
                ck_assert_int_eq(shard_group_sampler_step(sampler[r]), step);
                ck_assert(shard_group_sampler_next(sampler[r], samples, &count));
                ck_assert_int_le(count, shard_group_sampler_max_local_batch(sampler[r]));
                ck_assert_mem_eq(samples, whole + position, (size_t)count * sizeof *samples);
                position += count;
                largest = count > largest ? count : largest;
                smallest = count < smallest ? count : smallest;
            }
            int64_t left = sizes[_i] - start;
            ck_assert_int_eq(position - start, left < 13 ? left : 13);
            ck_assert_int_le(largest - smallest, 1);
            for (int r = 0; r < ranks[n]; r++)
                ck_assert_int_eq(shard_group_sampler_last_batch_size(sampler[r]), position - start);
        }
        ck_assert_int_eq(position, sizes[_i]);
        for (int r = 0; r < ranks[n]; r++) {
            ck_assert(!shard_group_sampler_next(sampler[r], samples, &count));
            ck_assert_int_eq(count, 0);
            shard_group_sampler_destroy(sampler[r]);
        }
    }
    free(whole);
}
END_TEST

/* Each rank has the same number of samples in every step: what is over is left out, or
 * the epoch's first ones come again, also where there are fewer samples than ranks. */
START_TEST(test_even_tails)
{
    int64_t *whole = epoch_of(4, 0, sizes[_i]), samples[6], count;
    for (int n = 0; n < 5; n++) {
        int size = ranks[n];
        for (int drop = 0; drop < 2; drop++) {
            shard_last_batch tail = drop ? SHARD_LAST_BATCH_DROP : SHARD_LAST_BATCH_PAD;
            int64_t all = sizes[_i] / size * size, step = 0, seen[8] = {0};
            if (tail == SHARD_LAST_BATCH_PAD && all < sizes[_i])
                all += size;
            for (int r = 0; r < size; r++) {
                shard_group_sampler *sampler =
                    make(sizes[_i], .batch = 6 * size, .ranks = size, .rank = r, .last_batch = tail, .seed = 4, .shuffle = true);
                ck_assert_int_eq(shard_group_sampler_steps(sampler), (all + 6 * size - 1) / (6 * size));
                for (step = 0; shard_group_sampler_next(sampler, samples, &count); step++) {
                    int64_t left = all - step * 6 * size, each = left < 6 * size ? left / size : 6;
                    ck_assert_int_eq(count, each);
                    ck_assert_int_eq(shard_group_sampler_last_batch_size(sampler), each * size);
                    for (int64_t i = 0; i < count; i++)
                        ck_assert_int_eq(samples[i], whole[(step * 6 * size + r * each + i) % sizes[_i]]);
                    seen[r] += count;
                }
                ck_assert_int_eq(step, shard_group_sampler_steps(sampler));
                ck_assert_int_eq(seen[r], all / size);
                shard_group_sampler_destroy(sampler);
            }
        }
    }
    free(whole);
}
END_TEST

/* Two numbers are all that a run has to keep to go on, on another number of ranks too. */
START_TEST(test_resumes)
{
    enum { COUNT = 103, BATCH = 10 };
    int64_t *whole = epoch_of(9, 5, COUNT), samples[BATCH], count, position = 4 * BATCH;
    shard_metadata *metadata = shard_metadata_create();
    shard_group_sampler *first = make(COUNT, .batch = BATCH, .ranks = 2, .rank = 1, .seed = 9, .shuffle = true);
    check_ok(shard_group_sampler_set_epoch(first, 5));
    for (int step = 0; step < 4; step++)
        ck_assert(shard_group_sampler_next(first, samples, &count));
    check_ok(shard_metadata_set_integer(metadata, "epoch", shard_group_sampler_epoch(first)));
    check_ok(shard_metadata_set_integer(metadata, "epoch_step", shard_group_sampler_step(first)));
    shard_group_sampler_destroy(first);
    int64_t epoch, step;
    check_ok(shard_metadata_get_integer(metadata, "epoch", &epoch));
    check_ok(shard_metadata_get_integer(metadata, "epoch_step", &step));
    shard_group_sampler *later = make(COUNT, .batch = BATCH, .seed = 9, .shuffle = true);
    check_ok(shard_group_sampler_seek(later, epoch, step));
    while (shard_group_sampler_next(later, samples, &count)) {
        ck_assert_mem_eq(samples, whole + position, (size_t)count * sizeof *samples);
        position += count;
    }
    ck_assert_int_eq(position, COUNT);
    check_ok(shard_group_sampler_set_epoch(later, 5)); /* from its beginning */
    ck_assert(shard_group_sampler_next(later, samples, &count));
    ck_assert_mem_eq(samples, whole, BATCH * sizeof *samples);
    shard_group_sampler_destroy(later);
    shard_metadata_destroy(metadata);
    free(whole);
}
END_TEST

/* Over the data group, the ranks of a model group see the same samples, model groups different
 * ones; over the world, each rank its own. */
static void deals_out(shard_group *world, void *context)
{
    enum { COUNT = 50, BATCH = 9 };
    int model = *(const int *)context, size = shard_group_size(world);
    shard_mesh *mesh = shard_mesh_create(.model = model);
    for (int own = 0; own < 2; own++) {
        shard_group *group = own ? world : shard_mesh_data_group(mesh);
        shard_group_sampler *sampler =
            make(COUNT, .batch = BATCH, .group = group, .seed = 1, .shuffle = true, .last_batch = SHARD_LAST_BATCH_EXACT);
        int64_t mine[COUNT + 1] = {0}, samples[BATCH], count, step = 0; /* 1 + the step in which a sample came */
        while (step++, shard_group_sampler_next(sampler, samples, &count))
            for (int64_t i = 0; i < count; i++)
                mine[samples[i]] = step;
        shard_group_sampler_destroy(sampler);
        int64_t all[8 * COUNT];
        SHARD_SCOPE
        {
            shard_tensor *row =
                shard_from_host(mine, SHARD_SHAPE(1, COUNT), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
            check_ok(shard_copy_to_host(shard_gather_from_group(row, 0, world), all, (size_t)(size * COUNT) * sizeof *all));
        }
        for (int i = 0; i < COUNT; i++) {
            int seen = 0;
            for (int r = 0; r < size; r++) {
                int first = own ? r : r / model * model; /* of the ranks that are to see the same */
                ck_assert_int_eq(all[r * COUNT + i], all[first * COUNT + i]);
                seen += r == first && all[r * COUNT + i] > 0;
            }
            ck_assert_int_eq(seen, 1);
        }
    }
    shard_mesh_destroy(mesh);
}

static int meshes[][2] = {{1, 1}, {2, 1}, {1, 2}, {2, 2}, {3, 1}, {2, 4}, {4, 2}};

START_TEST(test_groups)
{
    run_job(meshes[_i][0] * meshes[_i][1], deals_out, &meshes[_i][1]);
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
    int64_t *a = epoch_of(1, 0, COUNT), *b = epoch_of(1, 1, COUNT), *c = epoch_of(2, 0, COUNT), *again = epoch_of(1, 0, COUNT);
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
        unsigned order = 0;
        for (uint64_t i = 0; i < 4; i++)
            order = order << 2 | (unsigned)shard_shuffled_at((shard_draw){seed, 0}, 4, i);
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
    shard_group_sampler *sampler = make(50, .ranks = 2, .rank = 1);
    int64_t sample, count;
    for (int64_t i = 0; i < 25; i++) { /* one sample each */
        ck_assert(shard_group_sampler_next(sampler, &sample, &count));
        ck_assert_int_eq(count, 1);
        ck_assert_int_eq(sample, 2 * i + 1);
    }
    ck_assert(!shard_group_sampler_next(sampler, &sample, &count));
    shard_group_sampler_destroy(sampler);
}
END_TEST

static int in_order(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

START_TEST(test_large)
{
    int64_t samples = (int64_t)1 << 40;
    int64_t found[1000];
    shard_group_sampler *sampler = make(samples, .seed = 1, .shuffle = true);
    for (int64_t i = 0; i < 1000; i++) {
        found[i] = shard_group_sampler_sample_at(sampler, 0, i << 20);
        ck_assert(found[i] >= 0 && found[i] < samples);
    }
    qsort(found, 1000, sizeof *found, in_order);
    for (int i = 1; i < 1000; i++)
        ck_assert_int_ne(found[i], found[i - 1]);
    ck_assert_int_gt(found[999], samples / 2); /* wrong by chance: 2^-1000 */
    shard_group_sampler_destroy(sampler);
}
END_TEST

START_TEST(test_refuses)
{
    ck_assert_ptr_null(shard_group_sampler_create(-1, .batch = 1));
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_create: -1 samples*");
    ck_assert_ptr_null(shard_group_sampler_create(1, .batch = -8));
    check_error(SHARD_ERROR_ARGUMENT, "*in batches of -8*");
    ck_assert_ptr_null(shard_group_sampler_create(1, .ranks = 2, .rank = 2));
    check_error(SHARD_ERROR_ARGUMENT, "*rank 2 of 2*");
    ck_assert_ptr_null(shard_group_sampler_create(1, .ranks = 2, .rank = -1));
    check_error(SHARD_ERROR_ARGUMENT, "*rank -1 of 2*");
    ck_assert_ptr_null(shard_group_sampler_create(10, .batch = 3, .ranks = 2));
    check_error(SHARD_ERROR_ARGUMENT, "*a batch of 3 *of 2 ranks*SHARD_LAST_BATCH_EXACT");
    ck_assert_ptr_null(shard_group_sampler_create(10, .batch = 3, .ranks = 2, .last_batch = SHARD_LAST_BATCH_DROP));
    check_error(SHARD_ERROR_ARGUMENT, "*a batch of 3*");
    ck_assert_ptr_null(shard_group_sampler_create(10, .last_batch = (shard_last_batch)9));
    check_error(SHARD_ERROR_ARGUMENT, "shard_group_sampler_create: last_batch 9 *");
    int64_t count = 7;
    ck_assert(!shard_group_sampler_next(NULL, NULL, &count));
    ck_assert_int_eq(count, 0);
    ck_assert_int_eq(shard_group_sampler_steps(NULL), 0);
    ck_assert_int_eq(shard_group_sampler_last_batch_size(NULL), 0);
}
END_TEST

/* An epoch's end is the last place to go to; what is refused leaves it where it was. */
START_TEST(test_goes_nowhere_else)
{
    shard_group_sampler *sampler = make(25, .batch = 10);
    check_ok(shard_group_sampler_seek(sampler, 7, 3));
    check_fails(shard_group_sampler_set_epoch(sampler, -3), SHARD_ERROR_ARGUMENT, "shard_group_sampler_set_epoch: epoch -3*");
    static const int64_t steps[] = {-5, 4, INT64_MAX};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        check_fails(shard_group_sampler_seek(sampler, 1, steps[i]), SHARD_ERROR_ARGUMENT,
                    "*epoch 1, step *25 samples in batches of 10 has 3 steps");
    ck_assert_int_eq(shard_group_sampler_epoch(sampler), 7);
    ck_assert_int_eq(shard_group_sampler_step(sampler), 3);
    shard_group_sampler_destroy(sampler);
    check_fails(shard_group_sampler_seek(NULL, 0, 0), SHARD_ERROR_ARGUMENT, "shard_group_sampler_seek: sampler *");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("group_sampler");
    TCase *tcase = test_case(suite, "group_sampler");
    tcase_add_loop_test(tcase, test_each_once, 0, SIZES);
    tcase_add_loop_test(tcase, test_same_for_any_ranks, 0, SIZES);
    tcase_add_loop_test(tcase, test_even_tails, 1, SIZES); /* not of none */
    tcase_add_test(tcase, test_resumes);
    tcase_add_loop_test(tcase, test_groups, 0, (int)(sizeof meshes / sizeof *meshes));
    tcase_add_test(tcase, test_shuffles);
    tcase_add_test(tcase, test_small_permutations);
    tcase_add_test(tcase, test_in_order);
    tcase_add_test(tcase, test_large);
    tcase_add_test(tcase, test_refuses);
    tcase_add_test(tcase, test_goes_nowhere_else);
    return test_run(suite);
}
