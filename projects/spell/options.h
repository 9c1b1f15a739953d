/* The values of the command line. */
#ifndef SPELL_OPTIONS_H
#define SPELL_OPTIONS_H

#include "training_options.h"

#include <stdio.h>

typedef struct options {
    const char *directory; /* DIR */
    int64_t features, dim, channels;
    double scale;
    int64_t pairs, tied_epochs, neighbours;
    double uniform, power, sample_rate;
    training_options training;
    head_options head;
    bool evaluate, correct;
    int64_t top_k, val_interval;
    bool help;
} options;

/* Fills it from the command line; texts are not copied. An unknown option or an invalid value is an error (ARGUMENT). */
shard_status options_parse(options *parsed, int argc, char **argv);

/* MISMATCH if ranks have different options, except those that a rank may choose. Collective over the world. */
shard_status options_agree(const options *own);

void options_print_help(FILE *file);

#endif
