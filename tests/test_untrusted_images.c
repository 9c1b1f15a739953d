/*
 * Images and image folders from strangers: the exact text of each case of untrusted/images.txt and untrusted/folders.txt, and the
 * memory that decoding takes.
 */
#include "support/cases.h"
#include "support/heap.h"
#include "support/pictures.h"
#include "support/ranks.h"

#include "folder.h"
#include "image.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>
#include <png.h>

enum { HEIGHT = 24, WIDTH = 40 };

/* ---- pictures that are sound ---- */

static const struct {
    const char *name;
    bool jpeg;
    jpeg_kind as_jpeg;
    png_kind as_png;
} pictures[] = {
    {"jpeg", true, {.channels = 3}, {0}},
    {"jpeg-progressive", true, {.channels = 3, .progressive = true}, {0}},
    {"jpeg-scans", true, {.channels = 3, .scans = true}, {0}},
    {"jpeg-turned", true, {.channels = 3, .turned = true}, {0}},
    {"jpeg-grey", true, {.channels = 1}, {0}},
    {"jpeg-grey-progressive", true, {.channels = 1, .progressive = true}, {0}},
    {"jpeg-cmyk", true, {.channels = 4}, {0}},
    {"jpeg-ycck", true, {.channels = 4, .ycck = true}, {0}},
    {"png", false, {0}, {PNG_COLOR_TYPE_RGB, 8, false}},
    {"png-interlaced", false, {0}, {PNG_COLOR_TYPE_RGB, 8, true}},
    {"png-rgb-16", false, {0}, {PNG_COLOR_TYPE_RGB, 16, false}},
    {"png-rgba", false, {0}, {PNG_COLOR_TYPE_RGB_ALPHA, 8, false}},
    {"png-rgba-16-interlaced", false, {0}, {PNG_COLOR_TYPE_RGB_ALPHA, 16, true}},
    {"png-grey-1", false, {0}, {PNG_COLOR_TYPE_GRAY, 1, false}},
    {"png-grey-2-interlaced", false, {0}, {PNG_COLOR_TYPE_GRAY, 2, true}},
    {"png-grey-4", false, {0}, {PNG_COLOR_TYPE_GRAY, 4, false}},
    {"png-grey-8", false, {0}, {PNG_COLOR_TYPE_GRAY, 8, false}},
    {"png-grey-16", false, {0}, {PNG_COLOR_TYPE_GRAY, 16, false}},
    {"png-grey-alpha", false, {0}, {PNG_COLOR_TYPE_GRAY_ALPHA, 8, false}},
    {"png-palette", false, {0}, {PNG_COLOR_TYPE_PALETTE, 8, false}},
    {"png-palette-1", false, {0}, {PNG_COLOR_TYPE_PALETTE, 1, false}},
};
#define PICTURES (sizeof pictures / sizeof *pictures)

static bytes draw(const char *name)
{
    for (size_t i = 0; i < PICTURES; i++)
        if (strcmp(name, pictures[i].name) == 0) {
            uint8_t *samples = smooth_picture(4 * HEIGHT, WIDTH, 5);
            bytes file = pictures[i].jpeg ? jpeg_bytes(samples, HEIGHT, WIDTH, pictures[i].as_jpeg)
                                          : png_bytes(samples, HEIGHT, WIDTH, pictures[i].as_png);
            free(samples);
            return file;
        }
    ck_abort_msg("there is no picture %s", name);
}

/* ---- changes of a file ---- */

static void replace(bytes *file, size_t at, size_t removed, const void *with, size_t added)
{
    ck_assert_uint_le(at + removed, file->size);
    uint8_t *new = malloc(file->size + added + 1);
    ck_assert_ptr_nonnull(new);
    memcpy(new, file->data, at);
    memcpy(new + at, with, added);
    memcpy(new + at + added, file->data + at + removed, file->size - at - removed);
    free(file->data);
    file->data = new;
    file->size += added - removed;
}

/* Where the marker FF xx stands, the last one if `last`. */
static size_t find_marker(const bytes *file, unsigned marker, bool last)
{
    size_t found = 0;
    for (size_t i = 0; i + 1 < file->size && (last || !found); i++)
        if (file->data[i] == 0xff && file->data[i + 1] == marker)
            found = i;
    ck_assert_msg(found > 0, "there is no marker %02X", marker);
    return found;
}

static size_t big_endian(const uint8_t *at, int count)
{
    size_t value = 0;
    for (int i = 0; i < count; i++)
        value = value << 8 | at[i];
    return value;
}

static void put_big_endian(uint8_t at[4], uint32_t value)
{
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(value >> (24 - 8 * i));
}

static uint32_t check_sum(const uint8_t *data, size_t size)
{
    uint32_t state = ~0u;
    for (size_t i = 0; i < size; i++) {
        state ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            state = state >> 1 ^ (state & 1 ? 0xedb88320u : 0);
    }
    return ~state;
}

/* Where the length of a chunk stands. */
static size_t find_chunk(const bytes *file, const char *name)
{
    const uint8_t *found = memmem(file->data, file->size, name, 4);
    ck_assert_msg(found != NULL, "there is no chunk %s", name);
    return (size_t)(found - file->data) - 4;
}

static void change_chunk(bytes *file, const char *name, size_t offset, const uint8_t *with, size_t count, bool mend)
{
    size_t at = find_chunk(file, name), length = big_endian(file->data + at, 4);
    memcpy(file->data + at + 8 + offset, with, count);
    if (mend)
        put_big_endian(file->data + at + 8 + length, check_sum(file->data + at + 4, 4 + length));
}

static void insert_chunk(bytes *file, const char *before, const char *name, const uint8_t *content, size_t count)
{
    uint8_t *chunk = malloc(count + 12);
    put_big_endian(chunk, (uint32_t)count);
    memcpy(chunk + 4, name, 4);
    memcpy(chunk + 8, content, count);
    put_big_endian(chunk + 8 + count, check_sum(chunk + 4, 4 + count));
    replace(file, find_chunk(file, before), 0, chunk, count + 12);
    free(chunk);
}

/* The changes that the head of untrusted/images.txt describes: a word, up to two names or markers and a number, and bytes. */
typedef struct parts {
    char name[8], second[8];
    unsigned marker;
    long number;
    const uint8_t *with;
    size_t count;
} parts;

static void do_cut(bytes *file, const parts *s)
{
    file->size = s->number < 0 ? file->size - (size_t)-s->number : (size_t)s->number;
}

static void do_set(bytes *file, const parts *s)
{
    memcpy(file->data + s->number, s->with, s->count);
}

static void do_add(bytes *file, const parts *s)
{
    replace(file, file->size, 0, s->with, s->count);
}

static void do_marker(bytes *file, const parts *s)
{
    memcpy(file->data + find_marker(file, s->marker, false) + 2 + s->number, s->with, s->count);
}

static void do_before(bytes *file, const parts *s)
{
    replace(file, find_marker(file, s->marker, false), 0, s->with, s->count);
}

static void do_drop(bytes *file, const parts *s)
{
    size_t at = find_marker(file, s->marker, false);
    replace(file, at, 2 + big_endian(file->data + at + 2, 2), "", 0);
}

static void do_repeat(bytes *file, const parts *s)
{
    size_t first = find_marker(file, 0xda, true), length = find_marker(file, 0xd9, true) - first;
    uint8_t *scans = malloc(length * (size_t)s->number);
    for (long i = 0; i < s->number; i++)
        memcpy(scans + (size_t)i * length, file->data + first, length);
    replace(file, first, 0, scans, length * (size_t)s->number);
    free(scans);
}

static void do_chunk(bytes *file, const parts *s)
{
    change_chunk(file, s->name, (size_t)s->number, s->with, s->count, true);
}

static void do_damage(bytes *file, const parts *s)
{
    change_chunk(file, s->name, (size_t)s->number, s->with, s->count, false);
}

static void do_length(bytes *file, const parts *s)
{
    memcpy(file->data + find_chunk(file, s->name), s->with, 4);
}

static void do_sum(bytes *file, const parts *s)
{
    size_t at = find_chunk(file, s->name);
    memcpy(file->data + at + 8 + big_endian(file->data + at, 4), s->with, 4);
}

static void do_remove(bytes *file, const parts *s)
{
    size_t at = find_chunk(file, s->name);
    replace(file, at, 12 + big_endian(file->data + at, 4), "", 0);
}

static void do_insert(bytes *file, const parts *s)
{
    insert_chunk(file, s->second, s->name, s->with, s->count);
}

static void change(bytes *file, const char *text)
{
    static const struct {
        const char *word;
        enum { NUMBER, MARKER, MARKER_AND_NUMBER, NAME, NAME_AND_NUMBER, TWO_NAMES, NOTHING } takes;
        void (*run)(bytes *file, const parts *s);
    } words[] = {
        {"cut ", NUMBER, do_cut},
        {"set ", NUMBER, do_set},
        {"add ", NOTHING, do_add},
        {"marker ", MARKER_AND_NUMBER, do_marker},
        {"before ", MARKER, do_before},
        {"drop ", MARKER, do_drop},
        {"repeat ", NUMBER, do_repeat},
        {"chunk ", NAME_AND_NUMBER, do_chunk},
        {"damage ", NAME_AND_NUMBER, do_damage},
        {"length ", NAME, do_length},
        {"sum ", NAME, do_sum},
        {"remove ", NAME, do_remove},
        {"insert ", TWO_NAMES, do_insert},
    };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        parts s = {0};
        int used = 0;
        const char *rest = text + strlen(words[i].word);
        if (strncmp(text, words[i].word, strlen(words[i].word)) != 0)
            continue;
        switch (words[i].takes) {
        case NUMBER:
            sscanf(rest, "%ld%n", &s.number, &used);
            break;
        case MARKER:
            sscanf(rest, "%x%n", &s.marker, &used);
            break;
        case MARKER_AND_NUMBER:
            sscanf(rest, "%x+%ld%n", &s.marker, &s.number, &used);
            break;
        case NAME:
            sscanf(rest, "%4s%n", s.name, &used);
            break;
        case NAME_AND_NUMBER:
            sscanf(rest, "%4s+%ld%n", s.name, &s.number, &used);
            break;
        case TWO_NAMES:
            sscanf(rest, "%4s before %4s%n", s.name, s.second, &used);
            break;
        case NOTHING:
            break;
        }
        ck_assert_msg(used > 0 || words[i].takes == NOTHING, "not complete: %s", text);
        uint8_t *with = case_bytes(rest + used + (rest[used] == ' '), &s.count);
        s.with = with;
        words[i].run(file, &s);
        free(with);
        return;
    }
    ck_abort_msg("no change: %s", text);
}

static bytes make_image(const char *make)
{
    if (strncmp(make, "raw ", 4) == 0) {
        bytes file;
        file.data = case_bytes(make + 4, &file.size);
        return file;
    }
    char *copy = strdup(make), *rest = copy;
    bytes file = draw(strsep(&rest, ";"));
    for (char *next; (next = strsep(&rest, ";"));)
        change(&file, next + 1);
    free(copy);
    return file;
}

/* ---- the tables ---- */

/* Decoded as the trainer does: from a file, at its whole size. `name` is the file's. */
static void tell_image(untrusted_case *c, const char *folder)
{
    char path[200], read[200];
    const char *name = strncmp(c->name, "named ", 6) == 0 ? c->name + 6 : "picture.jpg";
    bytes content = make_image(c->make);
    image_file file = {0};
    image picture = {0};
    int64_t height = 0, width = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    write_file(content, "%s", path);
    shard_status status = image_file_read(&file, path);
    if (status == SHARD_OK)
        status = image_read_size(&file, &height, &width);
    if (status == SHARD_OK)
        status = image_decode(&file, 8, &picture);
    if (status == SHARD_OK)
        snprintf(read, sizeof read, "read: %" PRId64 " x %" PRId64, picture.width, picture.height);
    case_told(c, status == SHARD_OK ? read : shard_last_error(), path, "FILE");
    shard_clear_error();
    image_file_free(&file);
    image_free(&picture);
    remove(path);
    free(content.data);
}

/* The texts of libjpeg and libpng are those of these versions; with others a picture is read or refused all the same. */
static bool has_the_libraries(void)
{
#ifdef LIBJPEG_TURBO_VERSION_NUMBER
    return strcmp(png_get_libpng_ver(NULL), "1.6.39") == 0 && LIBJPEG_TURBO_VERSION_NUMBER == 2001005;
#else
    return false;
#endif
}

static void forgive(untrusted_case *c)
{
    if (!has_the_libraries() && strncmp(c->told, "FILE: ", 6) == 0 && strncmp(c->now, "FILE: ", 6) == 0) {
        free(c->now);
        c->now = strdup(c->told);
    }
}

START_TEST(test_images)
{
    char folder[64];
    case_table table = cases_open("untrusted/images.txt");
    make_folder(folder);
    for (int i = 0; i < table.count; i++) {
        tell_image(&table.cases[i], folder);
        forgive(&table.cases[i]);
    }
    remove_folder(folder);
    cases_close(&table);
}
END_TEST

/* Steps as the head of untrusted/folders.txt describes them. */
static void build(const char *folder, char *make)
{
    for (char *step; (step = strsep(&make, ";"));) {
        char path[400], target[100] = "", word[20] = "";
        unsigned mode = 0;
        size_t count;
        step += strspn(step, " ");
        sscanf(step, "%19s", word);
        char *rest = step + strlen(word);
        rest += strspn(rest, " ");
        if (strcmp(word, "mode") == 0)
            mode = (unsigned)strtoul(rest, &rest, 8), rest += strspn(rest, " ");
        if (strcmp(word, "link") == 0) {
            size_t length = strcspn(rest, " ");
            snprintf(target, sizeof target, "%.*s", (int)length, rest);
            rest += length + 1;
        }
        unsigned char *name = case_bytes(rest, &count);
        snprintf(path, sizeof path, "%s%s%s", folder, *name ? "/" : "", (char *)name);
        free(name);
        if (strcmp(word, "dir") == 0)
            ck_assert_int_eq(mkdir(path, 0755), 0);
        else if (strcmp(word, "file") == 0)
            ck_assert_int_ge(close(open(path, O_CREAT | O_WRONLY, 0644)), 0);
        else if (strcmp(word, "fifo") == 0)
            ck_assert_int_eq(mkfifo(path, 0644), 0);
        else if (strcmp(word, "link") == 0)
            ck_assert_int_eq(symlink(target, path), 0);
        else if (strcmp(word, "mode") == 0)
            ck_assert_int_eq(chmod(path, mode), 0);
        else
            ck_assert_msg(!*word, "no step: %s", step);
    }
}

/* Opens the folder and reads the first image. As another user than root, who may read anything. */
static void tell_folder(untrusted_case *c)
{
    char folder[64], split[128], path[600], read[200];
    make_folder(folder);
    ck_assert_int_eq(chmod(folder, 0755), 0);
    snprintf(split, sizeof split, "%s/train", folder);
    char *make = strdup(c->make);
    build(folder, make);
    free(make);
    bool other = geteuid() == 0 && seteuid(65534) == 0;
    image_folder *opened = image_folder_open(split, NULL);
    image_file file = {0};
    image picture = {0};
    shard_status status = opened ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK && image_folder_path(opened, 0, path, sizeof path))
        status = image_file_read(&file, path);
    if (status == SHARD_OK)
        status = image_decode(&file, 8, &picture);
    if (status == SHARD_OK)
        snprintf(read, sizeof read, "read: %" PRId64 " classes, %" PRId64 " images", image_folder_classes(opened),
                 image_folder_images(opened));
    if (other)
        ck_assert_int_eq(seteuid(0), 0);
    case_told(c, status == SHARD_OK ? read : shard_last_error(), folder, "FOLDER");
    shard_clear_error();
    image_file_free(&file);
    image_folder_close(opened);
    remove_folder(folder);
}

START_TEST(test_folders)
{
    case_table table = cases_open("untrusted/folders.txt");
    alarm(60 * (unsigned)deadline_multiplier());
    for (int i = 0; i < table.count; i++)
        tell_folder(&table.cases[i]);
    cases_close(&table);
}
END_TEST

/* ---- memory ---- */

/* What decoding takes, apart from the picture. */
static size_t memory_of(bytes content, const char *told)
{
    image_file file = {.path = "bomb", .bytes = content.data, .size = content.size};
    image picture = {0};
    heap_start();
    shard_status status = image_decode(&file, 8, &picture);
    size_t peak = heap_peak();
    if (told)
        check_error(SHARD_ERROR_FORMAT, told);
    else
        ck_assert_msg(status == SHARD_OK, "%s", shard_last_error());
    shard_clear_error();
    peak -= peak > picture.capacity ? picture.capacity : peak;
    image_free(&picture);
    return peak;
}

/* 16 million pixels in a file of some kilobytes. */
START_TEST(test_compressed_rows)
{
    enum { SIDE = 4000 };
    uint8_t *rows = calloc(SIDE, SIDE / 8);
    bytes file = png_bytes(rows, SIDE, SIDE, (png_kind){PNG_COLOR_TYPE_GRAY, 1, _i});
    ck_assert_uint_lt(file.size, 20000);
    ck_assert_uint_lt(memory_of(file, NULL), 1 << 20);
    free(rows);
    free(file.data);
}
END_TEST

static void append(png_structp png, png_bytep from, size_t count)
{
    bytes *to = png_get_io_ptr(png);
    to->data = realloc(to->data, to->size + count);
    memcpy(to->data + to->size, from, count);
    to->size += count;
}

/* A text of 100 MB in a chunk of some kilobytes is left out. */
START_TEST(test_compressed_text)
{
    enum { BYTES = 100000000 };
    bytes file = {0};
    const png_byte row[3] = {1, 2, 3};
    char *long_text = malloc(BYTES + 1), key[] = "Comment";
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    memset(long_text, 'x', BYTES);
    long_text[BYTES] = '\0';
    ck_assert(setjmp(png_jmpbuf(png)) == 0);
    png_set_write_fn(png, &file, append, NULL);
    png_set_IHDR(png, info, 1, 1, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    png_set_text(png, info, &(png_text){.compression = PNG_TEXT_COMPRESSION_zTXt, .key = key, .text = long_text}, 1);
    png_write_info(png, info);
    png_write_row(png, row);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    ck_assert_uint_lt(file.size, 300000);
    ck_assert_uint_lt(memory_of(file, NULL), 1 << 20);
    free(long_text);
    free(file.data);
}
END_TEST

/* A thousand chunks of text: those beyond the limit are left out. */
START_TEST(test_many_chunks)
{
    bytes file = draw("png");
    uint8_t content[1000];
    memset(content, 'x', sizeof content);
    content[1] = '\0';
    for (int i = 0; i < 1000; i++)
        insert_chunk(&file, "IDAT", "tEXt", content, sizeof content);
    ck_assert_uint_lt(memory_of(file, NULL), 1 << 20);
    free(file.data);
}
END_TEST

/* Coefficients of 178 million pixels would take a gigabyte. */
START_TEST(test_progressive_memory)
{
    bytes file = draw("jpeg-progressive");
    change(&file, "marker C2+3 %0A%AC%FF%DC"); /* 65500 x 2732 */
    ck_assert_uint_lt(memory_of(file, "bomb: decoding takes more than 512 MiB of memory"), 64 << 20);
    free(file.data);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("untrusted_images");
    TCase *tables = test_case(suite, "tables"), *memory = test_case(suite, "memory");
    tcase_add_test(tables, test_images);
    tcase_add_test(tables, test_folders);
    tcase_add_loop_test(memory, test_compressed_rows, 0, 2);
    tcase_add_test(memory, test_compressed_text);
    tcase_add_test(memory, test_many_chunks);
    tcase_add_test(memory, test_progressive_memory);
    return test_run(suite);
}
