#include "output.h"

#include "base/math.h"
#include "base/memory.h"
#include "base/printable.h"
#include "device/device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

shard_status output_add(output *out, source *from, const shard_entry *entry, const char *name)
{
    SHARD_TRY(shard_entry_check_copy(entry, from->path));
    SHARD_TRY(shard_grow(&out->entries, &out->capacity, out->count + 1, sizeof *out->entries));
    SHARD_TRY(shard_grow(&out->origins, &out->origins_capacity, out->count + 1, sizeof *out->origins));
    char *copy = shard_strdup(name);
    if (!copy)
        return shard_last_status();
    out->entries[out->count] = (shard_entry){.name = copy, .type = entry->type, .dtype = entry->dtype, .shape = entry->shape};
    out->origins[out->count++] = (struct origin){.from = from, .entry = entry};
    return SHARD_OK;
}

static int compare_names(const void *left, const void *right, void *entries)
{
    const shard_entry *a = (shard_entry *)entries + *(const int64_t *)left, *b = (shard_entry *)entries + *(const int64_t *)right;
    return strcmp(a->name, b->name);
}

shard_status output_check_names(const output *out)
{
    int64_t *order = shard_calloc((size_t)out->count, sizeof *order);
    shard_status status = order ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < out->count && order; i++)
        order[i] = i;
    if (order)
        qsort_r(order, (size_t)out->count, sizeof *order, compare_names, out->entries);
    for (int64_t i = 1; i < out->count && status == SHARD_OK; i++) {
        const struct origin *a = &out->origins[order[i - 1]], *b = &out->origins[order[i]];
        if (compare_names(&order[i - 1], &order[i], out->entries) == 0)
            status = shard_error(SHARD_ERROR_ARGUMENT, "two tensors would have the name %s: %s of %s and %s of %s",
                                 shard_quoted(out->entries[order[i]].name), shard_quoted(a->entry->name), a->from->path,
                                 shard_quoted(b->entry->name), b->from->path);
    }
    free(order);
    return status;
}

shard_status output_add_metadata(output *out, const source *from)
{
    const char *name = shard_metadata_merge(&out->metadata, &from->header.metadata);
    if (!name)
        return shard_last_status();
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "%s: its metadata has %s = %s, and a file before it has %s; --drop-metadata writes neither", from->path,
                       shard_quoted(name), shard_quoted(shard_metadata_get(&from->header.metadata, name)),
                       shard_quoted(shard_metadata_get(&out->metadata, name)));
}

/* ---- writing ---- */

/* Whether the bits of a floating value are finite: not all bits of its exponent are set. */
static bool is_finite(const char *bits, shard_dtype dtype)
{
    uint16_t half;
    uint32_t single;
    uint64_t wide;
    switch (dtype) {
    case SHARD_FLOAT16:
        memcpy(&half, bits, sizeof half);
        return (half & 0x7c00) != 0x7c00;
    case SHARD_BFLOAT16:
        memcpy(&half, bits, sizeof half);
        return (half & 0x7f80) != 0x7f80;
    case SHARD_FLOAT32:
        memcpy(&single, bits, sizeof single);
        return (single & 0x7f800000) != 0x7f800000;
    default:
        memcpy(&wide, bits, sizeof wide);
        return (wide & 0x7ff0000000000000) != 0x7ff0000000000000;
    }
}

/* The number of finite values that became infinite when they were cast. */
static int64_t count_overflows(int64_t count, const char *block, shard_dtype from, const char *converted, shard_dtype to)
{
    size_t from_size = shard_dtype_size(from), to_size = shard_dtype_size(to);
    int64_t overflows = 0;
    for (int64_t i = 0; i < count; i++, block += from_size, converted += to_size)
        overflows += !is_finite(converted, to) && is_finite(block, from);
    return overflows;
}

static shard_status check_overflows(const output *out, int64_t index, int64_t overflows)
{
    const struct origin *origin = &out->origins[index];
    if (overflows == 0 || out->allow_overflow)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "%s: %" PRId64 " finite values of %s are infinite in %s; choose another --dtype, or write infinities with "
                       "--allow-overflow",
                       origin->from->path, overflows, shard_quoted(origin->entry->name),
                       shard_dtype_name(out->entries[index].dtype));
}

/* Elements of a block, in the larger of the two dtypes; bytes if the values are not cast. */
static shard_status copy_tensor(shard_writer *writer, const output *out, int64_t index, char *block, char *converted)
{
    const struct origin *origin = &out->origins[index];
    run_reader reader = read_entry(origin->from, origin->entry);
    shard_dtype from = origin->entry->dtype, to = out->entries[index].dtype;
    bool casts = from != to;
    int64_t from_size = casts ? (int64_t)shard_dtype_size(from) : 1, to_size = casts ? (int64_t)shard_dtype_size(to) : 1;
    int64_t most = SHARD_BLOCK_BYTES / shard_max(from_size, to_size);
    int64_t overflows = 0;
    for (int64_t at = 0, left; (left = run_left(&reader) / from_size) > 0;) {
        int64_t count = shard_min(left, most);
        SHARD_TRY(run_next(&reader, block, count * from_size));
        if (casts)
            SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), count, block, from, converted, to));
        if (casts)
            overflows += count_overflows(count, block, from, converted, to);
        SHARD_TRY(shard_writer_write(writer, index, casts ? converted : block, count * to_size, at * to_size));
        at += count;
    }
    return check_overflows(out, index, overflows);
}

/* Closes a file when the next tensor is of another one, as there may be many. */
static shard_status copy_tensors(shard_writer *writer, const output *out)
{
    char *block = shard_block_allocate(), *converted = shard_block_allocate();
    shard_status status = block && converted ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < out->count && status == SHARD_OK; i++) {
        status = copy_tensor(writer, out, i, block, converted);
        if (i + 1 == out->count || out->origins[i + 1].from != out->origins[i].from)
            source_close(out->origins[i].from);
    }
    shard_block_free(block);
    shard_block_free(converted);
    return status;
}

shard_status output_write(output *out, const char *path)
{
    shard_writer writer;
    shard_status status = shard_writer_begin(&writer, path, out->entries, out->count, &out->metadata);
    if (status == SHARD_OK)
        status = copy_tensors(&writer, out);
    if (status == SHARD_OK)
        status = shard_writer_finish(&writer);
    shard_writer_end(&writer);
    return status;
}

void output_free(output *out)
{
    for (int64_t i = 0; i < out->count; i++)
        free((char *)(uintptr_t)out->entries[i].name);
    free(out->entries);
    free(out->origins);
    shard_metadata_clear(&out->metadata);
    *out = (output){0};
}

shard_status output_check_path(const char *path, const source_list *inputs)
{
    for (int64_t i = 0; i < inputs->count; i++)
        SHARD_TRY(source_check_output(path, inputs->at[i].path));
    return SHARD_OK;
}
