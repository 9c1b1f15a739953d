/* One batch through the model, and what it came to over the whole job. */
#include "trainer.h"

#include "interrupt.h"

#include <inttypes.h>

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

/* loader_next allows each rank as many as are allowed: together they can still be too many. */
shard_status totals_check_bad(const totals *sum, int64_t allowed)
{
    if (sum->bad <= (double)allowed)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT, "%.0f damaged images, more than --skip-bad-images %" PRId64, sum->bad, allowed);
}

static shard_status sum_over_world(totals *own)
{
    shard_tensor *sums =
        shard_from_host(own, SHARD_SHAPE(sizeof *own / sizeof(double)), .dtype = SHARD_FLOAT64, .device = shard_device_open("cpu"));
    shard_status status = shard_all_reduce(sums, SHARD_SUM, shard_world());
    return status == SHARD_OK ? shard_copy_to_host(sums, own, sizeof *own) : status;
}

static int64_t count_labels(const loader_batch *batch)
{
    int64_t count = 0;
    for (int64_t i = 0; i < batch->size; i++)
        count += batch->labels[i] != LOADER_IGNORED;
    return count;
}

/* The images of a model group meet in front of its final layer, unless its members have
 * the same ones, so that each member computes the same loss; the first one reports it. */
shard_tensor *batch_forward(trainer *run, const loader_batch *batch, double label_smoothing, totals *whole)
{
    shard_group *model_group = shard_mesh_model_group(run->mesh);
    int64_t n = batch->size, side = run->options->image_size;
    run->own_images += n;
    shard_tensor *images =
        shard_cast(shard_from_host(batch->images, SHARD_SHAPE(n, side, side, 3)), (shard_dtype)run->options->dtype);
    shard_tensor *own_labels = shard_from_host(batch->labels, SHARD_SHAPE(n), .dtype = SHARD_INT64);
    shard_event_record(batch->copied);
    shard_tensor *labels = shard_gather(own_labels, 0, run->gathered);
    shard_tensor *logits = NULL, *loss = NULL;
    SHARD_AUTOCAST((shard_dtype)run->options->amp) {
        logits = shard_forward(run->model, images);
        loss = shard_parallel_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM, .label_smoothing = label_smoothing);
    }
    shard_tensor *ranking = shard_label_rank(logits, labels, LOADER_IGNORED);
    shard_release(logits);
    if (!loss || !ranking)
        return NULL;

    *whole = (totals){.interrupted = interrupt_signal() != 0};
    if (run->gathered || shard_group_rank(model_group) == 0) {
        whole->images = (double)count_labels(batch);
        whole->bad = (double)batch->bad;
    }
    if (shard_group_rank(model_group) == 0) {
        whole->loss = shard_item(loss);
        whole->top1 = (double)shard_count_top_k(ranking, 1);
        whole->top5 = (double)shard_count_top_k(ranking, 5);
    }
    shard_release(ranking);
    return sum_over_world(whole) == SHARD_OK ? loss : NULL;
}
