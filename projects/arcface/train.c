/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

#include "interrupt.h"
#include "training_loop.h"
#include "training_loss.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The results of a step, over the world. */
typedef struct step {
    double loss; /* the mean of the images' */
    double lr, grad_scale, images, seconds;
    int64_t local_images, lost; /* lost: the lowest rank for whose loss it was skipped; -1: none */
} step;

/* The state of an epoch. */
typedef struct epoch_state {
    trainer *run;
    double loss, images; /* sums of the steps that were not skipped for their loss */
    double bad;          /* damaged images */
} epoch_state;

/* The counts of a batch over the world, before anything is computed. */
typedef struct counts {
    double images, bad, interrupted;
} counts;

static shard_status count_batch(const loader_batch *batch, counts *whole)
{
    *whole = (counts){.bad = (double)batch->bad, .interrupted = interrupt_signal() != 0};
    for (int64_t i = 0; i < batch->size; i++)
        whole->images += batch->labels[i] != LOADER_IGNORED;
    return training_sum((double *)whole, sizeof *whole / sizeof(double));
}

/* The sample of the step: the labels of all its images, the same on any number of ranks. NULL for all classes, or with the error
 * set. */
static shard_tensor *draw_sample(const trainer *run)
{
    const options *wanted = run->options;
    if (wanted->margin.sample_rate >= 1)
        return NULL;
    int64_t count = wanted->training.batch, first = run->at.epoch_step * count;
    int64_t *labels = calloc((size_t)count, sizeof *labels);
    if (!labels) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " labels", count);
        return NULL;
    }
    loader_labels(run->data.train, run->at.epoch, first, count, labels);
    shard_tensor *weight = shard_module_tensor(shard_module_child(run->network, NETWORK_CLASSIFIER), "weight");
    shard_tensor *all = shard_from_host(labels, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
    free(labels);
    return shard_sample_classes(all, weight, wanted->margin.sample_rate, (uint64_t)wanted->training.seed, run->at.step);
}

/* The loss of the model group's images, and the gradient of the mean over the whole batch: each model group has the sum over its
 * images, and data parallel averages over the groups. */
static shard_status run_backward(trainer *run, const loader_batch *batch, double images, double *loss_sum)
{
    int64_t n = batch->size, side = run->options->image_size;
    double groups = shard_group_size(shard_mesh_data_group(run->mesh));
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host_async(batch->labels, SHARD_SHAPE(n), .dtype = SHARD_INT64);
        shard_tensor *pixels = shard_from_host_async(batch->images, SHARD_SHAPE(n, side, side, 3), .dtype = SHARD_UINT8);
        shard_event_record(batch->copied);
        shard_tensor *sample = draw_sample(run), *loss;
        shard_tensor *features = network_features(run->network, run->options, pixels);
        features = shard_gather_from_group(features, 0, run->model_group);
        labels = shard_gather_from_group(labels, 0, run->model_group);
        loss = network_loss(run->network, run->options, features, labels, sample);
        if (loss)
            *loss_sum = shard_item(loss);
        run->optimizers.lost = !isfinite(*loss_sum);
        loss = shard_scale(loss, images > 0 ? groups / images : 0);
        shard_backward(shard_grad_scaler_scale(run->optimizers.scaler, loss));
    }
    return shard_last_status();
}

static shard_status compute_step(trainer *run, const loader_batch *batch, counts *whole, step *made)
{
    double loss = 0;
    shard_status status = count_batch(batch, whole);
    if (status == SHARD_OK)
        status = run_backward(run, batch, whole->images, &loss);
    if (status == SHARD_OK)
        status = training_loss_agree(&run->optimizers, &made->lost);
    if (status == SHARD_OK)
        status = training_optimizers_step(&run->optimizers);
    double sum = shard_group_rank(run->model_group) == 0 ? loss : 0;
    if (status == SHARD_OK)
        status = training_sum(&sum, 1);
    made->loss = whole->images > 0 ? sum / whole->images : 0;
    made->images = whole->images;
    made->local_images = batch->size;
    return status;
}

static shard_status step_once(trainer *run, counts *whole, step *made)
{
    double begun = progress_clock();
    const loader_batch *batch;
    double lr = training_optimizers_set_lr(&run->optimizers, training_schedule_step(&run->at, run->checkpoint.epoch_steps));
    *made = (step){.lr = lr, .lost = -1};
    training_loss_begin(&run->optimizers);
    loader_next(run->data.train, &batch);
    shard_status status = shard_agree(shard_world()); /* one rank alone may have too many damaged images */
    if (status == SHARD_OK)
        status = compute_step(run, batch, whole, made);
    run->at.step++;
    run->at.epoch_step++;
    made->grad_scale = shard_grad_scaler_get_scale(run->optimizers.scaler);
    made->seconds = progress_clock() - begun;
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
        .samples = (int64_t)made->images,
        .local_samples = made->local_images,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    int used = snprintf(text, sizeof text, "loss %.4f (%.4f)  %.1f images/s  lr %.3g", made->loss, epoch_loss,
                        made->images / made->seconds, made->lr);
    training_loss_describe(made->lost, skipped, text + used, sizeof text - (size_t)used);
    progress_step(&run->progress, title, run->at.epoch_step,
                  training_steps_to_make(&run->options->training, &run->at, trainer_steps(run)), text);
    return metrics_write(run->metrics, &entry);
}

static shard_status begin_epoch(void *of)
{
    epoch_state *state = of;
    trainer *run = state->run;
    *state = (epoch_state){.run = run};
    return loader_start(run->data.train, run->at.epoch, run->at.epoch_step);
}

static shard_status make_step(void *of, bool *interrupted)
{
    epoch_state *state = of;
    trainer *run = state->run;
    counts whole = {0};
    step made;
    shard_status status = step_once(run, &whole, &made);
    if (status != SHARD_OK)
        return status;
    *interrupted = whole.interrupted > 0;
    state->bad += whole.bad;
    if (state->bad > (double)run->options->skip_bad_images)
        return shard_error(SHARD_ERROR_FORMAT, "%.0f damaged images, more than --skip-bad-images %" PRId64, state->bad,
                           run->options->skip_bad_images);
    if (isfinite(made.loss)) {
        state->loss += made.loss * made.images;
        state->images += made.images;
    }
    return report(run, &made, state->images > 0 ? state->loss / state->images : 0);
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    return evaluate(((epoch_state *)of)->run, result, interrupted);
}

shard_status train(trainer *run)
{
    epoch_state state = {.run = run};
    return training_loop_run(&(training_loop){.run = &state,
                                              .options = &run->options->training,
                                              .at = &run->at,
                                              .checkpoint = &run->checkpoint,
                                              .optimizers = &run->optimizers,
                                              .model = run->network,
                                              .shown = &run->progress,
                                              .begin = begin_epoch,
                                              .step = make_step,
                                              .validate = validate});
}
