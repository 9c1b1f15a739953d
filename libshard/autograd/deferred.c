#include "autograd/deferred.h"

#include "base/math.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "device/graph.h"

#include <stdlib.h>

typedef struct deferred {
    shard_materializer materializer; /* first: a storage's materializer points to this struct */
    shard_storage *storage;          /* that has it */
    shard_gradient_source *source;   /* a reference; NULL once the values are in memory */
    int which;
} deferred;

void shard_gradient_source_unref(shard_gradient_source *source)
{
    if (!source || --source->references)
        return;
    for (int i = 0; i < SHARD_SOURCE_GRADIENTS; i++)
        shard_device_release(source->clip[i].device, SHARD_MEMORY_GRADIENTS, source->clip[i].scale, sizeof(double));
    source->type->destroy(source);
}

static bool is_clipped(const shard_gradient_source *source)
{
    return source->clip[SHARD_SOURCE_MATRIX].device || source->clip[SHARD_SOURCE_VECTOR].device;
}

static void forget_source(deferred *d)
{
    if (!d->source)
        return;
    d->source->gradient[d->which] = NULL;
    shard_gradient_source_unref(d->source);
    d->source = NULL;
}

/* ---- computing ---- */

/* A receiver of a matrix's rows that limits them before it passes them on. */
typedef struct clipped_take {
    const shard_source_clip *clip;
    const shard_row_receiver *to;
} clipped_take;

static shard_status clip_rows(const shard_source_clip *clip, shard_device *device, int64_t count, void *gradient)
{
    return device->ops->clip_value(device, count * clip->columns, clip->bound, clip->scale, gradient,
                                   shard_head_wide(clip->dtype));
}

static shard_status take_clipped(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const clipped_take *t = context;
    SHARD_TRY(clip_rows(t->clip, device, count, gradient));
    return t->to->take(t->to->context, device, first, count, gradient);
}

static shard_status take_clipped_list(void *context, shard_device *device, const shard_row_list *rows, void *gradient)
{
    const clipped_take *t = context;
    SHARD_TRY(clip_rows(t->clip, device, rows->count, gradient));
    return t->to->take_list(t->to->context, device, rows, gradient);
}

/* Computes the gradients, limited where they are clipped. */
static shard_status compute_clipped(shard_gradient_source *source, shard_range rows, void *const *memory,
                                    const shard_row_receiver *receiver)
{
    clipped_take context = {&source->clip[SHARD_SOURCE_MATRIX], receiver};
    shard_row_receiver clipped = receiver ? *receiver : (shard_row_receiver){0};
    if (context.clip->device) {
        clipped.take = clipped.take ? take_clipped : NULL;
        clipped.take_list = clipped.take_list ? take_clipped_list : NULL;
        clipped.take_product = NULL;
        clipped.context = &context;
    }
    SHARD_TRY(source->type->compute(source, rows, memory, receiver ? &clipped : NULL));
    for (int i = 0; i < SHARD_SOURCE_GRADIENTS; i++) {
        const shard_source_clip *clip = &source->clip[i];
        if (!memory[i] || !clip->device)
            continue;
        int64_t elements = (int64_t)(source->gradient[i]->bytes / shard_dtype_size(clip->dtype));
        SHARD_TRY(clip->device->ops->clip_value(clip->device, elements, clip->bound, clip->scale, memory[i], clip->dtype));
    }
    return SHARD_OK;
}

/* Allocates the memory of the source's deferred gradients, and computes them. With a receiver the matrix's has no memory. */
static shard_status compute(shard_gradient_source *source, shard_range rows, const shard_row_receiver *receiver)
{
    void *memory[SHARD_SOURCE_GRADIENTS] = {NULL};
    shard_status status = source->type->check(source);
    for (int i = receiver ? SHARD_SOURCE_VECTOR : 0; i < SHARD_SOURCE_GRADIENTS && status == SHARD_OK; i++) {
        shard_storage *storage = source->gradient[i];
        memory[i] = storage ? shard_storage_allocate(storage) : NULL;
        status = storage && !memory[i] ? shard_last_status() : SHARD_OK;
        if (memory[i] && receiver)
            status = storage->device->ops->zero(storage->device, memory[i], storage->bytes);
    }
    return status == SHARD_OK ? compute_clipped(source, rows, memory, receiver) : status;
}

/* The gradients that are in memory stay there, and are not deferred any more. */
static void keep_computed(shard_gradient_source *source)
{
    for (int i = 0; i < SHARD_SOURCE_GRADIENTS; i++)
        if (source->gradient[i] && source->gradient[i]->memory)
            forget_source((deferred *)source->gradient[i]->materializer);
}

void shard_source_evict(shard_gradient_source *source)
{
    for (int i = 0; i < SHARD_SOURCE_GRADIENTS; i++)
        if (source->gradient[i])
            shard_storage_free_memory(source->gradient[i]);
}

shard_status shard_source_pass(shard_gradient_source *source, shard_range rows, const shard_row_receiver *receiver)
{
    shard_source_evict(source);
    shard_status status = compute(source, rows, receiver);
    if (status != SHARD_OK)
        shard_source_evict(source);
    return status;
}

shard_status shard_source_finish(shard_gradient_source *source, shard_range rows, const shard_row_receiver *receiver)
{
    source->references++;
    shard_status status = shard_source_pass(source, rows, receiver);
    keep_computed(source);
    shard_gradient_source_unref(source);
    return status;
}

static shard_status start(shard_materializer *materializer)
{
    deferred *d = (deferred *)materializer;
    if (!d->source)
        return shard_error(SHARD_ERROR_INTERNAL, "a deferred gradient was evicted after it was computed");
    return shard_source_finish(d->source, (shard_range){0}, NULL);
}

static void destroy(shard_materializer *materializer)
{
    deferred *d = (deferred *)materializer;
    shard_storage_free_memory(d->storage);
    forget_source(d);
    free(d);
}

/* ---- in backward ---- */

bool shard_may_defer(const shard_node *node, int input)
{
    const shard_leaf *leaf = node->edge[input].leaf ? node->edge[input].leaf->leaf : &shard_no_leaf;
    bool taken = leaf->grad_ready || leaf->grad_watches;
    return leaf->defers_grad && (leaf->gathers_grad || !taken) && !shard_is_capturing();
}

/* Ends what makes the storage's values, and frees its memory. */
static void detach(shard_storage *storage)
{
    if (storage->materializer)
        storage->materializer->destroy(storage->materializer);
    else
        shard_storage_free_memory(storage);
    storage->materializer = NULL;
}

void shard_remove_deferred(shard_tensor *tensor)
{
    shard_leaf *leaf = tensor->leaf;
    const shard_materializer *materializer = leaf->grad ? leaf->grad->storage->materializer : NULL;
    if (!materializer || materializer->start != start)
        return;
    if (materializer->transient) { /* in a storage that others keep */
        detach(leaf->grad->storage);
        return;
    }
    shard_tensor_unref(leaf->grad);
    leaf->grad = NULL;
}

shard_tensor *shard_make_deferred(shard_node *node, int input, shard_gradient_source *source, int which)
{
    const shard_leaf *leaf = node->edge[input].leaf->leaf;
    bool placed = leaf->gathers_grad;
    shard_tensor *gradient = placed ? shard_gradient_taken(node, input) : shard_make_gradient(node, input);
    deferred *d = gradient ? shard_calloc(1, sizeof *d) : NULL;
    if (!d)
        return NULL;
    if (placed)
        detach(gradient->storage);
    *d = (deferred){.materializer = {.start = start, .destroy = destroy, .local = true, .transient = placed},
                    .storage = gradient->storage,
                    .source = source,
                    .which = which};
    source->references++;
    source->gradient[which] = gradient->storage;
    gradient->storage->materializer = &d->materializer;
    return gradient;
}

static const deferred *deferred_of(const shard_tensor *gradient)
{
    const shard_materializer *materializer = gradient ? gradient->storage->materializer : NULL;
    const deferred *d = materializer && materializer->start == start ? (const deferred *)materializer : NULL;
    return d && d->source ? d : NULL;
}

shard_gradient_source *shard_source_to_extend(const shard_node *node, int input)
{
    const shard_edge *edge = &node->edge[input];
    const shard_leaf *leaf = edge->leaf ? edge->leaf->leaf : &shard_no_leaf;
    const deferred *d = leaf->has_grad ? deferred_of(leaf->grad) : NULL;
    bool sums_parts = edge->placement.kind != SHARD_SPLIT && node->gradient->placement.kind == SHARD_SPLIT;
    return d && !is_clipped(d->source) && !sums_parts && shard_pending_sums_equal(&leaf->grad->pending, &node->gradient->pending)
               ? d->source
               : NULL;
}

shard_gradient_source *shard_source_of(const shard_tensor *gradient)
{
    const deferred *d = deferred_of(gradient);
    return d ? d->source : NULL;
}

shard_gradient_source *shard_source_of_matrix(const shard_tensor *gradient)
{
    const deferred *d = deferred_of(gradient);
    return d && d->which == SHARD_SOURCE_MATRIX ? d->source : NULL;
}

/* ---- clipping by value ---- */

shard_status shard_source_clip_value(shard_tensor *gradient, int64_t columns, double bound, const double *scale)
{
    const deferred *d = deferred_of(gradient);
    shard_device *device = shard_device_of(gradient);
    shard_source_clip clip = {.device = device, .bound = bound, .columns = columns, .dtype = gradient->dtype};
    if (!d || d->source->clip[d->which].device) {
        void *memory = shard_tensor_memory_to_write(gradient);
        return memory ? device->ops->clip_value(device, shard_numel(gradient), bound, scale, memory, gradient->dtype)
                      : shard_last_status();
    }
    SHARD_TRY(d->source->type->check(d->source));
    if (scale) {
        clip.scale = shard_device_allocate(device, SHARD_MEMORY_GRADIENTS, sizeof *clip.scale);
        shard_status status =
            clip.scale ? device->ops->copy_rows(device, clip.scale, sizeof *scale, scale, sizeof *scale, sizeof *scale, 1)
                       : shard_last_status();
        if (status != SHARD_OK)
            return shard_device_release(device, SHARD_MEMORY_GRADIENTS, clip.scale, sizeof *clip.scale), status;
    }
    d->source->clip[d->which] = clip;
    return SHARD_OK;
}

/* ---- for the caller's functions ---- */

enum { RUN_BYTES = 4 << 20 };

/* Passes copies of runs of a gradient whose values are in memory. */
static shard_status pass_values(shard_tensor *gradient, shard_take_rows *take, void *context)
{
    shard_device *device = shard_device_of(gradient);
    shard_dtype dtype = shard_head_wide(gradient->dtype);
    int64_t rows = gradient->shape.dim[0], columns = gradient->shape.dim[1];
    size_t width = (size_t)columns * shard_dtype_size(dtype), pitch = (size_t)columns * shard_dtype_size(gradient->dtype);
    if (shard_numel(gradient) == 0)
        return SHARD_OK;
    int64_t most = shard_min(rows, (int64_t)(RUN_BYTES / width) + 1);
    const char *from = shard_tensor_values(gradient);
    void *run = from ? shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, (size_t)most * width) : NULL;
    shard_status status = run ? SHARD_OK : shard_last_status();
    for (int64_t first = 0; first < rows && status == SHARD_OK; first += most) {
        int64_t count = shard_min(most, rows - first);
        status = device->ops->cast(device, count * columns, from + (size_t)first * pitch, gradient->dtype, run, dtype);
        if (status == SHARD_OK)
            status = take(context, device, first, count, run);
    }
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, run, (size_t)most * width);
    return status;
}

shard_status shard_take_gradient_rows(shard_tensor *gradient, shard_take_rows *take, void *context)
{
    static const char function[] = "shard_take_gradient_rows";
    if (!gradient || !take)
        return shard_null_argument(function, gradient ? "take" : "gradient");
    if (gradient->shape.ndim != 2 || !shard_dtype_is_float(gradient->dtype))
        return shard_error(SHARD_ERROR_SHAPE, "%s: a %s tensor of shape %s; a floating matrix is needed", function,
                           shard_dtype_name(gradient->dtype), shard_shape_text(&gradient->shape));
    SHARD_TRY(shard_graph_refuse(function));
    shard_gradient_source *source = shard_source_of_matrix(gradient);
    const shard_row_receiver receiver = {.take = take, .context = context};
    shard_status status = source ? shard_source_finish(source, (shard_range){0, gradient->shape.dim[0]}, &receiver)
                                 : pass_values(gradient, take, context);
    return status == SHARD_OK ? SHARD_OK : shard_error(status, "%s: the function that takes the rows failed", function);
}

/* ---- replicas ---- */

shard_status shard_source_gather(shard_gradient_source *source, shard_group *group, size_t bytes, double scale, bool *gathered)
{
    int ranks = shard_group_size(group);
    shard_source_facts mine = {0}, *all = shard_calloc((size_t)ranks, sizeof *all);
    if (source && !is_clipped(source) && shard_last_status() == SHARD_OK && source->type->check(source) == SHARD_OK)
        source->type->describe(source, &mine);
    shard_status status = shard_group_exchange(group, &mine, sizeof mine, all);
    size_t sum = (size_t)mine.gathered_bytes;
    bool identical = status == SHARD_OK;
    for (int rank = 0; rank < ranks && identical; rank++) {
        sum += (size_t)all[rank].bytes;
        identical = all[rank].hash != 0 && all[rank].hash == mine.hash;
    }
    *gathered = identical && (mine.sampled || sum <= bytes);
    if (*gathered)
        status = source->type->gather(source, group, all, scale);
    free(all);
    return status;
}
