/*
 * Sampled classes: all labels of a batch, and a random part of the other classes. Whether a class is drawn depends on the
 * seed, the step and its number alone, so that ranks need no exchange, and any number of them draws the same sample.
 */
#include "op/sampled_classes.h"

#include "base/math.h"
#include "base/random.h"
#include "device/graph.h"

#include <math.h>
#include <stdlib.h>

enum {
    WORDS = 4,      /* of a block of random numbers */
    BLOCK = 1 << 16 /* classes that are drawn at once: their numbers stay in a cache */
};
#define DRAWS_OF_SAMPLES (UINT64_C(1) << 63) /* no other draw of the seed has such a number */

static int compare(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* ---- the draw ---- */

typedef struct sample_list {
    int64_t *class, count, capacity;
} sample_list;

static bool is_below(shard_draw draw, int64_t class, uint64_t limit)
{
    return shard_philox_block(draw, (uint64_t) class / WORDS).word[class % WORDS] < limit;
}

/* Appends the classes of [first, first + count) whose number is below `limit`, of 2^32. upper: the numbers' upper 24 bits times
 * 2^-24, which decide but where they are the limit's. */
static void keep_drawn(sample_list *list, shard_draw draw, uint64_t limit, int64_t first, int64_t count, const float *upper)
{
    uint64_t upper_limit = limit >> 8;
    int64_t *class = list->class, kept = list->count;
    for (int64_t i = 0; i < count; i++) {
        uint64_t number = (uint32_t)(upper[i] * 0x1p24f);
        class[kept] = first + i; /* which stays if the class is kept */
        kept += number == upper_limit ? is_below(draw, first + i, limit) : number < upper_limit;
    }
    list->count = kept;
}

/* Draws from the classes [start, end), on the CPU wherever the labels are. */
static bool draw_classes(sample_list *list, shard_draw draw, uint64_t limit, int64_t start, int64_t end)
{
    shard_device *cpu = shard_device_open("cpu");
    float *upper = cpu ? shard_calloc(BLOCK, sizeof *upper) : NULL;
    bool good = upper != NULL;
    for (int64_t first = start; first < end && good; first += BLOCK) {
        int64_t count = shard_min(BLOCK, end - first);
        const shard_region part = {.rows = 1, .cols = count, .col0 = first, .whole_cols = end};
        good = shard_grow(&list->class, &list->capacity, list->count + count, sizeof *list->class) == SHARD_OK &&
               cpu->ops->random_uniform(cpu, &part, draw, 0, 1, upper, SHARD_FLOAT32) == SHARD_OK;
        if (good)
            keep_drawn(list, draw, limit, first, count, upper);
    }
    free(upper);
    return good;
}

/* Puts the labels that are in [start, end) and were not drawn into the list. The labels ascend, may repeat, and are written over.
 */
static bool add_labels(sample_list *list, int64_t *label, int64_t labels, int64_t start, int64_t end)
{
    if (shard_grow(&list->class, &list->capacity, list->count + labels, sizeof *list->class) != SHARD_OK)
        return false;
    int64_t *class = list->class, last = list->count - 1, added = 0;
    for (int64_t i = 0, at = 0; i < labels; i++) {
        while (at <= last && class[at] < label[i])
            at++;
        bool drawn = at <= last && class[at] == label[i], repeated = added && label[added - 1] == label[i];
        if (label[i] >= start && label[i] < end && !drawn && !repeated)
            label[added++] = label[i];
    }
    list->count += added;
    for (int64_t to = list->count - 1; added > 0; to--) /* from the end, where there is room */
        class[to] = last >= 0 && class[last] > label[added - 1] ? class[last--] : label[--added];
    return true;
}

static shard_tensor *host_tensor(const int64_t *values, int64_t count)
{
    return shard_from_host(values, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
}

/* A copy of the tensor's integers, which the caller frees; NULL with the error set. */
static int64_t *read_integers(shard_tensor *x)
{
    size_t bytes = (size_t)shard_numel(x) * sizeof(int64_t);
    int64_t *values = shard_calloc(1, bytes + 1);
    if (values && shard_copy_to_host(x, values, bytes) == SHARD_OK)
        return values;
    free(values);
    return NULL;
}

static bool check(shard_tensor *labels, shard_tensor *weight, double rate, int64_t step)
{
    static const char function[] = "shard_sample_classes";
    if (!shard_check_operand(function, labels) || !shard_check_operands(function, SHARD_INPUTS(weight)))
        return false;
    if (labels->dtype != SHARD_INT64 || weight->shape.ndim < 1)
        shard_error(SHARD_ERROR_SHAPE, "%s: labels of %s and a weight of shape %s; int64 labels and [classes, ...] are needed",
                    function, shard_dtype_name(labels->dtype), shard_shape_text(&weight->shape));
    else if (!shard_is_local(weight) && !shard_is_split(weight, 0))
        return shard_refuse_placement(function, weight);
    else if (!(rate >= 0 && rate <= 1) || step < 0)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: rate %g and step %" PRId64 "; a rate in [0, 1] and a step of at least 0 are needed", function, rate,
                    step);
    else
        return true;
    return false;
}

shard_tensor *shard_sample_classes(shard_tensor *labels, shard_tensor *weight, double rate, uint64_t seed, int64_t step)
{
    if (!check(labels, weight, rate, step) || shard_graph_refuse("a sample of classes") != SHARD_OK)
        return NULL;
    int64_t start = shard_is_split(weight, 0) ? weight->placement.start : 0, end = start + weight->shape.dim[0];
    int64_t *label = NULL, count = shard_numel(labels);
    shard_draw draw = {.seed = seed, .number = DRAWS_OF_SAMPLES | (uint64_t)step};
    sample_list list = {.class = NULL};
    bool drawn = draw_classes(&list, draw, (uint64_t)ldexp(rate, 32), start, end);
    if (drawn)
        label = read_integers(labels); /* the GPU may have them by now */
    if (label)
        qsort(label, (size_t)count, sizeof *label, compare);
    bool whole = label && add_labels(&list, label, count, start, end);
    shard_tensor *sample = whole ? host_tensor(list.class, list.count) : NULL;
    free(list.class);
    free(label);
    return sample;
}

/* ---- the correction ---- */

static bool check_correction(shard_tensor *sample, shard_tensor *labels, double rate)
{
    static const char function[] = "shard_sample_correction";
    if (!shard_check_operand(function, sample) || !shard_check_operand(function, labels))
        return false;
    if (sample->dtype != SHARD_INT64 || sample->shape.ndim != 1 || labels->dtype != SHARD_INT64)
        shard_error(SHARD_ERROR_SHAPE, "%s: a sample of %s and shape %s, and labels of %s; int64 [n] and int64 are needed",
                    function, shard_dtype_name(sample->dtype), shard_shape_text(&sample->shape), shard_dtype_name(labels->dtype));
    else if (!(rate > 0 && rate <= 1))
        shard_error(SHARD_ERROR_ARGUMENT, "%s: rate %g; the one of shard_sample_classes, in (0, 1], is needed", function, rate);
    else
        return true;
    return false;
}

shard_tensor *shard_sample_correction(shard_tensor *sample, shard_tensor *labels, double rate)
{
    if (!check_correction(sample, labels, rate) || shard_graph_refuse("the correction of a sample") != SHARD_OK)
        return NULL;
    int64_t count = shard_numel(sample), label_count = shard_numel(labels);
    int64_t *class = read_integers(sample), *label = read_integers(labels);
    float *correction = shard_calloc((size_t)count + 1, sizeof *correction);
    shard_tensor *made = NULL;
    if (class && label && correction) {
        qsort(label, (size_t)label_count, sizeof *label, compare);
        for (int64_t i = 0; i < count; i++) {
            bool labelled = bsearch(&class[i], label, (size_t)label_count, sizeof *label, compare);
            correction[i] = labelled ? 0 : (float)-log(rate);
        }
        made = shard_from_host(correction, SHARD_SHAPE(count), .device = shard_device_open("cpu"));
    }
    free(class);
    free(label);
    free(correction);
    return made;
}

/* ---- the loss ---- */

static bool check_sample(const shard_class_rows *rows, shard_tensor *sample)
{
    if (!shard_check_operand(rows->function, sample))
        return false;
    if (sample->dtype == SHARD_INT64 && sample->shape.ndim == 1 && shard_is_local(sample))
        return true;
    shard_error(SHARD_ERROR_SHAPE,
                "%s: a sample of %s and shape %s, which is %s; a local int64 [n] of shard_sample_classes is needed",
                rows->function, shard_dtype_name(sample->dtype), shard_shape_text(&sample->shape),
                shard_placement_text(&sample->placement));
    return false;
}

/* Writes the rows of the local weight that the classes are. */
static bool find_rows(const shard_class_rows *rows, const int64_t *class, int64_t count, int64_t *row)
{
    const shard_cross_entropy_shape *shape = &rows->shape;
    for (int64_t i = 0; i < count; i++) {
        int64_t least = i ? row[i - 1] + 1 : 0;
        row[i] = class[i] < shape->col0 ? -1 : class[i] - shape->col0; /* no overflow */
        if (row[i] >= least && row[i] < shape->cols)
            continue;
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: class %" PRId64 " at position %" PRId64 " of the sample; classes of this rank, in [%" PRId64 ", %" PRId64
                    "), are needed in ascending order",
                    rows->function, class[i], i, shape -> col0, shape -> col0 + shape -> cols);
        return false;
    }
    return true;
}

static shard_tensor *make_integers(int64_t count, shard_device *device)
{
    return shard_tensor_make(SHARD_SHAPE(count), SHARD_INT64, device);
}

/* The labels' positions and rows. A label that the list lacks is an error here or of the device. */
static bool find_labels(const shard_class_rows *rows, shard_sampled *s)
{
    shard_device *device = shard_device_of(rows->logits);
    void *memory[4];
    s->target = make_integers(rows->shape.rows, device);
    s->label_row = make_integers(rows->shape.rows, device);
    return s->target && s->label_row && shard_load(SHARD_INPUTS(s->list, rows->labels, s->target, s->label_row), memory) &&
           SHARD_RUN(s->list, find_labels, &rows->shape, s->count, memory[0], memory[1], memory[2], memory[3],
                     &rows->faults->unsampled) == SHARD_OK;
}

static bool read_sample(const shard_class_rows *rows, shard_tensor *sample, shard_sampled *s)
{
    if (!check_sample(rows, sample) || shard_graph_refuse("a loss of sampled classes") != SHARD_OK)
        return false;
    *s = (shard_sampled){.count = shard_numel(sample)};
    shard_tensor *here = shard_to_device(sample, shard_cpu());
    s->on_host = here ? make_integers(s->count, shard_cpu()) : NULL;
    void *memory[2];
    if (!s->on_host || !shard_load(SHARD_INPUTS(here, s->on_host), memory) || !find_rows(rows, memory[0], s->count, memory[1]))
        return false;
    s->list = shard_to_device(s->on_host, shard_device_of(rows->logits));
    return s->list && find_labels(rows, s);
}

/* Whether the correction is of the sample: local, floating, [count]. False with the error set. */
static bool fits_sample(const shard_class_rows *rows, const shard_sampled *sampled, shard_tensor *correction)
{
    if (!shard_check_operand(rows->function, correction))
        return false;
    bool fits = correction->shape.ndim == 1 && correction->shape.dim[0] == sampled->count;
    if (shard_dtype_is_float(correction->dtype) && fits && shard_is_local(correction) && !shard_requires_grad(correction))
        return true;
    shard_error(SHARD_ERROR_SHAPE,
                "%s: a sample's correction of %s and shape %s, which is %s%s; a local floating [%" PRId64
                "] without a gradient is needed, as of shard_sample_correction",
                rows->function, shard_dtype_name(correction->dtype), shard_shape_text(&correction->shape),
                shard_placement_text(&correction->placement), shard_requires_grad(correction) ? " and requires a gradient" : "",
                sampled->count);
    return false;
}

/* *classes: of the whole sample. Collective over the rows' group; ready is false if this rank has failed, and then all fail. */
static shard_status count_sample(const shard_class_rows *rows, bool ready, const shard_sampled *sampled, int64_t *classes)
{
    if (!rows->group) {
        *classes = sampled->count;
        return ready ? SHARD_OK : shard_last_status();
    }
    int ranks = shard_group_size(rows->group);
    int64_t *counts = ready ? shard_calloc((size_t)ranks, sizeof *counts) : NULL;
    if (!counts)
        return shard_group_fail(rows->group);
    shard_status status = shard_group_exchange(rows->group, &sampled->count, sizeof sampled->count, counts);
    *classes = shard_count_before(counts, ranks);
    free(counts);
    return status;
}

shard_status shard_sampled_open(shard_class_rows *rows, bool ready, shard_tensor *sample, shard_tensor *correction,
                                double smoothing, shard_sampled *sampled, shard_cross_entropy_shape *shape)
{
    ready = ready && read_sample(rows, sample, sampled) && (!correction || fits_sample(rows, sampled, correction));
    int64_t classes = sampled->count + 1; /* no label of another rank counts as ignored */
    if (smoothing != 0)
        SHARD_TRY(count_sample(rows, ready, sampled, &classes));
    if (!ready)
        return shard_class_rows_gather(rows, false);
    shape->col0 = 0;
    shape->cols = sampled->count;
    shape->classes = classes;
    shape->ignore_index = -1;
    return SHARD_OK;
}

shard_tensor *shard_sampled_pick(const shard_sampled *sampled, shard_tensor *x)
{
    if (!x)
        return NULL;
    shard_tensor *y = shard_workspace(x, sampled->count, x->dtype);
    void *memory[3];
    if (!y || !shard_load(SHARD_INPUTS(sampled->list, x, y), memory))
        return NULL;
    return shard_result(y,
                        SHARD_RUN(y, embedding, sampled->count, 1, 0, shard_numel(x), memory[0], memory[1], memory[2], x->dtype));
}

shard_tensor *shard_sampled_correction(shard_tensor *correction, double logit_scale, const shard_tensor *like)
{
    correction = shard_to_device(correction, shard_device_of(like));
    return shard_cast(logit_scale != 1 ? shard_scale(correction, 1 / logit_scale) : correction, like->dtype);
}

/* ---- columns of logits: rows of the transposed logits ---- */

static shard_status columns_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    shard_tensor *list = shard_saved(node, 0);
    dx[0] = list ? shard_make_gradient(node, 0) : NULL;
    if (!dx[0])
        return shard_last_status();
    int64_t cols = dx[0]->shape.dim[dx[0]->shape.ndim - 1], count = shard_numel(list);
    int64_t rows = shard_shape_product(&dx[0]->shape, 0, dx[0]->shape.ndim - 1);
    shard_tensor *some = shard_workspace(dy, count * rows, dy->dtype), *all = shard_workspace(dy, cols * rows, dy->dtype);
    void *memory[5];
    if (!some || !all || !shard_load(SHARD_INPUTS(dy, list, some, all, dx[0]), memory))
        return shard_last_status();
    SHARD_TRY(
        SHARD_RUN(dy, permute, 2, ((const int64_t[]){rows, count}), ((const int[]){1, 0}), memory[0], memory[2], dy->dtype));
    SHARD_TRY(SHARD_RUN(dy, embedding_backward, count, rows, 0, cols, memory[1], memory[2], false, false, memory[3], dy->dtype));
    return SHARD_RUN(dy, permute, 2, ((const int64_t[]){cols, rows}), ((const int[]){1, 0}), memory[3], memory[4], dy->dtype);
}

static const shard_node_type columns_type = {.name = "sampled_columns", .backward = columns_backward};

shard_tensor *shard_sampled_columns(const shard_sampled *sampled, shard_tensor *logits)
{
    int last = logits->shape.ndim - 1;
    int64_t cols = logits->shape.dim[last], rows = shard_shape_product(&logits->shape, 0, last), count = sampled->count;
    shard_shape shape = logits->shape;
    shape.dim[last] = count;
    shard_tensor *y = shard_tensor_make(shape, logits->dtype, shard_device_of(logits));
    shard_tensor *all = shard_workspace(logits, cols * rows, logits->dtype);
    shard_tensor *some = shard_workspace(logits, count * rows, logits->dtype);
    void *memory[5];
    if (!y || !all || !some || !shard_load(SHARD_INPUTS(logits, sampled->list, all, some, y), memory))
        return NULL;
    if (!shard_is_split(logits, last))
        y->placement = logits->placement;
    if (SHARD_RUN(y, permute, 2, ((const int64_t[]){rows, cols}), ((const int[]){1, 0}), memory[0], memory[2], y->dtype) !=
            SHARD_OK ||
        SHARD_RUN(y, embedding, count, rows, 0, cols, memory[1], memory[2], memory[3], y->dtype) != SHARD_OK ||
        SHARD_RUN(y, permute, 2, ((const int64_t[]){count, rows}), ((const int[]){1, 0}), memory[3], memory[4], y->dtype) !=
            SHARD_OK)
        return NULL;
    shard_node *node = shard_record(&columns_type, y, SHARD_INPUTS(logits), 0);
    if (node)
        shard_save_for_backward(node, 0, sampled->list);
    return y;
}
