/*
 * Options of a last layer for recognition: a margin of the label's cosine, and sampled classes. Fields for a trainer's struct
 * and rows for its table, as training_options.h.
 */
#ifndef COMMON_MARGIN_OPTIONS_H
#define COMMON_MARGIN_OPTIONS_H

#include "training_checkpoint.h"

typedef struct margin_options {
    const char *text;  /* of --margin */
    bool cosines;      /* logits are scaled cosines; false: --margin none */
    double m1, m2, m3; /* SHARD_MARGIN has the meaning of the numbers */
    bool adaptive;     /* AdaFace's margins, by m and h of shard_adaface_margins */
    double m, h;
    double scale;
    double sample_rate; /* 1: all classes */
    bool sample_correction;
} margin_options;

#define MARGIN_DEFAULTS                                                                                                          \
    {                                                                                                                            \
        .text = "none", .scale = 64, .sample_rate = 1                                                                            \
    }

extern const command_option margin_rows[], sample_rate_rows[];

/* --margin, --margin-scale, --sample-rate, --sample-correction */
#define MARGIN_ROWS(type, field) TRAINING_TABLE(type, field, margin_rows, "")

/* --sample-rate alone; field: a double */
#define SAMPLE_RATE_ROW(type, field) TRAINING_TABLE(type, field, sample_rate_rows, "")

/* Reads `text` into the numbers (ARGUMENT). */
shard_status margin_options_read(margin_options *parsed);

/* head_options_check_stash for a margin and for sampled classes. */
shard_status margin_options_check_stash(const margin_options *parsed, const head_options *head);

/* Adds the settings to those of a checkpoint. */
shard_status margin_options_describe(const margin_options *wanted, training_checkpoint *of);

#endif
