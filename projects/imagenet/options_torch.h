/*
 * Options of pytorch/examples' imagenet and of TorchShard that this program does not need, mostly for the start of a
 * job. Each is accepted, so that a script runs unchanged, and a line says which option to use instead.
 */
#ifndef IMAGENET_OPTIONS_TORCH_H
#define IMAGENET_OPTIONS_TORCH_H

#include "options.h"

typedef struct torch_option {
    const char *name;
    bool takes_value;
    const char *instead;
    shard_status (*apply)(options *parsed, const char *value); /* NULL: nothing is done */
} torch_option;

extern const torch_option torch_options[];
extern const int torch_option_count;

/* Applies the option's meaning, and records a note. Errors: ARGUMENT. */
shard_status torch_option_take(const torch_option *option, const char *value, options *parsed);

#endif
