/* The values of the command line. */
#ifndef DEBS_OPTIONS_H
#define DEBS_OPTIONS_H

#include "training_options.h"

typedef struct options {
    const char *directory; /* DIR */
    int64_t hidden, layers, loss_every;
    double dropout, feature_dropout, propensity_a, propensity_b;
    training_options training;
    head_options head;
    bool help;
} options;

/* The command line. */
extern const command_line options_line;

/* ARGUMENT for options that do not fit together. `values`: options. */
shard_status options_check(void *values);

#endif
