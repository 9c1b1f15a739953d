/*
 * Saves in the background. The beginning is that of every save, but the values go to a snapshot. Then a save has two phases, in
 * which threads of the ranks work without communication:
 *     WRITING     each rank's thread writes its snapshot and syncs the file
 *     COMPLETING  the first rank's thread writes the header, renames the file, and removes old checkpoints
 * At the end of a phase, in a poll or in the finish, the ranks call shard_agree, which finds the errors of the threads, and
 * exchange the checksums that the header needs.
 *
 * Saves that are not finished are in a list, from which shard_finalize takes them.
 */
#include "checkpoint/directory.h"
#include "checkpoint/saving.h"

#include "base/file_limit.h"
#include "base/kept_error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "base/thread.h"
#include "comm/comm.h"
#include "comm/function.h"
#include "comm/preflight.h"
#include "distributed/finalize.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

typedef enum phase { WRITING, COMPLETING, COMPLETE, FAILED } phase;

struct shard_async_save {
    shard_saving saving;
    phase phase;
    shard_snapshot snapshot;
    shard_metadata *metadata; /* a copy; NULL: none */
    int64_t number;           /* of the process's collective saves, from 1 on; 0: of this rank alone */
    bool threaded;            /* there is a thread to join */
    pthread_t thread;
    pid_t process;              /* a fork of it has none of its threads */
    _Atomic bool ended;         /* the phase's thread has no more to do */
    _Atomic bool cancelled;     /* it is to end soon */
    shard_kept_error error;     /* of the thread; of all ranks in FAILED */
    char *directory;            /* of checkpoints, whose old ones are then removed; NULL: one file */
    shard_directory_save begun; /* of that directory */
    int64_t keep;
    shard_async_save *after; /* of the list */
};

static struct {
    pthread_mutex_t lock;
    shard_async_save *first; /* those that are not finished */
    int64_t begun;           /* collective ones */
} saves = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the threads ---- */

static void *end_thread(shard_async_save *save)
{
    shard_keep_error(&save->error);
    atomic_store(&save->ended, true);
    return NULL;
}

/* A write beyond the limit on file sizes only fails, as the thread takes no signals. The first rank's file stays open for the
 * header. */
static void *write_snapshot(void *context)
{
    shard_async_save *save = context;
    shard_snapshot *snapshot = &save->snapshot;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < snapshot->count && status == SHARD_OK && !atomic_load(&save->cancelled); i++) {
        const shard_snapshot_run *run = &snapshot->runs[i];
        status = shard_saving_write(&save->saving, run->index, run->values, run->bytes, run->begin);
        if (i + 1 == snapshot->count || run[1].block != run->block)
            shard_snapshot_release(snapshot, run->block);
    }
    if (status == SHARD_OK && !atomic_load(&save->cancelled)) {
        if (shard_group_rank(save->saving.world) == 0)
            shard_file_sync(&save->saving.new.file);
        else
            shard_saving_close(&save->saving);
    }
    return end_thread(save);
}

static void *complete(void *context)
{
    shard_async_save *save = context;
    shard_status status = shard_saving_close(&save->saving);
    if (atomic_load(&save->cancelled))
        return end_thread(save);
    if (status == SHARD_OK)
        status = shard_saving_replace(&save->saving);
    if (status == SHARD_OK && save->directory)
        shard_directory_remove_old(save->directory, save->begun.step, save->keep);
    return end_thread(save);
}

/* Without a thread the work is done at once. */
static void start(shard_async_save *save, void *(*run)(void *))
{
    atomic_store(&save->ended, false);
    save->threaded = shard_thread_start(&save->thread, run, save) == 0;
    if (save->threaded)
        return;
    shard_file_limit limit;
    shard_file_limit_hold(&limit);
    run(save);
    shard_file_limit_release(&limit);
}

/* This thread then has the error of the other one, unless it had one before. */
static void join(shard_async_save *save)
{
    if (save->threaded)
        pthread_join(save->thread, NULL);
    save->threaded = false;
    if (shard_last_status() == SHARD_OK)
        shard_put_back_error(&save->error);
}

/* Ends a phase: waits for the thread, and calls shard_agree, by which all ranks have its error. Collective over the ranks that
 * save. */
static shard_status advance(shard_async_save *save)
{
    join(save);
    bool writing = save->phase == WRITING;
    if ((writing ? shard_saving_combine(&save->saving) : shard_agree(save->saving.world)) != SHARD_OK) {
        save->phase = FAILED;
        shard_keep_error(&save->error);
        shard_put_back_error(&save->error);
        return shard_last_status();
    }
    save->phase = writing ? COMPLETING : COMPLETE;
    if (writing && shard_group_rank(save->saving.world) == 0)
        start(save, complete);
    return SHARD_OK;
}

/* Removes the temporary file if this thread has an error. */
static void end(shard_async_save *save)
{
    shard_saving_end(&save->saving);
    shard_snapshot_free(&save->snapshot);
    shard_metadata_destroy(save->metadata);
    shard_directory_save_end(&save->begun);
    free(save->directory);
}

/* ---- the list ---- */

/* Whether the first rank completes the file, and this one does not know how far it is. */
static bool is_of_first(const shard_async_save *save)
{
    return save->phase == COMPLETING && shard_group_rank(save->saving.world) > 0;
}

/* The end of a save whose thread has ended, for messages. */
static const char *outcome(const shard_async_save *save)
{
    if (save->phase == COMPLETE || save->saving.new.replaced)
        return ", but its file is complete";
    return is_of_first(save) ? ", and its file may be complete" : " and is given up";
}

/* A process that was forked leaves the saves of its parent alone. */
static void abandon_all(void)
{
    for (shard_async_save *save = saves.first, *after; save; save = after) {
        after = save->after;
        if (save->process != getpid())
            continue;
        atomic_store(&save->cancelled, true);
        join(save);
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_finalize: the save of %s was not finished%s: call shard_async_save_finish before",
                    save->saving.new.target, outcome(save));
        if (is_of_first(save)) /* which may be about to rename the temporary file */
            shard_new_file_forget(&save->saving.new);
        end(save);
        free(save);
    }
    saves.first = NULL;
}

static void remember(shard_async_save *save)
{
    pthread_mutex_lock(&saves.lock);
    save->number = save->saving.world ? ++saves.begun : 0;
    save->process = getpid();
    save->after = saves.first;
    saves.first = save;
    pthread_mutex_unlock(&saves.lock);
    shard_at_finalize(abandon_all);
}

static void forget(shard_async_save *save)
{
    pthread_mutex_lock(&saves.lock);
    shard_async_save **link = &saves.first;
    while (*link != save)
        link = &(*link)->after;
    *link = save->after;
    pthread_mutex_unlock(&saves.lock);
}

/* ---- public functions ---- */

/* A rank that has copied nothing has not waited for its device: an error of the work before the save must not come after it. */
static void synchronize(const shard_tensors *tensors)
{
    for (int64_t i = 0; i < shard_tensors_count(tensors) && shard_last_status() == SHARD_OK; i++) {
        shard_device *device = shard_device_of(shard_tensors_at(tensors, i));
        device->ops->synchronize(device);
    }
}

shard_async_save *shard_saving_start(shard_saving saving, const shard_tensors *tensors, const char *path)
{
    shard_async_save spare = {0}; /* for the collectives of a rank without memory */
    shard_async_save *made = shard_calloc(1, sizeof *made), *save = made ? made : &spare;
    save->metadata = shard_metadata_copy(saving.metadata);
    save->saving = saving;
    save->saving.metadata = save->metadata;
    save->saving.snapshot = &save->snapshot;
    shard_file_limit limit;
    shard_file_limit_hold(&limit);
    shard_status status = shard_saving_begin(&save->saving, tensors, path);
    if (status == SHARD_OK) {
        shard_saving_take(&save->saving);
        synchronize(tensors);
        status = shard_agree(save->saving.world);
    }
    if (status == SHARD_OK && made) {
        remember(made);
        start(made, write_snapshot);
    } else {
        end(save);
        free(made);
        made = NULL;
    }
    shard_file_limit_release(&limit);
    return made;
}

shard_async_save *shard_save_async_with(const shard_tensors *tensors, const char *path, const shard_metadata *metadata,
                                        const shard_save_options *given)
{
    SHARD_FUNCTION("shard_save_async");
    SHARD_READ_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS_INIT, options, given);
    return shard_saving_start(
        (shard_saving){.function = "shard_save_async", .world = options.local ? NULL : shard_world(), .metadata = metadata},
        tensors, path);
}

void shard_async_save_keep(shard_async_save *save, char *directory, int64_t step, int64_t keep)
{
    save->directory = directory;
    save->keep = keep;
    if (directory)
        shard_directory_save_begin(&save->begun, directory, step);
}

/* Checks a handle before the collectives of a function on it. False: there is none to make. */
static bool enter(const shard_async_save *save, const char *function)
{
    if (!save)
        return shard_null_argument(function, "save"), false;
    if (save->process != getpid())
        return shard_error(SHARD_ERROR_UNAVAILABLE, "%s: this process was forked while the rank saved", function), false;
    shard_require_identical("save %lld", (long long)save->number);
    return true;
}

shard_status shard_async_save_poll(shard_async_save *save, bool *done)
{
    SHARD_FUNCTION("shard_async_save_poll");
    if (done)
        *done = false;
    if (!enter(save, "shard_async_save_poll"))
        return shard_last_status();
    if (!done)
        shard_null_argument("shard_async_save_poll", "done");
    int32_t ended = atomic_load(&save->ended);
    SHARD_TRY(shard_group_all_reduce(save->saving.world, NULL, &ended, 1, SHARD_INT32, SHARD_MIN));
    if (ended && save->phase < COMPLETE)
        SHARD_TRY(advance(save));
    if (save->phase == FAILED) /* on all ranks, in an earlier poll */
        return shard_put_back_error(&save->error), shard_last_status();
    *done = save->phase == COMPLETE;
    return SHARD_OK;
}

/* Takes the thread's error away if all ranks know it: so all are there, and what they save was complete before it. Another error,
 * as that of a rank that has died, stays. Only a shard_agree that succeeds has found all ranks here: one that fails may have been
 * paired with another collective, of ranks that did not know the error yet. Returns whether there is an error to return.
 * Collective over the ranks that save. */
static bool set_error_aside(const shard_async_save *save, shard_aside_error *aside)
{
    shard_group *world = save->saving.world;
    shard_aside_error later;
    bool taken = shard_set_error_aside(world, aside);
    while (save->phase < COMPLETE && shard_agree(world) != SHARD_OK && shard_set_error_aside(world, taken ? &later : aside))
        taken = true;
    return taken;
}

/* An error of the save after another one is not the thread's first. */
static void log_failure(const shard_async_save *save, const shard_aside_error *aside)
{
    if (save->phase == FAILED && save->error.serial != aside->kept.serial && shard_group_rank(save->saving.world) == 0)
        shard_log_message(SHARD_LOG_WARN, "%s%s: %s", save->saving.new.target, save->saving.new.replaced ? "" : " was not saved",
                          save->error.text);
}

shard_status shard_async_save_finish(shard_async_save *save)
{
    SHARD_FUNCTION("shard_async_save_finish");
    if (!enter(save, "shard_async_save_finish"))
        return shard_last_status();
    shard_aside_error aside;
    bool failed = set_error_aside(save, &aside);
    if (shard_last_status() != SHARD_OK)
        atomic_store(&save->cancelled, true);
    while (save->phase < COMPLETE)
        advance(save);
    if (save->phase == FAILED && shard_last_status() == SHARD_OK)
        shard_put_back_error(&save->error);
    if (failed)
        log_failure(save, &aside);
    forget(save);
    end(save);
    free(save);
    if (failed)
        shard_return_error(&aside);
    return shard_last_status();
}
