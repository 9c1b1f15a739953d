/*
 * The nccl device transport: collectives between GPUs.
 *
 * Every collective runs on one stream of this plugin, joined by events with the
 * stream on which the device computes. All groups use one stream: communicators on
 * several streams could wait for each other in a cycle. On one stream they run in the
 * order of the host's calls, which the preflight checks keep free of cycles.
 *
 * Communicators are non-blocking: calls that are not done at once are polled. If a rank
 * dies or hangs, the streams of the other ranks wait forever. So a wait for the device
 * (shard_cuda_wait) checks meanwhile for NCCL's errors, for failed ranks that the host
 * transport knows, and for the deadline. After a failure all communicators are aborted
 * together, which frees the streams, and the rank fails as in any other collective. So does
 * a rank that fails after the preflight check: else all ranks that came to a collective have it
 * on their streams, and one that then fails for another reason comes to its end as well.
 *
 * NCCL allocates memory of the GPU outside of the device's pool, when a communicator is
 * made and when it is first used. If it finds none, the communicator is lost on all ranks:
 * a call that failed on one rank cannot be repeated. So the pool frees its unused memory
 * before a communicator is made. That waits for the device, and so for other ranks where
 * its work waits for earlier collectives: these have passed the check, too, and come.
 *
 * A group's communicator is made by its first collective of device memory, as PyTorch does
 * by default: a group that has none, as often the world, needs no memory of the GPU.
 *
 * This plugin sums 16-bit types: NCCL would round to 16 bits after every addition. Each
 * rank receives one range of all ranks' data, sums it in float32, and the sums are
 * gathered: as many bytes as NCCL's all-reduce, summed in rank order. Sums run on a second
 * stream, at the same time as the next range's transfer.
 */
#ifndef SHARD_COMM_NCCL_PLUGIN_H
#define SHARD_COMM_NCCL_PLUGIN_H

#include "base/clock.h"
#include "base/thread.h"
#include "comm/nccl/host.h"
#include "device/cuda/cuda.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes" /* of nccl.h */
#include <nccl.h>
#pragma GCC diagnostic pop

_Static_assert(SHARD_NCCL_ID_BYTES == NCCL_UNIQUE_ID_BYTES, "the id travels whole");

/* A group's state. */
typedef struct nccl_group {
    shard_group *group;      /* NULL: it was left with an error, and the communicator stays until the world is left */
    ncclComm_t comm;         /* NULL: aborted */
    bool reduced_precision;  /* NCCL takes the sums of 16-bit types */
    struct nccl_group *next; /* of all groups that have a communicator */
    pthread_t aborter;       /* runs while aborting */
    bool aborting;
} nccl_group;

/* A collective that is on the stream. */
struct shard_request {
    cudaEvent_t done;
    shard_group *group; /* which is left only when this is done, or all are aborted */
    char doing[200];
};

/* Of collectives that are not known to be done, at most. */
#define NCCL_FLIGHTS 64

/* A process has one GPU, and so one of these. */
typedef struct nccl_state {
    /* Of the thread that calls NCCL or reads what follows: any may wait for the device. */
    pthread_mutex_t lock;
    shard_nccl_host host;
    int version; /* NCCL's at run time, as NCCL_VERSION makes it */
    nccl_group *groups;
    shard_device *device;
    cudaStream_t stream;
    cudaEvent_t ready; /* recorded after the computations before the collective */
    /* The device as its own entries see it from the stream on which 16-bit types are summed. */
    shard_device side;
    shard_cuda side_state;
    cudaEvent_t arrived, summed[2]; /* a chunk of theirs; out of which buffer */
    int64_t sum_bytes;              /* of the buffers */
    struct shard_request flights[NCCL_FLIGHTS];
    uint64_t started, done; /* collectives; those between are in flights[number % NCCL_FLIGHTS] */
    double hope_since;      /* when the oldest of them began to be waited for */
    shard_status broken;    /* not OK: communicators were aborted; with the text, for good */
    char text[SHARD_COMM_TEXT];
} nccl_state;
extern nccl_state nccl;

/* The group's communicator, which it has no more; NULL if it had none. */
ncclComm_t nccl_take_communicator(nccl_group *state);

/* Polls a call of the group until it is done. After an error communicators are aborted. */
shard_status nccl_finish(nccl_group *state, ncclResult_t result, const char *call);
#define NCCL_TRY(state, call) SHARD_TRY(nccl_finish(state, call, #call))

/* This rank's GPU collectives end here, with the thread's error, which it returns: aborts all communicators, unless that was
 * done before, and sends that to the other ranks, by the transport of the group, with which it has failed. `calling`, if not
 * NULL, has a call under way. With the lock. */
shard_status nccl_give_up(shard_group *group, nccl_group *calling);

/* Fails if communicators were aborted; `once`: if this thread has not had that error yet. A collective that another thread has
 * aborted is done for a thread that waits for it. With the lock. */
shard_status nccl_check_broken(bool once);

/* Fails if there can be no collective of the device's memory on this rank. With the lock. */
shard_status nccl_check_device(const shard_device *device);

/* Makes the stream ready for a collective of the group; the thread has the lock until nccl_end. */
shard_status nccl_begin(shard_group *group);
/* Notes that it is on the stream, if all went well. Else the others wait for what this rank has not begun: gives up. */
shard_status nccl_end(shard_group *group, shard_status status, shard_request **request);

/* Whether what is on the stream may still come to its end; forgets what has. With the lock. */
shard_status nccl_watch(bool begins);

static inline nccl_group *nccl_of(const shard_group *group)
{
    return group->device_state;
}

/* Every collective; of sums of 16-bit types the memory is taken before. */
shard_status nccl_prepare(shard_group *group, shard_collective *call);
void nccl_discard(shard_group *group, const shard_collective *call);
shard_status nccl_post(shard_group *group, const shard_collective *call, shard_request **request);
shard_status nccl_wait(shard_group *group, shard_request *request);

#endif
