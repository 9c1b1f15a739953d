/* The values of the command line. */
#ifndef IMAGENET_OPTIONS_H
#define IMAGENET_OPTIONS_H

#include "margin_options.h"

/* How the last layer computes its loss. AUTO: the trainer's choice. */
typedef enum head_kind { HEAD_AUTO = 0, HEAD_FUSED, HEAD_PLAIN } head_kind;

#define OPTIONS_WIDTH_TEXT "64"
#define OPTIONS_WIDTH 64 /* torchvision's, and that of checkpoints that do not say it */

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

    bool cuda_graph, sync_bn, same_batch_in_group;
    int model_parallel_dim; /* shard_split */
    int head_kind;          /* head_kind */
    head_options head;
    margin_options margin;

    int64_t accumulate;
    double label_smoothing;
    training_options training;

    bool help;

    bool dummy;          /* --dummy is given: a DIR is not read */
    char gpu[16];        /* memory of training.device, after --gpu */
    command_notes notes; /* PyTorch's options on the command line */
} options;

/* The command line. */
extern const command_line options_line;

/* Reads --margin, and refuses options that do not fit together (ARGUMENT). `values`: options. */
shard_status options_check(void *values);

/* "imagenet" or "small"; static. */
const char *options_stem_name(const options *parsed);

#endif
