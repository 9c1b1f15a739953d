/* The collectives, on the plugin's stream. */
#include "comm/nccl/plugin.h"

static ncclDataType_t type_of(shard_dtype dtype)
{
    static const ncclDataType_t types[] = {
        [SHARD_FLOAT32] = ncclFloat32, [SHARD_FLOAT64] = ncclFloat64, [SHARD_BFLOAT16] = ncclBfloat16,
        [SHARD_FLOAT16] = ncclFloat16, [SHARD_INT64] = ncclInt64,     [SHARD_INT32] = ncclInt32,
        [SHARD_UINT8] = ncclUint8,
    };
    return types[dtype];
}

static ncclRedOp_t operation_of(shard_reduce_op op)
{
    return op == SHARD_SUM ? ncclSum : op == SHARD_MAX ? ncclMax : ncclMin;
}

static bool summed_here(const shard_group *group, shard_dtype dtype, shard_reduce_op op)
{
    return op == SHARD_SUM && (dtype == SHARD_BFLOAT16 || dtype == SHARD_FLOAT16) && !nccl_of(group)->reduced_precision;
}

/* All ranks' blocks are as long. */
static bool are_even(const shard_group *group, const int64_t *counts)
{
    for (int rank = 1; rank < group->size; rank++)
        if (counts[rank] != counts[0])
            return false;
    return true;
}

/* The first error of a group of calls, which goes on with the rest and ends in any case. */
static ncclResult_t first_error(ncclResult_t first, ncclResult_t next)
{
    return first == ncclSuccess || first == ncclInProgress ? next : first;
}

static ncclResult_t end_calls(ncclResult_t first)
{
    return first_error(first, ncclGroupEnd());
}

/* ---- blocks of any lengths ---- */

/* An all-gather, or a reduce-scatter that NCCL sums. */
static shard_status move_blocks(shard_group *group, const shard_collective *call)
{
    nccl_group *state = nccl_of(group);
    ncclDataType_t type = type_of(call->dtype);
    ncclRedOp_t operation = operation_of(call->op);
    bool gathers = call->kind == SHARD_COLLECTIVE_ALL_GATHER;
    size_t each = (size_t)call->counts[0];
    if (are_even(group, call->counts)) {
        if (gathers)
            NCCL_TRY(state, ncclAllGather(call->send, call->receive, each, type, state->comm, nccl.stream));
        else
            NCCL_TRY(state, ncclReduceScatter(call->send, call->receive, each, type, operation, state->comm, nccl.stream));
        return SHARD_OK;
    }
    const char *from = call->send;
    char *to = call->receive;
    ncclResult_t result = ncclGroupStart();
    for (int root = 0; root < group->size; root++) {
        size_t count = (size_t)call->counts[root], bytes = count * shard_dtype_size(call->dtype);
        bool own = root == group->rank;
        if (count && gathers)
            result = first_error(result, ncclBroadcast(own ? call->send : to, to, count, type, root, state->comm, nccl.stream));
        else if (count)
            result = first_error(
                result, ncclReduce(from, own ? call->receive : NULL, count, type, operation, root, state->comm, nccl.stream));
        if (gathers)
            to += bytes;
        else
            from += bytes;
    }
    return nccl_finish(state, end_calls(result), gathers ? "ncclBroadcast" : "ncclReduce");
}

/* ---- sums of 16-bit types ---- */

/* chunks [size][own] = the other ranks' elements [at, at + own) of this rank's block of all. */
static shard_status exchange_chunks(shard_group *group, const char *all, char *chunks, const int64_t *counts, int64_t at,
                                    int64_t most, shard_dtype dtype)
{
    nccl_group *state = nccl_of(group);
    ncclDataType_t type = type_of(dtype);
    int64_t element = (int64_t)shard_dtype_size(dtype), own = shard_count_from(counts[group->rank], at, most);
    ncclResult_t result = ncclGroupStart();
    const char *block = all;
    for (int rank = 0; rank < group->size; rank++) {
        const char *from = block + at * element;
        int64_t theirs = shard_count_from(counts[rank], at, most);
        block += counts[rank] * element;
        if (rank == group->rank)
            continue;
        if (theirs)
            result = first_error(result, ncclSend(from, (size_t)theirs, type, rank, state->comm, nccl.stream));
        if (own)
            result =
                first_error(result, ncclRecv(chunks + rank * own * element, (size_t)own, type, rank, state->comm, nccl.stream));
    }
    return nccl_finish(state, end_calls(result), "ncclSend");
}

/* Makes later work on `later` wait for the work that is on `earlier` now. */
static shard_status order_streams(cudaEvent_t event, cudaStream_t earlier, cudaStream_t later)
{
    SHARD_CUDA_TRY(cudaEventRecord(event, earlier));
    return SHARD_CUDA(cudaStreamWaitEvent(later, event, 0));
}

/* mine[at, at + own) = the sum of the ranks' elements, once they have arrived; on the stream of sums. */
static shard_status sum_arrived(shard_group *group, const char *all, char *chunks, const int64_t *counts, char *mine, int64_t at,
                                int64_t most, shard_dtype dtype)
{
    const shard_device_ops *ops = nccl.side.ops;
    int64_t element = (int64_t)shard_dtype_size(dtype), own = shard_count_from(counts[group->rank], at, most);
    const char *from = all + (shard_count_before(counts, group->rank) + at) * element;
    size_t bytes = (size_t)(own * element);
    SHARD_TRY(ops->copy_rows(&nccl.side, chunks + group->rank * own * element, bytes, from, bytes, bytes, 1));
    return ops->sum_rows(&nccl.side, group->size, own, 0, chunks, dtype, false, mine + at * element, dtype);
}

/* By chunks of at most `most` elements of each block, into two buffers in turn: while one chunk is summed the next
 * is on its way. */
static shard_status sum_in_turns(shard_group *group, const char *all, char *mine, const int64_t *counts, int64_t longest,
                                 int64_t most, char *const buffers[2], shard_dtype dtype)
{
    cudaStream_t sums = nccl.side_state.stream;
    int64_t turn = 0;
    for (int64_t at = 0; at < longest; at += most, turn++) {
        if (turn >= 2) /* the chunk before the last was summed out of this buffer */
            SHARD_CUDA_TRY(cudaStreamWaitEvent(nccl.stream, nccl.summed[turn % 2], 0));
        SHARD_TRY(exchange_chunks(group, all, buffers[turn % 2], counts, at, most, dtype));
        SHARD_TRY(order_streams(nccl.arrived, nccl.stream, sums));
        SHARD_TRY(sum_arrived(group, all, buffers[turn % 2], counts, mine, at, most, dtype));
        SHARD_CUDA_TRY(cudaEventRecord(nccl.summed[turn % 2], sums));
    }
    return SHARD_CUDA(cudaStreamWaitEvent(nccl.stream, nccl.summed[(turn - 1) % 2], 0)); /* and so all before */
}

/* The buffers of a sum. */
typedef struct sum_plan {
    int64_t longest; /* elements of the longest block */
    int64_t most;    /* elements of each block that a turn sums */
    size_t each;     /* bytes of a turn's buffer */
    size_t bytes;    /* of all buffers */
} sum_plan;

static sum_plan plan_sum(const shard_group *group, int64_t longest, shard_dtype dtype)
{
    int64_t element = (int64_t)shard_dtype_size(dtype), most = nccl.sum_bytes / 2 / element / group->size / 64 * 64;
    most = longest < most ? longest : most > 64 ? most : 64;
    size_t each = (size_t)(most * element) * (size_t)group->size;
    return (sum_plan){.longest = longest, .most = most, .each = each, .bytes = longest > most ? 2 * each : each};
}

/* memory has the plan's buffers. */
static shard_status sum_blocks(shard_group *group, const void *all, void *mine, const int64_t *counts, shard_dtype dtype,
                               char *memory)
{
    const sum_plan plan = plan_sum(group, shard_largest_count(counts, group->size), dtype);
    if (plan.bytes == 0)
        return SHARD_OK;
    SHARD_TRY(order_streams(nccl.arrived, nccl.side_state.stream, nccl.stream)); /* it is there from now on */
    return sum_in_turns(group, all, mine, counts, plan.longest, plan.most, (char *const[]){memory, memory + plan.each}, dtype);
}

/* Small data is gathered. Of other data each rank sums a block, and these are gathered. */
static bool is_gathered(const shard_group *group, int64_t count, shard_dtype dtype)
{
    return count > 0 && count * (int64_t)shard_dtype_size(dtype) <= nccl.sum_bytes / 64 / group->size;
}

/* Each rank gathers all of them whole and sums for itself: one call instead of two. */
static shard_status sum_gathered(shard_group *group, char *data, int64_t count, shard_dtype dtype, char *all)
{
    nccl_group *state = nccl_of(group);
    cudaStream_t sums = nccl.side_state.stream;
    SHARD_TRY(order_streams(nccl.arrived, sums, nccl.stream));
    NCCL_TRY(state, ncclAllGather(data, all, (size_t)count, type_of(dtype), state->comm, nccl.stream));
    SHARD_TRY(order_streams(nccl.arrived, nccl.stream, sums));
    SHARD_TRY(nccl.side.ops->sum_rows(&nccl.side, group->size, count, 0, all, dtype, false, data, dtype));
    return order_streams(nccl.summed[0], sums, nccl.stream);
}

/* The length of the ranks' blocks but for the last one, which has the rest, too: such that blocks begin where 16-byte accesses
 * can. */
static int64_t block_length(const shard_group *group, int64_t count)
{
    return count / group->size / 8 * 8;
}

/* Each rank's block of that length, in place, and the last one's rest. */
static shard_status gather_sums(shard_group *group, char *data, int64_t each, int64_t count, shard_dtype dtype)
{
    nccl_group *state = nccl_of(group);
    ncclDataType_t type = type_of(dtype);
    int64_t element = (int64_t)shard_dtype_size(dtype), rest = count - each * group->size;
    char *end = data + each * group->size * element;
    ncclResult_t result = ncclGroupStart();
    if (each)
        result = first_error(
            result, ncclAllGather(data + group->rank * each * element, data, (size_t)each, type, state->comm, nccl.stream));
    if (rest)
        result = first_error(result, ncclBroadcast(end, end, (size_t)rest, type, group->size - 1, state->comm, nccl.stream));
    return nccl_finish(state, end_calls(result), "ncclAllGather");
}

static shard_status sum_all(shard_group *group, char *data, int64_t count, shard_dtype dtype, char *memory)
{
    if (is_gathered(group, count, dtype))
        return sum_gathered(group, data, count, dtype, memory);
    int64_t *counts = group->counts, each = block_length(group, count);
    for (int rank = 0; rank < group->size; rank++)
        counts[rank] = rank < group->size - 1 ? each : count - rank * each;
    char *mine = data + group->rank * each * (int64_t)shard_dtype_size(dtype);
    SHARD_TRY(sum_blocks(group, data, mine, counts, dtype, memory));
    return gather_sums(group, data, each, count, dtype);
}

/* ---- the memory of sums ---- */

/* Bytes of the call's buffers; 0 if NCCL sums. */
static size_t buffer_bytes(const shard_group *group, const shard_collective *call)
{
    bool scatters = call->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
    if (!shard_collective_reduces(call) || !summed_here(group, call->dtype, call->op))
        return 0;
    if (!scatters && is_gathered(group, call->count, call->dtype))
        return (size_t)call->count * shard_dtype_size(call->dtype) * (size_t)group->size;
    int64_t longest = scatters ? shard_largest_count(call->counts, group->size)
                               : call->count - (group->size - 1) * block_length(group, call->count);
    return plan_sum(group, longest, call->dtype).bytes;
}

/* With the lock, as all work on the stream of sums. */
static void release_buffers(const shard_group *group, const shard_collective *call)
{
    shard_device_release(&nccl.side, SHARD_MEMORY_BUCKETS, call->prepared, buffer_bytes(group, call));
}

shard_status nccl_prepare(shard_group *group, shard_collective *call)
{
    size_t bytes = buffer_bytes(group, call);
    SHARD_HOLD(&nccl.lock);
    SHARD_TRY(nccl_check_device(call->device));
    if (bytes == 0)
        return SHARD_OK;
    if (SHARD_CUDA(cudaSetDevice(shard_cuda_of(nccl.device)->ordinal)) == SHARD_OK)
        call->prepared = shard_device_allocate(&nccl.side, SHARD_MEMORY_BUCKETS, bytes);
    return shard_last_status();
}

void nccl_discard(shard_group *group, const shard_collective *call)
{
    SHARD_HOLD(&nccl.lock);
    release_buffers(group, call);
}

/* ---- the table's ---- */

static shard_status start(shard_group *group, const shard_collective *call)
{
    nccl_group *state = nccl_of(group);
    ncclDataType_t type = type_of(call->dtype);
    bool here = summed_here(group, call->dtype, call->op);
    switch (call->kind) {
    case SHARD_COLLECTIVE_ALL_REDUCE:
        if (here)
            return sum_all(group, call->receive, call->count, call->dtype, call->prepared);
        NCCL_TRY(state, ncclAllReduce(call->send, call->receive, (size_t)call->count, type, operation_of(call->op), state->comm,
                                      nccl.stream));
        return SHARD_OK;
    case SHARD_COLLECTIVE_ALL_GATHER:
        return move_blocks(group, call);
    case SHARD_COLLECTIVE_REDUCE_SCATTER:
        return here ? sum_blocks(group, call->send, call->receive, call->counts, call->dtype, call->prepared)
                    : move_blocks(group, call);
    default:
        NCCL_TRY(state,
                 ncclBroadcast(call->send, call->receive, (size_t)call->count, type, call->root, state->comm, nccl.stream));
        return SHARD_OK;
    }
}

shard_status nccl_post(shard_group *group, const shard_collective *call, shard_request **request)
{
    shard_status status = nccl_begin(group);
    if (status == SHARD_OK)
        status = start(group, call);
    release_buffers(group, call);
    return nccl_end(group, status, request);
}

/* Makes later computations of the device wait for the collective. */
shard_status nccl_wait(shard_group *group, shard_request *request)
{
    (void)group;
    SHARD_HOLD(&nccl.lock);
    SHARD_TRY(nccl_check_broken(false));
    return SHARD_CUDA(cudaStreamWaitEvent(shard_cuda_of(nccl.device)->stream, request->done, 0));
}
