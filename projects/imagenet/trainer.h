/*
 * A training run: the model, the objects that train it, and its position. The other files have one task each.
 */
#ifndef IMAGENET_TRAINER_H
#define IMAGENET_TRAINER_H

#include "class_sample.h"
#include "dataset.h"
#include "options.h"
#include "results.h"
#include "training_loop.h"

#include <shard/shard.h>

typedef struct trainer {
    training_run base;
    const options *options;
    dataset data;
    shard_group *batch_group;   /* each rank of it has a range of each batch */
    shard_group *feature_group; /* its ranks gather their features before the last layer; NULL: they have the same images */
    struct head *head;          /* of the model, which then returns features; NULL: an ordinary last layer */
    class_sample sample;        /* the classes of the step */
    struct step_graph *graph;   /* NULL: without --cuda-graph */
    int64_t local_images;       /* images through this rank's model in the step or the validation */
    results *results;           /* of batches that batch_take has not read */
    bool queues;                /* the device computes asynchronously: a batch's results are read when the next one is queued */
} trainer;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the files of --resume or --pretrained. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* Describes the run's settings in run->base.checkpoint. Not collective. */
shard_status trainer_describe(trainer *run);

/* ---- head.c: --head-dtype, --margin, --sample-rate ---- */

/* Whether these options need a last layer that the model does not have by itself. */
bool head_is_special(const options *wanted);

/* Replaces the model's last layer, by a classifier if it is fused. Not collective. */
shard_status head_open(trainer *run, bool fused);

/* Draws the classes of the step at run->base.at into run->sample, with the labels of all its images: the same on any number of
 * ranks and for all its micro-batches. */
shard_status head_draw(trainer *run);

/* Releases run->sample. */
void head_close(trainer *run);

/* The sum of the losses of features, recorded in training. *ranks becomes the labels' ranks among all classes, or NULL in
 * training with a margin or a sample. NULL with the error set. Collective over the model group if the layer is split. */
shard_tensor *head_loss(trainer *run, shard_tensor *features, shard_tensor *labels, double label_smoothing, shard_tensor **ranks);

/* Frees what a validation kept, before the weight changes. */
void head_end_validation(trainer *run);

/* ---- batch.c ---- */

/* The results of a batch, or of several: sums over the whole job, the same on every rank. */
typedef struct totals {
    double loss, top1, top5; /* sums over the images */
    double images;           /* whose label is not ignored */
    double bad;              /* damaged images */
    double interrupted;      /* ranks that received a signal to end */
} totals;

void totals_add(totals *sum, const totals *more);
/* sum / images, 0 for none. */
double totals_mean(double sum, const totals *of);
/* FORMAT if more images were damaged than --skip-bad-images allows the whole job. */
shard_status totals_check_bad(const totals *sum, int64_t allowed);

/* The sum of the losses of the model group's images, recorded; batch_take reads it and the accuracy. Sets counts:
 * images, bad and interrupted of the whole job. NULL with the error set. Collective over the world. */
shard_tensor *batch_forward(trainer *run, const loader_batch *batch, double label_smoothing, totals *counts);

/* Adds the whole job's losses and hits of the oldest `count` batches to *whole, each batch once; waits until the
 * device has computed them. Collective over the world. */
shard_status batch_take(trainer *run, int64_t count, totals *whole);

/* The steps of batch_forward: the loss, recorded, and the ranking (shard_label_rank) of this rank's images (uint8)
 * and labels on its device; then the copies that batch_take reads. Each collective over the world. */
shard_status batch_compute(trainer *run, shard_tensor *images, shard_tensor *own_labels, double label_smoothing,
                           shard_tensor **loss, shard_tensor **ranks);
shard_status batch_put(trainer *run, const loader_batch *batch, shard_tensor *loss, shard_tensor *ranks, totals *counts);

/* ---- graph.c: --cuda-graph ---- */

/* ARGUMENT if an option cannot be captured. */
shard_status graph_open(trainer *run);
void graph_close(trainer *run);

/* Whether the batch's step is a replay: for full batches without damaged images, after some eager steps. */
bool graph_takes(const trainer *run, const loader_batch *batch);

/* A step by replay; the first one is captured. counts as of batch_forward. */
shard_status graph_step(trainer *run, const loader_batch *batch, totals *counts);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* The number of steps of an epoch. */
int64_t train_steps(const trainer *run);

/* ---- evaluate.c ---- */

/* The model's totals over the validation set; whole->interrupted if it was not completed. Collective over the world. */
shard_status evaluate(trainer *run, totals *whole);

/* ---- pretrained.c ---- */

/* Loads the model's values from a state dict. Missing and unexpected names are an error (ARGUMENT), except for the
 * layers of --pretrained-skip; if the run only validates, a skipped tensor of the model is also an error. Collective
 * over the world. */
shard_status pretrained_load(trainer *run, const char *path);

#endif
