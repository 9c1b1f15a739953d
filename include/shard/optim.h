/*
 * shard/optim.h: optimizers, averages of parameters, learning rate schedules. ZeRO is in shard/parallel.h.
 *
 * Objects are made in any order, with these rules:
 *
 *   groups (shard_init, the mesh) outlive everything that is placed on them;
 *   a module is split, converted and frozen before the optimizer is made of its parameters;
 *   state dicts of optimizers and averages are made after shard_data_parallel_create, shard_zero_optimizer and
 *   shard_optimizer_add_param_group: these calls move tensors;
 *   shard_load comes after the state dicts, then the sampler's seek and the random state.
 *
 * A step sets the learning rate, runs forward and backward, clips, steps, and updates averages.
 * projects/templates/training.c has all of it. docs/zero.md and docs/data-parallel.md are the guides.
 */
#ifndef SHARD_OPTIM_H
#define SHARD_OPTIM_H

#include <shard/nn.h>
#include <shard/parallel.h>

SHARD_BEGIN_C

/*
 * A parameter's state has the parameter's dtype, as in PyTorch, unless .state_dtype says another one. A step is computed in
 * float32 (float64 for float64) and rounded once. Of parameters and state in 16 bits rounding to the nearest loses every small
 * step, so that training stands still as the learning rate falls:
 *   .rounding = SHARD_ROUNDING_STOCHASTIC rounds up or down at random, the same on any number of ranks;
 *   .rounding = SHARD_ROUNDING_KAHAN keeps what rounding takes from a weight in a state of 16 bits, "<name>.compensation".
 * Parameters in float32 and float64 are written as they are computed. docs/mixed-precision.md has the details.
 */
typedef struct shard_optimizer shard_optimizer;

typedef enum shard_rounding {
    SHARD_ROUNDING_NEAREST = 0,
    SHARD_ROUNDING_STOCHASTIC,
    SHARD_ROUNDING_KAHAN,
} shard_rounding;

typedef struct shard_sgd_options {
    size_t size;
    double lr; /* Default: 1e-3. */
    double momentum, dampening, weight_decay;
    bool nesterov;
    bool decay_1d;           /* weight decay on biases and norms, tensors of fewer than two dimensions, too. Default: true. */
    uint64_t seed;           /* of stochastic rounding */
    shard_rounding rounding; /* of 16-bit parameters */
    /* SHARD_FLOAT32 or SHARD_BFLOAT16; -1: the parameter's dtype. State of float64 parameters is float64. Default: -1. */
    int state_dtype;
} shard_sgd_options;
#define SHARD_SGD_OPTIONS_VALUES sizeof(shard_sgd_options), 1e-3, 0.0, 0.0, 0.0, false, true, 0, SHARD_ROUNDING_NEAREST, -1
#define SHARD_SGD_OPTIONS_INIT {SHARD_SGD_OPTIONS_VALUES}

/*
 * The optimizers' macros take a list of parameters, or a module for shard_parameters of it:
 *
 *     shard_sgd(model, .lr = 0.1, .momentum = 0.9)
 */

/* As torch.optim.SGD. parameters is a list as shard_parameters makes it. The optimizer takes references to its tensors; the
 * list stays the caller's and may be destroyed. A parameter that is in it under two names counts once, under the first.
 * Weight decay applies to all parameters, unless decay_1d is false. Replicas list their parameters in the same order. The list
 * may be empty, as on a rank without parameters. NULL
 * with the error set: ARGUMENT, a setting out of range, or a tensor that is the result of an operation. Not collective. */
#define shard_sgd(...) SHARD_OF_PARAMETERS(shard_sgd_with, shard_sgd_options, SHARD_SGD_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_sgd_with(const shard_tensors *parameters, const shard_sgd_options *options);

/* Adam and AdamW. */
typedef struct shard_adam_options {
    size_t size;
    double lr;                /* Default: 1e-3. */
    double beta1, beta2, eps; /* Defaults: 0.9, 0.999, 1e-8. */
    double weight_decay;      /* Adam: added to the gradient. AdamW: of the parameter itself. Defaults: Adam 0, AdamW 0.01. */
    bool amsgrad;
    bool decay_1d; /* as shard_sgd. Default: true. */
    uint64_t seed; /* these three: as shard_sgd */
    shard_rounding rounding;
    int state_dtype;
} shard_adam_options;
typedef shard_adam_options shard_adamw_options;
#define SHARD_ADAM_OPTIONS_VALUES                                                                                                \
    sizeof(shard_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0.0, false, true, 0, SHARD_ROUNDING_NEAREST, -1
#define SHARD_ADAM_OPTIONS_INIT {SHARD_ADAM_OPTIONS_VALUES}
#define SHARD_ADAMW_OPTIONS_VALUES                                                                                               \
    sizeof(shard_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 0.01, false, true, 0, SHARD_ROUNDING_NEAREST, -1
#define SHARD_ADAMW_OPTIONS_INIT {SHARD_ADAMW_OPTIONS_VALUES}

/* As torch.optim.Adam (Kingma, Ba 2015; amsgrad: Reddi, Kale, Kumar 2018) and torch.optim.AdamW (Loshchilov,
 * Hutter 2019), with their defaults. parameters: as shard_sgd. State: exp_avg, exp_avg_sq and, with amsgrad,
 * max_exp_avg_sq. NULL with the error set. Not collective. */
#define shard_adam(...) SHARD_OF_PARAMETERS(shard_adam_with, shard_adam_options, SHARD_ADAM_OPTIONS, __VA_ARGS__)
#define shard_adamw(...) SHARD_OF_PARAMETERS(shard_adamw_with, shard_adamw_options, SHARD_ADAMW_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_adam_with(const shard_tensors *parameters, const shard_adam_options *options);
SHARD_API shard_optimizer *shard_adamw_with(const shard_tensors *parameters, const shard_adamw_options *options);

/*
 * LARS and LAMB, for large batches: the step of each layer is in proportion to the norm of its weight. Norms are
 * those of the whole layer, also if it is split or partitioned over ranks; they cost one all-reduce of two numbers for
 * each layer. Lists of parameters have the same layers in the same order on all ranks. Biases and norms (tensors of
 * one dimension) are neither adapted nor do they decay, unless adapt_1d and decay_1d are set.
 */
typedef struct shard_lars_options {
    size_t size;
    double lr; /* Default: 1e-3. */
    double momentum, dampening, weight_decay;
    double trust_coefficient; /* Default: 0.001. */
    double eps;
    bool nesterov;
    bool decay_1d, adapt_1d; /* of tensors of fewer than two dimensions, too */
    uint64_t seed;           /* these three: as shard_sgd */
    shard_rounding rounding;
    int state_dtype;
} shard_lars_options;
#define SHARD_LARS_OPTIONS_VALUES                                                                                                \
    sizeof(shard_lars_options), 1e-3, 0.0, 0.0, 0.0, 0.001, 0.0, false, false, false, 0, SHARD_ROUNDING_NEAREST, -1
#define SHARD_LARS_OPTIONS_INIT {SHARD_LARS_OPTIONS_VALUES}

/* SGD in which the sum of gradient and weight decay is multiplied by trust_coefficient |w| / (|g| + weight_decay |w| +
 * eps), unless one of the norms is 0. State: momentum_buffer. You, Gitman, Ginsburg 2017
 * (https://arxiv.org/abs/1708.03888); the momentum does not contain the learning rate, as in torch.optim.SGD. NULL with
 * the error set. Not collective. */
#define shard_lars(...) SHARD_OF_PARAMETERS(shard_lars_with, shard_lars_options, SHARD_LARS_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_lars_with(const shard_tensors *parameters, const shard_lars_options *options);

typedef struct shard_lamb_options {
    size_t size;
    double lr;                /* Default: 1e-3. */
    double beta1, beta2, eps; /* Defaults: 0.9, 0.999, 1e-6. */
    double weight_decay;
    bool decay_1d, adapt_1d; /* of tensors of fewer than two dimensions, too */
    uint64_t seed;           /* these three: as shard_sgd */
    shard_rounding rounding;
    int state_dtype;
} shard_lamb_options;
#define SHARD_LAMB_OPTIONS_VALUES                                                                                                \
    sizeof(shard_lamb_options), 1e-3, 0.9, 0.999, 1e-6, 0.0, false, false, 0, SHARD_ROUNDING_NEAREST, -1
#define SHARD_LAMB_OPTIONS_INIT {SHARD_LAMB_OPTIONS_VALUES}

/* AdamW whose update u, weight decay included, is multiplied by |w| / |u|, unless one of them is
 * 0. State: exp_avg, exp_avg_sq. You et al. 2020 (https://arxiv.org/abs/1904.00962), with
 * bias correction. NULL with the error set. Not collective. */
#define shard_lamb(...) SHARD_OF_PARAMETERS(shard_lamb_with, shard_lamb_options, SHARD_LAMB_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_lamb_with(const shard_tensors *parameters, const shard_lamb_options *options);

/*
 * Row-wise optimizers, for the large matrices of classifiers and embeddings: the second moment is one number for each row
 * of a matrix, along dimension 0, in float32: [rows], for a matrix of one column [rows, 1]. Tensors of fewer than two
 * dimensions have it for each element. They step deferred gradients row by row as the others do.
 *
 * Each rank needs whole rows: a parameter that is split along another dimension than 0 is an error (UNSUPPORTED). Under
 * shard_zero_optimizer, and shard_data_parallel with a .stage, set .partition = SHARD_ZERO_WHOLE: shard_zero_optimizer refuses
 * SHARD_ZERO_EVEN, and after shard_data_parallel_create the optimizer's functions refuse a range that cuts a row (UNSUPPORTED).
 */
typedef struct shard_rowwise_adagrad_options {
    size_t size;
    double lr;               /* Default: 1e-2. */
    double eps;              /* Default: 1e-10. */
    double weight_decay;     /* added to the gradient */
    bool decay_1d;           /* as shard_sgd. Default: true. */
    shard_rounding rounding; /* these two: as shard_sgd */
    uint64_t seed;
} shard_rowwise_adagrad_options;
#define SHARD_ROWWISE_ADAGRAD_OPTIONS_VALUES \
    sizeof(shard_rowwise_adagrad_options), 1e-2, 1e-10, 0.0, true, SHARD_ROUNDING_NEAREST, 0
#define SHARD_ROWWISE_ADAGRAD_OPTIONS_INIT {SHARD_ROWWISE_ADAGRAD_OPTIONS_VALUES}

/* Adagrad whose state, "sum", is the sum over the steps of the mean of the squares of a row's gradient; as
 * EXACT_ROWWISE_ADAGRAD of FBGEMM and torch.optim.Adagrad: the row's gradient is divided by the root of it, plus eps.
 * parameters: as shard_sgd. NULL with the error set. Not collective. */
#define shard_rowwise_adagrad(...) \
    SHARD_OF_PARAMETERS(shard_rowwise_adagrad_with, shard_rowwise_adagrad_options, SHARD_ROWWISE_ADAGRAD_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_rowwise_adagrad_with(const shard_tensors *parameters,
                                                      const shard_rowwise_adagrad_options *options);

typedef struct shard_rowwise_adam_options {
    size_t size;
    double lr;                /* Default: 1e-3. */
    double beta1, beta2, eps; /* beta1 0: no exp_avg, and no memory for it. Defaults: 0.9, 0.999, 1e-8. */
    double weight_decay;      /* of the parameter itself, as shard_adamw. Default: 0.01. */
    bool decay_1d;            /* as shard_sgd. Default: true. */
    shard_rounding rounding;  /* these two: as shard_sgd */
    uint64_t seed;
    int state_dtype; /* of exp_avg: as shard_sgd */
} shard_rowwise_adam_options;
#define SHARD_ROWWISE_ADAM_OPTIONS_VALUES \
    sizeof(shard_rowwise_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0.01, true, SHARD_ROUNDING_NEAREST, 0, -1
#define SHARD_ROWWISE_ADAM_OPTIONS_INIT {SHARD_ROWWISE_ADAM_OPTIONS_VALUES}

/* AdamW whose exp_avg_sq is the average of the mean of the squares of a row's gradient; as PARTIAL_ROWWISE_ADAM of FBGEMM.
 * State: exp_avg_sq, and exp_avg of the parameter's shape. parameters: as shard_sgd. NULL with the error set. Not
 * collective. */
#define shard_rowwise_adam(...) \
    SHARD_OF_PARAMETERS(shard_rowwise_adam_with, shard_rowwise_adam_options, SHARD_ROWWISE_ADAM_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_rowwise_adam_with(const shard_tensors *parameters, const shard_rowwise_adam_options *options);

/* Destroys the optimizer. The parameters keep their memory. NULL is allowed. Not collective. */
SHARD_API void shard_optimizer_destroy(shard_optimizer *optimizer);

/* Settings of a group of parameters that differ from the optimizer's. */
typedef struct shard_param_group_options {
    size_t size;
    double lr_scale;     /* its learning rate is this times the optimizer's, so that a schedule moves all. Default: 1. */
    double weight_decay; /* -1: the optimizer's. Default: -1. */
    int decay_1d;        /* 0 and 1: as the optimizer's option; -1: the optimizer's. Default: -1. */
    const char *prefix; /* is put before the parameters' names, as "head."; NULL: none. Read in the call alone */
} shard_param_group_options;
#define SHARD_PARAM_GROUP_OPTIONS_VALUES sizeof(shard_param_group_options), 1.0, -1.0, -1, NULL
#define SHARD_PARAM_GROUP_OPTIONS_INIT {SHARD_PARAM_GROUP_OPTIONS_VALUES}

/* Adds parameters with settings of their own, as torch.optim.Optimizer.add_param_group. The list stays the caller's; the
 * macro takes a module, too. Names must be new to the optimizer, as state dicts go by names: of two modules that both have
 * a "weight", one needs a .prefix. A parameter or a name that the optimizer has is an error (ARGUMENT), and is not added.
 * Ranks have the same groups: one without parameters of a group gives the same options with an empty list. With the
 * options' defaults an empty list adds no group: parameters that some ranks alone have need options of their own, or a place in
 * the maker's list. Under shard_zero_optimizer the call partitions these parameters, and those of the
 * optimizer that have come to require a gradient since, also with an empty list; after an error other than ARGUMENT the optimizer
 * can then only be destroyed. Collective over the world under shard_zero_optimizer, else not. */
#define shard_optimizer_add_param_group(optimizer, ...) SHARD_ADD_PARAM_GROUP(optimizer, __VA_ARGS__, )
#define SHARD_ADD_PARAM_GROUP(optimizer, parameters, ...)                                                                        \
    SHARD_GIVEN_STATUS(                                                                                                          \
        shard_parameter_list shard_given_group __attribute__((cleanup(shard_list_end))) = SHARD_PARAMETERS(parameters);          \
        shard_optimizer_add_param_group_with(                                                                                    \
            optimizer, shard_given_group.list,                                                                                   \
            &(shard_param_group_options)SHARD_FIELDS(shard_param_group_options, SHARD_PARAM_GROUP_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_optimizer_add_param_group_with(shard_optimizer *optimizer,
                                                                          const shard_tensors *parameters,
                                                                          const shard_param_group_options *options);

/* Updates every parameter that has a gradient, and clears the gradients; as step() and zero_grad() of torch.optim. If any rank
 * comes to it with an error, no rank updates a parameter, and all of them return an error with its text: a failed backward never
 * moves a parameter. After an error the gradients stay, with the factor of clipping: shard_optimizer_zero_grad clears both before
 * the next backward, which would add to them. A failure in the middle of a step, of a device, of communication, or of memory that
 * is not known before (docs/errors.md), may be of one rank alone: others have stepped then, and LAMB may have replaced
 * gradients. Errors: MISMATCH, ranks whose settings differ, or of which one alone lacks a gradient that data parallel training
 * averages over the world; ARGUMENT, a gradient that is a pending sum (shard/distributed.h) over ranks with replicas of the
 * parameter, which shard_data_parallel or shard_all_reduce sums, or averages in the parameters' place (shard_ema_swap).
 * Collective over the world. */
SHARD_API SHARD_CHECKED shard_status shard_step(shard_optimizer *optimizer);

/* Whether shard_grad_scaler_step skipped the optimizer's last step because a gradient was not finite; do not advance the
 * schedule or the averages then. False after shard_step, before the first step, and for NULL. Identical on all
 * ranks. Not collective. */
SHARD_API bool shard_optimizer_skipped(const shard_optimizer *optimizer);

/* ---- clipping: between backward and step ---- */

typedef struct shard_clip_options {
    size_t size;
    double norm_type; /* INFINITY: the largest element. Default: 2. */
    bool error_if_nonfinite;
} shard_clip_options;
#define SHARD_CLIP_OPTIONS_VALUES sizeof(shard_clip_options), 2.0, false
#define SHARD_CLIP_OPTIONS_INIT {SHARD_CLIP_OPTIONS_VALUES}

/* Scales the optimizer's gradients down to max_norm if their common norm is larger; as torch.nn.utils.clip_grad_norm_. Each
 * element counts once, whether its parameter is replicated, split or partitioned. The gradients stay unchanged: min(1, max_norm
 * / (norm + 1e-6)) is a factor of the next step (and clipping), which that step and shard_optimizer_zero_grad clear, and
 * shard_zero_grad of a parameter does not. *norm (NULL: not wanted) becomes the norm, NaN after an error other than
 * error_if_nonfinite's. If norm is NULL and error_if_nonfinite is false, the host waits for no GPU, unless the ranks' sums go
 * through host memory. A max_norm of INFINITY computes the norm alone.
 * Errors: ARGUMENT, a max_norm that is negative or NaN, a norm_type that is not above 0, a gradient that is still a pending
 * sum, as shard_step, or with error_if_nonfinite a norm that is infinite or NaN (docs/errors.md); MISMATCH, ranks with other
 * values, or other gradients, as shard_step; UNSUPPORTED, overlap of shard_zero_optimizer, or parameters on several devices.
 * Collective over the world. */
#define shard_clip_grad_norm(optimizer, max_norm, ...)                                                                           \
    SHARD_GIVEN_STATUS(shard_clip_grad_norm_with(optimizer, max_norm,                                                            \
                                                 SHARD_OPTIONS_BEFORE(shard_clip_options, SHARD_CLIP_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm,
                                                               const shard_clip_options *options, double *norm);

/* As shard_clip_grad_norm for the gradients of `count` optimizers, by the common norm of all: a body and a head with an optimizer
 * of its own are clipped as one model. Optimizers are at least one, none twice, with parameters on one device (UNSUPPORTED); none
 * may have a parameter of another one, which would count twice. Collective over the world. */
#define shard_clip_grad_norm_of(optimizers, count, max_norm, ...)                                                                \
    SHARD_GIVEN_STATUS(shard_clip_grad_norm_of_with(optimizers, count, max_norm,                                                 \
                                                    SHARD_OPTIONS_BEFORE(shard_clip_options, SHARD_CLIP_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_clip_grad_norm_of_with(shard_optimizer *const *optimizers, int64_t count,
                                                                  double max_norm, const shard_clip_options *options,
                                                                  double *norm);

/* Limits each element of the gradients to [-value, value], as torch.nn.utils.clip_grad_value_. Errors: ARGUMENT, a value that
 * is negative or NaN, or a gradient that is still a pending sum, as shard_step; UNSUPPORTED, overlap of shard_zero_optimizer.
 * Not collective; each rank limits its local ranges, and the step compares the ranks' values (MISMATCH). */
SHARD_API SHARD_CHECKED shard_status shard_clip_grad_value(shard_optimizer *optimizer, double value);

/* Clears the gradients, and the factors of clipping and of a gradient scaler, without a step. NULL is allowed. Not
 * collective. */
SHARD_API void shard_optimizer_zero_grad(shard_optimizer *optimizer);

/* The learning rate of the groups without an lr_scale; 0 for NULL. A rate that is negative, infinite or NaN is an error
 * (ARGUMENT); 0 is 0. Not collective, but the rate must be equal on all ranks. */
SHARD_API double shard_optimizer_lr(const shard_optimizer *optimizer);
SHARD_API SHARD_CHECKED shard_status shard_optimizer_set_lr(shard_optimizer *optimizer, double lr);

/* The state by name ("fc.weight.momentum_buffer"), placed like the parameters (that of row-wise optimizers like their rows),
 * and each parameter's number of steps ("fc.weight.step", an int64 scalar). State that does not exist yet is made, so that it
 * can be saved and loaded into. Call it after shard_zero_optimizer and shard_optimizer_add_param_group. Under
 * shard_zero_optimizer a state tensor is this rank's flat range; files, and shard_collect_state_dict, have whole tensors
 * (docs/checkpoints.md).
 * A frozen parameter that was never stepped is in the list, but has no memory and is not in files; to load such a file where
 * the parameter is trained, set allow_missing: its state begins with zeros. The caller destroys the list. NULL with the error
 * set. Not collective. */
SHARD_API shard_tensors *shard_optimizer_state_dict(shard_optimizer *optimizer);

/* ---- exponential moving averages of the parameters ---- */

/*
 * Averages of an optimizer's parameters, as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. After the
 * first update they are the parameters, after each later one
 *     average = decay * average + (1 - decay) * parameter
 * Under shard_zero_optimizer each rank keeps the averages of its flat ranges. Buffers (batch norm) are not averaged. While a
 * parameter that was frozen from the beginning is frozen, it is its average, which begins with the first update after that. A
 * parameter that is frozen later is averaged as before. An average has its parameter's dtype, to the nearest number of which it
 * is rounded: one of bfloat16 does not follow with a decay of 0.999 (docs/mixed-precision.md).
 */
typedef struct shard_ema shard_ema;

typedef struct shard_ema_options {
    size_t size;
    double decay; /* above 0 and below 1. Default: 0.999. */
    bool warmup;  /* at most (1 + n) / (10 + n) after n updates, so that the beginning is soon forgotten */
} shard_ema_options;
#define SHARD_EMA_OPTIONS_VALUES sizeof(shard_ema_options), 0.999, false
#define SHARD_EMA_OPTIONS_INIT {SHARD_EMA_OPTIONS_VALUES}

/* Make it after shard_zero_optimizer, and destroy it before the optimizer, swapped back: the trained values are lost otherwise.
 * NULL with the error set. Not collective. */
#define shard_ema_create(...) SHARD_GIVEN(shard_ema_create_with(SHARD_OPTIONS(shard_ema_options, SHARD_EMA_OPTIONS, __VA_ARGS__)))
SHARD_API shard_ema *shard_ema_create_with(shard_optimizer *optimizer, const shard_ema_options *options);
SHARD_API void shard_ema_destroy(shard_ema *ema);

/* Updates the averages by the present parameters: after a step, unless shard_optimizer_skipped. With an error that all
 * ranks have, as of a step that failed, nothing is updated; with one of this rank alone the averages are, as on the other
 * ranks, and the error is returned. Errors: ARGUMENT, averages (these or another shard_ema's) in the parameters' place, or an
 * "n_averaged" below 0, as it was loaded; UNSUPPORTED, in a graph's capture the first update, or a decay that warms up. Not
 * collective. */
SHARD_API SHARD_CHECKED shard_status shard_ema_update(shard_ema *ema);

/* Exchanges parameters and averages: swap, evaluate or save, swap back. A step or an update in between is refused (ARGUMENT).
 * Needs 4 MiB of workspace. Lists of shard_ema_state_dict have the parameters in between: none can be made, saved or loaded then
 * (ARGUMENT), and no other shard_ema's can be swapped. A checkpoint of the whole run is saved before or after. If a rank fails,
 * all do, and the parameters are unchanged on each. MISMATCH: ranks with other numbers of updates. UNSUPPORTED, in a graph's
 * capture. Collective over the world. */
SHARD_API SHARD_CHECKED shard_status shard_ema_swap(shard_ema *ema);

/* The averages under the parameters' names, placed like them, and "n_averaged", the number of updates (an int64 scalar).
 * Averages that do not exist yet are made, so that they can be saved and loaded into. Frozen parameters are treated as by
 * shard_optimizer_state_dict. The caller destroys the list. NULL with the error set. Not collective. */
SHARD_API shard_tensors *shard_ema_state_dict(shard_ema *ema);

/* ---- schedules: the learning rate of a step, a pure function of it ---- */

typedef enum shard_schedule_kind {
    SHARD_SCHEDULE_CONSTANT = 0,
    SHARD_SCHEDULE_STEP,
    SHARD_SCHEDULE_COSINE,
    SHARD_SCHEDULE_MULTI_STEP,
    SHARD_SCHEDULE_POLYNOMIAL,
} shard_schedule_kind;

#define SHARD_SCHEDULE_MILESTONES 16

typedef struct shard_schedule {
    size_t size;
    shard_schedule_kind kind;
    double base_lr;       /* of all kinds, at least 0. Default: -1, which is an error. */
    int64_t warmup_steps; /* step s of them has base_lr * (s + 1) / warmup_steps */
    int64_t step_size;    /* STEP needs it: times gamma every step_size steps after the start, as StepLR */
    double gamma;         /* Default: 0.1. */
    /* COSINE and POLYNOMIAL need it; the warmup is a part of it. COSINE: from base_lr at the end of the warmup down to final_lr
     * at total_steps, as CosineAnnealingLR, and final_lr from there on. */
    int64_t total_steps;
    double final_lr;
    /* POLYNOMIAL: final_lr + (base_lr - final_lr) * (1 - progress)^power, from the end of the warmup to total_steps, as
     * PolynomialLR; 1: linear. Default: 1. */
    double power;
    /* MULTI_STEP needs one at least: times gamma at each of these steps, as MultiStepLR; ends with the first that is 0. */
    int64_t milestones[SHARD_SCHEDULE_MILESTONES];
} shard_schedule;
#define SHARD_SCHEDULE_VALUES                                                                                                    \
    sizeof(shard_schedule), SHARD_SCHEDULE_CONSTANT, -1.0, 0, 0, 0.1, 0, 0.0, 1.0,                                               \
    {                                                                                                                            \
        0                                                                                                                        \
    }
#define SHARD_SCHEDULE_INIT {SHARD_SCHEDULE_VALUES}
/* In C: SHARD_SCHEDULE(.kind = SHARD_SCHEDULE_COSINE, .base_lr = 0.1, .total_steps = 1000). */
#define SHARD_SCHEDULE(...) SHARD_GIVEN((shard_schedule)SHARD_FIELDS(shard_schedule, SHARD_SCHEDULE, __VA_ARGS__))

/* The learning rate of step 0, 1, and so on. NaN with the error set (ARGUMENT) if an option is out of range, or one
 * that the kind needs is missing. Not collective. */
SHARD_API double shard_schedule_lr(const shard_schedule *schedule, int64_t step);

SHARD_END_C

#endif
