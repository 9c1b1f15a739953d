#include "device/cpu/kernels/update.h"

#include "base/dtype.h"
#include "base/rounding.h"
#include "device/cpu/kernels/philox.h"

#include <math.h>

/* ---- rounding ---- */

enum { GROUP = 64, GROUP_BLOCKS = 8, BITS = SPAN + 2 * GROUP };

/* The random bits of `count` elements from `index` on, which begin at the pointer returned. */
static const uint16_t *draw_bits(shard_draw draw, int64_t index, int64_t count, uint16_t *buffer)
{
    int64_t first = index / GROUP, groups = shard_divide_up(index + count, GROUP) - first;
    for (int64_t i = 0; i < groups; i++) {
        lanes at = philox_indices((uint64_t)(first + i) * GROUP_BLOCKS), low, high;
        uint16_t *to = buffer + i * GROUP;
        for (int k = 0; k < GROUP_BLOCKS; k += LANES, at += LANES, to += 4 * LANES) {
            philox_lanes(draw, at, SHARD_ROUNDING_ROUNDS, &low, &high);
            memcpy(to, &low, sizeof low); /* the first element's bits come first: little-endian */
            memcpy(to + GROUP / 2, &high, sizeof high);
        }
    }
    return buffer + index % GROUP;
}

/* y = x rounded by the bits to the 16-bit type. */
static void narrow_at_random(shard_dtype dtype, int64_t n, float *x, const uint16_t *bits, uint16_t *y)
{
    if (dtype == SHARD_BFLOAT16) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] = shard_round_to_bfloat16(x[i], bits[i]);
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            x[i] = shard_round_to_float16(x[i], bits[i]);
    }
    KERNEL(narrow)(dtype, false, n, x, y);
}

/* Writes x [count] to elements from `start` on of array number `array` of the step, which is y. */
static void store_at_random(const shard_update *u, int array, shard_dtype dtype, int64_t start, int64_t count, float *x,
                            uint16_t *y)
{
    const shard_update_place *place = &u->place;
    shard_draw draw = shard_rounding_draw(u->key, u->step, array);
    uint16_t buffer[BITS];
    for (int64_t done = 0, some; done < count; done += some) {
        int64_t index = place->first + start + done;
        some = count - done;
        if (place->width) { /* up to the end of the row */
            int64_t n = place->offset + start + done, column = n % place->width;
            index = place->first + n / place->width * place->pitch + column;
            some = shard_min(some, place->width - column);
        }
        narrow_at_random(dtype, some, x + done, draw_bits(draw, index, some, buffer), y + start + done);
    }
}

/* Writes x to the value, and what rounding takes from it to the compensation. */
static void compensate(const shard_update *u, shard_dtype dtype, int64_t start, int64_t count, const float *x)
{
    float rest[SPAN];
    uint16_t *value = (uint16_t *)u->value + start;
    bool bfloat16 = dtype == SHARD_BFLOAT16;
    KERNEL(narrow)(dtype, false, count, x, value);
    KERNEL(widen)(dtype, count, value, rest);
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        rest[i] = shard_rounding_lost(bfloat16, x[i], rest[i]);
    KERNEL(narrow)(dtype, false, count, rest, (uint16_t *)u->compensation + start);
}

const float *KERNEL(update_value)(const shard_update *u, const shard_update_types *types, int64_t start, int64_t count,
                                  float *buffer)
{
    if (!u->compensation)
        return load_float(types->value, u->value, start, count, buffer);
    float rest[SPAN];
    KERNEL(widen)(types->value, count, (const uint16_t *)u->value + start, buffer);
    KERNEL(widen)(types->value, count, (const uint16_t *)u->compensation + start, rest);
    bool bfloat16 = types->value == SHARD_BFLOAT16;
#pragma omp simd
    for (int64_t i = 0; i < count; i++)
        buffer[i] += shard_rounding_rest(bfloat16, buffer[i], rest[i]);
    return buffer;
}

/* ---- arrays of several types ---- */

static shard_dtype type_of_output(const map *job, const shard_update *u, const shard_update_types *types, int k)
{
    return k >= UPDATE_NEW_STATES    ? types->state[k - UPDATE_NEW_STATES]
           : job->out[k] == u->value ? types->value
                                     : types->gradient;
}

void KERNEL(update_span)(const map *job, const shard_update *u, const shard_update_types *types, map_body_float *body, span s)
{
    float in_buffer[MAP_INPUTS][SPAN], out_buffer[MAP_OUTPUTS][SPAN];
    const float *in[MAP_INPUTS];
    float *out[MAP_OUTPUTS];
    for (int k = 0; k < MAP_INPUTS; k++) {
        shard_dtype dtype = k == UPDATE_GRADIENT ? types->gradient : types->state[k < UPDATE_STATES ? 0 : k - UPDATE_STATES];
        in[k] = !job->in[k]         ? NULL
                : k == UPDATE_VALUE ? KERNEL(update_value)(u, types, s.start, s.count, in_buffer[k])
                                    : load_float(dtype, job->in[k], s.start, s.count, in_buffer[k]);
    }
    for (int k = 0; k < MAP_OUTPUTS; k++)
        out[k] = job->out[k] ? place_float(type_of_output(job, u, types, k), false, job->out[k], s.start, out_buffer[k]) : NULL;
    body(job->context, s, in, out);
    for (int k = 0; k < MAP_OUTPUTS; k++) {
        bool is_value = k == 0 && job->out[k] == u->value;
        shard_dtype dtype = type_of_output(job, u, types, k);
        if (!job->out[k])
            continue;
        if (is_value && u->compensation) {
            compensate(u, dtype, s.start, s.count, out[k]);
            continue;
        }
        if (types->stochastic && shard_dtype_is_half(dtype) && (is_value || k >= UPDATE_NEW_STATES))
            store_at_random(u, k, dtype, s.start, s.count, out[k], job->out[k]);
        else
            store_float(dtype, false, job->out[k], s.start, s.count, out[k]);
    }
}

static bool has_one_type(const shard_update *u, const shard_update_types *types)
{
    bool one = types->gradient == types->value && !u->compensation && !(types->stochastic && shard_dtype_is_half(types->value));
    for (int k = 0; k < SHARD_OPTIMIZER_STATES; k++)
        one = one && types->state[k] == types->value;
    return one;
}

void KERNEL(update)(const map *job, const shard_update *u, const shard_update_types *types, map_body_float *body,
                    map_body_double *body_double)
{
    if (types->value == SHARD_FLOAT64) {
        KERNEL(map_double)(job, body_double);
        return;
    }
    if (has_one_type(u, types)) {
        KERNEL(map_float)(job, body);
        return;
    }
    FOR_EACH(i, shard_divide_up(job->n, SPAN), job->n,
             KERNEL(update_span)(job, u, types, body, (span){i * SPAN, i * SPAN, shard_min(SPAN, job->n - i * SPAN)}));
}

/* ---- lists ---- */

void KERNEL(each_update)(int64_t count, const shard_update *updates, const void *context, shard_update_types types,
                         void (*step)(const void *context, const shard_update *, const shard_update_types *))
{
    int64_t small = 0;
    if (count == 1) { /* of a run of rows: see FOR_EACH */
        step(context, updates, &types);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        if (updates[i].size < PARALLEL)
            small += updates[i].size;
        else
            step(context, &updates[i], &types);
#pragma omp parallel for schedule(dynamic) if (small >= PARALLEL)
    for (int64_t i = 0; i < count; i++)
        if (updates[i].size < PARALLEL)
            step(context, &updates[i], &types);
}
