/* In the library: loads the NCCL module, which is built where CUDA and NCCL were found. */
#include "comm/nccl/host.h"

#include <string.h>

const shard_nccl_plugin *shard_nccl_load(void)
{
    static const shard_nccl_plugin *loaded;
    if (loaded)
        return loaded;
    const shard_nccl_host host = {
        .base = shard_plugin_own_base,
        .replace_error = shard_replace_error,
        .timeout = shard_comm_timeout,
        .group_describe = shard_group_describe,
        .group_notify_abort = shard_group_notify_abort,
        .group_name_ranks = shard_group_name_ranks,
    };
    void *symbol = shard_plugin_load("nccl", SHARD_NCCL_PLUGIN_OPEN, "this libshard was built without NCCL",
                                     "it needs libnccl.so.2 where it was when libshard was built", false);
    if (!symbol)
        return NULL;
    shard_nccl_plugin_open_function *open;
    memcpy(&open, &symbol, sizeof open);
    return loaded = open(&host);
}
