#include "training_loop.h"

#include "interrupt.h"
#include "training_loss.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* The results of a step, over the world. */
typedef struct step {
    training_batch batch; /* loss: the mean over the samples */
    double lr, head_lr, grad_scale, seconds; /* head_lr: below 0: the last layer has no optimizer of its own */
    int64_t lost; /* the lowest rank for whose loss it was skipped; -1: none */
} step;

/* Sums over the steps of an epoch that were not skipped for their loss. */
typedef struct epoch_sums {
    double loss, samples;
} epoch_sums;

/* ---- the position ---- */

static bool all_steps_done(const training_run *run)
{
    return run->options->steps > 0 && run->at.step >= run->options->steps;
}

/* All its steps are done; its validation and save are still to do. */
static bool epoch_is_full(const training_run *run)
{
    return run->at.epoch_step == run->checkpoint.epoch_steps;
}

int64_t training_schedule_step(const training_run *run)
{
    return run->at.epoch * run->checkpoint.epoch_steps + run->at.epoch_step;
}

int64_t training_steps_to_make(const training_run *run, const training_position *at)
{
    int64_t asked = at->epoch_step + run->options->steps - at->step;
    return run->options->steps && asked < run->checkpoint.epoch_steps ? asked : run->checkpoint.epoch_steps;
}

bool training_saves_after_step(const training_run *run)
{
    int64_t every = run->options->save_every;
    if (!run->options->output)
        return false;
    return (every && (run->at.step + 1) % every == 0) || run->at.epoch_step + 1 >= training_steps_to_make(run, &run->at);
}

/* ---- a step ---- */

static shard_status compute_step(const training_loop *loop, step *made, bool *interrupted)
{
    training_run *run = loop->run;
    double begun = progress_clock();
    *made = (step){.lr = training_optimizers_set_lr(&run->optimizers, training_schedule_step(run)), .lost = -1};
    made->head_lr = training_optimizers_head_lr(&run->optimizers);
    training_loss_begin(&run->optimizers);
    shard_status status = loop->backward(loop->of, &made->batch);
    run->optimizers.lost = !isfinite(made->batch.loss);
    if (status == SHARD_OK)
        status = training_loss_exchange(&run->optimizers, &made->lost);
    if (status == SHARD_OK)
        status = loop->update ? loop->update(loop->of) : training_optimizers_step(&run->optimizers);
    double sums[2] = {shard_group_rank(run->model_group) == 0 ? made->batch.loss : 0, interrupt_signal() != 0};
    if (status == SHARD_OK)
        status = training_sum(sums, 2);
    run->at.step++;
    run->at.epoch_step++;
    made->grad_scale = shard_grad_scaler_get_scale(run->optimizers.scaler);
    made->batch.loss = made->batch.samples > 0 ? sums[0] / (double)made->batch.samples : 0;
    if (isnan(made->batch.loss))
        made->batch.loss = NAN; /* of a sign that depends on the processor, which is printed */
    made->seconds = progress_clock() - begun;
    *interrupted = sums[1] > 0;
    return status == SHARD_OK
               ? training_loss_check(&run->optimizers, run->at.step, made->batch.loss, run->optimizers.skipped, made->grad_scale)
               : status;
}

static shard_status report_step(training_run *run, const step *made, double epoch_loss)
{
    char title[64], text[256];
    bool skipped = run->optimizers.skipped;
    metrics_entry entry = {
        .step = run->at.step,
        .epoch = run->at.epoch,
        .values = {{"lr", made->lr, METRICS_NUMBER},
                   {"grad_scale", made->grad_scale, METRICS_NUMBER},
                   {"left_out", skipped, METRICS_TRUTH}},
        .samples = made->batch.samples,
        .local_samples = made->batch.local_samples,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    char loss[32] = "-", rates[64];
    if (made->head_lr >= 0)
        metrics_add_value(&entry, (metrics_value){"head_lr", made->head_lr, METRICS_NUMBER});
    if (!made->batch.no_loss) {
        metrics_add_value(&entry, (metrics_value){"loss", made->batch.loss, METRICS_NUMBER});
        snprintf(loss, sizeof loss, "%.4f", made->batch.loss);
    }
    int used = snprintf(text, sizeof text, "loss %s (%.4f)  %.1f %s/s  %s", loss, epoch_loss,
                        (double)made->batch.samples / made->seconds, run->samples,
                        training_optimizers_describe_lr(rates, sizeof rates, made->lr, made->head_lr));
    training_loss_describe(made->lost, skipped, text + used, sizeof text - (size_t)used);
    progress_step(&run->progress, title, run->at.epoch_step, training_steps_to_make(run, &run->at), text);
    return metrics_write(run->metrics, &entry);
}

static shard_status make_step(const training_loop *loop, epoch_sums *sums, bool *interrupted)
{
    step made;
    if (loop->step)
        return loop->step(loop->of, interrupted);
    shard_status status = compute_step(loop, &made, interrupted);
    if (status != SHARD_OK)
        return status;
    if (isfinite(made.batch.loss) && !made.batch.no_loss) {
        sums->loss += made.batch.loss * (double)made.batch.samples;
        sums->samples += (double)made.batch.samples;
    }
    return report_step(loop->run, &made, sums->samples > 0 ? sums->loss / sums->samples : 0);
}

/* ---- between two steps ---- */

/* Saves as --output asks for. */
static shard_status save(const training_loop *loop, bool best)
{
    training_run *run = loop->run;
    if (!run->options->output)
        return SHARD_OK;
    shard_tensors *model = loop->export ? loop->export(loop->of) : shard_state_dict(run->model), *all = shard_tensors_create();
    shard_status status = shard_tensors_extend(all, "", model);
    if (status == SHARD_OK)
        status = training_optimizers_add_state(&run->optimizers, all, TRAINING_OPTIMIZER);
    if (status == SHARD_OK)
        status = training_checkpoint_save(&run->checkpoint, all, model, &run->at, best);
    shard_tensors_destroy(all);
    shard_tensors_destroy(model);
    return status;
}

static shard_status report(const training_loop *loop)
{
    return loop->report ? loop->report(loop->of) : SHARD_OK;
}

static shard_status compare_replicas(training_run *run)
{
    int64_t every = run->options->check_replicas;
    if (!every || run->at.step % every)
        return SHARD_OK;
    shard_tensors *all = training_collect(run->model, &run->optimizers);
    shard_status status = shard_check_replicas(all);
    shard_tensors_destroy(all);
    if (status != SHARD_OK)
        progress_say(&run->progress, "replicas differ after step %" PRId64, run->at.step);
    return status;
}

/* A model whose loss is not finite is not saved: the report refuses it. */
static shard_status save_between(const training_loop *loop)
{
    int64_t every = loop->run->options->save_every;
    if (!every || loop->run->at.step % every || epoch_is_full(loop->run))
        return SHARD_OK;
    shard_status status = report(loop);
    return status == SHARD_OK ? save(loop, false) : status;
}

/* ---- epochs ---- */

/* The rest of the epoch, until --steps or a signal ends it. */
static shard_status train_epoch(const training_loop *loop, bool *interrupted)
{
    training_run *run = loop->run;
    epoch_sums sums = {0};
    shard_status status = loop->begin(loop->of);
    while (status == SHARD_OK && !all_steps_done(run) && !*interrupted && !epoch_is_full(run)) {
        status = make_step(loop, &sums, interrupted);
        if (status == SHARD_OK)
            status = training_checkpoint_poll(&run->checkpoint);
        if (status == SHARD_OK)
            status = compare_replicas(run);
        if (status == SHARD_OK)
            status = save_between(loop);
    }
    return status == SHARD_OK ? report(loop) : status;
}

/* Whether the epoch at the position ends with a validation. */
static bool validates(const training_loop *loop)
{
    int64_t interval = loop->run->options->val_interval, next = loop->run->at.epoch + 1;
    return loop->validate && interval > 0 && (next % interval == 0 || next == loop->run->options->epochs);
}

/* Validates if it is time to, and moves to the next epoch; *interrupted: not done, the run that resumes does it. */
static shard_status end_epoch(const training_loop *loop, bool *interrupted)
{
    training_run *run = loop->run;
    double result = 0;
    bool best = false;
    shard_status status = loop->end ? loop->end(loop->of) : SHARD_OK;
    if (status == SHARD_OK && validates(loop)) {
        status = loop->validate(loop->of, &result, interrupted);
        best = status == SHARD_OK && !*interrupted && result > run->at.best;
    }
    if (status != SHARD_OK)
        return status;
    if (*interrupted)
        return save(loop, false);
    if (best)
        run->at.best = result;
    run->at.epoch++;
    run->at.epoch_step = 0;
    return save(loop, best);
}

shard_status training_loop_run(const training_loop *loop)
{
    training_run *run = loop->run;
    bool interrupted = false;
    shard_status status = SHARD_OK;
    /* A run that was interrupted in the last of --steps has its epoch's end to do. */
    while (status == SHARD_OK && run->at.epoch < run->options->epochs && !interrupted &&
           (!all_steps_done(run) || epoch_is_full(run))) {
        status = train_epoch(loop, &interrupted);
        if (status == SHARD_OK)
            status = epoch_is_full(run) && !interrupted ? end_epoch(loop, &interrupted) : save(loop, false);
    }
    if (status == SHARD_OK)
        status = training_checkpoint_finish(&run->checkpoint, &run->progress);
    if (status != SHARD_OK)
        return status;
    if (run->optimizers.skipped_steps > 0)
        progress_say(&run->progress, "%" PRId64 " steps were skipped: losses or gradients not finite",
                     run->optimizers.skipped_steps);
    if (interrupted)
        progress_say(&run->progress, "interrupted after step %" PRId64 "%s", run->at.step,
                     run->options->output ? "; go on with --resume" : "");
    return SHARD_OK;
}
