/*
 * Files as checkpoints use them: whole reads and writes at an offset, and a text that
 * names the file for every failure. The system's calls stand in a table, so that tests
 * can make each of them fail.
 *
 * Large writes, and reads of what no other rank reads, go past the page cache where the
 * file system lets them (O_DIRECT): no memory is touched that was not in use before,
 * which measured 2 to 8 times as fast as going through it.
 */
#ifndef SHARD_CHECKPOINT_FILE_H
#define SHARD_CHECKPOINT_FILE_H

#include "base/error.h"

#include <sys/stat.h>
#include <sys/types.h>

/* As the system's functions of these names: -1 with errno set. */
typedef struct shard_file_calls {
    int (*open)(const char *path, int flags, mode_t mode);
    ssize_t (*pread)(int descriptor, void *data, size_t bytes, off_t offset);
    ssize_t (*pwrite)(int descriptor, const void *data, size_t bytes, off_t offset);
    int (*fallocate)(int descriptor, int mode, off_t offset, off_t bytes);
    int (*ftruncate)(int descriptor, off_t bytes);
    int (*fsync)(int descriptor);
    int (*close)(int descriptor);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
} shard_file_calls;

/* The system's own, unless a test puts others there. */
extern const shard_file_calls *shard_file_calls_used;

typedef struct shard_file {
    const char *path; /* the caller's; NULL: closed */
    int descriptor;
    int direct;   /* past the page cache; -1: not here */
    int64_t unit; /* what offsets and sizes of direct transfers are multiples of */
    struct stat opened; /* of a file that is read: what it was when it was opened */
    void *bounce; /* what is written from memory that is not aligned, a piece at a time */
} shard_file;

/* Opens a regular file to read; *bytes is its size. */
shard_status shard_file_open(shard_file *file, const char *path, int64_t *bytes);
/* Whether its path still leads to the file that was opened, as it was then. If so on all
 * ranks after all have opened it, they have opened one and the same, if it is one to them. */
shard_status shard_file_check_unchanged(const shard_file *file);
/* Whether nobody has written to the file since it was opened, wherever its path leads now. */
shard_status shard_file_check_unwritten(const shard_file *file);
/* Makes a new file to write, with those permissions less the process's mask; *exists, and no error, if
 * there is one of that name. */
shard_status shard_file_create(shard_file *file, const char *path, mode_t mode, bool *exists);
/* Opens a file to write that another rank has made. */
shard_status shard_file_join(shard_file *file, const char *path);
/* Gives it that size, and the room on the disk. */
shard_status shard_file_allocate(shard_file *file, int64_t bytes);
shard_status shard_file_read(shard_file *file, void *data, int64_t bytes, int64_t offset);
/* The same for what no other rank reads. */
shard_status shard_file_read_alone(shard_file *file, void *data, int64_t bytes, int64_t offset);
shard_status shard_file_write(shard_file *file, const void *data, int64_t bytes, int64_t offset);
shard_status shard_file_sync(shard_file *file);
/* Nothing if it is closed already. */
shard_status shard_file_close(shard_file *file);

/* Where a file written to path would be: behind the symbolic links that path may be. As with
 * fs.protected_symlinks, one in a sticky directory that all may write to must belong to the caller
 * or to the directory's owner. Freed by free(); NULL with the error set. */
char *shard_file_follow(const char *path);
/* Whether path can be replaced by a file: it is one, whose permissions are *mode, or there is nothing, and
 * *mode is left alone. */
shard_status shard_file_check_target(const char *path, mode_t *mode);
/* Gives the file these permissions; where a file system has none, it stays as it is. */
void shard_file_set_mode(shard_file *file, mode_t mode);
/* Renames temporary to path, in one directory, and syncs that. */
shard_status shard_file_replace(const char *temporary, const char *path);
/* Without an error, whatever happens. */
void shard_file_remove(const char *path);

#endif
