/* A training run: the data, the network, the objects that train it, and its position. */
#ifndef ARCFACE_TRAINER_H
#define ARCFACE_TRAINER_H

#include "data.h"
#include "network.h"
#include "training_loop.h"

typedef struct trainer {
    training_run base;
    const options *options;
    data data;
    int64_t bad; /* damaged images of the epoch */
} trainer;

/* ---- trainer.c ---- */

/* Makes all objects, and loads the file of --resume or --pretrained. Collective over the world. */
shard_status trainer_open(trainer *run, const options *wanted);
void trainer_close(trainer *run);

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
