/* Assigns samples to ranks: a function of seed, epoch and position. */
#include <shard/data.h>

#include "base/error.h"
#include "base/math.h"
#include "base/options.h"
#include "base/memory.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdlib.h>

struct shard_group_sampler {
    int64_t samples, batch;
    int ranks, rank;
    bool shuffle;
    uint64_t seed;
    int64_t positions; /* of an epoch: all samples, or a multiple of the ranks */
    int64_t epoch, step;
};

static shard_status check(int64_t samples, const shard_group_sampler_options *o)
{
    if (samples < 0 || o->batch < 1 || o->ranks < 1 || o->rank < 0 || o->rank >= o->ranks)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_group_sampler_create: %" PRId64 " samples in batches of %" PRId64 " for rank %d of %d "
                           "(.rank, .ranks): a batch is at least 1 (-1: one sample for each rank), ranks count from 0",
                           samples, o->batch, o->rank, o->ranks);
    if ((unsigned)o->last_batch > SHARD_LAST_BATCH_DROP)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_group_sampler_create: last_batch %d is none of SHARD_LAST_BATCH_PAD (0), SHARD_LAST_BATCH_EXACT (1), "
            "SHARD_LAST_BATCH_DROP (2)",
            (int)o->last_batch);
    if (o->last_batch != SHARD_LAST_BATCH_EXACT && o->batch % o->ranks != 0)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_group_sampler_create: a batch of %" PRId64
                           " is not the same number of samples for each of %d ranks, "
                           "as SHARD_LAST_BATCH_PAD and SHARD_LAST_BATCH_DROP need: take a multiple, or SHARD_LAST_BATCH_EXACT",
                           o->batch, o->ranks);
    return SHARD_OK;
}

shard_group_sampler *shard_group_sampler_create_with(int64_t samples, const shard_group_sampler_options *given)
{
    SHARD_READ_OPTIONS(shard_group_sampler_options, SHARD_GROUP_SAMPLER_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (options.group) {
        options.ranks = shard_group_size(options.group);
        options.rank = shard_group_rank(options.group);
    }
    if (options.batch == -1)
        options.batch = options.ranks;
    if (check(samples, &options) != SHARD_OK)
        return NULL;
    int64_t over = samples % options.ranks, positions = samples;
    if (options.last_batch == SHARD_LAST_BATCH_DROP)
        positions -= over;
    else if (options.last_batch == SHARD_LAST_BATCH_PAD && over > 0 &&
             __builtin_add_overflow(positions, options.ranks - over, &positions))
        return shard_fail_null(SHARD_ERROR_ARGUMENT,
                               "shard_group_sampler_create: %" PRId64 " samples and what SHARD_LAST_BATCH_PAD adds overflow",
                               samples);
    shard_group_sampler *sampler = shard_calloc(1, sizeof *sampler);
    if (!sampler)
        return NULL;
    *sampler = (shard_group_sampler){.samples = samples,
                                     .batch = options.batch,
                                     .ranks = options.ranks,
                                     .rank = options.rank,
                                     .shuffle = options.shuffle,
                                     .seed = options.seed,
                                     .positions = positions};
    return sampler;
}

void shard_group_sampler_destroy(shard_group_sampler *sampler)
{
    free(sampler);
}

int64_t shard_group_sampler_steps(const shard_group_sampler *sampler)
{
    return sampler ? sampler->positions / sampler->batch + (sampler->positions % sampler->batch != 0) : 0;
}

int64_t shard_group_sampler_max_local_batch(const shard_group_sampler *sampler)
{
    return sampler ? shard_split_range(sampler->batch, sampler->ranks, sampler->rank).size : 0;
}

static int64_t samples_of_step(const shard_group_sampler *sampler, int64_t step)
{
    int64_t left = sampler->positions - step * sampler->batch;
    return shard_min(left, sampler->batch);
}

shard_range shard_group_sampler_local_range(const shard_group_sampler *sampler, int64_t step)
{
    if (!sampler) {
        shard_null_argument("shard_group_sampler_local_range", "sampler");
        return (shard_range){0, 0};
    }
    if (step < 0 || step >= shard_group_sampler_steps(sampler)) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_group_sampler_local_range: step %" PRId64 " of an epoch of %" PRId64 " steps, which count from 0",
                    step, shard_group_sampler_steps(sampler));
        return (shard_range){0, 0};
    }
    shard_range part = shard_split_range(samples_of_step(sampler, step), sampler->ranks, sampler->rank);
    part.start += step * sampler->batch;
    return part;
}

int64_t shard_group_sampler_last_batch_size(const shard_group_sampler *sampler)
{
    return sampler && sampler->step > 0 ? samples_of_step(sampler, sampler->step - 1) : 0;
}

int64_t shard_group_sampler_sample_at(const shard_group_sampler *sampler, int64_t epoch, int64_t position)
{
    if (!sampler) {
        shard_null_argument("shard_group_sampler_sample_at", "sampler");
        return -1;
    }
    if (epoch < 0 || position < 0 || sampler->samples == 0) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_group_sampler_sample_at: position %" PRId64 " of epoch %" PRId64 " of %" PRId64
                    " samples: both count from 0",
                    position, epoch, sampler->samples);
        return -1;
    }
    uint64_t count = (uint64_t)sampler->samples, at = (uint64_t)position % count; /* PAD repeats the first samples */
    /* The draws of tensors count up from 0, these count down from the maximum. */
    shard_draw draw = {.seed = sampler->seed, .number = UINT64_MAX - (uint64_t)epoch};
    return (int64_t)(sampler->shuffle ? shard_shuffled_at(draw, count, at) : at);
}

bool shard_group_sampler_next(shard_group_sampler *sampler, int64_t *samples, int64_t *count)
{
    if (!sampler || !samples || !count) {
        shard_null_argument("shard_group_sampler_next", !sampler ? "sampler" : !samples ? "samples" : "count");
        if (count)
            *count = 0;
        return false;
    }
    *count = 0;
    if (sampler->step >= shard_group_sampler_steps(sampler))
        return false;
    shard_range part = shard_group_sampler_local_range(sampler, sampler->step++);
    for (*count = 0; *count < part.size; ++*count)
        samples[*count] = shard_group_sampler_sample_at(sampler, sampler->epoch, part.start + *count);
    return true;
}

static shard_status seek(const char *function, shard_group_sampler *sampler, int64_t epoch, int64_t step)
{
    if (!sampler)
        return shard_null_argument(function, "sampler");
    if (epoch < 0 || step < 0 || step > shard_group_sampler_steps(sampler))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: epoch %" PRId64 ", step %" PRId64 ": both count from 0, and an epoch of %" PRId64
                           " samples in batches of %" PRId64 " has %" PRId64 " steps",
                           function, epoch, step, sampler->samples, sampler->batch, shard_group_sampler_steps(sampler));
    sampler->epoch = epoch;
    sampler->step = step;
    return SHARD_OK;
}

shard_status shard_group_sampler_seek(shard_group_sampler *sampler, int64_t epoch, int64_t step)
{
    return seek("shard_group_sampler_seek", sampler, epoch, step);
}

shard_status shard_group_sampler_set_epoch(shard_group_sampler *sampler, int64_t epoch)
{
    return seek("shard_group_sampler_set_epoch", sampler, epoch, 0);
}

int64_t shard_group_sampler_epoch(const shard_group_sampler *sampler)
{
    return sampler ? sampler->epoch : 0;
}

int64_t shard_group_sampler_step(const shard_group_sampler *sampler)
{
    return sampler ? sampler->step : 0;
}
