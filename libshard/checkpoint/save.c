/*
 * Saving. Every rank computes the same header from its list, and so the position of its data; a hash shows that the
 * lists agree. Then each rank writes its local shards and flat ranges: contiguous elements straight from memory,
 * narrow columns after a group has gathered whole rows. At last the first rank writes the header, with the checksums of
 * what all have written.
 *
 * No rank returns early: an error of one rank reaches the others at the next collective, and only errors that all
 * ranks of a group have end their work.
 */
#include "base/file_limit.h"
#include "base/options.h"
#include "checkpoint/checksums.h"
#include "checkpoint/file.h"
#include "checkpoint/new_file.h"
#include "checkpoint/ranges.h"

#include "comm/function.h"

#include <stdlib.h>
#include <string.h>

/* A replicated tensor is written in ranges of at least this, by one rank each. */
#define RANGE_BYTES ((int64_t)1 << 20)

typedef struct saving {
    shard_group *world; /* the ranks that save; NULL: this rank alone */
    const shard_tensors *tensors;
    const char *path;
    int64_t count;
    shard_entry *entries; /* [count] */
    shard_run_sum *sums;  /* [count] of what this rank has written */
    shard_range **ranges; /* [count] of split tensors, and of flat ranges of them; NULL for others */
    shard_range **flat_ranges; /* [count] of flat ranges; NULL for others */
    bool *written;             /* [count] of flat ranges: whether this rank writes its range */
    int64_t data_bytes;
    int64_t data_start; /* in the file */
    char *target;       /* path, or the file that it links to */
    char *temporary;    /* in the same directory */
    mode_t mode;        /* its final permissions; SHARD_NEW_FILE_NO_MODE: as the process's mask allows */
    shard_file file;
    int lock;     /* of the file, which the first rank keeps until the file has its name; -1: none */
    int64_t next; /* the rank that writes the next range of a replicated tensor */
} saving;

/* ---- checks ---- */

/* A rank that saves alone needs whole tensors. */
static shard_status check_local(const saving *s)
{
    if (!s->tensors)
        return shard_null_argument("shard_save", "tensors");
    for (int64_t i = 0; i < shard_tensors_count(s->tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        const char *name = shard_tensors_name(s->tensors, i);
        SHARD_TRY(shard_check_not_partial("shard_save", name, tensor));
        if (tensor->placement.kind == SHARD_SPLIT || shard_flat_range_of(tensor))
            return shard_error(
                SHARD_ERROR_SHAPE, "shard_save: %s is %s, and .local saves whole tensors: call shard_collect_state_dict first",
                shard_quoted(name),
                shard_flat_range_of(tensor) ? "partitioned by shard_zero_optimizer" : shard_placement_text(&tensor->placement));
    }
    return shard_last_status();
}

/* Collective over the ranks that save. */
static shard_status agree(const saving *s)
{
    if (!s->path)
        shard_null_argument("shard_save", "path");
    if (!s->world)
        return check_local(s);
    char *path = s->path ? shard_format("\"%s\"", s->path) : NULL;
    shard_status status = shard_tensors_agree("shard_save", s->tensors, path ? path : "");
    free(path);
    return status;
}

static shard_status plan(saving *s)
{
    int64_t count = shard_tensors_count(s->tensors);
    s->entries = shard_calloc((size_t)count, sizeof *s->entries);
    s->sums = shard_calloc((size_t)count, sizeof *s->sums);
    s->ranges = shard_calloc((size_t)count, sizeof *s->ranges);
    s->flat_ranges = shard_calloc((size_t)count, sizeof *s->flat_ranges);
    s->written = shard_calloc((size_t)count, sizeof *s->written);
    s->target = shard_file_follow(s->path);
    if (!s->entries || !s->sums || !s->ranges || !s->flat_ranges || !s->written || !s->target)
        return shard_last_status();
    s->count = count;
    for (int64_t i = 0; i < count; i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        s->entries[i] = (shard_entry){
            .name = shard_tensors_name(s->tensors, i), .dtype = tensor->dtype, .shape = shard_tensor_whole_shape(tensor)};
    }
    return shard_safetensors_lay_out(s->entries, count, &s->data_bytes);
}

/* Whether this rank's group writes the tensor's local shards: of several groups that have them, rank 0's. */
static bool is_first(const shard_placement *placement)
{
    return placement->kind != SHARD_SPLIT || shard_group_world_rank(placement->group, 0) == 0;
}

/* The flat ranges of a local shard are written by the replica group whose first rank would write the local shard. */
static bool agree_on_flat_ranges(const shard_tensor *tensor)
{
    shard_group *group = shard_flat_range_of(tensor)->group;
    bool first = is_first(&shard_flat_range_of(tensor)->placement);
    if (shard_flat_range_of(tensor)->placement.kind != SHARD_SPLIT)
        first = shard_group_world_rank(group, 0) == 0;
    return shard_group_broadcast(group, NULL, &first, sizeof first, SHARD_UINT8, 0) == SHARD_OK && first;
}

/* Each group compares the ranges of its tensors. After it returns the error is known to all ranks of the world. */
static shard_status agree_on_ranges(saving *s)
{
    for (int64_t i = 0; i < shard_tensors_count(s->tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        const char *name = shard_tensors_name(s->tensors, i);
        shard_range *flat_ranges = shard_flat_range_of(tensor) ? shard_flat_ranges(name, tensor) : NULL;
        bool written = shard_flat_range_of(tensor) && agree_on_flat_ranges(tensor);
        shard_range *ranges = shard_local_placement(tensor)->kind == SHARD_SPLIT ? shard_local_ranges(name, tensor) : NULL;
        if (i < s->count) {
            s->flat_ranges[i] = flat_ranges;
            s->written[i] = written;
            s->ranges[i] = ranges;
        } else {
            free(flat_ranges);
            free(ranges);
        }
    }
    return shard_agree(s->world);
}

/* ---- the temporary file ---- */

/* Sent by rank 0 after it has created the file. */
typedef struct creation {
    int64_t data_start;
    bool taken; /* another job has a file of that name; none was created */
} creation;

static shard_status name_temporary(saving *s, uint64_t token)
{
    free(s->temporary);
    s->temporary = shard_new_file_name(s->target, token);
    return s->temporary ? SHARD_OK : shard_last_status();
}

static shard_status create(saving *s, const shard_metadata *metadata, creation *made)
{
    int64_t header_bytes = 0, bytes;
    char *header = shard_checksums_format(s->entries, s->count, metadata, &header_bytes);
    free(header);
    shard_status status = header ? shard_file_check_target(s->target, &s->mode) : shard_last_status();
    if (status == SHARD_OK && __builtin_add_overflow(header_bytes, s->data_bytes, &bytes))
        status = shard_error(SHARD_ERROR_MEMORY, "shard_save: the tensors' sizes overflow");
    if (status == SHARD_OK)
        shard_file_remove_leftovers(s->target);
    if (status == SHARD_OK) /* readable by no more users than the file that it replaces; writable for the ranks */
        status =
            shard_file_create(&s->file, s->temporary, s->mode == SHARD_NEW_FILE_NO_MODE ? 0666 : s->mode | 0600, &made->taken);
    if (status == SHARD_OK && !made->taken)
        s->lock = shard_file_keep_lock(&s->file);
    if (status == SHARD_OK && !made->taken)
        status = shard_file_allocate(&s->file, bytes);
    if (made->taken) { /* it belongs to another job */
        free(s->temporary);
        s->temporary = NULL;
    }
    made->data_start = header_bytes;
    return status;
}

/* Rank 0 creates the file, the others open it. All know its name before it exists, so that any of them can remove
 * it. An error of rank 0 ends the loop through the broadcast that follows, with one rank too. Collective over the
 * world. */
static shard_status open_together(saving *s, const shard_metadata *metadata)
{
    bool first = shard_group_rank(s->world) == 0;
    creation made = {.taken = true};
    for (uint64_t attempt = 0; made.taken; attempt++) {
        uint64_t token = first ? shard_new_file_token() + attempt : 0;
        SHARD_TRY(shard_group_broadcast(s->world, NULL, &token, sizeof token, SHARD_UINT8, 0));
        if (name_temporary(s, token) == SHARD_OK && first)
            create(s, metadata, &made);
        SHARD_TRY(shard_group_broadcast(s->world, NULL, &made, sizeof made, SHARD_UINT8, 0));
    }
    s->data_start = made.data_start;
    if (!first)
        shard_file_join(&s->file, s->temporary);
    return shard_agree(s->world);
}

/* ---- writing ---- */

/* Writes bytes of the tensor's data from `begin` on. */
static shard_status write_data(saving *s, int64_t index, const void *values, int64_t bytes, int64_t begin)
{
    uint64_t crc = 0;
    SHARD_TRY(shard_file_write(&s->file, values, bytes, s->data_start + s->entries[index].begin + begin, &crc));
    shard_run_sum_add(&s->sums[index], begin, bytes, crc);
    return SHARD_OK;
}

/* Writes count elements of the tensor's memory, from `element` on, to element `to` of the whole. */
static shard_status write_run(saving *s, int64_t index, int64_t element, int64_t count, int64_t to)
{
    shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    int64_t size = (int64_t)shard_dtype_size(tensor->dtype);
    bool host = shard_is_host_memory(tensor);
    int64_t most = host ? count : SHARD_BLOCK_BYTES / size;
    void *block = host ? NULL : shard_block_allocate();
    for (int64_t at = 0; at < count && shard_last_status() == SHARD_OK; at += most) {
        int64_t number = count - at < most ? count - at : most;
        const void *values = shard_values_read(tensor, element + at, number, block);
        if (values)
            write_data(s, index, values, number * size, (to + at) * size);
    }
    shard_block_free(block);
    return shard_last_status();
}

/* Rank 0 writes small tensors, so that tensors that belong together (a batch norm's statistics) come from one rank
 * even if ranks differ; the ranks write ranges of large ones in turn. */
static shard_status write_replicated(saving *s, int64_t index)
{
    int64_t numel = shard_numel(shard_tensors_at(s->tensors, index));
    int64_t ranges = (s->entries[index].end - s->entries[index].begin) / RANGE_BYTES;
    int size = shard_group_size(s->world), rank = shard_group_rank(s->world);
    if (ranges <= 1)
        return rank == 0 ? write_run(s, index, 0, numel, 0) : SHARD_OK;
    ranges = ranges < size ? ranges : size;
    for (int64_t i = 0; i < ranges; i++) {
        shard_range range = shard_split_range(numel, (int)ranges, (int)i);
        if ((s->next + i) % size == rank)
            SHARD_TRY(write_run(s, index, range.start, range.size, range.start));
    }
    s->next += ranges;
    return SHARD_OK;
}

/* Writes whole rows that a group has gathered. */
typedef struct row_writer {
    saving *s;
    int64_t index;
    char *lines;
} row_writer;

/* The rows of a block that this rank writes: for a flat range, all ranks of both groups write some. */
static shard_range rows_of(const saving *s, int64_t index, int64_t rows)
{
    const shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    shard_group *group = shard_local_placement(tensor)->group;
    int writers = shard_group_size(group), rank = shard_group_rank(group);
    if (!shard_flat_range_of(tensor))
        return shard_split_range(rows, writers, rank);
    rank += shard_group_rank(shard_flat_range_of(tensor)->group) * writers;
    writers *= shard_group_size(shard_flat_range_of(tensor)->group);
    return s->written[index] ? shard_split_range(rows, writers, rank) : (shard_range){0, 0};
}

static shard_status write_rows(void *context, const shard_block *block)
{
    row_writer *writer = context;
    const shard_tensor *tensor = shard_tensors_at(writer->s->tensors, writer->index);
    size_t size = shard_dtype_size(tensor->dtype), pitch = (size_t)block->pitch * size;
    shard_range mine = rows_of(writer->s, writer->index, block->rows);
    const char *from = block->data;
    for (int member = 0; member < block->members; member++) {
        size_t width = (size_t)block->count[member] * size;
        SHARD_TRY(shard_cpu()->ops->copy_rows(shard_cpu(), writer->lines + (size_t)block->first[member] * size, pitch,
                                              from + (size_t)mine.start * width, width, width, (size_t)mine.size));
        from += (size_t)block->rows * width;
    }
    return write_data(writer->s, writer->index, writer->lines, mine.size * (int64_t)pitch,
                      (block->row + mine.start) * (int64_t)pitch);
}

/* Whether local shards have columns so narrow that groups gather whole rows. All ranks must decide the same,
 * whatever the size of their shards. */
static bool is_narrow(const saving *s, int64_t index)
{
    const shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    const shard_placement *placement = shard_local_placement(tensor);
    if (placement->kind != SHARD_SPLIT)
        return false;
    int64_t rows = shard_shape_product(shard_local_shape(tensor), 0, placement->dim);
    int64_t pitch = (s->entries[index].end - s->entries[index].begin) / (rows > 0 ? rows : 1);
    return rows > 1 && pitch < SHARD_WIDE_BYTES * shard_group_size(placement->group) && pitch <= SHARD_BLOCK_BYTES;
}

static shard_status write_narrow(saving *s, int64_t index)
{
    row_writer writer = {.s = s, .index = index, .lines = shard_block_allocate()};
    shard_gather_blocks(shard_tensors_at(s->tensors, index), s->ranges[index], s->flat_ranges[index], write_rows, &writer);
    shard_block_free(writer.lines);
    return shard_last_status();
}

static shard_status write_extent(saving *s, int64_t index, const shard_extent *extent)
{
    for (int64_t row = 0; row < extent->rows && shard_last_status() == SHARD_OK; row++)
        write_run(s, index, extent->element + row * extent->width, extent->width, extent->start + row * extent->pitch);
    return shard_last_status();
}

static shard_status write_split(saving *s, int64_t index)
{
    shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    if (!is_first(&tensor->placement))
        return SHARD_OK;
    if (is_narrow(s, index))
        return write_narrow(s, index);
    shard_extent extents[SHARD_EXTENTS];
    shard_extents_of(tensor, extents);
    return write_extent(s, index, extents);
}

static shard_status write_flat_range(saving *s, int64_t index)
{
    if (is_narrow(s, index))
        return write_narrow(s, index);
    shard_extent extents[SHARD_EXTENTS];
    int count = shard_extents_of(shard_tensors_at(s->tensors, index), extents);
    for (int i = 0; i < count && s->written[index] && shard_last_status() == SHARD_OK; i++)
        write_extent(s, index, &extents[i]);
    return shard_last_status();
}

/* The first rank writes the header with the checksums of what all ranks have written. Collective over the ranks that
 * save. */
static shard_status write_header(saving *s, const shard_metadata *metadata)
{
    uint64_t *parts = shard_calloc((size_t)s->count, sizeof *parts);
    for (int64_t i = 0; i < s->count && parts; i++)
        parts[i] = shard_run_sum_part(&s->sums[i], s->entries[i].end - s->entries[i].begin);
    shard_status status = shard_checksums_combine(s->world, parts, s->count);
    for (int64_t i = 0; i < s->count && status == SHARD_OK; i++)
        s->entries[i].checksum = parts[i];
    free(parts);
    if (status != SHARD_OK || shard_group_rank(s->world) != 0)
        return status;
    int64_t bytes = 0;
    char *header = shard_checksums_format(s->entries, s->count, metadata, &bytes);
    status = header ? shard_file_write(&s->file, header, bytes, 0, NULL) : shard_last_status();
    free(header);
    return status;
}

/* After it returns the error is known to all ranks of the world. */
static shard_status write_all(saving *s, const shard_metadata *metadata)
{
    for (int64_t i = 0; i < s->count; i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        if (shard_flat_range_of(tensor))
            write_flat_range(s, i);
        else if (tensor->placement.kind == SHARD_SPLIT)
            write_split(s, i);
        else
            write_replicated(s, i);
    }
    write_header(s, metadata);
    if (s->mode != SHARD_NEW_FILE_NO_MODE)
        shard_file_set_mode(&s->file, s->mode);
    if (shard_last_status() == SHARD_OK)
        shard_file_sync(&s->file);
    shard_file_close(&s->file);
    return shard_agree(s->world);
}

static shard_status replace(saving *s)
{
    if (shard_group_rank(s->world) == 0)
        shard_file_replace(s->temporary, s->target);
    return shard_agree(s->world);
}

static void forget(saving *s)
{
    shard_file_close(&s->file);
    if (s->temporary && shard_last_status() != SHARD_OK)
        shard_file_remove(s->temporary);
    shard_file_unlock(s->lock);
    for (int64_t i = 0; i < s->count; i++) {
        free(s->ranges[i]);
        free(s->flat_ranges[i]);
    }
    free(s->ranges);
    free(s->flat_ranges);
    free(s->written);
    free(s->entries);
    free(s->sums);
    free(s->target);
    free(s->temporary);
}

shard_status shard_save_with(const shard_tensors *tensors, const char *path, const shard_metadata *metadata,
                             const shard_save_options *given)
{
    SHARD_FUNCTION("shard_save");
    SHARD_READ_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS_INIT, options, given);
    shard_tensors *kept = shard_tensors_kept(tensors, false);
    saving s = {.world = options.local ? NULL : shard_world(), .tensors = kept, .path = path, .mode = SHARD_NEW_FILE_NO_MODE, .lock = -1};
    shard_file_limit limit;
    shard_file_limit_hold(&limit);
    if (agree(&s) == SHARD_OK) {
        plan(&s);
        if (agree_on_ranges(&s) == SHARD_OK && open_together(&s, metadata) == SHARD_OK && write_all(&s, metadata) == SHARD_OK)
            replace(&s);
    }
    forget(&s);
    shard_file_limit_release(&limit);
    shard_tensors_destroy(kept);
    return shard_last_status();
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
