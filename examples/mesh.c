/*
 * A mesh of data x model ranks, 2 x 2 on four ranks: the last layer is split over the model group, and the model
 * groups are replicas that train on different samples.
 *
 *     shardrun -n 4 build/release/examples/example_mesh
 * Prints:
 *     loss 0.2552
 */
#include <shard/shard.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()) % 2 == 0 ? 2 : 1);
    shard_group *model_group = shard_mesh_model_group(mesh), *data_group = shard_mesh_data_group(mesh);
    shard_module *model = shard_nn_sequential(shard_nn_linear(20, 32), shard_nn_relu(),
                                              shard_nn_parallel_linear(32, 50, SHARD_SPLIT_COLUMN, model_group));
    shard_data_parallel *data_parallel = shard_data_parallel_create(model);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1);
    int replicas = shard_group_size(data_group), replica = shard_group_rank(data_group);
    double mean = 0;
    for (int step = 0; step < 20; step++)
        SHARD_SCOPE
        {
            shard_manual_seed(1); /* the same four samples each time */
            shard_tensor *x = shard_normal(SHARD_SHAPE(4, 20), 0.0, 1.0);
            shard_tensor *labels = shard_from_host((int64_t[]){3, 14, 15, 49}, SHARD_SHAPE(4), .dtype = SHARD_INT64);
            x = shard_slice(x, 0, replicas, replica); /* this model group's samples */
            labels = shard_slice(labels, 0, replicas, replica);
            shard_tensor *loss = shard_parallel_cross_entropy(shard_forward(model, x), labels);
            shard_backward(loss);
            shard_step(sgd);
            shard_all_reduce(loss, SHARD_SUM, data_group);
            mean = shard_item(loss) / replicas;
        }
    if (shard_group_rank(shard_world()) == 0)
        printf("loss %.4f\n", mean);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
