/*
 * A model's last layer becomes a parallel one after the model was made. The logits stay the same.
 *
 *     shardrun -n 2 build/release/examples/example_convert_layer
 * Prints:
 *     converted 1 layer, largest difference of a logit below 1e-5: yes
 */
#include <shard/shard.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model = shard_nn_sequential(shard_nn_linear(16, 32), shard_nn_relu(), shard_nn_linear(32, 1001));
    int converted = 0;
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(8, 16), 0.0, 1.0);
        shard_tensor *before = shard_forward(model, x);
        /* "2" is the name of the last layer; with "fc" the same call converts the last layer of a ResNet. */
        shard_convert_parallel_linear(&model, "2", SHARD_SPLIT_COLUMN, group, &converted);
        shard_tensor *logits = shard_forward(model, x); /* of this rank's classes */
        shard_tensor *after =
            shard_tensor_placement(logits).kind == SHARD_SPLIT ? shard_gather_from_group(logits, -1, group) : logits;
        shard_tensor *difference = shard_abs(shard_sub(before, after));
        double largest = shard_item(shard_max_dim(shard_flatten(difference, 0, 1), 0, false, NULL));
        if (shard_group_rank(group) == 0)
            printf("converted %d layer, largest difference of a logit below 1e-5: %s\n", converted,
                   largest < 1e-5 ? "yes" : "no");
    }
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
