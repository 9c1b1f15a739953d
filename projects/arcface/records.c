#include "records.h"

#include "array.h"
#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0xced7230au
#define WORD 4 /* bytes; records begin at multiples of it */
#define LENGTH_BITS 29
#define HEADER_BYTES 24
#define MOST_LABELS 65536          /* of one image; insightface has one or two */
#define MOST_WHOLE_FLOAT (1 << 24) /* whole numbers above it are not all float32 */
#define TEXT_BYTES (PATH_MAX + 96)

typedef struct record {
    int64_t key, position;
} record;

struct record_set {
    char path[PATH_MAX]; /* of train.rec */
    int descriptor;
    int64_t bytes;
    record *records; /* of the images, in the order of their keys */
    int32_t *label;
    int64_t images, identities, capacity;
};

/* ---- bytes ---- */

static uint32_t word_at(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static float float_at(const uint8_t *bytes)
{
    uint32_t word = word_at(bytes);
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static shard_status wrong(const record_set *set, int64_t position, const char *why)
{
    return shard_error(SHARD_ERROR_FORMAT, "%s: byte %" PRId64 ": %s", set->path, position, why);
}

static shard_status read_at(const record_set *set, int64_t position, int64_t size, uint8_t *into)
{
    while (size > 0) {
        ssize_t count = pread(set->descriptor, into, (size_t)size, position);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return shard_error(SHARD_ERROR_IO, "%s: %s", set->path, strerror(errno));
        if (count == 0)
            return wrong(set, position, "the file ends here, within a record");
        into += count;
        position += count;
        size -= count;
    }
    return SHARD_OK;
}

/* ---- one record ---- */

/* A part of a record. */
typedef struct part {
    int64_t begin, size, next; /* of its bytes; where the part after it begins */
    uint32_t flag;
} part;

static shard_status read_part(const record_set *set, int64_t position, bool first, part *found)
{
    uint8_t words[2 * WORD];
    if (position % WORD != 0 || position < 0 || position > set->bytes - (int64_t)sizeof words)
        return wrong(set, position, "no record can begin here");
    shard_status status = read_at(set, position, sizeof words, words);
    if (status != SHARD_OK)
        return status;
    uint32_t second = word_at(words + WORD), length = second & ((1u << LENGTH_BITS) - 1);
    *found = (part){.begin = position + (int64_t)sizeof words, .size = length, .flag = second >> LENGTH_BITS};
    found->next = found->begin + (found->size + WORD - 1) / WORD * WORD;
    if (word_at(words) != MAGIC)
        return wrong(set, position, "a record begins with the word 0xced7230a");
    if (first ? found->flag > 1 : found->flag != 2 && found->flag != 3)
        return wrong(set, position,
                     first ? "the flag of a record's first part is 0 or 1" : "the flag of a record's next part is 2 or 3");
    if (found->size > set->bytes - found->begin)
        return wrong(set, position, "its length goes beyond the end of the file");
    return SHARD_OK;
}

/* The record's content from byte `from` on: at most `limit` bytes of it, or only their number (into NULL). *size: so many. */
static shard_status read_content(const record_set *set, int64_t position, int64_t from, int64_t limit, uint8_t *into,
                                 int64_t *size)
{
    int64_t at = 0; /* in the content */
    part found = {.next = position};
    *size = 0;
    for (bool first = true; first || (found.flag != 0 && found.flag != 3); first = false) {
        uint8_t magic[WORD] = {0x0a, 0x23, 0xd7, 0xce};
        shard_status status = read_part(set, found.next, first, &found);
        if (status != SHARD_OK)
            return status;
        for (int i = 0; i < WORD && !first; i++, at++)
            if (at >= from && *size < limit) {
                if (into)
                    into[*size] = magic[i];
                ++*size;
            }
        int64_t skip = from > at ? from - at : 0, take = found.size - skip;
        if (take > limit - *size)
            take = limit - *size;
        if (take > 0 && into)
            status = read_at(set, found.begin + skip, take, into + *size);
        if (status != SHARD_OK)
            return status;
        *size += take > 0 ? take : 0;
        at += found.size;
        if (into && *size == limit)
            break;
    }
    return SHARD_OK;
}

/* The number of float labels behind the header (0: one in it), and the first two, of which there may be one. */
static shard_status read_labels(const record_set *set, int64_t position, int64_t *count, float labels[2])
{
    uint8_t bytes[HEADER_BYTES + 2 * sizeof(float)];
    int64_t size;
    shard_status status = read_content(set, position, 0, sizeof bytes, bytes, &size);
    if (status != SHARD_OK)
        return status;
    if (size < HEADER_BYTES)
        return wrong(set, position, "the record has no header of 24 bytes");
    *count = word_at(bytes);
    if (*count > MOST_LABELS)
        return wrong(set, position, "the header's flag, the number of labels, is above 65536");
    if (*count > 0 && size < HEADER_BYTES + (*count > 1 ? 2 : 1) * (int64_t)sizeof(float))
        return wrong(set, position, "the record ends before its labels do");
    labels[0] = float_at(bytes + (*count > 0 ? HEADER_BYTES : WORD));
    labels[1] = *count > 1 ? float_at(bytes + HEADER_BYTES + sizeof(float)) : 0;
    return SHARD_OK;
}

/* ---- the index ---- */

#define INDEX_LINE_BYTES 64 /* two numbers of at most 19 digits, and what is between and behind them; leading zeros, too */

static shard_status add_record(record_set *set, record added)
{
    shard_status status = array_grow(&set->records, &set->capacity, set->images + 1, sizeof added);
    if (status != SHARD_OK)
        return status;
    set->records[set->images++] = added;
    return SHARD_OK;
}

/* A whole number of digits alone; -1 if it is none, or too large. */
static int64_t read_number(const char *text, const char *end)
{
    int64_t value = 0;
    if (text == end)
        return -1;
    for (; text < end; text++)
        if (*text < '0' || *text > '9' || __builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, *text - '0', &value))
            return -1;
    return value;
}

static shard_status read_line(record_set *set, const char *path, int64_t number, const char *line, int64_t length)
{
    const char *end = line + length, *tab = memchr(line, '\t', (size_t)length);
    record found = {tab ? read_number(line, tab) : -1, tab ? read_number(tab + 1, end) : -1};
    if (length == INDEX_LINE_BYTES || found.key < 0 || found.position < 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: line %" PRId64 ": not a key, a tab and a position, whole numbers", path,
                           number);
    return add_record(set, found);
}

static int compare_records(const void *a, const void *b)
{
    int64_t x = ((const record *)a)->key, y = ((const record *)b)->key;
    return (x > y) - (x < y);
}

static shard_status read_lines(record_set *set, const char *path, FILE *file)
{
    char line[INDEX_LINE_BYTES];
    int64_t length;
    shard_status status = SHARD_OK;
    for (int64_t number = 1; status == SHARD_OK && (length = files_read_line(file, line, sizeof line)) >= 0; number++)
        status = read_line(set, path, number, line, length);
    if (status == SHARD_OK && ferror(file))
        status = shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    return status;
}

static shard_status read_index(record_set *set, const char *path)
{
    FILE *file = files_open(path);
    if (!file)
        return shard_last_status();
    shard_status status = read_lines(set, path, file);
    fclose(file);
    if (status != SHARD_OK)
        return status;
    if (set->images == 0)
        return shard_error(SHARD_ERROR_FORMAT, "%s: no records", path);
    qsort(set->records, (size_t)set->images, sizeof *set->records, compare_records);
    for (int64_t i = 1; i < set->images; i++)
        if (set->records[i].key == set->records[i - 1].key)
            return shard_error(SHARD_ERROR_FORMAT, "%s: the key %" PRId64 " is there twice", path, set->records[i].key);
    return SHARD_OK;
}

/* ---- the images ---- */

/* Whether there is something behind the record's labels; a record that the index has not has nothing. */
static shard_status find_image(const record_set *set, int64_t key, bool *found)
{
    const record wanted = {.key = key};
    const record *at = bsearch(&wanted, set->records, (size_t)set->images, sizeof wanted, compare_records);
    int64_t labels = 0, size = 0;
    float ignored[2];
    shard_status status = at ? read_labels(set, at->position, &labels, ignored) : SHARD_OK;
    if (status == SHARD_OK && at)
        status = read_content(set, at->position, HEADER_BYTES + labels * (int64_t)sizeof(float), 1, NULL, &size);
    *found = size > 0;
    return status;
}

/* n was read from a float32, which rounds from 2^24 on. Then record n - 1 is an identity's, without an image, or record n has an
 * image. */
static shard_status check_rounded(const record_set *set, int64_t n)
{
    bool last = false, next = false;
    shard_status status = find_image(set, n - 1, &last);
    if (status == SHARD_OK)
        status = find_image(set, n, &next);
    if (status != SHARD_OK || (last && !next))
        return status;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "%s: record 0 says that there are %" PRId64 " images, a float32 of 2^24 or more that was rounded: record "
                       "%" PRId64 " has %s image; write a record 0 without labels, and images alone",
                       set->path, n - 1, last ? n : n - 1, last ? "an" : "no");
}

/* Leaves the records 1 to n - 1 if record 0 says so. */
static shard_status choose_images(record_set *set)
{
    int64_t position = set->records[0].position, count;
    float range[2];
    if (set->records[0].key != 0)
        return SHARD_OK;
    shard_status status = read_labels(set, position, &count, range);
    if (status != SHARD_OK || count == 0)
        return status;
    if (count < 2 || !(range[0] > 1) || range[0] != floorf(range[0]) || !(range[1] >= range[0]))
        return wrong(set, position,
                     "the labels of record 0 are not (n, m), where records 1 to n - 1 are images and m is at least n");
    int64_t last = (int64_t)fminf(range[0], 0x1p62f) - 1;
    if (last + 1 >= MOST_WHOLE_FLOAT)
        status = check_rounded(set, last + 1);
    if (status != SHARD_OK)
        return status;
    for (int64_t i = 1; i <= last; i++)
        if (i >= set->images || set->records[i].key != i)
            return shard_error(SHARD_ERROR_FORMAT,
                               "%s: record 0 says that records 1 to %" PRId64 " are images; the index has no %" PRId64, set->path,
                               last, i);
    memmove(set->records, set->records + 1, (size_t)last * sizeof *set->records);
    set->images = last;
    return SHARD_OK;
}

static shard_status read_all_labels(record_set *set)
{
    set->label = calloc((size_t)set->images, sizeof *set->label);
    if (!set->label)
        return shard_error(SHARD_ERROR_MEMORY, "%s: no memory for %" PRId64 " labels", set->path, set->images);
    for (int64_t i = 0; i < set->images; i++) {
        int64_t count;
        float labels[2];
        shard_status status = read_labels(set, set->records[i].position, &count, labels);
        if (status != SHARD_OK)
            return status;
        if (!(labels[0] >= 0 && labels[0] < MOST_WHOLE_FLOAT) || labels[0] != floorf(labels[0]))
            return wrong(set, set->records[i].position, "the label is not a whole number from 0 to 2^24 - 1");
        set->label[i] = (int32_t)labels[0];
        if (set->label[i] >= set->identities)
            set->identities = set->label[i] + 1;
    }
    return SHARD_OK;
}

static shard_status open_file(record_set *set)
{
    struct stat found;
    set->descriptor = open(set->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (set->descriptor < 0 || fstat(set->descriptor, &found) != 0)
        return shard_error(SHARD_ERROR_IO, "%s: %s", set->path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return shard_error(SHARD_ERROR_IO, "%s: not a regular file", set->path);
    set->bytes = found.st_size;
    return SHARD_OK;
}

record_set *record_set_open(const char *directory)
{
    record_set *set = calloc(1, sizeof *set);
    char index[PATH_MAX];
    if (!set) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the records of %s", directory);
        return NULL;
    }
    set->descriptor = -1;
    bool opened = files_join(set->path, "DIR", directory, "train.rec") == SHARD_OK &&
                  files_join(index, "DIR", directory, "train.idx") == SHARD_OK && open_file(set) == SHARD_OK &&
                  read_index(set, index) == SHARD_OK && choose_images(set) == SHARD_OK && read_all_labels(set) == SHARD_OK;
    if (opened)
        return set;
    record_set_close(set);
    return NULL;
}

void record_set_close(record_set *set)
{
    if (!set)
        return;
    if (set->descriptor >= 0)
        close(set->descriptor);
    free(set->records);
    free(set->label);
    free(set);
}

bool record_set_exists(const char *directory)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/train.rec", directory) < (int)sizeof path && access(path, F_OK) == 0;
}

int64_t record_set_images(const record_set *set)
{
    return set->images;
}

int64_t record_set_identities(const record_set *set)
{
    return set->identities;
}

int64_t record_set_label(const record_set *set, int64_t number)
{
    return set->label[number];
}

shard_status record_set_read(const record_set *set, int64_t number, image_file *file)
{
    int64_t position = set->records[number].position, labels = 0, size = 0;
    float ignored[2];
    char name[TEXT_BYTES];
    snprintf(name, sizeof name, "%s: record %" PRId64 " at byte %" PRId64, set->path, set->records[number].key, position);
    shard_status status = read_labels(set, position, &labels, ignored);
    int64_t begin = HEADER_BYTES + labels * (int64_t)sizeof(float);
    if (status == SHARD_OK)
        status = read_content(set, position, begin, INT64_MAX, NULL, &size);
    if (status == SHARD_OK)
        status = image_file_reserve(file, name, size);
    return status == SHARD_OK ? read_content(set, position, begin, size, file->bytes, &size) : status;
}

/* ---- for the loader ---- */

static int64_t source_label(const void *of, int64_t number)
{
    return record_set_label(of, number);
}

static shard_status source_read(const void *of, int64_t number, image_file *file)
{
    return record_set_read(of, number, file);
}

image_source record_set_source(const record_set *set)
{
    return (image_source){.of = set, .images = set->images, .label = source_label, .read = source_read};
}
