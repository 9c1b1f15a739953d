/* The reader of RecordIO in projects/arcface: insightface's layout, records in parts, exact errors, and files that are cut or
 * changed anywhere. */
#include "support/heap.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include "records.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0xced7230au
#define INDEX "0\t0\n1\t40\n2\t80\n3\t120\n4\t168\n5\t208\n"
enum { REC_BYTES = 248, MOST_BYTES = 512 };

typedef struct content {
    uint8_t bytes[MOST_BYTES];
    size_t size;
} content;

static void put_word(content *to, uint32_t word)
{
    for (int i = 0; i < 4; i++)
        to->bytes[to->size++] = (uint8_t)(word >> 8 * i);
}

static void put_float(content *to, float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    put_word(to, word);
}

static void put_part(content *to, uint32_t flag, const uint8_t *bytes, size_t size)
{
    put_word(to, MAGIC);
    put_word(to, flag << 29 | (uint32_t)size);
    memcpy(to->bytes + to->size, bytes, size);
    to->size += size;
    while (to->size % 4)
        to->bytes[to->size++] = 0;
}

/* labels: 0 for one in the header. */
static content make_payload(int labels, float first, float second, const char *picture, size_t size)
{
    content made = {0};
    put_word(&made, (uint32_t)labels);
    put_float(&made, labels ? 0 : first);
    for (int i = 0; i < 4; i++)
        put_word(&made, 7);
    if (labels > 0)
        put_float(&made, first);
    if (labels > 1)
        put_float(&made, second);
    memcpy(made.bytes + made.size, picture, size);
    made.size += size;
    return made;
}

static void put_record(content *to, int labels, float first, float second, const char *picture)
{
    content payload = make_payload(labels, first, second, picture, strlen(picture));
    put_part(to, 0, payload.bytes, payload.size);
}

/* Images are records 1 to 3, of the identities 0, 1 and 1; records 4 and 5 are those of the identities. */
static content make_sound(void)
{
    content made = {0};
    put_record(&made, 2, 4, 6, "");
    put_record(&made, 0, 0, 0, "imageone");
    put_record(&made, 0, 1, 0, "image");
    put_record(&made, 2, 1, 0, "imagetwo");
    put_record(&made, 2, 1, 2, "");
    put_record(&made, 2, 2, 4, "");
    ck_assert_uint_eq(made.size, REC_BYTES);
    return made;
}

static record_set *open_set(const char *index, const content *records)
{
    write_file(scratch_path("train.idx"), index, strlen(index));
    write_file(scratch_path("train.rec"), records->bytes, records->size);
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", scratch_path("train.rec"));
    *strrchr(folder, '/') = '\0';
    return record_set_open(folder);
}

static void check_image(const record_set *set, int64_t number, int64_t label, const void *expected, size_t size)
{
    image_file file = {0};
    ck_assert_int_eq(record_set_label(set, number), label);
    ck_assert_msg(record_set_read(set, number, &file) == SHARD_OK, "%s", shard_last_error());
    ck_assert_uint_eq(file.size, size);
    ck_assert_mem_eq(file.bytes, expected, size);
    image_file_free(&file);
}

START_TEST(test_accepts)
{
    content records = make_sound();
    /* Keys may be in any order, and the last line may lack its end. */
    record_set *set = open_set(_i ? "5\t208\n3\t120\n1\t40\n2\t80\n0\t0\n4\t168" : INDEX, &records);
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    ck_assert_int_eq(record_set_images(set), 3);
    ck_assert_int_eq(record_set_identities(set), 2);
    check_image(set, 0, 0, "imageone", 8);
    check_image(set, 1, 1, "image", 5);
    check_image(set, 2, 1, "imagetwo", 8);
    image_source source = record_set_source(set);
    ck_assert(source.images == 3 && source.label(source.of, 2) == 1);
    record_set_close(set);
}
END_TEST

/* Without labels in record 0, all records are images, whatever their keys. */
START_TEST(test_accepts_images_alone)
{
    content records = {0};
    put_record(&records, 0, 3, 0, "imageone");
    put_record(&records, 1, 2, 0, "imageone");
    record_set *set = open_set("0\t0\n9\t40\n", &records);
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    ck_assert_int_eq(record_set_images(set), 2);
    ck_assert_int_eq(record_set_identities(set), 4);
    check_image(set, 0, 3, "imageone", 8);
    check_image(set, 1, 2, "imageone", 8);
    record_set_close(set);
}
END_TEST

/* A content that has the magic word is written in parts without it, also within the header. */
START_TEST(test_records_in_parts)
{
    char picture[16] = {'a', 'b', 'c', 'd', 0x0a, 0x23, (char)0xd7, (char)0xce,
                      'e', 'f', 'g', 'h', 0x0a, 0x23, (char)0xd7, (char)0xce};
    content payload = make_payload(0, 5, 0, picture, sizeof picture), records = {0};
    for (int i = 0; i < 4; i++) /* the header's id */
        payload.bytes[8 + i] = (uint8_t)(MAGIC >> 8 * i);
    put_part(&records, 1, payload.bytes, 8);
    put_part(&records, 2, payload.bytes + 12, 16);
    put_part(&records, 2, payload.bytes + 32, 4);
    put_part(&records, 3, payload.bytes + 40, 0);
    record_set *set = open_set("1\t0\n", &records);
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    check_image(set, 0, 5, picture, sizeof picture);
    record_set_close(set);
}
END_TEST

/* ---- files that are refused ---- */

#define NO_RANGE "train.rec: byte 0: *labels of record 0*"

static const struct {
    const char *index; /* NULL: the sound one */
    int at;            /* of the word that is changed; -1: none, -2: the file is cut to `word` bytes */
    uint32_t word;
    const char *pattern; /* after the folder's path */
} bad[] = {
    {"", -1, 0, "train.idx: no records"},
    {"0 0\n", -1, 0, "train.idx: line 1: not a key*"},
    {"0\t0\n\n", -1, 0, "train.idx: line 2: not a key*"},
    {"0\t0\n1\t\n", -1, 0, "train.idx: line 2: not a key*"},
    {"0\t0\n-1\t40\n", -1, 0, "train.idx: line 2: not a key*"},
    {"0\t0\n1\t40\t\n", -1, 0, "train.idx: line 2: not a key*"},
    {"0\t0x0\n", -1, 0, "train.idx: line 1: not a key*"},
    {"0\t000000000000000000000000000000000000000000000000000000000000040\n", -1, 0,
     "train.idx: line 1: not a key*"}, /* 65 bytes */
    {"0\t99999999999999999999\n", -1, 0, "train.idx: line 1: not a key*"},
    {"0\t0\n1\t40\n1\t80\n", -1, 0, "train.idx: *key 1 * twice"},
    {"0\t0\n1\t40\n2\t80\n4\t168\n", -1, 0, "train.rec: *the index has no 3"},
    {"0\t0\n1\t42\n2\t80\n3\t120\n", -1, 0, "train.rec: byte 42: no record*"},
    {"0\t0\n1\t244\n2\t80\n3\t120\n", -1, 0, "train.rec: byte 244: no record*"},
    {"0\t0\n1\t4000\n2\t80\n3\t120\n", -1, 0, "train.rec: byte 4000: no record*"},
    {"0\t0\n1\t44\n2\t80\n3\t120\n", -1, 0, "train.rec: byte 44: *0xced7230a"},
    {NULL, 40, 0xced7230b, "train.rec: byte 40: *0xced7230a"},
    {NULL, 44, 2u << 29 | 32, "train.rec: byte 40: the flag of*first part*"},
    {NULL, 44, 1u << 29 | 8, "train.rec: byte 56: *0xced7230a"},
    {NULL, 124, 1u << 29 | 200, "train.rec: byte 120: *length*beyond*"},
    {NULL, 44, 20, "train.rec: byte 40: *no header*"},
    {NULL, 48, 65537, "train.rec: byte 40: *above 65536"},
    {NULL, 88, 2, "train.rec: byte 80: *ends before its labels*"},
    {NULL, 52, 0x3f000000, "train.rec: byte 40: the label is not*"}, /* 0.5 */
    {NULL, 52, 0xbf800000, "train.rec: byte 40: the label is not*"}, /* -1 */
    {NULL, 52, 0x7fc00000, "train.rec: byte 40: the label is not*"}, /* NaN */
    {NULL, 52, 0x4b800000, "train.rec: byte 40: the label is not*"}, /* 2^24 */
    {NULL, 32, 0x3f800000, NO_RANGE},                                /* 1, 6 */
    {NULL, 36, 0x40000000, NO_RANGE},                                /* 4, 2 */
    {NULL, 8, 1, NO_RANGE},
    {NULL, -2, 0, "train.rec: byte 0: no record*"},
    {NULL, -2, 44, "train.rec: byte 40: no record*"},
    {NULL, -2, 140, "train.rec: byte 120: *length*beyond*"},
};

START_TEST(test_refuses)
{
    content records = make_sound();
    if (bad[_i].at >= 0) {
        content word = {0};
        put_word(&word, bad[_i].word);
        memcpy(records.bytes + bad[_i].at, word.bytes, 4);
    } else if (bad[_i].at == -2) {
        records.size = bad[_i].word;
    }
    ck_assert(open_set(bad[_i].index ? bad[_i].index : INDEX, &records) == NULL);
    char pattern[80];
    snprintf(pattern, sizeof pattern, "*/%s", bad[_i].pattern);
    check_error(SHARD_ERROR_FORMAT, pattern);
}
END_TEST

/* Numbers of images that float32 may have rounded are right where the last image is followed by a record without one, or by none.
 * Then the first image is missed, which these indices have not. */
START_TEST(test_rounded_number_of_images)
{
    static const struct {
        float n;
        const char *index, *error;
        shard_status status;
    } cases[] = {
        {0x1p24f + 2, "0\t0\n16777217\t40\n16777218\t80\n", "images; the index has no 1", SHARD_ERROR_FORMAT},
        {0x1p24f + 2, "0\t0\n16777217\t40\n", "images; the index has no 1", SHARD_ERROR_FORMAT},
        {0x1p24f + 2, "0\t0\n16777217\t80\n16777218\t80\n", "rounded: record 16777217 has no image; *", SHARD_ERROR_UNSUPPORTED},
        {0x1p24f, "0\t0\n16777215\t40\n16777216\t40\n", "rounded: record 16777216 has an image; *", SHARD_ERROR_UNSUPPORTED},
        {0x1p24f, "0\t0\n", "there are 16777215 images, *: record 16777215 has no image; *", SHARD_ERROR_UNSUPPORTED},
        {0x1p24f, "0\t0\n16777215\t44\n", "byte 44: *0xced7230a", SHARD_ERROR_FORMAT},
        {0x1p24f - 1, "0\t0\n16777214\t80\n", "images; the index has no 1", SHARD_ERROR_FORMAT},
        {1e38f, "0\t0\n", "record 4611686018427387903 has no image; *", SHARD_ERROR_UNSUPPORTED},
    };
    char pattern[128];
    content records = {0};
    put_record(&records, 2, cases[_i].n, 2e38f, "");
    put_record(&records, 0, 0, 0, "imageone");
    put_record(&records, 2, 1, 3, "");
    ck_assert(open_set(cases[_i].index, &records) == NULL);
    snprintf(pattern, sizeof pattern, "*/train.rec: *%s", cases[_i].error);
    check_error(cases[_i].status, pattern);
}
END_TEST

/* A part that the labels do not reach is read with the image. */
START_TEST(test_refuses_with_the_image)
{
    content records = make_sound();
    image_file file = {0};
    records.bytes[47] |= 1 << 5; /* flag 1 */
    record_set *set = open_set(INDEX, &records);
    ck_assert_msg(set != NULL, "%s", shard_last_error());
    ck_assert_int_eq(record_set_read(set, 0, &file), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "*: byte 80: the flag of a record's next part is 2 or 3");
    image_file_free(&file);
    record_set_close(set);
}
END_TEST

START_TEST(test_refuses_other_files)
{
    ck_assert(!record_set_exists("/nowhere") && record_set_open("/nowhere") == NULL);
    check_error(SHARD_ERROR_IO, "/nowhere/train.rec: *");
    const content records = make_sound();
    record_set_close(open_set(INDEX, &records));
    ck_assert_int_eq(unlink(scratch_path("train.idx")), 0);
    ck_assert_int_eq(mkfifo(scratch_path("train.idx"), 0600), 0);
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", scratch_path("train.rec"));
    *strrchr(folder, '/') = '\0';
    ck_assert(record_set_open(folder) == NULL);
    check_error(SHARD_ERROR_IO, "*/train.idx: not a regular file");
    ck_assert_int_eq(unlink(scratch_path("train.idx")), 0);
}
END_TEST

/* Each byte of both files by some others, and cut there. */
START_TEST(test_changed_files)
{
    static const uint8_t others[] = {0, 1, 2, 0x20, 0x30, 0x40, 0x60, 0x7f, 0x80, 0xff};
    content sound = make_sound();
    int cases = 0, taken = 0;
    for (size_t at = 0; at < REC_BYTES + sizeof INDEX - 1; at++)
        for (size_t other = 0; other <= sizeof others; other++, cases++) {
            content records = sound;
            char index[] = INDEX;
            bool cut = other == sizeof others;
            if (at < REC_BYTES && cut)
                records.size = at;
            else if (at < REC_BYTES)
                records.bytes[at] = others[other];
            else
                index[at - REC_BYTES] = cut ? '\0' : (char)others[other];
            record_set *set = open_set(index, &records);
            taken += set != NULL;
            for (int64_t i = 0; set && i < record_set_images(set); i++) {
                image_file file = {0};
                ck_assert(record_set_label(set, i) >= 0 && record_set_label(set, i) < record_set_identities(set));
                shard_status status = record_set_read(set, i, &file);
                ck_assert(status == SHARD_OK ? file.size < REC_BYTES : status == SHARD_ERROR_FORMAT);
                image_file_free(&file);
                shard_clear_error();
            }
            shard_status status = shard_last_status();
            ck_assert(set != NULL || status == SHARD_ERROR_FORMAT || status == SHARD_ERROR_UNSUPPORTED);
            record_set_close(set);
            shard_clear_error();
        }
    ck_assert(taken > 0 && taken < cases);
    printf("cases: %d\n", cases);
}
END_TEST

/* The shortest lines: memory is at most that of SECURITY.md, whatever their number. */
START_TEST(test_memory)
{
    content records = make_sound();
    for (size_t size = 400000; size < 800000; size += 40000) {
        char *index = malloc(size + 1);
        for (size_t i = 0; i < size; i += 4)
            memcpy(index + i, "7\t0\n", 5);
        heap_start();
        ck_assert(open_set(index, &records) == NULL);
        size_t peak = heap_peak();
        check_error(SHARD_ERROR_FORMAT, "*/train.idx: the key 7 is there twice");
        ck_assert_msg(peak > 4 * size && peak <= 12 * size, "%zu bytes of memory for %zu of train.idx", peak, size);
        free(index);
        shard_clear_error();
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("records");
    TCase *tcase = test_case(suite, "records");
    tcase_add_loop_test(tcase, test_accepts, 0, 2);
    tcase_add_test(tcase, test_accepts_images_alone);
    tcase_add_test(tcase, test_records_in_parts);
    tcase_add_loop_test(tcase, test_refuses, 0, sizeof bad / sizeof *bad);
    tcase_add_loop_test(tcase, test_rounded_number_of_images, 0, 8);
    tcase_add_test(tcase, test_refuses_with_the_image);
    tcase_add_test(tcase, test_refuses_other_files);
    tcase_add_test(tcase, test_changed_files);
    tcase_add_test(tcase, test_memory);
    scratch_open();
    int code = test_run(suite);
    scratch_close();
    return code;
}
