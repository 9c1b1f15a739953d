/*
 * Batches of images, loaded ahead by worker threads. A batch depends on the seed, the epoch and the step only: never
 * on the number of workers, nor (in rank order) on the number of ranks.
 */
#ifndef IMAGES_LOADER_H
#define IMAGES_LOADER_H

#include "source.h"
#include "synthetic.h"
#include "transform.h"

#include <shard/data.h>
#include <shard/distributed.h>

/* The label of a slot with a damaged image: the loss's ignore_index. */
#define LOADER_IGNORED (-100)

typedef struct loader_options {
    shard_device *device;       /* the device of the batches: they are made in memory that it copies from directly */
    image_source source;        /* the images; borrowed. If there are none, synthetic ones: */
    synthetic made_up;
    int64_t batch; /* of the whole job */
    uint64_t seed;
    bool training; /* shuffled and augmented; else in order and centred */
    augmentation augment;
    int64_t image_size;
    int rank, ranks;  /* the batch is split over `ranks`; ranks with the same images have the same number */
    int workers;      /* threads; with 0 loader_next makes the images itself */
    int prefetch;     /* batches that workers make ahead of the one in use; at least 1 */
    int64_t skip_bad; /* damaged images that are allowed in an epoch; see loader_next */
} loader_options;

typedef struct loader_batch {
    int64_t step;
    int64_t size;          /* samples of this rank, n; 0 is possible in an epoch's last batch */
    const uint8_t *images; /* [n, image_size, image_size, 3] */
    const int64_t *labels; /* [n] */
    int64_t bad;           /* damaged images among the n */
    shard_event *copied;   /* to be recorded after copies of images and labels are queued */
} loader_batch;

typedef struct loader loader;

/* Starts the workers, which wait for loader_start. NULL on error (ARGUMENT, MEMORY). */
loader *loader_open(const loader_options *options);

/* Waits for the workers and frees everything. Takes NULL. */
void loader_close(loader *loading);

/* The labels of `count` images of an epoch in its order, from position `first` on: those of all ranks, also of images that turn
 * out to be damaged. labels [count]. */
void loader_labels(const loader *loading, int64_t epoch, int64_t first, int64_t count, int64_t *labels);

/* Steps of an epoch: the same on all ranks. */
int64_t loader_steps(const loader *loading);

/* Begins an epoch at a step, from 0 to loader_steps (the position of a resumed run). Batches of another epoch are
 * discarded. Errors: ARGUMENT, no such epoch or step; nothing changes then. */
shard_status loader_start(loader *loading, int64_t epoch, int64_t first_step);

/*
 * The next batch, or NULL in *batch after the epoch's last. It stays valid
 * until the next call for this loader, which waits for the copies that
 * were queued before `copied` was recorded.
 *
 * The path of an image that can't be read or decoded is printed on
 * standard error. While the epoch has had no more than skip_bad of them on this rank,
 * its slot stays in the batch, filled with the mean colour and labelled LOADER_IGNORED:
 * every rank keeps its batch's shape, and a loss and an accuracy that leave
 * that label out are means over the rest. Above that the call and
 * each later one fail (FORMAT, IO). An epoch has each image once, so the
 * sum over the ranks of `bad` is the number of damaged images of the data set.
 */
shard_status loader_next(loader *loading, const loader_batch **batch);

#endif
