#include "support/pictures.h"

#include <check.h>
#include <ftw.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <jpeglib.h>
#include <png.h>

bytes jpeg_bytes(const uint8_t *samples, int height, int width, jpeg_kind kind)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *memory = NULL;
    unsigned long size = 0;
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &memory, &size);
    jpeg.image_width = (unsigned)width;
    jpeg.image_height = (unsigned)height;
    jpeg.input_components = kind.channels;
    jpeg.in_color_space = kind.channels == 1 ? JCS_GRAYSCALE : kind.channels == 3 ? JCS_RGB : JCS_CMYK;
    jpeg_set_defaults(&jpeg);
    if (kind.ycck)
        jpeg_set_colorspace(&jpeg, JCS_YCCK);
    jpeg_set_quality(&jpeg, 100, TRUE);
    for (int c = 0; c < jpeg.num_components; c++)
        jpeg.comp_info[c].h_samp_factor = jpeg.comp_info[c].v_samp_factor = 1;
    if (kind.progressive)
        jpeg_simple_progression(&jpeg);
    jpeg_scan_info scans[1 + 3 * 63] = {{.comps_in_scan = 3, .component_index = {0, 1, 2}}};
    for (int i = 0; i < 3 * 63; i++)
        scans[i + 1] = (jpeg_scan_info){.comps_in_scan = 1, .component_index = {i % 3}, .Ss = i / 3 + 1, .Se = i / 3 + 1};
    if (kind.scans) {
        jpeg.scan_info = scans;
        jpeg.num_scans = 1 + 3 * 63;
    }
    jpeg_start_compress(&jpeg, TRUE);
    /* Orientation 6: turned by a quarter. */
    static const uint8_t exif[] = "Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0";
    if (kind.turned)
        jpeg_write_marker(&jpeg, JPEG_APP0 + 1, exif, sizeof exif - 1);
    for (int y = 0; y < height; y++) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(samples + (size_t)y * (size_t)width * (size_t)kind.channels);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    return (bytes){memory, size};
}

static void append(png_structp png, png_bytep from, size_t count)
{
    bytes *to = png_get_io_ptr(png);
    to->data = realloc(to->data, to->size + count);
    ck_assert_ptr_nonnull(to->data);
    memcpy(to->data + to->size, from, count);
    to->size += count;
}

static void set_palette(png_structp png, png_infop info, int depth)
{
    png_color colours[256];
    for (int i = 0; i < 256; i++)
        colours[i] = (png_color){(png_byte)i, (png_byte)(255 - i), (png_byte)(i / 2)};
    png_set_PLTE(png, info, colours, 1 << depth);
    const png_byte transparent = 0;
    png_set_tRNS(png, info, &transparent, 1, NULL);
}

bytes png_bytes(const uint8_t *rows, int height, int width, png_kind kind)
{
    bytes file = {0};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    ck_assert(setjmp(png_jmpbuf(png)) == 0);
    png_set_write_fn(png, &file, append, NULL);
    png_set_IHDR(png, info, (unsigned)width, (unsigned)height, kind.depth, kind.color,
                 kind.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
                 PNG_FILTER_TYPE_DEFAULT);
    if (kind.color == PNG_COLOR_TYPE_PALETTE)
        set_palette(png, info, kind.depth);
    png_write_info(png, info);
    size_t row_bytes = png_get_rowbytes(png, info);
    int passes = png_set_interlace_handling(png);
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < height; y++)
            png_write_row(png, rows + (size_t)y * row_bytes);
    png_write_end(png, NULL);
    png_destroy_write_struct(&png, &info);
    return file;
}

uint8_t *smooth_picture(int height, int width, int seed)
{
    uint8_t *pixels = malloc((size_t)height * (size_t)width * 3), *at = pixels;
    ck_assert_ptr_nonnull(pixels);
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++)
            for (int c = 0; c < 3; c++)
                *at++ = (uint8_t)lrint(127.5 + 60 * sin(0.07 * x + 0.9 * seed + c) + 60 * cos(0.05 * y + 0.4 * seed - c));
    return pixels;
}

void make_folder(char path[64])
{
    const char *root = getenv("TMPDIR");
    snprintf(path, 64, "%.40s/shard-test-XXXXXX", root && *root ? root : "/tmp");
    ck_assert_ptr_nonnull(mkdtemp(path));
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status, (void)kind, (void)where;
    return remove(path);
}

void remove_folder(const char *path)
{
    ck_assert_int_eq(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

void write_file(bytes content, const char *format, ...)
{
    char path[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(path, sizeof path, format, arguments);
    va_end(arguments);
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777);
        *slash = '/';
    }
    FILE *file = fopen(path, "wb");
    ck_assert_msg(file != NULL, "%s", path);
    if (content.size > 0)
        ck_assert_uint_eq(fwrite(content.data, 1, content.size, file), content.size);
    ck_assert_int_eq(fclose(file), 0);
}
