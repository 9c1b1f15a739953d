/* inspect and verify. */
#include "commands.h"
#include "index.h"
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

/* Of values in blocks; least to squares are of the finite ones. The differences of float64's largest values do not fit into a
 * double, nor do their squares. */
typedef struct statistics {
    int64_t finite, nan, infinite;
    double least, greatest;
    long double mean, squares; /* squares: the sum of squared differences from the mean */
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
        new.mean += (values[i] - new.mean) / (long double)new.finite;
        new.least = fmin(new.least, values[i]);
        new.greatest = fmax(new.greatest, values[i]);
    }
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            new.squares += (values[i] - new.mean) * (values[i] - new.mean);
    if (new.finite == 0)
        return;
    long double before = (long double)s->finite, now = (long double)new.finite, all = before + now, apart = new.mean - s->mean;
    long double between = apart * apart * before * now / all;
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
        printf("  %11.5g  %11.5g  %11.5Lg  %11.5Lg", s->least, s->greatest, s->mean, sqrtl(s->squares / (long double)s->finite));
    else
        printf("  %11s  %11s  %11s  %11s", "-", "-", "-", "-");
    if (s)
        printf("  %5" PRId64 "  %5" PRId64, s->nan, s->infinite);
    else
        printf("  %5s  %5s", "-", "-");
}

/* The columns' widths. */
typedef struct widths {
    int dtypes, shapes;
} widths;

static widths measure(const source_list *sources)
{
    widths most = {5, 5};
    for (int64_t i = 0; i < sources->count; i++)
        for (int64_t j = 0; j < sources->at[i].header.count; j++) {
            const shard_entry *entry = &sources->at[i].header.entries[j];
            most.dtypes = (int)shard_max(most.dtypes, (int64_t)strlen(dtype_text(entry)));
            most.shapes = (int)shard_max(most.shapes, (int64_t)strlen(entry_shape_text(entry)));
        }
    return most;
}

static shard_status print_tensors(source *from, widths w, bool with_values, void *block, double *values)
{
    for (int64_t i = 0; i < from->header.count; i++) {
        const shard_entry *entry = &from->header.entries[i];
        statistics all = {0};
        if (with_values && !entry->refusal)
            SHARD_TRY(compute(&all, from, entry, block, values));
        printf("%-*s  %-*s  %12" PRId64, w.dtypes, dtype_text(entry), w.shapes, entry_shape_text(entry),
               entry->end - entry->begin);
        if (with_values)
            print_statistics(entry->refusal ? NULL : &all);
        printf("  %s\n", shown(entry->name));
    }
    source_close(from);
    return SHARD_OK;
}

static shard_status print_table(source_list *sources, bool with_values)
{
    void *block = with_values ? shard_block_allocate() : NULL, *values = with_values ? shard_block_allocate() : NULL;
    shard_status status = with_values && (!block || !values) ? shard_last_status() : SHARD_OK;
    widths w = measure(sources);
    printf("%-*s  %-*s  %12s", w.dtypes, "dtype", w.shapes, "shape", "bytes");
    if (with_values)
        printf("  %11s  %11s  %11s  %11s  %5s  %5s", "min", "max", "mean", "std", "nan", "inf");
    printf("  name\n");
    for (int64_t i = 0; i < sources->count && status == SHARD_OK; i++)
        status = print_tensors(&sources->at[i], w, with_values, block, values);
    shard_block_free(block);
    shard_block_free(values);
    return status;
}

static void print_sums(const source_list *sources, bool skip_checksums)
{
    int64_t tensors = 0, bytes = 0, with = 0;
    for (int64_t i = 0; i < sources->count; i++) {
        const shard_safetensors *header = &sources->at[i].header;
        tensors += header->count;
        with += header->checksums;
        for (int64_t j = 0; j < header->count; j++)
            bytes += header->entries[j].end - header->entries[j].begin;
    }
    printf("%" PRId64 " tensor%s", tensors, tensors == 1 ? "" : "s");
    if (sources->count > 1)
        printf(" in %" PRId64 " files", sources->count);
    printf(", %" PRId64 " bytes, %s checksums\n", bytes,
           skip_checksums           ? "without a look at"
           : with == 0              ? "without"
           : with == sources->count ? "with"
                                    : "some with");
}

shard_status command_inspect(settings *s)
{
    source_list sources = {0};
    const char *name, *value;
    shard_status status = index_or_file_add(&sources, s->files[0], s->skip_checksums);
    if (status == SHARD_OK)
        status = print_table(&sources, s->values);
    if (status == SHARD_OK)
        print_sums(&sources, s->skip_checksums);
    for (int64_t i = 0; i < sources.count && status == SHARD_OK; i++)
        for (int64_t at = 0; shard_metadata_next(&sources.at[i].header.metadata, &at, &name, &value);)
            if (sources_metadata(&sources, name, i) == NULL)
                printf("metadata %s = %s\n", shown(name), shown(value));
    sources_free(&sources);
    return status;
}

/* Says what a file was found to be. Clears the error. */
static shard_status report(const char *path, shard_status status, const char *good)
{
    const char *found = status == SHARD_OK                  ? good
                        : status == SHARD_ERROR_UNSUPPORTED ? "has no checksums"
                        : status == SHARD_ERROR_FORMAT      ? "damaged"
                                                            : "cannot be read";
    printf("%s: %s\n", shown(path), found);
    if (status == SHARD_ERROR_UNSUPPORTED)
        status = SHARD_OK;
    if (status != SHARD_OK) {
        fflush(stdout);
        fprintf(stderr, "shard-checkpoint: %s\n", shard_last_error());
    }
    shard_clear_error();
    return status;
}

/* The index, and if it agrees with its files each of them. */
static shard_status verify_index(const char *path)
{
    source_list sources = {0};
    shard_status of_index = report(path, index_add_sources(&sources, path, true), "an index that agrees with its files"),
                 first = of_index;
    for (int64_t i = 0; i < sources.count && of_index == SHARD_OK; i++) {
        shard_status status = report(sources.at[i].path, shard_verify(sources.at[i].path), "as it was saved");
        first = first == SHARD_OK ? status : first;
    }
    sources_free(&sources);
    return first;
}

shard_status command_verify(settings *s, bool *damaged)
{
    shard_status first = SHARD_OK;
    for (int i = 0; i < s->file_count; i++) {
        const char *path = s->files[i];
        shard_status status = index_is(path) ? verify_index(path) : report(path, shard_verify(path), "as it was saved");
        *damaged |= status == SHARD_ERROR_FORMAT;
        first = first == SHARD_OK ? status : first;
    }
    return first;
}
