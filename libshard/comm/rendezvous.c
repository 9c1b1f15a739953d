/*
 * The exchange is called by a thread of its own, and this one waits for it with a deadline: the exchange may block in
 * another library. A thread that does not return is left behind, with memory that is only freed when it does.
 */
#include "comm/rendezvous.h"

#include "base/env.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/memory.h"
#include "base/thread.h"
#include "comm/majority.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- a call with a deadline ---- */

typedef struct exchange_call {
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
} exchange_call;

static void free_call(exchange_call *call)
{
    pthread_mutex_destroy(&call->lock);
    pthread_cond_destroy(&call->changed);
    free(call->ranks);
    free(call->send);
    free(call->receive);
    free(call);
}

static exchange_call *make_call(const shard_rendezvous *rendezvous, const int *ranks, int count, const void *send, size_t bytes)
{
    exchange_call *call = shard_calloc(1, sizeof *call);
    if (!call)
        return NULL;
    pthread_mutex_init(&call->lock, NULL);
    shard_condition_init(&call->changed);
    call->exchange = rendezvous->exchange;
    call->context = rendezvous->context;
    call->count = count;
    call->bytes = bytes;
    call->ranks = shard_calloc((size_t)count, sizeof *call->ranks);
    call->send = shard_calloc(bytes, 1);
    call->receive = shard_calloc((size_t)count, bytes);
    if (!call->ranks || !call->send || !call->receive) {
        free_call(call);
        return NULL;
    }
    memcpy(call->ranks, ranks, (size_t)count * sizeof *ranks);
    memcpy(call->send, send, bytes);
    return call;
}

static void *run_call(void *argument)
{
    exchange_call *call = argument;
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
        free_call(call);
    return NULL;
}

/* False if it does not return before the deadline: then it is left behind. */
static bool wait_for_call(exchange_call *call)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += (time_t)shard_comm_timeout();
    int result = 0;
    SHARD_HOLD(&call->lock);
    while (!call->done && result != ETIMEDOUT)
        result = pthread_cond_timedwait(&call->changed, &call->lock, &deadline);
    call->left_behind = !call->done;
    return call->done;
}

static shard_status break_off(shard_rendezvous *rendezvous, shard_status status, const char *text)
{
    rendezvous->broken = status;
    snprintf(rendezvous->text, sizeof rendezvous->text, "%s", text);
    return shard_error(status, "%s", text);
}

/* "the exchange of ranks 0 and 2" */
static void name_exchange(const int *ranks, int count, char *text, size_t bytes)
{
    const shard_group named = {.size = count, .world_ranks = (int *)(uintptr_t)ranks};
    snprintf(text, bytes, "the exchange of ");
    shard_group_name_ranks(&named, NULL, text, bytes);
}

shard_status shard_rendezvous_exchange(shard_rendezvous *rendezvous, const char *doing, const int *ranks, int count,
                                       const void *send, void *receive, size_t bytes)
{
    if (rendezvous->broken != SHARD_OK)
        return shard_error(rendezvous->broken, "%s", rendezvous->text);
    exchange_call *call = make_call(rendezvous, ranks, count, send, bytes);
    if (!call)
        return break_off(rendezvous, SHARD_ERROR_MEMORY, shard_last_error());
    char name[SHARD_COMM_TEXT / 4], text[SHARD_COMM_TEXT];
    name_exchange(ranks, count, name, sizeof name);
    pthread_t thread;
    int error = shard_thread_start(&thread, run_call, call);
    if (error != 0) {
        free_call(call);
        snprintf(text, sizeof text, "%s: no thread for it: %s", name, strerror(error));
        return break_off(rendezvous, SHARD_ERROR_MEMORY, text);
    }
    if (!wait_for_call(call)) {
        pthread_detach(thread);
        snprintf(text, sizeof text, "rank %d: %s in %.120s did not return within %.0f s (SHARD_TIMEOUT)", rendezvous->rank, name,
                 doing, shard_comm_timeout());
        return break_off(rendezvous, SHARD_ERROR_TIMEOUT, text);
    }
    pthread_join(thread, NULL);
    if (call->status == SHARD_OK)
        memcpy(receive, call->receive, (size_t)count * bytes);
    else
        snprintf(text, sizeof text, "rank %d: %s in %.120s failed: %.200s", rendezvous->rank, name, doing, call->text);
    shard_status status = call->status == SHARD_OK ? SHARD_OK : break_off(rendezvous, SHARD_ERROR_PEER, text);
    free_call(call);
    return status;
}

shard_status shard_rendezvous_exchange_all(shard_rendezvous *rendezvous, const void *send, void *receive, size_t bytes)
{
    int *ranks = shard_calloc((size_t)rendezvous->size, sizeof *ranks);
    if (!ranks)
        return shard_last_status();
    for (int rank = 0; rank < rendezvous->size; rank++)
        ranks[rank] = rank;
    shard_status status = shard_rendezvous_exchange(rendezvous, "shard_init_with", ranks, rendezvous->size, send, receive, bytes);
    free(ranks);
    return status;
}

/* ---- the first exchange ---- */

#define HELLO_MAGIC 0x317265646e657221u /* the layout's version is part of it */

typedef struct hello {
    uint64_t magic, host;
    int32_t rank, size;
    char transport[16]; /* SHARD_TRANSPORT */
} hello;

/* Ranks with the same number reach each other's open files through /proc: one boot of one machine, the same namespaces
 * of processes and users, and the same user. */
static uint64_t identify_host(void)
{
    static const char *const namespaces[] = {"/proc/self/ns/pid", "/proc/self/ns/user"};
    char boot[64] = "";
    struct stat status;
    int file = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        ssize_t read_bytes = read(file, boot, sizeof boot - 1);
        boot[read_bytes > 0 ? read_bytes : 0] = '\0';
        close(file);
    }
    uint64_t hash = shard_hash_word(shard_hash_text(SHARD_HASH_START, boot), geteuid());
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
