/*
 * Times forward and backward of attention with a causal mask in float32, as one operation and made of products and a softmax:
 *
 *     bench_attention BATCH HEADS LENGTH FEATURES STEPS [turns]
 *
 * A line for each step: the milliseconds of both. Then the medians, and the largest memory that each had apart from its operands.
 * turns: each step waits for a line of the standard input (bench_attention.py).
 */
#include "arguments.h"
#include "clock.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STEPS = 1000 };

static void check(bool well)
{
    if (well)
        return;
    fprintf(stderr, "bench_attention: %s\n", shard_last_error());
    exit(1);
}

/* uint8 [length, length]: 1 where the key is behind the query. */
static shard_tensor *make_mask(int64_t length)
{
    uint8_t *behind = calloc((size_t)(length * length) + 1, 1);
    check(behind);
    for (int64_t i = 0; i < length * length; i++)
        behind[i] = i % length > i / length;
    shard_tensor *mask = shard_from_host(behind, SHARD_SHAPE(length, length), .dtype = SHARD_UINT8);
    free(behind);
    return mask;
}

static shard_tensor *composed(shard_tensor *const *x, shard_tensor *mask)
{
    shard_tensor *scores = shard_matmul(x[0], shard_transpose(x[1], 2, 3));
    scores = shard_scale(scores, 1 / sqrt((double)shard_tensor_size(x[0], 3)));
    scores = shard_where(mask, shard_full(SHARD_SCALAR, -INFINITY), scores);
    return shard_matmul(shard_softmax(scores), x[2]);
}

/* Milliseconds of a forward and backward; *peak: the memory apart from what was there. */
static double step(shard_tensor *const *x, shard_tensor *mask, shard_tensor *dy, bool fused, int64_t *peak)
{
    shard_device *device = shard_device_open(NULL);
    for (int i = 0; i < 3; i++)
        shard_zero_grad(x[i]);
    shard_reset_peak_memory(device);
    int64_t before = shard_get_memory_stats(device).current;
    double start = now();
    SHARD_SCOPE
    {
        shard_tensor *y = fused ? shard_scaled_dot_product_attention(x[0], x[1], x[2], .is_causal = true) : composed(x, mask);
        check(shard_backward_from(y, dy) == SHARD_OK);
    }
    check(shard_synchronize(device) == SHARD_OK);
    double seconds = now() - start;
    *peak = shard_get_memory_stats(device).peak - before;
    return seconds * 1e3;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: bench_attention BATCH HEADS LENGTH FEATURES STEPS [turns]\n");
        return 2;
    }
    int64_t size[4], peak[2] = {0};
    for (int i = 0; i < 4; i++)
        size[i] = whole_argument(argv[i + 1]);
    int64_t steps = whole_argument(argv[5]);
    int count = 0;
    bool turns = argc > 6 && strcmp(argv[6], "turns") == 0;
    double times[2][MOST_STEPS];
    SHARD_SCOPE
    {
        shard_shape shape = SHARD_SHAPE(size[0], size[1], size[2], size[3]);
        shard_tensor *x[4], *mask = make_mask(size[2]);
        for (int i = 0; i < 4; i++) {
            x[i] = shard_normal(shape, 0, 1, .requires_grad = i < 3);
            check(x[i]);
        }
        char line[80];
        for (int i = 0; i < 2; i++) /* gradients get their memory, kernels are chosen */
            step(x, mask, x[3], i == 0, &peak[i]);
        for (; count < steps && count < MOST_STEPS && (!turns || fgets(line, sizeof line, stdin)); count++) {
            for (int i = 0; i < 2; i++)
                times[i][count] = step(x, mask, x[3], i == 0, &peak[i]);
            printf("%.2f %.2f\n", times[0][count], times[1][count]);
            fflush(stdout);
        }
    }
    printf("one operation %.1f ms, %.1f MiB; composed %.1f ms, %.1f MiB\n", count ? median_of(times[0], count) : 0,
           (double)peak[0] / 1048576, count ? median_of(times[1], count) : 0, (double)peak[1] / 1048576);
    return 0;
}
