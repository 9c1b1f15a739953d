/*
 * shard/optim.h: optimizers, ZeRO, averages of parameters, learning rate schedules.
 *
 * Objects of a run are made in this order, each of them optional, and destroyed in the reverse order (lists
 * of the caller at any time):
 *
 *     shard_init, the mesh       groups outlive all that is placed on them
 *     the module                 split, converted, frozen and synchronised as it is trained
 *     the optimizer              and its shard_optimizer_add_param_group
 *     shard_zero_optimizer       returns that optimizer; it is destroyed once
 *     shard_data_parallel        with shard_zero_optimizer only for buffers and accumulation
 *     shard_ema, the scaler
 *     state dicts                of all of these, when memory does not move any more
 *     shard_load                 then the sampler's seek and the random state
 *
 * A step sets the learning rate, runs forward and backward, clips, steps, and updates averages.
 * projects/templates/training.c has all of it. docs/zero.md and docs/data-parallel.md are the guides.
 */
#ifndef SHARD_OPTIM_H
#define SHARD_OPTIM_H

#include <shard/distributed.h>

/*
 * A setting of 0 means its default, which is given in the setting's comment. Where 0 itself makes sense, a negative
 * number stands for it: .beta1 = -1 is Adam without a momentum, .weight_decay = -1 AdamW without decay,
 * .lr_scale = -1 a group that is not updated.
 *
 * A parameter's state has the parameter's dtype, as in PyTorch. Keep parameters in float32, the master weights, of
 * which SHARD_AUTOCAST makes 16-bit copies. A 16-bit parameter has 16-bit state: in float16, exp_avg_sq underflows
 * for gradients below 0.005 (and the step is then limited by eps alone); in bfloat16, steps of less than 2^-9 of a
 * weight are lost, an average with decay 0.999 does not move, and exp_avg_sq hardly does.
 */
typedef struct shard_optimizer shard_optimizer;

typedef struct shard_sgd_settings {
    int reserved;
    double lr; /* 0: 1e-3, as torch.optim; a rate of 0 is set by shard_optimizer_set_lr */
    double momentum, dampening, weight_decay;
    bool nesterov;
    bool no_decay_1d; /* no weight decay on biases and norms: tensors of fewer than two dimensions */
} shard_sgd_settings;

/* As torch.optim.SGD. Takes the list over, as shard_parameters makes it, also when it fails: the list may be read until
 * the optimizer is destroyed, but not destroyed. A parameter that is in it under two names counts once, under the first.
 * Weight decay applies to all parameters, unless no_decay_1d is set. NULL with the error set. Not collective. */
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

/* As torch.optim.Adam (Kingma, Ba 2015; amsgrad: Reddi, Kale, Kumar 2018) and torch.optim.AdamW (Loshchilov,
 * Hutter 2019), with their defaults. Takes the list over, as shard_sgd. State: exp_avg, exp_avg_sq and, with
 * amsgrad, max_exp_avg_sq. NULL with the error set. Not collective. */
#define shard_adam(...) shard_adam_with(SHARD_WITH(shard_adam_settings, __VA_ARGS__))
#define shard_adamw(...) shard_adamw_with(SHARD_WITH(shard_adam_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_adam_with(shard_tensors *parameters, shard_adam_settings settings);
SHARD_API shard_optimizer *shard_adamw_with(shard_tensors *parameters, shard_adam_settings settings);

/*
 * LARS and LAMB, for large batches: the step of each layer is in proportion to the norm of its weight. Norms are
 * those of the whole layer, also if it is split or partitioned over ranks; they cost one all-reduce of two numbers for
 * each layer. Lists of parameters have the same layers in the same order on all ranks. Biases and norms (tensors of
 * one dimension) are neither adapted nor do they decay, unless adapt_all and decay_all are set.
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

/* SGD in which the sum of gradient and weight decay is multiplied by trust_coefficient |w| / (|g| + weight_decay |w| +
 * eps), unless one of the norms is 0. State: momentum_buffer. You, Gitman, Ginsburg 2017
 * (https://arxiv.org/abs/1708.03888); the momentum does not contain the learning rate, as in torch.optim.SGD. NULL with
 * the error set. Not collective. */
#define shard_lars(...) shard_lars_with(SHARD_WITH(shard_lars_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_lars_with(shard_tensors *parameters, shard_lars_settings settings);

typedef struct shard_lamb_settings {
    int reserved;
    double lr;                /* 0: 1e-3 */
    double beta1, beta2, eps; /* 0: 0.9, 0.999, 1e-6; a beta of 0 is -1 */
    double weight_decay;
    bool decay_all, adapt_all;
} shard_lamb_settings;

/* AdamW whose update u, weight decay included, is multiplied by |w| / |u|, unless one of them is
 * 0. State: exp_avg, exp_avg_sq. You et al. 2020 (https://arxiv.org/abs/1904.00962), with
 * bias correction. NULL with the error set. Not collective. */
#define shard_lamb(...) shard_lamb_with(SHARD_WITH(shard_lamb_settings, __VA_ARGS__))
SHARD_API shard_optimizer *shard_lamb_with(shard_tensors *parameters, shard_lamb_settings settings);

/* Destroys the optimizer. The parameters keep their memory. NULL is allowed. Not collective. */
SHARD_API void shard_optimizer_destroy(shard_optimizer *optimizer);

/* Settings of a group of parameters that differ from the optimizer's. */
typedef struct shard_param_group_options {
    int reserved;
    double lr_scale;     /* its learning rate is this times the optimizer's, so that a schedule moves all; 0 is 1, -1 is 0 */
    double weight_decay; /* 0: the optimizer's */
    bool no_weight_decay;
    bool decay_all;   /* also of tensors of one dimension, where the optimizer's leaves these alone (no_decay_1d, LARS, LAMB) */
    bool no_decay_1d; /* not of tensors of one dimension, where the optimizer's is of all; both: an error (ARGUMENT) */
    const char *prefix; /* is put before the parameters' names, as "head."; NULL: none. Read in the call alone */
} shard_param_group_options;

/* Adds parameters with settings of their own, as torch.optim.Optimizer.add_param_group. Takes the list over, also when it
 * fails. Names must be new to the optimizer, as state dicts go by names: of two modules that both have a "weight", one needs
 * a .prefix. A parameter or a name that the optimizer has is an error (ARGUMENT), and is not added.
 * Under shard_zero_optimizer the call partitions these parameters, and those that have come to require a gradient since
 * (an empty list will do); after an error other than ARGUMENT the optimizer can then only be destroyed.
 * Collective over the world under shard_zero_optimizer, else not. */
#define shard_optimizer_add_param_group(optimizer, ...) \
    shard_optimizer_add_param_group_with(optimizer, SHARD_WITH(shard_param_group_options, __VA_ARGS__))
SHARD_API shard_status shard_optimizer_add_param_group_with(shard_optimizer *optimizer, shard_tensors *parameters,
                                                            shard_param_group_options options);

/* Updates every parameter that has a gradient, and clears the gradients; as step() and zero_grad() of torch.optim. If
 * any rank has an error, no rank updates a parameter, and all of them return the error: a failed backward never
 * moves a parameter. Ranks whose settings differ are an error (MISMATCH). Collective over the world. */
SHARD_API shard_status shard_step(shard_optimizer *optimizer);

/* Whether shard_grad_scaler_step skipped the optimizer's last step because a gradient was not finite; do not advance the
 * schedule or the averages then. False after shard_step, before the first step, and for NULL. Identical on all
 * ranks. Not collective. */
SHARD_API bool shard_optimizer_skipped(const shard_optimizer *optimizer);

/* ---- clipping: between backward and step ---- */

typedef struct shard_clip_options {
    int reserved;
    double norm_type; /* 0: 2; INFINITY: the largest element */
    bool error_if_nonfinite;
} shard_clip_options;

/*
 * Scales the optimizer's gradients down to max_norm if their common norm is larger; as
 * torch.nn.utils.clip_grad_norm_. Each element counts once, whether its parameter is replicated, split or partitioned.
 * The gradients stay unchanged: the factor, min(1, max_norm / (norm + 1e-6)), is multiplied into the next step (and
 * clipping). That step and shard_optimizer_zero_grad clear it; shard_zero_grad of a parameter does not.
 * *norm (NULL: not wanted) becomes the norm. Without it and without error_if_nonfinite the host waits for no GPU, unless
 * the ranks' sums go through host memory. A norm that is infinite or NaN makes gradients 0 or NaN, or is an error
 * (ARGUMENT) on every rank with error_if_nonfinite; call shard_optimizer_zero_grad after it. Collective over the world.
 */
#define shard_clip_grad_norm(optimizer, max_norm, ...) \
    shard_clip_grad_norm_with(optimizer, max_norm, SHARD_WITH(shard_clip_options, __VA_ARGS__))
SHARD_API shard_status shard_clip_grad_norm_with(shard_optimizer *optimizer, double max_norm, double *norm,
                                                 shard_clip_options options);

/* Limits each element of the gradients to [-value, value], as torch.nn.utils.clip_grad_value_. Not collective. */
SHARD_API shard_status shard_clip_grad_value(shard_optimizer *optimizer, double value);

/* Clears the gradients without a step. NULL is allowed. Not collective. */
SHARD_API void shard_optimizer_zero_grad(shard_optimizer *optimizer);

/* The learning rate of the groups without an lr_scale; 0 for NULL. A rate that is negative, infinite or NaN is an error
 * (ARGUMENT); 0 is 0. Not collective, but the rate must be equal on all ranks. */
SHARD_API double shard_optimizer_lr(const shard_optimizer *optimizer);
SHARD_API shard_status shard_optimizer_set_lr(shard_optimizer *optimizer, double lr);

/* The state by name ("fc.weight.momentum_buffer"), placed like the parameters, and each parameter's number of steps
 * ("fc.weight.step", an int64 scalar). State that does not exist yet is made, so that it can be saved and loaded into. Call
 * it after shard_zero_optimizer and shard_optimizer_add_param_group. Under shard_zero_optimizer a state tensor is this rank's
 * flat range; files, and shard_collect_state_dict, have whole tensors (docs/checkpoints.md).
 * A frozen parameter that was never stepped is in the list, but has no memory and is not in files; to load such a file where
 * the parameter is trained, set allow_missing: its state begins with zeros. The caller destroys the list. NULL with the error
 * set. Not collective. */
SHARD_API shard_tensors *shard_optimizer_state_dict(shard_optimizer *optimizer);

/* ---- ZeRO: optimizer state, gradients and parameters partitioned over replicas; docs/zero.md ---- */

typedef enum shard_zero_partition {
    SHARD_ZERO_EVEN = 0, /* each rank has the same number of elements of each bucket, exactly 1/N with padding */
    SHARD_ZERO_WHOLE,    /* each rank has whole parameters: of those of one call the largest first, each to the rank that
                            has least, the lowest of several (torch: one parameter group after another) */
} shard_zero_partition;

typedef struct shard_zero_optimizer_options {
    int reserved;
    int stage;          /* 1, 2 or 3; 0 is 1 */
    shard_group *group; /* NULL: each parameter's replica group */
    shard_zero_partition partition;
    bool overlap;      /* step each bucket in backward, as soon as its gradient is there */
    double bucket_mib; /* 0 is 25 */
} shard_zero_optimizer_options;

/*
 * Partitions the optimizer's parameters over their replica groups, in place, and returns the optimizer. The parameters move
 * into buckets; each rank updates its flat range of every bucket, and keeps only that range of
 *   stage 1  the optimizer's state;
 *   stage 2  and the gradients: shard_grad is NULL after backward, and functions on gradients take the optimizer;
 *   stage 3  and the parameters, which are unsharded for each use in forward and backward.
 * Gradients are averaged as by shard_data_parallel. The result is that of the same optimizer alone: to the bit in float32 over
 * shared memory, if no backwards are accumulated and no norms taken. docs/zero.md describes the stages, overlap,
 * accumulation, matrices larger than a bucket, and what ranks compare.
 *
 * Call it before backward, or after shard_step, and before state dicts are made; state that the optimizer has is kept.
 * `group` contains each parameter's replicas (NULL and the world fit any parameter). Destroy the optimizer before the groups.
 * Errors: ARGUMENT, a parameter that another optimizer has partitioned, that has a gradient, or whose state is in a state
 * dict; UNSUPPORTED, a group with only some of a parameter's replicas, LARS or LAMB with overlap; MISMATCH, ranks that differ.
 * NULL with the error set; the optimizer can then only be destroyed. As torch.distributed.optim.ZeroRedundancyOptimizer.
 * Collective over the world; in stage 3 every use of a parameter is collective over its replicas.
 */
#define shard_zero_optimizer(...) shard_zero_optimizer_with(SHARD_WITH(shard_zero_optimizer_options, __VA_ARGS__))
SHARD_API shard_optimizer *shard_zero_optimizer_with(shard_optimizer *optimizer, shard_zero_optimizer_options options);

/* ---- exponential moving averages of the parameters ---- */

/*
 * Averages of an optimizer's parameters, as torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn. After the
 * first update they are the parameters, after each later one
 *     average = decay * average + (1 - decay) * parameter
 * Under shard_zero_optimizer each rank keeps the averages of its flat ranges. Buffers (batch norm) are not averaged. The
 * average of a frozen parameter is the parameter; it begins with the first update after the parameter requires a
 * gradient.
 */
typedef struct shard_ema shard_ema;

typedef struct shard_ema_options {
    int reserved;
    double decay; /* 0: 0.999 */
    bool warmup;  /* at most (1 + n) / (10 + n) after n updates, so that the beginning is soon forgotten */
} shard_ema_options;

/* Make it after shard_zero_optimizer, and destroy it before the optimizer. NULL with the error set. Not collective. */
#define shard_ema_create(...) shard_ema_create_with(SHARD_WITH(shard_ema_options, __VA_ARGS__))
SHARD_API shard_ema *shard_ema_create_with(shard_optimizer *optimizer, shard_ema_options options);
SHARD_API void shard_ema_destroy(shard_ema *ema);

/* Updates the averages by the present parameters: after a step, unless shard_optimizer_skipped. Not collective. */
SHARD_API shard_status shard_ema_update(shard_ema *ema);

/* Exchanges parameters and averages: swap, evaluate or save, swap back. Do not step or update in between. Needs 4 MiB of
 * workspace. If a rank fails, all do, and the parameters are unchanged on each. Collective over the world. */
SHARD_API shard_status shard_ema_swap(shard_ema *ema);

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
    shard_schedule_kind kind;
    double base_lr;
    int64_t warmup_steps; /* from base_lr / warmup_steps up to base_lr, linearly */
    int64_t step_size;    /* STEP needs it: times gamma every step_size steps after the start, as StepLR */
    double gamma;         /* 0 is 0.1 */
    int64_t total_steps;  /* COSINE and POLYNOMIAL need it. COSINE: down to final_lr there, as CosineAnnealingLR */
    double final_lr;
    /* MULTI_STEP: times gamma at each of these steps, as MultiStepLR; ends with the first that is 0. */
    int64_t milestones[SHARD_SCHEDULE_MILESTONES];
    /* POLYNOMIAL: final_lr + (base_lr - final_lr) * (1 - progress)^power, from the end of the warmup to total_steps, as
     * PolynomialLR; 0 is 1: linear. */
    double power;
} shard_schedule;

/* The learning rate of step 0, 1, and so on. NaN with the error set (ARGUMENT) if an option is out of range, or one
 * that the kind needs is missing. Not collective. */
SHARD_API double shard_schedule_lr(const shard_schedule *schedule, int64_t step);

#endif
