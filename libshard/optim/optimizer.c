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
    bool made = optimizer->slots;
    for (int64_t i = 0; i < count && made; i++) {
        shard_slot *slot = &optimizer->slots[i];
        slot->name = shard_tensors_name(parameters, i);
        slot->parameter = shard_tensors_at(parameters, i);
        slot->step = shard_keep(shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64, .device = shard_cpu()));
        made = slot->step;
    }
    if (made)
        return optimizer;
    shard_optimizer_destroy(optimizer);
    return NULL;
}

void shard_optimizer_destroy(shard_optimizer *optimizer)
{
    if (!optimizer)
        return;
    for (int64_t i = 0; optimizer->slots && i < optimizer->count; i++) {
        shard_tensor_drop(optimizer->slots[i].step);
        for (int s = 0; s < SHARD_OPTIMIZER_STATES; s++)
            shard_tensor_drop(optimizer->slots[i].state[s]);
    }
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
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_slot *slot = &optimizer->slots[i];
        if (!slot->parameter->has_grad || !slot->parameter->requires_grad)
            continue;
        int64_t *step = shard_tensor_memory_to_write(slot->step);
        SHARD_TRY(step ? make_state(optimizer, slot) : shard_last_status());
        ++*step;
        if (shard_numel(slot->parameter))
            SHARD_TRY(optimizer->ops->step(optimizer, slot, *step));
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

static shard_status list_state(shard_tensors *list, const char *parameter, const char *state, shard_tensor *tensor)
{
    char *name = shard_format("%s.%s", parameter, state);
    shard_status status = name ? shard_tensors_add(list, name, tensor) : shard_last_status();
    free(name);
    return status;
}

shard_tensors *shard_optimizer_state_dict(shard_optimizer *optimizer)
{
    if (!optimizer)
        return shard_null_argument("shard_optimizer_state_dict", "optimizer"), NULL;
    shard_tensors *list = shard_tensors_create();
    shard_status status = list ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < optimizer->count && status == SHARD_OK; i++) {
        shard_slot *slot = &optimizer->slots[i];
        status = make_state(optimizer, slot);
        if (status == SHARD_OK)
            status = list_state(list, slot->name, "step", slot->step);
        for (int s = 0; s < optimizer->ops->states && status == SHARD_OK; s++)
            status = list_state(list, slot->name, optimizer->ops->state_name[s], slot->state[s]);
    }
    if (status == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}
