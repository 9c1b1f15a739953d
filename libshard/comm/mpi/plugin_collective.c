/*
 * The collectives. MPI's counts are int: arrays above mpi.most elements go in
 * several calls. MPI has no 16-bit floats: their sums are made of float32
 * chunks. So are those of uint8, with which MPIs err (Open MPI 4.1.4 adds them
 * with saturation, MPICH 4.0.2 compares them as signed).
 */
#include "comm/mpi/plugin.h"

#include "base/dtype.h"

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

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static shard_status finish_one(shard_group *group, MPI_Request request)
{
    return mpi_finish(group, &request, 1);
}

shard_status mpi_exchange(shard_group *group, const void *mine, size_t bytes, void *all)
{
    mpi_group *state = group->state;
    MPI_Request request = MPI_REQUEST_NULL;
    if (state->broken == SHARD_OK) {
        memcpy(state->mine, mine, bytes);
        MPI_TRY(MPI_Iallgather(state->mine, (int)bytes, MPI_BYTE, state->all, (int)bytes, MPI_BYTE, state->comm, &request));
    }
    shard_status status = finish_one(group, request);
    if (status == SHARD_OK)
        memcpy(all, state->all, (size_t)group->size * bytes);
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

/* Reduces data in place, at all members or (root >= 0) at the root, chunk by chunk. */
static shard_status reduce_narrow(shard_group *group, void *data, int64_t count, shard_dtype dtype, shard_reduce_op op, int root)
{
    int64_t chunk = smaller(smaller(count, NARROW_CHUNK), mpi.most);
    float *wide = count ? mpi.host->calloc((size_t)chunk, sizeof *wide) : NULL;
    if (count && !wide)
        return SHARD_ERROR_MEMORY;
    shard_status status = SHARD_OK;
    for (int64_t start = 0; start < count && status == SHARD_OK; start += chunk) {
        int length = (int)smaller(chunk, count - start);
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

/* ---- all-reduce ---- */

shard_request *mpi_all_reduce_start(shard_group *group, void *data, int64_t count, shard_dtype dtype, shard_reduce_op op)
{
    if (kinds[dtype].narrow) {
        reduce_narrow(group, data, count, dtype, op, -1);
        return NULL;
    }
    int64_t calls = (count + mpi.most - 1) / mpi.most;
    shard_request *request = mpi.host->calloc(1, sizeof *request + (size_t)calls * sizeof *request->calls);
    if (!request)
        return NULL;
    for (int64_t start = 0; start < count; start += mpi.most) {
        int length = (int)smaller(mpi.most, count - start);
        int result = MPI_Iallreduce(MPI_IN_PLACE, (char *)data + (size_t)start * kinds[dtype].size, length, type_of(dtype),
                                    op_of(op), comm_of(group), &request->calls[request->number]);
        if (mpi_check(result, "MPI_Iallreduce") != SHARD_OK)
            return NULL;
        request->number++;
    }
    return request;
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

shard_status mpi_all_reduce(shard_group *group, void *data, int64_t count, shard_dtype dtype, shard_reduce_op op)
{
    if (kinds[dtype].narrow)
        return reduce_narrow(group, data, count, dtype, op, -1);
    for (int64_t start = 0; start < count; start += mpi.most) {
        MPI_Request request;
        MPI_TRY(MPI_Iallreduce(MPI_IN_PLACE, (char *)data + (size_t)start * kinds[dtype].size, (int)smaller(mpi.most, count - start),
                               type_of(dtype), op_of(op), comm_of(group), &request));
        shard_status status = finish_one(group, request);
        if (status != SHARD_OK)
            return status;
    }
    return SHARD_OK;
}

/* ---- pieces ---- */

/* Counts and where they begin, as MPI wants them, in one allocation; NULL with *total
 * above mpi.most where they do not fit, else with the error set. */
static int *int_counts(const shard_group *group, const int64_t *counts, int64_t *total)
{
    *total = 0;
    for (int member = 0; member < group->size; member++)
        *total += counts[member];
    if (*total > mpi.most)
        return NULL;
    int *numbers = mpi.host->calloc(2 * (size_t)group->size, sizeof *numbers);
    int start = 0;
    for (int member = 0; numbers && member < group->size; member++) {
        numbers[member] = (int)counts[member];
        numbers[group->size + member] = start;
        start += (int)counts[member];
    }
    return numbers;
}

static char *piece_of(void *all, const int64_t *counts, int member, size_t size)
{
    char *piece = all;
    for (int i = 0; i < member; i++)
        piece += (size_t)counts[i] * size;
    return piece;
}

shard_status mpi_broadcast(shard_group *group, void *data, int64_t count, shard_dtype dtype, int root)
{
    for (int64_t start = 0; start < count; start += mpi.most) {
        MPI_Request request;
        MPI_TRY(MPI_Ibcast((char *)data + (size_t)start * kinds[dtype].size, (int)smaller(mpi.most, count - start), type_of(dtype),
                           root, comm_of(group), &request));
        shard_status status = finish_one(group, request);
        if (status != SHARD_OK)
            return status;
    }
    return SHARD_OK;
}

shard_status mpi_all_gather(shard_group *group, const void *mine, void *all, const int64_t *counts, shard_dtype dtype)
{
    int64_t total;
    size_t size = kinds[dtype].size;
    shard_status status = SHARD_OK;
    char *own = piece_of(all, counts, group->rank, size);
    if (counts[group->rank] && own != mine)
        memmove(own, mine, (size_t)counts[group->rank] * size);
    int *numbers = int_counts(group, counts, &total);
    if (total > mpi.most) {
        for (int member = 0; member < group->size && status == SHARD_OK; member++)
            status = mpi_broadcast(group, piece_of(all, counts, member, size), counts[member], dtype, member);
        return status;
    }
    if (!numbers)
        return SHARD_ERROR_MEMORY;
    MPI_Request request;
    MPI_TRY(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, numbers, numbers + group->size, type_of(dtype), comm_of(group),
                            &request));
    status = finish_one(group, request);
    if (status == SHARD_OK)
        free(numbers);
    return status;
}

/* Each member's piece reduced to it, one after the other; the result may overwrite all. */
static shard_status reduce_pieces(shard_group *group, void *all, void *mine, const int64_t *counts, shard_dtype dtype,
                                  shard_reduce_op op)
{
    size_t size = kinds[dtype].size;
    for (int member = 0; member < group->size; member++) {
        char *piece = piece_of(all, counts, member, size);
        for (int64_t start = 0; start < counts[member]; start += mpi.most) {
            char *from = piece + (size_t)start * size;
            int64_t length = smaller(mpi.most, counts[member] - start);
            shard_status status;
            if (kinds[dtype].narrow) {
                status = reduce_narrow(group, from, length, dtype, op, member);
            } else {
                MPI_Request request;
                MPI_TRY(MPI_Ireduce(group->rank == member ? MPI_IN_PLACE : from, from, (int)length, type_of(dtype), op_of(op), member,
                                    comm_of(group), &request));
                status = finish_one(group, request);
            }
            if (status != SHARD_OK)
                return status;
        }
    }
    char *own = piece_of(all, counts, group->rank, size);
    if (counts[group->rank] && own != mine)
        memcpy(mine, own, (size_t)counts[group->rank] * size);
    return SHARD_OK;
}

shard_status mpi_reduce_scatter(shard_group *group, void *all, void *mine, const int64_t *counts, shard_dtype dtype,
                                shard_reduce_op op)
{
    int64_t total;
    if (kinds[dtype].narrow)
        return reduce_pieces(group, all, mine, counts, dtype, op);
    int *numbers = int_counts(group, counts, &total);
    if (total > mpi.most)
        return reduce_pieces(group, all, mine, counts, dtype, op);
    if (!numbers)
        return SHARD_ERROR_MEMORY;
    /* Not in place, where MPICH copies a piece that lies at the beginning onto itself. */
    size_t bytes = (size_t)counts[group->rank] * kinds[dtype].size;
    bool inside = mine == piece_of(all, counts, group->rank, kinds[dtype].size);
    void *out = inside ? mpi.host->calloc(bytes, 1) : mine;
    if (!out && bytes) {
        free(numbers);
        return SHARD_ERROR_MEMORY;
    }
    MPI_Request request;
    MPI_TRY(MPI_Ireduce_scatter(all, out, numbers, type_of(dtype), op_of(op), comm_of(group), &request));
    shard_status status = finish_one(group, request);
    if (status != SHARD_OK)
        return status;
    free(numbers);
    if (inside) {
        memcpy(mine, out, bytes);
        free(out);
    }
    return SHARD_OK;
}

shard_request *mpi_reduce_scatter_start(shard_group *group, void *all, void *mine, const int64_t *counts, shard_dtype dtype,
                                        shard_reduce_op op)
{
    int64_t total;
    int *numbers = kinds[dtype].narrow ? NULL : int_counts(group, counts, &total);
    if (!numbers || mine == piece_of(all, counts, group->rank, kinds[dtype].size)) {
        free(numbers);
        mpi_reduce_scatter(group, all, mine, counts, dtype, op);
        return NULL;
    }
    shard_request *request = mpi.host->calloc(1, sizeof *request + sizeof *request->calls);
    if (!request) {
        free(numbers);
        return NULL;
    }
    *request = (shard_request){.counts = numbers, .number = 1};
    int result = MPI_Ireduce_scatter(all, mine, numbers, type_of(dtype), op_of(op), comm_of(group), &request->calls[0]);
    return mpi_check(result, "MPI_Ireduce_scatter") == SHARD_OK ? request : NULL;
}
