#include "device/head_prepared.h"

#include "base/error.h"
#include "base/math.h"

/* Bytes of a chunk's rows, about. On a device with fused sweeps they stay in a third-level cache; on another one, whose
 * launches cost time, there are few chunks. */
enum { FUSED_CHUNK_BYTES = 4 << 20, CHUNK_BYTES = 64 << 20, LEAST_CHUNK = 64, CHUNK_UNIT = 256 };

/* One call: chunks of the classes. */
typedef struct chunks {
    shard_device *device;
    const shard_head *h;
    shard_dtype wide, dtype; /* dtype: of the rows that the sweeps go over */
    int64_t size;            /* classes of a chunk, at most */
    size_t bytes;            /* of `memory` */
    char *memory;
    void *taken;         /* [size, in] of dtype: rows of a list, or normalized ones; NULL: the rows are where they are */
    double *square;      /* [size]: the sums of the rows' squares, if they are normalized */
    void *aside;         /* [size, in], wide: the memory that a narrow gradient is added to; NULL: not needed */
    void *bias;          /* [cols] of the weight's type: the bias's gradient; NULL: not wanted */
    double *stats, *old; /* [rows, SHARD_CE_STATS] */
    double *center;      /* [rows] */
    void *sum;           /* [rows, in], wide; NULL: not wanted */
} chunks;

enum { SUMS = 1, ADDS = 2, BIASED = 4, UNROUNDED = 8 /* normalized rows are wide */ }; /* the needs of a call */

/* Lays arrays out in the workspace: counts bytes if `memory` is NULL. */
static void *lay(const chunks *c, size_t *offset, int64_t count, shard_dtype dtype)
{
    void *at = c->memory ? c->memory + *offset : NULL;
    *offset += ((size_t)count * shard_dtype_size(dtype) + 255) / 256 * 256;
    return at;
}

static bool adds_aside(const chunks *c, int needs)
{
    return needs & ADDS && c->wide != c->h->weight_dtype;
}

static size_t lay_out(chunks *c, int needs)
{
    const shard_head *h = c->h;
    size_t offset = 0;
    c->taken = h->list || h->normalized ? lay(c, &offset, c->size * h->in, c->dtype) : NULL;
    c->square = h->normalized ? lay(c, &offset, c->size, SHARD_FLOAT64) : NULL;
    c->aside = adds_aside(c, needs) ? lay(c, &offset, c->size * h->in, c->wide) : NULL;
    c->bias = needs & BIASED ? lay(c, &offset, h->loss.cols, h->weight_dtype) : NULL;
    c->stats = lay(c, &offset, h->loss.rows * SHARD_CE_STATS, SHARD_FLOAT64);
    c->old = lay(c, &offset, h->loss.rows * SHARD_CE_STATS, SHARD_FLOAT64);
    c->center = lay(c, &offset, h->loss.rows, SHARD_FLOAT64);
    c->sum = needs & SUMS ? lay(c, &offset, h->loss.rows * h->in, c->wide) : NULL;
    return offset;
}

static shard_status begin(chunks *c, shard_device *device, const shard_head *h, int needs)
{
    *c = (chunks){.device = device, .h = h, .wide = shard_head_wide(h->dtype)};
    c->dtype = !h->normalized ? h->weight_dtype : needs & UNROUNDED ? c->wide : h->dtype;
    int64_t bytes = device->head ? FUSED_CHUNK_BYTES : CHUNK_BYTES;
    int64_t wanted = bytes / (shard_max(h->in, 1) * (int64_t)shard_dtype_size(h->normalized ? c->wide : c->dtype));
    int64_t most = shard_head_tile ? 3 * shard_head_tile : shard_max(wanted, LEAST_CHUNK);
    if (!device->head && !shard_head_tile && h->loss.cols > most && most >= CHUNK_UNIT) /* of one size, about */
        most = shard_round_up(shard_divide_up(h->loss.cols, shard_divide_up(h->loss.cols, most)), CHUNK_UNIT);
    c->size = shard_min(most, h->loss.cols);
    if (!device->head && !shard_head_tile && c->size > SHARD_HEAD_ALIGNED)
        c->size -= c->size % SHARD_HEAD_ALIGNED;
    if (!h->list && !h->normalized && !adds_aside(c, needs)) /* nothing is copied */
        c->size = h->loss.cols;
    c->bytes = lay_out(c, needs) + 1;
    c->memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, c->bytes);
    if (!c->memory)
        return shard_last_status();
    lay_out(c, needs);
    return SHARD_OK;
}

static void end(chunks *c)
{
    shard_device_release(c->device, SHARD_MEMORY_WORKSPACE, c->memory, c->bytes);
}

static shard_axis each_row(int64_t rows, int64_t in)
{
    return (shard_axis){.outer = rows, .size = in, .inner = 1};
}

/* Where the classes from `first` on are: their part of the list, or their rows. */
static const int64_t *list_of(const shard_head *h, int64_t first)
{
    return h->list ? h->list + first : NULL;
}

static const void *rows_of(const shard_head *h, int64_t first)
{
    return h->list ? h->weight : shard_head_element(h->weight, first * h->in, h->weight_dtype);
}

/* Prepares the rows of classes [first, first + count). */
static shard_status take_rows(chunks *c, int64_t first, int64_t count)
{
    const shard_head *h = c->h;
    const shard_device_ops *ops = c->device->ops;
    if (h->normalized)
        return ops->unit_rows(c->device, count, h->in, list_of(h, first), rows_of(h, first), h->weight_dtype, SHARD_HEAD_EPS,
                              c->square, c->taken, c->dtype);
    if (!c->taken)
        return SHARD_OK;
    return ops->embedding(c->device, count, h->in, 0, h->weight_rows, h->list + first, h->weight, c->taken, h->weight_dtype);
}

/* Sets `part` to the head of the chunk from class `first` on, which is an ordinary one. */
static shard_status take_chunk(chunks *c, int64_t first, shard_head *part)
{
    const shard_head *h = c->h;
    int64_t count = shard_min(c->size, h->loss.cols - first);
    SHARD_TRY(take_rows(c, first, count));
    *part = *h;
    part->loss.col0 += first;
    part->loss.cols = count;
    part->list = part->list_on_host = part->label_row = NULL;
    part->normalized = false;
    part->margin_logit = NULL;
    part->stash = NULL;
    part->weight_dtype = c->dtype;
    part->weight = c->taken ? c->taken : rows_of(h, first);
    part->bias = shard_head_element(h->bias, first, h->weight_dtype);
    part->class_weight = shard_head_element(h->class_weight, first, c->wide);
    return SHARD_OK;
}

/* ---- forward ---- */

/* Adds a chunk's statistics and sums to those of the chunks before. */
static shard_status merge(chunks *c, double *stats, void *sum)
{
    const shard_device_ops *ops = c->device->ops;
    int64_t rows = c->h->loss.rows, in = c->h->in;
    size_t width = (size_t)(rows * SHARD_CE_STATS) * sizeof(double);
    if (width == 0)
        return SHARD_OK;
    SHARD_TRY(ops->copy_rows(c->device, c->old, width, stats, width, width, 1));
    SHARD_TRY(ops->head_merge(c->device, rows, in, c->stats, stats, c->center, sum, c->wide));
    if (!sum)
        return SHARD_OK;
    SHARD_TRY(ops->head_merge(c->device, rows, in, c->old, c->stats, c->center, c->sum, c->wide));
    return ops->axpby(c->device, rows * in, 1, c->sum, 1, sum, c->wide);
}

static shard_status forward_chunks(chunks *c, double *stats, void *sum)
{
    for (int64_t first = 0; first < c->h->loss.cols; first += c->size) {
        shard_head part;
        SHARD_TRY(take_chunk(c, first, &part));
        SHARD_TRY(shard_head_forward(c->device, &part, first ? c->stats : stats, first ? c->sum : sum));
        if (first)
            SHARD_TRY(merge(c, stats, sum));
    }
    return SHARD_OK;
}

shard_status shard_head_prepared_forward(shard_device *device, const shard_head *h, double *stats, void *sum)
{
    if (h->loss.cols == 0)
        return shard_head_forward_composed(device, h, stats, sum);
    chunks c;
    shard_status status = begin(&c, device, h, sum ? SUMS : 0);
    if (status == SHARD_OK)
        status = forward_chunks(&c, stats, sum);
    end(&c);
    return status;
}

/* ---- the labels' rows ---- */

/* Arrays for the rows of x. */
typedef struct labels {
    void *taken;        /* [rows, in] of the weight's type */
    void *weight;       /* [rows, in], wide: the classes' rows of the labels, 0 where they are not here */
    void *x;            /* [rows, in], wide; NULL: x is */
    double *square;     /* [rows] */
    double *factor;     /* [rows]: of the labels' rows in dx */
    double *softmax;    /* [rows]: the derivative by the label's logit, without the label's part */
    double *label;      /* [rows]: the label's part */
    void *class_weight; /* [rows], wide: of the labels; NULL: ones */
    void *narrow;       /* [rows], wide: the factors */
    int64_t *zero;      /* [rows] */
    uint8_t *counts;    /* [rows]: whether the row has a part in the result */
    void *spread;       /* [in], wide; NULL: no smoothing */
} labels;

static size_t lay_out_labels(chunks *c, labels *l)
{
    const shard_head *h = c->h;
    int64_t rows = h->loss.rows;
    size_t offset = 0;
    l->taken = lay(c, &offset, rows * h->in, h->weight_dtype);
    l->weight = h->weight_dtype == c->wide ? l->taken : lay(c, &offset, rows * h->in, c->wide);
    l->x = h->dtype == c->wide ? NULL : lay(c, &offset, rows * h->in, c->wide);
    l->square = lay(c, &offset, rows, SHARD_FLOAT64);
    l->factor = lay(c, &offset, rows, SHARD_FLOAT64);
    l->softmax = lay(c, &offset, rows, SHARD_FLOAT64);
    l->label = lay(c, &offset, rows, SHARD_FLOAT64);
    l->class_weight = h->class_weight ? lay(c, &offset, rows, c->wide) : NULL;
    l->narrow = lay(c, &offset, rows, c->wide);
    l->zero = lay(c, &offset, rows, SHARD_INT64);
    l->counts = lay(c, &offset, rows, SHARD_UINT8);
    l->spread = h->loss.smoothing != 0 && h->loss.cols > 0 ? lay(c, &offset, h->in, c->wide) : NULL;
    return offset;
}

static shard_status begin_labels(chunks *c, labels *l, shard_device *device, const shard_head *h)
{
    *c = (chunks){.device = device, .h = h, .wide = shard_head_wide(h->dtype)};
    c->bytes = lay_out_labels(c, l) + 1;
    c->memory = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, c->bytes);
    if (!c->memory)
        return shard_last_status();
    lay_out_labels(c, l);
    return SHARD_OK;
}

static shard_status take_labels(chunks *c, const labels *l)
{
    const shard_head *h = c->h;
    const shard_device_ops *ops = c->device->ops;
    const shard_axis axis = each_row(h->loss.rows, h->in);
    int64_t row0 = h->list ? 0 : h->loss.col0, rows = h->list ? h->weight_rows : h->loss.cols;
    SHARD_TRY(ops->embedding(c->device, h->loss.rows, h->in, row0, rows, h->list ? h->label_row : h->target, h->weight, l->taken,
                             h->weight_dtype));
    if (l->weight != l->taken)
        SHARD_TRY(ops->cast(c->device, h->loss.rows * h->in, l->taken, h->weight_dtype, l->weight, c->wide));
    if (!h->normalized)
        return SHARD_OK;
    return ops->normalize(c->device, &axis, SHARD_HEAD_EPS, true, l->weight, l->square, l->weight, c->wide);
}

/* ---- margins ---- */

static shard_status label_margins(chunks *c, const labels *l, const shard_head_margin *margin, double *logit, double *slope,
                                  void *shift)
{
    const shard_head *h = c->h;
    const shard_device_ops *ops = c->device->ops;
    int64_t n = h->loss.rows;
    const shard_axis axis = each_row(n, h->in);
    const shard_cross_entropy_shape column = {.rows = n, .cols = 1, .classes = 1, .ignore_index = -1};
    SHARD_TRY(take_labels(c, l));
    if (l->x)
        SHARD_TRY(ops->cast(c->device, n * h->in, h->x, h->dtype, l->x, c->wide));
    /* without a result this is the dot product of each row */
    SHARD_TRY(
        ops->normalize_backward(c->device, &axis, 0, true, l->x ? l->x : h->x, l->square, l->weight, l->label, NULL, c->wide));
    SHARD_TRY(ops->axpby(c->device, n, 1 / margin->of.scale, l->label, 0, l->factor, SHARD_FLOAT64));
    SHARD_TRY(ops->zero(c->device, l->zero, (size_t)n * sizeof *l->zero));
    SHARD_TRY(ops->margin_logits(c->device, &column, &margin->of, l->factor, l->zero, margin->row_m2, margin->row_m3, logit,
                                 slope, SHARD_FLOAT64));
    const shard_expansion each = shard_expansion_rows(1, n);
    SHARD_TRY(ops->binary(c->device, SHARD_SUB, &each, logit, l->label, l->factor, SHARD_FLOAT64));
    return ops->cast(c->device, n, l->factor, SHARD_FLOAT64, shift, c->wide);
}

shard_status shard_head_label_margins(shard_device *device, const shard_head *h, const shard_head_margin *margin, double *logit,
                                      double *slope, void *shift)
{
    chunks c;
    labels l;
    if (h->loss.rows == 0)
        return SHARD_OK;
    shard_status status = begin_labels(&c, &l, device, h);
    if (status == SHARD_OK)
        status = label_margins(&c, &l, margin, logit, slope, shift);
    end(&c);
    return status;
}

/* ---- the features' gradient ---- */

/* Sets `label` to scale class_weight, and `softmax`, where there are margins, to scale slope exp(logit - lse); the logit of a
 * label that is not here counts as no larger than lse. */
static shard_status measure_labels(chunks *c, const labels *l, const shard_loss_rows *rows)
{
    const shard_head *h = c->h;
    const shard_device_ops *ops = c->device->ops;
    int64_t n = h->loss.rows;
    const shard_expansion each = shard_expansion_rows(1, n);
    SHARD_TRY(ops->axpby(c->device, n, 1, rows->scale, 0, l->label, SHARD_FLOAT64));
    if (l->class_weight) {
        SHARD_TRY(
            ops->embedding(c->device, n, 1, h->loss.col0, h->loss.cols, h->target, h->class_weight, l->class_weight, c->wide));
        SHARD_TRY(ops->cast(c->device, n, l->class_weight, c->wide, l->factor, SHARD_FLOAT64));
        SHARD_TRY(ops->binary(c->device, SHARD_MUL, &each, l->label, l->factor, l->label, SHARD_FLOAT64));
    }
    if (!h->margin_logit)
        return SHARD_OK;
    SHARD_TRY(ops->binary(c->device, SHARD_SUB, &each, h->margin_logit, rows->lse, l->softmax, SHARD_FLOAT64));
    SHARD_TRY(ops->unary(c->device, SHARD_CLAMP, (double[]){-1e4, 0}, n, l->softmax, l->softmax, SHARD_FLOAT64));
    SHARD_TRY(ops->unary(c->device, SHARD_EXP, NULL, n, l->softmax, l->softmax, SHARD_FLOAT64));
    SHARD_TRY(ops->binary(c->device, SHARD_MUL, &each, l->softmax, rows->slope, l->softmax, SHARD_FLOAT64));
    return ops->binary(c->device, SHARD_MUL, &each, l->softmax, rows->scale, l->softmax, SHARD_FLOAT64);
}

/* Sets the factors of the labels' rows: (slope - 1) softmax - (slope (1 - s + s / C) - s / C) label, where s is the smoothing,
 * since sum and spread have the labels' rows with a slope of 1. Logits with margins have no map. */
static shard_status make_factors(chunks *c, const labels *l, const shard_loss_rows *rows)
{
    const shard_head *h = c->h;
    const shard_device_ops *ops = c->device->ops;
    int64_t n = h->loss.rows;
    const shard_expansion each = shard_expansion_rows(1, n);
    double smoothing = h->loss.smoothing, spread = h->loss.classes ? smoothing / (double)h->loss.classes : 0;
    SHARD_TRY(measure_labels(c, l, rows));
    if (!h->margin_logit)
        return ops->axpby(c->device, n, (smoothing - 1) * (h->loss.map.maps ? h->loss.map.scale : 1), l->label, 0, l->factor,
                          SHARD_FLOAT64);
    SHARD_TRY(ops->binary(c->device, SHARD_MUL, &each, h->margin_slope, l->softmax, l->factor, SHARD_FLOAT64));
    SHARD_TRY(ops->axpby(c->device, n, -1, l->softmax, 1, l->factor, SHARD_FLOAT64));
    SHARD_TRY(ops->axpby(c->device, n, smoothing - 1 - spread, h->margin_slope, 0, l->softmax, SHARD_FLOAT64));
    SHARD_TRY(ops->unary(c->device, SHARD_SHIFT, (double[]){spread, 0}, n, l->softmax, l->softmax, SHARD_FLOAT64));
    SHARD_TRY(ops->binary(c->device, SHARD_MUL, &each, l->softmax, l->label, l->softmax, SHARD_FLOAT64));
    return ops->axpby(c->device, n, 1, l->softmax, 1, l->factor, SHARD_FLOAT64);
}

/* Sets the factors of the rows that have no part in the result to 0: where the features are NaN, they are NaN. */
static shard_status clear_factors(chunks *c, const labels *l, const shard_loss_rows *rows)
{
    const shard_device_ops *ops = c->device->ops;
    const int64_t n = c->h->loss.rows, *const shapes[] = {&n, &n, &n};
    const shard_expansion two = shard_expansion_rows(1, n), three = shard_expansion_of(1, &n, 3, (int[]){1, 1, 1}, shapes);
    SHARD_TRY(ops->zero(c->device, l->zero, (size_t)n * sizeof *l->zero));
    SHARD_TRY(ops->compare(c->device, SHARD_NE, &two, rows->scale, l->zero, l->counts, SHARD_FLOAT64));
    return ops->where(c->device, &three, l->counts, l->factor, l->zero, l->factor, SHARD_FLOAT64);
}

static shard_status sum_chunks(const shard_head *h, shard_device *device, void *spread)
{
    chunks c;
    shard_status status = begin(&c, device, h, UNROUNDED);
    for (int64_t first = 0; first < h->loss.cols && status == SHARD_OK; first += c.size) {
        shard_head part;
        status = take_chunk(&c, first, &part);
        if (status == SHARD_OK)
            status = shard_head_sum_weight(device, &part, first > 0, spread);
    }
    end(&c);
    return status;
}

/* dx += factor times the rows of the labels. */
static shard_status add_labels(chunks *c, const labels *l, void *dx)
{
    const shard_head *h = c->h;
    const shard_device_ops *ops = c->device->ops;
    const int64_t shape[] = {h->loss.rows, h->in}, column[] = {h->loss.rows, 1}, *const shapes[] = {shape, column};
    const shard_expansion over = shard_expansion_of(2, shape, 2, (int[]){2, 2}, shapes);
    SHARD_TRY(ops->cast(c->device, h->loss.rows, l->factor, SHARD_FLOAT64, l->narrow, c->wide));
    SHARD_TRY(ops->binary(c->device, SHARD_MUL, &over, l->weight, l->narrow, l->weight, c->wide));
    return ops->axpby(c->device, h->loss.rows * h->in, 1, l->weight, 1, dx, c->wide);
}

static shard_status input_gradient(chunks *c, const labels *l, const double *stats, const void *sum, const shard_loss_rows *rows,
                                   void *dx)
{
    const shard_head *h = c->h;
    shard_cross_entropy_shape without = h->loss; /* no label is in its range of columns */
    without.col0 = INT64_MAX / 2;
    if (l->spread)
        SHARD_TRY(sum_chunks(h, c->device, l->spread));
    SHARD_TRY(c->device->ops->head_input_gradient(c->device, &without, h->in, h->target, NULL, h->weight, h->weight_dtype, stats,
                                                  rows, sum, l->spread, dx, c->wide));
    if (h->loss.rows == 0)
        return SHARD_OK;
    SHARD_TRY(take_labels(c, l));
    SHARD_TRY(make_factors(c, l, rows));
    SHARD_TRY(clear_factors(c, l, rows));
    return add_labels(c, l, dx);
}

shard_status shard_head_prepared_input_gradient(shard_device *device, const shard_head *h, const double *stats, const void *sum,
                                                const shard_loss_rows *rows, void *dx)
{
    chunks c;
    labels l;
    shard_status status = begin_labels(&c, &l, device, h);
    if (status == SHARD_OK)
        status = input_gradient(&c, &l, stats, sum, rows, dx);
    end(&c);
    return status;
}

/* ---- the weight's gradient ---- */

/* The receiver of a chunk's gradient. */
typedef struct receiver {
    const chunks *c;
    const shard_head_gradient *to;
    int64_t first; /* class of the chunk */
} receiver;

/* Adds the wide gradient of n numbers to memory of the weight's type, or writes it there; aside: [n], wide. */
static shard_status put(const chunks *c, bool accumulate, int64_t n, const void *gradient, void *to, void *aside)
{
    const shard_device_ops *ops = c->device->ops;
    if (!accumulate)
        return ops->cast(c->device, n, gradient, c->wide, to, c->h->weight_dtype);
    if (c->wide == c->h->weight_dtype)
        return ops->axpby(c->device, n, 1, gradient, 1, to, c->wide);
    SHARD_TRY(ops->cast(c->device, n, to, c->h->weight_dtype, aside, c->wide));
    SHARD_TRY(ops->axpby(c->device, n, 1, gradient, 1, aside, c->wide));
    return ops->cast(c->device, n, aside, c->wide, to, c->h->weight_dtype);
}

/* Gives the gradient of `run` rows of the weight from `row` on, which are classes of the chunk from `first` on. */
static shard_status give_run(const receiver *r, int64_t row, int64_t run, int64_t first, void *gradient)
{
    const chunks *c = r->c;
    const shard_head *h = c->h;
    if (!r->to->weight)
        return r->to->take(r->to->context, c->device, row, run, gradient);
    return put(c, r->to->accumulate, run * h->in, gradient,
               (void *)shard_head_element(r->to->weight, row * h->in, h->weight_dtype),
               (void *)shard_head_element(c->aside, first * h->in, c->wide));
}

/* Adds the gradient of listed rows to memory of the weight's type, which is 0 where nothing is to be added to: a step of SGD with
 * the learning rate -1. */
static shard_status add_listed(const chunks *c, int64_t count, const int64_t *list, void *gradient, void *to)
{
    shard_update_types types = shard_update_types_of(c->h->weight_dtype);
    types.gradient = c->wide;
    const shard_update add = {
        .size = count * c->h->in, .columns = c->h->in, .lr = -1, .step = 2, .gradient = gradient, .value = to, .rows = list};
    return c->device->ops->sgd(c->device, 1, &add, &(shard_sgd_arguments){0}, types);
}

/* Gives the gradient of the classes from `first` of the chunk on as that of runs of the weight's rows, or as a list. */
static shard_status give_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const receiver *r = context;
    const chunks *c = r->c;
    const shard_head *h = c->h;
    if (h->normalized)
        SHARD_TRY(device->ops->unit_rows_backward(device, count, h->in, list_of(h, r->first + first),
                                                  rows_of(h, r->first + first), h->weight_dtype, SHARD_HEAD_EPS,
                                                  c->square + first, gradient));
    if (!h->list)
        return give_run(r, r->first + first, count, first, gradient);
    const int64_t *row = h->list_on_host + r->first + first;
    if (!r->to->weight && r->to->take_list)
        return r->to->take_list(r->to->context, device, &(shard_row_list){count, h->list + r->first + first, row}, gradient);
    if (r->to->weight && device->lists_rows && c->wide == SHARD_FLOAT32)
        return add_listed(c, count, h->list + r->first + first, gradient, r->to->weight);
    shard_status status = SHARD_OK;
    for (int64_t i = 0, run; i < count && status == SHARD_OK; i += run) {
        for (run = 1; i + run < count && row[i + run] == row[i] + run;)
            run++;
        status = give_run(r, row[i], run, first + i, (void *)shard_head_element(gradient, i * h->in, c->wide));
    }
    return status;
}

/* The gradient of the whole bias from that of the classes of the list. */
static shard_status give_bias(chunks *c, const shard_head_gradient *to)
{
    const shard_head *h = c->h;
    return c->device->ops->embedding_backward(c->device, h->loss.cols, 1, 0, h->weight_rows, h->list, c->bias, false,
                                              to->accumulate_bias, to->bias, h->weight_dtype);
}

static shard_status gradient_of_chunks(chunks *c, const shard_loss_rows *rows, const shard_head_gradient *to)
{
    for (int64_t first = 0; first < c->h->loss.cols; first += c->size) {
        shard_head part;
        receiver r = {c, to, first};
        shard_head_gradient inner = {.take = to->weight || to->take ? give_rows : NULL,
                                     .context = &r,
                                     .bias = (void *)shard_head_element(c->bias, first, c->h->weight_dtype)};
        SHARD_TRY(take_chunk(c, first, &part));
        SHARD_TRY(shard_head_weight_gradient(c->device, &part, rows, &inner));
    }
    return to->bias ? give_bias(c, to) : SHARD_OK;
}

shard_status shard_head_prepared_weight_gradient(shard_device *device, const shard_head *h, const shard_loss_rows *rows,
                                                 const shard_head_gradient *to)
{
    size_t bytes = (size_t)(h->weight_rows * h->in) * shard_dtype_size(h->weight_dtype);
    if (h->list && to->weight && !to->accumulate && bytes)
        SHARD_TRY(device->ops->zero(device, to->weight, bytes));
    chunks c;
    shard_status status = begin(&c, device, h, (to->weight && to->accumulate ? ADDS : 0) | (to->bias ? BIASED : 0));
    if (status == SHARD_OK)
        status = gradient_of_chunks(&c, rows, to);
    end(&c);
    return status;
}
