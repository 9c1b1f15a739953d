/*
 * A training run: the model, the objects that train it, and its position. The other files have one task each.
 */
#ifndef IMAGENET_TRAINER_H
#define IMAGENET_TRAINER_H

#include "dataset.h"
#include "metrics.h"
#include "options.h"
#include "progress.h"
#include "results.h"

#include <shard/shard.h>

/* The position of the run. With the tensors and the random state it is everything that a later run needs to continue
 * as if it had not been interrupted. */
typedef struct position {
    int64_t epoch;
    int64_t epoch_step; /* steps done in it; if all are done, the epoch's validation and save are still to do */
    int64_t step;       /* steps done since the first start */
    double best_top1;   /* in percent; below 0 before the first validation */
} position;

/* --save-async: the files of a checkpoint that are written in the background, and what saves cost. */
typedef struct pending_saves {
    shard_async_save *pending[3];
    int count;
    int64_t checkpoints;
    double paused, longest; /* seconds that training waited for saves in all, and for one */
    double pause;           /* of the checkpoint that is pending */
} pending_saves;

typedef struct trainer {
    const options *options;
    dataset data;
    shard_mesh *mesh;
    shard_group *batch_group;   /* each rank of it has a range of each batch */
    shard_group *feature_group; /* its ranks gather their features before the final layer; NULL: they have the same images */
    shard_module *model;
    struct head *head;                  /* of the model, which then returns features; NULL: an ordinary final layer */
    shard_data_parallel *data_parallel; /* this and the following: NULL if the run only validates */
    shard_optimizer *optimizer, *head_optimizer; /* head_optimizer: of the final layer; NULL: optimizer steps all layers */
    shard_tensor *sample;                        /* the classes of the step; NULL: all */
    shard_grad_scaler *scaler; /* NULL: not in float16, and without --non-finite skip, for which the scale is always 1 */
    struct step_graph *graph;  /* NULL: without --cuda-graph */
    shard_schedule schedule;
    position at;
    bool resumed;         /* from a checkpoint */
    bool skipped;        /* the last step was, as gradients or a loss were not finite */
    bool lost;           /* this rank's loss of the step is not finite; known after non_finite_see or batch_take */
    bool lost_somewhere; /* the same of any rank, with --non-finite skip */
    int64_t skipped_steps;
    shard_tensors *buffers, *kept; /* the model's buffers, and their values before the step */
    int64_t local_images; /* images through this rank's model in the step or the validation */
    results *results;     /* of batches that batch_take has not read */
    bool queues;          /* the device computes asynchronously: a batch's results are read when the next one is queued */
    progress progress;
    metrics *metrics;
    pending_saves saves;
} trainer;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the files of --resume or --pretrained. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* ---- optimizers.c ---- */

/* Makes the optimizers, partitioned if the options say so, and the schedule. Collective over the world. */
shard_status optimizers_open(trainer *run);
void optimizers_close(trainer *run);

/* Whether the final layer's optimizer needs norms of whole layers. */
bool optimizers_head_is_layerwise(const options *wanted);

/* Adds the optimizers' state; names are the parameters', so that they are of one optimizer or of two. */
shard_status optimizers_add_state(const trainer *run, shard_tensors *all, const char *prefix);

/* Sets the learning rates of the step at run->at. */
void optimizers_set_lr(trainer *run);

/* Clips the gradients and steps, or skips the step of all layers. Collective over the world. */
shard_status optimizers_step(trainer *run);

/* ---- head.c: --head-dtype, --margin, --sample-rate ---- */

/* Whether these options need a final layer that the model does not have by itself. */
bool head_is_special(const options *wanted);

/* Replaces the model's final layer, by a classifier if it is fused. Not collective. */
shard_status head_open(trainer *run, bool fused);

/* Draws the classes of the step at run->at into run->sample, with the labels of all its images: the same on any number of ranks
 * and for all its micro-batches. */
shard_status head_draw(trainer *run);

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

/* ---- non_finite.c: --non-finite ---- */

/* Ranks whose loss of a step is not finite. */
typedef struct non_finite {
    int64_t first, ranks; /* the lowest of them, and their number; INT64_MAX and 0: none */
} non_finite;

shard_status non_finite_open(trainer *run);
void non_finite_close(trainer *run);

/* Before a step that may be skipped: keeps the buffers' values, which non_finite_restore copies back. Not collective. */
void non_finite_begin(trainer *run);
shard_status non_finite_restore(trainer *run);

/* Records whether a micro-batch's loss is finite, if --non-finite skip needs it before the step; then waits for the device. */
void non_finite_see(trainer *run, shard_tensor *loss);

/* Which ranks have lost a loss. Collective over the world. */
shard_status non_finite_agree(const trainer *run, non_finite *found);

/* ARGUMENT if the loss of a step that was not skipped is not finite, with the step and the ranks; or if the scale is so small
 * that steps are skipped for another reason. The arguments are the same on all ranks. Collective over the world if they are
 * wrong. */
shard_status non_finite_check(const trainer *run, int64_t step, double loss, bool skipped, double scale);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* The number of steps of an epoch. */
int64_t train_steps(const trainer *run);

/* ---- evaluate.c ---- */

/* The model's totals over the validation set; whole->interrupted if it was not completed. Collective over the world. */
shard_status evaluate(trainer *run, totals *whole);

/* ---- checkpoint.c; all collective over the world ---- */

/* The prefixes of the names of tensors that are not the model's. */
#define CHECKPOINT_OPTIMIZER "optimizer."
#define CHECKPOINT_SCALER "scaler."

/* Makes the --output folder if it does not exist; does nothing without --output. With --keep, and without --resume auto, it
 * must have no checkpoint of a later step than where the run begins. Collective over the world. */
shard_status checkpoint_prepare(const trainer *run);

/* Compares the replicas of the model's and the optimizer's tensors, bit for bit (shard_check_replicas). */
shard_status checkpoint_check_replicas(trainer *run);

/* Writes --output's checkpoint.safetensors, or with --keep that of the step, and, if it is the best so far, best.safetensors and
 * model.safetensors (the model alone); without validation model.safetensors each time. Does nothing without --output. */
shard_status checkpoint_save(trainer *run, bool best);

/* Loads a checkpoint and its position; only its model if the run only validates. */
shard_status checkpoint_resume(trainer *run, const char *path);

/* Loads the newest whole checkpoint of --output: of --keep's steps, else checkpoint.safetensors. Nothing is loaded if there is
 * none; if all are damaged, that is an error (FORMAT). Sets run->resumed. Collective over the world. */
shard_status checkpoint_resume_auto(trainer *run);

/* ---- saves.c; all collective over the world ---- */

/* Keeps a save that was begun: NULL is one that has failed. */
shard_status saves_add(trainer *run, shard_async_save *save);
/* Finishes the pending saves if their values are written. */
shard_status saves_poll(trainer *run);
/* Finishes them in any case; after an error they are given up. */
shard_status saves_finish(trainer *run);
/* Adds seconds that training waited for the pending checkpoint. */
void saves_count_pause(trainer *run, double since);

/* ---- pretrained.c ---- */

/* Loads the model's values from a state dict. Missing and unexpected names are an error (ARGUMENT), except for the
 * layers of --pretrained-skip; if the run only validates, a skipped tensor of the model is also an error. Collective
 * over the world. */
shard_status checkpoint_pretrained(trainer *run, const char *path);

#endif
