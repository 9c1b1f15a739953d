#include "queries.h"

#include "base/printable.h"
#include "rows.h"

#include "base/error.h"
#include "base/math.h"
#include "base/memory.h"
#include "device/device.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a line: of each number of a vector, and of anything. */
enum { NUMBER_BYTES = 64, LINE_BYTES = 1 << 20, WHY_BYTES = 320 };

/* ---- a batch ---- */

shard_status batch_open(batch *b, int64_t most, int64_t width)
{
    int64_t numbers;
    *b = (batch){.most = most};
    if (!shard_multiply(most, width, &numbers))
        return shard_error(SHARD_ERROR_MEMORY, "--batch-size %" PRId64 " of vectors of %" PRId64 " numbers", most, width);
    b->row = shard_calloc((size_t)most, sizeof *b->row);
    b->vector = shard_calloc((size_t)numbers, sizeof *b->vector);
    b->query = shard_calloc((size_t)most, sizeof *b->query);
    return b->row && b->vector && b->query ? SHARD_OK : shard_last_status();
}

void batch_clear(batch *b, int64_t width)
{
    for (int64_t i = 0; i < b->count && b->query; i++) {
        json_decref(b->query[i]);
        b->query[i] = NULL;
    }
    if (b->vector)
        memset(b->vector, 0, (size_t)(b->count * width) * sizeof *b->vector);
    b->count = 0;
    b->last = false;
}

void batch_close(batch *b)
{
    batch_clear(b, 0);
    free(b->row);
    free(b->vector);
    free(b->query);
}

/* ---- one query; `why` of WHY_BYTES is set to the reason if it is wrong ---- */

/* One more query of the batch; a vector is there already. */
static bool accept(queries *q, batch *b, int64_t row, json_t *query)
{
    b->row[b->count] = row;
    b->query[b->count++] = query ? query : json_pack("{s:I}", "vector", (json_int_t)q->taken);
    q->taken++;
    return true;
}

static bool take_row(queries *q, batch *b, int64_t row, char *why)
{
    if (row < 0 || row >= q->rows) {
        snprintf(why, WHY_BYTES, "there is no row %" PRId64 "; rows are 0 to %" PRId64, row, q->rows - 1);
        return false;
    }
    return accept(q, b, row, json_integer(row));
}

static bool take_name(queries *q, batch *b, json_t *name, char *why)
{
    const char *text = json_string_value(name);
    int64_t second = -1, row = q->names ? names_find(q->names, text, &second) : -1;
    if (!q->names)
        snprintf(why, WHY_BYTES, "the name %s, and no --names FILE is given", shard_quoted(text));
    else if (row < 0)
        snprintf(why, WHY_BYTES, "no row has the name %s", shard_quoted(text));
    else if (second >= 0)
        snprintf(why, WHY_BYTES, "the name %s is that of rows %" PRId64 " and %" PRId64 "; give the row", shard_quoted(text), row,
                 second);
    else
        return accept(q, b, row, json_incref(name));
    return false;
}

/* Takes the vector that lies in the batch's next place. */
static bool take_vector(queries *q, batch *b, char *why)
{
    double *vector = b->vector + b->count * q->width;
    int64_t odd = row_find_odd(vector, q->width, q->most);
    if (odd < 0)
        return accept(q, b, QUERY_VECTOR, NULL);
    snprintf(why, WHY_BYTES, "number %" PRId64 " of the vector is %g, which is not finite in the table's type", odd, vector[odd]);
    memset(vector, 0, (size_t)q->width * sizeof *vector);
    return false;
}

static bool take_array(queries *q, batch *b, const json_t *array, char *why)
{
    double *vector = b->vector + b->count * q->width;
    int64_t count = (int64_t)json_array_size(array);
    if (count != q->width) {
        snprintf(why, WHY_BYTES, "a vector of %" PRId64 " numbers; the table's rows have %" PRId64, count, q->width);
        return false;
    }
    for (int64_t i = 0; i < count; i++) {
        const json_t *number = json_array_get(array, (size_t)i);
        if (!json_is_number(number)) {
            snprintf(why, WHY_BYTES, "element %" PRId64 " of the vector is not a number", i);
            memset(vector, 0, (size_t)q->width * sizeof *vector);
            return false;
        }
        vector[i] = json_number_value(number);
    }
    return take_vector(q, b, why);
}

static bool take_line(queries *q, batch *b, const char *text, size_t bytes, char *why)
{
    json_error_t error;
    json_t *value = json_loadb(text, bytes, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
    bool taken = false;
    if (!value)
        snprintf(why, WHY_BYTES, "not JSON: column %d: %s (a name needs quotes)", error.column, error.text);
    else if (json_is_integer(value))
        taken = take_row(q, b, json_integer_value(value), why);
    else if (json_is_string(value))
        taken = take_name(q, b, value, why);
    else if (json_is_array(value))
        taken = take_array(q, b, value, why);
    else
        snprintf(why, WHY_BYTES, "neither a row's index, a whole number, nor a name nor a vector");
    json_decref(value);
    return taken;
}

/* ---- input ---- */

shard_status queries_open(queries *q, const char *path)
{
    bool standard = !path || strcmp(path, "-") == 0;
    q->answers = standard;
    return lines_open(&q->from, standard ? NULL : path);
}

void queries_close(queries *q)
{
    lines_close(&q->from);
    free(q->raw);
    q->raw = NULL;
}

static shard_status check_npy_shape(const queries *q, const char *path)
{
    const shard_shape *shape = &q->header.shape;
    bool rows = !shard_dtype_is_float(q->header.dtype);
    if (rows ? shape->ndim != 1 : shape->ndim != 2)
        return shard_error(SHARD_ERROR_SHAPE,
                           "%s: an array of %d dimensions; vectors are [queries, %" PRId64 "], row indices "
                           "[queries]",
                           path, shape->ndim, q->width);
    if (!rows && shape->dim[1] != q->width)
        return shard_error(SHARD_ERROR_SHAPE, "%s: vectors of %" PRId64 " numbers; the table's rows have %" PRId64, path,
                           shape->dim[1], q->width);
    if (!rows && q->width == 0) /* no bytes would bound their number */
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: vectors of 0 numbers; give them as lines of JSON", path);
    return SHARD_OK;
}

/* q->begun is set once the whole header has come; it is looked at from its first byte on each time. */
static shard_status read_npy_header(queries *q, int wait)
{
    const char *path = lines_path(&q->from);
    size_t there, bytes = 0;
    SHARD_TRY(lines_fill(&q->from, NPY_FIRST, wait, &there));
    if (there < NPY_FIRST && !q->from.ended)
        return SHARD_OK;
    if (there < NPY_FIRST)
        return shard_error(SHARD_ERROR_FORMAT, "%s: a .npy file of %zu bytes", path, there);
    SHARD_TRY(npy_header_bytes(path, lines_at(&q->from), &bytes));
    SHARD_TRY(lines_fill(&q->from, bytes, wait, &there));
    if (there < bytes && !q->from.ended)
        return SHARD_OK;
    if (there < bytes)
        return shard_error(SHARD_ERROR_FORMAT, "%s: ends in the .npy header", path);
    SHARD_TRY(npy_header_read(&q->header, path, lines_at(&q->from), bytes));
    lines_take(&q->from, bytes);
    q->begun = true;
    SHARD_TRY(check_npy_shape(q, path));
    q->raw = shard_calloc((size_t)shard_max(q->width, 1), sizeof *q->raw);
    return q->raw ? SHARD_OK : shard_last_status();
}

/* Looks at the first byte, once it has come. */
static shard_status begin(queries *q, int wait)
{
    size_t there;
    SHARD_TRY(lines_fill(&q->from, 1, wait, &there));
    if (there == 0 && !q->from.ended)
        return SHARD_OK;
    q->npy = there > 0 && *lines_at(&q->from) == '\x93';
    q->begun = !q->npy;
    return q->npy ? read_npy_header(q, wait) : SHARD_OK;
}

static int64_t read_index(const void *raw, shard_dtype dtype)
{
    return dtype == SHARD_INT64 ? *(const int64_t *)raw : *(const int32_t *)raw;
}

/* Rows of a .npy file are a batch, all of them errors if they are wrong. Rows that have not come by then are left to the next
 * call. */
static shard_status read_npy(queries *q, batch *b, int wait)
{
    const char *path = lines_path(&q->from);
    int64_t count = q->header.shape.dim[0], numbers = shard_dtype_is_float(q->header.dtype) ? q->width : 1;
    size_t bytes = (size_t)numbers * shard_dtype_size(q->header.dtype), there;
    while (b->count < b->most && q->taken < count) {
        char why[WHY_BYTES];
        bool taken;
        SHARD_TRY(lines_fill(&q->from, bytes, b->count > 0 ? 0 : wait, &there));
        if (there < bytes && !q->from.ended)
            return SHARD_OK;
        if (there < bytes)
            return shard_error(SHARD_ERROR_FORMAT, "%s: ends in row %" PRId64 " of %" PRId64, path, q->taken, count);
        memcpy(q->raw, lines_at(&q->from), bytes);
        if (shard_dtype_is_float(q->header.dtype)) {
            SHARD_TRY(shard_cpu()->ops->cast(shard_cpu(), numbers, q->raw, q->header.dtype, b->vector + b->count * q->width,
                                             SHARD_FLOAT64));
            taken = take_vector(q, b, why);
        } else {
            taken = take_row(q, b, read_index(q->raw, q->header.dtype), why);
        }
        if (!taken)
            return shard_error(SHARD_ERROR_ARGUMENT, "%s: row %" PRId64 ": %s", path, q->taken, why);
        lines_take(&q->from, bytes);
    }
    if (q->taken < count)
        return SHARD_OK;
    SHARD_TRY(lines_fill(&q->from, 1, b->count > 0 ? 0 : wait, &there));
    b->last = q->from.ended;
    return there == 0 ? SHARD_OK : shard_error(SHARD_ERROR_FORMAT, "%s: bytes after its %" PRId64 " rows", path, count);
}

/* The answer to a wrong query. The reason repeats some of the input, which may not be UTF-8. */
static shard_status refuse(queries *q, batch *b, const char *why)
{
    char text[2 * WHY_BYTES];
    shard_printable(text, sizeof text, why);
    json_t *answer = json_pack("{s:I, s:s}", "line", (json_int_t)q->from.line, "error", text);
    if (!answer)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for an answer");
    accept(q, b, QUERY_WRONG, answer);
    return SHARD_OK;
}

static bool is_blank(const char *text, size_t bytes)
{
    while (bytes > 0 && (*text == ' ' || *text == '\t' || *text == '\r'))
        text++, bytes--;
    return bytes == 0;
}

static shard_status read_lines(queries *q, batch *b, int wait)
{
    size_t most = LINE_BYTES + NUMBER_BYTES * (size_t)q->width, bytes;
    const char *text;
    while (b->count < b->most) {
        char why[WHY_BYTES];
        SHARD_TRY(lines_next(&q->from, most, b->count > 0 ? 0 : wait, &text, &bytes));
        if (!text)
            break;
        if (is_blank(text, bytes) || take_line(q, b, text, bytes, why))
            continue;
        if (!q->answers)
            return shard_error(SHARD_ERROR_ARGUMENT, "%s: line %" PRId64 ": %s", lines_path(&q->from), q->from.line, why);
        SHARD_TRY(refuse(q, b, why));
    }
    b->last = q->from.ended && q->from.begin == q->from.end;
    return SHARD_OK;
}

shard_status queries_read(queries *q, batch *b, int wait)
{
    if (!q->begun)
        SHARD_TRY(begin(q, wait));
    if (!q->begun)
        return SHARD_OK;
    return q->npy ? read_npy(q, b, wait) : read_lines(q, b, wait);
}
