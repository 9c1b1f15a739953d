/* Errors for the library's own code. */
#ifndef SHARD_BASE_ERROR_H
#define SHARD_BASE_ERROR_H

#include <shard/base.h>

/* Sets the thread's error (if it is the first) and returns NULL: for makers. */
#define shard_fail_null(...) (shard_error(__VA_ARGS__), NULL)

/* Reports a NULL argument, with the names of the function and the argument, unless the thread has an error. Returns
 * the thread's status, never OK. */
shard_status shard_null_argument(const char *function, const char *argument);

/* Replaces the thread's error, first or not: a joint failure gives all ranks the same text. */
shard_status shard_replace_error(shard_status status, const char *text);

/* Returns from the caller if the call failed. */
#define SHARD_TRY(call)                      \
    do {                                     \
        shard_status shard_try_ = (call);    \
        if (shard_try_ != SHARD_OK)          \
            return shard_try_;               \
    } while (0)

#endif
