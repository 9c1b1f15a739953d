#include "parallel/replicas.h"

#include "base/math.h"
#include "comm/function.h"
#include "distributed/identical.h"
#include "op/op.h"
#include "parallel/unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct shard_replicas {
    shard_tensors *parameters; /* the parameters that have replicas, frozen ones included */
    shard_watch *watches;      /* [parameters] */
    int64_t compared;          /* the values over the groups of so many parameters, the first ones, need no comparison any more */
    shard_buffer_mode mode;    /* BROADCAST until the object is made */
    shard_unit **units; /* the buffers of one dtype, device and group each */
    int64_t unit_count;
    bool local; /* sync is off */
};

/* ---- parameters ---- */

/* The text of a parameter, which must be identical on all ranks: with the hash of its values, if it is known. */
static char *describe(const shard_tensors *parameters, int64_t index, const uint64_t *hash)
{
    const shard_tensor *parameter = shard_tensors_at(parameters, index);
    shard_shape shape = shard_tensor_whole_shape(parameter);
    char values[40] = "";
    if (hash)
        snprintf(values, sizeof values, " with values of hash %016" PRIx64, *hash);
    return shard_format("\"%s\" %s %s %s%s%s", shard_tensors_name(parameters, index), shard_dtype_name(parameter->dtype),
                        shard_shape_text(&shape), shard_placement_text(&parameter->placement),
                        parameter->requires_grad ? "" : " frozen", values);
}

/* Compares the parameters that are replicated over one group: names, shapes, dtypes and whether they are frozen, in
 * their order, and values. */
static shard_status compare_over(const shard_tensors *parameters, shard_group *group, bool values)
{
    shard_identical_lines mine = {0};
    shard_status status = shard_last_status();
    for (int64_t i = 0; i < shard_tensors_count(parameters) && status == SHARD_OK; i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        uint64_t hash = 0;
        bool here = values && !parameter->storage->materializer; /* else no rank has it whole */
        if (shard_parameter_group(parameter) != group)
            continue;
        if (here)
            status = shard_replica_hash(parameter, &hash);
        if (status == SHARD_OK)
            status = shard_identical_lines_add(&mine, describe(parameters, i, here ? &hash : NULL));
    }
    const char *function = shard_current_function()->name;
    char what[96];
    snprintf(what, sizeof what, "%s: the replicas differ", function ? function : "data parallel");
    return shard_identical_lines_check(&mine, group, what);
}

/* Group by group, each on all its ranks or on none: where one has failed, the next backward goes on with that group. */
static shard_status compare_values(shard_replicas *replicas)
{
    for (; replicas->compared < shard_tensors_count(replicas->parameters); replicas->compared++) {
        shard_group *group = shard_new_parameter_group(replicas->parameters, replicas->compared);
        if (group)
            SHARD_TRY(compare_over(replicas->parameters, group, true));
    }
    return SHARD_OK;
}

/* Sends the frozen parameters once: they do not change afterwards. */
static shard_status broadcast_frozen(const shard_tensors *parameters)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        if (!parameter->requires_grad && !parameter->storage->materializer)
            SHARD_TRY(shard_broadcast(parameter, 0, shard_parameter_group(parameter)));
    }
    return SHARD_OK;
}

/* ---- buffers ---- */

/* NULL with the error set. */
static shard_unit *find_or_add(shard_replicas *replicas, const shard_tensor *tensor)
{
    shard_group *group = shard_parameter_group(tensor);
    shard_unit *unit = NULL;
    for (int64_t i = 0; i < replicas->unit_count; i++) {
        unit = replicas->units[i];
        if (unit->group == group && unit->device == shard_device_of(tensor) && unit->dtype == tensor->dtype)
            return unit;
    }
    if ((unit = shard_unit_create(group, shard_device_of(tensor), tensor->dtype)))
        replicas->units[replicas->unit_count++] = unit;
    return unit;
}

static bool is_buffer(const shard_replicas *replicas, const shard_tensor *tensor)
{
    bool listed = shard_tensors_index(replicas->parameters, tensor) >= 0;
    bool frozen = shard_leaf_of(tensor)->grad_ready; /* a parameter of an engine */
    return !listed && !frozen && !tensor->requires_grad && shard_parameter_group(tensor) && shard_numel(tensor) > 0;
}

static shard_status place_buffers(shard_replicas *replicas, const shard_tensors *list)
{
    int64_t count = shard_tensors_count(list), *start = shard_calloc((size_t)count, sizeof *start);
    replicas->units = shard_calloc((size_t)count, sizeof *replicas->units);
    shard_status status = start && replicas->units ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        const shard_tensor *tensor = shard_tensors_at(list, i);
        if (!is_buffer(replicas, tensor))
            continue;
        shard_unit *unit = find_or_add(replicas, tensor);
        if (!unit) {
            status = shard_last_status();
            break;
        }
        start[i] = unit->size;
        unit->size += shard_round_up(shard_numel(tensor), SHARD_FLAT_ALIGNMENT / (int64_t)shard_dtype_size(unit->dtype));
    }
    for (int64_t i = 0; i < replicas->unit_count && status == SHARD_OK; i++) {
        shard_unit *unit = replicas->units[i];
        unit->values = shard_unit_storage(unit, unit->size, SHARD_MEMORY_PARAMETERS);
        status = unit->values ? shard_storage_zero(unit->values) : shard_last_status();
    }
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        shard_tensor *tensor = shard_tensors_at(list, i);
        if (!is_buffer(replicas, tensor))
            continue;
        const shard_unit *unit = find_or_add(replicas, tensor);
        status = shard_tensor_move(tensor, unit->values, shard_unit_bytes(unit, start[i]));
    }
    free(start);
    return status;
}

/* Integers are counters, which are not averaged. */
static shard_status sync_buffers(void *context)
{
    const shard_replicas *replicas = context;
    for (int64_t i = 0; i < replicas->unit_count; i++) {
        const shard_unit *unit = replicas->units[i];
        void *memory = unit->values->memory;
        unit->values->version++;
        if (replicas->mode == SHARD_BUFFERS_BROADCAST || !shard_dtype_is_float(unit->dtype)) {
            SHARD_TRY(shard_group_broadcast(unit->group, unit->device, memory, unit->size, unit->dtype, 0));
            continue;
        }
        SHARD_TRY(shard_group_all_reduce(unit->group, unit->device, memory, unit->size, unit->dtype, SHARD_SUM));
        double share = 1.0 / shard_group_size(unit->group);
        SHARD_TRY(unit->device->ops->axpby(unit->device, unit->size, share, memory, 0.0, memory, unit->dtype));
    }
    return SHARD_OK;
}

/* ---- a backward ---- */

/* The first parameter whose gradient is complete: nothing has been reduced or updated yet. */
static void watch(shard_tensor *parameter, void *context)
{
    shard_replicas *replicas = context;
    if (replicas->local)
        return;
    if (!parameter->leaf->grad_ready)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "data parallel: no engine has the parameter of shape %s any more, as an earlier shard_zero_optimizer failed: "
                    "make the data parallel anew",
                    shard_shape_text(&parameter->shape));
    compare_values(replicas);
    if (replicas->unit_count)
        shard_at_backward_end(sync_buffers, replicas, true); /* after reductions that only this rank may start at the end */
}

/* ---- creation and destruction ---- */

/* The place of this object's watch in the parameter's list. */
static shard_watch **find_watch(const shard_replicas *replicas, shard_tensor *parameter)
{
    shard_watch **at = &parameter->leaf->grad_watches;
    while (*at && (*at)->context != replicas)
        at = &(*at)->next;
    return at;
}

static shard_status watch_all(shard_replicas *replicas)
{
    int64_t count = shard_tensors_count(replicas->parameters);
    replicas->watches = shard_calloc((size_t)count, sizeof *replicas->watches);
    if (!replicas->watches)
        return shard_last_status();
    for (int64_t i = 0; i < count; i++) {
        shard_tensor *parameter = shard_tensors_at(replicas->parameters, i);
        shard_watch **at = parameter->requires_grad ? find_watch(replicas, parameter) : NULL;
        if (!at || *at)
            continue;
        replicas->watches[i] = (shard_watch){.function = watch, .context = replicas};
        *at = &replicas->watches[i];
    }
    return SHARD_OK;
}

static shard_status build(shard_replicas *replicas, const shard_tensors *parameters, const shard_data_parallel_options *options)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        if (shard_parameter_group(parameter))
            SHARD_TRY(shard_tensors_add(replicas->parameters, shard_tensors_name(parameters, i), parameter));
    }
    int64_t count = shard_tensors_count(replicas->parameters);
    bool last = options->stage == SHARD_PARTITION_PARAMETERS && !options->init_sync; /* no rank has the values whole later */
    for (int64_t i = 0; i < count && options->check; i++) {
        shard_group *group = shard_new_parameter_group(replicas->parameters, i);
        if (group)
            SHARD_TRY(compare_over(replicas->parameters, group, last));
    }
    replicas->compared = options->check ? 0 : count;
    if (options->buffers && options->buffer_mode != SHARD_BUFFERS_LEAVE)
        SHARD_TRY(place_buffers(replicas, options->buffers));
    if (options->init_sync) {
        SHARD_TRY(sync_buffers(replicas));
        SHARD_TRY(broadcast_frozen(replicas->parameters));
    }
    replicas->mode = options->buffer_mode;
    return watch_all(replicas);
}

shard_replicas *shard_replicas_create(const shard_tensors *parameters, const shard_data_parallel_options *options)
{
    shard_replicas *replicas = shard_calloc(1, sizeof *replicas);
    if (!replicas)
        return NULL;
    *replicas = (shard_replicas){.parameters = shard_tensors_create(), .mode = SHARD_BUFFERS_BROADCAST};
    if (replicas->parameters && build(replicas, parameters, options) == SHARD_OK)
        return replicas;
    shard_replicas_destroy(replicas);
    return NULL;
}

void shard_replicas_destroy(shard_replicas *replicas)
{
    if (!replicas)
        return;
    for (int64_t i = 0; i < shard_tensors_count(replicas->parameters); i++) {
        shard_tensor *parameter = shard_tensors_at(replicas->parameters, i);
        shard_watch **at = parameter->leaf ? find_watch(replicas, parameter) : NULL;
        if (at && *at)
            *at = (*at)->next;
    }
    for (int64_t i = 0; i < replicas->unit_count; i++)
        shard_unit_close(replicas->units[i]);
    shard_tensors_destroy(replicas->parameters);
    free(replicas->watches);
    free(replicas->units);
    free(replicas);
}

void shard_replicas_set_sync(shard_replicas *replicas, bool sync)
{
    replicas->local = !sync;
}
