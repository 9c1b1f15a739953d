/* Saves and loads in which a call of the system fails, is cut short or interrupted, on
 * one rank: all ranks have the error, the old file is whole, nothing is left behind. */
#include "support/elements.h"
#include "support/scratch.h"

#include "checkpoint/file.h"
#include "tensor/tensor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

typedef enum call { OPEN, PREAD, PWRITE, FALLOCATE, FTRUNCATE, FSYNC, CLOSE, RENAME, UNLINK, CALLS } call;

/* How a file is written to while it is read. WRITE_LATER sets its time of modification back. */
typedef enum rewriting { WRITE, WRITE_LATER, CUT, RENAME_AWAY, REWRITINGS } rewriting;

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
    } else if (way == CUT) {
        ck_assert_int_eq(ftruncate(file, before.st_size + 1), 0);
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

static const shard_file_calls faulty_calls = {
    .open = faulty_open,
    .pread = faulty_pread,
    .pwrite = faulty_pwrite,
    .fallocate = faulty_fallocate,
    .ftruncate = faulty_ftruncate,
    .fsync = faulty_fsync,
    .close = faulty_close,
    .rename = faulty_rename,
    .unlink = faulty_unlink,
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

/* ---- a state ---- */

/* Small and replicated, large and replicated, in rows, in columns. */
static shard_tensors *make_state(shard_group *world, uint64_t seed)
{
    static const struct {
        const char *name;
        shard_shape shape;
        int dim;
    } members[] = {
        {"small", {1, {5}}, -1}, {"shared", {2, {750, 701}}, -1}, {"rows", {2, {31, 11}}, 0}, {"columns", {2, {31, 11}}, 1}};
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < 4; i++)
        SHARD_SCOPE
        {
            shard_tensor *x = make_part(members[i].shape, SHARD_FLOAT32, members[i].dim, world);
            set_elements(x, seed + (uint64_t)i);
            check_ok(shard_tensors_add(list, members[i].name, x));
        }
    return list;
}

static void check_state(const shard_tensors *list, uint64_t seed)
{
    for (int64_t i = 0; i < shard_tensors_count(list); i++)
        check_elements(shard_tensors_name(list, i), shard_tensors_at(list, i), seed + (uint64_t)i);
}

/* What the file has in it: the seed of the state. */
static void check_content(shard_group *world, const char *path, uint64_t seed)
{
    shard_tensors *list = make_state(world, 1000);
    check_ok(shard_load(list, path));
    check_state(list, seed);
    shard_tensors_destroy(list);
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
    check_error(shard_last_status(), pattern);
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

/* ---- places that cannot be written, lists that differ ---- */

static void places(shard_group *world, void *context)
{
    const char *directory = context;
    shard_tensors *list = make_state(world, 1);
    char path[700];
    snprintf(path, sizeof path, "%s/absent/x.safetensors", directory);
    shard_save(list, path, NULL);
    check_error(shard_last_status(), "*cannot create */absent/x.safetensors.tmp.*: No such file or directory");
    shard_save(list, directory, NULL);
    check_error(shard_last_status(), "*cannot write */.: it is there already and is not a regular file");
    shard_save(list, "/dev/null", NULL);
    check_error(shard_last_status(), "*cannot write /dev/null: it is there already and is not a regular file");
    shard_save(list, "/proc/x.safetensors", NULL);
    check_error(shard_last_status(), "*cannot create /proc/x.safetensors.tmp.*: *");
    shard_save(list, NULL, NULL);
    check_error(shard_last_status(), "*shard_save: path is NULL");
    shard_save(NULL, "/nowhere", NULL);
    check_error(shard_last_status(), "*shard_save: tensors is NULL");
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    shard_tensors_destroy(list);
}

START_TEST(test_places)
{
    run_job(_i, places, (void *)scratch_path("."));
}
END_TEST

/* A link stays, and what it leads to, by other links, is written: also where nothing is yet. */
static void links(shard_group *world, void *context)
{
    const char *directory = context;
    char link[2][700], far[700], file[720];
    shard_tensors *list = make_state(world, 1);
    snprintf(link[0], sizeof link[0], "%s/link0", directory);
    snprintf(link[1], sizeof link[1], "%s/link1", directory);
    snprintf(far, sizeof far, "%s/far", directory);
    snprintf(file, sizeof file, "%s/file", far);
    if (shard_group_rank(world) == 0) {
        ck_assert_int_eq(mkdir(far, 0700), 0);
        ck_assert_int_eq(symlink("link1", link[0]), 0);
        ck_assert_int_eq(symlink("far/file", link[1]), 0);
    }
    check_ok(shard_barrier(world));
    for (int time = 0; time < 2; time++) {
        check_ok(shard_save(list, link[0], NULL));
        for (int i = 0; i < 2; i++) {
            struct stat status;
            ck_assert_int_eq(lstat(link[i], &status), 0);
            ck_assert(S_ISLNK(status.st_mode));
            check_content(world, link[i], 1);
        }
        check_content(world, file, 1);
    }
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 0) {
        ck_assert_int_eq(unlink(file), 0);
        ck_assert_int_eq(rmdir(far), 0);
        ck_assert_int_eq(unlink(link[1]), 0);
        ck_assert_int_eq(symlink("link0", link[1]), 0);
    }
    check_ok(shard_barrier(world));
    shard_save(list, link[0], NULL);
    check_error(shard_last_status(), "rank 0: cannot write */link0: Too many levels of symbolic links");
    if (shard_group_rank(world) == 0) {
        ck_assert_int_eq(unlink(link[0]), 0);
        ck_assert_int_eq(unlink(link[1]), 0);
    }
    shard_tensors_destroy(list);
}

START_TEST(test_links)
{
    run_job(2, links, (void *)scratch_path("."));
}
END_TEST

/* Links in a directory that all may write to: those of other users are not followed. */
static void foreign_links(shard_group *world, void *context)
{
    const char *directory = context;
    char shared[700], link[720], file[720];
    const uid_t other = 65534;
    shard_tensors *list = make_state(world, 1);
    snprintf(shared, sizeof shared, "%s/shared", directory);
    snprintf(link, sizeof link, "%s/link", shared);
    snprintf(file, sizeof file, "%s/victim", directory);
    write_file(file, "old", 3);
    ck_assert_int_eq(mkdir(shared, 0700), 0);
    ck_assert_int_eq(symlink("../victim", link), 0);
    for (int i = 0; i < 5; i++) {
        bool sticky = i != 1, own = i == 0, owned_with_it = i == 2, for_all = i != 3;
        ck_assert_int_eq(chmod(shared, (sticky ? 01000 : 0) | (for_all ? 0777 : 0755)), 0);
        if (geteuid() == 0)
            ck_assert(lchown(link, own ? 0 : other, 0) == 0 && lchown(shared, owned_with_it ? other : 0, 0) == 0);
        bool refused = geteuid() == 0 && i == 4;
        shard_status status = shard_save(list, link, NULL);
        if (refused)
            check_error(SHARD_ERROR_IO, "cannot write */link: */link is a link that another user has made in a directory *");
        else
            check_ok(status);
        size_t bytes;
        free(read_file(file, &bytes));
        ck_assert_int_eq(bytes == 3, refused);
        write_file(file, "old", 3);
    }
    ck_assert(unlink(link) == 0 && rmdir(shared) == 0 && unlink(file) == 0);
    shard_tensors_destroy(list);
}

START_TEST(test_foreign_links)
{
    run_job(1, foreign_links, (void *)scratch_path("."));
}
END_TEST

/* The limit of ulimit -f on one rank is an error on all, and no signal. */
static void file_limit(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_state(world, 1), *again = make_state(world, 2);
    struct rlimit before, low;
    sigset_t set;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    low = before;
    low.rlim_cur = 100;
    for (int rank = 0; rank < shard_group_size(world); rank++) {
        if (rank == shard_group_rank(world))
            ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &low), 0);
        ck_assert_int_ne(shard_save(list, path, NULL), SHARD_OK);
        check_error(shard_last_status(), "*cannot * *.safetensors.tmp.*: File too large; see ulimit -f*");
        ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
        ck_assert_int_eq(pthread_sigmask(SIG_SETMASK, NULL, &set), 0);
        ck_assert_int_eq(sigismember(&set, SIGXFSZ), 0);
    }
    check_ok(shard_barrier(world));
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    check_ok(shard_save(list, path, NULL));
    check_ok(shard_load(again, path));
    check_state(again, 1);
    shard_tensors_destroy(list);
    shard_tensors_destroy(again);
}

START_TEST(test_file_limit)
{
    run_job(2, file_limit, (void *)scratch_path("limit.safetensors"));
}
END_TEST

/* A new file has what the mask leaves, another one those of the file that it replaces. */
static void permissions(shard_group *world, void *context)
{
    const char *path = context;
    const mode_t modes[] = {0640, 0600, 0444, 0, 0666};
    struct stat status;
    shard_tensors *list = make_state(world, 1);
    umask(027);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        if (i > 0 && shard_group_rank(world) == 0)
            ck_assert_int_eq(chmod(path, modes[i]), 0);
        check_ok(shard_barrier(world));
        check_ok(shard_save(list, path, NULL));
        ck_assert_int_eq(stat(path, &status), 0);
        ck_assert_int_eq(status.st_mode & 07777, modes[i]);
        check_ok(shard_barrier(world));
    }
    shard_tensors_destroy(list);
}

START_TEST(test_permissions)
{
    run_job(2, permissions, (void *)scratch_path("permissions.safetensors"));
}
END_TEST

static void differing(shard_group *world, void *context)
{
    const char *path = context, *other = "other.safetensors";
    bool odd = shard_group_rank(world) == 1;
    for (int i = 0; i < 8; i++)
        SHARD_SCOPE
        {
            static const char *const patterns[] = {
                "rank 1: shard_save: the ranks do not mean the same: here it is \"b1\" *, on rank 0 \"b\" float32 [[]3] whole",
                "*rank 1: *here it is \"b\" float32 [[]4] whole, on rank 0 \"b\" float32 [[]3] whole",
                "*rank 1: *here it is \"b\" float64 [[]3] whole, on rank 0 \"b\" float32 [[]3] whole",
                "*rank 1: *here it is nothing more, on rank 0 \"b\" float32 [[]3] whole",
                "*rank 1: *here it is \"other.safetensors\", on rank 0 \"*",
                "*rank 1: *here it is \"b\" float32 [[]6] split along 0, on rank 0 \"b\" float32 [[]6] whole",
                "*rank 1: shard_save: \"b\" is partial*",
                "*\"b\": its parts do not make up the whole of 9: rank 1 has 3 from 4 on, where 3 are covered so far",
            };
            shard_tensors *list = shard_tensors_create();
            shard_tensor *b = shard_full(odd && i == 1 ? SHARD_SHAPE(4) : SHARD_SHAPE(i == 5 && !odd ? 6 : 3), 1,
                                         .dtype = odd && i == 2 ? SHARD_FLOAT64 : SHARD_FLOAT32);
            if (odd && i == 5)
                b = shard_as_split(b, 0, world, 3, 6);
            if (i == 6 && odd)
                b->placement = (shard_placement){.kind = SHARD_PARTIAL, .group = world};
            if (i == 7)
                b = shard_as_split(b, 0, world, 3 * shard_group_rank(world) + odd, 9);
            check_ok(shard_tensors_add(list, "a", shard_zeros(SHARD_SHAPE(2))));
            if (!odd || i != 3)
                check_ok(shard_tensors_add(list, odd && i == 0 ? "b1" : "b", b));
            ck_assert_int_ne(shard_save(list, odd && i == 4 ? other : path, NULL), SHARD_OK);
            check_error(shard_last_status(), patterns[i]);
            shard_tensors_destroy(list);
        }
    ck_assert_int_eq(scratch_count("differing"), 0);
}

START_TEST(test_differing)
{
    run_job(3, differing, (void *)scratch_path("differing.safetensors"));
}
END_TEST

/* An error that a rank has already is everybody's, and nothing is written or read. */
static void earlier_errors(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_state(world, 1), *none = shard_tensors_create();
    if (shard_group_rank(world) == 0)
        write_file(path, "\2\0\0\0\0\0\0\0{}", 10);
    for (int i = 0; i < 3; i++) {
        if (shard_group_rank(world) == 1)
            shard_error(SHARD_ERROR_ARGUMENT, "it had gone wrong before");
        if (i == 0)
            ck_assert_int_ne(shard_save(list, path, NULL), SHARD_OK);
        else if (i == 1)
            ck_assert_int_ne(shard_load(none, path), SHARD_OK);
        else
            ck_assert_ptr_null(shard_collect_state_dict(list, -1));
        check_error(shard_last_status(), "rank 1: it had gone wrong before");
    }
    check_ok(shard_load(none, path)); /* still what it was */
    shard_tensors_destroy(none);
    shard_tensors_destroy(list);
}

START_TEST(test_earlier_errors)
{
    run_job(3, earlier_errors, (void *)scratch_path("earlier.safetensors"));
}
END_TEST

/* Ranks that see different files of one name. */
static void two_files(shard_group *world, void *context)
{
    const char *directory = context;
    char own[700];
    shard_tensors *list = make_state(NULL, 1);
    snprintf(own, sizeof own, "%s/rank%d", directory, shard_group_rank(world));
    ck_assert_int_eq(mkdir(own, 0700), 0);
    ck_assert_int_eq(chdir(own), 0);
    shard_save(list, "x.safetensors", NULL);
    check_error(shard_last_status(),
                "rank 1: cannot open x.safetensors.tmp.*, which the first rank has made: No such file*; ranks on "
                "several hosts need a file system that they share");
    write_file("x.safetensors", shard_group_rank(world) ? "\2\0\0\0\0\0\0\0{}" : "\3\0\0\0\0\0\0\0{} ",
               shard_group_rank(world) ? 10 : 11);
    shard_tensors *none = shard_tensors_create();
    shard_load(none, "x.safetensors");
    check_error(shard_last_status(), "shard_load: x.safetensors is another file on rank 1 than on rank 0");
    ck_assert_int_eq(unlink("x.safetensors"), 0);
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(own), 0);
    shard_tensors_destroy(none);
    shard_tensors_destroy(list);
}

START_TEST(test_two_files)
{
    run_job(2, two_files, (void *)scratch_path("."));
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
    check_error(shard_last_status(), "*cannot read */replaced.safetensors: another one was put in its place meanwhile; load it again");
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

/* One rank's reads of values are overtaken by a write to the file, on one rank to itself. */
static void rewritten(shard_group *world, void *context)
{
    const char *path = context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    for (rewriting way = 0; way < REWRITINGS; way++) {
        shard_tensors *state = make_state(world, 100), *list = make_state(world, 300);
        check_ok(shard_save(state, path, NULL));
        start_faults();
        fault.rewritten = path;
        fault.way = way;
        fault.rewrite_at = rank == size - 1 ? 4 : 0;
        shard_status status = shard_load(list, path);
        fault.rewrite_at = 0;
        if (way == RENAME_AWAY) { /* what it has open is whole */
            check_ok(status);
            check_state(list, 100);
        } else {
            check_error(status, "*cannot read */rewritten.safetensors: it was written to while it was read; load it again");
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
    tcase_add_loop_test(tcase, test_places, 1, 3);
    tcase_add_test(tcase, test_links);
    tcase_add_test(tcase, test_foreign_links);
    tcase_add_test(tcase, test_file_limit);
    tcase_add_test(tcase, test_permissions);
    tcase_add_test(tcase, test_differing);
    tcase_add_test(tcase, test_earlier_errors);
    tcase_add_test(tcase, test_two_files);
    tcase_add_loop_test(tcase, test_replaced, 1, 3);
    tcase_add_loop_test(tcase, test_rewritten, 1, 4);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
