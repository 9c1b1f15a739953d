/*
 * A program for launchers to start: rank_program WHAT [RANK [FILE]]. Does what a good
 * or bad program would, RANK differently from the others. A program whose
 * error is left prints it and exits with 1.
 */
#include "support/collectives.h"
#include "support/ranks.h"

#include "base/dtype.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "device/device.h"

#include <shard/distributed.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank;

/* Each collective with everything, or (brief) once. */
static void check(shard_group *world, bool brief)
{
    sum_order order = strcmp(shard_group_transport(world), "shm") == 0 ? RANK_ORDER : ANY_ORDER;
    if (!brief) {
        check_all_reduce(world, order);
        check_all_gather(world);
        check_reduce_scatter(world, order);
        check_broadcast(world);
    }
    check_all_reduce_start(world, order);
    check_exchange(world);
    check_sizes(world, brief ? 5003 : 70001, order);
    check_grids(world, order);
    printf("rank %d of %d over %s: good\n", rank, shard_group_size(world), shard_group_transport(world));
}

static void show_environment(void)
{
    static const char *const names[] = {"LOCAL_RANK",  "WORLD_SIZE",  "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"};
    char line[512];
    int used = snprintf(line, sizeof line, "RANK=%s", getenv("RANK"));
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        used += snprintf(line + used, sizeof line - (size_t)used, " %s=%s", names[i], getenv(names[i]));
    puts(line);
}

static volatile sig_atomic_t taken;

static void take(int number)
{
    taken = number;
}

/* Until a signal comes; which one is the exit code. */
static void wait_for_signal(void)
{
    struct sigaction action = {.sa_handler = take};
    sigset_t both, before;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &before);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    puts("ready");
    fflush(stdout);
    while (!taken)
        sigsuspend(&before);
    printf("rank %d took signal %d\n", rank, (int)taken);
    exit(taken);
}

_Noreturn static void ignore_signals(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

/* What needs no world. */
static void act_alone(const char *what, bool odd)
{
    if (strcmp(what, "environment") == 0)
        show_environment();
    else if (strcmp(what, "output") == 0)
        fprintf(odd ? stderr : stdout, "one line\nanother\nthe end");
    else if (strcmp(what, "input") == 0)
        printf("%d: %d\n", rank, getchar());
    else if (strcmp(what, "signal") == 0)
        wait_for_signal();
    else if (strcmp(what, "stubborn") == 0 && !odd)
        ignore_signals();
    else if (strcmp(what, "stubborn") == 0)
        usleep(300 * 1000); /* until the others ignore signals */
    if (strcmp(what, "stubborn") == 0 || (strcmp(what, "early") == 0 && odd))
        exit(4);
    if (strcmp(what, "early") != 0)
        exit(0);
}

/* ---- memory ---- */

static int64_t until_one_fails; /* allocations; 0: none does */

static void *failing_calloc(size_t count, size_t size)
{
    return until_one_fails > 0 && --until_one_fails == 0 ? NULL : calloc(count, size);
}

/* The lists of the world, which a rank takes when MPI has started, before the first collective. */
static void *poor_calloc(size_t count, size_t size)
{
    return size == SHARD_COMM_TEXT ? NULL : calloc(count, size);
}

static void *slow_calloc(size_t count, size_t size)
{
    if (size == SHARD_COMM_TEXT)
        sleep(30);
    return calloc(count, size);
}

static void allocate_by(void *(*function)(size_t, size_t))
{
    static shard_memory_calls calls;
    calls = (shard_memory_calls){function, realloc};
    shard_memory_calls_used = &calls;
}

typedef struct collective_case {
    shard_collective_kind kind;
    shard_dtype dtype;
    bool inside; /* the rank's piece lies in the data */
} collective_case;

enum { CASES = 7, RANKS_MOST = 8, PIECE_MOST = 1000 };
static const collective_case cases[CASES] = {
    {SHARD_COLLECTIVE_ALL_REDUCE, SHARD_FLOAT32, true},      {SHARD_COLLECTIVE_ALL_REDUCE, SHARD_BFLOAT16, true},
    {SHARD_COLLECTIVE_BROADCAST, SHARD_FLOAT32, true},       {SHARD_COLLECTIVE_ALL_GATHER, SHARD_FLOAT32, true},
    {SHARD_COLLECTIVE_REDUCE_SCATTER, SHARD_FLOAT32, true},  {SHARD_COLLECTIVE_REDUCE_SCATTER, SHARD_FLOAT32, false},
    {SHARD_COLLECTIVE_REDUCE_SCATTER, SHARD_BFLOAT16, true},
};

/* Of ones; a value that is not the collective's ends the program. */
static shard_status collect_ones(shard_group *world, const collective_case *c)
{
    static float data[RANKS_MOST * PIECE_MOST], apart[PIECE_MOST];
    int64_t counts[RANKS_MOST], total = 0;
    int size = shard_group_size(world), member = shard_group_rank(world);
    bool pieces = c->kind == SHARD_COLLECTIVE_ALL_GATHER || c->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
    bool sums = c->kind == SHARD_COLLECTIVE_ALL_REDUCE || c->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
    for (int i = 0; i < size; i++)
        total += counts[i] = PIECE_MOST - 10 * i;
    for (int64_t i = 0; i < total; i++)
        if (c->dtype == SHARD_BFLOAT16)
            ((uint16_t *)(void *)data)[i] = shard_float_to_bfloat16(1);
        else
            data[i] = c->kind == SHARD_COLLECTIVE_BROADCAST && member != 0 ? 0 : 1;
    char *own = (char *)data + (size_t)shard_count_before(counts, member) * shard_dtype_size(c->dtype);
    void *mine = c->inside ? own : (char *)apart;
    shard_collective call = {.kind = c->kind, .send = data, .receive = data, .count = total, .dtype = c->dtype};
    if (pieces)
        call.counts = counts;
    if (c->kind == SHARD_COLLECTIVE_ALL_GATHER)
        call.send = mine;
    if (c->kind == SHARD_COLLECTIVE_REDUCE_SCATTER)
        call.receive = mine;
    shard_request *request = shard_group_post(world, &call);
    if (shard_group_wait(world, NULL, request) != SHARD_OK)
        return shard_last_status();
    const char *result = call.receive;
    int64_t last = (c->kind == SHARD_COLLECTIVE_REDUCE_SCATTER ? counts[member] : total) - 1;
    float got = c->dtype == SHARD_BFLOAT16 ? shard_bfloat16_to_float(((const uint16_t *)(const void *)result)[last])
                                           : ((const float *)(const void *)result)[last];
    ck_assert_msg(got == (float)(sums ? size : 1), "%s gives %g", shard_collective_name(c->kind), (double)got);
    return SHARD_OK;
}

/* Each allocation of the odd rank fails in each collective: all ranks have the error, and the next collective is right. */
static void lack_memory(shard_group *world, bool odd)
{
    int failures = 0;
    allocate_by(failing_calloc);
    for (int i = 0; i < CASES; i++)
        for (int64_t number = 1;; number++, failures++) {
            until_one_fails = odd ? number : 0;
            shard_status status = collect_ones(world, &cases[i]);
            until_one_fails = 0;
            if (status == SHARD_OK)
                break;
            check_error(odd ? SHARD_ERROR_MEMORY : SHARD_ERROR_PEER, "rank 1: no memory for *");
            check_ok(collect_ones(world, &cases[i]));
        }
    printf("rank %d: %d allocations failed\n", rank, failures);
}

/* Leaves what it writes in a stream that nobody closes. */
static void write_unclosed(const char *path)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs("what was written\n", file);
}

/* The rank as MPI's launcher says it, before MPI runs. */
static int launched_rank(void)
{
    const char *openmpi = getenv("OMPI_COMM_WORLD_RANK"), *mpich = getenv("PMI_RANK");
    return openmpi ? atoi(openmpi) : mpich ? atoi(mpich) : -1;
}

static void act(shard_group *world, const char *what, bool odd)
{
    if (strcmp(what, "memory") == 0)
        lack_memory(world, odd);
    if (strcmp(what, "check") == 0 || strcmp(what, "brief") == 0)
        check(world, *what == 'b');
    if (strcmp(what, "stopped") == 0) {
        check_stopped_job(world);
        printf("rank %d went on\n", rank);
    }
    if (strcmp(what, "kill") == 0 && odd)
        raise(SIGKILL);
    if (strcmp(what, "wait") == 0)
        wait_for_signal();
    if (strcmp(what, "late") == 0) {
        shard_barrier(world); /* processes may take longer to start than the timeout is */
        shard_process.timeout = 1;
        if (odd)
            sleep(30);
    }
    if ((strcmp(what, "error") == 0 || strcmp(what, "fail") == 0) && odd)
        shard_error(SHARD_ERROR_ARGUMENT, "label %d out of range", 17);
    /* The one that fails skips a barrier of two, of which its partner does not wait for long. */
    if (strcmp(what, "skip") == 0) {
        int size = shard_group_size(world), first = shard_group_rank(world) / 2 * 2;
        shard_group *pair = shard_group_make(world, (const int[]){first, first + 1}, first + 1 < size ? 2 : 1);
        if (odd)
            shard_error(SHARD_ERROR_ARGUMENT, "label %d out of range", 17);
        else
            shard_barrier(pair);
    }
    /* What fails goes home at once, what has an error still takes part. */
    if (!((strcmp(what, "fail") == 0 || strcmp(what, "leave") == 0 || strcmp(what, "unclosed") == 0) && odd))
        shard_barrier(world);
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "check";
    const char *number = getenv("RANK");
    int odd = count > 2 ? atoi(arguments[2]) : -1;
    if (strcmp(what, "threads") == 0) {
        until_one_fails = count > 2 ? atoi(arguments[2]) : 0;
        allocate_by(failing_calloc);
        shard_init(&count, &arguments);
        printf("%d threads\n", shard_cpu_threads());
        return shard_finalize();
    }
    ranks_report_to_stderr();
    rank = number ? atoi(number) : -1;
    if (strstr("environment output input signal stubborn early lonely", what))
        act_alone(what, rank == odd);
    if (strcmp(what, "poor") == 0 && launched_rank() == odd)
        allocate_by(poor_calloc);
    if (strcmp(what, "slow") == 0 && launched_rank() == odd)
        allocate_by(slow_calloc);
    shard_group *world = shard_world_open(&count, &arguments);
    if (world) {
        rank = shard_group_rank(world);
        if (strcmp(what, "unclosed") == 0 && rank == 0)
            write_unclosed(arguments[3]);
        act(world, what, rank == odd);
    }
    shard_status status = shard_last_status();
    if (status != SHARD_OK)
        fprintf(stderr, "rank %d: error %s: %s\n", rank, shard_status_name(status), shard_last_error());
    shard_world_close(world);
    return status != SHARD_OK;
}
