/* The images of a run: a training set, and the sets that verification and search measure. */
#ifndef ARCFACE_DATA_H
#define ARCFACE_DATA_H

#include "loader.h"
#include "options.h"
#include "pairs.h"
#include "records.h"

#define DATA_MOST_SETS 16

/* Pairs of a file, or the identities of DIR/val. */
typedef struct validation_set {
    char name[64]; /* "lfw", "val" */
    pair_set *pairs;
    image_folder *folder;
} validation_set;

typedef struct data {
    image_folder *folder; /* one of these two: the training set */
    record_set *records;
    loader *train; /* NULL if the run only validates */
    int64_t images, identities;
    validation_set sets[DATA_MOST_SETS];
    int count;
} data;

/* Opens the sets of the options; each rank of the world gets a range of each batch. Without a training set where the run only
 * validates. Errors: those of the readers and of loader_open; ARGUMENT, too many sets; MISMATCH, other data on some ranks.
 * Collective over the world. */
shard_status data_open(data *of, const options *wanted);
void data_close(data *of);

/* Of the training set's identities: of the folders' names, or of the labels of all images, as records have no names. */
uint64_t data_hash_identities(const data *of);

/* The images of a set. */
image_source validation_set_images(const validation_set *set);

#endif
