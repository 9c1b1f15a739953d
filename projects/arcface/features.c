#include "trainer.h"

#include "interrupt.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NORM_EPS 1e-12

/* Memory for images that is reused. */
typedef struct bench {
    image_file file;
    image picture;
    resampler scratch;
    uint8_t *pixels[2]; /* [batch, side, side, 3]: the images, and their mirror images or NULL */
} bench;

static void free_bench(bench *own)
{
    image_file_free(&own->file);
    image_free(&own->picture);
    resampler_free(&own->scratch);
    free(own->pixels[0]);
    free(own->pixels[1]);
}

/* The square that training begins from, at the network's size. */
static shard_status make_image(const trainer *run, image_source images, int64_t number, bench *own, int64_t slot)
{
    int64_t side = run->options->image_size, height, width;
    shard_status status = images.read(images.of, number, &own->file);
    if (status == SHARD_OK)
        status = image_read_size(&own->file, &height, &width);
    if (status != SHARD_OK)
        return status;
    image_box box = validation_box(height, width, side, &(augmentation){.square = true});
    status = image_decode(&own->file, box_eighths(box, side), &own->picture);
    for (int mirrored = 0; mirrored < 2 && own->pixels[mirrored] && status == SHARD_OK; mirrored++)
        status = resample(&own->picture, box_in_decoded(box, height, width, &own->picture), side, mirrored == 1,
                          own->pixels[mirrored] + slot * side * side * 3, &own->scratch);
    return status;
}

static shard_status compute_batch(trainer *run, image_source images, int64_t first, int64_t count, bench *own, float *features)
{
    int64_t side = run->options->image_size, size = run->options->embedding_size;
    shard_status status = SHARD_OK;
    for (int64_t i = 0; i < count && status == SHARD_OK; i++)
        status = make_image(run, images, first + i, own, i);
    if (status != SHARD_OK)
        return status;
    SHARD_SCOPE
    {
        shard_tensor *sum = NULL;
        for (int mirrored = 0; mirrored < 2 && own->pixels[mirrored]; mirrored++) {
            shard_tensor *pixels =
                shard_from_host(own->pixels[mirrored], SHARD_SHAPE(count, side, side, 3), .dtype = SHARD_UINT8);
            shard_tensor *made = network_features(run->base.model, run->options, pixels);
            sum = mirrored ? shard_add(sum, made) : made;
        }
        status = shard_copy_to_host(shard_normalize(sum, 1, NORM_EPS), features, (size_t)(count * size) * sizeof *features);
    }
    return status;
}

/* All ranks have as many batches, of which some may be empty: ZeRO 3 gathers the network's values for each. */
static shard_status compute_range(trainer *run, const char *title, image_source images, shard_range range, float *features)
{
    int64_t side = run->options->image_size, size = run->options->embedding_size;
    int64_t ranks = shard_group_size(shard_world()), most = (images.images + ranks - 1) / ranks;
    int64_t share = (run->options->training.batch + ranks - 1) / ranks; /* of a rank in a step of training */
    int64_t batch = share < most ? share : most;
    int64_t steps = batch ? (most + batch - 1) / batch : 0;
    double signals = 0;
    bench own = {0};
    char text[64];
    for (int i = 0; i < (run->options->no_flip ? 1 : 2); i++)
        own.pixels[i] = malloc((size_t)(batch * side * side * 3) + 1);
    shard_status status = SHARD_OK;
    if (!own.pixels[0] || (!run->options->no_flip && !own.pixels[1]))
        status = shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " images", batch);
    double begun = progress_clock();
    for (int64_t step = 0; step < steps && status == SHARD_OK && signals == 0; step++) {
        shard_range part = shard_split_range(range.size, (int)steps, (int)step);
        status = compute_batch(run, images, range.start + part.start, part.size, &own, features + part.start * size);
        signals = interrupt_signal() != 0;
        if (status == SHARD_OK)
            status = training_sum(&signals, 1);
        double done = range.size ? (double)(part.start + part.size) / (double)range.size : 1;
        snprintf(text, sizeof text, "%.1f images/s",
                 done * (double)images.images / (progress_clock() - begun)); /* of all ranks */
        progress_step(&run->base.progress, title, step + 1, steps, text);
    }
    free_bench(&own);
    return status;
}

/* The ranks' features, in their order. */
static float *gather(const float *local, int64_t count, int64_t images, int64_t size)
{
    float *all = malloc((size_t)(images * size + 1) * sizeof *all);
    if (!all)
        shard_error(SHARD_ERROR_MEMORY, "no memory for the features of %" PRId64 " images", images);
    SHARD_SCOPE
    {
        shard_tensor *own = shard_from_host(local, SHARD_SHAPE(count, size), .device = shard_device_open("cpu"));
        shard_tensor *whole = shard_gather_from_group(own, 0, shard_world());
        if (whole && all)
            shard_copy_to_host(whole, all, (size_t)(images * size) * sizeof *all);
    }
    if (shard_last_status() == SHARD_OK)
        return all;
    free(all);
    return NULL;
}

float *features_of(trainer *run, const char *title, image_source images, bool *interrupted)
{
    int64_t size = run->options->embedding_size;
    shard_range range = shard_split_range(images.images, shard_group_size(shard_world()), shard_group_rank(shard_world()));
    float *local = malloc((size_t)(range.size * size + 1) * sizeof *local), *all = NULL;
    if (!local)
        shard_error(SHARD_ERROR_MEMORY, "no memory for the features of %" PRId64 " images", range.size);
    else
        SHARD_NO_GRAD
        {
            compute_range(run, title, images, range, local);
        }
    double signals = interrupt_signal() != 0;
    shard_status status = shard_agree(shard_world()); /* one rank alone may have a damaged image */
    if (status == SHARD_OK)
        status = training_sum(&signals, 1);
    *interrupted = signals > 0;
    if (status == SHARD_OK && !*interrupted)
        all = gather(local, range.size, images.images, size);
    free(local);
    for (int64_t i = 0; all && i < images.images * size; i++)
        if (!isfinite(all[i])) { /* on all ranks: distances of such features would be sorted in some order */
            free(all);
            return shard_error(SHARD_ERROR_ARGUMENT, "%s: the features of image %" PRId64 " are not finite", title, i / size),
                   NULL;
        }
    return all;
}
