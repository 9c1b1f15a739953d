/* Waiting with a deadline, and what follows when it is in vain. */
#include "comm/nccl/plugin.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

/* Between two probes of what the host transport knows of the ranks. */
#define PROBE_SECONDS 0.02
/* Most calls are done by then. */
#define SOON_SECONDS 0.001
/* More than shm takes to find a rank that has died. */
#define GRACE_SECONDS 2.0

ncclComm_t nccl_take_communicator(nccl_group *state)
{
    ncclComm_t comm = state->comm;
    state->comm = NULL;
    return comm;
}

/* An abort sets its communicator's flag, by which a kernel of it that waits for other ranks ends, and then waits
 * for the GPU, where another communicator's kernel may wait: all flags are to be set first. That is what
 * a group of aborts does since NCCL 2.22. */
static void abort_as_group(nccl_group *first)
{
    ncclGroupStart();
    if (first) /* the one with a call under way: its abort ends NCCL's thread for that before the others are queued */
        ncclCommAbort(nccl_take_communicator(first));
    for (nccl_group *state = nccl.groups; state; state = state->next)
        ncclCommAbort(nccl_take_communicator(state)); /* of NULL: nothing */
    ncclGroupEnd();
}

static void *abort_one(void *comm)
{
    ncclCommAbort(comm);
    return NULL;
}

/* Before NCCL 2.22 an abort waits at once, also in a group. */
static void abort_in_threads(void)
{
    for (nccl_group *state = nccl.groups; state; state = state->next) {
        ncclComm_t comm = nccl_take_communicator(state);
        state->aborting = comm && pthread_create(&state->aborter, NULL, abort_one, comm) == 0;
        if (!state->aborting)
            ncclCommAbort(comm);
    }
    for (nccl_group *state = nccl.groups; state; state = state->next)
        if (state->aborting)
            pthread_join(state->aborter, NULL);
}

/* This thread has had the error of nccl.broken, which no earlier error hid. */
static _Thread_local bool knows_broken;

shard_status nccl_check_broken(bool once)
{
    if (nccl.broken == SHARD_OK || (once && knows_broken))
        return SHARD_OK;
    knows_broken |= shard_last_status() == SHARD_OK;
    return shard_error(nccl.broken, "%s", nccl.text);
}

shard_status nccl_give_up(shard_group *group, nccl_group *calling)
{
    if (nccl.broken != SHARD_OK)
        return shard_last_status();
    knows_broken = true;
    nccl.host.notify_abort(group);
    nccl.broken = shard_last_status();
    snprintf(nccl.text, sizeof nccl.text, "%s", shard_last_error());
    if (nccl.version >= NCCL_VERSION(2, 22, 0))
        abort_as_group(calling);
    else
        abort_in_threads();
    nccl.done = nccl.started;
    return shard_last_status();
}

static shard_status fail_late(const shard_group *group, const char *doing)
{
    char text[SHARD_COMM_TEXT] = "";
    nccl.host.group_name_ranks(group, NULL, text, sizeof text);
    return shard_error(SHARD_ERROR_TIMEOUT, "nccl: %s, of %s, was not done within %.0f s (SHARD_TIMEOUT)", doing, text,
                       nccl.host.timeout());
}

/* Fails if the host transport knows of a failed rank of the group; `since`: the time at which the wait began. */
static shard_status probe_ranks(shard_group *group, const char *doing, double since)
{
    static double last;
    double now = shard_seconds();
    if (now - last < PROBE_SECONDS)
        return SHARD_OK;
    last = now;
    if (group->transport->probe)
        SHARD_TRY(group->transport->probe(group, doing));
    return now - since < nccl.host.timeout() ? SHARD_OK : fail_late(group, doing);
}

static bool may_be_a_failed_rank(ncclResult_t result)
{
    return result == ncclSystemError || result == ncclRemoteError || result == ncclInternalError;
}

/* NCCL may find that a rank is gone before the host transport does, which knows its number: whether that names one soon. A
 * transport that does not look for dead processes, as mpi's, only names ranks that have said so. */
static bool names_failed_rank(shard_group *group, const char *doing, double since)
{
    static const struct timespec pause = {.tv_nsec = (long)(PROBE_SECONDS * 1e9)};
    double grace = shard_seconds() + GRACE_SECONDS, deadline = since + nccl.host.timeout(),
           until = grace < deadline ? grace : deadline;
    while (group->transport->probe && shard_seconds() < until) {
        if (group->transport->probe(group, doing) != SHARD_OK)
            return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

/* An error of NCCL in `call`; `since`: the time at which the wait for what the group is `doing` began. */
static shard_status fail(nccl_group *state, ncclResult_t result, const char *call, const char *doing, double since)
{
    if (may_be_a_failed_rank(result) && names_failed_rank(state->group, doing, since))
        return nccl_give_up(state->group, state);
    shard_error(SHARD_ERROR_DEVICE, "nccl: %.*s: %s (%s)", (int)strcspn(call, "("), call, ncclGetLastError(state->comm),
                ncclGetErrorString(result));
    return nccl_give_up(state->group, state);
}

shard_status nccl_finish(nccl_group *state, ncclResult_t result, const char *call)
{
    char doing[SHARD_COMM_TEXT] = "";
    double since = shard_seconds();
    for (;;) {
        if (result == ncclInProgress) {
            ncclResult_t asked = ncclCommGetAsyncError(state->comm, &result);
            result = asked == ncclSuccess ? result : asked;
        }
        if (result == ncclSuccess)
            return SHARD_OK;
        if (!doing[0] && (result != ncclInProgress || shard_seconds() - since > SOON_SECONDS))
            nccl.host.group_describe(state->group, doing, sizeof doing);
        if (result != ncclInProgress)
            return fail(state, result, call, doing, since);
        if (doing[0] && probe_ranks(state->group, doing, since) != SHARD_OK)
            return nccl_give_up(state->group, state);
        sched_yield();
    }
}

shard_status nccl_watch(bool begins)
{
    bool moved = begins;
    for (; nccl.done < nccl.started; moved = true) {
        const struct shard_request *flight = &nccl.flights[nccl.done % NCCL_FLIGHTS];
        cudaError_t error = cudaEventQuery(flight->done);
        if (error == cudaErrorNotReady) {
            cudaGetLastError(); /* which this is, though nothing is wrong */
            break;
        }
        if (shard_cuda_check(error, "cudaEventQuery") != SHARD_OK)
            return nccl_give_up(flight->group, NULL);
        nccl.done++;
    }
    if (moved)
        nccl.hope_since = shard_seconds();
    if (nccl.done == nccl.started)
        return SHARD_OK;
    const struct shard_request *flight = &nccl.flights[nccl.done % NCCL_FLIGHTS];
    nccl_group *state = nccl_of(flight->group);
    ncclResult_t result = ncclSuccess;
    ncclResult_t asked = ncclCommGetAsyncError(state->comm, &result);
    result = asked == ncclSuccess ? result : asked;
    if (result != ncclSuccess && result != ncclInProgress)
        return fail(state, result, "an earlier collective", flight->doing, nccl.hope_since);
    return probe_ranks(flight->group, flight->doing, nccl.hope_since) == SHARD_OK ? SHARD_OK : nccl_give_up(flight->group, NULL);
}
