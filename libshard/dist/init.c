/* Joining and leaving the job. */
#include "dist/dist.h"

#include "base/log.h"
#include "dist/threads.h"

#include <stdio.h>

static shard_group *world;

shard_group *shard_world(void)
{
    return world;
}

shard_status shard_init(int *argc, char ***argv)
{
    if (world)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_init: called twice");
    world = shard_world_open(argc, argv);
    if (!world)
        return shard_last_status();
    shard_log_set_rank(shard_group_size(world) > 1 ? shard_group_rank(world) : -1);
    return shard_share_cores(world);
}

int shard_finalize(void)
{
    shard_device *device = shard_opened_accelerator();
    if (device && shard_last_status() == SHARD_OK)
        device->ops->synchronize(device); /* while the groups are there, which watch the wait */
    int failed = shard_last_status() != SHARD_OK;
    bool told = failed && shard_group_rank(world) > 0 && shard_group_failure_is_joint(world); /* by rank 0 */
    if (failed && !told)
        shard_log_message(SHARD_LOG_ERROR, "%s", shard_last_error());
    shard_world_close(world);
    world = NULL;
    return failed;
}
