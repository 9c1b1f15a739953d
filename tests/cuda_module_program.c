/*
 * Opens the GPU and computes on it, or says that there is none: the CUDA module as
 * nvcc made it, on a machine with or without a GPU. Exits 0 if it went well, 77 (a
 * skipped test) if there is no GPU and the library said so.
 */
#include <shard/shard.h>

#include <stdio.h>
#include <string.h>

static int compute(shard_device *cuda)
{
    const float values[] = {1, 2};
    float sum[2] = {0};
    SHARD_SCOPE {
        shard_tensor *x = shard_from_host(values, SHARD_SHAPE(2), .device = cuda);
        shard_copy_to_host(shard_add(x, x), sum, sizeof sum);
    }
    bool right = sum[0] == 2 && sum[1] == 4;
    fprintf(stderr, "%s: 1 + 1 = %g, 2 + 2 = %g\n", shard_device_name(cuda), (double)sum[0], (double)sum[1]);
    return right ? 0 : 1;
}

int main(void)
{
    shard_device *cuda = shard_device_open("cuda");
    if (cuda)
        return compute(cuda);
    fprintf(stderr, "%s\n", shard_last_error());
    bool said = shard_last_status() == SHARD_ERROR_UNAVAILABLE && strncmp(shard_last_error(), "cuda: no GPU here", 17) == 0;
    return said ? 77 : 1;
}
