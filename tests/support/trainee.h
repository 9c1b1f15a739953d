/*
 * A small network that is trained by eager steps or by replays of a captured one.
 */
#ifndef TEST_TRAINEE_H
#define TEST_TRAINEE_H

#include "support/job.h"

enum { BATCH = 6, SIDE = 5, CHANNELS = 3, CLASSES = 11, PIXELS = BATCH * SIDE * SIDE * CHANNELS };

typedef struct recipe {
    const char *name;
    shard_optimizer *(*optimizer)(shard_tensors *parameters);
    double dropout, clip;
    shard_dtype amp; /* float32: off */
    bool ema, groups, parallel;
    bool margin, fused; /* the head's logits are cosines with ArcFace's margin; without logits in memory */
} recipe;

typedef struct trainee {
    const recipe *recipe;
    shard_module *model;
    shard_optimizer *optimizer;
    shard_data_parallel *parallel;
    shard_ema *ema;
    shard_tensor *images, *labels;
    shard_tensor *loss; /* of the last step */
    shard_random_state random;
} trainee;

enum { RECIPES = 11, WARMUP = 2 /* eager steps before a capture */ };
extern const recipe recipes[RECIPES];

trainee make_trainee(const recipe *r);
void drop_trainee(trainee *t);

/* Fills images and labels. */
void read_batch(const trainee *t, int number);
/* A step on what lies in images and labels; the loss is kept. */
void train(trainee *t);

/* Step `number`, which has a batch and a learning rate of its own. */
void step_eagerly(trainee *t, int number);
void step_by_replay(trainee *t, int number, shard_graph *graph);
shard_graph *capture_step(trainee *t);

/* Loss, parameters, running statistics, counters, optimizer states, averages, draws. */
void check_same_trainees(trainee *a, trainee *b);
double evaluate(const trainee *t);

#endif
