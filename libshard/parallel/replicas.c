#include "parallel/replicas.h"

#include "base/hash.h"
#include "base/math.h"
#include "distributed/agree.h"
#include "op/op.h"
#include "parallel/unit.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Buffers of one dtype, device and group, in one piece of memory. */
typedef struct buffers {
    shard_group *group;
    shard_device *device;
    shard_dtype dtype;
    int64_t size; /* elements */
    shard_storage *storage;
} buffers;

struct shard_replicas {
    const char *differ;        /* the first words of an error */
    shard_tensors *parameters; /* the parameters that have replicas, frozen ones included */
    shard_watch *watches;      /* [parameters] */
    shard_buffer_mode mode;
    buffers *buffers;
    int64_t buffer_count;
    bool checked; /* the check is done */
    bool local;   /* sync is off */
};

/* ---- parameters ---- */

/* The text of a parameter that must agree on all ranks: with the hash of its values, if it is known. */
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

static uint64_t hash_block(uint64_t hash, const void *data, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, (const char *)data + at, bytes - at < sizeof word ? bytes - at : sizeof word);
        hash = shard_hash_word(hash, word);
        hash ^= hash >> 32; /* else a change of the signs of two elements could keep the hash */
    }
    return hash;
}

/* Hashes values in a device's memory block by block. */
static shard_status hash_values(shard_tensor *parameter, uint64_t *hash)
{
    enum { BLOCK = 1 << 20 };
    size_t bytes = (size_t)shard_numel(parameter) * shard_dtype_size(parameter->dtype);
    const char *memory = shard_tensor_memory(parameter);
    *hash = SHARD_HASH_START;
    if (!memory)
        return shard_last_status();
    if (shard_ops(parameter)->host_memory) {
        *hash = hash_block(*hash, memory, bytes);
        return SHARD_OK;
    }
    char *block = shard_calloc(BLOCK, 1);
    shard_status status = block ? SHARD_OK : shard_last_status();
    for (size_t at = 0; at < bytes && status == SHARD_OK; at += BLOCK) {
        size_t part = bytes - at < BLOCK ? bytes - at : BLOCK;
        status = SHARD_RUN(parameter, copy_out, block, memory + at, part);
        *hash = hash_block(*hash, block, part);
    }
    free(block);
    return status;
}

/* Compares the parameters that are replicated over one group: names, shapes, dtypes and whether they are frozen, in
 * their order, and values. */
static shard_status compare_over(const shard_tensors *parameters, shard_group *group, bool values, const char *what)
{
    shard_agreement mine = {0};
    shard_status status = shard_last_status();
    for (int64_t i = 0; i < shard_tensors_count(parameters) && status == SHARD_OK; i++) {
        shard_tensor *parameter = shard_tensors_at(parameters, i);
        uint64_t hash = 0;
        bool here = values && !parameter->storage->materializer; /* else no rank has it whole */
        if (shard_parameter_group(parameter) != group)
            continue;
        if (here)
            status = hash_values(parameter, &hash);
        if (status == SHARD_OK)
            status = shard_agreement_add(&mine, describe(parameters, i, here ? &hash : NULL));
    }
    return shard_agreement_check(&mine, group, what);
}

static shard_status compare_all(const shard_tensors *parameters, bool values, const char *what)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_group *group = shard_parameter_group(shard_tensors_at(parameters, i));
        bool done = !group;
        for (int64_t j = 0; j < i; j++)
            done |= shard_parameter_group(shard_tensors_at(parameters, j)) == group;
        if (!done)
            SHARD_TRY(compare_over(parameters, group, values, what));
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

static buffers *find_or_add(shard_replicas *replicas, const shard_tensor *tensor)
{
    shard_group *group = shard_parameter_group(tensor);
    for (int64_t i = 0; i < replicas->buffer_count; i++) {
        buffers *b = &replicas->buffers[i];
        if (b->group == group && b->device == shard_device_of(tensor) && b->dtype == tensor->dtype)
            return b;
    }
    replicas->buffers[replicas->buffer_count] =
        (buffers){.group = group, .device = shard_device_of(tensor), .dtype = tensor->dtype};
    return &replicas->buffers[replicas->buffer_count++];
}

static bool is_buffer(const shard_replicas *replicas, const shard_tensor *tensor)
{
    for (int64_t i = 0; i < shard_tensors_count(replicas->parameters); i++)
        if (shard_tensors_at(replicas->parameters, i) == tensor)
            return false;
    return !tensor->requires_grad && shard_parameter_group(tensor) && shard_numel(tensor) > 0;
}

static shard_status place_buffers(shard_replicas *replicas, const shard_tensors *list)
{
    int64_t count = shard_tensors_count(list), *start = shard_calloc((size_t)count, sizeof *start);
    replicas->buffers = shard_calloc((size_t)count, sizeof *replicas->buffers);
    shard_status status = start && replicas->buffers ? SHARD_OK : shard_last_status();
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        const shard_tensor *tensor = shard_tensors_at(list, i);
        if (!is_buffer(replicas, tensor))
            continue;
        buffers *b = find_or_add(replicas, tensor);
        int64_t unit = SHARD_FLAT_ALIGNMENT / (int64_t)shard_dtype_size(b->dtype);
        start[i] = b->size;
        b->size += shard_round_up(shard_numel(tensor), unit);
    }
    for (int64_t i = 0; i < replicas->buffer_count && status == SHARD_OK; i++) {
        buffers *b = &replicas->buffers[i];
        b->storage = shard_storage_make(b->device, (size_t)b->size * shard_dtype_size(b->dtype));
        if (b->storage)
            shard_storage_set_kind(b->storage, SHARD_MEMORY_PARAMETERS);
        status = b->storage ? shard_storage_zero(b->storage) : shard_last_status();
    }
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        shard_tensor *tensor = shard_tensors_at(list, i);
        if (!is_buffer(replicas, tensor))
            continue;
        const buffers *b = find_or_add(replicas, tensor);
        status = shard_tensor_move(tensor, b->storage, (size_t)start[i] * shard_dtype_size(b->dtype));
    }
    free(start);
    return status;
}

/* Integers are counters, which are not averaged. */
static shard_status sync_buffers(const shard_replicas *replicas, shard_buffer_mode mode)
{
    for (int64_t i = 0; i < replicas->buffer_count; i++) {
        const buffers *b = &replicas->buffers[i];
        void *memory = b->storage->memory;
        b->storage->version++;
        if (mode == SHARD_BUFFERS_BROADCAST || !shard_dtype_is_float(b->dtype)) {
            SHARD_TRY(shard_group_broadcast(b->group, b->device, memory, b->size, b->dtype, 0));
            continue;
        }
        SHARD_TRY(shard_group_all_reduce(b->group, b->device, memory, b->size, b->dtype, SHARD_SUM));
        SHARD_TRY(b->device->ops->axpby(b->device, b->size, 1.0 / shard_group_size(b->group), memory, 0.0, memory, b->dtype));
    }
    return SHARD_OK;
}

/* ---- a backward ---- */

static shard_status end_backward(void *context)
{
    const shard_replicas *replicas = context;
    return sync_buffers(replicas, replicas->mode);
}

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
    if (!replicas->checked) {
        replicas->checked = true;
        compare_all(replicas->parameters, true, replicas->differ);
    }
    if (replicas->buffer_count)
        shard_at_backward_end(end_backward, replicas);
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
        shard_watch **at = find_watch(replicas, parameter);
        if (!parameter->requires_grad || *at)
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
    if (options->check)
        SHARD_TRY(compare_all(parameters, false, replicas->differ));
    if (options->buffers && replicas->mode != SHARD_BUFFERS_LEAVE)
        SHARD_TRY(place_buffers(replicas, options->buffers));
    if (options->init_sync) {
        SHARD_TRY(sync_buffers(replicas, SHARD_BUFFERS_BROADCAST));
        SHARD_TRY(broadcast_frozen(replicas->parameters));
    }
    return watch_all(replicas);
}

shard_replicas *shard_replicas_create(const shard_tensors *parameters, const shard_data_parallel_options *options,
                                      const char *differ)
{
    shard_replicas *replicas = shard_calloc(1, sizeof *replicas);
    if (!replicas)
        return NULL;
    *replicas = (shard_replicas){
        .differ = differ, .parameters = shard_tensors_create(), .mode = options->buffer_mode, .checked = !options->check};
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
        shard_watch **at = find_watch(replicas, parameter);
        if (*at)
            *at = (*at)->next;
    }
    for (int64_t i = 0; i < replicas->buffer_count; i++)
        shard_storage_unref(replicas->buffers[i].storage);
    shard_tensors_destroy(replicas->parameters);
    free(replicas->watches);
    free(replicas->buffers);
    free(replicas);
}

void shard_replicas_set_sync(shard_replicas *replicas, bool sync)
{
    replicas->local = !sync;
}
