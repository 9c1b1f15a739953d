/* Deferred gradients (autograd/deferred.h) in steps and norms: taken in runs of rows, so that the gradient of the whole
 * matrix is never in memory. */
#include "optim/optimizer.h"

#include "device/graph.h"

#include <math.h>

static shard_gradient_source *source_of(const shard_slot *slot)
{
    return shard_slot_has_gradient(slot) ? shard_source_of_matrix(slot->range.tensor->leaf->grad) : NULL;
}

/* The rows of this rank's matrix, or the elements of its bias, that the local range is. */
static shard_range rows_of(const shard_slot *slot)
{
    const shard_tensor *range = slot->range.tensor;
    int64_t columns = shard_columns_of(slot->parameter);
    return (shard_range){.start = shard_range_start(range) / columns, .size = shard_numel(range) / columns};
}

bool shard_slot_is_deferred(const shard_optimizer *optimizer, const shard_slot *slot)
{
    return !optimizer->ops->trust && !shard_is_capturing() && shard_numel(slot->range.tensor) && source_of(slot) != NULL;
}

shard_status shard_optimizer_check_deferred(const shard_optimizer *optimizer)
{
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_gradient_source *source = source_of(&optimizer->slots[i]);
        if (source && shard_numel(optimizer->slots[i].range.tensor))
            SHARD_TRY(source->type->check(source));
    }
    return SHARD_OK;
}

/* ---- a step ---- */

typedef struct rows_step {
    const shard_optimizer *optimizer;
    const shard_slot *slot;
    const shard_update *update; /* of the whole matrix */
    shard_update_types types;
} rows_step;

static void *moved(void *memory, int64_t elements, shard_dtype dtype)
{
    return memory ? (char *)memory + (size_t)elements * shard_dtype_size(dtype) : NULL;
}

/* Moves an update of the whole matrix to `count` rows from `first` on, apart from its gradient. */
static void take_rows(const rows_step *s, int64_t first, int64_t count, shard_update *update)
{
    const shard_tensor *matrix = s->slot->parameter;
    int64_t columns = matrix->shape.dim[1], elements = first * columns;
    update->size = count * columns;
    update->value = moved(update->value, elements, matrix->dtype);
    for (int i = 0; i < s->optimizer->states; i++)
        update->state[i] = moved(update->state[i], elements / shard_state_columns(s->optimizer, s->slot, i),
                                 shard_state_dtype(s->optimizer, matrix->dtype, i));
    update->compensation = moved(update->compensation, elements, matrix->dtype);
    *(update->place.width ? &update->place.offset : &update->place.first) += elements;
}

static shard_status step_part(const rows_step *s, shard_device *device, int64_t first, int64_t count, void *gradient,
                              const shard_update_product *product)
{
    shard_update update = *s->update;
    update.gradient = gradient;
    update.product = product;
    take_rows(s, first - rows_of(s->slot).start, count, &update);
    return s->optimizer->ops->step(s->optimizer, device, 1, &update, s->types);
}

static shard_status step_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    return step_part(context, device, first, count, gradient, NULL);
}

static shard_status step_product(void *context, shard_device *device, int64_t first, int64_t count,
                                 const shard_update_product *product)
{
    return step_part(context, device, first, count, NULL, product);
}

/* Not of float64: such steps take no lists. */
static shard_status step_listed_rows(void *context, shard_device *device, const shard_row_list *rows, void *gradient)
{
    const rows_step *s = context;
    shard_update update = *s->update;
    update.gradient = gradient;
    update.columns = shard_columns_of(s->slot->parameter);
    update.size = rows->count * update.columns;
    update.rows = rows->row;
    update.row0 = rows_of(s->slot).start;
    return s->optimizer->ops->step(s->optimizer, device, 1, &update, s->types);
}

static void add_updated(shard_row_receiver *receiver, const void *memory, int64_t columns, shard_dtype dtype)
{
    if (memory)
        receiver->updated[receiver->updated_arrays++] = (shard_row_array){memory, columns * (int64_t)shard_dtype_size(dtype)};
}

/* States of a number for each row are left out: they are few bytes. */
static void list_updated(shard_row_receiver *receiver, const rows_step *s)
{
    int64_t columns = shard_columns_of(s->slot->parameter);
    add_updated(receiver, s->update->value, columns, s->types.value);
    add_updated(receiver, s->update->compensation, columns, s->types.value);
    for (int i = s->optimizer->ops->row_states; i < s->optimizer->states; i++)
        add_updated(receiver, s->update->state[i], columns, s->types.state[i]);
}

shard_status shard_optimizer_step_deferred(const shard_optimizer *optimizer, const shard_slot *slot)
{
    shard_tensor *matrix = slot->range.tensor; /* or whole rows of it */
    int64_t *step = shard_tensor_memory_to_write(slot->step);
    shard_update update;
    SHARD_TRY(shard_optimizer_make_update(optimizer, slot, ++*step, &update));
    update.value = shard_tensor_memory(matrix); /* the writes count afterwards: the gradient is computed from the values */
    if (!update.value)
        return shard_last_status();
    rows_step context = {optimizer, slot, &update, shard_optimizer_types(optimizer, matrix->dtype)};
    context.types.gradient = shard_head_wide(matrix->dtype);
    shard_row_receiver receiver = {.take = step_rows, .context = &context};
    if (shard_device_of(matrix)->lists_rows && matrix->dtype != SHARD_FLOAT64)
        receiver.take_list = step_listed_rows;
    if (optimizer->ops->steps_product)
        receiver.take_product = step_product;
    list_updated(&receiver, &context);
    SHARD_TRY(shard_source_finish(source_of(slot), rows_of(slot), &receiver));
    shard_tensor_count_write(matrix);
    return SHARD_OK;
}

/* ---- norms ---- */

typedef struct rows_sum {
    int64_t start, columns;
    double power, *sums; /* [rows] from `start` on */
    shard_dtype dtype;
} rows_sum;

static shard_status sum_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const rows_sum *s = context;
    return device->ops->power_sum(device, count * s->columns, s->power, gradient, s->sums + first - s->start, s->dtype);
}

/* All at once, where there is a launch for each call. */
static shard_status sum_listed_rows(void *context, shard_device *device, const shard_row_list *rows, void *gradient)
{
    return sum_rows(context, device, rows->row_on_host[0], rows->count, gradient);
}

shard_status shard_slot_deferred_power_sum(const shard_slot *slot, double power, double *sum)
{
    const shard_tensor *matrix = slot->range.tensor;
    shard_device *device = shard_device_of(matrix);
    shard_range rows = rows_of(slot);
    size_t bytes = (size_t)rows.size * sizeof(double);
    rows_sum context = {rows.start, shard_columns_of(slot->parameter), power,
                        shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes), shard_head_wide(matrix->dtype)};
    const shard_row_receiver receiver = {
        .take = sum_rows, .take_list = device->lists_rows ? sum_listed_rows : NULL, .context = &context};
    shard_status status = context.sums ? device->ops->zero(device, context.sums, bytes) : shard_last_status();
    if (status == SHARD_OK)
        status = shard_source_pass(source_of(slot), rows, &receiver);
    if (status == SHARD_OK)
        status = shard_join_sums(device, rows.size, power, context.sums, sum);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, context.sums, bytes);
    return status;
}

shard_status shard_slot_compute_vector(const shard_optimizer *optimizer, const shard_slot *slot)
{
    const shard_tensor *range = slot->range.tensor;
    shard_gradient_source *source = shard_slot_has_gradient(slot) ? shard_source_of(range->leaf->grad) : NULL;
    bool in_rows = !optimizer->ops->trust && !shard_is_capturing() && shard_numel(range) && !source_of(slot);
    const shard_row_receiver receiver = {.take = NULL}; /* of the matrix's rows nothing is wanted */
    return source && in_rows && !range->leaf->grad->storage->memory ? shard_source_pass(source, rows_of(slot), &receiver)
                                                                    : SHARD_OK;
}

void shard_slot_evict_gradient(const shard_slot *slot)
{
    shard_gradient_source *source = shard_slot_has_gradient(slot) ? shard_source_of(slot->range.tensor->leaf->grad) : NULL;
    if (source)
        shard_source_evict(source);
}
