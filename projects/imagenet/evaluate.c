/* Validation: the means over the whole set, each image once, on any number of ranks. */
#include "trainer.h"

#include <inttypes.h>
#include <stdio.h>

static shard_status evaluate_batches(trainer *run, totals *whole)
{
    loader *images = run->data.val;
    const loader_batch *batch;
    shard_status status = loader_start(images, 0, 0);
    while (status == SHARD_OK && (status = loader_next(images, &batch)) == SHARD_OK && batch && whole->interrupted == 0) {
        totals own;
        SHARD_SCOPE {
            if (!batch_forward(run, batch, 0, &own))
                return shard_last_status();
        }
        totals_add(whole, &own);
        if ((status = totals_check_bad(whole, run->options->skip_bad_images)) != SHARD_OK)
            return status;
        char text[128];
        snprintf(text, sizeof text, "loss %.4f  top1 %.2f  top5 %.2f", totals_mean(whole->loss, whole),
                 100 * totals_mean(whole->top1, whole), 100 * totals_mean(whole->top5, whole));
        progress_step(&run->progress, "Validation", batch->step + 1, loader_steps(images), text);
    }
    return status;
}

static shard_status report(trainer *run, const totals *whole, double seconds)
{
    metrics_entry entry = {
        .validation = true,
        .step = run->at.step,
        .epoch = run->at.epoch,
        .loss = totals_mean(whole->loss, whole),
        .top1 = 100 * totals_mean(whole->top1, whole),
        .top5 = 100 * totals_mean(whole->top5, whole),
        .images = (int64_t)whole->images,
        .own_images = run->own_images,
        .seconds = seconds,
    };
    progress_say(&run->progress, " * top1 %.3f  top5 %.3f  loss %.4f  (%" PRId64 " images, %.1f images/s)", entry.top1,
                 entry.top5, entry.loss, entry.images, (double)entry.images / seconds);
    return metrics_write(run->metrics, &entry);
}

shard_status evaluate(trainer *run, totals *whole)
{
    *whole = (totals){0};
    run->own_images = 0;
    double begun = progress_clock();
    shard_status status = SHARD_OK;
    shard_module_set_training(run->model, false);
    SHARD_NO_GRAD {
        status = evaluate_batches(run, whole);
    }
    shard_module_set_training(run->model, true);
    if (status != SHARD_OK || whole->interrupted > 0)
        return status;
    return report(run, whole, progress_clock() - begun);
}
