/* Between the library and its NCCL plugin. */
#ifndef SHARD_COMM_NCCL_HOST_H
#define SHARD_COMM_NCCL_HOST_H

#include "base/kept_error.h"
#include "base/plugin.h"
#include "comm/transport.h"

#define SHARD_NCCL_ID_BYTES 128

typedef struct shard_nccl_host {
    shard_plugin_base base;
    void (*keep_error)(shard_kept_error *kept);
    void (*put_back_error)(const shard_kept_error *kept);
    double (*timeout)(void);
    void (*group_describe)(const shard_group *group, char *text, size_t bytes);
    void (*notify_abort)(shard_group *group);
    void (*group_name_ranks)(const shard_group *group, const bool *marked, char *text, size_t bytes);
} shard_nccl_host;

/* The plugin's functions. Groups get the transport by connect. */
typedef struct shard_nccl_plugin {
    shard_transport transport;
    char version[16];
    bool shares_gpu;    /* ranks on one GPU can be connected, with NCCL_MULTI_RANK_GPU_ENABLE=1 */
    int64_t *sum_bytes; /* of GPU memory for sums of 16-bit types, the same on all ranks: tests set less */
    /* Where the device is in its machine, as a string. An error: its collectives cannot go through NCCL. */
    shard_status (*find_place)(shard_device *device, char *place, size_t bytes);
    /* The name of a communicator to be, by one of its ranks. */
    shard_status (*make_id)(void *id);
    /* The group's communicator. With reduced precision NCCL takes the sums of 16-bit types. Collective. */
    shard_status (*connect)(shard_group *group, shard_device *device, const void *id, bool reduced_precision);
} shard_nccl_plugin;

/* The function that the plugin exports: it returns its table, or NULL with the error set. */
#define SHARD_NCCL_PLUGIN_OPEN "shard_nccl_plugin_open"
typedef const shard_nccl_plugin *shard_nccl_plugin_open_function(const shard_nccl_host *host);
SHARD_API shard_nccl_plugin_open_function shard_nccl_plugin_open;

/* In the library: loads it; NULL with the error set. */
const shard_nccl_plugin *shard_nccl_load(void);

#endif
