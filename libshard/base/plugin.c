/* Finds and loads plugins. */
#include "base/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The variable with folders of plugins. */
#define FOLDERS "SHARD_PLUGIN_PATH"

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

static const char *added_folder;

void shard_plugin_add_folder(const char *folder)
{
    added_folder = folder;
}

/* The library's file, or the program that the library is linked into; "": not known. */
static char own_path[PATH_MAX];

/* When the library is loaded, as its name may be relative to the folder that the program is in then. Of a program the linker has
 * no name but argv[0], which its caller chooses, and which has no folder where a shell has found it in PATH. */
static void __attribute__((constructor)) find_own_path(void)
{
    Dl_info info;
    struct link_map *object;
    if (!dladdr1(&shard_plugin_own_base, &info, (void **)&object, RTLD_DL_LINKMAP) ||
        !realpath(object->l_name[0] ? object->l_name : "/proc/self/exe", own_path))
        own_path[0] = '\0';
}

/* Finds the plugin's path; false if no folder has it. An empty name is no folder. */
static bool find_plugin(const char *folders, const char *separator, const char *name, char *found, size_t bytes)
{
    for (size_t length; *folders; folders += length + (folders[length] == *separator)) {
        length = strcspn(folders, separator);
        int used = snprintf(found, bytes, "%.*s/libshard-%s.so", (int)length, folders, name);
        if (length > 0 && used > 0 && (size_t)used < bytes && access(found, R_OK) == 0)
            return true;
    }
    return false;
}

/* The library's folder, its subfolder and the one that was added. Their names may have colons: newlines separate them. */
static char *list_own_folders(void)
{
    const char *slash = strrchr(own_path, '/');
    int length = (int)(slash ? slash - own_path : 0);
    bool absolute = added_folder && added_folder[0] == '/';
    if (!slash)
        return shard_strdup(absolute ? added_folder : "");
    if (!added_folder)
        return shard_format("%.*s\n%.*s/libshard", length, own_path, length, own_path);
    return shard_format("%.*s\n%.*s/libshard\n%.*s%s%s", length, own_path, length, own_path, absolute ? 0 : length, own_path,
                        absolute ? "" : "/", added_folder);
}

/* UNAVAILABLE, with all folders in their order. */
static void report_missing(const char *listed, char *own, const char *name, const char *missing)
{
    for (char *c = own; *c; c++)
        *c = *c == '\n' ? ':' : *c;
    listed += strspn(listed, ":");
    shard_error(SHARD_ERROR_UNAVAILABLE, "no libshard-%s.so in %s%s%s: %s", name, listed, *listed ? ":" : "", own, missing);
}

shard_status shard_plugin_check_folders(void)
{
    const char *folders = shard_env_path(FOLDERS, "");
    for (size_t length; *folders; folders += length + (folders[length] == ':')) {
        length = strcspn(folders, ":");
        if (length > 0 && folders[0] != '/')
            return shard_error(SHARD_ERROR_ARGUMENT, FOLDERS " has the folder %.*s, which is not absolute: begin it with /",
                               (int)length, folders);
    }
    return SHARD_OK;
}

/* A plugin runs as part of the program: only root, the user and the library's owner may be able to change it. */
static bool is_trusted(const char *path, uid_t owner, char *why, size_t bytes)
{
    struct stat status;
    if (stat(path, &status) != 0)
        snprintf(why, bytes, "%s cannot be examined", path);
    else if (status.st_uid != 0 && status.st_uid != geteuid() && status.st_uid != owner)
        snprintf(why, bytes, "%s belongs to user %u", path, (unsigned)status.st_uid);
    else if (status.st_mode & S_IWOTH)
        snprintf(why, bytes, "every user may write to %s", path);
    else
        return true;
    return false;
}

static bool is_trusted_in_folder(const char *path, uid_t owner, char *why, size_t bytes)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(path, '/') - path), path);
    return is_trusted(path, owner, why, bytes) && is_trusted(folder[0] ? folder : "/", owner, why, bytes);
}

/* Users that may write to the folder of a symbolic link, or to that of the file which it leads to, can change the plugin. */
static shard_status check_trusted(const char *path)
{
    struct stat library;
    uid_t owner = stat(own_path, &library) == 0 ? library.st_uid : 0;
    char file[PATH_MAX], why[PATH_MAX + 64];
    if (!realpath(path, file))
        snprintf(why, sizeof why, "%s", strerror(errno));
    else if (is_trusted_in_folder(path, owner, why, sizeof why) && is_trusted_in_folder(file, owner, why, sizeof why))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNAVAILABLE,
                       "%s is not loaded: %s; plugins and their folders must belong to root, to this user or "
                       "to libshard's owner",
                       path, why);
}

void *shard_plugin_load(const char *name, const char *symbol, const char *missing, const char *install, bool global)
{
    char path[PATH_MAX];
    if (shard_plugin_check_folders() != SHARD_OK)
        return NULL;
    const char *listed = shard_env_path(FOLDERS, "");
    char *own = list_own_folders();
    if (!own)
        return NULL;
    bool found = find_plugin(listed, ":", name, path, sizeof path) || find_plugin(own, "\n", name, path, sizeof path);
    if (!found)
        report_missing(listed, own, name, missing);
    free(own);
    if (!found || check_trusted(path) != SHARD_OK)
        return NULL;
    void *plugin = dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (!plugin)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "cannot load libshard-%s.so (%s): %s", name, install, dlerror());
    void *function = dlsym(plugin, symbol);
    if (!function)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "libshard-%s.so is no plugin of this library: %s", name, dlerror());
    return function;
}
