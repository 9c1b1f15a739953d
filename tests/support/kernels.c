#include "support/kernels.h"

#include "base/dtype.h"
#include "device/cpu/kernels/pick.h"
#include "support/shadow.h"

#include <string.h>

const shard_dtype float_dtypes[4] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_FLOAT16};

shard_device *tested_device(void)
{
    static shard_device *device;
    if (!device) {
        device = shard_default_device();
        ck_assert_msg(device != NULL, "%s", shard_last_error());
        if (!device->ops->host_memory)
            device = shadow_device(device);
    }
    return device;
}

bool on_other_device(void)
{
    return !tested_device()->ops->host_memory;
}

shard_device *kernel_device(int i)
{
    enum { MOST = 8 };
    static struct {
        shard_device device;
        shard_device_ops ops;
    } sets[MOST];
    static int count;
    if (on_other_device())
        return i == 0 ? tested_device() : NULL;
    for (int set = 0; count == 0 || set > 0; set++) {
        const char *name;
        bool runs;
        const shard_device_ops *kernels = shard_cpu_kernel_set(set, &name, &runs);
        if (!kernels)
            break;
        if (!runs)
            continue;
        sets[count].ops = *kernels;
        sets[count].ops.allocate = tested_device()->ops->allocate;
        sets[count].ops.release = tested_device()->ops->release;
        sets[count].ops.synchronize = tested_device()->ops->synchronize;
        sets[count].device = (shard_device){.ops = &sets[count].ops, .name = name, .memory = tested_device()->memory};
        count++;
    }
    return i < count ? &sets[i].device : NULL;
}

void *array_new(int64_t n, shard_dtype dtype)
{
    size_t bytes = (size_t)(n ? n : 1) * shard_dtype_size(dtype);
    shard_device *device = tested_device();
    if (on_other_device())
        return shadow_new(bytes);
    void *array = device->ops->allocate(device, bytes);
    ck_assert_msg(array != NULL, "%s", shard_last_error());
    return array;
}

void array_free(void *array, int64_t n, shard_dtype dtype)
{
    if (on_other_device())
        shadow_free(array);
    else if (array)
        tested_device()->ops->release(tested_device(), array, (size_t)(n ? n : 1) * shard_dtype_size(dtype));
}

void *array_of(int64_t n, shard_dtype dtype, const void *elements)
{
    void *array = array_new(n, dtype);
    memcpy(array, elements, (size_t)n * shard_dtype_size(dtype));
    return array;
}

double array_get(const void *array, int64_t i, shard_dtype dtype)
{
    switch (dtype) {
    case SHARD_FLOAT32:
        return (double)((const float *)array)[i];
    case SHARD_FLOAT64:
        return ((const double *)array)[i];
    case SHARD_BFLOAT16:
        return (double)shard_bfloat16_to_float(((const uint16_t *)array)[i]);
    case SHARD_FLOAT16:
        return (double)shard_float16_to_float(((const uint16_t *)array)[i]);
    case SHARD_INT64:
        return (double)((const int64_t *)array)[i];
    case SHARD_INT32:
        return ((const int32_t *)array)[i];
    case SHARD_UINT8:
        return ((const uint8_t *)array)[i];
    }
    return NAN;
}

void array_put(void *array, int64_t i, shard_dtype dtype, double value)
{
    switch (dtype) {
    case SHARD_FLOAT32:
        ((float *)array)[i] = (float)value;
        break;
    case SHARD_FLOAT64:
        ((double *)array)[i] = value;
        break;
    case SHARD_BFLOAT16:
        ((uint16_t *)array)[i] = shard_float_to_bfloat16((float)value);
        break;
    case SHARD_FLOAT16:
        ((uint16_t *)array)[i] = shard_float_to_float16((float)value);
        break;
    case SHARD_INT64:
        ((int64_t *)array)[i] = (int64_t)value;
        break;
    case SHARD_INT32:
        ((int32_t *)array)[i] = (int32_t)value;
        break;
    case SHARD_UINT8:
        ((uint8_t *)array)[i] = (uint8_t)value;
        break;
    }
}

double noise(uint64_t seed, int64_t i)
{
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (uint64_t)i; /* splitmix64 */
    z = (z + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)(int64_t)(z ^ (z >> 31)) * 0x1p-63;
}

void *array_noise(int64_t n, shard_dtype dtype, uint64_t seed, double low, double high)
{
    void *array = array_new(n, dtype);
    for (int64_t i = 0; i < n; i++)
        array_put(array, i, dtype, low + (high - low) * (noise(seed, i) + 1) / 2);
    return array;
}

double unit(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? 0x1p-53 : dtype == SHARD_FLOAT32 ? 0x1p-24 : dtype == SHARD_BFLOAT16 ? 0x1p-8 : 0x1p-11;
}

double compute_unit(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? 0x1p-53 : 0x1p-24;
}

/* Half the distance of two neighbours at this size. */
static long double half_step(shard_dtype dtype, long double value)
{
    long double least = dtype == SHARD_FLOAT16 ? 0x1p-25L : dtype == SHARD_FLOAT64 ? 0x1p-1075L : 0x1p-150L;
    return fmaxl(fabsl(value) * (long double)unit(dtype), least);
}

void check_close(shard_dtype dtype, double got, long double want, long double error, const char *what, int64_t i)
{
    if (isnan(want)                   ? isnan(got)
        : (isinf(got) || isinf(want)) ? got == (double)want
                                      : fabsl(got - want) <= error + half_step(dtype, fabsl(want) + error))
        return;
    ck_abort_msg("%s, %s: element %lld is %.17g, wanted %.17Lg within %.3Lg", what, shard_dtype_name(dtype), (long long)i, got,
                 want, error);
}

void check_same(shard_dtype dtype, int64_t n, const void *a, const void *b, const char *what)
{
    size_t size = shard_dtype_size(dtype);
    for (int64_t i = 0; i < n; i++) {
        size_t at = (size_t)i * size;
        double x = array_get(a, i, dtype), y = array_get(b, i, dtype);
        if (memcmp((const char *)a + at, (const char *)b + at, size) != 0 && !(isnan(x) && isnan(y)))
            ck_abort_msg("%s, %s: element %lld is %.17g and %.17g", what, shard_dtype_name(dtype), (long long)i, x, y);
    }
}
