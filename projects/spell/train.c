/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

#include "interrupt.h"
#include "training_loop.h"
#include "training_loss.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>

/* The results of a step, over the world. */
typedef struct step {
    double loss; /* the mean of the pairs' */
    double lr, grad_scale, seconds;
    int64_t pairs, local_pairs, lost; /* lost: the lowest rank for whose loss it was skipped; -1: none */
} step;

/* The state of an epoch. */
typedef struct epoch_state {
    trainer *run;
    double loss, pairs; /* sums of the steps that were not skipped for their loss */
} epoch_state;

/* While rows are tied the final layer has no gradient, or with replicas one of zeros: its optimizer's count of steps stays. */
static shard_status step_optimizers(trainer *run)
{
    training_optimizers *all = &run->optimizers;
    if (!trainer_is_tied(run))
        return training_optimizers_step(all);
    all->count = 1;
    shard_status status = training_optimizers_step(all);
    all->count = 2;
    if (status == SHARD_OK)
        shard_optimizer_zero_grad(all->of[1]);
    return shard_last_status();
}

static shard_status step_once(trainer *run, step *made, bool *interrupted)
{
    double begun = progress_clock(), loss = 0;
    double lr = training_optimizers_set_lr(&run->optimizers, training_schedule_step(&run->at, run->checkpoint.epoch_steps));
    *made = (step){.lr = lr, .lost = -1};
    shard_group_sampler_next(run->sampler, run->samples, &made->local_pairs);
    training_loss_begin(&run->optimizers);
    shard_status status = loss_backward(run, made->local_pairs, &loss);
    if (status == SHARD_OK)
        status = training_loss_agree(&run->optimizers, &made->lost);
    if (status == SHARD_OK)
        status = step_optimizers(run);
    double sums[2] = {shard_group_rank(run->model_group) == 0 ? loss : 0, interrupt_signal() != 0};
    if (status == SHARD_OK)
        status = training_sum(sums, 2);
    run->at.step++;
    run->at.epoch_step++;
    made->grad_scale = shard_grad_scaler_get_scale(run->optimizers.scaler);
    made->pairs = shard_group_sampler_last_batch_size(run->sampler);
    made->loss = sums[0] / (double)made->pairs;
    made->seconds = progress_clock() - begun;
    *interrupted = sums[1] > 0;
    return status == SHARD_OK
               ? training_loss_check(&run->optimizers, run->at.step, made->loss, run->optimizers.skipped, made->grad_scale)
               : status;
}

static shard_status report(trainer *run, const step *made, double epoch_loss)
{
    char title[64], text[256];
    bool skipped = run->optimizers.skipped;
    metrics_entry entry = {
        .step = run->at.step,
        .epoch = run->at.epoch,
        .values = {{"lr", made->lr, METRICS_NUMBER},
                   {"grad_scale", made->grad_scale, METRICS_NUMBER},
                   {"left_out", skipped, METRICS_TRUTH},
                   {"loss", made->loss, METRICS_NUMBER}},
        .samples = made->pairs,
        .local_samples = made->local_pairs,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    int used = snprintf(text, sizeof text, "loss %.4f (%.4f)  %.1f pairs/s  lr %.3g", made->loss, epoch_loss,
                        (double)made->pairs / made->seconds, made->lr);
    training_loss_describe(made->lost, skipped, text + used, sizeof text - (size_t)used);
    progress_step(&run->progress, title, run->at.epoch_step,
                  training_steps_to_make(&run->options->training, &run->at, shard_group_sampler_steps(run->sampler)), text);
    return metrics_write(run->metrics, &entry);
}

static shard_status begin_epoch(void *of)
{
    epoch_state *state = of;
    trainer *run = state->run;
    *state = (epoch_state){.run = run};
    return shard_group_sampler_seek(run->sampler, run->at.epoch, run->at.epoch_step);
}

static shard_status make_step(void *of, bool *interrupted)
{
    epoch_state *state = of;
    step made;
    shard_status status = step_once(state->run, &made, interrupted);
    if (status != SHARD_OK)
        return status;
    if (isfinite(made.loss)) {
        state->loss += made.loss * (double)made.pairs;
        state->pairs += (double)made.pairs;
    }
    return report(state->run, &made, state->pairs > 0 ? state->loss / state->pairs : 0);
}

static shard_status end_epoch(void *of)
{
    trainer *run = ((epoch_state *)of)->run;
    return trainer_is_tied(run) ? trainer_set_rows(run) : SHARD_OK;
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    accuracy whole = {0};
    shard_status status = evaluate(((epoch_state *)of)->run, &whole, interrupted);
    *result = whole.top1;
    return status;
}

shard_status train(trainer *run)
{
    epoch_state state = {.run = run};
    training_options wanted = run->options->training;
    wanted.val_interval = trainer_validates(run) ? wanted.val_interval : 0;
    return training_loop_run(&(training_loop){.run = &state,
                                              .options = &wanted,
                                              .at = &run->at,
                                              .checkpoint = &run->checkpoint,
                                              .optimizers = &run->optimizers,
                                              .model = run->network,
                                              .shown = &run->progress,
                                              .begin = begin_epoch,
                                              .step = make_step,
                                              .end = end_epoch,
                                              .validate = validate});
}
