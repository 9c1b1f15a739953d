/* The common code of all optimizers: parameters, their groups, their state. */
#include "optim/optimizer.h"

#include "base/options.h"
#include "comm/function.h"
#include "device/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for so many slots, and for a step of them. */
static shard_status make_room(shard_optimizer *optimizer, int64_t count)
{
    int64_t order = optimizer->capacity, runs = order, updates = order, sums = order;
    SHARD_TRY(shard_grow(&optimizer->order, &order, count, sizeof *optimizer->order));
    SHARD_TRY(shard_grow(&optimizer->runs, &runs, count, sizeof *optimizer->runs));
    SHARD_TRY(shard_grow(&optimizer->updates, &updates, count, sizeof *optimizer->updates));
    SHARD_TRY(shard_grow(&optimizer->square_sums, &sums, count, 2 * sizeof *optimizer->square_sums));
    return shard_grow(&optimizer->slots, &optimizer->capacity, count, sizeof *optimizer->slots);
}

/* Makes a slot for each parameter of the list from index `first` on. A parameter with two names has one slot, with the
 * first name. */
static shard_status add_slots(shard_optimizer *optimizer, int64_t first)
{
    int64_t count = shard_tensors_count(optimizer->parameters);
    optimizer->ordered = 0;
    SHARD_TRY(make_room(optimizer, count));
    for (int64_t i = first; i < count; i++) {
        shard_tensor *parameter = shard_tensors_at(optimizer->parameters, i);
        if (shard_tensors_index(optimizer->parameters, parameter) < i)
            continue;
        if (parameter->history)
            return shard_error(SHARD_ERROR_ARGUMENT, "%s: \"%s\" is the result of an operation: only a leaf gets a gradient",
                               optimizer->ops->name, shard_tensors_name(optimizer->parameters, i));
        shard_tensor *step = shard_keep(shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64, .device = shard_cpu()));
        if (!step)
            return shard_last_status();
        shard_storage_set_kind(step->storage, SHARD_MEMORY_OPTIMIZER_STATE);
        if (!shard_tensor_memory(step)) /* a step lacks no memory for it */
            return shard_tensor_unref(step), shard_last_status();
        optimizer->slots[optimizer->count++] = (shard_slot){.name = shard_tensors_name(optimizer->parameters, i),
                                                            .parameter = parameter,
                                                            .group = optimizer->group_count - 1,
                                                            .step = step,
                                                            .range.tensor = shard_tensor_ref(parameter)};
        SHARD_TRY(shard_check_rows(optimizer, &optimizer->slots[optimizer->count - 1], parameter));
    }
    return SHARD_OK;
}

static shard_status add_group(shard_optimizer *optimizer, shard_param_group_options options)
{
    SHARD_TRY(shard_grow(&optimizer->groups, &optimizer->group_capacity, optimizer->group_count + 1, sizeof *optimizer->groups));
    optimizer->groups[optimizer->group_count++] = options;
    return SHARD_OK;
}

bool shard_valid_settings(int count, const double *settings)
{
    for (int i = 0; i < count; i++)
        if (!(settings[i] >= 0 && isfinite(settings[i])))
            return false;
    return true;
}

shard_optimizer *shard_optimizer_make(const shard_optimizer_ops *ops, int states, const shard_tensors *parameters,
                                      shard_optimizer_defaults defaults, const void *settings, size_t settings_size)
{
    if (!parameters)
        return shard_null_argument(ops->name, "parameters"), NULL;
    if (shard_check_precision(ops->name, &defaults) != SHARD_OK)
        return NULL;
    shard_optimizer *optimizer = shard_calloc(1, sizeof *optimizer);
    if (!optimizer)
        return NULL;
    *optimizer = (shard_optimizer){.ops = ops, .states = states, .defaults = defaults, .clip_value = SHARD_NO_CLIP_VALUE};
    optimizer->settings = shard_calloc(1, settings_size);
    optimizer->parameters = shard_tensors_create();
    if (optimizer->settings)
        memcpy(optimizer->settings, settings, settings_size);
    shard_status status = optimizer->settings && optimizer->parameters
                              ? shard_tensors_extend(optimizer->parameters, "", parameters)
                              : shard_last_status();
    if (status == SHARD_OK && add_group(optimizer, (shard_param_group_options)SHARD_PARAM_GROUP_OPTIONS_INIT) == SHARD_OK &&
        add_slots(optimizer, 0) == SHARD_OK)
        return optimizer;
    shard_optimizer_destroy(optimizer);
    return NULL;
}

static shard_status check_names(const shard_optimizer *optimizer, const shard_tensors *parameters, const char *prefix)
{
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < shard_tensors_count(parameters) && status == SHARD_OK; i++) {
        char *name = shard_format("%s%s", prefix ? prefix : "", shard_tensors_name(parameters, i));
        if (!name)
            return shard_last_status();
        if (shard_tensors_find(optimizer->parameters, name))
            status =
                shard_error(SHARD_ERROR_ARGUMENT,
                            "shard_optimizer_add_param_group: another parameter of the optimizer is called \"%s\" already: give "
                            "this group %s .prefix, as in .prefix = \"head.\"",
                            name, prefix ? "another" : "a");
        free(name);
    }
    return status;
}

static shard_status check_group(const shard_optimizer *optimizer, const shard_tensors *parameters,
                                const shard_param_group_options *options)
{
    double decay = options->weight_decay == -1 ? 0 : options->weight_decay;
    if (!shard_valid_settings(2, (double[]){options->lr_scale, decay}))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_optimizer_add_param_group: lr_scale %g, weight decay %g: finite numbers are needed, neither "
                           "negative (-1: the optimizer's decay)",
                           options->lr_scale, options->weight_decay);
    if (options->decay_1d < -1 || options->decay_1d > 1)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_optimizer_add_param_group: decay_1d is %d: it is 0, 1 or -1 (the optimizer's)",
                           options->decay_1d);
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
        if (shard_tensors_index(optimizer->parameters, shard_tensors_at(parameters, i)) >= 0)
            return shard_error(SHARD_ERROR_ARGUMENT,
                               "shard_optimizer_add_param_group: \"%s\" is in another group of the optimizer already",
                               shard_tensors_name(parameters, i));
    return check_names(optimizer, parameters, options->prefix);
}

/* Removes the groups, slots and parameters after the first `groups`, `slots` and `parameters`. */
static void remove_behind(shard_optimizer *optimizer, int64_t groups, int64_t slots, int64_t parameters)
{
    while (optimizer->count > slots) {
        shard_slot *slot = &optimizer->slots[--optimizer->count];
        shard_tensor_unref(slot->step);
        shard_local_range_release(&slot->range);
    }
    optimizer->group_count = groups;
    shard_tensors_truncate(optimizer->parameters, parameters);
}

shard_status shard_optimizer_add_param_group_with(shard_optimizer *optimizer, const shard_tensors *parameters,
                                                  const shard_param_group_options *given)
{
    SHARD_FUNCTION("shard_optimizer_add_param_group");
    SHARD_READ_OPTIONS(shard_param_group_options, SHARD_PARAM_GROUP_OPTIONS_INIT, options, given);
    shard_status status = optimizer && parameters
                              ? check_group(optimizer, parameters, &options)
                              : shard_null_argument("shard_optimizer_add_param_group", optimizer ? "parameters" : "optimizer");
    if (!options_ok)
        status = shard_last_status();
    if (status != SHARD_OK && !(optimizer && optimizer->zero))
        return status;
    const char *prefix = options.prefix ? options.prefix : "";
    options.prefix = NULL;
    int64_t groups = optimizer->group_count, slots = optimizer->count, first = shard_tensors_count(optimizer->parameters);
    const shard_param_group_options usual = SHARD_PARAM_GROUP_OPTIONS_INIT;
    bool own =
        options.lr_scale != usual.lr_scale || options.weight_decay != usual.weight_decay || options.decay_1d != usual.decay_1d;
    if (status == SHARD_OK && (shard_tensors_count(parameters) > 0 || own)) /* ranks compare their groups */
        status = add_group(optimizer, options);
    if (status == SHARD_OK)
        status = shard_tensors_extend(optimizer->parameters, prefix, parameters);
    if (status == SHARD_OK)
        status = add_slots(optimizer, first);
    if (optimizer->zero) {
        shard_zero_take(optimizer);
        status = shard_agree(shard_world());
    }
    if (status != SHARD_OK) {
        remove_behind(optimizer, groups, slots, first);
        shard_optimizer_put_in_order(optimizer); /* a backward may step by it before shard_step */
    }
    return status;
}

void shard_optimizer_destroy(shard_optimizer *optimizer)
{
    if (!optimizer)
        return;
    shard_graph_forget(optimizer);
    shard_zero_destroy(optimizer->zero);
    remove_behind(optimizer, 0, 0, 0);
    shard_tensor_unref(optimizer->grad_scale);
    shard_tensors_destroy(optimizer->parameters);
    free(optimizer->slots);
    free(optimizer->order);
    free(optimizer->square_sums);
    free(optimizer->runs);
    free(optimizer->updates);
    free(optimizer->groups);
    free(optimizer->settings);
    free(optimizer);
}

double shard_optimizer_lr(const shard_optimizer *optimizer)
{
    return optimizer ? optimizer->defaults.lr : 0.0;
}

shard_status shard_optimizer_set_lr(shard_optimizer *optimizer, double lr)
{
    if (!optimizer)
        return shard_null_argument("shard_optimizer_set_lr", "optimizer");
    if (!shard_valid_settings(1, &lr))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_optimizer_set_lr: the learning rate is %g: a finite number, not negative, is needed", lr);
    optimizer->defaults.lr = lr;
    return SHARD_OK;
}

bool shard_optimizer_skipped(const shard_optimizer *optimizer)
{
    return optimizer && optimizer->skipped;
}

/* ---- state ---- */

shard_status shard_optimizer_make_state(shard_optimizer *optimizer, bool all)
{
    for (int s = 0; s < SHARD_SLOT_STATES; s++) {
        int64_t count = 0;
        for (int64_t i = 0; i < optimizer->count; i++) {
            shard_slot *slot = optimizer->order[i];
            if (s < shard_slot_states(optimizer, slot) && !slot->range.state[s] && (all || shard_slot_has_gradient(slot)))
                optimizer->runs[count++] = shard_run_to_make(slot, shard_state_dtype(optimizer, slot->parameter->dtype, s),
                                                             shard_state_columns(optimizer, slot, s), &slot->range.state[s]);
        }
        SHARD_TRY(shard_runs_make(optimizer->runs, count));
    }
    return SHARD_OK;
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
    shard_tensors *list = shard_optimizer_follow(optimizer) == SHARD_OK ? shard_tensors_create() : NULL;
    shard_status status = list ? shard_optimizer_make_state(optimizer, true) : shard_last_status();
    for (int64_t i = 0; i < optimizer->count && status == SHARD_OK; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        slot->step->leaf->optional = !slot->parameter->requires_grad;
        status = list_state(list, slot->name, "step", slot->step);
        for (int s = 0; s < shard_slot_states(optimizer, slot) && status == SHARD_OK; s++) {
            slot->range.state[s]->leaf->optional = slot->step->leaf->optional;
            const char *name = s < optimizer->states ? optimizer->ops->state_name[s] : "compensation";
            status = list_state(list, slot->name, name, slot->range.state[s]);
        }
    }
    if (status == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}
