/*
 * --metrics FILE: one JSON object a line, for programs to read. Written by rank 0;
 * what differs between ranks is collected from all.
 */
#ifndef IMAGENET_METRICS_H
#define IMAGENET_METRICS_H

#include <shard/base.h>

typedef struct metrics metrics;

/* What a step or a validation was like; the first lines are the same on every rank. */
typedef struct metrics_entry {
    bool validation;
    int64_t step, epoch;
    double loss, top1, top5; /* means over the batch or the data set; in percent */
    double lr;               /* of a step */
    double grad_scale;       /* of a step: the gradient scaler's factor after it */
    bool left_out;           /* of a step: gradients were not finite, and it was not made */
    int64_t images;          /* that the means are of */
    int64_t own_images;      /* this rank's: that went through its model */
    double seconds;          /* this rank's */
} metrics_entry;

/* What stands in every line: of the model, and how many of its numbers this rank holds. */
typedef struct metrics_model {
    int64_t num_classes;
    int64_t own_parameters;
} metrics_model;

/* A NULL path: nothing is written, metrics_write does nothing and is not collective.
 * append: go on after the lines that are there. NULL with the error set (IO, MEMORY). */
metrics *metrics_open(const char *path, bool append, metrics_model model);

/* Writes a line. Collective over the world. Errors: IO. */
shard_status metrics_write(metrics *file, const metrics_entry *entry);

/* Prints what memory was used for on the rank that had most at its peak. Collective over
 * the world. Errors: IO. */
shard_status metrics_print_memory(void);

/* Errors: IO, for what could not be written. Takes NULL. */
shard_status metrics_close(metrics *file);

#endif
