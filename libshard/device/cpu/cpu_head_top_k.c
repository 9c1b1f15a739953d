/* The first k logits of each row in the fused sweeps: each lane has those of its tiles, in order. */
#include "device/cpu/cpu_head_sweep.h"

#include <string.h>

/* The order of the entry top_k. */
static bool comes_first(float a, int64_t a_index, float b, int64_t b_index)
{
    bool a_nan = a != a, b_nan = b != b;
    if (a_nan != b_nan)
        return a_nan;
    return a_nan || a == b ? a_index < b_index : a > b;
}

/* Puts an element at its place among the first k. */
static void insert(int64_t k, float *value, int64_t *index, float x, int64_t of_x)
{
    int64_t at = k;
    while (at > 0 && comes_first(x, of_x, value[at - 1], index[at - 1]))
        at--;
    if (at == k)
        return;
    memmove(value + at + 1, value + at, (size_t)(k - at - 1) * sizeof *value);
    memmove(index + at + 1, index + at, (size_t)(k - at - 1) * sizeof *index);
    value[at] = x;
    index[at] = of_x;
}

static void begin(sweep *s, double *stats)
{
    (void)s;
    (void)stats;
}

/* Few of a tile's logits are above the last of the first k so far, which l->last has. */
static bool forward(lane *l, const tile *t)
{
    const shard_head *h = l->s->h;
    int64_t k = h->k, rows = h->loss.rows;
    for (int64_t row = 0; row < rows; row++)
        l->last[row] = l->top_value[row * k + k - 1];
    for (int64_t i = 0; i < t->count; i++) {
        const float *z = l->z + i * l->s->pitch;
        bool fills = l->top_index[k - 1] == INT64_MAX; /* fewer than k so far, in every row */
        int above = fills;
#pragma omp simd reduction(| : above)
        for (int64_t row = 0; row < rows; row++)
            above |= !(z[row] <= l->last[row]);
        for (int64_t row = 0; row < rows && above; row++)
            if (fills || !(z[row] <= l->last[row])) {
                insert(k, l->top_value + row * k, l->top_index + row * k, z[row], h->loss.col0 + t->first + i);
                l->last[row] = l->top_value[row * k + k - 1];
            }
    }
    return false;
}

static void join(const sweep *s, int lanes, const lane *l, int64_t row, double *stats)
{
    const shard_head *h = s->h;
    float *value = (float *)h->top_value + row * h->k;
    int64_t *index = h->top_index + row * h->k;
    (void)stats;
    memcpy(value, l->top_value + row * h->k, (size_t)h->k * sizeof *value);
    memcpy(index, l->top_index + row * h->k, (size_t)h->k * sizeof *index);
    for (int i = 0; i < lanes; i++) {
        l[i].columns.factor[row] = 1;
        for (int64_t j = row * h->k; i > 0 && j < (row + 1) * h->k; j++)
            insert(h->k, value, index, l[i].top_value[j], l[i].top_index[j]);
    }
}

const head_loss shard_cpu_head_top_k = {.begin = begin, .forward = forward, .join = join};
