/* Files of NumPy and faiss, written in blocks of rows. */
#include "base/printable.h"
#include "npy.h"
#include "pick.h"
#include "rows.h"
#include "search.h"

#include "../checkpoint/source.h"

#include "base/math.h"
#include "base/memory.h"
#include "checkpoint/new_file.h"
#include "device/device.h"

#include <shard/shard.h>

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { FAISS_INNER_PRODUCT = 0, MOST_HEADER = 256 };

typedef struct sink {
    const char *path; /* NULL: none */
    shard_dtype dtype;
    char header[MOST_HEADER];
    size_t header_bytes;
    shard_new_file new;
    int64_t written;
} sink;

/* One pass over the tensor. */
typedef struct export
{
    source *from;
    const shard_entry *entry;
    int64_t rows, width, most; /* most: rows of a block */
    bool cosine;
    sink npy, faiss;
    char *block;     /* of the tensor's dtype */
    double *wide;    /* the same as float64 */
    char *converted; /* of a file's dtype */
}
export;

/* The file of an IndexFlatIP, as write_index of faiss (impl/index_write.cpp): "IxFI", int32 d, int64 ntotal, two int64 that are
 * not used, bool is_trained, int32 metric_type, uint64 the number of floats, and these. */
static size_t write_faiss_header(char *text, int64_t rows, int64_t width)
{
    const int64_t unused = 1 << 20, numbers = rows * width;
    const int32_t d = (int32_t)width, metric = FAISS_INNER_PRODUCT;
    const struct {
        const void *from;
        size_t bytes;
    } fields[] = {{"IxFI", 4}, {&d, 4}, {&rows, 8}, {&unused, 8}, {&unused, 8}, {"\x01", 1}, {&metric, 4}, {&numbers, 8}};
    size_t at = 0;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        memcpy(text + at, fields[i].from, fields[i].bytes);
        at += fields[i].bytes;
    }
    return at;
}

static shard_status sink_begin(sink *to, const export *e)
{
    if (!to->path)
        return SHARD_OK;
    SHARD_TRY(shard_new_file_begin(&to->new, to->path));
    to->written = (int64_t)to->header_bytes;
    SHARD_TRY(shard_file_allocate(&to->new.file, to->written + e->rows * e->width * (int64_t)shard_dtype_size(to->dtype)));
    return shard_file_write(&to->new.file, to->header, to->written, 0, NULL);
}

static shard_status sink_write(sink *to, const export *e, int64_t first, int64_t numbers)
{
    if (!to->path)
        return SHARD_OK;
    if (to->dtype != SHARD_FLOAT64)
        for (int64_t i = 0; i < numbers; i++)
            if (e->wide[i] > FLT_MAX || e->wide[i] < -FLT_MAX)
                return shard_error(SHARD_ERROR_ARGUMENT, "%s: row %" PRId64 " of %s has %g, which float32 cannot have", to->path,
                                   first + i / e->width, shard_quoted(e->entry->name), e->wide[i]);
    int64_t bytes = numbers * (int64_t)shard_dtype_size(to->dtype);
    SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), numbers, e->wide, SHARD_FLOAT64, e->converted, to->dtype));
    SHARD_TRY(shard_file_write(&to->new.file, e->converted, bytes, to->written, NULL));
    to->written += bytes;
    return SHARD_OK;
}

static shard_status copy_rows(export *e)
{
    run_reader reader = read_entry(e->from, e->entry);
    int64_t size = (int64_t)shard_dtype_size(e->entry->dtype);
    for (int64_t first = 0, count; first < e->rows && e->width > 0; first += count) {
        count = shard_min(e->most, e->rows - first);
        int64_t numbers = count * e->width;
        SHARD_TRY(run_next(&reader, e->block, numbers * size));
        SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), numbers, e->block, e->entry->dtype, e->wide, SHARD_FLOAT64));
        for (int64_t i = 0; i < count; i++) {
            int64_t column = row_find_odd(e->wide + i * e->width, e->width, DBL_MAX);
            if (column >= 0)
                return shard_error(SHARD_ERROR_ARGUMENT, "%s: row %" PRId64 " has a number that is not finite in column %" PRId64,
                                   shard_quoted(e->entry->name), first + i, column);
            if (e->cosine)
                row_normalize(e->wide + i * e->width, e->width);
        }
        SHARD_TRY(sink_write(&e->npy, e, first, numbers));
        SHARD_TRY(sink_write(&e->faiss, e, first, numbers));
    }
    return SHARD_OK;
}

static shard_status write_files(export *e)
{
    e->most = shard_max(1, SHARD_BLOCK_BYTES / (int64_t)sizeof(double) / shard_max(1, e->width));
    size_t numbers = (size_t)shard_max(1, e->most * e->width);
    e->block = shard_calloc(numbers, sizeof(double));
    e->wide = shard_calloc(numbers, sizeof(double));
    e->converted = shard_calloc(numbers, sizeof(double));
    shard_status status = e->block && e->wide && e->converted ? SHARD_OK : shard_last_status();
    sink *sinks[] = {&e->npy, &e->faiss};
    for (int i = 0; i < 2 && status == SHARD_OK; i++)
        status = sink_begin(sinks[i], e);
    if (status == SHARD_OK)
        status = copy_rows(e);
    for (int i = 0; i < 2 && status == SHARD_OK; i++)
        status = sinks[i]->path ? shard_new_file_finish(&sinks[i]->new) : SHARD_OK;
    for (int i = 0; i < 2; i++)
        shard_new_file_end(&sinks[i]->new);
    free(e->block);
    free(e->wide);
    free(e->converted);
    return status;
}

/* Whether both files would have the same name in the same directory, links followed. */
static shard_status is_one_file(const char *first, const char *second, bool *one)
{
    char *targets[] = {shard_file_follow(first), shard_file_follow(second)};
    const char *names[2] = {NULL, NULL};
    struct stat folder[2];
    bool known = targets[0] && targets[1];
    *one = false;
    for (int i = 0; i < 2 && known; i++) {
        char *slash = strrchr(targets[i], '/');
        names[i] = slash ? slash + 1 : targets[i];
        char *path = slash ? shard_format("%.*s", (int)(slash - targets[i] + 1), targets[i]) : shard_strdup(".");
        known = path && stat(path, &folder[i]) == 0; /* if there is no folder, the file cannot be made */
        free(path);
    }
    if (known)
        *one = folder[0].st_dev == folder[1].st_dev && folder[0].st_ino == folder[1].st_ino && strcmp(names[0], names[1]) == 0;
    free(targets[0]);
    free(targets[1]);
    return shard_last_status();
}

/* An output never takes the place of the checkpoint or of the other output. */
static shard_status check_paths(const settings *o)
{
    bool one = false;
    const char *const paths[] = {o->npy, o->faiss};
    for (int i = 0; i < 2; i++)
        if (paths[i])
            SHARD_TRY(source_check_output(paths[i], o->checkpoint));
    if (o->npy && o->faiss)
        SHARD_TRY(is_one_file(o->npy, o->faiss, &one));
    return one ? shard_error(SHARD_ERROR_ARGUMENT, "--npy %s and --faiss %s are the same file", o->npy, o->faiss) : SHARD_OK;
}

static shard_status export_from(const settings *o, source_list *sources)
{
    SHARD_TRY(sources_add(sources, o->checkpoint, o->skip_checksums));
    source *from = &sources->at[0];
    const shard_entry *entry = pick_tensor(&from->header, o->checkpoint, o->tensor);
    if (!entry)
        return shard_last_status();
    SHARD_TRY(check_paths(o));
    export e = {.from = from,
                .entry = entry,
                .rows = entry->shape.dim[0],
                .width = entry->shape.dim[1],
                .cosine = o->cosine,
                .npy = {.path = o->npy, .dtype = entry->dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32, .new.lock = -1},
                .faiss = {.path = o->faiss, .dtype = SHARD_FLOAT32, .new.lock = -1}};
    if (o->faiss && (e.width < 1 || e.width > INT32_MAX))
        return shard_error(SHARD_ERROR_UNSUPPORTED, "faiss has no index of vectors of %" PRId64 " numbers", e.width);
    e.npy.header_bytes = npy_header_write(e.npy.header, e.npy.dtype, e.rows, e.width);
    e.faiss.header_bytes = write_faiss_header(e.faiss.header, e.rows, e.width);
    return write_files(&e);
}

shard_status command_export(const settings *o)
{
    if (shard_group_size(shard_world()) > 1)
        return shard_error(SHARD_ERROR_ARGUMENT, "export is for one rank, and there are %d: run it without a launcher",
                           shard_group_size(shard_world()));
    source_list sources = {0};
    signals_take();
    shard_status status = export_from(o, &sources);
    sources_free(&sources);
    return status;
}
