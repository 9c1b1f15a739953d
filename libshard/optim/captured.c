/* An optimizer's step in a captured graph: its counters and settings at each replay. */
#include "optim/optimizer.h"

#include "device/graph.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct captured {
    shard_optimizer *optimizer;
    int64_t slot, like; /* the factors of `slot` are those of `like`; -1: computed for this slot */
} captured;

/* The number of steps. Its memory was allocated before the capture. */
static int64_t *steps_of(const shard_slot *slot)
{
    return shard_tensor_memory(slot->step);
}

static void count_step(void *context, void *values, int count)
{
    const captured *c = context;
    shard_slot *slot = &c->optimizer->slots[c->slot];
    (void)values;
    if (count > 0)
        shard_optimizer_refuse_swapped(c->optimizer, "shard_graph_replay");
    *steps_of(slot) += count;
    shard_tensor_count_write(slot->range.tensor);
    for (int s = 0; s < shard_slot_states(c->optimizer, slot); s++)
        shard_tensor_count_write(slot->range.state[s]);
}

static void find_factors(void *context, void *values, int count)
{
    const captured *c = context;
    if (count < 0)
        return;
    const shard_slot *slot = &c->optimizer->slots[c->slot];
    shard_update update = {.step = *steps_of(slot)};
    shard_step_factors *factors = values;
    shard_optimizer_choose_settings(c->optimizer, slot, &update);
    *factors = (shard_step_factors){.lr = update.lr, .first = update.step == 1, .step = (double)update.step};
    if (c->optimizer->ops->factors)
        c->optimizer->ops->factors(c->optimizer, &update, factors);
}

/* Both slots have counted this step. They differ after an eager step of only one of them, or after a state was loaded. */
static void check_steps(void *context, void *values, int count)
{
    const captured *c = context;
    const shard_slot *slot = &c->optimizer->slots[c->slot], *like = &c->optimizer->slots[c->like];
    int64_t steps = *steps_of(slot), expected = *steps_of(like);
    (void)values;
    if (count > 0 && steps != expected)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_graph_replay: \"%s\" is at step %" PRId64 " and \"%s\" at step %" PRId64
                    ", which were at the same one in the capture: capture again",
                    slot->name, steps, like->name, expected);
}

static const void *on_replay(shard_optimizer *optimizer, const shard_slot *slot, void (*call)(void *, void *, int),
                             int64_t like, size_t bytes)
{
    captured *c = shard_calloc(1, sizeof *c);
    if (!c)
        return NULL;
    *c = (captured){optimizer, slot - optimizer->slots, like};
    return shard_graph_on_replay(shard_graph_capturing(),
                                 (shard_replay){.call = call, .release = free, .context = c, .owner = optimizer}, bytes);
}

shard_status shard_optimizer_capture_step(shard_optimizer *optimizer, const shard_slot *slot)
{
    if (*steps_of(slot) == 0)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_step: the first step of \"%s\" is in a capture: make one step before shard_graph_begin",
                           slot->name);
    SHARD_TRY(shard_graph_check_device("shard_step", shard_device_of(slot->range.tensor)));
    return on_replay(optimizer, slot, count_step, -1, 0) ? SHARD_OK : shard_last_status();
}

/* Updates with the same settings and step, now and at each replay, have the same factors. */
shard_status shard_optimizer_capture_factors(shard_optimizer *optimizer, shard_run *runs, int64_t last)
{
    const shard_slot *slot = runs[last].slot;
    shard_update *update = &runs[last].update;
    for (int64_t i = 0; i < last; i++) {
        const shard_update *other = &runs[i].update;
        if (runs[i].slot->group != slot->group || other->weight_decay != update->weight_decay || other->step != update->step)
            continue;
        update->factors = other->factors;
        return on_replay(optimizer, slot, check_steps, runs[i].slot - optimizer->slots, 0) ? SHARD_OK : shard_last_status();
    }
    update->factors = on_replay(optimizer, slot, find_factors, -1, sizeof(shard_step_factors));
    return update->factors ? SHARD_OK : shard_last_status();
}
