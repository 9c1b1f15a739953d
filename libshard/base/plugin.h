/*
 * Backends that are loaded when they are needed: libshard-<name>.so. A plugin is loaded into a process that has the
 * library already, as a shared object or inside the program. It does not link the library; the library passes it the
 * functions that it needs. plugin_calls.c, in the plugin, has the functions of base/ by their own names.
 */
#ifndef SHARD_BASE_PLUGIN_H
#define SHARD_BASE_PLUGIN_H

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"

#define SHARD_PLUGIN_VERSION (SHARD_VERSION_MAJOR << 16 | SHARD_VERSION_MINOR << 8 | SHARD_VERSION_PATCH)

typedef struct shard_plugin_base {
    int version; /* the library's SHARD_PLUGIN_VERSION; the plugin's must be the same */
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

/* The library's own interface. */
extern const shard_plugin_base shard_plugin_own_base;

/* Called first in a plugin. False, with the error set through `base`, if the plugin belongs to
 * another version of the library. */
bool shard_plugin_begin(const shard_plugin_base *base);

/* ARGUMENT if a folder of SHARD_PLUGIN_PATH is not absolute: plugins must not depend on the folder that the program was started
 * in. */
shard_status shard_plugin_check_folders(void);

/* Loads libshard-<name>.so and finds `symbol` in it. It is searched for in the absolute folders of SHARD_PLUGIN_PATH
 * (not read in set-uid programs), in the library's folder and in its subfolder libshard, and in the folder of
 * shard_plugin_add_folder. The file and its folder must belong to root, to the user or to the owner of the library's file, and
 * must not be writable by every user. NULL with the error set, that of shard_plugin_check_folders or UNAVAILABLE: the text ends
 * in `missing` if the file is not there ("this libshard was built without ..."), in `install` if it cannot be loaded ("Debian and
 * Ubuntu: apt install ..."). `global`: the plugin's symbols are visible to the libraries that it loads. */
void *shard_plugin_load(const char *name, const char *symbol, const char *missing, const char *install, bool global);

/* Of a program that has the library inside and is installed apart from it: the plugins' folder, absolute or relative to the
 * program's. The text stays the caller's. */
void shard_plugin_add_folder(const char *folder);

#endif
