/* Saves in the background: the file has the values of the moment at which the save began, whatever happens before the threads
 * write them; several at a time; ends of all sorts. tests/test_zero_checkpoint.c has training between. */
#include "support/background.h"
#include "support/elements.h"
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"

#include "comm/comm.h"
#include "device/device.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OLD = 100, NEW = 200, LATER = 300 };

/* ---- values ---- */

/* Blocks of a snapshot are 8 MiB: tensors of several, of narrow and of wide columns, small ones, an empty one. */
static shard_tensors *make_large(shard_group *world)
{
    static const struct {
        const char *name;
        shard_shape shape;
        shard_dtype dtype;
        int dim;
    } members[] = {
        {"replicated", {2, {530, 1031}}, SHARD_FLOAT32, -1},
        {"rows", {2, {2600, 1021}}, SHARD_FLOAT32, 0},
        {"wide", {2, {5, 300001}}, SHARD_FLOAT32, 1},
        {"narrow", {2, {30001, 12}}, SHARD_FLOAT64, 1},
        {"half", {1, {300003}}, SHARD_BFLOAT16, 0},
        {"empty", {2, {0, 3}}, SHARD_FLOAT32, -1},
        {"small", {1, {5}}, SHARD_FLOAT32, -1},
        {"counter", {0, {0}}, SHARD_INT64, -1},
    };
    shard_tensors *list = shard_tensors_create();
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        SHARD_SCOPE
        {
            shard_tensor *x = make_part(members[i].shape, members[i].dtype, members[i].dim, world);
            set_elements(x, i);
            check_ok(shard_tensors_add(list, members[i].name, x));
        }
    return list;
}

static void overwrite(const shard_tensors *list)
{
    for (int64_t i = 0; i < shard_tensors_count(list); i++)
        set_elements(shard_tensors_at(list, i), LATER + (uint64_t)i);
}

static int64_t workspace(void)
{
    return shard_get_memory_by_kind(shard_cpu(), SHARD_MEMORY_WORKSPACE).current;
}

/* The threads come to their first write after the tensors were overwritten and released. The memory of a first snapshot serves
 * the second one. */
static void keeps_values(shard_group *world, void *context)
{
    (void)context;
    int64_t before = workspace(), reserved[2];
    bool done = true;
    for (int i = 0; i < 2; i++) {
        shard_tensors *list = make_large(world);
        shard_metadata *metadata = shard_metadata_create();
        check_ok(shard_metadata_set_integer(metadata, "step", 12));
        check_ok(shard_save(list, scratch_path("sync.safetensors"), metadata));
        background_hold();
        shard_async_save *save = shard_save_async(list, scratch_path("async.safetensors"), metadata);
        ck_assert_msg(save != NULL, "%s", shard_last_error());
        reserved[i] = shard_get_memory_stats(shard_cpu()).reserved;
        check_ok(shard_metadata_set_integer(metadata, "step", 13));
        shard_metadata_destroy(metadata);
        overwrite(list);
        shard_tensors_destroy(list);
        check_ok(shard_async_save_poll(save, &done));
        ck_assert(!done);
        ck_assert_int_gt(workspace(), before);
        background_go_on();
        while (!done)
            check_ok(shard_async_save_poll(save, &done));
        check_ok(shard_async_save_finish(save));
        background_end();
        ck_assert_int_eq(workspace(), before);
        check_files_equal(scratch_path("sync.safetensors"), scratch_path("async.safetensors"));
        check_ok(shard_barrier(world)); /* all have read the files */
    }
    ck_assert_int_le(reserved[1], reserved[0]);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
}

static const int sizes[] = {1, 2, 4};

START_TEST(test_keeps_values)
{
    run_job(sizes[_i], keeps_values, NULL);
}
END_TEST

/* ---- several at a time ---- */

/* A poll is about all ranks. */
static void polls(shard_group *world, void *context)
{
    (void)context;
    shard_tensors *list = make_state(world, OLD);
    bool done = false;
    if (shard_group_rank(world) == 1)
        background_hold();
    shard_async_save *save = shard_save_async(list, scratch_path("polls.safetensors"), NULL);
    for (int i = 0; i < 20; i++) {
        usleep(1000);
        check_ok(shard_async_save_poll(save, &done));
        ck_assert(!done);
    }
    background_go_on();
    while (!done)
        check_ok(shard_async_save_poll(save, &done));
    check_ok(shard_async_save_finish(save));
    if (shard_group_rank(world) == 1)
        background_end();
    check_content(world, scratch_path("polls.safetensors"), OLD);
    shard_tensors_destroy(list);
}

START_TEST(test_polls)
{
    run_job(2, polls, NULL);
}
END_TEST

/* Two saves to one path: the one that is finished last remains. A synchronous one to the same path leaves both alone. */
static void several(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("several.safetensors"), *other = scratch_path("other.safetensors");
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    background_hold();
    shard_async_save *first = shard_save_async(old, path, NULL), *second = shard_save_async(new, path, NULL),
                     *third = shard_save_async(new, other, NULL);
    check_ok(shard_save(new, path, NULL));
    ck_assert_int_eq(scratch_count(".tmp"), 3);
    background_go_on();
    check_content(world, path, NEW);
    check_ok(shard_async_save_finish(third));
    check_ok(shard_async_save_finish(second));
    check_ok(shard_async_save_finish(first));
    background_end();
    check_content(world, path, OLD);
    check_content(world, other, NEW);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

/* Ranks that finish different saves: no file is made of parts of both. */
static void other_order(shard_group *world, void *context)
{
    (void)context;
    const char *paths[] = {scratch_path("first.safetensors"), scratch_path("second.safetensors")};
    int rank = shard_group_rank(world);
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    check_ok(shard_save(old, paths[0], NULL));
    check_ok(shard_save(old, paths[1], NULL));
    shard_async_save *saves[] = {shard_save_async(new, paths[0], NULL), shard_save_async(new, paths[1], NULL)};
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(shard_async_save_finish(saves[rank == 0 ? i : 1 - i]), SHARD_ERROR_MISMATCH);
        check_error(SHARD_ERROR_MISMATCH, "*shard_async_save_finish*save*");
    }
    check_content(world, paths[0], OLD);
    check_content(world, paths[1], OLD);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

START_TEST(test_several)
{
    run_job(sizes[_i], several, NULL);
    if (sizes[_i] > 1)
        run_job(2, other_order, NULL);
}
END_TEST

/* One rank saves by itself while all save together. */
static void locally(shard_group *world, void *context)
{
    (void)context;
    shard_tensors *list = make_state(world, OLD), *whole = make_state(NULL, NEW);
    shard_async_save *all = shard_save_async(list, scratch_path("all.safetensors"), NULL), *alone = NULL;
    bool done = false;
    if (shard_group_rank(world) == 1)
        alone = shard_save_async(whole, scratch_path("alone.safetensors"), NULL, .local = true);
    while (alone && !done)
        check_ok(shard_async_save_poll(alone, &done));
    if (alone)
        check_ok(shard_async_save_finish(alone));
    check_ok(shard_async_save_finish(all));
    check_content(world, scratch_path("all.safetensors"), OLD);
    check_content(world, scratch_path("alone.safetensors"), NEW);
    shard_tensors_destroy(list);
    shard_tensors_destroy(whole);
}

START_TEST(test_locally)
{
    run_job(2, locally, NULL);
}
END_TEST

/* ---- directories ---- */

static bool has_step(int step)
{
    char name[100];
    snprintf(name, sizeof name, "run/step-%06d/checkpoint.safetensors", step);
    return access(scratch_path(name), F_OK) == 0;
}

/* A save in the background is not taken for one that did not end, and old steps go when it is finished. */
static void in_directory(shard_group *world, void *context)
{
    (void)context;
    shard_tensors *list = make_state(world, OLD);
    char directory[700], path[700];
    int64_t newest;
    snprintf(directory, sizeof directory, "%s", scratch_path("run"));
    check_ok(shard_save_checkpoint(list, directory, 1, NULL));
    check_ok(shard_save_checkpoint(list, directory, 2, NULL));
    background_hold();
    shard_async_save *third = shard_save_checkpoint_async(list, directory, 3, NULL),
                     *fourth = shard_save_checkpoint_async(list, directory, 4, NULL, .max_to_keep = 3);
    check_ok(shard_latest_checkpoint(directory, INT64_MAX, &newest, path, sizeof path));
    ck_assert_int_eq(newest, 2);
    check_ok(shard_save_checkpoint(list, directory, 5, NULL, .max_to_keep = 3));
    check_ok(shard_barrier(world));
    ck_assert(has_step(1) && has_step(2) && !has_step(3) && !has_step(4) && has_step(5));
    check_ok(shard_barrier(world));
    background_go_on();
    check_ok(shard_async_save_finish(third));
    check_ok(shard_barrier(world)); /* the first rank has removed old ones */
    ck_assert(!has_step(1) && has_step(2) && has_step(3) && has_step(5));
    check_ok(shard_barrier(world));
    check_ok(shard_async_save_finish(fourth));
    check_ok(shard_barrier(world));
    background_end();
    ck_assert(has_step(2) && has_step(3) && has_step(4) && has_step(5));
    check_ok(shard_latest_checkpoint(directory, 5, &newest, path, sizeof path));
    ck_assert_int_eq(newest, 4);
    check_content(world, path, OLD);
    ck_assert_ptr_null(shard_save_checkpoint_async(list, directory, -1, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save_checkpoint_async: the step is -1*");
    ck_assert_ptr_null(shard_save_checkpoint_async(list, directory, 6, NULL, .max_to_keep = 1));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save_checkpoint_async: max_to_keep*");
    ck_assert_ptr_null(shard_save_checkpoint_async(list, NULL, 6, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_save_checkpoint_async: directory is NULL*");
    shard_tensors_destroy(list);
}

START_TEST(test_in_directory)
{
    run_job(2, in_directory, NULL);
}
END_TEST

/* ---- failures ---- */

/* The last rank cannot get its block number `refused` of a snapshot. */
static struct {
    const shard_device_ops *system;
    int refused, taken;
} memory;

static void *allocate_or_not(shard_device *device, size_t bytes)
{
    if (bytes == (size_t)8 << 20 && ++memory.taken == memory.refused)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %zu bytes", bytes), NULL;
    return memory.system->allocate(device, bytes);
}

static void without_memory(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("memory.safetensors");
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    shard_tensors *list = make_large(world);
    shard_device_ops failing = *shard_cpu()->ops;
    int64_t before = workspace();
    memory.system = shard_cpu()->ops;
    failing.allocate = allocate_or_not;
    shard_cpu()->ops = &failing;
    shard_async_save *save = NULL;
    int refusals = 0;
    for (memory.refused = last; !save; memory.refused += last) {
        memory.taken = 0;
        save = shard_save_async(list, path, NULL);
        if (!save) {
            refusals++;
            check_error(last ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "*no memory for 8388608 bytes*");
            ck_assert_int_eq(workspace(), before);
            ck_assert_int_eq(access(path, F_OK), -1);
            check_ok(shard_barrier(world));
            ck_assert_int_eq(scratch_count("memory"), 0);
            check_ok(shard_barrier(world));
        }
    }
    check_ok(shard_async_save_finish(save));
    shard_cpu()->ops = memory.system;
    if (shard_group_rank(world) == 0)
        printf("cases: %d\n", refusals);
    ck_assert_int_ge(refusals, 3);
    check_ok(shard_verify(path));
    shard_tensors_destroy(list);
}

START_TEST(test_without_memory)
{
    run_job(sizes[_i], without_memory, NULL);
    ck_assert_int_eq(remove(scratch_path("memory.safetensors")), 0);
}
END_TEST

/* The limit of ulimit -f, lowered on one rank while its thread waits: an error on all, no signal, and the job goes on. */
static void file_limit(shard_group *world, void *context)
{
    (void)context;
    const char *path = scratch_path("limit.safetensors");
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    struct rlimit before, low;
    check_ok(shard_save(old, path, NULL));
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 100;
    for (int rank = 0; rank < shard_group_size(world); rank++) {
        background_hold();
        shard_async_save *save = shard_save_async(new, path, NULL);
        if (rank == shard_group_rank(world))
            ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
        background_go_on();
        ck_assert_int_ne(shard_async_save_finish(save), SHARD_OK);
        check_joint_error(SHARD_ERROR_IO, "*cannot write *: File too large; see ulimit -f*");
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
        background_end();
        check_content(world, path, OLD);
        ck_assert_int_eq(scratch_count(".tmp"), 0);
    }
    check_ok(shard_async_save_finish(shard_save_async(new, path, NULL)));
    check_content(world, path, NEW);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

START_TEST(test_file_limit)
{
    run_job(sizes[_i], file_limit, NULL);
}
END_TEST

/* ---- the end of a job, signals, forks ---- */

static void finds_old(shard_group *world, void *context)
{
    check_content(world, context, OLD);
}

static void ends_early(shard_group *world, void *context)
{
    const char *path = context;
    check_ok(shard_init(NULL, NULL));
    world = shard_world();
    shard_tensors *old = make_state(world, OLD), *new = make_state(world, NEW);
    check_ok(shard_save(old, path, NULL));
    ck_assert_ptr_nonnull(shard_save_async(new, path, NULL));
    ck_assert_ptr_nonnull(shard_save_async(new, scratch_path("early2.safetensors"), NULL));
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
    ck_assert_int_eq(shard_finalize(), 1);
    check_error(SHARD_ERROR_ARGUMENT,
                "shard_finalize: the save of *early2.safetensors was not finished*shard_async_save_finish*");
}

START_TEST(test_ends_early)
{
    const char *path = scratch_path("early.safetensors");
    run_job_of((ranks_run){.size = sizes[_i], .body = ends_early, .context = (void *)path, .bare = true});
    ck_assert_int_eq(scratch_count("early"), 1);
    run_job(1, finds_old, (void *)path);
    ck_assert_int_eq(remove(path), 0);
}
END_TEST

static _Atomic bool renames, may_rename;

static ssize_t hold_rename(const file_call *call)
{
    if (call->kind == CALL_RENAME)
        atomic_store(&renames, true);
    for (int waited = 0; call->kind == CALL_RENAME && !atomic_load(&may_rename) && waited < 60000; waited++)
        usleep(500);
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

/* The first rank's thread is about to rename the file, and no poll comes after it. */
static void ends_complete(shard_group *world, void *context)
{
    check_ok(shard_init(NULL, NULL));
    world = shard_world();
    bool done, first = shard_group_rank(world) == 0;
    shard_tensors *new = make_state(world, NEW);
    file_calls_watch(hold_rename);
    shard_async_save *save = shard_save_async(new, context, NULL);
    shard_tensors_destroy(new);
    for (unsigned char here = 0, all[4]; !here; here = all[0]) {
        check_ok(shard_async_save_poll(save, &done));
        ck_assert(!done);
        here = atomic_load(&renames);
        check_ok(shard_group_exchange(world, &here, 1, all));
    }
    atomic_store(&may_rename, true);
    ck_assert_int_eq(shard_finalize(), 1);
    check_error(SHARD_ERROR_ARGUMENT, first ? "*complete.safetensors was not finished, but its file is complete: call*"
                                            : "*complete.safetensors was not finished, and its file may be complete: call*");
    file_calls_watch(NULL);
}

static void finds_new(shard_group *world, void *context)
{
    check_content(world, context, NEW);
}

START_TEST(test_ends_complete)
{
    const char *path = scratch_path("complete.safetensors");
    run_job_of((ranks_run){.size = sizes[_i], .body = ends_complete, .context = (void *)path, .bare = true});
    ck_assert_int_eq(scratch_count("complete"), 1);
    run_job(1, finds_new, (void *)path);
    ck_assert_int_eq(remove(path), 0);
}
END_TEST

static pthread_t program;
static int calls, open_to_signals;

static ssize_t look_at_mask(const file_call *call)
{
    (void)call;
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    if (pthread_equal(pthread_self(), program))
        return CALL_MAKE;
    calls++;
    open_to_signals += !sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGINT) || !sigismember(&mask, SIGXFSZ);
    return CALL_MAKE;
}

/* The thread takes none, so that a handler finds the program's thread. */
static void takes_no_signals(shard_group *world, void *context)
{
    (void)context;
    shard_tensors *list = make_state(world, OLD);
    program = pthread_self();
    file_calls_watch(look_at_mask);
    check_ok(shard_async_save_finish(shard_save_async(list, scratch_path("signals.safetensors"), NULL)));
    file_calls_watch(NULL);
    ck_assert_int_gt(calls, 3);
    ck_assert_int_eq(open_to_signals, 0);
    shard_tensors_destroy(list);
}

/* A child has no thread that writes, and leaves its parent's file alone. */
static void forks(shard_group *world, void *context)
{
    (void)context;
    shard_tensors *list = make_state(world, OLD);
    bool done;
    int status;
    background_hold();
    shard_async_save *save = shard_save_async(list, scratch_path("forks.safetensors"), NULL);
    pid_t child = fork();
    if (child == 0) {
        bool refused = shard_async_save_poll(save, &done) == SHARD_ERROR_UNAVAILABLE;
        refused = shard_async_save_finish(save) == SHARD_ERROR_UNAVAILABLE && refused;
        shard_finalize();
        _exit(refused ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(scratch_count(".tmp"), 1);
    background_go_on();
    check_ok(shard_async_save_finish(save));
    background_end();
    check_content(world, scratch_path("forks.safetensors"), OLD);
    shard_tensors_destroy(list);
}

START_TEST(test_signals_and_forks)
{
    run_job(1, takes_no_signals, NULL);
    run_job(1, forks, NULL);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("save async");
    TCase *tcase = test_case(suite, "async");
    tcase_add_loop_test(tcase, test_keeps_values, 0, 3);
    tcase_add_test(tcase, test_polls);
    tcase_add_loop_test(tcase, test_several, 0, 2);
    tcase_add_test(tcase, test_locally);
    tcase_add_test(tcase, test_in_directory);
    tcase_add_loop_test(tcase, test_without_memory, 0, 2);
    tcase_add_loop_test(tcase, test_file_limit, 0, 2);
    tcase_add_loop_test(tcase, test_ends_early, 0, 3);
    tcase_add_loop_test(tcase, test_ends_complete, 0, 3);
    tcase_add_test(tcase, test_signals_and_forks);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
