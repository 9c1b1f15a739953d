/* The two halves of a data set, training and validation, from a folder or synthetic. */
#ifndef IMAGENET_DATASET_H
#define IMAGENET_DATASET_H

#include "loader.h"
#include "options.h"

typedef struct dataset {
    image_folder *train_folder, *val_folder; /* NULL if synthetic */
    loader *train, *val;                     /* NULL if not needed */
    int64_t train_images, val_images;
    int64_t num_classes;
} dataset;

/* Opens the data set of the options: the loaders divide batches over the group's ranks. Validation has the classes
 * of training. Errors as of image_folder_open and loader_open; and if --num-classes is less than the number of
 * classes. Not collective. */
shard_status dataset_open(dataset *data, const options *wanted, const shard_group *group);

/* MISMATCH if ranks have different images: the names of all are compared, and the sizes of some thousand files. Does
 * nothing for synthetic images. Collective over the world. */
shard_status dataset_check_identical(const dataset *data);

void dataset_close(dataset *data);

#endif
