/*
 * Times products of the shapes of training, through the CPU device's table:
 *
 *     bench_matmul [rows [features [classes [dtype]]]]
 *
 * A layer of many classes, its two gradients, and others for comparison: GFLOP/s, best of some runs.
 */
#include "arguments.h"
#include "clock.h"

#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(bool well)
{
    if (well)
        return;
    fprintf(stderr, "bench_matmul: %s\n", shard_last_error());
    exit(1);
}

static void *filled(int64_t elements, shard_dtype dtype)
{
    size_t bytes = (size_t)elements * shard_dtype_size(dtype);
    void *data = shard_cpu()->ops->allocate(shard_cpu(), bytes);
    check(data);
    memset(data, 0x3c, bytes); /* a small number in each of the types */
    return data;
}

static void bench(const char *what, shard_matmul_shape s, shard_dtype dtype)
{
    int64_t size_a = s.batch * s.m * s.k, size_b = s.batch * s.k * s.n, size_c = s.batch * s.m * s.n;
    s.stride_a = s.m * s.k;
    s.stride_b = s.k * s.n;
    s.stride_c = s.m * s.n;
    shard_dtype c_dtype = s.wide_c ? SHARD_FLOAT32 : dtype;
    void *a = filled(size_a, dtype), *b = filled(size_b, dtype), *c = filled(size_c, c_dtype);
    double best = 1e9, start = now();
    for (int run = 0; run < 20 && (run < 4 || now() - start < 1); run++) {
        double before = now();
        check(shard_cpu()->ops->matmul(shard_cpu(), &s, a, b, c, dtype) == SHARD_OK);
        double seconds = now() - before;
        if (run > 0 && seconds < best)
            best = seconds;
    }
    printf("%-26s %5d of %7d x %7d x %7d%s%s%s%s: %7.2f ms, %4.0f GFLOP/s\n", what, (int)s.batch, (int)s.m, (int)s.n,
           (int)s.k, s.transpose_a ? " a^T" : "", s.transpose_b ? " b^T" : "", s.accumulate ? " +=" : "",
           s.wide_c ? " float32" : "", 1e3 * best, 2e-9 * (double)(size_c * s.k) / best);
    fflush(stdout);
    shard_cpu()->ops->release(shard_cpu(), a, (size_t)size_a * shard_dtype_size(dtype));
    shard_cpu()->ops->release(shard_cpu(), b, (size_t)size_b * shard_dtype_size(dtype));
    shard_cpu()->ops->release(shard_cpu(), c, (size_t)size_c * shard_dtype_size(c_dtype));
}

int main(int argc, char **argv)
{
    int64_t rows = argc > 1 ? whole_argument(argv[1]) : 64, features = argc > 2 ? whole_argument(argv[2]) : 512;
    int64_t classes = argc > 3 ? whole_argument(argv[3]) : 500000;
    const char *name = argc > 4 ? argv[4] : "float32";
    shard_dtype dtype = SHARD_INT64; /* none of a product */
    for (int i = 0; i < SHARD_DTYPES; i++) {
        if (strcmp(name, shard_dtype_name((shard_dtype)i)) == 0)
            dtype = (shard_dtype)i;
    }
    if (!shard_dtype_is_float(dtype)) {
        fprintf(stderr, "usage: bench_matmul [rows [features [classes [dtype]]]]\n");
        return 2;
    }
    shard_matmul_shape output = {.batch = 1, .m = rows, .n = classes, .k = features, .transpose_b = true};
    shard_matmul_shape input_gradient = {.batch = 1, .m = rows, .n = features, .k = classes};
    shard_matmul_shape weight_gradient = {.batch = 1, .m = classes, .n = features, .k = rows, .transpose_a = true};
    bench("outputs", output, dtype);
    bench("gradient of inputs", input_gradient, dtype);
    bench("gradient of weight", weight_gradient, dtype);
    weight_gradient.accumulate = true;
    bench("gradient of weight, added", weight_gradient, dtype);
    weight_gradient.wide_c = shard_dtype_size(dtype) == 2;
    if (weight_gradient.wide_c) /* as under autocast */
        bench("gradient of weight, added", weight_gradient, dtype);
    bench("square", (shard_matmul_shape){.batch = 1, .m = 2048, .n = 2048, .k = 2048}, dtype);
    bench("attention, scores", (shard_matmul_shape){.batch = 256, .m = 196, .n = 196, .k = 64, .transpose_b = true}, dtype);
    bench("attention, values", (shard_matmul_shape){.batch = 256, .m = 196, .n = 64, .k = 196}, dtype);
    bench("attention, backwards", (shard_matmul_shape){.batch = 256, .m = 196, .n = 64, .k = 196, .transpose_a = true}, dtype);
    bench("small", (shard_matmul_shape){.batch = 4096, .m = 16, .n = 16, .k = 16}, dtype);
    return 0;
}
