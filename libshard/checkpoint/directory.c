/*
 * Directories of checkpoints: directory/step-000120/checkpoint.safetensors. A file appears there by shard_save's rename, so a
 * step's folder without one is of a save that did not end. The first rank alone looks into the directory.
 */
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "checkpoint/directory.h"
#include "checkpoint/header.h"
#include "checkpoint/saving.h"

#include "comm/comm.h"
#include "comm/function.h"

#include <shard/distributed.h>

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER "step-"
#define NAME "checkpoint.safetensors"

/* ---- names ---- */

/* The caller frees it; NULL with the error set. */
static char *folder_of(const char *directory, int64_t step)
{
    return shard_format("%s/" FOLDER "%06" PRId64, directory, step);
}

static char *path_of(const char *directory, int64_t step)
{
    return shard_format("%s/" FOLDER "%06" PRId64 "/" NAME, directory, step);
}

/* -1: the name is of no step. */
static int64_t step_of(const char *name)
{
    char again[40];
    if (strncmp(name, FOLDER, strlen(FOLDER)) != 0)
        return -1;
    int64_t step = strtoll(name + strlen(FOLDER), NULL, 10);
    snprintf(again, sizeof again, FOLDER "%06" PRId64, step);
    return step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

/* ---- listing ---- */

typedef struct listing {
    int64_t *step; /* [count], the newest first; freed by free() */
    int64_t count, capacity;
} listing;

static shard_status append(listing *found, int64_t step)
{
    SHARD_TRY(shard_grow(&found->step, &found->capacity, found->count + 1, sizeof *found->step));
    found->step[found->count++] = step;
    return SHARD_OK;
}

static int newest_first(const void *a, const void *b)
{
    int64_t left = *(const int64_t *)a, right = *(const int64_t *)b;
    return left < right ? 1 : left > right ? -1 : 0;
}

/* The steps that have folders; none if there is no directory. */
static shard_status list_steps(const char *directory, listing *found)
{
    DIR *folder = opendir(directory);
    if (!folder && errno == ENOENT)
        return SHARD_OK;
    if (!folder)
        return shard_error(SHARD_ERROR_IO, "cannot read directory %s: %s", directory, strerror(errno));
    shard_status status = SHARD_OK;
    const struct dirent *entry;
    errno = 0;
    while (status == SHARD_OK && (entry = readdir(folder))) {
        int64_t step = step_of(entry->d_name);
        if (step >= 0)
            status = append(found, step);
        errno = 0;
    }
    if (status == SHARD_OK && errno != 0)
        status = shard_error(SHARD_ERROR_IO, "cannot read directory %s: %s", directory, strerror(errno));
    closedir(folder);
    if (status == SHARD_OK && found->count > 0)
        qsort(found->step, (size_t)found->count, sizeof *found->step, newest_first);
    return status;
}

/* ---- examining ---- */

/* Whether there is a file at path; an error if that cannot be known. */
static shard_status is_there(const char *path, bool *there)
{
    struct stat status;
    *there = stat(path, &status) == 0;
    if (*there || errno == ENOENT || errno == ENOTDIR)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_IO, "cannot examine %s: %s", path, strerror(errno));
}

/* Whether the file has a whole header and the size that the header asks for. An error if it cannot be read. */
static shard_status is_complete(const char *path, bool *complete)
{
    SHARD_TRY(is_there(path, complete));
    if (!*complete)
        return SHARD_OK;
    shard_safetensors header = {0};
    shard_status status = shard_header_read_path(&header, path);
    shard_safetensors_free(&header);
    bool removed = status == SHARD_ERROR_IO && access(path, F_OK) != 0 && errno == ENOENT; /* by another job, since */
    if (status != SHARD_ERROR_FORMAT && !removed)
        return status;
    *complete = false;
    if (!removed)
        shard_log_message(SHARD_LOG_WARN, "%s is left out: %s", path, shard_last_error());
    shard_clear_error();
    return SHARD_OK;
}

/* ---- saves that have not ended ---- */

static struct {
    pthread_mutex_t lock;
    shard_directory_save *first;
} saves = {.lock = PTHREAD_MUTEX_INITIALIZER};

void shard_directory_save_begin(shard_directory_save *save, const char *directory, int64_t step)
{
    pthread_mutex_lock(&saves.lock);
    *save = (shard_directory_save){directory, step, saves.first};
    saves.first = save;
    pthread_mutex_unlock(&saves.lock);
}

void shard_directory_save_end(shard_directory_save *save)
{
    if (!save->directory)
        return;
    pthread_mutex_lock(&saves.lock);
    shard_directory_save **link = &saves.first;
    while (*link != save)
        link = &(*link)->after;
    *link = save->after;
    pthread_mutex_unlock(&saves.lock);
    save->directory = NULL;
}

/* Whether both paths lead to one directory. */
static bool is_same_directory(const char *path, const char *other)
{
    struct stat here, there;
    if (strcmp(path, other) == 0)
        return true;
    return stat(path, &here) == 0 && stat(other, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

static bool is_being_saved(const char *directory, int64_t step)
{
    bool found = false;
    pthread_mutex_lock(&saves.lock);
    for (const shard_directory_save *save = saves.first; save && !found; save = save->after)
        found = save->step == step && is_same_directory(save->directory, directory);
    pthread_mutex_unlock(&saves.lock);
    return found;
}

/* ---- saving ---- */

/* How much of a step goes. */
typedef enum removal {
    REMOVE_LEFTOVERS, /* temporary files of saves that did not end */
    REMOVE_FOLDER,    /* ... and the folder, if it is empty then */
    REMOVE_CHECKPOINT /* ... and the checkpoint */
} removal;

/* The checkpoint goes first, so that the folder is at no time one with a part of it. Other files in the folder stay, and so does
 * what a symbolic link leads to. */
static void remove_from_step(const char *directory, int64_t step, removal what)
{
    struct stat status;
    char *folder = folder_of(directory, step), *path = path_of(directory, step);
    if (folder && path && lstat(folder, &status) == 0 && S_ISDIR(status.st_mode)) {
        if (what >= REMOVE_CHECKPOINT && shard_file_calls_used->unlink(path) != 0 && errno != ENOENT)
            shard_log_message(SHARD_LOG_WARN, "cannot remove the old checkpoint %s: %s", path, strerror(errno));
        shard_file_remove_leftovers(path);
        if (what >= REMOVE_FOLDER && !shard_file_remove_directory(folder))
            shard_log_message(SHARD_LOG_INFO, "cannot remove %s of an old checkpoint: %s", folder, strerror(errno));
    }
    free(folder);
    free(path);
}

/* Removes the step, counts it among those that stay, or leaves it: one that is later, or cannot be examined. Damaged checkpoints
 * do not count, and are removed as old ones are. Where no checkpoint is there, one that comes meanwhile stays. */
static shard_status remove_or_count(const char *directory, int64_t step, bool later, int64_t keep, int64_t *complete)
{
    bool there = true, whole = false;
    char *path = path_of(directory, step);
    shard_status status = path ? is_there(path, &there) : shard_last_status();
    bool old = there && !later && *complete == keep;
    if (status == SHARD_OK)
        remove_from_step(directory, step, old ? REMOVE_CHECKPOINT : there ? REMOVE_LEFTOVERS : REMOVE_FOLDER);
    if (status == SHARD_OK && there && !old && !later)
        status = is_complete(path, &whole);
    *complete += status == SHARD_OK && whole;
    free(path);
    return status;
}

void shard_directory_remove_old(const char *directory, int64_t step, int64_t keep)
{
    listing found = {0};
    int64_t complete = 1;
    shard_status status = list_steps(directory, &found);
    for (int64_t i = 0; i < found.count && status == SHARD_OK; i++)
        if (found.step[i] != step && !is_being_saved(directory, found.step[i]))
            status = remove_or_count(directory, found.step[i], found.step[i] > step || !keep, keep, &complete);
    if (status != SHARD_OK) { /* the new checkpoint is there all the same */
        shard_log_message(SHARD_LOG_WARN, "old checkpoints stay: %s", shard_last_error());
        shard_clear_error();
    }
    free(found.step);
}

static shard_status check(const char *function, const shard_tensors *tensors, const char *directory, int64_t step, int64_t keep)
{
    if (!tensors || !directory)
        return shard_null_argument(function, tensors ? "directory" : "tensors");
    if (!*directory)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: directory is empty: \".\" is the working directory", function);
    if (step < 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: the step is %" PRId64 ", below 0", function, step);
    if (keep < 2 && keep != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: max_to_keep is %" PRId64 "; take at least 2, or 0 for all of them",
                           function, keep);
    return shard_last_status();
}

/* Checks the arguments and makes the directory. Errors are this rank's alone; the save brings them to the others. The path of the
 * step's file, which the caller frees, as the folder; NULL with the error set. The save makes the folder with the file: another
 * job that cleans up removes an empty one. */
static char *prepare(const char *function, const shard_tensors *tensors, const char *directory, int64_t step, int64_t keep,
                     char **folder)
{
    if (check(function, tensors, directory, step, keep) == SHARD_OK && shard_group_rank(shard_world()) == 0)
        shard_file_make_directory(directory);
    *folder = directory ? folder_of(directory, step) : NULL;
    return directory ? path_of(directory, step) : NULL;
}

shard_status shard_save_checkpoint_with(const shard_tensors *tensors, const char *directory, int64_t step,
                                        const shard_metadata *metadata, const shard_save_checkpoint_options *given)
{
    SHARD_FUNCTION("shard_save_checkpoint");
    SHARD_READ_OPTIONS(shard_save_checkpoint_options, SHARD_SAVE_CHECKPOINT_OPTIONS_INIT, options, given);
    shard_directory_save begun = {0};
    if (directory)
        shard_directory_save_begin(&begun, directory, step);
    char *folder, *path = prepare("shard_save_checkpoint", tensors, directory, step, options.max_to_keep, &folder);
    shard_saving s = {.function = "shard_save_checkpoint", .world = shard_world(), .metadata = metadata, .folder = folder};
    shard_status status = shard_saving_run(&s, tensors, path);
    free(path);
    free(folder);
    shard_directory_save_end(&begun);
    if (status == SHARD_OK && shard_group_rank(shard_world()) == 0)
        shard_directory_remove_old(directory, step, options.max_to_keep);
    return status;
}

shard_async_save *shard_save_checkpoint_async_with(const shard_tensors *tensors, const char *directory, int64_t step,
                                                   const shard_metadata *metadata, const shard_save_checkpoint_options *given)
{
    SHARD_FUNCTION("shard_save_checkpoint_async");
    SHARD_READ_OPTIONS(shard_save_checkpoint_options, SHARD_SAVE_CHECKPOINT_OPTIONS_INIT, options, given);
    shard_directory_save begun = {0}; /* until the save has an entry of its own */
    if (directory)
        shard_directory_save_begin(&begun, directory, step);
    char *folder, *path = prepare("shard_save_checkpoint_async", tensors, directory, step, options.max_to_keep, &folder);
    char *kept = directory ? shard_strdup(directory) : NULL;
    shard_async_save *save = shard_saving_start(
        (shard_saving){.function = "shard_save_checkpoint_async", .world = shard_world(), .metadata = metadata, .folder = folder},
        tensors, path);
    free(path);
    free(folder);
    if (save)
        shard_async_save_keep(save, kept, step, options.max_to_keep);
    else
        free(kept);
    shard_directory_save_end(&begun);
    return save;
}

/* ---- finding ---- */

/* The newest complete checkpoint before that step; -1: none. */
static int64_t find_newest(const char *directory, int64_t before)
{
    listing found = {0};
    int64_t newest = -1;
    list_steps(directory, &found);
    for (int64_t i = 0; i < found.count && newest < 0 && shard_last_status() == SHARD_OK; i++) {
        char *path = found.step[i] < before ? path_of(directory, found.step[i]) : NULL;
        bool complete = false;
        if (path && is_complete(path, &complete) == SHARD_OK && complete)
            newest = found.step[i];
        free(path);
    }
    free(found.step);
    return newest;
}

shard_status shard_latest_checkpoint(const char *directory, int64_t before, int64_t *step, char *path, size_t bytes)
{
    SHARD_FUNCTION("shard_latest_checkpoint");
    int64_t newest = -1;
    shard_require_identical_path("directory", directory ? directory : "");
    shard_require_identical("before %" PRId64, before);
    if (!directory || !step || !path)
        shard_null_argument("shard_latest_checkpoint", !directory ? "directory" : !step ? "step" : "path");
    else if (!*directory)
        shard_error(SHARD_ERROR_ARGUMENT, "shard_latest_checkpoint: directory is empty: \".\" is the working directory");
    else if (shard_last_status() == SHARD_OK && shard_group_rank(shard_world()) == 0)
        newest = find_newest(directory, before);
    if (path && bytes > 0)
        path[0] = '\0';
    if (step)
        *step = -1;
    SHARD_TRY(shard_group_broadcast(shard_world(), NULL, &newest, 1, SHARD_INT64, 0));
    if (newest < 0)
        return SHARD_OK;
    int length = snprintf(path, bytes, "%s/" FOLDER "%06" PRId64 "/" NAME, directory, newest);
    if (length < 0 || (size_t)length >= bytes)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_latest_checkpoint: a path of %d bytes does not fit into %zu: give a larger array", length + 1, bytes);
    shard_status status = shard_agree(shard_world());
    if (status == SHARD_OK)
        *step = newest;
    else if (bytes > 0)
        path[0] = '\0';
    return status;
}
