/*
 * A checkpoint: a split model, its optimizer's state and a step number in one safetensors file. The file does not depend
 * on the number of ranks.
 *
 *     shardrun -n 2 build/release/examples/example_checkpoint
 * Prints:
 *     saved at step 5, loaded at step 5
 *     the next loss is the same: yes
 */
#include <shard/shard.h>
#include <stdio.h>

typedef struct run {
    shard_module *model;
    shard_optimizer *adam;
    shard_tensors *state;
} run;

static run make_run(shard_group *group, uint64_t seed)
{
    shard_manual_seed(seed);
    run r = {.model = shard_nn_sequential(shard_nn_linear(8, 16), shard_nn_parallel_linear(16, 30, SHARD_SPLIT_COLUMN, group))};
    r.adam = shard_adam(r.model, .lr = 0.01);
    r.state = shard_state_dict(r.model);
    shard_tensors *moments = shard_optimizer_state_dict(r.adam);
    shard_tensors_extend(r.state, "optimizer.", moments);
    shard_tensors_destroy(moments);
    return r;
}

static double train_step(run *r)
{
    double value = 0;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 8));
        shard_tensor *labels = shard_from_host((int64_t[]){7, 29}, SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *loss = shard_parallel_cross_entropy(shard_forward(r->model, x), labels);
        shard_backward(loss);
        value = shard_item(loss);
    }
    shard_step(r->adam);
    return value;
}

static void destroy_run(run *r)
{
    shard_tensors_destroy(r->state);
    shard_optimizer_destroy(r->adam);
    shard_module_destroy(r->model);
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh *mesh = shard_mesh_create(.model = shard_group_size(shard_world()));
    run first = make_run(shard_mesh_model_group(mesh), 1), second = make_run(shard_mesh_model_group(mesh), 2);
    int64_t step = 0, loaded_step = 0;
    for (; step < 5; step++)
        train_step(&first);

    shard_metadata *metadata = shard_metadata_create(), *loaded = NULL;
    shard_metadata_set_integer(metadata, "step", step);
    shard_save(first.state, "example.safetensors", metadata); /* each rank writes its rows */
    shard_load_with_metadata(second.state, "example.safetensors", &loaded);
    shard_metadata_get_integer(loaded, "step", &loaded_step);

    double expected = train_step(&first), got = train_step(&second);
    if (shard_group_rank(shard_world()) == 0)
        printf("saved at step %d, loaded at step %d\nthe next loss is the same: %s\n", (int)step, (int)loaded_step,
               got == expected ? "yes" : "no");
    shard_metadata_destroy(loaded);
    shard_metadata_destroy(metadata);
    destroy_run(&second);
    destroy_run(&first);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
