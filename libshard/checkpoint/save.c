/*
 * Saving. Every rank computes the same header from its list, so that each knows where
 * its part goes; a hash shows that the lists agree. Then each writes its own part:
 * what lies in one piece straight from its memory, narrow columns after a group has
 * brought them together into whole rows.
 *
 * No rank returns early: an error of one rank reaches the others at the next collective, and only
 * what all ranks of a group know ends their work together.
 */
#include "base/file_limit.h"
#include "base/options.h"
#include "checkpoint/file.h"
#include "checkpoint/metadata.h"
#include "checkpoint/part.h"
#include "checkpoint/safetensors.h"

#include "comm/function.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* A replicated tensor is written in pieces of at least this, by one rank each. */
#define SHARE ((int64_t)1 << 20)

#define NO_MODE ((mode_t)-1)

typedef struct saving {
    shard_group *world; /* those that save; NULL: this rank alone */
    const shard_tensors *tensors;
    const char *path;
    int64_t count;
    shard_entry *entries; /* [count] */
    shard_range **ranges; /* [count] of split tensors and slices of them, NULL for others */
    shard_range **slices; /* [count] of slices, likewise */
    bool *written;        /* [count] of slices: whether this one's is */
    int64_t data_bytes;
    int64_t data_start; /* in the file */
    char *target;       /* path, or what it links to */
    char *temporary;    /* beside it */
    mode_t mode;        /* its permissions in the end; NO_MODE: what the process's mask leaves */
    shard_file file;
    int64_t next; /* whose turn it is to write a piece of a replicated tensor */
} saving;

/* ---- what is to be saved ---- */

/* What this rank alone saves is whole on it. */
static shard_status check_local(const saving *s)
{
    if (!s->tensors)
        return shard_null_argument("shard_save", "tensors");
    for (int64_t i = 0; i < shard_tensors_count(s->tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        const char *name = shard_tensors_name(s->tensors, i);
        SHARD_TRY(shard_part_check("shard_save", name, tensor));
        if (tensor->placement.kind == SHARD_SPLIT || tensor->slice)
            return shard_error(SHARD_ERROR_SHAPE,
                               "shard_save: %s is %s, and .local saves whole tensors: call shard_collect_state_dict first",
                               shard_quoted(name),
                               tensor->slice ? "partitioned by shard_zero_optimizer" : shard_placement_text(&tensor->placement));
    }
    return shard_last_status();
}

/* Collective over those that save. */
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
    s->ranges = shard_calloc((size_t)count, sizeof *s->ranges);
    s->slices = shard_calloc((size_t)count, sizeof *s->slices);
    s->written = shard_calloc((size_t)count, sizeof *s->written);
    s->target = shard_file_follow(s->path);
    if (!s->entries || !s->ranges || !s->slices || !s->written || !s->target)
        return shard_last_status();
    s->count = count;
    for (int64_t i = 0; i < count; i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        s->entries[i] = (shard_entry){
            .name = shard_tensors_name(s->tensors, i), .dtype = tensor->dtype, .shape = shard_tensor_whole_shape(tensor)};
    }
    return shard_safetensors_lay_out(s->entries, count, &s->data_bytes);
}

/* Whether rank 0's group holds the tensor's split parts: of several that do, it writes. */
static bool is_first(const shard_placement *placement)
{
    return placement->kind != SHARD_SPLIT || shard_group_world_rank(placement->group, 0) == 0;
}

/* The slices of a part are written where the part itself would be by their first holder. */
static bool agree_on_slices(const shard_tensor *tensor)
{
    shard_group *group = tensor->slice->group;
    bool mine = is_first(&tensor->slice->placement), all[shard_group_size(group)];
    if (tensor->slice->placement.kind != SHARD_SPLIT)
        mine = shard_group_world_rank(group, 0) == 0;
    return shard_group_exchange(group, &mine, sizeof mine, all) == SHARD_OK && all[0];
}

/* Each group compares the parts of its tensors. Joint over the world when it returns. */
static shard_status agree_on_parts(saving *s)
{
    for (int64_t i = 0; i < shard_tensors_count(s->tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        const char *name = shard_tensors_name(s->tensors, i);
        shard_range *slices = tensor->slice ? shard_slice_ranges(name, tensor) : NULL;
        bool written = tensor->slice && agree_on_slices(tensor);
        shard_range *ranges = shard_part_placement(tensor)->kind == SHARD_SPLIT ? shard_part_ranges(name, tensor) : NULL;
        if (i < s->count) {
            s->slices[i] = slices;
            s->written[i] = written;
            s->ranges[i] = ranges;
        } else {
            free(slices);
            free(ranges);
        }
    }
    return shard_agree(s->world);
}

/* ---- the temporary file ---- */

/* Sent by rank 0 after it has made the file. */
typedef struct creation {
    int64_t data_start;
    bool taken; /* another job has a file of that name: there is none yet */
} creation;

static shard_status name_temporary(saving *s, uint64_t token)
{
    free(s->temporary);
    s->temporary = shard_format("%s.tmp.%016" PRIx64, s->target, token);
    return s->temporary ? SHARD_OK : shard_last_status();
}

/* 64 random bits: a rank that does not know whether rank 0 has made the file may remove it, which must not be
 * another job's. */
static uint64_t draw_token(void)
{
    uint64_t token;
    struct timespec now;
    if (getrandom(&token, sizeof token, GRND_NONBLOCK) == sizeof token)
        return token;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)getpid() << 8;
}

static shard_status create(saving *s, const shard_metadata *metadata, creation *made)
{
    int64_t header_bytes = 0, bytes;
    char *header = shard_safetensors_format(s->entries, s->count, shard_metadata_json(metadata), &header_bytes);
    shard_status status = header ? shard_file_check_target(s->target, &s->mode) : shard_last_status();
    if (status == SHARD_OK && __builtin_add_overflow(header_bytes, s->data_bytes, &bytes))
        status = shard_error(SHARD_ERROR_MEMORY, "shard_save: the tensors' sizes overflow");
    if (status == SHARD_OK) /* no more than the file that it replaces lets others read; writable for the ranks */
        status = shard_file_create(&s->file, s->temporary, s->mode == NO_MODE ? 0666 : s->mode | 0600, &made->taken);
    if (status == SHARD_OK && !made->taken)
        status = shard_file_allocate(&s->file, bytes);
    if (status == SHARD_OK && !made->taken)
        status = shard_file_write(&s->file, header, header_bytes, 0);
    if (made->taken) { /* it is another job's */
        free(s->temporary);
        s->temporary = NULL;
    }
    made->data_start = header_bytes;
    free(header);
    return status;
}

/* Rank 0 makes the file, the others open it. All know its name before it is there, so that any of
 * them can remove it. An error of rank 0 is one of the broadcast that follows, with one rank too, and
 * ends the loop. Collective over the world. */
static shard_status open_together(saving *s, const shard_metadata *metadata)
{
    bool first = shard_group_rank(s->world) == 0;
    creation made = {.taken = true};
    for (uint64_t attempt = 0; made.taken; attempt++) {
        uint64_t token = first ? draw_token() + attempt : 0;
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

/* count elements of the tensor's memory, from `element` on, to where element `to` of
 * the whole goes. */
static shard_status write_run(saving *s, int64_t index, int64_t element, int64_t count, int64_t to)
{
    shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    int64_t size = (int64_t)shard_dtype_size(tensor->dtype), start = s->data_start + s->entries[index].begin;
    bool host = shard_part_is_host(tensor);
    int64_t most = host ? count : SHARD_BLOCK_BYTES / size;
    void *block = host ? NULL : shard_block_take();
    for (int64_t at = 0; at < count && shard_last_status() == SHARD_OK; at += most) {
        int64_t piece = count - at < most ? count - at : most;
        const void *values = shard_part_read(tensor, element + at, piece, block);
        if (values)
            shard_file_write(&s->file, values, piece * size, start + (to + at) * size);
    }
    shard_block_give_back(block);
    return shard_last_status();
}

/* Small ones by rank 0, so that what belongs together (a batch norm's statistics) comes
 * from one rank even where ranks differ; large ones in pieces, each rank in its turn. */
static shard_status write_replicated(saving *s, int64_t index)
{
    int64_t numel = shard_numel(shard_tensors_at(s->tensors, index));
    int64_t pieces = (s->entries[index].end - s->entries[index].begin) / SHARE;
    int size = shard_group_size(s->world), rank = shard_group_rank(s->world);
    if (pieces <= 1)
        return rank == 0 ? write_run(s, index, 0, numel, 0) : SHARD_OK;
    pieces = pieces < size ? pieces : size;
    for (int64_t piece = 0; piece < pieces; piece++) {
        shard_range range = shard_split_range(numel, (int)pieces, (int)piece);
        if ((s->next + piece) % size == rank)
            SHARD_TRY(write_run(s, index, range.start, range.size, range.start));
    }
    s->next += pieces;
    return SHARD_OK;
}

/* Whole rows that a group brings together. */
typedef struct row_writer {
    saving *s;
    int64_t index;
    char *lines;
} row_writer;

/* This rank's share of a block's rows: of a slice's all ranks have them that have any part. */
static shard_range rows_of(const saving *s, int64_t index, int64_t rows)
{
    const shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    shard_group *group = shard_part_placement(tensor)->group;
    int writers = shard_group_size(group), rank = shard_group_rank(group);
    if (!tensor->slice)
        return shard_split_range(rows, writers, rank);
    rank += shard_group_rank(tensor->slice->group) * writers;
    writers *= shard_group_size(tensor->slice->group);
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
    return shard_file_write(&writer->s->file, writer->lines, mine.size * (int64_t)pitch,
                            writer->s->data_start + writer->s->entries[writer->index].begin +
                                (block->row + mine.start) * (int64_t)pitch);
}

/* Whether a part is of columns so narrow that groups bring whole rows together. All members
 * must decide alike, whatever the size of their parts. */
static bool is_narrow(const saving *s, int64_t index)
{
    const shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    const shard_placement *placement = shard_part_placement(tensor);
    if (placement->kind != SHARD_SPLIT)
        return false;
    int64_t rows = shard_shape_product(shard_part_shape(tensor), 0, placement->dim);
    int64_t pitch = (s->entries[index].end - s->entries[index].begin) / (rows > 0 ? rows : 1);
    return rows > 1 && pitch < SHARD_WIDE_BYTES * shard_group_size(placement->group) && pitch <= SHARD_BLOCK_BYTES;
}

static shard_status write_narrow(saving *s, int64_t index)
{
    row_writer writer = {.s = s, .index = index, .lines = shard_block_take()};
    shard_part_gather(shard_tensors_at(s->tensors, index), s->ranges[index], s->slices[index], write_rows, &writer);
    shard_block_give_back(writer.lines);
    return shard_last_status();
}

static shard_status write_part(saving *s, int64_t index, const shard_part *part)
{
    for (int64_t row = 0; row < part->rows && shard_last_status() == SHARD_OK; row++)
        write_run(s, index, part->element + row * part->width, part->width, part->start + row * part->pitch);
    return shard_last_status();
}

static shard_status write_split(saving *s, int64_t index)
{
    shard_tensor *tensor = shard_tensors_at(s->tensors, index);
    if (!is_first(&tensor->placement))
        return SHARD_OK;
    if (is_narrow(s, index))
        return write_narrow(s, index);
    shard_part parts[SHARD_PARTS];
    shard_parts_of(tensor, parts);
    return write_part(s, index, parts);
}

static shard_status write_slice(saving *s, int64_t index)
{
    if (is_narrow(s, index))
        return write_narrow(s, index);
    shard_part parts[SHARD_PARTS];
    int count = shard_parts_of(shard_tensors_at(s->tensors, index), parts);
    for (int i = 0; i < count && s->written[index] && shard_last_status() == SHARD_OK; i++)
        write_part(s, index, &parts[i]);
    return shard_last_status();
}

/* Joint over the world when it returns. */
static shard_status write_all(saving *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        const shard_tensor *tensor = shard_tensors_at(s->tensors, i);
        if (tensor->slice)
            write_slice(s, i);
        else if (tensor->placement.kind == SHARD_SPLIT)
            write_split(s, i);
        else
            write_replicated(s, i);
    }
    if (s->mode != NO_MODE)
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
    for (int64_t i = 0; i < s->count; i++) {
        free(s->ranges[i]);
        free(s->slices[i]);
    }
    free(s->ranges);
    free(s->slices);
    free(s->written);
    free(s->entries);
    free(s->target);
    free(s->temporary);
}

shard_status shard_save_with(const shard_tensors *tensors, const char *path, const shard_metadata *metadata,
                             const shard_save_options *given)
{
    SHARD_FUNCTION("shard_save");
    SHARD_READ_OPTIONS(shard_save_options, SHARD_SAVE_OPTIONS_INIT, options, given);
    shard_tensors *kept = shard_tensors_kept(tensors, false);
    saving s = {.world = options.local ? NULL : shard_world(), .tensors = kept, .path = path, .mode = NO_MODE};
    shard_file_limit limit;
    shard_file_limit_hold(&limit);
    if (agree(&s) == SHARD_OK) {
        plan(&s);
        if (agree_on_parts(&s) == SHARD_OK && open_together(&s, metadata) == SHARD_OK && write_all(&s) == SHARD_OK)
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
    shard_tensors *tensors = shard_state_dict(module);
    shard_save(tensors, path, NULL);
    shard_tensors_destroy(tensors);
    return shard_last_status();
}
