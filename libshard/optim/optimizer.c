/* What all optimizers share: parameters, their state, the joint step. */
#include "optim/optimizer.h"

#include <shard/autograd.h>
#include <shard/dist.h>

#include <stdlib.h>

shard_optimizer *shard_optimizer_make(const shard_optimizer_ops *ops, shard_tensors *parameters, double lr, void *settings)
{
    shard_optimizer *optimizer = parameters ? shard_calloc(1, sizeof *optimizer) : NULL;
    if (!optimizer) {
        if (!parameters)
            shard_null_argument(ops->name, "parameters");
        shard_tensors_destroy(parameters);
        free(settings);
        return NULL;
    }
    int64_t count = shard_tensors_count(parameters);
    *optimizer = (shard_optimizer){.ops = ops, .parameters = parameters, .count = count, .lr = lr, .settings = settings};
    optimizer->slots = shard_calloc((size_t)count, sizeof *optimizer->slots);
    optimizer->step = shard_keep(shard_zeros(SHARD_SHAPE(1), .dtype = SHARD_INT64));
    if (!optimizer->slots || !optimizer->step) {
        shard_optimizer_destroy(optimizer);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++) {
        optimizer->slots[i].name = shard_tensors_name(parameters, i);
        optimizer->slots[i].parameter = shard_tensors_at(parameters, i);
    }
    return optimizer;
}

void shard_optimizer_destroy(shard_optimizer *optimizer)
{
    if (!optimizer)
        return;
    for (int64_t i = 0; optimizer->slots && i < optimizer->count; i++)
        for (int s = 0; s < SHARD_OPTIMIZER_STATES; s++)
            shard_tensor_drop(optimizer->slots[i].state[s]);
    shard_tensor_drop(optimizer->step);
    shard_tensors_destroy(optimizer->parameters);
    free(optimizer->slots);
    free(optimizer->settings);
    free(optimizer);
}

static shard_status make_state(shard_optimizer *optimizer, shard_slot *slot)
{
    for (int s = 0; s < optimizer->ops->states; s++) {
        if (slot->state[s])
            continue;
        slot->state[s] = shard_keep(shard_tensor_like(slot->parameter));
        if (!slot->state[s])
            return shard_last_status();
        slot->state[s]->replicas = slot->parameter->replicas;
        slot->state[s]->recipe = (shard_recipe){.kind = SHARD_CONSTANT};
    }
    return SHARD_OK;
}

shard_status shard_step(shard_optimizer *optimizer)
{
    if (!optimizer)
        shard_null_argument("shard_step", "optimizer");
    SHARD_TRY(shard_agree(shard_world()));
    SHARD_TRY(shard_last_status());
    int64_t *step = shard_tensor_memory_to_write(optimizer->step);
    if (!step)
        return shard_last_status();
    bool loaded = *step > 0;
    ++*step;
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_slot *slot = &optimizer->slots[i];
        if (!slot->parameter->has_grad || !slot->parameter->requires_grad)
            continue;
        slot->started |= loaded && optimizer->ops->states && slot->state[0];
        SHARD_TRY(make_state(optimizer, slot));
        if (shard_numel(slot->parameter))
            SHARD_TRY(optimizer->ops->step(optimizer, slot, *step));
        slot->started = true;
        shard_zero_grad(slot->parameter);
    }
    return SHARD_OK;
}

void shard_optimizer_zero_grad(shard_optimizer *optimizer)
{
    for (int64_t i = 0; optimizer && i < optimizer->count; i++)
        shard_zero_grad(optimizer->slots[i].parameter);
}

double shard_optimizer_lr(const shard_optimizer *optimizer)
{
    return optimizer ? optimizer->lr : 0.0;
}

void shard_optimizer_set_lr(shard_optimizer *optimizer, double lr)
{
    if (optimizer)
        optimizer->lr = lr;
}

shard_tensors *shard_optimizer_state_dict(shard_optimizer *optimizer)
{
    if (!optimizer)
        return shard_null_argument("shard_optimizer_state_dict", "optimizer"), NULL;
    shard_tensors *list = shard_tensors_create();
    shard_status status = list ? shard_tensors_add(list, "step", optimizer->step) : shard_last_status();
    for (int64_t i = 0; i < optimizer->count && status == SHARD_OK; i++) {
        shard_slot *slot = &optimizer->slots[i];
        status = make_state(optimizer, slot);
        for (int s = 0; s < optimizer->ops->states && status == SHARD_OK; s++) {
            char *name = shard_format("%s.%s", slot->name, optimizer->ops->state_name[s]);
            status = name ? shard_tensors_add(list, name, slot->state[s]) : shard_last_status();
            free(name);
        }
    }
    if (status == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}
