/*
 * --non-finite: steps whose loss or gradients are NaN or infinite. A step makes these calls; that of
 * training_loop sets optimizers.lost in place of training_loss_see:
 *
 *     training_loss_begin(&optimizers);
 *     ... forward; training_loss_see(&optimizers, loss); backward ...
 *     training_loss_exchange(&optimizers, &first);
 *     training_optimizers_step(&optimizers);
 *     training_loss_check(&optimizers, ...);           once it knows the loss
 */
#ifndef COMMON_TRAINING_LOSS_H
#define COMMON_TRAINING_LOSS_H

#include "training_optimizers.h"

/* Finds in the model's state dict the buffers, which a skipped step leaves as they were. They outlive the optimizers. */
shard_status training_loss_open(training_optimizers *made, const shard_tensors *state);

/* Before a step that may be skipped: keeps the buffers' values, which training_optimizers_step copies back. Not collective. */
void training_loss_begin(training_optimizers *made);
shard_status training_loss_restore(training_optimizers *made);

/* Records whether a micro-batch's loss is finite, if --non-finite skip needs it before the step; then waits for the device.
 * Without it the step sets made->lost, before it calls training_loss_check. */
void training_loss_see(training_optimizers *made, shard_tensor *loss);

/* With --non-finite skip: whether all ranks skip the step. *first: the lowest rank whose loss is not finite; -1: none. Collective
 * over the world. */
shard_status training_loss_exchange(training_optimizers *made, int64_t *first);

/* ARGUMENT if the loss of a step that was not skipped is not finite, with the step and the ranks; or if the scale is so small
 * that steps are skipped for another reason. The arguments are the same on all ranks. Collective over the world if they are
 * wrong. */
shard_status training_loss_check(const training_optimizers *made, int64_t step, double loss, bool skipped, double scale);

/* "  skipped: loss not finite on rank 2", "  skipped: gradients not finite", or "". first: of training_loss_exchange. */
void training_loss_describe(int64_t first, bool skipped, char *text, size_t bytes);

#endif
