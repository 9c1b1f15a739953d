/* Validation: the mean loss of the validation set's blocks, on any number of ranks. */
#include "trainer.h"

#include "interrupt.h"
#include "training_run.h"

#include <inttypes.h>
#include <math.h>

/* Adds a batch's losses to *sum. Ranks of a model group have the same blocks; count is 0 on those that have none of the last
 * batch. These compute block 0 and leave it out, since the forward is collective: ZeRO 3 gathers the values in it. */
static shard_status add_batch(trainer *run, int64_t count, double *sum)
{
    int64_t computed = count > 0 ? count : 1;
    if (count == 0)
        run->blocks[0] = 0;
    SHARD_SCOPE
    {
        shard_tensor *tokens = NULL, *targets = NULL, *loss = NULL;
        trainer_blocks(run, TEXT_VAL, 0, run->blocks, computed, &tokens, &targets);
        SHARD_AUTOCAST((shard_dtype)run->options->training.amp)
        {
            loss = gpt_loss(run->network, gpt_forward(run->network, tokens, NULL, NULL), targets);
        }
        if (loss)
            *sum += count > 0 ? shard_item(loss) : 0;
    }
    return shard_last_status();
}

static shard_status report(trainer *run, double loss, int64_t tokens, int64_t local_tokens, double seconds)
{
    const token_set *set = &run->sets[TEXT_VAL];
    double bits = loss / log(2) * (double)set->count / (double)set->bytes;
    metrics_entry entry = {.validation = true,
                           .step = run->at.step,
                           .epoch = run->at.epoch,
                           .values = {{"loss", loss, METRICS_NUMBER},
                                      {"perplexity", exp(loss), METRICS_NUMBER},
                                      {"bits_per_byte", bits, METRICS_NUMBER}},
                           .samples = tokens,
                           .local_samples = local_tokens,
                           .seconds = seconds};
    progress_say(&run->progress, " * loss %.4f  perplexity %.2f  bits per byte %.4f  (%" PRId64 " tokens, %.0f tokens/s)", loss,
                 exp(loss), bits, tokens, (double)tokens / seconds);
    return metrics_write(run->metrics, &entry);
}

shard_status evaluate(trainer *run, double *loss, bool *interrupted)
{
    double begun = progress_clock(), sums[2] = {0}; /* of losses, and of ranks with a signal */
    double own = shard_group_rank(shard_mesh_model_group(run->mesh)) == 0;
    int64_t count, done = 0, blocks = 0, steps = shard_group_sampler_steps(run->val_sampler);
    shard_status status = shard_group_sampler_set_epoch(run->val_sampler, 0);
    shard_module_set_training(run->network, false);
    SHARD_NO_GRAD
    {
        while (status == SHARD_OK && sums[1] == 0 && shard_group_sampler_next(run->val_sampler, run->blocks, &count)) {
            double sum = 0, found[2] = {0, interrupt_signal() != 0};
            status = add_batch(run, count, &sum);
            found[0] = own * sum;
            if (status == SHARD_OK)
                status = training_sum(found, 2);
            sums[0] += found[0];
            sums[1] += found[1];
            blocks += count;
            progress_step(&run->progress, "Validation", ++done, steps, "");
        }
    }
    shard_module_set_training(run->network, true);
    *interrupted = sums[1] > 0;
    if (status != SHARD_OK || *interrupted)
        return status;
    int64_t size = run->config.block_size, tokens = run->sets[TEXT_VAL].blocks * size;
    *loss = sums[0] / (double)tokens;
    return report(run, *loss, tokens, blocks * size, progress_clock() - begun);
}
