#include "device/head.h"

#include "base/error.h"

enum {
    TILE_BYTES = 32 << 20, /* of a tile's logits, about */
    TILE_UNIT = 256,       /* classes of a tile are a multiple of it: rows of logits then are aligned */
};

int64_t shard_head_tile;

/* One sweep's arrays, in one block of workspace. */
typedef struct sweep {
    shard_device *device;
    const shard_head *h;
    shard_dtype wide;
    int64_t tile; /* classes of a tile, at most */
    size_t bytes; /* of `memory` */
    char *memory;
    void *logits;                 /* [rows, tile], wide */
    void *narrow;                 /* logits in dtype; the same where that is wide */
    void *weight;                 /* [tile, in] of dtype; NULL: the weight is */
    void *bias;                   /* [tile], wide; NULL: there is none, or it is */
    void *gradient;               /* [tile, in], wide */
    double *stats, *center, *one; /* of a tile, [rows, SHARD_CE_STATS], [rows], [rows] */
} sweep;

/* A tile: its first class, how many, and its operands in the products' type. */
typedef struct tile {
    int64_t first, count;
    const void *weight, *bias, *class_weight;
} tile;

static int64_t choose_tile(const shard_head *h, shard_dtype wide)
{
    int64_t most = TILE_BYTES / ((h->loss.rows + 1) * (int64_t)shard_dtype_size(wide)) / TILE_UNIT * TILE_UNIT;
    int64_t wanted = shard_head_tile ? shard_head_tile : most < TILE_UNIT ? TILE_UNIT : most;
    return wanted < h->loss.cols ? wanted : h->loss.cols;
}

/* Lays arrays out in the workspace: counts bytes if `memory` is NULL. */
static void *lay(sweep *s, size_t *offset, int64_t count, shard_dtype dtype)
{
    void *at = s->memory ? s->memory + *offset : NULL;
    *offset += ((size_t)count * shard_dtype_size(dtype) + 255) / 256 * 256;
    return at;
}

static size_t lay_out(sweep *s, bool gradient)
{
    const shard_head *h = s->h;
    int64_t rows = h->loss.rows;
    size_t offset = 0;
    s->logits = lay(s, &offset, rows * s->tile, s->wide);
    s->narrow = h->dtype == s->wide ? s->logits : lay(s, &offset, rows * s->tile, h->dtype);
    s->weight = h->weight_dtype == h->dtype ? NULL : lay(s, &offset, s->tile * h->in, h->dtype);
    s->bias = !h->bias || h->weight_dtype == s->wide ? NULL : lay(s, &offset, s->tile, s->wide);
    s->gradient = gradient ? lay(s, &offset, s->tile * h->in, s->wide) : NULL;
    s->stats = lay(s, &offset, rows * SHARD_CE_STATS, SHARD_FLOAT64);
    s->center = lay(s, &offset, rows, SHARD_FLOAT64);
    s->one = lay(s, &offset, rows, SHARD_FLOAT64);
    return offset;
}

static shard_status sweep_begin(sweep *s, shard_device *device, const shard_head *h, bool gradient)
{
    *s = (sweep){.device = device, .h = h, .wide = shard_head_wide(h->dtype)};
    s->tile = choose_tile(h, s->wide);
    s->bytes = lay_out(s, gradient) + 1;
    s->memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, s->bytes);
    if (!s->memory)
        return shard_last_status();
    lay_out(s, gradient);
    return device->ops->fill(device, h->loss.rows, 1, s->one, SHARD_FLOAT64);
}

static void sweep_end(sweep *s)
{
    shard_device_release(s->device, SHARD_MEMORY_WORKSPACE, s->memory, s->bytes);
}

static const void *element(const void *array, int64_t index, shard_dtype dtype)
{
    return array ? (const char *)array + (size_t)index * shard_dtype_size(dtype) : NULL;
}

static shard_cross_entropy_shape tile_shape(const sweep *s, const tile *t)
{
    shard_cross_entropy_shape shape = s->h->loss;
    shape.col0 += t->first;
    shape.cols = t->count;
    shape.pitch = 0;
    return shape;
}

/* The operands of the tile from `first` on, and its logits. */
static shard_status compute_logits(sweep *s, int64_t first, tile *t)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    int64_t rest = h->loss.cols - first, rows = h->loss.rows;
    *t = (tile){.first = first, .count = rest < s->tile ? rest : s->tile};
    t->weight = element(h->weight, first * h->in, h->weight_dtype);
    t->bias = element(h->bias, first, h->weight_dtype);
    t->class_weight = element(h->class_weight, first, s->wide);
    if (s->weight) {
        SHARD_TRY(ops->cast(s->device, t->count * h->in, t->weight, h->weight_dtype, s->weight, h->dtype));
        t->weight = s->weight;
    }
    if (s->bias) {
        SHARD_TRY(ops->cast(s->device, t->count, t->bias, h->weight_dtype, s->bias, s->wide));
        t->bias = s->bias;
    }
    const shard_matmul_shape shape = {
        .batch = 1, .m = rows, .n = t->count, .k = h->in, .transpose_b = true, .wide_c = h->dtype != s->wide};
    SHARD_TRY(ops->matmul(s->device, &shape, h->x, t->weight, s->logits, h->dtype));
    if (!t->bias)
        return SHARD_OK;
    const shard_expansion over = shard_expansion_rows(rows, t->count);
    return ops->binary(s->device, SHARD_ADD, &over, s->logits, t->bias, s->logits, s->wide);
}

/* Casts the memory of the logits to the products' type. */
static shard_status narrow(sweep *s, const tile *t)
{
    if (s->narrow == s->logits)
        return SHARD_OK;
    return s->device->ops->cast(s->device, s->h->loss.rows * t->count, s->logits, s->wide, s->narrow, s->h->dtype);
}

/* ---- forward ---- */

static shard_status add_tile(sweep *s, int64_t first, double *stats, void *sum)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    tile t;
    SHARD_TRY(compute_logits(s, first, &t));
    shard_cross_entropy_shape shape = tile_shape(s, &t);
    SHARD_TRY(
        ops->cross_entropy_stats(s->device, &shape, s->logits, h->target, NULL, t.class_weight, s->stats, NULL, NULL, s->wide));
    SHARD_TRY(ops->head_merge(s->device, shape.rows, h->in, s->stats, stats, s->center, sum, s->wide));
    if (!sum)
        return SHARD_OK;
    shape.smoothing = 0; /* without a target and smoothing this is exp(z - center) */
    SHARD_TRY(ops->cross_entropy_backward(s->device, &shape, s->logits, NULL, NULL, NULL, s->center, s->one, s->one, s->logits,
                                          s->wide));
    SHARD_TRY(narrow(s, &t));
    const shard_matmul_shape product = {
        .batch = 1, .m = shape.rows, .n = h->in, .k = t.count, .accumulate = true, .wide_c = h->dtype != s->wide};
    return ops->matmul(s->device, &product, s->narrow, t.weight, sum, h->dtype);
}

shard_status shard_head_forward_composed(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    shard_cross_entropy_shape none = h->loss;
    none.cols = none.pitch = 0;
    SHARD_TRY(device->ops->cross_entropy_stats(device, &none, h->x, h->target, NULL, NULL, stats, NULL, NULL, SHARD_FLOAT32));
    size_t bytes = (size_t)(h->loss.rows * h->in) * shard_dtype_size(shard_head_wide(h->dtype));
    if (sum && bytes)
        SHARD_TRY(device->ops->zero(device, sum, bytes));
    sweep s;
    shard_status status = sweep_begin(&s, device, h, false);
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK; first += s.tile)
        status = add_tile(&s, first, stats, sum);
    sweep_end(&s);
    return status;
}

/* ---- gradients ---- */

/* spread [in], wide: the sum of the weight's rows, each times its class weight. */
static shard_status sum_weight(sweep *s, void *spread)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    shard_status status = SHARD_OK;
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK; first += s->tile) {
        int64_t rest = h->loss.cols - first, count = rest < s->tile ? rest : s->tile;
        const void *rows = element(h->weight, first * h->in, h->weight_dtype);
        if (!h->class_weight) {
            status = ops->sum_rows(s->device, count, h->in, 0, rows, h->weight_dtype, first > 0, spread, s->wide);
            continue;
        }
        status = ops->cast(s->device, count * h->in, rows, h->weight_dtype, s->gradient, s->wide);
        const shard_matmul_shape shape = {.batch = 1, .m = 1, .n = h->in, .k = count, .accumulate = first > 0};
        if (status == SHARD_OK)
            status = ops->matmul(s->device, &shape, element(h->class_weight, first, s->wide), s->gradient, spread, s->wide);
    }
    return status;
}

shard_status shard_head_input_gradient(shard_device *device, const shard_head *h, const double *stats, const void *sum,
                                       const shard_head_rows *rows, void *dx)
{
    shard_dtype wide = shard_head_wide(h->dtype);
    size_t bytes = (size_t)h->in * shard_dtype_size(wide) + 1;
    bool smooths = h->loss.smoothing != 0 && h->loss.cols > 0;
    void *spread = smooths ? shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes) : NULL;
    shard_status status = smooths && !spread ? shard_last_status() : SHARD_OK;
    if (spread) {
        sweep s;
        status = sweep_begin(&s, device, h, true);
        if (status == SHARD_OK)
            status = sum_weight(&s, spread);
        sweep_end(&s);
    }
    if (status == SHARD_OK)
        status = device->ops->head_input_gradient(device, &h->loss, h->in, h->target, h->class_weight, h->weight, h->weight_dtype,
                                                  stats, rows->lse, rows->slope, rows->scale, sum, spread, dx, wide);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, spread, bytes);
    return status;
}

/* The gradient of the tile's rows from dz, which is where the logits were. */
static shard_status give_gradient(sweep *s, const tile *t, const shard_head_gradient *to)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    void *memory = to->weight ? (void *)element(to->weight, t->first * h->in, h->weight_dtype) : s->gradient;
    shard_matmul_shape shape = {.batch = 1, .m = t->count, .n = h->in, .k = h->loss.rows, .transpose_a = true, .ld_a = t->count};
    shape.accumulate = to->weight && to->accumulate;
    shape.wide_c = h->dtype != s->wide && h->weight_dtype == s->wide;
    SHARD_TRY(ops->matmul(s->device, &shape, s->narrow, h->x, memory, h->dtype));
    return to->weight ? SHARD_OK : to->take(to->context, s->device, t->first, t->count, memory);
}

static shard_status gradient_of_tile(sweep *s, int64_t first, const shard_head_rows *rows, const shard_head_gradient *to)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    tile t;
    SHARD_TRY(compute_logits(s, first, &t));
    shard_cross_entropy_shape shape = tile_shape(s, &t);
    SHARD_TRY(ops->cross_entropy_backward(s->device, &shape, s->logits, h->target, NULL, t.class_weight, rows->lse, rows->slope,
                                          rows->scale, s->logits, s->wide));
    SHARD_TRY(narrow(s, &t));
    if (to->bias) {
        shard_dtype from = h->weight_dtype == s->wide ? s->wide : h->dtype;
        SHARD_TRY(ops->sum_rows(s->device, shape.rows, t.count, 0, from == s->wide ? s->logits : s->narrow, from,
                                to->accumulate_bias, (void *)element(to->bias, first, h->weight_dtype), h->weight_dtype));
    }
    return to->weight || to->take ? give_gradient(s, &t, to) : SHARD_OK;
}

shard_status shard_head_weight_gradient_composed(shard_device *device, const shard_head *h, const shard_head_rows *rows,
                                                 const shard_head_gradient *to)
{
    sweep s;
    shard_status status = sweep_begin(&s, device, h, !to->weight);
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK; first += s.tile)
        status = gradient_of_tile(&s, first, rows, to);
    sweep_end(&s);
    return status;
}

/* ---- the choice ---- */

static const struct shard_head_ops *fused(const shard_device *device, const shard_head *h)
{
    return device->head && device->head->fits(h) ? device->head : NULL;
}

size_t shard_head_stash_bytes(const shard_device *device, const shard_head *h, size_t most)
{
    const struct shard_head_ops *ops = fused(device, h);
    return ops ? ops->stash_bytes(h, most) : 0;
}

shard_status shard_head_forward(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    const struct shard_head_ops *ops = fused(device, h);
    return ops ? ops->forward(device, h, stats, sum) : shard_head_forward_composed(device, h, stats, sum);
}

shard_status shard_head_weight_gradient(shard_device *device, const shard_head *h, const shard_head_rows *rows,
                                        const shard_head_gradient *to)
{
    const struct shard_head_ops *ops = fused(device, h);
    return ops ? ops->weight_gradient(device, h, rows, to) : shard_head_weight_gradient_composed(device, h, rows, to);
}
