/* Ranks that fail together: whatever one rank does wrong, all get the same text, in time, and after a failure
 * that is forgiven the group works on. test_gone_ranks.c has ranks that go. */
#include "support/collectives.h"
#include "support/ranks.h"

#include "base/kept_error.h"
#include "base/random.h"
#include "comm/comm.h"
#include "comm/culprits.h"
#include "comm/preflight.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- ranks by name ---- */

/* A text has room for what follows the names of many ranks. */
START_TEST(test_names_many_ranks)
{
    enum { RANKS = 300 };
    bool marked[RANKS];
    char text[SHARD_COMM_TEXT] = "";
    for (int i = 0; i < RANKS; i++)
        marked[i] = true;
    shard_write_culprits(RANKS, marked, "shard_barrier", NULL, text, sizeof text);
    ck_assert_str_eq(text,
                     "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 292 more did not come to shard_barrier within 600 s (SHARD_TIMEOUT)");
    for (int i = 2; i < RANKS; i++)
        marked[i] = i < 8;
    text[0] = '\0';
    shard_group_name_ranks(&(shard_group){.size = RANKS}, marked, text, sizeof text);
    ck_assert_str_eq(text, "ranks 0, 1, 2, 3, 4, 5, 6 and 7");
    marked[299] = true;
    text[0] = '\0';
    shard_group_name_ranks(&(shard_group){.size = RANKS}, marked, text, sizeof text);
    ck_assert_str_eq(text, "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 1 more");
}
END_TEST

/* ---- different calls ---- */

static float data[1000];

static void differ(shard_group *world, int what)
{
    int rank = shard_group_rank(world);
    bool odd = rank == 1;
    int64_t counts[] = {2, odd ? 4 : 3, odd ? 3 : 4};
    switch (what) {
    case 0:
        shard_group_all_reduce(world, NULL, data, odd ? 12 : 10, SHARD_FLOAT32, SHARD_SUM);
        break;
    case 1:
        shard_group_all_reduce(world, NULL, data, 100, odd ? SHARD_INT32 : SHARD_FLOAT32, SHARD_SUM);
        break;
    case 2:
        shard_group_all_reduce(world, NULL, data, 10, SHARD_FLOAT32, odd ? SHARD_MAX : SHARD_SUM);
        break;
    case 3:
        shard_group_broadcast(world, NULL, data, 10, SHARD_FLOAT32, odd ? 2 : 0);
        break;
    case 4:
        shard_group_all_gather(world, NULL, data + 500, data, counts, SHARD_FLOAT64);
        break;
    case 5:
        shard_group_reduce_scatter(world, NULL, data, data + 500, counts, SHARD_FLOAT64, SHARD_MIN);
        break;
    case 6:
        if (odd)
            shard_barrier(world);
        else
            shard_agree(world);
        break;
    case 7:
        shard_group_exchange(world, data, odd ? 3 : 400, data + 8);
        break;
    case 8:
        shard_group_wait(world, NULL, start_all_reduce(world, NULL, data, 900 + rank / 2, SHARD_FLOAT32, SHARD_SUM));
        break;
    default:
        shard_group_all_reduce(world, NULL, data, 10 + rank, SHARD_UINT8, SHARD_SUM);
    }
}

static const char *const differences[] = {
    "rank 1 calls all_reduce of 12 float32 while ranks 0 and 2 call all_reduce of 10 float32",
    "rank 1 calls all_reduce of 100 int32 while ranks 0 and 2 call all_reduce of 100 float32",
    "rank 1 calls all_reduce (max) of 10 float32 while ranks 0 and 2 call all_reduce of 10 float32",
    "rank 1 calls broadcast of 10 float32 from rank 2 while ranks 0 and 2 call broadcast of 10 float32 from rank 0",
    "rank 1 calls all_gather of 2 + 4 + 3 float64 while ranks 0 and 2 call all_gather of 2 + 3 + 4 float64",
    "rank 1 calls reduce_scatter (min) of 2 + 4 + 3 float64 while ranks 0 and 2 call reduce_scatter (min) of 2 + 3 + 4 float64",
    "rank 1 calls shard_barrier while ranks 0 and 2 call shard_agree",
    "rank 1 calls exchange of 3 bytes while ranks 0 and 2 call exchange of 400 bytes",
    "rank 2 calls all_reduce of 901 float32 while ranks 0 and 1 call all_reduce of 900 float32",
    "rank 1 calls all_reduce of 11 uint8 while rank 0 calls all_reduce of 10 uint8",
};
#define DIFFERENCES ((int)(sizeof differences / sizeof *differences))

static void mismatches(shard_group *world, void *context)
{
    (void)context;
    for (int what = 0; what < DIFFERENCES; what++) {
        differ(world, what);
        check_error(SHARD_ERROR_MISMATCH, differences[what]);
    }
    check_sizes(world, 1000, RANK_ORDER);
}

START_TEST(test_mismatch)
{
    run_ranks(3, mismatches);
}
END_TEST

/* The collectives of one group in another order, at one rank. */
static void loses_count(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1)
        world->sequence++;
    ck_assert_int_eq(shard_barrier(world), SHARD_ERROR_MISMATCH);
    check_error(SHARD_ERROR_MISMATCH,
                "rank 1 calls shard_barrier as collective 3 of the group while rank 0 calls shard_barrier as collective 2*");
}

START_TEST(test_sequence)
{
    run_ranks(2, loses_count);
}
END_TEST

/* ---- a rank with an error ---- */

#define ERROR_TEXT "rank 2: label 17 out of range \\[0, 10)"

static void check_joint(shard_group *world, shard_status own)
{
    check_error(shard_group_rank(world) == 2 ? own : SHARD_ERROR_PEER, ERROR_TEXT);
}

static void one_fails(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    int64_t counts[8] = {3, 1, 4, 1, 5, 9, 2, 6};
    for (int what = 0; what < 8; what++) {
        bool fails = rank == 2;
        shard_status status = SHARD_OK;
        float *some = fails ? NULL : data; /* what a failed maker hands on */
        if (fails)
            shard_error(SHARD_ERROR_ARGUMENT, "label %d out of range [0, %d)", 17, 10);
        if (what == 0)
            status = shard_group_all_reduce(world, NULL, some, 500, SHARD_FLOAT32, SHARD_SUM);
        if (what == 1)
            status = shard_group_all_gather(world, NULL, some, some, counts, SHARD_FLOAT32);
        if (what == 2)
            status = shard_group_reduce_scatter(world, NULL, some, some, counts, SHARD_INT64, SHARD_MAX);
        if (what == 3)
            status = shard_group_broadcast(world, NULL, some, 5, SHARD_FLOAT32, 1);
        if (what == 4)
            status = shard_group_exchange(world, some, 8, data + 100);
        if (what == 5)
            status = shard_group_wait(world, NULL, start_all_reduce(world, NULL, some, 9, SHARD_FLOAT32, SHARD_SUM));
        if (what == 6)
            status = shard_agree(world);
        if (what == 7)
            status = fails ? shard_group_fail(world) : shard_barrier(world);
        ck_assert_int_eq(status, fails ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER);
        /* Not cleared, it is told again, as it is. */
        ck_assert_int_ne(shard_barrier(world), SHARD_OK);
        check_joint(world, SHARD_ERROR_ARGUMENT);
        ck_assert_int_le(size, 8);
    }
    check_sizes(world, 1000, RANK_ORDER);
}

START_TEST(test_one_fails)
{
    run_ranks(rank_counts[_i + 2], one_fails);
}
END_TEST

static void two_fail(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    if (rank == 3)
        shard_error(SHARD_ERROR_MEMORY, "no memory");
    if (rank == 2)
        shard_error(SHARD_ERROR_IO, "disk full");
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    check_error(rank == 2 ? SHARD_ERROR_IO : rank == 3 ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "rank 2: disk full");
    check_ok(shard_agree(world));
}

START_TEST(test_lowest_first)
{
    run_ranks(4, two_fail);
}
END_TEST

/* An error is known by the rank and the serial number that it began with, not by its text. */
static void says_the_same(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_kept_error kept;
    if (rank == 1)
        shard_error(SHARD_ERROR_IO, "disk full");
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    shard_keep_error(&kept);
    check_ok(shard_agree(world));
    shard_put_back_error(&kept);
    ck_assert(shard_error_is_joint(shard_group_size(world)));
    check_error(rank == 1 ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 1: disk full");
    if (rank == 2)
        shard_error(SHARD_ERROR_IO, "rank 1: disk full");
    ck_assert(!shard_error_is_joint(shard_group_size(world)));
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    check_error(rank == 2 ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 2: rank 1: disk full");
}

START_TEST(test_says_the_same)
{
    run_ranks(3, says_the_same);
}
END_TEST

static void take_draws(int count)
{
    for (int i = 0; i < count; i++)
        shard_next_draw();
}

static void check_state(int64_t seed, int64_t next_draw)
{
    ck_assert_int_eq(shard_get_random_state().seed, seed);
    ck_assert_int_eq(shard_get_random_state().next_draw, next_draw);
}

/* A rank that fails takes fewer draws than the others. After the error they are as far apart as they were before. */
static void draws_after_an_error(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    int64_t more = 4; /* of the ranks that do not fail */
    shard_manual_seed(5);
    take_draws(rank); /* a rank's own, of which the others do not know */
    check_ok(shard_barrier(world));
    for (int times = 1; times < 3; times++) {
        take_draws(rank == 1 ? 1 : 4);
        if (rank == 1)
            shard_error(SHARD_ERROR_IO, "disk full");
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
        take_draws(rank); /* before the error is cleared */
        check_error(rank == 1 ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 1: disk full");
        check_state(5, rank + times * more);
    }
    take_draws(2);
    check_ok(shard_barrier(world));
    check_state(5, rank + 2 * more + 2);
    /* A success with the error set aside, as of shard_async_save_finish, passes over the draws before it alone. */
    take_draws(rank);
    if (rank == 1)
        shard_error(SHARD_ERROR_IO, "disk full");
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    shard_aside_error aside;
    ck_assert(shard_set_error_aside(world, &aside));
    check_ok(shard_agree(world));
    shard_return_error(&aside);
    take_draws(rank);
    check_error(rank == 1 ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 1: disk full");
    check_state(5, rank + 2 * more + 4);
    /* Without a collective meanwhile, as where the save is this rank's alone, the draws stay those that any rank had taken. */
    check_ok(shard_barrier(world));
    take_draws(rank == 1 ? 1 : 4);
    if (rank == 1)
        shard_error(SHARD_ERROR_IO, "disk full");
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    if (rank == 1) {
        ck_assert(shard_set_error_aside(NULL, &aside));
        shard_return_error(&aside);
    }
    shard_clear_error();
    /* The next error comes before any draw: it passes over no more. */
    if (rank == 2)
        shard_error(SHARD_ERROR_IO, "disk full");
    ck_assert_int_ne(shard_agree(world), SHARD_OK);
    shard_clear_error();
    check_state(5, rank + 3 * more + 4);
    /* An error before any draw passes over none, as in a job of one rank. */
    check_ok(shard_barrier(world));
    shard_error(SHARD_ERROR_IO, "no such file");
    shard_agree(world);
    shard_clear_error();
    check_state(5, rank + 3 * more + 4);
    if (rank == 1)
        shard_error(SHARD_ERROR_IO, "disk full");
    shard_agree(world);
    shard_clear_error();
    shard_manual_seed(6);
    check_state(6, 0);
}

START_TEST(test_draws_after_an_error)
{
    run_ranks(3, draws_after_an_error);
}
END_TEST

/* A text that is too long to be told whole is cut between characters, and known as told afterwards. */
static void long_texts(shard_group *world, void *context)
{
    (void)context;
    for (int shift = 0; shift < 4; shift++) {
        char text[900] = "abc";
        for (int i = 0; i < 400; i++)
            strcpy(text + shift + 2 * i, "\u00e9");
        if (shard_group_rank(world) == 1)
            shard_error(SHARD_ERROR_IO, "%s", text);
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
        ck_assert(shard_error_is_joint(shard_group_size(world)));
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
        ck_assert_ptr_null(strchr(shard_last_error(), '\\'));
        ck_assert_ptr_null(strstr(shard_last_error() + 1, "rank "));
        check_error(shard_group_rank(world) == 1 ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 1: *\u00e9");
        check_ok(shard_agree(world));
    }
}

START_TEST(test_long_texts)
{
    run_ranks(_i, long_texts);
}
END_TEST

static void wrong_arguments(shard_group *world, void *context)
{
    (void)context;
    bool odd = shard_group_rank(world) == 1;
    shard_status own = odd ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER;
    ck_assert_int_eq(shard_group_broadcast(world, NULL, data, 5, SHARD_FLOAT32, odd ? 3 : 0), own);
    check_error(own, "rank 1: shard_group_broadcast: root 3*");
    ck_assert_int_eq(shard_group_all_reduce(world, NULL, odd ? NULL : data, 500, SHARD_FLOAT32, SHARD_SUM), own);
    check_error(own, "rank 1: shard_group_all_reduce: data *");
    ck_assert_int_eq(shard_group_all_reduce(world, NULL, data, odd ? -1 : 5, SHARD_FLOAT32, SHARD_SUM), own);
    check_error(own, "rank 1: shard_group_all_reduce: -1*");
    ck_assert_int_eq(shard_group_all_reduce(world, NULL, data, 5, odd ? (shard_dtype)7 : SHARD_FLOAT32, SHARD_SUM), own);
    check_error(own, "rank 1: shard_group_all_reduce: *dtype 7*");
    ck_assert_int_eq(shard_group_all_reduce(world, NULL, data, 5, SHARD_FLOAT32, odd ? (shard_reduce_op)3 : SHARD_SUM), own);
    check_error(own, "rank 1: shard_group_all_reduce: *operation 3*");
    ck_assert_int_eq(shard_group_all_gather(world, NULL, data, data, odd ? NULL : (int64_t[]){1, 1, 1}, SHARD_FLOAT32), own);
    check_error(own, "rank 1: shard_group_all_gather: counts *");
    ck_assert_int_eq(shard_group_exchange(world, data, odd ? SHARD_EXCHANGE_BYTES + 1 : 8, data), own);
    check_error(own, "rank 1: shard_group_exchange: 1025*");
    check_sizes(world, 100, RANK_ORDER);
}

START_TEST(test_wrong_arguments)
{
    run_ranks(3, wrong_arguments);
}
END_TEST

/* A failure in one group is told in the next, once more without a prefix of its own;
 * a maker that is handed NULL on all ranks says nothing new. */
static void fails_in_a_group(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_group *half = shard_group_make(world, rank < 2 ? (const int[]){0, 1} : (const int[]){2, 3}, 2);
    if (rank == 2)
        shard_error(SHARD_ERROR_ARGUMENT, "label 17 out of range [0, 10)");
    ck_assert_int_eq(shard_barrier(half) == SHARD_OK, rank < 2);
    ck_assert_int_ne(shard_barrier(world), SHARD_OK);
    check_joint(world, SHARD_ERROR_ARGUMENT);

    if (rank == 2)
        shard_error(SHARD_ERROR_ARGUMENT, "label 17 out of range [0, 10)");
    shard_group *again = shard_group_make(half, (const int[]){0, 1}, 2);
    ck_assert_int_eq(again != NULL, rank < 2);
    shard_group_free(again);
    shard_agree(world);
    check_joint(world, SHARD_ERROR_ARGUMENT);
    check_ok(shard_barrier(half));
    shard_group_free(half);
}

START_TEST(test_fails_in_a_group)
{
    run_ranks(4, fails_in_a_group);
}
END_TEST

/* A rank that fails skips a collective of its half, and comes to one of the world: those
 * that wait for it in the half do not wait for the deadline. */
static void skips_a_group(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_group *half = shard_group_make(world, rank < 2 ? (const int[]){0, 1} : (const int[]){2, 3}, 2);
    double start = now();
    if (rank == 3)
        shard_error(SHARD_ERROR_ARGUMENT, "label 17 out of range [0, 10)");
    else
        ck_assert_int_eq(shard_barrier(half), rank < 2 ? SHARD_OK : SHARD_ERROR_PEER);
    shard_barrier(world);
    ck_assert_double_lt(now() - start, 10 * deadline_multiplier());
    check_error(rank == 3 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "rank 3: label 17 out of range [[]0, 10)");
    check_ok(shard_barrier(world)); /* the world works on; the half is broken for good */
    if (rank == 2) {
        shard_barrier(half);
        check_error(SHARD_ERROR_PEER, "this group cannot be used any more, *: rank 3: label 17 out of range [[]0, 10)");
    }
    shard_group_free(half);
}

START_TEST(test_skips_a_group)
{
    run_ranks(4, skips_a_group);
}
END_TEST

static void pause_half_a_second(int number)
{
    (void)number;
    usleep(500 * 1000);
}

/* A rank that waits with its error is paused until the others, which have its error, wait for its text. It is in no other group.
 */
static void pauses_with_an_error(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1) {
        signal(SIGALRM, pause_half_a_second);
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = 50000}, NULL);
        shard_error(SHARD_ERROR_ARGUMENT, "label 17 out of range [0, 10)");
    } else {
        usleep(100 * 1000); /* it waits */
    }
    shard_barrier(world);
    check_error(shard_group_rank(world) == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER,
                "rank 1: label 17 out of range [[]0, 10)");
    check_ok(shard_barrier(world));
}

START_TEST(test_pauses_with_an_error)
{
    run_ranks(3, pauses_with_an_error);
}
END_TEST

/* One rank comes to the step's end alone, having failed; the others have as many collectives
 * before that. All learn of it in their next one, enter no more, and are together again. */
static void meets_again(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    for (int step = 0; step < 4; step++) {
        if (step % 2 == 0 && rank == 1)
            shard_error(SHARD_ERROR_ARGUMENT, "step %d", step);
        double sum[40] = {rank + step};
        for (int i = 0; i < step + 2 && shard_last_status() != SHARD_ERROR_ARGUMENT; i++) {
            sum[0] = rank + step;
            shard_group_all_reduce(world, NULL, sum, 40, SHARD_FLOAT64, SHARD_SUM);
        }
        shard_status status = shard_agree(world);
        if (step % 2 == 0) {
            char expected[] = {'r', 'a', 'n', 'k', ' ', '1', ':', ' ', 's', 't', 'e', 'p', ' ', (char)('0' + step), 0};
            ck_assert_int_eq(status, rank == 1 ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER);
            check_error(status, expected);
        } else {
            check_ok(status);
            ck_assert_double_eq(sum[0], size * (size - 1) / 2 + size * step);
        }
    }
}

START_TEST(test_meets_again)
{
    run_ranks(rank_counts[_i], meets_again);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("joint failure");
    TCase *tcase = test_case(suite, "names");
    tcase_add_test(tcase, test_names_many_ranks);
    tcase = test_case(suite, "calls");
    tcase_add_test(tcase, test_mismatch);
    tcase_add_test(tcase, test_sequence);
    tcase = test_case(suite, "errors");
    tcase_add_loop_test(tcase, test_one_fails, 0, 3);
    tcase_add_test(tcase, test_lowest_first);
    tcase_add_test(tcase, test_says_the_same);
    tcase_add_test(tcase, test_draws_after_an_error);
    tcase_add_loop_test(tcase, test_long_texts, 2, 4);
    tcase_add_test(tcase, test_wrong_arguments);
    tcase_add_test(tcase, test_fails_in_a_group);
    tcase_add_test(tcase, test_skips_a_group);
    tcase_add_test(tcase, test_pauses_with_an_error);
    tcase_add_loop_test(tcase, test_meets_again, 1, RANK_COUNTS);
    return test_run(suite);
}
