/* Training: the functions of training_loop. */
#include "trainer.h"

#include <inttypes.h>
#include <stdlib.h>

/* The images of a batch with a label, and the damaged ones, over the world. FORMAT if the epoch has too many of these. */
static shard_status count_batch(trainer *run, const loader_batch *batch, int64_t *images)
{
    double counts[2] = {0, (double)batch->bad};
    for (int64_t i = 0; i < batch->size; i++)
        counts[0] += batch->labels[i] != LOADER_IGNORED;
    if (training_sum(counts, 2) != SHARD_OK)
        return shard_last_status();
    *images = (int64_t)counts[0];
    run->bad += (int64_t)counts[1];
    if (run->bad <= run->options->skip_bad_images)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT, "%" PRId64 " damaged images, more than --skip-bad-images %" PRId64, run->bad,
                       run->options->skip_bad_images);
}

/* The sample of the step, with the labels of all its images. */
static shard_status draw_sample(const trainer *run, class_sample *made)
{
    const options *wanted = run->options;
    int64_t count = wanted->training.batch, first = run->base.at.epoch_step * count;
    int64_t *labels = calloc((size_t)count, sizeof *labels);
    if (!labels)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " labels", count);
    loader_labels(run->data.train, run->base.at.epoch, first, count, labels);
    shard_tensor *weight = shard_module_tensor(shard_module_child(run->base.model, NETWORK_CLASSIFIER), "weight");
    shard_status status = class_sample_draw(made, labels, count, weight, wanted->margin.sample_rate,
                                            wanted->margin.sample_correction, (uint64_t)wanted->training.seed, run->base.at.step);
    free(labels);
    return status;
}

/* The loss of the model group's images, and the gradient of the mean over the whole batch: each model group has the sum over its
 * images, and data parallel averages over the groups. */
static shard_status backward_batch(trainer *run, const loader_batch *batch, training_batch *made)
{
    int64_t n = batch->size, side = run->options->image_size;
    double groups = shard_group_size(shard_mesh_data_group(run->base.mesh));
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host_async(batch->labels, SHARD_SHAPE(n), .dtype = SHARD_INT64);
        shard_tensor *pixels = shard_from_host_async(batch->images, SHARD_SHAPE(n, side, side, 3), .dtype = SHARD_UINT8);
        shard_event_record(batch->copied);
        class_sample sample = {NULL};
        if (run->options->margin.sample_rate < 1)
            draw_sample(run, &sample);
        shard_tensor *features = network_features(run->base.model, run->options, pixels);
        features = shard_gather_from_group(features, 0, run->base.model_group);
        labels = shard_gather_from_group(labels, 0, run->base.model_group);
        shard_tensor *loss =
            network_loss(run->base.model, run->options, features, labels, &sample, shard_mesh_data_group(run->base.mesh));
        if (loss)
            made->loss = shard_item(loss);
        loss = shard_scale(loss, made->samples > 0 ? groups / (double)made->samples : 0);
        shard_backward(shard_grad_scaler_scale(run->base.optimizers.scaler, loss));
    }
    return shard_last_status();
}

static shard_status run_backward(void *of, training_batch *made)
{
    trainer *run = of;
    const loader_batch *batch;
    loader_next(run->data.train, &batch);
    shard_status status = shard_agree(shard_world()); /* one rank alone may have too many damaged images */
    if (status == SHARD_OK)
        status = count_batch(run, batch, &made->samples);
    if (status != SHARD_OK)
        return status;
    made->local_samples = batch->size;
    return backward_batch(run, batch, made);
}

static shard_status begin_epoch(void *of)
{
    trainer *run = of;
    run->bad = 0;
    return loader_start(run->data.train, run->base.at.epoch, run->base.at.epoch_step);
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    return evaluate(of, result, interrupted);
}

shard_status train(trainer *run)
{
    return training_loop_run(&(training_loop){.run = &run->base,
                                              .of = run,
                                              .begin = begin_epoch,
                                              .backward = run_backward,
                                              .validate = run->data.count > 0 ? validate : NULL});
}
