#include "training_optimizers.h"

#include "training_loss.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* How a step rounds weights of 16 bits, of which the model has at most the last layer's. Its state is rounded at random as the
 * weight is, else it is float32: a second moment of 16 bits that is rounded to the nearest stands still. */
typedef struct precision {
    shard_rounding rounding;
    uint64_t seed;
    int state_dtype;
} precision;

static precision choose_precision(const training_options *wanted, const head_options *head)
{
    if (head_dtype(head, wanted) != SHARD_BFLOAT16)
        return (precision){.state_dtype = -1};
    bool stochastic = head->rounding == SHARD_ROUNDING_STOCHASTIC;
    return (precision){(shard_rounding)head->rounding, (uint64_t)wanted->seed, stochastic ? -1 : SHARD_FLOAT32};
}

static shard_optimizer *choose(const training_options *wanted, precision p, const shard_tensors *parameters)
{
    double lr = wanted->lr, decay = wanted->weight_decay, beta2 = wanted->beta2 > 0 ? wanted->beta2 : 0.999;
    switch ((training_optimizer)wanted->optimizer) {
    case TRAINING_SGD:
        return shard_sgd(parameters, .lr = lr, .momentum = wanted->momentum, .weight_decay = decay, .nesterov = wanted->nesterov,
                         .decay_1d = wanted->decay_all, .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case TRAINING_ADAM:
        return shard_adam(parameters, .lr = lr, .beta2 = beta2, .weight_decay = decay, .decay_1d = wanted->decay_all,
                          .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case TRAINING_ADAMW:
        return shard_adamw(parameters, .lr = lr, .beta2 = beta2, .weight_decay = decay, .decay_1d = wanted->decay_all,
                           .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case TRAINING_LARS:
        return shard_lars(parameters, .lr = lr, .momentum = wanted->momentum, .weight_decay = decay, .nesterov = wanted->nesterov,
                          .decay_1d = wanted->decay_all, .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case TRAINING_LAMB:
        return shard_lamb(parameters, .lr = lr, .beta2 = beta2, .weight_decay = decay, .decay_1d = wanted->decay_all,
                          .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    }
    return NULL;
}

static shard_optimizer *choose_of_head(const training_options *wanted, const head_options *head, precision p,
                                       const shard_tensors *parameters)
{
    double lr = wanted->lr, decay = wanted->weight_decay;
    switch ((head_optimizer)head->optimizer) {
    case HEAD_SAME:
        return choose(wanted, p, parameters);
    case HEAD_SGD:
        return shard_sgd(parameters, .lr = lr, .weight_decay = decay, .decay_1d = wanted->decay_all, .rounding = p.rounding,
                         .seed = p.seed);
    case HEAD_MOMENTUM:
        return shard_sgd(parameters, .lr = lr, .momentum = wanted->momentum, .weight_decay = decay, .nesterov = wanted->nesterov,
                         .decay_1d = wanted->decay_all, .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    case HEAD_ADAMW:
        return shard_adamw(parameters, .lr = lr, .weight_decay = decay, .decay_1d = wanted->decay_all, .rounding = p.rounding,
                           .seed = p.seed, .state_dtype = p.state_dtype);
    case HEAD_ROWWISE_ADAGRAD:
        return shard_rowwise_adagrad(parameters, .lr = lr, .weight_decay = decay, .decay_1d = wanted->decay_all,
                                     .rounding = p.rounding, .seed = p.seed);
    case HEAD_ROWWISE_ADAM:
        return shard_rowwise_adam(parameters, .lr = lr, .weight_decay = decay, .decay_1d = wanted->decay_all,
                                  .rounding = p.rounding, .seed = p.seed, .state_dtype = p.state_dtype);
    }
    return NULL;
}

static shard_status make_schedule(training_optimizers *made, const training_options *wanted, int64_t epoch_steps)
{
    int64_t step_size, total_steps;
    double warmup_steps = wanted->warmup_epochs * (double)epoch_steps;
    if (__builtin_mul_overflow(wanted->lr_step_size, epoch_steps, &step_size) ||
        __builtin_mul_overflow(wanted->epochs, epoch_steps, &total_steps) || warmup_steps > 0x1p62)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--epochs, --lr-step-size or --warmup-epochs: too many steps, as an epoch has %" PRId64, epoch_steps);
    made->schedule = SHARD_SCHEDULE(.kind = (shard_schedule_kind)wanted->lr_schedule, .base_lr = wanted->lr,
                                    .warmup_steps = wanted->warmup_steps ? wanted->warmup_steps : llround(warmup_steps),
                                    .step_size = step_size, .gamma = wanted->lr_gamma, .total_steps = total_steps,
                                    .final_lr = wanted->lr_min, .power = wanted->lr_power);
    return SHARD_OK;
}

/* Row-wise state needs whole rows, which an even partition cuts. */
static shard_optimizer *partition(const training_options *wanted, shard_optimizer *optimizer, bool layerwise, bool rowwise)
{
    /* Steps in backward, unless all gradients are needed first. */
    bool skips = wanted->amp == SHARD_FLOAT16 || wanted->non_finite == TRAINING_SKIP;
    bool overlap = wanted->clip_grad == 0 && !skips && !layerwise;
    if (!wanted->zero)
        return optimizer;
    return shard_zero_optimizer(optimizer, .stage = wanted->zero, .overlap = overlap, .bucket_mib = wanted->bucket_mib,
                                .partition = rowwise ? SHARD_ZERO_WHOLE : SHARD_ZERO_EVEN);
}

static void make_scaler(training_optimizers *made, const training_options *wanted)
{
    if (wanted->amp == SHARD_FLOAT16)
        made->scaler = shard_grad_scaler_create();
    else if (wanted->non_finite == TRAINING_SKIP)
        made->scaler = shard_grad_scaler_create(.init_scale = 1, .growth_interval = INT64_MAX);
}

shard_status training_optimizers_open(training_optimizers *made, const training_options *wanted, const head_options *head,
                                      const shard_tensors *parameters, const char *head_prefix, int64_t epoch_steps)
{
    bool own = head->own || head->optimizer != HEAD_SAME || head->lr > 0;
    bool layerwise = wanted->optimizer == TRAINING_LARS || wanted->optimizer == TRAINING_LAMB;
    precision p = choose_precision(wanted, head);
    *made = (training_optimizers){.options = wanted, .count = own ? 2 : 1, .clip_grad = wanted->clip_grad};
    shard_status status = make_schedule(made, wanted, epoch_steps);
    if (status != SHARD_OK)
        return status;
    made->lr[0] = wanted->lr;
    made->lr[1] = head->lr > 0 ? head->lr : wanted->lr;
    shard_tensors *body = shard_tensors_create(), *last = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        const char *name = shard_tensors_name(parameters, i);
        bool of_head = own && strncmp(name, head_prefix, strlen(head_prefix)) == 0;
        shard_tensors_add(of_head ? last : body, name, shard_tensors_at(parameters, i));
    }
    made->of[0] = choose(wanted, p, body);
    made->of[1] = own ? choose_of_head(wanted, head, p, last) : NULL;
    shard_tensors_destroy(body);
    shard_tensors_destroy(last);
    made->of[0] = partition(wanted, made->of[0], layerwise, false);
    if (own)
        made->of[1] = partition(wanted, made->of[1], head_is_layerwise(head, wanted), head->optimizer >= HEAD_ROWWISE_ADAGRAD);
    make_scaler(made, wanted);
    return shard_last_status();
}

void training_optimizers_close(training_optimizers *made)
{
    shard_grad_scaler_destroy(made->scaler);
    shard_tensors_destroy(made->buffers);
    shard_tensors_destroy(made->kept);
    for (int i = 0; i < 2; i++)
        shard_optimizer_destroy(made->of[i]);
    *made = (training_optimizers){0};
}

double training_optimizers_set_lr(training_optimizers *made, int64_t step)
{
    for (int i = 0; i < made->count; i++) {
        shard_schedule schedule = made->schedule;
        schedule.base_lr = made->lr[i];
        if (made->lr[0] > 0) /* at each step the rates have the same ratio */
            schedule.final_lr *= made->lr[i] / made->lr[0];
        shard_optimizer_set_lr(made->of[i], shard_schedule_lr(&schedule, step));
    }
    return shard_optimizer_lr(made->of[0]);
}

double training_optimizers_head_lr(const training_optimizers *made)
{
    return made->of[1] ? shard_optimizer_lr(made->of[1]) : -1;
}

const char *training_optimizers_describe_lr(char *text, size_t bytes, double lr, double head_lr)
{
    int used = snprintf(text, bytes, "lr %.3g", lr);
    if (head_lr >= 0)
        snprintf(text + used, bytes - (size_t)used, " and %.3g", head_lr);
    return text;
}

shard_status training_optimizers_step(training_optimizers *made)
{
    for (int i = 0; i < made->count; i++)
        shard_grad_scaler_unscale(made->scaler, made->of[i]);
    made->skipped = shard_grad_scaler_overflowed(made->scaler) || made->lost_somewhere;
    made->skipped_steps += made->skipped;
    if (!made->skipped && made->clip_grad > 0)
        shard_clip_grad_norm_of(made->of, made->count, made->clip_grad, NULL);
    for (int i = 0; i < made->count; i++)
        if (made->skipped)
            shard_optimizer_zero_grad(made->of[i]);
        else
            shard_grad_scaler_step(made->scaler, made->of[i]);
    shard_grad_scaler_update(made->scaler);
    if (made->scaler && made->options->amp != SHARD_FLOAT16)
        shard_grad_scaler_set_scale(made->scaler, 1);
    return made->skipped ? training_loss_restore(made) : shard_last_status();
}

static void add_state(shard_tensors *all, const char *prefix, shard_tensors *state)
{
    shard_tensors_extend(all, prefix, state);
    shard_tensors_destroy(state);
}

shard_status training_optimizers_add_state(const training_optimizers *made, shard_tensors *all, const char *prefix)
{
    for (int i = 0; i < made->count; i++)
        add_state(all, prefix, shard_optimizer_state_dict(made->of[i]));
    if (made->scaler && made->options->amp == SHARD_FLOAT16)
        add_state(all, TRAINING_SCALER, shard_grad_scaler_state_dict(made->scaler));
    return shard_last_status();
}

shard_tensors *training_collect(shard_module *model, const training_optimizers *made)
{
    shard_tensors *all = shard_state_dict(model);
    training_optimizers_add_state(made, all, TRAINING_OPTIMIZER);
    return all;
}
