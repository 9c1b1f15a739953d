/*
 * A mesh of three named axes, 2 x 2 x 2 on eight ranks: a hidden pair of layers is split over the axis "width", the last
 * layer over the axis "classes", and ranks along the axis "data" train on different samples.
 *
 *     shardrun -n 8 build/release/examples/example_mesh_axes
 * Prints:
 *     loss 0.7945
 */
#include <shard/shard.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    int ranks = shard_group_size(shard_world());
    shard_mesh *mesh = shard_mesh_create(.axes = {{"data", -1},
                                                  {"width", ranks % 4 == 0 ? 2 : 1},
                                                  {"classes", ranks % 2 == 0 ? 2 : 1}}); /* -1: the rest */
    shard_group *width = shard_mesh_group(mesh, "width"), *classes = shard_mesh_group(mesh, "classes");
    shard_module *model = shard_nn_sequential(shard_nn_parallel_linear(20, 64, SHARD_SPLIT_COLUMN, width), shard_nn_gelu(),
                                              shard_nn_parallel_linear(64, 32, SHARD_SPLIT_ROW, width), shard_nn_relu(),
                                              shard_nn_parallel_linear(32, 50, SHARD_SPLIT_COLUMN, classes));
    shard_data_parallel *data_parallel = shard_data_parallel_create(model); /* over each parameter's replicas */
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1);
    shard_group *data = shard_mesh_group(mesh, "data");
    int replicas = shard_group_size(data), replica = shard_mesh_coordinate(mesh, "data");
    double mean = 0;
    for (int step = 0; step < 20; step++)
        SHARD_SCOPE
        {
            shard_manual_seed(1); /* the same four samples each time */
            shard_tensor *x = shard_normal(SHARD_SHAPE(4, 20), 0.0, 1.0);
            shard_tensor *labels = shard_from_host((int64_t[]){3, 14, 15, 49}, SHARD_SHAPE(4), .dtype = SHARD_INT64);
            x = shard_slice(x, 0, replicas, replica);
            labels = shard_slice(labels, 0, replicas, replica);
            shard_tensor *loss = shard_parallel_cross_entropy(shard_forward(model, x), labels);
            shard_backward(loss);
            shard_step(sgd);
            shard_all_reduce(loss, SHARD_SUM, data);
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
