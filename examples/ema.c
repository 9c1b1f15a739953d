/*
 * Averaged weights and a schedule: the learning rate of each step is a function of the step, and an exponential moving average
 * of the weights is evaluated in place of the weights themselves. Targets are noisy, so that the average is better.
 *
 *     shardrun -n 2 build/release/examples/example_ema
 * Prints:
 *     rates 0.02, 0.20, ..., 0.05
 *     error of the weights 0.509, of their average 0.196
 */
#include <shard/shard.h>
#include <stdio.h>

enum { STEPS = 200, ROWS = 4, IN = 16, OUT = 8 };

/* The targets are the first OUT features, which a weight with ones on its diagonal gives. */
static shard_tensor *loss_of(shard_module *model, int64_t rows, double noise)
{
    shard_tensor *x = shard_normal(SHARD_SHAPE(rows, IN), 0.0, 1.0);
    shard_tensor *y = shard_add(shard_narrow(x, 1, 0, OUT), shard_normal(SHARD_SHAPE(rows, OUT), 0.0, noise));
    return shard_mse_loss(shard_forward(model, x), y);
}

static double evaluate(shard_module *model)
{
    double value = 0;
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        value = shard_item(loss_of(model, 64, 0.0));
    }
    return value;
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_module *model = shard_nn_parallel_linear(IN, OUT, SHARD_SPLIT_ROW, shard_world());
    shard_optimizer *sgd = shard_sgd(model, .momentum = 0.9);
    shard_ema *ema = shard_ema_create(sgd, .decay = 0.95); /* each rank averages its columns of the weight */
    const shard_schedule schedule =
        SHARD_SCHEDULE(.kind = SHARD_SCHEDULE_COSINE, .base_lr = 0.2, .final_lr = 0.05, .warmup_steps = 10, .total_steps = STEPS);
    for (int step = 0; step < STEPS; step++)
        SHARD_SCOPE
        {
            shard_optimizer_set_lr(sgd, shard_schedule_lr(&schedule, step));
            shard_backward(loss_of(model, ROWS, 1.0));
            shard_step(sgd);
            shard_ema_update(ema);
        }
    shard_random_state samples = shard_get_random_state(); /* the same samples for both evaluations */
    double trained = evaluate(model);
    shard_ema_swap(ema); /* the averages are in the parameters' place */
    shard_set_random_state(samples);
    double averaged = evaluate(model);
    shard_ema_swap(ema); /* and back, before training goes on or the averages are destroyed */
    if (shard_group_rank(shard_world()) == 0) {
        printf("rates %.2f, %.2f, ..., %.2f\n", shard_schedule_lr(&schedule, 0), shard_schedule_lr(&schedule, 9),
               shard_schedule_lr(&schedule, STEPS - 1));
        printf("error of the weights %.3f, of their average %.3f\n", trained, averaged);
    }
    shard_ema_destroy(ema);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    return shard_finalize();
}
