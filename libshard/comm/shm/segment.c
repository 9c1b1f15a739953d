/* The segment's file and its head. Uses nothing else of the library, so that a
 * launcher is a small program. */
#include "comm/shm/segment.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* A number that the redirections of shell scripts between launcher and rank leave alone. */
#define LOWEST_FILE 100

static int move_up(int file)
{
    int higher = file < 0 ? -1 : fcntl(file, F_DUPFD, LOWEST_FILE);
    if (higher < 0)
        return file;
    close(file);
    return higher;
}

int shard_segment_create(int world_size, shard_segment **segment)
{
    int file = move_up(memfd_create("shard", 0));
    if (file < 0)
        return -1;
    void *head = MAP_FAILED;
    if (fchmod(file, S_IRUSR | S_IWUSR) == 0 && ftruncate(file, sizeof **segment) == 0)
        head = mmap(NULL, sizeof **segment, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (head == MAP_FAILED) {
        int error = errno;
        close(file);
        errno = error;
        return -1;
    }
    *segment = head;
    (*segment)->world_size = world_size;
    (*segment)->magic = SHARD_SEGMENT_MAGIC;
    return file;
}

int shard_segment_make_lifeline(shard_segment *segment)
{
    int ends[2];
    struct stat status;
    if (pipe2(ends, O_CLOEXEC) != 0 || fstat(ends[0], &status) != 0)
        return -1;
    segment->lifeline = move_up(ends[0]);
    segment->lifeline_inode = status.st_ino;
    return fcntl(segment->lifeline, F_SETFD, 0);
}

int shard_segment_set_environment(int file, int rank, int world_size)
{
    const struct {
        const char *name;
        int value;
    } variables[] = {{"SHARD_SHM_FD", file},
                     {"RANK", rank},
                     {"LOCAL_RANK", rank},
                     {"WORLD_SIZE", world_size},
                     {"LOCAL_WORLD_SIZE", world_size}};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", variables[i].value);
        if (setenv(variables[i].name, text, 1) != 0)
            return -1;
    }
    return 0;
}

void shard_segment_close(shard_segment *segment, int file)
{
    munmap(segment, sizeof *segment);
    close(file);
}

shard_segment *shard_segment_map(int file)
{
    struct stat status;
    if (fstat(file, &status) != 0)
        return NULL;
    errno = EPROTO;
    if (!S_ISREG(status.st_mode) || status.st_size < (off_t)sizeof(shard_segment))
        return NULL;
    shard_segment *segment = mmap(NULL, sizeof *segment, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (segment == MAP_FAILED)
        return NULL;
    if (segment->magic == SHARD_SEGMENT_MAGIC)
        return segment;
    munmap(segment, sizeof *segment);
    errno = EPROTO;
    return NULL;
}

/* In a call of shard_init or shard_init_with: the segment of this rank's launcher, whose file the call may close, and the rank's
 * entry in it. */
static shard_segment *called_segment;
static shard_segment_rank *caller;

void shard_segment_note_call(void)
{
    const char *file = getenv("SHARD_SHM_FD"), *rank = getenv("RANK");
    uint32_t absent = SHARD_RANK_ABSENT;
    called_segment = file && rank ? shard_segment_map((int)strtol(file, NULL, 10)) : NULL;
    int number = called_segment ? (int)strtol(rank, NULL, 10) : -1;
    caller = number >= 0 && number < called_segment->world_size ? &called_segment->ranks[number] : NULL;
    if (caller)
        atomic_compare_exchange_strong(&caller->state, &absent, SHARD_RANK_CALLED);
}

void shard_segment_note_end(int status, const char *text)
{
    if (caller && status != 0 && atomic_load(&caller->state) == SHARD_RANK_CALLED) {
        snprintf(caller->text, sizeof caller->text, "rank %d: %s", (int)(caller - called_segment->ranks), text);
        atomic_store(&caller->failed_in, SHARD_SEGMENT_NO_BIRTH);
        atomic_store(&caller->failed_status, status);
        atomic_store(&caller->failed_since, shard_nanoseconds());
        if (atomic_load(&caller->state) != SHARD_RANK_CALLED) /* another process of this rank has joined meanwhile */
            atomic_store(&caller->failed_since, 0);
    }
    if (called_segment)
        munmap(called_segment, sizeof *called_segment);
    called_segment = NULL;
    caller = NULL;
}
