/*
 * Template of one's own parallel loss, on logits whose classes are split over a group
 * (the result of a column-split layer), in the two ways there are:
 *
 *   margin_loss  changes the own logits, then hands them to the parallel cross-entropy:
 *                CosFace (Wang and others, CVPR 2018), scale * (logit - margin of the
 *                label's class). Nothing is to be said about other ranks.
 *   hinge_loss   has its own reduction: the squared one-against-all hinge. The sum over
 *                a split tensor is PARTIAL, and shard_reduce makes it whole.
 *
 * To make another loss: find the logits' part of the classes in their placement, make
 * what each class needs for that part only (own_targets), mark it as split like the
 * logits (shard_as_split), and end in one of the two ways. The same code runs on logits
 * that are whole. Gradients need nothing further.
 *
 * Run on any number of ranks, the program compares split losses with whole ones:
 *     shardrun -n 3 parallel_loss
 */
#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the losses ---- */

/* [rows, own classes], placed like the logits: `label` in the columns of the rows' labels, `other` in the rest. */
static shard_tensor *own_targets(shard_tensor *logits, const int64_t *labels, float label, float other)
{
    if (!logits)
        return NULL;
    shard_placement placement = shard_tensor_placement(logits);
    int64_t rows = shard_tensor_size(logits, 0), classes = shard_tensor_size(logits, 1);
    int64_t first = placement.kind == SHARD_SPLIT ? placement.start : 0;
    float *values = malloc(sizeof *values * (size_t)(rows * classes) + 1);
    if (!values) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the targets");
        return NULL;
    }
    for (int64_t row = 0; row < rows; row++)
        for (int64_t i = 0; i < classes; i++)
            values[row * classes + i] = first + i == labels[row] ? label : other;
    shard_tensor *targets = shard_from_host(values, SHARD_SHAPE(rows, classes));
    free(values);
    return placement.kind == SHARD_SPLIT ? shard_as_split(targets, 1, placement.group, first, placement.whole) : targets;
}

static shard_tensor *margin_loss(shard_tensor *logits, const int64_t *labels, double scale, double margin)
{
    int64_t rows = shard_tensor_size(logits, 0);
    shard_tensor *changed = shard_scale(shard_add(logits, own_targets(logits, labels, (float)-margin, 0)), scale);
    return shard_parallel_cross_entropy(changed, shard_from_host(labels, SHARD_SHAPE(rows), .dtype = SHARD_INT64));
}

/* Mean over the rows of the sum over all classes of max(0, 1 - sign * logit)^2; sign is 1
 * for the label and -1 for the rest. */
static shard_tensor *hinge_loss(shard_tensor *logits, const int64_t *labels)
{
    shard_tensor *minus_sign = own_targets(logits, labels, -1, 1), *ones = own_targets(logits, labels, 1, 1);
    shard_tensor *violation = shard_relu(shard_add(shard_mul(logits, minus_sign), ones));
    shard_tensor *sum = shard_sum(shard_mul(violation, violation));
    if (shard_tensor_placement(sum).kind == SHARD_PARTIAL)
        sum = shard_reduce(sum, shard_tensor_placement(logits).group);
    return shard_scale(sum, 1 / fmax(1, (double)shard_tensor_size(logits, 0)));
}

/* ---- the same on all ranks as on one? ---- */

enum { ROWS = 6, IN = 5, CLASSES = 11, MOST = 128 /* elements compared at once */ }; /* uneven on two ranks and on three */

static const int64_t labels[ROWS] = {0, 10, 4, 4, 7, 3};

static shard_tensor *loss_of(shard_tensor *logits, bool hinge)
{
    return hinge ? hinge_loss(logits, labels) : margin_loss(logits, labels, 8, 0.35);
}

/* The loss of a layer's result; leaves the gradients. */
static double run(shard_module *layer, shard_tensor *x, bool hinge)
{
    shard_tensor *loss = loss_of(shard_forward(layer, x), hinge);
    shard_backward(loss);
    return shard_item(loss);
}

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

static void check(const char *what, double difference)
{
    if (!(difference <= 1e-5))
        shard_error(SHARD_ERROR_INTERNAL, "%s differs by %g from the whole logits'", what, difference);
}

static void compare(bool hinge, const char *name, shard_group *group)
{
    shard_manual_seed(1);
    shard_module *whole = shard_nn_linear(IN, CLASSES);
    shard_manual_seed(1); /* the same values again */
    shard_module *parts = shard_nn_parallel_linear(IN, CLASSES, SHARD_SPLIT_COLUMN, group);
    shard_tensors *expected = shard_parameters(whole), *got = shard_parameters(parts);
    SHARD_SCOPE
    {
        shard_manual_seed(2);
        shard_tensor *x1 = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .requires_grad = true);
        shard_manual_seed(2);
        shard_tensor *x2 = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .requires_grad = true);
        double loss1 = run(whole, x1, hinge), loss2 = run(parts, x2, hinge);
        check("the loss", fabs(loss1 - loss2));
        check("the input's gradient", largest_difference(shard_grad(x1), shard_grad(x2)));
        shard_tensors *gradients = shard_tensors_create();
        for (int64_t i = 0; i < shard_tensors_count(expected); i++)
            shard_tensors_add(gradients, shard_tensors_name(expected, i), shard_grad(shard_tensors_at(expected, i)));
        shard_tensors *own = shard_relocate_state_dict(got, gradients);
        for (int64_t i = 0; i < shard_tensors_count(got); i++)
            check(shard_tensors_name(got, i), largest_difference(shard_grad(shard_tensors_at(got, i)), shard_tensors_at(own, i)));
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
    compare(false, "margin loss", shard_mesh_model_group(mesh));
    compare(true, "hinge loss", shard_mesh_model_group(mesh));
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
