/* The local ranges of an optimizer's parameters: as the parameters' engines say, whenever these were made. */
#include "optim/optimizer.h"

#include <stdlib.h>

/* ---- the order of the slots ---- */

static int compare(uintptr_t a, uintptr_t b)
{
    return (a > b) - (a < b);
}

static int in_order(const void *a, const void *b)
{
    const shard_slot *x = *(shard_slot *const *)a, *y = *(shard_slot *const *)b;
    const shard_tensor *s = x->range.tensor, *t = y->range.tensor;
    const int keys[] = {compare((uintptr_t)shard_device_of(s), (uintptr_t)shard_device_of(t)), compare(s->dtype, t->dtype),
                        compare((uintptr_t)x->lead, (uintptr_t)y->lead), compare(x->offset, y->offset),
                        compare((uintptr_t)x, (uintptr_t)y)};
    int key = 0;
    while (key < 4 && keys[key] == 0)
        key++;
    return keys[key];
}

void shard_optimizer_put_in_order(shard_optimizer *optimizer)
{
    int64_t count = optimizer->count;
    bool same = optimizer->ordered == count;
    for (int64_t i = 0; i < count && same; i++)
        same = optimizer->slots[i].storage == optimizer->slots[i].range.tensor->storage &&
               optimizer->slots[i].offset == optimizer->slots[i].range.tensor->offset;
    if (same)
        return;
    for (int64_t i = 0; i < count; i++) {
        shard_slot *slot = optimizer->order[i] = &optimizer->slots[i];
        slot->storage = slot->range.tensor->storage;
        slot->offset = slot->range.tensor->offset;
        slot->lead = i;
        for (int64_t j = i - 1; j >= 0 && slot->lead == i; j--) /* most often the one before */
            if (optimizer->slots[j].storage == slot->storage)
                slot->lead = optimizer->slots[j].lead;
    }
    qsort(optimizer->order, (size_t)count, sizeof *optimizer->order, in_order);
    optimizer->ordered = count;
}

/* ---- ranges ---- */

bool shard_slot_is_listed(const shard_slot *slot)
{
    for (int s = 0; s < SHARD_SLOT_STATES; s++)
        if (slot->range.state[s] && slot->range.state[s]->references > 1)
            return true;
    return false;
}

void shard_local_range_release(shard_local_range *range)
{
    shard_tensor_unref(range->tensor);
    shard_engine_unref(range->engine);
    for (int s = 0; s < SHARD_SLOT_STATES; s++)
        shard_tensor_unref(range->state[s]);
    *range = (shard_local_range){0};
}

/* Copies the new range's elements of a whole state. */
static shard_status keep_state(const shard_optimizer *optimizer, const shard_slot *slot, const shard_local_range *whole)
{
    const shard_local_range *range = &slot->range;
    shard_device *device = shard_device_of(range->tensor);
    for (int s = 0; s < shard_slot_states(optimizer, slot); s++) {
        if (!whole->state[s]) /* without memory for it in an earlier call: the new one is zeros */
            continue;
        size_t bytes = shard_tensor_bytes(range->state[s]), element = shard_dtype_size(range->state[s]->dtype);
        size_t start = (size_t)(shard_range_start(range->tensor) / shard_state_columns(optimizer, slot, s)) * element;
        if (bytes == 0) {
            shard_tensor_count_write(range->state[s]); /* as on the ranks that have elements of it */
            continue;
        }
        const char *from = shard_tensor_memory(whole->state[s]);
        char *to = from ? shard_tensor_memory_to_write(range->state[s]) : NULL;
        if (!to)
            return shard_last_status();
        SHARD_TRY(device->ops->copy_rows(device, to, bytes, from + start, bytes, bytes, 1));
    }
    return SHARD_OK;
}

/* The range of the slot's parameter, if the slot does not have it. */
static shard_tensor *new_range(const shard_slot *slot)
{
    shard_tensor *local = shard_leaf_of(slot->parameter)->grad_range;
    return local == slot->range.tensor ? NULL : local;
}

static shard_status check_new(const shard_optimizer *optimizer, const shard_slot *slot)
{
    const shard_tensor *range = new_range(slot);
    if (range)
        SHARD_TRY(shard_check_rows(optimizer, slot, range));
    if (!range || !shard_slot_is_listed(slot))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "optimizer: the state of \"%s\" is in a state dict, and its parameter was partitioned since: call "
                       "shard_data_parallel_create before shard_optimizer_state_dict, or destroy that first",
                       slot->name);
}

static shard_status take_ranges(shard_optimizer *optimizer, shard_local_range *whole)
{
    bool any = false;
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_slot *slot = &optimizer->slots[i];
        shard_tensor *local = new_range(slot);
        if (!local)
            continue;
        whole[i] = slot->range;
        any |= whole[i].state[0] != NULL;
        slot->range =
            (shard_local_range){.tensor = shard_tensor_ref(local), .engine = shard_engine_ref(shard_engine_of(slot->parameter))};
    }
    shard_optimizer_put_in_order(optimizer);
    if (any)
        SHARD_TRY(shard_optimizer_make_state(optimizer, true));
    for (int64_t i = 0; i < optimizer->count; i++)
        if (whole[i].state[0])
            SHARD_TRY(keep_state(optimizer, &optimizer->slots[i], &whole[i]));
    return SHARD_OK;
}

shard_status shard_optimizer_follow(shard_optimizer *optimizer)
{
    int64_t changed = 0;
    for (int64_t i = 0; i < optimizer->count; i++) {
        SHARD_TRY(check_new(optimizer, &optimizer->slots[i]));
        changed += new_range(&optimizer->slots[i]) != NULL;
    }
    if (changed == 0)
        return shard_optimizer_put_in_order(optimizer), SHARD_OK;
    shard_local_range *whole = shard_calloc((size_t)optimizer->count, sizeof *whole);
    shard_status status = whole ? take_ranges(optimizer, whole) : shard_last_status();
    for (int64_t i = 0; i < optimizer->count && whole; i++) {
        if (status != SHARD_OK && whole[i].tensor) { /* it can be tried again */
            shard_local_range_release(&optimizer->slots[i].range);
            optimizer->slots[i].range = whole[i];
        } else {
            shard_local_range_release(&whole[i]);
        }
    }
    free(whole);
    return status;
}

shard_status shard_optimizer_publish(const shard_optimizer *optimizer, bool all)
{
    const shard_slot *slots = optimizer->slots;
    for (int64_t i = 0; i < optimizer->count; i++)
        if (slots[i].range.engine && (all || shard_has_grad(slots[i].range.tensor)))
            shard_engine_mark_updated(slots[i].parameter);
    for (int64_t i = 0; i < optimizer->count; i++) /* a second call of an engine finds no mark */
        if (slots[i].range.engine && (i == 0 || slots[i].range.engine != slots[i - 1].range.engine))
            shard_engine_publish(slots[i].range.engine);
    return shard_last_status();
}
