/*
 * A loss as one operation with its own backward, on logits that are split by classes: the cross-entropy with a z-loss. The
 * backward needs the logits, the labels and one number of each row, and no communication. Loss and gradients are compared with
 * those of the library's operation, which each rank computes of all classes.
 *
 *     shardrun -n 2 build/release/examples/example_fused_loss
 * Prints:
 *     loss 14.363, of all classes on one rank 14.363; the same gradients
 */
#include <shard/shard.h>
#include <stdio.h>

enum { ROWS = 4, FEATURES = 16, CLASSES = 1000, NO_LABEL = -100 };

/* The mean over the rows of lse - logit of the label + z_loss * lse^2, where lse = log(sum(exp(logits))). */
static shard_tensor *loss_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    const double *z_loss = shard_custom_op_context(op);
    shard_tensor *logits = input[0], *labels = input[1];
    shard_tensor *lse = shard_logsumexp(logits, -1, true);              /* [rows, 1], the same on all ranks */
    shard_tensor *picked = shard_pick_labels(logits, labels, NO_LABEL); /* [rows], partial: one rank has the label's class */
    picked = shard_reduce_from_group(picked, shard_tensor_placement(logits).group); /* the group of local logits is NULL */
    shard_custom_op_save(op, 0, logits);
    shard_custom_op_save(op, 1, lse);
    shard_custom_op_save(op, 2, labels);
    shard_tensor *loss = shard_sub(lse, shard_reshape(picked, SHARD_SHAPE(-1, 1)));
    return shard_mean(shard_add(loss, shard_scale(shard_mul(lse, lse), *z_loss)));
}

/* dloss / rows * (softmax * (1 + 2 * z_loss * lse) - [class == label]) */
static shard_status loss_backward(shard_custom_op *op, shard_tensor *dloss, int inputs, shard_tensor **dx)
{
    (void)inputs;
    const double *z_loss = shard_custom_op_context(op);
    shard_tensor *logits = shard_custom_op_saved(op, 0), *lse = shard_custom_op_saved(op, 1);
    shard_tensor *softmax = shard_exp(shard_sub(logits, lse)); /* [rows, this rank's classes], split as the logits */
    shard_tensor *gradient = shard_mul(softmax, shard_add_scalar(shard_scale(lse, 2 * *z_loss), 1));
    gradient = shard_add_at_labels(gradient, shard_custom_op_saved(op, 2), NULL, -1, NO_LABEL);
    dx[0] = shard_mul(gradient, shard_scale(dloss, 1.0 / (double)shard_numel(lse))); /* dx[1]: labels have no gradient */
    return shard_last_status();
}

static const shard_custom_op_type loss_type = {.name = "fused_loss", .forward = loss_forward, .backward = loss_backward};

/* The distance of a local tensor and the local values of b. */
static double distance(shard_tensor *a, shard_tensor *b)
{
    shard_tensor *difference = shard_sub(shard_detach(a), shard_as_placed(shard_detach(b), (shard_placement){0}));
    return shard_item(shard_sqrt(shard_sum(shard_mul(difference, difference))));
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    static double z_loss = 1e-2;
    shard_group *group = shard_world();
    shard_range range = shard_split_range(CLASSES, shard_group_size(group), shard_group_rank(group));
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host((int64_t[]){7, 512, 999, 0}, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, FEATURES), 0, 1, .requires_grad = true), *y = shard_detach(x);
        shard_tensor *whole = shard_normal(SHARD_SHAPE(CLASSES, FEATURES), 0, 1, .requires_grad = true);
        shard_tensor *part = shard_narrow(shard_detach(whole), 0, range.start, range.size);
        part = shard_as_split(part, 0, group, range.start, CLASSES);
        shard_set_requires_grad(y, true);
        shard_set_requires_grad(part, true);
        shard_tensor *expected = shard_cross_entropy(shard_linear(x, whole, NULL), labels, .z_loss = z_loss);
        shard_tensor *loss = shard_custom_op_apply(&loss_type, &z_loss, shard_linear(y, part, NULL), labels);
        shard_backward(expected);
        shard_backward(loss);
        double of_x = distance(shard_grad(x), shard_grad(y));
        double of_weight = distance(shard_narrow(shard_grad(whole), 0, range.start, range.size), shard_grad(part));
        if (!(of_x < 1e-5 && of_weight < 1e-5))
            shard_error(SHARD_ERROR_INTERNAL, "gradients are %g and %g from those of all classes", of_x, of_weight);
        if (shard_agree(group) == SHARD_OK && shard_group_rank(group) == 0)
            printf("loss %.3f, of all classes on one rank %.3f; the same gradients\n", shard_item(loss), shard_item(expected));
    }
    return shard_finalize();
}
