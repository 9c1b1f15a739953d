/* The values of the command line. */
#ifndef SPELL_OPTIONS_H
#define SPELL_OPTIONS_H

#include "margin_options.h"
#include "training_options.h"

typedef struct options {
    const char *directory; /* DIR */
    int64_t features, dim, channels;
    double scale;
    int64_t pairs, tied_epochs, neighbours;
    double uniform, power, sample_rate;
    training_options training;
    head_options head;
    bool correct;
    int64_t top_k;
    bool help;
} options;

/* The command line. */
extern const command_line options_line;

/* ARGUMENT for options that do not fit together. `values`: options. */
shard_status options_check(void *values);

/* Whether the run trains: without --evaluate and --correct. */
bool options_train(const options *wanted);

#endif
