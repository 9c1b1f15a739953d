/*
 * For tests of what a device computes (device/device.h), on the one that SHARD_DEVICE
 * names: arrays of any dtype that the host writes and reads, and comparison with what
 * long double loops give. The CPU's arrays are from the pool, which under AddressSanitizer
 * ends each where it ends. Another device's are in its own memory, with a shadow on the
 * host (support/shadow.h): the host writes no array between a call and synchronize.
 */
#ifndef TESTS_SUPPORT_KERNELS_H
#define TESTS_SUPPORT_KERNELS_H

#include "device/device.h"

#include <check.h>
#include <math.h>

/* The CPU, or the device that SHARD_DEVICE names, whose entries then take arrays by their shadows. */
shard_device *tested_device(void);

/* Whether SHARD_DEVICE names another device than the CPU; for tests of the CPU's own
 * ways, which have nothing to do there. */
bool on_other_device(void);

/* The devices to be tested, NULL past the last: for the CPU one for each instruction
 * set that this machine runs, whose name is the set's, the baseline first. */
shard_device *kernel_device(int i);

/* RUN(device, softmax, log, rows, ...): the entry does it, and its results are there. */
#define RUN(device, entry, ...)                                                                                                  \
    do {                                                                                                                         \
        ck_assert_msg((device)->ops->entry(device, __VA_ARGS__) == SHARD_OK, "%s: %s", (device)->name, shard_last_error());      \
        ck_assert_msg((device)->ops->synchronize(device) == SHARD_OK, "%s: %s", (device)->name, shard_last_error());             \
    } while (0)

/* The four floating types. */
extern const shard_dtype float_dtypes[4];

/* Freed by array_free, or at the end of the test's process. */
void *array_new(int64_t n, shard_dtype);
void array_free(void *array, int64_t n, shard_dtype);

/* A new array with these elements, which are of the array's type. */
void *array_of(int64_t n, shard_dtype, const void *elements);

/* Element i as a number, and a number, rounded once, as element i. */
double array_get(const void *array, int64_t i, shard_dtype);
void array_put(void *array, int64_t i, shard_dtype, double value);

/* Numbers in [-1, 1) that depend on the seed and the index alone. */
double noise(uint64_t seed, int64_t i);

/* A new array of low + (high - low) * (noise + 1) / 2. */
void *array_noise(int64_t n, shard_dtype, uint64_t seed, double low, double high);

/* The relative error of one rounding: 2^-53, 2^-24, 2^-8, 2^-11. */
double unit(shard_dtype);
/* The same in which the type is computed: float's for 16-bit types. */
double compute_unit(shard_dtype);

/* Fails unless got is the wanted number rounded to the dtype after an error of
 * at most `error` (absolute), or both are the same infinity or NaN. */
void check_close(shard_dtype, double got, long double want, long double error, const char *what, int64_t i);

/* Whether two arrays have the same bytes, NaNs being the same. */
void check_same(shard_dtype, int64_t n, const void *a, const void *b, const char *what);

#endif
