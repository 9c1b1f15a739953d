/* Threads of the library's own, and locks. */
#ifndef SHARD_BASE_THREAD_H
#define SHARD_BASE_THREAD_H

#include "base/clock.h"

#include <pthread.h>
#include <signal.h>

/* Starts a thread that takes no signals: they go to the program's threads. Returns what pthread_create does. */
static inline int shard_thread_start(pthread_t *thread, void *(*run)(void *), void *context)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, NULL, run, context);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

/* Makes a condition whose timed waits end by the clock of base/clock.h. */
static inline void shard_condition_init(pthread_cond_t *condition)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

/* Waits for such a condition for 0.2 s at most, so that a wait asks shard_own_seconds often enough. */
static inline void shard_condition_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    int64_t end = shard_nanoseconds() + 200000000;
    struct timespec limit = {.tv_sec = (time_t)(end / 1000000000), .tv_nsec = (long)(end % 1000000000)};
    pthread_cond_timedwait(condition, mutex, &limit);
}

static inline pthread_mutex_t *shard_lock(pthread_mutex_t *mutex)
{
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void shard_unlock(pthread_mutex_t **locked)
{
    pthread_mutex_unlock(*locked);
}

/* Holds the mutex until the block ends. */
#define SHARD_HOLD(mutex) __attribute__((cleanup(shard_unlock), unused)) pthread_mutex_t *held_ = shard_lock(mutex)

#endif
