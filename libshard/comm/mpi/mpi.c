/*
 * Finds and loads the module for the MPI that started this process. There is
 * one for each MPI that was there when the library was built, as their
 * libraries differ: SHARD_MODULE_PATH names the folders where they are looked
 * for first, then come the library's own and its subfolder libshard.
 */
#include "base/env.h"
#include "base/error.h"
#include "base/memory.h"
#include "comm/mpi/host.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct mpi_kind {
    const char *name, *title, *packages;
    const char *variables[4]; /* any of them: its launcher started this process */
} kinds[] = {
    {"openmpi", "Open MPI", "libopenmpi-dev openmpi-bin", {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK"}},
    {"mpich", "MPICH", "libmpich-dev mpich", {"PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"}},
};

static const struct mpi_kind *launched_kind(void)
{
    const char *forced = shard_env_string("SHARD_MPI", NULL);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (forced && strcmp(forced, kinds[i].name) == 0)
            return &kinds[i];
        for (int j = 0; !forced && j < 4 && kinds[i].variables[j]; j++)
            if (shard_env_string(kinds[i].variables[j], NULL))
                return &kinds[i];
    }
    return NULL;
}

bool shard_mpi_launched(void)
{
    return launched_kind() != NULL;
}

/* The folder that holds the code of the library: its own, or the program's. */
static bool own_folder(char *folder, size_t bytes)
{
    Dl_info info;
    char path[PATH_MAX];
    if (!dladdr((void *)kinds, &info) || !info.dli_fname || !realpath(info.dli_fname, path))
        return false;
    *strrchr(path, '/') = '\0';
    return (size_t)snprintf(folder, bytes, "%s", path) < bytes;
}

/* The module's path in `found`; false if no folder has it. */
static bool find_module(const char *folders, const char *kind, char *found, size_t bytes)
{
    while (folders && *folders) {
        size_t length = strcspn(folders, ":");
        int used = snprintf(found, bytes, "%.*s/libshard-mpi-%s.so", (int)length, folders, kind);
        if (used > 0 && (size_t)used < bytes && access(found, R_OK) == 0)
            return true;
        folders += length + (folders[length] == ':');
    }
    return false;
}

static void *load_module(const struct mpi_kind *kind)
{
    char own[PATH_MAX] = ".", path[PATH_MAX];
    own_folder(own, sizeof own);
    char *folders = shard_format("%s:%s:%s/libshard", shard_env_string("SHARD_MODULE_PATH", ""), own, own);
    if (!folders)
        return NULL;
    bool found = find_module(folders, kind->name, path, sizeof path);
    if (!found)
        shard_error(SHARD_ERROR_UNAVAILABLE,
                    "mpi: no libshard-mpi-%s.so in %s: this libshard was built without %s (Debian and Ubuntu: apt install %s, "
                    "then build again)",
                    kind->name, folders + strspn(folders, ":"), kind->title, kind->packages);
    free(folders);
    if (!found)
        return NULL;
    /* Global, because Open MPI's own plug-ins look for its symbols. */
    void *module = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (!module)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "mpi: cannot load the module for %s (Debian and Ubuntu: apt install %s): %s",
                               kind->title, kind->packages, dlerror());
    return module;
}

shard_group *shard_mpi_open(int *argc, char ***argv)
{
    static const shard_mpi_host host = {
        .version = SHARD_MPI_VERSION,
        .error = shard_error,
        .calloc = shard_calloc,
        .group_make = shard_group_make,
        .group_free = shard_group_free,
        .group_describe = shard_group_describe,
        .group_name_ranks = shard_group_name_ranks,
        .timeout = shard_comm_timeout,
    };
    const struct mpi_kind *kind = launched_kind();
    if (!kind)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE,
                               "mpi: no MPI launcher (mpirun, srun) started this process; SHARD_MPI is openmpi or mpich to choose one");
    void *module = load_module(kind);
    if (!module)
        return NULL;
    void *symbol = dlsym(module, SHARD_MPI_MODULE_OPEN);
    if (!symbol)
        return shard_fail_null(SHARD_ERROR_UNAVAILABLE, "mpi: libshard-mpi-%s.so is no module of this library: %s", kind->name,
                               dlerror());
    shard_mpi_module_open_function *open;
    memcpy(&open, &symbol, sizeof open);
    return open(&host, argc, argv);
}
