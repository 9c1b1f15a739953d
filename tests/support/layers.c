#include "support/layers.h"

#include "support/elements.h"

#include <stdlib.h>

enum { WHOLE = -1 };

static const struct {
    const char *name;
    shard_shape shape;
    int split; /* the dimension */
} layer[LAYERS] = {
    {"first.weight", {2, {11, 5}}, 0}, {"first.bias", {1, {11}}, 0},         {"second.weight", {2, {4, 9}}, 1},
    {"second.bias", {1, {4}}, WHOLE},  {"third.weight", {2, {7, 3}}, WHOLE}, {"empty", {2, {0, 3}}, WHOLE},
    {"unused", {2, {3, 2}}, WHOLE},
};

static shard_tensor *part_of(const layers *l, int i, uint64_t seed)
{
    shard_group *group = layer[i].split == WHOLE ? NULL : shard_mesh_model_group(l->mesh);
    shard_tensor *x = make_part(layer[i].shape, l->dtype, layer[i].split, group);
    fill_made_up(x, seed);
    return x;
}

layers make_layers(const layers_case *at, shard_dtype dtype)
{
    layers l = {.mesh = shard_mesh_create(.data = at->data, .model = at->model), .dtype = dtype};
    ck_assert_msg(l.mesh != NULL, "%s", shard_last_error());
    for (int i = 0; i < LAYERS; i++) {
        l.parameter[i] = part_of(&l, i, (uint64_t)i + 1);
        shard_set_requires_grad(l.parameter[i], true);
    }
    return l;
}

void free_layers(layers *l)
{
    shard_mesh_destroy(l->mesh);
}

shard_tensors *list_layers(const layers *l)
{
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < LAYERS; i++)
        check_ok(shard_tensors_add(list, layer[i].name, l->parameter[i]));
    return list;
}

shard_data_parallel *share_layers(const layers *l, const layers_case *at, shard_optimizer *optimizer)
{
    if (at->way == ZERO)
        check_ok(zero_with(optimizer, at->zero) ? SHARD_OK : shard_last_status());
    if (at->way != DATA_PARALLEL)
        return NULL;
    shard_tensors *list = list_layers(l);
    shard_data_parallel *dp = shard_data_parallel_create(list);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    shard_tensors_destroy(list);
    return dp;
}

static uint64_t gradient_seed(int i, int turn)
{
    return (uint64_t)(100 + 10 * turn + i);
}

void back_layers(const layers *l, int turn)
{
    SHARD_SCOPE
    {
        shard_tensor *loss = shard_zeros(SHARD_SCALAR, .dtype = l->dtype);
        for (int i = 0; i < LAYERS; i++) {
            if (i == LAYERS_UNUSED)
                continue;
            shard_tensor *sum = shard_sum(shard_mul(l->parameter[i], part_of(l, i, gradient_seed(i, turn))));
            loss = shard_add(loss, layer[i].split == WHOLE ? sum : shard_reduce_from_group(sum, shard_mesh_model_group(l->mesh)));
        }
        check_ok(shard_backward(loss));
    }
}

int64_t layer_size(int i)
{
    int64_t size = 1;
    for (int d = 0; d < layer[i].shape.ndim; d++)
        size *= layer[i].shape.dim[d];
    return size;
}

bool layer_is_matrix(int i)
{
    return layer[i].shape.ndim > 1;
}

static double *numbers(int i, uint64_t seed, shard_dtype dtype)
{
    shard_tensor *x = made_up(layer[i].shape, seed, dtype);
    double *values = values_of(x);
    shard_release(x);
    return values;
}

double *layer_values(int i, shard_dtype dtype)
{
    return numbers(i, (uint64_t)i + 1, dtype);
}

double *layer_gradient(int i, int turn, shard_dtype dtype)
{
    return i == LAYERS_UNUSED ? calloc((size_t)layer_size(i), sizeof(double)) : numbers(i, gradient_seed(i, turn), dtype);
}
