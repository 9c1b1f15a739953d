/* The segment's file and its head. Uses nothing else of the library, so that a
 * launcher is a small program. */
#include "comm/shm/segment.h"

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

void shard_segment_note_call(void)
{
    const char *file = getenv("SHARD_SHM_FD"), *rank = getenv("RANK");
    shard_segment *segment = file && rank ? shard_segment_map(atoi(file)) : NULL;
    if (!segment)
        return;
    int number = atoi(rank);
    uint32_t absent = SHARD_RANK_ABSENT;
    if (number >= 0 && number < segment->world_size)
        atomic_compare_exchange_strong(&segment->ranks[number].state, &absent, SHARD_RANK_CALLED);
    munmap(segment, sizeof *segment);
}
