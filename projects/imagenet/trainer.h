/*
 * A training run: the model and what trains it, and where it stands. Each file
 * beside this one does one thing with it.
 */
#ifndef IMAGENET_TRAINER_H
#define IMAGENET_TRAINER_H

#include "dataset.h"
#include "metrics.h"
#include "options.h"
#include "progress.h"
#include "results.h"

#include <shard/shard.h>

/* Where the run stands; with the tensors and the random state all that a later one
 * needs to go on as if it had not been interrupted. */
typedef struct position {
    int64_t epoch;
    int64_t epoch_step; /* steps done in it; all of them: what ends an epoch is still to be done */
    int64_t step;       /* steps done since the first start */
    double best_top1;   /* in percent; below 0 before the first validation */
} position;

typedef struct trainer {
    const options *options;
    dataset data;
    shard_mesh *mesh;
    shard_group *dealt;    /* batches are dealt out to its members */
    shard_group *gathered; /* whose members' features meet in front of the final layer; NULL: they have the same images */
    shard_module *model;
    shard_data_parallel *data_parallel; /* these: NULL if only validating */
    shard_optimizer *optimizer;
    shard_grad_scaler *scaler; /* NULL: not in float16 */
    struct step_graph *graph;  /* NULL: without --cuda-graph */
    shard_schedule schedule;
    position at;
    int64_t own_images; /* that went through this rank's model in the step or the validation */
    results *results;   /* of batches that batch_take was not asked for */
    bool queues;        /* the device computes behind the host's back: what a batch came to is read when the next one is queued */
    progress progress;
    metrics *metrics;
} trainer;

/* ---- trainer.c ---- */

/* Makes everything, and loads what --resume or --pretrained name. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* ---- batch.c ---- */

/* What a batch, or many, came to; sums over the whole job, the same on every rank. */
typedef struct totals {
    double loss, top1, top5; /* sums over the images */
    double images;           /* that count: whose label is not ignored */
    double bad;              /* that were damaged */
    double interrupted;      /* ranks that have been told to end */
} totals;

void totals_add(totals *sum, const totals *more);
/* sum / images, 0 for none. */
double totals_mean(double sum, const totals *of);
/* FORMAT if more images were damaged than --skip-bad-images allows the whole job. */
shard_status totals_check_bad(const totals *sum, int64_t allowed);

/* The sum of the losses of the model group's images, recorded; what it and the accuracy come to is for batch_take.
 * counts: the whole job's images, bad and interrupted, at once. NULL with the error set. Collective over the world. */
shard_tensor *batch_forward(trainer *run, const loader_batch *batch, double label_smoothing, totals *counts);

/* Adds the whole job's losses and hits of the oldest `count` batches to *whole, each batch once; waits for the device to
 * have computed them. Collective over the world. */
shard_status batch_take(trainer *run, int64_t count, totals *whole);

/* batch_forward in its parts: the loss, recorded, and the ranking (shard_label_rank) of images (uint8) and labels of this rank
 * that are on its device; and what is to be read of them later. Each collective over the world. */
shard_status batch_compute(trainer *run, shard_tensor *images, shard_tensor *own_labels, double label_smoothing,
                           shard_tensor **loss, shard_tensor **ranks);
shard_status batch_put(trainer *run, const loader_batch *batch, shard_tensor *loss, shard_tensor *ranks, totals *counts);

/* ---- graph.c: --cuda-graph ---- */

/* An error (ARGUMENT) where something else was asked for that cannot be captured. */
shard_status graph_open(trainer *run);
void graph_close(trainer *run);

/* Whether the batch's step is a replay: of full batches without damaged images, once some steps were made eagerly. */
bool graph_takes(const trainer *run, const loader_batch *batch);

/* A step by replay, captured the first time; counts as of batch_forward. */
shard_status graph_step(trainer *run, const loader_batch *batch, totals *counts);

/* ---- train.c ---- */

/* What is between the losses' gradients and the next step. Collective over the world. */
shard_status train_update(trainer *run);

/* All epochs from where the run stands. Collective over the world. */
shard_status train(trainer *run);

/* Of an epoch. */
int64_t train_steps(const trainer *run);

/* ---- evaluate.c ---- */

/* The model's totals over the validation set; whole->interrupted if not all of it. Collective over the world. */
shard_status evaluate(trainer *run, totals *whole);

/* ---- checkpoint.c; all collective over the world ---- */

/* What the names of tensors begin with that are not the model's. */
#define CHECKPOINT_OPTIMIZER "optimizer."
#define CHECKPOINT_SCALER "scaler."

/* Makes the --output folder if there is none; does nothing without --output. */
shard_status checkpoint_prepare(const trainer *run);

/* Writes --output's checkpoint.safetensors and, if it is the best so far, best.safetensors
 * and model.safetensors, the model alone; without validation model.safetensors each time.
 * Does nothing without --output. */
shard_status checkpoint_save(trainer *run, bool best);

/* Goes on from a checkpoint; only its model if the run only validates. */
shard_status checkpoint_resume(trainer *run, const char *path);

/* ---- pretrained.c ---- */

/* The model's values from a state dict. Names that it lacks or that the model lacks are an
 * error (ARGUMENT), but for the layers of --pretrained-skip; when the run only validates,
 * so is a tensor of the model that is skipped. Collective over the world. */
shard_status checkpoint_pretrained(trainer *run, const char *path);

#endif
