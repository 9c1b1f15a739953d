/*
 * A rank that a script started is no child of the launcher, and gets no signal when that is killed.
 * This rank then finds the end of a pipe that no process has open for writing.
 */
#include "comm/shm/shm.h"

#include "base/log.h"
#include "base/thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

static void *watch(void *file)
{
    struct pollfd lifeline = {.fd = (int)(intptr_t)file};
    while (poll(&lifeline, 1, -1) < 0 && errno == EINTR)
        ;
    if (lifeline.revents & POLLHUP) {
        shard_log_message(SHARD_LOG_ERROR, "the launcher (shardrun) was killed: this rank ends");
        kill(getpid(), SIGKILL);
    }
    return NULL;
}

void shm_watch_launcher(shm_world *world)
{
    const shard_segment *segment = world->segment;
    struct stat status;
    /* The number may have become another file's. */
    if (segment->lifeline == 0 || fstat(segment->lifeline, &status) != 0 || !S_ISFIFO(status.st_mode) ||
        status.st_ino != segment->lifeline_inode)
        return;
    fcntl(segment->lifeline, F_SETFD, FD_CLOEXEC);
    world->watched = shard_thread_start(&world->watcher, watch, (void *)(intptr_t)segment->lifeline) == 0;
}

void shm_stop_watching(shm_world *world)
{
    if (!world->watched)
        return;
    pthread_cancel(world->watcher);
    pthread_join(world->watcher, NULL);
    world->watched = false;
}
