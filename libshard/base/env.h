/* Environment variables, read when asked. */
#ifndef SHARD_BASE_ENV_H
#define SHARD_BASE_ENV_H

#include <shard/base.h>

/* The variable's value, or fallback if it is not set or empty. */
const char *shard_env_string(const char *name, const char *fallback);

/* The same of a variable that names files: in a program that runs with more rights than its caller
 * (set-uid, capabilities), fallback. */
const char *shard_env_path(const char *name, const char *fallback);

/* Its value as a whole number in [low, high]; *value is fallback if it is not
 * set. Anything else in it is an error that names the variable. */
shard_status shard_env_integer(const char *name, int64_t fallback, int64_t low, int64_t high, int64_t *value);

#endif
