/* Errors as the library's own code reports them. */
#ifndef SHARD_BASE_ERROR_H
#define SHARD_BASE_ERROR_H

#include <shard/base.h>

/* Sets the thread's error (if it is the first) and is NULL: for makers. */
#define shard_fail_null(...) (shard_error(__VA_ARGS__), NULL)

/* A NULL argument: leaves an error that is there alone, else reports one that
 * names the function and the argument. Returns the thread's status, never OK. */
shard_status shard_null_argument(const char *function, const char *argument);

/* Replaces the thread's error, first or not: a joint failure gives all ranks
 * the same text. */
shard_status shard_replace_error(shard_status status, const char *text);

/* Returns from the caller if the call did not go well. */
#define SHARD_TRY(call)                      \
    do {                                     \
        shard_status shard_try_ = (call);    \
        if (shard_try_ != SHARD_OK)          \
            return shard_try_;               \
    } while (0)

#endif
