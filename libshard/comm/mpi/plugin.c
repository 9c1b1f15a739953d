/* Starting and ending MPI, and groups. */
#include "comm/mpi/plugin.h"

#include "base/hash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

mpi_world mpi;

/* Seconds that ranks have to read of a failure before the job is aborted. */
#define FAREWELL_SECONDS 2.0

#define LATE_NANOSECONDS 500000000 /* on a connection that was used TCP sends a lost packet again after 200 ms */

/* ---- threads ---- */

pthread_mutex_t mpi_lock = PTHREAD_MUTEX_INITIALIZER;

static bool may_call(void)
{
    int starter = 1;
    if (mpi.one_thread)
        MPI_Is_thread_main(&starter);
    return starter != 0;
}

shard_status mpi_check_thread(void)
{
    return may_call() ? SHARD_OK
                      : shard_error(SHARD_ERROR_UNSUPPORTED,
                                    "mpi: a collective of another thread than the one that called MPI_Init: other threads "
                                    "need MPI_Init_thread with MPI_THREAD_SERIALIZED, or shard_init without a call of it");
}

/* ---- groups ---- */

/* How many groups of the same ranks this process has made. */
typedef struct birth {
    uint64_t ranks, number;
    struct birth *next;
} birth;

/* The number of a new group; without a list its ranks are 0 to size - 1. All ranks make their groups in the same order, so each
 * rank's n-th group of the same ranks is the same group. 0 with the error set. */
static uint64_t number_group(int size, const int *world_ranks)
{
    static birth *births;
    uint64_t ranks = SHARD_HASH_START;
    for (int rank = 0; rank < size; rank++)
        ranks = shard_hash_word(ranks, (uint64_t)(world_ranks ? world_ranks[rank] : rank));
    birth *known = births;
    while (known && known->ranks != ranks)
        known = known->next;
    if (!known) {
        known = shard_calloc(1, sizeof *known);
        if (!known)
            return 0;
        *known = (birth){.ranks = ranks, .next = births};
        births = known;
    }
    return shard_hash_word(ranks, ++known->number) | 1;
}

/* The state of a group without a communicator yet. */
static shard_status make_state(shard_group *group)
{
    uint64_t number = number_group(group->size, group->world_ranks);
    mpi_group *state = number ? shard_calloc(1, sizeof *state) : NULL;
    char *all = state ? shard_calloc((size_t)group->size, SHARD_EXCHANGE_BYTES) : NULL;
    if (!all) {
        free(state);
        return SHARD_ERROR_MEMORY;
    }
    state->comm = MPI_COMM_NULL;
    state->number = number;
    state->all = all;
    group->state = state;
    return SHARD_OK;
}

/* A tag of the group's messages in the world's communicator: those of a group that was given up
 * may lie there still. MPI has tags up to 32767 at least. */
static int tag_of(const shard_group *group, int phase)
{
    return (int)(((const mpi_group *)group->state)->number % 10000) * 3 + phase;
}

/* MPI_Comm_create_group blocks: all ranks come to the first of them before it is
 * called, with a deadline. */
static shard_status gather_ranks(shard_group *group)
{
    enum { TAG_COME = 1, TAG_GO };
    MPI_Request *requests = shard_calloc((size_t)group->size, sizeof *requests);
    if (!requests)
        return SHARD_ERROR_MEMORY;
    int result = MPI_SUCCESS, first = group->world_ranks[0];
    shard_status status = SHARD_OK;
    for (int phase = TAG_COME; phase <= TAG_GO && status == SHARD_OK; phase++) {
        int number = 0;
        for (int rank = 1; rank < group->size && result == MPI_SUCCESS; rank++) {
            int other = group->rank == 0 ? group->world_ranks[rank] : first;
            if (group->rank != 0 && rank != group->rank)
                continue;
            if ((group->rank == 0) == (phase == TAG_GO))
                result = MPI_Isend(NULL, 0, MPI_BYTE, other, tag_of(group, phase), mpi.comm, &requests[number++]);
            else
                result = MPI_Irecv(NULL, 0, MPI_BYTE, other, tag_of(group, phase), mpi.comm, &requests[number++]);
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
    MPI_Group all, ranks;
    MPI_TRY(MPI_Comm_group(mpi.comm, &all));
    MPI_TRY(MPI_Group_incl(all, group->size, group->world_ranks, &ranks));
    mpi_watch("MPI_Comm_create_group");
    int result = MPI_Comm_create_group(mpi.comm, ranks, tag_of(group, 0), &state->comm);
    mpi_watch_end();
    shard_status status = mpi_check(result, "MPI_Comm_create_group");
    if (status != SHARD_OK)
        return status;
    MPI_TRY(MPI_Comm_set_errhandler(state->comm, MPI_ERRORS_RETURN));
    MPI_Group_free(&ranks);
    MPI_Group_free(&all);
    return SHARD_OK;
}

static shard_status split(shard_group *parent, shard_group *group)
{
    (void)parent;
    SHARD_HOLD(&mpi_lock);
    SHARD_TRY(mpi_check_thread());
    shard_status status = make_state(group);
    if (status == SHARD_OK)
        status = gather_ranks(group);
    return status == SHARD_OK ? create_comm(group) : status;
}

/* Whether one of the others has left with an error. */
static bool has_failed_peer(void)
{
    bool failed = false;
    for (int rank = 0; rank < mpi.size; rank++)
        failed |= mpi.peers[rank].left && mpi.peers[rank].failed.text[0];
    return failed;
}

/* MPICH over UCX hangs in MPI_Finalize if a rank polls MPI after another one has closed its connections: when the message that
 * the other one is ready was lost and comes late. So that none closes them by then, a rank that has all these messages calls
 * nothing of MPI for longer than TCP takes to send a lost packet again. Ranks of one host lose none. */
static void wait_for_late_ranks(void)
{
    struct timespec left = {.tv_nsec = LATE_NANOSECONDS};
    while (mpi.several_hosts && nanosleep(&left, &left) != 0 && errno == EINTR) /* a handler of the program's */
        ;
}

static void end_mpi(void)
{
    mpi_say(SHARD_ABORT_LEAVING, SHARD_OK, mpi.failure);
    bool together = mpi_wait_for_farewells(mpi_has_failed() ? FAREWELL_SECONDS : mpi.host.timeout());
    if (together && !mpi_has_failed() && !has_failed_peer()) { /* MPI_Finalize has no deadline: all are to live that call it */
        mpi_say_ready();
        together = mpi_wait_for_farewells(mpi.host.timeout());
    }
    if (mpi_has_failed() && !mpi.has_error)
        shard_log_message(SHARD_LOG_ERROR, "mpi: the job fails, as a wait was given up before: %s", mpi.failure);
    if (mpi_has_failed() || !together || has_failed_peer())
        mpi_abort();
    wait_for_late_ranks();
    mpi_watch("MPI_Finalize");
    MPI_Comm_free(&mpi.news);
    MPI_Comm_free(&mpi.comm);
    if (mpi.started_here)
        MPI_Finalize();
    mpi_watch_end();
    if (mpi.started_here)
        mpi_news_close();
    mpi.ended = true;
}

/* Memory that a wait that was given up may still write to is not freed: the job ends. A group may be closed after the
 * world, when MPI has ended. */
static void close_group(shard_group *group)
{
    SHARD_HOLD(&mpi_lock);
    mpi_group *state = group->state;
    bool whole = state->comm == mpi.comm && !mpi.ended;
    if (state->broken == SHARD_OK) {
        if (state->comm != MPI_COMM_NULL && !whole && !mpi.ended)
            MPI_Comm_free(&state->comm);
        free(state->all);
        free(state);
    }
    if (whole)
        end_mpi();
}

/* A thread that waits for a GPU probes while another one may be in MPI. That one reads the news. */
static shard_status probe_alone(shard_group *group, const char *doing)
{
    if (!may_call() || pthread_mutex_trylock(&mpi_lock) != 0)
        return SHARD_OK;
    shard_status status = mpi_probe(group, doing);
    pthread_mutex_unlock(&mpi_lock);
    return status;
}

/* May come while another thread waits in MPI. LEAVING, of a thread in exit, calls nothing of MPI: others may wait in vain for
 * this rank, and MPI cannot be ended while they do. That of a thread that waits for a GPU is left to the one in MPI, whose wait
 * may end by it alone. */
static void notify_abort(shard_group *group, shard_abort_notice notice, shard_status status, const char *text)
{
    (void)group;
    if (notice == SHARD_ABORT_LEAVING) {
        mpi.has_error = true;
        snprintf(mpi.failure, sizeof mpi.failure, "%s", text);
    } else if (notice == SHARD_ABORT_DEVICE) {
        mpi_leave_device_abort(status, text);
        if (may_call() && pthread_mutex_trylock(&mpi_lock) == 0) {
            mpi_say_what_was_left();
            pthread_mutex_unlock(&mpi_lock);
        }
    } else if (may_call()) { /* else it does not come to the collective either */
        SHARD_HOLD(&mpi_lock);
        mpi_say(notice, status, text);
    }
}

static const shard_transport mpi_transport = {
    .name = "mpi",
    .split = split,
    .prepare = mpi_prepare,
    .discard = mpi_discard,
    .post = mpi_post,
    .wait = mpi_wait,
    .probe = probe_alone,
    .abort = notify_abort,
    .close = close_group,
    .ends_process = true,
};

static shard_status find_hosts(void)
{
#ifdef MPICH_VERSION /* whose end waits for late ranks */
    MPI_Comm host;
    int size;
    MPI_TRY(MPI_Comm_split_type(mpi.comm, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host));
    MPI_TRY(MPI_Comm_size(host, &size));
    MPI_TRY(MPI_Comm_free(&host));
    mpi.several_hosts = size < mpi.size;
#endif
    return SHARD_OK;
}

/* Up to the first collective of libshard's own, everything blocks. */
static shard_status connect_ranks(int *argc, char ***argv)
{
    int running, provided, over;
    MPI_Errhandler of_program = MPI_ERRHANDLER_NULL;
    MPI_TRY(MPI_Finalized(&over));
    if (over)
        return shard_error(SHARD_ERROR_UNAVAILABLE,
                           "mpi: MPI_Finalize has been called in this process; MPI does not start again");
    MPI_TRY(MPI_Initialized(&running));
    if (!running)
        MPI_TRY(MPI_Init_thread(argc, argv, MPI_THREAD_SERIALIZED, &provided));
    else
        MPI_TRY(MPI_Query_thread(&provided));
    mpi.started_here = !running;
    mpi.one_thread = provided < MPI_THREAD_SERIALIZED;
    if (running) /* the program's own communicator keeps its errors fatal, if they are */
        MPI_TRY(MPI_Comm_get_errhandler(MPI_COMM_WORLD, &of_program));
    MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN)); /* which copies inherit */
    MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &mpi.comm));
    MPI_TRY(MPI_Comm_dup(MPI_COMM_WORLD, &mpi.news));
    if (running) {
        MPI_TRY(MPI_Comm_set_errhandler(MPI_COMM_WORLD, of_program));
        MPI_TRY(MPI_Errhandler_free(&of_program));
    }
    MPI_TRY(MPI_Comm_rank(mpi.comm, &mpi.rank));
    MPI_TRY(MPI_Comm_size(mpi.comm, &mpi.size));
    return find_hosts();
}

static shard_status start_mpi(int *argc, char ***argv)
{
    mpi_watch("MPI_Init");
    shard_status status = connect_ranks(argc, argv);
    mpi_watch_end();
    if (status == SHARD_OK)
        status = mpi_news_open();
    return status == SHARD_OK ? shard_env_integer("SHARD_MPI_COUNT", 1 << 30, 1, 1 << 30, &mpi.most) : status;
}

shard_status shard_mpi_plugin_open(const shard_mpi_host *host, shard_group *world, int *argc, char ***argv)
{
    mpi = (mpi_world){.host = *host};
    if (!shard_plugin_begin(&mpi.host.base))
        return SHARD_ERROR_UNAVAILABLE;
    shard_status status = start_mpi(argc, argv);
    if (status != SHARD_OK)
        return status;
    world->rank = mpi.rank;
    world->size = mpi.size;
    status = make_state(world);
    if (status != SHARD_OK)
        return status;
    world->transport = &mpi_transport;
    ((mpi_group *)world->state)->comm = mpi.comm;
    return SHARD_OK;
}
