/*
 * The exchange is called by a thread of its own, and this one waits for it with a deadline: the exchange may block in
 * another library. A thread that does not return is left behind, with memory that is only freed when it does.
 */
#include "comm/rendezvous.h"

#include "base/env.h"
#include "base/hash.h"
#include "base/machine.h"
#include "base/memory.h"
#include "base/thread.h"
#include "comm/majority.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a call with a deadline ---- */

struct shard_exchange_call {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool done, left_behind;
    shard_exchange_function *exchange;
    void *context;
    int count;
    size_t bytes;
    int *ranks;    /* [count] */
    char *send;    /* [bytes] */
    char *receive; /* [count][bytes] */
    shard_status status;
    char text[SHARD_COMM_TEXT / 2];
};

void shard_exchange_call_free(shard_exchange_call *call)
{
    if (!call)
        return;
    pthread_mutex_destroy(&call->lock);
    pthread_cond_destroy(&call->changed);
    free(call->ranks);
    free(call->send);
    free(call->receive);
    free(call);
}

shard_exchange_call *shard_exchange_call_create(const shard_rendezvous *rendezvous, const int *ranks, int count, size_t bytes)
{
    shard_exchange_call *call = shard_calloc(1, sizeof *call);
    if (!call)
        return NULL;
    pthread_mutex_init(&call->lock, NULL);
    shard_condition_init(&call->changed);
    call->exchange = rendezvous->exchange;
    call->context = rendezvous->context;
    call->count = count;
    call->ranks = shard_calloc((size_t)count, sizeof *call->ranks);
    call->send = shard_calloc(bytes, 1);
    call->receive = shard_calloc((size_t)count, bytes);
    if (!call->ranks || !call->send || !call->receive) {
        shard_exchange_call_free(call);
        return NULL;
    }
    for (int i = 0; i < count; i++)
        call->ranks[i] = ranks ? ranks[i] : i;
    return call;
}

static void *run_call(void *argument)
{
    shard_exchange_call *call = argument;
    shard_status status = call->exchange(call->context, call->ranks, call->count, call->send, call->receive, call->bytes);
    pthread_mutex_lock(&call->lock);
    call->status = status;
    if (status != SHARD_OK && shard_last_status() != SHARD_OK)
        snprintf(call->text, sizeof call->text, "%s", shard_last_error());
    else if (status != SHARD_OK)
        snprintf(call->text, sizeof call->text, "it returned %d (%s)", (int)status, shard_status_name(status));
    call->done = true;
    bool left_behind = call->left_behind;
    pthread_cond_signal(&call->changed);
    pthread_mutex_unlock(&call->lock);
    if (left_behind)
        shard_exchange_call_free(call);
    return NULL;
}

/* Whether it returns within so many seconds. */
static bool wait_for_call(shard_exchange_call *call, double seconds)
{
    double deadline = shard_own_seconds() + seconds;
    SHARD_HOLD(&call->lock);
    while (!call->done && shard_own_seconds() < deadline)
        shard_condition_wait(&call->changed, &call->lock);
    return call->done;
}

/* Its thread frees it when it returns. */
static void leave_behind(shard_exchange_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool done = call->done; /* meanwhile */
    call->left_behind = !done;
    pthread_mutex_unlock(&call->lock);
    if (done)
        shard_exchange_call_free(call);
}

static shard_status break_off(shard_rendezvous *rendezvous, shard_status status, const char *text)
{
    rendezvous->broken = status;
    snprintf(rendezvous->text, sizeof rendezvous->text, "%s", text);
    return shard_error(status, "%s", text);
}

/* The call's failure, with "the exchange of ranks 0 and 2". */
static shard_status fail_call(shard_rendezvous *rendezvous, const shard_exchange_call *call, const char *doing,
                              shard_status status, const char *how)
{
    const shard_group named = {.size = call->count, .world_ranks = call->ranks};
    char ranks[SHARD_COMM_TEXT / 4] = "", text[SHARD_COMM_TEXT];
    shard_group_name_ranks(&named, NULL, ranks, sizeof ranks);
    snprintf(text, sizeof text, "rank %d: the exchange of %s in %.120s %.220s", rendezvous->rank, ranks, doing, how);
    return break_off(rendezvous, status, text);
}

shard_status shard_rendezvous_exchange(shard_rendezvous *rendezvous, shard_exchange_call **call, const char *doing,
                                       double seconds, const void *send, size_t own, size_t bytes, const char **all)
{
    shard_exchange_call *made = *call;
    char how[SHARD_COMM_TEXT / 2];
    pthread_t thread;
    if (rendezvous->broken != SHARD_OK)
        return shard_error(rendezvous->broken, "%s", rendezvous->text);
    if (own > 0)
        memcpy(made->send, send, own);
    made->bytes = bytes;
    made->done = false;
    int error = shard_thread_start(&thread, run_call, made);
    if (error != 0) {
        snprintf(how, sizeof how, "has no thread: %s", strerror(error));
        return fail_call(rendezvous, made, doing, SHARD_ERROR_MEMORY, how);
    }
    if (!wait_for_call(made, seconds)) {
        pthread_detach(thread);
        snprintf(how, sizeof how, "did not return within %.0f s (SHARD_TIMEOUT)", shard_comm_timeout());
        fail_call(rendezvous, made, doing, SHARD_ERROR_TIMEOUT, how);
        leave_behind(made);
        *call = NULL;
        return shard_last_status();
    }
    pthread_join(thread, NULL);
    *all = made->receive;
    if (made->status == SHARD_OK)
        return SHARD_OK;
    snprintf(how, sizeof how, "failed: %.200s", made->text);
    return fail_call(rendezvous, made, doing, SHARD_ERROR_PEER, how);
}

shard_status shard_rendezvous_exchange_all(shard_rendezvous *rendezvous, const void *send, void *receive, size_t bytes)
{
    const char *all;
    shard_exchange_call *call = shard_exchange_call_create(rendezvous, NULL, rendezvous->size, bytes);
    if (!call)
        return break_off(rendezvous, SHARD_ERROR_MEMORY, shard_last_error());
    shard_status status =
        shard_rendezvous_exchange(rendezvous, &call, "shard_init_with", shard_comm_timeout(), send, bytes, bytes, &all);
    if (status == SHARD_OK)
        memcpy(receive, all, (size_t)rendezvous->size * bytes);
    shard_exchange_call_free(call);
    return status;
}

/* ---- the first exchange ---- */

#define HELLO_MAGIC 0x317265646e657221u /* the layout's version is part of it */

typedef struct hello {
    uint64_t magic, host;
    int32_t rank, size;
    char transport[16]; /* SHARD_TRANSPORT */
} hello;

/* Ranks with the same number reach each other's open files through /proc: one machine, the same namespaces of processes and
 * users, and the same user. */
static uint64_t identify_host(void)
{
    static const char *const namespaces[] = {"/proc/self/ns/pid", "/proc/self/ns/user"};
    struct stat status;
    uint64_t hash = shard_hash_word(shard_hash_machine(), geteuid());
    for (size_t i = 0; i < sizeof namespaces / sizeof *namespaces; i++)
        hash = shard_hash_word(hash, stat(namespaces[i], &status) == 0 ? status.st_ino : 0);
    return hash;
}

/* All ranks see the same hellos, and so the same error. */
static shard_status compare_hellos(const hello *all, int size)
{
    for (int place = 0; place < size; place++) {
        const hello *one = &all[place];
        if (one->magic != HELLO_MAGIC)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "shard_init_with: at place %d of the exchange's result are not the bytes that a rank of this "
                               "version of the library sent: `receive` has each rank's bytes, rank 0's first",
                               place);
        if (one->rank != place)
            return shard_error(
                SHARD_ERROR_MISMATCH,
                "shard_init_with: at place %d of the exchange's result are the bytes of rank %d: `receive` has each "
                "rank's bytes, rank 0's first, and each process has another .rank",
                place, one->rank);
    }
    const shard_group ranks = {.size = size};
    shard_majority found;
    if (shard_find_majority(&ranks, &all->size, sizeof all->size, sizeof *all, &found))
        return shard_error(SHARD_ERROR_MISMATCH, "shard_init_with: .ranks is %d on rank %d and %d on %s", all[found.odd].size,
                           found.odd, all[found.usual].size, found.usual_ranks);
    if (shard_find_majority(&ranks, all->transport, sizeof all->transport, sizeof *all, &found))
        return shard_error(SHARD_ERROR_MISMATCH, "shard_init_with: SHARD_TRANSPORT is \"%.15s\" on rank %d and \"%.15s\" on %s",
                           all[found.odd].transport, found.odd, all[found.usual].transport, found.usual_ranks);
    return SHARD_OK;
}

/* For devices that are opened later, if the launcher has not said it. */
static void set_local_rank(const hello *all, int rank)
{
    int local = 0;
    for (int other = 0; other < rank; other++)
        local += all[other].host == all[rank].host;
    shard_env_provide_local_rank(local);
}

static shard_status greet(shard_rendezvous *rendezvous, const char *forced)
{
    hello mine = {.magic = HELLO_MAGIC, .host = identify_host(), .rank = rendezvous->rank, .size = rendezvous->size};
    snprintf(mine.transport, sizeof mine.transport, "%s", forced ? forced : "");
    hello *all = shard_calloc((size_t)rendezvous->size, sizeof *all);
    shard_status status = all ? shard_rendezvous_exchange_all(rendezvous, &mine, all, sizeof mine) : shard_last_status();
    if (status == SHARD_OK)
        status = compare_hellos(all, rendezvous->size);
    if (status == SHARD_OK) {
        set_local_rank(all, rendezvous->rank);
        rendezvous->one_host = true;
        for (int rank = 1; rank < rendezvous->size; rank++)
            rendezvous->one_host &= all[rank].host == all[0].host;
    }
    free(all);
    return status;
}

shard_rendezvous *shard_rendezvous_create(int rank, int size, shard_exchange_function *exchange, void *context,
                                          const char *forced)
{
    shard_rendezvous *rendezvous = shard_calloc(1, sizeof *rendezvous);
    if (!rendezvous)
        return NULL;
    *rendezvous = (shard_rendezvous){.rank = rank, .size = size, .exchange = exchange, .context = context, .references = 1};
    if (greet(rendezvous, forced) == SHARD_OK)
        return rendezvous;
    free(rendezvous);
    return NULL;
}

void shard_rendezvous_unref(shard_rendezvous *rendezvous)
{
    if (rendezvous && --rendezvous->references == 0)
        free(rendezvous);
}
