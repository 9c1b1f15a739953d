/* The joint step: pieces that lie one after the other in one call. */
#include "optim/optimizer.h"
#include "optim/zero.h"

#include "dist/bucket.h"

#include <shard/autograd.h>
#include <shard/dist.h>

#include <stdlib.h>

bool shard_slot_has_gradient(const shard_slot *slot)
{
    return slot->parameter->requires_grad && slot->piece.tensor->has_grad;
}

bool shard_slot_counts(const shard_slot *slot)
{
    bool is_part = slot->piece.tensor != slot->parameter; /* nobody else has it */
    return is_part || shard_group_rank(shard_parameter_group(slot->parameter)) == 0;
}

/* That all parameters are on, and without any what those of other ranks are on; NULL with the
 * error set if there are several. */
static shard_device *one_device(const shard_optimizer *optimizer)
{
    shard_device *device = optimizer->count ? shard_device_of(optimizer->slots[0].piece.tensor) : shard_default_device();
    for (int64_t i = 1; i < optimizer->count; i++) {
        const shard_device *other = shard_device_of(optimizer->slots[i].piece.tensor);
        if (other != device)
            return shard_fail_null(SHARD_ERROR_UNSUPPORTED,
                                   "%s: parameters are on two devices, \"%s\" on %s and \"%s\" on %s: norms and factors are of "
                                   "one",
                                   optimizer->ops->name, optimizer->slots[0].name, device->name, optimizer->slots[i].name,
                                   other->name);
    }
    return device;
}

shard_status shard_optimizer_refuse_overlap(const shard_optimizer *optimizer)
{
    if (!shard_zero_overlaps(optimizer))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED,
                       "%s: shard_zero steps it during backward (overlap), when gradients are not all there to be clipped or "
                       "scaled together",
                       optimizer->ops->name);
}

double *shard_optimizer_grad_scale(shard_optimizer *optimizer)
{
    shard_device *device = one_device(optimizer);
    if (!device || shard_optimizer_refuse_overlap(optimizer) != SHARD_OK)
        return NULL;
    if (!optimizer->grad_scale)
        optimizer->grad_scale = shard_keep(shard_empty(SHARD_SCALAR, .dtype = SHARD_FLOAT64, .device = device));
    double *scale = optimizer->grad_scale ? shard_tensor_memory_to_write(optimizer->grad_scale) : NULL;
    if (scale && !optimizer->scaled)
        optimizer->scaled = device->ops->fill(device, 1, 1.0, scale, SHARD_FLOAT64) == SHARD_OK;
    return optimizer->scaled ? scale : NULL;
}

/* An update, and the storages that its memory is in: what is next to each other in
 * different ones is not one piece of memory. */
typedef struct stretch {
    shard_update update;
    const shard_slot *slot; /* of the first piece */
    const shard_storage *gradient, *value, *state[SHARD_OPTIMIZER_STATES];
} stretch;

static void choose_settings(const shard_optimizer *optimizer, const shard_slot *slot, shard_update *update)
{
    const shard_param_group_options *group = &optimizer->groups[slot->group];
    const shard_optimizer_defaults *defaults = &optimizer->defaults;
    bool decays = slot->parameter->shape.ndim > 1 || defaults->decay_all || group->decay_all;
    update->lr = defaults->lr * (group->lr_scale > 0 ? group->lr_scale : 1.0);
    if (decays && !group->no_weight_decay)
        update->weight_decay = group->weight_decay > 0 ? group->weight_decay : defaults->weight_decay;
}

static shard_status begin(const shard_optimizer *optimizer, const shard_slot *slot, int64_t step, stretch *s)
{
    const shard_piece *piece = &slot->piece;
    shard_tensor *tensor = piece->tensor;
    shard_update *update = &s->update;
    *s = (stretch){.slot = slot, .gradient = tensor->grad->storage, .value = tensor->storage};
    *update =
        (shard_update){.device = shard_device_of(tensor), .dtype = tensor->dtype, .size = shard_numel(tensor), .step = step};
    if (optimizer->scaled)
        update->grad_scale = shard_tensor_memory(optimizer->grad_scale);
    choose_settings(optimizer, slot, update);
    update->gradient = shard_tensor_memory(tensor->grad);
    update->value = update->gradient ? shard_tensor_memory_to_write(tensor) : NULL;
    for (int i = 0; i < optimizer->ops->states && update->value; i++) {
        s->state[i] = piece->state[i]->storage;
        update->state[i] = shard_tensor_memory_to_write(piece->state[i]);
    }
    return shard_last_status();
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const stretch *)a)->update.value, y = (uintptr_t)((const stretch *)b)->update.value;
    return (x > y) - (x < y);
}

/* Whether `next` goes on where `s` ends, in all memory alike. */
static bool goes_on(const shard_optimizer *optimizer, const stretch *s, const stretch *next)
{
    const shard_update *a = &s->update, *b = &next->update;
    int64_t size = (int64_t)shard_dtype_size(a->dtype), distance = (char *)b->value - (char *)a->value;
    int64_t gap = distance - a->size * size;
    bool alike = a->dtype == b->dtype && a->lr == b->lr && a->weight_decay == b->weight_decay && a->step == b->step;
    if (!alike || s->value != next->value || s->gradient != next->gradient || gap < 0 || gap >= SHARD_FLAT_ALIGNMENT ||
        (char *)b->gradient - (char *)a->gradient != distance)
        return false;
    for (int i = 0; i < optimizer->ops->states; i++)
        if (s->state[i] != next->state[i] || (char *)b->state[i] - (char *)a->state[i] != distance)
            return false;
    return true;
}

static shard_status step_stretches(const shard_optimizer *optimizer, stretch *all, int64_t count)
{
    if (count)
        qsort(all, (size_t)count, sizeof *all, by_address);
    for (int64_t i = 0; i < count; i++) {
        shard_update *update = &all[i].update;
        if (i + 1 < count && goes_on(optimizer, &all[i], &all[i + 1])) {
            shard_update *next = &all[i + 1].update;
            int64_t distance = ((char *)next->value - (char *)update->value) / (int64_t)shard_dtype_size(update->dtype);
            int64_t size = distance + next->size;
            *next = *update;
            next->size = size;
            continue;
        }
        SHARD_TRY(optimizer->ops->step(optimizer, update));
    }
    return SHARD_OK;
}

/* ---- by layers ---- */

static bool adapts(const shard_optimizer *optimizer, const stretch *s)
{
    return s->slot->parameter->shape.ndim > 1 || optimizer->defaults.adapt_all;
}

/* squares[layer][2]: what this rank adds to those of values and gradients. */
static shard_status measure(const shard_optimizer *optimizer, const stretch *all, int64_t count, shard_trust_options *trust,
                            double *squares)
{
    for (int64_t i = 0; i < count; i++) {
        const shard_update *update = &all[i].update;
        const shard_device_ops *ops = update->device->ops;
        double *sum = squares + 2 * (all[i].slot - optimizer->slots);
        SHARD_TRY(optimizer->ops->prepare(optimizer, update, &trust[i]));
        if (!adapts(optimizer, &all[i])) /* without norms its ratio is 1; as the one before, it needs no call of its own */
            trust[i] = i ? trust[i - 1] : trust[i];
        else if (shard_slot_counts(all[i].slot)) {
            SHARD_TRY(ops->power_sum(update->device, update->size, 2.0, update->value, sum, update->dtype));
            SHARD_TRY(ops->power_sum(update->device, update->size, 2.0, update->gradient, sum + 1, update->dtype));
        }
    }
    return SHARD_OK;
}

static bool same_trust(const shard_trust_options *a, const shard_trust_options *b)
{
    return a->trust_coefficient == b->trust_coefficient && a->weight_decay == b->weight_decay && a->eps == b->eps &&
           a->grad_scale == b->grad_scale;
}

static shard_status step_measured(const shard_optimizer *optimizer, stretch *all, int64_t count, const shard_trust_options *trust,
                                  const double *squares, double *ratio)
{
    for (int64_t i = 0, end; i < count; i = end) {
        shard_device *device = all[i].update.device;
        int64_t first = all[i].slot - optimizer->slots;
        for (end = i + 1; end < count && same_trust(&trust[i], &trust[end]);)
            end++;
        int64_t layers = all[end - 1].slot - optimizer->slots + 1 - first;
        SHARD_TRY(device->ops->trust_ratio(device, layers, &trust[i], squares + 2 * first, ratio + first));
    }
    for (int64_t i = 0; i < count; i++) {
        all[i].update.trust_ratio = ratio + (all[i].slot - optimizer->slots);
        SHARD_TRY(optimizer->ops->step(optimizer, &all[i].update));
    }
    return SHARD_OK;
}

/* The sums of squares of all layers over the world in one all-reduce, which every rank
 * enters, also with an error. The same slots are the same layers on all ranks. */
static shard_status step_layers(const shard_optimizer *optimizer, stretch *all, int64_t count)
{
    shard_device *device = one_device(optimizer);
    int64_t layers = optimizer->count;
    size_t bytes = (size_t)(3 * layers) * sizeof(double);
    shard_trust_options *trust = shard_calloc((size_t)count, sizeof *trust);
    double *squares = device && trust && bytes ? shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes) : NULL;
    shard_status status = shard_last_status();
    if (squares && status == SHARD_OK)
        status = device->ops->zero(device, squares, bytes);
    if (squares && status == SHARD_OK)
        status = measure(optimizer, all, count, trust, squares);
    status = shard_group_all_reduce(shard_world(), device, squares, 2 * layers, SHARD_FLOAT64, SHARD_SUM);
    if (squares && status == SHARD_OK)
        status = step_measured(optimizer, all, count, trust, squares, squares + 2 * layers);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, squares, bytes);
    free(trust);
    return status;
}

shard_status shard_optimizer_step_where(shard_optimizer *optimizer, bool (*wanted)(const shard_slot *, const void *),
                                        const void *context)
{
    int64_t count = 0;
    stretch *all = shard_calloc((size_t)optimizer->count, sizeof *all);
    shard_status status = all ? shard_optimizer_make_state(optimizer, false) : shard_last_status();
    for (int64_t i = 0; i < optimizer->count && status == SHARD_OK; i++) {
        shard_slot *slot = &optimizer->slots[i];
        if (!shard_slot_has_gradient(slot) || (wanted && !wanted(slot, context)))
            continue;
        int64_t *step = shard_tensor_memory_to_write(slot->step);
        status = step ? SHARD_OK : shard_last_status();
        if (step && ++*step && shard_numel(slot->piece.tensor))
            status = begin(optimizer, slot, *step, &all[count++]);
    }
    if (optimizer->ops->prepare)
        status = step_layers(optimizer, all, count);
    else if (status == SHARD_OK)
        status = step_stretches(optimizer, all, count);
    free(all);
    return status;
}

/* A gradient of one rank alone where all have the parameter: of one that shard_zero found frozen. */
static shard_status check_averaged(const shard_optimizer *optimizer)
{
    for (int64_t i = 0; i < optimizer->count && optimizer->zero; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        if (shard_slot_has_gradient(slot) && shard_parameter_group(slot->parameter) && !slot->parameter->grad_ready)
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "shard_step: \"%s\" has a gradient that nobody averages: it was frozen when shard_zero shared "
                               "the optimizer out; let it require a gradient before, or add it by "
                               "shard_optimizer_add_param_group then",
                               slot->name);
    }
    return SHARD_OK;
}

shard_status shard_step(shard_optimizer *optimizer)
{
    if (optimizer) {
        optimizer->skipped = false;
        check_averaged(optimizer);
    } else
        shard_null_argument("shard_step", "optimizer");
    SHARD_TRY(shard_agree(shard_world()));
    SHARD_TRY(shard_last_status());
    shard_status status = shard_optimizer_step_where(optimizer, NULL, NULL);
    if (optimizer->zero)
        status = shard_zero_publish(optimizer, false);
    if (status == SHARD_OK)
        shard_optimizer_zero_grad(optimizer);
    return status;
}

void shard_optimizer_zero_grad(shard_optimizer *optimizer)
{
    for (int64_t i = 0; optimizer && i < optimizer->count; i++) {
        shard_zero_grad(optimizer->slots[i].parameter);
        shard_zero_grad(optimizer->slots[i].piece.tensor);
    }
    if (optimizer)
        optimizer->scaled = false;
}
