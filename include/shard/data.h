/* shard/data.h: which samples of a data set each rank trains on. */
#ifndef SHARD_DATA_H
#define SHARD_DATA_H

#include <shard/comm.h>

SHARD_BEGIN_C

/*
 * Gives each rank its samples of every batch of an epoch. An epoch is the data set in an order that depends on the seed and
 * the epoch only; step s takes positions s * batch on, divided in order and as evenly as possible over the ranks of a
 * group. So a step has the same samples on any number of ranks, and a run resumes from two numbers, epoch and step.
 *
 * The group has all ranks over which samples differ. With shard_mesh_data_group the ranks of one model group see the same
 * samples, and model groups different ones; with the world each rank sees its own. On a mesh of the axes data, rows and model
 * it is shard_mesh_replica_group(mesh, "model"): shard_mesh_data_group would give the ranks along rows the same samples.
 * As PyTorch's DistributedSampler, and the DistributedGroupSampler that TorchShard names.
 */
typedef struct shard_group_sampler shard_group_sampler;

/*
 * For steps with a different number of samples on each rank: the last one of an epoch or, with EXACT, a batch that the ranks
 * do not divide. The average of mean losses is right with PAD and DROP. With EXACT each loss is the sum over its samples,
 * divided by the average number of samples of a loss (docs/data-parallel.md). Ranks whose rows are gathered have one loss
 * together; data_group below has one rank for each loss:
 *     loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM);
 *     loss = shard_scale(loss, (double)shard_group_size(data_group) / (double)shard_group_sampler_last_batch_size(sampler));
 */
typedef enum shard_last_batch {
    SHARD_LAST_BATCH_PAD = 0, /* samples from the epoch's beginning once more, as DistributedSampler */
    SHARD_LAST_BATCH_EXACT,   /* every sample once: local batches differ by one, some may be empty */
    SHARD_LAST_BATCH_DROP,    /* at most ranks - 1 samples are left out, as with its drop_last */
} shard_last_batch;

typedef struct shard_group_sampler_options {
    size_t size;
    int64_t batch;       /* samples of a step, of all ranks together; -1: one sample of each rank. Default: -1. */
    shard_group *group;  /* its ranks see different samples; .ranks and .rank are not read. NULL, as shard_world() before
                            shard_init: these two */
    int ranks, rank;     /* DistributedSampler's num_replicas and rank. Defaults: 1, 0: all ranks see all samples,
                            as those of one model group do */
    bool shuffle;        /* a random order in each epoch; false: in order */
    uint64_t seed;
    shard_last_batch last_batch;
} shard_group_sampler_options;
#define SHARD_GROUP_SAMPLER_OPTIONS_VALUES \
    sizeof(shard_group_sampler_options), -1, NULL, 1, 0, false, 0, SHARD_LAST_BATCH_PAD
#define SHARD_GROUP_SAMPLER_OPTIONS_INIT {SHARD_GROUP_SAMPLER_OPTIONS_VALUES}

/* A sampler of a data set of `samples`, at the beginning of epoch 0. NULL with the error set: ARGUMENT, for example a batch
 * that PAD and DROP cannot divide evenly. Not collective, but arguments must be equal on all ranks. */
#define shard_group_sampler_create(...) \
    SHARD_GIVEN(shard_group_sampler_create_with(         \
        SHARD_OPTIONS(shard_group_sampler_options, SHARD_GROUP_SAMPLER_OPTIONS, __VA_ARGS__)))
SHARD_API shard_group_sampler *shard_group_sampler_create_with(int64_t samples, const shard_group_sampler_options *options);
SHARD_API void shard_group_sampler_destroy(shard_group_sampler *sampler);

/* Steps of an epoch, equal on all ranks. 0 for NULL. */
SHARD_API int64_t shard_group_sampler_steps(const shard_group_sampler *sampler);
/* The largest number of samples of this rank in a step: the size of shard_group_sampler_next's array. 0 for NULL. */
SHARD_API int64_t shard_group_sampler_max_local_batch(const shard_group_sampler *sampler);

/* Writes this rank's samples of the next step into samples, [shard_group_sampler_max_local_batch], and their number into
 * *count. False, with *count 0, after the epoch's last step, and with the error set if an argument is NULL. Not
 * collective. */
SHARD_API bool shard_group_sampler_next(shard_group_sampler *sampler, int64_t *samples, int64_t *count);

/* The number of samples of the last step that shard_group_sampler_next has returned, of all ranks together; samples that
 * PAD repeats count again. After shard_group_sampler_seek into an epoch, that of the step before. 0 at the beginning of an epoch
 * and for NULL. */
SHARD_API int64_t shard_group_sampler_last_batch_size(const shard_group_sampler *sampler);

/* Continues at the beginning of an epoch, 0 or more (else ARGUMENT). As DistributedSampler.set_epoch. */
SHARD_API SHARD_CHECKED shard_status shard_group_sampler_set_epoch(shard_group_sampler *sampler, int64_t epoch);
/* The epoch, and the next step in it (shard_group_sampler_steps at the epoch's end); and a call that continues from such a
 * position. Errors: ARGUMENT, no such epoch or step, as of another data set or batch; the position is unchanged then. */
SHARD_API int64_t shard_group_sampler_epoch(const shard_group_sampler *sampler);
SHARD_API int64_t shard_group_sampler_step(const shard_group_sampler *sampler);
SHARD_API SHARD_CHECKED shard_status shard_group_sampler_seek(shard_group_sampler *sampler, int64_t epoch, int64_t step);

/* For loaders that read ahead, from any thread: this rank's range of positions of a step (0 <= step < steps), and the
 * sample at a position (0 or more) of an epoch. {0, 0} and -1 with the error set: no such step, a negative position,
 * an empty data set, NULL. */
SHARD_API shard_range shard_group_sampler_local_range(const shard_group_sampler *sampler, int64_t step);
SHARD_API int64_t shard_group_sampler_sample_at(const shard_group_sampler *sampler, int64_t epoch, int64_t position);

SHARD_END_C

#endif
