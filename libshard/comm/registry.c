/* The transports by name. One of the two places that know which backends exist. */
#include "comm/comm.h"

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

static double timeout_seconds = 600;
static int world_size = INT_MAX;
static bool forked;

double shard_comm_timeout(void)
{
    return timeout_seconds;
}

bool shard_comm_forked(void)
{
    return forked;
}

static void note_fork(void)
{
    forked = world_size != INT_MAX;
}

int shard_comm_world_size(void)
{
    return world_size;
}

static shard_group *open_self(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return shard_self_open();
}

static shard_group *open_shm(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    return shard_shm_open();
}

static const struct transport {
    const char *name;
    shard_group *(*open)(int *argc, char ***argv);
} transports[] = {{"self", open_self}, {"shm", open_shm}, {"mpi", shard_mpi_open}};

static const char *launched_transport(void)
{
    if (shard_env_string("SHARD_SHM_FD", NULL))
        return "shm";
    return shard_mpi_launched() ? "mpi" : "self";
}

static const struct transport *find_transport(const char *name)
{
    for (size_t i = 0; i < sizeof transports / sizeof *transports; i++)
        if (strcmp(transports[i].name, name) == 0)
            return &transports[i];
    return shard_fail_null(SHARD_ERROR_ARGUMENT, "SHARD_TRANSPORT is \"%s\"; the transports are self, shm and mpi", name);
}

/* Many lone ranks of one, each of which believes it is the whole job, would
 * compute nonsense: a world of one must be what the launcher started. */
static shard_status check_world(const shard_group *world)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables && world->size == 1; i++) {
        int64_t ranks;
        SHARD_TRY(shard_env_integer(variables[i], 1, 1, INT_MAX, &ranks));
        if (ranks > 1)
            return shard_error(SHARD_ERROR_UNAVAILABLE,
                               "%s says that %" PRId64 " ranks were started, but nothing connects them (transport %s sees a world of 1): "
                               "start them with shardrun, or with the mpirun of an MPI that libshard has a module for",
                               variables[i], ranks, world->ops->name);
    }
    return SHARD_OK;
}

shard_group *shard_world_open(int *argc, char ***argv)
{
    static bool registered;
    int64_t seconds;
    if (!registered)
        pthread_atfork(NULL, NULL, note_fork);
    registered = true;
    forked = false;
    if (shard_env_integer("SHARD_TIMEOUT", 600, 1, 1000000000, &seconds) != SHARD_OK)
        return NULL;
    timeout_seconds = (double)seconds;
    const char *forced = shard_env_string("SHARD_TRANSPORT", NULL);
    const struct transport *transport = find_transport(forced ? forced : launched_transport());
    shard_group *world = transport ? transport->open(argc, argv) : NULL;
    if (!world)
        return NULL;
    if (!forced && check_world(world) != SHARD_OK) {
        shard_group_destroy(world);
        return NULL;
    }
    shard_log_set_rank(world->rank);
    world = shard_group_start(world, "world_open");
    world_size = world ? world->size : INT_MAX;
    if (world)
        world->is_world = true;
    return world;
}

void shard_world_close(shard_group *world)
{
    if (!world)
        return;
    if (!forked)
        shard_group_post(world);
    shard_group_destroy(world);
    world_size = INT_MAX;
}
