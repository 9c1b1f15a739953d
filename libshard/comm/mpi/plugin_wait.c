/*
 * Waiting in a group, with a deadline. A rank that has left, or has failed and waits
 * elsewhere, is asked at once whether it entered the wait. All ranks are asked where
 * they are when the deadline has passed.
 */
#include "comm/mpi/plugin.h"

#include "base/hash.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Looks at the clock and the news come after so many polls, and so often. */
#define POLLS_BETWEEN_PROBES 64
#define PROBE_SECONDS 0.005

/* After this time a wait gives its core away between polls. */
#define POLITE_AFTER_SECONDS 0.5
#define POLITE_MICROSECONDS 100

/* A rank with an error that has waited elsewhere for so long does not just pass by. */
#define ABORT_NOTICE_SECONDS 0.2

/* The requests that a wait is for. */
typedef struct wait_for {
    MPI_Request *requests;
    int number;
} wait_for;

shard_status mpi_check(int result, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (result == MPI_SUCCESS)
        return SHARD_OK;
    MPI_Error_string(result, text, &length);
    text[strcspn(text, "\n")] = '\0';
    return shard_error(SHARD_ERROR_DEVICE, "mpi: %.*s: %.200s", (int)strcspn(call, "("), call, text);
}

/* A name of the wait: odd, equal on all ranks of the group, and different from the names of other waits. A collective
 * may have several waits, and a rank that fails in it may miss some: the next collective starts a new count. */
static uint64_t name_of_next_wait(const shard_group *group)
{
    mpi_group *state = group->state;
    state->waits = state->sequence == group->sequence ? state->waits + 1 : 0;
    state->sequence = group->sequence;
    uint64_t hash = shard_hash_word(SHARD_HASH_START, state->number);
    hash = shard_hash_word(hash, group->sequence);
    return shard_hash_word(hash, state->waits) | 1;
}

static shard_status give_up(shard_group *group, shard_status status, const char *text)
{
    mpi_group *state = group->state;
    state->broken = status;
    snprintf(state->text, sizeof state->text, "%s", text);
    snprintf(mpi.failure, sizeof mpi.failure, "%s", text);
    return shard_error(status, "%s%s", mpi.host.broken_prefix(&state->broken_since), text);
}

shard_status mpi_fail(shard_group *group, shard_status status)
{
    const mpi_group *state = group->state;
    return status == SHARD_OK || state->broken ? status : give_up(group, status, "a call of MPI, or the wait for one, failed");
}

/* It has failed and waits, and not just in passing. */
static bool waits_with_error(const mpi_peer *peer)
{
    return peer->failed_since > 0 && shard_seconds() - peer->failed_since > ABORT_NOTICE_SECONDS;
}

shard_status mpi_probe(shard_group *group, const char *doing)
{
    (void)doing;
    mpi.waiting = group;
    mpi.wait = MPI_NO_WAIT;
    mpi_read_news();
    mpi.waiting = NULL;
    for (int rank = 0; rank < group->size; rank++) {
        const mpi_peer *peer = &mpi.peers[group->world_ranks[rank]];
        if (peer->aborted.status != SHARD_OK)
            return shard_error(peer->aborted.status, "%s", peer->aborted.text);
        if (peer->failed.text[0] && (peer->left || (peer->failed.status == SHARD_ERROR_DEVICE && waits_with_error(peer))))
            return shard_error(SHARD_ERROR_PEER, "%s", peer->failed.text);
        if (peer->given_up[0])
            return shard_error(SHARD_ERROR_TIMEOUT, "%s", peer->given_up);
    }
    return SHARD_OK;
}

/* Whether the rank's answer, that it did not come, may be out of date. It has failed anew since, or it was in a wait that this
 * rank has completed, which it completes too, and goes on. */
static bool may_come_still(const mpi_peer *peer)
{
    return !peer->left && (peer->answered_at < peer->failed_since || mpi_has_completed(peer->received->wait));
}

/* Fails if a rank of the group has left, or has failed and waits elsewhere, without entering this wait, or if a wait
 * for it failed before. */
static shard_status check_ranks(shard_group *group)
{
    char text[SHARD_COMM_TEXT], doing[MPI_DOING_TEXT];
    for (int rank = 0; rank < group->size && mpi.has_notices; rank++) {
        int world_rank = group->world_ranks[rank];
        const mpi_peer *peer = &mpi.peers[world_rank];
        if (peer->given_up[0])
            return give_up(group, SHARD_ERROR_TIMEOUT, peer->given_up);
        if (!peer->left && !waits_with_error(peer))
            continue;
        mpi_ask(world_rank);
        if (peer->answer != MPI_PEER_ABSENT)
            continue;
        if (may_come_still(peer)) {
            mpi_forget_answer(world_rank);
            continue;
        }
        mpi.host.group_describe(group, doing, sizeof doing);
        if (peer->failed.text[0])
            snprintf(text, sizeof text, "%s", peer->failed.text);
        else
            snprintf(text, sizeof text, "rank %d has left: it did not come to %s", world_rank, doing);
        return give_up(group, SHARD_ERROR_PEER, text);
    }
    return SHARD_OK;
}

/* Those that are done are skipped at once the next time. */
static shard_status test_all(void *context, int *done)
{
    const wait_for *wait = context;
    *done = 1;
    for (int i = 0; i < wait->number && *done; i++)
        MPI_TRY(MPI_Test(&wait->requests[i], done, MPI_STATUS_IGNORE));
    return SHARD_OK;
}

/* The deadline has passed: finds the missing ranks, unless all is done after all. */
static shard_status fail_late(shard_group *group, wait_for *wait, int *done)
{
    char text[SHARD_COMM_TEXT], doing[MPI_DOING_TEXT];
    shard_status status = mpi_find_absent(test_all, wait, done, text, sizeof text);
    if (status != SHARD_OK || *done)
        return status;
    mpi.host.group_describe(group, doing, sizeof doing);
    if (!text[0])
        snprintf(text, sizeof text, "all ranks came, but MPI did not finish %s within %.0f s (SHARD_TIMEOUT)", doing,
                 mpi.host.timeout());
    return give_up(group, SHARD_ERROR_TIMEOUT, text);
}

static shard_status poll(shard_group *group, wait_for *wait)
{
    int done = 0;
    double start = 0, probed = 0;
    for (unsigned polls = 1;; polls++) {
        shard_status status = test_all(wait, &done);
        if (status != SHARD_OK || done)
            return status;
        sched_yield();
        if (polls % POLLS_BETWEEN_PROBES && start == 0)
            continue;
        double time = shard_own_seconds();
        if (start == 0) {
            start = time;
            mpi_forget_answers();
        }
        if (time - probed > PROBE_SECONDS) {
            probed = time;
            mpi_read_news();
            status = check_ranks(group);
            if (status == SHARD_OK && time - start > shard_group_patience(group, mpi.host.timeout()))
                status = fail_late(group, wait, &done);
            if (status != SHARD_OK || done)
                return status;
        }
        if (time - start > POLITE_AFTER_SECONDS)
            usleep(POLITE_MICROSECONDS);
    }
}

shard_status mpi_finish(shard_group *group, MPI_Request *requests, int number)
{
    mpi_group *state = group->state;
    if (state->broken)
        return shard_error(state->broken, "%s%s", mpi.host.broken_prefix(&state->broken_since), state->text);
    mpi.waiting = group;
    mpi.wait = name_of_next_wait(group);
    mpi_come_to(mpi.wait);
    shard_status status = poll(group, &(wait_for){requests, number});
    if (status == SHARD_OK)
        mpi_complete_wait();
    mpi.waiting = NULL;
    mpi.wait = MPI_NO_WAIT;
    return mpi_fail(group, status);
}
