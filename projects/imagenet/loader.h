/*
 * Batches of images, made ahead by worker threads. What a batch holds depends
 * on the seed, the epoch and the step only: never on the number of workers,
 * nor (put together in rank order) on the number of ranks.
 */
#ifndef IMAGENET_LOADER_H
#define IMAGENET_LOADER_H

#include "folder.h"
#include "synthetic.h"
#include "transform.h"

#include <shard/data.h>
#include <shard/distributed.h>

/* The label of a slot whose image is damaged: the loss's ignore_index. */
#define LOADER_IGNORED (-100)

typedef struct loader_options {
    shard_device *device; /* where batches go: they are made in memory that it copies from directly */
    const image_folder *folder; /* where the images are; stays the caller's. If NULL, they are made up: */
    synthetic made_up;
    int64_t batch; /* of the whole job */
    uint64_t seed;
    bool training; /* shuffled and augmented; else in order and centred */
    augmentation augment;
    int64_t image_size;
    int rank, ranks;  /* among which batches are dealt out; ranks that are to have the same have the same number */
    int workers;      /* threads; with 0 loader_next makes the images itself */
    int prefetch;     /* batches that workers make ahead of the one in use; at least 1 is taken */
    int64_t skip_bad; /* damaged images that may be left out in an epoch; see loader_next */
} loader_options;

typedef struct loader_batch {
    int64_t step;
    int64_t size;          /* samples of this rank, n; 0 is possible in an epoch's last batch */
    const uint8_t *images; /* [n, image_size, image_size, 3] */
    const int64_t *labels; /* [n] */
    int64_t bad;           /* of the n, how many are damaged */
    shard_event *copied;   /* to be recorded where copies of images and labels have been queued */
} loader_batch;

typedef struct loader loader;

/* Starts the workers, which wait for loader_start. NULL on error (ARGUMENT, MEMORY). */
loader *loader_open(const loader_options *options);

/* Waits for the workers and frees everything. Takes NULL. */
void loader_close(loader *loading);

/* Steps of an epoch: the same on all ranks. */
int64_t loader_steps(const loader *loading);

/* Begins an epoch at a step, from 0 to loader_steps (where a resumed run goes on). What was
 * made ahead for another epoch is dropped. Errors: ARGUMENT, no such epoch or step; nothing
 * is begun then. */
shard_status loader_start(loader *loading, int64_t epoch, int64_t first_step);

/*
 * The next batch, or NULL in *batch after the epoch's last. It stays valid
 * until the next call for this loader, which waits until the device has what was copied
 * from it before `copied` was recorded.
 *
 * An image that can't be read or decoded is told on standard error with its
 * path. While the epoch has had no more than skip_bad of them on this rank,
 * its slot stays in the batch, filled with the mean colour and labelled LOADER_IGNORED:
 * every rank keeps its batch's shape, and a loss and an accuracy that leave
 * that label out are means over the rest. Above that the call fails (FORMAT,
 * IO), and so does each further one. An epoch has each image once, so the
 * sum over the ranks of `bad` is the number of damaged images of the data set.
 */
shard_status loader_next(loader *loading, const loader_batch **batch);

#endif
