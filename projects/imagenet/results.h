/*
 * What batches came to on this rank, read when the device has computed it: the loss and
 * the labels' ranks are copied into pinned memory, and whoever reads them waits for that copy, not
 * for what was queued after it.
 */
#ifndef IMAGENET_RESULTS_H
#define IMAGENET_RESULTS_H

#include <shard/tensor.h>

typedef struct results results;

/* Sums over the rows of a batch. */
typedef struct batch_sums {
    double loss, top1, top5;
} batch_sums;

/* Room for so many batches that were put and not taken. NULL with the error set (MEMORY). */
results *results_open(shard_device *device, int64_t most);
/* Waits for copies that nobody took. Takes NULL. */
void results_close(results *queue);

/* Has the loss, a scalar, and the ranks of shard_label_rank copied behind what is queued. */
shard_status results_put(results *queue, shard_tensor *loss, shard_tensor *ranks);
/* Waits for the batch that was put first, and forgets it. Errors as of shard_event_synchronize. */
shard_status results_take(results *queue, batch_sums *sums);

#endif
