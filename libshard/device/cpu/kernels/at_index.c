#ifdef real

/* A line is the elements along the dimension for one index of outer and one of inner. */
static void R(gather_line)(const lookup *l, int64_t line)
{
    int64_t outer = line / l->axis.inner, inner = line % l->axis.inner;
    for (int64_t i = 0; i < l->count; i++) {
        int64_t at = (outer * l->count + i) * l->axis.inner + inner, k = place_of(l, at);
        real buffer, result, *y = R(place)(l->dtype, false, l->to, at, &result);
        *y = k < 0 ? 0 : *R(load)(l->dtype, l->from, (outer * l->axis.size + k) * l->axis.inner + inner, 1, &buffer);
        R(store)(l->dtype, false, l->to, at, 1, y);
    }
}

static void R(add_line)(const lookup *l, int64_t line)
{
    int64_t outer = line / l->axis.inner, inner = line % l->axis.inner;
    for (int64_t i = 0; i < l->count; i++) {
        int64_t at = (outer * l->count + i) * l->axis.inner + inner, k = place_of(l, at);
        if (k < 0)
            continue;
        int64_t to = (outer * l->axis.size + k) * l->axis.inner + inner;
        real value_buffer, buffer, result, factor = (real)l->factor;
        real value = l->from ? factor * *R(load)(l->dtype, l->from, at, 1, &value_buffer) : factor;
        real sum = *R(load)(l->dtype, l->to, to, 1, &buffer) + value, *x = R(place)(l->dtype, false, l->to, to, &result);
        *x = sum;
        R(store)(l->dtype, false, l->to, to, 1, x);
    }
}

#else

#include "device/cpu/kernels/span.h"

typedef struct lookup {
    shard_dtype dtype;
    shard_axis axis;
    int64_t count, start, skip;
    const int64_t *index;
    double factor;
    const void *from;
    void *to;
} lookup;

/* Along the dimension; -1 for an index that is not here. */
static int64_t place_of(const lookup *l, int64_t at)
{
    int64_t index = l->index[at];
    return index != l->skip && index >= l->start && index - l->start < l->axis.size ? index - l->start : -1;
}

#define SELF "at_index.c"
#include "device/cpu/kernels/real.h"

shard_status KERNEL(gather_at)(shard_device *device, const shard_axis *axis, int64_t count, int64_t start, int64_t skip,
                               const int64_t *index, const void *x, void *y, shard_dtype dtype)
{
    (void)device;
    lookup l = {.dtype = dtype, .axis = *axis, .count = count, .start = start, .skip = skip, .index = index, .from = x, .to = y};
    int64_t lines = axis->outer * axis->inner;
#pragma omp parallel for schedule(static) if (lines * count >= PARALLEL)
    for (int64_t line = 0; line < lines; line++)
        BY_TYPE(dtype, gather_line, &l, line);
    return SHARD_OK;
}

shard_status KERNEL(add_at)(shard_device *device, const shard_axis *axis, int64_t count, int64_t start, int64_t skip,
                            const int64_t *index, double factor, const void *value, void *x, shard_dtype dtype)
{
    (void)device;
    lookup l = {.dtype = dtype,
                .axis = *axis,
                .count = count,
                .start = start,
                .skip = skip,
                .index = index,
                .factor = factor,
                .from = value,
                .to = x};
    int64_t lines = axis->outer * axis->inner;
#pragma omp parallel for schedule(static) if (lines * count >= PARALLEL)
    for (int64_t line = 0; line < lines; line++)
        BY_TYPE(dtype, add_line, &l, line);
    return SHARD_OK;
}

#endif
