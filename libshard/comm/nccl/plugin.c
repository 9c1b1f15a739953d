/* Communicators: making, leaving; the streams that they share. */
#include "comm/nccl/plugin.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

nccl_state nccl = {.lock = PTHREAD_MUTEX_INITIALIZER, .sum_bytes = (int64_t)64 << 20};

/* Seconds for the others to leave a communicator too, before it is given up. */
#define LEAVE_SECONDS 10.0

/* ---- the stream ---- */

/* Called while a thread waits for the device. */
static shard_status watch(bool begins)
{
    SHARD_HOLD(&nccl.lock);
    SHARD_TRY(nccl_check_broken(true));
    return nccl_watch(begins);
}

static shard_status open_stream(shard_device *device)
{
    shard_cuda *cuda = shard_cuda_of(device);
    SHARD_CUDA_TRY(cudaSetDevice(cuda->ordinal));
    if (nccl.device)
        return SHARD_OK;
    int least, greatest; /* before computing, so that it waits for the others' least */
    SHARD_CUDA_TRY(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    SHARD_CUDA_TRY(cudaStreamCreateWithPriority(&nccl.stream, cudaStreamNonBlocking, greatest));
    SHARD_CUDA_TRY(cudaEventCreateWithFlags(&nccl.ready, cudaEventDisableTiming));
    for (int i = 0; i < NCCL_FLIGHTS; i++)
        SHARD_CUDA_TRY(cudaEventCreateWithFlags(&nccl.flights[i].done, cudaEventDisableTiming));
    SHARD_CUDA_TRY(cudaEventCreateWithFlags(&nccl.arrived, cudaEventDisableTiming));
    for (int i = 0; i < 2; i++)
        SHARD_CUDA_TRY(cudaEventCreateWithFlags(&nccl.summed[i], cudaEventDisableTiming));
    nccl.side = *device;
    nccl.side_state = *cuda;
    SHARD_CUDA_TRY(cudaStreamCreateWithPriority(&nccl.side_state.stream, cudaStreamNonBlocking, greatest));
    nccl.side_state.graphs = nccl.side_state.capture = NULL; /* work on the side stream belongs to no graph */
    nccl.side_state.watch = nccl_watch;                      /* users of the side stream have the lock */
    nccl.side_state.partner = cuda;
    nccl.side.state = &nccl.side_state;
    nccl.device = device;
    cuda->watch = watch;
    cuda->partner = &nccl.side_state;
    cuda->collectives = nccl.stream;
    return SHARD_OK;
}

shard_status nccl_check_device(const shard_device *device)
{
    SHARD_TRY(nccl_check_broken(false));
    if (nccl.device && nccl.device != device)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "nccl: collectives on %s after some on %s; a rank has one GPU", device->name,
                           nccl.device->name);
    return SHARD_OK;
}

/* Frees memory for NCCL. Without the lock: a wait for the device takes it. */
static shard_status make_room(shard_device *device)
{
    device->ops->trim(device);
    return shard_last_status();
}

/* Waits until at most so many collectives are on it. */
static shard_status drain(uint64_t most)
{
    for (bool begins = true; nccl.started - nccl.done > most; begins = false) {
        SHARD_TRY(nccl_watch(begins));
        sched_yield();
    }
    return SHARD_OK;
}

shard_status nccl_begin(shard_group *group)
{
    pthread_mutex_lock(&nccl.lock);
    SHARD_TRY(nccl_check_device(nccl.device));
    SHARD_CUDA_TRY(cudaSetDevice(shard_cuda_of(nccl.device)->ordinal));
    SHARD_TRY(drain(NCCL_FLIGHTS - 1));
    struct shard_request *flight = &nccl.flights[nccl.started % NCCL_FLIGHTS];
    flight->group = group;
    nccl.host.group_describe(group, flight->doing, sizeof flight->doing);
    SHARD_CUDA_TRY(cudaEventRecord(nccl.ready, shard_cuda_of(nccl.device)->stream));
    return SHARD_CUDA(cudaStreamWaitEvent(nccl.stream, nccl.ready, 0));
}

shard_status nccl_end(shard_group *group, shard_status status, shard_request **request)
{
    struct shard_request *flight = &nccl.flights[nccl.started % NCCL_FLIGHTS];
    if (status == SHARD_OK)
        status = SHARD_CUDA(cudaEventRecord(flight->done, nccl.stream));
    if (status == SHARD_OK)
        nccl.started++;
    else
        nccl_give_up(group, NULL);
    pthread_mutex_unlock(&nccl.lock);
    if (status == SHARD_OK)
        *request = flight;
    return status;
}

/* ---- communicators ---- */

/* The group's end: the state has no group then. */
static void detach(nccl_group *state)
{
    state->group->device_state = NULL;
    state->group->device_transport = NULL;
    state->group = NULL;
}

/* Frees the states without a group and without a communicator. */
static void free_states(void)
{
    for (nccl_group **at = &nccl.groups; *at;) {
        nccl_group *state = *at;
        if (state->group || state->comm) {
            at = &state->next;
            continue;
        }
        *at = state->next;
        free(state);
    }
}

/* Aborts the communicators of groups that were left with an error. */
static void abort_detached(void)
{
    ncclGroupStart();
    for (nccl_group *state = nccl.groups; state; state = state->next)
        if (!state->group)
            ncclCommAbort(nccl_take_communicator(state));
    ncclGroupEnd();
}

/* Leaves in peace, if the others do too: polled, as they may have reasons not to. */
static bool finalize(ncclComm_t comm)
{
    ncclResult_t result = ncclCommFinalize(comm);
    double limit = shard_seconds() + LEAVE_SECONDS;
    while (result == ncclInProgress && shard_seconds() < limit) {
        sched_yield();
        if (ncclCommGetAsyncError(comm, &result) != ncclSuccess)
            return false;
    }
    return result == ncclSuccess;
}

/* The same for a thread with an error, which it keeps: for a while, then all communicators are aborted. One
 * alone would wait for what is on the stream of the others'. */
static void drain_with_error(shard_group *group)
{
    shard_kept_error kept;
    nccl.host.keep_error(&kept);
    double limit = shard_seconds() + LEAVE_SECONDS;
    bool begins = true;
    for (; nccl.done < nccl.started && shard_seconds() < limit && nccl_watch(begins) == SHARD_OK; begins = false)
        sched_yield();
    if (nccl.done < nccl.started) {
        shard_error(SHARD_ERROR_UNAVAILABLE, "nccl: a group was left with an error while a collective was under way: %s",
                    kept.text);
        nccl_give_up(group, NULL);
    }
    nccl.host.put_back_error(&kept);
}

/* With an error, the others may be anywhere: the communicator is not finalized, which they would have to do too. Nor is
 * it aborted before the world is left, as an abort takes away what another rank's GPU has not read yet. */
static void leave(shard_group *group)
{
    nccl_group *state = nccl_of(group);
    if (!state)
        return;
    SHARD_HOLD(&nccl.lock);
    bool failed = shard_last_status() != SHARD_OK;
    if (failed)
        drain_with_error(group);
    else
        drain(0);
    if (!failed && state->comm && finalize(state->comm))
        ncclCommDestroy(nccl_take_communicator(state));
    else if (!failed)
        ncclCommAbort(nccl_take_communicator(state));
    detach(state);
    free_states();
}

static void end(void)
{
    SHARD_HOLD(&nccl.lock);
    abort_detached();
    free_states();
}

static nccl_group *join(shard_group *group)
{
    nccl_group *state = shard_calloc(1, sizeof *state);
    if (state) {
        *state = (nccl_group){.group = group, .next = nccl.groups};
        group->device_state = nccl.groups = state;
    }
    return state;
}

static shard_status enter(shard_group *group, shard_device *device, const void *id, bool reduced_precision)
{
    ncclUniqueId name;
    memcpy(&name, id, sizeof name);
    SHARD_TRY(nccl_check_device(device));
    SHARD_TRY(open_stream(device));
    nccl_group *state = join(group);
    if (!state)
        return shard_last_status();
    state->reduced_precision = reduced_precision;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    NCCL_TRY(state, ncclCommInitRankConfig(&state->comm, group->size, name, group->rank, &config));
    return SHARD_OK;
}

/* The others wait in NCCL for a rank that cannot come. */
static shard_status connect(shard_group *group, shard_device *device, const void *id, bool reduced_precision)
{
    shard_status status = make_room(device);
    SHARD_HOLD(&nccl.lock);
    if (status == SHARD_OK)
        status = enter(group, device, id, reduced_precision);
    return status == SHARD_OK ? SHARD_OK : nccl_give_up(group, NULL);
}

/* ---- the plugin ---- */

static shard_status find_place(shard_device *device, char *place, size_t bytes)
{
    SHARD_HOLD(&nccl.lock);
    SHARD_TRY(nccl_check_device(device));
    return SHARD_CUDA(cudaDeviceGetPCIBusId(place, (int)bytes, shard_cuda_of(device)->ordinal));
}

static shard_status make_id(void *id)
{
    ncclUniqueId made;
    ncclResult_t result = ncclGetUniqueId(&made);
    if (result != ncclSuccess)
        return shard_error(SHARD_ERROR_UNAVAILABLE, "nccl: ncclGetUniqueId: %s", ncclGetLastError(NULL));
    memcpy(id, &made, sizeof made);
    return SHARD_OK;
}

const shard_nccl_plugin *shard_nccl_plugin_open(const shard_nccl_host *host)
{
    static char title[32];
    static shard_nccl_plugin plugin = {
        .transport = {.name = "nccl",
                      .takes_small = true,
                      .prepare = nccl_prepare,
                      .discard = nccl_discard,
                      .post = nccl_post,
                      .wait = nccl_wait,
                      .close = leave,
                      .end = end},
        .sum_bytes = &nccl.sum_bytes,
        .find_place = find_place,
        .make_id = make_id,
        .connect = connect,
    };
    nccl.host = *host;
    int version = 0;
    if (!shard_plugin_begin(&nccl.host.base))
        return NULL;
    if (ncclGetVersion(&version) != ncclSuccess)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "nccl: libnccl.so.2 does not answer");
    nccl.version = version;
    plugin.shares_gpu = version >= NCCL_VERSION(2, 30, 0);
    snprintf(plugin.version, sizeof plugin.version, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    snprintf(title, sizeof title, "NCCL %s", plugin.version);
    plugin.transport.title = title;
    return &plugin;
}
