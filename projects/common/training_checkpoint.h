/*
 * --output, --keep, --save-async and --resume: the checkpoints of a run. Next to the tensors a file has the position, the random
 * state, and the settings that both depend on; a run that goes on must have the same settings.
 */
#ifndef COMMON_TRAINING_CHECKPOINT_H
#define COMMON_TRAINING_CHECKPOINT_H

#include "progress.h"
#include "training_options.h"

#include <shard/checkpoint.h>

/* With the tensors and the random state it is everything that a later run needs to continue as if it had not been interrupted. */
typedef struct training_position {
    int64_t epoch;
    int64_t epoch_step; /* steps done in it; if all are done, the epoch's validation and save are still to do */
    int64_t step;       /* steps done since the first start */
    double best;        /* the best result of a validation, at least 0; below 0 before the first one */
} training_position;

/* Of which runs a setting must be the file's. Of REPORTED settings another value is reported, and the run goes on with its own.
 */
typedef enum training_when {
    TRAINING_ALWAYS = 0,
    TRAINING_GOES_ON,          /* of those that train */
    TRAINING_WITHIN_EPOCH,     /* of those that train and begin within an epoch */
    TRAINING_REPORTED,         /* of none: reported by all */
    TRAINING_GOES_ON_REPORTED, /* of none: reported by those that train */
} training_when;

#define TRAINING_SETTING_BYTES 96 /* --margin's three numbers of 17 digits */

typedef struct training_setting {
    const char *name;   /* in the metadata */
    const char *option; /* that sets it, for the error; NULL: none */
    training_when when;
    const char *missing; /* its value in files without it; "": any; NULL: such a file is refused */
    char value[TRAINING_SETTING_BYTES];
} training_setting;

#define TRAINING_MOST_SETTINGS 32

/* --save-async: the files of a checkpoint that are written in the background, and what saves cost. */
typedef struct training_saves {
    shard_async_save *pending[3];
    int count;
    int64_t checkpoints;
    double paused, longest; /* seconds that training waited for saves in all, and for one */
    double pause;           /* of the checkpoint that is pending */
} training_saves;

/* The settings of a run that its checkpoints have. */
typedef struct training_checkpoint {
    const training_options *options;
    const char *best_name; /* of position.best in the metadata, "best_top1" */
    double most_best;      /* its largest value, 100 for percent */
    int64_t epoch_steps;   /* steps of an epoch; 0: the run only validates */
    bool latest_model;     /* the run never validates: each save writes model.safetensors */
    bool best_elsewhere;   /* the best model is not in --output, as the run goes on from another folder: the same */
    const char *otherwise; /* the end of the error about another setting: other ways to go on; NULL: none */
    training_setting settings[TRAINING_MOST_SETTINGS];
    int count;
    training_saves saves;
    training_position saved; /* of the last save, if there was one */
    bool has_saved;
} training_checkpoint;

/* Add a setting; those beyond TRAINING_MOST_SETTINGS are an error (ARGUMENT). */
shard_status training_checkpoint_set(training_checkpoint *of, const char *name, const char *option, training_when when,
                                     const char *value);
shard_status training_checkpoint_set_integer(training_checkpoint *of, const char *name, const char *option, training_when when,
                                             int64_t value);
shard_status training_checkpoint_set_number(training_checkpoint *of, const char *name, const char *option, training_when when,
                                            double value);
shard_status training_checkpoint_set_hash(training_checkpoint *of, const char *name, const char *option, training_when when,
                                          uint64_t hash);

/* Sets `missing` of the setting that was added last. */
void training_checkpoint_set_missing(training_checkpoint *of, const char *missing);

/* Adds those of training_options.h: the optimizers, the last layer's dtype, --batch-size and --seed; and, reported only,
 * --epochs, the learning rates, their schedule, the weight decay and --clip-grad. */
shard_status training_checkpoint_set_options(training_checkpoint *of, const head_options *head);

/* Makes the --output folder if it does not exist; does nothing without --output. Without --overwrite it must have no
 * checkpoint and no model, unless --resume goes on from one in it; with it they are removed. With --keep, and without --resume
 * auto, it must have none of a later step than `at`, where the run begins, and none at all of another run. Collective over the
 * world. */
shard_status training_checkpoint_prepare(training_checkpoint *of, const training_position *at);

/* Writes --output's checkpoint.safetensors, or with --keep that of the step, of all tensors. best: also best.safetensors, and the
 * model's tensors alone as model.safetensors with the settings that are not about training; before the first validation, and
 * while the best model is in another folder, that file has the latest model. Both are complete before the checkpoint. With
 * --save-async the files are begun, and the tensors may change; a file that fails later does not stop the next one. Does nothing
 * without --output. Collective over the world. */
shard_status training_checkpoint_save(training_checkpoint *of, const shard_tensors *all, const shard_tensors *model,
                                      const training_position *at, bool best);

/* Whether it is the name of a step's folder, as shard_save_checkpoint writes it. */
bool training_is_step_folder(const char *name);

/* Between two steps: finishes the save that --save-async has begun, if its values are written. Collective over the world. */
shard_status training_checkpoint_poll(training_checkpoint *of);

/* Says which REPORTED settings of a file's metadata are not the run's. */
void training_checkpoint_report(const training_checkpoint *of, const shard_metadata *found, const char *path, progress *shown);

/* At the end of training: waits for that save, and says for how long training waited in all. Collective over the world. */
shard_status training_checkpoint_finish(training_checkpoint *of, progress *shown);

/* After an error: finishes the pending saves. They are given up if a rank has died or does not come, and after MISMATCH.
 * Collective over the world. */
void training_checkpoint_close(training_checkpoint *of);

/* Loads --resume's FILE, or with auto the newest whole checkpoint of --output, into the tensors; sets *at and the random state.
 * *resumed: false if auto has
 * found none. A run that only validates loads the tensors that it has. The state of the gradient scaler ("scaler.") begins anew
 * if the file has none, and is left out if the run has no scaler. Errors: ARGUMENT, another setting; FORMAT, a damaged file, with
 * auto all of them; those of shard_load. Collective over the world. */
shard_status training_checkpoint_resume(const training_checkpoint *of, const shard_tensors *tensors, training_position *at,
                                        bool *resumed, progress *shown);

#endif
