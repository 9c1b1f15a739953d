/*
 * The results of batches on this rank: the loss and the labels' ranks are copied into pinned memory. Reading them
 * waits for that copy, not for work that was queued after it.
 */
#ifndef IMAGENET_RESULTS_H
#define IMAGENET_RESULTS_H

#include <shard/tensor.h>

typedef struct results results;

/* Sums over the rows of a batch; top1 and top5 are NaN without ranks. */
typedef struct batch_sums {
    double loss, top1, top5;
} batch_sums;

/* Room for this many batches that were put and not taken. NULL with the error set (MEMORY). */
results *results_open(shard_device *device, int64_t most);
/* Waits for the remaining copies. NULL is fine. */
void results_close(results *queue);

/* Queues the copies of the loss, a scalar, and the ranks of shard_label_rank; NULL: not known. */
shard_status results_put(results *queue, shard_tensor *loss, shard_tensor *ranks);
/* Waits for the oldest batch and removes it. Errors as of shard_event_synchronize. */
shard_status results_take(results *queue, batch_sums *sums);

#endif
