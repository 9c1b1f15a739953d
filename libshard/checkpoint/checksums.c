#include "checkpoint/checksums.h"

#include "base/crc64.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/memory.h"
#include "base/printable.h"
#include "checkpoint/json_reader.h"
#include "checkpoint/json_writer.h"
#include "comm/comm.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OF_HEADER "crc64.header"
#define OF_TENSORS "crc64.tensors"
#define DIGITS 16
#define ZEROS "0000000000000000"

/* ---- digits ---- */

/* Sets `to` to the digits, with a NUL. */
static void print_digits(char to[DIGITS + 1], uint64_t checksum)
{
    snprintf(to, DIGITS + 1, "%016" PRIx64, checksum);
}

/* Reads the digits as print_digits has written them. */
static bool read_digits(const char *text, uint64_t *checksum)
{
    *checksum = 0;
    if (strlen(text) != DIGITS)
        return false;
    for (const char *c = text; *c; c++) {
        int digit = *c >= '0' && *c <= '9' ? *c - '0' : *c >= 'a' && *c <= 'f' ? *c - 'a' + 10 : -1;
        if (digit < 0)
            return false;
        *checksum = *checksum << 4 | (uint64_t)digit;
    }
    return true;
}

/* The place of the header's digits in its text; NULL: it does not stand there as this library writes it. */
static const char *find_digits(const char *text, int64_t bytes)
{
    static const char key[] = "\"" OF_HEADER "\":\"";
    const int64_t length = sizeof key - 1;
    const char *found = memmem(text, (size_t)bytes, key, (size_t)length);
    return found && found - text + length + DIGITS <= bytes ? found + length : NULL;
}

/* The checksum of the file's bytes before the data. */
static uint64_t header_checksum(const void *first, const char *text, int64_t bytes, const char *digits)
{
    const char *behind = digits + DIGITS;
    uint64_t crc = shard_crc64(shard_crc64(0, first, 8), text, digits - text);
    return shard_crc64(shard_crc64(crc, ZEROS, DIGITS), behind, text + bytes - behind);
}

/* ---- writing ---- */

/* The JSON object of the tensors' checksums. */
static shard_status print_tensors(json_writer *writer, const shard_entry *entries, int64_t count)
{
    char digits[DIGITS + 1];
    json_writer_add(writer, "{");
    for (int64_t i = 0; i < count; i++) {
        if (!json_is_utf8(entries[i].name))
            return shard_safetensors_refuse_name(entries[i].name);
        print_digits(digits, entries[i].checksum);
        json_writer_add(writer, i ? "," : "");
        json_writer_string(writer, entries[i].name);
        json_writer_add(writer, ":");
        json_writer_string(writer, digits);
    }
    json_writer_add(writer, "}");
    return json_writer_end(writer) ? SHARD_OK : shard_last_status();
}

/* Sets *all to the two strings, the tensors' of the entries and the header's as zeros, and those of metadata. */
static shard_status describe(shard_metadata *all, const shard_entry *entries, int64_t count, const shard_metadata *metadata)
{
    json_writer tensors = {0};
    const char *name, *value;
    shard_status status = print_tensors(&tensors, entries, count);
    if (status == SHARD_OK)
        status = shard_metadata_append(all, OF_HEADER, ZEROS);
    if (status == SHARD_OK)
        status = shard_metadata_append(all, OF_TENSORS, tensors.text);
    free(tensors.text);
    for (int64_t at = 0; status == SHARD_OK && shard_metadata_next(metadata, &at, &name, &value);)
        if (strcmp(name, OF_HEADER) != 0 && strcmp(name, OF_TENSORS) != 0)
            status = shard_metadata_append(all, name, value);
    return status;
}

/* Sets the header's checksum in its text. */
static void seal(char *header, int64_t bytes)
{
    char digits[DIGITS + 1];
    const char *at = find_digits(header + 8, bytes - 8);
    print_digits(digits, header_checksum(header, header + 8, bytes - 8, at));
    memcpy(header + (at - header), digits, DIGITS);
}

char *shard_checksums_format(const shard_entry *entries, int64_t count, const shard_metadata *metadata, int64_t *bytes)
{
    shard_metadata strings = {0};
    shard_status status = describe(&strings, entries, count, metadata);
    char *header = status == SHARD_OK ? shard_safetensors_format(entries, count, &strings, bytes) : NULL;
    shard_metadata_clear(&strings);
    if (header)
        seal(header, *bytes);
    return header;
}

/* ---- reading ---- */

static shard_status check_header(const char *path, const char *value, const unsigned char first[8], const char *text,
                                 int64_t bytes)
{
    uint64_t saved = 0;
    const char *at = find_digits(text, bytes);
    if (!read_digits(value, &saved) || !at)
        return shard_error(SHARD_ERROR_FORMAT,
                           "%s: its header was changed after it was saved: its checksum is not where it was; %s", path,
                           SHARD_CHECKSUMS_ADVICE);
    uint64_t now = header_checksum(first, text, bytes, at);
    return now == saved ? SHARD_OK
                        : shard_error(SHARD_ERROR_FORMAT,
                                      "%s: its header was changed after it was saved: its checksum is %016" PRIx64
                                      ", and %016" PRIx64 " was saved; %s",
                                      path, now, saved, SHARD_CHECKSUMS_ADVICE);
}

/* A tensor's name and its checksum. */
static shard_status read_tensor(json_reader *reader, const shard_safetensors *header, const char *path, bool *there)
{
    char *name = json_reader_string(reader), *digits = NULL;
    if (name && json_reader_take(reader, ':') == SHARD_OK)
        digits = json_reader_string(reader);
    const shard_entry *found = name ? shard_safetensors_find(header, name) : NULL;
    uint64_t checksum = 0;
    shard_status status = shard_last_status();
    if (digits && (!found || !read_digits(digits, &checksum)))
        status = shard_error(SHARD_ERROR_FORMAT, "%s: its metadata " OF_TENSORS " has %s, which %s", path, shard_quoted(name),
                             found ? "is not a checksum" : "is not a tensor of the file");
    else if (found && digits) {
        header->entries[found - header->entries].checksum = checksum;
        there[found - header->entries] = true;
    }
    free(name);
    free(digits);
    return status;
}

static shard_status read_tensors(const shard_safetensors *header, const char *path, const char *value)
{
    json_reader reader = json_reader_start(value, strlen(value));
    bool *there = shard_calloc((size_t)header->count, sizeof *there);
    shard_status status = there ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK && json_reader_take(&reader, '{') == SHARD_OK)
        for (bool first = true; status == SHARD_OK && json_reader_more(&reader, '}', first); first = false)
            status = read_tensor(&reader, header, path, there);
    if (status == SHARD_OK)
        status = shard_last_status();
    if (!reader.wrong && status == SHARD_OK && (json_reader_next(&reader), reader.at < reader.end))
        reader.wrong = "more text behind it";
    if (status == SHARD_OK && reader.wrong)
        status = shard_error(SHARD_ERROR_FORMAT, "%s: its metadata " OF_TENSORS " at byte %td: %s", path,
                             reader.at - reader.start, reader.wrong);
    for (int64_t i = 0; i < header->count && status == SHARD_OK; i++)
        if (!there[i])
            status = shard_error(SHARD_ERROR_FORMAT, "%s: its metadata " OF_TENSORS " has no checksum of %s; %s", path,
                                 shard_quoted(header->entries[i].name), SHARD_CHECKSUMS_ADVICE);
    free(there);
    return status;
}

shard_status shard_checksums_take(shard_safetensors *header, const char *path, const unsigned char first[8], const char *text,
                                  int64_t text_bytes, bool verify)
{
    const char *of_header = shard_metadata_get(&header->metadata, OF_HEADER);
    const char *of_tensors = shard_metadata_get(&header->metadata, OF_TENSORS);
    shard_status status = SHARD_OK;
    if (verify && !of_header != !of_tensors)
        status =
            shard_error(SHARD_ERROR_FORMAT, "%s: its header was changed after it was saved: its metadata has %s and no %s; %s",
                        path, of_header ? OF_HEADER : OF_TENSORS, of_header ? OF_TENSORS : OF_HEADER, SHARD_CHECKSUMS_ADVICE);
    else if (verify && of_header)
        status = check_header(path, of_header, first, text, text_bytes);
    if (status == SHARD_OK && verify && of_tensors)
        status = read_tensors(header, path, of_tensors);
    header->checksums = status == SHARD_OK && verify && of_header;
    shard_metadata_remove(&header->metadata, OF_HEADER);
    shard_metadata_remove(&header->metadata, OF_TENSORS);
    return status;
}

shard_status shard_checksums_compare(const char *path, const shard_entry *entry, uint64_t checksum)
{
    return checksum == entry->checksum
               ? SHARD_OK
               : shard_error(SHARD_ERROR_FORMAT,
                             "%s: the data of %s was changed after it was saved: its checksum is %016" PRIx64 ", and %016" PRIx64
                             " was saved; %s",
                             path, shard_quoted(entry->name), checksum, entry->checksum, SHARD_CHECKSUMS_ADVICE);
}

/* ---- of parts ---- */

static uint64_t hash_place(int64_t place)
{
    return shard_hash_element(place, 0);
}

void shard_run_sum_add(shard_run_sum *sum, int64_t begin, int64_t bytes, uint64_t crc)
{
    int64_t distance = begin + bytes - sum->end;
    if (distance != sum->distance) {
        sum->distance = distance;
        sum->factor = shard_crc64_factor(distance);
    }
    sum->crc = (sum->crc ? shard_crc64_multiply(sum->crc, sum->factor) : 0) ^ crc;
    sum->boundaries += hash_place(begin + bytes) - hash_place(begin);
    sum->end = begin + bytes;
}

uint64_t shard_run_sum_part(const shard_run_sum *sum, int64_t bytes)
{
    return shard_crc64_shift(sum->crc, bytes - sum->end);
}

uint64_t shard_run_sum_whole(int64_t bytes)
{
    return hash_place(bytes) - hash_place(0);
}

shard_status shard_run_sum_check_whole(const shard_entry *entry, uint64_t boundaries)
{
    return boundaries == shard_run_sum_whole(entry->end - entry->begin)
               ? SHARD_OK
               : shard_error(SHARD_ERROR_INTERNAL, "not all bytes of %s were written once", shard_quoted(entry->name));
}

/* Groups can add, but have no XOR: each bit of a word is added in a field of 16 bits, of which the lowest counts. A world has
 * fewer ranks than a field can count. */
enum { FIELDS = 16, BLOCK = 1024 };
#define LOWEST 0x0001000100010001u

shard_status shard_checksums_combine(shard_group *group, uint64_t *words, int64_t count)
{
    if (shard_group_size(group) == 1)
        return shard_last_status();
    uint64_t *fields = shard_calloc(FIELDS * (size_t)shard_min(count, BLOCK), sizeof *fields);
    shard_status status = SHARD_OK;
    for (int64_t start = 0; start < count && status == SHARD_OK; start += BLOCK) {
        int64_t number = shard_min(count - start, BLOCK);
        for (int64_t i = 0; i < number * FIELDS && fields && words; i++)
            fields[i] = words[start + i / FIELDS] >> i % FIELDS & LOWEST;
        status = shard_group_all_reduce(group, NULL, words ? fields : NULL, number * FIELDS, SHARD_INT64, SHARD_SUM);
        for (int64_t i = 0; i < number * FIELDS && status == SHARD_OK; i++)
            words[start + i / FIELDS] = (i % FIELDS ? words[start + i / FIELDS] : 0) | (fields[i] & LOWEST) << i % FIELDS;
    }
    free(fields);
    return shard_last_status();
}
