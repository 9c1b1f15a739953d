/*
 * Pictures from files. libjpeg and libpng report errors by a handler that must not return: ours keeps the text and
 * jumps back to the decoder's setjmp. Everything that changes between setjmp and the jump is in a structure, so that
 * no register variable is lost.
 */
#include "image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jpeglib.h>
#include <jerror.h>
#include <png.h>

/* More pixels than any photograph: PIL refuses at the same size. */
#define MAX_PIXELS (2 * (int64_t)89478485)
/* Bytes of a file: a picture of this many 8-bit pixels takes no more, even uncompressed. */
#define MAX_FILE_BYTES (3 * MAX_PIXELS)
/* Pixels of a row or a column, as of a JPEG. The rows that libpng keeps take 8 bytes a pixel each. */
#define MAX_SIDE 65500
/* A progressive JPEG with more scans is made to waste time: encoders write about ten, and each takes as long as the first. */
#define MAX_JPEG_SCANS 100
/* Bytes that libjpeg takes apart from the picture: of a progressive JPEG all coefficients, up to 6 bytes a pixel. */
#define MAX_JPEG_MEMORY (512L << 20)
/* Bytes that libpng takes for one chunk of text or of a colour profile, decompressed, and how many chunks it keeps. */
#define MAX_PNG_CHUNK_BYTES 8000000
#define MAX_PNG_CHUNKS 128

static shard_status damaged(const image_file *file, const char *why)
{
    return shard_error(SHARD_ERROR_FORMAT, "%s: %s", file->path, why);
}

static shard_status reserve(void *memory, size_t *capacity, size_t size, const char *path)
{
    if (size <= *capacity)
        return SHARD_OK;
    void **slot = memory;
    free(*slot); /* the content is replaced below */
    *slot = malloc(size);
    *capacity = *slot ? size : 0;
    return *slot ? SHARD_OK : shard_error(SHARD_ERROR_MEMORY, "%s: no memory for %zu bytes", path, size);
}

/* ---- the format ---- */

#define SIGNATURE_BYTES 8 /* of a PNG; a JPEG has 3 */

static bool is_jpeg(const image_file *file)
{
    return file->size >= 3 && memcmp(file->bytes, "\xff\xd8\xff", 3) == 0;
}

static bool is_png(const image_file *file)
{
    return file->size >= SIGNATURE_BYTES && memcmp(file->bytes, "\x89PNG\r\n\x1a\n", SIGNATURE_BYTES) == 0;
}

static shard_status unknown_kind(const image_file *file)
{
    return damaged(file, file->size ? "neither JPEG nor PNG by its first bytes" : "an empty file");
}

/* ---- the file ---- */

/* Appends data until the file has `size` bytes, or ends. */
static shard_status read_up_to(image_file *file, int descriptor, size_t size)
{
    while (file->size < size) {
        ssize_t count = read(descriptor, file->bytes + file->size, size - file->size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return shard_error(SHARD_ERROR_IO, "%s: %s", file->path, strerror(errno));
        if (count == 0)
            break; /* the file became shorter: the decoder will report it */
        file->size += (size_t)count;
    }
    return SHARD_OK;
}

static shard_status too_large(const image_file *file, int64_t size)
{
    return shard_error(SHARD_ERROR_FORMAT, "%s: %" PRId64 " bytes are too many for a picture (at most %" PRId64 ")", file->path, size,
                       MAX_FILE_BYTES);
}

/* Reads the first bytes, then the rest if they are a picture's. */
static shard_status read_open_file(image_file *file, int descriptor)
{
    struct stat found;
    if (fstat(descriptor, &found) != 0)
        return shard_error(SHARD_ERROR_IO, "%s: %s", file->path, strerror(errno));
    if (!S_ISREG(found.st_mode))
        return shard_error(SHARD_ERROR_IO, "%s: not a regular file", file->path);
    if (found.st_size > MAX_FILE_BYTES)
        return too_large(file, found.st_size);
    size_t size = (size_t)found.st_size, first = size < SIGNATURE_BYTES ? size : SIGNATURE_BYTES;
    uint8_t signature[SIGNATURE_BYTES];
    image_file begin = {.path = file->path, .bytes = signature};
    shard_status status = read_up_to(&begin, descriptor, first);
    if (status == SHARD_OK && !is_jpeg(&begin) && !is_png(&begin))
        status = unknown_kind(&begin);
    if (status == SHARD_OK)
        status = reserve(&file->bytes, &file->capacity, size, file->path);
    if (status != SHARD_OK)
        return status;
    memcpy(file->bytes, signature, begin.size);
    file->size = begin.size;
    return read_up_to(file, descriptor, size);
}

static shard_status set_path(image_file *file, const char *path)
{
    file->size = 0;
    size_t length = strlen(path) + 1;
    shard_status status = reserve(&file->path, &file->path_capacity, length, path);
    if (status == SHARD_OK)
        memcpy(file->path, path, length);
    return status;
}

shard_status image_file_reserve(image_file *file, const char *name, int64_t size)
{
    shard_status status = set_path(file, name);
    if (status == SHARD_OK && size > MAX_FILE_BYTES)
        status = too_large(file, size);
    if (status == SHARD_OK)
        status = reserve(&file->bytes, &file->capacity, (size_t)size, name);
    if (status == SHARD_OK)
        file->size = (size_t)size;
    return status;
}

shard_status image_file_read(image_file *file, const char *path)
{
    shard_status status = set_path(file, path);
    if (status != SHARD_OK)
        return status;
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* or a FIFO waits for a writer */
    if (descriptor < 0)
        return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    status = read_open_file(file, descriptor);
    close(descriptor);
    return status;
}

void image_file_free(image_file *file)
{
    free(file->path);
    free(file->bytes);
    *file = (image_file){0};
}

void image_free(image *picture)
{
    free(picture->pixels);
    *picture = (image){0};
}

static shard_status check_size(const image_file *file, int64_t height, int64_t width)
{
    if (height < 1 || width < 1)
        return damaged(file, "a picture without pixels");
    if (height > MAX_SIDE || width > MAX_SIDE)
        return shard_error(SHARD_ERROR_FORMAT, "%s: %" PRId64 " x %" PRId64 " pixels are too large (at most %d a side)",
                           file->path, width, height, MAX_SIDE);
    if (height > MAX_PIXELS / width)
        return shard_error(SHARD_ERROR_FORMAT, "%s: %" PRId64 " x %" PRId64 " pixels are too many (at most %" PRId64 ")",
                           file->path, width, height, MAX_PIXELS);
    return SHARD_OK;
}

static shard_status resize_picture(const image_file *file, image *picture, int64_t height, int64_t width)
{
    picture->height = height;
    picture->width = width;
    return reserve(&picture->pixels, &picture->capacity, (size_t)height * (size_t)width * 3, file->path);
}

/* ---- JPEG ---- */

typedef struct jpeg_reader {
    struct jpeg_error_mgr errors; /* first, as libjpeg returns a pointer to it */
    struct jpeg_progress_mgr progress;
    struct jpeg_decompress_struct jpeg;
    jmp_buf failed;
    char text[JMSG_LENGTH_MAX];
    uint8_t *cmyk; /* [width, 4]: one row */
} jpeg_reader;

_Noreturn static void jpeg_fail(j_common_ptr common)
{
    jpeg_reader *reader = (jpeg_reader *)common->err;
    int code = common->err->msg_code;
    if (code == JERR_NO_BACKING_STORE || code == JERR_OUT_OF_MEMORY)
        snprintf(reader->text, sizeof reader->text, "decoding takes more than %ld MiB of memory", MAX_JPEG_MEMORY >> 20);
    else
        common->err->format_message(common, reader->text);
    longjmp(reader->failed, 1);
}

static void jpeg_message(j_common_ptr common, int level)
{
    int code = common->err->msg_code;
    bool harmless = code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM;
    if (level < 0 && !harmless)
        jpeg_fail(common);
}

static void jpeg_watch_scans(j_common_ptr common)
{
    jpeg_reader *reader = (jpeg_reader *)common->err;
    if (!common->is_decompressor || reader->jpeg.input_scan_number <= MAX_JPEG_SCANS)
        return;
    snprintf(reader->text, sizeof reader->text, "more than %d scans", MAX_JPEG_SCANS);
    longjmp(reader->failed, 1);
}

/* Called after setjmp: any of these calls may jump. */
static void jpeg_start(jpeg_reader *reader, const image_file *file)
{
    jpeg_create_decompress(&reader->jpeg);
    reader->jpeg.mem->max_memory_to_use = MAX_JPEG_MEMORY;
    reader->progress.progress_monitor = jpeg_watch_scans;
    reader->jpeg.progress = &reader->progress;
    jpeg_mem_src(&reader->jpeg, file->bytes, (unsigned long)file->size);
    jpeg_read_header(&reader->jpeg, TRUE);
}

static void jpeg_prepare(jpeg_reader *reader)
{
    reader->jpeg.err = jpeg_std_error(&reader->errors);
    reader->errors.error_exit = jpeg_fail;
    reader->errors.emit_message = jpeg_message;
}

static shard_status jpeg_read_size(const image_file *file, int64_t *height, int64_t *width)
{
    jpeg_reader reader = {0};
    jpeg_prepare(&reader);
    if (setjmp(reader.failed)) {
        jpeg_destroy_decompress(&reader.jpeg);
        return damaged(file, reader.text);
    }
    jpeg_start(&reader, file);
    *height = reader.jpeg.image_height;
    *width = reader.jpeg.image_width;
    jpeg_destroy_decompress(&reader.jpeg);
    return SHARD_OK;
}

/* Inverted, as Adobe's programs store CMYK, also without their marker: as PIL reads it. */
static void cmyk_to_rgb(const uint8_t *cmyk, uint8_t *rgb, int64_t width)
{
    for (int64_t x = 0; x < width; x++, cmyk += 4, rgb += 3)
        for (int c = 0; c < 3; c++)
            rgb[c] = (uint8_t)((cmyk[c] * cmyk[3] + 127) / 255);
}

static void jpeg_read_rows(jpeg_reader *reader, image *picture)
{
    struct jpeg_decompress_struct *jpeg = &reader->jpeg;
    while (jpeg->output_scanline < jpeg->output_height) {
        uint8_t *pixels = picture->pixels + (int64_t)jpeg->output_scanline * picture->width * 3;
        JSAMPROW row = reader->cmyk ? reader->cmyk : pixels;
        jpeg_read_scanlines(jpeg, &row, 1);
        if (reader->cmyk)
            cmyk_to_rgb(reader->cmyk, pixels, picture->width);
    }
    jpeg_finish_decompress(jpeg);
}

static shard_status jpeg_decode(const image_file *file, int eighths, image *picture)
{
    jpeg_reader reader = {0};
    jpeg_prepare(&reader);
    if (setjmp(reader.failed)) {
        jpeg_destroy_decompress(&reader.jpeg);
        free(reader.cmyk);
        return damaged(file, reader.text);
    }
    struct jpeg_decompress_struct *jpeg = &reader.jpeg;
    jpeg_start(&reader, file);
    shard_status status = check_size(file, jpeg->image_height, jpeg->image_width);
    if (status == SHARD_OK) {
        bool cmyk = jpeg->jpeg_color_space == JCS_CMYK || jpeg->jpeg_color_space == JCS_YCCK;
        jpeg->out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
        jpeg->scale_num = (unsigned)eighths;
        jpeg->scale_denom = 8;
        jpeg_start_decompress(jpeg);
        status = resize_picture(file, picture, jpeg->output_height, jpeg->output_width);
        if (status == SHARD_OK && cmyk && !(reader.cmyk = malloc((size_t)jpeg->output_width * 4)))
            status = shard_error(SHARD_ERROR_MEMORY, "%s: no memory for a row of %u pixels", file->path, jpeg->output_width);
        if (status == SHARD_OK)
            jpeg_read_rows(&reader, picture);
    }
    jpeg_destroy_decompress(jpeg);
    free(reader.cmyk);
    return status;
}

/* ---- PNG ---- */

typedef struct png_reader {
    const image_file *file;
    size_t position;
    char text[200];
    png_structp png;
    png_infop info;
} png_reader;

_Noreturn static void png_fail(png_structp png, png_const_charp text)
{
    png_reader *reader = png_get_error_ptr(png);
    snprintf(reader->text, sizeof reader->text, "%s", text);
    png_longjmp(png, 1);
}

/* libpng's other warnings are about data that the pixels do not depend on: bad text, profiles, ... A wrong checksum is an error
 * in any chunk, as the file is damaged then. */
static void png_message(png_structp png, png_const_charp text)
{
    static const char *const of_pixels[] = {"IDAT", "compressed data", "image data", "palette index"};
    bool of_text = strstr(text, "iCCP:") || strstr(text, "zTXt:") || strstr(text, "iTXt:"); /* these are compressed, too */
    for (size_t i = 0; i < sizeof of_pixels / sizeof *of_pixels && !of_text; i++)
        if (strstr(text, of_pixels[i]))
            png_error(png, text);
}

static void png_read_bytes(png_structp png, png_bytep into, size_t count)
{
    png_reader *reader = png_get_io_ptr(png);
    if (count > reader->file->size - reader->position)
        png_error(png, "the file ends too early");
    memcpy(into, reader->file->bytes + reader->position, count);
    reader->position += count;
}

static uint32_t big_endian(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The size is at a fixed place; the decoder checks the rest. */
static shard_status png_read_size(const image_file *file, int64_t *height, int64_t *width)
{
    if (file->size < SIGNATURE_BYTES + 16 || memcmp(file->bytes + 12, "IHDR", 4) != 0)
        return damaged(file, "a PNG without a header");
    *width = big_endian(file->bytes + 16);
    *height = big_endian(file->bytes + 20);
    return SHARD_OK;
}

/* libpng 1.6.39 allocates the length that a compressed text claims, before it reads the text. Rows are smaller than the limit. */
static png_voidp png_allocate(png_structp png, png_alloc_size_t bytes)
{
    (void)png;
    return bytes <= MAX_PNG_CHUNK_BYTES ? malloc(bytes) : NULL;
}

static void png_release(png_structp png, png_voidp memory)
{
    (void)png;
    free(memory);
}

static void png_convert_to_rgb(png_reader *reader)
{
    png_set_scale_16(reader->png);
    png_set_expand(reader->png);
    png_set_gray_to_rgb(reader->png);
    png_set_strip_alpha(reader->png);
}

static shard_status png_decode(const image_file *file, image *picture)
{
    png_reader reader = {.file = file};
    reader.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &reader, png_fail, png_message, NULL, png_allocate, png_release);
    if (!reader.png)
        return shard_error(SHARD_ERROR_MEMORY, "%s: libpng %s cannot start", file->path, PNG_LIBPNG_VER_STRING);
    if (setjmp(png_jmpbuf(reader.png))) {
        png_destroy_read_struct(&reader.png, &reader.info, NULL);
        return damaged(file, reader.text);
    }
    reader.info = png_create_info_struct(reader.png);
    if (!reader.info)
        png_error(reader.png, "no memory");
    png_set_user_limits(reader.png, MAX_SIDE, MAX_SIDE);
    png_set_chunk_malloc_max(reader.png, MAX_PNG_CHUNK_BYTES);
    png_set_chunk_cache_max(reader.png, MAX_PNG_CHUNKS);
    png_set_crc_action(reader.png, PNG_CRC_ERROR_QUIT, PNG_CRC_ERROR_QUIT);
    png_set_read_fn(reader.png, &reader, png_read_bytes);
    png_read_info(reader.png, reader.info);
    int64_t height = png_get_image_height(reader.png, reader.info);
    int64_t width = png_get_image_width(reader.png, reader.info);
    shard_status status = check_size(file, height, width);
    if (status == SHARD_OK)
        status = resize_picture(file, picture, height, width);
    if (status == SHARD_OK) {
        png_convert_to_rgb(&reader);
        int passes = png_set_interlace_handling(reader.png);
        png_read_update_info(reader.png, reader.info);
        if (png_get_rowbytes(reader.png, reader.info) != (size_t)width * 3)
            png_error(reader.png, "a kind of pixel that does not convert to RGB");
        for (int pass = 0; pass < passes; pass++)
            for (int64_t y = 0; y < height; y++)
                png_read_row(reader.png, picture->pixels + y * width * 3, NULL);
        png_read_end(reader.png, NULL);
    }
    png_destroy_read_struct(&reader.png, &reader.info, NULL);
    return status;
}

/* ---- both ---- */

shard_status image_read_size(const image_file *file, int64_t *height, int64_t *width)
{
    shard_status status = is_jpeg(file)  ? jpeg_read_size(file, height, width)
                          : is_png(file) ? png_read_size(file, height, width)
                                         : unknown_kind(file);
    return status == SHARD_OK ? check_size(file, *height, *width) : status;
}

shard_status image_decode(const image_file *file, int eighths, image *picture)
{
    if (eighths != 1 && eighths != 2 && eighths != 4 && eighths != 8)
        return shard_error(SHARD_ERROR_ARGUMENT, "image_decode: eighths is %d, not 1, 2, 4 or 8", eighths);
    return is_jpeg(file) ? jpeg_decode(file, eighths, picture) : is_png(file) ? png_decode(file, picture) : unknown_kind(file);
}
