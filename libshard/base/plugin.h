/*
 * Backends that are loaded when asked for: libshard-<name>.so. A module is loaded
 * into a process that has the library already, as a shared object or inside the
 * program; it links nothing of it, but is handed what it needs. A module that
 * also links plugin_calls.c calls the functions of base/ by their own names.
 */
#ifndef SHARD_BASE_PLUGIN_H
#define SHARD_BASE_PLUGIN_H

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

#define SHARD_PLUGIN_VERSION (SHARD_VERSION_MAJOR << 16 | SHARD_VERSION_MINOR << 8 | SHARD_VERSION_PATCH)

typedef struct shard_plugin_base {
    int version; /* the library's SHARD_PLUGIN_VERSION; the module's must be the same */
    shard_status (*error)(shard_status status, const char *format, ...) SHARD_PRINTF(2, 3);
    shard_status (*null_argument)(const char *function, const char *argument);
    shard_status (*last_status)(void);
    const char *(*last_error)(void);
    void (*clear_error)(void);
    void (*log)(shard_log_level level, const char *format, ...) SHARD_PRINTF(2, 3);
    const char *(*env_string)(const char *name, const char *fallback);
    shard_status (*env_integer)(const char *name, int64_t fallback, int64_t low, int64_t high, int64_t *value);
    void *(*calloc)(size_t count, size_t size);
} shard_plugin_base;

/* The library's own. */
extern const shard_plugin_base shard_plugin_own_base;

/* In a module with plugin_calls.c, before anything else: false, with the error set
 * through `base`, if the module belongs to another version of the library. */
bool shard_plugin_begin(const shard_plugin_base *base);

/* Loads libshard-<name>.so and finds `symbol` in it. SHARD_PLUGIN_PATH names the
 * folders where it is looked for first (in set-uid programs it is not read), then come the library's own and its
 * subfolder libshard. NULL with the error set (UNAVAILABLE), whose text ends in
 * `missing` if the file is not there ("this libshard was built without ..."), in
 * `install` if it cannot be loaded ("Debian and Ubuntu: apt install ..."). With
 * `global`, the symbols that it brings are there for what it loads in turn. */
void *shard_plugin_load(const char *name, const char *symbol, const char *missing, const char *install, bool global);

#endif
