#include "dist/flat.h"

#include <shard/dist.h>

#include <stdlib.h>

/* A part that nobody said who else has is this rank's alone. */
static shard_group *group_of(const shard_tensor *parameter)
{
    if (parameter->replicas || parameter->placement.kind == SHARD_SPLIT)
        return parameter->replicas;
    return shard_world();
}

static bool has(const shard_flat *flat, const shard_tensor *parameter)
{
    for (; flat; flat = flat->next)
        for (int64_t i = 0; i < flat->count; i++)
            if (flat->parameters[i].tensor == parameter)
                return true;
    return false;
}

static shard_flat *find_or_add(shard_flat **list, const shard_tensor *parameter, int64_t most)
{
    shard_flat **at = list;
    for (; *at; at = &(*at)->next)
        if ((*at)->group == group_of(parameter) && (*at)->dtype == parameter->dtype)
            return *at;
    shard_flat *flat = shard_calloc(1, sizeof *flat);
    shard_flat_parameter *parameters = shard_calloc((size_t)most, sizeof *parameters);
    if (!flat || !parameters) {
        free(flat);
        free(parameters);
        return NULL;
    }
    *flat = (shard_flat){.group = group_of(parameter), .dtype = parameter->dtype, .parameters = parameters};
    *at = flat;
    return flat;
}

static void append(shard_flat *flat, shard_tensor *parameter)
{
    int64_t step = SHARD_FLAT_ALIGNMENT / (int64_t)shard_dtype_size(flat->dtype);
    int64_t size = shard_numel(parameter);
    flat->parameters[flat->count++] =
        (shard_flat_parameter){.tensor = shard_tensor_share(parameter), .start = flat->size, .size = size};
    flat->size += (size + step - 1) / step * step;
}

static shard_status zero_gaps(const shard_flat *flat)
{
    const shard_device_ops *ops = flat->gradients->device->ops;
    size_t element = shard_dtype_size(flat->dtype);
    for (int64_t i = 0; i < flat->count; i++) {
        const shard_flat_parameter *p = &flat->parameters[i];
        int64_t from = p->start + p->size, to = i + 1 < flat->count ? p[1].start : flat->size;
        if (from == to)
            continue;
        SHARD_TRY(ops->zero(flat->gradients->device, (char *)flat->gradients->memory + (size_t)from * element,
                            (size_t)(to - from) * element));
        SHARD_TRY(ops->zero(flat->values->device, (char *)flat->values->memory + (size_t)from * element,
                            (size_t)(to - from) * element));
    }
    return SHARD_OK;
}

/* Moves the parameters into the buffers; a gradient that is there already moves too. */
static shard_status build(shard_flat *flat)
{
    size_t element = shard_dtype_size(flat->dtype);
    shard_device *device = shard_device_of(flat->parameters[0].tensor);
    flat->values = shard_storage_make(device, (size_t)flat->size * element);
    flat->gradients = shard_storage_make(device, (size_t)flat->size * element);
    if (!flat->values || !flat->gradients)
        return shard_last_status();
    shard_storage_set_kind(flat->values, SHARD_MEMORY_PARAMETERS);
    shard_storage_set_kind(flat->gradients, SHARD_MEMORY_GRADIENTS);
    for (int64_t i = 0; i < flat->count; i++) {
        shard_tensor *parameter = flat->parameters[i].tensor;
        size_t offset = (size_t)flat->parameters[i].start * element;
        if (shard_device_of(parameter) != device)
            return shard_error(SHARD_ERROR_SHAPE, "parameters of one replica group are on two devices");
        SHARD_TRY(shard_tensor_move(parameter, flat->values, offset));
        if (!parameter->grad) {
            parameter->grad = shard_keep(shard_tensor_make(parameter->shape, parameter->dtype, device));
            if (!parameter->grad)
                return shard_last_status();
            parameter->grad->placement = parameter->placement;
        }
        SHARD_TRY(shard_tensor_move(parameter->grad, flat->gradients, offset));
    }
    /* The gaps are reduced along: zeros, so that they stay finite. */
    return zero_gaps(flat);
}

shard_flat *shard_flat_create(const shard_tensors *parameters, shard_status *status)
{
    shard_flat *list = NULL;
    *status = SHARD_OK;
    int64_t count = shard_tensors_count(parameters);
    for (int64_t i = count - 1; i >= 0; i--) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        if (!parameter->requires_grad || shard_group_size(group_of(parameter)) == 1 || has(list, parameter))
            continue;
        shard_flat *flat = find_or_add(&list, parameter, count);
        if (!flat) {
            *status = shard_last_status();
            break;
        }
        append(flat, parameter);
    }
    for (shard_flat *flat = list; flat && *status == SHARD_OK; flat = flat->next)
        *status = build(flat);
    if (*status == SHARD_OK)
        return list;
    shard_flat_destroy(list);
    return NULL;
}

void shard_flat_destroy(shard_flat *flat)
{
    while (flat) {
        shard_flat *next = flat->next;
        for (int64_t i = 0; i < flat->count; i++)
            shard_tensor_drop(flat->parameters[i].tensor);
        free(flat->parameters);
        shard_storage_drop(flat->values);
        shard_storage_drop(flat->gradients);
        free(flat);
        flat = next;
    }
}
