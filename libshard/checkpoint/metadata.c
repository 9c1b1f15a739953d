/* Strings by name next to the tensors. */
#include "checkpoint/metadata.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/plain_text.h"
#include "base/printable.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/json_writer.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- strings ---- */

static const char *value_of(const char *name)
{
    return name + strlen(name) + 1;
}

/* The place of a name among by_name, or where it belongs. */
static int64_t place_of(const shard_metadata *metadata, const char *name, bool *there)
{
    int64_t low = 0, high = metadata->count;
    *there = false;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int order = strcmp(name, metadata->text + metadata->by_name[middle]);
        if (order == 0) {
            *there = true;
            return middle;
        }
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

shard_status shard_metadata_reserve(shard_metadata *metadata, int64_t count, int64_t bytes)
{
    SHARD_TRY(shard_grow(&metadata->by_name, &metadata->capacity, count, sizeof *metadata->by_name));
    return shard_grow(&metadata->text, &metadata->bytes_capacity, bytes, 1);
}

shard_status shard_metadata_append(shard_metadata *metadata, const char *name, const char *value)
{
    size_t name_bytes = strlen(name) + 1, value_bytes = strlen(value) + 1;
    SHARD_TRY(shard_metadata_reserve(metadata, metadata->count + 1, metadata->bytes + (int64_t)(name_bytes + value_bytes)));
    char *to = metadata->text + metadata->bytes;
    memcpy(to, name, name_bytes);
    memcpy(to + name_bytes, value, value_bytes);
    metadata->by_name[metadata->count++] = (size_t)metadata->bytes;
    metadata->bytes += (int64_t)(name_bytes + value_bytes);
    return SHARD_OK;
}

static int compare_names(const void *left, const void *right, void *text)
{
    return strcmp((const char *)text + *(const size_t *)left, (const char *)text + *(const size_t *)right);
}

const char *shard_metadata_sort(shard_metadata *metadata)
{
    if (metadata->count)
        qsort_r(metadata->by_name, (size_t)metadata->count, sizeof *metadata->by_name, compare_names, metadata->text);
    for (int64_t i = 1; i < metadata->count; i++)
        if (compare_names(&metadata->by_name[i - 1], &metadata->by_name[i], metadata->text) == 0)
            return metadata->text + metadata->by_name[i];
    return NULL;
}

bool shard_metadata_next(const shard_metadata *metadata, int64_t *at, const char **name, const char **value)
{
    if (!metadata || *at >= metadata->bytes)
        return false;
    *name = metadata->text + *at;
    *value = value_of(*name);
    *at = *value + strlen(*value) + 1 - metadata->text;
    return true;
}

const char *shard_metadata_merge(shard_metadata *metadata, const shard_metadata *more)
{
    const char *name, *value;
    int64_t known = metadata->count;
    for (int64_t at = 0; shard_metadata_next(more, &at, &name, &value);) {
        const char *own = shard_metadata_get(metadata, name);
        if (own && strcmp(own, value) != 0)
            return name;
    }
    for (int64_t at = 0; shard_metadata_next(more, &at, &name, &value);) {
        shard_metadata before = *metadata;
        before.count = known;
        if (!shard_metadata_get(&before, name) && shard_metadata_append(metadata, name, value) != SHARD_OK)
            break;
    }
    shard_metadata_sort(metadata);
    return NULL;
}

void shard_metadata_remove(shard_metadata *metadata, const char *name)
{
    bool there;
    int64_t place = place_of(metadata, name, &there);
    if (!there)
        return;
    size_t begin = metadata->by_name[place];
    const char *value = value_of(metadata->text + begin);
    size_t end = (size_t)(value - metadata->text) + strlen(value) + 1;
    memmove(metadata->text + begin, metadata->text + end, (size_t)metadata->bytes - end);
    memmove(metadata->by_name + place, metadata->by_name + place + 1,
            (size_t)(metadata->count - place - 1) * sizeof *metadata->by_name);
    metadata->bytes -= (int64_t)(end - begin);
    metadata->count--;
    for (int64_t i = 0; i < metadata->count; i++)
        if (metadata->by_name[i] > begin)
            metadata->by_name[i] -= end - begin;
}

void shard_metadata_clear(shard_metadata *metadata)
{
    free(metadata->text);
    free(metadata->by_name);
    *metadata = (shard_metadata){0};
}

shard_metadata *shard_metadata_take(shard_metadata *strings)
{
    shard_metadata *metadata = shard_calloc(1, sizeof *metadata);
    if (metadata)
        *metadata = *strings;
    else
        shard_metadata_clear(strings);
    *strings = (shard_metadata){0};
    return metadata;
}

shard_metadata *shard_metadata_create(void)
{
    return shard_calloc(1, sizeof(shard_metadata));
}

void shard_metadata_destroy(shard_metadata *metadata)
{
    if (metadata)
        shard_metadata_clear(metadata);
    free(metadata);
}

shard_metadata *shard_metadata_copy(const shard_metadata *metadata)
{
    shard_metadata *copy = metadata ? shard_metadata_create() : NULL;
    if (copy)
        shard_metadata_merge(copy, metadata);
    return copy;
}

/* A new value stands where the old one stood. */
static shard_status replace(shard_metadata *metadata, int64_t place, const char *value)
{
    size_t at = (size_t)(value_of(metadata->text + metadata->by_name[place]) - metadata->text);
    size_t before = strlen(metadata->text + at), now = strlen(value);
    SHARD_TRY(shard_metadata_reserve(metadata, metadata->count, metadata->bytes + (int64_t)now - (int64_t)before));
    memmove(metadata->text + at + now, metadata->text + at + before, (size_t)metadata->bytes - at - before);
    memcpy(metadata->text + at, value, now);
    metadata->bytes += (int64_t)now - (int64_t)before;
    for (int64_t i = 0; i < metadata->count; i++)
        if (metadata->by_name[i] > at)
            metadata->by_name[i] = metadata->by_name[i] + now - before;
    return SHARD_OK;
}

static shard_status insert(shard_metadata *metadata, int64_t place, const char *name, const char *value)
{
    SHARD_TRY(shard_metadata_append(metadata, name, value));
    size_t new = metadata->by_name[metadata->count - 1];
    memmove(metadata->by_name + place + 1, metadata->by_name + place,
            (size_t)(metadata->count - 1 - place) * sizeof *metadata->by_name);
    metadata->by_name[place] = new;
    return SHARD_OK;
}

shard_status shard_metadata_set(shard_metadata *metadata, const char *name, const char *value)
{
    bool there;
    if (!metadata || !name || !value)
        return shard_null_argument("shard_metadata_set", !metadata ? "metadata" : !name ? "name" : "value");
    if (!json_is_utf8(name) || !json_is_utf8(value))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_metadata_set: %s and its value must be UTF-8", shard_quoted(name));
    char *copy = shard_strdup(value); /* value may be one of the metadata's own */
    char *copied_name = shard_strdup(name);
    int64_t place = place_of(metadata, name, &there);
    shard_status status = !copy || !copied_name ? shard_last_status()
                          : there               ? replace(metadata, place, copy)
                                                : insert(metadata, place, copied_name, copy);
    free(copied_name);
    free(copy);
    return status;
}

const char *shard_metadata_get(const shard_metadata *metadata, const char *name)
{
    bool there = false;
    int64_t place = metadata && name ? place_of(metadata, name, &there) : 0;
    return there ? value_of(metadata->text + metadata->by_name[place]) : NULL;
}

/* ---- numbers ---- */

shard_status shard_metadata_set_integer(shard_metadata *metadata, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return shard_metadata_set(metadata, name, text);
}

/* 17 digits give the same bits again. A point or an exponent tells a number from an integer. */
shard_status shard_metadata_set_number(shard_metadata *metadata, const char *name, double value)
{
    char text[40];
    if (!isfinite(value))
        return shard_metadata_set(metadata, name, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    int length = shard_plain_snprintf(text, sizeof text - 2, "%.17g", value);
    if (text[strspn(text, "-0123456789")] == '\0')
        memcpy(text + length, ".0", 3);
    return shard_metadata_set(metadata, name, text);
}

/* value points to the caller's number. */
static shard_status get_text(const shard_metadata *metadata, const char *name, const char *function, const void *value,
                             const char **text)
{
    if (!metadata || !name || !value)
        return shard_null_argument(function, !metadata ? "metadata" : !name ? "name" : "value");
    *text = shard_metadata_get(metadata, name);
    return *text ? SHARD_OK : shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no metadata %s", function, shard_quoted(name));
}

/* Whether a text is a JSON number, with spaces around it or none. *is_integer: as json_reader_number. */
static bool is_number(const char *text, int64_t *value, bool *is_integer)
{
    json_reader reader = json_reader_start(text, strlen(text));
    return json_reader_number(&reader, value, is_integer) == SHARD_OK && json_reader_next(&reader) == '\0';
}

shard_status shard_metadata_get_integer(const shard_metadata *metadata, const char *name, int64_t *value)
{
    const char *text;
    SHARD_TRY(get_text(metadata, name, "shard_metadata_get_integer", value, &text));
    int64_t found;
    bool is_integer;
    if (is_number(text, &found, &is_integer) && is_integer) {
        *value = found;
        return SHARD_OK;
    }
    return shard_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_integer: metadata %s is %s, which is not an integer",
                       shard_quoted(name), shard_quoted(text));
}

static bool is_word(const char *text, double *value)
{
    static const struct {
        const char *word;
        double value;
    } words[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0)
            return *value = words[i].value, true;
    return false;
}

shard_status shard_metadata_get_number(const shard_metadata *metadata, const char *name, double *value)
{
    const char *text;
    SHARD_TRY(get_text(metadata, name, "shard_metadata_get_number", value, &text));
    if (is_word(text, value))
        return SHARD_OK;
    int64_t unused;
    bool is_integer;
    if (is_number(text, &unused, &is_integer)) {
        locale_t plain = newlocale(LC_ALL_MASK, "C", NULL);
        double found = strtod_l(text, NULL, plain);
        freelocale(plain);
        if (isfinite(found)) {
            *value = found;
            return SHARD_OK;
        }
    }
    return shard_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_number: metadata %s is %s, which is not a number",
                       shard_quoted(name), shard_quoted(text));
}
