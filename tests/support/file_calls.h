/* The system's calls of checkpoints, with a function of a test before each of them. */
#ifndef TESTS_SUPPORT_FILE_CALLS_H
#define TESTS_SUPPORT_FILE_CALLS_H

#include "checkpoint/file.h"

#include <stdbool.h>

typedef enum file_call_kind {
    CALL_OPEN,
    CALL_PREAD,
    CALL_PWRITE,
    CALL_FALLOCATE,
    CALL_FTRUNCATE,
    CALL_FCHMOD,
    CALL_FSYNC,
    CALL_CLOSE,
    CALL_RENAME,
    CALL_UNLINK,
    CALL_MKDIR,
    CALL_RMDIR,
    CALL_FLOCK,
    CALL_KINDS
} file_call_kind;

typedef struct file_call {
    file_call_kind kind;
    int descriptor;   /* -1: the call has a path */
    const char *path; /* NULL: the call has a descriptor */
    const char *to;   /* of rename */
    int flags;        /* of open */
    const void *data; /* of pwrite */
    size_t bytes;     /* of pread and pwrite; ftruncate's and fallocate's size */
    off_t offset;
} file_call;

/* Returned by the function: the call is made, ... */
#define CALL_MAKE ((ssize_t)-1)
/* ... is not made and fails with errno, */
#define CALL_FAIL ((ssize_t)-2)
/* ... is not made and succeeds; any number of bytes: a read or write of so many. */
#define CALL_LEAVE ((ssize_t)-3)
typedef ssize_t file_call_hook(const file_call *call);

/* From now on the hook is called before each call of this process; NULL: no more. */
void file_calls_watch(file_call_hook *hook);

/* Whether the descriptor's transfers bypass the page cache. */
bool file_calls_are_direct(int descriptor);

/* A hook that makes every call but fsync, for which disks take long. */
file_call_hook file_calls_without_sync;

#endif
