/* Deferred gradients (autograd/deferred.h) in steps and norms: taken in runs of rows, so that the gradient of the whole
 * matrix is never in memory. */
#include "optim/optimizer.h"

#include "device/graph.h"

#include <math.h>

static shard_gradient_source *source_of(const shard_slot *slot)
{
    return shard_slot_has_gradient(slot) ? shard_source_of_matrix(slot->range.tensor->leaf->grad) : NULL;
}

bool shard_slot_is_deferred(const shard_optimizer *optimizer, const shard_slot *slot)
{
    return !optimizer->ops->trust && !shard_is_capturing() && source_of(slot) != NULL;
}

shard_status shard_optimizer_check_deferred(const shard_optimizer *optimizer)
{
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_gradient_source *source = source_of(&optimizer->slots[i]);
        if (source)
            SHARD_TRY(source->type->check(source));
    }
    return SHARD_OK;
}

/* ---- a step ---- */

typedef struct rows_step {
    const shard_optimizer *optimizer;
    const shard_update *update; /* of the whole matrix */
    int64_t columns;
    shard_dtype dtype;
} rows_step;

static shard_status step_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const rows_step *s = context;
    size_t offset = (size_t)(first * s->columns) * shard_dtype_size(s->dtype);
    shard_update update = *s->update;
    update.size = count * s->columns;
    update.gradient = gradient;
    update.value = (char *)update.value + offset;
    for (int i = 0; i < s->optimizer->ops->states; i++)
        update.state[i] = (char *)update.state[i] + offset;
    return s->optimizer->ops->step(s->optimizer, device, 1, &update, s->dtype);
}

shard_status shard_optimizer_step_deferred(const shard_optimizer *optimizer, const shard_slot *slot, int64_t step)
{
    shard_tensor *matrix = slot->range.tensor;
    shard_update update = {.size = shard_numel(matrix), .step = step};
    if (optimizer->scaled)
        update.grad_scale = shard_tensor_memory(optimizer->grad_scale);
    shard_optimizer_choose_settings(optimizer, slot, &update);
    update.value = shard_tensor_memory(matrix); /* the writes count afterwards: the gradient is computed from the values */
    for (int i = 0; i < optimizer->ops->states && update.value; i++)
        update.state[i] = shard_tensor_memory_to_write(slot->range.state[i]);
    SHARD_TRY(shard_last_status());
    rows_step context = {optimizer, &update, matrix->shape.dim[1], matrix->dtype};
    SHARD_TRY(shard_source_pass(source_of(slot), step_rows, &context));
    shard_tensor_count_write(matrix);
    shard_zero_grad(matrix);
    return SHARD_OK;
}

/* ---- norms ---- */

typedef struct rows_sum {
    int64_t columns;
    double power, *sums; /* [rows] */
    shard_dtype dtype;
} rows_sum;

static shard_status sum_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    const rows_sum *s = context;
    return device->ops->power_sum(device, count * s->columns, s->power, gradient, s->sums + first, s->dtype);
}

shard_status shard_slot_deferred_power_sum(const shard_slot *slot, double power, double *sum)
{
    const shard_tensor *matrix = slot->range.tensor;
    shard_device *device = shard_device_of(matrix);
    int64_t rows = matrix->shape.dim[0];
    size_t bytes = (size_t)rows * sizeof(double);
    rows_sum context = {matrix->shape.dim[1], power, shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes), matrix->dtype};
    shard_status status = context.sums ? device->ops->zero(device, context.sums, bytes) : shard_last_status();
    if (status == SHARD_OK)
        status = shard_source_pass(source_of(slot), sum_rows, &context);
    if (status == SHARD_OK)
        status = device->ops->power_sum(device, rows, power == INFINITY ? INFINITY : 1.0, context.sums, sum, SHARD_FLOAT64);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, context.sums, bytes);
    return status;
}
