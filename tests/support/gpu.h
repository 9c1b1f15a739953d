/* Data in a GPU's memory, and groups that exchange it. */
#ifndef TESTS_SUPPORT_GPU_H
#define TESTS_SUPPORT_GPU_H

#include "comm/comm.h"

/* Whether this machine has no GPU or no NCCL of that version or later, for tests that are skipped then: prints why.
 * Asked in a process of its own, as CUDA does not live on in those that the tests fork. */
bool nccl_is_missing(int major, int minor);

/* Before the ranks are forked, which then find so many GPUs. */
void set_gpus(const char *number, const char *nccl);

/* This rank's. */
shard_device *gpu(void);

/* count float32 of that value in the GPU's memory; stays there until the rank ends. */
float *make_filled(int64_t count, double value);
void check_filled(const float *data, int64_t count, float value);

/* An all-reduce over the group. */
void check_sum_of_ranks(shard_group *group);

/* The name of the group's device transport. */
const char *device_transport_of(const shard_group *group);

#endif
