/*
 * NCCL between processes on emulated GPUs, by its rules: two ranks on one GPU are
 * refused (as of 2.30, unless NCCL_MULTI_RANK_GPU_ENABLE is 1); a non-blocking communicator's call is under way until somebody
 * asks, and until then it is not on its stream and no other call may be made; collectives of a group of calls go together; a
 * member that does not come makes the others wait until they abort; an abort sets its communicator's flag and then waits, also of
 * non-blocking communicators, for the work that the GPU has: the flags of a group of aborts are all set before, as of 2.22. A
 * member whose process ends is at once an error of the non-blocking communicators that it has joined and that wait, as NCCL sees
 * connections close. What NCCL leaves undefined ends the process: buffers that overlap other than in place, members that call
 * different things.
 *
 * A call on the stream first sends this rank's part, then waits for the others'. 16-bit
 * types are rounded after every addition, as NCCL does.
 *
 * SHARD_CUDA_EMULATION_NCCL          the version: 2.28.9
 * SHARD_CUDA_EMULATION_JOIN_SECONDS  rank 1 of a communicator takes so long to join it: 0
 */
#include "nccl.h"

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "emulation.h"
#include "mail.h"

#include <algorithm>
#include <atomic>
#include <map>

#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

using namespace emulation;

enum { COMM_BYTES = 1 << 20 };
enum Kind { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECEIVE };
static const char *const names[] = {"ncclAllReduce",     "ncclReduce",    "ncclBroadcast", "ncclReduceScatter",
                                    "ncclAllGather", "ncclSend", "ncclRecv"};

/* Told to the others with its data, and compared. */
struct Head {
    int32_t kind, type, op, root;
    uint64_t count;
};

struct Call {
    Head head; /* root: the peer of a send or receive */
    const char *from;
    char *to;
    uint64_t number;
    bool sent = false, done = false;
    std::map<int, std::string> parts; /* of the members whose letters have come */
};

struct Communicator {
    std::unique_ptr<Mail> mail;
    int rank = 0, size = 0, device = 0;
    bool aborted = false;
    uint64_t collectives = 0;
    std::map<int, uint64_t> sends, receives; /* by peer */
    size_t queued = 0;                       /* groups of calls on streams */
    LibraryMemory memory, channels;          /* those for the first call that goes on a stream */
};

struct ncclComm {
    std::shared_ptr<Communicator> shared = std::make_shared<Communicator>();
    bool blocking;
    ncclResult_t state = ncclSuccess;
    std::function<ncclResult_t()> next; /* what the call under way still has to do */
};

static thread_local std::string last_error;
static thread_local int depth;
struct Grouped {
    ncclComm_t comm;
    cudaStream_t stream;
    Call call;
};
static thread_local std::vector<Grouped> grouped;
static thread_local std::vector<ncclComm_t> ending; /* aborts of the group of calls */
static thread_local ncclResult_t grouped_error;
static std::atomic<unsigned long> threads, calls_made;

static ncclResult_t fail(ncclResult_t result, const char *format, ...) __attribute__((format(printf, 2, 3)));
static ncclResult_t fail(ncclResult_t result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    last_error = text;
    return result;
}

static int version()
{
    static const std::string text = setting("NCCL", "2.28.9");
    int major = 0, minor = 0, patch = 0;
    if (sscanf(text.c_str(), "%d.%d.%d", &major, &minor, &patch) != 3)
        die("SHARD_CUDA_EMULATION_NCCL is a version such as 2.28.9, not %s", text.c_str());
    return NCCL_VERSION(major, minor, patch);
}

/* ---- calls under way ---- */

/* Runs the body while no work of a stream runs. */
template <class Body> static void alone(Body body)
{
    run_call([&] {
        body();
        return cudaSuccess;
    });
}

/* Goes on with it, as far as it can. */
static ncclResult_t go_on(ncclComm_t comm)
{
    ncclResult_t result = comm->state;
    if (!comm->next)
        return result;
    alone([&] { result = comm->next(); });
    if (result != ncclInProgress) {
        comm->next = nullptr;
        comm->state = result;
    }
    return result;
}

/* Begins a call: a blocking communicator's ends it here. */
static ncclResult_t begin(ncclComm_t comm, std::function<ncclResult_t()> next)
{
    comm->next = std::move(next);
    comm->state = ncclInProgress;
    if (!comm->blocking)
        return ncclInProgress;
    ncclResult_t result;
    while ((result = go_on(comm)) == ncclInProgress)
        sched_yield();
    return result;
}

static ncclResult_t check_free(ncclComm_t comm, const char *call)
{
    if (!comm)
        return fail(ncclInvalidArgument, "%s: comm is NULL", call);
    if (comm->next)
        return fail(ncclInvalidUsage, "%s: the communicator's last call is still in progress", call);
    return comm->state;
}

/* ---- arithmetic ---- */

static size_t size_of(int type)
{
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[type];
}

template <class T, class Real> static void reduce_as(char *to, const std::string &from, size_t offset, size_t count, int op)
{
    for (size_t i = 0; i < count; i++) {
        T a, b;
        memcpy(&a, to + i * sizeof a, sizeof a);
        memcpy(&b, from.data() + offset + i * sizeof b, sizeof b);
        Real x = (Real)a, y = (Real)b;
        T result = (T)(Real)(op == ncclSum ? x + y : op == ncclProd ? x * y : op == ncclMax ? (x > y ? x : y) : (x < y ? x : y));
        memcpy(to + i * sizeof result, &result, sizeof result);
    }
}

/* to = from[0] op from[1] op ..., `count` elements from the offset on. */
static void reduce(char *to, std::map<int, std::string> &parts, size_t offset, const Head &head)
{
    memcpy(to, parts[0].data() + offset, head.count * size_of(head.type));
    for (auto &part : parts) {
        if (part.first == 0)
            continue;
        switch (head.type) {
        case ncclInt8:
            reduce_as<int8_t, int>(to, part.second, offset, head.count, head.op);
            break;
        case ncclUint8:
            reduce_as<uint8_t, unsigned>(to, part.second, offset, head.count, head.op);
            break;
        case ncclInt32: /* unsigned, so that sums wrap; not for maxima of negative numbers */
            if (head.op == ncclSum || head.op == ncclProd)
                reduce_as<uint32_t, uint32_t>(to, part.second, offset, head.count, head.op);
            else
                reduce_as<int32_t, int32_t>(to, part.second, offset, head.count, head.op);
            break;
        case ncclUint32:
            reduce_as<uint32_t, uint32_t>(to, part.second, offset, head.count, head.op);
            break;
        case ncclInt64:
            if (head.op == ncclSum || head.op == ncclProd)
                reduce_as<uint64_t, uint64_t>(to, part.second, offset, head.count, head.op);
            else
                reduce_as<int64_t, int64_t>(to, part.second, offset, head.count, head.op);
            break;
        case ncclUint64:
            reduce_as<uint64_t, uint64_t>(to, part.second, offset, head.count, head.op);
            break;
        case ncclFloat16:
            reduce_as<__half, float>(to, part.second, offset, head.count, head.op);
            break;
        case ncclFloat32:
            reduce_as<float, float>(to, part.second, offset, head.count, head.op);
            break;
        case ncclFloat64:
            reduce_as<double, double>(to, part.second, offset, head.count, head.op);
            break;
        default:
            reduce_as<__nv_bfloat16, float>(to, part.second, offset, head.count, head.op);
        }
    }
}

/* ---- a call on its stream ---- */

/* Of what this rank gives, and of what it gets. */
static size_t bytes_given(const Communicator &comm, const Head &head)
{
    size_t bytes = head.count * size_of(head.type);
    if (head.kind == RECEIVE || (head.kind == BROADCAST && head.root != comm.rank))
        return 0;
    return head.kind == REDUCE_SCATTER ? bytes * (size_t)comm.size : bytes;
}

static size_t bytes_got(const Communicator &comm, const Head &head)
{
    size_t bytes = head.count * size_of(head.type);
    if (head.kind == SEND || (head.kind == REDUCE && head.root != comm.rank))
        return 0;
    return head.kind == ALL_GATHER ? bytes * (size_t)comm.size : bytes;
}

static void check_overlap(const Communicator &comm, const Call &call)
{
    size_t given = bytes_given(comm, call.head), got = bytes_got(comm, call.head);
    if (!given || !got || call.from + given <= call.to || call.to + got <= call.from)
        return;
    size_t part = call.head.count * size_of(call.head.type) * (size_t)comm.rank;
    bool in_place = call.head.kind == ALL_GATHER       ? call.from == call.to + part
                    : call.head.kind == REDUCE_SCATTER ? call.to == call.from + part
                                                       : call.to == call.from;
    if (!in_place)
        die("%s: the buffers overlap, but not as in place", names[call.head.kind]);
}

static std::string describe(const Head &head)
{
    return std::string(names[head.kind]) + " of " + std::to_string(head.count) + " (type " + std::to_string(head.type) +
           ", operation " + std::to_string(head.op) + ", root " + std::to_string(head.root) + ")";
}

static void finish(Communicator &comm, Call &call)
{
    const Head &head = call.head;
    size_t bytes = head.count * size_of(head.type);
    switch (head.kind) {
    case ALL_REDUCE:
        reduce(call.to, call.parts, 0, head);
        break;
    case REDUCE:
        if (comm.rank == head.root)
            reduce(call.to, call.parts, 0, head);
        break;
    case REDUCE_SCATTER:
        reduce(call.to, call.parts, bytes * (size_t)comm.rank, head);
        break;
    case ALL_GATHER:
        for (auto &part : call.parts)
            memcpy(call.to + (size_t)part.first * bytes, part.second.data(), bytes);
        break;
    case BROADCAST:
    case RECEIVE:
        memcpy(call.to, call.parts[head.root].data(), bytes);
        break;
    }
    call.parts.clear();
    call.done = true;
}

/* Whether the call has come to its end; what can be done, is. */
static bool advance(Communicator &comm, Call &call)
{
    const Head &head = call.head;
    bool pairwise = head.kind == SEND || head.kind == RECEIVE;
    if (!call.sent) {
        check_range(call.from, bytes_given(comm, head));
        check_range(call.to, bytes_got(comm, head));
        check_overlap(comm, call);
        std::string text((const char *)&head, sizeof head);
        if (head.kind != RECEIVE &&
            !comm.mail->send(pairwise ? head.root : (int)EVERYBODY, call.number, text, call.from, bytes_given(comm, head)))
            return false;
        call.sent = true;
        call.done = head.kind == SEND;
    }
    if (call.done)
        return true;
    for (int member = 0; member < comm.size; member++) {
        std::string text, data;
        if (call.parts.count(member) || (head.kind == RECEIVE && member != head.root))
            continue;
        if (!comm.mail->read(member, !pairwise, call.number, text, data))
            return false;
        Head theirs;
        memcpy(&theirs, text.data(), sizeof theirs);
        bool fits = head.kind == RECEIVE ? theirs.type == head.type && theirs.count == head.count
                                         : memcmp(&theirs, &head, sizeof head) == 0;
        if (!fits)
            die("rank %d has %s where rank %d has %s", comm.rank, describe(head).c_str(), member, describe(theirs).c_str());
        call.parts[member] = data;
    }
    finish(comm, call);
    return true;
}

/* Puts calls that go together on their stream. */
static ncclResult_t enqueue_calls(const std::shared_ptr<Communicator> &comm, cudaStream_t stream, std::vector<Call> calls)
{
    const char *what = names[calls[0].head.kind];
    if (!comm->channels.take(COMM_BYTES))
        return fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
    comm->queued++;
    cudaError_t error = enqueue_polled(stream, what, [comm, calls = std::move(calls)]() mutable {
        bool done = true;
        for (Call &call : calls)
            if (!comm->aborted && !call.done)
                done = advance(*comm, call) && done;
        if (done)
            comm->queued--;
        return done;
    });
    return error == cudaSuccess ? ncclSuccess : fail(ncclInvalidArgument, "%s: %s", what, cudaGetErrorString(error));
}

/* Frees what it has, as the last step of an abort: memory of a GPU is freed when the GPU is done with all of its
 * work, be it another communicator's. */
static void reclaim(ncclComm_t comm)
{
    int device = comm->shared->device;
    alone([=] { run_device(device); });
    delete comm;
}

/* ---- group calls ---- */

ncclResult_t ncclGroupStart(void)
{
    if (depth++ == 0)
        grouped_error = ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
    if (depth == 0)
        return fail(ncclInvalidUsage, "ncclGroupEnd: there was no ncclGroupStart");
    if (--depth > 0)
        return ncclSuccess;
    for (ncclComm_t comm : std::move(ending))
        reclaim(comm);
    ending.clear();
    auto all = std::move(grouped);
    grouped.clear();
    ncclResult_t result = grouped_error;
    while (!all.empty() && (result == ncclSuccess || result == ncclInProgress)) {
        ncclComm_t comm = all[0].comm;
        cudaStream_t stream = all[0].stream;
        std::vector<Call> calls;
        std::vector<Grouped> rest;
        for (auto &one : all)
            if (one.comm == comm)
                calls.push_back(one.call);
            else
                rest.push_back(one);
        for (auto &one : all)
            if (one.comm == comm && one.stream != stream)
                return fail(ncclInvalidUsage, "ncclGroupEnd: calls of a communicator on two streams");
        all = rest;
        auto shared = comm->shared;
        threads += !comm->blocking && version() >= NCCL_VERSION(2, 23, 0);
        bool asked = comm->blocking; /* the stream gets it when somebody asks a second time */
        ncclResult_t begun = begin(comm, [=]() mutable {
            if (!asked) {
                asked = true;
                return ncclInProgress;
            }
            return enqueue_calls(shared, stream, calls);
        });
        result = begun;
    }
    return result;
}

static ncclResult_t call(Kind kind, const void *from, void *to, size_t count, ncclDataType_t type, int op, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result = check_free(comm, names[kind]);
    calls_made++;
    if (result == ncclSuccess && ((unsigned)type > ncclBfloat16 || (unsigned)op > ncclMin))
        result = fail(ncclInvalidArgument, "%s: type %d, operation %d", names[kind], type, op);
    if (result == ncclSuccess && (root < 0 || root >= comm->shared->size))
        result = fail(ncclInvalidArgument, "%s: root or peer %d of %d ranks", names[kind], root, comm->shared->size);
    if (result == ncclSuccess && (kind == SEND || kind == RECEIVE) && root == comm->shared->rank)
        result = fail(ncclInvalidUsage, "%s: to itself", names[kind]); /* NCCL allows it where both are in one group */
    if (result != ncclSuccess) {
        grouped_error = result;
        return result;
    }
    if (count == 0)
        return ncclSuccess;
    Communicator &shared = *comm->shared;
    Call made = {{kind, type, op, root, count}, (const char *)from, (char *)to, 0, false, false, {}};
    made.number = kind == SEND ? shared.sends[root]++ : kind == RECEIVE ? shared.receives[root]++ : shared.collectives++;
    ncclGroupStart();
    grouped.push_back({comm, stream, made});
    return ncclGroupEnd();
}

ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream)
{
    return call(ALL_REDUCE, sendbuff, recvbuff, count, datatype, op, 0, comm, stream);
}

ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    return call(REDUCE, sendbuff, recvbuff, count, datatype, op, root, comm, stream);
}

ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call(BROADCAST, sendbuff, recvbuff, count, datatype, 0, root, comm, stream);
}

ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount, ncclDataType_t datatype, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream)
{
    return call(REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype, op, 0, comm, stream);
}

ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype, ncclComm_t comm,
                           cudaStream_t stream)
{
    return call(ALL_GATHER, sendbuff, recvbuff, sendcount, datatype, 0, 0, comm, stream);
}

ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return call(SEND, sendbuff, nullptr, count, datatype, 0, peer, comm, stream);
}

ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm, cudaStream_t stream)
{
    return call(RECEIVE, nullptr, recvbuff, count, datatype, 0, peer, comm, stream);
}

unsigned long ncclEmulatedThreads(void)
{
    return threads;
}

unsigned long ncclEmulatedCalls(void)
{
    return calls_made;
}

/* ---- communicators ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = ::version();
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId)
{
    std::string path = Mail::create(0);
    if (path.empty())
        return fail(ncclSystemError, "ncclGetUniqueId: no memory file");
    *uniqueId = {};
    snprintf(uniqueId->internal, sizeof uniqueId->internal, "%s", path.c_str());
    return ncclSuccess;
}

/* As of 2.30, if asked for, but not where NVLS is demanded. */
static bool may_share_gpu()
{
    const char *allowed = getenv("NCCL_MULTI_RANK_GPU_ENABLE"), *nvls = getenv("NCCL_NVLS_ENABLE");
    return version() >= NCCL_VERSION(2, 30, 0) && allowed && atoi(allowed) != 0 && !(nvls && atoi(nvls) == 1);
}

/* Joins, then waits until all have, each with another GPU. */
static std::function<ncclResult_t()> joining(ncclComm_t comm, const std::string &path, int size, int rank)
{
    auto shared = comm->shared;
    return [=]() -> ncclResult_t {
        if (!shared->mail) {
            char gpu[32];
            cudaGetDevice(&shared->device);
            if (cudaDeviceGetPCIBusId(gpu, sizeof gpu, shared->device) != cudaSuccess)
                return fail(ncclUnhandledCudaError, "ncclCommInitRank: there is no GPU");
            if (!shared->memory.take(COMM_BYTES))
                return fail(ncclUnhandledCudaError, "Cuda failure 2 'out of memory'");
            if (rank == 1)
                sleep((unsigned)atoi(setting("JOIN_SECONDS", "0").c_str()));
            shared->rank = rank;
            shared->size = size;
            shared->mail.reset(Mail::join(path, size, rank, gpu));
            if (!shared->mail)
                return fail(ncclSystemError, "ncclCommInitRank: cannot join %s as rank %d of %d", path.c_str(), rank, size);
            return ncclInProgress;
        }
        auto gpus = shared->mail->texts();
        if (gpus.empty())
            return ncclInProgress;
        for (int i = 0; i < size; i++)
            for (int j = 0; j < i; j++)
                if (gpus[(size_t)i] == gpus[(size_t)j] && !may_share_gpu())
                    return fail(ncclInvalidUsage, "Duplicate GPU detected : rank %d and rank %d both on CUDA device %s", j, i,
                                gpus[(size_t)i].c_str());
        return ncclSuccess;
    };
}

static bool is_config(const ncclConfig_t *config)
{
    return config && config->size == sizeof *config && config->magic == 0xcafebeef;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank, ncclConfig_t *config)
{
    if (!comm || nranks < 1 || nranks > MOST_MEMBERS || rank < 0 || rank >= nranks || (config && !is_config(config)))
        return fail(ncclInvalidArgument, "ncclCommInitRankConfig: rank %d of %d", rank, nranks);
    *comm = new ncclComm;
    (*comm)->blocking = !config || config->blocking != 0;
    return begin(*comm, joining(*comm, commId.internal, nranks, rank));
}

/* The communicator's state, from now on an error if a member has died. */
static ncclResult_t find_dead_member(ncclComm_t comm, ncclResult_t state)
{
    if (comm->shared->mail->dead_member() < 0)
        return state;
    comm->next = nullptr;
    return comm->state = fail(ncclRemoteError, "Connection closed by remote peer"); /* it does not say which */
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError)
{
    if (!comm)
        return fail(ncclInvalidArgument, "ncclCommGetAsyncError: comm is NULL");
    *asyncError = go_on(comm);
    bool waits = *asyncError == ncclInProgress || comm->shared->queued > 0;
    if (waits && comm->shared->mail)
        alone([&] { *asyncError = find_dead_member(comm, *asyncError); });
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t result = check_free(comm, "ncclCommFinalize");
    auto shared = comm ? comm->shared : nullptr;
    return result == ncclSuccess
               ? begin(comm, [=] { return shared->queued == 0 && shared->mail->all_read() ? ncclSuccess : ncclInProgress; })
               : result;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    ncclResult_t result = ncclCommFinalize(comm);
    while (result == ncclInProgress)
        ncclCommGetAsyncError(comm, &result);
    delete comm;
    return result;
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    alone([&] {
        comm->shared->aborted = true;
        comm->next = nullptr; /* NCCL waits here for its thread, which sees the flag */
    });
    if (depth > 0 && version() >= NCCL_VERSION(2, 22, 0))
        ending.push_back(comm);
    else
        reclaim(comm);
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {"no error",         "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage",        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return (unsigned)result <= ncclInProgress ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t)
{
    return last_error.c_str();
}
