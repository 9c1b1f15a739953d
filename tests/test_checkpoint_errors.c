/* Each call of the system that a save makes fails, in each of some ways, once and from then on, on each rank: all ranks have
 * the same error, the old file is as it was, and the job goes on. In each way in which a program saves.
 *
 * The default is the share of the usual check; SHARD_TEST_EVERY=1: directories and large data, too, with each error, in each way,
 * on all ranks. */
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/steps.h"

#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* An interrupted call is repeated: one that is interrupted from then on goes through after so many
 * times. */
enum { INTERRUPTIONS = 20, SHORT = -1 };

static const int errors[] = {ENOSPC, EIO, EDQUOT, EINTR, SHORT};
enum { ERRORS = sizeof errors / sizeof *errors };
static const int sizes[] = {1, 2, 4};
enum { SIZES = sizeof sizes / sizeof *sizes };

enum {
    ALL = SAVE_WAYS * SIZES * ERRORS,
    DIRECTORIES = SAVE_CHECKPOINT * SIZES * ERRORS
}; /* of all cases, the first of a directory */

/* What happens to the calls of this process. */
static struct {
    int at; /* the call that fails, from 1 on; 0: none */
    int error;
    bool for_good;
    int made, interrupted;
    int direct;     /* the descriptor of O_DIRECT */
    bool reached;   /* there was a call of that number */
    bool fired;     /* some call did not do as asked */
    bool of_direct; /* ... which bypasses the page cache */
    bool serious;   /* the save cannot succeed */
    bool renamed;
} fault;

static bool is_directory(int descriptor)
{
    struct stat status;
    return fstat(descriptor, &status) == 0 && S_ISDIR(status.st_mode);
}

/* After the rename only the sync of the new name can fail: an old checkpoint that cannot be read or removed stays. */
static bool is_harmless(const file_call *call)
{
    if (fault.renamed && call->kind != CALL_FSYNC)
        return true;
    switch (call->kind) {
    case CALL_OPEN:
        return call->flags & O_DIRECT || fault.error == EINTR;
    case CALL_CLOSE:
        return call->descriptor == fault.direct || is_directory(call->descriptor) || fault.error == EINTR;
    case CALL_FCHMOD:
    case CALL_UNLINK:
    case CALL_FLOCK:
        return true;
    default: /* all others are repeated, but for those that do not wait */
        return fault.error == EINTR && call->kind != CALL_RENAME && call->kind != CALL_MKDIR;
    }
}

static ssize_t shorten(const file_call *call)
{
    size_t half = call->bytes / 2, unit = call->descriptor == fault.direct ? 512 : 1;
    return call->kind == CALL_PWRITE && half >= unit ? (ssize_t)(half / unit * unit) : CALL_MAKE;
}

static ssize_t fail_call(const file_call *call)
{
    ssize_t unharmed = call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE, answer = CALL_FAIL;
    bool fails = ++fault.made == fault.at || (fault.for_good && fault.at && fault.made > fault.at);
    if (!fails || (fault.error == EINTR && fault.interrupted++ % (INTERRUPTIONS + 1) == INTERRUPTIONS))
        return unharmed;
    fault.reached = true;
    if (fault.error == SHORT)
        answer = shorten(call);
    if (answer == CALL_MAKE) /* a call that cannot be short */
        return unharmed;
    fault.fired = true;
    fault.of_direct |= call->kind == CALL_PWRITE && call->descriptor == fault.direct;
    fault.serious |= answer == CALL_FAIL && !is_harmless(call);
    errno = fault.error;
    return answer;
}

static ssize_t watch_call(const file_call *call)
{
    ssize_t answer = fail_call(call);
    fault.renamed |= call->kind == CALL_RENAME && answer == CALL_MAKE;
    if (call->kind == CALL_CLOSE && call->descriptor == fault.direct)
        fault.direct = -1;
    return answer;
}

/* The descriptor is known when it is used first: the one with the flag. */
static ssize_t note_direct(const file_call *call)
{
    if (file_calls_are_direct(call->descriptor))
        fault.direct = call->descriptor;
    return watch_call(call);
}

static void start(int error, bool for_good, int at)
{
    memset(&fault, 0, sizeof fault);
    fault.direct = -1;
    fault.error = error;
    fault.for_good = for_good;
    fault.at = at;
    file_calls_watch(note_direct);
}

/* Whether it is so on any rank. */
static bool any(shard_group *world, bool here)
{
    int32_t all = here;
    check_ok(shard_group_all_reduce(world, NULL, &all, 1, SHARD_INT32, SHARD_MAX));
    return all;
}

typedef struct error_case {
    saved_run run;
    int ranks, error;
} error_case;

/* Of all cases of a test. */
static struct {
    int cases, direct;
} tried;

/* The save of a step fails at that call of that rank. Returns whether there was such a call. */
static bool save_once(shard_group *world, const error_case *c, int64_t step, int rank, bool for_good, int at)
{
    int error = c->error;
    shard_tensors *list = steps_state(&c->run, world, step);
    start(error, for_good, shard_group_rank(world) == rank ? at : 0);
    shard_status status = steps_save(&c->run, list, step);
    bool serious = fault.serious, reached = fault.reached, renamed = fault.renamed;
    file_calls_watch(NULL);
    shard_tensors_destroy(list);
    char text[200];
    snprintf(text, sizeof text, "*: %s*", error == SHORT ? "no error" : strerror(error));
    bool says_new = strstr(shard_last_error(), "is the new file");
    if (status != SHARD_OK)
        check_error(status, text);
    serious = any(world, serious);
    renamed = any(world, renamed);
    tried.cases += any(world, fault.fired);
    tried.direct += any(world, fault.of_direct);
    ck_assert_msg((status != SHARD_OK) == serious, "rank %d, call %d, %s%s: status %d", rank, at, text,
                  for_good ? ", for good" : "", (int)status);
    ck_assert(renamed || status != SHARD_OK);
    /* Only a directory that cannot be synced leaves the new file and an error, which says so. */
    ck_assert_int_eq(says_new, status != SHARD_OK && renamed);
    ck_assert_int_eq(steps_check(&c->run, world, step - 1), renamed ? step : step - 1);
    return any(world, reached);
}

static void save_fails(shard_group *world, void *context)
{
    const error_case *c = context;
    int64_t step = 0;
    for (int i = 0; i < 2 * c->ranks; i++) {
        bool reached = true;
        for (int at = 1; reached; at++) {
            file_calls_watch(file_calls_without_sync);
            steps_save_whole(&c->run, world, ++step); /* the job goes on, and removes what an unlink that failed has left */
            check_ok(shard_barrier(world));
            reached = save_once(world, c, step + 1, i / 2, i % 2, at);
            step += any(world, fault.renamed);
        }
    }
    if (shard_group_rank(world) == 0)
        printf("cases: %d, %d of them in writes that bypass the page cache\n", tried.cases, tried.direct);
    ck_assert_int_ge(tried.cases, c->error == SHORT ? 2 * c->ranks : 12 * c->ranks);
    ck_assert(!c->run.direct || !steps_can_be_direct(&c->run) || tried.direct >= 2 * c->ranks);
}

static void run_case(error_case c, int number)
{
    char name[40];
    snprintf(name, sizeof name, "%s.%d", c.run.direct ? "direct" : "small", number);
    c.run = steps_start(name, c.run.way, c.run.direct);
    run_job_of((ranks_run){
        .size = c.ranks, .body = save_fails, .context = &c, .deadline = c.run.direct || steps_have_directory(&c.run) ? 200 : 55});
}

/* Ways, numbers of ranks and errors, in this order. */
static error_case nth_case(int number, bool direct)
{
    saved_run run = {.way = (save_way)(number / ERRORS / SIZES), .direct = direct};
    return (error_case){run, sizes[number / ERRORS % SIZES], errors[number % ERRORS]};
}

START_TEST(test_save_fails)
{
    run_case(nth_case(_i, false), _i);
}
END_TEST

START_TEST(test_large_save_fails)
{
    run_case(nth_case(_i, true), _i);
}
END_TEST

/* The usual run has each error of a save to a directory, in both ways, on one rank or on two. */
START_TEST(test_save_to_directory_fails)
{
    saved_run run = {.way = (save_way)(SAVE_CHECKPOINT + _i / ERRORS)};
    run_case((error_case){run, 1 + (_i + _i / ERRORS) % 2, errors[_i % ERRORS]}, DIRECTORIES + _i);
}
END_TEST

/* ... and each error of large data, each in another way. */
START_TEST(test_large_save_fails_once)
{
    saved_run run = {.way = (save_way)(_i % SAVE_WAYS), .direct = true};
    run_case((error_case){run, 1 + _i % 2, errors[_i]}, _i);
}
END_TEST

/* ---- signals that come again and again ---- */

enum { PATIENCE = 1000 };

/* As on tmpfs, where a large file takes longer than the time from one signal to the next. */
static ssize_t interrupt_allocation(const file_call *call)
{
    if (call->kind != CALL_FALLOCATE)
        return file_calls_without_sync(call);
    ck_assert_msg(++fault.interrupted < PATIENCE, "fallocate was called %d times", PATIENCE);
    errno = EINTR;
    return CALL_FAIL;
}

static void save_interrupted(shard_group *world, void *context)
{
    fault.interrupted = 0;
    file_calls_watch(interrupt_allocation);
    steps_save_whole(context, world, 1);
    file_calls_watch(NULL);
    ck_assert(shard_group_rank(world) != 0 || fault.interrupted > 0);
    ck_assert_int_eq(steps_check(context, world, 1), 1);
}

START_TEST(test_allocation_is_interrupted)
{
    char name[40];
    snprintf(name, sizeof name, "interrupted.%d", _i);
    saved_run run = steps_start(name, (save_way)_i, false);
    run_job(2, save_interrupted, &run);
    printf("cases: 1\n");
}
END_TEST

/* The writer of tools: each error, of small data and of large. */
START_TEST(test_writer_fails)
{
    saved_run run = {.way = SAVE_WRITER, .direct = _i / ERRORS};
    run_case((error_case){run, 1, errors[_i % ERRORS]}, ALL + _i);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checkpoint errors");
    TCase *tcase = test_case(suite, "errors");
    bool every = getenv("SHARD_TEST_EVERY");
    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, test_save_fails, 0, every ? ALL : SIZES * ERRORS);
    if (!every) {
        for (int first = SIZES * ERRORS; first < DIRECTORIES; first += SIZES * ERRORS) /* of these ways fewer ranks */
            tcase_add_loop_test(tcase, test_save_fails, first, first + (SIZES - 1) * ERRORS);
        tcase_add_loop_test(tcase, test_save_to_directory_fails, 0, 2 * ERRORS);
    }
    tcase_add_loop_test(tcase, test_allocation_is_interrupted, 0, SAVE_WAYS);
    tcase_add_loop_test(tcase, test_writer_fails, 0, 2 * ERRORS);
    tcase = test_case(suite, "large data");
    tcase_set_timeout(tcase, 240);
    if (every)
        tcase_add_loop_test(tcase, test_large_save_fails, 0, ALL);
    else
        tcase_add_loop_test(tcase, test_large_save_fails_once, 0, ERRORS);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
