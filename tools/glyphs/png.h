/* Small grey PNG files, uncompressed: nothing is faster to write or to read,
 * and below a disk block (4 KiB) a smaller file saves nothing. */
#ifndef GLYPHS_PNG_H
#define GLYPHS_PNG_H

#include <stddef.h>
#include <stdint.h>

/* Greatest width and height. */
#define PNG_MAX_SIZE 128

/* Room that any such file fits in. */
#define PNG_MAX_BYTES (PNG_MAX_SIZE * (PNG_MAX_SIZE + 1) + 128)

/* Makes the file of pixels uint8 [size, size] and is its length. */
size_t png_encode(const uint8_t *pixels, int size, uint8_t *file);

#endif
