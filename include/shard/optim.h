/*
 * shard/optim.h: optimizers and learning rate schedules.
 *
 * Objects can be made in any order, with two rules: groups outlive everything that is placed on them, and state
 * dicts are made once memory lies where it stays: after shard_data_parallel_create and shard_zero_optimizer. A module is
 * split, converted and frozen before the optimizer is made of its parameters. shard_load comes after the state dicts,
 * then the sampler's seek and the random state.
 *
 * A step: the rate, forward and backward, clip, step, average. projects/templates/training.c
 * has all of it.
 */
#ifndef SHARD_OPTIM_H
#define SHARD_OPTIM_H

#include <shard/nn.h>
#include <shard/parallel.h>

SHARD_BEGIN_C

/*
 * A parameter's state is of its type, as torch's. Parameters stay float32: these are the master
 * weights, of which SHARD_AUTOCAST makes the 16-bit copies. One of 16 bits has sums of 16 bits:
 * of float16, exp_avg_sq vanishes where gradients are below 0.005 (and a step is then as long as
 * eps lets it); of bfloat16, steps of less than 2^-9 of a weight are lost, an average with decay
 * 0.999 does not move, and exp_avg_sq hardly.
 */
typedef struct shard_optimizer shard_optimizer;

typedef struct shard_sgd_options {
    size_t size;
    double lr; /* 1e-3 */
    double momentum, dampening, weight_decay;
    bool nesterov;
    bool decay_1d; /* weight decay on biases and norms, tensors of fewer than two dimensions, too; true */
} shard_sgd_options;
#define SHARD_SGD_OPTIONS_VALUES sizeof(shard_sgd_options), 1e-3, 0.0, 0.0, 0.0, false, true
#define SHARD_SGD_OPTIONS_INIT {SHARD_SGD_OPTIONS_VALUES}

/*
 * The macros of optimizers take a list of parameters or a module, for shard_parameters of it:
 *
 *     shard_sgd(model, .lr = 0.1, .momentum = 0.9)
 */
#ifndef __cplusplus
typedef struct shard_parameter_list {
    const shard_tensors *list;
    shard_tensors *made; /* of a module: destroyed after the call */
} shard_parameter_list;

static inline shard_parameter_list shard_list_of_module(shard_module *module)
{
    shard_tensors *made = shard_parameters(module);
    return (shard_parameter_list){made, made};
}

static inline shard_parameter_list shard_list_of_tensors(const shard_tensors *list)
{
    return (shard_parameter_list){list, NULL};
}

static inline void shard_list_end(const shard_parameter_list *parameters)
{
    shard_tensors_destroy(parameters->made);
}
#endif
#define SHARD_PARAMETERS(of) \
    _Generic((of), shard_module *: shard_list_of_module, default: shard_list_of_tensors)(of)
#define SHARD_OPTIMIZER(function, type, defaults, ...) SHARD_OPTIMIZER_(function, type, defaults, __VA_ARGS__, )
#define SHARD_OPTIMIZER_(function, type, defaults, parameters, ...)                                                  \
    SHARD_GIVEN(shard_parameter_list shard_given_list __attribute__((cleanup(shard_list_end))) = SHARD_PARAMETERS(parameters); \
                function(shard_given_list.list, &(type){defaults##_VALUES, __VA_ARGS__}))

/* parameters: a list as shard_parameters makes it. The optimizer takes references to its tensors; the list stays
 * the caller's and may be destroyed. A parameter that is there under two names counts once, under the first. As
 * torch.optim.SGD: weight decay is of all parameters, unless decay_1d is false.
 * NULL with the error set. Not collective. */
#define shard_sgd(...) SHARD_OPTIMIZER(shard_sgd_with, shard_sgd_options, SHARD_SGD_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_sgd_with(const shard_tensors *parameters, const shard_sgd_options *options);

/* Adam and AdamW. */
typedef struct shard_adam_options {
    size_t size;
    double lr;                /* 1e-3 */
    double beta1, beta2, eps; /* 0.9, 0.999, 1e-8 */
    double weight_decay;      /* Adam: added to the gradient; 0. AdamW: of the parameter itself; 0.01 */
    bool amsgrad;
    bool decay_1d; /* as shard_sgd; true */
} shard_adam_options;
typedef shard_adam_options shard_adamw_options;
#define SHARD_ADAM_OPTIONS_VALUES sizeof(shard_adam_options), 1e-3, 0.9, 0.999, 1e-8, 0.0, false, true
#define SHARD_ADAM_OPTIONS_INIT {SHARD_ADAM_OPTIONS_VALUES}
#define SHARD_ADAMW_OPTIONS_VALUES sizeof(shard_adamw_options), 1e-3, 0.9, 0.999, 1e-8, 0.01, false, true
#define SHARD_ADAMW_OPTIONS_INIT {SHARD_ADAMW_OPTIONS_VALUES}

/* parameters: as shard_sgd. State: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq.
 * As torch.optim.Adam (Kingma, Ba 2015; amsgrad: Reddi, Kale, Kumar 2018) and
 * torch.optim.AdamW (Loshchilov, Hutter 2019), with their defaults. NULL with the error set. Not
 * collective. */
#define shard_adam(...) SHARD_OPTIMIZER(shard_adam_with, shard_adam_options, SHARD_ADAM_OPTIONS, __VA_ARGS__)
#define shard_adamw(...) SHARD_OPTIMIZER(shard_adamw_with, shard_adamw_options, SHARD_ADAMW_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_adam_with(const shard_tensors *parameters, const shard_adam_options *options);
SHARD_API shard_optimizer *shard_adamw_with(const shard_tensors *parameters, const shard_adamw_options *options);

/*
 * LARS and LAMB, for large batches: each layer's step is as long as its weight, by
 * norms of the whole layer, over whichever ranks it is split or shared out. They cost one
 * all-reduce of two numbers a layer. The lists of parameters have the same layers in the
 * same order on all ranks. Biases and norms (tensors of one dimension) are neither adapted
 * nor do they decay, unless told.
 */
typedef struct shard_lars_options {
    size_t size;
    double lr; /* 1e-3 */
    double momentum, dampening, weight_decay;
    double trust_coefficient; /* 0.001 */
    double eps;
    bool nesterov;
    bool decay_1d, adapt_1d; /* of tensors of fewer than two dimensions, too; false */
} shard_lars_options;
#define SHARD_LARS_OPTIONS_VALUES sizeof(shard_lars_options), 1e-3, 0.0, 0.0, 0.0, 0.001, 0.0, false, false, false
#define SHARD_LARS_OPTIONS_INIT {SHARD_LARS_OPTIONS_VALUES}

/* SGD in which gradient and weight decay together are multiplied by trust_coefficient
 * |w| / (|g| + weight_decay |w| + eps), where neither norm is 0. State: momentum_buffer. You,
 * Gitman, Ginsburg 2017 (https://arxiv.org/abs/1708.03888); the learning rate stands outside
 * of the momentum, as torch.optim.SGD's. NULL with the error set. Not collective. */
#define shard_lars(...) SHARD_OPTIMIZER(shard_lars_with, shard_lars_options, SHARD_LARS_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_lars_with(const shard_tensors *parameters, const shard_lars_options *options);

typedef struct shard_lamb_options {
    size_t size;
    double lr;                /* 1e-3 */
    double beta1, beta2, eps; /* 0.9, 0.999, 1e-6 */
    double weight_decay;
    bool decay_1d, adapt_1d; /* of tensors of fewer than two dimensions, too; false */
} shard_lamb_options;
#define SHARD_LAMB_OPTIONS_VALUES sizeof(shard_lamb_options), 1e-3, 0.9, 0.999, 1e-6, 0.0, false, false
#define SHARD_LAMB_OPTIONS_INIT {SHARD_LAMB_OPTIONS_VALUES}

/* AdamW whose update u, weight decay included, is multiplied by |w| / |u|, where neither is
 * 0. State: exp_avg, exp_avg_sq. You et al. 2020 (https://arxiv.org/abs/1904.00962), with
 * bias correction. NULL with the error set. Not collective. */
#define shard_lamb(...) SHARD_OPTIMIZER(shard_lamb_with, shard_lamb_options, SHARD_LAMB_OPTIONS, __VA_ARGS__)
SHARD_API shard_optimizer *shard_lamb_with(const shard_tensors *parameters, const shard_lamb_options *options);

/* The parameters stay, in the memory where they are. NULL is fine. Not collective. */
SHARD_API void shard_optimizer_destroy(shard_optimizer *optimizer);

/* What a group of parameters has otherwise than the optimizer. */
typedef struct shard_param_group_options {
    size_t size;
    double lr_scale;     /* its learning rate is this times the optimizer's, so that a schedule moves all; 1 */
    double weight_decay; /* -1: the optimizer's */
    int decay_1d;        /* 0 and 1: as the optimizer's option; -1: the optimizer's */
    const char *prefix; /* is put before the parameters' names, as "head."; NULL: none. Read in the call alone */
} shard_param_group_options;
#define SHARD_PARAM_GROUP_OPTIONS_VALUES sizeof(shard_param_group_options), 1.0, -1.0, -1, NULL
#define SHARD_PARAM_GROUP_OPTIONS_INIT {SHARD_PARAM_GROUP_OPTIONS_VALUES}

/* Adds parameters: a list, which stays the caller's (the macro takes a module, too), of
 * names that the optimizer has not: state dicts go by names, so that of two modules that both have
 * a "weight" one needs a .prefix. A parameter or name that it has already is an error (ARGUMENT). Under
 * shard_zero_optimizer, which shares these out too, and what has come to require a gradient since (an
 * empty list will do), collective over the world; else not. What is refused is not added; of
 * an optimizer under shard_zero_optimizer for which another thing fails (memory, a rank that is gone)
 * only shard_optimizer_destroy is left. As torch.optim.Optimizer.add_param_group. */
#define shard_optimizer_add_param_group(optimizer, ...) SHARD_ADD_PARAM_GROUP(optimizer, __VA_ARGS__, )
#define SHARD_ADD_PARAM_GROUP(optimizer, parameters, ...)                                                                    \
    SHARD_GIVEN(shard_parameter_list shard_given_group __attribute__((cleanup(shard_list_end))) = SHARD_PARAMETERS(parameters); \
                shard_optimizer_add_param_group_with(                                                                        \
                    optimizer, shard_given_group.list,                                                                       \
                    &(shard_param_group_options){SHARD_PARAM_GROUP_OPTIONS_VALUES, __VA_ARGS__}))
SHARD_API shard_status shard_optimizer_add_param_group_with(shard_optimizer *optimizer, const shard_tensors *parameters,
                                                            const shard_param_group_options *options);

/* Updates every parameter that has a gradient, and forgets the gradients. Does nothing
 * and returns the thread's error if there is one: a failed backward never moves a
 * parameter. Joint over the world: if a rank has failed, none steps. Collective over
 * the world. */
SHARD_API shard_status shard_step(shard_optimizer *optimizer);

/* Whether the optimizer's last step was left out by shard_grad_scaler_step, as a gradient was not
 * finite: then schedule and averages do not go on either. False after shard_step, before the first
 * step, and of NULL. The same on all ranks, before and after shard_grad_scaler_update. Not
 * collective. */
SHARD_API bool shard_optimizer_skipped(const shard_optimizer *optimizer);

/* ---- clipping: between backward and step ---- */

typedef struct shard_clip_options {
    size_t size;
    double norm_type; /* INFINITY: the largest element; 2 */
    bool error_if_nonfinite;
} shard_clip_options;
#define SHARD_CLIP_OPTIONS_VALUES sizeof(shard_clip_options), 2.0, false
#define SHARD_CLIP_OPTIONS_INIT {SHARD_CLIP_OPTIONS_VALUES}

/*
 * Scales the optimizer's gradients down to max_norm if the norm of all of them together
 * is larger, each element counted once wherever it is: replicated, split, shared out by
 * shard_zero_optimizer. The gradients themselves stay as they are: the factor, min(1, max_norm /
 * (norm + 1e-6)), is multiplied into the next step (and clipping). That step and
 * shard_optimizer_zero_grad forget it; shard_zero_grad of the parameters does not.
 * *norm (NULL: not wanted) is what the norm was; without it and error_if_nonfinite the host
 * waits for no GPU, unless the ranks' sums go through host memory. A norm that is infinite
 * or NaN makes gradients 0 or NaN, or is an error (ARGUMENT) on every rank, after which
 * shard_optimizer_zero_grad is to forget them and the factor. As
 * torch.nn.utils.clip_grad_norm_. Collective over the world.
 */
#define shard_clip_grad_norm(optimizer, max_norm, ...) \
    SHARD_GIVEN(shard_clip_grad_norm_with(            \
        optimizer, max_norm, SHARD_OPTIONS_BEFORE(shard_clip_options, SHARD_CLIP_OPTIONS, __VA_ARGS__)))
SHARD_API shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm, const shard_clip_options *options,
                                                 double *norm);

/* Each element of the gradients into [-value, value]. As torch.nn.utils.clip_grad_value_.
 * Not collective. */
SHARD_API shard_status shard_clip_grad_value(shard_optimizer *optimizer, double value);

/* Forgets the gradients without a step. NULL is fine. Not collective. */
SHARD_API void shard_optimizer_zero_grad(shard_optimizer *optimizer);

/* The learning rate of the groups without an lr_scale; 0 of NULL. One that is negative,
 * infinite or NaN is an error (ARGUMENT), and 0 is 0. Not collective, but the rate is to be the
 * same on all ranks. */
SHARD_API double shard_optimizer_lr(const shard_optimizer *optimizer);
SHARD_API shard_status shard_optimizer_set_lr(shard_optimizer *optimizer, double lr);

/* Its state by name ("fc.weight.momentum_buffer"), placed like the parameters, made
 * if it was not yet, so that it can be saved and loaded into, and each parameter's
 * number of steps ("fc.weight.step", an int64 scalar), as a first step differs from
 * later ones. What is frozen and was never stepped is in the list, but neither in memory nor
 * in a file, and shard_load does without it; where it trains and was frozen when the file was
 * written, its names are missing there (allow_missing: it begins with zeros). Under shard_zero_optimizer
 * a state has the elements that are this rank's, in one dimension; shard_save puts them
 * together in the file, shard_load takes them from it, and shard_collect_state_dict makes
 * whole ones. So it is made after shard_zero_optimizer, and after shard_optimizer_add_param_group, whose
 * parameters it has not otherwise. NULL with the error set. The caller's, to be destroyed.
 * Not collective. */
SHARD_API shard_tensors *shard_optimizer_state_dict(shard_optimizer *optimizer);

/* ---- exponential moving averages of the parameters ---- */

/*
 * Averages of an optimizer's parameters: after the n-th update
 *     average = decay * average + (1 - decay) * parameter
 * and after the first one the parameters themselves. They stand where the optimizer's state
 * does, so that under shard_zero_optimizer each rank keeps those of its part alone. Buffers (batch
 * norm) have none. What is frozen stands for its own average; that begins with the first
 * update after it has come to train. As torch.optim.swa_utils.AveragedModel with
 * get_ema_multi_avg_fn.
 */
typedef struct shard_ema shard_ema;

typedef struct shard_ema_options {
    size_t size;
    double decay; /* 0.999 */
    bool warmup;  /* at most (1 + n) / (10 + n) after n updates, so that the beginning is soon forgotten */
} shard_ema_options;
#define SHARD_EMA_OPTIONS_VALUES sizeof(shard_ema_options), 0.999, false
#define SHARD_EMA_OPTIONS_INIT {SHARD_EMA_OPTIONS_VALUES}

/* Made after shard_zero_optimizer and destroyed before the optimizer. NULL with the error set. Not
 * collective. */
#define shard_ema_create(...) SHARD_GIVEN(shard_ema_create_with(SHARD_OPTIONS(shard_ema_options, SHARD_EMA_OPTIONS, __VA_ARGS__)))
SHARD_API shard_ema *shard_ema_create_with(shard_optimizer *optimizer, const shard_ema_options *options);
SHARD_API void shard_ema_destroy(shard_ema *ema);

/* After a step, unless shard_optimizer_skipped it: takes the parameters as they are into the
 * averages. Not collective. */
SHARD_API shard_status shard_ema_update(shard_ema *ema);

/* Exchanges parameters and averages: swap, evaluate or save, swap back. In between neither
 * step nor update. Takes 4 MiB of workspace. Where a rank fails, all do and each has its
 * parameters as they were. Collective over the world. */
SHARD_API shard_status shard_ema_swap(shard_ema *ema);

/* The averages under the parameters' names, placed like these, made if they were not yet, so
 * that they can be saved and loaded into, and "n_averaged", the number of updates (an int64
 * scalar). Of what is frozen and has none as shard_optimizer_state_dict says. The caller's,
 * to be destroyed. NULL with the error set. Not collective. */
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
    double base_lr;
    int64_t warmup_steps; /* from base_lr / warmup_steps up to base_lr, linearly */
    int64_t step_size;    /* STEP needs it: times gamma every step_size steps after the start, as StepLR */
    double gamma;         /* 0.1 */
    int64_t total_steps;  /* COSINE and POLYNOMIAL need it. COSINE: down to final_lr there, as CosineAnnealingLR */
    double final_lr;
    /* POLYNOMIAL: final_lr and what base_lr is more, times (1 - progress)^power, from the end of
     * the warmup to total_steps, as PolynomialLR; 1: linear. */
    double power;
    /* MULTI_STEP: times gamma at each of these steps, as MultiStepLR; ends with the first that is 0. */
    int64_t milestones[SHARD_SCHEDULE_MILESTONES];
} shard_schedule;
#define SHARD_SCHEDULE_VALUES sizeof(shard_schedule), SHARD_SCHEDULE_CONSTANT, 0.0, 0, 0, 0.1, 0, 0.0, 1.0, {0}
#define SHARD_SCHEDULE_INIT {SHARD_SCHEDULE_VALUES}
/* In C: SHARD_SCHEDULE(.kind = SHARD_SCHEDULE_COSINE, .base_lr = 0.1, .total_steps = 1000). */
#define SHARD_SCHEDULE(...) SHARD_GIVEN((shard_schedule){SHARD_SCHEDULE_VALUES, __VA_ARGS__})

/* For step 0, 1, ... NaN with the error set (ARGUMENT) where an option is out of its range or
 * one that the kind needs is missing. Not collective. */
SHARD_API double shard_schedule_lr(const shard_schedule *schedule, int64_t step);

SHARD_END_C

#endif
