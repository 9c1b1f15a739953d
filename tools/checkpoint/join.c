/* join: files of ranks that saved their local shards, into one file of whole tensors. */
#include "base/printable.h"
#include "commands.h"
#include "index.h"
#include "output.h"
#include "text.h"

#include "base/math.h"
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct joining {
    source_list sources; /* by rank */
    int64_t open_most;   /* files that stay open while tensors are read */
    output out;
    int *dims; /* [count of out]: the dimension of concatenation; -1: taken once */
    int64_t dims_capacity;
    char *blocks[2];
    run_reader *readers; /* [ranks] */
} joining;

static const shard_entry *entry_of(const joining *j, int64_t rank, const char *name)
{
    return shard_safetensors_find(&j->sources.at[rank].header, name);
}

/* ---- which tensors are concatenated ---- */

static shard_status check_names(const joining *j)
{
    const source *first = &j->sources.at[0];
    for (int64_t rank = 1; rank < j->sources.count; rank++) {
        const source *other = &j->sources.at[rank];
        for (int64_t i = 0; i < first->header.count; i++)
            if (!entry_of(j, rank, first->header.entries[i].name))
                return shard_error(SHARD_ERROR_SHAPE, "%s has no tensor %s, which %s has", other->path,
                                   shard_quoted(first->header.entries[i].name), first->path);
        for (int64_t i = 0; i < other->header.count; i++)
            if (!entry_of(j, 0, other->header.entries[i].name))
                return shard_error(SHARD_ERROR_SHAPE, "%s has no tensor %s, which %s has", first->path,
                                   shard_quoted(other->header.entries[i].name), other->path);
    }
    return SHARD_OK;
}

static bool shapes_equal(const joining *j, const shard_entry *entry)
{
    for (int64_t rank = 1; rank < j->sources.count; rank++)
        if (!shard_shape_equal(&entry_of(j, rank, entry->name)->shape, &entry->shape))
            return false;
    return true;
}

/* Of tensors of one shape. */
static shard_status compare_bits(joining *j, const shard_entry *entry, bool *same)
{
    *same = true;
    for (int64_t rank = 1; rank < j->sources.count && *same; rank++) {
        run_reader first = read_entry(&j->sources.at[0], entry);
        run_reader other = read_entry(&j->sources.at[rank], entry_of(j, rank, entry->name));
        for (int64_t bytes; *same && (bytes = shard_min(run_left(&first), SHARD_BLOCK_BYTES)) > 0;) {
            SHARD_TRY(run_next(&first, j->blocks[0], bytes));
            SHARD_TRY(run_next(&other, j->blocks[1], bytes));
            *same = memcmp(j->blocks[0], j->blocks[1], (size_t)bytes) == 0;
        }
        source_close(&j->sources.at[rank]);
    }
    return SHARD_OK;
}

/* The shape of the ranks' tensors along dim. */
static shard_status concatenate_shapes(const joining *j, const shard_entry *entry, int dim, shard_shape *whole)
{
    if (dim >= entry->shape.ndim)
        return shard_error(SHARD_ERROR_SHAPE, "%s of shape %s %s, and has no dimension %d along which to concatenate them",
                           shard_quoted(entry->name), entry_shape_text(entry),
                           dim == 0 ? "is not the same in all files" : "is to be concatenated", dim);
    *whole = entry->shape;
    for (int64_t rank = 1; rank < j->sources.count; rank++) {
        const shard_entry *other = entry_of(j, rank, entry->name);
        shard_shape fitting = other->shape;
        if (fitting.ndim == whole->ndim)
            fitting.dim[dim] = whole->dim[dim];
        if (!shard_shape_equal(&fitting, whole))
            return shard_error(SHARD_ERROR_SHAPE,
                               "%s has shape %s in %s and %s in %s: shapes may differ in dimension %d alone (--dim)",
                               shard_quoted(entry->name), entry_shape_text(entry), j->sources.at[0].path, entry_shape_text(other),
                               j->sources.at[rank].path, dim);
        if (__builtin_add_overflow(whole->dim[dim], other->shape.dim[dim], &whole->dim[dim]))
            return shard_error(SHARD_ERROR_SHAPE, "%s: the sum of its sizes overflows", shard_quoted(entry->name));
    }
    int64_t bits = 64;
    for (int i = 0; i < whole->ndim; i++)
        if (!shard_multiply(bits, shard_max(whole->dim[i], 1), &bits))
            return shard_error(SHARD_ERROR_SHAPE, "%s: its size overflows", shard_quoted(entry->name));
    return SHARD_OK;
}

/* Elements of less than a byte are not concatenated: a run of them may end within a byte. Tensors without elements do not show
 * that they are of such a dtype. */
static bool have_whole_bytes(const joining *j, const char *name)
{
    for (int64_t rank = 0; rank < j->sources.count; rank++) {
        const shard_entry *entry = entry_of(j, rank, name);
        int64_t elements = entry_elements(entry);
        if (elements > 0 && (entry->end - entry->begin) % elements != 0)
            return false;
    }
    return true;
}

static shard_status add(joining *j, settings *s, const shard_entry *entry)
{
    size_t bytes;
    bool same = false;
    for (int64_t rank = 0; rank < j->sources.count; rank++) {
        const shard_entry *other = entry_of(j, rank, entry->name);
        SHARD_TRY(shard_entry_check_copy(other, j->sources.at[rank].path));
        if (strcmp(shard_entry_type_name(other), shard_entry_type_name(entry)) != 0)
            return shard_error(SHARD_ERROR_SHAPE, "%s has dtype %s in %s and %s in %s", shard_quoted(entry->name),
                               dtype_text(entry), j->sources.at[0].path, dtype_text(other), j->sources.at[rank].path);
    }
    int64_t given = settings_find(&s->dim, entry->name, &bytes);
    if (given < 0 && shapes_equal(j, entry))
        SHARD_TRY(compare_bits(j, entry, &same));
    int dim = same ? -1 : given < 0 ? 0 : s->dim.at[given][bytes + 1] - '0';
    SHARD_TRY(output_add(&j->out, &j->sources.at[0], entry, entry->name));
    SHARD_TRY(shard_grow(&j->dims, &j->dims_capacity, j->out.count, sizeof *j->dims));
    j->dims[j->out.count - 1] = dim;
    if (!same && !have_whole_bytes(j, entry->name))
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s has dtype %s, which cannot be concatenated", shard_quoted(entry->name),
                           dtype_text(entry));
    return same ? SHARD_OK : concatenate_shapes(j, entry, dim, &j->out.entries[j->out.count - 1].shape);
}

/* ---- writing ---- */

/* Reads from a rank's file. Those of the first ranks stay open, others are opened each time: there may be more files than a
 * process may have open. */
static shard_status read_run(const joining *j, run_reader *reader, void *to, int64_t bytes)
{
    shard_status status = run_next(reader, to, bytes);
    if (reader->from - j->sources.at >= j->open_most)
        source_close(reader->from);
    return status;
}

/* The next bytes of one rank, to byte *to of the tensor. */
static shard_status write_run(joining *j, shard_writer *writer, int64_t index, run_reader *reader, int64_t bytes, int64_t *to)
{
    for (int64_t now; bytes > 0; bytes -= now, *to += now) {
        now = shard_min(bytes, SHARD_BLOCK_BYTES);
        SHARD_TRY(read_run(j, reader, j->blocks[0], now));
        SHARD_TRY(shard_writer_write(writer, index, j->blocks[0], now, *to));
    }
    return SHARD_OK;
}

/* Whole rows of `pitch` bytes, several in a block; the tensor of each rank has some bytes of each row. */
static shard_status write_rows(joining *j, shard_writer *writer, int64_t index, int64_t rows, int64_t pitch)
{
    int64_t most = SHARD_BLOCK_BYTES / pitch;
    for (int64_t row = 0; row < rows; row += most) {
        int64_t now = shard_min(rows - row, most), before = 0;
        for (int64_t rank = 0; rank < j->sources.count; rank++) {
            run_reader *reader = &j->readers[rank];
            int64_t width = (reader->entry->end - reader->entry->begin) / rows;
            if (width > 0)
                SHARD_TRY(read_run(j, reader, j->blocks[0], now * width));
            for (int64_t i = 0; i < now && width > 0; i++)
                memcpy(j->blocks[1] + i * pitch + before, j->blocks[0] + i * width, (size_t)width);
            before += width;
        }
        SHARD_TRY(shard_writer_write(writer, index, j->blocks[1], now * pitch, row * pitch));
    }
    return SHARD_OK;
}

static shard_status write_tensor(joining *j, shard_writer *writer, int64_t index)
{
    const shard_entry *whole = &j->out.entries[index];
    int dim = j->dims[index];
    int64_t ranks = dim < 0 ? 1 : j->sources.count, to = 0, bytes = whole->end - whole->begin;
    int64_t rows = dim < 0 ? 1 : shard_shape_product(&whole->shape, 0, dim);
    for (int64_t rank = 0; rank < ranks; rank++)
        j->readers[rank] = read_entry(&j->sources.at[rank], entry_of(j, rank, whole->name));
    if (bytes == 0)
        return SHARD_OK;
    if (rows > 1 && bytes / rows <= SHARD_BLOCK_BYTES)
        return write_rows(j, writer, index, rows, bytes / rows);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t rank = 0; rank < ranks; rank++) {
            run_reader *reader = &j->readers[rank];
            SHARD_TRY(write_run(j, writer, index, reader, (reader->entry->end - reader->entry->begin) / rows, &to));
        }
    return SHARD_OK;
}

static shard_status write_file(joining *j, const char *path)
{
    shard_writer writer;
    shard_status status = shard_writer_begin(&writer, path, j->out.entries, j->out.count, &j->out.metadata);
    for (int64_t i = 0; i < j->out.count && status == SHARD_OK; i++)
        status = write_tensor(j, &writer, i);
    if (status == SHARD_OK)
        status = shard_writer_finish(&writer);
    shard_writer_end(&writer);
    return status;
}

static void print_tensors(const joining *j)
{
    int64_t once = 0;
    for (int64_t i = 0; i < j->out.count; i++) {
        once += j->dims[i] < 0;
        if (j->dims[i] >= 0)
            printf("%s %s: concatenated along dimension %d\n", shown(j->out.entries[i].name),
                   entry_shape_text(&j->out.entries[i]), j->dims[i]);
    }
    if (once == 1)
        printf("1 tensor is the same in all files and was taken once\n");
    else
        printf("%" PRId64 " tensors are the same in all files and were taken once\n", once);
}

static shard_status join(joining *j, settings *s)
{
    long most = sysconf(_SC_OPEN_MAX);
    j->open_most = most < 0 ? s->file_count : shard_max(most / 2, 1);
    for (int i = 0; i < s->file_count; i++) {
        SHARD_TRY(index_refuse(s->files[i]));
        SHARD_TRY(sources_add(&j->sources, s->files[i], s->skip_checksums));
    }
    SHARD_TRY(output_check_path(s->output, &j->sources));
    SHARD_TRY(check_names(j));
    j->blocks[0] = shard_block_allocate();
    j->blocks[1] = shard_block_allocate();
    j->readers = shard_calloc((size_t)j->sources.count, sizeof *j->readers);
    if (!j->blocks[0] || !j->blocks[1] || !j->readers)
        return shard_last_status();
    for (int64_t i = 0; i < j->sources.at[0].header.count; i++)
        SHARD_TRY(add(j, s, &j->sources.at[0].header.entries[i]));
    SHARD_TRY(settings_check_used(&s->dim, "--dim"));
    for (int64_t rank = 0; rank < j->sources.count && !s->drop_metadata; rank++)
        SHARD_TRY(output_add_metadata(&j->out, &j->sources.at[rank]));
    SHARD_TRY(write_file(j, s->output));
    print_tensors(j);
    return SHARD_OK;
}

shard_status command_join(settings *s)
{
    joining j = {0};
    shard_status status = join(&j, s);
    for (int i = 0; i < 2; i++)
        shard_block_free(j.blocks[i]);
    free(j.readers);
    free(j.dims);
    output_free(&j.out);
    sources_free(&j.sources);
    return status;
}
