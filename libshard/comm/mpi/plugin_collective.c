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

struct shard_request {
    int *counts; /* that a call reads until it is done, or NULL */
    int number;
    MPI_Request calls[];
};

static const struct {
    size_t size;
    bool narrow; /* reduced as float32 */
} kinds[SHARD_DTYPES] = {
    [SHARD_FLOAT32] = {4, false}, [SHARD_FLOAT64] = {8, false}, [SHARD_BFLOAT16] = {2, true}, [SHARD_FLOAT16] = {2, true},
    [SHARD_INT64] = {8, false},   [SHARD_INT32] = {4, false},   [SHARD_UINT8] = {1, true},
};

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
        MPI_TRY(MPI_Iallgather(state->mine, bytes, MPI_BYTE, state->all, bytes, MPI_BYTE, state->comm, &request));
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

/* Reduces data in place, at all ranks or (root >= 0) at the root, chunk by chunk. */
static shard_status reduce_narrow(shard_group *group, void *data, int64_t count, shard_dtype dtype, shard_reduce_op op, int root)
{
    int64_t chunk = shard_min(shard_min(count, NARROW_CHUNK), mpi.most);
    float *wide = count ? mpi.host->calloc((size_t)chunk, sizeof *wide) : NULL;
    if (count && !wide)
        return SHARD_ERROR_MEMORY;
    shard_status status = SHARD_OK;
    for (int64_t start = 0; start < count && status == SHARD_OK; start += chunk) {
        int length = (int)shard_min(chunk, count - start);
        char *part = (char *)data + (size_t)start * kinds[dtype].size;
        MPI_Request request;
        int result;
        widen(part, wide, length, dtype);
        if (root < 0)
            result = MPI_Iallreduce(MPI_IN_PLACE, wide, length, MPI_FLOAT, op_of(op), comm_of(group), &request);
        else
            result = MPI_Ireduce(group->rank == root ? MPI_IN_PLACE : wide, wide, length, MPI_FLOAT, op_of(op), root, comm_of(group),
                                 &request);
        status = mpi_check(result, "MPI_Ireduce");
        if (status == SHARD_OK)
            status = finish_one(group, request);
        if (status == SHARD_OK && (root < 0 || root == group->rank))
            narrow(wide, part, length, dtype);
    }
    if (status == SHARD_OK)
        free(wide);
    return status;
}

/* ---- requests ---- */

/* Room for so many calls; counts are the request's then. NULL with the error set. */
static shard_request *make_request(int64_t calls, int *counts)
{
    shard_request *request = mpi.host->calloc(1, sizeof *request + (size_t)calls * sizeof *request->calls);
    if (request)
        request->counts = counts;
    else
        free(counts);
    return request;
}

shard_status mpi_test(shard_group *group, shard_request *request, bool *done)
{
    (void)group;
    int all = 1;
    for (int i = 0; i < request->number && all; i++)
        MPI_TRY(MPI_Test(&request->calls[i], &all, MPI_STATUS_IGNORE));
    *done = all != 0;
    return SHARD_OK;
}

shard_status mpi_wait(shard_group *group, shard_request *request)
{
    shard_status status = mpi_finish(group, request->calls, request->number);
    if (status == SHARD_OK) {
        free(request->counts);
        free(request);
    }
    return status;
}

/* ---- all_reduce and broadcast ---- */

static shard_status post_whole(shard_group *group, const shard_collective *call, shard_request **request)
{
    MPI_Datatype type = type_of(call->dtype);
    MPI_Comm comm = comm_of(group);
    shard_request *made = make_request(shard_divide_up(call->count, mpi.most), NULL);
    if (!made)
        return SHARD_ERROR_MEMORY;
    for (int64_t start = 0; start < call->count; start += mpi.most) {
        int length = (int)shard_min(mpi.most, call->count - start);
        char *data = (char *)call->receive + (size_t)start * kinds[call->dtype].size;
        MPI_Request *next = &made->calls[made->number++];
        if (call->kind == SHARD_COLLECTIVE_BROADCAST)
            MPI_TRY(MPI_Ibcast(data, length, type, call->root, comm, next));
        else
            MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, data, length, type, op_of(call->op), comm, next));
    }
    *request = made;
    return SHARD_OK;
}

/* ---- pieces ---- */

/* A request of one call, with counts and where they begin as MPI wants them, in one allocation; NULL with the error set. */
static shard_request *make_counted(const shard_group *group, const int64_t *counts)
{
    int *numbers = mpi.host->calloc(2 * (size_t)group->size, sizeof *numbers), start = 0;
    for (int member = 0; numbers && member < group->size; member++) {
        numbers[member] = (int)counts[member];
        numbers[group->size + member] = start;
        start += (int)counts[member];
    }
    shard_request *made = numbers ? make_request(1, numbers) : NULL;
    if (made)
        made->number = 1;
    return made;
}

/* Where a rank's piece begins. */
static char *piece_of(const shard_group *group, const void *all, const shard_collective *call)
{
    return (char *)(uintptr_t)all + (size_t)shard_count_before(call->counts, group->rank) * kinds[call->dtype].size;
}

/* Above mpi.most elements in all, each rank's piece is broadcast or reduced to it, one after the other. */
static shard_status move_pieces(shard_group *group, const shard_collective *call, char *all)
{
    size_t size = kinds[call->dtype].size;
    MPI_Datatype type = type_of(call->dtype);
    MPI_Comm comm = comm_of(group);
    shard_status status = SHARD_OK;
    for (int member = 0; member < group->size; member++)
        for (int64_t left = call->counts[member]; left > 0 && status == SHARD_OK;) {
            int length = (int)shard_min(mpi.most, left);
            MPI_Request request = MPI_REQUEST_NULL;
            if (call->kind == SHARD_COLLECTIVE_ALL_GATHER)
                MPI_TRY(MPI_Ibcast(all, length, type, member, comm, &request));
            else if (!kinds[call->dtype].narrow)
                MPI_TRY(MPI_Ireduce(group->rank == member ? MPI_IN_PLACE : all, all, length, type, op_of(call->op), member, comm,
                                    &request));
            status = kinds[call->dtype].narrow && call->kind != SHARD_COLLECTIVE_ALL_GATHER
                         ? reduce_narrow(group, all, length, call->dtype, call->op, member)
                         : finish_one(group, request);
            all += (size_t)length * size;
            left -= length;
        }
    return status;
}

static void copy_own(const shard_group *group, const shard_collective *call, void *to, const void *from)
{
    if (call->counts[group->rank] && to != from)
        memmove(to, from, (size_t)call->counts[group->rank] * kinds[call->dtype].size);
}

static shard_status post_gather(shard_group *group, const shard_collective *call, shard_request **request)
{
    copy_own(group, call, piece_of(group, call->receive, call), call->send);
    if (call->count > mpi.most)
        return move_pieces(group, call, call->receive);
    shard_request *made = make_counted(group, call->counts);
    if (!made)
        return SHARD_ERROR_MEMORY;
    MPI_TRY(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, call->receive, made->counts, made->counts + group->size,
                            type_of(call->dtype), comm_of(group), &made->calls[0]));
    *request = made;
    return SHARD_OK;
}

/* Not in place, where MPICH copies a piece that lies at the beginning onto itself: such a sum is copied at the end. */
static shard_status reduce_inside(shard_group *group, const shard_collective *call)
{
    shard_collective outside = *call;
    shard_request *request = NULL;
    outside.receive = mpi.host->calloc((size_t)call->counts[group->rank] * kinds[call->dtype].size + 1, 1);
    if (!outside.receive)
        return SHARD_ERROR_MEMORY;
    shard_status status = mpi_post(group, &outside, &request);
    if (status == SHARD_OK && request)
        status = mpi_wait(group, request);
    if (status != SHARD_OK) /* not freed: MPI may still write to it */
        return status;
    copy_own(group, call, call->receive, outside.receive);
    free(outside.receive);
    return SHARD_OK;
}

static shard_status post_scatter(shard_group *group, const shard_collective *call, shard_request **request)
{
    char *own = piece_of(group, call->send, call);
    if (kinds[call->dtype].narrow || call->count > mpi.most) {
        shard_status status = move_pieces(group, call, (char *)(uintptr_t)call->send);
        if (status == SHARD_OK)
            copy_own(group, call, call->receive, own);
        return status;
    }
    if (call->receive == own)
        return reduce_inside(group, call);
    shard_request *made = make_counted(group, call->counts);
    if (!made)
        return SHARD_ERROR_MEMORY;
    MPI_TRY(MPI_Ireduce_scatter(call->send, call->receive, made->counts, type_of(call->dtype), op_of(call->op), comm_of(group),
                                &made->calls[0]));
    *request = made;
    return SHARD_OK;
}

shard_status mpi_post(shard_group *group, const shard_collective *call, shard_request **request)
{
    switch (call->kind) {
    case SHARD_COLLECTIVE_ALL_REDUCE:
        if (kinds[call->dtype].narrow)
            return reduce_narrow(group, call->receive, call->count, call->dtype, call->op, -1);
        return post_whole(group, call, request);
    case SHARD_COLLECTIVE_BROADCAST:
        return post_whole(group, call, request);
    case SHARD_COLLECTIVE_ALL_GATHER:
        return post_gather(group, call, request);
    case SHARD_COLLECTIVE_REDUCE_SCATTER:
        return post_scatter(group, call, request);
    default:
        return exchange(group, call);
    }
}
