/*
 * A batch that is split over one axis of a mesh and classes that are split over the other, 2 x 2 on four ranks: each rank has
 * the logits of its rows and its classes. Neither rows nor classes are gathered. The sum of the losses over the axis of the rows
 * is the loss of the whole batch, also where ranks have different numbers of rows.
 *
 *     shardrun -n 4 build/release/examples/example_split_batch
 * Prints:
 *     loss 0.065
 */
#include <shard/shard.h>
#include <stdio.h>

enum { ROWS = 5, FEATURES = 20, HIDDEN = 32, CLASSES = 50 };

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    int ranks = shard_group_size(shard_world());
    shard_mesh *mesh = shard_mesh_create(.axes = {{"rows", -1}, {"classes", ranks % 2 == 0 ? 2 : 1}});
    shard_group *rows = shard_mesh_group(mesh, "rows"), *classes = shard_mesh_group(mesh, "classes");
    shard_module *model = shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN), shard_nn_relu(),
                                              shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, classes));
    shard_data_parallel *data_parallel = shard_data_parallel_create(model);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.2);
    double mean = 0;
    for (int step = 0; step < 20; step++)
        SHARD_SCOPE
        {
            shard_manual_seed(1); /* the same five samples each time */
            shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, FEATURES), 0.0, 1.0);
            shard_tensor *labels = shard_from_host((int64_t[]){3, 14, 15, 9, 49}, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
            x = shard_slice(x, 0, shard_group_size(rows), shard_group_rank(rows)); /* of two ranks: 3 rows and 2 */
            labels = shard_slice(labels, 0, shard_group_size(rows), shard_group_rank(rows));
            shard_tensor *logits = shard_forward(model, x); /* [this rank's rows, 50], split along the classes */
            shard_tensor *loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM); /* of these rows */
            loss = shard_scale(shard_reduce_from_group(loss, rows), 1.0 / ROWS); /* the mean of the batch, on all ranks */
            shard_backward(loss); /* data parallel sums the gradients over the axis of the rows: they are parts of one loss */
            shard_step(sgd);
            mean = shard_item(loss);
        }
    if (shard_group_rank(shard_world()) == 0)
        printf("loss %.3f\n", mean);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
