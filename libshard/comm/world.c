/* The world's beginning and end. */
#include "comm/comm.h"

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/preflight.h"
#include "comm/registry.h"
#include "comm/rendezvous.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <string.h>

static void note_fork(void)
{
    shard_process.forked = shard_process.world_size != INT_MAX;
}

/* Many lone ranks of one, each of which believes it is the whole job, would
 * compute nonsense: a world of one must be what the launcher started. */
static shard_status check_world(const shard_group *world)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"};
    const char *mpi = shard_env_string("SHARD_MPI", "");
    for (size_t i = 0; i < sizeof variables / sizeof *variables && world->size == 1; i++) {
        int64_t ranks;
        SHARD_TRY(shard_env_integer(variables[i], 1, 1, INT_MAX, &ranks));
        if (ranks > 1)
            return shard_error(SHARD_ERROR_UNAVAILABLE,
                               "%s says that %" PRId64
                               " ranks were started, but nothing connects them (transport %s sees a world of 1%s%s): "
                               "start them with shardrun, or with the mpirun of an MPI that libshard has a plugin for, "
                               "or connect them by shard_init_with",
                               variables[i], ranks, world->transport->name, *mpi ? "; SHARD_MPI is " : "", mpi);
    }
    return SHARD_OK;
}

void shard_world_notify_error(shard_group *world)
{
    char text[SHARD_COMM_TEXT];
    const shard_group alone = {.world_ranks = &world->rank}; /* the world may lack its list of ranks */
    if (!world->transport->abort || shard_last_status() == SHARD_OK || shard_error_is_joint(world->size))
        return;
    shard_write_error(&alone, text, sizeof text);
    world->transport->abort(world, SHARD_ABORT_LEAVING, shard_last_status(), text);
}

/* Frees a world that has not begun. With an error that all ranks have, or one rank alone, this returns NULL to the program. */
static shard_group *give_up_world(shard_group *world)
{
    bool others_wait = world->state && world->size > 1 && !shard_error_is_joint(world->size);
    if (others_wait && world->transport->ends_process) {
        shard_log_set_rank(world->rank);
        shard_log_message(SHARD_LOG_ERROR, "%s", shard_last_error());
    }
    if (others_wait)
        shard_world_notify_error(world);
    shard_group_free(world);
    return NULL;
}

/* Joins the world by that transport. */
static shard_group *join_world(const shard_transport *transport, int *argc, char ***argv)
{
    if (transport && !transport->open)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "SHARD_TRANSPORT is %s, for which the program calls shard_init_with",
                               transport->name);
    shard_group *world = transport ? shard_calloc(1, sizeof *world) : NULL;
    if (!world)
        return NULL;
    world->transport = transport;
    if (transport->open(world, argc, argv) == SHARD_OK && shard_group_allocate(world))
        return world;
    return give_up_world(world);
}

static shard_status begin_process(void)
{
    static bool registered;
    int64_t seconds;
    if (!registered)
        pthread_atfork(NULL, NULL, note_fork);
    registered = true;
    shard_process.forked = shard_process.ended = false;
    SHARD_TRY(shard_env_integer("SHARD_TIMEOUT", 600, 1, 1000000000, &seconds));
    shard_process.timeout = (double)seconds;
    SHARD_TRY(shard_env_integer("SHARD_STRAGGLER_SECONDS", 60, 0, 1000000000, &seconds));
    shard_process.straggler_seconds = (double)seconds;
    return SHARD_OK;
}

/* Of a world whose transport is ready, or NULL with the error set: the first collective. */
static shard_group *start_world(shard_group *world)
{
    if (!world)
        return NULL;
    shard_log_set_rank(world->rank);
    if (shard_preflight_only(world, SHARD_COLLECTIVE_WORLD_OPEN) != SHARD_OK)
        return give_up_world(world);
    shard_process.world_size = world->size;
    world->is_world = true;
    return world;
}

shard_group *shard_world_open(int *argc, char ***argv)
{
    if (begin_process() != SHARD_OK)
        return NULL;
    const char *forced = shard_env_string("SHARD_TRANSPORT", NULL);
    shard_group *world = join_world(forced ? shard_find_transport(forced) : shard_launched_transport(), argc, argv);
    if (world && !forced && check_world(world) != SHARD_OK)
        return give_up_world(world);
    return start_world(world);
}

/* The first transport that takes the ranks, or the forced one. */
static shard_status choose_transport(shard_group *world, shard_rendezvous *rendezvous, const char *forced)
{
    const shard_transport *transport;
    char refusal[SHARD_COMM_TEXT / 2] = "";
    for (int i = 0; !world->state && (transport = shard_host_transport_at(i)) != NULL; i++) {
        if (!transport->join || (forced && strcmp(forced, transport->name) != 0))
            continue;
        world->transport = transport;
        SHARD_TRY(transport->join(world, rendezvous, refusal, sizeof refusal));
    }
    if (!world->state && refusal[0])
        return shard_error(SHARD_ERROR_UNAVAILABLE, "shard_init_with: SHARD_TRANSPORT is %s, but %s", forced, refusal);
    if (!world->state)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_init_with: SHARD_TRANSPORT is \"%s\"; an exchange connects ranks for shm and "
                           "exchange",
                           forced);
    if (refusal[0] && world->rank == 0)
        shard_log_message(SHARD_LOG_INFO, "collectives go through the exchange of shard_init_with: %s", refusal);
    return SHARD_OK;
}

shard_group *shard_world_join(int rank, int size, shard_exchange_function *exchange, void *context)
{
    if (begin_process() != SHARD_OK)
        return NULL;
    if (size == 1)
        return start_world(join_world(shard_find_transport("self"), NULL, NULL));
    const char *forced = shard_env_string("SHARD_TRANSPORT", NULL);
    shard_group *world = shard_calloc(1, sizeof *world);
    shard_rendezvous *rendezvous = world ? shard_rendezvous_create(rank, size, exchange, context, forced) : NULL;
    if (world)
        world->transport = shard_find_transport("self"); /* until one is chosen */
    bool joined = rendezvous && choose_transport(world, rendezvous, forced) == SHARD_OK && shard_group_allocate(world);
    shard_rendezvous_unref(rendezvous);
    if (joined)
        return start_world(world);
    return world ? give_up_world(world) : NULL;
}

shard_status shard_world_leave(shard_group *world)
{
    bool waits = world && world->transport->leave && !shard_process.forked && shard_last_status() == SHARD_OK;
    return waits ? world->transport->leave(world) : shard_last_status();
}

void shard_world_close(shard_group *world)
{
    if (!world)
        return;
    if (!shard_process.forked)
        shard_world_notify_error(world);
    shard_group_free(world);
    shard_process.world_size = INT_MAX;
    shard_process.ended = true;
}
