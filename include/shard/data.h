/* shard/data.h: which samples of a data set each rank trains on. */
#ifndef SHARD_DATA_H
#define SHARD_DATA_H

#include <shard/comm.h>

SHARD_BEGIN_C

/*
 * Distributes an epoch's samples over ranks, batch by batch. An epoch is the data set in an
 * order that depends on the seed and the epoch only. Step s of the job takes the positions from
 * s * batch on, and distributes them in order over the members of `group`, as evenly as possible.
 * So the same samples meet in the same step on any number of ranks. The sampler stores nothing:
 * a run resumes, on any number of ranks, from two numbers, epoch and step.
 *
 * With shard_mesh_data_group the ranks of one model group see the same samples and model
 * groups disjoint ones; with the world each rank sees samples that no other one does. As PyTorch's
 * DistributedSampler, and the DistributedGroupSampler that TorchShard names.
 */
typedef struct shard_group_sampler shard_group_sampler;

/*
 * How a step is distributed whose samples the members do not divide: an epoch's last one or, with
 * EXACT, any batch. Data parallel averages over groups, so that the mean loss is right if all
 * groups have equally many samples, as with PAD and DROP. With EXACT each group takes the sum over its
 * samples, divided by the mean number of a group's samples, so that each sample counts the same:
 *     loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM);
 *     loss = shard_scale(loss, (double)shard_group_size(data_group) / (double)shard_group_sampler_last_batch_size(sampler));
 * where data_group is shard_mesh_data_group, or the world if there is no mesh. A group without
 * a sample has a loss of 0 then; its mean would be NaN.
 */
typedef enum shard_last_batch {
    SHARD_LAST_BATCH_PAD = 0, /* samples from the epoch's beginning once more, as DistributedSampler */
    SHARD_LAST_BATCH_EXACT,   /* every sample once: members differ by one sample, some may have none */
    SHARD_LAST_BATCH_DROP,    /* at most members - 1 samples are dropped, as its drop_last */
} shard_last_batch;

typedef struct shard_group_sampler_options {
    size_t size;
    int64_t batch;      /* of a step, of all members together; -1: one sample each */
    shard_group *group; /* whose members see different samples; NULL: */
    int members, member; /* as DistributedSampler's num_replicas and rank; 1 and 0 */
    bool shuffle;        /* else in order */
    uint64_t seed;
    shard_last_batch last_batch;
} shard_group_sampler_options;
#define SHARD_GROUP_SAMPLER_OPTIONS_VALUES \
    sizeof(shard_group_sampler_options), -1, NULL, 1, 0, false, 0, SHARD_LAST_BATCH_PAD
#define SHARD_GROUP_SAMPLER_OPTIONS_INIT {SHARD_GROUP_SAMPLER_OPTIONS_VALUES}

/* A sampler of a data set of `samples`, at the beginning of epoch 0. Errors: ARGUMENT, as for a
 * batch that PAD and DROP cannot distribute evenly. Not collective; all ranks pass the same
 * numbers. */
#define shard_group_sampler_create(...) \
    SHARD_GIVEN(shard_group_sampler_create_with(         \
        SHARD_OPTIONS(shard_group_sampler_options, SHARD_GROUP_SAMPLER_OPTIONS, __VA_ARGS__)))
SHARD_API shard_group_sampler *shard_group_sampler_create_with(int64_t samples, const shard_group_sampler_options *options);
SHARD_API void shard_group_sampler_destroy(shard_group_sampler *sampler);

/* Steps of an epoch: the same on all ranks. Of NULL 0. */
SHARD_API int64_t shard_group_sampler_steps(const shard_group_sampler *sampler);
/* The most samples of this rank in a step: room for shard_group_sampler_next. Of NULL 0. */
SHARD_API int64_t shard_group_sampler_max_local_batch(const shard_group_sampler *sampler);

/* Writes this rank's samples of the step that comes into samples, [shard_group_sampler_max_local_batch],
 * their number into *count, and goes on; false, and *count 0, after the epoch's last step, and with the error set where an
 * argument is NULL. */
SHARD_API bool shard_group_sampler_next(shard_group_sampler *sampler, int64_t *samples, int64_t *count);

/* Samples of the last step that was distributed, of all members together: samples that PAD repeats
 * count again. At an epoch's beginning, and of NULL, 0. */
SHARD_API int64_t shard_group_sampler_last_batch_size(const shard_group_sampler *sampler);

/* Goes to the beginning of an epoch, from 0 on (ARGUMENT). As DistributedSampler.set_epoch. */
SHARD_API shard_status shard_group_sampler_set_epoch(shard_group_sampler *sampler, int64_t epoch);
/* Where it stands, and going there, in the middle of an epoch too: the step that comes, up to
 * shard_group_sampler_steps, the epoch's end. Errors: ARGUMENT, no such epoch or step (of
 * another data set or batch); it stays where it was then. */
SHARD_API int64_t shard_group_sampler_epoch(const shard_group_sampler *sampler);
SHARD_API int64_t shard_group_sampler_step(const shard_group_sampler *sampler);
SHARD_API shard_status shard_group_sampler_seek(shard_group_sampler *sampler, int64_t epoch, int64_t step);

/* For loaders that work ahead, from any thread: the positions in the epoch that are this
 * rank's in a step (0 <= step < steps), and the sample at a position (from 0 on) of an epoch. With
 * the error set {0, 0} and -1: no such step, a negative position, no samples at all, NULL. */
SHARD_API shard_range shard_group_sampler_local_range(const shard_group_sampler *sampler, int64_t step);
SHARD_API int64_t shard_group_sampler_sample_at(const shard_group_sampler *sampler, int64_t epoch, int64_t position);

SHARD_END_C

#endif
