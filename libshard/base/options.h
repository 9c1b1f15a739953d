/* Structs of options as callers give them; see include/shard/base.h. */
#ifndef SHARD_BASE_OPTIONS_H
#define SHARD_BASE_OPTIONS_H

#include <shard/base.h>

/* Copies what the caller's struct has, `given` (NULL: nothing), over the defaults that are in `options`, a struct of
 * `known` bytes. False with the error set (ARGUMENT); the options are the defaults then. */
bool shard_read_options(void *options, size_t known, const void *given, const char *type);

/* Declares `options` with the values of `given`, and whether they could be read, options_ok. */
#define SHARD_READ_OPTIONS(type, init, options, given) \
    type options = init;                               \
    const bool options##_ok __attribute__((unused)) = shard_read_options(&options, sizeof options, given, #type)

#endif
