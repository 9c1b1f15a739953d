/*
 * Images a second of a ResNet, forward and backward, without a step; bench_backbone.py measures the same with
 * PyTorch.
 *     bench_backbone ARCH SIZE BATCH [SECONDS [bfloat16 | float16]]
 * The dtype is for autocast. Prints "ARCH SIZE BATCH images/s", the median of the steps after two of warm-up.
 */
#include "arguments.h"
#include "clock.h"

#include <shard/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_STEPS 1000

static shard_tensor *make_labels(int64_t batch)
{
    int64_t *labels = malloc((size_t)batch * sizeof *labels);
    for (int64_t i = 0; i < batch && labels; i++)
        labels[i] = i * 37 % 1000;
    shard_tensor *tensor = shard_from_host(labels, SHARD_SHAPE(batch), .dtype = SHARD_INT64);
    free(labels);
    return tensor;
}

static double step_seconds(shard_module *model, shard_tensors *parameters, shard_tensor *x, shard_tensor *labels,
                           shard_dtype mode)
{
    double start = now();
    SHARD_SCOPE {
        shard_tensor *loss = NULL;
        SHARD_AUTOCAST(mode)
            loss = shard_cross_entropy(shard_forward(model, x), labels);
        shard_backward(loss);
    }
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
        shard_zero_grad(shard_tensors_at(parameters, i));
    return now() - start;
}

int main(int argc, char **argv)
{
    shard_dtype mode = argc < 6 ? SHARD_FLOAT32 : strcmp(argv[5], "float16") == 0 ? SHARD_FLOAT16 : SHARD_BFLOAT16;
    if (argc < 4 || (mode == SHARD_BFLOAT16 && strcmp(argv[5], "bfloat16") != 0)) {
        fprintf(stderr, "usage: bench_backbone ARCH SIZE BATCH [SECONDS [bfloat16 | float16]]\n");
        return 2;
    }
    int64_t size = whole_argument(argv[2]), batch = whole_argument(argv[3]);
    double seconds = argc > 4 ? number_argument(argv[4]) : 20.0;
    shard_init(NULL, NULL);
    shard_module *model = shard_resnet(argv[1], 1000);
    shard_tensors *parameters = shard_parameters(model);
    SHARD_SCOPE {
        shard_tensor *x = shard_normal(SHARD_SHAPE(batch, size, size, 3), 0.0, 1.0), *labels = make_labels(batch);
        double times[MOST_STEPS], start = now();
        for (int warm_up = 0; warm_up < 2; warm_up++)
            step_seconds(model, parameters, x, labels, mode);
        int steps = 0;
        while (steps < MOST_STEPS && shard_last_status() == SHARD_OK && (steps < 3 || now() - start < seconds))
            times[steps++] = step_seconds(model, parameters, x, labels, mode);
        if (shard_last_status() == SHARD_OK)
            printf("%s %lld %lld %.2f images/s\n", argv[1], (long long)size, (long long)batch, (double)batch / median_of(times, steps));
    }
    shard_tensors_destroy(parameters);
    shard_module_destroy(model);
    return shard_finalize();
}
