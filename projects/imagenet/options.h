/* The values of the command line. */
#ifndef IMAGENET_OPTIONS_H
#define IMAGENET_OPTIONS_H

#include "command_line.h"

#include <shard/nn.h>
#include <shard/optim.h>
#include <stdio.h>

typedef enum optimizer_kind { OPTIMIZER_SGD = 0, OPTIMIZER_ADAM, OPTIMIZER_ADAMW, OPTIMIZER_LARS, OPTIMIZER_LAMB } optimizer_kind;

/* How the final layer computes its loss. AUTO: the trainer's choice. */
typedef enum head_kind { HEAD_AUTO = 0, HEAD_FUSED, HEAD_PLAIN } head_kind;

#define OPTIONS_WIDTH 64 /* torchvision's, and that of checkpoints that do not say it */
/* The final layer's own optimizer. SAME: the run's steps all layers. SGD: without momentum. */
typedef enum head_optimizer_kind {
    HEAD_OPTIMIZER_SAME = 0,
    HEAD_OPTIMIZER_SGD,
    HEAD_OPTIMIZER_MOMENTUM,
    HEAD_OPTIMIZER_ADAMW,
    HEAD_OPTIMIZER_ROWWISE_ADAGRAD,
    HEAD_OPTIMIZER_ROWWISE_ADAM,
} head_optimizer_kind;

/* A step whose loss is not finite ends the run, or is skipped. */
typedef enum non_finite_policy { NON_FINITE_STOP = 0, NON_FINITE_SKIP } non_finite_policy;

#define HEAD_DTYPE_SAME (-1) /* --head-dtype: as --dtype */

/* --margin, read: shard_margin_logits_options has the meaning of the numbers. */
typedef struct head_margin {
    bool cosines; /* logits are scaled cosines; false: --margin none */
    double m1, m2, m3;
} head_margin;

/* Whole numbers are int64_t, choices int, so that one table reads them all. */
typedef struct options {
    const char *directory; /* DIR; NULL: synthetic images */
    int64_t synthetic;
    int64_t workers, image_size, skip_bad_images;
    double crop_scale, shift;
    bool no_flip;

    const char *arch;
    int stem;            /* shard_resnet_stem */
    int64_t width;       /* channels of the first stage */
    int64_t num_classes; /* 0: as many as DIR has, or 1000 */
    const char *pretrained, *pretrained_skip;

    const char *device;
    int dtype; /* shard_dtype */
    int amp;   /* shard_dtype; float32: not mixed */
    int zero;  /* stage; 0: none */
    double bucket_mib;
    bool cuda_graph;
    bool enable_model_parallel, sync_bn, same_batch_in_group;
    int model_parallel_dim; /* shard_split */
    int64_t model_parallel_size;
    int head; /* head_kind */
    int head_dtype;     /* shard_dtype, or HEAD_DTYPE_SAME */
    int head_rounding;  /* shard_rounding, of a 16-bit final layer */
    int head_optimizer; /* head_optimizer_kind */
    double head_lr;     /* 0: as lr */
    const char *margin_text;
    head_margin margin; /* of margin_text */
    double margin_scale, sample_rate, head_stash;

    int64_t epochs, steps, batch, accumulate;
    int optimizer; /* optimizer_kind */
    double lr, momentum, weight_decay, clip_grad;
    bool nesterov;
    int lr_schedule; /* shard_schedule_kind */
    int64_t lr_step_size, warmup_steps;
    double warmup_epochs, label_smoothing;
    int non_finite; /* non_finite_policy */
    int64_t seed;

    bool evaluate;
    int64_t val_interval, check_replicas;
    const char *output, *resume, *metrics, *tensorboard;
    int64_t save_every, keep, print_freq;
    bool save_async;
    bool memory_report;

    bool help;

    char gpu[16]; /* memory of device, after --gpu */
    command_notes notes; /* PyTorch's options on the command line */
} options;

/* Fills it from the command line; texts are not copied. An unknown option or an invalid value is an error
 * (ARGUMENT). */
shard_status options_parse(options *parsed, int argc, char **argv);

/* Whether it is --resume auto. */
bool options_resume_auto(const options *parsed);

/* MISMATCH if ranks have different options, except those that a rank may choose: --workers, --device, --print-freq,
 * and the paths of files to read. Collective over the world. */
shard_status options_agree(const options *own);

void options_print_help(FILE *file);

/* "imagenet" or "small"; static. */
const char *options_stem_name(const options *parsed);

/* "sgd", ...; static. */
const char *options_optimizer_name(const options *parsed);

/* "sgd", "momentum", ...: of the optimizer that steps the final layer, whichever option says so; static. */
const char *options_head_optimizer_name(const options *parsed);

/* ---- options_head.c ---- */

/* Reads margin_text into margin, and refuses options of the final layer that do not fit together (ARGUMENT). */
shard_status options_check_head(options *parsed);

#endif
