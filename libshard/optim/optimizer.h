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

#include "autograd/deferred.h"
#include "distributed/identical.h"
#include "parallel/engine.h"

#include <math.h>

/* State tensors of a parameter, at most: those of the device's step, then the compensation. */
enum { SHARD_SLOT_STATES = SHARD_OPTIMIZER_STATES + 1 };

typedef struct shard_local_range {
    shard_tensor *tensor; /* a leaf with its gradient: the parameter itself, or a range of its elements, row-major */
    shard_engine *engine; /* a reference to the engine that made the range; NULL: it is the parameter itself */
    /* The range's optimizer state, shard_slot_states of them: of as many elements, or one for each row; NULL until it is
     * needed. */
    shard_tensor *state[SHARD_SLOT_STATES];
} shard_local_range;

/* The first element of a range's tensor in this rank's parameter. */
static inline int64_t shard_range_start(const shard_tensor *range)
{
    const shard_flat_range *flat = shard_flat_range_of(range);
    return flat ? flat->start : 0;
}

typedef struct shard_slot {
    const char *name;
    shard_tensor *parameter; /* the list's */
    int64_t group;
    shard_tensor *step; /* int64, on the host: the number of steps of this parameter */
    shard_local_range range;
    /* Where the range was when the slots were put in order, and the number of the first slot in that storage. */
    const shard_storage *storage;
    size_t offset;
    int64_t lead;
} shard_slot;

/* Applies a list of updates of the same types. An update is of one local range, or of several that are adjacent in memory and
 * have the same settings and number of steps. Between adjacent ranges are gaps of less than 64 bytes. Gradients are zeros there,
 * which sums over adjacent gradients include: a step leaves gradients as they are. Nothing reads the gaps of other arrays, which
 * are zeros or, where the update of a zero is not one (Adam's with eps 0), NaN. */
typedef shard_status shard_optimizer_step(const shard_optimizer *, shard_device *, int64_t count, const shard_update *updates,
                                          shard_update_types);

typedef struct shard_optimizer_ops {
    const char *name;
    int row_states; /* the first states, which have one number for each row of a matrix (rowwise.c) */
    const char *state_name[SHARD_OPTIMIZER_STATES];
    /* The optimizer's settings in one line, which ranks compare and the caller frees; NULL with the error set. */
    char *(*describe)(const void *settings);
    shard_optimizer_step *step;
    /* NULL (lr, first and step are all), or: sets all factors from the update's lr, weight decay and step. */
    void (*factors)(const shard_optimizer *, const shard_update *, shard_step_factors *);
    /* NULL, or for steps whose size depends on norms of the layer over all ranks (LARS, LAMB): how the trust ratio is
     * computed from the norms. The updates then have a trust ratio. */
    shard_trust_options (*trust)(const shard_optimizer *, const shard_update *);
    /* NULL, or called before the norms are taken: replaces the gradients by the values that the norms are taken of and
     * that the step uses, without weight decay and scale. Each update is of one local range. */
    shard_optimizer_step *prepare;
    bool steps_product; /* the step is one entry of the device, which takes shard_update.product */
} shard_optimizer_ops;

/* The settings of all optimizers, which groups of parameters may change. */
typedef struct shard_optimizer_defaults {
    double lr, weight_decay;
    bool decay_1d; /* weight decay also on tensors of fewer than two dimensions */
    bool adapt_1d; /* trust ratios also for these tensors */
    shard_rounding rounding;
    uint64_t seed;
    int state_dtype; /* -1: the parameter's */
} shard_optimizer_defaults;

/* Those that the options of all optimizers have. */
#define SHARD_COMMON_SETTINGS(options)                                                                                           \
    .lr = (options).lr, .weight_decay = (options).weight_decay, .decay_1d = (options).decay_1d,                                  \
    .rounding = (options).rounding, .seed = (options).seed

/* No value of shard_clip_grad_value: that may be 0. */
#define SHARD_NO_CLIP_VALUE (-1.0)

struct shard_optimizer {
    const shard_optimizer_ops *ops;
    shard_tensors *parameters;
    shard_slot *slots; /* each parameter once */
    int64_t count, capacity; /* the capacity is also that of the next four arrays: only a new slot may lack memory for them */
    /* [ordered] the slots by device and dtype, then by storage (in the order of the first slot of each), then by address:
     * adjacent ranges follow each other, and a program has the same order each time it is run. ordered 0: it is to be made. */
    shard_slot **order;
    int64_t ordered;
    struct shard_run *runs; /* workspace */
    struct shard_update *updates;
    shard_square_sum *square_sums; /* [2 * capacity] */
    shard_optimizer_defaults defaults;
    int states;                        /* of a parameter, of those that ops names, apart from the compensation */
    shard_param_group_options *groups; /* the first one has the defaults */
    int64_t group_count, group_capacity;
    shard_tensor *grad_scale; /* NULL until it is needed */
    bool scaled;              /* else grad_scale is not set, and the scale is 1 */
    double clip_value;        /* of shard_clip_grad_value since the gradients were zeroed, or SHARD_NO_CLIP_VALUE */
    bool skipped;             /* the last step was skipped */
    const struct shard_ema *swapped; /* whose averages are in the parameters' place; NULL: none */
    /* Of a gradient scaler: it has unscaled the gradients since they were zeroed, and one was not finite on some rank; the
     * scaler's period of the last step by it. */
    bool unscaled, overflowed;
    uint64_t scaler_period;
    void *settings;           /* of this kind of optimizer; freed with it */
    /* Of optimizers with trust ratios: [count][3] in the device's memory, taken before the step's shard_agree, after which no
     * rank lacks memory, and until the step's end. */
    double *squares;
    struct shard_zero_optimizer *zero; /* NULL: shard_zero_optimizer was not called */
};

static inline const char *shard_word(bool flag)
{
    return flag ? "true" : "false";
}

/* Whether all are finite numbers, and none is negative. */
bool shard_valid_settings(int count, const double *settings);

/* Makes an optimizer with the first `states` of ops, and a copy of the settings, which are valid. NULL with the error set. */
shard_optimizer *shard_optimizer_make(const shard_optimizer_ops *ops, int states, const shard_tensors *parameters,
                                      shard_optimizer_defaults defaults, const void *settings, size_t settings_size);

/* SGD's step, of an optimizer whose settings begin with shard_sgd_arguments. */
shard_optimizer_step shard_sgd_step;

/* ARGUMENT in the name of the public function if Adam's settings are out of range. */
shard_status shard_check_adam(const char *function, double lr, double beta1, double beta2, double eps, double weight_decay);

/* UNSUPPORTED in the public function of that name if steps are made during backward: the gradients of all parameters
 * then never exist at the same time. */
shard_status shard_optimizer_refuse_overlap(const shard_optimizer *optimizer, const char *function);

/* A float64 in device memory by which the next step multiplies the gradients; 1 after a step. Clipping and loss scaling
 * multiply it and do not write to the gradients. NULL with the error set. */
double *shard_optimizer_grad_scale(shard_optimizer *optimizer);

/* Makes the next collectives of the public function compare which parameters have a gradient, of those whose gradients an engine
 * averages over the world: others may be those of some ranks alone. After a step with a gradient that one rank lacks, which it
 * alone has frozen or cleared, replicas would differ. */
void shard_optimizer_require_identical_gradients(const shard_optimizer *optimizer);

/* *sum (device memory) = the sum of |x|^power over the gradients of the local ranges, or of those that count
 * (shard_slot_counts); with power INFINITY the largest |x|. The gradients are on `device`. */
shard_status shard_optimizer_power_sum(const shard_optimizer *optimizer, shard_device *device, double power, bool counted,
                                       double *sum);

/* *sum = the sum of `count` numbers in device memory that are such sums themselves. */
static inline shard_status shard_join_sums(shard_device *device, int64_t count, double power, const double *sums, double *sum)
{
    return device->ops->power_sum(device, count, power == INFINITY ? INFINITY : 1.0, sums, sum, SHARD_FLOAT64);
}

/* ---- precision.c: the types of the arrays of a step, and how they are rounded ---- */

/* ARGUMENT in the name of the public function if the optimizer has no such rounding or dtype of its state. */
shard_status shard_check_precision(const char *function, const shard_optimizer_defaults *defaults);
/* The types of a step of parameters of that dtype. */
shard_update_types shard_optimizer_types(const shard_optimizer *optimizer, shard_dtype value);
/* How many state tensors the slot has. */
int shard_slot_states(const shard_optimizer *optimizer, const shard_slot *slot);
/* The dtype of a state of a parameter of dtype `value`. */
shard_dtype shard_state_dtype(const shard_optimizer *optimizer, shard_dtype value, int state);
/* Elements of a row of a parameter; of one with fewer than two dimensions, 1. */
int64_t shard_columns_of(const shard_tensor *parameter);
/* Elements of the parameter for each element of the state: 1, or a row. */
int64_t shard_state_columns(const shard_optimizer *optimizer, const shard_slot *slot, int state);
/* The update of the slot's range in a step of that number, without its gradient and value. Counts a write to each state. */
shard_status shard_optimizer_make_update(const shard_optimizer *optimizer, const shard_slot *slot, int64_t step,
                                         shard_update *update);
/* UNSUPPORTED for a parameter, or a local range of it, whose rows several ranks have parts of, if state is by rows. */
shard_status shard_check_rows(const shard_optimizer *optimizer, const shard_slot *slot, const shard_tensor *range);

/* ---- runs.c ---- */

enum { SHARD_RUN_ARRAYS = 2 + SHARD_SLOT_STATES };

/* The elements of a local range, or of several that are adjacent in each array, apart from gaps for alignment. */
typedef struct shard_run {
    shard_slot *slot;                            /* of the first range */
    const shard_tensor *array[SHARD_RUN_ARRAYS]; /* of the first range: its value, gradient or state; then NULL */
    shard_update update;                         /* size, addresses in the arrays, and the settings of a step */
    shard_tensor **made;                         /* the place of a tensor of that dtype, which shard_runs_make sets */
    shard_dtype dtype;
} shard_run;

/* Whether one call can have both runs: they are of one device and dtype. */
bool shard_runs_same_list(const shard_run *a, const shard_run *b);
/* Joins those that follow each other in each array, and with the same factors, of runs that are made in the order of the slots.
 * Returns how many are left. */
int64_t shard_runs_join(shard_run *all, int64_t count);

/* A run of the slot's range, for which a tensor is to be made with an element for each `columns` elements. */
shard_run shard_run_to_make(shard_slot *slot, shard_dtype dtype, int64_t columns, shard_tensor **made);
/* Makes the tensors of such runs, in the order of the slots: zeros, saved and loaded as flat ranges of the parameters. Tensors of
 * runs that follow each other do so, too. That of a frozen parameter, which follows no other one, has no memory until it is
 * needed, and files do not have it before. The caller releases them; after an error the last ones are NULL. */
shard_status shard_runs_make(shard_run *runs, int64_t count);

/* ---- step.c ---- */

/* Whether the slot has a gradient to step by. */
bool shard_slot_has_gradient(const shard_slot *slot);

/* Whether the local range counts in a sum over the world in which each element counts once: it does on the first of the
 * ranks that have the same range. */
bool shard_slot_counts(const shard_slot *slot);

/* Refuses, in the name of the public function, a gradient that is one rank's summand: replicas would part ways. An engine has
 * summed those of its parameters. Where the replicas are known, ranks without one do not count: this rank has the whole gradient
 * of its local shard. */
shard_status shard_optimizer_check_summed(const shard_optimizer *optimizer, const char *function);

/* ARGUMENT in the name of the public function while averages are in the parameters' place: a step would change those. */
shard_status shard_optimizer_refuse_swapped(const shard_optimizer *optimizer, const char *function);

/* Steps those of `count` slots, from place `first` of the order on, that have a gradient. The gradients are not cleared. */
shard_status shard_optimizer_step_slots(shard_optimizer *optimizer, int64_t first, int64_t count);

/* Sets lr and weight decay of the update from the settings. */
void shard_optimizer_choose_settings(const shard_optimizer *optimizer, const shard_slot *slot, shard_update *update);

/* ---- local.c ---- */

/* Puts the slots in order if a range was moved, or a slot added or removed, since it was done. */
void shard_optimizer_put_in_order(shard_optimizer *optimizer);

/* Sets the slots' local ranges to those of the parameters' engines, which may be new or changed, moves the state, and puts the
 * slots in order. */
shard_status shard_optimizer_follow(shard_optimizer *optimizer);

/* After an update of the local ranges that have a gradient, or of all: gathers the values on all ranks. Collective over
 * the parameters' replica groups, also for a rank that has failed. */
shard_status shard_optimizer_publish(const shard_optimizer *optimizer, bool all);

/* Whether a state dict has the slot's state. */
bool shard_slot_is_listed(const shard_slot *slot);

void shard_local_range_release(shard_local_range *range);

/* ---- deferred.c: gradients that are taken in runs of rows ---- */

/* Whether the slot's gradient is deferred, and a step can take it so. */
bool shard_slot_is_deferred(const shard_optimizer *optimizer, const shard_slot *slot);
/* An error if a deferred gradient can't be computed any more. */
shard_status shard_optimizer_check_deferred(const shard_optimizer *optimizer);
/* Steps a deferred slot, and counts the step. */
shard_status shard_optimizer_step_deferred(const shard_optimizer *optimizer, const shard_slot *slot);
/* As shard_optimizer_power_sum for the gradient of one deferred slot, which stays deferred. The gradients that are computed
 * with it are in memory until they are evicted. */
shard_status shard_slot_deferred_power_sum(const shard_slot *slot, double power, double *sum);
/* Computes the slot's gradient if it is the deferred one of a bias that was not computed with its matrix's, which another
 * optimizer has. It is in memory until it is evicted. */
shard_status shard_slot_compute_vector(const shard_optimizer *optimizer, const shard_slot *slot);
/* Evicts what these functions have computed, in memory that local rows alone were written to. */
void shard_slot_evict_gradient(const shard_slot *slot);

/* ---- captured.c: a step in a capture ---- */

/* Makes each replay count a step of the slot's parameter. */
shard_status shard_optimizer_capture_step(shard_optimizer *optimizer, const shard_slot *slot);
/* Sets the factors of runs[last] to device memory that each replay sets: that of a run before with the same ones, if there is
 * one. A replay fails if the steps of both differ then. */
shard_status shard_optimizer_capture_factors(shard_optimizer *optimizer, shard_run *runs, int64_t last);

/* ---- optimizer.c ---- */

/* Makes the missing state of the slots that have a gradient, or of all slots. */
shard_status shard_optimizer_make_state(shard_optimizer *optimizer, bool all);

/* ---- zero.c ---- */

/* Adds the settings that are equal on all ranks, with so many digits. */
void shard_optimizer_describe(const shard_optimizer *optimizer, int digits, shard_identical_lines *mine);

/* Partitions the parameters that an optimizer under shard_zero_optimizer has had added since, if the arguments are identical on
 * all ranks. Collective over the world, also for a rank that has failed. */
shard_status shard_zero_take(shard_optimizer *optimizer);

void shard_zero_destroy(struct shard_zero_optimizer *zero);

#endif
