/* Which rank is reported as one for which the others wait, and when. */
#include "support/job.h"

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/straggler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the comparison ---- */

typedef struct comparison {
    int size;
    double computed[5]; /* of a period, as parts of it */
    int straggler;      /* -1: none */
} comparison;

static const comparison comparisons[] = {
    {2, {0.9, 0.1}, 0},
    {2, {0.1, 0.9}, 1},
    {2, {0.9, 0.3}, -1},      /* three times as long */
    {3, {0.05, 0.9, 0.1}, 1}, /* nine times the median */
    {3, {0.05, 0.9, 0.8}, 1}, /* the lower one of two counts as the median */
    {5, {0.9, 0.1, 0.1, 0.5, 0.1}, 0},
    {5, {0.9, 0.8, 0.9, 0.85, 0.8}, -1},
    {5, {0.4, 0.01, 0.01, 0.01, 0.01}, -1}, /* the ranks do something else most of the time */
    {4, {0, 0, 0, 0}, -1},
};

START_TEST(test_finds)
{
    const comparison *c = &comparisons[_i];
    const double period = 0.02;
    shard_stragglers *s = shard_stragglers_create(c->size);
    struct {
        double computed, other;
    } checks[5] = {{0, 0}};
    shard_straggler found;
    for (int member = 0; member < c->size; member++)
        checks[member].computed = 100 * member; /* sums from before do not count */
    ck_assert(!shard_stragglers_find(s, c->size, &checks->computed, sizeof *checks, period, &found));
    double end = shard_seconds() + period;
    for (int member = 0; member < c->size; member++)
        checks[member].computed += period * c->computed[member] * (c->straggler >= 0 ? 1000 : 1); /* a period may last longer */
    while (shard_seconds() < end)
        usleep(1000);
    bool is_one = false;
    int checked = 0;
    for (; checked < 10 && !is_one; checked++)
        is_one = shard_stragglers_find(s, c->size, &checks->computed, sizeof *checks, period, &found);
    ck_assert_int_eq(is_one, c->straggler >= 0);
    if (is_one) {
        ck_assert_int_eq(found.rank, c->straggler);
        ck_assert_int_eq(checked, 10);
        ck_assert_double_ge(found.period, period);
    }
    free(s);
}
END_TEST

/* After the first report the following ones have 1, 2 and 4 periods between them; one without a straggler begins anew. */
START_TEST(test_reports_less_often)
{
    const char *expected = "x.x..x....x........x-x.x";
    shard_stragglers *s = shard_stragglers_create(2);
    shard_straggler found;
    double computed[2] = {0, 0};
    shard_stragglers_find(s, 2, computed, sizeof *computed, 1e-9, &found);
    for (size_t period = 0; period < strlen(expected); period++) {
        computed[1] += expected[period] == '-' ? 0 : 1e6;
        bool is_one = false;
        for (int check = 0; check < 10; check++)
            is_one |= shard_stragglers_find(s, 2, computed, sizeof *computed, 1e-9, &found);
        ck_assert_msg(is_one == (expected[period] == 'x'), "period %zu", period);
    }
    free(s);
}
END_TEST

/* ---- ranks ---- */

static char lines[2000];

static void keep_line(shard_log_level level, int rank, const char *line, void *context)
{
    (void)rank, (void)context;
    if (level == SHARD_LOG_WARN)
        strncat(lines, line, sizeof lines - strlen(lines) - 1);
}

/* How a step of the ranks meets: by a collective that waits, by one that is waited for later, in making a group, or in a group of
 * all ranks that is not the world. */
typedef enum way { WAITS, POSTS, SPLITS, ELSEWHERE } way;

static void meet(shard_group *world, shard_group *other, way by)
{
    float data[1000] = {0};
    const shard_collective call = {.kind = SHARD_COLLECTIVE_ALL_REDUCE,
                                   .send = data,
                                   .receive = data,
                                   .count = 1000,
                                   .dtype = SHARD_FLOAT32,
                                   .op = SHARD_SUM};
    if (by == POSTS)
        check_ok(shard_group_wait(world, NULL, shard_group_post(world, &call)));
    else if (by == SPLITS)
        shard_group_destroy(shard_group_split(world, 0));
    else
        check_ok(shard_barrier(by == ELSEWHERE ? other : world));
}

typedef struct course {
    int slow; /* the rank; -1: all compute for the same time */
    way by;
    const char *seconds; /* SHARD_STRAGGLER_SECONDS */
} course;

/* Whether a rank was not scheduled for so long that it may be a straggler itself: `longest` has computed for longer than any
 * does. */
static bool was_paused(shard_group *world, double longest)
{
    double all[8];
    bool paused = false;
    check_ok(shard_group_exchange(world, &longest, sizeof longest, all));
    for (int rank = 0; rank < shard_group_size(world); rank++)
        paused |= all[rank] > 0.4;
    return paused;
}

static void is_named(shard_group *world, void *context)
{
    const course *c = context;
    int rank = shard_group_rank(world);
    bool named = c->slow >= 0 && strcmp(c->seconds, "0") != 0, goes_on = true;
    char expected[64];
    snprintf(expected, sizeof expected, "rank %d is a straggler: in the last ", c->slow);
    shard_group *other = c->by == ELSEWHERE ? shard_group_split(world, 0) : NULL;
    shard_set_log_function(keep_line, NULL);
    lines[0] = '\0';
    double end = shard_seconds() + (named ? 20 * deadline_multiplier() : 1.5), longest = 0;
    while (goes_on) {
        double start = shard_seconds();
        usleep(rank == c->slow || c->slow < 0 ? 60000 : 1000);
        longest = fmax(longest, shard_seconds() - start);
        meet(world, other, c->by);
        unsigned char more = shard_seconds() < end && !(named && strstr(lines, expected)), all[8];
        check_ok(shard_group_exchange(world, &more, 1, all));
        goes_on = all[0];
    }
    shard_set_log_function(NULL, NULL);
    bool paused = was_paused(world, longest);
    shard_group_destroy(other);
    if (rank == 0 && named)
        ck_assert_msg(paused ? strstr(lines, expected) != NULL : strncmp(lines, expected, strlen(expected)) == 0,
                      "the log has \"%s\"", lines);
    else if (!paused || rank != 0 || c->slow >= 0)
        ck_assert_str_eq(lines, "");
}

static const course courses[] = {{2, WAITS, "1"},  {2, POSTS, "1"}, {2, SPLITS, "1"},   {0, WAITS, "1"},
                                 {-1, WAITS, "1"}, {2, WAITS, "0"}, {2, ELSEWHERE, "1"}};

START_TEST(test_is_named)
{
    setenv("SHARD_STRAGGLER_SECONDS", courses[_i].seconds, 1);
    run_job(3, is_named, (void *)&courses[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("straggler");
    TCase *tcase = test_case(suite, "straggler");
    tcase_add_loop_test(tcase, test_finds, 0, (int)(sizeof comparisons / sizeof *comparisons));
    tcase_add_test(tcase, test_reports_less_often);
    tcase_add_loop_test(tcase, test_is_named, 0, (int)(sizeof courses / sizeof *courses));
    return test_run(suite);
}
