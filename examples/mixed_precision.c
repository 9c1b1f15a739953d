/*
 * Mixed precision: the forward in float16, float32 weights, a gradient scaler. With bfloat16 the scaler is not needed.
 *
 *     shardrun -n 2 build/release/examples/example_mixed_precision
 * Prints:
 *     the loss fell below 0.1: yes, steps skipped: 0, scale 1024
 */
#include <shard/shard.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    shard_module *model =
        shard_nn_sequential(shard_nn_linear(20, 32), shard_nn_relu(),
                            shard_nn_parallel_linear(32, 100, SHARD_SPLIT_COLUMN, shard_mesh_model_group(mesh)));
    shard_optimizer *adam = shard_adam(model, .lr = 0.01);
    shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 1024);
    double last = 0;
    int skipped = 0;
    for (int step = 0; step < 60; step++) {
        SHARD_SCOPE
        {
            shard_manual_seed(1);
            shard_tensor *x = shard_normal(SHARD_SHAPE(4, 20), 0.0, 1.0), *loss = NULL;
            shard_tensor *labels = shard_from_host((int64_t[]){3, 42, 77, 99}, SHARD_SHAPE(4), .dtype = SHARD_INT64);
            SHARD_AUTOCAST(SHARD_FLOAT16)
            {
                loss = shard_parallel_cross_entropy(shard_forward(model, x), labels);
            }
            shard_backward(shard_grad_scaler_scale(scaler, loss));
            last = shard_item(loss);
        }
        shard_grad_scaler_step(scaler, adam); /* skips the step if a gradient is infinite or NaN on some rank */
        shard_grad_scaler_update(scaler);
        skipped += shard_optimizer_skipped(adam);
    }
    if (shard_group_rank(shard_world()) == 0)
        printf("the loss fell below 0.1: %s, steps skipped: %d, scale %g\n", last < 0.1 ? "yes" : "no", skipped,
               shard_grad_scaler_get_scale(scaler));
    shard_grad_scaler_destroy(scaler);
    shard_optimizer_destroy(adam);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
