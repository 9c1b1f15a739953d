/*
 * Ten small files of strangers, and of each: all that it is when it is cut off, and all that it is when one byte has another
 * value. Each is refused by an error that begins with its name, or means the same as before; where a format has no checksums, it
 * may be another sound file, of which all that is read stands in it. SHARD_TEST_EVERY=1 tries all values of a byte, the usual run
 * a part of them.
 */
#include "support/cases.h"
#include "support/heap.h"
#include "support/ranks.h"

#include "../tools/checkpoint/index.h"
#include "checkpoint/header.h"
#include "image.h"

#include <shard/checkpoint.h>

#include "support/pictures.h" /* its type has the name of parameters of the others */

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <png.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* ---- the files ---- */

#define SUMS "\"crc64.header\":\"%H\""
#define SUM(name) "\\\"" name "\\\":\\\""

static const struct {
    const char *name;
    enum { SUMMED, PLAIN, INDEX, PNG, JPEG } kind;
    const char *make;  /* of a safetensors file or an index */
    jpeg_kind as_jpeg; /* of a picture */
    png_kind as_png;
} files[] = {
    {"several dtypes and names of other scripts",
     SUMMED,
     "15 {\"__metadata__\":{" SUMS ",\"crc64.tensors\":\"{" SUM("größe") "d4d2e69d839173ba\\\"," SUM(
         "名前") "a9d000ab50f2b586\\\"," SUM("b") "241310d2f522d808\\\"}\",\"step\":\"17\"},\"größe\":%T(F32 [2] 0 "
                                                  "8),\"名前\":%T(BF16 [2,1] 8 12),\"b\":%T(U8 [3] 12 15)}",
     {0},
     {0}},
    {"empty tensors and a scalar",
     SUMMED,
     "8 {\"__metadata__\":{" SUMS ",\"crc64.tensors\":\"{" SUM("a") "d4d2e69d839173ba\\\"," SUM("e") "0000000000000000\\\"," SUM(
         "") "0000000000000000\\\"}\"},\"e\":%T(F32 [0,3] 0 0),\"a\":%T(I64 [] 0 8),\"\":%T(U8 [0] 8 8)}",
     {0},
     {0}},
    {"metadata with escapes",
     SUMMED,
     "1 {\"__metadata__\":{" SUMS ",\"crc64.tensors\":\"{" SUM(
         "a") "aab4a08fdfd90e51\\\"}\",\"\\\"\\\\\\/\\u00e4\\ud83d\\ude00\":\"\\b\\f\\n\\r\\t "
              "1.5e-3\"},\"a\":{\"x\":[{\"y\":null},-1.5e+3,true],\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}  ",
     {0},
     {0}},
    {"dtypes that tensors here cannot have",
     SUMMED,
     "3 {\"__metadata__\":{" SUMS ",\"crc64.tensors\":\"{" SUM("b") "aab4a08fdfd90e51\\\"," SUM(
         "f") "3955fd253ed9fcea\\\"}\"},\"b\":%T(BOOL [1] 0 1),\"f\":%T(F4 [2,2] 1 3)}",
     {0},
     {0}},
    {"no checksums", PLAIN, "7 {\"__metadata__\":{\"format\":\"pt\"},\"a\":%T(F32 [1] 0 4),\"b\":%T(U8 [3] 4 7)}", {0}, {0}},
    {"an index",
     INDEX,
     "{\"metadata\": {\"total_size\": 2}, \"weight_map\": {\"a\": \"m1.safetensors\", \"b\": \"m2.safetensors\"}}\n",
     {0},
     {0}},
    {"a PNG", PNG, NULL, {0}, {PNG_COLOR_TYPE_RGB, 8, false}},
    {"an interlaced PNG of 16 bits", PNG, NULL, {0}, {PNG_COLOR_TYPE_RGB_ALPHA, 16, true}},
    {"a JPEG", JPEG, NULL, {.channels = 3}, {0}},
    {"a progressive JPEG", JPEG, NULL, {.channels = 3, .progressive = true}, {0}},
};
#define FILES ((int)(sizeof files / sizeof *files))

enum { HEIGHT = 7, WIDTH = 9 };

typedef struct changing {
    int which;
    char path[96];  /* of the changed file */
    int descriptor; /* ... open */
    uint8_t *good;  /* decoded pixels of the sound picture */
    int cases, accepted;
} changing;

static bytes make_content(int which)
{
    bytes content;
    uint8_t *samples = smooth_picture(4 * HEIGHT, WIDTH, 5);
    if (files[which].kind == PNG)
        content = png_bytes(samples, HEIGHT, WIDTH, files[which].as_png);
    else if (files[which].kind == JPEG)
        content = jpeg_bytes(samples, HEIGHT, WIDTH, files[which].as_jpeg);
    else
        content.data = (files[which].kind == INDEX ? case_bytes : case_file)(files[which].make, &content.size);
    free(samples);
    return content;
}

/* ---- what is read of a changed file ---- */

/* The error begins with the path. */
static void check_refused(const changing *c, const char *path, const char *change)
{
    ck_assert_msg(strstr(shard_last_error(), path) == shard_last_error(), "%s, %s: %s", files[c->which].name, change,
                  shard_last_error());
    ck_assert_ptr_null(strpbrk(shard_last_error(), "\n\033"));
    shard_clear_error();
}

/* Every change is found: whatever its place, and in the checksums' own text. */
static bool read_summed(const changing *c, bytes now, const char *change)
{
    (void)now;
    shard_status status = shard_verify(c->path);
    ck_assert_msg(status == SHARD_ERROR_FORMAT, "%s, %s: status %d", files[c->which].name, change, (int)status);
    check_refused(c, c->path, change);
    return false;
}

/* fuzz_safetensors.c aborts if a tensor is not what stands in the file. */
static bool read_plain(const changing *c, bytes now, const char *change)
{
    shard_tensors *list = shard_inspect(c->path, NULL);
    bool accepted = list != NULL;
    if (!accepted)
        check_refused(c, c->path, change);
    shard_tensors_destroy(list);
    if (accepted)
        ck_assert_int_eq(LLVMFuzzerTestOneInput(now.data, now.size), 0);
    return accepted;
}

/* An index that is accepted still has the two files with their tensors, in their order. */
static bool read_index(const changing *c, bytes now, const char *change)
{
    source_list list = {0};
    (void)now;
    bool accepted = index_add_sources(&list, c->path, false) == SHARD_OK;
    if (accepted)
        ck_assert_msg(list.count == 2 && strstr(list.at[0].path, "/m1.safetensors") && strstr(list.at[1].path, "/m2.safetensors"),
                      "%s", change);
    else if (shard_last_status() == SHARD_ERROR_IO) /* another file's name, which is not there */
        check_refused(c, "cannot ", change);
    else
        check_refused(c, c->path, change);
    sources_free(&list);
    return accepted;
}

static shard_status decode(bytes now, image *picture)
{
    int64_t height, width;
    image_file file = {.path = "picture", .bytes = now.data, .size = now.size};
    shard_status status = image_read_size(&file, &height, &width);
    if (status == SHARD_OK && height * width > 100000) /* the larger pictures only take longer */
        return shard_error(SHARD_ERROR_FORMAT, "picture: large");
    heap_start();
    if (status == SHARD_OK)
        status = image_decode(&file, 8, picture);
    ck_assert_uint_lt(heap_peak(), picture->capacity + (4 << 20));
    return status;
}

/* A PNG's check sums find every change. A JPEG has none: with another byte it may be another picture. */
static bool read_picture(const changing *c, bytes now, const char *change)
{
    image picture = {0};
    bool accepted = decode(now, &picture) == SHARD_OK;
    if (accepted && files[c->which].kind == PNG)
        ck_assert_msg(picture.height == HEIGHT && picture.width == WIDTH &&
                          memcmp(picture.pixels, c->good, HEIGHT * WIDTH * 3) == 0,
                      "%s, %s: other pixels", files[c->which].name, change);
    if (!accepted)
        check_refused(c, "picture: ", change);
    image_free(&picture);
    return accepted;
}

/* A header, sound or not, takes the memory of docs/checkpoints.md. */
static void check_memory(const changing *c, bytes now)
{
    shard_file file = {0};
    shard_safetensors header = {0};
    int64_t file_bytes, data_start;
    uint64_t hash;
    heap_start();
    if (shard_file_open(&file, c->path, &file_bytes) == SHARD_OK)
        shard_header_read(&header, &file, file_bytes, true, &data_start, &hash);
    ck_assert_uint_le(heap_peak(), 4 * now.size + 1000000);
    shard_safetensors_free(&header);
    shard_file_close(&file);
    shard_clear_error();
}

static void read_changed(changing *c, bytes now, const char *change)
{
    static bool (*const reads[])(const changing *c, bytes now, const char *change) = {
        [SUMMED] = read_summed, [PLAIN] = read_plain, [INDEX] = read_index, [PNG] = read_picture, [JPEG] = read_picture};
    if (files[c->which].kind <= PLAIN)
        check_memory(c, now);
    c->accepted += reads[files[c->which].kind](c, now, change);
    c->cases++;
}

/* ---- the changes ---- */

/* Writes the file; an index lies in a folder with its files. */
static void begin(changing *c, const char *folder, bytes content)
{
    static const char *const shards[] = {"1 {\"a\":%T(U8 [1] 0 1)}", "1 {\"b\":%T(U8 [1] 0 1)}"};
    for (int i = 0; i < 2; i++) {
        bytes shard;
        shard.data = case_file(shards[i], &shard.size);
        write_file(shard, "%s/m%d.safetensors", folder, i + 1);
        free(shard.data);
    }
    snprintf(c->path, sizeof c->path, "%s/untrusted", folder);
    write_file(content, "%s", c->path);
    c->descriptor = open(c->path, O_RDWR);
    ck_assert_int_ge(c->descriptor, 0);
}

static void check_sound(changing *c, bytes content)
{
    image picture = {0};
    source_list list = {0};
    switch (files[c->which].kind) {
    case SUMMED:
        check_ok(shard_verify(c->path));
        break;
    case PLAIN:
        ck_assert(read_plain(c, content, "none"));
        break;
    case INDEX:
        check_ok(index_add_sources(&list, c->path, false));
        sources_free(&list);
        break;
    default:
        check_ok(decode(content, &picture));
        free(c->good);
        c->good = picture.pixels;
    }
}

/* Each length but the whole. */
static void cut(changing *c, bytes content)
{
    for (size_t size = content.size; size-- > 0;) {
        char change[40];
        bytes now = {malloc(size + 1), size}; /* its own memory, for the sanitizer */
        memcpy(now.data, content.data, size);
        ck_assert_int_eq(ftruncate(c->descriptor, (off_t)size), 0);
        snprintf(change, sizeof change, "%zu bytes", size);
        int before = c->accepted;
        read_changed(c, now, change);
        /* The line break at its end alone is missing. */
        bool same = files[c->which].kind == INDEX && size == content.size - 1;
        ck_assert_msg(c->accepted == before + same, "%s, %s: accepted", files[c->which].name, change);
        c->accepted = before;
        free(now.data);
    }
    ck_assert_int_eq(pwrite(c->descriptor, content.data, content.size, 0), (ssize_t)content.size);
}

static void change_bytes(changing *c, bytes content)
{
    int step = getenv("SHARD_TEST_EVERY") ? 1 : 29, turn = 0;
    for (size_t at = 0; at < content.size; at++)
        for (int by = 1; by < 256; by++) {
            char change[40];
            if (turn++ % step)
                continue;
            content.data[at] ^= (uint8_t)by;
            ck_assert_int_eq(pwrite(c->descriptor, content.data + at, 1, (off_t)at), 1);
            snprintf(change, sizeof change, "byte %zu is %02x", at, content.data[at]);
            read_changed(c, content, change);
            content.data[at] ^= (uint8_t)by;
            ck_assert_int_eq(pwrite(c->descriptor, content.data + at, 1, (off_t)at), 1);
        }
}

START_TEST(test_changed)
{
    char folder[64];
    changing c = {.which = _i};
    bytes content = make_content(_i);
    make_folder(folder);
    begin(&c, folder, content);
    check_sound(&c, content);
    cut(&c, content);
    change_bytes(&c, content);
    check_sound(&c, content);
    close(c.descriptor);
    free(c.good);
    remove_folder(folder);
    ck_assert(c.accepted == 0 || (files[_i].kind != SUMMED && files[_i].kind != PNG));
    printf("%s: %zu bytes; %d of the changed ones are sound, too\ncases: %d\n", files[_i].name, content.size, c.accepted,
           c.cases);
    fflush(stdout);
    free(content.data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("untrusted_bytes");
    TCase *tcase = test_case(suite, "untrusted_bytes");
    tcase_set_timeout(tcase, 300);
    tcase_add_loop_test(tcase, test_changed, 0, FILES);
    return test_run(suite);
}
