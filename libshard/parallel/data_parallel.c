/* Data parallel: a handle on the engines of its parameters, and a check of the replicas. */
#include "parallel/engine.h"
#include "parallel/replicas.h"

#include "base/options.h"
#include "comm/function.h"

#include <shard/parallel.h>

#include <stdlib.h>

struct shard_data_parallel {
    shard_replicas *replicas;
    shard_engine **engines; /* a reference to each: the engine made here, and the engines that parameters belonged to */
    int64_t count, capacity;
};

static shard_status check_parameter(const char *name, const shard_tensor *parameter, int stage)
{
    const shard_engine *engine = shard_engine_of(parameter);
    if (engine && (int)shard_engine_level(engine) != stage)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_data_parallel_create: \"%s\" is of stage %d already, by an earlier shard_data_parallel_create or "
            "shard_zero_optimizer, and stage %d is asked for: make the one with .stage = %d first",
            name, (int)shard_engine_level(engine), stage, stage);
    if (!engine && shard_engine_takes(parameter) && shard_has_grad(parameter))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_data_parallel_create: \"%s\" has a gradient already, which stage %d would lose: call it before "
                           "backward or after shard_step",
                           name, stage);
    return SHARD_OK;
}

static shard_status check(const shard_tensors *parameters, const shard_data_parallel_options *options,
                          shard_bucket_options *buckets)
{
    if (!parameters)
        return shard_null_argument("shard_data_parallel_create", "parameters");
    if ((unsigned)options->buffer_mode > SHARD_BUFFERS_LEAVE)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_data_parallel_create: buffer_mode %d is none of SHARD_BUFFERS_BROADCAST (0), "
                           "SHARD_BUFFERS_AVERAGE (1), SHARD_BUFFERS_LEAVE (2)",
                           (int)options->buffer_mode);
    buckets->broadcast = options->init_sync;
    SHARD_TRY(shard_bucket_options_set(buckets, "shard_data_parallel_create", SHARD_PARTITION_NONE, options->stage,
                                       options->partition, options->bucket_mib));
    for (int64_t i = 0; i < shard_tensors_count(parameters) && options->stage; i++)
        SHARD_TRY(check_parameter(shard_tensors_name(parameters, i), shard_tensors_at(parameters, i), options->stage));
    return SHARD_OK;
}

static shard_status add_engine(shard_data_parallel *dp, shard_engine *engine)
{
    for (int64_t i = 0; i < dp->count; i++)
        if (dp->engines[i] == engine)
            return SHARD_OK;
    SHARD_TRY(shard_grow(&dp->engines, &dp->capacity, dp->count + 1, sizeof *dp->engines));
    dp->engines[dp->count++] = shard_engine_ref(engine);
    return SHARD_OK;
}

static shard_status make(shard_data_parallel *dp, const shard_tensors *parameters, const shard_data_parallel_options *options,
                         shard_bucket_options buckets)
{
    dp->replicas = shard_replicas_create(parameters, options);
    if (!dp->replicas)
        return shard_last_status();
    shard_engine *made = shard_engine_create(buckets);
    shard_status status = made ? add_engine(dp, made) : shard_last_status();
    shard_engine_unref(made);
    SHARD_TRY(status);
    SHARD_TRY(shard_engine_add(dp->engines[0], parameters));
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_engine *engine = shard_engine_of(shard_tensors_at(parameters, i));
        SHARD_TRY(engine ? add_engine(dp, engine) : SHARD_OK);
    }
    return SHARD_OK;
}

/* All ranks of the parameters' replica groups have the object, or none: some may have failed after their last collective. */
static shard_status agree(const shard_tensors *parameters)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_group *group = shard_new_parameter_group(parameters, i);
        if (group)
            shard_agree(group);
    }
    return shard_last_status();
}

shard_data_parallel *shard_data_parallel_create_with(const shard_tensors *parameters, const shard_data_parallel_options *given)
{
    SHARD_FUNCTION("shard_data_parallel_create");
    SHARD_READ_OPTIONS(shard_data_parallel_options, SHARD_DATA_PARALLEL_OPTIONS_INIT, options, given);
    shard_require_identical("stage %d, partition %d, bucket_mib %.9g", options.stage, (int)options.partition,
                            (double)shard_bucket_bytes(options.bucket_mib) / 1048576.0);
    shard_bucket_options buckets = {0};
    shard_data_parallel *dp = check(parameters, &options, &buckets) == SHARD_OK ? shard_calloc(1, sizeof *dp) : NULL;
    /* A rank that fails alone visits the groups in the same order as the others do here, but not in the midst of making. */
    if (agree(parameters) == SHARD_OK) {
        make(dp, parameters, &options, buckets);
        if (agree(parameters) == SHARD_OK)
            return dp;
    }
    shard_group_fail(shard_world());
    shard_data_parallel_destroy(dp);
    return NULL;
}

void shard_data_parallel_destroy(shard_data_parallel *dp)
{
    if (!dp)
        return;
    for (int64_t i = 0; i < dp->count; i++) {
        shard_engine_set_sync(dp->engines[i], true); /* the engine may live on */
        shard_engine_unref(dp->engines[i]);
    }
    shard_replicas_destroy(dp->replicas);
    free(dp->engines);
    free(dp);
}

void shard_data_parallel_set_sync(shard_data_parallel *dp, bool sync)
{
    if (!dp)
        return;
    shard_replicas_set_sync(dp->replicas, sync);
    for (int64_t i = 0; i < dp->count; i++)
        shard_engine_set_sync(dp->engines[i], sync);
}
