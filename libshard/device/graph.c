/* Captures and replays: the host's part of a graph. */
#include "device/graph.h"

#include "base/error.h"
#include "base/memory.h"

#include <pthread.h>
#include <stdlib.h>

/* Bytes of values that a graph's kernels take from device memory. Copies of so many from memory that
 * is not pinned do not wait for the device (cudaMemcpyAsync). */
enum { VALUES = 64 << 10, ALIGNMENT = 16 };

typedef struct registered {
    shard_replay replay;
    size_t offset; /* of its values */
} registered;

struct shard_graph {
    shard_device *device;
    void *executable; /* the device's; NULL: nothing to replay */
    uint64_t number;
    char *values, *on_device; /* VALUES bytes, on the host and the device: the random state, then the replays' */
    size_t used;
    registered *replays;
    int64_t count, capacity;
    int64_t draws;     /* that a replay takes */
    int64_t gradients; /* of leaves that the capture has left, less those that it has taken away */
    bool orphaned;     /* an owner of a replay is gone */
    bool replayed;
    void (*at_end)(bool sound);
    struct shard_graph *next;
};

static _Thread_local shard_graph *capturing;

/* All graphs, for shard_graph_forget, which any thread may call: a capture adds its replays with the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static shard_graph *graphs;
static uint64_t captures;

/* The numbers of those that were destroyed and never replayed: their results may still be there. With room for all captures. */
static uint64_t *unplayed;
static int64_t unplayed_count, unplayed_capacity;

shard_graph *shard_graph_capturing(void)
{
    return capturing;
}

bool shard_is_capturing(void)
{
    return capturing != NULL;
}

uint64_t shard_graph_number(void)
{
    return capturing ? capturing->number : 0;
}

bool shard_graph_is_replayed(uint64_t number)
{
    bool replayed = true;
    pthread_mutex_lock(&lock);
    for (const shard_graph *graph = graphs; graph; graph = graph->next)
        replayed &= graph->number != number || graph->replayed;
    for (int64_t i = 0; i < unplayed_count; i++)
        replayed &= unplayed[i] != number;
    pthread_mutex_unlock(&lock);
    return replayed;
}

/* ---- participants ---- */

static shard_status add_replay(shard_graph *graph, shard_replay replay)
{
    pthread_mutex_lock(&lock);
    shard_status status = shard_grow(&graph->replays, &graph->capacity, graph->count + 1, sizeof *graph->replays);
    if (status == SHARD_OK)
        graph->replays[graph->count++] = (registered){replay, graph->used};
    pthread_mutex_unlock(&lock);
    return status;
}

const void *shard_graph_on_replay(shard_graph *graph, shard_replay replay, size_t bytes)
{
    size_t room = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    shard_status status = SHARD_OK;
    if (room > VALUES - graph->used)
        status = shard_error(SHARD_ERROR_UNSUPPORTED,
                             "shard_graph: the capture has more values that change from step to step than the %d bytes that "
                             "there are for them: capture fewer steps, or fewer groups of parameters",
                             VALUES);
    if (status == SHARD_OK)
        status = add_replay(graph, replay);
    if (status != SHARD_OK) {
        if (replay.release)
            replay.release(replay.context);
        return NULL;
    }
    const void *on_device = bytes ? graph->on_device + graph->used : (const void *)graph;
    graph->used += room;
    return on_device;
}

static bool has_owner(const shard_graph *graph, const void *owner)
{
    for (int64_t i = 0; i < graph->count; i++)
        if (graph->replays[i].replay.owner == owner)
            return true;
    return false;
}

void shard_graph_forget(const void *owner)
{
    pthread_mutex_lock(&lock);
    for (shard_graph *graph = graphs; graph; graph = graph->next)
        if (has_owner(graph, owner)) /* nothing is written in the graphs of other owners, which may be replayed */
            graph->orphaned = true;
    pthread_mutex_unlock(&lock);
}

void shard_graph_count_gradients(int count)
{
    if (capturing)
        capturing->gradients += count;
}

shard_status shard_graph_refuse(const char *what)
{
    if (!capturing)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "%s cannot be captured in a graph (shard/graph.h): do it before "
                       "shard_graph_begin or after shard_graph_end",
                       what);
}

shard_status shard_graph_check_device(const char *function, const shard_device *device)
{
    if (!capturing || capturing->device == device)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: a tensor on %s in a capture of %s: a replay does not compute there",
                       function, device->name, capturing->device->name);
}

void shard_graph_at_end(void (*call)(bool sound))
{
    if (capturing)
        capturing->at_end = call;
}

/* ---- capture ---- */

static void unlist(shard_graph *graph)
{
    pthread_mutex_lock(&lock);
    for (shard_graph **link = &graphs; *link; link = &(*link)->next)
        if (*link == graph) {
            *link = graph->next;
            break;
        }
    if (!graph->replayed)
        unplayed[unplayed_count++] = graph->number;
    pthread_mutex_unlock(&lock);
}

static shard_status enlist(shard_graph *graph)
{
    pthread_mutex_lock(&lock);
    shard_status status = shard_grow(&unplayed, &unplayed_capacity, (int64_t)captures + 1, sizeof *unplayed);
    if (status == SHARD_OK) {
        graph->number = ++captures;
        graph->next = graphs;
        graphs = graph;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

shard_graph *shard_graph_begin(shard_device *device)
{
    if (shard_last_status() != SHARD_OK)
        return NULL;
    if (!device)
        return shard_null_argument("shard_graph_begin", "device"), NULL;
    if (capturing)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_graph_begin: this thread captures a graph already: end it first");
    if (device->ops->host_memory)
        return shard_fail_null(SHARD_ERROR_UNSUPPORTED, "shard_graph_begin: the device is %s: only work of a GPU can be captured",
                               device->name);
    shard_graph *graph = shard_calloc(1, sizeof *graph);
    if (!graph || enlist(graph) != SHARD_OK) {
        free(graph);
        return NULL;
    }
    graph->device = device;
    graph->used = ALIGNMENT;
    graph->values = shard_calloc(1, VALUES);
    graph->on_device = graph->values ? shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, VALUES) : NULL;
    shard_status status = graph->on_device ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK) /* memory that eager steps needed is free for the graph */
        device->ops->trim(device);
    if (status == SHARD_OK && (status = shard_last_status()) == SHARD_OK)
        status = device->ops->graph_begin(device);
    if (status != SHARD_OK) {
        shard_graph_destroy(graph);
        return NULL;
    }
    shard_random_begin_capture((const uint64_t *)(const void *)graph->on_device);
    return capturing = graph;
}

shard_status shard_graph_end(shard_graph *graph)
{
    if (!graph)
        return shard_null_argument("shard_graph_end", "graph");
    if (capturing != graph)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_graph_end: this thread does not capture this graph");
    if (graph->at_end)
        graph->at_end(shard_last_status() == SHARD_OK);
    capturing = NULL;
    graph->draws = shard_random_end_capture();
    bool sound = shard_last_status() == SHARD_OK;
    if (sound && graph->gradients != 0)
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "shard_graph_end: gradients of %lld tensors are %s: a capture must have whole steps, with shard_step or "
                    "shard_zero_grad for each gradient of its backward, and begin without gradients",
                    (long long)llabs(graph->gradients), graph->gradients > 0 ? "left" : "from before the capture");
    return graph->device->ops->graph_end(graph->device, shard_last_status() == SHARD_OK ? &graph->executable : NULL);
}

void shard_graph_destroy(shard_graph *graph)
{
    if (!graph)
        return;
    if (capturing == graph) {
        if (graph->at_end)
            graph->at_end(false);
        capturing = NULL;
        shard_random_end_capture();
        graph->device->ops->graph_end(graph->device, NULL);
    }
    unlist(graph);
    if (graph->executable)
        graph->device->ops->graph_destroy(graph->device, graph->executable);
    for (int64_t i = 0; i < graph->count; i++)
        if (graph->replays[i].replay.release)
            graph->replays[i].replay.release(graph->replays[i].replay.context);
    shard_device_release(graph->device, SHARD_MEMORY_WORKSPACE, graph->on_device, VALUES);
    free(graph->replays);
    free(graph->values);
    free(graph);
}

/* ---- replay ---- */

static shard_status check_replay(const shard_graph *graph)
{
    SHARD_TRY(shard_last_status());
    if (capturing)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_graph_replay: this thread captures a graph: a replay cannot be captured");
    if (!graph->executable)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_graph_replay: there is nothing to replay: shard_graph_end was not called, or "
                           "failed");
    if (graph->orphaned)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_graph_replay: an optimizer or an average that was captured has been destroyed: capture again");
    return SHARD_OK;
}

/* The launch failed: nothing was computed. */
static void take_back(const shard_graph *graph)
{
    uint64_t unused[2];
    shard_random_take_draws(-graph->draws, unused);
    for (int64_t i = graph->count - 1; i >= 0; i--)
        graph->replays[i].replay.call(graph->replays[i].replay.context, NULL, -1);
}

shard_status shard_graph_replay(shard_graph *graph)
{
    if (!graph)
        return shard_null_argument("shard_graph_replay", "graph");
    SHARD_TRY(check_replay(graph));
    shard_device *device = graph->device;
    shard_random_take_draws(graph->draws, (uint64_t *)(void *)graph->values);
    for (int64_t i = 0; i < graph->count; i++)
        graph->replays[i].replay.call(graph->replays[i].replay.context, graph->values + graph->replays[i].offset, 1);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = device->ops->copy_in(device, graph->on_device, graph->values, graph->used);
    if (status == SHARD_OK)
        status = device->ops->graph_launch(device, graph->executable);
    if (status != SHARD_OK)
        take_back(graph);
    graph->replayed |= status == SHARD_OK;
    return status;
}

int64_t shard_graph_nodes(const shard_graph *graph)
{
    return graph && graph->executable ? graph->device->ops->graph_nodes(graph->device, graph->executable) : 0;
}
