#include "support/gpu.h"

#include "support/ranks.h"

#include "comm/nccl/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static bool find_missing(int major, int minor)
{
    int found[2] = {0, 0};
    const shard_nccl_plugin *nccl = shard_device_open("cuda") ? shard_nccl_load() : NULL;
    if (!nccl)
        printf("skipped: %s\n", shard_last_error());
    else if (sscanf(nccl->version, "%d.%d", &found[0], &found[1]) == 2 && found[0] * 100 + found[1] >= major * 100 + minor)
        return false;
    else
        printf("skipped: NCCL is %s, and the test needs %d.%d\n", nccl->version, major, minor);
    return nccl || shard_last_status() == SHARD_ERROR_UNAVAILABLE;
}

bool nccl_is_missing(int major, int minor)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        bool missing = find_missing(major, minor);
        fflush(NULL);
        _exit(missing);
    }
    int status;
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

void set_gpus(const char *number, const char *nccl)
{
    setenv("SHARD_DEVICE", "cuda", 1);
    setenv("SHARD_CUDA_EMULATION_DEVICES", number, 1);
    setenv("SHARD_NCCL", nccl, 1);
    setenv("SHARD_LOG", "info", 1);
}

shard_device *gpu(void)
{
    shard_device *device = shard_default_device();
    ck_assert_msg(device && !device->ops->host_memory, "no GPU: %s", shard_last_error());
    return device;
}

float *make_filled(int64_t count, double value)
{
    float *data = gpu()->ops->allocate(gpu(), (size_t)count * sizeof *data);
    ck_assert_ptr_nonnull(data);
    check_ok(gpu()->ops->fill(gpu(), count, value, data, SHARD_FLOAT32));
    return data;
}

void check_filled(const float *data, int64_t count, float value)
{
    float *host = malloc((size_t)count * sizeof *host);
    ck_assert_ptr_nonnull(host);
    check_ok(gpu()->ops->copy_out(gpu(), host, data, (size_t)count * sizeof *host));
    for (int64_t i = 0; i < count; i++)
        ck_assert_msg(host[i] == value, "element %lld is %g instead of %g", (long long)i, (double)host[i], (double)value);
    free(host);
}

void check_sum_of_ranks(shard_group *group)
{
    float *data = make_filled(1000, shard_group_rank(group) + 1), sum = 0;
    for (int member = 0; member < shard_group_size(group); member++)
        sum += (float)member + 1;
    check_ok(shard_group_all_reduce(group, gpu(), data, 1000, SHARD_FLOAT32, SHARD_SUM));
    check_filled(data, 1000, sum);
}

const char *device_transport_of(const shard_group *group)
{
    return group->device_transport ? group->device_transport->name : "none yet";
}
