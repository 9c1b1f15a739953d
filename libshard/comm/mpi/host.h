/* Between the library and its MPI plugins. */
#ifndef SHARD_COMM_MPI_HOST_H
#define SHARD_COMM_MPI_HOST_H

#include "base/plugin.h"
#include "comm/culprits.h"
#include "comm/transport.h"

typedef struct shard_mpi_host {
    shard_plugin_base base;
    void (*group_describe)(const shard_group *group, char *text, size_t bytes);
    double (*timeout)(void);
    int (*find_culprits)(const shard_waits *waits, int rank, bool *culprits);
    void (*write_culprits)(int size, const bool *culprits, const char *doing, const char *waited_in, char *text, size_t bytes);
    const char *(*broken_prefix)(uint64_t *since); /* shard_group_broken_prefix */
} shard_mpi_host;

/* The function that each plugin exports: it opens the world, whose transport is then the plugin's table. */
#define SHARD_MPI_PLUGIN_OPEN "shard_mpi_plugin_open"
typedef shard_status shard_mpi_plugin_open_function(const shard_mpi_host *host, shard_group *world, int *argc, char ***argv);
SHARD_API shard_mpi_plugin_open_function shard_mpi_plugin_open;

#endif
