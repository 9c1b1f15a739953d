/*
 * bench_comm: microseconds and GB/s of the checked collectives, over the launcher's transport: shardrun -n 4
 * bench_comm, mpirun -n 4 bench_comm. Each number is the median over repetitions of the slowest rank's time. GB/s
 * count the whole array (all_reduce's data, all_gather's and reduce_scatter's all).
 */
#include "clock.h"

#include "comm/comm.h"

#include <shard/base.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"barrier", "all_reduce", "all_gather", "reduce_scatter", "broadcast"};
enum { BENCHES = sizeof names / sizeof *names };

static void run_once(shard_group *world, int bench, float *data, float *other, int64_t count, const int64_t *counts)
{
    switch (bench) {
    case 0:
        shard_barrier(world);
        break;
    case 1:
        shard_group_all_reduce(world, NULL, data, count, SHARD_FLOAT32, SHARD_SUM);
        break;
    case 2:
        shard_group_all_gather(world, NULL, other, data, counts, SHARD_FLOAT32);
        break;
    case 3:
        shard_group_reduce_scatter(world, NULL, data, other, counts, SHARD_FLOAT32, SHARD_SUM);
        break;
    default:
        shard_group_broadcast(world, NULL, data, count, SHARD_FLOAT32, 0);
    }
}

static void measure(shard_group *world, int bench, int64_t bytes, int repetitions)
{
    int64_t count = bytes / 4, *counts = calloc((size_t)world->size, sizeof *counts);
    float *data = malloc((size_t)bytes + 4), *other = malloc((size_t)bytes + 4);
    double *seconds = calloc((size_t)repetitions, sizeof *seconds);
    if (!counts || !data || !other || !seconds)
        exit(1);
    memset(data, 0, (size_t)bytes);
    memset(other, 0, (size_t)bytes);
    for (int i = 0; i < world->size; i++)
        counts[i] = shard_split_range(count, world->size, i).size;
    for (int i = -2; i < repetitions; i++) {
        shard_barrier(world);
        double taken = now();
        run_once(world, bench, data, other, count, counts);
        taken = now() - taken;
        shard_group_all_reduce(world, NULL, &taken, 1, SHARD_FLOAT64, SHARD_MAX);
        if (i >= 0)
            seconds[i] = taken;
    }
    double median = median_of(seconds, repetitions);
    if (world->rank == 0)
        printf("%-5s %d ranks %-15s %9lld B %10.1f us %8.2f GB/s\n", shard_group_transport(world), world->size, names[bench],
               (long long)bytes, 1e6 * median, bench ? 1e-9 * (double)bytes / median : 0.0);
    free(counts);
    free(data);
    free(other);
    free(seconds);
}

int main(int argc, char **argv)
{
    static const struct {
        int64_t bytes;
        int repetitions;
    } sizes[] = {{4096, 400}, {1 << 20, 100}, {64 << 20, 12}};
    shard_group *world = shard_world_open(&argc, &argv);
    for (size_t size = 0; world && size < 3 && shard_last_status() == SHARD_OK; size++)
        for (int bench = size == 0 ? 0 : 1; bench < BENCHES; bench++)
            measure(world, bench, sizes[size].bytes, sizes[size].repetitions);
    shard_status status = shard_last_status();
    if (status != SHARD_OK)
        fprintf(stderr, "bench_comm: %s\n", shard_last_error());
    shard_world_close(world);
    return status != SHARD_OK;
}
