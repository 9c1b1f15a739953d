/* Training: the steps of an epoch, and their reports. */
#include "trainer.h"

#include "interrupt.h"
#include "random.h"
#include "training_loop.h"
#include "training_loss.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>

/* The results of a step, over the world. */
typedef struct step {
    double loss; /* the mean over the tokens */
    double lr, grad_scale, seconds;
    int64_t tokens, local_tokens;
} step;

/* The state of an epoch. */
typedef struct epoch_state {
    trainer *run;
    double loss, tokens; /* sums over its steps */
} epoch_state;

/* Blocks begin at another token in each epoch. */
static int64_t shift_of_epoch(const trainer *run)
{
    uint64_t number = random_hash((uint64_t)run->options->training.seed, (uint64_t)run->at.epoch, 2);
    return (int64_t)(number % (uint64_t)run->config.block_size);
}

/* The loss of the model group's blocks, and the gradient of the mean over the whole batch: each model group has the sum over its
 * tokens, and data parallel averages over the groups. */
static shard_status run_backward(trainer *run, int64_t count, double *loss_sum)
{
    const options *wanted = run->options;
    shard_group *group = shard_mesh_data_group(run->mesh);
    int64_t part = shard_group_sampler_last_batch_size(run->sampler);
    gpt_dropout dropout = {.embd = run->config.embd_pdrop,
                           .resid = run->config.resid_pdrop,
                           .group = group,
                           .samples = shard_split_range(part, shard_group_size(group), shard_group_rank(group)),
                           .whole = part};
    double factor = (double)shard_group_size(group) / (double)(wanted->training.batch * run->config.block_size);
    SHARD_SCOPE
    {
        shard_tensor *tokens = NULL, *targets = NULL, *loss = NULL;
        trainer_blocks(run, TEXT_TRAIN, shift_of_epoch(run), run->blocks, count, &tokens, &targets);
        SHARD_AUTOCAST((shard_dtype)wanted->training.amp)
        {
            loss = gpt_loss(run->network, gpt_forward(run->network, tokens, NULL, &dropout), targets);
        }
        if (loss)
            *loss_sum += shard_item(loss);
        run->optimizers.lost |= !isfinite(*loss_sum);
        shard_backward(shard_grad_scaler_scale(run->optimizers.scaler, shard_scale(loss, factor)));
    }
    return shard_last_status();
}

static shard_status step_once(trainer *run, step *made, bool *interrupted)
{
    double begun = progress_clock(), loss = 0;
    int64_t parts = run->options->accumulate, count, blocks = 0;
    double lr = training_optimizers_set_lr(&run->optimizers, training_schedule_step(&run->at, run->checkpoint.epoch_steps));
    *made = (step){.lr = lr};
    training_loss_begin(&run->optimizers);
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < parts && status == SHARD_OK; i++, blocks += count) {
        shard_data_parallel_set_sync(run->data_parallel, i + 1 == parts);
        shard_group_sampler_next(run->sampler, run->blocks, &count);
        status = run_backward(run, count, &loss);
    }
    if (status == SHARD_OK)
        status = training_optimizers_step(&run->optimizers);
    double sums[2] = {shard_group_rank(shard_mesh_model_group(run->mesh)) == 0 ? loss : 0, interrupt_signal() != 0};
    if (status == SHARD_OK)
        status = training_sum(sums, 2);
    run->at.step++;
    run->at.epoch_step++;
    made->grad_scale = shard_grad_scaler_get_scale(run->optimizers.scaler);
    made->tokens = run->options->training.batch * run->config.block_size;
    made->local_tokens = blocks * run->config.block_size;
    made->loss = sums[0] / (double)made->tokens;
    made->seconds = progress_clock() - begun;
    *interrupted = sums[1] > 0;
    return status == SHARD_OK
               ? training_loss_check(&run->optimizers, run->at.step, made->loss, run->optimizers.skipped, made->grad_scale)
               : status;
}

static shard_status report(trainer *run, const step *made, double epoch_loss)
{
    char title[64], text[256];
    metrics_entry entry = {
        .step = run->at.step,
        .epoch = run->at.epoch,
        .values = {{"lr", made->lr, METRICS_NUMBER},
                   {"grad_scale", made->grad_scale, METRICS_NUMBER},
                   {"left_out", run->optimizers.skipped, METRICS_TRUTH},
                   {"loss", made->loss, METRICS_NUMBER}},
        .samples = made->tokens,
        .local_samples = made->local_tokens,
        .seconds = made->seconds,
    };
    snprintf(title, sizeof title, "Epoch %" PRId64, run->at.epoch);
    int used = snprintf(text, sizeof text, "loss %.4f (%.4f)  %.0f tokens/s  lr %.3g", made->loss, epoch_loss,
                        (double)made->tokens / made->seconds, made->lr);
    training_loss_describe(-1, run->optimizers.skipped, text + used, sizeof text - (size_t)used);
    progress_step(&run->progress, title, run->at.epoch_step,
                  training_steps_to_make(&run->options->training, &run->at, run->checkpoint.epoch_steps), text);
    return metrics_write(run->metrics, &entry);
}

/* ---- the loop's functions ---- */

static shard_status begin_epoch(void *of)
{
    epoch_state *state = of;
    trainer *run = state->run;
    *state = (epoch_state){.run = run};
    return shard_group_sampler_seek(run->sampler, run->at.epoch, run->at.epoch_step * run->options->accumulate);
}

static shard_status make_step(void *of, bool *interrupted)
{
    epoch_state *state = of;
    step made;
    shard_status status = step_once(state->run, &made, interrupted);
    if (status != SHARD_OK)
        return status;
    if (isfinite(made.loss)) {
        state->loss += made.loss * (double)made.tokens;
        state->tokens += (double)made.tokens;
    }
    return report(state->run, &made, state->tokens > 0 ? state->loss / state->tokens : 0);
}

static shard_status validate(void *of, double *result, bool *interrupted)
{
    double loss = 0;
    shard_status status = evaluate(((epoch_state *)of)->run, &loss, interrupted);
    *result = 100 * exp(-loss); /* the probability of a token, in percent: the geometric mean */
    return status;
}

static shard_tensors *export(void *of)
{
    return gpt_export(((epoch_state *)of)->run->network);
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
                                              .export = export,
                                              .begin = begin_epoch,
                                              .step = make_step,
                                              .validate = validate});
}
