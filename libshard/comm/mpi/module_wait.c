/*
 * Waiting. MPI cannot say which members of a collective are missing, so ranks
 * ask each other over the news: "did you come to this wait?" Each remembers
 * the waits that it came to last, and answers from its own polling, also while
 * it leaves. Asked are the members that have left, at once, and all members
 * when the deadline has passed.
 */
#include "comm/mpi/module.h"

#include "base/hash.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Looks at the clock and the news come after so many polls, and so often. */
#define POLLS_BETWEEN_LOOKS 64
#define LOOK_SECONDS 0.005

/* After this time a wait gives its core away between polls. */
#define POLITE_AFTER_SECONDS 0.5
#define POLITE_MICROSECONDS 100

/* A rank with an error that has waited elsewhere for so long does not just pass by. */
#define ALARM_SECONDS 0.2

/* How long the members have to answer. */
#define ANSWER_SECONDS 1.0

enum { TAG_LEFT, TAG_FAILED, TAG_ALARM, TAG_CALM, TAG_ASK, TAG_CAME, TAG_ABSENT };

/* The names of the waits that this rank came to, the last ones. */
#define REMEMBERED 1024
static uint64_t came_to[REMEMBERED];
static unsigned came;

static uint64_t question; /* the wait that is asked about */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

shard_status mpi_check(int result, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (result == MPI_SUCCESS)
        return SHARD_OK;
    MPI_Error_string(result, text, &length);
    text[strcspn(text, "\n")] = '\0';
    return mpi.host->error(SHARD_ERROR_DEVICE, "mpi: %.*s: %.200s", (int)strcspn(call, "("), call, text);
}

/* A message that is not waited for: its bytes must stay as they are for a while. */
static void send_news(int rank, int tag, const void *bytes, size_t number)
{
    MPI_Request request;
    if (rank != mpi.rank && MPI_Isend(bytes, (int)number, MPI_BYTE, rank, tag, mpi.news, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
}

void mpi_say_farewell(const char *text)
{
    static char said[SHARD_COMM_TEXT];
    snprintf(said, sizeof said, "%s", text);
    for (int rank = 0; rank < mpi.size; rank++)
        send_news(rank, *text ? TAG_FAILED : TAG_LEFT, said, *text ? sizeof said : 0);
}

void mpi_say_alarm(const char *text)
{
    static char said[SHARD_COMM_TEXT];
    if (text)
        snprintf(said, sizeof said, "%s", text);
    for (int rank = 0; rank < mpi.size; rank++)
        send_news(rank, text ? TAG_ALARM : TAG_CALM, said, text ? sizeof said : 0);
}

static void answer(int rank, uint64_t asked)
{
    static uint64_t answers[REMEMBERED];
    static unsigned number;
    uint64_t *said = &answers[number++ % REMEMBERED];
    bool there = false;
    for (unsigned i = 0; i < REMEMBERED; i++)
        there |= came_to[i] == asked;
    *said = asked;
    send_news(rank, there ? TAG_CAME : TAG_ABSENT, said, sizeof *said);
}

/* Takes in what the others have said, and answers. */
static void read_news(void)
{
    for (;;) {
        int there = 0;
        MPI_Status from;
        char text[SHARD_COMM_TEXT] = "";
        uint64_t wait;
        if (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi.news, &there, &from) != MPI_SUCCESS || !there)
            return;
        MPI_Recv(text, sizeof text, MPI_BYTE, from.MPI_SOURCE, from.MPI_TAG, mpi.news, &from);
        memcpy(&wait, text, sizeof wait);
        mpi_peer *peer = &mpi.peers[from.MPI_SOURCE];
        switch (from.MPI_TAG) {
        case TAG_ASK:
            answer(from.MPI_SOURCE, wait);
            break;
        case TAG_CAME:
        case TAG_ABSENT:
            if (wait == question)
                peer->answer = from.MPI_TAG == TAG_CAME ? MPI_PEER_CAME : MPI_PEER_ABSENT;
            break;
        case TAG_ALARM:
        case TAG_CALM:
            peer->alarmed = from.MPI_TAG == TAG_ALARM ? now() : 0;
            memcpy(peer->said, text, sizeof text);
            break;
        default:
            peer->left = true;
            memcpy(peer->said, text, sizeof text);
        }
    }
}

bool mpi_wait_for_farewells(double seconds)
{
    double end = now() + seconds;
    for (;;) {
        int left = 1;
        read_news();
        for (int rank = 0; rank < mpi.size; rank++)
            left += rank != mpi.rank && mpi.peers[rank].left;
        if (left == mpi.size || now() > end)
            return left == mpi.size;
        usleep(POLITE_MICROSECONDS);
    }
}

/* The same on all members of a group for the same checked collective; never 0. */
static uint64_t name_of_wait(const shard_group *group)
{
    uint64_t hash = shard_hash_word(SHARD_HASH_START, group->sequence);
    for (int member = 0; member < group->size; member++)
        hash = shard_hash_word(hash, (uint64_t)group->world_ranks[member]);
    return hash | 1;
}

static shard_status give_up(shard_group *group, shard_status status, const char *text)
{
    mpi_group *state = group->state;
    state->broken = status;
    mpi.failed = true;
    snprintf(state->text, sizeof state->text, "%s", text);
    return mpi.host->error(status, "%s", text);
}

/* It has failed and waits, and not just in passing. */
static bool is_alarmed(const mpi_peer *peer)
{
    return peer->alarmed > 0 && now() - peer->alarmed > ALARM_SECONDS;
}

shard_status mpi_look(shard_group *group, const char *doing)
{
    (void)doing;
    read_news();
    for (int member = 0; member < group->size; member++) {
        const mpi_peer *peer = &mpi.peers[group->world_ranks[member]];
        if (peer->said[0] && (peer->left || is_alarmed(peer)))
            return mpi.host->error(SHARD_ERROR_PEER, "%s", peer->said);
    }
    return SHARD_OK;
}

static void ask(int rank)
{
    if (mpi.peers[rank].answer == MPI_PEER_NOT_ASKED)
        send_news(rank, TAG_ASK, &question, sizeof question);
    if (mpi.peers[rank].answer == MPI_PEER_NOT_ASKED)
        mpi.peers[rank].answer = MPI_PEER_ASKED;
}

/* Whether a member has left, or has failed and waits elsewhere, without coming to this wait. */
static shard_status check_members(shard_group *group)
{
    char text[SHARD_COMM_TEXT], doing[200];
    for (int member = 0; member < group->size; member++) {
        int rank = group->world_ranks[member];
        const mpi_peer *peer = &mpi.peers[rank];
        if (!peer->left && !is_alarmed(peer))
            continue;
        ask(rank);
        if (peer->answer != MPI_PEER_ABSENT)
            continue;
        mpi.host->group_describe(group, doing, sizeof doing);
        if (peer->said[0])
            snprintf(text, sizeof text, "%s", peer->said);
        else
            snprintf(text, sizeof text, "rank %d has left: it did not come to %s", rank, doing);
        return give_up(group, SHARD_ERROR_PEER, text);
    }
    return SHARD_OK;
}

/* Those that are done are skipped at once the next time. */
static int test_all(MPI_Request *requests, int number, int *done)
{
    MPI_Status status;
    int result = MPI_SUCCESS;
    *done = 1;
    for (int i = 0; i < number && *done && result == MPI_SUCCESS; i++)
        result = MPI_Test(&requests[i], done, &status);
    return result;
}

/* The deadline has passed: finds out who is missing, unless all is done after all. */
static shard_status ask_members(shard_group *group, MPI_Request *requests, int number, int *done)
{
    char text[SHARD_COMM_TEXT] = "", doing[200];
    bool *missing = mpi.host->calloc((size_t)group->size, sizeof *missing);
    if (!missing)
        return give_up(group, SHARD_ERROR_TIMEOUT, "no memory left to find out which ranks did not come");
    for (int member = 0; member < group->size; member++)
        ask(group->world_ranks[member]);
    for (double end = now() + ANSWER_SECONDS; now() < end && !*done; usleep(POLITE_MICROSECONDS)) {
        MPI_TRY(test_all(requests, number, done));
        read_news();
    }
    int absent = 0;
    for (int member = 0; member < group->size; member++)
        absent += missing[member] = member != group->rank && mpi.peers[group->world_ranks[member]].answer != MPI_PEER_CAME;
    mpi.host->group_describe(group, doing, sizeof doing);
    if (absent)
        mpi.host->group_name_ranks(group, missing, text, sizeof text);
    size_t used = strlen(text);
    snprintf(text + used, sizeof text - used, "%s %s within %.0f s (SHARD_TIMEOUT)",
             absent ? " did not come to" : "all ranks came, but MPI did not finish", doing, mpi.host->timeout());
    free(missing);
    return *done ? SHARD_OK : give_up(group, SHARD_ERROR_TIMEOUT, text);
}

static shard_status poll(shard_group *group, MPI_Request *requests, int number)
{
    int done = 0;
    double start = 0, looked = 0;
    for (unsigned polls = 1;; polls++) {
        MPI_TRY(test_all(requests, number, &done));
        if (done)
            return SHARD_OK;
        sched_yield();
        if (polls % POLLS_BETWEEN_LOOKS && start == 0)
            continue;
        double time = now();
        if (start == 0) {
            start = time;
            question = name_of_wait(group);
            for (int rank = 0; rank < mpi.size; rank++)
                mpi.peers[rank].answer = MPI_PEER_NOT_ASKED;
        }
        if (time - looked > LOOK_SECONDS) {
            looked = time;
            read_news();
            shard_status status = check_members(group);
            if (status == SHARD_OK && time - start > mpi.host->timeout())
                status = ask_members(group, requests, number, &done);
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
        return mpi.host->error(state->broken, "%s", state->text);
    uint64_t name = name_of_wait(group);
    if (came_to[came % REMEMBERED] != name)
        came_to[++came % REMEMBERED] = name;
    return poll(group, requests, number);
}
