/* Validation: the mean loss of the validation set's blocks, on any number of ranks. */
#include "trainer.h"

#include "training_validation.h"

#include <inttypes.h>
#include <math.h>

typedef struct validation {
    trainer *run;
    double loss; /* the sum over tokens */
} validation;

/* Adds a batch's losses, of the first rank of a model group. Ranks of a model group have the same blocks; count is 0 on those
 * that have none of the last batch. These compute block 0 and leave it out, since the forward is collective: ZeRO 3 gathers the
 * values in it. */
static shard_status add_batch(void *of, int64_t count)
{
    validation *state = of;
    trainer *run = state->run;
    bool counts = count > 0 && shard_group_rank(run->base.model_group) == 0;
    int64_t computed = count > 0 ? count : 1;
    if (count == 0)
        run->blocks[0] = 0;
    SHARD_SCOPE
    {
        shard_tensor *tokens = NULL, *targets = NULL, *loss = NULL;
        trainer_blocks(run, TEXT_VAL, 0, run->blocks, computed, &tokens, &targets);
        SHARD_AUTOCAST((shard_dtype)run->options->training.amp)
        {
            loss = gpt_loss(run->base.model, gpt_forward(run->base.model, tokens, NULL, NULL), targets);
        }
        if (loss)
            state->loss += counts ? shard_item(loss) : 0;
    }
    return shard_last_status();
}

static shard_status report(trainer *run, double loss, int64_t tokens, int64_t local_tokens, double seconds)
{
    const token_set *set = &run->sets[TEXT_VAL];
    double bits = loss / log(2) * (double)set->count / (double)set->bytes;
    metrics_entry entry = {.validation = true,
                           .step = run->base.at.step,
                           .epoch = run->base.at.epoch,
                           .values = {{"loss", loss, METRICS_NUMBER},
                                      {"perplexity", exp(loss), METRICS_NUMBER},
                                      {"bits_per_byte", bits, METRICS_NUMBER}},
                           .samples = tokens,
                           .local_samples = local_tokens,
                           .seconds = seconds};
    progress_say(&run->base.progress, " * loss %.4f  perplexity %.2f  bits per byte %.4f  (%" PRId64 " tokens, %.1f tokens/s)",
                 loss, exp(loss), bits, tokens, (double)tokens / seconds);
    return metrics_write(run->base.metrics, &entry);
}

shard_status evaluate(trainer *run, double *loss, bool *interrupted)
{
    double begun = progress_clock();
    int64_t blocks, size = run->config.block_size, tokens = run->sets[TEXT_VAL].blocks * size;
    validation state = {.run = run};
    training_validation over = {.run = &run->base,
                                .sampler = run->val_sampler,
                                .samples = run->blocks,
                                .of = &state,
                                .add = add_batch,
                                .sums = &state.loss,
                                .count = 1};
    shard_status status = training_validate(&over, &blocks, interrupted);
    *loss = state.loss / (double)tokens;
    return status == SHARD_OK && !*interrupted ? report(run, *loss, tokens, blocks * size, progress_clock() - begun) : status;
}
