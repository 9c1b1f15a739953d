/* Saves in the background of programs that fail meanwhile: an error of training leaves the save alone, and a rank that dies ends
 * it. */
#include "support/background.h"
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"

#include "comm/comm.h"
#include "comm/preflight.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { OLD = 100, NEW = 200 };

static const int sizes[] = {1, 2, 4};
enum { SIZES = sizeof sizes / sizeof *sizes };

/* ---- an error of the program ---- */

/* An error of the program between the two calls. */
typedef enum between {
    ON_ONE,     /* the finish brings it to the others */
    ON_ALL,     /* which they have found at once */
    MEANWHILE,  /* while the others are in a barrier */
    POLLED,     /* a poll has brought it to the others */
    CLEARED,    /* ... and the first rank has cleared it */
    OTHER_LAST, /* ... and has another one then */
    BETWEEN
} between;

static shard_status add_error(shard_group *world, between what, shard_async_save *save)
{
    bool done, first = shard_group_rank(world) == 0, last = shard_group_rank(world) == shard_group_size(world) - 1;
    if (last || what == ON_ALL)
        shard_error(SHARD_ERROR_FORMAT, "a bad image");
    if (what == MEANWHILE && !last) {
        ck_assert_int_ne(shard_barrier(world), SHARD_OK);
        return shard_last_status();
    }
    if (what < POLLED)
        return last || what == ON_ALL ? SHARD_ERROR_FORMAT : SHARD_ERROR_PEER;
    ck_assert_int_ne(shard_async_save_poll(save, &done), SHARD_OK);
    if (what != POLLED && first)
        shard_clear_error();
    if (what == OTHER_LAST && first)
        return shard_error(SHARD_ERROR_FORMAT, "a bad image later");
    return shard_last_status();
}

/* It stays, and the save is completed: its values are from before the error. */
static void error_between(shard_group *world, void *context)
{
    const char *path = scratch_path("between.safetensors");
    const between *what = context;
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    check_ok(shard_save(old, path, NULL));
    background_hold();
    shard_async_save *save = shard_save_async(new, path, NULL);
    shard_status expected = add_error(world, *what, save);
    background_go_on();
    shard_status status = shard_async_save_finish(save);
    ck_assert_int_eq(status, expected);
    check_error(status, status == SHARD_OK ? "" : "*a bad image*");
    background_end();
    check_content(world, path, NEW);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    check_ok(shard_barrier(world));
    ck_assert_ptr_null(shard_save_async(new, scratch_path("nowhere/x.safetensors"), NULL));
    check_joint_error(SHARD_ERROR_IO, "*cannot create*nowhere*");
    ck_assert_ptr_null(shard_save_async(NULL, path, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save_async: tensors is NULL*");
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

START_TEST(test_error_between)
{
    between what = (between)(_i % BETWEEN);
    run_job(sizes[_i / BETWEEN], error_between, &what);
    printf("cases: 1\n");
}
END_TEST

static ssize_t fill_disk(const file_call *call)
{
    errno = ENOSPC;
    return call->kind == CALL_PWRITE ? CALL_FAIL : file_calls_without_sync(call);
}

static char failure[512];

static void note_line(shard_log_level level, int rank, const char *line, void *context)
{
    (void)level, (void)rank, (void)context;
    snprintf(failure, sizeof failure, "%s", line);
}

/* The save fails, too: the first error stays, which all ranks still have, and a line of the log has the other. */
static void fails_after_error(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("after.safetensors");
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    bool done, first = shard_group_rank(world) == 0, last = shard_group_rank(world) == shard_group_size(world) - 1;
    check_ok(shard_save(old, path, NULL));
    if (last)
        file_calls_watch(fill_disk);
    shard_async_save *save = shard_save_async(new, path, NULL);
    if (first)
        shard_error(SHARD_ERROR_FORMAT, "a bad image");
    ck_assert_int_ne(shard_async_save_poll(save, &done), SHARD_OK);
    shard_set_log_function(note_line, NULL);
    ck_assert_int_eq(shard_async_save_finish(save), first ? SHARD_ERROR_FORMAT : SHARD_ERROR_PEER);
    shard_set_log_function(NULL, NULL);
    file_calls_watch(NULL);
    ck_assert(shard_group_size(world) == 1 || shard_error_is_joint(shard_group_size(world)));
    check_error(first ? SHARD_ERROR_FORMAT : SHARD_ERROR_PEER, "*a bad image");
    ck_assert_msg(!first == !strstr(failure, "after.safetensors was not saved: "), "the log has \"%s\"", failure);
    check_content(world, path, OLD);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

START_TEST(test_fails_after_error)
{
    run_job(sizes[_i], fails_after_error, NULL);
    printf("cases: 1\n");
}
END_TEST

/* A poll has the error of the save, also one after it: the save is never done. */
static void polls_again(shard_group *world, void *context)
{
    (void)context;
    bool last = shard_group_rank(world) == shard_group_size(world) - 1, done = false;
    shard_tensors *state = make_state(world, NEW);
    if (last)
        file_calls_watch(fill_disk);
    shard_async_save *save = shard_save_async(state, scratch_path("polled.safetensors"), NULL);
    shard_status status = SHARD_OK;
    while (status == SHARD_OK && !done)
        status = shard_async_save_poll(save, &done);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(status, last ? SHARD_ERROR_IO : SHARD_ERROR_PEER);
        check_error(status, "*polled.safetensors*");
        ck_assert(!done);
        status = shard_async_save_poll(save, &done);
    }
    shard_clear_error();
    ck_assert_int_ne(shard_async_save_finish(save), SHARD_OK);
    check_error(status, "*polled.safetensors*");
    file_calls_watch(NULL);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(state);
}

START_TEST(test_polls_again)
{
    run_job(sizes[_i], polls_again, NULL);
    printf("cases: 1\n");
}
END_TEST

/* ---- a rank that dies ---- */

static bool killed_is_noticed; /* before the finish */

/* A rank that dies while it saves: the others have an error and remove the file. */
static void killed_rank(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    check_ok(shard_save(old, path, NULL));
    background_hold();
    shard_async_save *save = shard_save_async(new, path, NULL);
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 1)
        raise(SIGKILL);
    if (killed_is_noticed)
        ck_assert_int_ne(shard_agree(world), SHARD_OK);
    background_go_on();
    ck_assert_int_ne(shard_async_save_finish(save), SHARD_OK);
    check_error(SHARD_ERROR_PEER, "*rank 1*");
    background_end();
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

static void finds_old(shard_group *world, void *context)
{
    check_content(world, context, OLD);
}

START_TEST(test_killed_rank)
{
    const char *path = scratch_path("killed.safetensors");
    killed_is_noticed = _i;
    run_job_of((ranks_run){.size = 3, .body = killed_rank, .context = (void *)path, .may_fail = 1 << 1});
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    run_job(1, finds_old, (void *)path);
    printf("cases: 1\n");
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("save async errors");
    TCase *tcase = test_case(suite, "errors");
    tcase_add_loop_test(tcase, test_error_between, 0, SIZES * BETWEEN);
    tcase_add_loop_test(tcase, test_fails_after_error, 0, SIZES);
    tcase_add_loop_test(tcase, test_polls_again, 0, SIZES);
    tcase_add_loop_test(tcase, test_killed_rank, 0, 2);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
