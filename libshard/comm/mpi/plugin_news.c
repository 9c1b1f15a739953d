/*
 * News: what ranks send each other outside of collectives. MPI cannot say which ranks of
 * a collective are missing, so ranks ask each other: "did you come to this wait?" Each
 * remembers the waits that it came to last, and answers from its own polling, also while
 * it leaves, with what it waits for itself. A rank that does not answer does not poll: it
 * computes, or hangs.
 */
#include "comm/mpi/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_MICROSECONDS 100

/* Behind the values of shard_abort_notice, which are the tags of notices. */
enum { TAG_READY = SHARD_ABORT_DEVICE + 1, TAG_ASK, TAG_ANSWER, TAG_GIVEN_UP };

/* The waits that this rank came to, the last ones. */
#define REMEMBERED 1024
static struct past_wait {
    uint64_t name; /* MPI_NO_WAIT: none */
    bool completed;
} came_to[REMEMBERED];
static unsigned came;

/* Questions that may be under way at once. */
#define QUESTIONS 1024

/* Answers that may be under way at once; others are given later. */
#define ANSWERS 256

/* Ranks that have been waited for in vain: the text, then a bit for each rank. */
typedef struct given_up {
    struct given_up *next;
    char message[];
} given_up;

static struct {
    size_t answer_bytes, given_up_bytes, message_bytes;
    char *message; /* [message_bytes], the last one that came */
    uint64_t question;             /* that the answers are to; MPI_NO_WAIT: none */
    uint64_t questions[QUESTIONS]; /* as they are sent */
    unsigned asked;
    int unanswered;            /* ranks whose question has no answer yet */
    struct given_up *given_up; /* this rank's messages about other ranks, which stay until the end */
    char *answers;             /* [ANSWERS][answer_bytes] */
    char *received;            /* [size][answer_bytes], the last answer of each rank */
    MPI_Request sent[ANSWERS];
} news;

shard_status mpi_news_open(void)
{
    size_t bits = ((size_t)mpi.size + 7) / 8;
    news.answer_bytes = (sizeof(mpi_answer) + bits + 7) / 8 * 8;
    news.given_up_bytes = SHARD_COMM_TEXT + bits;
    news.message_bytes = sizeof(mpi_notice);
    news.message_bytes = news.answer_bytes > news.message_bytes ? news.answer_bytes : news.message_bytes;
    news.message_bytes = news.given_up_bytes > news.message_bytes ? news.given_up_bytes : news.message_bytes;
    news.message = shard_calloc(1, news.message_bytes);
    news.answers = shard_calloc(ANSWERS, news.answer_bytes);
    mpi.peers = shard_calloc((size_t)mpi.size, sizeof *mpi.peers);
    news.received = shard_calloc((size_t)mpi.size, news.answer_bytes);
    if (!news.message || !news.answers || !mpi.peers || !news.received)
        return SHARD_ERROR_MEMORY;
    for (int rank = 0; rank < mpi.size; rank++)
        mpi.peers[rank].received = (mpi_answer *)(news.received + (size_t)rank * news.answer_bytes);
    for (int i = 0; i < ANSWERS; i++)
        news.sent[i] = MPI_REQUEST_NULL;
    return SHARD_OK;
}

void mpi_news_close(void)
{
    free(news.message);
    for (given_up *next; news.given_up; news.given_up = next) {
        next = news.given_up->next;
        free(news.given_up);
    }
    free(news.answers);
    free(news.received);
    free(mpi.peers);
}

/* A message that is not waited for: its bytes must stay as they are for a while. */
static void send_news(int rank, int tag, const void *bytes, size_t number)
{
    MPI_Request request;
    if (rank != mpi.rank && MPI_Isend(bytes, (int)number, MPI_BYTE, rank, tag, mpi.news, &request) == MPI_SUCCESS)
        MPI_Request_free(&request);
}

static void send_to_all(int tag, const void *bytes, size_t number)
{
    for (int rank = 0; rank < mpi.size; rank++)
        send_news(rank, tag, bytes, number);
}

void mpi_say(shard_abort_notice notice, shard_status status, const char *text)
{
    static mpi_notice said[SHARD_ABORT_DEVICE + 1];
    said[notice].status = status;
    snprintf(said[notice].text, sizeof said[notice].text, "%s", text ? text : "");
    send_to_all((int)notice, &said[notice], sizeof said[notice]);
}

void mpi_say_ready(void)
{
    mpi.finalizing = true;
    for (int rank = 0; rank < mpi.size; rank++)
        mpi.peers[rank].left = mpi.peers[rank].ready;
    send_to_all(TAG_READY, NULL, 0);
}

static struct {
    pthread_mutex_t lock;
    bool is_there;
    mpi_notice abort;
} left_behind = {.lock = PTHREAD_MUTEX_INITIALIZER};

void mpi_leave_device_abort(shard_status status, const char *text)
{
    SHARD_HOLD(&left_behind.lock);
    left_behind.abort.status = status;
    snprintf(left_behind.abort.text, sizeof left_behind.abort.text, "%s", text);
    left_behind.is_there = true;
}

void mpi_say_what_was_left(void)
{
    SHARD_HOLD(&left_behind.lock);
    if (left_behind.is_there)
        mpi_say(SHARD_ABORT_DEVICE, left_behind.abort.status, left_behind.abort.text);
    left_behind.is_there = false;
}

static void mark(unsigned char *ranks, int rank)
{
    ranks[rank / 8] |= (unsigned char)(1 << rank % 8);
}

static bool is_marked(const unsigned char *ranks, int rank)
{
    return (ranks[rank / 8] >> rank % 8 & 1) != 0;
}

/* The first error that names a rank stays. */
static void take_given_up(const char *message)
{
    mpi.has_notices = true;
    for (int rank = 0; rank < mpi.size; rank++)
        if (is_marked((const unsigned char *)message + SHARD_COMM_TEXT, rank) && !mpi.peers[rank].given_up[0])
            memcpy(mpi.peers[rank].given_up, message, SHARD_COMM_TEXT);
}

/* To all ranks, this one too: these [size] have been waited for in vain. Without memory the others find it out by themselves. */
static void say_given_up(const bool *ranks, const char *text)
{
    given_up *made = calloc(1, sizeof *made + news.given_up_bytes);
    if (!made)
        return;
    made->next = news.given_up;
    news.given_up = made;
    snprintf(made->message, SHARD_COMM_TEXT, "%s", text);
    for (int rank = 0; rank < mpi.size; rank++)
        if (ranks[rank])
            mark((unsigned char *)made->message + SHARD_COMM_TEXT, rank);
    take_given_up(made->message);
    send_to_all(TAG_GIVEN_UP, made->message, news.given_up_bytes);
}

void mpi_come_to(uint64_t wait)
{
    came_to[++came % REMEMBERED] = (struct past_wait){.name = wait};
}

void mpi_complete_wait(void)
{
    came_to[came % REMEMBERED].completed = true;
}

bool mpi_has_completed(uint64_t wait)
{
    for (unsigned i = 0; i < REMEMBERED && wait != MPI_NO_WAIT; i++)
        if (came_to[i].name == wait)
            return came_to[i].completed;
    return false;
}

/* Fills this rank's answer to the question. */
static void fill_answer(mpi_answer *answer, uint64_t question)
{
    memset(answer, 0, news.answer_bytes);
    answer->question = question;
    answer->wait = mpi.wait;
    for (unsigned i = 0; i < REMEMBERED; i++)
        answer->came |= came_to[i].name == question;
    if (mpi.waiting)
        mpi.host.group_describe(mpi.waiting, answer->doing, sizeof answer->doing);
    for (int rank = 0; mpi.waiting && rank < mpi.waiting->size; rank++)
        mark(answer->waits_for, mpi.waiting->world_ranks[rank]);
    if (mpi.wait != MPI_WAIT_FOR_THE_END)
        return;
    snprintf(answer->doing, sizeof answer->doing, mpi.finalizing ? "MPI_Finalize" : "shard_finalize");
    for (int rank = 0; rank < mpi.size; rank++)
        if (rank != mpi.rank && !mpi.peers[rank].left)
            mark(answer->waits_for, rank);
}

/* False: no answer can be sent now. */
static bool give_answer(int rank)
{
    for (int i = 0; i < ANSWERS; i++) {
        int done = 1;
        if (news.sent[i] != MPI_REQUEST_NULL)
            MPI_Test(&news.sent[i], &done, MPI_STATUS_IGNORE);
        if (!done)
            continue;
        mpi_answer *answer = (mpi_answer *)(news.answers + (size_t)i * news.answer_bytes);
        fill_answer(answer, mpi.peers[rank].asks);
        MPI_Isend(answer, (int)news.answer_bytes, MPI_BYTE, rank, TAG_ANSWER, mpi.news, &news.sent[i]);
        return true;
    }
    return false;
}

static void give_answers(void)
{
    for (int rank = 0; rank < mpi.size && news.unanswered; rank++) {
        if (mpi.peers[rank].asks == MPI_NO_WAIT)
            continue;
        if (!give_answer(rank))
            return;
        mpi.peers[rank].asks = MPI_NO_WAIT;
        news.unanswered--;
    }
}

/* A rank waits for one answer at a time: that to its last question. */
static void take_question(mpi_peer *peer)
{
    news.unanswered += peer->asks == MPI_NO_WAIT;
    memcpy(&peer->asks, news.message, sizeof peer->asks);
}

static void take_answer(mpi_peer *peer)
{
    memcpy(peer->received, news.message, news.answer_bytes);
    peer->answered_at = shard_seconds();
    if (news.question != MPI_NO_WAIT && peer->received->question == news.question)
        peer->answer = peer->received->came ? MPI_PEER_CAME : MPI_PEER_ABSENT;
}

static void take_news(int rank, int tag)
{
    mpi_peer *peer = &mpi.peers[rank];
    const mpi_notice *notice = (const mpi_notice *)news.message;
    switch (tag) {
    case TAG_ASK:
        take_question(peer);
        break;
    case TAG_ANSWER:
        take_answer(peer);
        break;
    case SHARD_ABORT_DEVICE:
        peer->aborted = *notice;
        break;
    case TAG_READY:
        peer->ready = true;
        peer->left |= mpi.finalizing;
        break;
    case TAG_GIVEN_UP:
        take_given_up(news.message);
        break;
    default:
        peer->failed = *notice;
        peer->failed_since = tag == SHARD_ABORT_WAITING ? shard_seconds() : 0;
        peer->left |= tag == SHARD_ABORT_LEAVING;
        mpi.has_notices |= tag != SHARD_ABORT_WITHDRAWN;
    }
}

void mpi_read_news(void)
{
    int there = 0;
    MPI_Status from;
    mpi_say_what_was_left();
    while (MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, mpi.news, &there, &from) == MPI_SUCCESS && there) {
        MPI_Recv(news.message, (int)news.message_bytes, MPI_BYTE, from.MPI_SOURCE, from.MPI_TAG, mpi.news, &from);
        take_news(from.MPI_SOURCE, from.MPI_TAG);
    }
    give_answers();
}

void mpi_forget_answers(void)
{
    if (news.question == MPI_NO_WAIT) /* none was asked */
        return;
    news.question = MPI_NO_WAIT; /* an answer to the last one may still come */
    for (int rank = 0; rank < mpi.size; rank++)
        mpi.peers[rank].answer = MPI_PEER_NOT_ASKED;
}

void mpi_forget_answer(int rank)
{
    mpi.peers[rank].answer = MPI_PEER_NOT_ASKED;
}

void mpi_ask(int rank)
{
    news.question = mpi.wait;
    if (mpi.peers[rank].answer != MPI_PEER_NOT_ASKED)
        return;
    uint64_t *question = &news.questions[news.asked++ % QUESTIONS];
    *question = mpi.wait;
    send_news(rank, TAG_ASK, question, sizeof *question);
    mpi.peers[rank].answer = MPI_PEER_ASKED;
}

/* ---- absent ranks ---- */

static bool has_answered(const void *context, int rank)
{
    (void)context;
    const mpi_peer *peer = &mpi.peers[rank];
    return rank == mpi.rank || peer->left || peer->answer == MPI_PEER_CAME || peer->answer == MPI_PEER_ABSENT;
}

/* Whether the first, which has answered, said that it waits for the other. */
static bool waits_for(const void *context, int rank, int other)
{
    (void)context;
    const mpi_peer *peer = &mpi.peers[rank];
    const mpi_answer *received = peer->received;
    if (rank == other || (rank != mpi.rank && peer->answer != MPI_PEER_CAME && peer->answer != MPI_PEER_ABSENT))
        return false;
    bool together = has_answered(NULL, other) && !mpi.peers[other].left && received->wait != MPI_NO_WAIT &&
                    mpi.peers[other].received->wait == received->wait;
    return !together && is_marked(received->waits_for, other);
}

/* Whether all that have not left have answered, or this rank itself has been waited for in vain. */
static bool has_all_answers(void)
{
    bool all = true;
    for (int rank = 0; rank < mpi.size; rank++)
        all &= has_answered(NULL, rank);
    return all || mpi.peers[mpi.rank].given_up[0];
}

/* The text that another rank sent about this rank, an absent one, or one that this rank waits for, whose answers may be those of
 * ranks that have failed since; NULL: none. */
static const char *find_given_up(const bool *absent)
{
    const mpi_answer *own = mpi.peers[mpi.rank].received;
    if (mpi.peers[mpi.rank].given_up[0])
        return mpi.peers[mpi.rank].given_up;
    for (int rank = 0; rank < mpi.size; rank++)
        if ((absent[rank] || is_marked(own->waits_for, rank)) && mpi.peers[rank].given_up[0])
            return mpi.peers[rank].given_up;
    return NULL;
}

static void write_absent(const bool *absent, int witness, char *text, size_t bytes)
{
    int first = 0;
    while (first < mpi.size && !absent[first])
        first++;
    const mpi_answer *received = mpi.peers[first].received;
    bool answers = has_answered(NULL, first) && received->doing[0] && !mpi.peers[first].left;
    mpi.host.write_culprits(mpi.size, absent, mpi.peers[witness].received->doing, answers ? received->doing : NULL, text, bytes);
}

shard_status mpi_find_absent(mpi_is_done *is_done, void *context, int *done, char *text, size_t bytes)
{
    bool *absent = shard_calloc((size_t)mpi.size, sizeof *absent);
    if (!absent)
        return SHARD_ERROR_MEMORY;
    mpi_forget_answers();
    for (int rank = 0; rank < mpi.size; rank++)
        if (!mpi.peers[rank].left)
            mpi_ask(rank);
    shard_status status = SHARD_OK;
    for (double end = shard_own_seconds() + shard_silent_seconds(mpi.host.timeout());
         shard_own_seconds() < end && !*done && status == SHARD_OK && !has_all_answers();) {
        usleep(POLL_MICROSECONDS);
        mpi_read_news();
        status = is_done(context, done);
    }
    fill_answer(mpi.peers[mpi.rank].received, mpi.wait);
    shard_waits waits = {.size = mpi.size, .answers = has_answered, .waits_for = waits_for};
    int witness = *done || status != SHARD_OK ? -1 : mpi.host.find_culprits(&waits, mpi.rank, absent);
    const char *known = witness >= 0 ? find_given_up(absent) : NULL;
    text[0] = '\0';
    if (known)
        snprintf(text, bytes, "%s", known);
    else if (witness >= 0) {
        write_absent(absent, witness, text, bytes);
        say_given_up(absent, text);
    }
    free(absent);
    return status;
}
