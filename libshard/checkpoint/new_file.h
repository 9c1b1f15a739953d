/* A file that is written under a temporary name in the directory of its path, and then takes its place: the path is the old
 * file or the new one, never a mixture. */
#ifndef SHARD_CHECKPOINT_NEW_FILE_H
#define SHARD_CHECKPOINT_NEW_FILE_H

#include "checkpoint/file.h"

/* The final permissions: as the process's mask allows. */
#define SHARD_NEW_FILE_NO_MODE ((mode_t)-1)

typedef struct shard_new_file {
    shard_file file; /* open to write, from begin to finish */
    char *target;    /* the path, or the file that it links to */
    char *temporary; /* in the same directory; NULL: there is none to remove */
    int lock;        /* of the file, kept until it has its name; -1: none */
    mode_t mode;     /* its final permissions, those of a file that is replaced */
} shard_new_file;

/* Creates the temporary file, after it has removed those that killed jobs have left. Errors: IO, a path that cannot be replaced;
 * shard_new_file_end must follow all the same. */
shard_status shard_new_file_begin(shard_new_file *new, const char *path);
/* Synchronizes the file and renames it to its path. */
shard_status shard_new_file_finish(shard_new_file *new);
/* Removes the temporary file unless it was renamed. Has no effect on one that was not begun, {.lock = -1}. */
void shard_new_file_end(shard_new_file *new);

/* Writes a whole file. */
shard_status shard_new_file_write(const char *path, const void *data, int64_t bytes);

/* target.tmp. and the 16 digits of a token, of shard_random_secret: a rank that does not know whether another one has created the
 * file may remove it, so the name must not be another job's. Freed by free(); NULL with the error set. */
char *shard_new_file_name(const char *target, uint64_t token);

#endif
