/*
 * Graphs, for the folders whose host code has a part in a step.
 *
 * In a capture such code does not change its counters but registers a function, which each replay calls before it
 * launches the graph. The function writes the values that kernels read from device memory to the host's copy.
 */
#ifndef SHARD_DEVICE_GRAPH_H
#define SHARD_DEVICE_GRAPH_H

#include <shard/graph.h>

#include "device/device.h"

/* This thread's capture; NULL: none. */
shard_graph *shard_graph_capturing(void);

/* The number of this thread's capture, counted over the process; 0: none. */
uint64_t shard_graph_number(void);

/* Whether the graph of that capture has been replayed, which gives its results memory. */
bool shard_graph_is_replayed(uint64_t number);

/* The host's part of a replay; called in the order of registration. */
typedef struct shard_replay {
    /* Before each launch, with count 1. After one that failed with count -1 and values NULL: takes the
     * replay back. May set an error, for which the graph is not launched. */
    void (*call)(void *context, void *values, int count);
    void (*release)(void *context); /* called when the graph is destroyed; NULL: nothing to do */
    void *context;
    const void *owner; /* the graph cannot be replayed after its end; NULL: none */
} shard_replay;

/* Registers the call, with `bytes` of values (0: none). Returns their device memory, or the graph if there are none.
 * NULL with the error set, and the context released. */
const void *shard_graph_on_replay(shard_graph *graph, shard_replay replay, size_t bytes);

/* Sets the function that is called at the end of a capture that is valid, inside it. All calls name the same
 * function. */
void shard_graph_at_end(void (*call)(bool sound));

/* Called when the owner ends: its graphs cannot be replayed any longer. */
void shard_graph_forget(const void *owner);

/* Counts the gradients of leaves that are made (1) and zeroed (-1): a capture must zero those that it makes. */
void shard_graph_count_gradients(int count);

/* UNSUPPORTED in a capture, with `what` as the reason. */
shard_status shard_graph_refuse(const char *what);

/* UNSUPPORTED in a capture of another device. */
shard_status shard_graph_check_device(const char *function, const shard_device *device);

#endif
