/* The parts of a run that trainers share: its objects, sums and lists over the ranks, and its first lines. */
#ifndef COMMON_TRAINING_RUN_H
#define COMMON_TRAINING_RUN_H

#include "metrics.h"
#include "progress.h"
#include "training_checkpoint.h"
#include "training_optimizers.h"

#include <shard/distributed.h>

/* The objects of a run, which a trainer has as its member `base`. */
typedef struct training_run {
    const training_options *options;
    const char *samples; /* their name, "images" */
    shard_mesh *mesh;
    shard_group *model_group; /* the ranks of one last layer */
    shard_module *model;
    shard_data_parallel *data_parallel; /* this and the optimizers: of runs that train */
    training_optimizers optimizers;
    training_checkpoint checkpoint;
    training_position at;
    bool resumed; /* from a checkpoint */
    progress progress;
    metrics *metrics;
} training_run;

/* Begins a run: its position and its output. samples: their name, which is not copied. training_run_close follows, also after an
 * error. Not collective; training_run_close is, over the world. */
void training_run_begin(training_run *run, const training_options *wanted, const char *samples);
void training_run_close(training_run *run);

/* Makes the mesh of --enable-model-parallel and --model-parallel-size, and sets the seed of --seed. Collective over the world. */
shard_status training_run_make_mesh(training_run *run, const head_options *head);

/* --resume: loads the model, the optimizers' state and the position. Does nothing without it. Collective over the world. */
shard_status training_run_resume(training_run *run);

/* Makes --output's folder, and opens the files of --metrics and --tensorboard. Collective over the world. */
shard_status training_run_open_files(training_run *run, int64_t num_classes);

/* Opens --device as the default one; after an error of a rank all have it. */
shard_status training_open_device(const training_options *wanted);

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

#endif
