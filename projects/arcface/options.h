/* The values of the command line. */
#ifndef ARCFACE_OPTIONS_H
#define ARCFACE_OPTIONS_H

#include "margin_options.h"

typedef struct options {
    const char *directory; /* DIR */
    int network;           /* of iResNets, in the order of their depths */
    int64_t embedding_size, width, image_size;
    double dropout, shift;
    bool sync_bn, no_flip;
    int64_t workers, skip_bad_images;
    const char *val_targets, *pretrained;
    int64_t impostors;
    training_options training;
    head_options head;
    margin_options margin;
    bool help;
} options;

/* The command line. */
extern const command_line options_line;

/* Reads --margin; ARGUMENT for options that do not fit together. `values`: options. */
shard_status options_check(void *values);

/* shard_iresnet's "iresnet50"; static. */
const char *options_arch(const options *wanted);

#endif
