#ifdef real

typedef struct R(element) {
    real value;
    int64_t index;
} R(element);

/* The order of the elements; device.h defines it. */
static inline bool R(comes_first)(bool largest, R(element) a, R(element) b)
{
    if (largest ? a.value < b.value : a.value > b.value)
        return false;
    bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (a_nan != b_nan)
        return a_nan;
    return a_nan || a.value == b.value ? a.index < b.index : true;
}

static inline R(element) R(nothing)(bool largest)
{
    return (R(element)){.value = largest ? -INFINITY : INFINITY, .index = INT64_MAX};
}

static void R(put)(shard_dtype dtype, void *y, int64_t *index, int64_t at, R(element) e)
{
    real buffer;
    if (y) {
        real *to = R(place)(dtype, false, y, at, &buffer);
        *to = e.value;
        R(store)(dtype, false, y, at, 1, to);
    }
    if (index)
        index[at] = e.index;
}

/* ---- the first one ---- */

static void R(extreme_row)(const void *context, int64_t row)
{
    const order *o = context;
    real buffer[SPAN];
    R(element) best = R(nothing)(o->largest);
    for (int64_t start = 0; start < o->axis.size; start += SPAN) {
        int64_t count = shard_min(SPAN, o->axis.size - start), at = row * o->axis.size + start;
        const real *x = R(load)(o->dtype, o->x, at, count, buffer);
        for (int64_t i = 0; i < count; i++) {
            R(element) e = {x[i], o->index_of ? o->index_of[at + i] : o->start + start + i};
            if (R(comes_first)(o->largest, e, best))
                best = e;
        }
    }
    R(put)(o->dtype, o->y, o->index, row, best);
}

static void R(extreme_tile)(const void *context, int64_t outer, int64_t first, int64_t count)
{
    const order *o = context;
    int64_t at = outer * o->axis.size * o->axis.inner + first;
    real buffer[SPAN];
    R(element) best[SPAN];
    for (int64_t i = 0; i < count; i++)
        best[i] = R(nothing)(o->largest);
    for (int64_t k = 0; k < o->axis.size; k++, at += o->axis.inner) {
        const real *x = R(load)(o->dtype, o->x, at, count, buffer);
        for (int64_t i = 0; i < count; i++) {
            R(element) e = {x[i], o->index_of ? o->index_of[at + i] : o->start + k};
            if (R(comes_first)(o->largest, e, best[i]))
                best[i] = e;
        }
    }
    for (int64_t i = 0; i < count; i++)
        R(put)(o->dtype, o->y, o->index, outer * o->axis.inner + first + i, best[i]);
}

/* ---- the first k ---- */

static R(element) R(get)(const order *o, int64_t at)
{
    real buffer;
    return (R(element)){*R(load)(o->dtype, o->y, at, 1, &buffer), o->index[at]};
}

/* A heap of `size` from `base` on, whose root comes last in the order: e moves down from `hole`. */
static void R(sink)(const order *o, int64_t base, int64_t size, int64_t hole, R(element) e)
{
    for (int64_t child; (child = 2 * hole + 1) < size; hole = child) {
        R(element) last = R(get)(o, base + child);
        if (child + 1 < size) {
            R(element) other = R(get)(o, base + child + 1);
            if (R(comes_first)(true, last, other)) {
                last = other;
                child++;
            }
        }
        if (!R(comes_first)(true, e, last))
            break;
        R(put)(o->dtype, o->y, o->index, base + hole, last);
    }
    R(put)(o->dtype, o->y, o->index, base + hole, e);
}

/* The result's memory is the heap of the first elements so far. */
static void R(top_row)(const void *context, int64_t row)
{
    const order *o = context;
    int64_t base = row * o->k, cols = o->axis.size;
    real buffer[SPAN];
    for (int64_t i = 0; i < o->k; i++)
        R(put)(o->dtype, o->y, o->index, base + i, R(nothing)(true));
    R(element) last = R(nothing)(true);
    for (int64_t start = 0; start < cols; start += SPAN) {
        int64_t count = shard_min(SPAN, cols - start), at = row * cols + start;
        const real *x = R(load)(o->dtype, o->x, at, count, buffer);
        for (int64_t i = 0; i < count; i++) {
            R(element) e = {x[i], o->index_of ? o->index_of[at + i] : o->start + start + i};
            if (!R(comes_first)(true, e, last))
                continue;
            R(sink)(o, base, o->k, 0, e);
            last = R(get)(o, base);
        }
    }
    for (int64_t size = o->k - 1; size > 0; size--) {
        R(element) moved = R(get)(o, base + size);
        R(put)(o->dtype, o->y, o->index, base + size, R(get)(o, base));
        R(sink)(o, base, size, 0, moved);
    }
}

#else

#include "device/cpu/kernels/axis.h"

#include <math.h>

typedef struct order {
    shard_dtype dtype;
    shard_axis axis;
    bool largest;
    int64_t k, start;
    const int64_t *index_of;
    const void *x;
    void *y;
    int64_t *index;
} order;

#define SELF "top_k.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(extreme_dim)(shard_device *device, const shard_axis *axis, bool largest, int64_t start,
                                 const int64_t *index_of, const void *x, void *y, int64_t *index, shard_dtype dtype)
{
    (void)device;
    order o = {
        .dtype = dtype, .axis = *axis, .largest = largest, .start = start, .index_of = index_of, .x = x, .y = y, .index = index};
    EACH_ALONG(dtype, axis, &o, extreme_row, extreme_tile);
    return SHARD_OK;
}

shard_status KERNEL(top_k)(shard_device *device, int64_t rows, int64_t cols, int64_t k, int64_t start, const int64_t *index_of,
                           const void *x, void *y, int64_t *index, shard_dtype dtype)
{
    (void)device;
    order o = {.dtype = dtype,
               .axis = {rows, cols, 1},
               .largest = true,
               .k = k,
               .start = start,
               .index_of = index_of,
               .x = x,
               .y = y,
               .index = index};
    EACH_ALONG(dtype, &o.axis, &o, top_row, extreme_tile);
    return SHARD_OK;
}

#endif
