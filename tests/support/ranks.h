/*
 * Tests that run as several ranks. run_ranks forks the ranks of a world of its
 * own over shared memory, as shardrun would start them, and waits for them. A
 * failed ck_assert, an error that is left, a signal or a hang of a rank fails
 * the test by name, and the other ranks are ended.
 *
 *     static void sums_ranks(shard_group *world, void *context)
 *     {
 *         ck_assert_int_eq(shard_barrier(world), SHARD_OK);
 *     }
 *
 *     START_TEST(test_sums)
 *     {
 *         run_ranks(rank_counts[_i], sums_ranks);
 *     }
 *     END_TEST
 *
 *     add_ranks_test(tcase, test_sums);        // for 1, 2, 3, 4 and 8 ranks
 */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include "support/check.h"

#include <shard/comm.h>

typedef void ranks_body(shard_group *world, void *context);

typedef struct ranks_run {
    int size;
    ranks_body *body;
    void *context;       /* for body; each rank has a copy of what it points to */
    double deadline;     /* seconds until ranks that are left are a failure, times deadline_multiplier(); 0: 50 */
    const char *timeout; /* SHARD_TIMEOUT of the ranks once all have joined, as it is; NULL: 40 times deadline_multiplier() */
    unsigned may_fail;   /* bit r: rank r may end as it likes */
    bool bare;           /* body opens the world itself and is given NULL */
} ranks_run;

/* run_ranks(4, body, .context = &x, ...). Where SHARD_TEST_RANKS, as "1,2,3", has not that size, the test ends here
 * as one that passed and prints "left out: ...". */
#define run_ranks(...) run_these_ranks((ranks_run){__VA_ARGS__})
void run_these_ranks(ranks_run run);

#define RANK_COUNTS 5
extern const int rank_counts[RANK_COUNTS];
#define add_ranks_test(tcase, test) tcase_add_loop_test(tcase, test, 0, RANK_COUNTS)

/* A number, 0, that the ranks of a test share: for them to wait for each other outside of collectives. */
_Atomic int *shared_count(void);
/* Waits until it is at least `least`; false if it is not within 20 s times deadline_multiplier(). */
bool await_count(const _Atomic int *count, int least);

/* How a rank comes to its world and leaves it. */
extern shard_group *(*ranks_open)(void);
extern void (*ranks_close)(shard_group *world);

/* For a program that is no Check test: failed assertions go to standard error and end
 * it with exit code 1. */
void ranks_report_to_stderr(void);

/* Fails with the library's error in the text if the call does not go well. */
#define check_ok(call) ck_assert_msg((call) == SHARD_OK, "%s: %s", #call, shard_last_error())

/* Fails unless the thread's error is this one; then clears it. The text is compared
 * as a pattern of fnmatch: "rank 2: *". */
void check_error(shard_status status, const char *pattern);
/* The same of what a call has returned. */
void check_fails(shard_status returned, shard_status status, const char *pattern);
/* The same of an error of all ranks of a job: PEER where the text begins with another rank, "rank 2: ...", else `status`. */
void check_joint_error(shard_status status, const char *pattern);

#endif
