/*
 * Graphs by stream capture: what is called on a capturing stream is written down, in
 * the order of the calls, and queued as one piece at each launch.
 *
 * SHARD_CUDA_EMULATION_GRAPH_LAUNCH     1: launches fail for lack of memory
 */
#include "stream.h"

#include <algorithm>
#include <functional>
#include <map>
#include <thread>

using namespace emulation;

struct CUgraph_st {
    std::vector<Work> work;
    std::shared_ptr<GraphMemory> memory;
};

struct CUgraphExec_st {
    std::vector<Work> work;
    std::shared_ptr<GraphMemory> memory;
    bool frees_on_launch;
};

namespace emulation
{

static auto &captures = *new std::vector<std::shared_ptr<Capture>>;
static auto &graphs = *new std::map<cudaGraph_t, std::unique_ptr<CUgraph_st>>;
static auto &executables = *new std::map<cudaGraphExec_t, std::shared_ptr<CUgraphExec_st>>;
static thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

static uint64_t this_thread()
{
    return std::hash<std::thread::id>()(std::this_thread::get_id());
}

bool is_capturing(const Stream &stream)
{
    return stream.capture != nullptr;
}

cudaError_t refuse_in_capture(const std::shared_ptr<Stream> &stream)
{
    cudaError_t error = cudaSuccess;
    for (auto &capture : captures) {
        bool forbids = stream ? stream->capture == capture
                              : (capture->mode == cudaStreamCaptureModeGlobal && thread_mode == cudaStreamCaptureModeGlobal) ||
                                    (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread == this_thread() &&
                                     thread_mode != cudaStreamCaptureModeRelaxed);
        if (forbids) {
            capture->invalid = true;
            error = cudaErrorStreamCaptureUnsupported;
        }
    }
    return error;
}

} // namespace emulation

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
    return run_call([=] {
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (!handle || handle == cudaStreamLegacy)
            return cudaErrorStreamCaptureUnsupported;
        if (stream->capture)
            return cudaErrorIllegalState;
        auto capture = std::make_shared<Capture>();
        capture->origin = stream;
        capture->mode = mode;
        capture->thread = this_thread();
        captures.push_back(capture);
        stream->capture = capture;
        return cudaSuccess;
    });
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *pGraph)
{
    return run_call([=] {
        *pGraph = nullptr;
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        auto capture = stream->capture;
        if (!capture)
            return cudaErrorIllegalState;
        if (capture->origin != stream) {
            capture->invalid = true;
            return cudaErrorStreamCaptureUnmatched;
        }
        cudaError_t error = capture->invalid ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
        for (auto &other : all_streams()) {
            if (other->capture != capture)
                continue;
            if (error == cudaSuccess && other != stream && other->captured > other->joined)
                error = cudaErrorStreamCaptureUnjoined;
            other->capture = nullptr;
            other->captured = other->joined = 0;
        }
        captures.erase(std::find(captures.begin(), captures.end(), capture));
        if (error != cudaSuccess)
            return error;
        auto graph = std::make_unique<CUgraph_st>();
        graph->work = std::move(capture->work);
        graph->memory = capture->memory;
        *pGraph = graph.get();
        graphs[*pGraph] = std::move(graph);
        return cudaSuccess;
    });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *pCaptureStatus)
{
    return run_call([=] {
        auto stream = find_stream(handle);
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        *pCaptureStatus = !stream->capture           ? cudaStreamCaptureStatusNone
                          : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
                                                     : cudaStreamCaptureStatusActive;
        return cudaSuccess;
    });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    std::swap(thread_mode, *mode);
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *numNodes)
{
    return run_call([=] {
        if (!graphs.count(graph) || nodes)
            return cudaErrorInvalidValue;
        *numNodes = graph->work.size();
        return cudaSuccess;
    });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *pGraphExec, cudaGraph_t graph, unsigned long long flags)
{
    return run_call([=] {
        if (!graphs.count(graph) || (flags & ~(unsigned long long)cudaGraphInstantiateFlagAutoFreeOnLaunch))
            return cudaErrorInvalidValue;
        for (auto &[handle, other] : executables)
            if (other->memory == graph->memory && !graph->memory->all.empty())
                return cudaErrorNotSupported; /* graphs with memory have one executable at a time */
        auto executable = std::make_shared<CUgraphExec_st>();
        executable->work = graph->work;
        executable->memory = graph->memory;
        executable->frees_on_launch = flags & cudaGraphInstantiateFlagAutoFreeOnLaunch;
        *pGraphExec = executable.get();
        executables[*pGraphExec] = executable;
        return cudaSuccess;
    });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graphExec, cudaStream_t handle)
{
    return run_call([=] {
        auto stream = find_stream(handle);
        auto executable = executables.find(graphExec);
        if (executable == executables.end())
            return cudaErrorInvalidValue;
        if (!stream)
            return cudaErrorInvalidResourceHandle;
        if (setting("GRAPH_LAUNCH", "0") != "0")
            return cudaErrorMemoryAllocation;
        GraphMemory &memory = *executable->second->memory;
        if (!memory.standing.empty() && !executable->second->frees_on_launch)
            return cudaErrorInvalidValue;
        cudaError_t error = cudaSuccess;
        for (char *standing : memory.standing)
            error = error == cudaSuccess ? free_later(stream, standing) : error;
        for (const Work &work : executable->second->work)
            error = error == cudaSuccess ? put(stream, work) : error;
        memory.standing = memory.unfreed;
        memory.launched = end_of(stream);
        return error;
    });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graphExec)
{
    return run_call([=] { return executables.erase(graphExec) ? cudaSuccess : cudaErrorInvalidValue; });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    return run_call([=] { return graphs.erase(graph) ? cudaSuccess : cudaErrorInvalidValue; });
}
