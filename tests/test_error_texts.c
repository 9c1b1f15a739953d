/* The table of whole error texts: the other tests compare the status and a keyword, so that a text can be improved in
 * one place. */
#include "support/job.h"
#include "support/no_memory.h"
#include "support/options.h"
#include "support/ranks.h"

#include "base/memory.h"

#include <shard/shard.h>

#include <stdio.h>
#include <stdlib.h>

enum { RANKS = 2 };

static shard_tensor *ones(int64_t rows, int64_t columns)
{
    return shard_ones(SHARD_SHAPE(rows, columns));
}

static shard_tensor *labels(int64_t first, int64_t second)
{
    return shard_from_host((int64_t[]){first, second}, SHARD_SHAPE(2), .dtype = SHARD_INT64);
}

static shard_tensor *placed(shard_placement_kind kind, shard_group *group)
{
    int64_t start = 3 * shard_group_rank(group);
    return shard_as_placed(ones(2, 3), (shard_placement){.kind = kind, .dim = 1, .group = group, .start = start, .whole = 6});
}

static void null_data(shard_group *world)
{
    (void)world;
    shard_from_host(NULL, SHARD_SHAPE(3));
}

static void negative_size(shard_group *world)
{
    (void)world;
    shard_zeros(SHARD_SHAPE(2, -3));
}

static void negative_size_of_copy(shard_group *world)
{
    (void)world;
    shard_from_host((float[]){1, 2}, SHARD_SHAPE(-2));
}

static void too_many_normal(shard_group *world)
{
    (void)world;
    shard_normal(SHARD_SHAPE(INT64_MAX, 2), 0.0, 1.0);
}

static void memory_of_no_dtype(shard_group *world)
{
    (void)world;
    float value = 0;
    shard_from_memory(&value, SHARD_SHAPE(1), (shard_dtype)99, NULL, NULL, NULL);
}

static void null_operand(shard_group *world)
{
    (void)world;
    shard_matmul(ones(2, 3), NULL);
}

static void wrong_shape(shard_group *world)
{
    (void)world;
    shard_matmul(ones(2, 3), ones(2, 3));
}

static void wrong_label(shard_group *world)
{
    (void)world;
    shard_cross_entropy(ones(2, 3), labels(0, 3));
}

static void sum_of_partial(shard_group *world)
{
    shard_sum(placed(SHARD_PARTIAL, world));
}

static void item_of_partial(shard_group *world)
{
    shard_item(shard_as_placed(shard_ones(SHARD_SCALAR), (shard_placement){.kind = SHARD_PARTIAL, .group = world}));
}

static void half_of_a_head(shard_group *world)
{
    (void)world;
    shard_linear(shard_ones(SHARD_SHAPE(1, 2)), shard_ones(SHARD_SHAPE(3, 2), .dtype = SHARD_BFLOAT16), NULL);
}

static void linear_of_split(shard_group *world)
{
    shard_linear(placed(SHARD_SPLIT, world), ones(5, 6), NULL);
}

static void sum_with_split(shard_group *world)
{
    shard_add(placed(SHARD_SPLIT, world), ones(1, 6));
}

static void norm_of_split(shard_group *world)
{
    shard_layer_norm(placed(SHARD_SPLIT, world), NULL, NULL, 1e-5);
}

static void second_backward(shard_group *world)
{
    (void)world;
    shard_tensor *x = ones(2, 3);
    shard_set_requires_grad(x, true);
    shard_tensor *loss = shard_sum(shard_mul(x, x));
    shard_backward(loss);
    shard_backward(loss);
}

static void no_rank_of_sampler(shard_group *world)
{
    (void)world;
    shard_group_sampler_create(8, .ranks = 2, .rank = 2);
}

static void no_epoch_of_sampler(shard_group *world)
{
    (void)world;
    shard_group_sampler *sampler = shard_group_sampler_create(8, .batch = 4);
    shard_group_sampler_set_epoch(sampler, -1);
    shard_group_sampler_destroy(sampler);
}

static void load_no_module(shard_group *world)
{
    (void)world;
    shard_load_module(NULL, "model.safetensors");
}

static void save_no_module(shard_group *world)
{
    (void)world;
    shard_save_module(NULL, "model.safetensors");
}

static void no_child(shard_group *world)
{
    (void)world;
    shard_module *model = shard_nn_sequential(shard_nn_relu());
    shard_module_child(model, "fc");
    shard_module_destroy(model);
}

static void no_tensor_below(shard_group *world)
{
    (void)world;
    shard_module *model = shard_nn_sequential(shard_nn_sequential(shard_nn_relu(), shard_nn_sequential(shard_nn_relu())));
    shard_module_tensor(model, "0.1.5.weight");
    shard_module_destroy(model);
}

/* A classifier whose logits have had a backward, and whose weight was written to since. */
static void use_after_write(shard_group *world, bool logits)
{
    shard_module *model = shard_nn_parallel_classifier(4, 6, world);
    shard_tensor *z = shard_forward(model, ones(2, 4)), *weight = shard_module_tensor(model, "weight");
    shard_backward(shard_cross_entropy(z, labels(0, 5)));
    float values[12] = {0}; /* a rank has three classes */
    shard_copy_from_host(weight, values, sizeof values);
    if (logits)
        shard_copy_to_host(z, values, 6 * sizeof *values);
    else
        shard_copy_to_host(shard_grad(weight), values, sizeof values);
    shard_module_destroy(model);
}

/* The loss of a classifier's logits, which are not in memory. */
static void wrong_label_of_classifier(shard_group *world)
{
    shard_module *model = shard_nn_parallel_classifier(4, 6, world);
    shard_cross_entropy(shard_forward(model, ones(2, 4)), labels(0, 6));
    shard_module_destroy(model);
}

static void wrong_pair_of_classifier(shard_group *world)
{
    shard_module *model = shard_nn_parallel_classifier(4, 6, world);
    shard_tensor *pairs = shard_from_host((int64_t[]){0, 1, 2, 6}, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
    shard_binary_cross_entropy_with_logits(shard_forward(model, ones(2, 4)), pairs);
    shard_module_destroy(model);
}

static void late_logits(shard_group *world)
{
    use_after_write(world, true);
}

static void late_gradient(shard_group *world)
{
    use_after_write(world, false);
}

/* ---- rows of one call ---- */

#define CALL(name, ...)                                                                                                          \
    static void name(shard_group *world)                                                                                         \
    {                                                                                                                            \
        (void)world;                                                                                                             \
        __VA_ARGS__;                                                                                                             \
    }

static shard_tensor *scalar(void)
{
    return shard_ones(SHARD_SCALAR);
}

static shard_tensor *images(int64_t size)
{
    return shard_ones(SHARD_SHAPE(1, size, size, 2));
}

CALL(no_such_dimension, shard_sum_dim(ones(2, 3), 2, false))
CALL(no_such_dtype, shard_cast(ones(2, 3), (shard_dtype)99))
CALL(negative_eps, shard_normalize(ones(2, 3), 1, -1.0))
CALL(large_k, shard_top_k(ones(2, 3), 4, NULL))
CALL(flatten_backwards, shard_flatten(ones(2, 3), 1, 0))
CALL(narrow_beyond, shard_narrow(ones(2, 3), 1, 2, 2))
CALL(slice_beyond, shard_slice(ones(2, 3), 0, 2, 2))
CALL(other_bias, shard_conv2d(images(4), shard_ones(SHARD_SHAPE(3, 2, 3, 3)), shard_ones(SHARD_SHAPE(4))))
CALL(large_kernel, shard_conv2d(images(2), shard_ones(SHARD_SHAPE(3, 2, 3, 3)), NULL))
CALL(large_window, shard_max_pool2d(images(2), 3))
CALL(no_window, shard_max_pool2d(images(2), 0))
CALL(other_sizes, shard_concatenate((shard_tensor *[]){ones(2, 3), ones(2, 4)}, 2, 0))
CALL(softmax_of_scalar, shard_softmax(scalar()))
CALL(layer_norm_of_scalar, shard_layer_norm(scalar(), NULL, NULL, 1e-5))
CALL(batch_norm_of_scalar, shard_batch_norm(scalar(), NULL, NULL, NULL, NULL, .training = true))
CALL(other_residual, shard_batch_norm(ones(2, 3), NULL, NULL, NULL, NULL, .training = true, .residual = ones(3, 3)))
CALL(pick_of_scalar, shard_pick_labels(scalar(), labels(0, 1), -100))
CALL(pick_of_more_rows, shard_pick_labels(ones(3, 3), labels(0, 1), -100))
CALL(negative_classes, shard_one_hot(labels(0, 1), -1))
CALL(one_hot_like_another, shard_one_hot(labels(0, 1), 4, .like = ones(2, 3)))
CALL(other_probabilities, shard_cross_entropy(ones(2, 3), ones(2, 4)))
CALL(negative_class, shard_precision_at_k(shard_zeros(SHARD_SHAPE(2, 1), .dtype = SHARD_INT64),
                                          shard_from_host((int64_t[]){0, -1}, SHARD_SHAPE(2, 1), .dtype = SHARD_INT64), 1, NULL))
CALL(loss_without_gradient, shard_backward(shard_sum(ones(2, 3))))
CALL(integers_require_gradient, shard_set_requires_grad(labels(0, 1), true))
CALL(result_requires_gradient, shard_set_requires_grad(shard_scale(shard_ones(SHARD_SHAPE(3), .requires_grad = true), 2), true))
CALL(split_of_no_rank, shard_split_range(3, 2, 2))
CALL(group_of_no_rank, shard_group_create(world, (const int[]){0, 2}, 2))
CALL(group_of_none, shard_group_create(world, (const int[]){0}, 0))
CALL(destroys_the_world, shard_group_destroy(world))
CALL(broadcast_of_no_rank, shard_broadcast(ones(2, 3), 2, world))
CALL(negative_count_of_modules, shard_nn_sequential_of(-1, NULL))
CALL(inspect_no_file, shard_inspect_loadable(NULL, NULL))
CALL(gather_of_others, shard_gather_from_group(ones(2, 3 + shard_group_rank(world)), 0, world))
CALL(mesh_of_others, shard_mesh_create(.model = 1 + shard_group_rank(world)))

static void rank_of_no_job(shard_group *world)
{
    (void)world;
    shard_init_options options = SHARD_INIT_OPTIONS_INIT;
    options.rank = options.ranks = 2;
    shard_init_with(&options);
}

static void no_step_of_sampler(shard_group *world)
{
    (void)world;
    shard_group_sampler *sampler = shard_group_sampler_create(8, .batch = 4);
    shard_group_sampler_local_range(sampler, 2);
    shard_group_sampler_destroy(sampler);
}

static void pair_of_no_row(shard_group *world)
{
    (void)world;
    shard_tensor *pairs = shard_from_host((int64_t[]){0, 4, 1, 2}, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
    shard_binary_cross_entropy_with_logits(ones(4, 3), pairs);
}

/* ---- the host's memory, and files ---- */

static void without_memory(bool grows)
{
    const shard_memory_calls *before = shard_memory_calls_used;
    int64_t *array = NULL, capacity = 0;
    shard_memory_calls_used = &no_memory_calls;
    if (grows)
        shard_grow(&array, &capacity, 9, sizeof *array);
    else
        free(shard_calloc(3, 16));
    shard_memory_calls_used = before;
}

CALL(no_memory, without_memory(false))
CALL(no_memory_to_grow, without_memory(true))

static void full_disk(shard_group *world)
{
    (void)world;
    FILE *full = fopen("/dev/full", "w");
    shard_memory_report(shard_device_open("cpu"), full);
    fclose(full);
}

static shard_tensors *list_of(const char *name, shard_tensor *tensor)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, name, tensor);
    return list;
}

static void too_large_file(shard_group *world)
{
    (void)world;
    shard_tensors *list = list_of("a", shard_zeros(SHARD_SHAPE(INT64_C(1) << 60)));
    shard_tensors_add(list, "b", shard_zeros(SHARD_SHAPE(INT64_C(1) << 60)));
    shard_save(list, "model.safetensors", NULL);
    shard_tensors_destroy(list);
}

static void collect_on_no_rank(shard_group *world)
{
    (void)world;
    shard_tensors *list = list_of("w", ones(2, 3));
    shard_collect_state_dict(list, 2);
    shard_tensors_destroy(list);
}

static void relocate_from_no_rank(shard_group *world)
{
    (void)world;
    shard_tensors *list = list_of("w", ones(2, 3));
    shard_relocate_state_dict(list, list, .root = 2);
    shard_tensors_destroy(list);
}

/* ---- lists and modules ---- */

static void name_twice(shard_group *world)
{
    (void)world;
    shard_tensors *list = list_of("w", ones(2, 3));
    shard_tensors_add(list, "w", ones(2, 3));
    shard_tensors_destroy(list);
}

static void prefix_twice(shard_group *world)
{
    (void)world;
    shard_tensors *list = list_of("w", ones(2, 3));
    shard_tensors_extend(list, "", list);
    shard_tensors_destroy(list);
}

static shard_module *linear;

static void with_linear(void (*call)(void))
{
    linear = shard_nn_linear(3, 4);
    call();
    shard_module_destroy(linear);
}

#define MODULE(name, ...)                                                                                                        \
    static void name##_of_linear(void)                                                                                           \
    {                                                                                                                            \
        __VA_ARGS__;                                                                                                             \
    }                                                                                                                            \
    CALL(name, with_linear(name##_of_linear))

MODULE(second_weight, shard_module_add_parameter(linear, "weight", ones(2, 3)))
MODULE(dotted_name, shard_module_add_buffer(linear, "a.b", ones(2, 3)))
MODULE(integer_parameter, shard_module_add_parameter(linear, "labels", labels(0, 1)))
MODULE(other_weight, shard_module_set_parameter(linear, "weight", ones(3, 4)))
MODULE(weight_of_result, shard_module_set_parameter(linear, "weight", shard_scale(shard_module_tensor(linear, "weight"), 2)))
MODULE(no_weight_of_child, shard_module_set_parameter(linear, "slope", ones(2, 3)))
MODULE(own_child, shard_module_add_child(linear, "itself", linear))
MODULE(child_of_two, shard_module *parent = shard_nn_sequential(linear); shard_nn_sequential(linear); linear = parent)

/* ---- optimizers ---- */

CALL(nesterov_alone, sgd_of_list(list_of("w", ones(2, 3)), .lr = 0.1, .nesterov = true))
CALL(nesterov_with_dampening,
     WITH_LIST(shard_lars, list_of("w", ones(2, 3)), .lr = 0.1, .momentum = 0.9, .dampening = 0.5, .nesterov = true))
CALL(optimizer_of_result, sgd_of_list(list_of("w", shard_scale(shard_ones(SHARD_SHAPE(3), .requires_grad = true), 2)), .lr = 0.1))

static void other_clip_value(shard_group *world)
{
    shard_optimizer *sgd = sgd_of_list(list_of("w", ones(2, 3)), .lr = 0.1);
    if (shard_group_rank(world) == 0)
        shard_clip_grad_value(sgd, 0.5);
    shard_step(sgd);
    shard_optimizer_destroy(sgd);
}

/* ---- custom operations ---- */

static shard_tensor *forward_of_own(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)op, (void)inputs;
    return shard_sum(input[0]);
}

static shard_status backward_in_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)op, (void)dy, (void)inputs, (void)dx;
    return shard_backward(shard_ones(SHARD_SCALAR, .requires_grad = true));
}

static const shard_custom_op_type own = {.name = "own", .forward = forward_of_own, .backward = backward_in_backward};
static const shard_custom_op_type forward_only = {.name = "own", .forward = forward_of_own};

CALL(nested_backward, shard_backward(shard_custom_op_apply(&own, NULL, shard_ones(SHARD_SHAPE(3), .requires_grad = true))))
CALL(no_backward, shard_custom_op_apply(&forward_only, NULL, shard_ones(SHARD_SHAPE(3), .requires_grad = true)))

static const struct {
    void (*make)(shard_group *world);
    shard_status status;
    const char *text;
} errors[] = {
    {null_data, SHARD_ERROR_ARGUMENT, "shard_from_host: data is NULL"},
    {negative_size, SHARD_ERROR_SHAPE, "shard_full: a tensor of shape [2, -3]: a size is negative"},
    {negative_size_of_copy, SHARD_ERROR_SHAPE, "shard_from_host: a tensor of shape [-2]: a size is negative"},
    {too_many_normal, SHARD_ERROR_MEMORY, "shard_normal: a tensor of shape [9223372036854775807, 2]: its size overflows"},
    {memory_of_no_dtype, SHARD_ERROR_ARGUMENT, "shard_from_memory: there is no dtype 99"},
    {null_operand, SHARD_ERROR_ARGUMENT, "shard_matmul: an operand is NULL"},
    {wrong_shape, SHARD_ERROR_SHAPE, "shard_matmul: shapes [2, 3] and [2, 3]; [..., m, k] and [..., k, n] or [k, n] are needed"},
    {wrong_label, SHARD_ERROR_ARGUMENT, "shard_cross_entropy: label 3 at row 1 is outside [0, 3)"},
    {item_of_partial, SHARD_ERROR_UNSUPPORTED,
     "shard_item: the tensor is partial, this rank's summand; shard_reduce_from_group takes the sum over its ranks first, "
     "shard_copy_to_host copies the summand"},
    {half_of_a_head, SHARD_ERROR_SHAPE,
     "shard_linear: operand 1 is bfloat16, operand 0 is float32; one dtype is needed (shard_cast, or SHARD_AUTOCAST)"},
    {sum_of_partial, SHARD_ERROR_UNSUPPORTED,
     "shard_sum: no rule for a tensor of shape [2, 3] that is partial; shard_reduce_from_group takes the sum over its "
     "ranks first"},
    {linear_of_split, SHARD_ERROR_SHAPE,
     "shard_linear: x of shape [2, 3] (the local shard of [2, 6], split along dimension 1) and a weight of shape [5, 6]; [..., "
     "in] "
     "and [out, in] are needed: a layer of SHARD_SPLIT_ROW takes x, or shard_gather_from_group makes it local"},
    {sum_with_split, SHARD_ERROR_SHAPE,
     "shard_add: shapes [2, 3] (the local shard of [2, 6], split along dimension 1) and [1, 6]; counted from the last dimension, "
     "sizes "
     "must be equal or 1"},
    {norm_of_split, SHARD_ERROR_UNSUPPORTED,
     "shard_layer_norm: no rule for a tensor of shape [2, 3] that is split along 1; shard_gather_from_group makes it local"},
    {second_backward, SHARD_ERROR_ARGUMENT,
     "shard_backward: the record of sum was freed by an earlier backward; run the forward again"},
    {no_rank_of_sampler, SHARD_ERROR_ARGUMENT,
     "shard_group_sampler_create: 8 samples in batches of 2 for rank 2 of 2 (.rank, .ranks): a batch is at least 1 (-1: "
     "one sample for each rank), ranks count from 0"},
    {no_epoch_of_sampler, SHARD_ERROR_ARGUMENT,
     "shard_group_sampler_set_epoch: epoch -1, step 0: both count from 0, and an epoch of 8 samples in batches of 4 has 2 "
     "steps"},
    {load_no_module, SHARD_ERROR_ARGUMENT, "rank 0: shard_load_module: module is NULL"},
    {save_no_module, SHARD_ERROR_ARGUMENT, "rank 0: shard_save_module: module is NULL"},
    {no_child, SHARD_ERROR_ARGUMENT, "shard_module_child: sequential has no child \"fc\""},
    {no_tensor_below, SHARD_ERROR_ARGUMENT, "shard_module_tensor: sequential 0.1 has no child \"5\""},
    {wrong_label_of_classifier, SHARD_ERROR_ARGUMENT, "rank 0: shard_cross_entropy: label 6 at row 1 is outside [0, 6)"},
    {wrong_pair_of_classifier, SHARD_ERROR_ARGUMENT,
     "rank 0: shard_binary_cross_entropy_with_logits: class 6 of pair 1 is outside [0, 6)"},
    {late_logits, SHARD_ERROR_ARGUMENT,
     "shard_nn_parallel_classifier: its logits, of shape [2, 3], are computed when their values are needed, and a tensor of "
     "shape [3, 4] that they depend on was written to since: use them before shard_step"},
    {late_gradient, SHARD_ERROR_ARGUMENT,
     "shard_linear_cross_entropy: the gradient of the weight (also of a shard_nn_parallel_classifier) is computed when it is "
     "needed, and a tensor of shape [3, 4] that it depends on was written to after shard_backward: call shard_step or shard_grad "
     "before"},
    {no_such_dimension, SHARD_ERROR_ARGUMENT,
     "shard_sum_dim: dimension 2 of a tensor of shape [2, 3]: dimensions count from 0, or from -1 backwards"},
    {no_such_dtype, SHARD_ERROR_ARGUMENT, "shard_cast: there is no dtype 99"},
    {negative_eps, SHARD_ERROR_ARGUMENT, "shard_normalize: eps is -1; it must be at least 0"},
    {large_k, SHARD_ERROR_ARGUMENT,
     "shard_top_k: k is 4 for 3 elements along the last dimension; it must be from 0 to their number"},
    {flatten_backwards, SHARD_ERROR_ARGUMENT,
     "shard_flatten: dimensions 1 to 0 of a tensor of shape [2, 3]: the last comes before the first"},
    {narrow_beyond, SHARD_ERROR_SHAPE,
     "shard_narrow: 2 elements from 2 on along dimension 1 of a tensor of shape [2, 3], which has not all of them"},
    {slice_beyond, SHARD_ERROR_ARGUMENT, "shard_slice: slice 2 of 2 slices: at least one is needed, and slices count from 0"},
    {other_bias, SHARD_ERROR_SHAPE, "shard_conv2d: a bias of shape [4] for 3 output channels; [out] is needed"},
    {large_kernel, SHARD_ERROR_SHAPE,
     "shard_conv2d: a kernel of height 3 (dilation 1) on images of height 2 (padding 0); a kernel of at least 1 that fits "
     "into an image with its padding is needed"},
    {large_window, SHARD_ERROR_SHAPE,
     "shard_max_pool2d: a kernel of 3 on images of 2 x 2 with padding 0; it must fit into an image with its padding"},
    {no_window, SHARD_ERROR_ARGUMENT,
     "shard_max_pool2d: kernel 0, stride 0, padding 0; kernel and stride must be at least 1, and the padding from 0 to half "
     "the kernel"},
    {other_sizes, SHARD_ERROR_SHAPE,
     "shard_concatenate: tensor 1 is float32 of shape [2, 4] on cpu, tensor 0 float32 of shape [2, 3] on cpu; they may "
     "differ in the size along dimension 0 alone"},
    {softmax_of_scalar, SHARD_ERROR_SHAPE, "shard_softmax: x has shape []; [..., classes] is needed"},
    {layer_norm_of_scalar, SHARD_ERROR_SHAPE, "shard_layer_norm: x has shape []; [..., features] is needed"},
    {batch_norm_of_scalar, SHARD_ERROR_SHAPE, "shard_batch_norm: x has shape []; [..., channels] is needed"},
    {other_residual, SHARD_ERROR_SHAPE,
     "shard_batch_norm: a residual of shape [3, 3], local, for x of shape [2, 3], local; both must be the same"},
    {pick_of_scalar, SHARD_ERROR_SHAPE, "shard_pick_labels: x has shape []; [..., classes] is needed"},
    {pick_of_more_rows, SHARD_ERROR_SHAPE,
     "shard_pick_labels: labels of shape [2] on cpu for x of shape [3, 3] on cpu; x's device, and its shape without the "
     "last dimension, are needed"},
    {negative_classes, SHARD_ERROR_ARGUMENT,
     "shard_one_hot: -1 classes for labels of shape [2] that are local; a number of at least 0 and labels of fewer than 8 "
     "dimensions that are not partial are needed"},
    {one_hot_like_another, SHARD_ERROR_SHAPE,
     "shard_one_hot: 4 classes, and .like has 3 along its last dimension; one number is needed"},
    {other_probabilities, SHARD_ERROR_SHAPE,
     "shard_cross_entropy: probabilities of shape [2, 4] for logits of shape [2, 3]; one shape is needed"},
    {negative_class, SHARD_ERROR_ARGUMENT, "shard_precision_at_k: class -1 of pair 0 is negative"},
    {pair_of_no_row, SHARD_ERROR_ARGUMENT, "shard_binary_cross_entropy_with_logits: row 4 of pair 1 is outside [0, 4)"},
    {loss_without_gradient, SHARD_ERROR_ARGUMENT,
     "shard_backward: the tensor of shape [] does not depend on anything that requires a gradient "
     "(shard_set_requires_grad), or was computed with gradients off (shard_set_grad_enabled)"},
    {nested_backward, SHARD_ERROR_ARGUMENT,
     "backward of own: shard_backward: called from within a backward: call it after that one has returned"},
    {no_backward, SHARD_ERROR_ARGUMENT, "own has no backward, but an input requires a gradient"},
    {integers_require_gradient, SHARD_ERROR_ARGUMENT,
     "shard_set_requires_grad: int64 has no gradient; a floating dtype is needed (shard_cast)"},
    {result_requires_gradient, SHARD_ERROR_ARGUMENT,
     "shard_set_requires_grad: a tensor of shape [3] is the result of an operation, not a leaf: shard_detach it"},
    {split_of_no_rank, SHARD_ERROR_ARGUMENT,
     "shard_split_range: 3 elements, rank 2 of 2: at least 0 elements are needed, and ranks count from 0"},
    {group_of_no_rank, SHARD_ERROR_ARGUMENT,
     "rank 0: shard_group_create: rank 2 in a list for a parent of 2 ranks, which count from 0"},
    {group_of_none, SHARD_ERROR_ARGUMENT, "rank 0: shard_group_create: a list of 0 ranks; at least one is needed"},
    {destroys_the_world, SHARD_ERROR_ARGUMENT,
     "shard_group_destroy: the group is the world; one of shard_group_create or shard_group_split is needed"},
    {broadcast_of_no_rank, SHARD_ERROR_ARGUMENT, "rank 0: shard_group_broadcast: root 2 of a group of 2: ranks count from 0"},
    {gather_of_others, SHARD_ERROR_MISMATCH,
     "rank 1 calls shard_gather_from_group with shards float32 [-1, 4] along 0 while rank 0 calls shard_gather_from_group "
     "with shards float32 [-1, 3] along 0"},
    {mesh_of_others, SHARD_ERROR_MISMATCH,
     "rank 1 calls shard_mesh_create with data 1 x model 2 while rank 0 calls shard_mesh_create with data 2 x model 1"},
    {rank_of_no_job, SHARD_ERROR_ARGUMENT,
     "shard_init_with: rank 2 of 2 ranks (.rank, .ranks): at least one is needed, and ranks count from 0"},
    {no_step_of_sampler, SHARD_ERROR_ARGUMENT,
     "shard_group_sampler_local_range: step 2 of an epoch of 2 steps, which count from 0"},
    {no_memory, SHARD_ERROR_MEMORY,
     "no memory for 3 x 16 bytes on the host: take a smaller batch or more ranks, or end other programs"},
    {no_memory_to_grow, SHARD_ERROR_MEMORY,
     "no memory for 9 x 8 bytes on the host: take a smaller batch or more ranks, or end other programs"},
    {full_disk, SHARD_ERROR_IO, "shard_memory_report: cannot write to the file: No space left on device"},
    {too_large_file, SHARD_ERROR_MEMORY,
     "rank 0: shard_save: 2 tensors take more than 9223372036854775807 bytes, the most of a file: save them in several files"},
    {collect_on_no_rank, SHARD_ERROR_ARGUMENT,
     "rank 0: shard_collect_state_dict: root 2 of 2 ranks: ranks count from 0, and -1 is all of them"},
    {relocate_from_no_rank, SHARD_ERROR_ARGUMENT,
     "rank 0: shard_relocate_state_dict: root 2 of 2 ranks: ranks count from 0, and -1 is all of them"},
    {inspect_no_file, SHARD_ERROR_ARGUMENT, "shard_inspect_loadable: path is NULL"},
    {name_twice, SHARD_ERROR_ARGUMENT,
     "shard_tensors_add: the list has a tensor \"w\" already: each needs a name of its own (shard_tensors_rename)"},
    {prefix_twice, SHARD_ERROR_ARGUMENT,
     "shard_tensors_extend: the list has a tensor \"w\" already: each needs a name of its own (shard_tensors_rename)"},
    {negative_count_of_modules, SHARD_ERROR_ARGUMENT, "shard_nn_sequential_of: -1 modules; at least 0 are needed"},
    {second_weight, SHARD_ERROR_ARGUMENT,
     "shard_module_add_parameter: the linear has a tensor \"weight\" already: take another name"},
    {dotted_name, SHARD_ERROR_ARGUMENT,
     "shard_module_add_buffer: \"a.b\" is not a valid name in a linear: it is empty or has a dot"},
    {integer_parameter, SHARD_ERROR_ARGUMENT,
     "shard_module_add_parameter: parameter \"labels\" of a linear is int64, which has no gradient; a floating dtype is "
     "needed, or shard_module_add_buffer"},
    {other_weight, SHARD_ERROR_SHAPE,
     "shard_module_set_parameter: \"weight\" of a linear is float32 [4, 3] (local), not float32 [3, 4] (local)"},
    {weight_of_result, SHARD_ERROR_ARGUMENT,
     "shard_module_set_parameter: \"weight\" of a linear is the result of an operation, not a leaf: shard_detach it"},
    {no_weight_of_child, SHARD_ERROR_ARGUMENT, "shard_module_set_parameter: linear has no parameter \"slope\""},
    {own_child, SHARD_ERROR_ARGUMENT,
     "shard_module_add_child: \"itself\", a linear, would be a child of itself: make another one"},
    {child_of_two, SHARD_ERROR_ARGUMENT,
     "shard_nn_sequential_of: \"0\", a linear, is a child already, of a sequential: a module has one parent. To share "
     "weights, add the same tensor to two modules (shard_module_add_parameter, shard_module_set_parameter)"},
    {nesterov_alone, SHARD_ERROR_ARGUMENT,
     "shard_sgd: Nesterov momentum with momentum 0 and dampening 0: a momentum above 0 and a dampening of 0 are needed"},
    {nesterov_with_dampening, SHARD_ERROR_ARGUMENT,
     "shard_lars: Nesterov momentum with momentum 0.9 and dampening 0.5: a momentum above 0 and a dampening of 0 are needed"},
    {optimizer_of_result, SHARD_ERROR_ARGUMENT, "shard_sgd: \"w\" is the result of an operation: only a leaf gets a gradient"},
    {other_clip_value, SHARD_ERROR_MISMATCH,
     "rank 1 calls shard_step with no clip value while rank 0 calls shard_step with clip value 0.5"},
};

static void compare(shard_group *world, void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        SHARD_SCOPE
        {
            errors[i].make(world);
            ck_assert_int_eq(shard_last_status(), errors[i].status); /* the same on both ranks */
            ck_assert_str_eq(shard_last_error(), errors[i].text);
            shard_clear_error();
        }
}

START_TEST(test_texts)
{
    run_job(RANKS, compare, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("error_texts");
    tcase_add_test(test_case(suite, "texts"), test_texts);
    return test_run_on_cpu(suite);
}
