/*
 * The device transport through pinned host memory and the group's host transport: several
 * ranks on one GPU, or no transport that reaches it. By chunks that all ranks cut
 * identically, so that the pinned memory is small however large the data is. A preflight
 * check precedes each chunk: whether all ranks' copies succeeded, and since host transports need
 * an exchange between two collectives.
 */
#include "comm/backends.h"

#include "base/error.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/preflight.h"

#include <stdlib.h>

#define STAGE_BYTES ((int64_t)8 << 20)

/* A group's pinned memory. */
typedef struct stage {
    shard_device *device;
    void *memory;
} stage;

static void close_stage(shard_group *group)
{
    stage *s = group->device_state;
    if (!s)
        return;
    if (s->memory)
        s->device->ops->release_host(s->device, s->memory, STAGE_BYTES);
    free(s);
    group->device_state = NULL;
}

/* The group keeps its stage. */
static shard_status prepare(shard_group *group, shard_collective *call)
{
    shard_device *device = call->device;
    stage *s = group->device_state;
    if (s && s->device == device)
        return SHARD_OK;
    close_stage(group);
    group->device_state = s = shard_calloc(1, sizeof *s);
    if (!s)
        return shard_last_status();
    s->device = device;
    s->memory = device->ops->allocate_host(device, STAGE_BYTES);
    if (s->memory)
        return SHARD_OK;
    close_stage(group);
    return shard_last_status();
}

/* ---- chunks ---- */

/* Queues a copy to the stage. After an error the thread has it, which the check before the chunk sends. */
static void copy_out(const stage *s, void *to, const void *from, int64_t bytes)
{
    if (bytes)
        s->device->ops->copy_out_async(s->device, to, from, (size_t)bytes);
}

static shard_status copy_in(const stage *s, void *to, const void *from, int64_t bytes)
{
    return s->device->ops->copy_in(s->device, to, from, (size_t)bytes);
}

/* The chunks of the ranks' blocks from `at` on, of at most `most` elements each; false after the last. */
static bool cut(const shard_group *group, const int64_t *counts, int64_t at, int64_t most)
{
    for (int rank = 0; rank < group->size; rank++)
        group->counts[rank] = shard_count_from(counts[rank], at, most);
    return shard_largest_count(counts, group->size) > at;
}

/* One chunk's collective, in the stage's memory, when copies to it and earlier ones from it have arrived; OK only if no rank has
 * an error. */
static shard_status post_chunk(shard_group *group, const stage *s, shard_collective *chunk)
{
    shard_request *request = NULL;
    s->device->ops->copy_out(s->device, s->memory, s->memory, 0); /* waits for the queue, not for copy_in_async */
    chunk->device = NULL;
    chunk->prepared = NULL;
    shard_prepare(group->transport, group, chunk);
    shard_status status = shard_preflight_only(group, SHARD_COLLECTIVE_AGREE);
    if (status != SHARD_OK) {
        shard_discard(group->transport, group, chunk);
        return status;
    }
    SHARD_TRY(group->transport->post(group, chunk, &request));
    return request ? group->transport->wait(group, request) : SHARD_OK;
}

/* ---- collectives ---- */

/* all_reduce and broadcast. */
static shard_status move_whole(shard_group *group, const stage *s, const shard_collective *call)
{
    int64_t element = (int64_t)shard_dtype_size(call->dtype), most = STAGE_BYTES / element;
    bool broadcasts = call->kind == SHARD_COLLECTIVE_BROADCAST, sends = !broadcasts || group->rank == call->root;
    shard_collective chunk = *call;
    chunk.send = chunk.receive = s->memory;
    for (int64_t at = 0; at < call->count; at += most) {
        char *where = (char *)call->receive + at * element;
        chunk.count = shard_min(call->count - at, most);
        copy_out(s, s->memory, where, sends ? chunk.count * element : 0);
        SHARD_TRY(post_chunk(group, s, &chunk));
        if (!broadcasts || !sends)
            SHARD_TRY(copy_in(s, where, s->memory, chunk.count * element));
    }
    return SHARD_OK;
}

static shard_status gather(shard_group *group, const stage *s, const shard_collective *call, int64_t most)
{
    int64_t element = (int64_t)shard_dtype_size(call->dtype);
    shard_collective chunk = *call;
    chunk.counts = group->counts;
    chunk.receive = s->memory;
    for (int64_t at = 0; cut(group, call->counts, at, most); at += most) {
        char *own = (char *)s->memory + shard_count_before(group->counts, group->rank) * element, *from = s->memory,
             *to = call->receive;
        copy_out(s, own, (const char *)call->send + at * element, group->counts[group->rank] * element);
        chunk.send = own;
        SHARD_TRY(post_chunk(group, s, &chunk));
        for (int rank = 0; rank < group->size; rank++) {
            SHARD_TRY(copy_in(s, to + at * element, from, group->counts[rank] * element));
            from += group->counts[rank] * element;
            to += call->counts[rank] * element;
        }
    }
    return SHARD_OK;
}

static shard_status reduce_scatter(shard_group *group, const stage *s, const shard_collective *call, int64_t most)
{
    int64_t element = (int64_t)shard_dtype_size(call->dtype);
    shard_collective chunk = *call;
    chunk.counts = group->counts;
    chunk.send = s->memory;
    for (int64_t at = 0; cut(group, call->counts, at, most); at += most) {
        char *to = s->memory;
        const char *from = call->send;
        for (int rank = 0; rank < group->size; rank++) {
            copy_out(s, to, from + at * element, group->counts[rank] * element);
            to += group->counts[rank] * element;
            from += call->counts[rank] * element;
        }
        char *own = (char *)s->memory + shard_count_before(group->counts, group->rank) * element;
        chunk.receive = own;
        SHARD_TRY(post_chunk(group, s, &chunk));
        SHARD_TRY(copy_in(s, (char *)call->receive + at * element, own, group->counts[group->rank] * element));
    }
    return SHARD_OK;
}

static shard_status post(shard_group *group, const shard_collective *call, shard_request **request)
{
    (void)request;
    const stage *s = group->device_state;
    int64_t most_each = STAGE_BYTES / (int64_t)shard_dtype_size(call->dtype) / group->size;
    if (call->kind == SHARD_COLLECTIVE_ALL_GATHER)
        return gather(group, s, call, most_each);
    if (call->kind == SHARD_COLLECTIVE_REDUCE_SCATTER)
        return reduce_scatter(group, s, call, most_each);
    return move_whole(group, s, call);
}

const shard_transport shard_staged_transport = {
    .name = "host memory",
    .title = "host memory",
    .prepare = prepare,
    .post = post,
    .close = close_stage,
};
