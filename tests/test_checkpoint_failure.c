/* Saves and loads in which a call of the system fails, is cut short or interrupted, on
 * one rank: all ranks have the error, the old file is whole, nothing is left behind. */
#include "support/scratch.h"
#include "support/state.h"

#include "checkpoint/file.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum call { OPEN, PREAD, PWRITE, FALLOCATE, FTRUNCATE, FCHMOD, FSYNC, CLOSE, RENAME, UNLINK, FLOCK, CALLS } call;

/* How a file is changed while it is read. WRITE_LATER sets its time of modification back, CHANGE_MODE leaves the data. */
typedef enum rewriting { WRITE, WRITE_LATER, LENGTHEN, SHORTEN, RENAME_AWAY, CHANGE_MODE, REWRITINGS } rewriting;

/* What happens to the calls of this process. */
static struct {
    const shard_file_calls *system;
    int fail_at; /* the n-th call from 1 on fails; 0: none */
    int error;
    bool die;            /* ... or the process does */
    bool stutter;        /* every second read or write moves little, every other is interrupted */
    bool no_direct;      /* O_DIRECT is refused by open */
    bool refuses_direct; /* ... or by pwrite */
    bool no_allocate;
    int made;      /* calls so far */
    int of[CALLS]; /* ... of each kind */
    call failed;   /* which one did */
    bool harmless; /* and no error may come of it */
    bool renamed;
    int direct; /* the descriptor of O_DIRECT */
    /* Before this rank's open number `replace_at` another file takes the path's place, once the mark is there. */
    int replace_at;
    const char *replacement, *mark;
    bool marks; /* this rank makes the mark when it has opened the file */
    /* Before this rank's read number rewrite_at the file of that name is written to, in one of some ways. */
    int rewrite_at;
    const char *rewritten;
    rewriting way;
} fault;

static bool fails(call which, bool harmless)
{
    fault.of[which]++;
    if (++fault.made != fault.fail_at)
        return false;
    if (fault.die)
        raise(SIGKILL);
    fault.failed = which;
    fault.harmless = harmless;
    errno = fault.error;
    return true;
}

static int faulty_open(const char *path, int flags, mode_t mode)
{
    bool direct = flags & O_DIRECT;
    if (fails(OPEN, direct))
        return -1;
    if (fault.of[OPEN] == fault.replace_at) {
        for (int waited = 0; fault.mark && access(fault.mark, F_OK) != 0 && waited < 20000; waited++)
            usleep(1000);
        ck_assert_int_eq(rename(fault.replacement, path), 0);
    }
    if (direct && fault.no_direct)
        return errno = EINVAL, -1;
    int descriptor = fault.system->open(path, flags, mode);
    if (direct)
        fault.direct = descriptor;
    if (direct && fault.marks)
        write_file(fault.mark, "", 0);
    return descriptor;
}

/* How much of a read or write is done; -1: interrupted. */
static ssize_t stuttered(size_t bytes)
{
    if (!fault.stutter || bytes < 2)
        return (ssize_t)bytes;
    if (fault.made % 3 == 0)
        return errno = EINTR, -1;
    return fault.made % 3 == 1 ? (ssize_t)(bytes / 2) : (ssize_t)bytes;
}

static void rewrite(const char *path, rewriting way)
{
    struct stat before;
    char away[700];
    int file = open(path, O_WRONLY);
    ck_assert_int_ge(file, 0);
    ck_assert_int_eq(fstat(file, &before), 0);
    usleep(20 * 1000); /* more than the clock of file systems takes to go on */
    if (way == RENAME_AWAY) {
        snprintf(away, sizeof away, "%s.away", path);
        write_file(away, "", 0);
        ck_assert_int_eq(rename(away, path), 0);
    } else if (way == CHANGE_MODE) {
        ck_assert_int_eq(fchmod(file, before.st_mode ^ 040), 0);
    } else if (way == LENGTHEN || way == SHORTEN) {
        ck_assert_int_eq(ftruncate(file, way == LENGTHEN ? before.st_size + 1 : 0), 0);
    } else {
        ck_assert_int_eq(fault.system->pwrite(file, "\1\2\3\4", 4, before.st_size - 4), 4);
    }
    if (way == WRITE_LATER)
        ck_assert_int_eq(futimens(file, (const struct timespec[]){before.st_atim, before.st_mtim}), 0);
    close(file);
}

static ssize_t faulty_pread(int descriptor, void *data, size_t bytes, off_t offset)
{
    if (fault.of[PREAD] + 1 == fault.rewrite_at)
        rewrite(fault.rewritten, fault.way);
    if (fails(PREAD, false))
        return -1;
    ssize_t part = stuttered(bytes);
    return part < 0 ? -1 : fault.system->pread(descriptor, data, (size_t)part, offset);
}

static ssize_t faulty_pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    if (fails(PWRITE, false))
        return -1;
    if (fault.refuses_direct && descriptor == fault.direct)
        return errno = EINVAL, -1;
    if (descriptor == fault.direct) /* in whole blocks, or the system would refuse it */
        ck_assert(offset % 4096 == 0 && bytes % 4096 == 0 && (uintptr_t)data % 512 == 0);
    ssize_t part = stuttered(bytes);
    if (part > 0 && descriptor == fault.direct && (size_t)part < bytes)
        part = part / 512 * 512;
    return part < 0 ? -1 : fault.system->pwrite(descriptor, data, (size_t)part, offset);
}

static int faulty_fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
    if (fails(FALLOCATE, false))
        return -1;
    if (fault.no_allocate)
        return errno = EOPNOTSUPP, -1;
    return fault.system->fallocate(descriptor, mode, offset, bytes);
}

static int faulty_ftruncate(int descriptor, off_t bytes)
{
    return fails(FTRUNCATE, false) ? -1 : fault.system->ftruncate(descriptor, bytes);
}

/* Some file systems have no permissions. */
static int faulty_fchmod(int descriptor, mode_t mode)
{
    return fails(FCHMOD, true) ? -1 : fault.system->fchmod(descriptor, mode);
}

static int faulty_fsync(int descriptor)
{
    return fails(FSYNC, false) ? -1 : fault.system->fsync(descriptor);
}

/* The descriptor is gone in any case; nothing was written through a direct one that its
 * pwrite has not reported. */
static int faulty_close(int descriptor)
{
    bool direct = descriptor == fault.direct, failed = fails(CLOSE, direct || fault.renamed);
    if (direct)
        fault.direct = -1;
    int result = fault.system->close(descriptor);
    if (failed)
        errno = fault.error;
    return failed ? -1 : result;
}

static int faulty_rename(const char *from, const char *to)
{
    if (fails(RENAME, false))
        return -1;
    fault.renamed = true;
    return fault.system->rename(from, to);
}

static int faulty_unlink(const char *path)
{
    return fails(UNLINK, true) ? -1 : fault.system->unlink(path);
}

/* Some file systems have no locks. */
static int faulty_flock(int descriptor, int operation)
{
    return fails(FLOCK, true) ? -1 : fault.system->flock(descriptor, operation);
}

static const shard_file_calls faulty_calls = {
    .open = faulty_open,
    .pread = faulty_pread,
    .pwrite = faulty_pwrite,
    .fallocate = faulty_fallocate,
    .ftruncate = faulty_ftruncate,
    .fchmod = faulty_fchmod,
    .fsync = faulty_fsync,
    .close = faulty_close,
    .rename = faulty_rename,
    .unlink = faulty_unlink,
    .flock = faulty_flock,
};

static void start_faults(void)
{
    if (!fault.system)
        fault.system = shard_file_calls_used;
    shard_file_calls_used = &faulty_calls;
    fault.made = 0;
    memset(fault.of, 0, sizeof fault.of);
    fault.failed = CALLS;
    fault.harmless = fault.renamed = false;
    fault.direct = -1;
}

/* Whether any rank says so. */
static bool any(shard_group *world, bool here)
{
    int32_t all = here;
    check_ok(shard_group_all_reduce(world, NULL, &all, 1, SHARD_INT32, SHARD_MAX));
    return all;
}

typedef struct failure_case {
    int ranks, rank; /* the one that fails */
    int error;
    const char *path;
} failure_case;

/* Every call of a save by that rank fails once. */
static void save_fails(shard_group *world, void *context)
{
    const failure_case *c = context;
    bool here = shard_group_rank(world) == c->rank;
    shard_tensors *before = make_state(world, 100), *list = make_state(world, 200);
    int errors = 0, syncs = 0;
    fault.error = c->error;
    for (int at = 1;; at++) {
        if (at == 1 || any(world, fault.renamed)) {
            start_faults();
            check_ok(shard_save(before, c->path, NULL));
        }
        start_faults();
        fault.fail_at = here ? at : 0;
        shard_status status = shard_save(list, c->path, NULL);
        syncs = fault.of[FSYNC];
        char text[200];
        snprintf(text, sizeof text, "*: %s*", strerror(c->error));
        fault.fail_at = 0;
        if (status != SHARD_OK)
            check_error(status, text);
        ck_assert_msg(any(world, status != SHARD_OK) == (status != SHARD_OK), "call %d: not all ranks have failed", at);
        bool fired = any(world, fault.failed != CALLS), harmless = any(world, fault.harmless);
        ck_assert_msg(fired && !harmless ? status != SHARD_OK : status == SHARD_OK, "call %d (kind %d): status %d", at,
                      (int)fault.failed, (int)status);
        /* Only a directory that cannot be synced leaves the new file and an error. */
        bool replaced = any(world, fault.renamed);
        ck_assert(replaced || status != SHARD_OK);
        check_content(world, c->path, replaced ? 200 : 100);
        ck_assert_int_eq(scratch_count(".tmp"), 0);
        errors += status != SHARD_OK;
        if (!fired)
            break;
    }
    /* The file by each rank, the directory by the first, before and after its one rename. */
    bool first = shard_group_rank(world) == 0;
    ck_assert_int_eq(syncs, first ? 2 : 1);
    ck_assert_int_ge(errors, c->rank == 0 ? 10 : 5);
    shard_tensors_destroy(before);
    shard_tensors_destroy(list);
}

static failure_case failures[] = {{1, 0, EIO, NULL}, {2, 0, ENOSPC, NULL}, {2, 1, ENOSPC, NULL}, {3, 2, EIO, NULL}};

START_TEST(test_save_fails)
{
    failures[_i].path = scratch_path("save.safetensors");
    run_job(failures[_i].ranks, save_fails, &failures[_i]);
}
END_TEST

/* Another job has a temporary file of the name that rank 0 has drawn: it draws again, and removes nothing. */
static void draws_again(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_state(world, 100);
    start_faults();
    fault.error = EEXIST;
    fault.fail_at = shard_group_rank(world) == 0 ? 1 : 0;
    check_ok(shard_save(list, path, NULL));
    ck_assert(any(world, fault.failed == OPEN && !fault.harmless));
    ck_assert_int_eq(fault.of[UNLINK], 0);
    fault.fail_at = 0;
    check_content(world, path, 100);
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(list);
}

START_TEST(test_draws_again)
{
    run_job(_i, draws_again, (void *)scratch_path("again.safetensors"));
}
END_TEST

/* Every call of a load by that rank fails once. */
static void load_fails(shard_group *world, void *context)
{
    const failure_case *c = context;
    bool here = shard_group_rank(world) == c->rank, fired = true;
    shard_tensors *saved = make_state(world, 100);
    check_ok(shard_save(saved, c->path, NULL));
    fault.error = c->error;
    int errors = 0;
    for (int at = 1; fired; at++) {
        shard_tensors *list = make_state(world, 200);
        start_faults();
        fault.fail_at = here ? at : 0;
        shard_status status = shard_load(list, c->path);
        fault.fail_at = 0;
        if (status != SHARD_OK)
            check_error(status, "*cannot * */load.safetensors: *");
        fired = any(world, fault.failed != CALLS);
        bool harmless = any(world, fault.harmless);
        ck_assert_msg((fired && !harmless) == (status != SHARD_OK), "call %d: status %d", at, (int)status);
        if (status == SHARD_OK)
            check_state(list, 100);
        else if (at <= 4) /* open, and the header's two reads */
            check_state(list, 200);
        errors += status != SHARD_OK;
        shard_tensors_destroy(list);
    }
    ck_assert_int_ge(errors, 7);
    shard_tensors_destroy(saved);
}

START_TEST(test_load_fails)
{
    failures[_i].path = scratch_path("load.safetensors");
    run_job(failures[_i].ranks, load_fails, &failures[_i]);
}
END_TEST

/* Short counts and interruptions are no failures, and nothing needs O_DIRECT or fallocate. */
static void odd_systems(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_state(world, 1);
    for (int i = 0; i < 16; i++) {
        start_faults();
        fault.stutter = i & 1;
        fault.no_direct = i & 2;
        fault.refuses_direct = i & 4;
        fault.no_allocate = i & 8;
        check_ok(shard_save(list, path, NULL));
        check_content(world, path, 1);
    }
    shard_tensors_destroy(list);
}

START_TEST(test_odd_systems)
{
    run_job(_i, odd_systems, (void *)scratch_path("odd.safetensors"));
}
END_TEST

/* A rank that is gone in the middle of it, at its call number `at`. */
typedef struct rank_death {
    const char *path;
    int rank, at;
} rank_death;

static const rank_death deaths[] = {{"", 1, 4}, {"", 0, 1}, {"", 0, 2}, {"", 0, 3}, {"", 0, 4}, {"", 0, 6}};

static void save_without_one(shard_group *world, void *context)
{
    const rank_death *death = context;
    char pattern[16];
    shard_tensors *before = make_state(world, 100), *list = make_state(world, 200);
    check_ok(shard_save(before, death->path, NULL));
    start_faults();
    fault.die = true;
    fault.fail_at = shard_group_rank(world) == death->rank ? death->at : 0;
    ck_assert_int_ne(shard_save(list, death->path, NULL), SHARD_OK);
    snprintf(pattern, sizeof pattern, "*rank %d*", death->rank);
    check_error(SHARD_ERROR_PEER, pattern);
    shard_tensors_destroy(before);
    shard_tensors_destroy(list);
}

static void alone(shard_group *world, void *context)
{
    shard_tensors *list = make_state(world, 1);
    check_ok(shard_load(list, context));
    check_state(list, 100);
    shard_tensors_destroy(list);
}

START_TEST(test_killed_rank)
{
    rank_death death = deaths[_i];
    death.path = scratch_path("killed.safetensors");
    run_job_of((ranks_run){.size = 3, .body = save_without_one, .context = &death, .may_fail = 1 << death.rank});
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    run_job(1, alone, (void *)death.path);
}
END_TEST

/* A file of the same names and shapes is put in the place of the one that is being opened:
 * between two ranks' opens (the second rank's first), or between those of one rank. */
static void replaced(shard_group *world, void *context)
{
    const char *path = context;
    char replacement[700], mark[700];
    int rank = shard_group_rank(world), size = shard_group_size(world);
    snprintf(replacement, sizeof replacement, "%s.new", path);
    snprintf(mark, sizeof mark, "%s.mark", path);
    shard_tensors *old = make_state(world, 100), *new = make_state(world, 200), *list = make_state(world, 300);
    check_ok(shard_save(old, path, NULL));
    check_ok(shard_save(new, replacement, NULL));
    start_faults();
    fault.replacement = replacement;
    fault.mark = size > 1 ? mark : NULL;
    fault.replace_at = rank == size - 1 ? (size > 1 ? 1 : 2) : 0;
    fault.marks = size > 1 && rank == 0;
    ck_assert_int_eq(shard_load(list, path), size == 1 || rank == 0 ? SHARD_ERROR_IO : SHARD_ERROR_PEER);
    check_joint_error(SHARD_ERROR_IO, "*cannot read */replaced.safetensors: it was replaced while it was read; load it again");
    check_state(list, 300);
    fault.replace_at = 0;
    fault.marks = false;
    check_content(world, path, 200);
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
    shard_tensors_destroy(list);
}

START_TEST(test_replaced)
{
    run_job(_i, replaced, (void *)scratch_path("replaced.safetensors"));
}
END_TEST

/* One rank's reads of values are overtaken by a write to the file, on one rank to itself. Where checksums show a write, a change
 * of the file's permissions is none. */
static void rewritten(shard_group *world, void *context)
{
    const char *path = context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    for (int i = 0; i < 2 * REWRITINGS; i++) {
        rewriting way = (rewriting)(i / 2);
        bool skips = i % 2 || way == WRITE_LATER;
        shard_tensors *state = make_state(world, 100), *list = make_state(world, 300);
        check_ok(shard_save(state, path, NULL));
        start_faults();
        fault.rewritten = path;
        fault.way = way;
        fault.rewrite_at = rank == size - 1 ? 4 : 0;
        shard_status status = shard_load(list, path, .skip_checksums = skips);
        fault.rewrite_at = 0;
        if (way == RENAME_AWAY || (way == CHANGE_MODE && !skips)) { /* what it has open is whole */
            check_ok(status);
            check_state(list, 100);
        } else {
            ck_assert(status == SHARD_ERROR_IO || (status == SHARD_ERROR_PEER && rank != size - 1));
            check_error(status, way == SHORTEN ? "*cannot read */rewritten.safetensors: it became shorter meanwhile"
                                               : "*cannot read */rewritten.safetensors: it was written to while it was read; load "
                                                 "it again");
            ck_assert_int_eq(unlink(path) == 0 || errno == ENOENT, 1);
        }
        shard_clear_error();
        shard_tensors_destroy(state);
        shard_tensors_destroy(list);
    }
}

START_TEST(test_rewritten)
{
    run_job(_i, rewritten, (void *)scratch_path("rewritten.safetensors"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("checkpoint_failure");
    TCase *tcase = test_case(suite, "checkpoint_failure");
    tcase_add_loop_test(tcase, test_save_fails, 0, 4);
    tcase_add_loop_test(tcase, test_draws_again, 1, 3);
    tcase_add_loop_test(tcase, test_load_fails, 0, 4);
    tcase_add_loop_test(tcase, test_odd_systems, 1, 3);
    tcase_add_loop_test(tcase, test_killed_rank, 0, (int)(sizeof deaths / sizeof *deaths));
    tcase_add_loop_test(tcase, test_replaced, 1, 3);
    tcase_add_loop_test(tcase, test_rewritten, 1, 4);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
