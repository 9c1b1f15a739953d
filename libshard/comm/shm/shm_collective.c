/*
 * The collectives over a group's area. Each has steps with a barrier after each:
 * in one step a rank writes its range of one chunk and reads what the other ranks
 * wrote of the chunk before, so that writing and reading overlap. After the last
 * step other ranks may still read this rank's memory: the exchange that begins the
 * next collective is the barrier for it.
 */
#include "comm/shm/shm.h"

#include "base/error.h"
#include "base/math.h"
#include "comm/reduce.h"

#include <string.h>

/* All-reduces up to this size are computed by each rank, which saves a barrier. */
#define ALONE_BYTES (16 << 10)

/* The memory that the rank fills in the step. */
static char *chunk_of(const shard_group *group, int64_t step, int rank)
{
    const shm_group *state = group->state;
    return state->chunks + ((step & 1) * group->size + rank) * state->chunk;
}

static void copy(void *to, const void *from, int64_t bytes)
{
    if (bytes > 0)
        memcpy(to, from, (size_t)bytes);
}

static shard_status exchange(shard_group *group, const shard_collective *call)
{
    shm_group *state = group->state;
    size_t bytes = (size_t)call->count;
    char *half = state->exchange + (state->round & 1) * (size_t)group->size * SHARD_EXCHANGE_BYTES;
    memcpy(half + (size_t)group->rank * SHARD_EXCHANGE_BYTES, call->send, bytes);
    SHARD_TRY(shm_barrier(group));
    for (int rank = 0; rank < group->size; rank++)
        memcpy((char *)call->receive + (size_t)rank * bytes, half + (size_t)rank * SHARD_EXCHANGE_BYTES, bytes);
    return SHARD_OK;
}

/* parts = the ranks' chunks of the step, from byte `start` of each on. */
static const void **find_parts(const shard_group *group, int64_t step, int64_t start)
{
    for (int rank = 0; rank < group->size; rank++)
        group->parts[rank] = chunk_of(group, step, rank) + start;
    return group->parts;
}

static shard_status reduce_alone(shard_group *group, const shard_collective *call)
{
    copy(chunk_of(group, 0, group->rank), call->send, call->count * (int64_t)shard_dtype_size(call->dtype));
    SHARD_TRY(shm_barrier(group));
    shard_reduce_elements(call->receive, find_parts(group, 0, 0), group->size, call->count, call->dtype, call->op);
    return SHARD_OK;
}

/* A chunk of the data, and the range of it, [low, high), that this rank reduces for all. */
typedef struct chunk_range {
    char *data;
    int64_t bytes, low, high;
} chunk_range;

static chunk_range range_of(const shard_group *group, void *data, int64_t bytes, int64_t step)
{
    const shm_group *state = group->state;
    chunk_range part = {.data = (char *)data + step * state->chunk,
                        .bytes = shard_min(state->chunk, bytes - step * state->chunk)};
    int64_t each = shard_divide_up(shard_divide_up(part.bytes, group->size), SHARD_LINE) * SHARD_LINE;
    part.low = shard_min(group->rank * each, part.bytes);
    part.high = shard_min(part.low + each, part.bytes);
    return part;
}

static void reduce_range(shard_group *group, chunk_range part, char *result, int64_t step, const shard_collective *call)
{
    const void **parts = find_parts(group, step, part.low);
    parts[group->rank] = part.data + part.low;
    shard_reduce_elements(result + part.low, parts, group->size, (part.high - part.low) / (int64_t)shard_dtype_size(call->dtype),
                          call->dtype, call->op);
    copy(part.data + part.low, result + part.low, part.high - part.low);
}

static shard_status all_reduce(shard_group *group, const shard_collective *call)
{
    shm_group *state = group->state;
    void *data = call->receive;
    int64_t bytes = call->count * (int64_t)shard_dtype_size(call->dtype), steps = shard_divide_up(bytes, state->chunk);
    if (bytes <= ALONE_BYTES)
        return reduce_alone(group, call);
    for (int64_t step = 0; step < steps + 2; step++) {
        if (step >= 1 && step <= steps)
            reduce_range(group, range_of(group, data, bytes, step - 1), state->results + ((step - 1) & 1) * state->chunk,
                         step - 1, call);
        if (step < steps) {
            chunk_range part = range_of(group, data, bytes, step);
            char *mine = chunk_of(group, step, group->rank);
            copy(mine, part.data, part.low);
            copy(mine + part.high, part.data + part.high, part.bytes - part.high);
        }
        if (step >= 2) {
            chunk_range part = range_of(group, data, bytes, step - 2);
            const char *result = state->results + (step & 1) * state->chunk;
            copy(part.data, result, part.low);
            copy(part.data + part.high, result + part.high, part.bytes - part.high);
        }
        if (step < steps + 1)
            SHARD_TRY(shm_barrier(group));
    }
    return SHARD_OK;
}

static shard_status all_gather(shard_group *group, const shard_collective *call)
{
    const shm_group *state = group->state;
    const int64_t *counts = call->counts;
    const void *mine = call->send;
    int64_t size = (int64_t)shard_dtype_size(call->dtype), chunk = state->chunk;
    int64_t steps = shard_divide_up(shard_largest_count(counts, group->size) * size, chunk);
    for (int64_t step = 0; step < steps + 1; step++) {
        if (step < steps)
            copy(chunk_of(group, step, group->rank), (const char *)mine + step * chunk,
                 shard_count_from(counts[group->rank] * size, step * chunk, chunk));
        char *block = call->receive;
        for (int rank = 0; rank < group->size && step >= 1; rank++) {
            const char *from = chunk_of(group, step - 1, rank);
            char *to = block + (step - 1) * chunk;
            if (rank != group->rank)
                copy(to, from, shard_count_from(counts[rank] * size, (step - 1) * chunk, chunk));
            else if (block != mine)
                copy(to, (const char *)mine + (step - 1) * chunk,
                     shard_count_from(counts[rank] * size, (step - 1) * chunk, chunk));
            block += counts[rank] * size;
        }
        if (step < steps)
            SHARD_TRY(shm_barrier(group));
    }
    return SHARD_OK;
}

static shard_status reduce_scatter(shard_group *group, const shard_collective *call)
{
    const shm_group *state = group->state;
    const int64_t *counts = call->counts;
    int64_t size = (int64_t)shard_dtype_size(call->dtype), chunk = state->chunk / group->size / SHARD_LINE * SHARD_LINE;
    int64_t steps = shard_divide_up(shard_largest_count(counts, group->size) * size, chunk);
    const char *own = (const char *)call->send + shard_count_before(counts, group->rank) * size;
    for (int64_t step = 0; step < steps + 1; step++) {
        char *out = chunk_of(group, step, group->rank);
        const char *block = call->send;
        for (int rank = 0; rank < group->size && step < steps; rank++) {
            if (rank != group->rank)
                copy(out + rank * chunk, block + step * chunk, shard_count_from(counts[rank] * size, step * chunk, chunk));
            block += counts[rank] * size;
        }
        if (step >= 1) {
            const void **parts = find_parts(group, step - 1, group->rank * chunk);
            parts[group->rank] = own + (step - 1) * chunk;
            shard_reduce_elements((char *)call->receive + (step - 1) * chunk, parts, group->size,
                                  shard_count_from(counts[group->rank] * size, (step - 1) * chunk, chunk) / size, call->dtype,
                                  call->op);
        }
        if (step < steps)
            SHARD_TRY(shm_barrier(group));
    }
    return SHARD_OK;
}

/* The root's chunks are as large as all ranks' together. */
static shard_status broadcast(shard_group *group, const shard_collective *call)
{
    const shm_group *state = group->state;
    char *data = call->receive;
    int64_t bytes = call->count * (int64_t)shard_dtype_size(call->dtype), chunk = state->chunk * group->size;
    int64_t steps = shard_divide_up(bytes, chunk);
    for (int64_t step = 0; step < steps + 1; step++) {
        if (group->rank == call->root && step < steps)
            copy(chunk_of(group, step, 0), data + step * chunk, shard_count_from(bytes, step * chunk, chunk));
        if (group->rank != call->root && step >= 1)
            copy(data + (step - 1) * chunk, chunk_of(group, step - 1, 0), shard_count_from(bytes, (step - 1) * chunk, chunk));
        if (step < steps)
            SHARD_TRY(shm_barrier(group));
    }
    return SHARD_OK;
}

shard_status shm_post(shard_group *group, const shard_collective *call, shard_request **request)
{
    (void)request;
    SHARD_TRY(shm_check_whole(group)); /* a slower rank may still read what this one would write to */
    switch (call->kind) {
    case SHARD_COLLECTIVE_ALL_REDUCE:
        return all_reduce(group, call);
    case SHARD_COLLECTIVE_ALL_GATHER:
        return all_gather(group, call);
    case SHARD_COLLECTIVE_REDUCE_SCATTER:
        return reduce_scatter(group, call);
    case SHARD_COLLECTIVE_BROADCAST:
        return broadcast(group, call);
    default:
        return exchange(group, call);
    }
}
