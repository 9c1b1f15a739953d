/* A rank that dies or stops between two steps of the barrier over shared memory: the others name it. */
#include "support/ranks.h"

#include "comm/shm/shm.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

typedef enum moment {
    ENTERED,  /* its place says that it has come, but it is not counted */
    LAST,     /* it is counted, as the last one, and does not end the round */
    BREAKING, /* it has begun to write the error of its group */
    MOMENTS
} moment;

typedef struct lost {
    moment at;
    int signal;
    _Atomic int *told; /* ranks that have had their error */
} lost;

/* A rank that has stopped ends when the others have had their errors, or failed: they are no more than the launcher waits for. */
static void lose(const lost *l, int others)
{
    pid_t rank = getpid();
    if (l->signal == SIGSTOP && fork() == 0) {
        await_count(l->told, others);
        kill(rank, SIGKILL);
        _exit(0);
    }
    raise(l->signal);
}

static void loses_a_rank(shard_group *world, void *context)
{
    const lost *l = context;
    shm_group *state = world->state;
    check_ok(shard_barrier(world));
    if (shard_group_rank(world) == 1) {
        while (atomic_load(&state->area->come) + 1 < (uint32_t)shard_group_size(world))
            usleep(1000);
        usleep(60 * 1000); /* the others sleep */
        if (l->at == BREAKING) {
            atomic_store(&state->area->broken, SHM_BREAKING + 1);
            lose(l, shard_group_size(world) - 1);
        }
        atomic_store(&state->area->places[1].round, state->round + 1);
        if (l->at == LAST)
            atomic_fetch_add(&state->area->come, 1);
        lose(l, shard_group_size(world) - 1);
    }
    double start = shard_seconds();
    shard_status status = l->at == BREAKING || l->signal == SIGKILL ? SHARD_ERROR_PEER : SHARD_ERROR_TIMEOUT;
    ck_assert_int_eq(shard_barrier(world), status);
    check_error(status, l->at == BREAKING      ? "rank 1 died or stopped while it wrote an error*"
                        : l->signal == SIGKILL ? "rank 1 died in *shard_barrier*"
                                               : "rank 1 did not come to *shard_barrier*within 2 s*");
    double seconds = shard_seconds() - start;
    atomic_fetch_add(l->told, 1);
    ck_assert_double_lt(seconds, 5 * deadline_multiplier());
}

START_TEST(test_loses_a_rank)
{
    lost l = {.at = (moment)(_i % MOMENTS), .signal = _i / MOMENTS % 2 ? SIGSTOP : SIGKILL, .told = shared_count()};
    run_ranks(2 + _i / MOMENTS / 2, loses_a_rank, .context = &l, .timeout = "2", .may_fail = 1 << 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm_barrier");
    tcase_add_loop_test(test_case(suite, "barrier"), test_loses_a_rank, 0, MOMENTS * 2 * 2);
    return test_run(suite);
}
