/* Training: the functions of training_loop. */
#include "trainer.h"

#include "random.h"

#include <inttypes.h>
#include <stdlib.h>

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
static shard_status run_backward(void *of, training_batch *made)
{
    trainer *run = of;
    const options *wanted = run->options;
    uint64_t key = random_hash((uint64_t)wanted->training.seed, (uint64_t)run->base.at.step, 1);
    double groups = shard_group_size(shard_mesh_data_group(run->base.mesh));
    made->no_loss = run->base.at.step % wanted->loss_every != 0 && !training_saves_after_step(&run->base);
    shard_group_sampler_next(run->sampler, run->points, &made->local_samples);
    made->samples = shard_group_sampler_last_batch_size(run->sampler);
    int64_t total = 0, *points = training_gather_samples(run->points, made->local_samples, run->base.model_group, &total);
    SHARD_SCOPE
    {
        shard_tensor *x = trainer_features(run, run->train, run->points, made->local_samples, key ? key : 1);
        shard_tensor *pairs = points ? make_pairs(run->train, points, total) : NULL, *logits = NULL, *loss = NULL;
        SHARD_AUTOCAST(head_autocast(&wanted->head, &wanted->training))
        {
            logits = shard_forward(shard_module_child(run->base.model, "fc"), x);
            loss = shard_binary_cross_entropy_with_logits(logits, pairs, .reduction = SHARD_REDUCTION_SUM,
                                                          .gradient_only = made->no_loss, .stash_share = wanted->head.stash);
        }
        shard_release(logits);
        if (loss && !made->no_loss)
            made->loss = shard_item(loss);
        loss = shard_scale(loss, groups / (double)made->samples);
        shard_backward(shard_grad_scaler_scale(run->base.optimizers.scaler, loss));
    }
    free(points);
    return shard_last_status();
}

static shard_status begin_epoch(void *of)
{
    trainer *run = of;
    return shard_group_sampler_seek(run->sampler, run->base.at.epoch, run->base.at.epoch_step);
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    measures whole;
    shard_status status = evaluate(of, &whole, interrupted);
    *result = measures_precision(&whole, 0);
    return status;
}

shard_status train(trainer *run)
{
    return training_loop_run(
        &(training_loop){.run = &run->base, .of = run, .begin = begin_epoch, .backward = run_backward, .validate = validate});
}
