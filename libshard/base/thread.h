/* Threads of the library's own. */
#ifndef SHARD_BASE_THREAD_H
#define SHARD_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>
#include <time.h>

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

#endif
