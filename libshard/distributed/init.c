/* Joining and leaving the job. */
#include "distributed/distributed.h"

#include "base/env.h"
#include "base/log.h"
#include "base/options.h"
#include "base/plugin.h"
#include "comm/function.h"
#include "comm/preflight.h"
#include "comm/registry.h"
#include "device/registry.h"
#include "distributed/finalize.h"
#include "distributed/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static shard_group *world;
static pid_t joining;                /* the process, while it is in shard_init or shard_init_with: */
static const char *joining_function; /* in this one */
static bool left;
static void (*_Atomic at_finalize)(void);

shard_group *shard_world(void)
{
    return world;
}

/* Checks variables that are read later, by some devices or transports only: a mistake in them is an error at the
 * start. */
static shard_status check_environment(void)
{
    static const char *const switches[] = {"SHARD_TF32", "SHARD_NCCL", "SHARD_NCCL_REDUCED_PRECISION"};
    int64_t value;
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
        SHARD_TRY(shard_env_integer(switches[i], 0, 0, 1, &value));
    SHARD_TRY(shard_env_integer("SHARD_MPI_COUNT", 1, 1, 1 << 30, &value));
    SHARD_TRY(shard_device_check_environment());
    return shard_plugin_check_folders();
}

/* A rank that ends by exit without shard_finalize leaves the others waiting, and an exit code of 0 would
 * say that the job went well. */
static void fail_at_exit(int code, void *context)
{
    (void)context;
    if (shard_group_size(world) == 1 || shard_process.forked)
        return;
    shard_error(SHARD_ERROR_PEER, "exit(%d) without shard_finalize", code); /* unless the thread has an error */
    shard_log_message(SHARD_LOG_ERROR, "%s", shard_last_error());
    shard_world_notify_error(world);
    if (code != EXIT_SUCCESS)
        return;
    fflush(NULL); /* as exit would, which goes on to no other exit code */
    _exit(EXIT_FAILURE);
}

/* The same of a rank that ends while it joins the others, by another thread. */
static void fail_in_init(int code, void *context)
{
    (void)context;
    if (joining != getpid())
        return;
    shard_log_message(SHARD_LOG_ERROR, "exit(%d) in %s", code, joining_function);
    if (code != EXIT_SUCCESS)
        return;
    fflush(NULL);
    _exit(EXIT_FAILURE);
}

static shard_status begin(const char *function)
{
    if (world || left)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: called %s; a process joins its job once", function,
                           left ? "after shard_finalize" : "twice");
    SHARD_TRY(check_environment());
    on_exit(fail_in_init, NULL);
    joining = getpid();
    joining_function = function;
    return SHARD_OK;
}

/* `joined` is the world, or NULL with the error set. */
static shard_status begin_job(shard_group *joined)
{
    world = joined;
    joining = 0;
    if (!world)
        return shard_last_status();
    on_exit(fail_at_exit, NULL);
    shard_log_set_rank(shard_group_size(world) > 1 ? shard_group_rank(world) : -1);
    shard_log_message(SHARD_LOG_DEBUG, "shard_init: %d ranks over %s, process %d", shard_group_size(world),
                      shard_group_transport(world), (int)getpid());
    return shard_share_cores(world);
}

shard_status shard_init(int *argc, char ***argv)
{
    SHARD_FUNCTION("shard_init");
    shard_note_call_of_init();
    shard_status status = begin("shard_init");
    if (status == SHARD_OK)
        status = begin_job(shard_world_open(argc, argv));
    shard_note_end_of_init();
    return status;
}

static shard_status join_with(const shard_init_options *given)
{
    SHARD_READ_OPTIONS(shard_init_options, SHARD_INIT_OPTIONS_INIT, options, given);
    if (!options_ok)
        return shard_last_status();
    if (options.ranks < 1 || options.rank < 0 || options.rank >= options.ranks)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_init_with: rank %d of %d ranks (.rank, .ranks): at least one is needed, and ranks count from 0",
                           options.rank, options.ranks);
    if (options.ranks > 1 && !options.exchange)
        return shard_null_argument("shard_init_with", "exchange");
    SHARD_TRY(begin("shard_init_with"));
    return begin_job(shard_world_join(options.rank, options.ranks, options.exchange, options.context));
}

shard_status shard_init_with(const shard_init_options *given)
{
    SHARD_FUNCTION("shard_init_with");
    shard_note_call_of_init();
    shard_status status = join_with(given);
    shard_note_end_of_init();
    return status;
}

void shard_at_finalize(void (*function)(void))
{
    at_finalize = function;
}

int shard_finalize(void)
{
    if (at_finalize)
        at_finalize();
    shard_device *device = shard_opened_accelerator();
    if (device && shard_last_status() == SHARD_OK)
        device->ops->synchronize(device); /* while groups exist, which watch the wait */
    shard_world_leave(world);
    int failed = shard_last_status() != SHARD_OK;
    bool reported = failed && shard_group_rank(world) > 0 && shard_error_is_joint(shard_group_size(world)); /* by rank 0 */
    if (failed && !reported)
        shard_log_message(SHARD_LOG_ERROR, "%s", shard_last_error());
    shard_world_close(world);
    left |= world != NULL;
    world = NULL;
    return failed;
}
