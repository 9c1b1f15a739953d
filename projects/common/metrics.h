/*
 * --metrics FILE: one JSON object a line, for programs to read; --tensorboard DIR: the same numbers for TensorBoard. Written by
 * rank 0; values that differ between ranks are gathered from all.
 */
#ifndef COMMON_METRICS_H
#define COMMON_METRICS_H

#include <shard/base.h>

typedef struct metrics metrics;

/* A field of a line. NaN and infinity are null, as JSON has neither; TensorBoard gets no point of a NaN. */
typedef enum metrics_kind { METRICS_NUMBER = 0, METRICS_WHOLE, METRICS_TRUTH } metrics_kind;
typedef struct metrics_value {
    const char *name;
    double value; /* METRICS_TRUTH: 0 is false */
    metrics_kind kind;
} metrics_value;

#define METRICS_MOST_VALUES 24

/* The results of a step or a validation. values are the same on every rank. */
typedef struct metrics_entry {
    bool validation;
    int64_t step, epoch;
    metrics_value values[METRICS_MOST_VALUES]; /* those with a name */
    int64_t samples;                           /* the number of samples of the means */
    int64_t local_samples;                     /* the samples of this rank's model */
    double seconds;                            /* of this rank */
} metrics_entry;

/* The fields of every line. */
typedef struct metrics_model {
    int64_t num_classes;
    int64_t local_parameters; /* on this rank */
    const char *samples;      /* the name of samples, "images"; lines have images and images_per_second then */
} metrics_model;

typedef struct metrics_options {
    const char *path;        /* of JSON lines; NULL: none */
    const char *tensorboard; /* a folder, which is made; NULL: none */
    bool append;             /* keeps the lines of the file; TensorBoard joins a folder's files itself */
    int64_t goes_on; /* the first step of a run that was resumed: TensorBoard leaves its old points and later ones out; 0: none */
} metrics_options;

/* Adds a value to those of an entry. */
void metrics_add_value(metrics_entry *entry, metrics_value value);

/* Opens the files. Without any, metrics_write does nothing and is not collective. NULL with the error set (IO, MEMORY). */
metrics *metrics_open(metrics_options wanted, metrics_model model);

/* Writes a line, and a point of each number: tags are train/NAME and validation/NAME. Collective over the world. Errors: IO. */
shard_status metrics_write(metrics *file, const metrics_entry *entry);

/* Prints the memory by kind of the rank with the highest peak. Collective over the world. Errors: IO. */
shard_status metrics_print_memory(void);

/* Errors: IO, for lines that could not be written. NULL is fine. */
shard_status metrics_close(metrics *file);

#endif
