/* Environment variables, read at each call. */
#ifndef SHARD_BASE_ENV_H
#define SHARD_BASE_ENV_H

#include <shard/base.h>

/* The variable's value, or fallback if it is not set or is empty. */
const char *shard_env_string(const char *name, const char *fallback);

/* As shard_env_string for a variable that names files: fallback in a program that runs with more rights than its
 * caller (set-uid, capabilities). */
const char *shard_env_path(const char *name, const char *fallback);

/* The variable's value as an integer in [low, high]; *value is fallback if it is not set. Any other value is an
 * error that names the variable. */
shard_status shard_env_integer(const char *name, int64_t fallback, int64_t low, int64_t high, int64_t *value);

/* This rank's number on its host, as the value of LOCAL_RANK if the environment has none. The environment itself stays as it is:
 * other threads of the program may read it. */
void shard_env_provide_local_rank(int rank);

#endif
