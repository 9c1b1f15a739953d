/* The types of a step's arrays, and how 16-bit ones are rounded. */
#include "optim/optimizer.h"

#include "base/dtype.h"
#include "base/hash.h"

#include <inttypes.h>

shard_status shard_check_precision(const char *function, const shard_optimizer_defaults *defaults)
{
    if ((int)defaults->rounding < 0 || defaults->rounding > SHARD_ROUNDING_KAHAN)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: rounding %d: SHARD_ROUNDING_NEAREST, _STOCHASTIC or _KAHAN is needed",
                           function, (int)defaults->rounding);
    if (defaults->state_dtype != -1 && defaults->state_dtype != SHARD_FLOAT32 && defaults->state_dtype != SHARD_BFLOAT16)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: state_dtype %d (%s): SHARD_FLOAT32, SHARD_BFLOAT16 or -1 (the parameter's) is needed", function,
                           defaults->state_dtype, shard_dtype_name((shard_dtype)defaults->state_dtype));
    return SHARD_OK;
}

/* ---- types ---- */

shard_dtype shard_state_dtype(const shard_optimizer *optimizer, shard_dtype value, int state)
{
    if (value == SHARD_FLOAT64 || state >= optimizer->states)
        return value;
    if (state < optimizer->ops->row_states)
        return SHARD_FLOAT32;
    return optimizer->defaults.state_dtype < 0 ? value : (shard_dtype)optimizer->defaults.state_dtype;
}

shard_update_types shard_optimizer_types(const shard_optimizer *optimizer, shard_dtype value)
{
    shard_update_types types = shard_update_types_of(value);
    for (int s = 0; s < optimizer->states; s++)
        types.state[s] = shard_state_dtype(optimizer, value, s);
    types.stochastic = optimizer->defaults.rounding == SHARD_ROUNDING_STOCHASTIC && value != SHARD_FLOAT64;
    return types;
}

int shard_slot_states(const shard_optimizer *optimizer, const shard_slot *slot)
{
    bool compensates = optimizer->defaults.rounding == SHARD_ROUNDING_KAHAN && shard_dtype_is_half(slot->parameter->dtype);
    return optimizer->states + compensates;
}

/* ---- rows ---- */

int64_t shard_columns_of(const shard_tensor *parameter)
{
    int64_t columns = shard_shape_product(&parameter->shape, 1, parameter->shape.ndim);
    return parameter->shape.ndim > 1 && columns > 0 ? columns : 1;
}

int64_t shard_state_columns(const shard_optimizer *optimizer, const shard_slot *slot, int state)
{
    return state < optimizer->ops->row_states ? shard_columns_of(slot->parameter) : 1;
}

shard_status shard_check_rows(const shard_optimizer *optimizer, const shard_slot *slot, const shard_tensor *range)
{
    const shard_tensor *parameter = slot->parameter;
    const shard_placement *placement = &parameter->placement;
    int64_t columns = shard_columns_of(parameter), start = shard_range_start(range);
    if (optimizer->ops->row_states == 0 || parameter->shape.ndim < 2)
        return SHARD_OK;
    if (placement->kind == SHARD_SPLIT && placement->dim != 0)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "%s: \"%s\" is split along dimension %d over %d ranks, so that no rank has a whole row, and the "
                           "state is one number for each row: split it along dimension 0 (SHARD_SPLIT_COLUMN), or use "
                           "shard_adamw",
                           optimizer->ops->name, slot->name, placement->dim, shard_group_size(placement->group));
    if (start % columns || shard_numel(range) % columns)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "%s: this rank has elements %" PRId64 " to %" PRId64 " of \"%s\", whose rows have %" PRId64
                           " elements, and the state is "
                           "one number for each row: partition whole parameters, .partition = SHARD_ZERO_WHOLE",
                           optimizer->ops->name, start, start + shard_numel(range), slot->name, columns);
    return SHARD_OK;
}

/* ---- an update ---- */

static shard_update_place place_of(const shard_slot *slot)
{
    const shard_tensor *parameter = slot->parameter;
    const shard_placement *placement = &parameter->placement;
    int64_t from = shard_range_start(slot->range.tensor);
    if (placement->kind != SHARD_SPLIT)
        return (shard_update_place){.first = from};
    int64_t inner = shard_shape_product(&parameter->shape, placement->dim + 1, parameter->shape.ndim);
    int64_t start = placement->start * inner;
    if (shard_shape_product(&parameter->shape, 0, placement->dim) == 1)
        return (shard_update_place){.first = start + from};
    return (shard_update_place){.first = start,
                                .offset = from,
                                .width = parameter->shape.dim[placement->dim] * inner,
                                .pitch = placement->whole * inner};
}

/* Sets what an update of `slot` needs for its rows and its rounding. */
static void choose_rounding(const shard_optimizer *optimizer, const shard_slot *slot, shard_update *update)
{
    shard_update_types types = shard_optimizer_types(optimizer, slot->parameter->dtype);
    bool rounds = shard_dtype_is_half(types.value);
    update->columns = optimizer->ops->row_states ? shard_columns_of(slot->parameter) : 1;
    for (int s = 0; s < optimizer->states; s++)
        rounds = rounds || shard_dtype_is_half(types.state[s]);
    if (!types.stochastic || !rounds)
        return;
    uint64_t name = shard_hash_text(SHARD_HASH_START, slot->name);
    update->key = shard_hash_mix(optimizer->defaults.seed + 0x9e3779b97f4a7c15u) ^ shard_hash_mix(name);
    update->place = place_of(slot);
}

/* Sets the addresses of the update's states and counts a write to each. */
static shard_status take_states(const shard_optimizer *optimizer, const shard_slot *slot, shard_update *update)
{
    for (int s = 0; s < shard_slot_states(optimizer, slot); s++) {
        void *memory = shard_tensor_memory_to_write(slot->range.state[s]);
        if (!memory)
            return shard_last_status();
        *(s < optimizer->states ? &update->state[s] : &update->compensation) = memory;
    }
    return SHARD_OK;
}

shard_status shard_optimizer_make_update(const shard_optimizer *optimizer, const shard_slot *slot, int64_t step,
                                         shard_update *update)
{
    *update = (shard_update){.size = shard_numel(slot->range.tensor), .step = step};
    if (optimizer->scaled)
        update->grad_scale = shard_tensor_memory(optimizer->grad_scale);
    shard_optimizer_choose_settings(optimizer, slot, update);
    choose_rounding(optimizer, slot, update);
    return take_states(optimizer, slot, update);
}
