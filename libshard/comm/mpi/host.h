/*
 * Between the library and its MPI plugins. A plugin is loaded into a process
 * that has the library already, as a shared object or inside the program; it
 * links nothing of it, but gets a table of what it needs.
 */
#ifndef SHARD_COMM_MPI_HOST_H
#define SHARD_COMM_MPI_HOST_H

#include "base/plugin.h"
#include "comm/culprits.h"
#include "comm/transport.h"

typedef struct shard_mpi_host {
    int version; /* the library's SHARD_PLUGIN_VERSION; the plugin's must be the same */
    shard_status (*error)(shard_status status, const char *format, ...) SHARD_PRINTF(2, 3);
    void *(*calloc)(size_t count, size_t size);
    void (*group_describe)(const shard_group *group, char *text, size_t bytes);
    double (*timeout)(void);
    shard_status (*env_integer)(const char *name, int64_t fallback, int64_t low, int64_t high, int64_t *value);
    int (*find_culprits)(const shard_waits *waits, int rank, bool *culprits);
    void (*write_culprits)(int size, const bool *culprits, const char *doing, const char *waited_in, char *text, size_t bytes);
    const char *(*broken_prefix)(uint64_t *since); /* shard_group_broken_prefix */
    void (*log)(shard_log_level level, const char *format, ...) SHARD_PRINTF(2, 3);
} shard_mpi_host;

/* The function that each plugin exports: it opens the world, whose transport is then the plugin's table. */
#define SHARD_MPI_PLUGIN_OPEN "shard_mpi_plugin_open"
typedef shard_status shard_mpi_plugin_open_function(const shard_mpi_host *host, shard_group *world, int *argc, char ***argv);
SHARD_API shard_mpi_plugin_open_function shard_mpi_plugin_open;

#endif
