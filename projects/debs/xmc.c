#include "xmc.h"

#include "array.h"
#include "files.h"
#include "identical.h"
#include "hash.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORD_BYTES 48 /* no number of such a file is longer */

typedef struct reader {
    const char *path;
    FILE *file;
    int64_t line;
    xmc_data *data;
    int64_t label_room, feature_room, point_room; /* numbers that the arrays have memory for */
    char word[WORD_BYTES];
    int end; /* the character after the word; EOF */
} reader;

static shard_status refuse(const reader *from, const char *problem)
{
    return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": %s", from->path, from->line, problem);
}

static shard_status refuse_word(const reader *from, const char *expected)
{
    char shown[4 * WORD_BYTES];
    return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": \"%s\" is not %s", from->path, from->line,
                       shard_printable(shown, sizeof shown, from->word), expected);
}

/* ---- words ---- */

/* Reads up to a space, a comma, a colon or the end of the line. */
static shard_status read_word(reader *from)
{
    size_t length = 0;
    for (;;) {
        int c = getc_unlocked(from->file);
        if (c == ' ' || c == ',' || c == ':' || c == '\n' || c == EOF) {
            from->word[length] = '\0';
            from->end = c;
            if (c == EOF && ferror(from->file))
                return shard_error(SHARD_ERROR_IO, "%s: line %" PRId64 ": %s", from->path, from->line, strerror(errno));
            return SHARD_OK;
        }
        if (c == '\0' || length == WORD_BYTES - 1) {
            from->word[length] = '\0';
            return refuse_word(from, c ? "a number: it is too long" : "followed by a number, but by a byte of 0");
        }
        from->word[length++] = (char)c;
    }
}

/* The word as a number below `below`; digits alone. */
static shard_status read_whole(const reader *from, const char *what, int64_t below, int64_t *number)
{
    char expected[64];
    size_t length = strlen(from->word);
    *number = 0;
    bool digits = length > 0 && length < 11 && from->word[strspn(from->word, "0123456789")] == '\0';
    for (size_t i = 0; digits && i < length; i++)
        *number = 10 * *number + from->word[i] - '0';
    if (digits && *number < below)
        return SHARD_OK;
    snprintf(expected, sizeof expected, "%s from 0 to %" PRId64, what, below - 1);
    return refuse_word(from, expected);
}

static shard_status read_value(const reader *from, float *value)
{
    char *end;
    *value = strtof(from->word, &end);
    bool plain = from->word[strspn(from->word, "0123456789+-.eE")] == '\0' && from->word[0] != '\0';
    return plain && !*end && isfinite(*value) ? SHARD_OK : refuse_word(from, "a value, a finite number");
}

/* ---- lines ---- */

static shard_status read_header(reader *from)
{
    int64_t *const numbers[] = {&from->data->points, &from->data->features, &from->data->labels};
    static const char *const names[] = {"a number of points", "a number of features", "a number of labels"};
    shard_status status = SHARD_OK;
    from->line = 1;
    for (int i = 0; i < 3 && status == SHARD_OK; i++) {
        status = read_word(from);
        if (status == SHARD_OK && from->end != (i < 2 ? ' ' : '\n'))
            return refuse(from, "the first line is \"points features labels\", three numbers with a space between");
        if (status == SHARD_OK)
            status = read_whole(from, names[i], XMC_MOST, numbers[i]);
        if (status == SHARD_OK && *numbers[i] == 0)
            return refuse_word(from, i == 0 ? "a number of points of at least 1" : "a number of at least 1");
    }
    return status;
}

static int compare_labels(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int compare_features(const void *a, const void *b)
{
    int32_t x = ((const xmc_feature *)a)->number, y = ((const xmc_feature *)b)->number;
    return (x > y) - (x < y);
}

/* Reads up to the space after the labels, or the end of the line. */
static shard_status read_labels(reader *from, int64_t *count)
{
    xmc_data *data = from->data;
    int64_t begin = *count, label;
    shard_status status = read_word(from);
    if (status != SHARD_OK || (from->word[0] == '\0' && (from->end == ' ' || from->end == '\n')))
        return status;
    while (status == SHARD_OK) {
        if (from->end == ':')
            return refuse(from, "labels come first, and a point without labels begins with a space");
        status = read_whole(from, "a label", data->labels, &label);
        if (status == SHARD_OK)
            status = array_grow(&data->label, &from->label_room, *count + 1, sizeof *data->label);
        if (status != SHARD_OK)
            return status;
        data->label[(*count)++] = (int32_t)label;
        if (from->end != ',')
            break;
        status = read_word(from);
    }
    if (status == SHARD_OK)
        qsort(data->label + begin, (size_t)(*count - begin), sizeof *data->label, compare_labels);
    for (int64_t i = begin + 1; i < *count && status == SHARD_OK; i++)
        if (data->label[i] == data->label[i - 1])
            status = shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": the label %d is there twice", from->path, from->line,
                                 (int)data->label[i]);
    return status;
}

static shard_status read_features(reader *from, int64_t *count)
{
    xmc_data *data = from->data;
    int64_t begin = *count, number;
    shard_status status = SHARD_OK;
    bool ascending = true;
    while (from->end == ' ' && status == SHARD_OK) {
        float value = 0;
        status = read_word(from);
        if (status == SHARD_OK && from->word[0] == '\0' && (from->end == '\n' || from->end == EOF)) /* a space ends the line */
            break;
        if (status == SHARD_OK && from->end != ':')
            return refuse_word(from, "a feature:value");
        if (status == SHARD_OK)
            status = read_whole(from, "a feature", data->features, &number);
        if (status == SHARD_OK)
            status = read_word(from);
        if (status == SHARD_OK && (from->end == ':' || from->end == ','))
            return refuse(from, "a value is followed by a space or the end of the line");
        if (status == SHARD_OK)
            status = read_value(from, &value);
        if (status == SHARD_OK)
            status = array_grow(&data->feature, &from->feature_room, *count + 1, sizeof *data->feature);
        if (status != SHARD_OK)
            return status;
        ascending &= *count == begin || data->feature[*count - 1].number < number;
        data->feature[(*count)++] = (xmc_feature){(int32_t)number, value};
    }
    if (status == SHARD_OK && !ascending)
        qsort(data->feature + begin, (size_t)(*count - begin), sizeof *data->feature, compare_features);
    for (int64_t i = begin + 1; i < *count && status == SHARD_OK; i++)
        if (data->feature[i].number == data->feature[i - 1].number)
            status = shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": the feature %d is there twice", from->path,
                                 from->line, (int)data->feature[i].number);
    return status;
}

/* Keeps where the point's labels and features begin; the room of both arrays is the same. */
static shard_status begin_point(reader *from, int64_t point, int64_t labels, int64_t features)
{
    xmc_data *data = from->data;
    int64_t room = from->point_room;
    shard_status status = array_grow(&data->label_begin, &room, point + 1, sizeof(int64_t));
    if (status == SHARD_OK)
        status = array_grow(&data->feature_begin, &from->point_room, point + 1, sizeof(int64_t));
    if (status != SHARD_OK)
        return status;
    data->label_begin[point] = labels;
    data->feature_begin[point] = features;
    return SHARD_OK;
}

static shard_status read_points(reader *from)
{
    int64_t point = 0, labels = 0, features = 0;
    shard_status status = begin_point(from, 0, 0, 0);
    while (status == SHARD_OK) {
        int first = getc_unlocked(from->file);
        if (first == EOF)
            break;
        ungetc(first, from->file);
        from->line++;
        if (point == from->data->points)
            return refuse(from, "the first line says that there are fewer points");
        status = read_labels(from, &labels);
        if (status == SHARD_OK)
            status = read_features(from, &features);
        if (status == SHARD_OK && from->end != '\n' && from->end != EOF)
            status = refuse(from, "labels are followed by a space and features");
        if (status == SHARD_OK)
            status = begin_point(from, ++point, labels, features);
    }
    if (status == SHARD_OK && ferror(from->file))
        return shard_error(SHARD_ERROR_IO, "%s: line %" PRId64 ": %s", from->path, from->line + 1, strerror(errno));
    if (status == SHARD_OK && point < from->data->points)
        return shard_error(SHARD_ERROR_FORMAT, "%s: it has %" PRId64 " points, and its first line says %" PRId64, from->path,
                           point, from->data->points);
    return status;
}

/* FNV-1a, by words of 4 bytes. */
static uint64_t hash_words(uint64_t hash, const void *words, int64_t count)
{
    const char *from = words;
    for (int64_t i = 0; i < count; i++) {
        uint32_t word;
        memcpy(&word, from + 4 * i, sizeof word);
        hash = hash_word(hash, word);
    }
    return hash;
}

static uint64_t hash_data(const xmc_data *data)
{
    uint64_t hash = hash_word(hash_word(HASH_START, (uint64_t)data->features), (uint64_t)data->labels);
    hash = hash_words(hash, data->label_begin, 2 * (data->points + 1));
    hash = hash_words(hash, data->feature_begin, 2 * (data->points + 1));
    hash = hash_words(hash, data->label, data->label_begin[data->points]);
    return hash_words(hash, data->feature, 2 * data->feature_begin[data->points]);
}

xmc_data *xmc_open(const char *path)
{
    reader from = {.path = path, .file = files_open(path), .data = calloc(1, sizeof(xmc_data))};
    if (from.file && !from.data)
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory", path);
    bool read = from.file && from.data && read_header(&from) == SHARD_OK && read_points(&from) == SHARD_OK;
    if (from.file)
        fclose(from.file);
    if (read) {
        from.data->hash = hash_data(from.data);
        return from.data;
    }
    xmc_close(from.data);
    return NULL;
}

void xmc_close(xmc_data *data)
{
    if (!data)
        return;
    free(data->label_begin);
    free(data->feature_begin);
    free(data->label);
    free(data->feature);
    free(data);
}

/* ---- over ranks ---- */

static void write_summary(const void *of, int64_t index, char *text)
{
    const xmc_data *data = of;
    (void)index;
    snprintf(text, IDENTICAL_BYTES, "%" PRId64 " points, %" PRId64 " features, %" PRId64 " labels, hash %016" PRIx64,
             data->points, data->features, data->labels, data->hash);
}

shard_status xmc_check_identical(const xmc_data *data, const char *path)
{
    char what[IDENTICAL_BYTES];
    snprintf(what, sizeof what, "the data of %s", path);
    return check_identical(what, "give all ranks the same file",
                           (identical_list){.count = 1, .write = write_summary, .of = data});
}
