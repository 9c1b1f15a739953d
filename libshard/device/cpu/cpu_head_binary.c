/*
 * Binary cross-entropy in the fused sweeps. The ones are taken out of a tile before its elements are treated as zeros: their
 * logits become -infinity, of which loss and derivative are 0.
 */
#include "device/cpu/cpu_head_sweep.h"

#include <math.h>

/* Derivatives of zeros differ from 1 by less than 2^-24 above STASH_MOST, and from 0 by less than 2^-67 below the span. */
#define STASH_MOST 17.0F
#define STASH_SPAN 64.0F

/* ---- the ones of a tile ---- */

/* The first of the row's pairs that is not less than a class. */
static int64_t first_pair(const sweep *s, int64_t row, int64_t class)
{
    const int64_t *of_class = s->h->pair + s->h->pairs;
    int64_t low = s->row_pair[row], high = s->row_pair[row + 1];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (of_class[middle] < class)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Calls `each` for the ones of the tile: their row, place in z and class, and where their derivative is. */
static void for_ones(lane *l, const tile *t, void (*each)(lane *, int64_t row, int64_t at, int64_t class, float *slope))
{
    const sweep *s = l->s;
    const int64_t *of_class = s->h->pair + s->h->pairs;
    int64_t start = s->h->loss.col0 + t->first;
    float *slope = t->stash ? stashed_ones(s) : l->ones;
    for (int64_t row = 0; row < s->h->loss.rows; row++)
        for (int64_t i = first_pair(s, row, start); i < s->row_pair[row + 1] && of_class[i] < start + t->count; i++)
            each(l, row, (of_class[i] - start) * s->pitch + row, of_class[i] - s->h->loss.col0, slope + i);
}

/* Adds the one's loss, and keeps its derivative. */
static void take_out(lane *l, int64_t row, int64_t at, int64_t class, float *slope)
{
    const shard_head *h = l->s->h;
    double x = (double)l->z[at], weight = (double)head_class_weight(h, class), exponential = exp(-fabs(x));
    double positive = h->positive ? (double)((const float *)h->positive)[class] : 1;
    if (l->values)
        l->columns.sum[row] += weight * shard_binary_loss_double(x, 1, positive, log1p(exponential));
    *slope = (float)(weight * shard_binary_slope_double(x, 1, positive, exponential));
    l->z[at] = -INFINITY;
}

static void put_back(lane *l, int64_t row, int64_t at, int64_t class, float *slope)
{
    (void)class;
    l->z[at] = l->scales ? l->s->constants.factor[row] * *slope : *slope;
}

/* z without the ones: logits become derivatives, times the rows' factors if l->scales, and the ones are put back. */
static void differentiate(lane *l, const tile *t)
{
    const sweep *s = l->s;
    s->kernels->binary(t->count, s->pitch, l->z, head_class_weights(s->h, t), l->scales ? s->constants.factor : NULL,
                       l->values ? l->columns.sum : NULL);
    for_ones(l, t, put_back);
}

/* ---- the table ---- */

static void begin(sweep *s, double *stats)
{
    (void)s;
    *stats = 0;
}

static bool forward(lane *l, const tile *t)
{
    l->values = !l->s->h->gradient_only;
    for_ones(l, t, take_out);
    if (t->stash)
        stash_logits(l, t, STASH_MOST, STASH_SPAN);
    if (l->values || l->sum)
        differentiate(l, t);
    return false;
}

static void join(const sweep *s, int lanes, const lane *l, int64_t row, double *stats)
{
    double sum = 0;
    for (int i = 0; i < lanes; i++) {
        sum += l[i].columns.sum[row];
        l[i].columns.factor[row] = 1;
    }
    *stats += s->h->row_weight ? s->h->row_weight[row] * sum : sum;
}

static void fill(const sweep *s, const shard_loss_rows *rows)
{
    for (int64_t j = 0; j < s->pitch; j++)
        s->constants.factor[j] = j < s->h->loss.rows ? (float)rows->scale[j] : 0;
}

static void gradient(lane *l, const tile *t, const shard_loss_rows *rows)
{
    (void)rows;
    l->scales = true;
    if (t->stash)
        take_logits(l, t);
    else
        for_ones(l, t, take_out);
    differentiate(l, t);
}

const head_loss shard_cpu_head_binary = {.begin = begin, .forward = forward, .join = join, .fill = fill, .gradient = gradient};
