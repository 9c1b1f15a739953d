/* A clock that only goes forward; all processes of a machine share it. */
#ifndef SHARD_BASE_CLOCK_H
#define SHARD_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t shard_nanoseconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static inline double shard_seconds(void)
{
    return 1e-9 * (double)shard_nanoseconds();
}

#endif
