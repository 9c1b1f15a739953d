/* Validation: the accuracy on the whole test, each word once, on any number of ranks. */
#include "trainer.h"

#include "interrupt.h"
#include "training_run.h"

#include <inttypes.h>
#include <stdlib.h>

#define TOP 5

/* Sums over words. */
typedef struct hits {
    double words, first, among;
} hits;

/* The classes of the largest logits of this rank's model group, [words of the group, top]. */
static shard_status predict(trainer *run, int64_t count, int64_t total, int64_t top, int64_t *predicted)
{
    const char **word = calloc((size_t)count + 1, sizeof *word);
    shard_module *head = shard_module_child(run->network, "fc");
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
static shard_status add_batch(trainer *run, int64_t count, hits *sum)
{
    int64_t total = 0, top = run->dictionary->count < TOP ? run->dictionary->count : TOP;
    int64_t *samples = training_gather_samples(run->samples, count, run->model_group, &total);
    int64_t *predicted = calloc((size_t)(total * top) + 1, sizeof *predicted);
    if (samples && !predicted)
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " predictions", total);
    shard_status status = samples && predicted ? predict(run, count, total, top, predicted) : shard_last_status();
    for (int64_t i = 0; status == SHARD_OK && shard_group_rank(run->model_group) == 0 && i < total; i++) {
        int64_t place = 0;
        while (place < top && predicted[i * top + place] != run->test->class[samples[i]])
            place++;
        sum->words++;
        sum->first += place == 0;
        sum->among += place < top;
    }
    free(samples);
    free(predicted);
    return status;
}

static shard_status report(trainer *run, const hits *whole, int64_t local_words, double seconds, accuracy *made)
{
    *made = (accuracy){100 * whole->first / whole->words, 100 * whole->among / whole->words};
    metrics_entry entry = {.validation = true,
                           .step = run->at.step,
                           .epoch = run->at.epoch,
                           .values = {{"top1", made->top1, METRICS_NUMBER}, {"top5", made->top5, METRICS_NUMBER}},
                           .samples = (int64_t)whole->words,
                           .local_samples = local_words,
                           .seconds = seconds};
    progress_say(&run->progress, " * top-1 %.2f  top-5 %.2f  (%" PRId64 " words, %.1f words/s)", made->top1, made->top5,
                 entry.samples, whole->words / seconds);
    return metrics_write(run->metrics, &entry);
}

shard_status evaluate(trainer *run, accuracy *whole, bool *interrupted)
{
    double begun = progress_clock(), signals = 0;
    int64_t count, done = 0, local_words = 0, steps = shard_group_sampler_steps(run->test_sampler);
    char text[32];
    hits sum = {0};
    shard_module_set_training(run->network, false);
    shard_status status = shard_group_sampler_set_epoch(run->test_sampler, 0);
    SHARD_NO_GRAD
    {
        while (status == SHARD_OK && signals == 0 && shard_group_sampler_next(run->test_sampler, run->samples, &count)) {
            status = add_batch(run, count, &sum);
            local_words += count;
            signals = interrupt_signal() != 0;
            if (status == SHARD_OK)
                status = training_sum(&signals, 1);
            snprintf(text, sizeof text, "top-1 %.2f", 100 * sum.first / sum.words); /* of the first rank's model group */
            progress_step(&run->progress, "Validation", ++done, steps, text);
        }
    }
    shard_module_set_training(run->network, true);
    *interrupted = signals > 0;
    if (status == SHARD_OK && !*interrupted)
        status = training_sum((double *)&sum, sizeof sum / sizeof(double));
    return status == SHARD_OK && !*interrupted ? report(run, &sum, local_words, progress_clock() - begun, whole) : status;
}
