/* The caller's stream in place of the device's own. */
#include "device/cuda/cuda.h"

/* A stream whose handle CUDA knows, of this device, that nothing is captured of. Records the event on it. */
static shard_status check_stream(const shard_device *device, cudaStream_t stream, cudaEvent_t event)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    if (stream == cudaStreamPerThread)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_device_use_stream: stream 2 is CUDA's per-thread default stream, another one in each thread: "
                           "create a stream");
    cudaError_t error = cudaStreamIsCapturing(stream, &capture);
    if (error == cudaSuccess && capture != cudaStreamCaptureStatusNone)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_device_use_stream: stream %p is captured in a graph: end that capture first", (void *)stream);
    if (error == cudaSuccess)
        error = cudaEventRecord(event, stream);
    if (error != cudaErrorInvalidResourceHandle)
        return shard_cuda_check(error, "shard_device_use_stream");
    cudaGetLastError();
    return shard_error(SHARD_ERROR_ARGUMENT, "shard_device_use_stream: %p is no stream of %s", (void *)stream, device->name);
}

/* Work on `later` waits for the work on `earlier` so far. */
static shard_status order(cudaEvent_t event, cudaStream_t earlier, cudaStream_t later)
{
    SHARD_CUDA_TRY(cudaEventRecord(event, earlier));
    return SHARD_CUDA(cudaStreamWaitEvent(later, event, cudaEventWaitDefault));
}

/* Memory that is released from now on is released in the order of the new stream, which runs after its uses in the earlier one.
 * The handles of CUDA's libraries follow at their next use. */
shard_status shard_cuda_use_stream(shard_device *device, void *stream)
{
    shard_cuda *cuda = shard_cuda_of(device);
    cudaStream_t chosen = stream ? (cudaStream_t)stream : cuda->own;
    cudaEvent_t event;
    SHARD_TRY(shard_cuda_refuse_in_capture(cuda, "a change of the device's stream"));
    if (chosen == cuda->stream)
        return SHARD_OK;
    SHARD_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    shard_status status = check_stream(device, chosen, event);
    if (status == SHARD_OK)
        status = order(event, cuda->stream, chosen);
    if (status == SHARD_OK)
        cuda->stream = chosen;
    SHARD_CUDA(cudaEventDestroy(event));
    return status;
}
