/*
 * An operation of the program's own, y = x^3, with its forward and backward; as torch.autograd.Function.
 *
 *     shardrun -n 2 build/release/examples/example_custom_op
 * Prints:
 *     y = 1 8 27, gradient = 3 12 27
 */
#include <shard/shard.h>
#include <stdio.h>

static shard_tensor *cube_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    shard_custom_op_save(op, 0, input[0]); /* for the backward */
    return shard_pow_scalar(input[0], 3);
}

static shard_status cube_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    shard_tensor *x = shard_custom_op_saved(op, 0);
    if (shard_custom_op_wants_gradient(op, 0))
        dx[0] = shard_mul(dy, shard_scale(shard_mul(x, x), 3));
    return shard_last_status();
}

static const shard_custom_op_type cube_type = {.name = "cube", .forward = cube_forward, .backward = cube_backward};

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    SHARD_SCOPE
    {
        float x[3] = {1, 2, 3}, y[3] = {0}, dx[3] = {0};
        shard_tensor *leaf = shard_from_host(x, SHARD_SHAPE(3), .requires_grad = true);
        shard_tensor *result = shard_custom_op_apply(&cube_type, NULL, leaf);
        shard_backward(shard_sum(result));
        shard_copy_to_host(result, y, sizeof y);
        shard_copy_to_host(shard_grad(leaf), dx, sizeof dx);
        if (shard_group_rank(shard_world()) == 0)
            printf("y = %g %g %g, gradient = %g %g %g\n", y[0], y[1], y[2], dx[0], dx[1], dx[2]);
    }
    return shard_finalize();
}
