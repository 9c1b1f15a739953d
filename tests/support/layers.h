/*
 * Parameters as those of a network whose layers are replicated or split over a model
 * group, with gradients that are known on every rank: what goes over all of them (norms,
 * optimizers) is compared with loops over whole arrays.
 */
#ifndef TESTS_SUPPORT_LAYERS_H
#define TESTS_SUPPORT_LAYERS_H

#include "support/job.h"
#include "support/options.h"

/* Split along the first and the second dimension, unevenly; replicated; biases of both
 * kinds; an empty one; one that gets no gradient. */
enum { LAYERS = 7, LAYERS_UNUSED = 6 };

typedef struct layers {
    shard_mesh *mesh;
    shard_dtype dtype;
    shard_tensor *parameter[LAYERS];
} layers;

/* Data x model parallel; how ranks hold the parameters. */
typedef struct layers_case {
    int data, model;
    enum { PLAIN, DATA_PARALLEL, ZERO } way;
    zero_way zero;
} layers_case;

/* The leaves, in the innermost scope, on a mesh of that many ranks. */
layers make_layers(const layers_case *at, shard_dtype dtype);
void free_layers(layers *l);
/* A list of them, the caller's. */
shard_tensors *list_layers(const layers *l);
/* Puts the list's parameters under shard_data_parallel, or the optimizer under shard_zero_optimizer,
 * as the case has it; NULL or what is to be destroyed. */
shard_data_parallel *share_layers(const layers *l, const layers_case *at, shard_optimizer *optimizer);

/* A backward that gives each its gradient of that turn. */
void back_layers(const layers *l, int turn);

/* Of the whole parameter and the whole gradient; freed by free. */
int64_t layer_size(int layer);
bool layer_is_matrix(int layer);
double *layer_values(int layer, shard_dtype dtype);
double *layer_gradient(int layer, int turn, shard_dtype dtype);

#endif
