/*
 * An optimizer: a table of functions over local ranges.
 *
 * A local range is the flat range of a parameter that this rank updates: all elements, or fewer if an
 * engine partitions it. Steps, clipping, scaling and averages use local ranges, and need not know which
 * rank has the other elements.
 */
#ifndef SHARD_OPTIM_OPTIMIZER_H
#define SHARD_OPTIM_OPTIMIZER_H

#include <shard/optim.h>

#include "parallel/engine.h"

typedef struct shard_local_range {
    shard_tensor *tensor; /* a leaf with its gradient: the parameter itself, or a range of its elements, row-major */
    int64_t start;        /* of the range, in this rank's parameter */
    shard_tensor *state[SHARD_OPTIMIZER_STATES]; /* of as many elements; NULL until it is needed */
} shard_local_range;

typedef struct shard_slot {
    const char *name;
    shard_tensor *parameter; /* the list's */
    int64_t group;
    shard_tensor *step; /* int64, on the host: how many were made of this parameter */
    shard_local_range range;
    shard_engine *engine; /* a reference: of the engine that the range is of; NULL: it is the parameter */
} shard_slot;

/* Does a list of updates of one dtype: of local ranges, or of several in one that lie one after the
 * other in memory and have the same settings and number of steps. Between those are gaps of less
 * than 64 bytes, zeros in all arrays: an update of zeros by zeros must leave zeros. */
typedef shard_status shard_optimizer_step(const shard_optimizer *, shard_device *, int64_t count, const shard_update *updates,
                                          shard_dtype);

typedef struct shard_optimizer_ops {
    const char *name;
    int states;
    const char *state_name[SHARD_OPTIMIZER_STATES];
    /* Its own settings in one line, which is of malloc, so that ranks can compare them; NULL with
     * the error set. */
    char *(*describe)(const void *settings);
    shard_optimizer_step *step;
    /* NULL, or for Adam's: what changes from step to step, but for lr and first, which are there. */
    void (*factors)(const shard_optimizer *, const shard_update *, shard_step_factors *);
    /* NULL, or for steps whose size depends on norms of the layer, wherever its local ranges are
     * (LARS, LAMB): how the trust ratio, which the updates then have, is made of the norms. */
    shard_trust_options (*trust)(const shard_optimizer *, const shard_update *);
    /* NULL, or called before: leaves in the gradients' places what the norms are taken of and the
     * step takes, without weight decay and a scale of its own. */
    shard_optimizer_step *prepare;
} shard_optimizer_ops;

/* The settings of all optimizers, which groups of parameters may change. */
typedef struct shard_optimizer_defaults {
    double lr, weight_decay;
    bool decay_1d; /* weight decay on tensors of fewer than two dimensions, too */
    bool adapt_1d; /* trust ratios of these, too */
} shard_optimizer_defaults;

struct shard_optimizer {
    const shard_optimizer_ops *ops;
    shard_tensors *parameters;
    shard_slot *slots; /* each parameter once */
    int64_t count, capacity;
    shard_optimizer_defaults defaults;
    shard_param_group_options *groups; /* the first one changes nothing */
    int64_t group_count, group_capacity;
    shard_tensor *grad_scale; /* NULL until it is needed */
    bool scaled;              /* else it holds nothing, and 1 is meant */
    double clip_value;        /* of shard_clip_grad_value since the gradients were zeroed, or 0 */
    bool skipped;             /* the last step was left out */
    void *settings;           /* the optimizer's own, freed with it */
    struct shard_zero_optimizer *zero; /* NULL: shard_zero_optimizer was not called */
};

static inline const char *shard_word(bool flag)
{
    return flag ? "true" : "false";
}

/* NULL with the error set. The settings, of which it has a copy of its own, are the optimizer's. */
shard_optimizer *shard_optimizer_make(const shard_optimizer_ops *ops, const shard_tensors *parameters,
                                      shard_optimizer_defaults defaults, const void *settings, size_t settings_size);

/* UNSUPPORTED in that public function where steps are made during backward, so that there is never
 * a gradient of all parameters at a time. */
shard_status shard_optimizer_refuse_overlap(const shard_optimizer *optimizer, const char *function);

/* A float64 in device memory by which the next step multiplies the gradients: 1, or what
 * others have made of it since the last. Clipping and loss scaling multiply it, and the
 * gradients stay as they are. NULL with the error set. */
double *shard_optimizer_grad_scale(shard_optimizer *optimizer);

/* *sum (device memory) = the sum of |x|^power over the gradients of the local ranges, or of
 * those that count (shard_slot_counts); the largest |x| of power INFINITY. They are on `device`. */
shard_status shard_optimizer_power_sum(const shard_optimizer *optimizer, shard_device *device, double power, bool counted,
                                       double *sum);

/* Whether there is a gradient to step by. */
bool shard_slot_has_gradient(const shard_slot *slot);

/* Whether the local range counts in a sum over the world in which each element is to count once: of the ranks
 * that have the same range, the first one's does. */
bool shard_slot_counts(const shard_slot *slot);

/* Steps the wanted slots (wanted NULL: all) that have a gradient, which stays. */
shard_status shard_optimizer_step_where(shard_optimizer *optimizer, bool (*wanted)(const shard_slot *, const void *context),
                                        const void *context);

/* Sets lr and weight decay of the update from the settings. */
void shard_optimizer_choose_settings(const shard_optimizer *optimizer, const shard_slot *slot, shard_update *update);

/* ---- local.c ---- */

/* Has the slots update the local ranges that their parameters' engines, made or changed since, say; state goes along. */
shard_status shard_optimizer_follow(shard_optimizer *optimizer);

/* Whether engines partition any of its parameters. */
bool shard_optimizer_is_partitioned(const shard_optimizer *optimizer);

/* After an update of the local ranges that have a gradient, or of all: all ranks get each other's. Collective over the
 * parameters' replica groups, also for a rank that has failed. */
shard_status shard_optimizer_publish(const shard_optimizer *optimizer, bool all);

/* Whether a state dict has the slot's state. */
bool shard_slot_is_listed(const shard_slot *slot);

void shard_local_range_release(shard_local_range *range);

/* ---- captured.c: of a step in a capture ---- */

/* Each replay counts a step of the slot's parameter. */
shard_status shard_optimizer_capture_step(shard_optimizer *optimizer, const shard_slot *slot);
/* Device memory with what each replay takes of the slot's step; NULL with the error set. */
const shard_step_factors *shard_optimizer_capture_factors(shard_optimizer *optimizer, const shard_slot *slot);
/* The slot takes those of `like`, which counts the same step: a replay fails where their steps differ by then. */
shard_status shard_optimizer_capture_same_factors(shard_optimizer *optimizer, const shard_slot *slot, const shard_slot *like);

/* A tensor for the range's elements in that memory, saved and loaded as a flat range of the parameter. With storage
 * NULL it is zeros: its memory is allocated when it is first needed, and files do not have it before. The caller
 * releases it; NULL with the error set. */
shard_tensor *shard_range_like(const shard_local_range *range, shard_storage *storage, size_t offset);

/* Makes the state that is missing, zeros, of the slots that have a gradient, or of all; that of
 * frozen ones has no memory yet. */
shard_status shard_optimizer_make_state(shard_optimizer *optimizer, bool all);

#endif
