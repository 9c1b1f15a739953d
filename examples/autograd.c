/*
 * Tensors and gradients: fits y = 3 x - 2 by gradient descent. Each rank computes the same.
 *
 *     shardrun -n 2 build/release/examples/example_autograd
 * Prints:
 *     slope 3.00, offset -2.00
 */
#include <shard/shard.h>
#include <stdio.h>

/* leaf -= rate * gradient */
static void descend(shard_tensor *leaf, double rate)
{
    float value = (float)(shard_item(leaf) - rate * shard_item(shard_grad(leaf)));
    shard_copy_from_host(leaf, &value, sizeof value);
    shard_zero_grad(leaf);
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_tensor *x = shard_from_host((float[]){0, 1, 2, 3}, SHARD_SHAPE(4));
    shard_tensor *y = shard_from_host((float[]){-2, 1, 4, 7}, SHARD_SHAPE(4));
    shard_tensor *slope = shard_zeros(SHARD_SCALAR, .requires_grad = true);
    shard_tensor *offset = shard_zeros(SHARD_SCALAR, .requires_grad = true);
    for (int step = 0; step < 200; step++) {
        SHARD_SCOPE
        { /* frees the tensors that are made inside */
            shard_tensor *line = shard_add(shard_mul(x, slope), offset);
            shard_backward(shard_mse_loss(line, y));
        }
        descend(slope, 0.1);
        descend(offset, 0.1);
    }
    if (shard_group_rank(shard_world()) == 0)
        printf("slope %.2f, offset %.2f\n", shard_item(slope), shard_item(offset));
    shard_release(offset);
    shard_release(slope);
    shard_release(y);
    shard_release(x);
    return shard_finalize();
}
