/*
 * ZeRO in one call: the engine of the optimizer's parameters, which partitions them. The optimizer follows the
 * engine (local.c), and with overlap the engine calls its step.
 */
#include "optim/optimizer.h"

#include "base/options.h"
#include "comm/function.h"
#include "parallel/replicas.h"

#include <shard/distributed.h>

#include <stdlib.h>

struct shard_zero_optimizer {
    shard_zero_optimizer_options options;
    shard_bucket_options buckets;
    shard_engine *engine; /* a reference */
    shard_replicas *replicas;
};

/* ---- identical arguments ---- */

void shard_optimizer_describe(const shard_optimizer *optimizer, int digits, shard_identical_lines *mine)
{
    static const char *const roundings[] = {"nearest", "stochastic", "kahan"};
    const shard_optimizer_defaults *defaults = &optimizer->defaults;
    shard_identical_lines_add(mine, shard_format("optimizer %s", optimizer->ops->name));
    shard_identical_lines_add(mine, shard_format("lr %.*g", digits, defaults->lr));
    shard_identical_lines_add(mine, shard_format("weight_decay %.*g", digits, defaults->weight_decay));
    shard_identical_lines_add(mine, shard_format("decay_1d %s", shard_word(defaults->decay_1d)));
    shard_identical_lines_add(mine, shard_format("adapt_1d %s", shard_word(defaults->adapt_1d)));
    shard_identical_lines_add(mine, shard_format("rounding %s", roundings[defaults->rounding]));
    shard_identical_lines_add(mine, shard_format("seed %llu", (unsigned long long)defaults->seed));
    shard_identical_lines_add(mine, shard_format("state_dtype %d", defaults->state_dtype));
    for (int64_t i = 1; i < optimizer->group_count; i++) {
        const shard_param_group_options *group = &optimizer->groups[i];
        shard_identical_lines_add(mine, shard_format("lr_scale %.*g and weight_decay %.*g of group %lld", digits, group->lr_scale,
                                                     digits, group->weight_decay, (long long)i));
        shard_identical_lines_add(mine, shard_format("decay_1d %d of group %lld", group->decay_1d, (long long)i));
    }
    shard_identical_lines_add(mine, optimizer->ops->describe(optimizer->settings));
}

/* Compares the settings of all ranks: each range is stepped with its rank's settings, and published to all ranks.
 * Collective over the world, also for a rank that has failed. */
static shard_status compare_settings(const shard_optimizer *optimizer)
{
    shard_identical_lines mine = {0};
    if (shard_last_status() == SHARD_OK) {
        const shard_zero_optimizer_options *options = &optimizer->zero->options;
        shard_identical_lines_add(&mine, shard_format("stage %d", options->stage));
        shard_identical_lines_add(&mine,
                                  shard_format("partition %s", options->partition ? "SHARD_ZERO_WHOLE" : "SHARD_ZERO_EVEN"));
        shard_identical_lines_add(&mine,
                                  shard_format("bucket_mib %.9g", (double)shard_bucket_bytes(options->bucket_mib) / 1048576.0));
        shard_identical_lines_add(&mine, shard_format("overlap %s", shard_word(options->overlap)));
        shard_optimizer_describe(optimizer, 15, &mine);
    }
    return shard_identical_lines_check(&mine, shard_world(), "shard_zero_optimizer: the ranks' settings differ");
}

/* ---- partitioning ---- */

/* shard_zero_optimizer or shard_optimizer_add_param_group, for messages. */
static const char *function(void)
{
    return shard_current_function()->name;
}

/* Checks that .group, if it is set, has all ranks of the replica group. */
static shard_status check_group(const shard_zero_optimizer_options *options, const shard_slot *slot)
{
    shard_group *replicas = shard_parameter_group(slot->parameter), *group = options->group;
    if (!group || !replicas || shard_group_common(group, replicas) == shard_group_size(replicas))
        return SHARD_OK;
    return shard_error(
        SHARD_ERROR_UNSUPPORTED,
        "%s: \"%s\" is replicated on %d ranks, of which %d are in the group of %d: a partition over fewer ranks than all "
        "replicas would need an additional average over the others; leave .group NULL for each parameter's replica group",
        function(), slot->name, shard_group_size(replicas), shard_group_common(group, replicas), shard_group_size(group));
}

/* Checks a parameter that the engine does not have yet, or has not partitioned. */
static shard_status check_new(const shard_slot *slot)
{
    if (shard_slot_is_listed(slot))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%s: the state of \"%s\" is in a state dict, which would be of it no more: destroy the state dict "
                           "before the call, and make it again after it",
                           function(), slot->name);
    if (shard_slot_has_gradient(slot))
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "%s: \"%s\" has a gradient already, which would be lost: partition it before backward or after shard_step",
            function(), slot->name);
    return SHARD_OK;
}

/* Whether the optimizer's engine may have the parameter: it belongs to this engine, to none, or to the data parallel whose
 * engine becomes the optimizer's. */
static shard_status check_owner(const shard_slot *slot, const shard_engine *mine, const shard_engine *taken)
{
    const shard_engine *engine = shard_engine_of(slot->parameter);
    if (!engine || engine == mine || engine == taken)
        return SHARD_OK;
    if (shard_engine_level(engine) > SHARD_PARTITION_NONE)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "%s: \"%s\" is partitioned already, by a shard_data_parallel with .stage or with another optimizer: only one of them "
            "can partition a parameter; an optimizer steps such parameters without shard_zero_optimizer",
            function(), slot->name);
    return shard_error(
        SHARD_ERROR_ARGUMENT,
        "%s: \"%s\" is under a shard_data_parallel, and others of the optimizer's parameters are under another one or "
        "partitioned already: make one shard_data_parallel for all of them first, or make it after the optimizer has all of them",
        function(), slot->name);
}

/* The data parallel that averages the optimizer's parameters until now; NULL: none. */
static shard_engine *find_engine(const shard_optimizer *optimizer)
{
    for (int64_t i = 0; i < optimizer->count; i++) {
        shard_engine *engine = shard_engine_of(optimizer->slots[i].parameter);
        if (engine)
            return shard_engine_level(engine) == SHARD_PARTITION_NONE ? engine : NULL;
    }
    return NULL;
}

static shard_status check_slots(const shard_optimizer *optimizer, const shard_engine *taken)
{
    const struct shard_zero_optimizer *zero = optimizer->zero;
    for (int64_t i = 0; i < optimizer->count; i++) {
        const shard_slot *slot = &optimizer->slots[i];
        const shard_engine *engine = shard_engine_of(slot->parameter);
        bool is_new = shard_engine_takes(slot->parameter) && (!engine || engine != zero->engine);
        SHARD_TRY(is_new ? check_new(slot) : SHARD_OK);
        SHARD_TRY(check_owner(slot, zero->engine, taken));
        SHARD_TRY(check_group(&zero->options, slot));
    }
    if (taken && shard_engine_has_gradient(taken))
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_zero_optimizer: a parameter of another optimizer, in the same data parallel, has a gradient, which "
            "would be lost: call it before backward or after the step of each optimizer");
    return SHARD_OK;
}

/* The engine, in the first call: that of an existing data parallel, or a new one. */
static shard_status make_engine(struct shard_zero_optimizer *zero, shard_engine *taken)
{
    if (zero->engine)
        return SHARD_OK;
    zero->engine = taken ? shard_engine_ref(taken) : shard_engine_create(zero->buckets);
    if (!zero->engine)
        return shard_last_status();
    return taken ? shard_engine_partition(taken, zero->buckets) : SHARD_OK;
}

shard_status shard_zero_take(shard_optimizer *optimizer)
{
    SHARD_TRY(compare_settings(optimizer));
    struct shard_zero_optimizer *zero = optimizer->zero;
    shard_engine *taken = zero->engine ? NULL : find_engine(optimizer);
    int64_t had = zero->engine ? shard_engine_buckets(zero->engine) : 0;
    if (shard_last_status() == SHARD_OK)
        check_slots(optimizer, taken);
    SHARD_TRY(shard_agree(shard_world()));
    shard_replicas *replicas =
        shard_replicas_create(optimizer->parameters, &(shard_data_parallel_options)SHARD_DATA_PARALLEL_OPTIONS_INIT);
    shard_status status = replicas ? make_engine(zero, taken) : shard_last_status();
    if (status == SHARD_OK)
        status = shard_engine_add(zero->engine, optimizer->parameters);
    if (status == SHARD_OK)
        shard_optimizer_follow(optimizer);
    status = shard_agree(shard_world());
    if (status != SHARD_OK && zero->engine) /* ranks on which all went well do as the others */
        shard_engine_remove_buckets(zero->engine, had);
    shard_replicas_destroy(status == SHARD_OK ? zero->replicas : replicas);
    if (status == SHARD_OK)
        zero->replicas = replicas;
    return status;
}

/* ---- overlap ---- */

/* Another optimizer steps by the gradients of the bucket's other parameters. The slots of one storage are next to each other. */
static void step_bucket(const shard_bucket *bucket, void *context)
{
    shard_optimizer *optimizer = context;
    shard_slot **order = optimizer->order;
    int64_t from = 0, end;
    while (from < optimizer->count && !shard_engine_is_in(order[from]->parameter, bucket))
        from++;
    for (end = from; end < optimizer->count && shard_engine_is_in(order[end]->parameter, bucket);)
        end++;
    if (shard_optimizer_refuse_swapped(optimizer, "shard_backward") == SHARD_OK &&
        shard_optimizer_make_state(optimizer, false) == SHARD_OK)
        shard_optimizer_step_slots(optimizer, from, end - from);
    for (int64_t i = from; i < end; i++) {
        shard_engine_mark_updated(order[i]->parameter);
        shard_zero_grad(order[i]->parameter);
    }
}

shard_status shard_optimizer_refuse_overlap(const shard_optimizer *optimizer, const char *function)
{
    if (!optimizer->zero || !optimizer->zero->options.overlap)
        return SHARD_OK;
    return shard_error(
        SHARD_ERROR_UNSUPPORTED,
        "%s: shard_zero_optimizer steps this optimizer during backward (overlap), when gradients are not all there to be "
        "clipped or scaled together: leave .overlap off",
        function);
}

/* ---- making ---- */

static shard_status check(const shard_optimizer *optimizer, const shard_zero_optimizer_options *options,
                          shard_bucket_options *buckets)
{
    if (!optimizer)
        return shard_null_argument("shard_zero_optimizer", "optimizer");
    buckets->broadcast = true;
    SHARD_TRY(shard_bucket_options_set(buckets, "shard_zero_optimizer", SHARD_PARTITION_OPTIMIZER, options->stage,
                                       options->partition, options->bucket_mib));
    if (optimizer->zero)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_zero_optimizer: the optimizer is partitioned already");
    if (optimizer->ops->row_states && options->partition != SHARD_ZERO_WHOLE)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_zero_optimizer: the state of %s is one number for each row, and an even partition cuts rows: "
                           "partition whole parameters, .partition = SHARD_ZERO_WHOLE",
                           optimizer->ops->name);
    if (options->overlap && optimizer->ops->trust)
        return shard_error(SHARD_ERROR_UNSUPPORTED,
                           "shard_zero_optimizer: %s takes norms of whole layers first: it cannot step during backward (overlap)",
                           optimizer->ops->name);
    return SHARD_OK;
}

shard_optimizer *shard_zero_optimizer_with(shard_optimizer *optimizer, const shard_zero_optimizer_options *given)
{
    SHARD_FUNCTION("shard_zero_optimizer");
    SHARD_READ_OPTIONS(shard_zero_optimizer_options, SHARD_ZERO_OPTIMIZER_OPTIONS_INIT, options, given);
    shard_bucket_options buckets = {0};
    if (check(optimizer, &options, &buckets) == SHARD_OK && (optimizer->zero = shard_calloc(1, sizeof *optimizer->zero)))
        *optimizer->zero = (struct shard_zero_optimizer){.options = options, .buckets = buckets};
    if (shard_zero_take(optimizer) == SHARD_OK && options.overlap)
        shard_engine_on_reduced(optimizer->zero->engine, step_bucket, optimizer);
    return shard_agree(shard_world()) == SHARD_OK ? optimizer : NULL;
}

void shard_zero_destroy(struct shard_zero_optimizer *zero)
{
    if (!zero)
        return;
    if (zero->engine && zero->options.overlap)
        shard_engine_on_reduced(zero->engine, NULL, NULL);
    shard_replicas_destroy(zero->replicas);
    shard_engine_unref(zero->engine);
    free(zero);
}
