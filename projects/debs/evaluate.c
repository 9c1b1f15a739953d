/* Validation: the measures of the whole test set, each point once, on any number of ranks. */
#include "trainer.h"

#include "training_validation.h"

#include <inttypes.h>
#include <stdlib.h>

typedef struct validation {
    trainer *run;
    measures *sum;
} validation;

/* Adds the points of this rank's model group; its first rank counts them. */
static shard_status add_batch(void *of, int64_t count)
{
    const validation *state = of;
    trainer *run = state->run;
    int64_t total = 0, *points = training_gather_samples(run->points, count, run->base.model_group, &total);
    int64_t *predicted = calloc((size_t)total * MEASURES_TOP + 1, sizeof *predicted);
    shard_module *head = shard_module_child(run->base.model, "fc");
    if (points && !predicted)
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " predictions", total);
    SHARD_SCOPE
    {
        shard_tensor *x = trainer_features(run, run->test, run->points, count, 0), *labels = NULL;
        shard_linear_top_k(x, shard_module_tensor(head, "weight"), shard_module_tensor(head, "bias"), MEASURES_TOP, &labels);
        if (labels && predicted)
            shard_copy_to_host(labels, predicted, (size_t)total * MEASURES_TOP * sizeof *predicted);
    }
    shard_status status = shard_last_status();
    for (int64_t i = 0; status == SHARD_OK && shard_group_rank(run->base.model_group) == 0 && i < total; i++) {
        int64_t begin = run->test->label_begin[points[i]], end = run->test->label_begin[points[i] + 1];
        measures_add(state->sum, predicted + i * MEASURES_TOP, run->test->label + begin, end - begin, run->inverse);
    }
    free(points);
    free(predicted);
    return status;
}

static shard_status report(trainer *run, const measures *whole, int64_t local_points, double seconds)
{
    static const char *const names[][MEASURES_K] = {{"p1", "p3", "p5"}, {"psp1", "psp3", "psp5"}, {"r1", "r3", "r5"}};
    double p[MEASURES_K], psp[MEASURES_K], r[MEASURES_K];
    metrics_entry entry = {.validation = true,
                           .step = run->base.at.step,
                           .epoch = run->base.at.epoch,
                           .samples = (int64_t)whole->points,
                           .local_samples = local_points,
                           .seconds = seconds};
    for (int i = 0; i < MEASURES_K; i++) {
        p[i] = measures_precision(whole, i);
        psp[i] = measures_propensity_scored(whole, i);
        r[i] = measures_recall(whole, i);
        entry.values[i] = (metrics_value){names[0][i], p[i], METRICS_NUMBER};
        entry.values[MEASURES_K + i] = (metrics_value){names[1][i], psp[i], METRICS_NUMBER};
        entry.values[2 * MEASURES_K + i] = (metrics_value){names[2][i], r[i], METRICS_NUMBER};
    }
    progress_say(&run->base.progress,
                 " * P@1 %.2f  P@3 %.2f  P@5 %.2f  PSP@1 %.2f  PSP@3 %.2f  PSP@5 %.2f  R@1 %.2f  R@3 %.2f  R@5 %.2f  (%" PRId64
                 " points, %.1f points/s)",
                 p[0], p[1], p[2], psp[0], psp[1], psp[2], r[0], r[1], r[2], entry.samples, whole->points / seconds);
    return metrics_write(run->base.metrics, &entry);
}

static void describe(const void *of, char *text, size_t bytes)
{
    snprintf(text, bytes, "P@1 %.2f", measures_precision(((const validation *)of)->sum, 0));
}

shard_status evaluate(trainer *run, measures *whole, bool *interrupted)
{
    double begun = progress_clock();
    int64_t local_points;
    validation state = {run, whole};
    training_validation over = {.run = &run->base,
                                .sampler = run->test_sampler,
                                .samples = run->points,
                                .of = &state,
                                .add = add_batch,
                                .describe = describe,
                                .sums = (double *)whole,
                                .count = MEASURES_NUMBERS};
    *whole = (measures){0};
    shard_status status = training_validate(&over, &local_points, interrupted);
    return status == SHARD_OK && !*interrupted ? report(run, whole, local_points, progress_clock() - begun) : status;
}
