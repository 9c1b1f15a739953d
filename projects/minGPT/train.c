/* Training: the functions of training_loop. */
#include "trainer.h"

#include "random.h"

#include <math.h>

/* Blocks begin at another token in each epoch. */
static int64_t shift_of_epoch(const trainer *run)
{
    uint64_t number = random_hash((uint64_t)run->options->training.seed, (uint64_t)run->base.at.epoch, 2);
    return (int64_t)(number % (uint64_t)run->config.block_size);
}

/* The loss of the model group's blocks, and the gradient of the mean over the whole batch: each model group has the sum over its
 * tokens, and data parallel averages over the groups. */
static shard_status backward_micro_batch(trainer *run, int64_t count, double *loss_sum)
{
    const options *wanted = run->options;
    shard_group *group = shard_mesh_data_group(run->base.mesh);
    gpt_dropout dropout = {.embd = run->config.embd_pdrop, .resid = run->config.resid_pdrop, .group = group};
    double factor = (double)shard_group_size(group) / (double)(wanted->training.batch * run->config.block_size);
    SHARD_SCOPE
    {
        shard_tensor *tokens = NULL, *targets = NULL, *loss = NULL;
        trainer_blocks(run, TEXT_TRAIN, shift_of_epoch(run), run->blocks, count, &tokens, &targets);
        SHARD_AUTOCAST((shard_dtype)wanted->training.amp)
        {
            loss = gpt_loss(run->base.model, gpt_forward(run->base.model, tokens, NULL, &dropout), targets);
        }
        if (loss)
            *loss_sum += shard_item(loss);
        shard_backward(shard_grad_scaler_scale(run->base.optimizers.scaler, shard_scale(loss, factor)));
    }
    return shard_last_status();
}

static shard_status run_backward(void *of, training_batch *made)
{
    trainer *run = of;
    int64_t parts = run->options->accumulate, count, blocks = 0;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < parts && status == SHARD_OK; i++, blocks += count) {
        shard_data_parallel_set_sync(run->base.data_parallel, i + 1 == parts);
        shard_group_sampler_next(run->sampler, run->blocks, &count);
        status = backward_micro_batch(run, count, &made->loss);
    }
    made->samples = run->options->training.batch * run->config.block_size;
    made->local_samples = blocks * run->config.block_size;
    return status;
}

static shard_status begin_epoch(void *of)
{
    trainer *run = of;
    return shard_group_sampler_seek(run->sampler, run->base.at.epoch, run->base.at.epoch_step * run->options->accumulate);
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    double loss = 0;
    shard_status status = evaluate(of, &loss, interrupted);
    *result = 100 * exp(-loss); /* the probability of a token, in percent: the geometric mean */
    return status;
}

static shard_tensors *export(void *of)
{
    return gpt_export(((trainer *)of)->base.model);
}

shard_status train(trainer *run)
{
    return training_loop_run(&(training_loop){
        .run = &run->base, .of = run, .export = export, .begin = begin_epoch, .backward = run_backward, .validate = validate});
}
