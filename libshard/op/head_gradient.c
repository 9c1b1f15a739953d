#include "op/head_gradient.h"

#include "op/op.h"

#include <stdlib.h>
#include <string.h>

enum { WEIGHT = SHARD_HEAD_WEIGHT, LIST = SHARD_HEAD_LIST, LIST_ON_HOST = SHARD_HEAD_LIST_ON_HOST, KEPT = SHARD_HEAD_KEPT };

/* The arrays that have an element or a row for each row of x. */
enum { X, TARGET, LSE, SLOPE, SCALE, MARGIN_SHIFT, MARGIN_SLOPE, ARRAYS };

typedef struct head_source {
    shard_gradient_source source; /* first */
    shard_head head;              /* without memory; loss.rows: the rows that were added */
    shard_tensor *kept[KEPT];
    uint64_t version[KEPT];
    shard_device *device;
    shard_tensor *stash; /* of the forward of all rows; NULL: none */
    int64_t capacity;    /* rows */
    void *array[ARRAYS];
    int64_t *pair; /* [2, head.pairs], whose rows count over all that were added */
} head_source;

/* 0: there is no such array. */
static size_t row_bytes(const shard_head *head, int array)
{
    if (head->binary && array != X && array != SCALE)
        return 0;
    if (array >= MARGIN_SHIFT && !head->margin_shift)
        return 0;
    if (array == MARGIN_SHIFT)
        return shard_dtype_size(shard_head_wide(head->dtype));
    return array == X ? (size_t)head->in * shard_dtype_size(head->dtype) : array == TARGET ? sizeof(int64_t) : sizeof(double);
}

static void release_arrays(const head_source *s, void *const *array, int64_t capacity)
{
    for (int i = 0; i < ARRAYS; i++)
        shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, array[i], (size_t)capacity * row_bytes(&s->head, i));
}

static size_t pair_bytes(int64_t pairs)
{
    return 2 * (size_t)pairs * sizeof(int64_t);
}

static void destroy(shard_gradient_source *source)
{
    head_source *s = (head_source *)source;
    release_arrays(s, s->array, s->capacity);
    shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, s->pair, pair_bytes(s->head.pairs));
    for (int i = 0; i < KEPT; i++)
        shard_tensor_unref(s->kept[i]);
    shard_tensor_unref(s->stash);
    free(s);
}

static shard_status check(const shard_gradient_source *source)
{
    const head_source *s = (const head_source *)source;
    for (int i = 0; i < KEPT; i++)
        if (s->kept[i] && shard_tensor_version(s->kept[i]) != s->version[i])
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "%s: the gradient of the weight (also of a shard_nn_parallel_classifier) is "
                               "computed when it is needed, and a tensor of shape %s that it depends on was written to after "
                               "shard_backward: call shard_step or shard_grad before",
                               s->head.binary ? "shard_linear_binary_cross_entropy" : "shard_linear_cross_entropy",
                               shard_shape_text(&s->kept[i]->shape));
    return SHARD_OK;
}

static shard_status compute(shard_gradient_source *source, void *const *memory, shard_take_rows *take, void *context)
{
    head_source *s = (head_source *)source;
    shard_head head = s->head;
    void *kept[KEPT];
    if (!shard_load(KEPT, s->kept, kept))
        return shard_last_status();
    head.weight = kept[WEIGHT];
    head.bias = kept[SHARD_HEAD_BIAS];
    head.class_weight = kept[SHARD_HEAD_CLASS_WEIGHT];
    head.positive = kept[SHARD_HEAD_POSITIVE];
    head.pair = s->pair;
    head.list = kept[LIST];
    head.list_on_host = kept[LIST_ON_HOST];
    head.stash = s->stash ? shard_tensor_memory(s->stash) : NULL;
    head.stash_bytes = s->stash ? shard_tensor_bytes(s->stash) : 0;
    head.x = s->array[X];
    head.target = s->array[TARGET];
    head.margin_shift = s->array[MARGIN_SHIFT];
    head.margin_slope = s->array[MARGIN_SLOPE];
    const shard_head_rows rows = {.lse = s->array[LSE], .slope = s->array[SLOPE], .scale = s->array[SCALE]};
    const shard_head_gradient to = {
        .weight = memory[SHARD_SOURCE_MATRIX], .take = take, .context = context, .bias = memory[SHARD_SOURCE_VECTOR]};
    return shard_head_weight_gradient(s->device, &head, &rows, &to);
}

static const shard_gradient_source_type head_source_type = {.check = check, .compute = compute, .destroy = destroy};

shard_gradient_source *shard_head_source_create(const shard_head *head, shard_tensor *const *given)
{
    head_source *s = shard_calloc(1, sizeof *s);
    if (!s)
        return NULL;
    *s = (head_source){
        .source = {.type = &head_source_type, .references = 1}, .head = *head, .device = shard_device_of(given[WEIGHT])};
    s->head.loss.rows = s->head.pairs = 0;
    s->head.margin_logit = NULL; /* of the features' gradient */
    for (int i = 0; i < KEPT; i++) {
        s->kept[i] = given[i] ? shard_keep_for_backward(given[i]) : NULL;
        if (given[i] && !s->kept[i])
            return shard_gradient_source_unref(&s->source), NULL;
        s->version[i] = given[i] ? shard_tensor_version(s->kept[i]) : 0;
    }
    return &s->source;
}

static bool same_memory(const shard_tensor *a, const shard_tensor *b)
{
    return a == b || (a && b && a->storage == b->storage && a->offset == b->offset);
}

/* Whether both have the same list; a list is made for each call. */
static bool same_list(const head_source *s, shard_tensor *const *given)
{
    shard_tensor *a = s->kept[LIST_ON_HOST], *b = given[LIST_ON_HOST];
    if (!a || !b)
        return a == b;
    return shard_numel(a) == shard_numel(b) &&
           memcmp(shard_tensor_memory(a), shard_tensor_memory(b), (size_t)shard_numel(a) * sizeof(int64_t)) == 0;
}

bool shard_head_source_takes(const shard_gradient_source *source, const shard_head *head, shard_tensor *const *given)
{
    const head_source *s = (const head_source *)source;
    if (source->type != &head_source_type || !same_list(s, given))
        return false;
    for (int i = 0; i < KEPT && i < LIST; i++)
        if (!same_memory(s->kept[i], given[i]) || (given[i] && s->version[i] != shard_tensor_version(given[i])))
            return false;
    const shard_cross_entropy_shape *a = &s->head.loss, *b = &head->loss;
    const shard_logit_map *m = &a->map, *n = &b->map;
    bool same_margins =
        s->head.binary == head->binary && s->head.normalized == head->normalized && !s->head.margin_shift == !head->margin_shift;
    bool same_map = m->maps == n->maps && (!m->maps || (m->scale == n->scale && m->soft_cap == n->soft_cap));
    return same_margins && same_map && s->head.dtype == head->dtype && a->smoothing == b->smoothing &&
           a->ignore_index == b->ignore_index && a->classes == b->classes && a->cols == b->cols && a->col0 == b->col0;
}

/* Makes room for `more` rows. */
static shard_status reserve(head_source *s, int64_t more)
{
    int64_t rows = s->head.loss.rows, capacity = rows + more;
    void *array[ARRAYS] = {NULL};
    shard_status status = SHARD_OK;
    if (capacity <= s->capacity)
        return SHARD_OK;
    capacity = rows ? 2 * capacity : capacity;
    for (int i = 0; i < ARRAYS && status == SHARD_OK; i++) {
        size_t bytes = row_bytes(&s->head, i), used = (size_t)rows * bytes;
        if (bytes == 0)
            continue;
        array[i] = shard_device_allocate(s->device, SHARD_MEMORY_GRADIENTS, (size_t)capacity * bytes);
        status = array[i] ? SHARD_OK : shard_last_status();
        if (status == SHARD_OK && rows)
            status = s->device->ops->copy_rows(s->device, array[i], used, s->array[i], used, used, 1);
    }
    if (status != SHARD_OK)
        return release_arrays(s, array, capacity), status;
    release_arrays(s, s->array, s->capacity);
    for (int i = 0; i < ARRAYS; i++)
        s->array[i] = array[i];
    s->capacity = capacity;
    return SHARD_OK;
}

/* Adds `by` to the rows of n pairs, which float64 has exactly. */
static shard_status shift_rows(head_source *s, int64_t n, int64_t by, int64_t *row)
{
    const shard_device_ops *ops = s->device->ops;
    size_t bytes = 2 * (size_t)n * sizeof(double);
    double *wide = shard_device_allocate(s->device, SHARD_MEMORY_WORKSPACE, bytes);
    shard_status status = wide ? ops->cast(s->device, n, row, SHARD_INT64, wide, SHARD_FLOAT64) : shard_last_status();
    if (status == SHARD_OK)
        status = ops->fill(s->device, n, (double)by, wide + n, SHARD_FLOAT64);
    if (status == SHARD_OK)
        status = ops->axpby(s->device, n, 1, wide + n, 1, wide, SHARD_FLOAT64);
    if (status == SHARD_OK)
        status = ops->cast(s->device, n, wide, SHARD_FLOAT64, row, SHARD_INT64);
    shard_device_release(s->device, SHARD_MEMORY_WORKSPACE, wide, bytes);
    return status;
}

/* Adds the pairs of rows that come after those that the source has. */
static shard_status add_pairs(head_source *s, const shard_head *head)
{
    const shard_device_ops *ops = s->device->ops;
    int64_t old = s->head.pairs, more = head->pairs, all = old + more;
    size_t pitch = (size_t)all * sizeof(int64_t), width = (size_t)old * sizeof(int64_t), added = (size_t)more * sizeof(int64_t);
    if (more == 0)
        return SHARD_OK;
    int64_t *pair = shard_device_allocate(s->device, SHARD_MEMORY_GRADIENTS, pair_bytes(all));
    shard_status status = pair ? SHARD_OK : shard_last_status();
    if (status == SHARD_OK && old)
        status = ops->copy_rows(s->device, pair, pitch, s->pair, width, width, 2);
    if (status == SHARD_OK)
        status = ops->copy_rows(s->device, pair + old, pitch, head->pair, added, added, 2);
    if (status == SHARD_OK && s->head.loss.rows)
        status = shift_rows(s, more, s->head.loss.rows, pair + old);
    if (status != SHARD_OK)
        return shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, pair, pair_bytes(all)), status;
    shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, s->pair, pair_bytes(old));
    s->pair = pair;
    s->head.pairs = all;
    return SHARD_OK;
}

shard_status shard_head_source_add(shard_gradient_source *source, const shard_head *head, const shard_head_rows *rows,
                                   shard_tensor *stash)
{
    head_source *s = (head_source *)source;
    const void *from[ARRAYS] = {head->x,     head->target,       rows->lse,         rows->slope,
                                rows->scale, head->margin_shift, head->margin_slope};
    if (head->loss.rows == 0)
        return SHARD_OK;
    shard_tensor_unref(s->stash);
    s->stash = stash && s->head.loss.rows == 0 ? shard_tensor_ref(stash) : NULL;
    SHARD_TRY(reserve(s, head->loss.rows));
    for (int i = 0; i < ARRAYS; i++) {
        size_t bytes = row_bytes(&s->head, i), used = (size_t)s->head.loss.rows * bytes, added = (size_t)head->loss.rows * bytes;
        if (bytes)
            SHARD_TRY(s->device->ops->copy_rows(s->device, (char *)s->array[i] + used, added, from[i], added, added, 1));
    }
    SHARD_TRY(add_pairs(s, head));
    s->head.loss.rows += head->loss.rows;
    return SHARD_OK;
}
