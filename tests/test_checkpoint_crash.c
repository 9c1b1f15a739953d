/* Jobs that are killed while they save: the old checkpoint or the new one is there, bit for bit, and the next save leaves no
 * temporary file. */
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"

#include "comm/comm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OLD = 100, NEW = 200, RANKS_MOST = 4 };

/* Written by the ranks of a job, read by the test. */
typedef struct outcome {
    int sound; /* ranks that have come to the save in which some are killed */
    int saved; /* ranks that have come out of it */
    int calls[RANKS_MOST];
} outcome;

/* The way in which ranks are killed. */
typedef struct crash {
    int size;
    int rank;     /* -1: all */
    int at;       /* the call of the system before which it happens; 0: at a moment */
    int moment;   /* microseconds after the save has begun */
    save_way way;
    bool follows; /* there is a checkpoint of a job that was killed */
    const char *path;
    outcome *outcome;
} crash;

static crash now;

static void die(int signal)
{
    (void)signal;
    raise(SIGKILL);
}

/* A kill loses nothing that was written, so that no sync is needed. */
static ssize_t count_call(const file_call *call)
{
    int rank = shard_group_rank(shard_world());
    if (++now.outcome->calls[rank] == now.at && (now.rank == -1 || now.rank == rank))
        raise(SIGKILL);
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

static void start_timer(int microseconds)
{
    signal(SIGALRM, die);
    struct itimerval timer = {.it_value = {.tv_sec = microseconds / 1000000, .tv_usec = microseconds % 1000000 + 1}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Whether the list has that state's first tensor, which is whole on each rank. */
static bool is_state(const shard_tensors *list, uint64_t seed)
{
    shard_tensors *other = make_small_state(NULL, seed);
    float here[5], there[5];
    check_ok(shard_copy_to_host(shard_tensors_find(list, "small"), here, sizeof here));
    check_ok(shard_copy_to_host(shard_tensors_find(other, "small"), there, sizeof there));
    shard_tensors_destroy(other);
    return memcmp(here, there, sizeof here) == 0;
}

/* Fails unless the file has one of the two states, wholly. */
static void check_either(shard_group *world, const char *path)
{
    shard_tensors *list = make_small_state(world, 1);
    check_ok(shard_load(list, path));
    check_state(list, is_state(list, OLD) ? OLD : NEW);
    shard_tensors_destroy(list);
}

/* Checks what the job before has left, saves the old state, and is killed while it saves the new one. */
static void save_and_die(shard_group *world, void *context)
{
    now = *(crash *)context;
    int rank = shard_group_rank(world);
    shard_tensors *old = make_small_state(world, OLD), *new = make_small_state(world, NEW);
    if (now.follows)
        check_either(world, now.path);
    check_ok(shard_save(old, now.path, NULL));
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    check_ok(shard_barrier(world));
    __atomic_add_fetch(&now.outcome->sound, 1, __ATOMIC_SEQ_CST);
    check_ok(shard_barrier(world));
    file_calls_watch(count_call);
    if (now.at == 0 && (now.rank == -1 || now.rank == rank))
        start_timer(now.moment);
    shard_status status = save_by(now.way, new, now.path);
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    file_calls_watch(NULL);
    __atomic_add_fetch(&now.outcome->saved, 1, __ATOMIC_SEQ_CST);
    if (status != SHARD_OK)
        shard_clear_error();
    shard_tensors_destroy(old);
    shard_tensors_destroy(new);
}

/* Runs it; returns whether a rank was killed. */
static bool run_crash(crash *c)
{
    memset(c->outcome, 0, sizeof *c->outcome);
    run_job_of((ranks_run){.size = c->size, .body = save_and_die, .context = c, .may_fail = (1u << c->size) - 1});
    ck_assert_msg(c->outcome->sound == c->size,
                  "%d of %d ranks, killed rank %d at call %d or after %d us before: %d found the old or the new "
                  "checkpoint and no temporary file",
                  c->size, c->size, c->rank, c->at, c->moment, c->outcome->sound);
    c->follows = true;
    return c->outcome->saved < c->size;
}

static crash start_crashes(const char *name, int size, int rank, save_way way)
{
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    return (crash){.size = size, .rank = rank, .way = way, .path = scratch_path(name), .outcome = shared};
}

/* The last crash is checked by a job that is not killed. */
static void end_crashes(crash *c)
{
    c->at = 1 << 30;
    ck_assert(!run_crash(c));
    munmap(c->outcome, sizeof *c->outcome);
}

/* ---- at each call ---- */

/* Number of ranks, and the one that is killed. */
static const int who[][2] = {{1, 0}, {2, 0}, {2, 1}, {2, -1}, {4, 0}, {4, 3}, {4, -1}};
/* The first number of cases: synchronous saves, and three of the others; suite long has all. */
static const save_way ways[] = {SAVE_WAITS, SAVE_POLLS, SAVE_FINISHES};
enum { WHO = sizeof who / sizeof *who, QUICK = WHO + 3 };

START_TEST(test_each_call)
{
    const int *killed = who[_i % WHO];
    crash c = start_crashes("calls.safetensors", killed[0], killed[1], ways[_i / WHO]);
    int cases = 0;
    for (c.at = 1; run_crash(&c); c.at++)
        cases++;
    printf("cases: %d\n", cases);
    ck_assert_int_ge(cases, killed[1] == 0 ? 14 : 6);
    end_crashes(&c);
}
END_TEST

/* ---- at any moment ---- */

START_TEST(test_moments)
{
    static const int sizes[] = {1, 2, 4, 2};
    int moments = getenv("SHARD_TEST_EVERY") ? 250 : 12, killed = 0;
    unsigned seed = (unsigned)time(NULL);
    crash c = start_crashes("moments.safetensors", sizes[_i % 4], _i % 4 == 3 ? 1 : -1, ways[_i / 4]);
    printf("seed: %u\n", seed);
    srand(seed);
    /* How long a save takes here and now; it is measured again at each save that was not killed. */
    int longest = 3000;
    for (int i = 0; i < moments; i++) {
        c.moment = rand() % longest;
        bool was_killed = run_crash(&c);
        killed += was_killed;
        longest = was_killed ? longest + longest / 8 : longest - longest / 4;
        longest = longest < 500 ? 500 : longest > 300000 ? 300000 : longest;
    }
    printf("cases: %d, %d of them killed\n", moments, killed);
    ck_assert_int_ge(killed, moments / 5);
    end_crashes(&c);
}
END_TEST

/* ---- of jobs that live ---- */

/* Two jobs save to one path at a time: none removes the other's temporary file. */
static void save_during_another(shard_group *world, void *context)
{
    const char *path = context;
    shard_tensors *list = make_small_state(NULL, shard_group_rank(world) ? NEW : OLD);
    for (int i = 0; i < 100; i++)
        check_ok(shard_save(list, path, NULL, .local = true));
    check_ok(shard_barrier(world));
    ck_assert_int_eq(scratch_count(".tmp"), 0);
    check_either(world, path);
    shard_tensors_destroy(list);
}

START_TEST(test_two_jobs)
{
    run_job(3, save_during_another, (void *)scratch_path("during.safetensors"));
}
END_TEST

/* Files that only look like leftovers stay. */
START_TEST(test_other_files)
{
    static const char *const names[] = {"x.tmp.0123456789abcde",  "x.tmp.0123456789abcdeg", "x.tmp.0123456789abcdef0",
                                        "x.tmpp0123456789abcdef", "y.tmp.0123456789abcdef", "xx.tmp.0123456789abcdef"};
    enum { NAMES = sizeof names / sizeof *names };
    shard_tensors *list = make_small_state(NULL, OLD);
    for (int i = 0; i < NAMES; i++)
        write_file(scratch_path(names[i]), "", 0);
    write_file(scratch_path("x.tmp.fedcba9876543210"), "", 0);
    ck_assert_int_eq(symlink(scratch_path("y.tmp.0123456789abcdef"), scratch_path("x.tmp.1111111111111111")), 0);
    check_ok(shard_save(list, scratch_path("x"), NULL, .local = true));
    for (int i = 0; i < NAMES; i++)
        ck_assert_int_eq(access(scratch_path(names[i]), F_OK), 0);
    ck_assert_int_eq(access(scratch_path("x.tmp.1111111111111111"), F_OK), 0);
    ck_assert_int_ne(access(scratch_path("x.tmp.fedcba9876543210"), F_OK), 0);
    shard_tensors_destroy(list);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("checkpoint crash");
    TCase *tcase = test_case(suite, "crash");
    bool every = getenv("SHARD_TEST_EVERY");
    if (every)
        tcase_set_timeout(tcase, 600);
    tcase_add_loop_test(tcase, test_each_call, 0, every ? SAVE_WAYS * WHO : QUICK);
    tcase_add_loop_test(tcase, test_moments, 0, every ? SAVE_WAYS * 4 : 5);
    tcase_add_test(tcase, test_two_jobs);
    tcase_add_test(tcase, test_other_files);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
