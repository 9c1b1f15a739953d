/*
 * shard_init_with: ranks that no launcher started, connected by the test's own exchange over socket pairs. Over
 * shared memory and through the exchange itself; exchanges that fail, hang or give bytes in another order.
 */
#include "support/collectives.h"
#include "support/host.h"
#include "support/job.h"
#include "support/no_memory.h"

#include "base/clock.h"
#include "base/env.h"
#include "base/memory.h"
#include "comm/comm.h"

#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 4 };

typedef enum fault { NO_FAULT, RETURNS_IO, REPORTS, HANGS, SWAPS, LIES, EMPTIES } fault;

/* A socket between each two ranks; ends[a][b] is rank a's. */
typedef struct wires {
    int size, rank, ends[MOST][MOST];
    _Atomic int calls; /* of the exchange, which a thread left behind may be in */
    fault fault; /* of rank `faulty` in the call of that number, from 1 on */
    int faulty, faulty_call;
    const char *transport; /* SHARD_TRANSPORT */
    int inside;            /* the exchange runs: it is called once at a time */
} wires;

/* Moves what the socket takes or has now; `done` counts. */
static shard_status move_bytes(int file, char *bytes, size_t count, size_t *done, bool writes)
{
    if (*done == count)
        return SHARD_OK;
    ssize_t moved = writes ? send(file, bytes + *done, count - *done, MSG_NOSIGNAL | MSG_DONTWAIT)
                           : recv(file, bytes + *done, count - *done, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return SHARD_OK;
    *done += moved > 0 ? (size_t)moved : 0;
    return moved > 0 ? SHARD_OK : SHARD_ERROR_IO;
}

static shard_status be_faulty(wires *w)
{
    if (w->fault == HANGS)
        sleep(1000);
    if (w->fault == REPORTS)
        return shard_error(SHARD_ERROR_IO, "wire %d is cut", w->rank);
    return SHARD_ERROR_IO;
}

/* With all others at once, so that no two ranks wait for each other to read. */
static shard_status exchange(void *context, const int *ranks, int count, const void *send_bytes, void *receive, size_t bytes)
{
    wires *w = context;
    w->calls++;
    ck_assert_int_eq(w->inside++, 0);
    bool faulty = w->fault != NO_FAULT && w->rank == w->faulty && w->calls == w->faulty_call;
    if (faulty && w->fault == EMPTIES) /* the segment: its process, then its file */
        ck_assert_int_eq(ftruncate(((const int32_t *)send_bytes)[1], 0), 0);
    shard_status status = faulty && w->fault < SWAPS ? be_faulty(w) : SHARD_OK;
    size_t sent[MOST] = {0}, received[MOST] = {0}, left = 2 * bytes * (size_t)(count - 1);
    while (status == SHARD_OK && left > 0) {
        struct pollfd wait[MOST];
        left = 0;
        for (int i = 0; i < count && status == SHARD_OK; i++) {
            int file = ranks[i] == w->rank ? -1 : w->ends[w->rank][ranks[i]];
            char *place = (char *)receive + (size_t)(faulty && w->fault == SWAPS ? count - 1 - i : i) * bytes;
            wait[i] = (struct pollfd){.fd = -1};
            if (file < 0) {
                memcpy(place, send_bytes, bytes);
                continue;
            }
            status = move_bytes(file, (char *)send_bytes, bytes, &sent[i], true);
            if (status == SHARD_OK)
                status = move_bytes(file, place, bytes, &received[i], false);
            wait[i] = (struct pollfd){.fd = sent[i] < bytes || received[i] < bytes ? file : -1,
                                      .events = (short)((sent[i] < bytes ? POLLOUT : 0) | (received[i] < bytes ? POLLIN : 0))};
            left += 2 * bytes - sent[i] - received[i];
        }
        if (status == SHARD_OK && left > 0)
            poll(wait, (nfds_t)count, -1);
    }
    if (faulty && w->fault == LIES)
        memset(receive, 1, bytes);
    w->inside--;
    return status;
}

static void run_wired(wires w, ranks_body *body, const char *timeout, unsigned may_fail)
{
    for (int a = 0; a < w.size; a++)
        for (int b = 0; b < a; b++) {
            int pair[2];
            ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            w.ends[a][b] = pair[0];
            w.ends[b][a] = pair[1];
        }
    run_ranks(w.size, body, &w, .bare = true, .timeout = timeout, .may_fail = may_fail);
}

/* This process's rank, as run_ranks counts; the library must not use what a launcher would have set. */
static shard_status join(wires *w)
{
    w->rank = atoi(getenv("RANK"));
    unsetenv("SHARD_SHM_FD");
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_RANK");
    unsetenv("LOCAL_WORLD_SIZE");
    if (w->transport)
        setenv("SHARD_TRANSPORT", w->transport, 1);
    shard_init_options options = SHARD_INIT_OPTIONS_INIT;
    options.rank = w->rank;
    options.ranks = w->size;
    options.exchange = exchange;
    options.context = w;
    return shard_init_with(&options);
}

/* ---- what works ---- */

/* The segments that this process has open are its user's alone, whatever its umask. */
static int check_segments(void)
{
    int found = 0;
    for (int file = 0; file < 1024; file++) {
        char name[40], target[100];
        struct stat status;
        snprintf(name, sizeof name, "/proc/self/fd/%d", file);
        ssize_t length = readlink(name, target, sizeof target - 1);
        target[length > 0 ? length : 0] = '\0';
        if (strncmp(target, "/memfd:shard", 12) != 0)
            continue;
        ck_assert_int_eq(fstat(file, &status), 0);
        ck_assert_msg((status.st_mode & 07777) == 0600, "%s has the mode %o", target, (unsigned)status.st_mode & 07777);
        ck_assert_uint_eq(status.st_uid, geteuid());
        found++;
    }
    return found;
}

static void joins(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    umask(0);
    int segments = check_segments(); /* of the test itself */
    check_ok(join(w));
    shard_group *world = shard_world();
    ck_assert_int_eq(shard_group_rank(world), w->rank);
    ck_assert_int_eq(shard_group_size(world), w->size);
    ck_assert_ptr_null(getenv("LOCAL_RANK"));
    ck_assert_int_eq(atoi(shard_env_string("LOCAL_RANK", "-1")), w->rank);
    const char *transport = w->transport ? w->transport : "shm";
    ck_assert_str_eq(shard_group_transport(world), transport);
    ck_assert((check_segments() > segments) == (strcmp(transport, "shm") == 0));
    int calls = w->calls;
    check_sizes(world, 30011, RANK_ORDER); /* several pieces of the exchange */
    check_all_reduce_start(world, RANK_ORDER);
    check_exchange(world);
    shard_group *group = shard_group_split(world, w->rank == 1);
    check_sizes(group, 501, RANK_ORDER);
    shard_group_destroy(group);
    if (strcmp(transport, "shm") == 0)
        ck_assert_int_eq(w->calls, calls);
    else
        ck_assert_int_gt(w->calls, calls);
    check_fails(shard_init(NULL, NULL), SHARD_ERROR_ARGUMENT, "shard_init: called twice*");
    ck_assert_int_eq(shard_finalize(), 0);
}

START_TEST(test_joins)
{
    static const char *const transports[] = {NULL, "shm", "exchange"};
    for (int size = 2; size <= MOST; size++)
        run_wired((wires){.size = size, .transport = transports[_i]}, joins, NULL, 0);
}
END_TEST

/* A collective takes no memory: the other ranks would wait for a rank that had none. */
static void lacks_memory(shard_group *none, void *context)
{
    (void)none;
    enum { COUNT = 100000 };
    const shard_memory_calls *usual;
    wires *w = context;
    check_ok(join(w));
    float *data = malloc(COUNT * sizeof *data);
    ck_assert_ptr_nonnull(data);
    for (int i = 0; i < COUNT; i++)
        data[i] = (float)(i % 100);
    usual = shard_memory_calls_used;
    if (w->rank == 1)
        shard_memory_calls_used = &no_memory_calls;
    check_ok(shard_group_all_reduce(shard_world(), NULL, data, COUNT, SHARD_FLOAT32, SHARD_SUM));
    shard_memory_calls_used = usual;
    for (int i = 0; i < COUNT; i++)
        ck_assert_float_eq(data[i], (float)(i % 100 * w->size));
    free(data);
    ck_assert_int_eq(shard_finalize(), 0);
}

START_TEST(test_lacks_memory)
{
    run_wired((wires){.size = 3, .transport = "exchange"}, lacks_memory, NULL, 0);
}
END_TEST

/* A layer that is split over the ranks: the same loss on each, to the bit, by either transport. */
static void trains(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    check_ok(join(w));
    shard_module *layer = shard_nn_parallel_linear(5, 7, SHARD_SPLIT_COLUMN, shard_world());
    shard_optimizer *sgd = shard_sgd(layer, .lr = 0.5);
    double loss_value = 0, first = 0;
    for (int step = 0; step < 4; step++)
        SHARD_SCOPE
        {
            static const int64_t labels[3] = {6, 0, 3};
            shard_tensor *loss = shard_parallel_cross_entropy(shard_forward(layer, made_up(SHARD_SHAPE(3, 5), 1, SHARD_FLOAT32)),
                                                              shard_from_host(labels, SHARD_SHAPE(3), .dtype = SHARD_INT64));
            check_ok(shard_backward(loss));
            check_ok(shard_step(sgd));
            loss_value = shard_item(loss);
            first = step == 0 ? loss_value : first;
        }
    FILE *file = w->transport || w->rank == 0 ? fopen("exchange_loss", w->transport ? "r" : "w") : NULL;
    double wanted = loss_value;
    if (w->transport)
        ck_assert_int_eq(fscanf(file, "%la", &wanted), 1);
    else if (file)
        fprintf(file, "%a", loss_value);
    if (file)
        fclose(file);
    ck_assert_double_eq(loss_value, wanted);
    ck_assert_double_lt(loss_value, first - 0.2);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(layer);
    ck_assert_int_eq(shard_finalize(), 0);
}

START_TEST(test_trains)
{
    char folder[] = "/tmp/shard_exchange_XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
    run_wired((wires){.size = 1}, trains, NULL, 0);
    run_wired((wires){.size = 1, .transport = "self"}, trains, NULL, 0);
    run_wired((wires){.size = 3}, trains, NULL, 0);
    run_wired((wires){.size = 3, .transport = "exchange"}, trains, NULL, 0);
    ck_assert_int_eq(unlink("exchange_loss") + rmdir(folder), 0);
}
END_TEST

/* Ranks in other namespaces, as on other hosts, do not share memory. */
static void stays_apart(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    if (atoi(getenv("RANK")) == 1)
        ck_assert_int_eq(unshare(CLONE_NEWUSER), 0);
    shard_status status = join(w);
    if (w->transport) {
        check_error(SHARD_ERROR_UNAVAILABLE, "shard_init_with: SHARD_TRANSPORT is shm, but the ranks are on several hosts*");
        return;
    }
    check_ok(status);
    if (w->rank == 1)
        ck_assert_str_eq(shard_group_transport(shard_world()), "exchange");
    check_sizes(shard_world(), 100, RANK_ORDER);
    ck_assert_int_eq(shard_finalize(), 0);
}

/* Not where the system refuses it, nor in a process of several threads, as those of ThreadSanitizer are. */
static bool can_be_apart(void)
{
    int status = 1;
    pid_t child = fork();
    if (child == 0)
        _exit(unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
    waitpid(child, &status, 0);
    if (status != 0)
        printf("left out: no namespace of users here: %s\n", strerror(WEXITSTATUS(status)));
    return status == 0;
}

START_TEST(test_apart)
{
    if (can_be_apart())
        run_wired((wires){.size = 3, .transport = _i ? "shm" : NULL}, stays_apart, NULL, 0);
}
END_TEST

/* Descriptors of memory without a name, as a segment is. */
static int count_segments(void)
{
    DIR *folder = opendir("/proc/self/fd");
    int count = 0;
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        char to[64] = "";
        ssize_t length = readlinkat(dirfd(folder), entry->d_name, to, sizeof to - 1);
        count += length > 0 && strncmp(to, "/memfd:", 7) == 0;
    }
    closedir(folder);
    return count;
}

/* Ranks that cannot map the segment of rank 0 close its file. */
static void cannot_map(shard_group *none, void *context)
{
    (void)none;
    int before = count_segments();
    check_ok(join(context));
    ck_assert_str_eq(shard_group_transport(shard_world()), "exchange");
    ck_assert_int_eq(count_segments(), before);
    ck_assert_int_eq(shard_finalize(), 0);
}

START_TEST(test_cannot_map)
{
    run_wired((wires){.size = 3, .fault = EMPTIES, .faulty = 0, .faulty_call = 2}, cannot_map, NULL, 0);
}
END_TEST

/* ---- what fails ---- */

typedef struct fault_case {
    fault fault;
    int faulty, call;
    const char *transport;
    shard_status status;    /* of the faulty rank */
    const char *error;      /* there */
    shard_status elsewhere; /* 0: none of these ranks need fail by their exchange */
    const char *error_elsewhere;
} fault_case;

static const fault_case fault_cases[] = {
    {RETURNS_IO, 1, 1, NULL, SHARD_ERROR_PEER,
     "rank 1: the exchange of ranks 0, 1 and 2 in shard_init_with failed: it returned 6 (io)", SHARD_ERROR_TIMEOUT,
     "rank * did not return within 1 s (SHARD_TIMEOUT)"},
    {REPORTS, 2, 2, NULL, SHARD_ERROR_PEER, "rank 2: * in shard_init_with failed: wire 2 is cut", SHARD_ERROR_TIMEOUT,
     "*did not return*"},
    {HANGS, 0, 3, NULL, SHARD_ERROR_TIMEOUT, "rank 0: * in shard_init_with did not return within 1 s (SHARD_TIMEOUT)",
     SHARD_ERROR_TIMEOUT, "*did not return*"},
    {SWAPS, 2, 1, NULL, SHARD_ERROR_MISMATCH, "*at place 0 of the exchange's result are the bytes of rank 2*", 0, NULL},
    {LIES, 0, 1, NULL, SHARD_ERROR_MISMATCH,
     "*at place 0 of the exchange's result are not the bytes that a rank of this version*", 0, NULL},
    {REPORTS, 1, 3, "exchange", SHARD_ERROR_PEER, "rank 1: * failed: wire 1 is cut", SHARD_ERROR_TIMEOUT, "*did not return*"},
};

static const fault_case *fault_now;

static void fails(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    shard_status status = join(w);
    if (w->rank == w->faulty) {
        ck_assert_int_eq(status, fault_now->status);
        check_error(fault_now->status, fault_now->error);
    } else if (fault_now->error_elsewhere) {
        ck_assert_int_eq(status, fault_now->elsewhere);
        check_error(fault_now->elsewhere, fault_now->error_elsewhere);
    } else {
        ck_assert_int_ne(status, SHARD_OK);
        shard_clear_error();
    }
    ck_assert(w->rank != w->faulty || w->calls == w->faulty_call); /* it is not called again */
    _exit(0);                                                      /* where a call is left behind */
}

START_TEST(test_faults)
{
    fault_now = &fault_cases[_i];
    run_wired((wires){.size = 3,
                      .fault = fault_now->fault,
                      .faulty = fault_now->faulty,
                      .faulty_call = fault_now->call,
                      .transport = fault_now->transport},
              fails, "1", 0);
}
END_TEST

/* A rank that has an error from before joins, over shared memory where that is there, and the others receive the error. */
static void failed_before(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    bool odd = atoi(getenv("RANK")) == 1;
    if (odd)
        shard_error(SHARD_ERROR_IO, "settings.txt: no such file");
    ck_assert_int_ne(join(w), SHARD_OK);
    check_error(odd ? SHARD_ERROR_IO : SHARD_ERROR_PEER, "rank 1: settings.txt: no such file");
    ck_assert(w->transport || w->calls == 3);
}

START_TEST(test_failed_before)
{
    run_wired((wires){.size = 3, .transport = _i ? "exchange" : NULL}, failed_before, NULL, 0);
}
END_TEST

/* A rank that dies after the start, without a launcher that sees it. */
static void loses_a_rank(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    check_ok(join(w));
    if (w->rank == 2)
        kill(getpid(), SIGKILL);
    ck_assert_int_ne(shard_barrier(shard_world()), SHARD_OK);
    if (w->transport) { /* the socket's other ends are open in other ranks: the deadline */
        check_error(SHARD_ERROR_TIMEOUT, "*the exchange of ranks 0, 1 and 2 in shard_barrier did not return*");
        ck_assert_int_ne(shard_barrier(shard_world()), SHARD_OK);
        check_error(SHARD_ERROR_TIMEOUT, "*did not return*");
        _exit(0);
    }
    check_error(SHARD_ERROR_PEER, "rank 2 died*shard_barrier");
    ck_assert_int_eq(shard_finalize(), 1);
    check_error(SHARD_ERROR_PEER, "*rank 2 died*shard_finalize");
}

START_TEST(test_loses_a_rank)
{
    run_wired((wires){.size = 3, .transport = _i ? "exchange" : NULL}, loses_a_rank, _i ? "1" : NULL, 1u << 2);
}
END_TEST

static _Atomic int *ended; /* whether rank 0 has */

/* After a wait of a device for SHARD_TIMEOUT that of the exchange is short. */
static void waits_once(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    check_ok(join(w));
    if (w->rank == 1) {
        ck_assert(await_count(ended, 1));
        _exit(0);
    }
    double start = shard_seconds();
    shard_process.waited = true;
    shard_error(SHARD_ERROR_TIMEOUT, "a device was late");
    shard_barrier(shard_world());
    check_error(SHARD_ERROR_TIMEOUT, "*in shard_barrier did not return within 30 s (SHARD_TIMEOUT)");
    ck_assert_double_lt(shard_seconds() - start, 10);
    ++*ended;
    _exit(0);
}

START_TEST(test_waits_once)
{
    ended = shared_count();
    run_wired((wires){.size = 2, .transport = "exchange"}, waits_once, "30", 0);
}
END_TEST

static void is_stopped(shard_group *none, void *context)
{
    (void)none;
    check_ok(join(context));
    check_stopped_job(shard_world());
    ck_assert_int_eq(shard_finalize(), 0);
}

START_TEST(test_stopped)
{
    run_wired((wires){.size = 2, .transport = _i ? "exchange" : NULL}, is_stopped, NULL, 0);
}
END_TEST

static void differs(shard_group *none, void *context)
{
    (void)none;
    wires *w = context;
    if (atoi(getenv("RANK")) == 1)
        w->transport = "exchange";
    ck_assert_int_eq(join(w), SHARD_ERROR_MISMATCH);
    check_error(SHARD_ERROR_MISMATCH, "shard_init_with: SHARD_TRANSPORT *exchange*rank 1*");
}

START_TEST(test_differs)
{
    run_wired((wires){.size = 2}, differs, NULL, 0);
}
END_TEST

static void refuses_transport(shard_group *none, void *context)
{
    (void)none;
    ck_assert_int_eq(join(context), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_init_with: *\"mpi\"*");
}

START_TEST(test_refuses_transport)
{
    run_wired((wires){.size = 2, .transport = "mpi"}, refuses_transport, NULL, 0);
}
END_TEST

START_TEST(test_wrong_options)
{
    static const shard_init_options wrong[] = {
        {sizeof(shard_init_options), 0, 0, exchange, NULL},
        {sizeof(shard_init_options), 2, 2, exchange, NULL},
        {sizeof(shard_init_options), -1, 2, exchange, NULL},
        {sizeof(shard_init_options), 0, 2, NULL, NULL},
        {0, 0, 1, NULL, NULL},
    };
    static const char *const errors[] = {"shard_init_with: rank 0 of 0 ranks*", "shard_init_with: rank 2 of 2 ranks*",
                                         "shard_init_with: rank -1 of 2 ranks*", "shard_init_with: exchange is NULL", "*size*"};
    ck_assert_int_eq(shard_init_with(&wrong[_i]), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, errors[_i]);
    setenv("SHARD_TRANSPORT", "exchange", 1);
    check_fails(shard_init(NULL, NULL), SHARD_ERROR_ARGUMENT, "SHARD_TRANSPORT is exchange*shard_init_with*");
    unsetenv("SHARD_TRANSPORT");
    check_ok(shard_init_with(NULL));
    ck_assert_str_eq(shard_group_transport(shard_world()), "self");
    ck_assert_int_eq(shard_finalize(), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("exchange");
    TCase *tcase = test_case(suite, "exchange");
    tcase_add_loop_test(tcase, test_joins, 0, 3);
    tcase_add_test(tcase, test_lacks_memory);
    tcase_add_test(tcase, test_trains);
    tcase_add_loop_test(tcase, test_apart, 0, 2);
    tcase_add_test(tcase, test_cannot_map);
    tcase_add_loop_test(tcase, test_faults, 0, sizeof fault_cases / sizeof *fault_cases);
    tcase_add_loop_test(tcase, test_loses_a_rank, 0, 2);
    tcase_add_loop_test(tcase, test_failed_before, 0, 2);
    tcase_add_test(tcase, test_waits_once);
    tcase_add_loop_test(tcase, test_stopped, 0, 2);
    tcase_add_test(tcase, test_differs);
    tcase_add_test(tcase, test_refuses_transport);
    tcase_add_loop_test(tcase, test_wrong_options, 0, 5);
    return test_run(suite);
}
