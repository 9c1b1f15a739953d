/* Validation: the means over the whole set, each image once, on any number of ranks. */
#include "trainer.h"

#include <inttypes.h>
#include <stdio.h>

/* A batch that is queued, or whose results are not printed yet. */
typedef struct step {
    bool open; /* not printed yet */
    int64_t number;
    totals counts;
} step;

static shard_status show(trainer *run, step *of, totals *whole)
{
    if (!of->open)
        return SHARD_OK;
    of->open = false;
    totals_add(whole, &of->counts);
    shard_status status = batch_take(run, 1, whole);
    if (status != SHARD_OK)
        return status;
    char text[128];
    snprintf(text, sizeof text, "loss %.4f  top1 %.2f  top5 %.2f", totals_mean(whole->loss, whole),
             100 * totals_mean(whole->top1, whole), 100 * totals_mean(whole->top5, whole));
    progress_step(&run->base.progress, "Validation", of->number + 1, loader_steps(run->data.val), text);
    return SHARD_OK;
}

static shard_status evaluate_batches(trainer *run, totals *whole)
{
    loader *images = run->data.val;
    const loader_batch *batch;
    step last = {0};
    totals seen = {0};
    shard_status status = loader_start(images, 0, 0);
    while (status == SHARD_OK && (status = loader_next(images, &batch)) == SHARD_OK && batch && seen.interrupted == 0) {
        step now = {.open = true, .number = batch->step};
        SHARD_SCOPE {
            if (!batch_forward(run, batch, 0, &now.counts))
                return shard_last_status();
        }
        totals_add(&seen, &now.counts);
        if ((status = totals_check_bad(&seen, run->options->skip_bad_images)) != SHARD_OK ||
            (status = show(run, &last, whole)) != SHARD_OK)
            return status;
        last = now;
        if (!run->queues)
            status = show(run, &last, whole);
    }
    return status == SHARD_OK ? show(run, &last, whole) : status;
}

static shard_status report(trainer *run, const totals *whole, double seconds)
{
    double loss = totals_mean(whole->loss, whole), top1 = 100 * totals_mean(whole->top1, whole),
           top5 = 100 * totals_mean(whole->top5, whole);
    metrics_entry entry = {
        .validation = true,
        .step = run->base.at.step,
        .epoch = run->base.at.epoch,
        .values = {{"loss", loss, METRICS_NUMBER}, {"top1", top1, METRICS_NUMBER}, {"top5", top5, METRICS_NUMBER}},
        .samples = (int64_t)whole->images,
        .local_samples = run->local_images,
        .seconds = seconds,
    };
    progress_say(&run->base.progress, " * top1 %.3f  top5 %.3f  loss %.4f  (%" PRId64 " images, %.1f images/s)", top1, top5, loss,
                 entry.samples, (double)entry.samples / seconds);
    return metrics_write(run->base.metrics, &entry);
}

shard_status evaluate(trainer *run, totals *whole)
{
    *whole = (totals){0};
    run->local_images = 0;
    double begun = progress_clock();
    shard_status status = SHARD_OK;
    shard_module_set_training(run->base.model, false);
    SHARD_NO_GRAD {
        status = evaluate_batches(run, whole);
    }
    head_end_validation(run);
    shard_module_set_training(run->base.model, true);
    if (status != SHARD_OK || whole->interrupted > 0)
        return status;
    return report(run, whole, progress_clock() - begun);
}
