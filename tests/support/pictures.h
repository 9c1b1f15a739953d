/* Picture files and folders that tests make for themselves. */
#ifndef TESTS_SUPPORT_PICTURES_H
#define TESTS_SUPPORT_PICTURES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct bytes {
    uint8_t *data;
    size_t size;
} bytes;

typedef struct jpeg_kind {
    int channels; /* 1 grey, 3 RGB, 4 CMYK as the samples are stored */
    bool ycck;    /* of 4 channels: stored as YCCK */
    bool progressive;
    bool scans;  /* progressive, with a scan for each coefficient of each component: 190 of RGB */
    bool turned; /* with an EXIF marker that says it is to be turned */
} jpeg_kind;

/* samples are [height, width, kind.channels]; quality 100, colours not subsampled. */
bytes jpeg_bytes(const uint8_t *samples, int height, int width, jpeg_kind kind);

typedef struct png_kind {
    int color; /* PNG_COLOR_TYPE_... */
    int depth; /* bits a sample */
    bool interlaced;
} png_kind;

/* rows are as libpng takes them; a palette is the 256 colours (i, 255 - i, i / 2), the first one transparent. */
bytes png_bytes(const uint8_t *rows, int height, int width, png_kind kind);

/* A smooth picture [height, width, 3] that differs from seed to seed. Freed by free(). */
uint8_t *smooth_picture(int height, int width, int seed);

/* Makes a folder for temporary files; it and all in it go by remove_folder. */
void make_folder(char path[64]);
void remove_folder(const char *path);

/* Writes a file; missing folders on the way are made. path is a format. */
void write_file(bytes content, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
