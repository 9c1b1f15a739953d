/*
 * Times the convolutions of ResNet-18 and ResNet-50, forward and both backwards, through the CPU device's table:
 *
 *     bench_conv [batch [image size [dtype]]]
 *
 * Prints a line for each distinct convolution with GFLOP/s, best of some runs, then the time of all of them and the
 * images a second with nothing else.
 */
#include "arguments.h"
#include "clock.h"

#include "base/error.h"
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORWARD, BACKWARD_DATA, BACKWARD_WEIGHT, KINDS };

typedef struct layer {
    shard_conv_shape shape;
    int count;
} layer;

typedef struct network {
    layer layers[64];
    int count;
} network;

static void add_layer(network *net, int64_t n, int64_t size, int64_t c, int64_t o, int64_t kernel, int64_t stride)
{
    shard_conv_shape s = {.n = n, .h = size, .w = size, .c = c, .o = o, .kh = kernel, .kw = kernel};
    s.stride_h = s.stride_w = stride;
    s.pad_h = s.pad_w = kernel / 2;
    s.dilation_h = s.dilation_w = s.groups = 1;
    s.oh = s.ow = (size + 2 * s.pad_h - kernel) / stride + 1;
    for (int i = 0; i < net->count; i++) {
        if (memcmp(&net->layers[i].shape, &s, sizeof s) == 0) {
            net->layers[i].count++;
            return;
        }
    }
    net->layers[net->count++] = (layer){s, 1};
}

static network resnet(const int blocks[4], bool bottleneck, int64_t n, int64_t size)
{
    network net = {.count = 0};
    add_layer(&net, n, size, 3, 64, 7, 2);
    size /= 4;
    int64_t in = 64;
    for (int stage = 0; stage < 4; stage++) {
        int64_t width = (int64_t)64 << stage, out = bottleneck ? 4 * width : width;
        for (int block = 0; block < blocks[stage]; block++) {
            int64_t stride = stage > 0 && block == 0 ? 2 : 1;
            if (bottleneck)
                add_layer(&net, n, size, in, width, 1, 1);
            add_layer(&net, n, size, bottleneck ? width : in, width, 3, stride);
            if (stride != 1 || in != out)
                add_layer(&net, n, size, in, out, 1, stride);
            size /= stride;
            add_layer(&net, n, size, width, out, bottleneck ? 1 : 3, 1);
            in = out;
        }
    }
    return net;
}

static void *filled(size_t elements, shard_dtype dtype)
{
    size_t bytes = elements * shard_dtype_size(dtype);
    unsigned char *data = shard_cpu()->ops->allocate(shard_cpu(), bytes);
    if (!data) {
        fprintf(stderr, "bench_conv: %s\n", shard_last_error());
        exit(1);
    }
    memset(data, 0x3c, bytes); /* a small number in each of the types */
    return data;
}

static shard_status compute(int kind, const shard_conv_shape *s, void *x, void *weight, void *y, shard_dtype dtype)
{
    const shard_device_ops *ops = shard_cpu()->ops;
    if (kind == FORWARD)
        return ops->conv2d(shard_cpu(), s, x, weight, NULL, y, dtype);
    if (kind == BACKWARD_DATA)
        return ops->conv2d_backward_data(shard_cpu(), s, weight, y, x, dtype);
    return ops->conv2d_backward_weight(shard_cpu(), s, x, y, weight, NULL, dtype);
}

static double best_time(int kind, const shard_conv_shape *s, shard_dtype dtype)
{
    size_t size_x = (size_t)(s->n * s->h * s->w * s->c), size_y = (size_t)(s->n * s->oh * s->ow * s->o);
    size_t size_weight = (size_t)(s->o * s->c * s->kh * s->kw), bytes = shard_dtype_size(dtype);
    void *x = filled(size_x, dtype), *weight = filled(size_weight, dtype), *y = filled(size_y, dtype);
    double best = 1e9, start = now();
    for (int run = 0; run < 20 && (run < 4 || now() - start < 0.5); run++) {
        double before = now();
        if (compute(kind, s, x, weight, y, dtype) != SHARD_OK) {
            fprintf(stderr, "bench_conv: %s\n", shard_last_error());
            exit(1);
        }
        double seconds = now() - before;
        if (run > 0 && seconds < best)
            best = seconds;
    }
    shard_cpu()->ops->release(shard_cpu(), x, size_x * bytes);
    shard_cpu()->ops->release(shard_cpu(), weight, size_weight * bytes);
    shard_cpu()->ops->release(shard_cpu(), y, size_y * bytes);
    return best;
}

static void bench(const char *name, network net, shard_dtype dtype)
{
    double total[KINDS] = {0};
    printf("%s, %s: GFLOP/s\n   size    c ->    o  kernel stride  times  forward  backward data  backward weight\n", name,
           shard_dtype_name(dtype));
    for (int i = 0; i < net.count; i++) {
        const shard_conv_shape *s = &net.layers[i].shape;
        double flops = 2.0 * (double)(s->n * s->oh * s->ow) * (double)(s->o * s->c * s->kh * s->kw), rate[KINDS] = {0};
        for (int kind = FORWARD; kind < KINDS; kind++) {
            if (kind == BACKWARD_DATA && s->c == 3)
                continue; /* images need no gradient */
            double seconds = best_time(kind, s, dtype);
            rate[kind] = 1e-9 * flops / seconds;
            total[kind] += net.layers[i].count * seconds;
        }
        printf("%7d %4d -> %4d %7d %6d %6d %8.0f %14.0f %16.0f\n", (int)s->h, (int)s->c, (int)s->o, (int)s->kh, (int)s->stride_h,
               net.layers[i].count, rate[FORWARD], rate[BACKWARD_DATA], rate[BACKWARD_WEIGHT]);
        fflush(stdout);
    }
    double sum = total[FORWARD] + total[BACKWARD_DATA] + total[BACKWARD_WEIGHT];
    printf("all: %.0f + %.0f + %.0f = %.0f ms, %.1f images/s\n\n", 1e3 * total[FORWARD], 1e3 * total[BACKWARD_DATA],
           1e3 * total[BACKWARD_WEIGHT], 1e3 * sum, (double)net.layers[0].shape.n / sum);
}

int main(int argc, char **argv)
{
    int64_t batch = argc > 1 ? whole_argument(argv[1]) : 32, size = argc > 2 ? whole_argument(argv[2]) : 224;
    const char *name = argc > 3 ? argv[3] : "float32";
    shard_dtype dtype = SHARD_INT64; /* none of a product */
    for (int i = 0; i < SHARD_DTYPES; i++) {
        if (strcmp(name, shard_dtype_name((shard_dtype)i)) == 0)
            dtype = (shard_dtype)i;
    }
    if (size < 32 || !shard_dtype_is_float(dtype)) {
        fprintf(stderr, "usage: bench_conv [batch [image size [dtype]]]\n");
        return 2;
    }
    bench("ResNet-18", resnet((const int[]){2, 2, 2, 2}, false, batch, size), dtype);
    bench("ResNet-50", resnet((const int[]){3, 4, 6, 3}, true, batch, size), dtype);
    return 0;
}
