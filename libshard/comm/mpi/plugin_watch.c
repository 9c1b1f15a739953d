/* The beginning and the end of a job, where MPI has no deadline of its own. */
#include "comm/mpi/plugin.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define POLL_MICROSECONDS 100
#define OUTPUT_MICROSECONDS 200000 /* until the launcher has passed on what ranks print: MPICH's drops the rest at the end */

/* How long a rank waits for the abort by those that are to do it before it, and for its own, which asks the launcher. */
#define ABORT_SECONDS 2.0
#define OWN_ABORT_SECONDS 1.0

/* A rank's watch ends it so much later than that of the rank before it, so that one rank's message
 * is printed, not every rank's. */
#define WATCH_STEP_SECONDS 1.0
#define WATCH_STEPS 4

/* ---- calls that block ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    pthread_t thread;
    bool runs, over;
    const char *what;
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* This process's rank as the launcher says it, as MPI may not run yet. */
static int launched_rank(void)
{
    static const char *const variables[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        const char *text = getenv(variables[i]);
        if (text)
            return (int)strtol(text, NULL, 10);
    }
    return 0;
}

/* Until the watched call is over, or for so many seconds. With the lock. */
static void wait_until_over(double seconds)
{
    double deadline = shard_own_seconds() + seconds;
    while (!watch.over && shard_own_seconds() < deadline)
        shard_condition_wait(&watch.ended, &watch.lock);
}

static void *watch_call(void *context)
{
    int rank = launched_rank();
    pthread_mutex_lock(&watch.lock);
    wait_until_over(mpi.host.timeout() + WATCH_STEP_SECONDS * (rank < WATCH_STEPS ? rank : WATCH_STEPS));
    if (!watch.over) {
        shard_log_message(
            SHARD_LOG_ERROR,
            "rank %d: %s did not end within %.0f s (SHARD_TIMEOUT): another rank has ended, hangs, or was not started", rank,
            watch.what, mpi.host.timeout());
        _exit(EXIT_FAILURE); /* MPI_Abort may wait for what hangs; the launcher ends the others */
    }
    pthread_mutex_unlock(&watch.lock);
    return context;
}

void mpi_watch(const char *what)
{
    watch.what = what;
    watch.over = false;
    shard_condition_init(&watch.ended);
    watch.runs = shard_thread_start(&watch.thread, watch_call, NULL) == 0;
}

void mpi_watch_end(void)
{
    pthread_mutex_lock(&watch.lock);
    watch.over = true;
    pthread_cond_signal(&watch.ended);
    pthread_mutex_unlock(&watch.lock);
    if (watch.runs)
        pthread_join(watch.thread, NULL);
    watch.runs = false;
    pthread_cond_destroy(&watch.ended);
}

/* ---- the end ---- */

/* Of those that may still leave: with an error no rank waits for one that was waited for in vain. */
static bool have_all_left(void)
{
    int left = 1;
    for (int rank = 0; rank < mpi.size; rank++)
        left += rank != mpi.rank && (mpi.peers[rank].left || (mpi_has_failed() && mpi.peers[rank].given_up[0]));
    return left == mpi.size;
}

static shard_status is_over(void *context, int *done)
{
    (void)context;
    *done = have_all_left();
    return SHARD_OK;
}

/* How many ranks are to end the job rather than this one: of those that have failed, or of all
 * that wait for the end where none has, the lower ones. */
static int count_before(void)
{
    int before = 0;
    for (int rank = 0; rank < mpi.size; rank++) {
        bool failed = mpi.peers[rank].failed.text[0];
        before += rank != mpi.rank && mpi.peers[rank].left && (failed == mpi_has_failed() ? rank < mpi.rank : failed);
    }
    return before;
}

bool mpi_wait_for_farewells(double seconds)
{
    char text[SHARD_COMM_TEXT];
    double end = shard_own_seconds() + seconds;
    int over = 0;
    mpi.wait = MPI_WAIT_FOR_THE_END;
    for (mpi_read_news(); !have_all_left() && shard_own_seconds() < end; mpi_read_news())
        usleep(POLL_MICROSECONDS);
    is_over(NULL, &over);
    if (over || mpi_has_failed())
        return over;
    if (mpi_find_absent(is_over, NULL, &over, text, sizeof text) == SHARD_OK && !over && count_before() == 0)
        shard_log_message(SHARD_LOG_ERROR, "%s", text);
    return over;
}

/* MPI_Abort does not return, and does not end where the launcher is on another host that cannot be reached; nor does a flush
 * where another thread waits inside a stream. */
static void *end_abort(void *context)
{
    usleep((useconds_t)(OWN_ABORT_SECONDS * 1e6) + OUTPUT_MICROSECONDS);
    _exit(EXIT_FAILURE);
    return context;
}

/* Open MPI's mpirun (4.1) may crash or never end where several ranks abort in the same moment, and
 * sometimes where one does while another one is stopped: what MPI_Abort has it print races with the
 * job's end. It ends the job as well, and reliably, after a rank that ends with an exit code. */
_Noreturn void mpi_abort(void)
{
    if (count_before() > 0)
        usleep((useconds_t)(ABORT_SECONDS * 1e6));
    pthread_t thread;
    bool ends = shard_thread_start(&thread, end_abort, NULL) == 0;
    fflush(ends ? NULL : stdout); /* all streams: _exit drops what the program has in them */
    usleep(OUTPUT_MICROSECONDS);
#ifdef OPEN_MPI
    bool by_exit = getenv("OMPI_COMM_WORLD_RANK") != NULL;
#else
    bool by_exit = false;
#endif
    if (!by_exit && ends)
        MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    _exit(EXIT_FAILURE);
}
