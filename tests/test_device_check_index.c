/* check_index finds the first bad index, however many there are, and tells arrays apart; labels are found in lists; digests are
 * compared. */
#include "support/check.h"
#include "support/kernels.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const shard_fault outside = {SHARD_ERROR_ARGUMENT, "index %" PRId64 " at %" PRId64 " is outside [0, %" PRId64 ")"};
static const shard_fault different = {SHARD_ERROR_MISMATCH, "rank %" PRId64 " differs from rank %" PRId64 " (%" PRId64 ")"};

/* The error of a call that went `status`, by the time that a device that queues is done. */
static void check_told(shard_device *device, shard_status status, shard_status wanted, const char *keyword)
{
    if (on_other_device()) {
        ck_assert_int_eq(status, SHARD_OK);
        ck_assert_int_eq(shard_last_status(), SHARD_OK);
        status = device->ops->synchronize(device);
    }
    ck_assert_int_eq(status, wanted);
    ck_assert_int_eq(shard_last_status(), wanted);
    ck_assert_msg(strstr(shard_last_error(), keyword) != NULL, "\"%s\" lacks \"%s\"", shard_last_error(), keyword);
    shard_clear_error();
    ck_assert_int_eq(device->ops->synchronize(device), SHARD_OK); /* told once */
}

START_TEST(finds_the_first)
{
    static const int64_t sizes[] = {0, 1, 1000, 1025, 200001};
    static const int64_t wrong[] = {50, -1, INT64_MIN, INT64_MAX};
    shard_device *device;
    uint64_t *hash = array_new(1, SHARD_INT64);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < 5; s++) {
            int64_t n = sizes[s], *index = array_new(n, SHARD_INT64);
            for (int64_t i = 0; i < n; i++)
                index[i] = i % 3 == 0 ? -100 : i % 50;
            RUN(device, check_index, n, index, 50, -100, &outside, NULL);
            for (int64_t at = n - 1; at >= 0; at -= n / 17 + 1) { /* from the last on, so that later ones stay bad */
                char keyword[64];
                index[at] = wrong[at % 4];
                snprintf(keyword, sizeof keyword, "index %" PRId64 " at %" PRId64 " ", index[at], at);
                shard_status status = device->ops->check_index(device, n, index, 50, -100, &outside, at % 2 ? hash : NULL);
                check_told(device, status, SHARD_ERROR_ARGUMENT, keyword);
            }
            array_free(index, n, SHARD_INT64);
        }
    array_free(hash, 1, SHARD_INT64);
}
END_TEST

/* A device that queues tells of the first of several faults, and by whatever waits. */
START_TEST(tells_of_the_first_call)
{
    shard_device *device = tested_device();
    const shard_device_ops *ops = device->ops;
    int64_t *index = array_of(3, SHARD_INT64, (const int64_t[]){4, 9, 7}), copy[3];
    if (!on_other_device())
        return;
    for (int which = 0; which < 3; which++) {
        ck_assert_int_eq(ops->check_index(device, 3, index, 10, -1, &outside, NULL), SHARD_OK);
        ck_assert_int_eq(ops->check_index(device, 3, index, 9, -1, &outside, NULL), SHARD_OK);
        ck_assert_int_eq(ops->check_index(device, 3, index, 5, -1, &outside, NULL), SHARD_OK);
        void *event = ops->event_create(device);
        ck_assert_int_eq(ops->event_record(device, event), SHARD_OK);
        shard_status status = which == 0   ? ops->copy_out(device, copy, index, sizeof copy)
                              : which == 1 ? ops->event_synchronize(device, event)
                                           : ops->synchronize(device);
        ops->event_destroy(device, event);
        ck_assert_int_eq(status, SHARD_ERROR_ARGUMENT);
        ck_assert_ptr_nonnull(strstr(shard_last_error(), "index 9 at 1 "));
        shard_clear_error();
        ck_assert_int_eq(ops->synchronize(device), SHARD_OK);
    }
}
END_TEST

/* Labels as positions in a list of the rows of columns [100, 400) of 1,000; the list has some of them. */
START_TEST(finds_labels)
{
    enum { ROWS = 700, COUNT = 150, IGNORED = -100 };
    static const shard_fault lacking = {SHARD_ERROR_ARGUMENT, "label %" PRId64 " at %" PRId64 " is not in the list of %" PRId64};
    const shard_cross_entropy_shape shape = {.rows = ROWS, .cols = 300, .col0 = 100, .classes = 1000, .ignore_index = IGNORED};
    shard_device *device;
    int64_t *list = array_new(COUNT, SHARD_INT64), *label = array_new(ROWS, SHARD_INT64);
    int64_t *position = array_new(ROWS, SHARD_INT64), *row = array_new(ROWS, SHARD_INT64);
    for (int64_t i = 0; i < COUNT; i++)
        list[i] = 2 * i; /* the even ones */
    for (int64_t i = 0; i < ROWS; i++)
        label[i] = i % 5 == 0   ? IGNORED
                   : i % 5 == 1 ? 100 + 2 * (i % COUNT)
                   : i % 5 == 2 ? i % 100
                   : i % 5 == 3 ? 400 + i % 600
                                : INT64_MAX;
    for (int set = 0; (device = kernel_device(set)); set++) {
        for (int64_t count = COUNT; count >= 0; count -= COUNT) {
            char keyword[80];
            shard_status status = device->ops->find_labels(device, &shape, count, list, label, position, row, &lacking);
            snprintf(keyword, sizeof keyword, "label %" PRId64 " at 1 is not in the list of 0", label[1]);
            if (count == 0)
                check_told(device, status, SHARD_ERROR_ARGUMENT, keyword);
            else
                ck_assert(status == SHARD_OK && device->ops->synchronize(device) == SHARD_OK);
            for (int64_t i = 0; i < ROWS; i++) {
                bool ignored = i % 5 == 0 || i % 5 == 4, found = i % 5 == 1 && count > 0;
                ck_assert_int_eq(position[i], ignored ? -1 : found ? i % COUNT : count);
                ck_assert_int_eq(row[i], found ? 2 * (i % COUNT) : -1);
            }
        }
        label[ROWS - 2] = 101, label[ROWS - 1] = 103; /* two that the list lacks */
        check_told(device, device->ops->find_labels(device, &shape, COUNT, list, label, position, row, &lacking),
                   SHARD_ERROR_ARGUMENT, "label 101 at 698 is not in the list of 150");
        label[ROWS - 2] = label[ROWS - 1] = IGNORED;
        ck_assert(device->ops->find_labels(device, &shape, COUNT, list, label, position, row, &lacking) == SHARD_OK);
        label[ROWS - 2] = 400 + (ROWS - 2) % 600, label[ROWS - 1] = INT64_MAX;
    }
    array_free(list, COUNT, SHARD_INT64);
    array_free(label, ROWS, SHARD_INT64);
    array_free(position, ROWS, SHARD_INT64);
    array_free(row, ROWS, SHARD_INT64);
}
END_TEST

static uint64_t hash_of(shard_device *device, int64_t n, const int64_t *index)
{
    uint64_t *hash = array_new(1, SHARD_INT64), value;
    RUN(device, check_index, n, index, INT64_MAX, -1, &outside, hash);
    value = *hash;
    array_free(hash, 1, SHARD_INT64);
    return value;
}

/* Of other values, places or lengths other hashes; of the same the same. */
START_TEST(hashes)
{
    enum { N = 5000 };
    shard_device *device;
    uint64_t first = 0; /* of the first device: all have the same */
    int64_t *index = array_new(N, SHARD_INT64);
    for (int set = 0; (device = kernel_device(set)); set++) {
        for (int64_t i = 0; i < N; i++)
            index[i] = i * i % 1000;
        uint64_t hash = hash_of(device, N, index);
        ck_assert_uint_eq(hash_of(device, 0, index), 0);
        ck_assert_uint_eq(hash_of(device, N, index), hash);
        ck_assert_uint_ne(hash_of(device, N - 1, index), hash);
        for (int64_t i = 0; i < N; i += 777) {
            index[i]++;
            ck_assert_uint_ne(hash_of(device, N, index), hash);
            index[i]--;
        }
        index[3] = 16, index[4] = 9; /* changed places */
        ck_assert_uint_ne(hash_of(device, N, index), hash);
        first = first ? first : hash;
        ck_assert_uint_eq(hash, first);
    }
    array_free(index, N, SHARD_INT64);
}
END_TEST

START_TEST(compares)
{
    enum { MEMBERS = 5, WORDS = 7 };
    shard_device *device;
    int64_t *words = array_new(MEMBERS * WORDS, SHARD_INT64);
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int odd = 0; odd < MEMBERS; odd++) {
            for (int64_t member = 0; member < MEMBERS; member++) {
                shard_label_digest digest = {.hash = odd > 0 && member >= odd ? 78 : 77, .rank = 10 + 2 * member};
                memcpy(words + member * WORDS + WORDS - 2, &digest, sizeof digest);
            }
            bool first = odd < MEMBERS - odd; /* most have the second hash */
            char keyword[64];
            snprintf(keyword, sizeof keyword, "rank %d differs from rank %d ", first ? 10 : 10 + 2 * odd,
                     first ? 10 + 2 * odd : 10);
            shard_status status = device->ops->compare_digests(device, MEMBERS, WORDS * sizeof *words,
                                                               (shard_label_digest *)(words + WORDS - 2), &different);
            if (odd > 0)
                check_told(device, status, SHARD_ERROR_MISMATCH, keyword);
            else
                ck_assert(status == SHARD_OK && device->ops->synchronize(device) == SHARD_OK);
        }
    array_free(words, MEMBERS * WORDS, SHARD_INT64);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_check_index");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, finds_the_first);
    tcase_add_test(all, tells_of_the_first_call);
    tcase_add_test(all, finds_labels);
    tcase_add_test(all, hashes);
    tcase_add_test(all, compares);
    return test_run(suite);
}
