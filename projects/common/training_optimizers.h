/*
 * The optimizers of a run, the learning rate's schedule and the gradient scaler, as training_options.h has them. One optimizer
 * steps all layers, or the last layer has its own; two step together: both or neither, by gradients that are clipped by their
 * common norm.
 */
#ifndef COMMON_TRAINING_OPTIMIZERS_H
#define COMMON_TRAINING_OPTIMIZERS_H

#include "training_options.h"

#include <shard/amp.h>
#include <shard/checkpoint.h>

/* The prefixes of the state's names in a checkpoint. */
#define TRAINING_OPTIMIZER "optimizer."
#define TRAINING_SCALER "scaler."

typedef struct training_optimizers {
    const training_options *options;
    shard_optimizer *of[2]; /* the last layer's is the second */
    int count;
    shard_schedule schedule;
    double lr[2]; /* of the schedule's begin */
    double clip_grad;
    shard_grad_scaler *scaler; /* NULL: not in float16, and without --non-finite skip, for which the scale is always 1 */
    bool skipped;              /* the last step was, as gradients or a loss were not finite */
    int64_t skipped_steps;
    /* ---- training_loss.h ---- */
    bool lost;                     /* this rank's loss of the step is not finite */
    bool lost_somewhere;           /* the same of any rank, with --non-finite skip */
    shard_tensors *buffers, *kept; /* the model's buffers, and their values before the step */
} training_optimizers;

/* Made of the parameters, partitioned by --enable-zero-optim. head_prefix: of the names of the last layer's parameters, "fc.";
 * epoch_steps: the steps of an epoch. training_optimizers_close follows, also after an error. Collective over the world with
 * ZeRO, else not. */
shard_status training_optimizers_open(training_optimizers *made, const training_options *wanted, const head_options *head,
                                      const shard_tensors *parameters, const char *head_prefix, int64_t epoch_steps);
void training_optimizers_close(training_optimizers *made);

/* Sets the learning rates of step 0, 1, and so on; returns --lr's. The schedule counts skipped steps, so that it ends with the
 * epochs. With ZeRO the backward may step already: call it before. */
double training_optimizers_set_lr(training_optimizers *made, int64_t step);

/* The learning rate of the last layer's own optimizer; below 0: it has none. */
double training_optimizers_head_lr(const training_optimizers *made);
/* Writes "lr 0.1", or "lr 0.1 and 0.01" with a last layer's. Returns text. */
const char *training_optimizers_describe_lr(char *text, size_t bytes, double lr, double head_lr);

/* Clips the gradients and steps, or skips the step of all layers (made->skipped). The gradients are those of
 * shard_grad_scaler_scale(made->scaler, loss). Collective over the world. */
shard_status training_optimizers_step(training_optimizers *made);

/* Adds the optimizers' state; names are the parameters', so that they are of one optimizer or of two. And the scaler's, as
 * "scaler.", if its scale is not always 1. */
shard_status training_optimizers_add_state(const training_optimizers *made, shard_tensors *all, const char *prefix);

/* The tensors of a checkpoint: the model's, and the optimizers' and the scaler's behind "optimizer." and "scaler.". The caller
 * destroys the list. NULL with the error set. */
shard_tensors *training_collect(shard_module *model, const training_optimizers *made);

#endif
