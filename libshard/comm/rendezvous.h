/*
 * The caller's exchange of shard_init_with: its calls, with a deadline, and what the ranks learn by the first one.
 * A call that fails or does not return leaves the ranks out of step, so every later one fails with the same text.
 */
#ifndef SHARD_COMM_RENDEZVOUS_H
#define SHARD_COMM_RENDEZVOUS_H

#include "comm/transport.h"

struct shard_rendezvous {
    int rank, size; /* of the world */
    shard_exchange_function *exchange;
    void *context;
    int references;
    bool one_host;       /* all ranks are on one machine, in the same namespaces */
    shard_status broken; /* not SHARD_OK: of the call that failed */
    char text[SHARD_COMM_TEXT];
};

/* Compares rank, size and SHARD_TRANSPORT (`forced`; NULL: not set) of all ranks by a first exchange. The reference is
 * the caller's. NULL with the error set. */
shard_rendezvous *shard_rendezvous_create(int rank, int size, shard_exchange_function *exchange, void *context,
                                          const char *forced);
void shard_rendezvous_unref(shard_rendezvous *rendezvous);

/* The memory of calls of the exchange between some ranks. A call that does not return keeps it. */
typedef struct shard_exchange_call shard_exchange_call;

/* For at most `bytes` of each of these ranks (NULL: 0 to count - 1). NULL with the error set. */
shard_exchange_call *shard_exchange_call_create(const shard_rendezvous *rendezvous, const int *ranks, int count, size_t bytes);
/* NULL is ignored. */
void shard_exchange_call_free(shard_exchange_call *call);

/* *all [count][bytes], in the call's memory, = what each of its ranks sends: `own` bytes of send here, and bytes behind them that
 * are not to be read. `doing` is for texts. PEER if the exchange fails, TIMEOUT if it does not return within so many seconds:
 * then *call is NULL. */
shard_status shard_rendezvous_exchange(shard_rendezvous *rendezvous, shard_exchange_call **call, const char *doing,
                                       double seconds, const void *send, size_t own, size_t bytes, const char **all);

/* receive [size][bytes] = send [bytes] of all ranks, before there are groups. */
shard_status shard_rendezvous_exchange_all(shard_rendezvous *rendezvous, const void *send, void *receive, size_t bytes);

#endif
