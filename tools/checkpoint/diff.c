/* diff: tensors and metadata of two files, or of those of indexes. */
#include "commands.h"
#include "index.h"
#include "source.h"
#include "text.h"

#include "base/math.h"
#include "device/device.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Elements of a block: as many as there are numbers of 8 bytes. */
#define BLOCK (SHARD_BLOCK_BYTES / 8)

typedef struct comparison {
    source_list sides[2]; /* a file, or those of an index */
    source *files[2];     /* of the tensors that are compared */
    const settings *s;
    char *blocks[2];  /* elements as they are in the files */
    void *numbers[2]; /* as float64 or int64 */
    bool differ;
} comparison;

/* Elements that differ. */
typedef struct differences {
    int64_t count, unordered; /* unordered: NaN in one file alone */
    double largest;
} differences;

static void begin_line(comparison *c, const char *what, const char *name)
{
    c->differ = true;
    printf("%s %s", what, shown(name));
}

static void add_difference(differences *d, double difference)
{
    d->count++;
    d->unordered += isnan(difference) != 0;
    d->largest = fmax(d->largest, difference);
}

static double apart(const void *a, const void *b, int64_t i, bool floating)
{
    if (floating) {
        double left = ((const double *)a)[i], right = ((const double *)b)[i];
        return left == right || (isnan(left) && isnan(right)) ? 0 : fabs(left - right);
    }
    int64_t left = ((const int64_t *)a)[i], right = ((const int64_t *)b)[i];
    return (double)(left > right ? (uint64_t)left - (uint64_t)right : (uint64_t)right - (uint64_t)left);
}

static bool same_bits(const comparison *c, int64_t i, int64_t size)
{
    return memcmp(c->blocks[0] + i * size, c->blocks[1] + i * size, (size_t)size) == 0;
}

static shard_status to_numbers(comparison *c, int file, int64_t count, shard_dtype from, bool floating)
{
    return shard_cpu()->ops->cast(shard_cpu(), count, c->blocks[file], from, c->numbers[file],
                                  floating ? SHARD_FLOAT64 : SHARD_INT64);
}

/* Elements of a dtype that tensors here cannot have are compared by their bits, those of less than a byte byte by byte. */
static shard_status compare_bits(comparison *c, const shard_entry *a, const shard_entry *b, differences *d)
{
    run_reader left = read_entry(c->files[0], a), right = read_entry(c->files[1], b);
    int64_t elements = entry_elements(a), bytes = run_left(&left);
    int64_t size = elements > 0 && bytes % elements == 0 ? bytes / elements : 1;
    for (int64_t now; (now = shard_min(run_left(&left), BLOCK * size)) > 0;) {
        SHARD_TRY(run_next(&left, c->blocks[0], now));
        SHARD_TRY(run_next(&right, c->blocks[1], now));
        for (int64_t i = 0; i < now / size; i++)
            d->count += !same_bits(c, i, size);
    }
    return SHARD_OK;
}

static shard_status compare_numbers(comparison *c, const shard_entry *a, const shard_entry *b, differences *d)
{
    run_reader left = read_entry(c->files[0], a), right = read_entry(c->files[1], b);
    int64_t a_size = (int64_t)shard_dtype_size(a->dtype), b_size = (int64_t)shard_dtype_size(b->dtype);
    bool floating = shard_dtype_is_float(a->dtype) || shard_dtype_is_float(b->dtype), same_dtype = a->dtype == b->dtype;
    for (int64_t count; (count = shard_min(run_left(&left) / a_size, BLOCK)) > 0;) {
        SHARD_TRY(run_next(&left, c->blocks[0], count * a_size));
        SHARD_TRY(run_next(&right, c->blocks[1], count * b_size));
        if (same_dtype && memcmp(c->blocks[0], c->blocks[1], (size_t)(count * a_size)) == 0)
            continue;
        SHARD_TRY(to_numbers(c, 0, count, a->dtype, floating));
        SHARD_TRY(to_numbers(c, 1, count, b->dtype, floating));
        for (int64_t i = 0; i < count; i++) {
            double difference = apart(c->numbers[0], c->numbers[1], i, floating);
            bool differs = c->s->has_tolerance ? !(difference <= c->s->tolerance)
                           : same_dtype        ? !same_bits(c, i, a_size)
                                               : difference != 0;
            if (differs)
                add_difference(d, difference);
        }
    }
    return SHARD_OK;
}

static shard_status compare_values(comparison *c, const shard_entry *a, const shard_entry *b)
{
    differences d = {0};
    SHARD_TRY(a->refusal ? compare_bits(c, a, b, &d) : compare_numbers(c, a, b, &d));
    if (d.count == 0)
        return SHARD_OK;
    begin_line(c, "values differ:", a->name);
    printf(": %" PRId64 " of %" PRId64, d.count, entry_elements(a));
    if (!a->refusal && d.count > d.unordered)
        printf(", by up to %.6g", d.largest);
    if (d.unordered)
        printf(", %" PRId64 " of them NaN in one file", d.unordered);
    puts("");
    return SHARD_OK;
}

static shard_status compare_entries(comparison *c, const shard_entry *a, const shard_entry *b)
{
    bool same_dtype = strcmp(shard_entry_type_name(a), shard_entry_type_name(b)) == 0;
    SHARD_TRY(shard_entry_check_copy(a, c->files[0]->path));
    SHARD_TRY(shard_entry_check_copy(b, c->files[1]->path));
    if (!same_dtype) {
        begin_line(c, "dtype differs:", a->name);
        printf(": %s and %s\n", dtype_text(a), dtype_text(b));
    }
    if (!shard_shape_equal(&a->shape, &b->shape)) {
        begin_line(c, "shape differs:", a->name);
        printf(": %s and %s\n", entry_shape_text(a), entry_shape_text(b));
        return SHARD_OK;
    }
    return same_dtype || (!a->refusal && !b->refusal) ? compare_values(c, a, b) : SHARD_OK;
}

static void print_alone(comparison *c, int side)
{
    const source_list *here = &c->sides[side], *there = &c->sides[!side];
    source *other;
    for (int64_t i = 0; i < here->count; i++)
        for (int64_t j = 0; j < here->at[i].header.count; j++) {
            const shard_safetensors *header = &here->at[i].header;
            const shard_entry *entry = &header->entries[header->by_name[j]];
            if (sources_find(there, entry->name, there->count, &other))
                continue;
            begin_line(c, "only in", here->at[i].path);
            printf(": %s %s %s\n", shown(entry->name), dtype_text(entry), entry_shape_text(entry));
        }
}

static void compare_metadata(comparison *c)
{
    for (int side = 0; side < 2; side++) {
        const source_list *here = &c->sides[side], *there = &c->sides[!side];
        const char *name, *value;
        for (int64_t i = 0; i < here->count; i++)
            for (int64_t at = 0; shard_metadata_next(&here->at[i].header.metadata, &at, &name, &value);) {
                const char *other = sources_metadata(there, name, there->count);
                if (sources_metadata(here, name, i)) /* of a file before */
                    continue;
                if (!other) {
                    begin_line(c, "metadata only in", here->at[i].path);
                    printf(": %s = %s\n", shown(name), shown(value));
                } else if (side == 0 && strcmp(value, other) != 0) {
                    begin_line(c, "metadata differs:", name);
                    printf(": %s and %s\n", shown(value), shown(other));
                }
            }
    }
}

/* The tensors of a file of the first side. */
static shard_status compare_file(comparison *c, source *from)
{
    for (int64_t i = 0; i < from->header.count; i++) {
        source *before = c->files[1];
        const shard_entry *entry = &from->header.entries[i], *other;
        c->files[0] = from;
        other = sources_find(&c->sides[1], entry->name, c->sides[1].count, &c->files[1]);
        if (before && before != c->files[1]) /* of an index there may be many */
            source_close(before);
        if (other)
            SHARD_TRY(compare_entries(c, entry, other));
    }
    source_close(from);
    return SHARD_OK;
}

static shard_status compare(comparison *c)
{
    int64_t tensors = 0;
    for (int i = 0; i < 2; i++) {
        c->blocks[i] = shard_block_allocate();
        c->numbers[i] = shard_block_allocate();
        if (!c->blocks[i] || !c->numbers[i])
            return shard_last_status();
    }
    print_alone(c, 0);
    print_alone(c, 1);
    for (int64_t i = 0; i < c->sides[0].count; i++) {
        tensors += c->sides[0].at[i].header.count;
        SHARD_TRY(compare_file(c, &c->sides[0].at[i]));
    }
    compare_metadata(c);
    if (!c->differ)
        printf("%" PRId64 " tensor%s the same%s\n", tensors, tensors == 1 ? " is" : "s are",
               c->s->has_tolerance ? " within the tolerance" : "");
    return SHARD_OK;
}

shard_status command_diff(settings *s, bool *differ)
{
    comparison c = {.s = s};
    shard_status status = index_or_file_add(&c.sides[0], s->files[0], s->skip_checksums);
    if (status == SHARD_OK)
        status = index_or_file_add(&c.sides[1], s->files[1], s->skip_checksums);
    if (status == SHARD_OK)
        status = compare(&c);
    for (int i = 0; i < 2; i++) {
        shard_block_free(c.blocks[i]);
        shard_block_free(c.numbers[i]);
        sources_free(&c.sides[i]);
    }
    *differ = c.differ;
    return status;
}
