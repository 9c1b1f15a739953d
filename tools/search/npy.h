/* Files of NumPy (.npy): https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef TOOLS_SEARCH_NPY_H
#define TOOLS_SEARCH_NPY_H

#include <shard/tensor.h>

/* Bytes that a file begins with, up to the length of the header's text. */
enum { NPY_FIRST = 12, NPY_MOST_TEXT = 1 << 16 };

typedef struct npy_header {
    shard_dtype dtype;
    shard_shape shape;
} npy_header;

/* The bytes of the whole header from its first NPY_FIRST bytes. FORMAT, beginning with path: it is no such file. */
shard_status npy_header_bytes(const char *path, const char first[NPY_FIRST], size_t *bytes);
/* Reads the whole header, of `count` bytes. FORMAT: a malformed one; UNSUPPORTED: a dtype or an order that is not read here. */
shard_status npy_header_read(npy_header *header, const char *path, const char *bytes, size_t count);
/* Writes the header of a matrix; returns its bytes, a multiple of 64. */
size_t npy_header_write(char text[256], shard_dtype dtype, int64_t rows, int64_t width);

#endif
