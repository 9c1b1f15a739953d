/*
 * ZeRO: without it, and with optimizer state, gradients and parameters partitioned over the ranks. Each stage needs
 * less memory than the one before it and has the same result.
 *
 *     shardrun -n 2 build/release/examples/example_zero
 * Prints:
 *     stage 0: loss 0.0123
 *     stage 1: loss 0.0123
 *     stage 2: loss 0.0123
 *     stage 3: loss 0.0123
 */
#include <shard/shard.h>
#include <stdio.h>

static double train(int stage)
{
    shard_manual_seed(1); /* the same initial values each time */
    shard_module *model = shard_nn_sequential(shard_nn_linear(8, 64), shard_nn_relu(), shard_nn_linear(64, 4));
    shard_optimizer *adam = shard_adam(model, .lr = 0.01);
    shard_data_parallel *data_parallel = NULL;
    if (stage > 0)
        adam = shard_zero_optimizer(adam, .stage = stage); /* averages gradients, too */
    else
        data_parallel = shard_data_parallel_create(model);
    int ranks = shard_group_size(shard_world()), rank = shard_group_rank(shard_world());
    double mean = 0;
    for (int step = 0; step < 20; step++)
        SHARD_SCOPE
        {
            shard_manual_seed(2); /* the same 12 samples each time, of which each rank takes a range */
            shard_tensor *x = shard_slice(shard_normal(SHARD_SHAPE(12, 8), 0.0, 1.0), 0, ranks, rank);
            shard_tensor *y = shard_tanh(shard_narrow(x, 1, 0, 4));
            shard_tensor *loss = shard_mse_loss(shard_forward(model, x), y);
            shard_backward(loss);
            shard_step(adam);
            shard_all_reduce(loss, SHARD_SUM, shard_world());
            mean = shard_item(loss) / ranks;
        }
    shard_optimizer_destroy(adam);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
    return mean;
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    for (int stage = 0; stage <= 3; stage++) {
        double loss = train(stage);
        if (shard_group_rank(shard_world()) == 0)
            printf("stage %d: loss %.4f\n", stage, loss);
    }
    return shard_finalize();
}
