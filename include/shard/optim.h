/*
 * shard/optim.h: optimizers and learning rate schedules.
 */
#ifndef SHARD_OPTIM_H
#define SHARD_OPTIM_H

#include <shard/tensor.h>

typedef struct shard_optimizer shard_optimizer;

typedef struct shard_sgd_settings {
    int reserved;
    double lr;
    double momentum, dampening, weight_decay;
    bool nesterov;
    bool decay_all; /* weight decay on biases and norms (tensors of one dimension) too, as torch.optim.SGD */
} shard_sgd_settings;

/* parameters: taken over, as shard_parameters makes it; one that is there under two names
 * counts once, under the first. As torch.optim.SGD, but that
 * weight decay leaves tensors of fewer than two dimensions alone unless decay_all.
 * NULL with the error set. Not collective. */
#define shard_sgd(parameters, ...) shard_sgd_with(parameters, (shard_sgd_settings){.reserved = 0, __VA_ARGS__})
SHARD_API shard_optimizer *shard_sgd_with(shard_tensors *parameters, shard_sgd_settings settings);

SHARD_API void shard_optimizer_destroy(shard_optimizer *optimizer);

/* What a group of parameters has otherwise than the optimizer. */
typedef struct shard_param_group_options {
    int reserved;
    double lr_scale;     /* its learning rate is this times the optimizer's, so that a schedule moves all; 0 is 1 */
    double weight_decay; /* 0: the optimizer's */
    bool no_weight_decay;
    bool decay_all; /* on tensors of one dimension too */
} shard_param_group_options;

/* Adds parameters, taken over even when this fails: as shard_parameters makes them, of
 * names that the optimizer has not. One that it has already is an error (ARGUMENT), and
 * nothing is added then. Under shard_zero, which shares these out too, collective over
 * their replica groups; else not. As torch.optim.Optimizer.add_param_group. */
#define shard_optimizer_add_param_group(optimizer, parameters, ...) \
    shard_optimizer_add_param_group_with(optimizer, parameters, (shard_param_group_options){.reserved = 0, __VA_ARGS__})
SHARD_API shard_status shard_optimizer_add_param_group_with(shard_optimizer *optimizer, shard_tensors *parameters,
                                                            shard_param_group_options options);

/* Updates every parameter that has a gradient, and forgets the gradients. Does nothing
 * and returns the thread's error if there is one: a failed backward never moves a
 * parameter. Joint over the world: if a rank has failed, none steps. Collective over
 * the world. */
SHARD_API shard_status shard_step(shard_optimizer *optimizer);

/* Forgets the gradients without a step. */
SHARD_API void shard_optimizer_zero_grad(shard_optimizer *optimizer);

SHARD_API double shard_optimizer_lr(const shard_optimizer *optimizer);
SHARD_API void shard_optimizer_set_lr(shard_optimizer *optimizer, double lr);

/* Its state by name ("fc.weight.momentum_buffer"), placed like the parameters, made
 * if it was not yet, so that it can be saved and loaded into, and each parameter's
 * number of steps ("fc.weight.step", an int64 scalar), as a first step differs from
 * later ones. The caller's, to be destroyed. */
SHARD_API shard_tensors *shard_optimizer_state_dict(shard_optimizer *optimizer);

/* ---- schedules: the learning rate of a step, a pure function of it ---- */

typedef enum shard_schedule_kind { SHARD_SCHEDULE_CONSTANT = 0, SHARD_SCHEDULE_STEP, SHARD_SCHEDULE_COSINE } shard_schedule_kind;

typedef struct shard_schedule {
    shard_schedule_kind kind;
    double base_lr;
    int64_t warmup_steps; /* from base_lr / warmup_steps up to base_lr, linearly */
    int64_t step_size;    /* STEP: times gamma every step_size steps after the start, as StepLR */
    double gamma;         /* 0 is 0.1 */
    int64_t total_steps;  /* COSINE: down to final_lr at total_steps, as CosineAnnealingLR */
    double final_lr;
} shard_schedule;

/* For step 0, 1, ... */
SHARD_API double shard_schedule_lr(const shard_schedule *schedule, int64_t step);

#endif
