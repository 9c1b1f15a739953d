/* One batch through the model, and its results over the whole job. */
#include "trainer.h"

#include "interrupt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

void totals_add(totals *sum, const totals *more)
{
    sum->loss += more->loss;
    sum->top1 += more->top1;
    sum->top5 += more->top5;
    sum->images += more->images;
    sum->bad += more->bad;
    sum->interrupted += more->interrupted;
}

double totals_mean(double sum, const totals *of)
{
    return of->images > 0 ? sum / of->images : 0;
}

/* loader_next allows each rank the whole number of damaged images, so their sum can be too large. */
shard_status totals_check_bad(const totals *sum, int64_t allowed)
{
    if (sum->bad <= (double)allowed)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT, "%.0f damaged images, more than --skip-bad-images %" PRId64, sum->bad, allowed);
}

static int64_t count_labels(const loader_batch *batch)
{
    int64_t count = 0;
    for (int64_t i = 0; i < batch->size; i++)
        count += batch->labels[i] != LOADER_IGNORED;
    return count;
}

/* The counts of a batch, before anything is computed. */
static shard_status count_batch(trainer *run, const loader_batch *batch, totals *counts)
{
    *counts = (totals){.interrupted = interrupt_signal() != 0};
    if (run->feature_group || shard_group_rank(run->base.model_group) == 0) {
        counts->images = (double)count_labels(batch);
        counts->bad = (double)batch->bad;
    }
    return training_sum((double *)counts, sizeof *counts / sizeof(double));
}

/* Gathers the images of a model group before its last layer, unless its ranks have the same images, so that each
 * rank computes the same loss. The group's first rank reports it. */
shard_status batch_compute(trainer *run, shard_tensor *images, shard_tensor *local_labels, double label_smoothing,
                           shard_tensor **loss, shard_tensor **ranks)
{
    shard_tensor *labels = shard_gather_from_group(local_labels, 0, run->feature_group), *logits = NULL; /* or features */
    images = shard_normalize_images(images, image_mean, image_deviation, (shard_dtype)run->options->training.dtype);
    *loss = *ranks = NULL;
    SHARD_AUTOCAST((shard_dtype)run->options->training.amp)
    {
        logits = shard_forward(run->base.model, images);
        if (run->head)
            *loss = head_loss(run, logits, labels, label_smoothing, ranks);
        else
            *loss = shard_cross_entropy_with_rank(logits, labels, ranks, .reduction = SHARD_REDUCTION_SUM,
                                                  .label_smoothing = label_smoothing, .stash_share = run->options->head.stash);
    }
    shard_release(logits);
    return shard_last_status();
}

shard_status batch_put(trainer *run, const loader_batch *batch, shard_tensor *loss, shard_tensor *ranks, totals *counts)
{
    run->local_images += batch->size;
    shard_status status = results_put(run->results, loss, ranks);
    return status == SHARD_OK ? count_batch(run, batch, counts) : status;
}

/* Images are copied to the device concurrently with its computation. */
shard_tensor *batch_forward(trainer *run, const loader_batch *batch, double label_smoothing, totals *counts)
{
    int64_t n = batch->size, side = run->options->image_size;
    shard_tensor *labels = shard_from_host_async(batch->labels, SHARD_SHAPE(n), .dtype = SHARD_INT64);
    shard_tensor *images = shard_from_host_async(batch->images, SHARD_SHAPE(n, side, side, 3), .dtype = SHARD_UINT8);
    shard_event_record(batch->copied);
    shard_tensor *loss, *ranks;
    if (batch_compute(run, images, labels, label_smoothing, &loss, &ranks) != SHARD_OK ||
        batch_put(run, batch, loss, ranks, counts) != SHARD_OK)
        return NULL;
    shard_release(ranks);
    return loss;
}

shard_status batch_take(trainer *run, int64_t count, totals *whole)
{
    batch_sums *sums = calloc((size_t)count, sizeof *sums);
    if (!sums)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the results of %" PRId64 " batches", count);
    bool reports = shard_group_rank(run->base.model_group) == 0;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        status = results_take(run->results, &sums[i]);
        run->base.optimizers.lost = (i > 0 && run->base.optimizers.lost) || !isfinite(sums[i].loss);
        sums[i].loss = isnan(sums[i].loss) ? NAN : sums[i].loss; /* printed without a sign */
        if (!reports)
            sums[i] = (batch_sums){0};
    }
    if (status == SHARD_OK)
        status = training_sum((double *)sums, count * (int64_t)(sizeof *sums / sizeof(double)));
    for (int64_t i = 0; i < count; i++)
        totals_add(whole, &(totals){.loss = sums[i].loss, .top1 = sums[i].top1, .top5 = sums[i].top5});
    free(sums);
    return status;
}
