/*
 * Files of checkpoints: whole reads and writes at an offset, and errors that name the file. The system's calls that
 * move data or change a file or a directory are in a table, so that tests can make each of them fail. Those that only look
 * (stat, statfs, readlink, opendir, and what they open) and the copy of a lock's descriptor are not.
 *
 * Large writes, and reads of data that no other rank reads, bypass the page cache if the file system allows it
 * (O_DIRECT): they touch no new memory, and measured 2 to 8 times as fast.
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
    int (*fchmod)(int descriptor, mode_t mode);
    int (*fsync)(int descriptor);
    int (*close)(int descriptor);
    int (*rename)(const char *from, const char *to);
    int (*unlink)(const char *path);
    int (*mkdir)(const char *path, mode_t mode);
    int (*rmdir)(const char *path);
    int (*flock)(int descriptor, int operation);
} shard_file_calls;

/* The system's own functions, unless a test replaces them. */
extern const shard_file_calls *shard_file_calls_used;

typedef struct shard_file {
    const char *path; /* the caller's path; NULL: closed */
    int descriptor;
    int direct;         /* bypasses the page cache; -1: not available */
    int64_t unit;       /* offsets and sizes of direct transfers are multiples of this */
    struct stat opened; /* of a file that is read: its state when it was opened */
    bool summed;        /* ... and its bytes are compared with checksums: only its size and time of modification count */
    void *bounce;       /* aligned copy of data that is not aligned, a block at a time */
} shard_file;

/* Opens a regular file to read; *bytes is its size. */
shard_status shard_file_open(shard_file *file, const char *path, int64_t *bytes);
/* Closes the descriptor that bypasses the page cache: one file then has one descriptor. */
void shard_file_leave_direct(shard_file *file);
/* Whether the path still leads to the file that was opened, unchanged. If so on all ranks after all have opened it,
 * they have opened one and the same file. */
shard_status shard_file_check_unchanged(const shard_file *file);
/* Whether the file has not been written to since it was opened, wherever its path leads now. */
shard_status shard_file_check_unwritten(const shard_file *file);
/* Makes a new file to write, with those permissions less the process's mask, and locks it as shard_file_join does. The folder
 * that it lies in is made if it is not there; NULL: it must be. If there is a file of that name, or another job has taken this
 * one for a leftover and removed it before it was locked, or has removed the empty folder, sets *again without an error. */
shard_status shard_file_create(shard_file *file, const char *path, mode_t mode, const char *folder, bool *again);
/* Opens a file to write that another rank has made. A shared lock, where the file system has locks, shows until it is closed
 * that the file is in use. */
shard_status shard_file_join(shard_file *file, const char *path);
/* Keeps the lock of an open file after it is closed, until shard_file_unlock of the result, which may be -1. */
int shard_file_keep_lock(const shard_file *file);
void shard_file_unlock(int lock);
/* Sets the file's size and reserves the room on the disk, where the file system can do so and signals leave it the time. */
shard_status shard_file_allocate(shard_file *file, int64_t bytes);
/* Reads and writes extend *crc, a checksum of base/crc64.h, by the data. NULL: not wanted. */
shard_status shard_file_read(shard_file *file, void *data, int64_t bytes, int64_t offset, uint64_t *crc);
/* As shard_file_read, for data that no other rank reads. */
shard_status shard_file_read_alone(shard_file *file, void *data, int64_t bytes, int64_t offset, uint64_t *crc);
shard_status shard_file_write(shard_file *file, const void *data, int64_t bytes, int64_t offset, uint64_t *crc);
shard_status shard_file_sync(shard_file *file);
/* Does nothing if it is closed already. */
shard_status shard_file_close(shard_file *file);

/* The path of the file that a write to path reaches: symbolic links are followed. As with fs.protected_symlinks, a
 * link in a sticky directory that all may write to must belong to the caller or to the directory's owner. Freed by
 * free(); NULL with the error set. */
char *shard_file_follow(const char *path);
/* Whether path can be replaced by a file: it is a regular file, whose permissions are set in *mode, or there is
 * nothing, and *mode is unchanged. */
shard_status shard_file_check_target(const char *path, mode_t *mode);
/* Sets the file's permissions. Without an error: on a file system without permissions the file keeps those that it has. */
void shard_file_set_mode(shard_file *file, mode_t mode);
/* Renames temporary to path, in one directory, and syncs the directory. *replaced: it was renamed, also if the sync has failed. */
shard_status shard_file_replace(const char *temporary, const char *path, bool *replaced);
/* Removes the file; never an error. */
void shard_file_remove(const char *path);
/* Makes the directory if it is not there (path may end with slashes), and syncs the directory that it lies in, unless the user
 * may not list that and nothing was to be made. */
shard_status shard_file_make_directory(const char *path);
/* Removes an empty directory. False with errno set, without an error. */
bool shard_file_remove_directory(const char *path);
/* Whether only this host has the file system, as far as known, so that its locks show every job and prevent no write. */
bool shard_file_is_local(int descriptor);
/* Whether a file of that name is a temporary one of a file `base`: base.tmp. and 16 hexadecimal digits. Names without folders. */
bool shard_file_is_temporary(const char *name, const char *base);
/* Removes the files path.tmp. and 16 hexadecimal digits of this user that no process has locked: a killed job has left them.
 * Where locks may not reach all hosts, only those that were not written to for a day. Never an error. */
void shard_file_remove_leftovers(const char *path);

#endif
