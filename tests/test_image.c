/* Decoding: each kind of JPEG and PNG against known pixels; damage of every sort is an error, never a crash. */
#include "support/pictures.h"
#include "support/ranks.h"

#include "image.h"
#include "random.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <png.h>
#include <sys/stat.h>
#include <unistd.h>

static image_file in_memory(bytes content)
{
    return (image_file){.path = "some/picture", .bytes = content.data, .size = content.size};
}

static image decode(bytes content, int eighths)
{
    image_file file = in_memory(content);
    image picture = {0};
    int64_t height, width;
    check_ok(image_read_size(&file, &height, &width));
    check_ok(image_decode(&file, eighths, &picture));
    ck_assert_int_eq(picture.height, (height * eighths + 7) / 8);
    ck_assert_int_eq(picture.width, (width * eighths + 7) / 8);
    return picture;
}

/* Frees both. */
static void check_pixels(image picture, uint8_t *expected, int tolerance)
{
    for (int64_t i = 0; i < picture.height * picture.width * 3; i++)
        ck_assert_msg(abs(picture.pixels[i] - expected[i]) <= tolerance, "value %d is %d, not %d", (int)i, picture.pixels[i],
                      expected[i]);
    image_free(&picture);
    free(expected);
}

START_TEST(test_jpeg_rgb)
{
    uint8_t *pixels = smooth_picture(37, 53, 1);
    bytes file = jpeg_bytes(pixels, 37, 53, (jpeg_kind){.channels = 3, .progressive = _i & 1, .turned = _i & 2});
    image picture = decode(file, 8);
    ck_assert_int_eq(picture.height, 37);
    ck_assert_int_eq(picture.width, 53);
    check_pixels(picture, pixels, 3);
    free(file.data);
}
END_TEST

START_TEST(test_jpeg_grey)
{
    uint8_t grey[20 * 30], *expected = malloc(sizeof grey * 3);
    for (int i = 0; i < 20 * 30; i++) {
        grey[i] = (uint8_t)(i / 3);
        memset(expected + i * 3, grey[i], 3);
    }
    bytes file = jpeg_bytes(grey, 20, 30, (jpeg_kind){.channels = 1});
    check_pixels(decode(file, 8), expected, 2);
    free(file.data);
}
END_TEST

/* libjpeg writes Adobe's marker with four channels, so the samples count as inverted. */
/* The segment APP14 of 16 bytes. */
static void cut_adobe_marker(bytes *file)
{
    char *data = (char *)file->data, *marker = memmem(data, file->size, "\xff\xee\0\x0e" "Adobe", 9);
    ck_assert_ptr_nonnull(marker);
    file->size -= 16;
    memmove(marker, marker + 16, file->size - (size_t)(marker - data));
}

/* With the components as they are, as YCCK, and without Adobe's marker. */
START_TEST(test_jpeg_cmyk)
{
    enum { SIZE = 24 };
    uint8_t *rgb = smooth_picture(SIZE, SIZE, 2), samples[SIZE * SIZE * 4];
    for (int i = 0; i < SIZE * SIZE; i++) {
        uint8_t light = (uint8_t)(100 + i / SIZE * 5);
        for (int c = 0; c < 3; c++) {
            samples[i * 4 + c] = rgb[i * 3 + c];
            rgb[i * 3 + c] = (uint8_t)((rgb[i * 3 + c] * light + 127) / 255);
        }
        samples[i * 4 + 3] = light;
    }
    bytes file = jpeg_bytes(samples, SIZE, SIZE, (jpeg_kind){.channels = 4, .ycck = _i == 1});
    if (_i == 2)
        cut_adobe_marker(&file);
    check_pixels(decode(file, 8), rgb, 4);
    free(file.data);
}
END_TEST

/* At a part of its size a picture is about the mean of each block. */
START_TEST(test_jpeg_scaled)
{
    static const int eighths[] = {1, 2, 4};
    int part = eighths[_i], block = 8 / part;
    uint8_t *pixels = smooth_picture(61, 83, 3);
    bytes file = jpeg_bytes(pixels, 61, 83, (jpeg_kind){.channels = 3});
    image picture = decode(file, part);
    for (int64_t y = 0; y < 61 / block; y++)
        for (int64_t x = 0; x < 83 / block; x++)
            for (int64_t c = 0; c < 3; c++) {
                int sum = 0;
                for (int64_t k = 0; k < block * block; k++)
                    sum += pixels[((y * block + k / block) * 83 + x * block + k % block) * 3 + c];
                int mean = sum / (block * block), got = picture.pixels[(y * picture.width + x) * 3 + c];
                ck_assert_msg(abs(mean - got) <= 4, "(%d, %d): %d, not %d", (int)y, (int)x, got, mean);
            }
    image_free(&picture);
    free(pixels);
    free(file.data);
}
END_TEST

START_TEST(test_png_rgb)
{
    uint8_t *pixels = smooth_picture(13, 29, 4);
    bytes file = png_bytes(pixels, 13, 29, (png_kind){PNG_COLOR_TYPE_RGB, 8, .interlaced = _i});
    check_pixels(decode(file, 8), pixels, 0);
    free(file.data);
}
END_TEST

/* A PNG has no smaller sizes: the eighths don't matter. */
START_TEST(test_png_is_never_scaled)
{
    uint8_t *pixels = smooth_picture(16, 16, 4);
    bytes content = png_bytes(pixels, 16, 16, (png_kind){PNG_COLOR_TYPE_RGB, 8, false});
    image_file file = in_memory(content);
    image picture = {0};
    check_ok(image_decode(&file, 1, &picture));
    ck_assert_int_eq(picture.width, 16);
    check_pixels(picture, pixels, 0);
    free(content.data);
}
END_TEST

/* One row of four pixels of each kind, and what it is in RGB. */
static const struct {
    png_kind kind;
    uint8_t row[32], rgb[12];
} png_kinds[] = {
    {{PNG_COLOR_TYPE_GRAY, 1, false}, {0x50}, {0, 0, 0, 255, 255, 255, 0, 0, 0, 255, 255, 255}},
    {{PNG_COLOR_TYPE_GRAY, 2, false}, {0x1b}, {0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255}},
    {{PNG_COLOR_TYPE_GRAY, 4, true}, {0x01, 0xef}, {0, 0, 0, 17, 17, 17, 238, 238, 238, 255, 255, 255}},
    {{PNG_COLOR_TYPE_GRAY, 8, false}, {0, 1, 100, 255}, {0, 0, 0, 1, 1, 1, 100, 100, 100, 255, 255, 255}},
    {{PNG_COLOR_TYPE_GRAY, 16, false},
     {0, 200, 0x80, 0, 0x64, 0x64, 255, 255},
     {1, 1, 1, 128, 128, 128, 100, 100, 100, 255, 255, 255}},
    {{PNG_COLOR_TYPE_GRAY_ALPHA, 8, false}, {10, 0, 20, 255, 30, 128, 40, 1}, {10, 10, 10, 20, 20, 20, 30, 30, 30, 40, 40, 40}},
    {{PNG_COLOR_TYPE_RGB_ALPHA, 8, true},
     {1, 2, 3, 0, 4, 5, 6, 255, 7, 8, 9, 128, 10, 11, 12, 1},
     {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
    {{PNG_COLOR_TYPE_RGB, 16, false},
     {1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10, 10, 11, 11, 12, 12},
     {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}},
    {{PNG_COLOR_TYPE_PALETTE, 8, false}, {0, 1, 100, 255}, {0, 255, 0, 1, 254, 0, 100, 155, 50, 255, 0, 127}},
    {{PNG_COLOR_TYPE_PALETTE, 2, false}, {0x1b}, {0, 255, 0, 1, 254, 0, 2, 253, 1, 3, 252, 1}},
};

START_TEST(test_png_kinds)
{
    bytes file = png_bytes(png_kinds[_i].row, 1, 4, png_kinds[_i].kind);
    uint8_t *expected = malloc(12);
    memcpy(expected, png_kinds[_i].rgb, 12);
    check_pixels(decode(file, 8), expected, 0);
    free(file.data);
}
END_TEST

static bytes some_file(int which)
{
    uint8_t *pixels = smooth_picture(24, 40, 5);
    bytes files[] = {
        jpeg_bytes(pixels, 24, 40, (jpeg_kind){.channels = 3}),
        jpeg_bytes(pixels, 24, 40, (jpeg_kind){.channels = 3, .progressive = true}),
        jpeg_bytes(pixels, 24, 30, (jpeg_kind){.channels = 4, .ycck = true}),
        png_bytes(pixels, 24, 40, (png_kind){PNG_COLOR_TYPE_RGB, 8, false}),
        png_bytes(pixels, 24, 30, (png_kind){PNG_COLOR_TYPE_RGB_ALPHA, 8, true}),
        png_bytes(pixels, 24, 40, (png_kind){PNG_COLOR_TYPE_PALETTE, 8, false}),
    };
    enum { FILES = sizeof files / sizeof *files };
    for (int i = 0; i < FILES; i++)
        if (i != which)
            free(files[i].data);
    free(pixels);
    return files[which];
}
#define SOME_FILES 6

START_TEST(test_truncated)
{
    bytes content = some_file(_i);
    image picture = {0};
    for (size_t size = 0; size < content.size; size++) {
        image_file file = in_memory((bytes){malloc(size + 1), size}); /* its own memory, for the sanitizer */
        memcpy(file.bytes, content.data, size);
        ck_assert_msg(image_decode(&file, 8, &picture) == SHARD_ERROR_FORMAT, "%zu of %zu bytes", size, content.size);
        check_error(SHARD_ERROR_FORMAT, "some/picture: *");
        free(file.bytes);
    }
    image_free(&picture);
    free(content.data);
}
END_TEST

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

START_TEST(test_random_damage)
{
    enum { TRIES = 1500 };
    bytes content = some_file(_i);
    image picture = {0};
    random_stream random = random_start(7, 0, (uint64_t)_i);
    int errors = 0;
    for (int attempt = 0; attempt < TRIES; attempt++) {
        size_t size = content.size - (attempt % 5 == 0 ? random_next(&random) % content.size : 0);
        image_file file = in_memory((bytes){malloc(size), size});
        memcpy(file.bytes, content.data, size);
        for (uint64_t changes = random_next(&random) % 6; changes > 0; changes--)
            file.bytes[random_next(&random) % size] = (uint8_t)random_next(&random);
        int64_t height, width;
        shard_status status = image_read_size(&file, &height, &width);
        if (status == SHARD_OK && height * width < 4000000)
            status = image_decode(&file, 1 << attempt % 4, &picture);
        errors += status != SHARD_OK;
        ck_assert_int_eq(status, shard_last_status());
        shard_clear_error();
        if (attempt % 8 == 0)
            ck_assert_int_eq(LLVMFuzzerTestOneInput(file.bytes, size), 0); /* aborts where fuzz_image.c finds fault */
        free(file.bytes);
    }
    ck_assert_int_gt(errors, TRIES / 5);
    ck_assert_int_lt(errors, TRIES);
    image_free(&picture);
    free(content.data);
}
END_TEST

/* libjpeg only warns of these and makes up the rest of the picture. */
START_TEST(test_jpeg_warnings_are_errors)
{
    bytes content = some_file(0);
    memset(content.data + content.size - 60, 0, 50);
    image_file file = in_memory(content);
    image picture = {0};
    ck_assert_int_eq(image_decode(&file, 8, &picture), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "some/picture: Corrupt JPEG data*");
    image_free(&picture);
    free(content.data);
}
END_TEST

/* The check sum of the pixels is changed. */
START_TEST(test_png_check_sum)
{
    bytes content = some_file(3);
    content.data[content.size - 14] ^= 1;
    image_file file = in_memory(content);
    image picture = {0};
    ck_assert_int_eq(image_decode(&file, 8, &picture), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "some/picture: *CRC*");
    image_free(&picture);
    free(content.data);
}
END_TEST

START_TEST(test_too_many_pixels)
{
    bytes content = some_file(3);
    memcpy(content.data + 16, "\0\0\xea\x60\0\0\xea\x60", 8); /* 60000 x 60000; the header's check sum is wrong too */
    image_file file = in_memory(content);
    int64_t height, width;
    ck_assert_int_eq(image_read_size(&file, &height, &width), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "some/picture: 60000 x 60000 pixels are too many *");
    free(content.data);
}
END_TEST

START_TEST(test_other_files)
{
    uint8_t gif[] = "GIF89a and more";
    image_file file = in_memory((bytes){gif, sizeof gif});
    image picture = {0};
    ck_assert_int_eq(image_decode(&file, 8, &picture), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "some/picture: *JPEG*");
    file.size = 0;
    ck_assert_int_eq(image_decode(&file, 8, &picture), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "some/picture: *empty*");
    ck_assert_int_eq(image_decode(&file, 3, &picture), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "image_decode: eighths is 3*");
}
END_TEST

START_TEST(test_reads_files)
{
    char folder[64], path[128];
    make_folder(folder);
    bytes content = some_file(0);
    write_file(content, "%s/a.jpg", folder);
    write_file((bytes){0}, "%s/empty.jpg", folder);
    image_file file = {0};
    snprintf(path, sizeof path, "%s/a.jpg", folder);
    check_ok(image_file_read(&file, path));
    ck_assert_uint_eq(file.size, content.size);
    ck_assert_mem_eq(file.bytes, content.data, content.size);
    ck_assert_str_eq(file.path, path);
    snprintf(path, sizeof path, "%s/empty.jpg", folder);
    ck_assert_int_eq(image_file_read(&file, path), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, "*/empty.jpg: an empty file");
    ck_assert_uint_eq(file.size, 0);
    snprintf(path, sizeof path, "%s/none.jpg", folder);
    ck_assert_int_eq(image_file_read(&file, path), SHARD_ERROR_IO);
    check_error(SHARD_ERROR_IO, "*/none.jpg: No such file or directory");
    ck_assert_int_eq(image_file_read(&file, folder), SHARD_ERROR_IO);
    check_error(SHARD_ERROR_IO, "*: not a regular file");
    image_file_free(&file);
    free(content.data);
    remove_folder(folder);
}
END_TEST

/* Nobody writes into a FIFO: what opens it in the usual way waits for ever. */
START_TEST(test_reads_no_fifo)
{
    char folder[64], path[128];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/fifo.png", folder);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    image_file file = {0};
    alarm(20);
    ck_assert_int_eq(image_file_read(&file, path), SHARD_ERROR_IO);
    check_error(SHARD_ERROR_IO, "*/fifo.png: not a regular file");
    image_file_free(&file);
    remove_folder(folder);
}
END_TEST

/* Of a file that is no picture, or is larger than one can be, the beginning says so: the rest is not read. */
START_TEST(test_reads_no_more_than_it_needs)
{
    static const struct {
        const char *begin, *told;
        off_t size;
    } large[] = {
        {"no picture", "*/large.png: neither JPEG nor PNG by its first bytes", 400 << 20},
        {"\x89PNG\r\n\x1a\n", "*/large.png: 6000000000 bytes are too many for a picture (at most 536870910)", 6000000000},
    };
    char folder[64], path[128];
    make_folder(folder);
    snprintf(path, sizeof path, "%s/large.png", folder);
    write_file((bytes){(uint8_t *)large[_i].begin, strlen(large[_i].begin)}, "%s", path);
    ck_assert_int_eq(truncate(path, large[_i].size), 0); /* sparse */
    image_file file = {0};
    ck_assert_int_eq(image_file_read(&file, path), SHARD_ERROR_FORMAT);
    check_error(SHARD_ERROR_FORMAT, large[_i].told);
    ck_assert_uint_eq(file.capacity, 0);
    image_file_free(&file);
    remove_folder(folder);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("image");
    TCase *jpeg = test_case(suite, "jpeg");
    tcase_add_loop_test(jpeg, test_jpeg_rgb, 0, 4);
    tcase_add_test(jpeg, test_jpeg_grey);
    tcase_add_loop_test(jpeg, test_jpeg_cmyk, 0, 3);
    tcase_add_loop_test(jpeg, test_jpeg_scaled, 0, 3);
    TCase *png = test_case(suite, "png");
    tcase_add_loop_test(png, test_png_rgb, 0, 2);
    tcase_add_test(png, test_png_is_never_scaled);
    tcase_add_loop_test(png, test_png_kinds, 0, sizeof png_kinds / sizeof *png_kinds);
    TCase *damage = test_case(suite, "damage");
    tcase_add_loop_test(damage, test_truncated, 0, SOME_FILES);
    tcase_add_loop_test(damage, test_random_damage, 0, SOME_FILES);
    tcase_add_test(damage, test_jpeg_warnings_are_errors);
    tcase_add_test(damage, test_png_check_sum);
    tcase_add_test(damage, test_too_many_pixels);
    tcase_add_test(damage, test_other_files);
    TCase *files = test_case(suite, "files");
    tcase_add_test(files, test_reads_files);
    tcase_add_test(files, test_reads_no_fifo);
    tcase_add_loop_test(files, test_reads_no_more_than_it_needs, 0, 2);
    return test_run(suite);
}
