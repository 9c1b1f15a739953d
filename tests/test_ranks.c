/* The harness itself: what a rank does wrong must fail the test, by name, and so must other numbers than
 * those expected. Such tests run in Check as a suite of their own, whose failures are compared. */
#include "support/job.h"
#include "support/loss.h"

#include "comm/comm.h"

#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void meets(shard_group *world, void *context)
{
    ck_assert_ptr_null(context);
    check_ok(shard_barrier(world));
}

START_TEST(good_ranks)
{
    run_ranks(rank_counts[_i], meets);
}
END_TEST

static void has_context(shard_group *world, void *context)
{
    ck_assert_int_eq(*(const int *)context, shard_group_size(world));
}

START_TEST(good_context)
{
    run_ranks(3, has_context, .context = &(int){3});
}
END_TEST

static void opens_itself(shard_group *world, void *context)
{
    (void)context;
    ck_assert_ptr_null(world);
    ck_assert_str_eq(getenv("WORLD_SIZE"), "2");
    world = shard_world_open(NULL, NULL);
    ck_assert_ptr_nonnull(world);
    shard_world_close(world);
}

START_TEST(good_bare)
{
    run_ranks(2, opens_itself, .bare = true);
}
END_TEST

static void has_timeout(shard_group *world, void *context)
{
    (void)world;
    ck_assert_str_eq(getenv("SHARD_TIMEOUT"), context);
}

START_TEST(good_timeout)
{
    setenv("CK_TIMEOUT_MULTIPLIER", "2.5", 1);
    run_ranks(2, has_timeout, .context = "100");
    run_ranks(2, has_timeout, .context = "7", .timeout = "7");
    unsetenv("CK_TIMEOUT_MULTIPLIER");
    run_ranks(2, has_timeout, .context = "40");
}
END_TEST

static void asserts(shard_group *world, void *context)
{
    (void)context;
    ck_assert_int_ne(shard_group_rank(world), 2);
    shard_barrier(world);
    shard_clear_error();
    for (;;)
        pause();
}

START_TEST(bad_assert)
{
    run_ranks(4, asserts);
}
END_TEST

static void crashes(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1)
        raise(SIGKILL);
    for (;;)
        pause();
}

START_TEST(bad_signal)
{
    run_ranks(3, crashes);
}
END_TEST

/* In which the other rank starts and ends. */
static double hang_seconds = 0.3;

static void hangs(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1)
        for (;;)
            pause();
}

START_TEST(bad_hang)
{
    run_ranks(2, hangs, .deadline = hang_seconds);
}
END_TEST

static void leaves_an_error(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 0)
        shard_error(SHARD_ERROR_SHAPE, "a shape of %d", 7);
}

START_TEST(bad_error)
{
    run_ranks(1, leaves_an_error);
}
END_TEST

static void exits(shard_group *world, void *context)
{
    (void)context;
    if (shard_group_rank(world) == 1)
        exit(5);
    shard_barrier(world);
    shard_clear_error();
}

START_TEST(bad_exit)
{
    run_ranks(2, exits);
}
END_TEST

START_TEST(bad_elsewhere)
{
    ck_assert_msg(_i == 1, "not in a rank: %d", _i);
}
END_TEST

START_TEST(bad_list)
{
    setenv("SHARD_TEST_RANKS", "1;2", 1);
    run_ranks(1, meets);
}
END_TEST

/* ---- numbers: found, expected, tolerance ---- */

START_TEST(good_numbers)
{
    check_doubles((double[]){1, -8, INFINITY}, (double[]){1.5, -8.5, INFINITY}, 3, 0.1, 0, "by the largest");
    check_doubles((double[]){0.5}, (double[]){0}, 1, 0.25, 2, "by the least");
    check_number(INFINITY, INFINITY, 0, "infinity", 0);
    check_number(NAN, NAN, 0, "NaN", 0);
    ck_assert_double_eq(largest_of((double[]){1, -INFINITY, -3, NAN}, 4), 3);
}
END_TEST

START_TEST(bad_infinity_expected)
{
    check_doubles((double[]){INFINITY, 5}, (double[]){INFINITY, 1}, 2, 0.1, 0, "of %d", 2);
}
END_TEST

START_TEST(bad_infinity_found)
{
    check_doubles((double[]){1, INFINITY}, (double[]){1, 1}, 2, INFINITY, 0, "of %d", 2);
}
END_TEST

START_TEST(bad_nan)
{
    check_doubles((double[]){NAN}, (double[]){NAN}, 1, 0.1, 0, "of %d", 1);
}
END_TEST

START_TEST(bad_number)
{
    check_number(1, -INFINITY, 0.1, "number", 7);
}
END_TEST

static shard_tensor *filled(shard_shape shape, double value)
{
    return shard_full(shape, value, .dtype = SHARD_FLOAT64);
}

START_TEST(bad_element)
{
    SHARD_SCOPE
    {
        check_close(filled(SHARD_SHAPE(2), INFINITY), filled(SHARD_SHAPE(2), 1), 0.1);
    }
}
END_TEST

START_TEST(bad_shape)
{
    SHARD_SCOPE
    {
        check_close(filled(SHARD_SHAPE(2, 3), 1), filled(SHARD_SHAPE(3, 2), 1), 0.1);
    }
}
END_TEST

/* The last rank's part is empty, where the others' are not the whole. */
static void lacks_rows(shard_group *world, void *context)
{
    (void)context;
    int64_t rank = shard_group_rank(world);
    const double whole[] = {1, 1, 1, 1, 1};
    SHARD_SCOPE
    {
        check_part(shard_as_split(filled(SHARD_SHAPE(rank < 2 ? 2 : 0), 1), 0, world, 2 * rank, 5), whole, 0.1);
    }
}

START_TEST(bad_parts)
{
    run_job(3, lacks_rows, NULL);
}
END_TEST

/* ---- what must fail ---- */

static const struct {
    const char *name;
    const TTest **test;
    const char *text; /* a pattern of fnmatch */
} bad[] = {
    {"assert", &bad_assert, "rank 2 of 4: Assertion 'shard_group_rank(world) != 2' failed: shard_group_rank(world) == 2, 2 == 2"},
    {"signal", &bad_signal, "rank 1 of 3: killed by signal 9 (Killed)"},
    {"hang", &bad_hang, "rank 1 of 2: has not ended at the deadline, and 0 others neither"},
    {"error", &bad_error, "rank 0 of 1: left an error: a shape of 7"},
    {"exit", &bad_exit, "rank 1 of 2: ended with exit code 5"},
    {"list", &bad_list, "SHARD_TEST_RANKS is \"1;2\", not a list as 1,2,3"},
    {"infinity expected", &bad_infinity_expected, "of 2?1? is 5, expected 1 *"},
    {"infinity found", &bad_infinity_found, "of 2?1? is inf, expected 1 *"},
    {"NaN", &bad_nan, "of 1?0? is nan, expected nan *"},
    {"number", &bad_number, "number: ?7? is 1, not -inf"},
    {"element", &bad_element, "*test_ranks.c:*?0? is inf, not 1 *"},
    {"shape", &bad_shape, "*test_ranks.c:* is ?2, 3?, not ?3, 2?"},
    {"parts", &bad_parts, "rank ? of 3: *test_ranks.c:*: the parts of * are 4 of 5; *"},
    {"elsewhere", &bad_elsewhere, "not in a rank: 0"},
};

/* Fails if ranks that SHARD_TEST_RANKS leaves out are started, or if the test goes on after them. */
START_TEST(leaves_out)
{
    run_ranks(1 + 2 * _i, meets); /* 1 and 3: these are run */
    run_ranks(4, asserts);
    ck_abort_msg("the test went on");
}
END_TEST

/* How many of a suite's tests were run, if all passed; else -1. */
static int run_quietly(const char *variable, const char *value, const TTest *test, int end)
{
    Suite *suite = suite_create(variable);
    setenv(variable, value, 1);
    tcase_add_loop_test(test_case(suite, variable), test, 0, end);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_SILENT);
    int run = srunner_ntests_failed(runner) ? -1 : srunner_ntests_run(runner);
    srunner_free(runner);
    unsetenv(variable);
    return run;
}

/* What the variables choose; how many do not. */
static int run_chosen(void)
{
    int left_out = run_quietly("SHARD_TEST_RANKS", "1,2,3", leaves_out, 2);
    int first = run_quietly("SHARD_TEST_PART", "1/3", good_context, 4),
        last = run_quietly("SHARD_TEST_PART", "3/3", good_context, 8);
    if (left_out == 2 && first + last >= 3 && first + last <= 5)
        return 0;
    fprintf(stderr, "SHARD_TEST_RANKS: %d tests instead of 2; SHARD_TEST_PART: %d and %d of 4 and 8\n", left_out, first, last);
    return 1;
}

/* Runs the tests that must fail; how many did not fail as they must. */
static int run_bad(void)
{
    int wrong = 0;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Suite *suite = suite_create(bad[i].name);
        tcase_add_test(test_case(suite, bad[i].name), *bad[i].test);
        SRunner *runner = srunner_create(suite);
        srunner_run_all(runner, CK_SILENT);
        TestResult **failures = srunner_failures(runner);
        const char *text = srunner_ntests_failed(runner) == 1 ? tr_msg(failures[0]) : "no failure";
        bool is_right = fnmatch(bad[i].text, text, 0) == 0, again = !is_right && bad[i].test == &bad_hang && hang_seconds < 5;
        if (again) {
            hang_seconds *= 4;
            i--;
        } else if (!is_right) {
            fprintf(stderr, "%s: \"%s\" instead of \"%s\"\n", bad[i].name, text, bad[i].text);
            wrong++;
        }
        free(failures);
        srunner_free(runner);
    }
    return wrong;
}

int main(void)
{
    Suite *suite = suite_create("ranks");
    TCase *tcase = test_case(suite, "good");
    add_ranks_test(tcase, good_ranks);
    tcase_add_test(tcase, good_context);
    tcase_add_test(tcase, good_bare);
    tcase_add_test(tcase, good_timeout);
    tcase_add_test(tcase, good_numbers);
    int failed = test_run(suite);
    const char *choices[] = {"CK_RUN_CASE", "CK_RUN_SUITE", "SHARD_TEST_PART", "SHARD_TEST_RANKS"};
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        unsetenv(choices[i]);
    return run_bad() + run_chosen() || failed;
}
