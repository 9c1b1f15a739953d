/* Softmax cross-entropy in the fused sweeps. */
#include "device/cpu/cpu_head_sweep.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* Exponentials of logits this far below the tile's largest of a row count as 0: they are less than 2^-46 of its. */
#define STASH_SPAN 32.0F

static double spread_of(const shard_cross_entropy_shape *shape)
{
    return shape->classes ? shape->smoothing / (double)shape->classes : 0;
}

/* The derivative of mapped logits where that is one number; of capped ones it is in each element. */
static double slope_of_map(const shard_head *h)
{
    return h->loss.map.maps && h->loss.map.soft_cap == 0 ? h->loss.map.scale : 1;
}

/* ---- forward ---- */

static void begin(sweep *s, double *stats)
{
    (void)stats;
    s->weights = 0;
    for (int64_t i = 0; i < s->h->loss.cols && s->h->loss.smoothing != 0; i++)
        s->weights += (double)head_class_weight(s->h, i);
}

/* The tile's element of the row's label; NULL: it has none. */
static float *label_of(const lane *l, const tile *t, int64_t row)
{
    const shard_head *h = l->s->h;
    int64_t class = shard_label_column(&h->loss, h->target[row]) - t->first;
    return class >= 0 && class < t->count ? l->z + class * l->s->pitch + row : NULL;
}

/* Adds the margins to the labels' logits. */
static void shift_labels(const lane *l, const tile *t)
{
    const float *shift = l->s->h->margin_shift;
    for (int64_t row = 0; row < l->s->h->loss.rows && shift; row++) {
        float *z = label_of(l, t, row);
        if (z)
            *z += shift[row];
    }
}

static void slope_labels(const lane *l, const tile *t)
{
    const double *slope = l->s->h->margin_slope;
    for (int64_t row = 0; row < l->s->h->loss.rows && slope; row++) {
        float *dz = label_of(l, t, row);
        if (dz)
            *dz *= (float)slope[row];
    }
}

/* The labels' part of the statistics. */
static void add_targets(lane *l, const tile *t)
{
    const sweep *s = l->s;
    const shard_cross_entropy_shape *shape = &s->h->loss;
    for (int64_t row = 0; row < shape->rows; row++) {
        int64_t class = shard_label_column(shape, s->h->target[row]) - t->first;
        double *stats = l->stats + row * SHARD_CE_STATS;
        if (class < 0 || class >= t->count)
            continue;
        double weight = (double)head_class_weight(s->h, t->first + class), q = (1 - shape->smoothing) * weight;
        stats[SHARD_CE_A] += q * (double)l->z[class * s->pitch + row];
        stats[SHARD_CE_B] += q;
        stats[SHARD_CE_WEIGHT] += weight;
    }
}

/* Counts the tile's logits before the labels'. */
static void count_ahead(lane *l, const tile *t)
{
    const shard_head *h = l->s->h;
    const shard_cpu_head_count *c = &l->count;
    for (int64_t row = 0; row < h->loss.rows; row++) {
        int64_t place = shard_label_ignored(&h->loss, h->target[row]) ? -1 : h->target[row] - h->loss.col0 - t->first;
        c->place[row] = place < 0 ? -1 : place < t->count ? (int32_t)place : (int32_t)t->count;
        c->logit[row] = (float)h->label_logit[row];
    }
    l->s->kernels->count_ahead(t->count, l->s->pitch, l->z, c);
}

static bool forward(lane *l, const tile *t)
{
    const sweep *s = l->s;
    const shard_logit_map *map = &s->h->loss.map;
    bool capped = map->soft_cap > 0;
    shift_labels(l, t);
    if (s->h->ahead)
        count_ahead(l, t);
    if (map->maps)
        s->kernels->map_logits(t->count, s->pitch, l->z, map);
    add_targets(l, t);
    if (s->h->loss.smoothing != 0)
        s->kernels->add_logits(t->count, s->pitch, l->z, head_class_weights(s->h, t), l->logits);
    if (t->stash) /* a capped logit of -infinity would have no derivative */
        stash_logits(l, t, capped ? (float)map->soft_cap : FLT_MAX, capped ? INFINITY : STASH_SPAN);
    return capped ? s->kernels->capped_exponentials(t->count, s->pitch, l->z, &l->columns, map)
                  : s->kernels->exponentials(t->count, s->pitch, l->z, &l->columns);
}

/* All of it relative to the largest logit. */
static void join(const sweep *s, int lanes, const lane *l, int64_t row, double *stats)
{
    const shard_cross_entropy_shape *shape = &s->h->loss;
    double max = -INFINITY, spread = spread_of(shape);
    for (int i = 0; i < lanes; i++)
        max = (double)l[i].columns.max[row] > max ? (double)l[i].columns.max[row] : max;
    memset(stats, 0, SHARD_CE_STATS * sizeof *stats);
    for (int i = 0; i < lanes; i++) {
        double center = (double)l[i].columns.center[row], factor = center == -INFINITY ? 1 : exp(center - max);
        stats[SHARD_CE_SUM] += l[i].columns.sum[row] * factor;
        for (int k = SHARD_CE_A; k < SHARD_CE_STATS; k++)
            stats[k] += l[i].stats[row * SHARD_CE_STATS + k];
        if (!shard_label_ignored(shape, s->h->target[row]))
            stats[SHARD_CE_A] += spread * l[i].logits[row];
        l[i].columns.factor[row] = (float)(factor * slope_of_map(s->h));
    }
    stats[SHARD_CE_MAX] = max;
    bool ignored = shard_label_ignored(shape, s->h->target[row]);
    if (!ignored)
        stats[SHARD_CE_B] += spread * s->weights;
    if (s->h->ahead)
        s->h->ahead[row] = 0;
    for (int i = 0; i < lanes && s->h->ahead && !ignored; i++)
        s->h->ahead[row] += l[i].count.ahead[row];
}

/* ---- the derivatives ---- */

static void fill(const sweep *s, const shard_loss_rows *rows)
{
    const shard_cross_entropy_shape *shape = &s->h->loss;
    const shard_cpu_head_gradient *g = &s->constants;
    double slope = slope_of_map(s->h), spread = slope * spread_of(shape);
    for (int64_t j = 0; j < s->pitch; j++) {
        bool counts = j < shape->rows && !shard_label_ignored(shape, s->h->target[j]);
        g->center[j] = counts ? (float)rows->lse[j] : 0;
        double exponential = counts ? shard_row_exponential(rows, j, (double)g->center[j]) : 0;
        g->factor[j] = counts ? (float)(rows->scale[j] * rows->slope[j] * slope * exponential) : 0;
        g->spread[j] = counts ? (float)(rows->scale[j] * spread) : 0;
    }
}

/* slopes: of the labels' capped logits by those before the map. */
static void subtract_targets(lane *l, const tile *t, const double *scale, const float *slopes)
{
    const sweep *s = l->s;
    const shard_cross_entropy_shape *shape = &s->h->loss;
    double keep = (1 - shape->smoothing) * slope_of_map(s->h);
    for (int64_t row = 0; row < shape->rows; row++) {
        int64_t class = shard_label_column(shape, s->h->target[row]) - t->first;
        if (class >= 0 && class < t->count)
            l->z[class * s->pitch + row] -=
                (float)(scale[row] * keep) * head_class_weight(s->h, t->first + class) * (slopes ? slopes[row] : 1);
    }
}

static void gradient(lane *l, const tile *t, const shard_loss_rows *rows)
{
    const sweep *s = l->s;
    const shard_logit_map *map = &s->h->loss.map;
    const float *weights = head_class_weights(s->h, t);
    bool capped = map->soft_cap > 0;
    if (t->stash) {
        take_logits(l, t);
    } else {
        shift_labels(l, t);
        if (map->maps)
            s->kernels->map_logits(t->count, s->pitch, l->z, map);
    }
    for (int64_t row = 0; row < s->h->loss.rows && capped; row++) {
        const float *z = label_of(l, t, row);
        if (z)
            l->slopes[row] = shard_logit_slope_float(*z, (float)map->scale, (float)(1 / map->soft_cap));
    }
    if (capped)
        s->kernels->capped_gradients(t->count, s->pitch, l->z, weights, &s->constants, map);
    else
        s->kernels->gradients(t->count, s->pitch, l->z, weights, &s->constants);
    subtract_targets(l, t, rows->scale, capped ? l->slopes : NULL);
    slope_labels(l, t);
}

const head_loss shard_cpu_head_softmax = {
    .stats = SHARD_CE_STATS, .begin = begin, .forward = forward, .join = join, .fill = fill, .gradient = gradient};
