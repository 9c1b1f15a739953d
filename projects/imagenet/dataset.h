/* The two halves of a data set, training and validation, from a folder or made up. */
#ifndef IMAGENET_DATASET_H
#define IMAGENET_DATASET_H

#include "loader.h"
#include "options.h"

typedef struct dataset {
    image_folder *train_folder, *val_folder; /* NULL if made up */
    loader *train, *val;                     /* NULL if not wanted */
    int64_t train_images, val_images;
    int64_t num_classes;
} dataset;

/* This rank's part of what the options ask for: batches are dealt out to the group's
 * members. The classes of validation are those of training. Errors as of
 * image_folder_open and loader_open; fewer --num-classes than there are is one, too.
 * Not collective. */
shard_status dataset_open(dataset *data, const options *wanted, const shard_group *group);

/* MISMATCH where ranks have other images: the names of all are compared, and the sizes of
 * some thousand files. Nothing where they are made up. Collective over the world. */
shard_status dataset_agree(const dataset *data);

void dataset_close(dataset *data);

#endif
