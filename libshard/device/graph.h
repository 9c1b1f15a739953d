/*
 * Graphs, for the folders whose host code has a part in a step: what a replay does on the host.
 *
 * In a capture such code leaves its counters alone and registers a function instead, that each
 * replay calls before it launches the graph. What kernels take of it lies in device memory: the
 * function writes it to the host's copy.
 */
#ifndef SHARD_DEVICE_GRAPH_H
#define SHARD_DEVICE_GRAPH_H

#include <shard/graph.h>

#include "device/device.h"

/* The capture that this thread is making; NULL: none. */
shard_graph *shard_graph_capturing(void);

/* The number of this thread's capture, of all that the process has made; 0: none. */
uint64_t shard_graph_number(void);

/* What a replay does on the host; in the order in which they were registered. */
typedef struct shard_replay {
    /* Before each launch, with count 1. After one that failed with count -1 and values NULL: takes the
     * replay back. May set an error, for which the graph is not launched. */
    void (*call)(void *context, void *values, int count);
    void (*release)(void *context); /* when the graph goes; NULL: nothing to do */
    void *context;
    const void *owner; /* whose end makes the graph useless; NULL: nobody's */
} shard_replay;

/* Registers it, with `bytes` of values (0: none): gives their device memory, or the graph itself where there are none. NULL with
 * the error set, and the context released. */
const void *shard_graph_on_replay(shard_graph *graph, shard_replay replay, size_t bytes);

/* Has `call` called at the end of the capture, in it if it is sound. One function, which all calls name. */
void shard_graph_at_end(void (*call)(bool sound));

/* The owner goes: graphs that have something of it cannot be replayed any more. */
void shard_graph_forget(const void *owner);

/* Counts gradients of leaves that come (1) and go (-1): those of a capture go in it. */
void shard_graph_count_gradients(int count);

/* UNSUPPORTED in a capture: `what` cannot be in it. */
shard_status shard_graph_refuse(const char *what);

/* UNSUPPORTED in a capture of another device. */
shard_status shard_graph_check_device(const char *function, const shard_device *device);

#endif
