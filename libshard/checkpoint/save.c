/*
 * Saving. Every rank computes the same header from its list, and so the position of its data; a hash shows that the
 * lists are identical. Then each rank writes its local shards and flat ranges (save_tensors.c). At last the first rank writes the
 * header, with the checksums of what all have written.
 */
#include "base/file_limit.h"
#include "base/options.h"
#include "base/printable.h"
#include "base/random.h"
#include "checkpoint/header.h"
#include "checkpoint/saving.h"

#include "comm/function.h"

#include <stdlib.h>

/* ---- checks ---- */

/* A rank that saves alone needs whole tensors. */
static shard_status check_local(const shard_saving *s)
{
    if (!s->tensors)
        return shard_null_argument(s->function, "tensors");
    for (int64_t i = 0; i < shard_tensors_count(s->tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        const char *name = shard_tensors_name(s->tensors, i);
        SHARD_TRY(shard_check_saved(s->function, name, tensor));
        if (tensor->placement.kind == SHARD_SPLIT || shard_flat_range_of(tensor))
            return shard_error(
                SHARD_ERROR_SHAPE, "%s: %s is %s, and .local saves whole tensors: call shard_collect_state_dict first",
                s->function, shard_quoted(name),
                shard_flat_range_of(tensor) ? "partitioned by shard_zero_optimizer" : shard_placement_text(&tensor->placement));
    }
    return shard_last_status();
}

/* Checks that all ranks save the same tensors to the same path. Collective over the ranks that save. */
static shard_status check_arguments(const shard_saving *s, const char *path)
{
    if (!path)
        shard_null_argument(s->function, "path");
    else if (!*path)
        shard_error(SHARD_ERROR_ARGUMENT, "%s: path is empty: give the name of a file", s->function);
    if (!s->world)
        return check_local(s);
    char *quoted = path ? shard_format("\"%s\"", path) : NULL;
    shard_status status = shard_tensors_check_identical(shard_current_function()->name, s->tensors, quoted ? quoted : "");
    free(quoted);
    return status;
}

static shard_status plan(shard_saving *s, const char *path)
{
    int64_t count = shard_tensors_count(s->tensors);
    s->entries = shard_calloc((size_t)count, sizeof *s->entries);
    s->sums = shard_calloc((size_t)count, sizeof *s->sums);
    s->written = shard_calloc((size_t)count, sizeof *s->written);
    if (shard_new_file_prepare(&s->new, path) != SHARD_OK || !s->entries || !s->sums || !s->written)
        return shard_last_status();
    s->new.folder = s->folder;
    s->count = count;
    for (int64_t i = 0; i < count; i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        s->entries[i] = (shard_entry){.name = shard_strdup(shard_tensors_name(s->tensors, i)),
                                      .dtype = tensor->dtype,
                                      .shape = shard_tensor_whole_shape(tensor)};
        if (!s->entries[i].name)
            return shard_last_status();
    }
    return shard_safetensors_lay_out(s->entries, count, &s->data_bytes);
}

/* Each group compares the ranges of its tensors, which are not kept: for many tensors and ranks they would be large. After it
 * returns the error is known to all ranks of the world. */
static shard_status check_ranges(shard_saving *s)
{
    for (int64_t i = 0; i < shard_tensors_count(s->tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        const char *name = shard_tensors_name(s->tensors, i);
        bool written = shard_is_written(tensor);
        if (shard_flat_range_of(tensor)) /* the groups need not be a grid: another rank may have the shard for which they write */
            free(shard_flat_ranges(name, tensor, &written));
        if (shard_local_placement(tensor)->kind == SHARD_SPLIT)
            free(shard_local_ranges(name, tensor));
        if (i < s->count)
            s->written[i] = written;
    }
    return shard_agree(s->world);
}

/* ---- the temporary file ---- */

/* Sent by rank 0 after it has created the file. */
typedef struct creation {
    int64_t data_start;
    bool again; /* none was created, as another job has interfered */
} creation;

static shard_status create(shard_saving *s, creation *made)
{
    int64_t bytes;
    SHARD_TRY(shard_header_size(s->entries, s->count, s->metadata, s->data_bytes, &made->data_start, &bytes));
    SHARD_TRY(shard_new_file_create(&s->new, &made->again));
    return made->again ? SHARD_OK : shard_file_allocate(&s->new.file, bytes);
}

/* Rank 0 creates the file, the others open it. All know its name before it exists, so that any of them can remove
 * it. An error of rank 0 ends the loop through the broadcast that follows, with one rank too. Collective over the
 * world. */
static shard_status open_together(shard_saving *s)
{
    bool first = shard_group_rank(s->world) == 0;
    creation made = {.again = true};
    for (uint64_t attempt = 0; made.again; attempt++) {
        uint64_t token = first ? shard_random_secret() + attempt : 0;
        SHARD_TRY(shard_group_broadcast(s->world, NULL, &token, sizeof token, SHARD_UINT8, 0));
        if (shard_new_file_name(&s->new, token) == SHARD_OK && first)
            create(s, &made);
        SHARD_TRY(shard_group_broadcast(s->world, NULL, &made, sizeof made, SHARD_UINT8, 0));
    }
    s->data_start = made.data_start;
    if (!first)
        shard_file_join(&s->new.file, s->new.temporary);
    return shard_agree(s->world);
}

shard_status shard_saving_begin(shard_saving *s, const shard_tensors *tensors, const char *path)
{
    s->new.lock = -1;
    s->tensors = shard_tensors_kept(tensors, false);
    SHARD_TRY(check_arguments(s, path));
    plan(s, path);
    SHARD_TRY(check_ranges(s));
    return open_together(s);
}

/* ---- the end ---- */

shard_status shard_saving_combine(shard_saving *s)
{
    uint64_t *parts = shard_calloc(2 * (size_t)s->count, sizeof *parts), *boundaries = parts ? parts + s->count : NULL;
    for (int64_t i = 0; i < s->count && parts; i++) {
        parts[i] = shard_run_sum_part(&s->sums[i], s->entries[i].end - s->entries[i].begin);
        boundaries[i] = s->sums[i].boundaries;
    }
    shard_status status = shard_checksums_combine(s->world, parts, s->count);
    if (status == SHARD_OK && s->count > 0)
        status = shard_group_all_reduce(s->world, NULL, boundaries, s->count, SHARD_INT64, SHARD_SUM);
    for (int64_t i = 0; i < s->count && status == SHARD_OK; i++) {
        s->entries[i].checksum = parts[i];
        status = shard_run_sum_check_whole(&s->entries[i], boundaries[i]);
    }
    free(parts);
    return s->count > 0 ? status : shard_agree(s->world); /* without data there was no collective */
}

shard_status shard_saving_close(shard_saving *s)
{
    if (shard_last_status() == SHARD_OK && shard_group_rank(s->world) == 0)
        shard_header_write(&s->new.file, s->entries, s->count, s->metadata);
    return shard_new_file_close(&s->new);
}

shard_status shard_saving_replace(shard_saving *s)
{
    return shard_group_rank(s->world) == 0 ? shard_new_file_replace(&s->new) : SHARD_OK;
}

void shard_saving_end(shard_saving *s)
{
    if (shard_last_status() == SHARD_OK)
        shard_new_file_forget(&s->new);
    shard_new_file_end(&s->new);
    for (int64_t i = 0; i < s->count; i++)
        free((char *)s->entries[i].name);
    free(s->written);
    free(s->entries);
    free(s->sums);
    shard_tensors_destroy(s->tensors);
}

shard_status shard_saving_run(shard_saving *s, const shard_tensors *tensors, const char *path)
{
    shard_file_limit limit;
    shard_file_limit_hold(&limit);
    if (shard_saving_begin(s, tensors, path) == SHARD_OK) {
        shard_saving_take(s);
        shard_saving_combine(s);
        shard_saving_close(s);
        if (shard_agree(s->world) == SHARD_OK)
            shard_saving_replace(s);
        shard_agree(s->world);
    }
    shard_saving_end(s);
    shard_file_limit_release(&limit);
    return shard_last_status();
}

shard_status shard_save_with(const shard_tensors *tensors, const char *path, const shard_metadata *metadata,
                             const shard_save_options *given)
{
    SHARD_FUNCTION("shard_save");
    SHARD_READ_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS_INIT, options, given);
    shard_saving s = {.function = "shard_save", .world = options.local ? NULL : shard_world(), .metadata = metadata};
    return shard_saving_run(&s, tensors, path);
}

shard_status shard_save_module(shard_module *module, const char *path)
{
    SHARD_FUNCTION("shard_save_module");
    shard_tensors *tensors = module ? shard_state_dict(module) : NULL;
    if (!module)
        shard_null_argument("shard_save_module", "module");
    shard_save(tensors, path, NULL);
    shard_tensors_destroy(tensors);
    return shard_last_status();
}
