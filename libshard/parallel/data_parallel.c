/* Data parallel: an engine that partitions nothing, and a check of the replicas. */
#include "parallel/engine.h"
#include "parallel/replicas.h"

#include "comm/function.h"

#include <shard/parallel.h>

#include <stdlib.h>

struct shard_data_parallel {
    shard_replicas *replicas;
    shard_engine *engine;
};

shard_data_parallel *shard_data_parallel_create_with(const shard_tensors *parameters, shard_data_parallel_options options)
{
    SHARD_FUNCTION("shard_data_parallel_create");
    bool mode_is_known = (unsigned)options.buffer_mode <= SHARD_BUFFERS_LEAVE;
    shard_data_parallel *dp = parameters && mode_is_known ? shard_calloc(1, sizeof *dp) : NULL;
    if (!parameters)
        shard_null_argument("shard_data_parallel_create", "parameters");
    else if (!mode_is_known)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_data_parallel_create: buffer_mode %d is none of SHARD_BUFFERS_BROADCAST (0), SHARD_BUFFERS_AVERAGE (1), "
                    "SHARD_BUFFERS_LEAVE (2)",
                    (int)options.buffer_mode);
    if (dp)
        dp->replicas = shard_replicas_create(parameters, &options, "data parallel: the replicas differ");
    if (dp && dp->replicas)
        dp->engine = shard_engine_create(parameters, (shard_bucket_options){.broadcast = !options.no_broadcast,
                                                                            .bytes = shard_bucket_bytes(options.bucket_mib)});
    if (dp && dp->engine)
        return dp;
    shard_group_fail(shard_world());
    shard_data_parallel_destroy(dp);
    return NULL;
}

void shard_data_parallel_destroy(shard_data_parallel *dp)
{
    if (!dp)
        return;
    shard_engine_destroy(dp->engine);
    shard_replicas_destroy(dp->replicas);
    free(dp);
}

void shard_data_parallel_set_sync(shard_data_parallel *dp, bool sync)
{
    if (!dp)
        return;
    shard_replicas_set_sync(dp->replicas, sync);
    shard_engine_set_sync(dp->engine, sync);
}
