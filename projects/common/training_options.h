/*
 * The options that every trainer has: fields for its struct, and rows for its table of options (command_line.h).
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
 *     static const options defaults = {.training = {.epochs = 90, .batch = 256, ...}, .head = HEAD_DEFAULTS};
 */
#ifndef COMMON_TRAINING_OPTIONS_H
#define COMMON_TRAINING_OPTIONS_H

#include "command_line.h"

#include <shard/nn.h>
#include <shard/optim.h>

#include <math.h>
#include <stddef.h>

typedef enum training_optimizer {
    TRAINING_SGD = 0,
    TRAINING_ADAM,
    TRAINING_ADAMW,
    TRAINING_LARS,
    TRAINING_LAMB
} training_optimizer;

typedef struct training_options {
    const char *device;
    int64_t epochs, steps, batch;
    int optimizer; /* training_optimizer */
    double lr, momentum, weight_decay, clip_grad;
    bool nesterov;
    int lr_schedule; /* shard_schedule_kind */
    int64_t lr_step_size, warmup_steps;
    double warmup_epochs;
    int64_t seed;
    const char *output, *resume, *metrics, *tensorboard;
    int64_t save_every, keep, print_freq;
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

typedef struct head_options {
    bool enable_model_parallel;
    int64_t model_parallel_size;
    int dtype;     /* shard_dtype */
    int rounding;  /* shard_rounding, of a 16-bit weight */
    int optimizer; /* head_optimizer */
    double lr;     /* 0: as the run's */
    double stash;
} head_options;

extern const command_choice training_optimizer_choices[], training_schedule_choices[], head_dtype_choices[],
    head_rounding_choices[], head_optimizer_choices[];

#define HEAD_DEFAULTS                                                                                                            \
    {                                                                                                                            \
        .dtype = SHARD_FLOAT32, .rounding = SHARD_ROUNDING_STOCHASTIC, .stash = 0.1                                              \
    }

/* type: the struct; field: its training_options; samples: their name, "images". */
#define TRAINING_AT(type, field, of) .offset = offsetof(type, field.of)

#define TRAINING_ROWS(type, field, samples)                                                                                      \
    {COMMAND_WHOLE, "epochs",   "passes over the training " samples, "N", TRAINING_AT(type, field, epochs),                      \
     .least = 1,    .most = 1e9},                                                                                                \
        {COMMAND_WHOLE,                                                                                                          \
         "steps",                                                                                                                \
         "stop after N steps, counted from the first start on; 0: go by --epochs only. The schedule of the learning rate "       \
         "always "                                                                                                               \
         "goes by --epochs",                                                                                                     \
         "N",                                                                                                                    \
         TRAINING_AT(type, field, steps),                                                                                        \
         .most = COMMAND_MOST_WHOLE},                                                                                            \
        {COMMAND_WHOLE, "batch-size",  samples " of a step, of all ranks together",                                              \
         "N",           .letter = 'b', TRAINING_AT(type, field, batch),                                                          \
         .least = 1,    .most = 1e9},                                                                                            \
        {COMMAND_CHOICE,                                                                                                         \
         "optimizer",                                                                                                            \
         "sgd, adam, adamw, lars or lamb",                                                                                       \
         "KIND",                                                                                                                 \
         TRAINING_AT(type, field, optimizer),                                                                                    \
         .choices = training_optimizer_choices},                                                                                 \
        {COMMAND_NUMBER,                                                                                                         \
         "clip-grad",                                                                                                            \
         "scale gradients down so that their norm is at most X; 0: do not",                                                      \
         "X",                                                                                                                    \
         TRAINING_AT(type, field, clip_grad),                                                                                    \
         .most = INFINITY},                                                                                                      \
        {COMMAND_NUMBER, "lr", "learning rate", "X", "learning-rate", TRAINING_AT(type, field, lr), .most = INFINITY},           \
        {COMMAND_CHOICE,                                                                                                         \
         "lr-schedule",                                                                                                          \
         "step: times 0.1 every --lr-step-size epochs; cosine: down to 0 at the end; constant",                                  \
         "KIND",                                                                                                                 \
         TRAINING_AT(type, field, lr_schedule),                                                                                  \
         .choices = training_schedule_choices},                                                                                  \
        {COMMAND_WHOLE,                                                                                                          \
         "lr-step-size",                                                                                                         \
         "epochs between the steps of the step schedule",                                                                        \
         "N",                                                                                                                    \
         TRAINING_AT(type, field, lr_step_size),                                                                                 \
         .least = 1,                                                                                                             \
         .most = 1e9},                                                                                                           \
        {COMMAND_NUMBER,                                                                                                         \
         "warmup-epochs",                                                                                                        \
         "the learning rate rises linearly over the first X epochs",                                                             \
         "X",                                                                                                                    \
         TRAINING_AT(type, field, warmup_epochs),                                                                                \
         .most = 1e9},                                                                                                           \
        {COMMAND_WHOLE,                                                                                                          \
         "warmup-steps",                                                                                                         \
         "the same in steps; counts if it is not 0",                                                                             \
         "N",                                                                                                                    \
         TRAINING_AT(type, field, warmup_steps),                                                                                 \
         .most = COMMAND_MOST_WHOLE},                                                                                            \
        {COMMAND_NUMBER, "momentum", "momentum of SGD and LARS", "X", TRAINING_AT(type, field, momentum), .most = 0.9999},       \
        {COMMAND_FLAG, "nesterov", "Nesterov's momentum", TRAINING_AT(type, field, nesterov)},                                   \
        {COMMAND_NUMBER,                                                                                                         \
         "wd",                                                                                                                   \
         "weight decay; not for biases and other vectors",                                                                       \
         "X",                                                                                                                    \
         "weight-decay",                                                                                                         \
         TRAINING_AT(type, field, weight_decay),                                                                                 \
         .most = INFINITY},                                                                                                      \
    {                                                                                                                            \
        COMMAND_WHOLE, "seed", "of the initial values and of the order of the " samples, "N", TRAINING_AT(type, field, seed),    \
            .most = COMMAND_MOST_WHOLE                                                                                           \
    }

#define TRAINING_FILE_ROWS(type, field)                                                                                          \
    {COMMAND_TEXT, "output",                                                                                                     \
     "folder for checkpoint.safetensors (the latest), best.safetensors and model.safetensors (the best model alone, without "    \
     "the optimizer); made if it is not there",                                                                                  \
     "DIR", TRAINING_AT(type, field, output)},                                                                                   \
        {COMMAND_WHOLE,                                                                                                          \
         "save-every",                                                                                                           \
         "steps between checkpoints; 0: after each epoch only",                                                                  \
         "N",                                                                                                                    \
         TRAINING_AT(type, field, save_every),                                                                                   \
         .most = COMMAND_MOST_WHOLE},                                                                                            \
        {COMMAND_WHOLE,                                                                                                          \
         "keep",                                                                                                                 \
         "checkpoints that stay, the newest, as DIR/step-000120/checkpoint.safetensors; 0: one, DIR/checkpoint.safetensors",     \
         "N",                                                                                                                    \
         TRAINING_AT(type, field, keep),                                                                                         \
         .most = COMMAND_MOST_WHOLE},                                                                                            \
        {COMMAND_TEXT,                                                                                                           \
         "resume",                                                                                                               \
         "go on from a checkpoint, on any number of ranks; auto: from the newest whole one in --output's DIR, and from the "     \
         "beginning if there is none",                                                                                           \
         "FILE",                                                                                                                 \
         TRAINING_AT(type, field, resume),                                                                                       \
         .same = COMMAND_SAME_PRESENCE},                                                                                         \
        {COMMAND_TEXT,                                                                                                           \
         "metrics",                                                                                                              \
         "write one JSON object a line for each step and validation",                                                            \
         "FILE",                                                                                                                 \
         TRAINING_AT(type, field, metrics),                                                                                      \
         .same = COMMAND_SAME_PRESENCE},                                                                                         \
        {COMMAND_TEXT,                                                                                                           \
         "tensorboard",                                                                                                          \
         "write the same numbers for TensorBoard into a folder, which is made if it is not there",                               \
         "DIR",                                                                                                                  \
         TRAINING_AT(type, field, tensorboard),                                                                                  \
         .same = COMMAND_SAME_PRESENCE},                                                                                         \
        {COMMAND_FLAG, "memory-report", "print what the library's memory is used for at the end: the most of any rank",          \
         TRAINING_AT(type, field, memory_report)},                                                                               \
    {                                                                                                                            \
        COMMAND_WHOLE, "print-freq", "steps between printed lines, where there is no terminal", "N",                             \
            .letter = 'p', TRAINING_AT(type, field, print_freq), .same = COMMAND_SAME_NOT, .least = 1,                           \
            .most = COMMAND_MOST_WHOLE                                                                                           \
    }

#define TRAINING_DEVICE_ROW(type, field)                                                                                         \
    {                                                                                                                            \
        COMMAND_TEXT, "device",                                                                                                  \
            "cpu; cuda, this rank's GPU of its machine; cuda:N. Without it what SHARD_DEVICE says, else cpu", "DEVICE",          \
            TRAINING_AT(type, field, device), .same = COMMAND_SAME_NOT                                                           \
    }

#define HEAD_ROWS(type, field)                                                                                                   \
    {COMMAND_FLAG, "enable-model-parallel", "split the final layer over ranks",                                                  \
     TRAINING_AT(type, field, enable_model_parallel)},                                                                           \
        {COMMAND_WHOLE,                                                                                                          \
         "model-parallel-size",                                                                                                  \
         "ranks that one final layer is split over; 0: all. The rest is data parallel",                                          \
         "N",                                                                                                                    \
         TRAINING_AT(type, field, model_parallel_size),                                                                          \
         .most = 1e6},                                                                                                           \
        {COMMAND_CHOICE,                                                                                                         \
         "head-dtype",                                                                                                           \
         "of its weight: bfloat16 takes half the memory",                                                                        \
         "DTYPE",                                                                                                                \
         TRAINING_AT(type, field, dtype),                                                                                        \
         .choices = head_dtype_choices},                                                                                         \
        {COMMAND_CHOICE,                                                                                                         \
         "head-rounding",                                                                                                        \
         "how steps round a weight of bfloat16. nearest: small steps are lost; stochastic: up or down at random, right in the "  \
         "mean; kahan: the rest is kept in a second weight of bfloat16",                                                         \
         "KIND",                                                                                                                 \
         TRAINING_AT(type, field, rounding),                                                                                     \
         .choices = head_rounding_choices},                                                                                      \
        {COMMAND_CHOICE,                                                                                                         \
         "head-optimizer",                                                                                                       \
         "its own optimizer. sgd: without momentum; momentum: SGD with --momentum; adamw; rowwise-adagrad and rowwise-adam: "    \
         "one "                                                                                                                  \
         "second moment for each class; same: as --optimizer",                                                                   \
         "KIND",                                                                                                                 \
         TRAINING_AT(type, field, optimizer),                                                                                    \
         .choices = head_optimizer_choices},                                                                                     \
        {COMMAND_NUMBER,                                                                                                         \
         "head-lr",                                                                                                              \
         "its own learning rate, with the run's schedule; 0: as --lr",                                                           \
         "X",                                                                                                                    \
         TRAINING_AT(type, field, lr),                                                                                           \
         .most = INFINITY},                                                                                                      \
    {                                                                                                                            \
        COMMAND_NUMBER, "head-stash",                                                                                            \
            "its loss keeps exponentials for its backward in at most this part of the bytes of its weight; 0: none, and all "    \
            "are "                                                                                                               \
            "computed again",                                                                                                    \
            "X", TRAINING_AT(type, field, stash), .most = 1e9                                                                    \
    }

/* Whether it is --resume auto. */
bool training_resumes_auto(const training_options *wanted);

/* ARGUMENT for options that do not fit together. */
shard_status training_options_check(const training_options *wanted);
shard_status head_options_check(const head_options *head, const training_options *wanted);

/* "sgd", ...; static. */
const char *training_optimizer_name(const training_options *wanted);

/* "sgd", "momentum", ...: of the optimizer that steps the final layer, whichever option says so; static. */
const char *head_optimizer_name(const head_options *head, const training_options *wanted);

#endif
