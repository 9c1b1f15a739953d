/*
 * The mpi transport, compiled once for each MPI. Only nonblocking calls are
 * used, polled with a yield, so that more ranks than cores work well; every
 * wait has a deadline. Beside each group's communicator there is one of the
 * world for news, over which ranks tell what no collective can: that they
 * leave, that they failed, whether they are there.
 */
#ifndef SHARD_COMM_MPI_MODULE_H
#define SHARD_COMM_MPI_MODULE_H

#include "comm/mpi/host.h"

#include <mpi.h>

/* What is known of another rank. */
typedef struct mpi_peer {
    bool left;                  /* it comes to no collective any more */
    double alarmed;             /* since when it has waited in some group with an error; 0: it does not */
    char said[SHARD_COMM_TEXT]; /* why, if it failed; else "" */
    enum { MPI_PEER_NOT_ASKED, MPI_PEER_ASKED, MPI_PEER_CAME, MPI_PEER_ABSENT } answer; /* whether it came to a wait */
} mpi_peer;

/* MPI is one of a kind in a process, and so is this. */
typedef struct mpi_world {
    const shard_mpi_host *host;
    MPI_Comm comm; /* all ranks' */
    MPI_Comm news;
    int rank, size;
    bool started_here; /* MPI_Init was called here, so MPI_Finalize is, too */
    bool failed;       /* some wait was given up: requests are left, so the job must be aborted */
    mpi_peer *peers;   /* [size] */
    int64_t most;      /* elements of one MPI call, whose counts are int; SHARD_MPI_COUNT */
} mpi_world;
extern mpi_world mpi;

/* A group's state. */
typedef struct mpi_group {
    MPI_Comm comm;
    shard_status broken; /* not OK: a member did not come; with the text, for good */
    char text[SHARD_COMM_TEXT];
    char mine[SHARD_EXCHANGE_BYTES]; /* what exchange sends and receives, which must outlive a wait given up */
    char *all;           /* [size][SHARD_EXCHANGE_BYTES] */
} mpi_group;

/* Waits until the requests are done. TIMEOUT or PEER, for good, if members do not come. */
shard_status mpi_finish(shard_group *group, MPI_Request *requests, int number);

/* The error of a call that did not return MPI_SUCCESS; OK if it did. */
shard_status mpi_check(int result, const char *call);

/* Tells all other ranks that this one leaves; text is "" or its error. */
void mpi_say_farewell(const char *text);

/* Tells all other ranks that this one has failed and waits, or (NULL) waits no more. */
void mpi_say_alarm(const char *text);

/* Polls until all others have left too or the seconds are over; whether they have. */
bool mpi_wait_for_farewells(double seconds);

#define MPI_TRY(call)                                       \
    do {                                                    \
        shard_status mpi_try_ = mpi_check((call), #call);   \
        if (mpi_try_ != SHARD_OK)                           \
            return mpi_try_;                                \
    } while (0)

/* PEER if a member is known to have failed. */
shard_status mpi_look(shard_group *group, const char *doing);

/* The collectives. */
shard_status mpi_exchange(shard_group *group, const void *mine, size_t bytes, void *all);
shard_status mpi_all_reduce(shard_group *group, void *data, int64_t count, shard_dtype dtype, shard_reduce_op op);
shard_request *mpi_all_reduce_start(shard_group *group, void *data, int64_t count, shard_dtype dtype, shard_reduce_op op);
shard_status mpi_wait(shard_group *group, shard_request *request);
shard_status mpi_all_gather(shard_group *group, const void *mine, void *all, const int64_t *counts, shard_dtype dtype);
shard_status mpi_reduce_scatter(shard_group *group, void *all, void *mine, const int64_t *counts, shard_dtype dtype,
                                shard_reduce_op op);
shard_request *mpi_reduce_scatter_start(shard_group *group, void *all, void *mine, const int64_t *counts, shard_dtype dtype,
                                        shard_reduce_op op);
shard_status mpi_broadcast(shard_group *group, void *data, int64_t count, shard_dtype dtype, int root);

#endif
