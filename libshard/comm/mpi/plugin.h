/*
 * The mpi transport, compiled once for each MPI. Only nonblocking calls are
 * used, polled with a yield, so that more ranks than cores work well; every
 * wait has a deadline. In addition to each group's communicator there is one of
 * the world for news, the messages outside of collectives: that a rank leaves,
 * that it failed, whether it is there.
 */
#ifndef SHARD_COMM_MPI_PLUGIN_H
#define SHARD_COMM_MPI_PLUGIN_H

#include "base/clock.h"
#include "base/thread.h"
#include "comm/mpi/host.h"

#include <mpi.h>

/* Room for what a rank is doing: "all_reduce of 10 float32". */
#define MPI_DOING_TEXT 200

/* A rank's answer to "did you come to this wait?", which it gives from a wait of its own. */
typedef struct mpi_answer {
    uint64_t question; /* the wait that was asked about */
    uint64_t wait;     /* the one that the rank is in; MPI_NO_WAIT: in something else */
    int32_t came;
    char doing[MPI_DOING_TEXT];
    unsigned char waits_for[]; /* bit r: the rank waits for world rank r, unless that is in the same wait */
} mpi_answer;

#define MPI_NO_WAIT 0
#define MPI_WAIT_FOR_THE_END 2 /* names of waits in groups are odd */

/* A notice of a rank about itself. Its tag is a shard_abort_notice. */
typedef struct mpi_notice {
    shard_status status; /* of the error; OK also where it leaves, with the text of an error or "" */
    char text[SHARD_COMM_TEXT];
} mpi_notice;

/* The state of another rank, as this rank knows it. */
typedef struct mpi_peer {
    bool left;                  /* it comes to no collective any more; at the end of the job: it calls MPI_Finalize */
    bool ready;                 /* it calls MPI_Finalize */
    double failed_since;        /* since when it has waited in some group with an error; 0: it does not */
    mpi_notice failed;          /* with which error it waits or has left; or the text "" */
    mpi_notice aborted;         /* its collectives of device memory */
    uint64_t asks;              /* the wait of its question that has no answer yet, or MPI_NO_WAIT */
    char given_up[SHARD_COMM_TEXT]; /* the error of the first that has waited for it in vain, or "" */
    enum { MPI_PEER_NOT_ASKED, MPI_PEER_ASKED, MPI_PEER_CAME, MPI_PEER_ABSENT } answer; /* whether it came to a wait */
    mpi_answer *received;                                                               /* with its last answer */
    double answered_at;                                                                 /* when that came, on this rank's clock */
} mpi_peer;

/* MPI is one of a kind in a process, and so is this. */
typedef struct mpi_world {
    shard_mpi_host host;
    MPI_Comm comm; /* all ranks' */
    MPI_Comm news;
    int rank, size;
    bool several_hosts;
    bool started_here; /* MPI_Init was called here, so MPI_Finalize is, too */
    bool one_thread;   /* MPI takes calls of the thread alone that started it */
    bool ended;        /* MPI_Finalize has been called */
    bool has_error;    /* it leaves with an error, which is printed */
    bool has_notices;  /* some rank has left, waits with an error, or was waited for in vain */
    /* This rank's error, for the others, or of a wait that was given up: requests are left, so that the job must be aborted. ""
     * while it has not failed. */
    char failure[SHARD_COMM_TEXT];
    mpi_peer *peers;               /* [size] */
    shard_group *waiting;          /* the group that this rank waits in, or NULL */
    uint64_t wait;                 /* its name */
    bool finalizing;               /* it waits for the others to be ready for MPI_Finalize */
    int64_t most;                  /* elements of one MPI call, whose counts are int; SHARD_MPI_COUNT */
} mpi_world;
extern mpi_world mpi;

static inline bool mpi_has_failed(void)
{
    return mpi.failure[0] != '\0';
}

/* One thread at a time calls MPI: MPI_THREAD_SERIALIZED. */
extern pthread_mutex_t mpi_lock;
/* UNSUPPORTED where the program, or MPI itself, has less than that level, and this thread is not the one that started it. */
shard_status mpi_check_thread(void);

/* A group's state. */
typedef struct mpi_group {
    MPI_Comm comm;
    uint64_t number;       /* the group's: the same on all ranks, and of no other group */
    uint64_t sequence;     /* of the checked collective that this rank waited in last ... */
    uint64_t waits;        /* ... and how many times in that one */
    shard_status broken;   /* not OK: a rank did not come; with the text, for good */
    uint64_t broken_since; /* of broken_prefix */
    char text[SHARD_COMM_TEXT];
    char mine[SHARD_EXCHANGE_BYTES]; /* the memory of exchange, which must outlive a wait that was given up */
    char *all;                       /* [size][SHARD_EXCHANGE_BYTES] */
} mpi_group;

/* Waits until the requests are done. TIMEOUT or PEER, for good, if ranks do not come. */
shard_status mpi_finish(shard_group *group, MPI_Request *requests, int number);

/* Breaks the group for good after an error with which requests may be left in it, unless it is broken already: they would match
 * other ranks' later calls. Returns the status. */
shard_status mpi_fail(shard_group *group, shard_status status);

/* The error of a call that did not return MPI_SUCCESS; OK if it did. */
shard_status mpi_check(int result, const char *call);

/* ---- news: what ranks send each other outside of collectives ---- */

/* Makes room for news, of all other ranks. */
shard_status mpi_news_open(void);
/* Frees them; after MPI_Finalize, as messages are not waited for. */
void mpi_news_close(void);

/* To all other ranks; the text is copied. LEAVING without an error has the text "". */
void mpi_say(shard_abort_notice notice, shard_status status, const char *text);

/* To all other ranks, after all have left: this one is about to call MPI_Finalize. From here on a rank has left when it is, too.
 */
void mpi_say_ready(void);

/* Leaves a notice of SHARD_ABORT_DEVICE to the thread that reads the news next; from any thread, without a call of MPI. */
void mpi_leave_device_abort(shard_status status, const char *text);
/* Says it now. */
void mpi_say_what_was_left(void);

/* Asks the rank whether it came to the wait that this rank is in, unless it has been asked; the answer is in mpi.peers. */
void mpi_ask(int rank);
/* Forgets the answers, for another question. */
void mpi_forget_answers(void);

/* Notes that this rank has come to a wait of that name, and that the wait it came to last is complete. */
void mpi_come_to(uint64_t wait);
void mpi_complete_wait(void);

/* Whether this rank has completed the wait of that name, which the others in it then will do too. */
bool mpi_has_completed(uint64_t wait);

/* Makes the next mpi_ask ask the rank again. */
void mpi_forget_answer(int rank);

/* Takes in what the others have said, and answers. */
void mpi_read_news(void);

/* Asks all ranks where they are, for shard_silent_seconds or until `done`: writes the error of this rank, which waits,
 * and sends all ranks the set of those that did not come. */
typedef shard_status mpi_is_done(void *context, int *done);
shard_status mpi_find_absent(mpi_is_done *is_done, void *context, int *done, char *text, size_t bytes);

/* ---- the beginning and the end ---- */

/* Polls until all others have left too or the seconds are over; whether they have. */
bool mpi_wait_for_farewells(double seconds);

/* Ends the job. One rank does that, the lowest that has failed; the others only if they live on. */
_Noreturn void mpi_abort(void);

/* From here to mpi_watch_end the process ends with a message if that takes longer than the
 * deadline: for calls of MPI that block. `what` is a constant. */
void mpi_watch(const char *what);
void mpi_watch_end(void);

#define MPI_TRY(call)                                                                                                            \
    do {                                                                                                                         \
        shard_status mpi_try_ = mpi_check((call), #call);                                                                        \
        if (mpi_try_ != SHARD_OK)                                                                                                \
            return mpi_try_;                                                                                                     \
    } while (0)

/* PEER if a rank is known to have left with an error, or its device has failed. */
shard_status mpi_probe(shard_group *group, const char *doing);

/* Every collective; its memory is taken before. */
shard_status mpi_prepare(shard_group *group, shard_collective *call);
void mpi_discard(shard_group *group, const shard_collective *call);
shard_status mpi_post(shard_group *group, const shard_collective *call, shard_request **request);
shard_status mpi_wait(shard_group *group, shard_request *request);

#endif
