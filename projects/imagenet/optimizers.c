/*
 * The optimizers of a run and the learning rate's schedule. One optimizer steps all layers, or the final layer has its own; two
 * step together: both or neither, by gradients that are clipped by their common norm.
 */
#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define HEAD_PREFIX "fc."

/* How a step rounds weights of 16 bits, of which the model has at most the final layer's. Its state is rounded at random as the
 * weight is, else it is float32: a second moment of 16 bits that is rounded to the nearest stands still. */
typedef struct precision {
    shard_rounding rounding;
    uint64_t seed;
    int state_dtype;
} precision;

static precision choose_precision(const options *wanted)
{
    if (wanted->head_dtype != SHARD_BFLOAT16)
        return (precision){.state_dtype = -1};
    bool stochastic = wanted->head_rounding == SHARD_ROUNDING_STOCHASTIC;
    return (precision){(shard_rounding)wanted->head_rounding, (uint64_t)wanted->seed, stochastic ? -1 : SHARD_FLOAT32};
}

static shard_optimizer *choose(const options *wanted, const shard_tensors *parameters)
{
    double lr = wanted->lr, decay = wanted->weight_decay;
    precision p = choose_precision(wanted);
    switch ((optimizer_kind)wanted->optimizer) {
    case OPTIMIZER_SGD:
        return shard_sgd(parameters, .lr = lr, .momentum = wanted->momentum, .weight_decay = decay, .nesterov = wanted->nesterov,
                         .decay_1d = false, .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case OPTIMIZER_ADAM:
        return shard_adam(parameters, .lr = lr, .weight_decay = decay, .decay_1d = false, .rounding = p.rounding, .seed = p.seed,
                          .state_dtype = p.state_dtype);
    case OPTIMIZER_ADAMW:
        return shard_adamw(parameters, .lr = lr, .weight_decay = decay, .decay_1d = false, .rounding = p.rounding, .seed = p.seed,
                           .state_dtype = p.state_dtype);
    case OPTIMIZER_LARS:
        return shard_lars(parameters, .lr = lr, .momentum = wanted->momentum, .weight_decay = decay, .nesterov = wanted->nesterov,
                          .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case OPTIMIZER_LAMB:
        return shard_lamb(parameters, .lr = lr, .weight_decay = decay, .rounding = p.rounding, .seed = p.seed,
                          .state_dtype = p.state_dtype);
    }
    return NULL;
}

static shard_optimizer *choose_of_head(const options *wanted, const shard_tensors *parameters)
{
    double lr = wanted->lr, decay = wanted->weight_decay;
    precision p = choose_precision(wanted);
    switch ((head_optimizer_kind)wanted->head_optimizer) {
    case HEAD_OPTIMIZER_SAME:
        return choose(wanted, parameters);
    case HEAD_OPTIMIZER_SGD:
        return shard_sgd(parameters, .lr = lr, .weight_decay = decay, .decay_1d = false, .rounding = p.rounding, .seed = p.seed);
    case HEAD_OPTIMIZER_MOMENTUM:
        return shard_sgd(parameters, .lr = lr, .momentum = wanted->momentum, .weight_decay = decay, .nesterov = wanted->nesterov,
                         .decay_1d = false, .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case HEAD_OPTIMIZER_ADAMW:
        return shard_adamw(parameters, .lr = lr, .weight_decay = decay, .decay_1d = false, .rounding = p.rounding, .seed = p.seed,
                           .state_dtype = p.state_dtype);
    case HEAD_OPTIMIZER_ROWWISE_ADAGRAD:
        return shard_rowwise_adagrad(parameters, .lr = lr, .weight_decay = decay, .decay_1d = false, .rounding = p.rounding,
                                     .seed = p.seed);
    case HEAD_OPTIMIZER_ROWWISE_ADAM:
        return shard_rowwise_adam(parameters, .lr = lr, .weight_decay = decay, .decay_1d = false, .rounding = p.rounding,
                                  .seed = p.seed, .state_dtype = p.state_dtype);
    }
    return NULL;
}

static bool is_layerwise(const options *wanted)
{
    return wanted->optimizer == OPTIMIZER_LARS || wanted->optimizer == OPTIMIZER_LAMB;
}

bool optimizers_head_is_layerwise(const options *wanted)
{
    return wanted->head_optimizer == HEAD_OPTIMIZER_SAME && is_layerwise(wanted);
}

static shard_status make_schedule(trainer *run)
{
    const options *wanted = run->options;
    int64_t epoch_steps = train_steps(run), step_size, total_steps;
    double warmup_steps = wanted->warmup_epochs * (double)epoch_steps;
    if (__builtin_mul_overflow(wanted->lr_step_size, epoch_steps, &step_size) ||
        __builtin_mul_overflow(wanted->epochs, epoch_steps, &total_steps) || warmup_steps > 0x1p62)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--epochs, --lr-step-size or --warmup-epochs: too many steps, as an epoch has %" PRId64, epoch_steps);
    run->schedule = SHARD_SCHEDULE(.kind = (shard_schedule_kind)wanted->lr_schedule, .base_lr = wanted->lr,
                                   .warmup_steps = wanted->warmup_steps ? wanted->warmup_steps : llround(warmup_steps),
                                   .step_size = step_size, .total_steps = total_steps);
    return SHARD_OK;
}

/* Row-wise state needs whole rows, which an even partition cuts. */
static shard_optimizer *partition(const options *wanted, shard_optimizer *optimizer, bool layerwise, bool rowwise)
{
    /* Steps in backward, unless all gradients are needed first. */
    bool skips = wanted->amp == SHARD_FLOAT16 || wanted->non_finite == NON_FINITE_SKIP;
    bool overlap = wanted->clip_grad == 0 && !skips && !layerwise;
    if (!wanted->zero)
        return optimizer;
    return shard_zero_optimizer(optimizer, .stage = wanted->zero, .overlap = overlap, .bucket_mib = wanted->bucket_mib,
                                .partition = rowwise ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN);
}

shard_status optimizers_open(trainer *run)
{
    const options *wanted = run->options;
    bool own = wanted->head_optimizer != HEAD_OPTIMIZER_SAME || wanted->head_lr > 0;
    shard_status status = make_schedule(run);
    if (status != SHARD_OK)
        return status;
    shard_tensors *all = shard_parameters(run->model), *body = shard_tensors_create(), *head = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(all); i++) {
        const char *name = shard_tensors_name(all, i);
        bool of_head = own && strncmp(name, HEAD_PREFIX, strlen(HEAD_PREFIX)) == 0;
        shard_tensors_add(of_head ? head : body, name, shard_tensors_at(all, i));
    }
    run->optimizer = choose(wanted, body);
    run->head_optimizer = own ? choose_of_head(wanted, head) : NULL;
    shard_tensors_destroy(all);
    shard_tensors_destroy(body);
    shard_tensors_destroy(head);
    run->optimizer = partition(wanted, run->optimizer, is_layerwise(wanted), false);
    if (own)
        run->head_optimizer = partition(wanted, run->head_optimizer, optimizers_head_is_layerwise(wanted),
                                        wanted->head_optimizer >= HEAD_OPTIMIZER_ROWWISE_ADAGRAD);
    return shard_last_status();
}

void optimizers_close(trainer *run)
{
    shard_optimizer_destroy(run->optimizer);
    shard_optimizer_destroy(run->head_optimizer);
}

shard_status optimizers_add_state(const trainer *run, shard_tensors *all, const char *prefix)
{
    shard_optimizer *const each[] = {run->optimizer, run->head_optimizer};
    for (int i = 0; i < 2 && each[i]; i++) {
        shard_tensors *state = shard_optimizer_state_dict(each[i]);
        shard_tensors_extend(all, prefix, state);
        shard_tensors_destroy(state);
    }
    return shard_last_status();
}

void optimizers_set_lr(trainer *run)
{
    const options *wanted = run->options;
    shard_schedule of_head = run->schedule;
    of_head.base_lr = wanted->head_lr > 0 ? wanted->head_lr : wanted->lr;
    shard_optimizer_set_lr(run->optimizer, shard_schedule_lr(&run->schedule, run->at.step));
    if (run->head_optimizer)
        shard_optimizer_set_lr(run->head_optimizer, shard_schedule_lr(&of_head, run->at.step));
}

shard_status optimizers_step(trainer *run)
{
    shard_optimizer *const each[] = {run->optimizer, run->head_optimizer};
    int count = run->head_optimizer ? 2 : 1;
    for (int i = 0; i < count; i++)
        shard_grad_scaler_unscale(run->scaler, each[i]);
    run->skipped = shard_grad_scaler_overflowed(run->scaler) || run->lost_somewhere;
    if (!run->skipped && run->options->clip_grad > 0)
        shard_clip_grad_norm_of(each, count, run->options->clip_grad, NULL);
    for (int i = 0; i < count; i++)
        if (run->skipped)
            shard_optimizer_zero_grad(each[i]);
        else
            shard_grad_scaler_step(run->scaler, each[i]);
    shard_grad_scaler_update(run->scaler);
    if (run->scaler && run->options->amp != SHARD_FLOAT16)
        shard_grad_scaler_set_scale(run->scaler, 1);
    return run->skipped ? non_finite_restore(run) : shard_last_status();
}
