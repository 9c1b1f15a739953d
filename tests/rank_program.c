/*
 * A program for launchers to start: rank_program WHAT [RANK]. Does what a good
 * or bad program would, RANK differently from the others. A program whose
 * error is left prints it and exits with 1.
 */
#include "support/collectives.h"
#include "support/ranks.h"

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
    static const char *const names[] = {"LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"};
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

static void act(shard_group *world, const char *what, bool odd)
{
    if (strcmp(what, "check") == 0 || strcmp(what, "brief") == 0)
        check(world, *what == 'b');
    if (strcmp(what, "kill") == 0 && odd)
        raise(SIGKILL);
    if (strcmp(what, "wait") == 0)
        wait_for_signal();
    if (strcmp(what, "late") == 0 && odd)
        sleep(5);
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
    if (!((strcmp(what, "fail") == 0 || strcmp(what, "leave") == 0) && odd))
        shard_barrier(world);
}

int main(int count, char **arguments)
{
    const char *what = count > 1 ? arguments[1] : "check";
    const char *number = getenv("RANK");
    int odd = count > 2 ? atoi(arguments[2]) : -1;
    if (strcmp(what, "threads") == 0) {
        shard_init(&count, &arguments);
        printf("%d threads\n", shard_cpu_threads());
        return shard_finalize();
    }
    ranks_report_to_stderr();
    rank = number ? atoi(number) : -1;
    if (strstr("environment output input signal stubborn early lonely", what))
        act_alone(what, rank == odd);
    shard_group *world = shard_world_open(&count, &arguments);
    if (world) {
        rank = shard_group_rank(world);
        act(world, what, rank == odd);
    }
    shard_status status = shard_last_status();
    if (status != SHARD_OK)
        fprintf(stderr, "rank %d: error %s: %s\n", rank, shard_status_name(status), shard_last_error());
    shard_world_close(world);
    return status != SHARD_OK;
}
