/* The table of whole error texts: the other tests compare the status and a keyword, so that a text can be improved in
 * one place. */
#include "support/job.h"
#include "support/ranks.h"

#include <shard/shard.h>

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
     "shard_linear: x of shape [2, 3] (the local shard of [2, 6], split along dimension 1) and a weight of shape [5, 6]; [..., in] "
     "and [out, in] are needed: a layer of SHARD_SPLIT_ROW takes x, or shard_gather_from_group makes it local"},
    {sum_with_split, SHARD_ERROR_SHAPE,
     "shard_add: shapes [2, 3] (the local shard of [2, 6], split along dimension 1) and [1, 6]; counted from the last dimension, sizes "
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
