#include "table.h"

#include "base/printable.h"
#include "pick.h"
#include "rows.h"

#include "../checkpoint/source.h"

#include "base/math.h"
#include "base/memory.h"
#include "device/device.h"

#include <shard/shard.h>

#include <float.h>
#include <inttypes.h>
#include <stdlib.h>

enum { TILE_NUMBERS = 1 << 15 }; /* of rows that are looked through at once: they stay in the cache */

/* ---- rows that are looked through ---- */

typedef struct tile {
    char *data;    /* of the table's dtype */
    double *wide;  /* the same as float64 */
    int64_t count; /* rows */
} tile;

/* Checks rows from `first` of this rank on, and normalizes them for cosines. */
static shard_status prepare_tile(table *t, tile *rows, int64_t first)
{
    int64_t numbers = rows->count * t->width;
    size_t bytes = (size_t)numbers * shard_dtype_size(t->dtype);
    shard_tensor *part = shard_narrow(t->local, 0, first, rows->count);
    SHARD_TRY(shard_copy_to_host(part, rows->data, bytes));
    SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), numbers, rows->data, t->dtype, rows->wide, SHARD_FLOAT64));
    for (int64_t i = 0; i < rows->count; i++) {
        int64_t column = row_find_odd(rows->wide + i * t->width, t->width, t->most);
        if (column >= 0)
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "%s: row %" PRId64 " has a number that is not finite in column %" PRId64
                               ", and no order among the others",
                               shard_quoted(t->name), t->range.start + first + i, column);
        if (t->cosine)
            row_normalize(rows->wide + i * t->width, t->width);
    }
    if (!t->cosine)
        return SHARD_OK;
    SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), numbers, rows->wide, SHARD_FLOAT64, rows->data, t->dtype));
    return shard_copy_from_host(part, rows->data, bytes);
}

static shard_status prepare(table *t)
{
    int64_t most = shard_max(1, TILE_NUMBERS / shard_max(1, t->width));
    tile rows = {.data = shard_calloc((size_t)(most * t->width), shard_dtype_size(t->dtype)),
                 .wide = shard_calloc((size_t)(most * t->width), sizeof(double))};
    shard_status status = rows.data && rows.wide ? SHARD_OK : shard_last_status();
    for (int64_t at = 0; at < t->range.size && status == SHARD_OK && t->width > 0; at += rows.count) {
        rows.count = shard_min(most, t->range.size - at);
        SHARD_SCOPE
        {
            status = prepare_tile(t, &rows, at);
        }
    }
    free(rows.data);
    free(rows.wide);
    return status;
}

/* ---- loading ---- */

static double largest_of(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT64 ? DBL_MAX : dtype == SHARD_FLOAT16 ? 65504 : dtype == SHARD_BFLOAT16 ? 0x1.FEp127 : FLT_MAX;
}

#define USUAL_K 10

/* Reads the header, on each rank. */
static shard_status look_up(table *t, const settings *o)
{
    source_list sources = {0};
    const shard_entry *entry = NULL;
    if (sources_add(&sources, o->checkpoint, o->skip_checksums) == SHARD_OK)
        entry = pick_tensor(&sources.at[0].header, o->checkpoint, o->tensor);
    if (entry) {
        bool narrow = entry->dtype == SHARD_FLOAT16 || entry->dtype == SHARD_BFLOAT16;
        *t = (table){.name = shard_strdup(entry->name),
                     .rows = entry->shape.dim[0],
                     .width = entry->shape.dim[1],
                     .dtype = narrow && !o->keep_dtype ? SHARD_FLOAT32 : entry->dtype,
                     .cosine = o->metric == METRIC_COSINE};
        t->most = largest_of(t->dtype);
        t->k = o->k > 0 ? o->k : t->rows < USUAL_K ? t->rows : USUAL_K;
    }
    sources_free(&sources);
    if (entry && o->k > t->rows)
        shard_error(SHARD_ERROR_ARGUMENT, "-k %" PRId64 ": %s has %" PRId64 " rows", o->k, shard_quoted(t->name), t->rows);
    return shard_last_status();
}

static shard_status load(table *t, const settings *o)
{
    shard_group *world = shard_world();
    t->range = shard_split_range(t->rows, shard_group_size(world), shard_group_rank(world));
    t->local = shard_empty(SHARD_SHAPE(t->range.size, t->width), .dtype = t->dtype);
    t->split = shard_as_split(t->local, 0, world, t->range.start, t->rows);
    shard_tensors *list = shard_tensors_create();
    if (t->split)
        shard_tensors_add(list, t->name, t->split);
    shard_status status =
        shard_load(list, o->checkpoint, .allow_unexpected = true, .convert = true, .skip_checksums = o->skip_checksums);
    shard_tensors_destroy(list);
    return status;
}

shard_status table_open(table *t, const settings *o)
{
    *t = (table){0};
    look_up(t, o);
    SHARD_TRY(shard_agree(shard_world()));
    SHARD_TRY(load(t, o));
    prepare(t);
    return shard_agree(shard_world());
}

void table_close(table *t)
{
    shard_release(t->split);
    shard_release(t->local);
    free(t->name);
}

shard_status table_read_row(const table *t, int64_t row, double *to)
{
    shard_status status = SHARD_OK;
    if (row < t->range.start || row >= t->range.start + t->range.size || t->width == 0)
        return SHARD_OK;
    SHARD_SCOPE
    {
        shard_tensor *one = shard_cast(shard_narrow(t->local, 0, row - t->range.start, 1), SHARD_FLOAT64);
        status = shard_copy_to_host(one, to, (size_t)t->width * sizeof *to);
    }
    return status;
}
