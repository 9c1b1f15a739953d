/* Writes beyond the limit on file sizes (ulimit -f, RLIMIT_FSIZE) raise SIGXFSZ in the writing thread, which ends
 * the process. Between these two calls such writes only fail, with EFBIG. They affect the calling thread alone and
 * leave the process's handlers as they are. */
#ifndef SHARD_BASE_FILE_LIMIT_H
#define SHARD_BASE_FILE_LIMIT_H

#include <signal.h>
#include <stdbool.h>

typedef struct shard_file_limit {
    sigset_t mask;    /* before */
    bool was_pending; /* one that was not raised between the calls stays */
} shard_file_limit;

void shard_file_limit_hold(shard_file_limit *limit);
/* Leaves errno alone. */
void shard_file_limit_release(const shard_file_limit *limit);

#endif
