#include "source.h"

#include "base/memory.h"
#include "checkpoint/checksums.h"
#include "checkpoint/header.h"

#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t taken;

static void take(int number)
{
    taken = number;
}

void signals_take(void)
{
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before, action = {.sa_handler = take, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    /* Beyond ulimit -f, writes shall fail, not end the program. */
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
}

int signal_taken(void)
{
    return taken;
}

shard_status sources_add(source_list *list, const char *path, bool skip_checksums)
{
    int64_t bytes;
    uint64_t hash;
    SHARD_TRY(shard_grow(&list->at, &list->capacity, list->count + 1, sizeof *list->at));
    source *new = &list->at[list->count++];
    *new = (source){.path = shard_strdup(path)};
    if (!new->path)
        return shard_last_status();
    shard_file file = {0};
    shard_status status = shard_file_open(&file, new->path, &bytes);
    if (status == SHARD_OK)
        status = shard_header_read(&new->header, &file, bytes, !skip_checksums, &new->data_start, &hash);
    if (status == SHARD_OK)
        status = shard_file_check_unwritten(&file);
    new->opened = file.opened;
    shard_file_close(&file);
    return status;
}

void sources_free(source_list *list)
{
    for (int64_t i = 0; i < list->count; i++) {
        source_close(&list->at[i]);
        shard_safetensors_free(&list->at[i].header);
        free(list->at[i].path);
    }
    free(list->at);
    *list = (source_list){0};
}

const shard_entry *sources_find(const source_list *list, const char *name, int64_t count, source **from)
{
    const shard_entry *found = NULL;
    for (int64_t i = 0; i < count && !found; i++) {
        *from = &list->at[i];
        found = shard_safetensors_find(&list->at[i].header, name);
    }
    return found;
}

const char *sources_metadata(const source_list *list, const char *name, int64_t count)
{
    const char *found = NULL;
    for (int64_t i = 0; i < count && !found; i++)
        found = shard_metadata_get(&list->at[i].header.metadata, name);
    return found;
}

shard_status source_open(source *from)
{
    int64_t bytes;
    if (from->file.path)
        return SHARD_OK;
    SHARD_TRY(shard_file_open(&from->file, from->path, &bytes));
    shard_file_leave_direct(&from->file);
    from->file.opened = from->opened;
    from->file.summed = from->header.checksums;
    SHARD_TRY(shard_file_check_unchanged(&from->file));
    return shard_file_check_unwritten(&from->file);
}

void source_close(source *from)
{
    shard_file_close(&from->file);
}

int64_t run_left(const run_reader *reader)
{
    return reader->entry->end - reader->entry->begin - reader->at;
}

shard_status run_next(run_reader *reader, void *to, int64_t bytes)
{
    source *from = reader->from;
    if (taken)
        return shard_error(SHARD_ERROR_IO, "interrupted by signal %d", (int)taken);
    SHARD_TRY(source_open(from));
    SHARD_TRY(shard_file_read(&from->file, to, bytes, from->data_start + reader->entry->begin + reader->at,
                              from->header.checksums ? &reader->crc : NULL));
    reader->at += bytes;
    if (run_left(reader) > 0)
        return SHARD_OK;
    SHARD_TRY(shard_file_check_unwritten(&from->file));
    return from->header.checksums ? shard_checksums_compare(from->path, reader->entry, reader->crc) : SHARD_OK;
}

int64_t entry_elements(const shard_entry *entry)
{
    return shard_shape_product(&entry->shape, 0, entry->shape.ndim);
}

static const char *without_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Whether both files lie in one folder. */
static bool are_together(const char *first, const char *second)
{
    struct stat folder[2];
    for (int i = 0; i < 2; i++) {
        const char *path = i ? second : first;
        char *name = shard_format("%.*s.", (int)(without_folder(path) - path), path);
        bool found = name && stat(name, &folder[i]) == 0;
        free(name);
        if (!found)
            return false;
    }
    return folder[0].st_dev == folder[1].st_dev && folder[0].st_ino == folder[1].st_ino;
}

/* target: the path, or the file that it links to. */
static shard_status check_leftover(const char *path, const char *target, const char *input)
{
    char file[PATH_MAX];
    if (realpath(input, file) && shard_file_is_temporary(without_folder(file), without_folder(target)) &&
        are_together(file, target))
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "cannot write %s: the input %s has the name of a temporary file of it, and would be removed as one that "
            "a killed job has left; rename the input",
            path, input);
    return SHARD_OK;
}

shard_status source_check_output(const char *path, const char *input)
{
    struct stat there, other;
    if (stat(path, &there) == 0 && stat(input, &other) == 0 && there.st_dev == other.st_dev && there.st_ino == other.st_ino)
        return shard_error(SHARD_ERROR_ARGUMENT, "cannot write %s: it is the input %s; choose another output", path, input);
    char *target = shard_file_follow(path);
    shard_status status = target ? check_leftover(path, target, input) : shard_last_status();
    free(target);
    return status;
}
