/* A training run: the data, the network, the objects that train it, and its position. */
#ifndef ARCFACE_TRAINER_H
#define ARCFACE_TRAINER_H

#include "data.h"
#include "metrics.h"
#include "network.h"
#include "progress.h"
#include "training_checkpoint.h"
#include "training_optimizers.h"

typedef struct trainer {
    options own;            /* as given; without validations if there is nothing to validate on */
    const options *options; /* these */
    data data;
    shard_mesh *mesh;
    shard_group *model_group; /* the ranks of one classifier: they gather their images' features before it */
    shard_module *network;
    shard_data_parallel *data_parallel; /* this and the following: NULL if the run only validates */
    training_optimizers optimizers;
    training_checkpoint checkpoint;
    training_position at;
    bool resumed;
    progress progress;
    metrics *metrics;
} trainer;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the file of --resume or --pretrained. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

/* Steps of an epoch: those of whole batches, as insightface. Of the rest a rank may have one image, of which a batch norm has no
 * statistics. */
int64_t trainer_steps(const trainer *run);

/* ---- train.c ---- */

/* All epochs from the current position. Collective over the world. */
shard_status train(trainer *run);

/* ---- features.c ---- */

/* Features of norm 1 of all images of a source, [images, embedding size]: of each image and its mirror image added up, or with
 * --no-flip of the image. Each rank computes those of a range of the images; all get all. The caller frees them. NULL with the
 * error set, or with *interrupted. title: for the progress. Collective over the world. */
float *features_of(trainer *run, const char *title, image_source images, bool *interrupted);

/* ---- evaluate.c ---- */

/* Measures all validation sets. *accuracy: the mean of theirs, in percent; *interrupted if that was not completed. Collective
 * over the world. */
shard_status evaluate(trainer *run, double *accuracy, bool *interrupted);

#endif
