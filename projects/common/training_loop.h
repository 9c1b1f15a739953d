/*
 * The epochs of a run: steps, validations and checkpoints from the current position on, until --epochs, --steps or a signal ends
 * them. The trainer gives functions, which are collective over the world and get `of`.
 */
#ifndef COMMON_TRAINING_LOOP_H
#define COMMON_TRAINING_LOOP_H

#include "training_run.h"

/* The sums of a step's backward. */
typedef struct training_batch {
    double loss;           /* of the samples of this rank's model group */
    bool no_loss;          /* `loss` was not computed; the same on every rank */
    int64_t samples;       /* of the whole job */
    int64_t local_samples; /* through this rank's model */
} training_batch;

typedef struct training_loop {
    training_run *run;
    void *of;

    /* The model's tensors as files have them, which the caller destroys. NULL: those of shard_state_dict. */
    shard_tensors *(*export)(void *of);
    /* Begins the epoch at the position, with its next step. */
    shard_status (*begin)(void *of);

    /* The forward and backward of the next step. The gradients are those of the mean over the samples, of a loss that
     * shard_grad_scaler_scale has scaled by run->optimizers.scaler. The loop does what --non-finite asks for, updates the model
     * and reports the loss; the trainer of a model with buffers has called training_loss_open. */
    shard_status (*backward)(void *of, training_batch *made);
    /* Updates the model. NULL: training_optimizers_step. */
    shard_status (*update)(void *of);

    /* In place of these two: makes a step, and moves the position's epoch_step and step. *interrupted: a rank has received a
     * signal. */
    shard_status (*step)(void *of, bool *interrupted);
    /* Reports the last step, if `step` has not done it yet. NULL: it has. */
    shard_status (*report)(void *of);

    /* Ends the epoch at the position before its validation, and again in the run that resumes if that was not completed. NULL:
     * nothing is to do. */
    shard_status (*end)(void *of);
    /* Validates; *result: the larger the better. *interrupted: it was not completed. NULL: there is nothing to validate on. */
    shard_status (*validate)(void *of, double *result, bool *interrupted);
} training_loop;

/* All epochs from the current position. Collective over the world. */
shard_status training_loop_run(const training_loop *loop);

/* The step that the schedule of the learning rate is at. It goes by epochs: earlier ones may have had more or fewer steps, as with
 * another --batch-size. */
int64_t training_schedule_step(const training_run *run);

/* The number of steps of the epoch at the position that this run makes. */
int64_t training_steps_to_make(const training_run *run, const training_position *at);

/* Whether the step at the position is the last one before a save, other than that of a signal. */
bool training_saves_after_step(const training_run *run);

#endif
