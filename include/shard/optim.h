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

#include <shard/parallel.h>

/*
 * In the settings below 0 is often not 0: a field that is left out has the value that stands
 * beside it. Where 0 itself makes sense a negative number stands for it: .beta1 = -1 is Adam
 * without a momentum, AdamW's .weight_decay = -1 no decay, .lr_scale = -1 a group that stays as
 * it is.
 *
 * A parameter's state is of its type, as torch's. Parameters stay float32: these are the master
 * weights, of which SHARD_AUTOCAST makes the 16-bit copies. One of 16 bits has sums of 16 bits:
 * of float16, exp_avg_sq vanishes where gradients are below 0.005 (and a step is then as long as
 * eps lets it); of bfloat16, steps of less than 2^-9 of a weight are lost, an average with decay
 * 0.999 does not move, and exp_avg_sq hardly.
 */
typedef struct shard_optimizer shard_optimizer;

typedef struct shard_sgd_settings {
    int reserved;
    double lr; /* 0: 1e-3, as torch.optim; a rate of 0 is set by shard_optimizer_set_lr */
    double momentum, dampening, weight_decay;
    bool nesterov;
    bool no_decay_1d; /* no weight decay on biases and norms: tensors of fewer than two dimensions */
} shard_sgd_settings;

/* parameters: taken over even when this fails, as shard_parameters makes it: do not destroy the
 * list; it may be read until the optimizer goes. shard_data_parallel_create takes one that stays
 * the caller's. A parameter that is there under two names counts once, under the first. As
 * torch.optim.SGD: weight decay is of all parameters, unless no_decay_1d is set.
 * NULL with the error set. Not collective. */
#define shard_sgd(...) shard_sgd_with(SHARD_WITH(shard_sgd_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_sgd_with(shard_tensors *parameters, shard_sgd_settings settings);

/* Adam and AdamW. */
typedef struct shard_adam_settings {
    int reserved;
    double lr;                /* 0: 1e-3 */
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-8; a beta of 0 is -1 */
    double weight_decay;      /* Adam: added to the gradient; 0: none. AdamW: of the parameter itself; 0: 0.01. -1: none */
    bool amsgrad;
    bool no_decay_1d; /* as shard_sgd */
} shard_adam_settings;

/* parameters: as shard_sgd. State: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq.
 * As torch.optim.Adam (Kingma, Ba 2015; amsgrad: Reddi, Kale, Kumar 2018) and
 * torch.optim.AdamW (Loshchilov, Hutter 2019), with their defaults. NULL with the error set. Not
 * collective. */
#define shard_adam(...) shard_adam_with(SHARD_WITH(shard_adam_settings, __VA_ARGS__))
#define shard_adamw(...) shard_adamw_with(SHARD_WITH(shard_adam_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_adam_with(shard_tensors *parameters, shard_adam_settings settings);
SHARD_API shard_optimizer *shard_adamw_with(shard_tensors *parameters, shard_adam_settings settings);

/*
 * LARS and LAMB, for large batches: each layer's step is as long as its weight, by
 * norms of the whole layer, over whichever ranks it is split or shared out. They cost one
 * all-reduce of two numbers a layer. The lists of parameters have the same layers in the
 * same order on all ranks. Biases and norms (tensors of one dimension) are neither adapted
 * nor do they decay, unless told.
 */
typedef struct shard_lars_settings {
    int reserved;
    double lr; /* 0: 1e-3 */
    double momentum, dampening, weight_decay;
    double trust_coefficient; /* 0: 0.001 */
    double eps;
    bool nesterov;
    bool decay_all, adapt_all;
} shard_lars_settings;

/* SGD in which gradient and weight decay together are multiplied by trust_coefficient
 * |w| / (|g| + weight_decay |w| + eps), where neither norm is 0. State: momentum_buffer. You,
 * Gitman, Ginsburg 2017 (https://arxiv.org/abs/1708.03888); the learning rate stands outside
 * of the momentum, as torch.optim.SGD's. NULL with the error set. Not collective. */
#define shard_lars(...) shard_lars_with(SHARD_WITH(shard_lars_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_lars_with(shard_tensors *parameters, shard_lars_settings settings);

typedef struct shard_lamb_settings {
    int reserved;
    double lr;                /* 0: 1e-3 */
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-6; a beta of 0 is -1 */
    double weight_decay;
    bool decay_all, adapt_all;
} shard_lamb_settings;

/* AdamW whose update u, weight decay included, is multiplied by |w| / |u|, where neither is
 * 0. State: exp_avg, exp_avg_sq. You et al. 2020 (https://arxiv.org/abs/1904.00962), with
 * bias correction. NULL with the error set. Not collective. */
#define shard_lamb(...) shard_lamb_with(SHARD_WITH(shard_lamb_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_lamb_with(shard_tensors *parameters, shard_lamb_settings settings);

/* The parameters stay, in the memory where they are. NULL is fine. Not collective. */
SHARD_API void shard_optimizer_destroy(shard_optimizer *optimizer);

/* What a group of parameters has otherwise than the optimizer. */
typedef struct shard_param_group_options {
    int reserved;
    double lr_scale;     /* its learning rate is this times the optimizer's, so that a schedule moves all; 0 is 1, -1 is 0 */
    double weight_decay; /* 0: the optimizer's */
    bool no_weight_decay;
    bool decay_all;   /* also of tensors of one dimension, where the optimizer's leaves these alone (no_decay_1d, LARS, LAMB) */
    bool no_decay_1d; /* not of tensors of one dimension, where the optimizer's is of all; both: an error (ARGUMENT) */
    const char *prefix; /* is put before the parameters' names, as "head."; NULL: none. Read in the call alone */
} shard_param_group_options;

/* Adds parameters, taken over even when this fails: as shard_parameters makes them, of
 * names that the optimizer has not: state dicts go by names, so that of two modules that both have
 * a "weight" one needs a .prefix. A parameter or name that it has already is an error (ARGUMENT). Under
 * shard_zero_optimizer, which shares these out too, and what has come to require a gradient since (an
 * empty list will do), collective over the world; else not. What is refused is not added; of
 * an optimizer under shard_zero_optimizer for which another thing fails (memory, a rank that is gone)
 * only shard_optimizer_destroy is left. As torch.optim.Optimizer.add_param_group. */
#define shard_optimizer_add_param_group(optimizer, ...) \
    shard_optimizer_add_param_group_with(optimizer, SHARD_WITH(shard_param_group_options, __VA_ARGS__))
SHARD_API shard_status shard_optimizer_add_param_group_with(shard_optimizer *optimizer, shard_tensors *parameters,
                                                            shard_param_group_options options);

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
    int reserved;
    double norm_type; /* 0: 2; INFINITY: the largest element */
    bool error_if_nonfinite;
} shard_clip_options;

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
    shard_clip_grad_norm_with(optimizer, max_norm, SHARD_WITH(shard_clip_options, __VA_ARGS__))
SHARD_API shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm, double *norm,
                                                 shard_clip_options options);

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
    int reserved;
    double decay; /* 0: 0.999 */
    bool warmup;  /* at most (1 + n) / (10 + n) after n updates, so that the beginning is soon forgotten */
} shard_ema_options;

/* Made after shard_zero_optimizer and destroyed before the optimizer. NULL with the error set. Not
 * collective. */
#define shard_ema_create(...) shard_ema_create_with(SHARD_WITH(shard_ema_options, __VA_ARGS__))
SHARD_API shard_ema *shard_ema_create_with(shard_optimizer *optimizer, shard_ema_options options);
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
    shard_schedule_kind kind;
    double base_lr;
    int64_t warmup_steps; /* from base_lr / warmup_steps up to base_lr, linearly */
    int64_t step_size;    /* STEP needs it: times gamma every step_size steps after the start, as StepLR */
    double gamma;         /* 0 is 0.1 */
    int64_t total_steps;  /* COSINE and POLYNOMIAL need it. COSINE: down to final_lr there, as CosineAnnealingLR */
    double final_lr;
    /* MULTI_STEP: times gamma at each of these steps, as MultiStepLR; ends with the first that is 0. */
    int64_t milestones[SHARD_SCHEDULE_MILESTONES];
    /* POLYNOMIAL: final_lr and what base_lr is more, times (1 - progress)^power, from the end of
     * the warmup to total_steps, as PolynomialLR; 0 is 1: linear. */
    double power;
} shard_schedule;

/* For step 0, 1, ... NaN with the error set (ARGUMENT) where an option is out of its range or
 * one that the kind needs is missing. Not collective. */
SHARD_API double shard_schedule_lr(const shard_schedule *schedule, int64_t step);

#endif
