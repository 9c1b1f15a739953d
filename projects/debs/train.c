/* Training: steps, epochs, and the end of a run. */
#include "trainer.h"

#include "interrupt.h"
#include "random.h"
#include "training_loop.h"
#include "training_loss.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The results of a step, over the world. */
typedef struct step {
    double loss; /* the mean of the points' */
    double lr, grad_scale, seconds;
    int64_t points, local_points, lost; /* lost: the lowest rank for whose loss it was skipped; -1: none */
} step;

/* The state of an epoch. */
typedef struct epoch_state {
    trainer *run;
    double loss, points; /* sums of the steps that were not skipped for their loss */
} epoch_state;

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
    int64_t total = 0, *points = training_gather_samples(run->points, count, run->model_group, &total);
    SHARD_SCOPE
    {
        shard_tensor *x = trainer_features(run, run->train, run->points, count, key ? key : 1), *logits = NULL, *loss = NULL;
        shard_tensor *pairs = points ? make_pairs(run->train, points, total) : NULL;
        SHARD_AUTOCAST(head_autocast(&wanted->head, &wanted->training))
        {
            logits = shard_forward(shard_module_child(run->network, "fc"), x);
            loss = shard_binary_cross_entropy_with_logits(logits, pairs, .reduction = SHARD_REDUCTION_SUM,
                                                          .stash_share = wanted->head.stash);
        }
        shard_release(logits);
        if (loss)
            *loss_sum = shard_item(loss);
        run->optimizers.lost = !isfinite(*loss_sum);
        loss = shard_scale(loss, groups / (double)shard_group_sampler_last_batch_size(run->sampler));
        shard_backward(shard_grad_scaler_scale(run->optimizers.scaler, loss));
    }
    free(points);
    return shard_last_status();
}

static shard_status step_once(trainer *run, step *made, bool *interrupted)
{
    double begun = progress_clock(), loss = 0;
    double lr = training_optimizers_set_lr(&run->optimizers, training_schedule_step(&run->at, run->checkpoint.epoch_steps));
    *made = (step){.lr = lr, .lost = -1};
    shard_group_sampler_next(run->sampler, run->points, &made->local_points);
    training_loss_begin(&run->optimizers);
    shard_status status = run_backward(run, made->local_points, &loss);
    if (status == SHARD_OK)
        status = training_loss_agree(&run->optimizers, &made->lost);
    if (status == SHARD_OK)
        status = training_optimizers_step(&run->optimizers);
    double sums[2] = {shard_group_rank(run->model_group) == 0 ? loss : 0, interrupt_signal() != 0};
    if (status == SHARD_OK)
        status = training_sum(sums, 2);
    run->at.step++;
    run->at.epoch_step++;
    made->grad_scale = shard_grad_scaler_get_scale(run->optimizers.scaler);
    made->points = shard_group_sampler_last_batch_size(run->sampler);
    made->loss = sums[0] / (double)made->points;
    made->seconds = progress_clock() - begun;
    *interrupted = sums[1] > 0;
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
        .samples = made->points,
        .local_samples = made->local_points,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    int used = snprintf(text, sizeof text, "loss %.4f (%.4f)  %.1f points/s  lr %.3g", made->loss, epoch_loss,
                        (double)made->points / made->seconds, made->lr);
    training_loss_describe(made->lost, skipped, text + used, sizeof text - (size_t)used);
    progress_step(&run->progress, title, run->at.epoch_step,
                  training_steps_to_make(&run->options->training, &run->at, shard_group_sampler_steps(run->sampler)), text);
    return metrics_write(run->metrics, &entry);
}

static shard_status begin_epoch(void *of)
{
    epoch_state *state = of;
    trainer *run = state->run;
    *state = (epoch_state){.run = run};
    return shard_group_sampler_seek(run->sampler, run->at.epoch, run->at.epoch_step);
}

static shard_status make_step(void *of, bool *interrupted)
{
    epoch_state *state = of;
    step made;
    shard_status status = step_once(state->run, &made, interrupted);
    if (status != SHARD_OK)
        return status;
    if (isfinite(made.loss)) {
        state->loss += made.loss * (double)made.points;
        state->points += (double)made.points;
    }
    return report(state->run, &made, state->points > 0 ? state->loss / state->points : 0);
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    measures whole;
    shard_status status = evaluate(((epoch_state *)of)->run, &whole, interrupted);
    *result = measures_precision(&whole, 0);
    return status;
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
