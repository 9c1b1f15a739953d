/*
 * Groups of the program's choice in place of a mesh: two layers are split over pairs of ranks, the first rank with the last
 * one, the second with the last but one. The pairs are replicas and train on different samples. For an even number of ranks, or
 * one.
 *
 *     shardrun -n 4 build/release/examples/example_groups
 * Prints:
 *     loss 0.0330
 */
#include <shard/shard.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    int ranks = shard_group_size(shard_world()), rank = shard_group_rank(shard_world());
    int number = rank < ranks - 1 - rank ? rank : ranks - 1 - rank;                   /* of this rank's pair */
    shard_group *pair = shard_group_split(shard_world(), number);                     /* of four ranks {0, 3} or {1, 2} */
    shard_group *replicas = shard_group_split(shard_world(), shard_group_rank(pair)); /* {0, 1} or {2, 3}: the same shards */
    shard_group_set_replicas(pair, replicas); /* before the layers are made, whose gradients are averaged over `replicas` */

    shard_module *model = shard_nn_sequential(shard_nn_parallel_linear(8, 64, SHARD_SPLIT_COLUMN, pair), shard_nn_gelu(),
                                              shard_nn_parallel_linear(64, 4, SHARD_SPLIT_ROW, pair));
    shard_data_parallel *data_parallel = shard_data_parallel_create(model);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1, .momentum = 0.9);
    double mean = 0;
    for (int step = 0; step < 20; step++)
        SHARD_SCOPE
        {
            shard_manual_seed(2); /* the same 12 samples each time, of which each pair takes a range */
            shard_tensor *x = shard_slice(shard_normal(SHARD_SHAPE(12, 8), 0.0, 1.0), 0, shard_group_size(replicas), number);
            shard_tensor *y = shard_tanh(shard_narrow(x, 1, 0, 4));
            shard_tensor *loss = shard_mse_loss(shard_forward(model, x), y);
            shard_backward(loss);
            shard_step(sgd);
            shard_all_reduce(loss, SHARD_SUM, replicas);
            mean = shard_item(loss) / shard_group_size(replicas);
        }
    if (rank == 0)
        printf("loss %.4f\n", mean);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
    shard_group_destroy(pair); /* groups after everything that is placed on them */
    shard_group_destroy(replicas);
    return shard_finalize();
}
