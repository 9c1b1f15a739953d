/*
 * The options that trainers share: fields for a trainer's struct, and rows for its table of options (command_line.h).
 *
 *     typedef struct options {
 *         training_options training;
 *         head_options head;
 *         ...
 *     } options;
 *
 *     static const command_option table[] = {
 *         {COMMAND_HEADING, "Training", NULL},
 *         TRAINING_ROWS(options, training, "images"),
 *         ...
 *     };
 *     static const options defaults = {.training = {TRAINING_DEFAULTS, .epochs = 90, ...}, .head = HEAD_DEFAULTS};
 *
 * A trainer has the rows whose options it honours; the fields of the others stay 0.
 */
#ifndef COMMON_TRAINING_OPTIONS_H
#define COMMON_TRAINING_OPTIONS_H

#include "command_line.h"

#include <shard/nn.h>
#include <shard/optim.h>

#include <stddef.h>

typedef enum training_optimizer {
    TRAINING_SGD = 0,
    TRAINING_ADAM,
    TRAINING_ADAMW,
    TRAINING_LARS,
    TRAINING_LAMB
} training_optimizer;

/* A step whose loss is not finite ends the run, or is skipped. */
typedef enum training_policy { TRAINING_STOP = 0, TRAINING_SKIP } training_policy;

typedef struct training_options {
    const char *device;
    int dtype; /* shard_dtype, of a trainer that has a --dtype of its own */
    int amp;   /* shard_dtype; float32: not mixed */
    int zero;  /* stage; 0: none */
    double bucket_mib;
    int64_t epochs, steps, batch;
    int optimizer; /* training_optimizer */
    double lr, momentum, weight_decay, clip_grad;
    double beta2; /* of Adam, AdamW and LAMB; 0: 0.999 */
    bool nesterov, decay_all;
    int lr_schedule; /* shard_schedule_kind */
    int64_t lr_step_size, warmup_steps;
    double lr_gamma, lr_min, lr_power, warmup_epochs;
    int non_finite; /* training_policy */
    int64_t seed;
    bool evaluate;
    int64_t val_interval, check_replicas;
    const char *output, *resume, *metrics, *tensorboard;
    int64_t save_every, keep, print_freq;
    bool save_async, overwrite;
    bool memory_report;
} training_options;

/* The last layer's own optimizer. SAME: the run's steps all layers. SGD: without momentum. */
typedef enum head_optimizer {
    HEAD_SAME = 0,
    HEAD_SGD,
    HEAD_MOMENTUM,
    HEAD_ADAMW,
    HEAD_ROWWISE_ADAGRAD,
    HEAD_ROWWISE_ADAM,
} head_optimizer;

#define HEAD_DTYPE_SAME (-1) /* --head-dtype: as training_options.dtype */

typedef struct head_options {
    bool enable_model_parallel;
    int64_t model_parallel_size;
    int dtype;     /* shard_dtype, or HEAD_DTYPE_SAME; head_dtype reads it */
    int rounding;  /* shard_rounding, of a 16-bit weight */
    int optimizer; /* head_optimizer */
    double lr;     /* 0: as the run's */
    double stash;
    bool own;        /* of a trainer that steps the last layer alone: it has its own optimizer without these options, too */
} head_options;

extern const command_choice training_optimizer_choices[], training_schedule_choices[], head_dtype_choices[],
    head_rounding_choices[], head_optimizer_choices[];

#define HEAD_STASH 0.05 /* the default of --head-stash */
#define HEAD_DEFAULTS                                                                                                            \
    {                                                                                                                            \
        .dtype = SHARD_FLOAT32, .rounding = SHARD_ROUNDING_STOCHASTIC, .stash = HEAD_STASH                                       \
    }

/* Defaults that all trainers have. */
#define TRAINING_MOMENTUM 0.9
#define TRAINING_STEP_SIZE 30
#define TRAINING_GAMMA 0.1
#define TRAINING_DEFAULTS                                                                                                        \
    .bucket_mib = 25, .momentum = TRAINING_MOMENTUM, .lr_step_size = TRAINING_STEP_SIZE, .lr_gamma = TRAINING_GAMMA,             \
    .lr_power = 1, .val_interval = 1, .print_freq = 10

/* ---- rows of a table; type: the struct, field: its training_options or head_options ---- */

extern const command_option training_rows[], training_device_rows[], training_computing_rows[], training_non_finite_rows[],
    training_validation_rows[], training_file_rows[], training_save_async_rows[], training_check_replicas_rows[], head_rows[];

#define TRAINING_TABLE(type, field, table, text)                                                                                 \
    {                                                                                                                            \
        COMMAND_ROWS, text, NULL, .rows = (table), .offset = offsetof(type, field)                                               \
    }

/* --epochs to --seed: training_optimizers.h and training_checkpoint.h honour them. samples: their name, "images". */
#define TRAINING_ROWS(type, field, samples) TRAINING_TABLE(type, field, training_rows, samples)
/* --device */
#define TRAINING_DEVICE_ROW(type, field) TRAINING_TABLE(type, field, training_device_rows, "")
/* --enable-amp-mode, of which the trainer calls SHARD_AUTOCAST; --enable-zero-optim and --bucket-mib */
#define TRAINING_COMPUTING_ROWS(type, field) TRAINING_TABLE(type, field, training_computing_rows, "")
/* --non-finite: training_loss.h */
#define TRAINING_NON_FINITE_ROW(type, field) TRAINING_TABLE(type, field, training_non_finite_rows, "")
/* --evaluate and --val-interval. models: the options that give the model, "--resume" */
#define TRAINING_VALIDATION_ROWS(type, field, models) TRAINING_TABLE(type, field, training_validation_rows, models)
/* --output to --print-freq */
#define TRAINING_FILE_ROWS(type, field) TRAINING_TABLE(type, field, training_file_rows, "")
/* --save-async: training_loop.h, or training_checkpoint_poll and training_checkpoint_finish */
#define TRAINING_SAVE_ASYNC_ROW(type, field) TRAINING_TABLE(type, field, training_save_async_rows, "")
/* --check-replicas: training_loop.h */
#define TRAINING_CHECK_REPLICAS_ROW(type, field) TRAINING_TABLE(type, field, training_check_replicas_rows, "")
/* --enable-model-parallel, --model-parallel-size, --head-dtype to --head-stash */
#define HEAD_ROWS(type, field) TRAINING_TABLE(type, field, head_rows, "")

/* ---- their meaning ---- */

/* Whether it is --resume auto. */
bool training_resumes_auto(const training_options *wanted);

/* ARGUMENT for options that do not fit together. */
shard_status training_options_check(const training_options *wanted);
shard_status head_options_check(const head_options *head, const training_options *wanted);

/* ARGUMENT if --head-stash is not the default, and a loss with `option` keeps no logits. NULL: it does. */
shard_status head_options_check_stash(const head_options *head, const char *option);

/* "sgd", ...; static. */
const char *training_optimizer_name(const training_options *wanted);

/* Whether the optimizer has buffers of momentum. */
bool training_has_momentum(const training_options *wanted);

/* "sgd", "momentum", ...: of the optimizer that steps the last layer, whichever option says so; static. */
const char *head_optimizer_name(const head_options *head, const training_options *wanted);

/* "none" for a weight that is not of 16 bits; static. */
const char *head_rounding_name(const head_options *head);

/* The dtype of the last layer's weight. */
shard_dtype head_dtype(const head_options *head, const training_options *wanted);

/* The type of SHARD_AUTOCAST for the last layer and its loss: float32 for a weight of bfloat16, of which a product in another
 * 16-bit type would need a copy; else that of --enable-amp-mode. */
shard_dtype head_autocast(const head_options *head, const training_options *wanted);

/* Whether the last layer's optimizer needs norms of whole layers. */
bool head_is_layerwise(const head_options *head, const training_options *wanted);

#endif
