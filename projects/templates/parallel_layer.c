/*
 * Template of a custom parallel layer: relu and a linear layer with a learned gain for
 * each output, y = gain * (relu(x) W^T) + bias, on one rank or split over a group.
 *
 * To make another layer of it:
 *   0. name its type;
 *   1. put the settings of a layer of this kind into its data;
 *   2. add its parameters, on each rank the local shard: make_shard;
 *   3. write the forward for each split: copy or scatter the input, compute with the
 *      local shard, reduce or gather the result. Operations in between derive the
 *      placement of their result from their operands.
 *
 * Saving, loading, data parallel and the optimizer need no code: they
 * read the placement and the replica group of each parameter.
 *
 * Run on any number of ranks, the program compares the split layer with the whole one:
 *     shardrun -n 3 parallel_layer
 */
#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the layer ---- */

typedef struct gained_linear {
    shard_split split;
    shard_group *group;
} gained_linear;

static shard_tensor *forward(shard_module *module, shard_tensor *x)
{
    const gained_linear *own = shard_module_data(module);
    if (own->split == SHARD_SPLIT_COLUMN) /* each rank has some of the outputs, and reads all of x: */
        x = shard_copy_to_group(x, own->group); /* x's gradient is the sum over all ranks */
    if (own->split == SHARD_SPLIT_ROW && shard_tensor_placement(x).kind != SHARD_SPLIT)
        /* each rank reads a range of x; a column layer's result is split already */
        x = shard_scatter_to_group(x, -1, own->group);
    x = shard_relu(x); /* operations may come between; relu takes a split x as it is */
    shard_tensor *y = shard_linear(x, shard_module_tensor(module, "weight"), NULL);
    if (own->split == SHARD_SPLIT_ROW) /* each rank has a summand of every output */
        y = shard_reduce_from_group(y, own->group);
    y = shard_mul(y, shard_module_tensor(module, "gain"));
    return shard_add(y, shard_module_tensor(module, "bias"));
}

static void destroy(shard_module *module)
{
    free(shard_module_data(module));
}

static const shard_module_type gained_linear_type = {.name = "gained_linear", .forward = forward, .destroy = destroy};

/*
 * A parameter of shape `whole`, uniform in [low, high). Each rank of the group has its local shard along dim; dim
 * -1: each has the whole. The whole of a split parameter is never made, and its values do not depend on the number
 * of ranks.
 */
static void add_parameter(shard_module *module, const char *name, shard_shape whole, double low, double high, int dim,
                          shard_group *group)
{
    shard_tensor *tensor;
    if (dim < 0) {
        tensor = shard_uniform(whole, low, high);
    } else {
        shard_range part = shard_split_range(whole.dim[dim], shard_group_size(group), shard_group_rank(group));
        shard_shape shape = whole;
        shape.dim[dim] = part.size;
        shard_tensor *own = shard_uniform(shape, low, high);
        tensor = shard_as_split(own, dim, group, part.start, whole.dim[dim]);
        shard_release(own);
    }
    shard_module_add_parameter(module, name, tensor);
    shard_release(tensor);
}

static shard_module *gained_linear_create(int64_t in, int64_t out, shard_split split, shard_group *group)
{
    gained_linear *own = malloc(sizeof *own);
    if (!own) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for a layer");
        return NULL;
    }
    *own = (gained_linear){.split = split, .group = group};
    shard_module *module = shard_module_create(&gained_linear_type, own);
    double bound = 1 / sqrt((double)in);
    int out_dim = split == SHARD_SPLIT_COLUMN ? 0 : -1; /* of a tensor [out]; ROW does not split outputs */
    int weight_dim = split == SHARD_SPLIT_COLUMN ? 0 : split == SHARD_SPLIT_ROW ? 1 : -1;
    add_parameter(module, "weight", SHARD_SHAPE(out, in), -bound, bound, weight_dim, group);
    add_parameter(module, "gain", SHARD_SHAPE(out), 0.5, 1.5, out_dim, group);
    add_parameter(module, "bias", SHARD_SHAPE(out), -bound, bound, out_dim, group);
    if (shard_last_status() == SHARD_OK)
        return module;
    shard_module_destroy(module);
    return NULL;
}

/* ---- comparison of all ranks with one ---- */

/* elements that are compared at once */
enum { ROWS = 5, IN = 7, OUT = 11, MOST = 128 }; /* uneven on two ranks and on three */

static double largest_difference(shard_tensor *a, shard_tensor *b)
{
    int64_t count = shard_numel(a);
    size_t bytes = (size_t)count * sizeof(float);
    float x[MOST], y[MOST];
    if (!a || !b || count > MOST || count != shard_numel(b) || shard_copy_to_host(a, x, bytes) != SHARD_OK ||
        shard_copy_to_host(b, y, bytes) != SHARD_OK)
        return INFINITY;
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        largest = fmax(largest, fabs((double)x[i] - (double)y[i]));
    return largest;
}

static void check(const char *what, shard_tensor *got, shard_tensor *expected)
{
    double difference = largest_difference(got, expected);
    if (!(difference <= 1e-6))
        shard_error(SHARD_ERROR_INTERNAL, "%s differs by %g from the whole layer's", what, difference);
}

/* The whole result; also computes the gradients of the mean of its squares. */
static shard_tensor *run(shard_module *layer, shard_tensor *x, shard_group *group)
{
    shard_tensor *y = shard_forward(layer, x);
    if (shard_tensor_placement(y).kind == SHARD_SPLIT)
        y = shard_gather_from_group(y, -1, group);
    shard_backward(shard_mean(shard_mul(y, y)));
    return y;
}

static void compare(shard_split split, const char *name, shard_group *group)
{
    shard_manual_seed(1);
    shard_module *whole = gained_linear_create(IN, OUT, SHARD_SPLIT_NONE, NULL);
    shard_manual_seed(1); /* the same values again */
    shard_module *parts = gained_linear_create(IN, OUT, split, group);
    shard_tensors *expected = shard_parameters(whole), *got = shard_parameters(parts);
    SHARD_SCOPE
    {
        shard_manual_seed(2);
        shard_tensor *x1 = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .requires_grad = true);
        shard_manual_seed(2);
        shard_tensor *x2 = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .requires_grad = true);
        shard_tensor *y1 = run(whole, x1, group), *y2 = run(parts, x2, group);
        check("the result", y2, y1);
        check("the input's gradient", shard_grad(x2), shard_grad(x1));
        shard_tensors *gradients = shard_tensors_create();
        for (int64_t i = 0; i < shard_tensors_count(expected); i++)
            shard_tensors_add(gradients, shard_tensors_name(expected, i), shard_grad(shard_tensors_at(expected, i)));
        shard_tensors *own = shard_relocate_state_dict(got, gradients);
        for (int64_t i = 0; i < shard_tensors_count(own); i++)
            check(shard_tensors_name(own, i), shard_grad(shard_tensors_at(got, i)), shard_tensors_at(own, i));
        shard_tensors_destroy(own);
        shard_tensors_destroy(gradients);
    }
    if (shard_agree(group) == SHARD_OK && shard_group_rank(group) == 0)
        printf("%s: the same on %d rank(s) as on one\n", name, shard_group_size(group));
    shard_tensors_destroy(got);
    shard_tensors_destroy(expected);
    shard_module_destroy(parts);
    shard_module_destroy(whole);
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    shard_group *group = shard_mesh_model_group(mesh);
    compare(SHARD_SPLIT_COLUMN, "column", group);
    compare(SHARD_SPLIT_ROW, "row", group);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
