/* The parts of a run that trainers share: its mesh, sums and lists over the ranks, and its first lines. */
#ifndef COMMON_TRAINING_RUN_H
#define COMMON_TRAINING_RUN_H

#include "metrics.h"
#include "progress.h"
#include "training_options.h"

#include <shard/distributed.h>

/* Opens --device as the default one; after an error of a rank all have it. */
shard_status training_open_device(const training_options *wanted);

/* The mesh of --enable-model-parallel and --model-parallel-size. NULL with the error set. Collective over the world. */
shard_mesh *training_mesh(const head_options *head);

/* The number of parameters of the whole model; *local: of this rank. */
int64_t training_count_parameters(shard_module *model, int64_t *local);

/* Adds up numbers [count] of the host over the world. Collective over it. */
shard_status training_sum(double *numbers, int64_t count);

/* The numbers of samples of all ranks of the group, [*all], in the order of their gathered features; samples [count] are this
 * rank's. The caller frees them. NULL with the error set. Collective over the group. */
int64_t *training_gather_samples(const int64_t *samples, int64_t count, shard_group *group, int64_t *all);

/* Sets the parameter to values [its elements], cast to its dtype. Not collective. */
shard_status training_set_values(shard_tensor *parameter, const float *values);

/* Prints "4 ranks (shm): 2 data parallel x 2 model parallel" and more, unless there is one rank. */
void training_introduce_ranks(progress *shown, const shard_mesh *mesh, const char *more);

/* --metrics and --tensorboard. samples: their name, "images". resumed: the lines go on in the files that there are. NULL with the
 * error set (IO, MEMORY). */
metrics *training_metrics(const training_options *wanted, shard_module *model, int64_t num_classes, const char *samples,
                          bool resumed);

#endif
