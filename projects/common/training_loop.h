/*
 * The epochs of a run: steps, validations and checkpoints from the current position on, until --epochs, --steps or a signal ends
 * them. The trainer gives functions for a step and a validation, which are collective over the world and get `run`.
 */
#ifndef COMMON_TRAINING_LOOP_H
#define COMMON_TRAINING_LOOP_H

#include "training_checkpoint.h"
#include "training_optimizers.h"

typedef struct training_loop {
    void *run;
    const training_options *options;
    training_position *at;
    training_checkpoint *checkpoint;
    const training_optimizers *optimizers;
    shard_module *model;
    progress *shown;

    /* The model's tensors as files have them, which the caller destroys. NULL: those of shard_state_dict. */
    shard_tensors *(*export)(void *run);
    /* Begins the epoch at the position, with its next step. */
    shard_status (*begin)(void *run);
    /* Makes a step, and moves the position's epoch_step and step. *interrupted: a rank has received a signal. */
    shard_status (*step)(void *run, bool *interrupted);
    /* Reports the last step, if `step` has not done it yet. NULL: it has. */
    shard_status (*report)(void *run);
    /* Ends the epoch at the position before its validation, and again in the run that resumes if that was not completed. NULL:
     * nothing is to do. */
    shard_status (*end)(void *run);
    /* Validates; *result: the larger the better. *interrupted: it was not completed. */
    shard_status (*validate)(void *run, double *result, bool *interrupted);
} training_loop;

/* All epochs from the current position. Collective over the world. */
shard_status training_loop_run(const training_loop *loop);

/* Saves what --output asks for. Collective over the world. */
shard_status training_loop_save(const training_loop *loop, bool best);

/* The step that the schedule of the learning rate is at. It goes by epochs: earlier ones may have had more or fewer steps, as with
 * another --batch-size. */
int64_t training_schedule_step(const training_position *at, int64_t epoch_steps);

/* The number of steps of the epoch at the position that this run makes. */
int64_t training_steps_to_make(const training_options *wanted, const training_position *at, int64_t epoch_steps);

#endif
