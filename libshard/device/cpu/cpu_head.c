#include "device/cpu/cpu_head_sweep.h"

#include "base/kept_error.h"
#include "base/math.h"
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/pick.h"

#include <math.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void)
{
    return 0;
}
#endif

enum {
    TILE_BYTES = 384 << 10, /* of a tile's weight: half of a second-level cache with what belongs to it */
    LEAST_TILE = 48,
    MOST_TILE = 768,
    BLOCK = 4 * SHARD_CPU_TILE_ROWS, /* rows of the weight whose gradients are made at a time */
    MOST_ROWS = 1024,                /* of x: with more, oneDNN's products are as good */
    MOST_FIRST = 256,                /* first logits of a row, which are kept in order */
    MOST_CAP = 32,                   /* of logits in a stash: their steps are up to 1 / 32,767 of the cap */
    UNIT = 64,                       /* alignment */
    LEAST_PRODUCTS = 1 << 18,        /* of a thread: fewer take less time than the start of a thread */
};

static bool fits(const shard_head *h)
{
    return h->dtype != SHARD_FLOAT64 && h->k <= MOST_FIRST && h->loss.rows > 0 && h->loss.rows <= MOST_ROWS && h->loss.cols > 0 &&
           h->in > 0 && shard_cpu_head_tiler(h->dtype) != NULL && shard_cpu_head_kernels_picked() != NULL;
}

/* Lays `count` elements out behind *offset; NULL while `memory` is, to count bytes. */
static void *lay(char *memory, size_t *offset, int64_t count, size_t size)
{
    void *at = memory ? memory + *offset : NULL;
    *offset += ((size_t)count * size + UNIT - 1) / UNIT * UNIT;
    return at;
}

/* ---- a sweep's operands ---- */

static size_t lay_out_sweep(sweep *s, bool gradient)
{
    const shard_head *h = s->h;
    float **constants[] = {&s->constants.factor, &s->constants.center, &s->constants.spread};
    int64_t rows = h->loss.rows, pack = s->tiler->pack;
    size_t offset = 0;
    s->by_row = lay(s->memory, &offset, shard_cpu_panels_size(s->tiler, shard_divide_up(h->in, pack), rows), sizeof(float));
    s->by_feature = lay(s->memory, &offset, shard_cpu_panels_size(s->tiler, shard_divide_up(rows, pack), h->in), sizeof(float));
    bool widens = h->dtype != shard_cpu_head_products_dtype(s->tiler);
    s->x = widens ? lay(s->memory, &offset, rows * h->in, sizeof(float)) : h->x;
    for (size_t i = 0; i < sizeof constants / sizeof *constants && gradient; i++)
        *constants[i] = lay(s->memory, &offset, s->pitch, sizeof(float));
    s->row_pair = h->binary ? lay(s->memory, &offset, h->loss.rows + 1, sizeof(int64_t)) : NULL;
    return offset;
}

/* Sets row_pair. */
static void find_pairs(sweep *s)
{
    const shard_head *h = s->h;
    int64_t i = 0;
    for (int64_t row = 0; row <= h->loss.rows; row++) {
        while (i < h->pairs && h->pair[i] < row)
            i++;
        s->row_pair[row] = i;
    }
}

/* Sets the sizes of the sweep's tiles. */
static void choose_sizes(sweep *s, const shard_head *h)
{
    *s = (sweep){.h = h,
                 .tiler = shard_cpu_head_tiler(h->dtype),
                 .kernels = shard_cpu_head_kernels_picked(),
                 .loss = h->k        ? &shard_cpu_head_top_k
                         : h->binary ? &shard_cpu_head_binary
                                     : &shard_cpu_head_softmax};
    s->pitch = shard_round_up(h->loss.rows, s->tiler->width);
    s->in_pitch = shard_round_up(h->in, s->tiler->width);
    shard_dtype dtype = shard_cpu_head_products_dtype(s->tiler);
    s->rounds = s->tiler->pack == 1 && h->weight_dtype == SHARD_FLOAT32 && shard_dtype_size(h->dtype) == 2;
    s->in_place = h->weight_dtype == dtype && s->in_pitch == h->in && !s->rounds;
    int64_t wanted = TILE_BYTES / (s->in_pitch * (int64_t)shard_dtype_size(dtype)) / BLOCK * BLOCK;
    s->tile = shard_head_tile ? shard_head_tile : wanted < LEAST_TILE ? LEAST_TILE : shard_min(wanted, MOST_TILE);
}

static size_t stash_bytes(const shard_head *h, size_t most)
{
    sweep s;
    choose_sizes(&s, h);
    if (h->loss.map.soft_cap > MOST_CAP)
        return 0;
    size_t tiles = (size_t)shard_divide_up(h->loss.cols, s.tile), ones = stashed_ones_bytes(h);
    size_t places = most < ones ? 0 : (most - ones) / place_bytes(&s);
    return places == 0 ? 0 : ones + (places < tiles ? places : tiles) * place_bytes(&s);
}

static shard_status sweep_begin(sweep *s, shard_device *device, const shard_head *h, bool gradient)
{
    choose_sizes(s, h);
    s->stashed = h->stash ? (int64_t)((h->stash_bytes - stashed_ones_bytes(h)) / place_bytes(s)) : 0;
    s->bytes = lay_out_sweep(s, gradient);
    s->memory = shard_cpu_scratch(device, s->bytes);
    if (!s->memory)
        return SHARD_ERROR_MEMORY;
    lay_out_sweep(s, gradient);
    if (s->x != h->x)
        s->kernels->widen(h->dtype, h->loss.rows * h->in, h->x, (float *)s->x);
    shard_cpu_head_pack_x(s, gradient);
    if (h->binary)
        find_pairs(s);
    return SHARD_OK;
}

static void sweep_end(sweep *s, shard_device *device)
{
    if (s->memory)
        shard_cpu_scratch_release(device, s->memory, s->bytes);
}

/* The threads of the sweep, of `threads`. A test that sets shard_head_tile has all of them. */
static int count_lanes(const sweep *s, int threads, int64_t tiles)
{
    int64_t products = s->h->loss.rows * s->h->in * s->h->loss.cols;
    int64_t most = shard_head_tile ? threads : products / LEAST_PRODUCTS;
    return (int)shard_max(1, shard_min(shard_min(threads, tiles), most));
}

static size_t lay_out_lane(lane *l, bool gradient, bool sum)
{
    const sweep *s = l->s;
    int64_t rows = s->h->loss.rows;
    bool pairs = s->tiler->pack == 2, needs_weight = !s->in_place || (gradient && s->h->weight_dtype != SHARD_FLOAT32);
    size_t offset = 0;
    l->z = lay(l->memory, &offset, s->tile * s->pitch, sizeof(float));
    l->slopes = gradient ? lay(l->memory, &offset, s->pitch, sizeof(float)) : NULL;
    l->weight = needs_weight ? lay(l->memory, &offset, s->tile * s->in_pitch, pairs ? 2 : sizeof(float)) : NULL;
    l->bias = lay(l->memory, &offset, s->tile, sizeof(float));
    l->buffer = lay(l->memory, &offset, s->tile > s->in_pitch ? s->tile : s->in_pitch, sizeof(float));
    l->gradient = gradient ? lay(l->memory, &offset, BLOCK * s->in_pitch, sizeof(float)) : NULL;
    l->dz = gradient && pairs ? lay(l->memory, &offset, BLOCK * s->pitch, sizeof(uint16_t)) : NULL;
    l->pairs = sum && pairs ? lay(l->memory, &offset, shard_divide_up(s->tile, 2) * s->pitch, sizeof(uint32_t)) : NULL;
    l->panel = sum ? lay(l->memory, &offset, s->tile * SHARD_CPU_TILE_MOST_COLS, sizeof(float)) : NULL;
    l->sum = sum ? lay(l->memory, &offset, rows * s->in_pitch, sizeof(float)) : NULL;
    l->spread = s->h->spread && sum ? lay(l->memory, &offset, s->h->in, sizeof(double)) : NULL;
    l->stats = lay(l->memory, &offset, rows * SHARD_CE_STATS, sizeof(double));
    l->logits = lay(l->memory, &offset, s->pitch, sizeof(double));
    l->columns.max = lay(l->memory, &offset, s->pitch, sizeof(float));
    l->columns.center = lay(l->memory, &offset, s->pitch, sizeof(float));
    l->columns.factor = lay(l->memory, &offset, s->pitch, sizeof(float));
    l->columns.sum = lay(l->memory, &offset, s->pitch, sizeof(double));
    l->count.logit = s->h->ahead ? lay(l->memory, &offset, s->pitch, sizeof(float)) : NULL;
    l->count.place = s->h->ahead ? lay(l->memory, &offset, s->pitch, sizeof(int32_t)) : NULL;
    l->count.ahead = s->h->ahead ? lay(l->memory, &offset, s->pitch, sizeof(int64_t)) : NULL;
    l->last = s->h->k ? lay(l->memory, &offset, s->pitch, sizeof(float)) : NULL;
    l->top_value = s->h->k ? lay(l->memory, &offset, rows * s->h->k, sizeof(float)) : NULL;
    l->top_index = s->h->k ? lay(l->memory, &offset, rows * s->h->k, sizeof(int64_t)) : NULL;
    l->ones = s->h->binary ? lay(l->memory, &offset, s->h->pairs, sizeof(float)) : NULL;
    return offset;
}

static size_t lanes_bytes(int count)
{
    return (size_t)shard_round_up(count * (int64_t)sizeof(lane), UNIT);
}

/* Lanes for the threads of the sweep, and their arrays behind them, in one block of scratch memory. */
static shard_status lanes_begin(shard_device *device, const sweep *s, int count, bool gradient, bool sum, lane **made)
{
    lane sizes = {.s = s};
    size_t bytes = lay_out_lane(&sizes, gradient, sum);
    char *block = shard_cpu_scratch(device, lanes_bytes(count) + bytes * (size_t)count);
    if (!block)
        return SHARD_ERROR_MEMORY;
    lane *lanes = *made = (lane *)(void *)block;
#pragma omp parallel for schedule(static) num_threads(count)
    for (int i = 0; i < count; i++) {
        lanes[i] = (lane){.s = s, .bytes = bytes, .memory = block + lanes_bytes(count) + (size_t)i * bytes};
        lay_out_lane(&lanes[i], gradient, sum);
        memset(lanes[i].memory, 0, lanes[i].bytes);
        for (int64_t j = 0; j < s->pitch; j++)
            lanes[i].columns.max[j] = lanes[i].columns.center[j] = -INFINITY;
        for (int64_t j = 0; j < s->h->loss.rows * s->h->k; j++) {
            lanes[i].top_value[j] = -INFINITY;
            lanes[i].top_index[j] = INT64_MAX;
        }
    }
    return SHARD_OK;
}

static void lanes_end(shard_device *device, int count, lane *lanes)
{
    if (lanes)
        shard_cpu_scratch_release(device, lanes, lanes_bytes(count) + lanes[0].bytes * (size_t)count);
}

/* ---- tiles ---- */

/* The tile's place in the stash. */
static void *place_at(const sweep *s, int64_t first)
{
    int64_t index = first / s->tile;
    return index < s->stashed ? (char *)s->h->stash + (size_t)index * place_bytes(s) : NULL;
}

/* Converts the tile's rows, [count, in] of the weight's type, to the products'; those of a float32 weight are first rounded to
 * the features' type, as in all other ways of the head. Their padding is 0. */
static void convert_rows(lane *l, const char *rows, int64_t count)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    size_t bytes = (size_t)h->in * shard_dtype_size(h->weight_dtype), padding = (size_t)(s->in_pitch - h->in);
    for (int64_t i = 0; i < count; i++) {
        const void *from = rows + (size_t)i * bytes;
        if (s->tiler->pack == 1) {
            if (s->rounds)
                s->kernels->narrow(h->dtype, h->in, from, l->buffer);
            s->kernels->widen(s->rounds ? h->dtype : h->weight_dtype, h->in, s->rounds ? l->buffer : from,
                              (float *)l->weight + i * s->in_pitch);
            continue;
        }
        uint16_t *to = (uint16_t *)l->weight + i * s->in_pitch;
        if (h->weight_dtype == SHARD_FLOAT32)
            s->kernels->narrow(SHARD_BFLOAT16, h->in, from, to);
        else
            memcpy(to, from, bytes);
        memset(to + h->in, 0, padding * sizeof *to);
    }
}

/* multiplies: the tile's rows are needed. */
static tile tile_at(lane *l, int64_t first, bool multiplies)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    tile t = {
        .first = first, .count = shard_min(s->tile, h->loss.cols - first), .pitch = s->in_pitch, .stash = place_at(s, first)};
    const char *rows = (const char *)h->weight + (size_t)(first * h->in) * shard_dtype_size(h->weight_dtype);
    t.weight = s->in_place ? (const void *)rows : l->weight;
    if (multiplies && !s->in_place)
        convert_rows(l, rows, t.count);
    if (multiplies && s->in_place) {
        int64_t bytes = h->in * (int64_t)shard_dtype_size(h->weight_dtype), next = first + t.count;
        t.ahead.fetches = shard_cpu_head_fetches_of_tile(s, t.count, l->sum != NULL);
        shard_cpu_head_fetch(&t.ahead, rows + t.count * bytes, shard_min(s->tile, h->loss.cols - next) * bytes);
    }
    return t;
}

/* z [count, pitch]: the logits of the tile, classes by rows of x. */
static void multiply_logits(lane *l, tile *t)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    size_t size = shard_dtype_size(h->weight_dtype);
    if (h->bias)
        s->kernels->widen(h->weight_dtype, t->count, (const char *)h->bias + (size_t)t->first * size, l->bias);
    s->kernels->fill_bias(t->count, s->pitch, h->bias ? l->bias : NULL, l->z);
    shard_cpu_head_add_logits(s, t, l->z);
}

/* ---- forward ---- */

static void forward_tile(lane *l, int64_t first)
{
    const sweep *s = l->s;
    tile t = tile_at(l, first, true);
    multiply_logits(l, &t);
    bool moved = s->loss->forward(l, &t);
    if (l->pairs)
        s->kernels->pack(t.count, s->pitch, l->z, l->pairs);
    if (l->spread) /* of the weight as it is, of which `t.weight` may be rounded */
        s->kernels->sum_rows(s->h->weight_dtype, t.count, s->h->in,
                             shard_head_element(s->h->weight, first * s->h->in, s->h->weight_dtype), head_class_weights(s->h, &t),
                             l->spread);
    if (!l->sum)
        return;
    for (int64_t row = 0; row < s->h->loss.rows && moved; row++)
        for (int64_t k = 0; k < s->in_pitch && l->columns.factor[row] != 1; k++)
            l->sum[row * s->in_pitch + k] *= l->columns.factor[row];
    shard_cpu_head_add_weighted(s, &t, l->pairs ? l->pairs : (const void *)l->z, l->panel, l->sum);
}

/* Joins what the lanes have of a row, in their order. */
static void join_row(const sweep *s, int lanes, const lane *l, int64_t row, double *stats, float *sum)
{
    s->loss->join(s, lanes, l, row, stats);
    for (int64_t k = 0; k < s->h->in && sum; k++)
        sum[k] = 0;
    for (int i = 0; i < lanes; i++) {
        float factor = l[i].columns.factor[row];
        for (int64_t k = 0; k < s->h->in && sum; k++)
            sum[k] += factor * l[i].sum[row * s->in_pitch + k];
    }
}

static void join_spread(int lanes, const lane *l)
{
    const shard_head *h = l->s->h;
    for (int64_t k = 0; k < h->in && l->spread; k++) {
        double sum = 0;
        for (int i = 0; i < lanes; i++)
            sum += l[i].spread[k];
        ((float *)h->spread)[k] = (float)sum;
    }
}

static shard_status forward(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    sweep s;
    shard_status status = sweep_begin(&s, device, h, false);
    int64_t tiles = status == SHARD_OK ? shard_divide_up(h->loss.cols, s.tile) : 0;
    int threads = count_lanes(&s, shard_cpu_threads(), tiles);
    lane *lanes = NULL;
    if (status == SHARD_OK)
        status = lanes_begin(device, &s, threads, false, sum != NULL, &lanes);
    if (status == SHARD_OK) {
        s.loss->begin(&s, stats); /* the sums are joined in order where all rows have one number */
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < tiles; i++)
            forward_tile(&lanes[omp_get_thread_num()], i * s.tile);
#pragma omp parallel for schedule(static) num_threads(threads) if (s.loss->stats > 0)
        for (int64_t row = 0; row < h->loss.rows; row++)
            join_row(&s, threads, lanes, row, stats + row * s.loss->stats, sum ? (float *)sum + row * h->in : NULL);
        join_spread(threads, lanes);
    }
    lanes_end(device, threads, lanes);
    sweep_end(&s, device);
    return status;
}

/* ---- the labels' logits ---- */

/* Copies the rows of weight and bias that are the labels'; zeros where these are not here. */
static void gather_labels(const shard_head *h, char *weight, char *bias)
{
    size_t size = shard_dtype_size(h->weight_dtype), width = (size_t)h->in * size;
    for (int64_t row = 0; row < h->loss.rows; row++) {
        int64_t class = shard_label_column(&h->loss, h->target[row]);
        if (class < 0) {
            memset(weight + (size_t)row * width, 0, width);
            memset(bias + (size_t)row * size, 0, size);
            continue;
        }
        memcpy(weight + (size_t)row * width, (const char *)h->weight + (size_t) class * width, width);
        if (h->bias)
            memcpy(bias + (size_t)row * size, (const char *)h->bias + (size_t) class * size, size);
    }
}

/* The logits of all rows for the labels' rows of the weight, of which a row's own is kept. */
static shard_status multiply_labels(shard_device *device, const shard_head *h, const shard_head *of_labels, double *logit)
{
    sweep s;
    lane *lanes = NULL;
    shard_status status = sweep_begin(&s, device, of_labels, false);
    if (status == SHARD_OK)
        status = lanes_begin(device, &s, 1, false, false, &lanes);
    for (int64_t first = 0; first < h->loss.rows && status == SHARD_OK; first += s.tile) {
        tile t = tile_at(lanes, first, true);
        multiply_logits(lanes, &t);
        for (int64_t i = 0; i < t.count; i++)
            logit[first + i] =
                shard_label_column(&h->loss, h->target[first + i]) >= 0 ? (double)lanes->z[i * s.pitch + first + i] : 0;
    }
    lanes_end(device, 1, lanes);
    sweep_end(&s, device);
    return status;
}

/* By the kernels of the sweeps, so that a class with the label's row of the weight has the label's logit. */
static shard_status label_logits(shard_device *device, const shard_head *h, double *logit)
{
    size_t size = shard_dtype_size(h->weight_dtype);
    size_t matrix = (size_t)shard_round_up(h->loss.rows * h->in * (int64_t)size, UNIT),
           bytes = matrix + (size_t)h->loss.rows * size;
    char *gathered = shard_cpu_scratch(device, bytes);
    if (!gathered)
        return SHARD_ERROR_MEMORY;
    shard_head of_labels = *h;
    of_labels.weight = gathered;
    of_labels.bias = h->bias ? gathered + matrix : NULL;
    of_labels.loss.cols = h->loss.rows;
    of_labels.stash = NULL;
    of_labels.ahead = NULL;
    gather_labels(h, gathered, gathered + matrix);
    shard_status status = multiply_labels(device, h, &of_labels, logit);
    shard_cpu_scratch_release(device, gathered, bytes);
    return status;
}

/* ---- the weight's gradient ---- */

/* Adds n numbers to memory of a dtype, or writes them to it. */
static void put(const sweep *s, shard_dtype dtype, int64_t n, float *from, void *to, bool accumulate, float *buffer)
{
    if (accumulate) {
        s->kernels->widen(dtype, n, to, buffer);
        for (int64_t i = 0; i < n; i++)
            from[i] += buffer[i];
    }
    s->kernels->narrow(dtype, n, from, to);
}

/* `gradient` [count, in_pitch] of rows from `first` on. */
static shard_status give(lane *l, shard_device *device, const shard_head_gradient *to, int64_t first, int64_t count)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    for (int64_t i = 1; i < count && s->in_pitch != h->in; i++)
        memmove(l->gradient + i * h->in, l->gradient + i * s->in_pitch, (size_t)h->in * sizeof(float));
    if (!to->weight)
        return to->take(to->context, device, first, count, l->gradient);
    for (int64_t i = 0; i < count; i++)
        put(s, h->weight_dtype, h->in, l->gradient + i * h->in,
            (char *)to->weight + (size_t)((first + i) * h->in) * shard_dtype_size(h->weight_dtype), to->accumulate, l->buffer);
    return SHARD_OK;
}

/* The memory of the update of `count` rows from `first` on, which is fetched while the gradients before theirs are computed. A
 * tile whose logits were computed has its weight in the cache already. */
static shard_cpu_head_ahead update_ahead(const sweep *s, const shard_head_gradient *to, int64_t computed, int64_t first,
                                         int64_t count, bool with_weight)
{
    shard_cpu_head_ahead ahead = {.fetches = shard_cpu_head_fetches_of_gradient(s, computed)};
    for (int i = 0; i < to->updated_arrays; i++) {
        const shard_row_array *array = &to->updated[i];
        if (with_weight || array->memory != s->h->weight)
            shard_cpu_head_fetch(&ahead, array->memory + first * array->bytes, count * array->bytes);
    }
    return ahead;
}

static shard_status gradient_of_tile(lane *l, shard_device *device, int64_t first, const shard_loss_rows *rows,
                                     const shard_head_gradient *to)
{
    const sweep *s = l->s;
    const shard_head *h = s->h;
    tile t = tile_at(l, first, place_at(s, first) == NULL);
    if (!t.stash)
        multiply_logits(l, &t);
    s->loss->gradient(l, &t, rows);
    if (to->input) {
        if (l->pairs)
            s->kernels->pack(t.count, s->pitch, l->z, l->pairs);
        shard_cpu_head_add_weighted(s, &t, l->pairs ? l->pairs : l->z, l->panel, l->sum);
    }
    if (to->bias) {
        s->kernels->sum_columns(t.count, s->pitch, h->loss.rows, l->z, l->bias);
        put(s, h->weight_dtype, t.count, l->bias, (char *)to->bias + (size_t)first * shard_dtype_size(h->weight_dtype),
            to->accumulate_bias, l->buffer);
    }
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < t.count && status == SHARD_OK && (to->weight || to->take); i += BLOCK) {
        int64_t count = shard_min(BLOCK, t.count - i);
        const float *dz = l->z + i * s->pitch;
        int64_t next = first + i + count, rest = h->loss.cols - next;
        shard_cpu_head_ahead ahead = update_ahead(s, to, count, next, shard_min(BLOCK, rest), place_at(s, next) != NULL);
        if (l->dz)
            s->kernels->narrow(SHARD_BFLOAT16, count * s->pitch, dz, l->dz);
        shard_cpu_head_multiply_gradient(s, count, l->dz ? l->dz : (const void *)dz, l->gradient, &ahead);
        status = give(l, device, to, first + i, count);
    }
    return status;
}

/* Takes the thread's error along, which would stay in a worker, if it is the first one. */
static void keep_failure(shard_status result, shard_status *failure, shard_kept_error *cause)
{
#pragma omp critical(shard_head_failure)
    {
        shard_kept_error mine = {.status = SHARD_OK};
        if (shard_last_status() != SHARD_OK)
            shard_keep_error(&mine);
        if (*failure == SHARD_OK) {
            *failure = result;
            *cause = mine;
        }
    }
}

static shard_status weight_gradient(shard_device *device, const shard_head *h, const shard_loss_rows *rows,
                                    const shard_head_gradient *to)
{
    sweep s;
    shard_status status = sweep_begin(&s, device, h, true);
    int64_t tiles = status == SHARD_OK ? shard_divide_up(h->loss.cols, s.tile) : 0;
    int threads = count_lanes(&s, shard_cpu_threads(), tiles);
    lane *lanes = NULL;
    if (status == SHARD_OK)
        status = lanes_begin(device, &s, threads, true, to->input != NULL, &lanes);
    if (status == SHARD_OK) {
        shard_kept_error cause = {.status = SHARD_OK};
        s.loss->fill(&s, rows);
#pragma omp parallel for schedule(static) num_threads(threads)
        for (int64_t i = 0; i < tiles; i++) {
            lane *l = &lanes[omp_get_thread_num()];
            shard_status result = gradient_of_tile(l, device, i * s.tile, rows, to);
            if (result != SHARD_OK)
                keep_failure(result, &status, &cause);
        }
        if (cause.status != SHARD_OK)
            shard_put_back_error(&cause);
#pragma omp parallel for schedule(static) num_threads(threads) if (to->input)
        for (int64_t row = 0; row < (to->input ? h->loss.rows : 0); row++)
            for (int i = 0; i < threads; i++)
                for (int64_t k = 0; k < h->in; k++)
                    ((float *)to->input)[row * h->in + k] += lanes[i].sum[row * s.in_pitch + k];
    }
    lanes_end(device, threads, lanes);
    sweep_end(&s, device);
    return status;
}

const struct shard_head_ops shard_cpu_head = {.fits = fits,
                                              .stash_bytes = stash_bytes,
                                              .label_logits = label_logits,
                                              .forward = forward,
                                              .weight_gradient = weight_gradient};
