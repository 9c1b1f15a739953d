/*
 * Data parallel training: each rank computes on its samples of every batch, gradients are averaged while backward
 * runs. The result is that of one process on the whole batch.
 *
 *     shardrun -n 2 build/release/examples/example_data_parallel
 * Prints:
 *     loss 0.0407
 */
#include <shard/shard.h>
#include <math.h>
#include <stdio.h>

enum { SAMPLES = 24, BATCH = 12, FEATURES = 5, EPOCHS = 6 };

/* Sample i: features, and a target that depends on them. */
static void load(const int64_t *samples, int64_t count, shard_tensor **x, shard_tensor **y)
{
    float features[BATCH * FEATURES], targets[BATCH] = {0};
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < FEATURES; j++) {
            features[i * FEATURES + j] = (float)sin((double)(samples[i] * (j + 3)));
            targets[i] += features[i * FEATURES + j] / 2;
        }
    *x = shard_from_host(features, SHARD_SHAPE(count, FEATURES));
    *y = shard_from_host(targets, SHARD_SHAPE(count, 1));
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_module *model = shard_nn_sequential(shard_nn_linear(FEATURES, 16), shard_nn_relu(), shard_nn_linear(16, 1));
    shard_data_parallel *data_parallel = shard_data_parallel_create(model);
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.05, .momentum = 0.9);
    shard_group_sampler *sampler = shard_group_sampler_create(SAMPLES, .batch = BATCH, .group = shard_world(), .shuffle = true);
    double mean = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        int64_t samples[BATCH], count;
        shard_group_sampler_set_epoch(sampler, epoch);
        while (shard_group_sampler_next(sampler, samples, &count))
            SHARD_SCOPE
            {
                shard_tensor *x, *y;
                load(samples, count, &x, &y);
                shard_tensor *loss = shard_mse_loss(shard_forward(model, x), y);
                shard_backward(loss); /* and averages gradients over the ranks */
                shard_step(sgd);
                shard_all_reduce(loss, SHARD_SUM, shard_world());
                mean = shard_item(loss) / shard_group_size(shard_world());
            }
    }
    if (shard_group_rank(shard_world()) == 0)
        printf("loss %.4f\n", mean);
    shard_group_sampler_destroy(sampler);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(data_parallel);
    shard_module_destroy(model);
    return shard_finalize();
}
