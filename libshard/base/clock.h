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

/* For deadlines: a clock that stands while this process is stopped, as by Ctrl-Z or a scheduler that suspends the job, but for
 * a second. Each thread has its own in each source
 * file: a deadline is compared where it was computed. A wait asks it more often than once a second: at most a second counts
 * between two calls. */
static inline double shard_own_seconds(void)
{
    static _Thread_local double last, own;
    double time = shard_seconds(), step = time - last;
    last = time;
    own += step < 1 ? step : 1;
    return own;
}

#endif
