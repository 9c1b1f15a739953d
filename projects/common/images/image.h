/* Pictures from files: JPEG and PNG of any kind to 8-bit RGB. */
#ifndef IMAGES_IMAGE_H
#define IMAGES_IMAGE_H

#include <shard/base.h>

/* A file's bytes as they are. Start with {0}; reading another file reuses the memory. */
typedef struct image_file {
    char *path;
    uint8_t *bytes;
    size_t size;
    size_t path_capacity, capacity;
} image_file;

/* Reads the whole file: a regular one that begins as a JPEG or a PNG and is not larger than the largest picture. Of
 * other files it reads at most the first bytes. Errors: IO, FORMAT; the text begins with the path. */
shard_status image_file_read(image_file *file, const char *path);
/* For a source that is no file of its own: names the content for errors, and makes room for `size` bytes of it at file->bytes, which
 * the caller fills. The same limit. Errors: FORMAT, MEMORY. */
shard_status image_file_reserve(image_file *file, const char *name, int64_t size);
void image_file_free(image_file *file);

/* A decoded picture. Start with {0}; decoding another one reuses the memory. */
typedef struct image {
    int64_t height, width;
    uint8_t *pixels; /* [height, width, 3], red green blue */
    size_t capacity;
} image;

void image_free(image *picture);

/* The picture's size as the file's header says it. Errors: FORMAT. */
shard_status image_read_size(const image_file *file, int64_t *height, int64_t *width);

/*
 * Decodes the picture. A JPEG is decoded at eighths/8 of its size (rounded up; 1, 2, 4 or 8: the sizes that
 * libjpeg-turbo has fast code for), a PNG always at its full size. As PIL's convert("RGB"): alpha is removed, CMYK,
 * which is taken as inverted, becomes RGB, EXIF's orientation is not applied. 16 bits are scaled to 8 and rounded; PIL takes the
 * high byte of RGB, and clips grey at 255. Damage is an error, also if libjpeg would
 * continue with a warning. Errors: FORMAT (the text begins with the path), MEMORY.
 */
shard_status image_decode(const image_file *file, int eighths, image *picture);

#endif
