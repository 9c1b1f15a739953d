/* inspect and verify. */
#include "commands.h"
#include "source.h"
#include "text.h"

#include "base/math.h"
#include "device/device.h"

#include <shard/checkpoint.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of values in blocks; least to squares are of the finite ones. */
typedef struct statistics {
    int64_t finite, nan, infinite;
    double least, greatest, mean;
    double squares; /* the sum of squared differences from the mean */
} statistics;

/* Combines means and squares of the values so far with those of a block, as Chan, Golub and LeVeque, Updating formulae and a
 * pairwise algorithm for computing sample variances, 1979. */
static void add_block(statistics *s, const double *values, int64_t count)
{
    statistics new = {.least = INFINITY, .greatest = -INFINITY};
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) {
            s->nan += isnan(values[i]) != 0;
            s->infinite += isinf(values[i]) != 0;
            continue;
        }
        new.finite++;
        new.mean += (values[i] - new.mean) / (double)new.finite;
        new.least = fmin(new.least, values[i]);
        new.greatest = fmax(new.greatest, values[i]);
    }
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            new.squares += (values[i] - new.mean) * (values[i] - new.mean);
    if (new.finite == 0)
        return;
    double before = (double)s->finite, now = (double)new.finite, all = before + now, apart = new.mean - s->mean;
    double between = apart * apart * before * now / all;
    s->least = before > 0 ? fmin(s->least, new.least) : new.least;
    s->greatest = before > 0 ? fmax(s->greatest, new.greatest) : new.greatest;
    s->mean += apart * (now / all);
    s->squares += new.squares + between;
    s->finite += new.finite;
}

static shard_status compute(statistics *s, source *from, const shard_entry *entry, void *block, double *values)
{
    run_reader reader = read_entry(from, entry);
    int64_t size = (int64_t)shard_dtype_size(entry->dtype), most = SHARD_BLOCK_BYTES / (int64_t)sizeof *values;
    *s = (statistics){0};
    for (int64_t left; (left = run_left(&reader) / size) > 0;) {
        int64_t count = shard_min(left, most);
        SHARD_TRY(run_next(&reader, block, count * size));
        SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), count, block, entry->dtype, values, SHARD_FLOAT64));
        add_block(s, values, count);
    }
    return SHARD_OK;
}

static void print_statistics(const statistics *s)
{
    if (s && s->finite > 0)
        printf("  %11.5g  %11.5g  %11.5g  %11.5g", s->least, s->greatest, s->mean, sqrt(s->squares / (double)s->finite));
    else
        printf("  %11s  %11s  %11s  %11s", "-", "-", "-", "-");
    if (s)
        printf("  %5" PRId64 "  %5" PRId64, s->nan, s->infinite);
    else
        printf("  %5s  %5s", "-", "-");
}

static shard_status print_tensors(source *from, bool with_values)
{
    const shard_safetensors *header = &from->header;
    void *block = with_values ? shard_block_allocate() : NULL, *values = with_values ? shard_block_allocate() : NULL;
    shard_status status = with_values && (!block || !values) ? shard_last_status() : SHARD_OK;
    int dtypes = 5, shapes = 5;
    for (int64_t i = 0; i < header->count; i++) {
        dtypes = (int)shard_max(dtypes, (int64_t)strlen(dtype_text(&header->entries[i])));
        shapes = (int)shard_max(shapes, (int64_t)strlen(entry_shape_text(&header->entries[i])));
    }
    printf("%-*s  %-*s  %12s", dtypes, "dtype", shapes, "shape", "bytes");
    if (with_values)
        printf("  %11s  %11s  %11s  %11s  %5s  %5s", "min", "max", "mean", "std", "nan", "inf");
    printf("  name\n");
    for (int64_t i = 0; i < header->count && status == SHARD_OK; i++) {
        const shard_entry *entry = &header->entries[i];
        statistics all = {0};
        if (with_values && !entry->refusal)
            status = compute(&all, from, entry, block, values);
        if (status != SHARD_OK)
            break;
        printf("%-*s  %-*s  %12" PRId64, dtypes, dtype_text(entry), shapes, entry_shape_text(entry), entry->end - entry->begin);
        if (with_values)
            print_statistics(entry->refusal ? NULL : &all);
        printf("  %s\n", shown(entry->name));
    }
    shard_block_free(block);
    shard_block_free(values);
    return status;
}

shard_status command_inspect(settings *s)
{
    source_list sources = {0};
    shard_status status = sources_add(&sources, s->files[0], s->skip_checksums);
    if (status == SHARD_OK)
        status = print_tensors(&sources.at[0], s->values);
    if (status == SHARD_OK) {
        const shard_safetensors *header = &sources.at[0].header;
        int64_t bytes = 0;
        for (int64_t i = 0; i < header->count; i++)
            bytes += header->entries[i].end - header->entries[i].begin;
        printf("%" PRId64 " tensor%s, %" PRId64 " bytes, %s checksums\n", header->count, header->count == 1 ? "" : "s", bytes,
               header->checksums   ? "with"
               : s->skip_checksums ? "without a look at"
                                   : "without");
        const char *name, *value;
        for (int64_t at = 0; shard_metadata_next(&header->metadata, &at, &name, &value);)
            printf("metadata %s = %s\n", shown(name), shown(value));
    }
    sources_free(&sources);
    return status;
}

shard_status command_verify(settings *s, bool *damaged)
{
    shard_status first = SHARD_OK;
    for (int i = 0; i < s->file_count; i++) {
        shard_status status = shard_verify(s->files[i]);
        const char *path = shown(s->files[i]);
        if (status == SHARD_OK)
            printf("%s: as it was saved\n", path);
        else if (status == SHARD_ERROR_UNSUPPORTED)
            printf("%s: has no checksums\n", path);
        else if (status == SHARD_ERROR_FORMAT)
            printf("%s: damaged\n", path);
        else
            printf("%s: cannot be read\n", path);
        if (status != SHARD_OK && status != SHARD_ERROR_UNSUPPORTED) {
            fflush(stdout);
            fprintf(stderr, "shard-checkpoint: %s\n", shard_last_error());
            *damaged |= status == SHARD_ERROR_FORMAT;
            first = first == SHARD_OK ? status : first;
        }
        shard_clear_error();
    }
    return first;
}
