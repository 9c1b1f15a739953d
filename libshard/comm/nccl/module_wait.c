/* Waiting with a deadline, and what follows when it is in vain. */
#include "comm/nccl/module.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

/* Between two looks at what the host transport knows of the members. */
#define LOOK_SECONDS 0.02

double nccl_now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* This rank's GPU collectives end here, with the thread's error. */
static shard_status give_up(void)
{
    nccl.broken = shard_last_status();
    snprintf(nccl.text, sizeof nccl.text, "%s", shard_last_error());
    for (nccl_group *state = nccl.groups; state; state = state->next) {
        if (state->comm)
            ncclCommAbort(state->comm);
        state->comm = NULL;
    }
    nccl.done = nccl.started;
    return nccl.broken;
}

static shard_status fail_late(const shard_group *group, const char *doing)
{
    bool members[group->size];
    char text[SHARD_COMM_TEXT] = "";
    for (int member = 0; member < group->size; member++)
        members[member] = true;
    nccl.host.group_name_ranks(group, members, text, sizeof text);
    return shard_error(SHARD_ERROR_TIMEOUT, "nccl: %s, of %s, was not done within %.0f s (SHARD_TIMEOUT)", doing, text,
                       nccl.host.timeout());
}

/* What the host transport knows of the group's members; `since` when this is waited for. */
static shard_status look_around(shard_group *group, const char *doing, double since)
{
    static double last;
    double now = nccl_now();
    if (now - last < LOOK_SECONDS)
        return SHARD_OK;
    last = now;
    if (group->ops->look)
        SHARD_TRY(group->ops->look(group, doing));
    return now - since < nccl.host.timeout() ? SHARD_OK : fail_late(group, doing);
}

shard_status nccl_settle(nccl_group *state, ncclResult_t result, const char *call)
{
    char doing[SHARD_COMM_TEXT];
    double since = nccl_now();
    while (result == ncclInProgress) {
        nccl.host.group_describe(state->group, doing, sizeof doing);
        if (look_around(state->group, doing, since) != SHARD_OK)
            return give_up();
        sched_yield();
        ncclComm_t comm = __atomic_load_n(&state->comm, __ATOMIC_ACQUIRE);
        if (!comm)
            continue;
        ncclResult_t asked = ncclCommGetAsyncError(comm, &result);
        result = asked == ncclSuccess ? result : asked;
    }
    if (result == ncclSuccess)
        return SHARD_OK;
    shard_error(SHARD_ERROR_DEVICE, "nccl: %.*s: %s (%s)", (int)strcspn(call, "("), call, ncclGetLastError(state->comm),
                ncclGetErrorString(result));
    return give_up();
}

shard_status nccl_watch(bool begins)
{
    bool moved = begins;
    for (; nccl.done < nccl.started; moved = true) {
        cudaError_t error = cudaEventQuery(nccl.flights[nccl.done % NCCL_FLIGHTS].done);
        if (error == cudaErrorNotReady)
            break;
        SHARD_TRY(shard_cuda_check(error, "cudaEventQuery"));
        nccl.done++;
    }
    if (moved)
        nccl.hope_since = nccl_now();
    if (nccl.done == nccl.started)
        return SHARD_OK;
    const struct shard_request *flight = &nccl.flights[nccl.done % NCCL_FLIGHTS];
    if (!flight->group)
        return SHARD_OK; /* the abort ends it */
    nccl_group *state = nccl_of(flight->group);
    ncclResult_t result = ncclSuccess;
    ncclResult_t asked = ncclCommGetAsyncError(state->comm, &result);
    result = asked == ncclSuccess ? result : asked;
    if (result != ncclSuccess && result != ncclInProgress)
        return nccl_settle(state, result, "an earlier collective");
    return look_around(flight->group, flight->doing, nccl.hope_since) == SHARD_OK ? SHARD_OK : give_up();
}
