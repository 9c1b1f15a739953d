/* Exponential moving averages of parameters, on the optimizer's local ranges. */
#include "optim/optimizer.h"
#include "base/options.h"

#include "comm/function.h"
#include "comm/preflight.h"
#include "device/graph.h"

#include <shard/distributed.h>

#include <inttypes.h>
#include <stdlib.h>

enum { ROOM = 4 << 20 }; /* bytes */

typedef struct average {
    const shard_tensor *of; /* the range's tensor */
    shard_tensor *value;    /* idle: the parameter is frozen, and is the average */
} average;

struct shard_ema {
    shard_optimizer *optimizer;
    shard_ema_options options;
    average *averages; /* of the optimizer's slots known so far */
    int64_t count, capacity;
    shard_tensor *updates; /* int64, on the host */
};

static bool is_swapped(const shard_ema *ema)
{
    return ema->optimizer->swapped == ema;
}

shard_ema *shard_ema_create_with(shard_optimizer *optimizer, const shard_ema_options *given)
{
    SHARD_FUNCTION("shard_ema_create");
    SHARD_READ_OPTIONS(shard_ema_options, SHARD_EMA_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (!optimizer)
        return shard_null_argument("shard_ema_create", "optimizer"), NULL;
    if (!(options.decay > 0 && options.decay < 1))
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_ema_create: decay %g is not between 0 and 1", options.decay);
    shard_ema *ema = shard_calloc(1, sizeof *ema);
    if (!ema)
        return NULL;
    *ema = (shard_ema){.optimizer = optimizer, .options = options};
    ema->updates = shard_keep(shard_zeros(SHARD_SCALAR, .dtype = SHARD_INT64, .device = shard_cpu()));
    if (ema->updates)
        return ema;
    shard_ema_destroy(ema);
    return NULL;
}

void shard_ema_destroy(shard_ema *ema)
{
    if (!ema)
        return;
    shard_graph_forget(ema);
    if (is_swapped(ema))
        ema->optimizer->swapped = NULL;
    for (int64_t i = 0; i < ema->count; i++)
        shard_tensor_unref(ema->averages[i].value);
    shard_tensor_unref(ema->updates);
    free(ema->averages);
    free(ema);
}

/* Else it has no value yet. Writes to the storage count for all averages in it. */
static bool is_begun(const shard_tensor *value)
{
    return (value->writes ? value->writes->count : value->storage->version) > 0;
}

/* Forgets an average that was not begun, of a parameter that was frozen, and is partitioned since. */
static shard_status check_range(const shard_slot *slot, average *a)
{
    if (!a->value || a->of == slot->range.tensor)
        return SHARD_OK;
    if (is_begun(a->value) || a->value->references > 1)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_ema: \"%s\" was partitioned after its average was begun, or while a state dict has the "
                           "average: destroy that, or call shard_zero_optimizer or shard_data_parallel_create first",
                           slot->name);
    shard_tensor_unref(a->value);
    a->value = NULL;
    return SHARD_OK;
}

/* Makes the averages that there are not yet. */
static shard_status make_averages(shard_ema *ema)
{
    shard_optimizer *optimizer = ema->optimizer;
    SHARD_TRY(shard_optimizer_follow(optimizer));
    SHARD_TRY(shard_grow(&ema->averages, &ema->capacity, optimizer->count, sizeof *ema->averages));
    shard_run *runs = optimizer->runs;
    while (ema->count < optimizer->count)
        ema->averages[ema->count++] = (average){0};
    int64_t count = 0;
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_slot *slot = optimizer->order[i];
        average *a = &ema->averages[slot - optimizer->slots];
        SHARD_TRY(check_range(slot, a));
        if (!a->value)
            runs[count++] = shard_run_to_make(slot, slot->range.tensor->dtype, 1, &a->value);
        else
            a->value->leaf->optional = !slot->parameter->requires_grad;
        a->of = slot->range.tensor;
    }
    return shard_runs_make(runs, count);
}

static shard_status refuse_swapped(const shard_ema *ema, const char *function)
{
    if (!ema)
        return shard_null_argument(function, "ema");
    if (ema->optimizer->swapped)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: %s averages are in the parameters' place: shard_ema_swap them back first",
                           function, is_swapped(ema) ? "the" : "another shard_ema's");
    return shard_last_status();
}

static void count_update(void *context, void *values, int count)
{
    const shard_ema *ema = context;
    (void)values;
    if (count > 0)
        shard_optimizer_refuse_swapped(ema->optimizer, "shard_graph_replay");
    *(int64_t *)shard_tensor_memory_to_write(ema->updates) += count;
    for (int64_t i = 0; i < ema->count; i++)
        if (ema->averages[i].value && !shard_tensor_is_idle(ema->averages[i].value))
            shard_tensor_count_write(ema->averages[i].value);
}

/* A replay uses the decay of the capture, and counts one update. */
static shard_status capture_update(shard_ema *ema, int64_t updates, double decay)
{
    if (updates == 0)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_ema_update: the first update is in a capture: make one before shard_graph_begin");
    if (decay != ema->options.decay)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_ema_update: the decay warms up, and is %g of %g: update outside of the capture, after each "
                           "shard_graph_replay",
                           decay, ema->options.decay);
    bool registered =
        shard_graph_on_replay(shard_graph_capturing(), (shard_replay){.call = count_update, .context = ema, .owner = ema}, 0);
    return registered ? SHARD_OK : shard_last_status();
}

/* Starts the averages without a value with the parameters' values; with `update`, the others become
 * decay * average + (1 - decay) * parameter. After an error those before it have. */
static shard_status blend_all(shard_ema *ema, bool update, double decay)
{
    shard_optimizer *optimizer = ema->optimizer;
    shard_status status = make_averages(ema);
    shard_run *runs = optimizer->runs;
    int64_t count = 0;
    for (int64_t i = 0; i < optimizer->count && status == SHARD_OK; i++) {
        shard_slot *slot = optimizer->order[i];
        shard_tensor *range = slot->range.tensor, *value = ema->averages[slot - optimizer->slots].value;
        bool begins = !is_begun(value);
        if (shard_tensor_is_idle(value) || (!update && !begins))
            continue;
        if (shard_numel(value) == 0) {
            shard_tensor_count_write(value); /* as on the ranks that have elements of it */
            continue;
        }
        if (update && begins && shard_is_capturing())
            status = shard_error(SHARD_ERROR_UNSUPPORTED,
                                 "shard_ema_update: the first update of a parameter's average is in a capture: make one before "
                                 "shard_graph_begin");
        void *from = status == SHARD_OK ? shard_tensor_memory(range) : NULL;
        void *to = from ? shard_tensor_memory_to_write(value) : NULL;
        shard_update blend = {.size = shard_numel(value), .gradient = from, .value = to, .lr = begins ? 0.0 : decay};
        if (to)
            runs[count++] = (shard_run){.slot = slot, .array = {range, value}, .update = blend};
        else
            status = shard_last_status();
    }
    count = shard_runs_join(runs, count); /* those with the same decay, the update's lr */
    for (int64_t i = 0; i < count; i++) { /* after an error too: their writes are counted */
        const shard_update *blend = &runs[i].update;
        const shard_tensor *range = runs[i].array[0];
        shard_ops(range)->axpby(shard_device_of(range), blend->size, 1.0 - blend->lr, blend->gradient, blend->lr, blend->value,
                                range->dtype);
    }
    return status == SHARD_OK ? shard_last_status() : status;
}

static shard_status update(shard_ema *ema)
{
    SHARD_TRY(refuse_swapped(ema, "shard_ema_update"));
    SHARD_TRY(shard_optimizer_follow(ema->optimizer)); /* before a capture counts the update */
    int64_t *updates = shard_tensor_memory_to_write(ema->updates);
    if (!updates)
        return shard_last_status();
    if (*updates < 0)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_ema_update: n_averaged is %" PRId64 ", as it was loaded: it counts updates", *updates);
    double decay = ema->options.decay, early = (1.0 + (double)*updates) / (10.0 + (double)*updates);
    if (ema->options.warmup && early < decay)
        decay = early;
    if (shard_is_capturing())
        SHARD_TRY(capture_update(ema, *updates, decay));
    SHARD_TRY(blend_all(ema, true, *updates ? decay : 0.0));
    *updates += !shard_is_capturing();
    return SHARD_OK;
}

/* With an error that the other ranks do not have, the averages are updated all the same: the others' are. */
shard_status shard_ema_update(shard_ema *ema)
{
    SHARD_FUNCTION("shard_ema_update");
    int ranks = shard_group_size(shard_world());
    shard_kept_error earlier;
    if (shard_last_status() == SHARD_OK)
        return update(ema);
    if (ranks == 1 || shard_error_is_joint(ranks))
        return shard_last_status();
    shard_keep_error(&earlier);
    update(ema);
    shard_put_back_error(&earlier);
    return shard_last_status();
}

/* ---- exchange with the parameters ---- */

/* Exchanges the values in blocks, through a buffer that is small compared with the tensors. */
static shard_status exchange(shard_tensor *a, shard_tensor *b)
{
    shard_device *device = shard_device_of(a);
    size_t bytes = shard_tensor_bytes(a), most = bytes < ROOM ? bytes : ROOM;
    char *x = bytes ? shard_tensor_memory_to_write(a) : NULL, *y = x ? shard_tensor_memory_to_write(b) : NULL;
    void *room = y ? shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, most) : NULL;
    shard_status status = room || bytes == 0 ? SHARD_OK : shard_last_status();
    for (size_t at = 0, some; at < bytes && status == SHARD_OK; at += some) {
        some = bytes - at < most ? bytes - at : most;
        status = device->ops->copy_rows(device, room, some, x + at, some, some, 1);
        if (status == SHARD_OK)
            status = device->ops->copy_rows(device, x + at, some, y + at, some, some, 1);
        if (status == SHARD_OK)
            status = device->ops->copy_rows(device, y + at, some, room, some, some, 1);
    }
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, room, most);
    return status;
}

/* The first `count` ones; how many of them it has been. */
static int64_t exchange_first(shard_ema *ema, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        shard_tensor *value = ema->averages[i].value;
        if (!shard_tensor_is_idle(value) && exchange(ema->optimizer->slots[i].range.tensor, value) != SHARD_OK)
            return i;
    }
    return count;
}

/* All of a rank's on every rank, or none. */
shard_status shard_ema_swap(shard_ema *ema)
{
    SHARD_FUNCTION("shard_ema_swap");
    if (!ema || !is_swapped(ema))
        refuse_swapped(ema, "shard_ema_swap");
    shard_graph_refuse("an exchange of averages and parameters");
    const int64_t *updates = ema ? shard_tensor_memory(ema->updates) : NULL;
    if (updates)
        shard_require_identical("averages of %" PRId64 " updates", *updates);
    int64_t done = 0;
    if (shard_last_status() == SHARD_OK && blend_all(ema, false, 0.0) == SHARD_OK)
        done = exchange_first(ema, ema->optimizer->count);
    shard_status status = shard_agree(shard_world());
    if (status != SHARD_OK) {
        exchange_first(ema, done);
        return status;
    }
    ema->optimizer->swapped = is_swapped(ema) ? NULL : ema;
    for (int64_t i = 0; i < ema->count; i++)
        if (!shard_tensor_is_idle(ema->averages[i].value))
            ema->averages[i].value->leaf->exchanged = is_swapped(ema);
    return shard_optimizer_publish(ema->optimizer, true);
}

shard_tensors *shard_ema_state_dict(shard_ema *ema)
{
    SHARD_FUNCTION("shard_ema_state_dict");
    shard_status status = refuse_swapped(ema, "shard_ema_state_dict");
    if (status == SHARD_OK)
        status = blend_all(ema, false, 0.0);
    shard_tensors *list = status == SHARD_OK ? shard_tensors_create() : NULL;
    if (!list)
        return NULL;
    status = shard_tensors_add(list, "n_averaged", ema->updates);
    for (int64_t i = 0; i < ema->optimizer->count && status == SHARD_OK; i++)
        status = shard_tensors_add(list, ema->optimizer->slots[i].name, ema->averages[i].value);
    if (status == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}
