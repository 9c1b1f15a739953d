#include "support/ranks.h"

#include "comm/comm.h"
#include "comm/shm/segment.h"

#include <shard/distributed.h>

#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

const int rank_counts[RANK_COUNTS] = {1, 2, 3, 4, 8};

#define MOST_RANKS 32

#define TEXT_BYTES 1500

/* What a rank leaves behind: where it was last, and why it failed. */
typedef struct rank_report {
    const char *file; /* a constant of the program, which all ranks share */
    int line;
    bool asserted; /* text is of an assertion that failed */
    char text[TEXT_BYTES];
} rank_report;

/* The own report, in a rank; NULL elsewhere. */
static rank_report *own_report;

/* Whether it goes to standard error too. */
static bool own_output;

void ranks_report_to_stderr(void)
{
    static rank_report report;
    own_report = &report;
    own_output = true;
}

/* The tests are linked with --wrap of these two: a rank is no child that Check knows
 * and must not write into Check's pipe. Its failed assertions go to the report, and
 * from there to Check; of the points that it passes, the last one is kept for the
 * rank that a signal ends. */
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
CK_ATTRIBUTE_NORETURN void __real__ck_assert_failed(const char *file, int line, const char *expression, const char *format, ...);
CK_ATTRIBUTE_NORETURN void __wrap__ck_assert_failed(const char *file, int line, const char *expression, const char *format, ...);

void __wrap__mark_point(const char *file, int line)
{
    if (!own_report) {
        /* Each is a message to the parent: of one that a loop passes again and again, one is enough. */
        static _Thread_local const char *last_file;
        static _Thread_local int last_line;
        if (file != last_file || line != last_line)
            __real__mark_point(file, line);
        last_file = file;
        last_line = line;
        return;
    }
    __atomic_store_n(&own_report->file, file, __ATOMIC_RELAXED); /* the last one of any thread */
    __atomic_store_n(&own_report->line, line, __ATOMIC_RELAXED);
}

void __wrap__ck_assert_failed(const char *file, int line, const char *expression, const char *format, ...)
{
    char text[TEXT_BYTES];
    snprintf(text, sizeof text, "%s", expression);
    if (format) {
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
    }
    if (!own_report)
        __real__ck_assert_failed(file, line, expression, "%s", text);
    __wrap__mark_point(file, line);
    memcpy(own_report->text, text, sizeof text);
    own_report->asserted = true;
    if (own_output)
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
    _exit(1);
}

static shard_group *open_world(void)
{
    return shard_world_open(NULL, NULL);
}

shard_group *(*ranks_open)(void) = open_world;
void (*ranks_close)(shard_group *world) = shard_world_close;

static void be_rank(const ranks_run *run, int rank, int segment)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGALRM, SIG_DFL); /* Check's handlers end the whole test */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    char timeout[32];
    snprintf(timeout, sizeof timeout, "%.0f", ceil(40 * deadline_multiplier()));
    setenv("SHARD_TIMEOUT", run->bare && run->timeout ? run->timeout : timeout, 1);
    if (shard_segment_set_environment(segment, rank, run->size) != 0)
        ck_abort_msg("no environment: %s", strerror(errno));
    shard_group *world = run->bare ? NULL : ranks_open();
    ck_assert_msg(run->bare || world, "no world: %s", shard_last_error());
    if (world && run->timeout) {
        check_ok(shard_barrier(world)); /* processes may take longer to start than the timeout is */
        setenv("SHARD_TIMEOUT", run->timeout, 1);
        shard_process.timeout = atof(run->timeout);
    }
    run->body(world, run->context);
    ck_assert_msg(shard_last_status() == SHARD_OK, "left an error: %s", shard_last_error());
    if (world)
        ranks_close(world);
    exit(0);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

_Atomic int *shared_count(void)
{
    _Atomic int *count = mmap(NULL, sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne((void *)count, MAP_FAILED);
    return count;
}

bool await_count(const _Atomic int *count, int least)
{
    double end = now() + 20 * deadline_multiplier();
    while (*count < least && now() < end)
        usleep(5000);
    return *count >= least;
}

/* Why the rank that ended so has failed, into its report; false if it has not. */
static bool explain(rank_report *rank, int status)
{
    if (WIFSIGNALED(status)) {
        snprintf(rank->text, sizeof rank->text, "killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
        return true;
    }
    if (WEXITSTATUS(status) != 0 && !rank->text[0])
        snprintf(rank->text, sizeof rank->text, "ended with exit code %d", WEXITSTATUS(status));
    return WEXITSTATUS(status) != 0;
}

/* Waits for the ranks: the first that fails, -1 if none does, or the first that is
 * left at the deadline. */
static int wait_for_ranks(const ranks_run *run, pid_t *processes, rank_report *reports, shard_segment *segment)
{
    double deadline = now() + (run->deadline > 0 ? run->deadline : 50) * deadline_multiplier();
    for (;;) {
        int left = 0, hanging = -1;
        for (int rank = 0; rank < run->size; rank++) {
            int status;
            if (processes[rank] == 0)
                continue;
            if (waitpid(processes[rank], &status, WNOHANG) == 0) {
                hanging = left++ == 0 ? rank : hanging;
                continue;
            }
            processes[rank] = 0;
            atomic_store(&segment->ranks[rank].ended, 1);
            if (explain(&reports[rank], status) && (reports[rank].asserted || !(run->may_fail >> rank & 1)))
                return rank;
        }
        if (left == 0)
            return -1;
        if (now() > deadline) {
            snprintf(reports[hanging].text, sizeof reports->text, "has not ended at the deadline, and %d other%s neither",
                     left - 1, left == 2 ? "" : "s");
            return hanging;
        }
        nanosleep(&(struct timespec){0, 1000 * 1000}, NULL);
    }
}

static void end_ranks(int size, pid_t *processes)
{
    for (int rank = 0; rank < size; rank++)
        if (processes[rank])
            kill(processes[rank], SIGKILL);
    for (int rank = 0; rank < size; rank++)
        if (processes[rank])
            waitpid(processes[rank], NULL, 0);
}

/* Whether SHARD_TEST_RANKS, a list of numbers, has this one; all are wanted where it is not set. */
static bool is_wanted(int size)
{
    const char *text = getenv("SHARD_TEST_RANKS");
    bool found = !text;
    while (text && *text) {
        char *end;
        long number = strtol(text, &end, 10);
        ck_assert_msg(number > 0 && (*end == ',' || !*end), "SHARD_TEST_RANKS is \"%s\", not a list as 1,2,3",
                      getenv("SHARD_TEST_RANKS"));
        found = found || number == size;
        text = end + (*end == ',');
    }
    return found;
}

/* Ends the test, which may need what these ranks would have made; in a process that has other tests, only says so. */
static void leave_out(int size)
{
    const char *fork = getenv("CK_FORK");
    printf("left out: a run of %d ranks (SHARD_TEST_RANKS)\n", size);
    if (!fork || strcmp(fork, "no") != 0)
        exit(0);
}

void run_these_ranks(ranks_run run)
{
    if (!is_wanted(run.size)) {
        leave_out(run.size);
        return;
    }
    ck_assert_int_le(run.size, MOST_RANKS);
    pid_t processes[MOST_RANKS];
    shard_segment *segment;
    int file = shard_segment_create(run.size, &segment);
    ck_assert_msg(file >= 0, "no segment: %s", strerror(errno));
    size_t bytes = (size_t)run.size * sizeof(rank_report);
    rank_report *reports = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_msg(reports != MAP_FAILED, "no memory: %s", strerror(errno));
    fflush(NULL);
    for (int rank = 0; rank < run.size; rank++) {
        processes[rank] = fork();
        ck_assert_msg(processes[rank] >= 0, "no process: %s", strerror(errno));
        if (processes[rank] == 0) {
            own_report = &reports[rank];
            munmap(segment, sizeof *segment);
            be_rank(&run, rank, file);
        }
    }
    int failed = wait_for_ranks(&run, processes, reports, segment);
    end_ranks(run.size, processes);
    shard_segment_close(segment, file);
    rank_report first = reports[failed < 0 ? 0 : failed];
    munmap(reports, bytes);
    if (failed >= 0)
        __wrap__ck_assert_failed(first.file ? first.file : __FILE__, first.file ? first.line : __LINE__, "Failed",
                                 "rank %d of %d: %s", failed, run.size, first.text);
}

void check_joint_error(shard_status status, const char *pattern)
{
    const char *text = shard_last_error(), *prefix = "rank ";
    bool of_rank = strncmp(text, prefix, strlen(prefix)) == 0;
    bool own = !of_rank || atoi(text + strlen(prefix)) == shard_group_rank(shard_world());
    check_error(own ? status : SHARD_ERROR_PEER, pattern);
}

void check_fails(shard_status returned, shard_status status, const char *pattern)
{
    ck_assert_msg(returned == status, "%s is returned instead of %s: %s", shard_status_name(returned), shard_status_name(status),
                  shard_last_error());
    check_error(status, pattern);
}

void check_error(shard_status status, const char *pattern)
{
    const char *text = shard_last_error();
    ck_assert_msg(shard_last_status() == status, "status is %s instead of %s: %s", shard_status_name(shard_last_status()),
                  shard_status_name(status), text);
    ck_assert_msg(fnmatch(pattern, text, 0) == 0, "the error is \"%s\" instead of \"%s\"", text, pattern);
    shard_clear_error();
}
