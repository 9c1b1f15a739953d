/*
 * The transport through the caller's exchange (shard_init_with): ranks on several hosts without an MPI. Each
 * collective is made of all-gathers of chunks, so that the caller brings one function. Each rank's bytes go to every
 * other rank, which is slow for many ranks and much data. Sums are in rank order, as over shared memory.
 */
#include "comm/backends.h"

#include "base/error.h"
#include "base/math.h"
#include "base/memory.h"
#include "comm/reduce.h"
#include "comm/rendezvous.h"

#include <stdlib.h>
#include <string.h>

/* Bytes that a rank sends at once, and that all ranks of a large group send. */
#define CHUNK_BYTES ((int64_t)64 << 10)
#define CHUNKS_BYTES ((int64_t)4 << 20)

/* A group's state. */
typedef struct exchange_group {
    shard_rendezvous *rendezvous; /* a reference */
    shard_exchange_call *call;    /* for chunks */
    int64_t chunk;                /* bytes that a rank sends at once; a multiple of every element's size */
} exchange_group;

static void close_group(shard_group *group)
{
    exchange_group *state = group->state;
    shard_rendezvous_unref(state->rendezvous);
    shard_exchange_call_free(state->call);
    free(state);
    group->state = NULL;
}

static shard_status make_state(shard_group *group, shard_rendezvous *rendezvous)
{
    exchange_group *state = shard_calloc(1, sizeof *state);
    if (!state)
        return shard_last_status();
    group->state = state;
    state->rendezvous = rendezvous;
    rendezvous->references++;
    int64_t each = CHUNKS_BYTES / group->size / 8 * 8;
    state->chunk = each > CHUNK_BYTES ? CHUNK_BYTES : each > SHARD_EXCHANGE_BYTES ? each : SHARD_EXCHANGE_BYTES;
    state->call = shard_exchange_call_create(rendezvous, group->world_ranks, group->size, (size_t)state->chunk);
    if (state->call)
        return SHARD_OK;
    close_group(group);
    return shard_last_status();
}

static shard_status join(shard_group *world, shard_rendezvous *rendezvous, char *refusal, size_t bytes)
{
    (void)refusal, (void)bytes;
    world->rank = rendezvous->rank;
    world->size = rendezvous->size;
    return make_state(world, rendezvous);
}

static shard_status split(shard_group *parent, shard_group *group)
{
    return make_state(group, ((exchange_group *)parent->state)->rendezvous);
}

/* *all [size][bytes] = what each rank sends, `own` bytes of send here; until the next one. */
static shard_status all_gather_bytes(shard_group *group, const void *send, int64_t own, int64_t bytes, const char **all)
{
    exchange_group *state = group->state;
    char doing[SHARD_COMM_TEXT];
    shard_group_describe(group, doing, sizeof doing);
    return shard_rendezvous_exchange(state->rendezvous, &state->call, doing, shard_group_patience(group, shard_comm_timeout()),
                                     send, (size_t)own, (size_t)bytes, all);
}

/* Reduces the data's elements in [start, end), all of which are sent, to `receive`. */
static shard_status reduce(shard_group *group, const shard_collective *call, int64_t start, int64_t end)
{
    int64_t element = (int64_t)shard_dtype_size(call->dtype), most = ((exchange_group *)group->state)->chunk / element;
    const char *all;
    for (int64_t at = 0; at < call->count; at += most) {
        int64_t count = shard_min(most, call->count - at), low = at > start ? at : start, high = shard_min(at + count, end);
        SHARD_TRY(all_gather_bytes(group, (const char *)call->send + at * element, count * element, count * element, &all));
        for (int rank = 0; rank < group->size; rank++)
            group->parts[rank] = all + (rank * count + low - at) * element;
        if (low < high)
            shard_reduce_elements((char *)call->receive + (low - start) * element, group->parts, group->size, high - low,
                                  call->dtype, call->op);
    }
    return SHARD_OK;
}

/* Blocks that are shorter than the longest are sent with bytes behind them that are not read. */
static shard_status gather(shard_group *group, const shard_collective *call)
{
    int64_t element = (int64_t)shard_dtype_size(call->dtype), most = ((exchange_group *)group->state)->chunk;
    int64_t longest = shard_largest_count(call->counts, group->size) * element;
    const char *all;
    for (int64_t at = 0; at < longest; at += most) {
        int64_t bytes = shard_min(most, longest - at), own = shard_count_from(call->counts[group->rank] * element, at, bytes);
        SHARD_TRY(all_gather_bytes(group, own > 0 ? (const char *)call->send + at : NULL, own, bytes, &all));
        char *block = call->receive;
        for (int rank = 0; rank < group->size; rank++) {
            int64_t theirs = shard_count_from(call->counts[rank] * element, at, bytes);
            if (theirs > 0)
                memcpy(block + at, all + rank * bytes, (size_t)theirs);
            block += call->counts[rank] * element;
        }
    }
    return SHARD_OK;
}

static shard_status broadcast(shard_group *group, const shard_collective *call)
{
    int64_t total = call->count * (int64_t)shard_dtype_size(call->dtype), most = ((exchange_group *)group->state)->chunk;
    const char *all;
    for (int64_t at = 0; at < total; at += most) {
        int64_t bytes = shard_min(most, total - at);
        char *data = (char *)call->receive + at;
        SHARD_TRY(all_gather_bytes(group, data, group->rank == call->root ? bytes : 0, bytes, &all));
        memcpy(data, all + call->root * bytes, (size_t)bytes);
    }
    return SHARD_OK;
}

static shard_status exchange(shard_group *group, const shard_collective *call)
{
    const char *all;
    SHARD_TRY(all_gather_bytes(group, call->send, call->count, call->count, &all));
    memcpy(call->receive, all, (size_t)group->size * (size_t)call->count);
    return SHARD_OK;
}

static shard_status post(shard_group *group, const shard_collective *call, shard_request **request)
{
    (void)request;
    int64_t start = 0;
    switch (call->kind) {
    case SHARD_COLLECTIVE_ALL_REDUCE:
        return reduce(group, call, 0, call->count);
    case SHARD_COLLECTIVE_REDUCE_SCATTER:
        start = shard_count_before(call->counts, group->rank);
        return reduce(group, call, start, start + call->counts[group->rank]);
    case SHARD_COLLECTIVE_ALL_GATHER:
        return gather(group, call);
    case SHARD_COLLECTIVE_BROADCAST:
        return broadcast(group, call);
    default:
        return exchange(group, call);
    }
}

const shard_transport shard_exchange_transport = {
    .name = "exchange", .join = join, .split = split, .post = post, .close = close_group};
