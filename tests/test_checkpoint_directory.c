/* A directory of checkpoints: which of them stay, which one is found, and what leaves it alone. */
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH = 700 };

/* Each job has its own. */
static const char *directory_of(const char *test, int number)
{
    char name[40];
    snprintf(name, sizeof name, "%s.%d", test, number);
    return scratch_path(name);
}

static const char *in_step(const char *directory, int64_t step, const char *name)
{
    static char paths[4][PATH];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    snprintf(path, PATH, "%s/step-%06" PRId64 "%s%s", directory, step, *name ? "/" : "", name);
    return path;
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0;
}

/* All ranks look at once, before and after each change of one of them. */
static void check_steps(shard_group *world, const char *directory, const char *expected)
{
    char found[200] = "";
    check_ok(shard_barrier(world));
    for (int64_t step = 0; step < 100; step++)
        if (is_there(in_step(directory, step, "")))
            snprintf(found + strlen(found), sizeof found - strlen(found), "%s%" PRId64, *found ? " " : "", step);
    ck_assert_str_eq(found, expected);
    check_ok(shard_barrier(world));
}

/* An error of the first rank, which all have. */
static void check_first(shard_group *world, shard_status status, const char *pattern)
{
    check_error(shard_group_rank(world) == 0 ? status : SHARD_ERROR_PEER, pattern);
}

/* Every second one in the background. */
static void save(shard_group *world, const char *directory, int64_t step)
{
    static int saves;
    shard_tensors *list = make_state(world, (uint64_t)step);
    if (saves++ % 2)
        check_ok(shard_async_save_finish(shard_save_checkpoint_async(list, directory, step, NULL)));
    else
        check_ok(shard_save_checkpoint(list, directory, step, NULL));
    shard_tensors_destroy(list);
}

/* The newest before that step is this one, and it has its content. */
static void check_newest(shard_group *world, const char *directory, int64_t before, int64_t expected)
{
    char path[PATH];
    int64_t step = 77;
    check_ok(shard_latest_checkpoint(directory, before, &step, path, sizeof path));
    ck_assert_int_eq(step, expected);
    ck_assert_str_eq(path, expected < 0 ? "" : in_step(directory, expected, "checkpoint.safetensors"));
    if (expected >= 0)
        check_content(world, path, (uint64_t)expected);
}

static void keeps(shard_group *world, void *context)
{
    const char *directory = context;
    check_newest(world, directory, INT64_MAX, -1);
    for (int64_t step = 10; step <= 40; step += 10)
        save(world, directory, step);
    check_steps(world, directory, "30 40");
    check_newest(world, directory, INT64_MAX, 40);
    check_newest(world, directory, 40, 30);
    check_newest(world, directory, 30, -1);
    save(world, directory, 40); /* again */
    check_steps(world, directory, "30 40");
    save(world, directory, 20); /* of a run that began before: later steps stay */
    check_steps(world, directory, "20 30 40");
    shard_tensors *list = make_state(world, 50);
    check_ok(shard_save_checkpoint(list, directory, 50, NULL, .max_to_keep = 3));
    check_steps(world, directory, "30 40 50");
    check_ok(shard_save_checkpoint(list, directory, 60, NULL, .max_to_keep = 0));
    check_steps(world, directory, "30 40 50 60");
    shard_tensors_destroy(list);
}

START_TEST(test_keeps)
{
    run_job(rank_counts[_i], keeps, (void *)directory_of("keeps", _i));
}
END_TEST

#define LEFTOVER "checkpoint.safetensors.tmp.0123456789abcdef"

/* The folder of a save that did not end. */
static void make_leftover(const char *directory, int64_t step)
{
    ck_assert_int_eq(mkdir(in_step(directory, step, ""), 0777), 0);
    write_file(in_step(directory, step, LEFTOVER), "x", 1);
}

/* Folders of saves that did not end, of other programs, and files of other names. */
static void leaves_out(shard_group *world, void *context)
{
    const char *directory = context;
    bool first = shard_group_rank(world) == 0;
    save(world, directory, 10);
    if (first) {
        const char *names[] = {"step-30", "step-000031x", "step--00005", "step-", "other", "step-99999999999999999999"};
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            char path[PATH];
            snprintf(path, sizeof path, "%s/%s", directory, names[i]);
            ck_assert_int_eq(mkdir(path, 0777), 0);
        }
        make_leftover(directory, 11);
        make_leftover(directory, 31);
        ck_assert_int_eq(mkdir(in_step(directory, 12, ""), 0777), 0);
        size_t bytes;
        char *data = read_file(in_step(directory, 10, "checkpoint.safetensors"), &bytes);
        write_file(in_step(directory, 12, "checkpoint.safetensors"), data, bytes - 1); /* a copy that did not end */
        free(data);
        write_file(in_step(directory, 10, "notes"), "mine", 4);
        write_file(in_step(directory, 10, LEFTOVER), "x", 1); /* of a second save of the step */
    }
    check_steps(world, directory, "10 11 12 31");
    check_newest(world, directory, INT64_MAX, 10);
    save(world, directory, 20);
    check_steps(world, directory, "10 12 20");
    ck_assert(!is_there(in_step(directory, 10, LEFTOVER)) && is_there(in_step(directory, 10, "notes")));
    check_newest(world, directory, 20, 10); /* it was kept, as 12 is damaged */
    save(world, directory, 21);
    check_steps(world, directory, "10 20 21");
    ck_assert(!is_there(in_step(directory, 10, "checkpoint.safetensors")) && is_there(in_step(directory, 10, "notes")));
    check_newest(world, directory, 20, -1);
}

START_TEST(test_leaves_out)
{
    run_job(_i, leaves_out, (void *)directory_of("leaves_out", _i));
}
END_TEST

/* All checkpoints stay, and folders of saves that did not end go: not those of a save that is going on. */
static void keeps_all(shard_group *world, void *context)
{
    const char *directory = context;
    save(world, directory, 10);
    if (shard_group_rank(world) == 0) {
        make_leftover(directory, 5), make_leftover(directory, 15), make_leftover(directory, 95);
        write_file(in_step(directory, 10, LEFTOVER), "x", 1);
    }
    check_steps(world, directory, "5 10 15 95");
    shard_tensors *list = make_state(world, 30);
    shard_async_save *begun = shard_save_checkpoint_async(list, directory, 30, NULL, .max_to_keep = 0);
    shard_tensors_destroy(list);
    list = make_state(world, 40);
    check_ok(shard_save_checkpoint(list, directory, 40, NULL, .max_to_keep = 0));
    shard_tensors_destroy(list);
    check_steps(world, directory, "10 30 40");
    ck_assert(!is_there(in_step(directory, 10, LEFTOVER)));
    check_ok(shard_async_save_finish(begun));
    check_steps(world, directory, "10 30 40");
    check_newest(world, directory, 40, 30);
}

START_TEST(test_keeps_all)
{
    run_job(_i, keeps_all, (void *)directory_of("keeps_all", _i));
}
END_TEST

/* A directory's path may end with slashes, or be another one of the same directory. */
static void takes_other_paths(shard_group *world, void *context)
{
    char slash[PATH], slashes[PATH], dot[PATH];
    const char *directory = context;
    snprintf(slash, PATH, "%s/", directory);
    snprintf(slashes, PATH, "%s//", directory);
    snprintf(dot, PATH, "%s/.", directory);
    check_newest(world, slash, INT64_MAX, -1);
    save(world, slash, 10); /* makes it */
    check_newest(world, slashes, INT64_MAX, 10);
    save(world, slashes, 20);
    shard_tensors *list = make_state(world, 10);
    shard_async_save *begun = shard_save_checkpoint_async(list, directory, 10, NULL);
    shard_tensors_destroy(list);
    save(world, dot, 30);
    check_steps(world, directory, "10 20 30");
    ck_assert(is_there(in_step(directory, 10, "checkpoint.safetensors"))); /* a save of the step is going on */
    check_ok(shard_async_save_finish(begun));
    check_steps(world, directory, "10 20 30");
    check_newest(world, slash, INT64_MAX, 30);
}

START_TEST(test_takes_other_paths)
{
    run_job(_i, takes_other_paths, (void *)directory_of("paths", _i));
}
END_TEST

static int log_lines;

static void count_lines(shard_log_level level, int rank, const char *line, void *context)
{
    (void)level, (void)rank, (void)line, (void)context;
    log_lines++;
}

/* More tensors than a thread may have outside of scopes without a warning. */
static void has_many(shard_group *world, void *context)
{
    enum { MANY = 10001 };
    const char *directory = context;
    char path[PATH];
    int64_t step;
    (void)world;
    shard_tensors *list = shard_tensors_create();
    SHARD_SCOPE
    {
        for (int i = 0; i < MANY; i++) {
            char name[20];
            snprintf(name, sizeof name, "%d", i);
            check_ok(shard_tensors_add(list, name, shard_empty(SHARD_SHAPE(0))));
        }
    }
    shard_set_log_function(count_lines, NULL);
    check_ok(shard_save_checkpoint(list, directory, 1, NULL));
    check_ok(shard_save_checkpoint(list, directory, 2, NULL));
    shard_tensors_destroy(list);
    check_ok(shard_latest_checkpoint(directory, INT64_MAX, &step, path, sizeof path));
    ck_assert_int_eq(step, 2);
    shard_set_log_function(NULL, NULL);
    ck_assert_int_eq(log_lines, 0);
}

START_TEST(test_has_many)
{
    run_job(1, has_many, (void *)directory_of("many", 0));
}
END_TEST

/* Each call that changes directories fails once on the first rank. */
static struct {
    const shard_file_calls *system;
    int fail_at, made;
} fault;

static bool fails(void)
{
    if (++fault.made != fault.fail_at)
        return false;
    errno = EIO;
    return true;
}

static int faulty_mkdir(const char *path, mode_t mode)
{
    return fails() ? -1 : fault.system->mkdir(path, mode);
}

static int faulty_fsync(int descriptor)
{
    return fails() ? -1 : fault.system->fsync(descriptor);
}

static int faulty_rename(const char *from, const char *to)
{
    return fails() ? -1 : fault.system->rename(from, to);
}

static int faulty_rmdir(const char *path)
{
    return fails() ? -1 : fault.system->rmdir(path);
}

static int faulty_unlink(const char *path)
{
    return fails() ? -1 : fault.system->unlink(path);
}

static void fails_whole(shard_group *world, void *context)
{
    const char *directory = context;
    save(world, directory, 1);
    save(world, directory, 2);
    fault.system = shard_file_calls_used;
    shard_file_calls faulty = *fault.system;
    faulty.mkdir = faulty_mkdir;
    faulty.fsync = faulty_fsync;
    faulty.rename = faulty_rename;
    faulty.rmdir = faulty_rmdir;
    faulty.unlink = faulty_unlink;
    shard_file_calls_used = &faulty;
    int errors = 0, saved = 2;
    for (int at = 1; at <= 12; at++) {
        shard_tensors *list = make_state(world, (uint64_t)saved + 1);
        fault.made = 0;
        fault.fail_at = shard_group_rank(world) == 0 ? at : 0;
        shard_status status = shard_save_checkpoint(list, directory, saved + 1, NULL);
        fault.fail_at = 0;
        if (status != SHARD_OK) {
            check_first(world, SHARD_ERROR_IO, "*cannot *: Input/output error");
            errors++;
        } else {
            saved++;
        }
        /* After the rename of a file whose directory then cannot be synced, the new one may be there, too. */
        int64_t newest;
        char path[PATH];
        check_ok(shard_latest_checkpoint(directory, INT64_MAX, &newest, path, sizeof path));
        ck_assert_int_ge(newest, saved);
        ck_assert_int_le(newest, saved + 1);
        check_content(world, path, (uint64_t)newest);
        shard_tensors_destroy(list);
    }
    ck_assert_int_ge(errors, 6); /* two folders made and synced, the file, its rename and its folder's sync */
    save(world, directory, 90);
    save(world, directory, 91);
    check_steps(world, directory, "90 91");
    shard_file_calls_used = fault.system;
}

START_TEST(test_fails_whole)
{
    run_job(_i, fails_whole, (void *)directory_of("fails", _i));
}
END_TEST

/* In the C library's place. */
static bool unreadable, temporary; /* temporary: also the file that is being written */

int stat(const char *path, struct stat *status)
{
    const char *name = strstr(path, "/step-") ? strstr(path, "/checkpoint.safetensors") : NULL;
    if (unreadable && name && (!strstr(name, ".tmp") || temporary))
        return errno = EIO, -1;
    return fstatat(AT_FDCWD, path, status, 0);
}

/* Steps that cannot be examined are not taken for ones that are not there. */
static void stays(shard_group *world, void *context)
{
    const char *directory = context;
    int64_t step;
    char path[PATH];
    save(world, directory, 1);
    save(world, directory, 2);
    shard_tensors *list = make_state(world, 3);
    char *last = strdup(in_step(directory, 3, "checkpoint.safetensors"));
    ck_assert(!is_there(last));
    check_ok(shard_barrier(world));
    unreadable = shard_group_rank(world) == 0;
    ck_assert_int_ne(shard_latest_checkpoint(directory, INT64_MAX, &step, path, sizeof path), SHARD_OK);
    check_first(world, SHARD_ERROR_IO, "*cannot examine */checkpoint.safetensors: Input/output error");
    unreadable = false;
    check_ok(shard_save_checkpoint(list, directory, 3, NULL, .max_to_keep = 0));
    unreadable = shard_group_rank(world) == 0;
    check_ok(shard_save_checkpoint(list, directory, 4, NULL));
    temporary = unreadable;
    ck_assert_int_ne(shard_save_checkpoint(list, directory, 5, NULL), SHARD_OK);
    check_first(world, SHARD_ERROR_IO, "*cannot create */checkpoint.safetensors.tmp.*: Input/output error");
    unreadable = temporary = false;
    check_steps(world, directory, "1 2 3 4 5");
    check_newest(world, directory, 4, 3);
    free(last);
    shard_tensors_destroy(list);
}

START_TEST(test_stays)
{
    run_job(_i, stays, (void *)directory_of("stays", _i));
}
END_TEST

static const char *unlisted;

/* As for a user who may pass through that folder, and not list it. */
static ssize_t refuse_to_list(const file_call *call)
{
    errno = EACCES;
    return call->kind == CALL_OPEN && (call->flags & O_DIRECTORY) && strcmp(call->path, unlisted) == 0 ? CALL_FAIL : CALL_MAKE;
}

/* A directory in a folder that cannot be synced is not made. One that is there is used. */
static void uses_what_is_there(shard_group *world, void *context)
{
    const char *directory = context;
    char parent[PATH];
    snprintf(parent, sizeof parent, "%.*s", (int)(strrchr(directory, '/') - directory), directory);
    shard_tensors *list = make_state(world, 1);
    unlisted = parent;
    file_calls_watch(refuse_to_list);
    ck_assert_int_ne(shard_save_checkpoint(list, directory, 1, NULL), SHARD_OK);
    check_first(world, SHARD_ERROR_IO, "*cannot open directory *: Permission denied");
    ck_assert(!is_there(directory));
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 0)
        ck_assert_int_eq(mkdir(directory, 0777), 0);
    check_ok(shard_save_checkpoint(list, directory, 1, NULL));
    file_calls_watch(NULL);
    check_newest(world, directory, INT64_MAX, 1);
    shard_tensors_destroy(list);
}

START_TEST(test_uses_what_is_there)
{
    run_job(_i, uses_what_is_there, (void *)directory_of("unlisted", _i));
}
END_TEST

static int folders_removed;

/* As another job that cleans up just after the folder was made, twice. */
static ssize_t remove_folder_of_step(const file_call *call)
{
    char folder[PATH];
    const char *name = call->kind == CALL_OPEN && (call->flags & O_CREAT) ? strstr(call->path, "/checkpoint.safetensors") : NULL;
    if (name && folders_removed < 2) {
        snprintf(folder, sizeof folder, "%.*s", (int)(name - call->path), call->path);
        ck_assert_int_eq(rmdir(folder), 0);
        folders_removed++;
    }
    return CALL_MAKE;
}

static void makes_folder_again(shard_group *world, void *context)
{
    bool first = shard_group_rank(world) == 0;
    for (int64_t step = 1; step <= 2; step++) {
        folders_removed = 0;
        file_calls_watch(remove_folder_of_step);
        save(world, context, step);
        file_calls_watch(NULL);
        ck_assert_int_eq(folders_removed, first ? 2 : 0);
        check_newest(world, context, INT64_MAX, step);
    }
}

START_TEST(test_makes_folder_again)
{
    run_job(_i, makes_folder_again, (void *)directory_of("again", _i));
}
END_TEST

static void refuses(shard_group *world, void *context)
{
    const char *directory = context;
    char path[PATH], small[8];
    int64_t step;
    shard_tensors *list = make_state(world, 1);
    ck_assert_int_ne(shard_save_checkpoint(list, directory, -1, NULL), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*the step is -1, below 0");
    ck_assert_int_ne(shard_save_checkpoint(list, directory, 5, NULL, .max_to_keep = 1), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*max_to_keep is 1; take at least 2, or 0 for all of them");
    ck_assert_int_ne(shard_save_checkpoint(list, "/nowhere/run", 5, NULL), SHARD_OK);
    check_first(world, SHARD_ERROR_IO, "*/nowhere*: No such file or directory");
    if (shard_group_rank(world) == 0)
        write_file(scratch_path("a_file"), "x", 1);
    ck_assert_int_ne(shard_save_checkpoint(list, scratch_path("a_file"), 5, NULL), SHARD_OK);
    check_first(world, SHARD_ERROR_IO, "*cannot make directory */a_file: Not a directory");
    ck_assert_int_ne(shard_latest_checkpoint(scratch_path("a_file"), INT64_MAX, &step, path, sizeof path), SHARD_OK);
    check_first(world, SHARD_ERROR_IO, "*cannot read directory */a_file: Not a directory");
    ck_assert_int_ne(shard_latest_checkpoint("", INT64_MAX, &step, path, sizeof path), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*shard_latest_checkpoint: directory is empty: *");
    save(world, directory, 7);
    ck_assert_int_ne(shard_latest_checkpoint(directory, INT64_MAX, &step, small, sizeof small), SHARD_OK);
    check_error(SHARD_ERROR_ARGUMENT, "*a path of * bytes does not fit into 8*");
    ck_assert_int_eq(step, -1);
    ck_assert_str_eq(small, "");
    /* On one rank alone: an error of all. */
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    ck_assert_int_ne(shard_latest_checkpoint(directory, INT64_MAX, &step, path, last ? 8 : sizeof path), SHARD_OK);
    check_error(last ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "*a path of * bytes does not fit into 8*");
    ck_assert_int_eq(step, -1);
    ck_assert_str_eq(path, "");
    ck_assert_int_ne(shard_save_checkpoint(list, directory, last ? -2 : 8, NULL), SHARD_OK);
    check_error(last ? SHARD_ERROR_ARGUMENT : SHARD_ERROR_PEER, "*the step is -2, below 0");
    check_newest(world, directory, INT64_MAX, 7);
    if (shard_group_size(world) > 1) {
#define LONG "/a folder with a long name/a folder with a long name/a folder with a long name/a folder with a long name"
        ck_assert_int_ne(shard_latest_checkpoint(last ? LONG "/1" : LONG "/0", INT64_MAX, &step, path, sizeof path), SHARD_OK);
#undef LONG
        check_error(SHARD_ERROR_MISMATCH, "rank * with directory ...* name/1 while * with directory ...* name/0");
    }
    shard_tensors_destroy(list);
}

START_TEST(test_refuses)
{
    run_job(_i, refuses, (void *)directory_of("refuses", _i));
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checkpoint_directory");
    TCase *tcase = test_case(suite, "checkpoint_directory");
    tcase_set_timeout(tcase, 60);
    add_ranks_test(tcase, test_keeps);
    tcase_add_loop_test(tcase, test_leaves_out, 1, 3);
    tcase_add_loop_test(tcase, test_keeps_all, 1, 3);
    tcase_add_loop_test(tcase, test_takes_other_paths, 1, 3);
    tcase_add_test(tcase, test_has_many);
    tcase_add_loop_test(tcase, test_fails_whole, 1, 3);
    tcase_add_loop_test(tcase, test_stays, 1, 3);
    tcase_add_loop_test(tcase, test_uses_what_is_there, 1, 3);
    tcase_add_loop_test(tcase, test_makes_folder_again, 1, 3);
    tcase_add_loop_test(tcase, test_refuses, 1, 3);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
