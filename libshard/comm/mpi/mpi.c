/*
 * Loads the plugin for the MPI that started this process. There is one for each
 * MPI that was there when the library was built, as their libraries differ.
 */
#include "base/env.h"
#include "base/plugin.h"
#include "comm/backends.h"
#include "comm/mpi/host.h"

#include <stdio.h>
#include <string.h>

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

shard_status shard_mpi_launched(bool *launched)
{
    const char *forced = shard_env_string("SHARD_MPI", NULL);
    *launched = launched_kind() != NULL;
    return forced && !*launched ? shard_error(SHARD_ERROR_ARGUMENT, "SHARD_MPI is \"%s\"; the MPIs are openmpi and mpich", forced)
                                : SHARD_OK;
}

static shard_status open_mpi(shard_group *world, int *argc, char ***argv)
{
    const shard_mpi_host host = {
        .base = shard_plugin_own_base,
        .group_describe = shard_group_describe,
        .timeout = shard_comm_timeout,
        .find_culprits = shard_find_culprits,
        .write_culprits = shard_write_culprits,
        .broken_prefix = shard_group_broken_prefix,
    };
    const struct mpi_kind *kind = launched_kind();
    if (!kind)
        return shard_error(
            SHARD_ERROR_UNAVAILABLE,
            "mpi: no MPI launcher (mpirun, srun) started this process; SHARD_MPI is openmpi or mpich to choose one");
    char name[32], missing[256], install[128];
    snprintf(name, sizeof name, "mpi-%s", kind->name);
    snprintf(missing, sizeof missing, "this libshard was built without %s (Debian and Ubuntu: apt install %s, then build again)",
             kind->title, kind->packages);
    snprintf(install, sizeof install, "Debian and Ubuntu: apt install %s", kind->packages);
    /* Global, because Open MPI's own plug-ins look for its symbols. */
    void *symbol = shard_plugin_load(name, SHARD_MPI_PLUGIN_OPEN, missing, install, true);
    if (!symbol)
        return shard_last_status();
    shard_mpi_plugin_open_function *open;
    memcpy(&open, &symbol, sizeof open);
    return open(&host, world, argc, argv);
}

const shard_transport shard_mpi_transport = {.name = "mpi", .open = open_mpi};
