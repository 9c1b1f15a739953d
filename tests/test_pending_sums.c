/*
 * Gradients where rows of a batch are dealt out over groups of a mesh: whatever layers,
 * gathers, scatters and sums a step is made of, they equal those of one process on the
 * whole batch.
 */
#include "support/job.h"

#include "autograd/pending_sums.h"

#include <stdlib.h>

enum { FEATURES = 5, WIDE = 7, CLASSES = 11, ROWS = 24 };

/* One process has no groups: its gathers, scatters and sums do nothing. */
typedef struct place {
    shard_group *data, *model, *world;
    shard_range rows; /* of the batch, that are here */
} place;

/* Layers; IN, MID, OUT and CLASSIFIER are whole, the others split over the model group. */
enum { IN, COLUMN, ROW, MID, OUT, SPLIT_OUT, NORM, CLASSIFIER };

static shard_module *make_layers(shard_group *model)
{
    shard_manual_seed(3);
    shard_module *layers = shard_nn_sequential(
        shard_nn_linear(FEATURES, FEATURES, .dtype = SHARD_FLOAT64),
        shard_nn_parallel_linear(FEATURES, WIDE, SHARD_SPLIT_COLUMN, model, .dtype = SHARD_FLOAT64),
        shard_nn_parallel_linear(WIDE, FEATURES, SHARD_SPLIT_ROW, model, .dtype = SHARD_FLOAT64),
        shard_nn_linear(FEATURES, FEATURES, .dtype = SHARD_FLOAT64), shard_nn_linear(FEATURES, CLASSES, .dtype = SHARD_FLOAT64),
        shard_nn_parallel_linear(FEATURES, CLASSES, SHARD_SPLIT_COLUMN, model, .dtype = SHARD_FLOAT64),
        shard_nn_batch_norm(FEATURES, .dtype = SHARD_FLOAT64),
        shard_nn_parallel_classifier(FEATURES, CLASSES, NULL, .dtype = SHARD_FLOAT64));
    ck_assert_msg(layers != NULL, "%s", shard_last_error());
    return layers;
}

static shard_tensor *layer(shard_module *layers, int which, shard_tensor *x)
{
    return shard_forward(shard_module_child_at(layers, which), x);
}

static shard_tensor *parameter_of(shard_module *layers, int which, const char *name)
{
    return shard_module_tensor(shard_module_child_at(layers, which), name);
}

static shard_tensor *weight_of(shard_module *layers, int which)
{
    return parameter_of(layers, which, "weight");
}

/* COLUMN, gelu, ROW. */
static shard_tensor *block(shard_module *layers, shard_tensor *x)
{
    return layer(layers, ROW, shard_gelu(layer(layers, COLUMN, x)));
}

/* The loss of features that are gathered over both groups, or neither (NULL), in turn. */
static shard_tensor *gathered_loss(shard_module *layers, int head, shard_tensor *x, shard_tensor *labels, shard_group *first,
                                   shard_group *second)
{
    x = shard_gather_from_group(shard_gather_from_group(x, 0, first), 0, second);
    labels = shard_gather_from_group(shard_gather_from_group(labels, 0, first), 0, second);
    return shard_cross_entropy(layer(layers, head, x), labels);
}

/* ---- steps ---- */

static shard_tensor *split_below(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, block(layers, layer(layers, IN, x)), labels, at->data, NULL);
}

static shard_tensor *model_then_data(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, shard_gelu(layer(layers, IN, x)), labels, at->model, at->data);
}

static shard_tensor *data_then_model(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, shard_gelu(layer(layers, IN, x)), labels, at->data, at->model);
}

static shard_tensor *model_then_data_split(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, SPLIT_OUT, shard_gelu(layer(layers, IN, x)), labels, at->model, at->data);
}

static shard_tensor *data_then_model_split(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, SPLIT_OUT, shard_gelu(layer(layers, IN, x)), labels, at->data, at->model);
}

static shard_tensor *data_split(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, SPLIT_OUT, block(layers, layer(layers, IN, x)), labels, at->data, NULL);
}

static shard_tensor *world_of_rows(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, shard_gelu(layer(layers, IN, x)), labels, at->world, NULL);
}

/* A gather, split layers, another gather. */
static shard_tensor *gathers_around(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gather_from_group(shard_gelu(layer(layers, IN, x)), 0, at->model);
    return gathered_loss(layers, OUT, block(layers, x), shard_gather_from_group(labels, 0, at->model), at->data, NULL);
}

/* The data groups' losses are averaged. */
static shard_tensor *averaged(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = block(layers, shard_gather_from_group(shard_gelu(layer(layers, IN, x)), 0, at->model));
    return gathered_loss(layers, SPLIT_OUT, x, shard_gather_from_group(labels, 0, at->model), NULL, NULL);
}

static shard_tensor *scatters_rows(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gelu(layer(layers, MID, shard_scatter_to_group(layer(layers, IN, x), 0, at->model)));
    return gathered_loss(layers, OUT, shard_gather_from_group(x, 0, at->model), labels, at->data, NULL);
}

static shard_tensor *scatters_columns(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gelu(shard_scatter_to_group(layer(layers, IN, x), -1, at->model));
    x = shard_mul(x, shard_scatter_to_group(parameter_of(layers, MID, "bias"), -1, at->model));
    return gathered_loss(layers, OUT, shard_gather_from_group(x, -1, at->model), labels, at->data, NULL);
}

/* Gathered rows are dealt out again. */
static shard_tensor *scatters_gathered(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_scatter_to_group(shard_gather_from_group(layer(layers, IN, x), 0, at->data), 0, at->data);
    x = shard_gather_from_group(shard_gelu(layer(layers, MID, x)), 0, at->data);
    return gathered_loss(layers, OUT, block(layers, x), shard_gather_from_group(labels, 0, at->data), NULL, NULL);
}

/* A weight in parts over the group of the rows, gathered for use. */
static shard_tensor *gathers_weight(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    shard_tensor *weight = shard_gather_from_group(shard_scatter_to_group(weight_of(layers, MID), 0, at->data), 0, at->data);
    return gathered_loss(layers, OUT, shard_linear(layer(layers, IN, x), weight, NULL), labels, at->data, NULL);
}

static shard_tensor *gathers_columns(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gather_from_group(layer(layers, COLUMN, layer(layers, IN, x)), -1, at->model);
    return gathered_loss(layers, SPLIT_OUT, block(layers, layer(layers, ROW, x)), labels, at->data, NULL);
}

static shard_tensor *whole_leaf_thrice(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gather_from_group(shard_gelu(layer(layers, MID, layer(layers, IN, x))), 0, at->model);
    x = shard_gather_from_group(shard_gelu(layer(layers, MID, x)), 0, at->data);
    labels = shard_gather_from_group(shard_gather_from_group(labels, 0, at->model), 0, at->data);
    return shard_cross_entropy(layer(layers, OUT, layer(layers, MID, x)), labels);
}

static shard_tensor *split_leaf_twice(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gather_from_group(block(layers, x), 0, at->data);
    return gathered_loss(layers, OUT, block(layers, shard_gelu(x)), shard_gather_from_group(labels, 0, at->data), NULL, NULL);
}

/* Features that are gathered for one term of the loss, and the own ones' in another, whose
 * mean over the data groups counts. */
static shard_tensor *two_terms(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = block(layers, layer(layers, IN, x));
    shard_tensor *own = shard_scale(shard_sum(shard_mul(x, x)), shard_group_size(at->data) / (double)ROWS);
    return shard_add(gathered_loss(layers, OUT, x, labels, at->data, NULL), own);
}

static shard_tensor *normalized(shard_module *layers, shard_tensor *x, shard_group *group)
{
    shard_nn_sync_batch_norm(shard_module_child_at(layers, NORM), group);
    return shard_gelu(layer(layers, NORM, layer(layers, IN, x)));
}

static shard_tensor *norm_of_world(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, normalized(layers, x, at->world), labels, at->model, at->data);
}

static shard_tensor *norm_of_data(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, block(layers, normalized(layers, x, at->data)), labels, at->data, NULL);
}

static shard_tensor *norm_around(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gather_from_group(normalized(layers, x, at->world), 0, at->model);
    return gathered_loss(layers, OUT, block(layers, x), shard_gather_from_group(labels, 0, at->model), at->data, NULL);
}

/* Not gathered at all: the own rows' losses are added up. */
static shard_tensor *sums_losses(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = layer(layers, OUT, shard_gelu(layer(layers, IN, x)));
    shard_tensor *loss = shard_scale(shard_cross_entropy(x, labels, .reduction = SHARD_REDUCTION_SUM), 1.0 / ROWS);
    return shard_reduce_from_group(shard_reduce_from_group(loss, at->model), at->data);
}

static shard_tensor *sums_split_losses(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = layer(layers, SPLIT_OUT, block(layers, layer(layers, IN, x)));
    shard_tensor *loss = shard_scale(shard_cross_entropy(x, labels, .reduction = SHARD_REDUCTION_SUM), 1.0 / ROWS);
    return shard_reduce_from_group(loss, at->data);
}

/* Rows that say that they are split. */
static shard_tensor *placed_rows(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_as_split(x, 0, at->data, at->rows.start, ROWS);
    x = layer(layers, OUT, shard_gelu(layer(layers, IN, x)));
    shard_tensor *loss = shard_cross_entropy(x, labels, .reduction = SHARD_REDUCTION_SUM);
    return shard_scale(shard_reduce_from_group(loss, at->data), 1.0 / ROWS);
}

/* Rows that say that they are split along another dimension than the first: the gradients' sums are taken on the way. */
static shard_tensor *placed_columns(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    int64_t count = at->rows.size, start = at->rows.start;
    x = shard_as_split(shard_reshape(x, SHARD_SHAPE(1, count, FEATURES)), 1, at->data, start, ROWS);
    labels = shard_as_split(shard_reshape(labels, SHARD_SHAPE(1, count)), 1, at->data, start, ROWS);
    x = layer(layers, CLASSIFIER, shard_gelu(layer(layers, IN, x)));
    shard_tensor *loss = shard_sum(shard_cross_entropy(x, labels, .reduction = SHARD_REDUCTION_NONE));
    return shard_scale(shard_reduce_from_group(loss, at->data), 1.0 / ROWS);
}

/* Layers split by hand, of whole parameters: no tensor says that it is split. */
static shard_tensor *own_part(shard_tensor *weight, shard_group *group)
{
    shard_range part = shard_split_range(shard_tensor_size(weight, 0), shard_group_size(group), shard_group_rank(group));
    return shard_narrow(weight, 0, part.start, part.size);
}

static shard_tensor *columns_by_hand(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_copy_to_group(layer(layers, IN, x), at->model);
    x = shard_gelu(shard_linear(x, own_part(weight_of(layers, MID), at->model), NULL));
    return gathered_loss(layers, OUT, shard_gather_from_group(x, -1, at->model), labels, at->data, NULL);
}

static shard_tensor *block_by_hand(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_copy_to_group(layer(layers, IN, x), at->model);
    shard_tensor *columns = shard_gelu(shard_linear(x, own_part(weight_of(layers, MID), at->model), NULL));
    shard_tensor *rows = own_part(shard_transpose(weight_of(layers, IN), 0, 1), at->model);
    x = shard_reduce_from_group(shard_matmul(columns, rows), at->model);
    return gathered_loss(layers, OUT, x, labels, at->data, NULL);
}

/* What comes back into one copy: of a layer by hand, and of a split one that says so itself. */
static shard_tensor *two_of_one_copy(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_copy_to_group(layer(layers, IN, x), at->model);
    shard_tensor *other = shard_linear(x, own_part(weight_of(layers, MID), at->model), NULL);
    x = shard_add(block(layers, x), shard_gather_from_group(other, -1, at->model));
    return gathered_loss(layers, OUT, x, labels, at->data, NULL);
}

/* An operation between the copy and the layer, and a use of the copy as it is. */
static shard_tensor *copy_and_residual(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gelu(shard_copy_to_group(layer(layers, IN, x), at->model));
    x = shard_add(layer(layers, MID, block(layers, x)), x);
    return gathered_loss(layers, OUT, x, labels, at->data, NULL);
}

/* The data groups' losses are averaged. */
static shard_tensor *copy_averaged(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_copy_to_group(shard_gelu(shard_copy_to_group(layer(layers, IN, x), at->model)), at->model);
    return gathered_loss(layers, SPLIT_OUT, layer(layers, MID, x), labels, NULL, NULL);
}

/* Copies over one group what is split over the other one. */
static shard_tensor *copies_over_data(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    shard_tensor *scale = shard_copy_to_group(shard_scale(weight_of(layers, MID), 2), at->data);
    x = shard_linear(layer(layers, IN, x), layer(layers, ROW, layer(layers, COLUMN, scale)), NULL);
    return gathered_loss(layers, OUT, x, labels, at->data, NULL);
}

/* Rows that all members have are gathered: each is there several times, which leaves the
 * mean as it is. */
static shard_tensor *gathers_twice(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gelu(layer(layers, IN, x));
    return gathered_loss(layers, OUT, x, labels, at->data, at->data);
}

static shard_tensor *gathers_twice_split(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    x = shard_gelu(layer(layers, IN, x));
    return gathered_loss(layers, SPLIT_OUT, x, labels, at->data, at->data);
}

static shard_tensor *gathers_whole(shard_module *layers, shard_tensor *x, shard_tensor *labels, const place *at)
{
    return gathered_loss(layers, OUT, block(layers, layer(layers, IN, x)), labels, at->model, at->data);
}

/* ---- a step on a mesh against one process ---- */

enum { BY_DATA = 1, BY_MODEL = 2, EVEN = 4, AVERAGED = 8 };

typedef struct step {
    const char *name;
    shard_tensor *(*loss)(shard_module *, shard_tensor *x, shard_tensor *labels, const place *);
    int rows; /* over which groups they are dealt out; AVERAGED: some are never gathered */
} step;

static const step steps[] = {
    {"split layers below a gather", split_below, BY_DATA},
    {"model, then data", model_then_data, BY_DATA | BY_MODEL},
    {"data, then model", data_then_model, BY_DATA | BY_MODEL},
    {"model, then data, a split head", model_then_data_split, BY_DATA | BY_MODEL},
    {"data, then model, a split head", data_then_model_split, BY_DATA | BY_MODEL},
    {"data, a split head", data_split, BY_DATA},
    {"all ranks' rows", world_of_rows, BY_DATA | BY_MODEL},
    {"gathers around split layers", gathers_around, BY_DATA | BY_MODEL},
    {"averaged over data", averaged, BY_DATA | BY_MODEL | EVEN | AVERAGED},
    {"rows scattered", scatters_rows, BY_DATA},
    {"columns scattered", scatters_columns, BY_DATA},
    {"gathered rows scattered", scatters_gathered, BY_DATA},
    {"a weight gathered", gathers_weight, BY_DATA},
    {"columns gathered", gathers_columns, BY_DATA},
    {"a whole leaf thrice", whole_leaf_thrice, BY_DATA | BY_MODEL},
    {"a split leaf twice", split_leaf_twice, BY_DATA},
    {"two terms", two_terms, BY_DATA | AVERAGED},
    {"batch norm over all", norm_of_world, BY_DATA | BY_MODEL},
    {"batch norm over data", norm_of_data, BY_DATA},
    {"batch norm, gathers around", norm_around, BY_DATA | BY_MODEL},
    {"losses summed", sums_losses, BY_DATA | BY_MODEL},
    {"losses of split layers summed", sums_split_losses, BY_DATA},
    {"placed rows", placed_rows, BY_DATA},
    {"placed columns", placed_columns, BY_DATA},
    {"columns by hand", columns_by_hand, BY_DATA},
    {"columns and rows by hand", block_by_hand, BY_DATA},
    {"two of one copy", two_of_one_copy, BY_DATA},
    {"a copy, an operation, a residual", copy_and_residual, BY_DATA},
    {"copies, averaged over data", copy_averaged, BY_DATA | EVEN | AVERAGED},
    {"copied over data", copies_over_data, BY_DATA},
    {"gathered twice", gathers_twice, BY_DATA},
    {"gathered twice, a split head", gathers_twice_split, BY_DATA},
    {"whole rows gathered", gathers_whole, BY_DATA},
};
#define STEPS ((int)(sizeof steps / sizeof *steps))

static const struct {
    int data, model;
} meshes[] = {{2, 2}, {2, 3}, {3, 2}, {1, 4}, {4, 1}};
#define MESHES ((int)(sizeof meshes / sizeof *meshes))

/* The member's part of a range: the first have less. */
static shard_range uneven_part(shard_range range, const shard_group *group)
{
    int64_t size = shard_group_size(group), rank = shard_group_rank(group);
    int64_t from = range.size * rank * (rank + 1) / (size * (size + 1));
    int64_t to = range.size * (rank + 1) * (rank + 2) / (size * (size + 1));
    return (shard_range){range.start + from, to - from};
}

static shard_range own_rows(const step *s, const shard_group *data, const shard_group *model)
{
    shard_range rows = {0, ROWS};
    if (s->rows & EVEN)
        rows = shard_split_range(ROWS, shard_group_size(data), shard_group_rank(data));
    else if (s->rows & BY_DATA)
        rows = uneven_part(rows, data);
    return s->rows & BY_MODEL ? uneven_part(rows, model) : rows;
}

static void run_step(const step *s, shard_module *layers, const place *at)
{
    SHARD_SCOPE
    {
        int64_t labels[ROWS];
        for (int64_t i = 0; i < at->rows.size; i++)
            labels[i] = (at->rows.start + i) * 5 % CLASSES;
        shard_tensor *x = shard_narrow(made_up(SHARD_SHAPE(ROWS, FEATURES), 9, SHARD_FLOAT64), 0, at->rows.start, at->rows.size);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(at->rows.size), .dtype = SHARD_INT64);
        shard_tensor *loss = s->loss(layers, x, target, at);
        ck_assert_msg(loss != NULL, "%s: %s", s->name, shard_last_error());
        ck_assert_msg(shard_backward(loss) == SHARD_OK, "%s: %s", s->name, shard_last_error());
    }
}

static void check_zeros(shard_tensor *gradient)
{
    double *values = gradient ? values_of(gradient) : NULL;
    for (int64_t j = 0; gradient && j < shard_numel(gradient); j++)
        ck_assert_double_eq(values[j], 0);
    free(values);
}

/* Each parameter's gradient is `times` that of one process. */
static void check_gradients(const step *s, shard_tensors *parameters, shard_tensors *whole, double times)
{
    for (int64_t i = 0; i < shard_tensors_count(whole); i++) {
        shard_tensor *expected = shard_grad(shard_tensors_at(whole, i));
        shard_tensor *gradient = shard_grad(shard_tensors_at(parameters, i));
        if (!expected) {
            check_zeros(gradient); /* which data parallel makes of what no rank has reached */
            continue;
        }
        char *name = shard_format("%s: %s", s->name, shard_tensors_name(whole, i));
        double *values = values_of(expected);
        for (int64_t j = 0; j < shard_numel(expected); j++)
            values[j] *= times;
        check_part_at(__FILE__, __LINE__, name, gradient, values, 1e-12);
        free(values);
        free(name);
    }
}

/* Takes the pending sums, as a program without data parallel does. */
static void sum_by_hand(shard_tensors *parameters)
{
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_tensor *gradient = shard_grad(shard_tensors_at(parameters, i));
        shard_pending_sums to = gradient ? gradient->pending : (shard_pending_sums){0};
        for (int j = 0; j < to.count; j++)
            check_ok(shard_all_reduce(gradient, SHARD_SUM, to.group[j]));
        ck_assert(!gradient || gradient->pending.count == 0);
    }
}

enum { REDUCED, NO_SYNC, BY_HAND, WAYS };

static void run_way(const step *s, int way, const place *at, shard_tensors *whole)
{
    shard_module *layers = make_layers(at->model);
    shard_tensors *parameters = shard_parameters(layers);
    shard_data_parallel *dp = way == BY_HAND ? NULL : shard_data_parallel_create(parameters, .bucket_mib = 2e-4);
    for (int turn = 1; turn <= 2; turn++) { /* gradients are added up */
        shard_data_parallel_set_sync(dp, way != NO_SYNC || turn == 2);
        run_step(s, layers, at);
        if (way == BY_HAND)
            sum_by_hand(parameters);
        if (way != NO_SYNC || turn == 2)
            check_gradients(s, parameters, whole, turn);
    }
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_module_destroy(layers);
}

static void equals_one_process(shard_group *world, void *context)
{
    int index = *(const int *)context;
    const step *s = &steps[index / MESHES];
    shard_module *layers = make_layers(NULL);
    run_step(s, layers, &(place){.rows = {0, ROWS}});
    shard_tensors *whole = shard_parameters(layers);
    shard_mesh *mesh = shard_mesh_create(.model = meshes[index % MESHES].model);
    place at = {.data = shard_mesh_data_group(mesh), .model = shard_mesh_model_group(mesh), .world = world};
    at.rows = own_rows(s, at.data, at.model);
    for (int way = 0; way < WAYS; way++)
        if (way != BY_HAND || !(s->rows & AVERAGED))
            run_way(s, way, &at, whole);
    shard_mesh_destroy(mesh);
    shard_tensors_destroy(whole);
    shard_module_destroy(layers);
}

START_TEST(test_equals_one_process)
{
    run_job(meshes[_i % MESHES].data * meshes[_i % MESHES].model, equals_one_process, &_i);
}
END_TEST

/* A step with this rank's summand would make the replicas different. */
static void step_refuses(shard_group *world, void *context)
{
    (void)context;
    shard_module *layer = shard_nn_linear(FEATURES, FEATURES, .dtype = SHARD_FLOAT64);
    shard_optimizer *sgd = shard_sgd(layer, .lr = 0.1);
    SHARD_SCOPE
    {
        shard_tensor *rows = made_up(SHARD_SHAPE(2, FEATURES), (uint64_t)shard_group_rank(world), SHARD_FLOAT64);
        shard_tensor *y = shard_gather_from_group(shard_forward(layer, rows), 0, world);
        check_ok(shard_backward(shard_sum(shard_mul(y, y))));
        double norm;
        ck_assert_int_eq(shard_clip_grad_norm(sgd, 1.0, &norm), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*shard_clip_grad_norm: *\"weight\" is a pending sum over 2 ranks*shard_all_reduce*");
        check_fails(shard_clip_grad_value(sgd, 1.0), SHARD_ERROR_ARGUMENT,
                    "shard_clip_grad_value: *\"weight\" is a pending sum over 2 ranks*");
        ck_assert_int_eq(shard_step(sgd), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*\"weight\" is a pending sum over 2 ranks*shard_all_reduce*");
        shard_tensors *parameters = shard_parameters(layer);
        sum_by_hand(parameters);
        shard_tensors_destroy(parameters);
        check_ok(shard_step(sgd));
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(layer);
}

START_TEST(test_step_refuses)
{
    run_job(2, step_refuses, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("pending_sums");
    TCase *tcase = test_case(suite, "pending_sums");
    tcase_add_loop_test(tcase, test_equals_one_process, 0, STEPS * MESHES);
    tcase_add_test(tcase, test_step_refuses);
    return test_run(suite);
}
