/*
 * --metrics FILE: one JSON object a line, for programs to read. Written by rank 0; values that differ between ranks
 * are gathered from all.
 */
#ifndef IMAGENET_METRICS_H
#define IMAGENET_METRICS_H

#include <shard/base.h>

typedef struct metrics metrics;

/* The results of a step or a validation; the fields before images are the same on every rank. */
typedef struct metrics_entry {
    bool validation;
    int64_t step, epoch;
    double loss, top1, top5; /* means over the batch or the data set; in percent */
    double lr;               /* of a step */
    double grad_scale;       /* of a step: the gradient scaler's factor after it */
    bool skipped;            /* of a step: gradients were not finite, and the step was skipped */
    int64_t images;          /* the number of images of the means */
    int64_t local_images;    /* the images of this rank's model */
    double seconds;          /* of this rank */
} metrics_entry;

/* The fields of every line: the model's classes, and the number of parameters on this rank. */
typedef struct metrics_model {
    int64_t num_classes;
    int64_t local_parameters;
} metrics_model;

/* Opens the file. A NULL path: nothing is written, metrics_write does nothing and is not collective. append: keep
 * the lines of the file. NULL with the error set (IO, MEMORY). */
metrics *metrics_open(const char *path, bool append, metrics_model model);

/* Writes a line. Collective over the world. Errors: IO. */
shard_status metrics_write(metrics *file, const metrics_entry *entry);

/* Prints the memory by kind of the rank with the highest peak. Collective over the world. Errors: IO. */
shard_status metrics_print_memory(void);

/* Errors: IO, for lines that could not be written. NULL is fine. */
shard_status metrics_close(metrics *file);

#endif
