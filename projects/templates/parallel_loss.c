/*
 * Template of a custom parallel loss, on a last layer whose classes are split over a
 * group, in two ways:
 *
 *   cosface_loss  changes the local logits, then calls the parallel cross-entropy:
 *                 CosFace (Wang and others, CVPR 2018), the cross-entropy of
 *                 scale * (cosine of feature and class - margin at the label's class).
 *                 It needs no code for other ranks.
 *   hinge_loss    has its own reduction: the squared one-against-all hinge. The sum over
 *                 a split tensor is PARTIAL, and shard_reduce_from_group sums it.
 *
 * The weight [classes, features] is split by rows, and so logits are split by classes. Operations
 * on the labels' classes (shard_add_at_labels, shard_pick_labels, shard_one_hot) change the labels
 * in this rank's range alone. No tensor is as large as the whole logits, and no rank makes a matrix
 * on the host. The same code runs on a local weight. The library computes the gradients.
 *
 * Run on any number of ranks, the program compares split losses with whole ones:
 *     shardrun -n 3 parallel_loss
 */
#include <shard/shard.h>

#include <math.h>
#include <stdio.h>

/* ---- the losses, of features [rows, features], a weight [classes, features], labels [rows] ---- */

typedef shard_tensor *loss_function(shard_tensor *x, shard_tensor *weight, shard_tensor *labels);

enum { NO_LABEL = -100 };

static shard_tensor *cosface_loss(shard_tensor *x, shard_tensor *weight, shard_tensor *labels)
{
    const double scale = 16, margin = 0.35;
    shard_tensor *cosine = shard_linear(shard_normalize(x, -1, 1e-12), shard_normalize(weight, -1, 1e-12), NULL);
    shard_tensor *logits = shard_scale(shard_add_at_labels(cosine, labels, NULL, -margin, NO_LABEL), scale);
    return shard_parallel_cross_entropy(logits, labels);
}

/* Mean over the rows of the sum over all classes of max(0, 1 - sign * logit)^2; sign is 1 for
 * the label and -1 for the rest. */
static shard_tensor *hinge_loss(shard_tensor *x, shard_tensor *weight, shard_tensor *labels)
{
    shard_tensor *logits = shard_linear(x, weight, NULL);
    int64_t classes = shard_tensor_whole_shape(weight).dim[0];
    shard_tensor *minus_sign = shard_add_scalar(shard_scale(shard_one_hot(labels, classes, .like = logits), -2), 1);
    shard_tensor *violation = shard_relu(shard_add_scalar(shard_mul(logits, minus_sign), 1));
    shard_tensor *sum = shard_sum(shard_mul(violation, violation));
    if (shard_tensor_placement(sum).kind == SHARD_PARTIAL)
        sum = shard_reduce_from_group(sum, shard_tensor_placement(weight).group);
    return shard_scale(sum, 1 / (double)shard_numel(labels));
}

/* ---- comparison of all ranks with one ---- */

/* elements that are compared at once */
enum { ROWS = 6, FEATURES = 5, CLASSES = 11, MOST = 128 }; /* uneven on two ranks and on three */

/* Fails the run unless the tensors are equal up to rounding. */
static void check(const char *what, shard_tensor *got, shard_tensor *expected)
{
    int64_t count = shard_numel(expected);
    size_t bytes = (size_t)count * sizeof(float);
    float x[MOST], y[MOST];
    double difference = 0;
    if (!got || !expected || count > MOST || count != shard_numel(got) || shard_copy_to_host(got, x, bytes) != SHARD_OK ||
        shard_copy_to_host(expected, y, bytes) != SHARD_OK)
        difference = INFINITY;
    else
        for (int64_t i = 0; i < count; i++)
            difference = fmax(difference, fabs((double)x[i] - (double)y[i]));
    if (!(difference <= 1e-5))
        shard_error(SHARD_ERROR_INTERNAL, "%s differs by %g from the whole weight's", what, difference);
}

/* Features, or a weight: the same values each time. With a group, this rank's local shard of the weight's rows. */
static shard_tensor *make_leaf(uint64_t seed, int64_t rows, shard_group *group)
{
    shard_manual_seed(seed);
    shard_range part = shard_split_range(rows, shard_group_size(group), shard_group_rank(group));
    shard_tensor *leaf = shard_normal(SHARD_SHAPE(part.size, FEATURES), 0, 1);
    if (group)
        leaf = shard_as_split(leaf, 0, group, part.start, rows);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

static void compare(loss_function *loss_of, const char *name, shard_group *group)
{
    static const int64_t values[ROWS] = {0, 10, 4, 4, 7, 3};
    shard_range part = shard_split_range(CLASSES, shard_group_size(group), shard_group_rank(group));
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host(values, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *x1 = make_leaf(1, ROWS, NULL), *x2 = make_leaf(1, ROWS, NULL);
        shard_tensor *whole = make_leaf(2, CLASSES, NULL), *split = make_leaf(2, CLASSES, group);
        shard_tensor *expected = loss_of(x1, whole, labels), *loss = loss_of(x2, split, labels);
        shard_backward(expected);
        shard_backward(loss);
        check("the loss", loss, expected);
        check("the features' gradient", shard_grad(x2), shard_grad(x1));
        check("the weight's gradient", shard_grad(split), shard_narrow(shard_grad(whole), 0, part.start, part.size));
    }
    if (shard_agree(group) == SHARD_OK && shard_group_rank(group) == 0)
        printf("%s: the same on %d rank(s) as on one\n", name, shard_group_size(group));
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    compare(cosface_loss, "CosFace", shard_mesh_model_group(mesh));
    compare(hinge_loss, "hinge loss", shard_mesh_model_group(mesh));
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
