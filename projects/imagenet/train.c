/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

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
    int64_t batch = run->options->batch, left = run->data.train_images - run->at.epoch_step * batch;
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
        double groups = shard_group_size(shard_mesh_data_group(run->mesh));
        double scale = run->options->accumulate == 1 ? totals_mean(groups, part) : groups / step_images(run);
        shard_backward(shard_grad_scaler_scale(run->scaler, shard_scale(loss, scale)));
        non_finite_see(run, loss);
    }
    return shard_last_status();
}

/* A step that was queued: the values that are known before its losses. */
typedef struct step {
    int64_t parts; /* micro-batches to read by batch_take; 0: nothing to report */
    totals counts;
    position at; /* after it */
    double lr, grad_scale;
    bool skipped;
    int64_t lost; /* the lowest rank for whose loss it was skipped; -1: none */
    int64_t local_images;
} step;

/* With --non-finite skip: whether all ranks skip the step, and for which rank's loss. */
static shard_status agree_on_loss(trainer *run, step *made)
{
    non_finite found;
    shard_status status = non_finite_agree(run, &found);
    run->lost_somewhere = found.ranks > 0;
    made->lost = run->lost_somewhere ? found.first : -1;
    return status;
}

/* One step on the whole job's batch. */
static shard_status step_once(trainer *run, step *made)
{
    int64_t parts = run->options->accumulate, left = loader_steps(run->data.train) - run->at.epoch_step * parts;
    parts = left < parts ? left : parts;
    bool replayed = false;
    *made = (step){.parts = parts, .lost = -1};
    run->local_images = 0;
    /* Set now, as backward may step already. The schedule counts skipped steps, so that it ends with the epochs. */
    optimizers_set_lr(run);
    non_finite_begin(run);
    shard_status status = run->options->sample_rate < 1 ? head_draw(run) : SHARD_OK;
    for (int64_t i = 0; i < parts && status == SHARD_OK; i++) {
        const loader_batch *batch;
        totals part;
        shard_data_parallel_set_sync(run->data_parallel, i + 1 == parts);
        status = loader_next(run->data.train, &batch);
        replayed = status == SHARD_OK && graph_takes(run, batch);
        if (status == SHARD_OK)
            status = replayed ? graph_step(run, batch, &part) : backward_micro_batch(run, batch, &part);
        if (status == SHARD_OK)
            totals_add(&made->counts, &part);
    }
    if (status == SHARD_OK && run->options->non_finite == NON_FINITE_SKIP)
        status = agree_on_loss(run, made);
    if (status != SHARD_OK)
        return status;
    status = replayed ? SHARD_OK : optimizers_step(run);
    run->skipped_steps += run->skipped;
    run->at.step++;
    run->at.epoch_step++;
    made->at = run->at;
    made->lr = shard_optimizer_lr(run->optimizer);
    made->grad_scale = shard_grad_scaler_get_scale(run->scaler);
    made->skipped = run->skipped;
    made->local_images = run->local_images;
    return status;
}

/* The number of steps of the epoch that this run computes. */
static int64_t steps_to_come_to(const trainer *run)
{
    int64_t all = train_steps(run), asked = run->at.epoch_step + run->options->steps - run->at.step;
    return run->options->steps && asked < all ? asked : all;
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
    char title[64], accuracy[64] = "", skipped[64] = "", text[256];
    if (made->lost >= 0)
        snprintf(skipped, sizeof skipped, "  skipped: loss not finite on rank %" PRId64, made->lost);
    else if (made->skipped)
        snprintf(skipped, sizeof skipped, "  skipped: gradients not finite");
    snprintf(title, sizeof title, "Epoch %" PRId64, made->at.epoch);
    if (isfinite(epoch->top1)) /* with a margin or sampled classes it is not counted */
        snprintf(accuracy, sizeof accuracy, "  top1 %.2f  top5 %.2f", 100 * totals_mean(epoch->top1, epoch),
                 100 * totals_mean(epoch->top5, epoch));
    snprintf(text, sizeof text, "loss %.4f (%.4f)%s  %.1f images/s  lr %.3g%s", loss, totals_mean(epoch->loss, epoch), accuracy,
             (double)entry.samples / seconds, made->lr, skipped);
    progress_step(&run->progress, title, made->at.epoch_step, steps_to_come_to(run), text);
    return metrics_write(run->metrics, &entry);
}

/* The state of an epoch. */
typedef struct course {
    totals epoch;  /* of the steps that were reported */
    totals counts; /* of all steps */
    step last;     /* the step that is not reported yet */
    double since;  /* on progress_clock: the start of the next report's time */
} course;

/* Waits for the last step's losses, if they are not reported, and writes its line. */
static shard_status report(trainer *run, course *along)
{
    step made = along->last;
    if (made.parts == 0)
        return SHARD_OK;
    along->last.parts = 0;
    totals whole = made.counts;
    shard_status status = batch_take(run, made.parts, &whole);
    if (status != SHARD_OK)
        return status;
    status = non_finite_check(run, made.at.step, whole.loss, made.skipped, made.grad_scale);
    if (status != SHARD_OK)
        return status;
    if (isfinite(whole.loss)) /* else the step was skipped, and the epoch's means are of the others */
        totals_add(&along->epoch, &whole);
    status = write_step(run, &made, &whole, &along->epoch, progress_clock() - along->since);
    along->since = progress_clock();
    return status;
}

/* On a device that queues, the step before is reported: it was computed while the host queued this one. */
static shard_status follow(trainer *run, course *along, const step *made)
{
    totals_add(&along->counts, &made->counts);
    shard_status status = report(run, along);
    along->last = *made;
    return status == SHARD_OK && !run->queues ? report(run, along) : status;
}

/* Between two steps of an epoch: saves if it is time to. */
static shard_status save_between(trainer *run, course *along)
{
    bool last = run->at.epoch_step == train_steps(run);
    if (!run->options->save_every || run->at.step % run->options->save_every || last)
        return SHARD_OK;
    shard_status status = report(run, along); /* a model whose loss is not finite is not saved */
    if (status == SHARD_OK)
        status = checkpoint_save(run, false);
    along->since = progress_clock();
    return status;
}

/* Every --check-replicas steps. */
static shard_status check_replicas(trainer *run)
{
    if (!run->options->check_replicas || run->at.step % run->options->check_replicas)
        return SHARD_OK;
    shard_status status = checkpoint_check_replicas(run);
    if (status != SHARD_OK)
        progress_say(&run->progress, "replicas differ after step %" PRId64, run->at.step);
    return status;
}

static bool all_steps_done(const trainer *run)
{
    return run->options->steps > 0 && run->at.step >= run->options->steps;
}

/* The rest of the epoch, until --steps or a signal ends it. */
static shard_status train_epoch(trainer *run, bool *interrupted)
{
    int64_t parts = loader_steps(run->data.train), first = run->at.epoch_step * run->options->accumulate;
    shard_status started = loader_start(run->data.train, run->at.epoch, first < parts ? first : parts);
    if (started != SHARD_OK)
        return started;
    course along = {.since = progress_clock()};
    while (!all_steps_done(run) && !*interrupted && run->at.epoch_step < train_steps(run)) {
        step made;
        shard_status status = step_once(run, &made);
        if (status == SHARD_OK)
            status = follow(run, &along, &made);
        if (status == SHARD_OK)
            status = saves_poll(run);
        if (status == SHARD_OK)
            status = check_replicas(run);
        if (status != SHARD_OK)
            return status;
        *interrupted = made.counts.interrupted > 0;
        if (along.counts.bad > (double)run->options->skip_bad_images && (status = report(run, &along)) != SHARD_OK)
            return status;
        if ((status = totals_check_bad(&along.counts, run->options->skip_bad_images)) != SHARD_OK ||
            (status = save_between(run, &along)) != SHARD_OK)
            return status;
    }
    return report(run, &along);
}

/* Validates if it is time to, and moves to the next epoch; *interrupted: not done, the run that resumes does it. */
static shard_status end_epoch(trainer *run, bool *interrupted)
{
    int64_t interval = run->options->val_interval, next = run->at.epoch + 1;
    bool best = false;
    if (interval > 0 && (next % interval == 0 || next == run->options->epochs)) {
        totals whole;
        shard_status status = evaluate(run, &whole);
        if (status != SHARD_OK)
            return status;
        *interrupted = whole.interrupted > 0;
        if (*interrupted)
            return checkpoint_save(run, false);
        double top1 = 100 * totals_mean(whole.top1, &whole);
        best = top1 > run->at.best_top1;
        if (best)
            run->at.best_top1 = top1;
    }
    run->at.epoch = next;
    run->at.epoch_step = 0;
    return checkpoint_save(run, best);
}

shard_status train(trainer *run)
{
    bool interrupted = false;
    while (run->at.epoch < run->options->epochs && !all_steps_done(run) && !interrupted) {
        shard_status status = train_epoch(run, &interrupted);
        if (status != SHARD_OK)
            return status;
        bool ended = run->at.epoch_step == train_steps(run);
        status = ended && !interrupted ? end_epoch(run, &interrupted) : checkpoint_save(run, false);
        if (status != SHARD_OK)
            return status;
    }
    shard_status saved = saves_finish(run);
    if (saved != SHARD_OK)
        return saved;
    if (run->saves.checkpoints > 0)
        progress_say(&run->progress, "%" PRId64 " checkpoints in the background: training waited for %.3f s, for %.3f s at most",
                     run->saves.checkpoints, run->saves.paused, run->saves.longest);
    if (run->skipped_steps > 0)
        progress_say(&run->progress, "%" PRId64 " steps were skipped: losses or gradients not finite", run->skipped_steps);
    if (interrupted)
        progress_say(&run->progress, "interrupted after step %" PRId64 "%s", run->at.step,
                     run->options->output ? "; go on with --resume" : "");
    return SHARD_OK;
}
