/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

#include "interrupt.h"
#include "random.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The results of a step, over the world. */
typedef struct step {
    double loss; /* the mean of the points' */
    double lr, seconds;
    int64_t points, local_points;
    bool interrupted;
} step;

/* The ones of the points, int64 [2, ones]: rows in ascending order, each with its labels in ascending order. */
static shard_tensor *make_pairs(const xmc_data *data, const int64_t *points, int64_t count)
{
    int64_t ones = 0, at = 0;
    for (int64_t i = 0; i < count; i++)
        ones += data->label_begin[points[i] + 1] - data->label_begin[points[i]];
    int64_t *pair = calloc(2 * (size_t)ones + 1, sizeof *pair);
    if (!pair) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " labels of a batch", ones);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = data->label_begin[points[i]]; k < data->label_begin[points[i] + 1]; k++, at++) {
            pair[at] = i;
            pair[ones + at] = data->label[k];
        }
    shard_tensor *pairs = shard_from_host(pair, SHARD_SHAPE(2, ones), .dtype = SHARD_INT64);
    free(pair);
    return pairs;
}

/* The loss of the model group's points, and the gradient of the mean over the whole batch: each model group has the sum over its
 * points, and data parallel averages over the groups. */
static shard_status run_backward(trainer *run, int64_t count, double *loss_sum)
{
    const options *wanted = run->options;
    uint64_t key = random_hash((uint64_t)wanted->training.seed, (uint64_t)run->at.step, 1);
    double groups = shard_group_size(shard_mesh_data_group(run->mesh));
    int64_t total = 0, *points = trainer_gather_points(run, run->points, count, &total);
    SHARD_SCOPE
    {
        shard_tensor *x = trainer_features(run, run->train, run->points, count, key ? key : 1), *loss;
        shard_tensor *logits = shard_forward(shard_module_child(run->network, "fc"), x);
        shard_tensor *pairs = points ? make_pairs(run->train, points, total) : NULL;
        loss = shard_binary_cross_entropy_with_logits(logits, pairs, .reduction = SHARD_REDUCTION_SUM,
                                                      .stash_share = wanted->head.stash);
        shard_release(logits);
        if (loss)
            *loss_sum = shard_item(loss);
        shard_backward(shard_scale(loss, groups / (double)shard_group_sampler_last_batch_size(run->sampler)));
    }
    free(points);
    return shard_last_status();
}

static shard_status step_once(trainer *run, step *made)
{
    double begun = progress_clock(), loss = 0;
    *made = (step){.lr = training_optimizers_set_lr(&run->optimizers, run->at.step)};
    shard_group_sampler_next(run->sampler, run->points, &made->local_points);
    shard_status status = run_backward(run, made->local_points, &loss);
    if (status == SHARD_OK)
        status = training_optimizers_step(&run->optimizers);
    double sums[2] = {shard_group_rank(run->model_group) == 0 ? loss : 0, interrupt_signal() != 0};
    if (status == SHARD_OK)
        status = trainer_sum(sums, 2);
    run->at.step++;
    run->at.epoch_step++;
    made->points = shard_group_sampler_last_batch_size(run->sampler);
    made->loss = sums[0] / (double)made->points;
    made->interrupted = sums[1] > 0;
    made->seconds = progress_clock() - begun;
    if (status == SHARD_OK && !isfinite(made->loss))
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "the loss of step %" PRId64
                           " is %g: take a smaller --lr, or --clip-grad; the last checkpoint is from before",
                           run->at.step, made->loss);
    return status;
}

static bool all_steps_done(const trainer *run)
{
    return run->options->training.steps > 0 && run->at.step >= run->options->training.steps;
}

static int64_t steps_to_come_to(const trainer *run)
{
    int64_t all = shard_group_sampler_steps(run->sampler),
            asked = run->at.epoch_step + run->options->training.steps - run->at.step;
    return run->options->training.steps && asked < all ? asked : all;
}

static shard_status report(trainer *run, const step *made, double epoch_loss)
{
    char title[64], text[256];
    metrics_entry entry = {
        .step = run->at.step,
        .epoch = run->at.epoch,
        .values = {{"lr", made->lr, METRICS_NUMBER}, {"loss", made->loss, METRICS_NUMBER}},
        .samples = made->points,
        .local_samples = made->local_points,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    snprintf(text, sizeof text, "loss %.4f (%.4f)  %.1f points/s  lr %.3g", made->loss, epoch_loss,
             (double)made->points / made->seconds, made->lr);
    progress_step(&run->progress, title, run->at.epoch_step, steps_to_come_to(run), text);
    return metrics_write(run->metrics, &entry);
}

/* The rest of the epoch, until --steps or a signal ends it. */
static shard_status train_epoch(trainer *run, bool *interrupted)
{
    int64_t steps = shard_group_sampler_steps(run->sampler), save_every = run->options->training.save_every;
    double sum = 0, points = 0;
    shard_status status = shard_group_sampler_seek(run->sampler, run->at.epoch, run->at.epoch_step);
    while (status == SHARD_OK && !all_steps_done(run) && !*interrupted && run->at.epoch_step < steps) {
        step made;
        status = step_once(run, &made);
        sum += made.loss * (double)made.points;
        points += (double)made.points;
        if (status == SHARD_OK)
            status = report(run, &made, sum / points);
        *interrupted = made.interrupted;
        if (status == SHARD_OK && save_every && run->at.step % save_every == 0 && run->at.epoch_step < steps)
            status = trainer_save(run, false);
    }
    return status;
}

/* Validates if it is time to, and moves to the next epoch; *interrupted: not done, the run that resumes does it. */
static shard_status end_epoch(trainer *run, bool *interrupted)
{
    int64_t interval = run->options->val_interval, next = run->at.epoch + 1;
    bool best = interval == 0; /* model.safetensors is the latest then */
    if (interval > 0 && (next % interval == 0 || next == run->options->training.epochs)) {
        measures whole;
        shard_status status = evaluate(run, &whole, interrupted);
        if (status != SHARD_OK)
            return status;
        if (*interrupted)
            return trainer_save(run, false);
        best = measures_precision(&whole, 0) > run->at.best;
        run->at.best = best ? measures_precision(&whole, 0) : run->at.best;
    }
    run->at.epoch = next;
    run->at.epoch_step = 0;
    return trainer_save(run, best);
}

shard_status train(trainer *run)
{
    bool interrupted = false;
    shard_status status = SHARD_OK;
    while (status == SHARD_OK && run->at.epoch < run->options->training.epochs && !all_steps_done(run) && !interrupted) {
        status = train_epoch(run, &interrupted);
        bool ended = run->at.epoch_step == shard_group_sampler_steps(run->sampler);
        if (status == SHARD_OK)
            status = ended && !interrupted ? end_epoch(run, &interrupted) : trainer_save(run, false);
    }
    if (status == SHARD_OK && interrupted)
        progress_say(&run->progress, "interrupted after step %" PRId64 "%s", run->at.step,
                     run->options->training.output ? "; go on with --resume" : "");
    return status;
}
