/*
 * A last layer that trains without its logits and without the gradient of its weight in memory, next to a plain one with
 * the same initial values: the same losses.
 *
 *     shardrun -n 2 build/release/examples/example_classifier
 * Prints:
 *     plain layer: losses 10.006 9.839 9.679
 *     classifier:  losses 10.006 9.839 9.679
 *     memory for gradients, less than a quarter of the plain layer's: yes
 */
#include <shard/shard.h>
#include <stdio.h>

enum { ROWS = 4, FEATURES = 16, HIDDEN = 32, CLASSES = 20000, STEPS = 3 };

/* Trains a model with this last layer. Returns the largest number of bytes of gradients. */
static int64_t train(shard_module *last, double losses[STEPS])
{
    shard_device *device = shard_device_open(NULL);
    shard_module *model = shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN), shard_nn_relu(), last);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1, .momentum = 0.9);
    shard_reset_peak_memory(device);
    for (int step = 0; step < STEPS; step++)
        SHARD_SCOPE
        {
            shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, FEATURES), 0.0, 1.0);
            shard_tensor *labels = shard_from_host((int64_t[]){7, 512, 9999, 19999}, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
            /* Of a classifier the forward returns a tensor without memory, and the loss goes over the weight in tiles. */
            shard_tensor *loss = shard_cross_entropy(shard_forward(model, x), labels);
            shard_backward(loss);
            shard_step(sgd); /* of a classifier: computes the gradient of some rows at a time, and updates these */
            losses[step] = shard_item(loss);
        }
    int64_t peak = shard_get_memory_by_kind(device, SHARD_MEMORY_GRADIENTS).peak;
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    return peak;
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    double plain[STEPS] = {0}, fused[STEPS] = {0};
    shard_manual_seed(1);
    int64_t plain_bytes = train(shard_nn_parallel_linear(HIDDEN, CLASSES, SHARD_SPLIT_COLUMN, shard_world()), plain);
    shard_manual_seed(1); /* the same initial values and samples */
    int64_t fused_bytes = train(shard_nn_parallel_classifier(HIDDEN, CLASSES, shard_world()), fused);
    if (shard_group_rank(shard_world()) == 0) {
        printf("plain layer: losses %.3f %.3f %.3f\n", plain[0], plain[1], plain[2]);
        printf("classifier:  losses %.3f %.3f %.3f\n", fused[0], fused[1], fused[2]);
        printf("memory for gradients, less than a quarter of the plain layer's: %s\n",
               4 * fused_bytes < plain_bytes ? "yes" : "no");
    }
    return shard_finalize();
}
