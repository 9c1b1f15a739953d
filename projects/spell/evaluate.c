/* Validation: the accuracy on the whole test, each word once, on any number of ranks. */
#include "trainer.h"

#include "training_validation.h"

#include <inttypes.h>
#include <stdlib.h>

#define TOP 5

/* Sums over words. */
typedef struct hits {
    double words, first, among;
} hits;

typedef struct validation {
    trainer *run;
    hits sum;
} validation;

/* The classes of the largest logits of this rank's model group, [words of the group, top]. */
static shard_status predict(trainer *run, int64_t count, int64_t total, int64_t top, int64_t *predicted)
{
    const char **word = calloc((size_t)count + 1, sizeof *word);
    shard_module *head = shard_module_child(run->base.model, "fc");
    if (!word)
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " words", count);
    for (int64_t i = 0; i < count && word; i++)
        word[i] = words_typed_at(run->test, run->samples[i]);
    SHARD_SCOPE
    {
        shard_tensor *x = word ? trainer_features(run, word, count, run->options->scale) : NULL, *classes = NULL;
        shard_linear_top_k(shard_cast(x, head_dtype(&run->options->head, &run->options->training)),
                           shard_module_tensor(head, "weight"), shard_module_tensor(head, "bias"), top, &classes);
        if (classes)
            shard_copy_to_host(classes, predicted, (size_t)(total * top) * sizeof *predicted);
    }
    free(word);
    return shard_last_status();
}

/* Adds the words of this rank's model group; its first rank counts them. */
static shard_status add_batch(void *of, int64_t count)
{
    validation *state = of;
    trainer *run = state->run;
    int64_t total = 0, top = run->dictionary->count < TOP ? run->dictionary->count : TOP;
    int64_t *samples = training_gather_samples(run->samples, count, run->base.model_group, &total);
    int64_t *predicted = calloc((size_t)(total * top) + 1, sizeof *predicted);
    if (samples && !predicted)
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " predictions", total);
    shard_status status = samples && predicted ? predict(run, count, total, top, predicted) : shard_last_status();
    for (int64_t i = 0; status == SHARD_OK && shard_group_rank(run->base.model_group) == 0 && i < total; i++) {
        int64_t place = 0;
        while (place < top && predicted[i * top + place] != run->test->class[samples[i]])
            place++;
        state->sum.words++;
        state->sum.first += place == 0;
        state->sum.among += place < top;
    }
    free(samples);
    free(predicted);
    return status;
}

static shard_status report(trainer *run, const hits *whole, int64_t local_words, double seconds, accuracy *made)
{
    *made = (accuracy){100 * whole->first / whole->words, 100 * whole->among / whole->words};
    metrics_entry entry = {.validation = true,
                           .step = run->base.at.step,
                           .epoch = run->base.at.epoch,
                           .values = {{"top1", made->top1, METRICS_NUMBER}, {"top5", made->top5, METRICS_NUMBER}},
                           .samples = (int64_t)whole->words,
                           .local_samples = local_words,
                           .seconds = seconds};
    progress_say(&run->base.progress, " * top-1 %.2f  top-5 %.2f  (%" PRId64 " words, %.1f words/s)", made->top1, made->top5,
                 entry.samples, whole->words / seconds);
    return metrics_write(run->base.metrics, &entry);
}

static void describe(const void *of, char *text, size_t bytes)
{
    const hits *sum = &((const validation *)of)->sum;
    snprintf(text, bytes, "top-1 %.2f", 100 * sum->first / sum->words);
}

shard_status evaluate(trainer *run, accuracy *whole, bool *interrupted)
{
    double begun = progress_clock();
    int64_t local_words;
    validation state = {.run = run};
    training_validation over = {.run = &run->base,
                                .sampler = run->test_sampler,
                                .samples = run->samples,
                                .of = &state,
                                .add = add_batch,
                                .describe = describe,
                                .sums = (double *)&state.sum,
                                .count = sizeof state.sum / sizeof(double)};
    shard_status status = training_validate(&over, &local_words, interrupted);
    return status == SHARD_OK && !*interrupted ? report(run, &state.sum, local_words, progress_clock() - begun, whole) : status;
}
