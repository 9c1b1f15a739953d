/*
 * The files of a run: one safetensors file with the model by torchvision's names, the optimizer's state with the
 * prefix "optimizer.", and, next to the tensors, the position, the random state and the settings that both depend
 * on.
 */
#include "trainer.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- content ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static bool begins_with(const char *text, const char *begin)
{
    return strncmp(text, begin, strlen(begin)) == 0;
}

/* Adds the state and destroys its list. */
static void add_state(shard_tensors *all, const char *prefix, shard_tensors *state)
{
    shard_tensors_extend(all, prefix, state);
    shard_tensors_destroy(state);
}

/* Whether the gradient scaler has state: its scale is not always 1. */
static bool has_scale(const trainer *run)
{
    return run->scaler && run->options->amp == SHARD_FLOAT16;
}

/* The model's tensors, and the optimizer's and the gradient scaler's if there are any. */
static shard_tensors *collect_tensors(trainer *run, bool scaler)
{
    shard_tensors *all = shard_state_dict(run->model);
    optimizers_add_state(run, all, CHECKPOINT_OPTIMIZER);
    if (scaler && has_scale(run))
        add_state(all, CHECKPOINT_SCALER, shard_grad_scaler_state_dict(run->scaler));
    return all;
}

/* An option of the final layer that tensors or their meaning depend on. */
typedef struct head_setting {
    const char *name, *option;
    const char *missing; /* its value in files of runs without such an option; NULL: tensors alone tell */
    bool trains;         /* it does not matter to a run that only validates */
    char value[64];
} head_setting;

enum { HEAD_SETTINGS = 6 };

static void list_head_settings(const options *wanted, head_setting *list)
{
    static const char *const roundings[] = {"nearest", "stochastic", "kahan"};
    const head_margin *m = &wanted->margin;
    int dtype = wanted->head_dtype == HEAD_DTYPE_SAME ? wanted->dtype : wanted->head_dtype;
    head_setting *margin = list, *scale = list + 1, *rate = list + 2, *optimizer = list + 3, *type = list + 4,
                 *rounding = list + 5;
    *margin = (head_setting){"margin", "--margin", "none", false, "none"};
    *scale = (head_setting){"margin_scale", "--margin-scale", "none", false, "none"};
    *rate = (head_setting){"sample_rate", "--sample-rate", "1", false, ""};
    *optimizer = (head_setting){"head_optimizer", "--head-optimizer", NULL, true, ""};
    *type = (head_setting){"head_dtype", "--head-dtype", NULL, true, ""};
    *rounding = (head_setting){"head_rounding", "--head-rounding", NULL, true, "none"};
    if (m->cosines) {
        snprintf(margin->value, sizeof margin->value, "combined:%g,%g,%g", m->m1, m->m2, m->m3);
        snprintf(scale->value, sizeof scale->value, "%g", wanted->margin_scale);
    }
    snprintf(rate->value, sizeof rate->value, "%g", wanted->sample_rate);
    snprintf(optimizer->value, sizeof optimizer->value, "%s", options_head_optimizer_name(wanted));
    snprintf(type->value, sizeof type->value, "%s", shard_dtype_name((shard_dtype)dtype));
    if (dtype == SHARD_BFLOAT16)
        snprintf(rounding->value, sizeof rounding->value, "%s", roundings[wanted->head_rounding]);
}

/* The settings that another program needs to make the model and its images. */
static void describe_model(const trainer *run, shard_metadata *metadata)
{
    shard_metadata_set(metadata, "format", "pt");
    shard_metadata_set(metadata, "arch", run->options->arch);
    shard_metadata_set(metadata, "stem", options_stem_name(run->options));
    shard_metadata_set_integer(metadata, "width", run->options->width);
    shard_metadata_set_integer(metadata, "num_classes", run->data.num_classes);
    shard_metadata_set_integer(metadata, "image_size", run->options->image_size);
}

static shard_metadata *describe(const trainer *run)
{
    const options *wanted = run->options;
    shard_random_state random = shard_get_random_state();
    shard_metadata *metadata = shard_metadata_create();
    describe_model(run, metadata);
    shard_metadata_set(metadata, "optimizer", options_optimizer_name(wanted));
    head_setting settings[HEAD_SETTINGS];
    list_head_settings(wanted, settings);
    for (int i = 0; i < HEAD_SETTINGS; i++)
        shard_metadata_set(metadata, settings[i].name, settings[i].value);
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
    char path[PATH_MAX];
    int64_t newest = -1;
    if (!output)
        return SHARD_OK;
    if (mkdir(output, 0777) != 0 && errno != EEXIST)
        shard_error(SHARD_ERROR_IO, "--output %s: %s", output, strerror(errno));
    shard_status status = shard_latest_checkpoint(output, INT64_MAX, &newest, path, sizeof path);
    if (status == SHARD_OK && newest >= 0 && !run->options->keep)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--output %s has checkpoints of a run with --keep: give it, or take another folder", output);
    if (status == SHARD_OK && newest > run->at.step && !options_resume_auto(run->options)) /* which has left damaged ones out */
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--output %s has a checkpoint of step %" PRId64 ", and this run begins after step %" PRId64
                           ": go on with --resume auto, or take another folder",
                           output, newest, run->at.step);
    return status;
}

static shard_status save_as(const shard_tensors *tensors, const shard_metadata *metadata, trainer *run, const char *name)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", run->options->output, name) >= (int)sizeof path)
        return shard_error(SHARD_ERROR_IO, "--output: a path of more than %d bytes", PATH_MAX - 1);
    if (run->options->save_async)
        return saves_add(run, shard_save_async(tensors, path, metadata));
    return shard_save(tensors, path, metadata);
}

static shard_status save_step(const shard_tensors *tensors, const shard_metadata *metadata, trainer *run)
{
    const options *wanted = run->options;
    if (wanted->save_async)
        return saves_add(
            run, shard_save_checkpoint_async(tensors, wanted->output, run->at.step, metadata, .max_to_keep = wanted->keep));
    return shard_save_checkpoint(tensors, wanted->output, run->at.step, metadata, .max_to_keep = wanted->keep);
}

/* Saves the model alone, as torchvision's state dict, with its settings in the metadata. */
static shard_status save_model(trainer *run)
{
    shard_tensors *state = shard_state_dict(run->model);
    shard_metadata *metadata = shard_metadata_create();
    describe_model(run, metadata);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = save_as(state, metadata, run, "model.safetensors");
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(state);
    return status;
}

/* The files of a checkpoint. */
static shard_status save_all(trainer *run, bool best)
{
    shard_tensors *tensors = collect_tensors(run, true);
    shard_metadata *metadata = describe(run);
    shard_status status = shard_last_status();
    if (status == SHARD_OK && run->options->keep)
        status = save_step(tensors, metadata, run);
    else if (status == SHARD_OK)
        status = save_as(tensors, metadata, run, "checkpoint.safetensors");
    if (status == SHARD_OK && best)
        status = save_as(tensors, metadata, run, "best.safetensors");
    shard_metadata_destroy(metadata);
    shard_tensors_destroy(tensors);
    bool never_validates = run->options->val_interval == 0;
    return status == SHARD_OK && (best || never_validates) ? save_model(run) : status;
}

shard_status checkpoint_save(trainer *run, bool best)
{
    if (!run->options->output)
        return SHARD_OK;
    shard_status status = saves_finish(run);
    double since = progress_clock();
    if (status == SHARD_OK)
        status = save_all(run, best);
    saves_count_pause(run, since);
    return status;
}

shard_status checkpoint_check_replicas(trainer *run)
{
    shard_tensors *tensors = collect_tensors(run, true);
    shard_status status = shard_check_replicas(tensors);
    shard_tensors_destroy(tensors);
    return status;
}

/* ---- whether the checkpoint fits this run ---- */

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

static shard_status check_head(const trainer *run, const shard_metadata *found, const char *path)
{
    head_setting settings[HEAD_SETTINGS];
    list_head_settings(run->options, settings);
    for (int i = 0; i < HEAD_SETTINGS; i++) {
        const head_setting *own = &settings[i];
        const char *value = shard_metadata_get(found, own->name);
        value = value ? value : own->missing;
        if (value && strcmp(value, own->value) != 0 && !(own->trains && run->options->evaluate))
            return shard_error(
                SHARD_ERROR_ARGUMENT,
                "--resume %s: its %s is %s, not %s; start with the %s of the run that saved it, or take its values "
                "alone by --pretrained",
                path, own->name, value, own->value, own->option);
    }
    return SHARD_OK;
}

/* Whether the checkpoint has this model and, in the middle of an epoch, the epoch continues with the same images. */
static shard_status check_settings(const trainer *run, const position *at, const shard_metadata *found, const char *path)
{
    shard_status status = check_text(found, path, "arch", run->options->arch);
    if (status == SHARD_OK)
        status = check_text(found, path, "stem", options_stem_name(run->options));
    if (status == SHARD_OK && (shard_metadata_get(found, "width") || run->options->width != OPTIONS_WIDTH))
        status = check_integer(found, path, "width", run->options->width);
    if (status == SHARD_OK)
        status = check_integer(found, path, "num_classes", run->data.num_classes);
    if (status == SHARD_OK && !run->options->evaluate)
        status = check_text(found, path, "optimizer", options_optimizer_name(run->options));
    if (status == SHARD_OK)
        status = check_head(run, found, path);
    if (status != SHARD_OK || run->options->evaluate)
        return status;
    if (at->epoch_step == 0)
        return SHARD_OK;
    if ((status = check_integer(found, path, "batch_size", run->options->batch)) != SHARD_OK ||
        (status = check_integer(found, path, "accumulate", run->options->accumulate)) != SHARD_OK ||
        (status = check_integer(found, path, "seed", run->options->seed)) != SHARD_OK)
        return status;
    return check_integer(found, path, "train_images", run->data.train_images);
}

/* ---- the position: each value of a file is checked before it is used ---- */

#define MOST_COUNT ((int64_t)1 << 53) /* the options that determine it */

typedef struct saved_position {
    position at;
    shard_random_state random;
} saved_position;

/* The value as text; NULL with the error set. */
static const char *find_field(const shard_metadata *found, const char *path, const char *name)
{
    const char *text = shard_metadata_get(found, name);
    if (!text)
        shard_error(SHARD_ERROR_FORMAT, "--resume %s: its metadata has no %s; is it a checkpoint.safetensors of --output?", path,
                    name);
    return text;
}

/* Only as it is written: no plus sign, no space. */
static shard_status read_integer(const shard_metadata *found, const char *path, const char *name, int64_t least, int64_t most,
                                 int64_t *value)
{
    const char *text = find_field(found, path, name);
    if (!text)
        return shard_last_status();
    char *end, again[32];
    errno = 0;
    *value = strtoll(text, &end, 10);
    snprintf(again, sizeof again, "%" PRId64, *value);
    if (!errno && strcmp(text, again) == 0 && *value >= least && *value <= most)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its %s is \"%s\", not a whole number from %" PRId64 " to %" PRId64, path,
                       name, text, least, most);
}

/* In percent; -1 before the first validation. */
static shard_status read_best(const shard_metadata *found, const char *path, double *value)
{
    const char *text = find_field(found, path, "best_top1");
    if (!text)
        return shard_last_status();
    char *end;
    *value = strtod(text, &end);
    bool number = end != text && !*end && !isspace((unsigned char)*text);
    if (number && (*value == -1 || (*value >= 0 && *value <= 100)))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its best_top1 is \"%s\", not -1 or a number from 0 to 100", path, text);
}

static shard_status read_position(const trainer *run, const shard_metadata *found, const char *path, saved_position *saved)
{
    position *at = &saved->at;
    int64_t epochs = run->options->epochs, last_step = run->options->evaluate ? MOST_COUNT : train_steps(run);
    shard_status status = read_integer(found, path, "epoch", 0, MOST_COUNT, &at->epoch);
    if (status == SHARD_OK && !run->options->evaluate && at->epoch > epochs)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume %s: its epoch is %" PRId64 ", and --epochs %" PRId64 " ends before it",
                           path, at->epoch, epochs);
    if (status == SHARD_OK)
        status = read_integer(found, path, "epoch_step", 0, MOST_COUNT, &at->epoch_step);
    if (status == SHARD_OK)
        status = check_settings(run, at, found, path);
    if (status == SHARD_OK) /* steps of batches of this size */
        status = read_integer(found, path, "epoch_step", 0, last_step, &at->epoch_step);
    if (status == SHARD_OK) /* each epoch before it had at least one step */
        status = read_integer(found, path, "step", at->epoch + at->epoch_step, at->epoch ? MOST_COUNT : at->epoch_step, &at->step);
    if (status == SHARD_OK)
        status = read_best(found, path, &at->best_top1);
    if (status == SHARD_OK)
        status = read_integer(found, path, "random_seed", INT64_MIN, INT64_MAX, &saved->random.seed);
    if (status == SHARD_OK)
        status = read_integer(found, path, "random_draw", 0, MOST_COUNT, &saved->random.next_draw);
    return status;
}

/* ---- resuming ---- */

/* Checks a count of steps or the factor of the loss, as an integer beyond its range would overflow. */
static shard_status check_counts(const trainer *run, const shard_tensors *loaded, const char *path, int64_t steps)
{
    for (int64_t i = 0; i < shard_tensors_count(loaded); i++) {
        const char *name = shard_tensors_name(loaded, i);
        bool counts = ends_with(name, ".num_batches_tracked"), state = begins_with(name, CHECKPOINT_OPTIMIZER) && ends_with(name, ".step");
        if (!counts && !state && strcmp(name, CHECKPOINT_SCALER "growth_tracker") != 0)
            continue;
        double value = shard_item(shard_tensors_at(loaded, i)), most = counts ? (double)MOST_COUNT : (double)steps;
        if (shard_last_status() == SHARD_OK && !(value >= 0 && value <= most))
            return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its %s is %.0f, not a count from 0 to %.0f", path, name, value, most);
    }
    double scale = shard_grad_scaler_get_scale(run->scaler);
    if (!(scale > 0 && isfinite(scale)))
        return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its " CHECKPOINT_SCALER "scale is %g, not a positive number", path,
                           scale);
    return shard_last_status();
}

static shard_status load_tensors(trainer *run, const char *path, int64_t steps)
{
    shard_tensors *file = shard_inspect(path, NULL);
    bool scaler = shard_tensors_find(file, CHECKPOINT_SCALER "scale") != NULL; /* a parameter that is new starts anew */
    shard_tensors *tensors = collect_tensors(run, scaler);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = shard_load(tensors, path, .allow_unexpected = run->options->evaluate || (scaler && !has_scale(run)),
                            .convert = run->options->evaluate);
    if (status == SHARD_OK)
        status = check_counts(run, tensors, path, steps);
    shard_tensors_destroy(tensors);
    shard_tensors_destroy(file);
    return status;
}

shard_status checkpoint_resume(trainer *run, const char *path)
{
    saved_position saved = {0};
    shard_metadata *found = NULL;
    shard_tensors_destroy(shard_inspect(path, &found));
    if (found)
        read_position(run, found, path, &saved);
    shard_status status = shard_agree(shard_world()); /* a rank alone may have read other bytes */
    if (status == SHARD_OK)
        status = load_tensors(run, path, saved.at.step);
    shard_metadata_destroy(found);
    if (status != SHARD_OK)
        return status;
    run->at = saved.at;
    run->resumed = true;
    shard_set_random_state(saved.random);
    progress_say(&run->progress, "resumed from %s: epoch %" PRId64 ", step %" PRId64, path, run->at.epoch, run->at.step);
    return status;
}

/* Whether all ranks see the file; an error if some do. */
static shard_status is_there(const char *path, bool *there)
{
    int64_t seen = access(path, F_OK) == 0, ranks = shard_group_size(shard_world());
    SHARD_SCOPE
    {
        shard_tensor *count = shard_from_host(&seen, SHARD_SCALAR, .dtype = SHARD_INT64);
        shard_all_reduce(count, SHARD_SUM, shard_world());
        seen = (int64_t)shard_item(count);
    }
    *there = seen == ranks;
    if (shard_last_status() == SHARD_OK && seen > 0 && seen < ranks)
        return shard_error(SHARD_ERROR_IO,
                           "--resume auto: %s is there for %" PRId64 " of %" PRId64
                           " ranks; ranks on several hosts need a file system that they share",
                           path, seen, ranks);
    return shard_last_status();
}

/* The newest step's that is not damaged; *damaged: how many were. */
static shard_status resume_step(trainer *run, int64_t *damaged)
{
    char path[PATH_MAX];
    for (int64_t step = INT64_MAX; step >= 0 && !run->resumed;) {
        shard_status status = shard_latest_checkpoint(run->options->output, step, &step, path, sizeof path);
        if (status == SHARD_OK && step >= 0)
            status = checkpoint_resume(run, path);
        if (status != SHARD_OK && status != SHARD_ERROR_FORMAT)
            return status;
        if (status == SHARD_ERROR_FORMAT) {
            progress_say(&run->progress, "%s; taking an older checkpoint", shard_last_error());
            shard_clear_error();
            ++*damaged;
        }
    }
    return SHARD_OK;
}

shard_status checkpoint_resume_auto(trainer *run)
{
    int64_t damaged = 0;
    bool there = false;
    char path[PATH_MAX];
    shard_status status = resume_step(run, &damaged);
    if (status != SHARD_OK || run->resumed)
        return status;
    if (snprintf(path, sizeof path, "%s/checkpoint.safetensors", run->options->output) < (int)sizeof path)
        status = is_there(path, &there);
    if (status == SHARD_OK && there)
        return checkpoint_resume(run, path);
    if (status == SHARD_OK && damaged)
        return shard_error(SHARD_ERROR_FORMAT,
                           "--resume auto: each of the %" PRId64 " checkpoints in %s is damaged; remove them to begin anew",
                           damaged, run->options->output);
    if (status == SHARD_OK)
        progress_say(&run->progress, "no checkpoint in %s: training begins", run->options->output);
    return status;
}
