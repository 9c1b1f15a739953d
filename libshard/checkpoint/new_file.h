/* A file that is written under a temporary name in the directory of its path, and then takes its place: the path is the old
 * file or the new one, never a mixture. */
#ifndef SHARD_CHECKPOINT_NEW_FILE_H
#define SHARD_CHECKPOINT_NEW_FILE_H

#include "checkpoint/file.h"

/* The final permissions: as the process's mask allows. */
#define SHARD_NEW_FILE_NO_MODE ((mode_t)-1)

typedef struct shard_new_file {
    shard_file file;    /* open to write, from begin to finish */
    char *target;       /* the path, or the file that it links to */
    const char *folder; /* is made with the file, if it is not there; NULL: it must be there */
    char *temporary;    /* in the same directory; NULL: there is none to remove */
    int lock;           /* of the file, kept until it has its name; -1: none */
    mode_t mode;        /* its final permissions, those of a file that is replaced */
    bool replaced;      /* the file has its name, perhaps with an error in the sync of its directory */
} shard_new_file;

/* Creates the temporary file, after it has removed those that killed jobs have left. Errors: IO, a path that cannot be replaced;
 * shard_new_file_end must follow all the same. */
shard_status shard_new_file_begin(shard_new_file *new, const char *path);
/* Synchronizes the file and renames it to its path. */
shard_status shard_new_file_finish(shard_new_file *new);
/* Removes the temporary file unless it was renamed. Has no effect on one that was not begun, {.lock = -1}. */
void shard_new_file_end(shard_new_file *new);

/* ---- the same in parts, for a file that several ranks write ---- */

/* Finds the target. */
shard_status shard_new_file_prepare(shard_new_file *new, const char *path);
/* Sets the temporary name: target.tmp. and the 16 digits of a token, of shard_random_secret. A rank that does not know whether
 * another one has created the file may remove it, so the name must not be another job's. */
shard_status shard_new_file_name(shard_new_file *new, uint64_t token);
/* Creates the file of that name. *again: it is needed once more with another token, as another job has interfered. */
shard_status shard_new_file_create(shard_new_file *new, bool *again);
/* Sets the permissions, synchronises the file unless the thread has an error, and closes it. Returns the thread's error. */
shard_status shard_new_file_close(shard_new_file *new);
/* Renames the closed file to its path. */
shard_status shard_new_file_replace(shard_new_file *new);
/* The temporary file is not this rank's to remove. */
void shard_new_file_forget(shard_new_file *new);

/* Writes a whole file. */
shard_status shard_new_file_write(const char *path, const void *data, int64_t bytes);

#endif
