/* Starting and ending MPI, and groups. */
#include "comm/mpi/module.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mpi_world mpi;

/* Seconds that ranks have to read of a failure before the job is aborted. */
#define FAREWELL_SECONDS 2.0

static const shard_group_ops mpi_ops;

/* A group without a communicator yet. */
static shard_group *make_group(int rank, int size, const int *world_ranks)
{
    mpi_group *state = mpi.host->calloc(1, sizeof *state);
    char *all = mpi.host->calloc((size_t)size, SHARD_EXCHANGE_BYTES);
    shard_group *group = state && all ? mpi.host->group_make(&mpi_ops, rank, size, world_ranks, state) : NULL;
    if (!group) {
        free(state);
        free(all);
        return NULL;
    }
    state->comm = MPI_COMM_NULL;
    state->all = all;
    return group;
}

/* What a wait that was given up may still write to is left alone: the job ends. */
static void free_group(shard_group *group)
{
    mpi_group *state = group->state;
    if (state->broken == SHARD_OK) {
        if (state->comm != MPI_COMM_NULL && state->comm != mpi.comm)
            MPI_Comm_free(&state->comm);
        free(state->all);
        free(state);
    }
    mpi.host->group_free(group);
}

/* MPI_Comm_create_group blocks: all members come to the first of them before it is
 * called, with a deadline. */
static shard_status meet_members(shard_group *group)
{
    enum { TAG_COME = 1, TAG_GO };
    MPI_Request *requests = mpi.host->calloc((size_t)group->size, sizeof *requests);
    if (!requests)
        return SHARD_ERROR_MEMORY;
    int result = MPI_SUCCESS, first = group->world_ranks[0];
    shard_status status = SHARD_OK;
    for (int phase = TAG_COME; phase <= TAG_GO && status == SHARD_OK; phase++) {
        int number = 0;
        for (int member = 1; member < group->size && result == MPI_SUCCESS; member++) {
            int other = group->rank == 0 ? group->world_ranks[member] : first;
            if (group->rank != 0 && member != group->rank)
                continue;
            if ((group->rank == 0) == (phase == TAG_GO))
                result = MPI_Isend(NULL, 0, MPI_BYTE, other, phase, mpi.comm, &requests[number++]);
            else
                result = MPI_Irecv(NULL, 0, MPI_BYTE, other, phase, mpi.comm, &requests[number++]);
        }
        status = mpi_check(result, "a message");
        if (status == SHARD_OK)
            status = mpi_finish(group, requests, number);
    }
    if (status == SHARD_OK)
        free(requests);
    return status;
}

static shard_status create_comm(shard_group *group)
{
    mpi_group *state = group->state;
    MPI_Group everybody, members;
    MPI_TRY(MPI_Comm_group(mpi.comm, &everybody));
    MPI_TRY(MPI_Group_incl(everybody, group->size, group->world_ranks, &members));
    MPI_TRY(MPI_Comm_create_group(mpi.comm, members, 0, &state->comm));
    MPI_TRY(MPI_Comm_set_errhandler(state->comm, MPI_ERRORS_RETURN));
    MPI_Group_free(&members);
    MPI_Group_free(&everybody);
    return SHARD_OK;
}

static shard_group *mpi_subgroup(shard_group *parent, const int *members, int size)
{
    int *world_ranks = mpi.host->calloc((size_t)size, sizeof *world_ranks);
    if (!world_ranks)
        return NULL;
    int rank = 0;
    for (int i = 0; i < size; i++) {
        world_ranks[i] = parent->world_ranks[members[i]];
        rank = members[i] == parent->rank ? i : rank;
    }
    shard_group *group = make_group(rank, size, world_ranks);
    free(world_ranks);
    if (group && (meet_members(group) != SHARD_OK || create_comm(group) != SHARD_OK)) {
        free_group(group);
        return NULL;
    }
    return group;
}

/* Another rank may wait in vain for this one, and MPI cannot be ended while it does. */
static void mpi_post(shard_group *world, const char *text)
{
    (void)world;
    mpi_say_farewell(text);
    mpi.failed = true;
}

static void mpi_alarm(shard_group *group, const char *text)
{
    (void)group;
    mpi_say_alarm(text);
}

static void end_mpi(void)
{
    if (!mpi.failed)
        mpi_say_farewell("");
    bool together = mpi_wait_for_farewells(mpi.failed ? FAREWELL_SECONDS : 1e9);
    if (mpi.failed || !together)
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    MPI_Comm_free(&mpi.news);
    MPI_Comm_free(&mpi.comm);
    if (mpi.started_here)
        MPI_Finalize();
    free(mpi.peers);
}

static void mpi_destroy(shard_group *group)
{
    bool whole = ((mpi_group *)group->state)->comm == mpi.comm;
    free_group(group);
    if (whole)
        end_mpi();
}

static const shard_group_ops mpi_ops = {
    .name = "mpi",
    .exchange = mpi_exchange,
    .all_reduce = mpi_all_reduce,
    .all_reduce_start = mpi_all_reduce_start,
    .wait = mpi_wait,
    .all_gather = mpi_all_gather,
    .reduce_scatter = mpi_reduce_scatter,
    .reduce_scatter_start = mpi_reduce_scatter_start,
    .broadcast = mpi_broadcast,
    .subgroup = mpi_subgroup,
    .post = mpi_post,
    .alarm = mpi_alarm,
    .look = mpi_look,
    .destroy = mpi_destroy,
};

static shard_status start_mpi(int *argc, char ***argv)
{
    int running, provided;
    MPI_TRY(MPI_Initialized(&running));
    if (!running)
        MPI_TRY(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
    mpi.started_here = !running;
    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &mpi.comm));
    MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &mpi.news));
    MPI_TRY(MPI_Comm_rank(mpi.comm, &mpi.rank));
    MPI_TRY(MPI_Comm_size(mpi.comm, &mpi.size));
    mpi.peers = mpi.host->calloc((size_t)mpi.size, sizeof *mpi.peers);
    if (!mpi.peers)
        return SHARD_ERROR_MEMORY;
    const char *most = getenv("SHARD_MPI_COUNT");
    mpi.most = most ? strtoll(most, NULL, 10) : 1 << 30;
    if (mpi.most < 1 || mpi.most > 1 << 30)
        return mpi.host->error(SHARD_ERROR_ARGUMENT, "environment variable SHARD_MPI_COUNT is \"%s\", not in [1, 2^30]", most);
    return SHARD_OK;
}

shard_group *shard_mpi_module_open(const shard_mpi_host *host, int *argc, char ***argv)
{
    if (host->version != SHARD_MPI_VERSION) {
        host->error(SHARD_ERROR_UNAVAILABLE, "mpi: the module is of another version than libshard: install both of the same one");
        return NULL;
    }
    mpi = (mpi_world){.host = host};
    if (start_mpi(argc, argv) != SHARD_OK)
        return NULL;
    int *world_ranks = host->calloc((size_t)mpi.size, sizeof *world_ranks);
    if (!world_ranks)
        return NULL;
    for (int i = 0; i < mpi.size; i++)
        world_ranks[i] = i;
    shard_group *world = make_group(mpi.rank, mpi.size, world_ranks);
    free(world_ranks);
    if (world)
        ((mpi_group *)world->state)->comm = mpi.comm;
    return world;
}
