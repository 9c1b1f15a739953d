/* Values that were to be the same, and which of them differ: the value that most have counts, of equally frequent ones the
 * one that comes first. Value i of `size` is the `bytes` bytes at values + i * stride. */
#ifndef SHARD_BASE_MAJORITY_H
#define SHARD_BASE_MAJORITY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

SHARD_KERNEL bool shard_same_value(const void *values, size_t bytes, size_t stride, int64_t a, int64_t b)
{
    const unsigned char *x = (const unsigned char *)values + (size_t)a * stride;
    const unsigned char *y = (const unsigned char *)values + (size_t)b * stride;
    for (size_t i = 0; i < bytes; i++)
        if (x[i] != y[i])
            return false;
    return true;
}

/* The index of the first value that is not that at `usual`; size: there is none. */
SHARD_KERNEL int64_t shard_first_other(const void *values, size_t bytes, size_t stride, int64_t size, int64_t usual)
{
    int64_t other = 0;
    while (other < size && shard_same_value(values, bytes, stride, other, usual))
        other++;
    return other;
}

/* The index of the first value that is the most frequent one. */
SHARD_KERNEL int64_t shard_first_usual(const void *values, size_t bytes, size_t stride, int64_t size)
{
    int64_t usual = 0, most = 0;
    for (int64_t i = 0; i < size && most < size - i; i++) {
        int64_t count = 0;
        for (int64_t j = i; j < size; j++)
            count += shard_same_value(values, bytes, stride, i, j);
        usual = count > most ? i : usual;
        most = count > most ? count : most;
    }
    return usual;
}

#endif
