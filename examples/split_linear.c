/*
 * Two linear layers split by hand, as in Megatron-LM: the first by columns (outputs), the second by
 * rows (inputs), with one communication between them in forward and one in backward.
 *
 *     shardrun -n 2 build/release/examples/example_split_linear
 * Prints:
 *     result 3.1285, gradient 2.7105
 */
#include <shard/shard.h>
#include <stdio.h>

/* This rank's shard of a weight [out, in] that is split along dim. Values depend on the element's index in
 * the whole weight, so that they are the same for any number of ranks. */
static shard_tensor *split_weight(int64_t out, int64_t in, int dim, shard_group *group)
{
    shard_range range = shard_split_range(dim == 0 ? out : in, shard_group_size(group), shard_group_rank(group));
    shard_shape shape = dim == 0 ? SHARD_SHAPE(range.size, in) : SHARD_SHAPE(out, range.size);
    shard_tensor *shard = shard_uniform(shape, -1.0, 1.0);
    shard_tensor *weight = shard_as_split(shard, dim, group, range.start, dim == 0 ? out : in);
    shard_set_requires_grad(weight, true);
    return weight;
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_group *group = shard_world();
    shard_manual_seed(1);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(4, 6), 0.0, 1.0, .requires_grad = true);
        shard_tensor *up = split_weight(10, 6, 0, group), *down = split_weight(3, 10, 1, group);
        shard_tensor *hidden = shard_linear(shard_copy_to_group(x, group), up, NULL); /* [4, 10], split along 1 */
        shard_tensor *y = shard_linear(shard_relu(hidden), down, NULL);               /* [4, 3], partial */
        y = shard_reduce_from_group(y, group);                                        /* [4, 3], the sum */
        shard_tensor *loss = shard_mean(shard_mul(y, y));
        shard_backward(loss);
        shard_tensor *gradient = shard_grad(x); /* summed over the group by the copy's backward */
        double norm = shard_item(shard_sqrt(shard_sum(shard_mul(gradient, gradient))));
        if (shard_group_rank(group) == 0)
            printf("result %.4f, gradient %.4f\n", shard_item(loss), norm);
    }
    return shard_finalize();
}
