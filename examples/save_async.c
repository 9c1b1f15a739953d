/*
 * A checkpoint that is written in the background: the save copies the values and returns, training goes on, and the file has
 * the values of the moment of the call.
 *
 *     shardrun -n 2 build/release/examples/example_save_async
 * Prints:
 *     the file has the loss of step 5: yes, that of step 20: no
 */
#include <shard/shard.h>
#include <stdio.h>

enum { STEPS = 20, SAVED = 5 };

static shard_tensor *loss_of(shard_module *model)
{
    shard_tensor *x = shard_ones(SHARD_SHAPE(2, 8));
    shard_tensor *labels = shard_from_host((int64_t[]){7, 29}, SHARD_SHAPE(2), .dtype = SHARD_INT64);
    return shard_cross_entropy(shard_forward(model, x), labels);
}

static double evaluate(shard_module *model)
{
    double value = 0;
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        value = shard_item(loss_of(model));
    }
    return value;
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_module *model =
        shard_nn_sequential(shard_nn_linear(8, 16), shard_nn_parallel_linear(16, 30, SHARD_SPLIT_COLUMN, shard_world()));
    shard_optimizer *sgd = shard_sgd(model, .lr = 0.1);
    shard_tensors *state = shard_state_dict(model);
    shard_async_save *save = NULL;
    double at_save = 0;
    bool done = false; /* the same on all ranks */
    for (int step = 0; step < STEPS; step++) {
        if (step == SAVED) {
            at_save = evaluate(model);
            save = shard_save_async(state, "async.safetensors", NULL); /* each rank copies its rows, and a thread writes them */
        }
        SHARD_SCOPE
        {
            shard_backward(loss_of(model));
            shard_step(sgd);
        }
        if (save && !done)
            shard_async_save_poll(save, &done); /* does not wait for the disk; all ranks call it */
    }
    double at_end = evaluate(model);
    shard_async_save_finish(save); /* waits, unless a poll has found the save complete; an error of the save is returned here */

    shard_load(state, "async.safetensors");
    double loaded = evaluate(model);
    if (shard_group_rank(shard_world()) == 0)
        printf("the file has the loss of step %d: %s, that of step %d: %s\n", SAVED, loaded == at_save ? "yes" : "no", STEPS,
               loaded == at_end ? "yes" : "no");
    shard_tensors_destroy(state);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    return shard_finalize();
}
