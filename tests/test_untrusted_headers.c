/* Safetensors files from strangers: the exact text of each case of untrusted/headers.txt, and the memory that a header takes. */
#include "base/printable.h"
#include "support/cases.h"
#include "support/heap.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include "base/hash.h"
#include "checkpoint/header.h"

#include <shard/checkpoint.h>
#include <shard/tensor.h>

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Of a header of so many bytes, with its text: docs/checkpoints.md. */
static size_t allowed(size_t header_bytes)
{
    return 4 * header_bytes + 1000000;
}

/* ---- the table ---- */

static void describe(char *to, size_t room, const shard_tensors *list, const shard_metadata *metadata)
{
    const char *name, *value;
    int64_t count = shard_tensors_count(list);
    size_t used = (size_t)snprintf(to, room, "read: %" PRId64 " tensor%s", count, count == 1 ? "" : "s");
    for (int64_t i = 0; i < count && count < 10; i++)
        used += (size_t)snprintf(to + used, room - used, ", %s %s %s", shard_quoted(shard_tensors_name(list, i)),
                                 shard_dtype_name(shard_tensor_dtype(shard_tensors_at(list, i))),
                                 shard_shape_text(&shard_tensors_at(list, i)->shape));
    for (int64_t at = 0; shard_metadata_next(metadata, &at, &name, &value);)
        used += (size_t)snprintf(to + used, room - used, ", %s = %s", shard_quoted(name), shard_quoted(value));
}

/* The header alone takes no more memory than is allowed. */
static void check_memory(const char *path, size_t bytes)
{
    shard_file file = {0};
    shard_safetensors header = {0};
    int64_t file_bytes, data_start;
    uint64_t hash;
    heap_start();
    if (shard_file_open(&file, path, &file_bytes) == SHARD_OK)
        shard_header_read(&header, &file, file_bytes, true, &data_start, &hash);
    ck_assert_msg(heap_peak() <= allowed(bytes), "%zu bytes of memory for a file of %zu", heap_peak(), bytes);
    shard_safetensors_free(&header);
    shard_file_close(&file);
    shard_clear_error();
}

START_TEST(test_table)
{
    case_table table = cases_open("untrusted/headers.txt");
    const char *path = scratch_path("untrusted");
    for (int i = 0; i < table.count; i++) {
        char read[2000];
        size_t bytes;
        unsigned char *file = case_file(table.cases[i].make, &bytes);
        write_file(path, file, bytes);
        check_memory(path, bytes);
        shard_metadata *metadata = NULL;
        shard_tensors *list = shard_inspect(path, &metadata);
        if (list)
            describe(read, sizeof read, list, metadata);
        if (list && shard_load(list, path) == SHARD_OK && shard_verify(path) == SHARD_ERROR_UNSUPPORTED)
            shard_clear_error(); /* no checksums */
        case_told(&table.cases[i], shard_last_status() == SHARD_OK ? read : shard_last_error(), path, "FILE");
        ck_assert_ptr_null(strpbrk(table.cases[i].now, "\n\r\t\033"));
        shard_clear_error();
        shard_metadata_destroy(metadata);
        shard_tensors_destroy(list);
        free(file);
    }
    cases_close(&table);
}
END_TEST

/* ---- memory ---- */

typedef struct text {
    char *at;
    size_t bytes, capacity;
} text;

static void add(text *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(text *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    ck_assert_uint_lt(to->bytes + 200, to->capacity);
    to->bytes += (size_t)vsprintf(to->at + to->bytes, format, arguments);
    va_end(arguments);
}

static void fill(text *to, const char *piece, size_t bytes)
{
    for (size_t length = strlen(piece); to->bytes + length < bytes; to->bytes += length)
        memcpy(to->at + to->bytes, piece, length);
}

/* A different name for each number, as short as can be. */
static const char *short_name(size_t number)
{
    static char name[8];
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    char *to = name;
    for (; number; number /= 64)
        *to++ = letters[number % 64];
    *to = '\0';
    return name;
}

#define NOTHING "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}"

static void many_tensors(text *to, size_t bytes)
{
    for (size_t i = 0; to->bytes < bytes; i++)
        add(to, "%s\"%s\":" NOTHING, i ? "," : "", short_name(i));
}

static void one_name_for_all(text *to, size_t bytes)
{
    for (size_t i = 0; to->bytes < bytes; i++)
        add(to, "%s\"\":" NOTHING, i ? "," : "");
}

static void many_strings(text *to, size_t bytes)
{
    add(to, "\"__metadata__\":{");
    for (size_t i = 0; to->bytes < bytes; i++)
        add(to, "%s\"%s\":\"\"", i ? "," : "", short_name(i));
    add(to, "}");
}

static void one_name_for_all_strings(text *to, size_t bytes)
{
    add(to, "\"__metadata__\":{");
    for (size_t i = 0; to->bytes < bytes; i++)
        add(to, "%s\"\":\"\"", i ? "," : "");
    add(to, "}");
}

static void a_long_name(text *to, size_t bytes)
{
    add(to, "\"");
    fill(to, "x", bytes);
    add(to, "\":" NOTHING);
}

static void a_long_dtype(text *to, size_t bytes)
{
    add(to, "\"a\":{\"dtype\":\"");
    fill(to, "x", bytes);
    add(to, "\"}");
}

static void a_long_value(text *to, size_t bytes)
{
    add(to, "\"__metadata__\":{\"a\":\"");
    fill(to, "\\n\\u00e4", bytes);
    add(to, "\"}");
}

static void two_long_names(text *to, size_t bytes)
{
    add(to, "\"__metadata__\":{\"");
    fill(to, "x", bytes / 2);
    add(to, "\":\"");
    fill(to, "y", bytes);
    add(to, "\"}");
}

static void a_long_shape(text *to, size_t bytes)
{
    add(to, "\"a\":{\"shape\":[1");
    fill(to, ",1", bytes);
    add(to, "]}");
}

static void many_arrays(text *to, size_t bytes)
{
    add(to, "\"a\":{\"x\":[[]");
    fill(to, ",[]", bytes);
    add(to, "],\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}");
}

static void deep_arrays(text *to, size_t bytes)
{
    add(to, "\"a\":{\"x\":");
    fill(to, "[", bytes);
}

static void many_unknown_keys(text *to, size_t bytes)
{
    add(to, "\"a\":{\"x\":1");
    fill(to, ",\"x\":{}", bytes);
    add(to, "}");
}

static void checksums_of_many(text *to, size_t bytes)
{
    add(to, "\"__metadata__\":{\"crc64.header\":\"0000000000000000\",\"crc64.tensors\":\"{");
    for (size_t i = 0; to->bytes < bytes; i++)
        add(to, "%s\\\"%s\\\":\\\"0000000000000000\\\"", i ? "," : "", short_name(i));
    add(to, "}\"}");
}

static void checksums_and_tensors(text *to, size_t bytes)
{
    size_t count = bytes / 90;
    add(to, "\"__metadata__\":{\"crc64.header\":\"0000000000000000\",\"crc64.tensors\":\"{");
    for (size_t i = 0; i < count; i++)
        add(to, "%s\\\"%s\\\":\\\"0000000000000000\\\"", i ? "," : "", short_name(i));
    add(to, "}\"}");
    for (size_t i = 0; i < count; i++)
        add(to, ",\"%s\":" NOTHING, short_name(i));
}

static void only_spaces(text *to, size_t bytes)
{
    fill(to, " ", bytes);
}

static void (*const adversaries[])(text *to, size_t bytes) = {
    many_tensors,      one_name_for_all,      many_strings, one_name_for_all_strings,
    a_long_name,       a_long_dtype,          a_long_value, two_long_names,
    a_long_shape,      many_arrays,           deep_arrays,  many_unknown_keys,
    checksums_of_many, checksums_and_tensors, only_spaces};
#define ADVERSARIES ((int)(sizeof adversaries / sizeof *adversaries))

/* Every tenth size of the bytes in the usual run; the longest header that there is with SHARD_TEST_EVERY. */
START_TEST(test_memory)
{
    size_t most = getenv("SHARD_TEST_EVERY") ? (size_t)SHARD_SAFETENSORS_HEADER_MOST - 100000 : 2000000;
    text header = {.at = malloc(most + 100000), .capacity = most + 100000};
    const char *path = scratch_path("adversary");
    ck_assert_ptr_nonnull(header.at);
    for (size_t bytes = most / 1000; bytes <= most; bytes *= bytes < most / 10 ? 100 : 10) {
        header.bytes = 8;
        add(&header, "{");
        adversaries[_i](&header, bytes);
        add(&header, "}");
        case_seal((unsigned char *)header.at, header.bytes - 8);
        write_file(path, header.at, header.bytes);
        check_memory(path, header.bytes - 8);
    }
    free(header.at);
    remove(path);
}
END_TEST

/* Such headers are read within the memory that is allowed, not only refused. */
START_TEST(test_many_are_read)
{
    void (*const sound[])(text * to, size_t bytes) = {many_tensors, many_strings, many_arrays, checksums_and_tensors};
    for (size_t i = 0; i < sizeof sound / sizeof *sound; i++) {
        text header = {.at = malloc(200000), .capacity = 200000, .bytes = 8};
        shard_metadata *metadata = NULL;
        const char *path = scratch_path("sound");
        add(&header, "{");
        sound[i](&header, 100000);
        add(&header, "}");
        case_seal((unsigned char *)header.at, header.bytes - 8);
        write_file(path, header.at, header.bytes);
        shard_tensors *list = shard_inspect(path, &metadata);
        ck_assert_msg(list != NULL, "%s", shard_last_error());
        ck_assert_int_gt(shard_tensors_count(list) + metadata->count, i == 2 ? 0 : 1000);
        shard_metadata_destroy(metadata);
        shard_tensors_destroy(list);
        free(header.at);
    }
}
END_TEST

/* ---- time ---- */

enum { MANY = 20000, SLOTS = 1 << 16, LETTERS = 94 }; /* a list of so many names has so many slots */

/* Names of 8 letters that all have the same slot by FNV-1a from SHARD_HASH_START. The first five letters count; the last three
 * lead from there to one hash, modulo the slots, by the steps of the hash backwards. */
static void make_names_that_meet(char (*names)[9])
{
    static char last[SLOTS][4];
    uint32_t inverse = 1;
    while (inverse * 0x1b3u % SLOTS != 1) /* the factor of FNV, modulo the slots */
        inverse += 2;
    for (int i = 0; i < LETTERS * LETTERS * LETTERS; i++) {
        char letters[4] = {(char)('!' + i % LETTERS), (char)('!' + i / LETTERS % LETTERS), (char)('!' + i / LETTERS / LETTERS)};
        uint32_t hash = 1;
        for (int at = 2; at >= 0; at--)
            hash = hash * inverse % SLOTS ^ (unsigned char)letters[at];
        if (!strpbrk(letters, "\"\\"))
            strcpy(last[hash], letters);
    }
    for (unsigned count = 0, number = 0; count < MANY; number++) {
        snprintf(names[count], 9, "%05u", number % 100000u);
        const char *found = last[shard_hash_text(SHARD_HASH_START, names[count]) % SLOTS];
        strcat(names[count], found);
        count += *found != '\0';
    }
}

/* Processor time of shard_inspect of a file with tensors of these names. */
static double time_of_inspect(char (*names)[9])
{
    text file = {.at = malloc(200 * MANY), .bytes = 8, .capacity = 200 * MANY};
    for (int i = 0; i < MANY; i++)
        add(&file, "%c\"%s\":" NOTHING, i ? ',' : '{', names[i]);
    add(&file, "}");
    for (int i = 0; i < 8; i++)
        file.at[i] = (char)((file.bytes - 8) >> 8 * i & 0xff);
    write_file(scratch_path("names"), file.at, file.bytes);
    free(file.at);
    clock_t start = clock();
    shard_tensors *list = shard_inspect(scratch_path("names"), NULL);
    ck_assert_msg(shard_tensors_count(list) == MANY, "%s", shard_last_error());
    for (int i = 0; i < MANY; i += 999)
        ck_assert_str_eq(shard_tensors_name(list, i), names[i]);
    shard_tensors_destroy(list);
    return (double)(clock() - start) / CLOCKS_PER_SEC;
}

/* Names that were chosen to meet in one slot of a hash table take no more time than others. */
START_TEST(test_names_that_meet)
{
    static char names[MANY][9];
    for (int i = 0; i < MANY; i++)
        snprintf(names[i], sizeof names[i], "%08u", (unsigned)i % 100000000U);
    double usual = time_of_inspect(names);
    make_names_that_meet(names);
    double now = time_of_inspect(names);
    ck_assert_msg(now < 8 * usual + 0.1, "%g s, and %g s with usual names", now, usual);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("untrusted_headers");
    TCase *tcase = test_case(suite, "untrusted_headers");
    tcase_add_test(tcase, test_table);
    tcase_add_loop_test(tcase, test_memory, 0, ADVERSARIES);
    tcase_add_test(tcase, test_many_are_read);
    tcase_add_test(tcase, test_names_that_meet);
    scratch_open();
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
