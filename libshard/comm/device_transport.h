/*
 * What carries data that lies in a device's memory between the members of a group:
 * pinned host memory and the group's own transport (staged.c), or a transport that
 * reaches the devices themselves. The members agree on it at the group's first
 * collective of such data.
 */
#ifndef SHARD_COMM_DEVICE_TRANSPORT_H
#define SHARD_COMM_DEVICE_TRANSPORT_H

#include "comm/comm.h"

/* The collectives as in shard_group_ops, called after the members have met, for more
 * than one member. Counts may be 0. Work may be queued: the data is what it was when
 * everything queued on the device before is done, and the result is there for
 * everything that is queued later (after wait, for those that are started). */
typedef struct shard_device_transport {
    const char *name;
    bool takes_small; /* also what would fit into the fingerprint: reading it there would wait */
    shard_status (*all_reduce)(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, shard_reduce_op);
    /* This one and the other two that start are NULL where nothing could go on in between. */
    shard_request *(*all_reduce_start)(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, shard_reduce_op);
    shard_status (*wait)(shard_group *, shard_device *, shard_request *);
    shard_status (*all_gather)(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts, shard_dtype);
    shard_status (*reduce_scatter)(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts, shard_dtype,
                                   shard_reduce_op);
    shard_request *(*all_gather_start)(shard_group *, shard_device *, const void *mine, void *all, const int64_t *counts,
                                       shard_dtype);
    shard_request *(*reduce_scatter_start)(shard_group *, shard_device *, void *all, void *mine, const int64_t *counts,
                                           shard_dtype, shard_reduce_op);
    shard_status (*broadcast)(shard_group *, shard_device *, void *data, int64_t count, shard_dtype, int root);
    /* Frees group->device_state. */
    void (*leave)(shard_group *);
} shard_device_transport;

/* Through pinned host memory, in pieces of bounded size. */
extern const shard_device_transport shard_staged_transport;

/* What a member tells of its device before the device transport is chosen. */
typedef struct shard_device_offer {
    uint64_t host;             /* hash of the machine's name and boot */
    char device[32];           /* the device's place in the machine: "0000:1b:00.0" */
    char refusal[128];         /* why it cannot be reached but through the host; "" if it can */
    int32_t reduced_precision; /* SHARD_NCCL_REDUCED_PRECISION */
    int32_t shares_gpu;        /* it can be reached from ranks on the same one */
} shard_device_offer;

shard_device_offer shard_device_offer_of(shard_device *device);

/* Gives groups that a parent was just split into their device transport, if the parent's can be
 * split too; all in one color are `group` (NULL: of this rank alone). Collective over the parent. */
shard_status shard_device_transport_split(shard_group *parent, shard_group *group, int color);

/* Sets group->device_transport by what all members [size] offer; the same on every member.
 * Collective. */
shard_status shard_device_transport_choose(shard_group *group, shard_device *device, const shard_device_offer *const *offers);

#endif
