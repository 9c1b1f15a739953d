/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

#include "training_loss.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

int64_t train_steps(const trainer *run)
{
    int64_t parts = loader_steps(run->data.train), accumulate = run->options->accumulate;
    return parts / accumulate + (parts % accumulate != 0);
}

/* Images of the step's batch, with the damaged ones. */
static double step_images(const trainer *run)
{
    int64_t batch = run->options->training.batch, left = run->data.train_images - run->base.at.epoch_step * batch;
    return (double)(left < batch ? left : batch);
}

/* The forward and backward of one micro-batch of a step. The gradients add up to that of the mean over the whole
 * batch: each model group has the sum over its images, and data parallel averages over the groups, however unevenly
 * images are split. With several micro-batches, damaged images of the later ones are not known yet and count in the
 * mean. */
static shard_status backward_micro_batch(trainer *run, const loader_batch *batch, totals *part)
{
    SHARD_SCOPE
    {
        shard_tensor *loss = batch_forward(run, batch, run->options->label_smoothing, part);
        if (!loss)
            return shard_last_status();
        double groups = shard_group_size(shard_mesh_data_group(run->base.mesh));
        double scale = run->options->accumulate == 1 ? totals_mean(groups, part) : groups / step_images(run);
        shard_backward(shard_grad_scaler_scale(run->base.optimizers.scaler, shard_scale(loss, scale)));
        training_loss_see(&run->base.optimizers, loss);
    }
    return shard_last_status();
}

/* A step that was queued: the values that are known before its losses. */
typedef struct step {
    int64_t parts; /* micro-batches to read by batch_take; 0: nothing to report */
    totals counts;
    training_position at; /* after it */
    double lr, head_lr, grad_scale; /* head_lr: below 0: the last layer has no optimizer of its own */
    bool skipped;
    int64_t lost; /* the lowest rank for whose loss it was skipped; -1: none */
    int64_t local_images;
} step;

/* One step on the whole job's batch. */
static shard_status step_once(trainer *run, step *made)
{
    int64_t parts = run->options->accumulate, left = loader_steps(run->data.train) - run->base.at.epoch_step * parts;
    parts = left < parts ? left : parts;
    bool replayed = false;
    *made = (step){.parts = parts, .lost = -1};
    run->local_images = 0;
    made->lr = training_optimizers_set_lr(&run->base.optimizers, training_schedule_step(&run->base));
    made->head_lr = training_optimizers_head_lr(&run->base.optimizers);
    training_loss_begin(&run->base.optimizers);
    shard_status status = run->options->margin.sample_rate < 1 ? head_draw(run) : SHARD_OK;
    for (int64_t i = 0; i < parts && status == SHARD_OK; i++) {
        const loader_batch *batch;
        totals part;
        shard_data_parallel_set_sync(run->base.data_parallel, i + 1 == parts);
        status = loader_next(run->data.train, &batch);
        replayed = status == SHARD_OK && graph_takes(run, batch);
        if (status == SHARD_OK)
            status = replayed ? graph_step(run, batch, &part) : backward_micro_batch(run, batch, &part);
        if (status == SHARD_OK)
            totals_add(&made->counts, &part);
    }
    if (status == SHARD_OK)
        status = training_loss_exchange(&run->base.optimizers, &made->lost);
    if (status != SHARD_OK)
        return status;
    status = replayed ? SHARD_OK : training_optimizers_step(&run->base.optimizers);
    run->base.at.step++;
    run->base.at.epoch_step++;
    made->at = run->base.at;
    made->grad_scale = shard_grad_scaler_get_scale(run->base.optimizers.scaler);
    made->skipped = run->base.optimizers.skipped;
    made->local_images = run->local_images;
    return status;
}

/* Prints and writes the line of a step whose totals are known. */
static shard_status write_step(trainer *run, const step *made, const totals *whole, const totals *epoch, double seconds)
{
    double loss = totals_mean(whole->loss, whole);
    metrics_entry entry = {
        .step = made->at.step,
        .epoch = made->at.epoch,
        .values = {{"lr", made->lr, METRICS_NUMBER},
                   {"grad_scale", made->grad_scale, METRICS_NUMBER},
                   {"left_out", made->skipped, METRICS_TRUTH},
                   {"loss", loss, METRICS_NUMBER},
                   {"top1", 100 * totals_mean(whole->top1, whole), METRICS_NUMBER},
                   {"top5", 100 * totals_mean(whole->top5, whole), METRICS_NUMBER}},
        .samples = (int64_t)whole->images,
        .local_samples = made->local_images,
        .seconds = seconds,
    };
    char title[64], accuracy[64] = "", skipped[64], rates[64], text[256];
    if (made->head_lr >= 0)
        metrics_add_value(&entry, (metrics_value){"head_lr", made->head_lr, METRICS_NUMBER});
    training_loss_describe(made->lost, made->skipped, skipped, sizeof skipped);
    snprintf(title, sizeof title, "Epoch %" PRId64, made->at.epoch);
    if (isfinite(epoch->top1)) /* with a margin or sampled classes it is not counted */
        snprintf(accuracy, sizeof accuracy, "  top1 %.2f  top5 %.2f", 100 * totals_mean(epoch->top1, epoch),
                 100 * totals_mean(epoch->top5, epoch));
    snprintf(text, sizeof text, "loss %.4f (%.4f)%s  %.1f images/s  %s%s", loss, totals_mean(epoch->loss, epoch), accuracy,
             (double)entry.samples / seconds, training_optimizers_describe_lr(rates, sizeof rates, made->lr, made->head_lr),
             skipped);
    progress_step(&run->base.progress, title, made->at.epoch_step, training_steps_to_make(&run->base, &made->at), text);
    return metrics_write(run->base.metrics, &entry);
}

/* The state of an epoch. */
typedef struct epoch_state {
    trainer *run;
    totals epoch;  /* of the steps that were reported */
    totals counts; /* of all steps */
    step last;     /* the step that is not reported yet */
    double since;  /* on progress_clock: the start of the next report's time */
} epoch_state;

/* Waits for the last step's losses, if they are not reported, and writes its line. */
static shard_status report(void *of)
{
    epoch_state *state = of;
    trainer *run = state->run;
    step made = state->last;
    if (made.parts == 0)
        return SHARD_OK;
    state->last.parts = 0;
    totals whole = made.counts;
    shard_status status = batch_take(run, made.parts, &whole);
    if (status == SHARD_OK)
        status = training_loss_check(&run->base.optimizers, made.at.step, whole.loss, made.skipped, made.grad_scale);
    if (status != SHARD_OK)
        return status;
    if (isfinite(whole.loss)) /* else the step was skipped, and the epoch's means are of the others */
        totals_add(&state->epoch, &whole);
    status = write_step(run, &made, &whole, &state->epoch, progress_clock() - state->since);
    state->since = progress_clock();
    return status;
}

/* On a device that queues, the step before is reported: it was computed while the host queued this one. */
static shard_status follow(epoch_state *state, const step *made)
{
    totals_add(&state->counts, &made->counts);
    shard_status status = report(state);
    state->last = *made;
    return status == SHARD_OK && !state->run->queues ? report(state) : status;
}

static shard_status begin_epoch(void *of)
{
    epoch_state *state = of;
    trainer *run = state->run;
    int64_t parts = loader_steps(run->data.train), first = run->base.at.epoch_step * run->options->accumulate;
    *state = (epoch_state){.run = run};
    return loader_start(run->data.train, run->base.at.epoch, first < parts ? first : parts);
}

static shard_status make_step(void *of, bool *interrupted)
{
    epoch_state *state = of;
    trainer *run = state->run;
    int64_t allowed = run->options->skip_bad_images;
    step made;
    if (state->last.parts == 0) /* a checkpoint's time is none of the step's */
        state->since = progress_clock();
    shard_status status = step_once(run, &made);
    if (status == SHARD_OK)
        status = follow(state, &made);
    *interrupted = made.counts.interrupted > 0;
    if (status == SHARD_OK && state->counts.bad > (double)allowed)
        status = report(state);
    return status == SHARD_OK ? totals_check_bad(&state->counts, allowed) : status;
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    totals whole;
    shard_status status = evaluate(((epoch_state *)of)->run, &whole);
    *interrupted = whole.interrupted > 0;
    *result = 100 * totals_mean(whole.top1, &whole);
    return status;
}

shard_status train(trainer *run)
{
    epoch_state state = {.run = run};
    return training_loop_run(&(training_loop){
        .run = &run->base, .of = &state, .begin = begin_epoch, .step = make_step, .report = report, .validate = validate});
}
