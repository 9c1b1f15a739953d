/*
 * The transport through the caller's exchange (shard_init_with): ranks on several hosts without an MPI. Each
 * collective is made of all-gathers of pieces, so that the caller brings one function. Each rank's bytes go to every
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

/* Bytes that a rank sends at once; a multiple of every element's size. */
#define PIECE_BYTES ((int64_t)64 << 10)

/* A group's state. */
typedef struct exchange_group {
    shard_rendezvous *rendezvous; /* a reference */
    char *mine;                   /* [PIECE_BYTES] */
    char *all;                    /* [size][PIECE_BYTES] */
} exchange_group;

static void close_group(shard_group *group)
{
    exchange_group *state = group->state;
    shard_rendezvous_unref(state->rendezvous);
    free(state->mine);
    free(state->all);
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
    state->mine = shard_calloc((size_t)PIECE_BYTES, 1);
    state->all = shard_calloc((size_t)group->size, (size_t)PIECE_BYTES);
    if (state->mine && state->all)
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

static shard_status split(shard_group *parent, shard_group *group, int color)
{
    (void)color;
    return make_state(group, ((exchange_group *)parent->state)->rendezvous);
}

/* receive [size][bytes] = each rank's send. */
static shard_status all_gather_bytes(shard_group *group, const void *send, void *receive, int64_t bytes)
{
    exchange_group *state = group->state;
    char doing[SHARD_COMM_TEXT];
    shard_group_describe(group, doing, sizeof doing);
    return shard_rendezvous_exchange(state->rendezvous, doing, group->world_ranks, group->size, send, receive, (size_t)bytes);
}

/* Reduces the data's elements in [start, end), all of which are sent, to `receive`. */
static shard_status reduce(shard_group *group, const shard_collective *call, int64_t start, int64_t end)
{
    exchange_group *state = group->state;
    int64_t element = (int64_t)shard_dtype_size(call->dtype), most = PIECE_BYTES / element;
    for (int64_t at = 0; at < call->count; at += most) {
        int64_t count = shard_min(most, call->count - at), low = at > start ? at : start, high = shard_min(at + count, end);
        SHARD_TRY(all_gather_bytes(group, (const char *)call->send + at * element, state->all, count * element));
        for (int member = 0; member < group->size; member++)
            group->parts[member] = state->all + (member * count + low - at) * element;
        if (low < high)
            shard_reduce_elements((char *)call->receive + (low - start) * element, group->parts, group->size, high - low,
                                  call->dtype, call->op);
    }
    return SHARD_OK;
}

/* Pieces that are shorter than the longest are sent with bytes behind them that are not read. */
static shard_status gather(shard_group *group, const shard_collective *call)
{
    exchange_group *state = group->state;
    int64_t element = (int64_t)shard_dtype_size(call->dtype);
    int64_t longest = shard_largest_count(call->counts, group->size) * element;
    for (int64_t at = 0; at < longest; at += PIECE_BYTES) {
        int64_t bytes = shard_min(PIECE_BYTES, longest - at), own = call->counts[group->rank] * element - at;
        if (own > 0)
            memcpy(state->mine, (const char *)call->send + at, (size_t)shard_min(bytes, own));
        SHARD_TRY(all_gather_bytes(group, state->mine, state->all, bytes));
        char *piece = call->receive;
        for (int member = 0; member < group->size; member++) {
            int64_t rest = call->counts[member] * element - at;
            if (rest > 0)
                memcpy(piece + at, state->all + member * bytes, (size_t)shard_min(bytes, rest));
            piece += call->counts[member] * element;
        }
    }
    return SHARD_OK;
}

static shard_status broadcast(shard_group *group, const shard_collective *call)
{
    exchange_group *state = group->state;
    int64_t all = call->count * (int64_t)shard_dtype_size(call->dtype);
    for (int64_t at = 0; at < all; at += PIECE_BYTES) {
        int64_t bytes = shard_min(PIECE_BYTES, all - at);
        char *data = (char *)call->receive + at;
        SHARD_TRY(all_gather_bytes(group, group->rank == call->root ? data : state->mine, state->all, bytes));
        memcpy(data, state->all + call->root * bytes, (size_t)bytes);
    }
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
        return all_gather_bytes(group, call->send, call->receive, call->count);
    }
}

const shard_transport shard_exchange_transport = {
    .name = "exchange", .join = join, .split = split, .post = post, .close = close_group};
