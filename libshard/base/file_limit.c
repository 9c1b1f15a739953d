#include "base/file_limit.h"

#include <errno.h>
#include <time.h>

static sigset_t the_signal(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGXFSZ);
    return set;
}

void shard_file_limit_hold(shard_file_limit *limit)
{
    sigset_t set = the_signal(), pending;
    sigpending(&pending);
    limit->was_pending = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &set, &limit->mask);
}

void shard_file_limit_release(const shard_file_limit *limit)
{
    int error = errno;
    sigset_t set = the_signal();
    if (!limit->was_pending)
        sigtimedwait(&set, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &limit->mask, NULL);
    errno = error;
}
