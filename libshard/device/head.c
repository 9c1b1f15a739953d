#include "device/head_sweep.h"

#include "base/error.h"
#include "base/math.h"
#include "device/head_prepared.h"

enum {
    TILE_BYTES = 32 << 20, /* of a tile's logits, about, and at most of half of its rows of the weight */
    TILE_UNIT = 256,       /* classes of a tile are a multiple of it: rows of logits then are aligned */
    PART_BYTES = 32 << 20, /* of a gradient that is passed to a function, about: a GPU's second-level cache has room for it */
    PLACE_UNIT = 256,      /* bytes: alignment in the stash */
};

int64_t shard_head_tile, shard_head_part;

static const head_loss *choose_loss(const shard_device *device, const shard_head *h)
{
    if (h->k)
        return &shard_head_first;
    const head_loss *own = h->binary ? device->head_binary : device->head_softmax;
    return own && own->fits(h) ? own : h->binary ? &shard_head_binary : &shard_head_softmax;
}

/* A GPU's products of a large tile are faster; of a large weight that is not much memory. */
static int64_t tile_bytes(const shard_head *h, const head_loss *loss)
{
    int64_t weight = h->loss.cols * h->in * (int64_t)shard_dtype_size(h->weight_dtype);
    return loss->fits ? shard_max(shard_min(weight / 16, 2 * (int64_t)TILE_BYTES), TILE_BYTES) : TILE_BYTES;
}

static int64_t choose_tile(const shard_head *h, const head_loss *loss)
{
    int64_t width = shard_max(shard_max(h->loss.rows, 1), h->in / 2), size = (int64_t)shard_dtype_size(shard_head_wide(h->dtype));
    int64_t most = tile_bytes(h, loss) / (width * size) / TILE_UNIT * TILE_UNIT;
    if (shard_head_tile)
        return shard_min(shard_head_tile, h->loss.cols);
    int64_t tiles = shard_divide_up(h->loss.cols, shard_max(most, TILE_UNIT)); /* of one size, about */
    int64_t even = tiles ? shard_divide_up(h->loss.cols, tiles) : 0;
    return shard_min(shard_round_up(even, TILE_UNIT), h->loss.cols);
}

/* Rows of a tile whose gradient is passed on at a time. */
static int64_t part_rows(const sweep *s)
{
    int64_t most = PART_BYTES / (shard_max(s->h->in, 1) * (int64_t)shard_dtype_size(s->wide)) / TILE_UNIT * TILE_UNIT;
    return shard_min(s->tile, shard_head_part ? shard_head_part : shard_max(most, TILE_UNIT));
}

/* Bytes of the factors of a tile of `classes` in the stash, and with the references of its rows. */
static size_t factor_bytes(const shard_head *h, int64_t classes)
{
    return (size_t)shard_round_up(h->loss.rows * classes * (int64_t)shard_dtype_size(h->dtype), PLACE_UNIT);
}

static size_t place_bytes(const shard_head *h, int64_t classes)
{
    return factor_bytes(h, classes) + (size_t)shard_round_up(h->loss.rows * (int64_t)sizeof(float), PLACE_UNIT);
}

/* Lays arrays out in the workspace: counts bytes if `memory` is NULL. */
static void *lay(sweep *s, size_t *offset, int64_t count, shard_dtype dtype)
{
    void *at = s->memory ? s->memory + *offset : NULL;
    *offset += ((size_t)count * shard_dtype_size(dtype) + 255) / 256 * 256;
    return at;
}

/* The needs of a sweep: a gradient that is passed on in parts; factors of a tile's rows; those of a forward, which a loss may want
 * apart from the logits. */
enum { PARTS = 1, FACTORS = 2, SUMS = 4 };

static size_t lay_out(sweep *s, int needs)
{
    const shard_head *h = s->h;
    int64_t rows = h->loss.rows;
    size_t offset = 0;
    bool apart = h->dtype != s->wide; /* then a tile's gradient is made when its logits have been read for the last time */
    int64_t part = needs & PARTS ? part_rows(s) * h->in : 0;
    bool casts = h->weight_dtype != h->dtype;
    s->logits = lay(s, &offset, shard_max(rows * s->tile, apart ? part : 0), s->wide);
    bool separate = apart || (s->loss->separate && needs & SUMS);
    s->narrow = separate && needs & FACTORS ? lay(s, &offset, rows * s->tile, h->dtype) : s->logits;
    s->weight = casts || h->list || h->normalized ? lay(s, &offset, s->tile * h->in, h->dtype) : NULL;
    s->taken = casts && h->list && !h->normalized ? lay(s, &offset, s->tile * h->in, h->weight_dtype) : NULL;
    s->square = h->normalized ? lay(s, &offset, s->tile, SHARD_FLOAT64) : NULL;
    s->bias = !h->bias || h->weight_dtype == s->wide ? NULL : lay(s, &offset, s->tile, s->wide);
    s->gradient = !(needs & PARTS) ? NULL : apart ? s->logits : lay(s, &offset, part, s->wide);
    s->stats = lay(s, &offset, shard_max(rows, 1) * SHARD_CE_STATS, SHARD_FLOAT64); /* of binary losses one for all rows */
    s->center = lay(s, &offset, rows, SHARD_FLOAT64);
    s->one = lay(s, &offset, rows, SHARD_FLOAT64);
    s->reference = s->loss->fits && !h->binary ? lay(s, &offset, 2 * rows, SHARD_FLOAT32) : NULL;
    s->largest = s->reference ? s->reference + rows : NULL;
    int64_t chunks = shard_divide_up(s->tile, SHARD_HEAD_CHUNK);
    s->parts = s->loss->fits && h->binary ? lay(s, &offset, rows * chunks, SHARD_FLOAT64) : NULL;
    s->top_value = h->k ? lay(s, &offset, rows * h->k, s->wide) : NULL;
    s->top_index = h->k ? lay(s, &offset, rows * h->k, SHARD_INT64) : NULL;
    s->both_values = h->k ? lay(s, &offset, 2 * rows * h->k, s->wide) : NULL;
    s->both_indices = h->k ? lay(s, &offset, 2 * rows * h->k, SHARD_INT64) : NULL;
    s->ahead = h->ahead ? lay(s, &offset, rows, SHARD_INT64) : NULL;
    for (int i = 0; i < 2; i++)
        s->aheads[i] = h->ahead ? lay(s, &offset, rows, SHARD_FLOAT64) : NULL;
    return offset;
}

static shard_status sweep_begin(sweep *s, shard_device *device, const shard_head *h, int needs)
{
    *s = (sweep){.device = device, .h = h, .loss = choose_loss(device, h), .wide = shard_head_wide(h->dtype)};
    s->tile = choose_tile(h, s->loss);
    s->stashed = h->stash && s->loss->fits ? (int64_t)(h->stash_bytes / place_bytes(h, s->tile)) : 0;
    s->bytes = lay_out(s, needs) + 1;
    s->memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, s->bytes);
    if (!s->memory)
        return shard_last_status();
    lay_out(s, needs);
    return s->loss->fits ? SHARD_OK : device->ops->fill(device, h->loss.rows, 1, s->one, SHARD_FLOAT64);
}

static void sweep_end(sweep *s)
{
    shard_device_release(s->device, SHARD_MEMORY_WORKSPACE, s->memory, s->bytes);
}

/* The weight's rows of the tile in the products' type. */
static shard_status take_weight(sweep *s, tile *t)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    const int64_t *list = h->list ? h->list + t->first : NULL;
    const void *rows = list ? h->weight : shard_head_element(h->weight, t->first * h->in, h->weight_dtype);
    t->weight = s->weight ? s->weight : rows;
    if (h->normalized)
        return ops->unit_rows(s->device, t->count, h->in, list, rows, h->weight_dtype, SHARD_HEAD_EPS, s->square, s->weight,
                              h->dtype);
    if (list) {
        void *taken = s->taken ? s->taken : s->weight;
        SHARD_TRY(ops->embedding(s->device, t->count, h->in, 0, h->weight_rows, list, rows, taken, h->weight_dtype));
        rows = taken;
    }
    return rows == t->weight ? SHARD_OK : ops->cast(s->device, t->count * h->in, rows, h->weight_dtype, s->weight, h->dtype);
}

/* The operands of the tile from `first` on, but for its weight. */
static shard_status begin_tile(sweep *s, int64_t first, tile *t)
{
    const shard_head *h = s->h;
    int64_t count = shard_min(s->tile, h->loss.cols - first), number = first / s->tile;
    if (s->loss->fits && count > SHARD_HEAD_ALIGNED) /* the rest is a tile of its own */
        count -= count % SHARD_HEAD_ALIGNED;
    *t = (tile){.first = first, .count = count, .narrow = s->narrow};
    t->bias = shard_head_element(h->bias, first, h->weight_dtype);
    t->class_weight = shard_head_element(h->class_weight, first, s->wide);
    if (number < s->stashed && first % s->tile == 0) {
        char *place = (char *)h->stash + (size_t)number * place_bytes(h, s->tile);
        t->stash = place;
        t->stash_reference = (float *)(place + factor_bytes(h, s->tile));
    }
    if (!s->bias)
        return SHARD_OK;
    const void *given = t->bias;
    t->bias = s->bias;
    return s->device->ops->cast(s->device, t->count, given, h->weight_dtype, s->bias, s->wide);
}

static shard_status compute_logits(sweep *s, tile *t)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    const shard_matmul_shape shape = {
        .batch = 1, .m = h->loss.rows, .n = t->count, .k = h->in, .transpose_b = true, .wide_c = h->dtype != s->wide};
    SHARD_TRY(take_weight(s, t));
    SHARD_TRY(ops->matmul(s->device, &shape, h->x, t->weight, s->logits, h->dtype));
    if (!t->bias || s->loss->adds_bias)
        return SHARD_OK;
    const shard_expansion over = shard_expansion_rows(h->loss.rows, t->count);
    return ops->binary(s->device, SHARD_ADD, &over, s->logits, t->bias, s->logits, s->wide);
}

shard_status shard_head_narrow(sweep *s, const tile *t)
{
    if (t->narrow == s->logits)
        return SHARD_OK;
    return s->device->ops->cast(s->device, s->h->loss.rows * t->count, s->logits, s->wide, t->narrow, s->h->dtype);
}

/* ---- forward ---- */

/* Of the tile from *first on; *first becomes that of the next one. */
static shard_status add_tile(sweep *s, int64_t *first, double *stats, void *sum)
{
    const shard_head *h = s->h;
    tile t;
    SHARD_TRY(begin_tile(s, *first, &t));
    *first += t.count;
    if (t.stash)
        t.narrow = t.stash;
    SHARD_TRY(compute_logits(s, &t));
    SHARD_TRY(s->loss->forward(s, &t, stats, sum));
    if (!sum)
        return SHARD_OK;
    const shard_matmul_shape product = {
        .batch = 1, .m = h->loss.rows, .n = h->in, .k = t.count, .accumulate = true, .wide_c = h->dtype != s->wide};
    return s->device->ops->matmul(s->device, &product, t.narrow, t.weight, sum, h->dtype);
}

shard_status shard_head_forward_composed(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    size_t bytes = (size_t)(h->loss.rows * h->in) * shard_dtype_size(shard_head_wide(h->dtype));
    if (sum && bytes)
        SHARD_TRY(device->ops->zero(device, sum, bytes));
    sweep s;
    shard_status status = sweep_begin(&s, device, h, sum || h->stash ? FACTORS | SUMS : 0);
    if (status == SHARD_OK)
        status = s.loss->begin(&s, stats);
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK;)
        status = add_tile(&s, &first, stats, sum);
    if (status == SHARD_OK && s.loss->end)
        status = s.loss->end(&s, stats, sum);
    sweep_end(&s);
    return status;
}

/* ---- the labels' logits ---- */

enum { LABELS = 256 /* rows whose labels' rows of the weight are gathered at once */ };

/* Of `count` rows from `first` on; all arrays are in `s`, whose logits are [count, count]. The products of a row and another
 * one's label are not used. */
static shard_status label_logits_of(sweep *s, int64_t first, int64_t count, void *gathered, double *logit)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    const int64_t *label = h->target + first, col0 = h->loss.col0, cols = h->loss.cols;
    size_t size = shard_dtype_size(s->wide);
    const void *weight = gathered;
    SHARD_TRY(ops->embedding(s->device, count, h->in, col0, cols, label, h->weight, gathered, h->weight_dtype));
    if (s->weight) {
        SHARD_TRY(ops->cast(s->device, count * h->in, gathered, h->weight_dtype, s->weight, h->dtype));
        weight = s->weight;
    }
    const shard_matmul_shape shape = {
        .batch = 1, .m = count, .n = count, .k = h->in, .transpose_b = true, .wide_c = h->dtype != s->wide};
    SHARD_TRY(ops->matmul(s->device, &shape, shard_head_element(h->x, first * h->in, h->dtype), weight, s->logits, h->dtype));
    SHARD_TRY(ops->copy_rows(s->device, s->center, size, s->logits, (size_t)(count + 1) * size, size, (size_t)count));
    if (h->bias) {
        SHARD_TRY(ops->embedding(s->device, count, 1, col0, cols, label, h->bias, gathered, h->weight_dtype));
        SHARD_TRY(ops->cast(s->device, count, gathered, h->weight_dtype, s->one, s->wide));
        SHARD_TRY(ops->axpby(s->device, count, 1, s->one, 1, s->center, s->wide));
    }
    return ops->cast(s->device, count, s->center, s->wide, logit + first, SHARD_FLOAT64);
}

shard_status shard_head_label_logits_composed(shard_device *device, const shard_head *h, double *logit)
{
    shard_head of_labels = *h;
    sweep s;
    int64_t most = h->loss.rows < LABELS ? h->loss.rows : LABELS;
    size_t bytes = (size_t)(most * h->in + most) * shard_dtype_size(h->weight_dtype) + 1;
    of_labels.loss.rows = of_labels.loss.cols = most;
    of_labels.ahead = NULL;
    void *gathered = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    shard_status status = gathered ? sweep_begin(&s, device, &of_labels, 0) : shard_last_status();
    if (gathered) {
        s.h = h;
        for (int64_t first = 0; first < h->loss.rows && status == SHARD_OK; first += s.tile) {
            int64_t rest = h->loss.rows - first;
            status = label_logits_of(&s, first, rest < s.tile ? rest : s.tile, gathered, logit);
        }
        sweep_end(&s);
    }
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, gathered, bytes);
    return status;
}

/* ---- gradients ---- */

static shard_status sum_weight(sweep *s, bool accumulate, void *spread)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    shard_status status = SHARD_OK;
    int64_t most = part_rows(s);
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK; first += most) {
        int64_t count = shard_min(most, h->loss.cols - first);
        const void *rows = shard_head_element(h->weight, first * h->in, h->weight_dtype);
        if (!h->class_weight) {
            status = ops->sum_rows(s->device, count, h->in, 0, rows, h->weight_dtype, accumulate || first > 0, spread, s->wide);
            continue;
        }
        status = ops->cast(s->device, count * h->in, rows, h->weight_dtype, s->gradient, s->wide);
        const shard_matmul_shape shape = {.batch = 1, .m = 1, .n = h->in, .k = count, .accumulate = accumulate || first > 0};
        if (status == SHARD_OK)
            status =
                ops->matmul(s->device, &shape, shard_head_element(h->class_weight, first, s->wide), s->gradient, spread, s->wide);
    }
    return status;
}

/* The same of binary cross-entropy: scale_i sum_i. */
static shard_status scale_sum(shard_device *device, const shard_head *h, const void *sum, const double *scale, void *dx)
{
    const shard_device_ops *ops = device->ops;
    const int64_t shape[] = {h->loss.rows, h->in}, column[] = {h->loss.rows, 1}, *const shapes[] = {shape, column};
    const shard_expansion over = shard_expansion_of(2, shape, 2, (int[]){2, 2}, shapes);
    shard_dtype wide = shard_head_wide(h->dtype);
    size_t bytes = (size_t)h->loss.rows * shard_dtype_size(wide);
    if (bytes == 0)
        return SHARD_OK;
    void *factor = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    shard_status status = factor ? ops->cast(device, h->loss.rows, scale, SHARD_FLOAT64, factor, wide) : shard_last_status();
    if (status == SHARD_OK)
        status = ops->binary(device, SHARD_MUL, &over, sum, factor, dx, wide);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, factor, bytes);
    return status;
}

/* The same by a sweep of its own. */
static shard_status sweep_input_gradient(shard_device *device, const shard_head *h, const shard_loss_rows *rows, void *dx)
{
    shard_head again = *h;
    size_t bytes = (size_t)(h->loss.rows * h->in) * shard_dtype_size(shard_head_wide(h->dtype));
    again.stash = NULL;
    if (bytes)
        SHARD_TRY(device->ops->zero(device, dx, bytes));
    return shard_head_weight_gradient(device, &again, rows, &(shard_head_gradient){.input = dx});
}

shard_status shard_head_sum_weight(shard_device *device, const shard_head *h, bool accumulate, void *spread)
{
    sweep s;
    shard_status status = sweep_begin(&s, device, h, PARTS);
    if (status == SHARD_OK)
        status = sum_weight(&s, accumulate, spread);
    sweep_end(&s);
    return status;
}

bool shard_head_spreads(const shard_head *h)
{
    return h->loss.smoothing != 0 && h->loss.cols > 0 && shard_head_sums(h) && !shard_head_prepares(h);
}

shard_status shard_head_input_gradient(shard_device *device, const shard_head *h, const double *stats, const void *sum,
                                       const shard_loss_rows *rows, void *dx)
{
    if (h->binary)
        return scale_sum(device, h, sum, rows->scale, dx);
    if (!shard_head_sums(h))
        return sweep_input_gradient(device, h, rows, dx);
    if (shard_head_prepares(h))
        return shard_head_prepared_input_gradient(device, h, stats, sum, rows, dx);
    return device->ops->head_input_gradient(device, &h->loss, h->in, h->target, h->class_weight, h->weight, h->weight_dtype,
                                            stats, rows, sum, h->spread, dx, shard_head_wide(h->dtype));
}

/* The gradient of `count` rows of the tile from `first` on, from dz, which is t->narrow. */
static shard_status give_part(sweep *s, const tile *t, int64_t first, int64_t count, const shard_head_gradient *to)
{
    const shard_head *h = s->h;
    int64_t row = t->first + first;
    void *memory = to->weight ? (void *)shard_head_element(to->weight, row * h->in, h->weight_dtype) : s->gradient;
    const void *derivatives = shard_head_element(t->narrow, first, h->dtype);
    shard_matmul_shape shape = {.batch = 1, .m = count, .n = h->in, .k = h->loss.rows, .transpose_a = true, .ld_a = t->count};
    shape.accumulate = to->weight && to->accumulate;
    shape.wide_c = h->dtype != s->wide && (!to->weight || h->weight_dtype == s->wide);
    SHARD_TRY(s->device->ops->matmul(s->device, &shape, derivatives, h->x, memory, h->dtype));
    return to->weight ? SHARD_OK : to->take(to->context, s->device, row, count, memory);
}

/* The same of all its rows, or the product that it is. Overwrites the logits. */
static shard_status give_gradient(sweep *s, const tile *t, const shard_head_gradient *to)
{
    const shard_head *h = s->h;
    const shard_update_product product = {.rows = t->count,
                                          .columns = h->in,
                                          .inner = h->loss.rows,
                                          .ld_a = t->count,
                                          .a = t->narrow,
                                          .b = h->x,
                                          .dtype = h->dtype};
    if (!to->weight && to->take_product && s->device->steps_product && s->device->steps_product(&product))
        return to->take_product(to->context, s->device, t->first, t->count, &product);
    int64_t most = to->weight ? t->count : part_rows(s);
    for (int64_t first = 0; first < t->count; first += most)
        SHARD_TRY(give_part(s, t, first, shard_min(most, t->count - first), to));
    return SHARD_OK;
}

/* Of the tile from *first on; *first becomes that of the next one. */
static shard_status gradient_of_tile(sweep *s, int64_t *first, const shard_loss_rows *rows, const shard_head_gradient *to)
{
    const shard_head *h = s->h;
    const shard_device_ops *ops = s->device->ops;
    tile t;
    SHARD_TRY(begin_tile(s, *first, &t));
    *first += t.count;
    if (!t.stash)
        SHARD_TRY(compute_logits(s, &t));
    SHARD_TRY(s->loss->gradient(s, &t, rows));
    if (to->bias) {
        shard_dtype from = h->weight_dtype == s->wide ? s->wide : h->dtype;
        SHARD_TRY(ops->sum_rows(s->device, h->loss.rows, t.count, 0, from == s->wide ? s->logits : t.narrow, from,
                                to->accumulate_bias, (void *)shard_head_element(to->bias, t.first, h->weight_dtype),
                                h->weight_dtype));
    }
    if (to->input) {
        const shard_matmul_shape product = {
            .batch = 1, .m = h->loss.rows, .n = h->in, .k = t.count, .accumulate = true, .wide_c = h->dtype != s->wide};
        SHARD_TRY(ops->matmul(s->device, &product, t.narrow, t.weight, to->input, h->dtype));
    }
    return to->weight || to->take ? give_gradient(s, &t, to) : SHARD_OK;
}

shard_status shard_head_weight_gradient_composed(shard_device *device, const shard_head *h, const shard_loss_rows *rows,
                                                 const shard_head_gradient *to)
{
    sweep s;
    shard_status status = sweep_begin(&s, device, h, FACTORS | (to->weight ? 0 : PARTS));
    s.wide_derivatives = to->bias && h->weight_dtype == s.wide;
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK;)
        status = gradient_of_tile(&s, &first, rows, to);
    sweep_end(&s);
    return status;
}

/* ---- the choice ---- */

static const struct shard_head_ops *fused(const shard_device *device, const shard_head *h)
{
    return device->head && device->head->fits(h) ? device->head : NULL;
}

/* A loss with kernels of its own keeps factors in bfloat16: float32's would be large, and float16 has too small a range. */
static size_t composed_stash_bytes(const shard_device *device, const shard_head *h, size_t most)
{
    const head_loss *loss = choose_loss(device, h);
    int64_t classes = choose_tile(h, loss);
    if (!loss->fits || h->dtype != SHARD_BFLOAT16 || classes == 0)
        return 0;
    size_t place = place_bytes(h, classes), places = most / place, tiles = (size_t)shard_divide_up(h->loss.cols, classes);
    return (places < tiles ? places : tiles) * place;
}

size_t shard_head_stash_bytes(const shard_device *device, const shard_head *h, size_t most)
{
    const struct shard_head_ops *ops = fused(device, h);
    if (shard_head_prepares(h))
        return 0;
    return ops ? ops->stash_bytes(h, most) : composed_stash_bytes(device, h, most);
}

shard_status shard_head_label_logits(shard_device *device, const shard_head *h, double *logit)
{
    const struct shard_head_ops *ops = fused(device, h);
    return ops ? ops->label_logits(device, h, logit) : shard_head_label_logits_composed(device, h, logit);
}

shard_status shard_head_top_k(shard_device *device, const shard_head *h, int64_t k, void *value, int64_t *index)
{
    shard_head first = *h;
    first.k = k;
    first.top_value = value;
    first.top_index = index;
    return shard_head_forward(device, &first, NULL, NULL);
}

shard_status shard_head_forward(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    if (shard_head_prepares(h) && device->head)
        return shard_head_prepared_forward(device, h, stats, sum);
    const struct shard_head_ops *ops = fused(device, h);
    if (ops)
        return ops->forward(device, h, stats, sum);
    SHARD_TRY(shard_head_forward_composed(device, h, stats, sum));
    return h->spread ? shard_head_sum_weight(device, h, false, h->spread) : SHARD_OK;
}

shard_status shard_head_weight_gradient(shard_device *device, const shard_head *h, const shard_loss_rows *rows,
                                        const shard_head_gradient *to)
{
    if (shard_head_prepares(h))
        return shard_head_prepared_weight_gradient(device, h, rows, to);
    const struct shard_head_ops *ops = fused(device, h);
    return ops ? ops->weight_gradient(device, h, rows, to) : shard_head_weight_gradient_composed(device, h, rows, to);
}
