/* The settings of a checkpoint, and saves. training_resume.c loads it. */
#include "training_checkpoint.h"

#include "files.h"
#include "training_run.h"

#include <shard/distributed.h>

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- settings ---- */

shard_status training_checkpoint_set(training_checkpoint *of, const char *name, const char *option, training_when when,
                                     const char *value)
{
    if (of->count == TRAINING_MOST_SETTINGS)
        return shard_error(SHARD_ERROR_ARGUMENT, "%s: a checkpoint has at most %d settings", name, TRAINING_MOST_SETTINGS);
    training_setting *setting = &of->settings[of->count++];
    *setting = (training_setting){.name = name, .option = option, .when = when};
    snprintf(setting->value, sizeof setting->value, "%s", value);
    return SHARD_OK;
}

shard_status training_checkpoint_set_integer(training_checkpoint *of, const char *name, const char *option, training_when when,
                                             int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return training_checkpoint_set(of, name, option, when, text);
}

shard_status training_checkpoint_set_number(training_checkpoint *of, const char *name, const char *option, training_when when,
                                            double value)
{
    char text[64];
    return training_checkpoint_set(of, name, option, when, command_write_number(text, sizeof text, value));
}

shard_status training_checkpoint_set_hash(training_checkpoint *of, const char *name, const char *option, training_when when,
                                          uint64_t hash)
{
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, hash);
    return training_checkpoint_set(of, name, option, when, text);
}

void training_checkpoint_set_missing(training_checkpoint *of, const char *missing)
{
    if (of->count > 0)
        of->settings[of->count - 1].missing = missing;
}

/* Files of older trainers do not say it: their tensors tell. */
static void set_added(training_checkpoint *of, const char *name, const char *option, const char *value)
{
    training_checkpoint_set(of, name, option, TRAINING_GOES_ON, value);
    training_checkpoint_set_missing(of, "");
}

/* The schedule by its options that count: "cosine to 0, a warmup of 5 epochs". */
static void write_schedule(const training_options *wanted, char *text, size_t bytes)
{
    char a[64], b[64];
    int used = snprintf(text, bytes, "%s", command_choice_name(training_schedule_choices, wanted->lr_schedule));
    command_write_number(a, sizeof a, wanted->lr_schedule == SHARD_SCHEDULE_STEP ? wanted->lr_gamma : wanted->lr_min);
    command_write_number(b, sizeof b, wanted->lr_power);
    if (wanted->lr_schedule == SHARD_SCHEDULE_STEP)
        used += snprintf(text + used, bytes - (size_t)used, ", times %s every %" PRId64 " epochs", a, wanted->lr_step_size);
    else if (wanted->lr_schedule != SHARD_SCHEDULE_CONSTANT)
        used += snprintf(text + used, bytes - (size_t)used, " to %s", a);
    if (wanted->lr_schedule == SHARD_SCHEDULE_POLYNOMIAL)
        used += snprintf(text + used, bytes - (size_t)used, ", power %s", b);
    if (wanted->warmup_steps)
        snprintf(text + used, bytes - (size_t)used, ", a warmup of %" PRId64 " steps", wanted->warmup_steps);
    else if (wanted->warmup_epochs > 0)
        snprintf(text + used, bytes - (size_t)used, ", a warmup of %s epochs",
                 command_write_number(b, sizeof b, wanted->warmup_epochs));
}

/* Another value of these is legitimate, and easily one that was forgotten on the command line. */
static void set_reported(training_checkpoint *of, const head_options *head)
{
    const training_options *wanted = of->options;
    char schedule[TRAINING_SETTING_BYTES];
    write_schedule(wanted, schedule, sizeof schedule);
    training_checkpoint_set_integer(of, "epochs", "--epochs", TRAINING_GOES_ON_REPORTED, wanted->epochs);
    training_checkpoint_set_number(of, "lr", "--lr", TRAINING_GOES_ON_REPORTED, wanted->lr);
    training_checkpoint_set(of, "lr_schedule", "--lr-schedule", TRAINING_GOES_ON_REPORTED, schedule);
    if (head->lr > 0)
        training_checkpoint_set_number(of, "head_lr", "--head-lr", TRAINING_GOES_ON_REPORTED, head->lr);
    else
        training_checkpoint_set(of, "head_lr", "--head-lr", TRAINING_GOES_ON_REPORTED, "that of --lr");
    training_checkpoint_set_number(of, "weight_decay", "--wd", TRAINING_GOES_ON_REPORTED, wanted->weight_decay);
    training_checkpoint_set_number(of, "clip_grad", "--clip-grad", TRAINING_GOES_ON_REPORTED, wanted->clip_grad);
}

shard_status training_checkpoint_set_options(training_checkpoint *of, const head_options *head)
{
    const training_options *wanted = of->options;
    training_checkpoint_set(of, "optimizer", "--optimizer", TRAINING_GOES_ON, training_optimizer_name(wanted));
    /* Before the head's, whose optimizer may be the run's: so the error names the option that was given. */
    set_added(of, "momentum", "--momentum", training_has_momentum(wanted) ? "yes" : "no");
    set_added(of, "head_optimizer", "--head-optimizer", head_optimizer_name(head, wanted));
    set_added(of, "head_dtype", "--head-dtype", shard_dtype_name(head_dtype(head, wanted)));
    set_added(of, "head_rounding", "--head-rounding", head_rounding_name(head));
    set_reported(of, head);
    training_checkpoint_set_integer(of, "batch_size", "--batch-size", TRAINING_WITHIN_EPOCH, wanted->batch);
    return training_checkpoint_set_integer(of, "seed", "--seed", TRAINING_WITHIN_EPOCH, wanted->seed);
}

static shard_metadata *describe(const training_checkpoint *of, const training_position *at)
{
    shard_metadata *metadata = shard_metadata_create();
    shard_metadata_set(metadata, "format", "pt");
    for (int i = 0; i < of->count; i++)
        if (at || of->settings[i].when == TRAINING_ALWAYS || of->settings[i].when == TRAINING_REPORTED)
            shard_metadata_set(metadata, of->settings[i].name, of->settings[i].value);
    if (!at)
        return metadata;
    shard_random_state random = shard_get_random_state();
    shard_metadata_set_integer(metadata, "epoch", at->epoch);
    shard_metadata_set_integer(metadata, "epoch_step", at->epoch_step);
    shard_metadata_set_integer(metadata, "step", at->step);
    shard_metadata_set_number(metadata, of->best_name, at->best);
    shard_metadata_set_integer(metadata, "random_seed", random.seed);
    shard_metadata_set_integer(metadata, "random_draw", random.next_draw);
    return metadata;
}

/* ---- saving ---- */

static const char *const file_names[] = {"checkpoint.safetensors", "best.safetensors", "model.safetensors"};

static bool are_one_folder(const char *a, const char *b)
{
    struct stat of_a, of_b;
    return stat(a, &of_a) == 0 && stat(b, &of_b) == 0 && of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

/* Whether a file of that absolute path, which is cut, is in --output, or in the folder of a step there. */
static bool is_in_output(const training_options *wanted, char *path)
{
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (are_one_folder(path, wanted->output))
        return true;
    slash = strrchr(path, '/');
    if (!slash || !training_is_step_folder(slash + 1))
        return false;
    *slash = '\0';
    return are_one_folder(path, wanted->output);
}

/* Whether --resume is auto, or its file is one of --output: by its path, or by where links lead. */
static bool resumes_output(const training_options *wanted)
{
    if (!wanted->resume || !wanted->output || training_resumes_auto(wanted))
        return wanted->resume && wanted->output;

    const char *file = wanted->resume, *slash = strrchr(file, '/');
    char folder[PATH_MAX], path[2 * PATH_MAX];
    if (realpath(file, path) && is_in_output(wanted, path))
        return true;
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) + 1 : 1, slash ? file : ".");
    if (!realpath(folder, path))
        return false;
    strcat(path, "/checkpoint");
    return is_in_output(wanted, path);
}

/* A run that begins anew, or goes on from another folder, would replace or remove the models of the run before, which has saved a
 * step's checkpoint if newest >= 0. */
static shard_status check_empty(const training_options *wanted, int64_t newest)
{
    char path[PATH_MAX];
    bool goes_on = resumes_output(wanted);
    if (newest >= 0 && !goes_on)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--output %s has a checkpoint of step %" PRId64
                           " of another run: go on with --resume auto, or take another folder",
                           wanted->output, newest);
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names && !goes_on && !wanted->overwrite; i++)
        if (files_join(path, "--output", wanted->output, file_names[i]) == SHARD_OK && access(path, F_OK) == 0)
            return shard_error(
                SHARD_ERROR_ARGUMENT,
                "--output %s has a %s: go on with --resume auto, take another folder, or replace it with --overwrite",
                wanted->output, file_names[i]);
    return shard_last_status();
}

/* --overwrite: a file that the run has not come to write would be taken for its own. Not of a run that goes on from one. */
static void remove_files(const training_options *wanted)
{
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof file_names / sizeof *file_names && !resumes_output(wanted); i++)
        if (files_join(path, "--output", wanted->output, file_names[i]) == SHARD_OK && unlink(path) != 0 && errno != ENOENT)
            shard_error(SHARD_ERROR_IO, "--output: %s cannot be removed: %s", path, strerror(errno));
}

/* Sets best_elsewhere, as the first rank sees the folder. */
static shard_status find_best(training_checkpoint *of, const training_position *at)
{
    char path[PATH_MAX];
    double missing = 0;
    if (at->best >= 0 && shard_group_rank(shard_world()) == 0)
        missing = files_join(path, "--output", of->options->output, "best.safetensors") != SHARD_OK || access(path, F_OK) != 0;
    shard_status status = training_sum(&missing, 1);
    of->best_elsewhere = missing > 0;
    return status;
}

shard_status training_checkpoint_prepare(training_checkpoint *of, const training_position *at)
{
    const char *output = of->options->output;
    char path[PATH_MAX];
    int64_t newest = -1;
    if (!output)
        return SHARD_OK;
    if (!files_make_folder(output))
        shard_error(SHARD_ERROR_IO, "--output %s: %s", output, strerror(errno));
    else if (access(output, W_OK | X_OK) != 0)
        shard_error(SHARD_ERROR_IO, "--output %s cannot be written: %s", output, strerror(errno));
    shard_status status = SHARD_OK;
    if (!of->options->keep || !training_resumes_auto(of->options)) /* which has searched it, and left damaged ones out */
        status = shard_latest_checkpoint(output, INT64_MAX, &newest, path, sizeof path);
    if (status == SHARD_OK && newest >= 0 && !of->options->keep)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--output %s has checkpoints of a run with --keep: give it, or take another folder", output);
    if (status == SHARD_OK && newest > at->step)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--output %s has a checkpoint of step %" PRId64 ", and this run begins after step %" PRId64
                           ": go on with --resume auto, or take another folder",
                           output, newest, at->step);
    if (status != SHARD_OK)
        return status;
    check_empty(of->options, newest);
    status = shard_agree(shard_world()); /* one rank alone may see a file */
    if (status == SHARD_OK && of->options->overwrite && of->epoch_steps > 0) {
        if (shard_group_rank(shard_world()) == 0)
            remove_files(of->options);
        status = shard_agree(shard_world());
    }
    return status == SHARD_OK ? find_best(of, at) : status;
}

/* ---- the files of a checkpoint, up to three: with --save-async they are begun together and finished together ---- */

/* Keeps a save that was begun: NULL is one that has failed. */
static shard_status add_save(training_saves *all, shard_async_save *save)
{
    if (!save)
        return shard_last_status();
    all->pending[all->count++] = save;
    return SHARD_OK;
}

static shard_status finish_saves(training_saves *all)
{
    if (all->count == 0)
        return shard_last_status();
    double since = progress_clock();
    for (int i = 0; i < all->count; i++)
        shard_async_save_finish(all->pending[i]); /* completes a save after an error of training, too */
    all->pause += progress_clock() - since;
    all->count = 0;
    all->checkpoints++;
    all->paused += all->pause;
    all->longest = all->pause > all->longest ? all->pause : all->longest;
    all->pause = 0;
    return shard_last_status();
}

static shard_status save_as(training_checkpoint *of, const shard_tensors *tensors, const shard_metadata *metadata,
                            const char *name)
{
    char path[PATH_MAX];
    if (files_join(path, "--output", of->options->output, name) != SHARD_OK)
        return shard_last_status();
    if (of->options->save_async)
        return add_save(&of->saves, shard_save_async(tensors, path, metadata));
    return shard_save(tensors, path, metadata);
}

static shard_status save_step(training_checkpoint *of, const shard_tensors *tensors, const shard_metadata *metadata, int64_t step)
{
    const training_options *wanted = of->options;
    if (wanted->save_async)
        return add_save(&of->saves,
                        shard_save_checkpoint_async(tensors, wanted->output, step, metadata, .max_to_keep = wanted->keep));
    return shard_save_checkpoint(tensors, wanted->output, step, metadata, .max_to_keep = wanted->keep);
}

/* The checkpoint is last: it says what the best result is, and a run that is killed before it validates again. */
static shard_status save_all(training_checkpoint *of, const shard_tensors *all, const shard_tensors *model,
                             const training_position *at, bool best)
{
    shard_metadata *metadata = describe(of, at), *of_model = describe(of, NULL);
    shard_status status = shard_last_status();
    if (status == SHARD_OK && best)
        status = save_as(of, all, metadata, "best.safetensors");
    if (status == SHARD_OK && (best || of->latest_model || of->best_elsewhere || at->best < 0))
        status = save_as(of, model, of_model, "model.safetensors");
    if (status == SHARD_OK)
        status =
            of->options->keep ? save_step(of, all, metadata, at->step) : save_as(of, all, metadata, "checkpoint.safetensors");
    shard_metadata_destroy(metadata);
    shard_metadata_destroy(of_model);
    return status;
}

/* The end of a run may come right after a save between steps. */
static bool is_saved(const training_checkpoint *of, const training_position *at)
{
    const training_position *saved = &of->saved;
    return of->has_saved && saved->epoch == at->epoch && saved->epoch_step == at->epoch_step && saved->step == at->step &&
           saved->best == at->best;
}

shard_status training_checkpoint_save(training_checkpoint *of, const shard_tensors *all, const shard_tensors *model,
                                      const training_position *at, bool best)
{
    if (!of->options->output || (!best && is_saved(of, at)))
        return SHARD_OK;
    shard_status status = finish_saves(&of->saves);
    double since = progress_clock();
    if (status == SHARD_OK)
        status = save_all(of, all, model, at, best);
    of->best_elsewhere &= !best;
    of->saved = *at;
    of->has_saved = status == SHARD_OK;
    of->saves.pause += progress_clock() - since;
    return status;
}

shard_status training_checkpoint_poll(training_checkpoint *of)
{
    training_saves *all = &of->saves;
    if (all->count == 0)
        return SHARD_OK;
    double since = progress_clock();
    bool done = true;
    for (int i = 0; i < all->count && done; i++) { /* a poll lets a save complete its file: those before it are complete */
        shard_status status = shard_async_save_poll(all->pending[i], &done);
        if (status != SHARD_OK)
            return status;
    }
    all->pause += progress_clock() - since;
    return done ? finish_saves(all) : SHARD_OK;
}

shard_status training_checkpoint_finish(training_checkpoint *of, progress *shown)
{
    shard_status status = finish_saves(&of->saves);
    if (status == SHARD_OK && of->saves.checkpoints > 0)
        progress_say(shown, "%" PRId64 " checkpoints in the background: training waited for %.3f s, for %.3f s at most",
                     of->saves.checkpoints, of->saves.paused, of->saves.longest);
    return status;
}

void training_checkpoint_close(training_checkpoint *of)
{
    finish_saves(&of->saves);
}
