/* Jobs that are killed while they save: the old checkpoint or the new one is there, bit for bit, and the next save leaves no
 * temporary file. */
#include "support/file_calls.h"
#include "support/scratch.h"
#include "support/state.h"
#include "support/steps.h"

#include "comm/comm.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { OLD = 100, NEW = 200, RANKS_MOST = 4, NEVER = 1 << 30 };

/* Written by the ranks of a job, read by the test and the next job. */
typedef struct outcome {
    int sound;    /* ranks that have come to the save in which some are killed */
    int killed;   /* ranks that were killed in it */
    int direct;   /* of them, before a write that bypasses the page cache */
    int64_t step; /* the last one that was saved whole; 0: none */
    int calls[RANKS_MOST];
} outcome;

/* The way in which ranks are killed. */
typedef struct crash {
    saved_run run;
    int size;
    int rank;   /* -1: all */
    int at;     /* the call of the system before which it happens; 0: at a moment; NEVER: nobody is killed */
    int moment; /* microseconds after the save has begun */
    outcome *outcome;
} crash;

static crash now;
static volatile sig_atomic_t saving;

/* Only where the save has not ended. */
static void die(int signal)
{
    (void)signal;
    if (!saving)
        return;
    __atomic_add_fetch(&now.outcome->killed, 1, __ATOMIC_SEQ_CST);
    raise(SIGKILL);
}

/* A kill loses nothing that was written, so that no sync is needed. */
static ssize_t count_call(const file_call *call)
{
    int rank = shard_group_rank(shard_world());
    if (++now.outcome->calls[rank] == now.at && (now.rank == -1 || now.rank == rank)) {
        if (call->kind == CALL_PWRITE && file_calls_are_direct(call->descriptor))
            __atomic_add_fetch(&now.outcome->direct, 1, __ATOMIC_SEQ_CST);
        die(0);
    }
    return call->kind == CALL_FSYNC ? CALL_LEAVE : CALL_MAKE;
}

static void start_timer(int microseconds)
{
    signal(SIGALRM, die);
    struct itimerval timer = {.it_value = {.tv_sec = microseconds / 1000000, .tv_usec = microseconds % 1000000 + 1}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

/* Checks what the job before has left, saves a step, and is killed while it saves the next one. */
static void save_and_die(shard_group *world, void *context)
{
    now = *(crash *)context;
    int rank = shard_group_rank(world);
    int64_t step = now.outcome->step ? steps_check(&now.run, world, now.outcome->step) : 0;
    steps_save_whole(&now.run, world, step + 1);
    shard_tensors *next = steps_state(&now.run, world, step + 2);
    check_ok(shard_barrier(world));
    now.outcome->step = step + 1;
    __atomic_add_fetch(&now.outcome->sound, 1, __ATOMIC_SEQ_CST);
    check_ok(shard_barrier(world));
    file_calls_watch(count_call);
    saving = 1;
    if (now.at == 0 && (now.rank == -1 || now.rank == rank))
        start_timer(now.moment);
    shard_status status = steps_save(&now.run, next, step + 2);
    saving = 0;
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    file_calls_watch(NULL);
    if (now.at == NEVER)
        check_ok(status);
    else if (status != SHARD_OK)
        shard_clear_error();
    shard_tensors_destroy(next);
}

/* Runs it; returns how many ranks were killed in the save. */
static int run_crash(const crash *c)
{
    c->outcome->sound = c->outcome->killed = 0;
    memset(c->outcome->calls, 0, sizeof c->outcome->calls);
    run_job_of((ranks_run){.size = c->size,
                           .body = save_and_die,
                           .context = (void *)c,
                           .may_fail = c->rank < 0 ? (1u << c->size) - 1 : 1u << c->rank});
    ck_assert_msg(c->outcome->sound == c->size,
                  "%d of %d ranks, killed rank %d at call %d or after %d us before: %d found the old or the new "
                  "checkpoint and no temporary file",
                  c->size, c->size, c->rank, c->at, c->moment, c->outcome->sound);
    return c->outcome->killed;
}

/* Number of ranks, and the one that is killed. */
static const int who[][2] = {{1, 0}, {2, 0}, {2, 1}, {2, -1}, {4, 0}, {4, 1}, {4, 2}, {4, 3}, {4, -1}};
enum { WHO = sizeof who / sizeof *who };

static crash start_crashes(const char *test, int number, const int *killed, save_way way, bool direct)
{
    char name[40];
    outcome *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    snprintf(name, sizeof name, "%s.%d", test, number);
    return (crash){.run = steps_start(name, way, direct), .size = killed[0], .rank = killed[1], .outcome = shared};
}

/* The last crash is checked by a job that is not killed. */
static void end_crashes(crash *c)
{
    c->at = NEVER;
    ck_assert_int_eq(run_crash(c), 0);
    munmap(c->outcome, sizeof *c->outcome);
}

/* ---- at each call ---- */

/* The ranks, the way and the size of the data. The usual run takes the first of them; suite long has every way of every rank. */
static const struct {
    int who;
    save_way way;
    bool direct;
} usual[] = {{0, SAVE_WAITS, false}, {1, SAVE_WAITS, false},    {2, SAVE_WAITS, false},      {3, SAVE_WAITS, false},
             {5, SAVE_POLLS, false}, {8, SAVE_FINISHES, false}, {0, SAVE_CHECKPOINT, false}, {1, SAVE_CHECKPOINT_ASYNC, false},
             {0, SAVE_WAITS, true},  {2, SAVE_CHECKPOINT, true}};
enum { USUAL = sizeof usual / sizeof *usual, EVERY = 2 * SAVE_WAYS * WHO };

static void crash_at_each_call(int number, const int *killed, save_way way, bool direct)
{
    crash c = start_crashes("calls", number, killed, way, direct);
    int cases = 0;
    for (c.at = 1; run_crash(&c) > 0; c.at++)
        cases++;
    printf("cases: %d jobs killed, %d of them before a write that bypasses the page cache\n", cases, c.outcome->direct);
    ck_assert_int_ge(cases, killed[1] <= 0 ? 14 : 6);
    ck_assert(!direct || c.outcome->direct > 0 || !steps_can_be_direct(&c.run));
    end_crashes(&c);
}

START_TEST(test_each_call)
{
    if (getenv("SHARD_TEST_EVERY"))
        crash_at_each_call(_i, who[_i % WHO], (save_way)(_i / WHO / 2), _i / WHO % 2);
    else
        crash_at_each_call(_i, who[usual[_i].who], usual[_i].way, usual[_i].direct);
}
END_TEST

START_TEST(test_each_call_of_writer)
{
    crash_at_each_call(EVERY + _i, who[0], SAVE_WRITER, _i);
}
END_TEST

/* ---- at any moment ---- */

static void crash_at_moments(int number, const int *killed, save_way way, bool direct)
{
    int wanted = getenv("SHARD_TEST_EVERY") ? 12 : 6, kills = 0, jobs = 0, most = 20 * wanted;
    unsigned seed = (unsigned)time(NULL);
    crash c = start_crashes("moments", number, killed, way, direct);
    printf("seed: %u\n", seed);
    srand(seed);
    /* How long a save takes here and now; it is measured again at each save that was not killed. */
    for (int longest = 3000; kills < wanted && jobs < most; jobs++) {
        c.moment = rand() % longest;
        bool was_killed = run_crash(&c) > 0;
        kills += was_killed;
        longest = was_killed ? longest + longest / 8 : longest - longest / 4;
        longest = longest < 500 ? 500 : longest > 300000 ? 300000 : longest;
    }
    printf("cases: %d jobs killed, of %d\n", kills, jobs);
    ck_assert_int_ge(kills, wanted);
    end_crashes(&c);
}

/* All ways, ranks and sizes of data in turn, with so many kills each: 1,080 in full. */
START_TEST(test_moments)
{
    int number = getenv("SHARD_TEST_EVERY") ? _i : _i * 11 % EVERY; /* prime to the number of ranks' and ways' */
    crash_at_moments(number, who[number % WHO], (save_way)(number / WHO / 2), number / WHO % 2);
}
END_TEST

START_TEST(test_moments_of_writer)
{
    crash_at_moments(EVERY + _i, who[0], SAVE_WRITER, _i);
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
    shard_tensors_destroy(list);
    list = make_small_state(world, 1);
    check_ok(shard_load(list, path));
    float here[5], old[5];
    shard_tensors *other = make_small_state(NULL, OLD);
    check_ok(shard_copy_to_host(shard_tensors_find(list, "small"), here, sizeof here));
    check_ok(shard_copy_to_host(shard_tensors_find(other, "small"), old, sizeof old));
    check_state(list, memcmp(here, old, sizeof here) == 0 ? OLD : NEW);
    shard_tensors_destroy(other);
    shard_tensors_destroy(list);
}

START_TEST(test_two_jobs)
{
    run_job(3, save_during_another, (void *)scratch_path("during.safetensors"));
}
END_TEST

/* As for a user who is not root. */
static ssize_t refuse_to_write(const file_call *call)
{
    struct stat status;
    errno = EACCES;
    return call->kind == CALL_OPEN && (call->flags & O_WRONLY) && stat(call->path, &status) == 0 && !(status.st_mode & S_IWUSR)
               ? CALL_FAIL
               : CALL_MAKE;
}

/* A job that replaced a read-only file was killed just before it. */
START_TEST(test_read_only)
{
    shard_tensors *list = make_small_state(NULL, OLD);
    write_file(scratch_path("read_only.tmp.0123456789abcdef"), "", 0);
    ck_assert_int_eq(chmod(scratch_path("read_only.tmp.0123456789abcdef"), 0444), 0);
    file_calls_watch(refuse_to_write);
    check_ok(shard_save(list, scratch_path("read_only"), NULL, .local = true));
    file_calls_watch(NULL);
    ck_assert_int_eq(scratch_count("read_only"), 1);
    shard_tensors_destroy(list);
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
    tcase_add_loop_test(tcase, test_each_call, 0, every ? EVERY : USUAL);
    tcase_add_loop_test(tcase, test_each_call_of_writer, 0, 2);
    tcase_add_loop_test(tcase, test_moments_of_writer, 0, 2);
    tcase_add_loop_test(tcase, test_moments, 0, every ? EVERY : 8);
    tcase_add_test(tcase, test_two_jobs);
    tcase_add_test(tcase, test_read_only);
    tcase_add_test(tcase, test_other_files);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
