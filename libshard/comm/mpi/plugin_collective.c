/*
 * The collectives. MPI's counts are int: arrays above mpi.most elements go in
 * several calls. MPI has no 16-bit floats: their sums are made of float32
 * chunks. So are those of uint8, with which MPIs err (Open MPI 4.1.4 adds them
 * with saturation, MPICH 4.0.2 compares them as signed).
 */
#include "comm/mpi/plugin.h"

#include "base/dtype.h"
#include "base/math.h"

#include <stdlib.h>
#include <string.h>

/* Elements of a narrow array that are converted at once. */
#define NARROW_CHUNK (4 << 20)

/* The memory of a collective, taken before its preflight check. After an error it is not freed, as MPI may still use it. */
struct shard_request {
    int *counts;   /* [2][size] of blocks, and where they begin: a call reads them until it is done; or NULL */
    void *room;    /* a chunk of narrow types as float32, or the sum of this rank's block, until it is copied to ... */
    void *inside;  /* ... its place in the data that is summed; else NULL */
    size_t bytes;  /* of the block */
    int number;    /* of calls under way; 0: the collective is done */
    MPI_Request calls[];
};

static bool is_narrow(shard_dtype dtype)
{
    return shard_dtype_is_half(dtype) || dtype == SHARD_UINT8;
}

/* MPI's handles need not be constants. */
static MPI_Datatype type_of(shard_dtype dtype)
{
    switch (dtype) {
    case SHARD_FLOAT32:
        return MPI_FLOAT;
    case SHARD_FLOAT64:
        return MPI_DOUBLE;
    case SHARD_INT64:
        return MPI_INT64_T;
    case SHARD_INT32:
        return MPI_INT32_T;
    case SHARD_UINT8: /* this and the 16-bit ones are only moved */
        return MPI_UINT8_T;
    default:
        return MPI_UINT16_T;
    }
}

static MPI_Op op_of(shard_reduce_op op)
{
    return op == SHARD_SUM ? MPI_SUM : op == SHARD_MAX ? MPI_MAX : MPI_MIN;
}

static MPI_Comm comm_of(const shard_group *group)
{
    return ((mpi_group *)group->state)->comm;
}

static shard_status finish_one(shard_group *group, MPI_Request request)
{
    return mpi_finish(group, &request, 1);
}

static shard_status exchange(shard_group *group, const shard_collective *call)
{
    mpi_group *state = group->state;
    int bytes = (int)call->count;
    MPI_Request request = MPI_REQUEST_NULL;
    if (state->broken == SHARD_OK) {
        memcpy(state->mine, call->send, (size_t)bytes);
        int result = MPI_Iallgather(state->mine, bytes, MPI_BYTE, state->all, bytes, MPI_BYTE, state->comm, &request);
        SHARD_TRY(mpi_fail(group, mpi_check(result, "MPI_Iallgather")));
    }
    shard_status status = finish_one(group, request);
    if (status == SHARD_OK)
        memcpy(call->receive, state->all, (size_t)group->size * (size_t)bytes);
    return status;
}

/* ---- narrow types ---- */

static void widen(const void *from, float *to, int64_t count, shard_dtype dtype)
{
    const uint16_t *halves = from;
    const uint8_t *bytes = from;
    if (dtype == SHARD_BFLOAT16)
        for (int64_t i = 0; i < count; i++)
            to[i] = shard_bfloat16_to_float(halves[i]);
    else if (dtype == SHARD_FLOAT16)
        for (int64_t i = 0; i < count; i++)
            to[i] = shard_float16_to_float(halves[i]);
    else
        for (int64_t i = 0; i < count; i++)
            to[i] = bytes[i];
}

static void narrow(const float *from, void *to, int64_t count, shard_dtype dtype)
{
    uint16_t *halves = to;
    uint8_t *bytes = to;
    if (dtype == SHARD_BFLOAT16)
        for (int64_t i = 0; i < count; i++)
            halves[i] = shard_float_to_bfloat16(from[i]);
    else if (dtype == SHARD_FLOAT16)
        for (int64_t i = 0; i < count; i++)
            halves[i] = shard_float_to_float16(from[i]);
    else
        for (int64_t i = 0; i < count; i++)
            bytes[i] = (uint8_t)(uint32_t)from[i]; /* wraps, as sums of integers do */
}

/* Elements that one call reduces, of so many. */
static int64_t narrow_chunk(int64_t count)
{
    return shard_min(shard_min(count, NARROW_CHUNK), mpi.most);
}

/* Reduces data of the call in place, at all ranks or (root >= 0) at the root, chunk by chunk. */
static shard_status reduce_narrow(shard_group *group, const shard_collective *call, char *data, int64_t count, int root)
{
    int64_t chunk = narrow_chunk(count);
    float *wide = ((shard_request *)call->prepared)->room;
    MPI_Op op = op_of(call->op);
    shard_status status = SHARD_OK;
    for (int64_t start = 0; start < count && status == SHARD_OK; start += chunk) {
        int length = (int)shard_min(chunk, count - start);
        char *part = data + (size_t)start * shard_dtype_size(call->dtype);
        MPI_Request request;
        int result;
        widen(part, wide, length, call->dtype);
        if (root < 0)
            result = MPI_Iallreduce(MPI_IN_PLACE, wide, length, MPI_FLOAT, op, comm_of(group), &request);
        else
            result = MPI_Ireduce(group->rank == root ? MPI_IN_PLACE : wide, wide, length, MPI_FLOAT, op, root, comm_of(group),
                                 &request);
        status = mpi_check(result, root < 0 ? "MPI_Iallreduce" : "MPI_Ireduce");
        if (status == SHARD_OK)
            status = finish_one(group, request);
        if (status == SHARD_OK && (root < 0 || root == group->rank))
            narrow(wide, part, length, call->dtype);
    }
    return status;
}

/* ---- requests ---- */

static void free_request(shard_request *request)
{
    free(request->counts);
    free(request->room);
    free(request);
}

/* Where a rank's block begins. */
static char *block_of(const shard_group *group, const void *all, const shard_collective *call)
{
    return (char *)(uintptr_t)all + (size_t)shard_count_before(call->counts, group->rank) * shard_dtype_size(call->dtype);
}

/* Whether the blocks are moved or reduced one after the other, each by calls of its own. */
static bool goes_by_blocks(const shard_collective *call)
{
    return call->count > mpi.most || (shard_collective_reduces(call) && is_narrow(call->dtype));
}

/* Which memory a collective needs. */
typedef struct needs {
    int64_t calls, counts; /* elements of the request's arrays */
    int64_t room;          /* bytes */
    bool outside;          /* it is for the rank's block */
} needs;

static needs needs_of(const shard_group *group, const shard_collective *call)
{
    if (shard_collective_reduces(call) && is_narrow(call->dtype))
        return (needs){.room = narrow_chunk(call->counts ? shard_largest_count(call->counts, group->size) : call->count) *
                               (int64_t)sizeof(float)};
    if (!call->counts)
        return (needs){.calls = shard_divide_up(call->count, mpi.most)};
    if (goes_by_blocks(call))
        return (needs){0};
    /* Not in place, where MPICH copies a block that lies at the beginning onto itself, and takes one memory for both as an error
     * also where the rank's block is empty. */
    bool inside =
        shard_collective_reduces(call) && (call->receive == call->send || call->receive == block_of(group, call->send, call));
    int64_t room =
        inside ? call->counts[group->rank] * (int64_t)shard_dtype_size(call->dtype) + 1 : 0; /* an empty block has memory, too */
    return (needs){.calls = 1, .counts = 2 * (int64_t)group->size, .room = room, .outside = inside};
}

/* NULL without an error for none. */
static void *take(int64_t count, size_t size)
{
    return count ? shard_calloc((size_t)count, size) : NULL;
}

shard_status mpi_prepare(shard_group *group, shard_collective *call)
{
    if (call->kind == SHARD_COLLECTIVE_EXCHANGE)
        return SHARD_OK;
    const needs n = needs_of(group, call);
    shard_request *made = shard_calloc(1, sizeof *made + (size_t)n.calls * sizeof *made->calls);
    if (!made)
        return SHARD_ERROR_MEMORY;
    made->counts = take(n.counts, sizeof *made->counts);
    made->room = take(n.room, 1);
    if (n.outside) {
        made->inside = call->receive;
        made->bytes = (size_t)n.room - 1;
    }
    if ((n.counts && !made->counts) || (n.room && !made->room)) {
        free_request(made);
        return SHARD_ERROR_MEMORY;
    }
    call->prepared = made;
    return SHARD_OK;
}

void mpi_discard(shard_group *group, const shard_collective *call)
{
    (void)group;
    free_request(call->prepared);
}

shard_status mpi_wait(shard_group *group, shard_request *request)
{
    SHARD_HOLD(&mpi_lock);
    SHARD_TRY(mpi_check_thread());
    shard_status status = mpi_finish(group, request->calls, request->number);
    if (status != SHARD_OK)
        return status;
    if (request->inside)
        memcpy(request->inside, request->room, request->bytes);
    free_request(request);
    return SHARD_OK;
}

/* ---- all_reduce and broadcast ---- */

static shard_status post_whole(shard_group *group, const shard_collective *call)
{
    MPI_Datatype type = type_of(call->dtype);
    MPI_Comm comm = comm_of(group);
    shard_request *made = call->prepared;
    for (int64_t start = 0; start < call->count; start += mpi.most) {
        int length = (int)shard_min(mpi.most, call->count - start);
        char *data = (char *)call->receive + (size_t)start * shard_dtype_size(call->dtype);
        MPI_Request *next = &made->calls[made->number++];
        if (call->kind == SHARD_COLLECTIVE_BROADCAST)
            MPI_TRY(MPI_Ibcast(data, length, type, call->root, comm, next));
        else
            MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, data, length, type, op_of(call->op), comm, next));
    }
    return SHARD_OK;
}

/* ---- blocks ---- */

/* The counts and where they begin, as MPI wants them. */
static void write_counts(const shard_group *group, const int64_t *counts, int *numbers)
{
    int start = 0;
    for (int rank = 0; rank < group->size; rank++) {
        numbers[rank] = (int)counts[rank];
        numbers[group->size + rank] = start;
        start += (int)counts[rank];
    }
}

/* Each rank's block is broadcast, or reduced to that rank, one after the other. */
static shard_status move_blocks(shard_group *group, const shard_collective *call, char *all)
{
    size_t size = shard_dtype_size(call->dtype);
    MPI_Datatype type = type_of(call->dtype);
    MPI_Comm comm = comm_of(group);
    shard_status status = SHARD_OK;
    for (int rank = 0; rank < group->size; rank++)
        for (int64_t left = call->counts[rank]; left > 0 && status == SHARD_OK;) {
            int length = (int)shard_min(mpi.most, left);
            MPI_Request request = MPI_REQUEST_NULL;
            if (call->kind == SHARD_COLLECTIVE_ALL_GATHER)
                MPI_TRY(MPI_Ibcast(all, length, type, rank, comm, &request));
            else if (!is_narrow(call->dtype))
                MPI_TRY(MPI_Ireduce(group->rank == rank ? MPI_IN_PLACE : all, all, length, type, op_of(call->op), rank, comm,
                                    &request));
            status = is_narrow(call->dtype) && call->kind != SHARD_COLLECTIVE_ALL_GATHER
                         ? reduce_narrow(group, call, all, length, rank)
                         : finish_one(group, request);
            all += (size_t)length * size;
            left -= length;
        }
    return status;
}

static void copy_own(const shard_group *group, const shard_collective *call, void *to, const void *from)
{
    if (call->counts[group->rank] && to != from)
        memmove(to, from, (size_t)call->counts[group->rank] * shard_dtype_size(call->dtype));
}

static shard_status post_gather(shard_group *group, const shard_collective *call)
{
    shard_request *made = call->prepared;
    copy_own(group, call, block_of(group, call->receive, call), call->send);
    if (goes_by_blocks(call))
        return move_blocks(group, call, call->receive);
    write_counts(group, call->counts, made->counts);
    MPI_TRY(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, call->receive, made->counts, made->counts + group->size,
                            type_of(call->dtype), comm_of(group), &made->calls[0]));
    made->number = 1;
    return SHARD_OK;
}

static shard_status post_scatter(shard_group *group, const shard_collective *call)
{
    shard_request *made = call->prepared;
    if (goes_by_blocks(call)) {
        shard_status status = move_blocks(group, call, (char *)(uintptr_t)call->send);
        if (status == SHARD_OK)
            copy_own(group, call, call->receive, block_of(group, call->send, call));
        return status;
    }
    write_counts(group, call->counts, made->counts);
    MPI_TRY(MPI_Ireduce_scatter(call->send, made->inside ? made->room : call->receive, made->counts, type_of(call->dtype),
                                op_of(call->op), comm_of(group), &made->calls[0]));
    made->number = 1;
    return SHARD_OK;
}

static shard_status start(shard_group *group, const shard_collective *call)
{
    switch (call->kind) {
    case SHARD_COLLECTIVE_ALL_REDUCE:
        return is_narrow(call->dtype) ? reduce_narrow(group, call, call->receive, call->count, -1) : post_whole(group, call);
    case SHARD_COLLECTIVE_BROADCAST:
        return post_whole(group, call);
    case SHARD_COLLECTIVE_ALL_GATHER:
        return post_gather(group, call);
    default:
        return post_scatter(group, call);
    }
}

shard_status mpi_post(shard_group *group, const shard_collective *call, shard_request **request)
{
    SHARD_HOLD(&mpi_lock);
    SHARD_TRY(mpi_check_thread());
    shard_request *made = call->prepared;
    if (call->kind == SHARD_COLLECTIVE_EXCHANGE)
        return exchange(group, call);
    shard_status status = mpi_fail(group, start(group, call));
    if (status != SHARD_OK)
        return status;
    if (made->number)
        *request = made;
    else
        free_request(made);
    return SHARD_OK;
}
