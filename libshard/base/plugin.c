/* Finds and loads plugins. */
#include "base/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const shard_plugin_base shard_plugin_own_base = {
    .version = SHARD_PLUGIN_VERSION,
    .error = shard_error,
    .null_argument = shard_null_argument,
    .last_status = shard_last_status,
    .last_error = shard_last_error,
    .clear_error = shard_clear_error,
    .log = shard_log_message,
    .env_string = shard_env_string,
    .env_integer = shard_env_integer,
    .calloc = shard_calloc,
};

/* The folder of the library's file, or of the program that the library is linked into. */
static bool own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((const void *)&shard_plugin_own_base, &info) || !info.dli_fname || !realpath(info.dli_fname, path))
        return false;
    *strrchr(path, '/') = '\0';
    return (size_t)snprintf(folder, bytes, "%s", path) < bytes;
}

/* Finds the plugin's path; false if no folder has it. An empty name is no folder. */
static bool find_plugin(const char *folders, const char *name, char *found, size_t bytes)
{
    while (folders && *folders) {
        size_t length = strcspn(folders, ":");
        int used = snprintf(found, bytes, "%.*s/libshard-%s.so", (int)length, folders, name);
        if (length > 0 && used > 0 && (size_t)used < bytes && access(found, R_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

void *shard_plugin_load(const char *name, const char *symbol, const char *missing, const char *install, bool global)
{
    char own[PATH_MAX], path[PATH_MAX];
    const char *first = shard_env_path("SHARD_PLUGIN_PATH", "");
    char *folders = own_folder(own, sizeof own) ? shard_format("%s:%s:%s/libshard", first, own, own) : shard_strdup(first);
    if (!folders)
        return NULL;
    bool found = find_plugin(folders, name, path, sizeof path);
    if (!found)
        shard_error(SHARD_ERROR_UNAVAILABLE, "no libshard-%s.so in %s: %s", name, folders + strspn(folders, ":"), missing);
    free(folders);
    if (!found)
        return NULL;
    void *plugin = dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!plugin)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "cannot load libshard-%s.so (%s): %s", name, install, dlerror());
    void *function = dlsym(plugin, symbol);
    if (!function)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "libshard-%s.so is no plugin of this library: %s", name, dlerror());
    return function;
}
