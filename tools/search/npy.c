#include "npy.h"

#include "base/error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "\x93NUMPY"

static const struct {
    const char *name;
    shard_dtype dtype;
} types[] = {{"<f4", SHARD_FLOAT32}, {"<f8", SHARD_FLOAT64}, {"<f2", SHARD_FLOAT16}, {"<i8", SHARD_INT64}, {"<i4", SHARD_INT32}};
enum { TYPES = sizeof types / sizeof *types };

/* Bytes before the text: the magic number, the version, the text's length of 2 bytes, from version 2 on of 4. */
static size_t text_start(const char *first)
{
    return first[6] == 1 ? 10 : 12;
}

shard_status npy_header_bytes(const char *path, const char first[NPY_FIRST], size_t *bytes)
{
    if (memcmp(first, MAGIC, 6) != 0 || first[6] < 1 || first[6] > 3)
        return shard_error(SHARD_ERROR_FORMAT, "%s: not a .npy file of version 1, 2 or 3", path);
    size_t length = 0;
    for (size_t i = text_start(first); i-- > 8;)
        length = length << 8 | (unsigned char)first[i];
    if (length > NPY_MOST_TEXT)
        return shard_error(SHARD_ERROR_FORMAT, "%s: a .npy header of %zu bytes", path, length);
    *bytes = text_start(first) + length;
    return SHARD_OK;
}

/* The value of a key of the header, a literal of a Python dictionary. */
static const char *find_value(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    at = at ? at + strlen(key) : NULL;
    at = at ? at + strspn(at, " ") : NULL;
    return at && *at == ':' ? at + 1 + strspn(at + 1, " ") : NULL;
}

static bool read_shape(const char *at, shard_shape *shape)
{
    *shape = (shard_shape){0};
    if (*at++ != '(')
        return false;
    for (at += strspn(at, " "); *at != ')'; at += strspn(at, " ")) {
        char *end;
        if (*at < '0' || *at > '9' || shape->ndim == SHARD_MAX_DIMS)
            return false;
        int64_t size = strtoll(at, &end, 10);
        if (size == INT64_MAX)
            return false;
        shape->dim[shape->ndim++] = size;
        at = end + strspn(end, " ");
        if (*at != ',' && *at != ')')
            return false;
        at += *at == ',';
    }
    return true;
}

shard_status npy_header_read(npy_header *header, const char *path, const char *bytes, size_t count)
{
    char text[NPY_MOST_TEXT + 1];
    size_t start = text_start(bytes), length = count - start;
    memcpy(text, bytes + start, length);
    text[length] = '\0';
    const char *type = find_value(text, "'descr'"), *order = find_value(text, "'fortran_order'"),
               *shape = find_value(text, "'shape'");
    if (!type || !order || !shape || !read_shape(shape, &header->shape))
        return shard_error(SHARD_ERROR_FORMAT, "%s: a malformed .npy header", path);
    if (strncmp(order, "False", 5) != 0)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: an array in Fortran's order; save numpy.ascontiguousarray of it", path);
    for (int i = 0; i < TYPES; i++)
        if (*type == '\'' && strncmp(type + 1, types[i].name, 3) == 0 && type[4] == '\'') {
            header->dtype = types[i].dtype;
            return SHARD_OK;
        }
    return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: dtype %.*s; queries are <f2, <f4 or <f8, row indices <i4 or <i8", path,
                       (int)strcspn(type, ",}"), type);
}

size_t npy_header_write(char text[256], shard_dtype dtype, int64_t rows, int64_t width)
{
    enum { BYTES = 128, FIRST = 10 };
    const char *name = types[0].name;
    for (int i = 0; i < TYPES; i++)
        name = types[i].dtype == dtype ? types[i].name : name;
    memcpy(text, MAGIC "\x01\x00", 8);
    text[8] = BYTES - FIRST;
    text[9] = 0;
    int used = snprintf(text + FIRST, 256 - FIRST,
                        "{'descr': '%s', 'fortran_order': False, 'shape': (%" PRId64 ", %" PRId64 "), }", name, rows, width);
    memset(text + FIRST + used, ' ', (size_t)(BYTES - FIRST - used));
    text[BYTES - 1] = '\n';
    return BYTES;
}
