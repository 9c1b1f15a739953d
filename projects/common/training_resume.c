/* --resume: which checkpoint, whether it is one of this run, and its position. */
#include "ends_with.h"
#include "files.h"
#include "training_checkpoint.h"
#include "training_optimizers.h"
#include "training_run.h"

#include <shard/distributed.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the settings ---- */

static shard_status check_settings(const training_checkpoint *of, const shard_metadata *found, const char *path,
                                   const training_position *at)
{
    bool trains = of->epoch_steps > 0;
    for (int i = 0; i < of->count; i++) {
        const training_setting *own = &of->settings[i];
        const char *value = shard_metadata_get(found, own->name);
        value = value ? value : own->missing;
        bool any = value == own->missing && value && !*value;
        bool counts = own->when == TRAINING_ALWAYS || (trains && own->when == TRAINING_GOES_ON) ||
                      (trains && own->when == TRAINING_WITHIN_EPOCH && at->epoch_step > 0);
        if (counts && !any && !(value && strcmp(value, own->value) == 0))
            return shard_error(SHARD_ERROR_ARGUMENT, "--resume %s: its %s is %s, not %s%s%s%s", path, own->name,
                               value ? value : "not known", own->value, own->option ? "; start with the run's own " : "",
                               own->option ? own->option : "", of->otherwise ? of->otherwise : "");
    }
    return SHARD_OK;
}

void training_checkpoint_report(const training_checkpoint *of, const shard_metadata *found, const char *path, progress *shown)
{
    for (int i = 0; i < of->count; i++) {
        const training_setting *own = &of->settings[i];
        bool reported = own->when == TRAINING_REPORTED || (own->when == TRAINING_GOES_ON_REPORTED && of->epoch_steps > 0);
        const char *value = reported ? shard_metadata_get(found, own->name) : NULL;
        if (value && strcmp(value, own->value) != 0)
            progress_say(shown, "%s: its %s is %s, this run's is %s (%s)", path, own->name, value, own->value, own->option);
    }
}

/* ---- the position: each value of a file is checked before it is used ---- */

#define MOST_COUNT ((int64_t)1 << 53) /* the options that determine it */

typedef struct saved_position {
    training_position at;
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

static shard_status read_best(const training_checkpoint *of, const shard_metadata *found, const char *path, double *value)
{
    const char *text = find_field(found, path, of->best_name);
    if (!text)
        return shard_last_status();
    char *end;
    *value = strtod(text, &end);
    bool number = end != text && !*end && !isspace((unsigned char)*text);
    if (number && (*value == -1 || (*value >= 0 && *value <= of->most_best)))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its %s is \"%s\", not -1 or a number from 0 to %g", path, of->best_name,
                       text, of->most_best);
}

static shard_status read_position(const training_checkpoint *of, const shard_metadata *found, const char *path,
                                  saved_position *saved)
{
    training_position *at = &saved->at;
    bool trains = of->epoch_steps > 0;
    int64_t epochs = of->options->epochs, last_step = trains ? of->epoch_steps : MOST_COUNT;
    shard_status status = read_integer(found, path, "epoch", 0, MOST_COUNT, &at->epoch);
    if (status == SHARD_OK && trains && at->epoch > epochs)
        return shard_error(SHARD_ERROR_ARGUMENT, "--resume %s: its epoch is %" PRId64 ", and --epochs %" PRId64 " ends before it",
                           path, at->epoch, epochs);
    if (status == SHARD_OK)
        status = read_integer(found, path, "epoch_step", 0, MOST_COUNT, &at->epoch_step);
    if (status == SHARD_OK)
        status = check_settings(of, found, path, at);
    if (status == SHARD_OK) /* steps of batches of this size */
        status = read_integer(found, path, "epoch_step", 0, last_step, &at->epoch_step);
    if (status == SHARD_OK) /* each epoch before it had at least one step */
        status =
            read_integer(found, path, "step", at->epoch + at->epoch_step, at->epoch ? MOST_COUNT : at->epoch_step, &at->step);
    if (status == SHARD_OK)
        status = read_best(of, found, path, &at->best);
    if (status == SHARD_OK)
        status = read_integer(found, path, "random_seed", INT64_MIN, INT64_MAX, &saved->random.seed);
    if (status == SHARD_OK)
        status = read_integer(found, path, "random_draw", 0, MOST_COUNT, &saved->random.next_draw);
    return status;
}

/* ---- resuming ---- */

static bool is_of_scaler(const char *name)
{
    return strncmp(name, TRAINING_SCALER, strlen(TRAINING_SCALER)) == 0;
}

/* Checks counts of steps and the factor of the loss, as an integer beyond its range would overflow. */
static shard_status check_counts(const shard_tensors *loaded, const char *path, int64_t steps)
{
    for (int64_t i = 0; i < shard_tensors_count(loaded); i++) {
        const char *name = shard_tensors_name(loaded, i);
        bool counts = ends_with(name, ".num_batches_tracked"), scales = strcmp(name, TRAINING_SCALER "scale") == 0;
        bool state = ends_with(name, ".step") || strcmp(name, TRAINING_SCALER "growth_tracker") == 0;
        if ((!counts && !scales && !state) || shard_numel(shard_tensors_at(loaded, i)) != 1)
            continue;
        double value = shard_item(shard_tensors_at(loaded, i)), most = counts ? (double)MOST_COUNT : (double)steps;
        if (shard_last_status() != SHARD_OK)
            return shard_last_status();
        if (scales && !(value > 0 && isfinite(value)))
            return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its %s is %g, not a positive number", path, name, value);
        if (!scales && !(value >= 0 && value <= most))
            return shard_error(SHARD_ERROR_FORMAT, "--resume %s: its %s is %.0f, not a count from 0 to %.0f", path, name, value,
                               most);
    }
    return shard_last_status();
}

/* The scaler's tensors are loaded if the run and the file have them. Those that only the file has are read and dropped. */
static shard_status load_tensors(const training_checkpoint *of, const shard_tensors *tensors, const char *path, int64_t steps)
{
    shard_tensors *file = shard_inspect(path, NULL), *loaded = shard_tensors_create();
    bool validates = of->epoch_steps == 0, saved = shard_tensors_find(file, TRAINING_SCALER "scale") != NULL,
         scales = shard_tensors_find(tensors, TRAINING_SCALER "scale") != NULL;
    for (int64_t i = 0; i < shard_tensors_count(tensors); i++) {
        const char *name = shard_tensors_name(tensors, i);
        if (!is_of_scaler(name) || saved)
            shard_tensors_add(loaded, name, shard_tensors_at(tensors, i));
    }
    for (int64_t i = 0; i < shard_tensors_count(file) && !validates && !scales; i++)
        if (is_of_scaler(shard_tensors_name(file, i)))
            shard_tensors_add(loaded, shard_tensors_name(file, i), shard_tensors_at(file, i));
    /* also by a rank that has an error of its own */
    shard_status status = shard_load(loaded, path, .allow_unexpected = validates, .convert = validates);
    if (status == SHARD_OK)
        check_counts(tensors, path, steps);
    status = shard_agree(shard_world());
    shard_tensors_destroy(loaded);
    shard_tensors_destroy(file);
    return status;
}

static shard_status resume_file(const training_checkpoint *of, const shard_tensors *tensors, const char *path,
                                training_position *at, progress *shown)
{
    saved_position saved = {.at.best = -1};
    shard_metadata *found = NULL;
    shard_tensors_destroy(shard_inspect(path, &found));
    if (found)
        read_position(of, found, path, &saved);
    shard_status status = shard_agree(shard_world()); /* a rank alone may have read other bytes */
    if (status == SHARD_OK)
        status = load_tensors(of, tensors, path, saved.at.step);
    if (status == SHARD_OK) {
        *at = saved.at;
        shard_set_random_state(saved.random);
        progress_say(shown, "resumed from %s: epoch %" PRId64 ", step %" PRId64, path, at->epoch, at->step);
        training_checkpoint_report(of, found, path, shown);
    }
    shard_metadata_destroy(found);
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

/* Whether the error of this rank, or of another one, is of the file: a rank alone may have read other bytes. Clears it then. */
static bool is_damaged(progress *shown)
{
    double damaged = shard_last_status() == SHARD_ERROR_FORMAT;
    shard_status status = shard_last_status();
    char *text = strdup(shard_last_error());
    shard_clear_error();
    if (training_sum(&damaged, 1) != SHARD_OK)
        damaged = 0;
    else if (damaged > 0)
        progress_say(shown, "%s; taking an older checkpoint", text ? text : "a checkpoint is damaged");
    else {
        const char *own = text && strncmp(text, "rank ", 5) == 0 ? strstr(text, ": ") : NULL; /* shard_agree names a rank again */
        if (shard_group_rank(shard_world()) == 0)
            shard_error(status, "%s", own ? own + 2 : text ? text : "no memory for an error's text");
        shard_agree(shard_world());
    }
    free(text);
    return damaged > 0;
}

/* The newest step's that is not damaged. */
static shard_status resume_step(const training_checkpoint *of, const shard_tensors *tensors, training_position *at, bool *resumed,
                                progress *shown)
{
    char path[PATH_MAX];
    for (int64_t step = INT64_MAX; step >= 0 && !*resumed;) {
        shard_status status = shard_latest_checkpoint(of->options->output, step, &step, path, sizeof path);
        if (status != SHARD_OK)
            return status;
        if (step < 0)
            break;
        *resumed = resume_file(of, tensors, path, at, shown) == SHARD_OK;
        if (!*resumed && !is_damaged(shown))
            return shard_last_status();
    }
    return SHARD_OK;
}

bool training_is_step_folder(const char *name)
{
    char again[40];
    if (strncmp(name, "step-", 5) != 0)
        return false;
    snprintf(again, sizeof again, "step-%06" PRId64, (int64_t)strtoll(name + 5, NULL, 10));
    return isdigit((unsigned char)name[5]) && strcmp(name, again) == 0;
}

/* An error if --output has checkpoints of steps: none of them could be resumed. The folder of a save that did not end has no such
 * file. Collective: the first rank looks. */
static shard_status check_no_steps(const char *output)
{
    DIR *folder = shard_group_rank(shard_world()) == 0 ? opendir(output) : NULL;
    const struct dirent *entry;
    int64_t count = 0;
    while (folder && (entry = readdir(folder))) {
        char path[PATH_MAX];
        int bytes = snprintf(path, sizeof path, "%s/%s/checkpoint.safetensors", output, entry->d_name);
        count += training_is_step_folder(entry->d_name) && bytes < PATH_MAX && access(path, F_OK) == 0;
    }
    if (folder)
        closedir(folder);
    if (count)
        shard_error(SHARD_ERROR_FORMAT,
                    "--resume auto: each of the %" PRId64 " checkpoints in %s is damaged; remove them to begin anew", count,
                    output);
    return shard_agree(shard_world());
}

static shard_status resume_auto(const training_checkpoint *of, const shard_tensors *tensors, training_position *at, bool *resumed,
                                progress *shown)
{
    const char *output = of->options->output;
    bool there = false;
    char path[PATH_MAX];
    shard_status status = resume_step(of, tensors, at, resumed, shown);
    if (status != SHARD_OK || *resumed)
        return status;
    status = files_join(path, "--output", output, "checkpoint.safetensors");
    if (status == SHARD_OK)
        status = is_there(path, &there);
    if (status == SHARD_OK && there) {
        status = resume_file(of, tensors, path, at, shown);
        *resumed = status == SHARD_OK;
        return status;
    }
    if (status == SHARD_OK)
        status = check_no_steps(output);
    if (status == SHARD_OK)
        progress_say(shown, "no checkpoint in %s: training begins", output);
    return status;
}

shard_status training_checkpoint_resume(const training_checkpoint *of, const shard_tensors *tensors, training_position *at,
                                        bool *resumed, progress *shown)
{
    *resumed = false;
    if (training_resumes_auto(of->options))
        return resume_auto(of, tensors, at, resumed, shown);
    shard_status status = resume_file(of, tensors, of->options->resume, at, shown);
    *resumed = status == SHARD_OK;
    return status;
}
