/* Validation: features of all images of each set, and the measures of verification and search. */
#include "trainer.h"

#include "random.h"
#include "search.h"
#include "verification.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEXT_OF_IDENTITY 8      /* images that an image makes pairs with */
#define IMPOSTOR_KEY 0x696d706f /* of their random numbers, which do not depend on --seed: all runs have the same pairs */

/* The results of a set. */
typedef struct outcome {
    verification pairs;
    search_result search; /* of a folder */
    int64_t images;
    double seconds;
} outcome;

static double distance_of(const float *a, const float *b, int64_t size)
{
    double sum = 0;
    for (int64_t i = 0; i < size; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sum;
}

/* ---- pairs of a file ---- */

static shard_status measure_pairs(const pair_set *pairs, const float *features, int64_t size, outcome *result)
{
    int64_t count = pair_set_count(pairs);
    double *distance = calloc((size_t)count, sizeof *distance);
    uint8_t *same = calloc((size_t)count, 1);
    shard_status status = SHARD_OK;
    if (!distance || !same)
        status = shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " pairs", count);
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        distance[i] = distance_of(features + 2 * i * size, features + (2 * i + 1) * size, size);
        same[i] = pair_set_same(pairs, i);
    }
    if (status == SHARD_OK)
        status = verification_of_pairs(distance, same, count, &result->pairs);
    free(distance);
    free(same);
    return status;
}

/* ---- a folder of identities ---- */

typedef struct folder_pairs {
    const float *features;
    const int64_t *identity; /* [images], in ascending order */
    int64_t images, size;
    double *same, *different;
    int64_t same_count, different_count;
} folder_pairs;

/* Each image with the next ones of its identity; into NULL they are only counted. */
static void list_same(folder_pairs *of)
{
    of->same_count = 0;
    for (int64_t i = 0; i < of->images; i++)
        for (int64_t k = i + 1; k < of->images && k <= i + NEXT_OF_IDENTITY && of->identity[k] == of->identity[i]; k++) {
            if (of->same)
                of->same[of->same_count] = distance_of(of->features + i * of->size, of->features + k * of->size, of->size);
            of->same_count++;
        }
}

/* There are two identities (data.c). */
static void list_different(folder_pairs *of, int64_t wanted)
{
    for (int64_t i = 0; i < wanted; i++) {
        random_stream random = random_start(IMPOSTOR_KEY, (uint64_t)of->images, (uint64_t)i);
        int64_t a, b;
        do {
            a = (int64_t)(random_uniform(&random) * (double)of->images);
            b = (int64_t)(random_uniform(&random) * (double)of->images);
        } while (of->identity[a] == of->identity[b]);
        of->different[i] = distance_of(of->features + a * of->size, of->features + b * of->size, of->size);
    }
    of->different_count = wanted;
}

static shard_status measure_identities(const int64_t *identity, int64_t images, const float *features, const options *wanted,
                                       outcome *result)
{
    folder_pairs of = {.features = features, .identity = identity, .images = images, .size = wanted->embedding_size};
    list_same(&of);
    of.same = calloc((size_t)of.same_count + 1, sizeof *of.same);
    of.different = calloc((size_t)wanted->impostors, sizeof *of.different);
    shard_status status = SHARD_OK;
    if (!of.same || !of.different)
        status = shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " pairs", of.same_count + wanted->impostors);
    if (status == SHARD_OK) {
        list_same(&of);
        list_different(&of, wanted->impostors);
        status = verification_of_lists(of.same, of.same_count, of.different, of.different_count, &result->pairs);
    }
    free(of.same);
    free(of.different);
    return status;
}

static shard_status measure_folder(const image_folder *folder, const float *features, const options *wanted, outcome *result)
{
    int64_t images = image_folder_images(folder), *identity = calloc((size_t)images + 1, sizeof *identity);
    shard_status status = SHARD_OK;
    if (!identity)
        status = shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " labels", images);
    for (int64_t i = 0; i < images && status == SHARD_OK; i++)
        identity[i] = image_folder_label(folder, i);
    if (status == SHARD_OK)
        measure_identities(identity, images, features, wanted, result);
    status = shard_agree(shard_world());
    if (status == SHARD_OK)
        status = search_gallery(features, images, wanted->embedding_size, identity, shard_world(), &result->search);
    free(identity);
    return status;
}

/* ---- reports ---- */

static void add_value(metrics_entry *entry, char names[][96], int *count, const char *set, const char *measure, double value)
{
    snprintf(names[*count], sizeof names[*count], "%s_%s", set, measure);
    entry->values[*count] = (metrics_value){names[*count], value, METRICS_NUMBER};
    ++*count;
}

static shard_status report(trainer *run, const validation_set *set, const outcome *result)
{
    static const char *const tar_names[VERIFICATION_FARS] = {"tar_far_1e3", "tar_far_1e4", "tar_far_1e5"};
    char names[METRICS_MOST_VALUES][96], text[256] = "";
    int count = 0;
    shard_range local = shard_split_range(result->images, shard_group_size(shard_world()), shard_group_rank(shard_world()));
    metrics_entry entry = {.validation = true,
                           .step = run->base.at.step,
                           .epoch = run->base.at.epoch,
                           .samples = result->images,
                           .local_samples = local.size,
                           .seconds = result->seconds};
    add_value(&entry, names, &count, set->name, "accuracy", result->pairs.accuracy);
    add_value(&entry, names, &count, set->name, "deviation", result->pairs.deviation);
    if (!isnan(result->pairs.accuracy)) /* NaN: fewer than 10 pairs */
        snprintf(text, sizeof text, " accuracy %.3f +- %.3f", result->pairs.accuracy, result->pairs.deviation);
    for (int i = 0; i < VERIFICATION_FARS; i++) {
        size_t used = strlen(text);
        add_value(&entry, names, &count, set->name, tar_names[i], result->pairs.tar[i]);
        if (!isnan(result->pairs.tar[i]))
            snprintf(text + used, sizeof text - used, "  TAR@FAR=%g %.2f", verification_far[i], result->pairs.tar[i]);
    }
    if (set->folder) {
        size_t used = strlen(text);
        add_value(&entry, names, &count, set->name, "rank1", result->search.rank1);
        add_value(&entry, names, &count, set->name, "rank5", result->search.rank5);
        snprintf(text + used, sizeof text - used, "  rank-1 %.2f  rank-5 %.2f of %" PRId64, result->search.rank1,
                 result->search.rank5, result->search.gallery);
    }
    progress_say(&run->base.progress, " * %s:%s  (%" PRId64 " + %" PRId64 " pairs, %.1f images/s)", set->name, text,
                 result->pairs.same, result->pairs.different, (double)result->images / result->seconds);
    return metrics_write(run->base.metrics, &entry);
}

static shard_status evaluate_set(trainer *run, const validation_set *set, double *accuracy, bool *interrupted)
{
    double begun = progress_clock();
    image_source images = validation_set_images(set);
    outcome result = {.images = images.images};
    float *features = features_of(run, set->name, images, interrupted);
    if (!features)
        return shard_last_status();
    if (set->folder)
        measure_folder(set->folder, features, run->options, &result);
    else
        measure_pairs(set->pairs, features, run->options->embedding_size, &result);
    free(features);
    shard_status status = shard_agree(shard_world());
    result.seconds = progress_clock() - begun;
    *accuracy = result.pairs.accuracy;
    return status == SHARD_OK ? report(run, set, &result) : status;
}

shard_status evaluate(trainer *run, double *accuracy, bool *interrupted)
{
    shard_status status = SHARD_OK;
    double sum = 0;
    int measured = 0; /* a set of fewer than 10 pairs has no accuracy */
    *interrupted = false;
    shard_module_set_training(run->base.model, false);
    for (int i = 0; i < run->data.count && status == SHARD_OK && !*interrupted; i++) {
        double own = 0;
        status = evaluate_set(run, &run->data.sets[i], &own, interrupted);
        sum += isnan(own) ? 0 : own;
        measured += !isnan(own);
    }
    shard_module_set_training(run->base.model, true);
    *accuracy = measured ? sum / measured : 0;
    return status;
}
