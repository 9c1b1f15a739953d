/*
 * Graphs by capture of the device's stream.
 *
 * Invariants:
 * - Memory that is allocated in a capture is the graph's (allocation nodes): it has the same addresses in each
 *   launch. Memory that is not freed in the capture keeps its values until the next launch, which frees it first
 *   (AutoFreeOnLaunch). It is freed with the graph or with its tensor, whichever is later.
 * - Memory from before the capture that is freed in it may be read by the graph: it stays until the graph is
 *   destroyed.
 */
#include "device/cuda/cuda_room.h"

#include "base/log.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>

/* Of the graphs' lists: any thread may release a tensor. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct block {
    char *memory;
    size_t bytes;
    bool released; /* by its tensor */
} block;

typedef struct blocks {
    block *all;
    int64_t count, capacity;
} blocks;

struct shard_cuda_graph {
    shard_cuda *cuda;
    cudaGraphExec_t executable; /* NULL: in the capture, and when it is destroyed */
    cudaGraph_t captured;       /* up to the first launch: as long as it is there, no other memory has the addresses of `made` */
    bool launched;
    size_t nodes;
    blocks made;     /* allocated in the capture, and not freed in it */
    blocks kept;     /* freed in it, and not allocated in it */
    blocks arrivals; /* events of copies to memory of `kept`, which are waited for before it is freed */
    bool refused;    /* a call of the capture */
    /* In all and by kind: in use before the capture, the peaks before it, and how much more it needs at its peak. */
    shard_memory_count before[1 + SHARD_MEMORY_KINDS];
    int64_t more[1 + SHARD_MEMORY_KINDS];
    shard_cuda_graph *next;
};

static shard_status add_block(blocks *to, void *memory, size_t bytes)
{
    if (to->count == to->capacity) {
        int64_t capacity = to->capacity ? 2 * to->capacity : 64;
        block *more = shard_calloc((size_t)capacity, sizeof *more);
        if (!more)
            return shard_last_status();
        if (to->count)
            memcpy(more, to->all, (size_t)to->count * sizeof *more);
        free(to->all);
        to->all = more;
        to->capacity = capacity;
    }
    to->all[to->count++] = (block){.memory = memory, .bytes = bytes};
    return SHARD_OK;
}

static block *find_block(const blocks *in, const void *memory)
{
    for (int64_t i = in->count - 1; i >= 0; i--)
        if (in->all[i].memory == memory)
            return &in->all[i];
    return NULL;
}

static void remove_block(blocks *from, const block *gone)
{
    from->all[gone - from->all] = from->all[--from->count];
}

/* ---- memory; called for each allocation and release while there are graphs ---- */

static void destroy_captured(shard_cuda_graph *graph)
{
    if (graph->captured)
        SHARD_CUDA(cudaGraphDestroy(graph->captured));
    graph->captured = NULL;
}

/* A destroyed graph stays for as long as tensors have memory of it. */
static void free_if_empty(shard_cuda_graph *graph)
{
    if (graph->executable || graph->made.count || graph->cuda->capture == graph)
        return;
    shard_cuda_graph **link = &graph->cuda->graphs;
    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    destroy_captured(graph);
    free(graph->made.all);
    free(graph->kept.all);
    free(graph->arrivals.all);
    free(graph);
}

shard_status shard_cuda_graph_allocated(shard_cuda_graph *graph, void *memory, size_t bytes)
{
    return add_block(&graph->made, memory, bytes);
}

static bool takes(shard_cuda *cuda, void *memory, size_t bytes)
{
    shard_cuda_graph *capture = cuda->capture;
    if (capture) {
        block *own = find_block(&capture->made, memory);
        if (own)
            remove_block(&capture->made, own);
        else
            capture->refused |= add_block(&capture->kept, memory, bytes) != SHARD_OK;
        return own == NULL;
    }
    for (shard_cuda_graph *graph = cuda->graphs; graph; graph = graph->next) {
        block *found = find_block(&graph->made, memory);
        if (!found)
            continue;
        found->released = true;
        if (graph->executable)
            return true;
        bool allocated = graph->launched;
        remove_block(&graph->made, found);
        free_if_empty(graph);
        return !allocated;
    }
    return false;
}

bool shard_cuda_graph_takes(shard_cuda *cuda, void *memory, size_t bytes)
{
    pthread_mutex_lock(&lock);
    bool taken = takes(cuda, memory, bytes);
    pthread_mutex_unlock(&lock);
    return taken;
}

static void keep_arrival(shard_cuda_graph *capture, void *arrival)
{
    capture->refused |= add_block(&capture->arrivals, arrival, 0) != SHARD_OK;
}

bool shard_cuda_graph_keeps_arrival(shard_cuda *cuda, void *arrival)
{
    pthread_mutex_lock(&lock);
    shard_cuda_graph *capture = cuda->capture;
    if (capture)
        keep_arrival(capture, arrival);
    pthread_mutex_unlock(&lock);
    return capture != NULL;
}

shard_status shard_cuda_refuse_in_capture(shard_cuda *cuda, const char *what)
{
    if (!cuda->capture)
        return SHARD_OK;
    cuda->capture->refused = true;
    return shard_error(
        SHARD_ERROR_UNSUPPORTED,
        "%s cannot be captured in a graph (shard/graph.h): do it before shard_graph_begin or after shard_graph_end", what);
}

/* ---- peaks ---- */

static shard_memory_count *count_of(shard_device *device, int i)
{
    return i == 0 ? shard_cuda_of(device)->count : &device->memory[i - 1];
}

static void begin_peaks(shard_device *device, shard_cuda_graph *graph)
{
    for (int i = 0; i <= SHARD_MEMORY_KINDS; i++) {
        graph->before[i] = *count_of(device, i);
        shard_memory_count_reset_peak(count_of(device, i));
    }
}

static void end_peaks(shard_device *device, shard_cuda_graph *graph)
{
    for (int i = 0; i <= SHARD_MEMORY_KINDS; i++) {
        shard_memory_count *count = count_of(device, i);
        graph->more[i] = count->peak - count->current;
        if (graph->before[i].peak > count->peak)
            count->peak = graph->before[i].peak;
    }
}

/* A launch's peak counts as used. */
static void raise_peaks(shard_device *device, const shard_cuda_graph *graph)
{
    for (int i = 0; i <= SHARD_MEMORY_KINDS; i++) {
        shard_memory_count_add(count_of(device, i), graph->more[i]);
        shard_memory_count_add(count_of(device, i), -graph->more[i]);
    }
}

/* ---- entries ---- */

shard_status shard_cuda_graph_begin(shard_device *device)
{
    shard_cuda *cuda = shard_cuda_of(device);
    if (cuda->capture)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_graph_begin: another thread captures a graph of %s", device->name);
    shard_cuda_graph *graph = shard_calloc(1, sizeof *graph);
    if (!graph)
        return shard_last_status();
    graph->cuda = cuda;
    shard_status status = SHARD_CUDA(cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    if (status != SHARD_OK) {
        free(graph);
        return status;
    }
    begin_peaks(device, graph);
    pthread_mutex_lock(&lock);
    graph->next = cuda->graphs;
    cuda->graphs = cuda->capture = graph;
    pthread_mutex_unlock(&lock);
    return SHARD_OK;
}

/* The executable of the capture; NULL with the error set. */
static cudaGraphExec_t instantiate(shard_device *device, cudaGraph_t graph, size_t *nodes)
{
    cudaGraphExec_t executable = NULL;
    if (SHARD_CUDA(cudaGraphGetNodes(graph, NULL, nodes)) != SHARD_OK)
        return NULL;
    cudaError_t error = SHARD_CUDA_WITH_ROOM(device, shard_cuda_lacks_memory,
                                             cudaGraphInstantiate(&executable, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch));
    return shard_cuda_check(error, "cudaGraphInstantiate") == SHARD_OK ? executable : NULL;
}

/* Frees memory that no graph has. In a capture it becomes memory that the capture keeps. */
static void free_block(shard_cuda *cuda, block gone)
{
    if (!takes(cuda, gone.memory, gone.bytes))
        SHARD_CUDA(cudaFreeAsync(gone.memory, cuda->stream));
}

/* In a capture the wait is that capture's, too. */
static void await_arrival(shard_cuda *cuda, void *arrival)
{
    if (cuda->capture) {
        keep_arrival(cuda->capture, arrival);
        return;
    }
    SHARD_CUDA(cudaStreamWaitEvent(cuda->stream, (cudaEvent_t)arrival, cudaEventWaitDefault));
    SHARD_CUDA(cudaEventDestroy((cudaEvent_t)arrival));
}

static void free_kept(shard_cuda *cuda, shard_cuda_graph *graph)
{
    for (int64_t i = 0; i < graph->arrivals.count; i++)
        await_arrival(cuda, graph->arrivals.all[i].memory);
    graph->arrivals.count = 0;
    for (int64_t i = 0; i < graph->kept.count; i++)
        free_block(cuda, graph->kept.all[i]);
    graph->kept.count = 0;
}

shard_status shard_cuda_graph_end(shard_device *device, void **executable)
{
    shard_cuda *cuda = shard_cuda_of(device);
    shard_cuda_graph *graph = cuda->capture;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &graph->captured);
    cuda->capture = NULL;
    end_peaks(device, graph);
    if (executable && error != cudaSuccess)
        shard_error(SHARD_ERROR_DEVICE, "shard_graph_end: CUDA gave up the capture: %s", cudaGetErrorString(error));
    else if (executable && graph->refused)
        shard_error(SHARD_ERROR_UNSUPPORTED, "shard_graph_end: a call in the capture was refused: there is nothing to replay");
    else if (executable)
        graph->executable = instantiate(device, graph->captured, &graph->nodes);
    if (error != cudaSuccess)
        cudaGetLastError();
    if (!graph->executable) {
        pthread_mutex_lock(&lock);
        free_kept(cuda, graph);
        free_if_empty(graph);
        pthread_mutex_unlock(&lock);
        return shard_last_status();
    }
    *executable = graph;
    shard_log_message(SHARD_LOG_INFO, "%s: captured a graph of %zu nodes; %lld bytes at its peak", device->name, graph->nodes,
                      (long long)graph->more[0]);
    return SHARD_OK;
}

shard_status shard_cuda_graph_launch(shard_device *device, void *executable)
{
    shard_cuda_graph *graph = executable;
    cudaError_t error =
        SHARD_CUDA_WITH_ROOM(device, shard_cuda_lacks_memory, cudaGraphLaunch(graph->executable, shard_cuda_of(device)->stream));
    SHARD_TRY(shard_cuda_check(error, "cudaGraphLaunch"));
    graph->launched = true;
    destroy_captured(graph);
    raise_peaks(device, graph);
    return SHARD_OK;
}

int64_t shard_cuda_graph_nodes(shard_device *device, const void *executable)
{
    (void)device;
    return (int64_t)((const shard_cuda_graph *)executable)->nodes;
}

void shard_cuda_graph_destroy(shard_device *device, void *executable)
{
    shard_cuda *cuda = shard_cuda_of(device);
    shard_cuda_graph *graph = executable;
    SHARD_CUDA(cudaGraphExecDestroy(graph->executable));
    pthread_mutex_lock(&lock);
    graph->executable = NULL;
    for (int64_t i = graph->made.count - 1; i >= 0; i--) {
        block b = graph->made.all[i];
        if (!b.released)
            continue;
        remove_block(&graph->made, &graph->made.all[i]);
        if (graph->launched)
            free_block(cuda, b);
    }
    free_kept(cuda, graph);
    free_if_empty(graph);
    pthread_mutex_unlock(&lock);
}
