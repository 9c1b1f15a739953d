#include "op/head_gradient.h"

#include "op/op.h"

#include <stdlib.h>

enum { WEIGHT, BIAS, CLASS_WEIGHT, KEPT };

/* The arrays that have an element or a row for each row of x. */
enum { X, TARGET, LSE, SLOPE, SCALE, ARRAYS };

typedef struct head_source {
    shard_gradient_source source; /* first */
    shard_head head;              /* without memory; loss.rows: the rows that were added */
    shard_tensor *kept[KEPT];
    uint64_t version[KEPT];
    shard_device *device;
    shard_tensor *stash; /* of the forward of all rows; NULL: none */
    int64_t capacity;    /* rows */
    void *array[ARRAYS];
} head_source;

static size_t row_bytes(const shard_head *head, int array)
{
    return array == X ? (size_t)head->in * shard_dtype_size(head->dtype) : array == TARGET ? sizeof(int64_t) : sizeof(double);
}

static void release_arrays(const head_source *s, void *const *array, int64_t capacity)
{
    for (int i = 0; i < ARRAYS; i++)
        shard_device_release(s->device, SHARD_MEMORY_GRADIENTS, array[i], (size_t)capacity * row_bytes(&s->head, i));
}

static void destroy(shard_gradient_source *source)
{
    head_source *s = (head_source *)source;
    release_arrays(s, s->array, s->capacity);
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
                               "the gradient of a classifier's weight is computed when it is used, and a tensor of shape %s that "
                               "it depends on was written to after the backward: step, or read the gradient, before",
                               shard_shape_text(&s->kept[i]->shape));
    return SHARD_OK;
}

static shard_status compute(shard_gradient_source *source, void *const *memory, shard_take_rows *take, void *context)
{
    head_source *s = (head_source *)source;
    shard_head head = s->head;
    const void **kept[KEPT] = {&head.weight, &head.bias, &head.class_weight};
    for (int i = 0; i < KEPT; i++)
        if (s->kept[i] && !(*kept[i] = shard_tensor_memory(s->kept[i])))
            return shard_last_status();
    head.stash = s->stash ? shard_tensor_memory(s->stash) : NULL;
    head.stash_bytes = s->stash ? shard_tensor_bytes(s->stash) : 0;
    head.x = s->array[X];
    head.target = s->array[TARGET];
    const shard_head_rows rows = {.lse = s->array[LSE], .slope = s->array[SLOPE], .scale = s->array[SCALE]};
    const shard_head_gradient to = {
        .weight = memory[SHARD_SOURCE_MATRIX], .take = take, .context = context, .bias = memory[SHARD_SOURCE_VECTOR]};
    return shard_head_weight_gradient(s->device, &head, &rows, &to);
}

static const shard_gradient_source_type head_source_type = {.check = check, .compute = compute, .destroy = destroy};

shard_gradient_source *shard_head_source_create(const shard_head *head, shard_tensor *weight, shard_tensor *bias,
                                                shard_tensor *class_weight)
{
    head_source *s = shard_calloc(1, sizeof *s);
    shard_tensor *const given[KEPT] = {weight, bias, class_weight};
    if (!s)
        return NULL;
    *s = (head_source){.source = {.type = &head_source_type, .references = 1}, .head = *head, .device = shard_device_of(weight)};
    s->head.loss.rows = 0;
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

bool shard_head_source_takes(const shard_gradient_source *source, const shard_head *head, const shard_tensor *weight,
                             const shard_tensor *bias, const shard_tensor *class_weight)
{
    const head_source *s = (const head_source *)source;
    const shard_tensor *const given[KEPT] = {weight, bias, class_weight};
    if (source->type != &head_source_type)
        return false;
    for (int i = 0; i < KEPT; i++)
        if (!same_memory(s->kept[i], given[i]) || (given[i] && s->version[i] != shard_tensor_version(given[i])))
            return false;
    const shard_cross_entropy_shape *a = &s->head.loss, *b = &head->loss;
    return s->head.dtype == head->dtype && a->smoothing == b->smoothing && a->ignore_index == b->ignore_index &&
           a->classes == b->classes && a->cols == b->cols && a->col0 == b->col0;
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

shard_status shard_head_source_add(shard_gradient_source *source, const shard_head *head, const shard_head_rows *rows,
                                   shard_tensor *stash)
{
    head_source *s = (head_source *)source;
    const void *from[ARRAYS] = {head->x, head->target, rows->lse, rows->slope, rows->scale};
    if (head->loss.rows == 0)
        return SHARD_OK;
    shard_tensor_unref(s->stash);
    s->stash = stash && s->head.loss.rows == 0 ? shard_tensor_ref(stash) : NULL;
    SHARD_TRY(reserve(s, head->loss.rows));
    for (int i = 0; i < ARRAYS; i++) {
        size_t bytes = row_bytes(&s->head, i), used = (size_t)s->head.loss.rows * bytes, added = (size_t)head->loss.rows * bytes;
        SHARD_TRY(s->device->ops->copy_rows(s->device, (char *)s->array[i] + used, added, from[i], added, added, 1));
    }
    s->head.loss.rows += head->loss.rows;
    return SHARD_OK;
}
