/*
 * What a run leaves on disk: one safetensors file with the model by torchvision's
 * names, the optimizer's state behind "optimizer.", and beside the tensors the
 * position, the random state and the settings that both stand for.
 */
#include "trainer.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- what is kept ---- */

/* Adds the state and lets go of the list. */
static void add_state(shard_tensors *all, const char *prefix, shard_tensors *state)
{
    shard_tensors_extend(all, prefix, state);
    shard_tensors_destroy(state);
}

/* The model's tensors, and the optimizer's and the gradient scaler's if there are any. */
static shard_tensors *collect_tensors(trainer *run, bool scaler)
{
    shard_tensors *all = shard_state_dict(run->model);
    if (run->optimizer)
        add_state(all, CHECKPOINT_OPTIMIZER, shard_optimizer_state_dict(run->optimizer));
    if (run->scaler && scaler)
        add_state(all, CHECKPOINT_SCALER, shard_grad_scaler_state_dict(run->scaler));
    return all;
}

static shard_metadata *describe(const trainer *run)
{
    const options *wanted = run->options;
    shard_random_state random = shard_get_random_state();
    shard_metadata *metadata = shard_metadata_create();
    shard_metadata_set(metadata, "format", "pt");
    shard_metadata_set(metadata, "arch", wanted->arch);
    shard_metadata_set(metadata, "stem", options_stem_name(run->options));
    shard_metadata_set(metadata, "optimizer", options_optimizer_name(wanted));
    shard_metadata_set_integer(metadata, "num_classes", run->data.num_classes);
    shard_metadata_set_integer(metadata, "image_size", wanted->image_size);
    shard_metadata_set_integer(metadata, "batch_size", wanted->batch);
    shard_metadata_set_integer(metadata, "accumulate", wanted->accumulate);
    shard_metadata_set_integer(metadata, "train_images", run->data.train_images);
    shard_metadata_set_integer(metadata, "seed", wanted->seed);
    shard_metadata_set_integer(metadata, "epoch", run->at.epoch);
    shard_metadata_set_integer(metadata, "epoch_step", run->at.epoch_step);
    shard_metadata_set_integer(metadata, "step", run->at.step);
    shard_metadata_set_number(metadata, "best_top1", run->at.best_top1);
    shard_metadata_set_integer(metadata, "random_seed", random.seed);
    shard_metadata_set_integer(metadata, "random_draw", random.next_draw);
    return metadata;
}

/* ---- saving ---- */

shard_status checkpoint_prepare(const trainer *run)
{
    const char *output = run->options->output;
    if (!output || mkdir(output, 0777) == 0 || errno == EEXIST)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_IO, "--output %s: %s", output, strerror(errno));
}

static shard_status save_as(const shard_tensors *tensors, const shard_metadata *metadata, const trainer *run, const char *name)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", run->options->output, name) >= (int)sizeof path)
        return shard_error(SHARD_ERROR_IO, "--output: a path of more than %d bytes", PATH_MAX - 1);
    return shard_save(tensors, path, metadata);
}

shard_status checkpoint_save(trainer *run, bool best)
{
    if (!run->options->output)
        return SHARD_OK;
    shard_tensors *tensors = collect_tensors(run, true);
    shard_metadata *metadata = describe(run);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = save_as(tensors, metadata, run, "checkpoint.safetensors");
    if (status == SHARD_OK && best)
        status = save_as(tensors, metadata, run, "best.safetensors");
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(tensors);
    return status;
}

/* ---- resuming ---- */

static shard_status check_text(const shard_metadata *found, const char *path, const char *name, const char *wanted)
{
    const char *value = shard_metadata_get(found, name);
    if (value && strcmp(value, wanted) == 0)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "--resume %s: its %s is %s, not %s", path, name, value ? value : "not known",
                       wanted);
}

static shard_status check_integer(const shard_metadata *found, const char *path, const char *name, int64_t wanted)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, wanted);
    return check_text(found, path, name, text);
}

/* Whether the checkpoint is of this model and, in the middle of an epoch, the epoch goes on with the same images. */
static shard_status check_settings(const trainer *run, const shard_metadata *found, const char *path)
{
    shard_status status = check_text(found, path, "arch", run->options->arch);
    if (status == SHARD_OK)
        status = check_text(found, path, "stem", options_stem_name(run->options));
    if (status == SHARD_OK)
        status = check_integer(found, path, "num_classes", run->data.num_classes);
    if (status == SHARD_OK && !run->options->evaluate)
        status = check_text(found, path, "optimizer", options_optimizer_name(run->options));
    if (status != SHARD_OK || run->options->evaluate)
        return status;
    int64_t epoch_step = 0;
    status = shard_metadata_get_integer(found, "epoch_step", &epoch_step);
    if (status != SHARD_OK || epoch_step == 0)
        return status;
    if ((status = check_integer(found, path, "batch_size", run->options->batch)) != SHARD_OK ||
        (status = check_integer(found, path, "accumulate", run->options->accumulate)) != SHARD_OK ||
        (status = check_integer(found, path, "seed", run->options->seed)) != SHARD_OK)
        return status;
    return check_integer(found, path, "train_images", run->data.train_images);
}

static shard_status read_position(trainer *run, const shard_metadata *found)
{
    shard_random_state random = {0};
    shard_metadata_get_integer(found, "epoch", &run->at.epoch);
    shard_metadata_get_integer(found, "epoch_step", &run->at.epoch_step);
    shard_metadata_get_integer(found, "step", &run->at.step);
    shard_metadata_get_number(found, "best_top1", &run->at.best_top1);
    shard_metadata_get_integer(found, "random_seed", &random.seed);
    shard_metadata_get_integer(found, "random_draw", &random.next_draw);
    shard_set_random_state(random);
    return shard_last_status();
}

shard_status checkpoint_resume(trainer *run, const char *path)
{
    shard_metadata *found = NULL;
    shard_tensors *file = shard_inspect(path, &found);
    shard_status status = found ? check_settings(run, found, path) : shard_last_status();
    bool scaler = shard_tensors_find(file, CHECKPOINT_SCALER "scale") != NULL; /* one that is new begins anew */
    shard_tensors *tensors = status == SHARD_OK ? collect_tensors(run, scaler) : NULL;
    if (tensors)
        status = shard_load(tensors, path, .allow_unexpected = run->options->evaluate || (scaler && !run->scaler));
    shard_tensors_destroy(tensors);
    shard_tensors_destroy(file);
    if (status == SHARD_OK)
        status = read_position(run, found);
    shard_metadata_destroy(found);
    if (status == SHARD_OK)
        progress_say(&run->progress, "resumed from %s: epoch %" PRId64 ", step %" PRId64, path, run->at.epoch, run->at.step);
    return status;
}
