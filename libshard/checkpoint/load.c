/*
 * Loading. Every rank reads the header and checks its tensors against it. When all ranks have the same header and
 * their tensors fit, each rank reads its local shards and flat ranges into its tensors.
 */
#include "base/crc64.h"
#include "base/math.h"
#include "base/options.h"
#include "base/printable.h"
#include "checkpoint/fit.h"
#include "checkpoint/header.h"
#include "checkpoint/ranges.h"
#include "checkpoint/verify.h"

#include "comm/function.h"
#include "comm/majority.h"

#include <stdlib.h>
#include <string.h>

typedef struct loading {
    shard_group *world; /* NULL: this rank alone */
    const shard_tensors *tensors;
    const char *path;
    shard_load_options options;
    shard_file file;
    shard_safetensors header;
    int64_t data_start;
    uint64_t hash;               /* of the header */
    const shard_entry **entries; /* by tensor; NULL: missing, which is allowed */
    void *block, *converted;     /* staging */
    shard_verification verification;
} loading;

/* ---- whether the file fits ---- */

/* The entry for a tensor, if it fits. */
static const shard_entry *match(const loading *l, const char *name, const shard_tensor *tensor, shard_fit *fit)
{
    const shard_entry *entry = shard_safetensors_find(&l->header, name);
    if (!entry) {
        if (!l->options.allow_missing && !shard_tensor_is_idle(tensor))
            shard_complain(&fit->missing, "%s", shard_quoted(name));
        return NULL;
    }
    if (entry->refusal)
        shard_complain(&fit->refused, "%s %s", shard_quoted(name), entry->refusal);
    else
        shard_fit_compare(fit, name, tensor, &entry->shape, entry->dtype, l->options.convert);
    return entry;
}

static void find_unexpected(const loading *l, shard_fit *fit)
{
    const char *prefix = l->options.prefix ? l->options.prefix : "";
    size_t length = strlen(prefix);
    for (int64_t i = 0; i < l->header.count && !l->options.allow_unexpected; i++) {
        const char *name = l->header.entries[i].name;
        if (strncmp(name, prefix, length) == 0 && !shard_tensors_find(l->tensors, name + length))
            shard_complain(&fit->unexpected, "%s", shard_quoted(name));
    }
}

/* A tensor with two names, as a tied weight, has one value: that of the last name would stay. */
static shard_status check_shared(const loading *l)
{
    for (int64_t i = 0; i < shard_tensors_count(l->tensors) && l->header.checksums; i++) {
        const char *own = shard_tensors_name(l->tensors, i), *first = own;
        const shard_entry *here = l->entries[i], *there = NULL;
        for (int64_t j = 0; j < i && here && !there; j++)
            if (shard_tensors_at(l->tensors, j) == shard_tensors_at(l->tensors, i)) {
                there = l->entries[j];
                first = shard_tensors_name(l->tensors, j);
            }
        if (there && there->dtype == here->dtype && there->checksum != here->checksum)
            return shard_error(SHARD_ERROR_SHAPE, "%s: \"%s\" and \"%s\" are one tensor here, and differ in the file", l->path,
                               first, own);
    }
    return SHARD_OK;
}

static shard_status match_all(loading *l)
{
    int64_t count = shard_tensors_count(l->tensors);
    shard_fit fit = {0};
    l->entries = shard_calloc((size_t)count, sizeof *l->entries);
    if (!l->entries)
        return shard_last_status();
    for (int64_t i = 0; i < count; i++) {
        const shard_tensor *tensor = shard_tensors_at(l->tensors, i);
        const char *own = shard_tensors_name(l->tensors, i);
        SHARD_TRY(shard_check_saved("shard_load", own, tensor));
        char *name = shard_format("%s%s", l->options.prefix ? l->options.prefix : "", own);
        if (!name)
            return shard_last_status();
        l->entries[i] = match(l, name, tensor, &fit);
        free(name);
    }
    find_unexpected(l, &fit);
    SHARD_TRY(shard_fit_report(&fit, l->path));
    return check_shared(l);
}

static shard_status prepare(loading *l)
{
    int64_t bytes;
    if (!l->tensors || !l->path)
        return shard_null_argument("shard_load", l->tensors ? "path" : "tensors");
    SHARD_TRY(shard_file_open(&l->file, l->path, &bytes));
    bool verify = !l->options.skip_checksums;
    SHARD_TRY(shard_header_read(&l->header, &l->file, bytes, verify, &l->data_start, &l->hash));
    SHARD_TRY(shard_verification_start(&l->verification, &l->header));
    return match_all(l);
}

/* Compared by the ranks before they read data. */
typedef struct comparison {
    uint64_t hash, skips;
} comparison;

static shard_status compare(const loading *l, const comparison *all)
{
    shard_majority found;
    if (shard_find_majority(l->world, &all->hash, sizeof all->hash, sizeof *all, &found))
        return shard_error(SHARD_ERROR_MISMATCH, "shard_load: %s is another file on %s than on %s", l->path, found.odd_ranks,
                           found.usual_ranks);
    if (shard_find_majority(l->world, &all->skips, sizeof all->skips, sizeof *all, &found))
        return shard_error(SHARD_ERROR_MISMATCH, "shard_load: .skip_checksums is %s on %s and %s on %s",
                           all[found.odd].skips ? "true" : "false", found.odd_ranks, all[found.usual].skips ? "true" : "false",
                           found.usual_ranks);
    return SHARD_OK;
}

/* Whether all ranks have read and checked the same file, and go on in the same way. */
static shard_status check_same_file(const loading *l)
{
    comparison mine = {l->hash, l->options.skip_checksums};
    comparison *all = shard_calloc((size_t)shard_group_size(l->world), sizeof *all);
    shard_status status = shard_group_exchange(l->world, &mine, sizeof mine, all);
    if (status == SHARD_OK) {
        shard_file_check_unchanged(&l->file); /* checked too, as two checkpoints of one model may have the same header */
        status = shard_agree(l->world);
    }
    if (status == SHARD_OK)
        status = compare(l, all);
    free(all);
    return status;
}

/* ---- reading ---- */

/* The state of one tensor's read. */
typedef struct filling {
    const shard_entry *entry;
    shard_tensor *tensor;
    char *memory;
    int64_t start;    /* of the tensor's data in the file */
    int64_t from, to; /* bytes of an element in the file and in memory */
    bool straight;    /* bytes go from the file into memory as they are */
    bool alone;       /* no other rank reads this range */
    bool verified;    /* ... and the checksum of what was read so far */
    shard_run_sum sum;
} filling;

/* Reads count elements, from element `first` of the whole, into the memory from `element` on. */
static shard_status read_run(loading *l, filling *f, int64_t first, int64_t element, int64_t count)
{
    char *memory = f->memory + element * f->to;
    uint64_t crc = 0, *summed = f->verified ? &crc : NULL;
    int64_t most = f->straight ? count : SHARD_BLOCK_BYTES / shard_max(f->from, f->to);
    for (int64_t at = 0; at < count; at += most) {
        int64_t number = shard_min(count - at, most), bytes = number * f->from, offset = f->start + (first + at) * f->from;
        void *to = f->straight ? memory : l->block;
        SHARD_TRY((f->alone ? shard_file_read_alone : shard_file_read)(&l->file, to, bytes, offset, summed));
        if (!f->straight)
            SHARD_TRY(shard_values_write(f->tensor, memory + at * f->to, l->block, f->entry->dtype, number, l->converted));
    }
    if (f->verified)
        shard_run_sum_add(&f->sum, first * f->from, count * f->from, crc);
    return SHARD_OK;
}

/* Adds the rows of an extent from `row` on, of which `block` begins with the first. */
static void sum_rows(filling *f, const shard_extent *extent, int64_t row, int64_t rows, const char *block)
{
    int64_t pitch = extent->pitch * f->from, width = extent->width * f->from;
    for (int64_t i = 0; i < rows && f->verified; i++)
        shard_run_sum_add(&f->sum, extent->start * f->from + (row + i) * pitch, width, shard_crc64(0, block + i * pitch, width));
}

/* Narrow columns: whole rows are read, and the other columns are skipped. */
static shard_status read_columns(loading *l, filling *f, const shard_extent *extent)
{
    size_t pitch = (size_t)(extent->pitch * f->from), width = (size_t)(extent->width * f->from);
    int64_t most = SHARD_BLOCK_BYTES / (extent->pitch * shard_max(f->from, f->to));
    for (int64_t row = 0; row < extent->rows; row += most) {
        int64_t rows = shard_min(extent->rows - row, most);
        char *memory = f->memory + (extent->element + row * extent->width) * f->to, *block = l->block;
        int64_t bytes = (rows - 1) * (int64_t)pitch + (int64_t)width;
        SHARD_TRY(shard_file_read(&l->file, block, bytes, f->start + (extent->start + row * extent->pitch) * f->from, NULL));
        sum_rows(f, extent, row, rows, block);
        if (f->straight) {
            SHARD_TRY(shard_cpu()->ops->copy_rows(shard_cpu(), memory, width, block, pitch, width, (size_t)rows));
            continue;
        }
        for (int64_t i = 1; i < rows; i++)
            memmove(block + (size_t)i * width, block + (size_t)i * pitch, width);
        SHARD_TRY(shard_values_write(f->tensor, memory, block, f->entry->dtype, rows * extent->width, l->converted));
    }
    return SHARD_OK;
}

static shard_status read_extent(loading *l, filling *f, const shard_extent *extent)
{
    int64_t widest = extent->pitch * shard_max(f->from, f->to);
    if (extent->rows > 1 && extent->width > 0 && extent->width * f->from < SHARD_WIDE_BYTES && widest <= SHARD_BLOCK_BYTES)
        return read_columns(l, f, extent);
    for (int64_t row = 0; row < extent->rows && extent->width > 0; row++)
        SHARD_TRY(read_run(l, f, extent->start + row * extent->pitch, extent->element + row * extent->width, extent->width));
    return SHARD_OK;
}

/* The number of ranks that read a range of their own of the tensor. */
static int64_t holders(const shard_tensor *tensor)
{
    const shard_placement *placement = shard_local_placement(tensor);
    int64_t split = placement->kind == SHARD_SPLIT ? shard_group_size(placement->group) : 1;
    return shard_flat_range_of(tensor) ? split * shard_group_size(shard_flat_range_of(tensor)->group) : split;
}

/* The tensor's recipe is no longer needed. */
static shard_status fill(loading *l, const shard_entry *entry, shard_tensor *tensor)
{
    SHARD_TRY(shard_blocks_allocate(entry->dtype != tensor->dtype, &l->block, &l->converted));
    filling f = {.entry = entry,
                 .tensor = tensor,
                 .memory = shard_tensor_memory_to_replace(tensor),
                 .start = l->data_start + entry->begin,
                 .from = (int64_t)shard_dtype_size(entry->dtype),
                 .to = (int64_t)shard_dtype_size(tensor->dtype),
                 .straight = entry->dtype == tensor->dtype && shard_is_host_memory(tensor),
                 .verified = l->header.checksums};
    f.alone = holders(tensor) == shard_group_size(shard_world()); /* with .local the other ranks may load the same file, too */
    if (!f.memory)
        return shard_last_status();
    shard_extent extents[SHARD_EXTENTS];
    int count = shard_extents_of(tensor, extents);
    for (int i = 0; i < count; i++)
        SHARD_TRY(read_extent(l, &f, &extents[i]));
    if (f.verified)
        shard_verification_add(&l->verification, entry, tensor, &f.sum);
    return SHARD_OK;
}

/* After it returns the error is known to all ranks that load. */
static shard_status fill_all(loading *l)
{
    for (int64_t i = 0; i < shard_tensors_count(l->tensors) && shard_last_status() == SHARD_OK; i++)
        if (l->entries[i])
            fill(l, l->entries[i], shard_tensors_at(l->tensors, i));
    if (shard_last_status() == SHARD_OK)
        shard_file_check_unwritten(&l->file);
    shard_status status = SHARD_OK;
    if (l->header.checksums)
        status = shard_verification_finish(&l->verification, l->world, &l->file, l->data_start);
    shard_file_close(&l->file);
    return status == SHARD_OK ? shard_agree(l->world) : status;
}

shard_status shard_load_with(const shard_tensors *tensors, const char *path, const shard_load_options *given,
                             shard_metadata **metadata)
{
    SHARD_FUNCTION("shard_load");
    SHARD_READ_OPTIONS(shard_load_options, SHARD_LOAD_OPTIONS_INIT, options, given);
    shard_tensors *kept = shard_tensors_kept(tensors, true);
    loading l = {.world = options.local ? NULL : shard_world(), .tensors = kept, .path = path, .options = options};
    shard_metadata *found = NULL;
    if (metadata)
        *metadata = NULL;
    prepare(&l);
    if (check_same_file(&l) == SHARD_OK) {
        if (metadata)
            found = shard_metadata_take(&l.header.metadata);
        fill_all(&l);
        shard_tensors_forget_gathered(tensors);
    }
    shard_file_close(&l.file);
    shard_block_free(l.block);
    shard_block_free(l.converted);
    shard_verification_end(&l.verification);
    shard_safetensors_free(&l.header);
    free(l.entries);
    shard_tensors_destroy(kept);
    if (shard_last_status() != SHARD_OK) {
        shard_metadata_destroy(found);
        return shard_last_status();
    }
    if (metadata)
        *metadata = found;
    return SHARD_OK;
}

shard_status shard_load_module(shard_module *module, const char *path)
{
    SHARD_FUNCTION("shard_load_module");
    shard_tensors *tensors = module ? shard_state_dict(module) : NULL;
    if (!module)
        shard_null_argument("shard_load_module", "module");
    shard_load(tensors, path);
    shard_tensors_destroy(tensors);
    return shard_last_status();
}
