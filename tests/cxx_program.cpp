// The functions from C++17: a layer that is split over two ranks is trained, saved and loaded. Options go by pointer,
// as the macros that take fields by name are for C.
#include <shard/shard.h>

#include <cstdio>
#include <cstring>

namespace {

// One step; what it makes is freed with the scope.
double train_step(shard_module *model, shard_optimizer *optimizer)
{
    static const int64_t labels[] = {7, 432, 999, 0};
    double value = 0;
    SHARD_SCOPE
    {
        shard_tensor_options integers = SHARD_TENSOR_OPTIONS_INIT;
        integers.dtype = SHARD_INT64;
        shard_manual_seed(7);
        shard_tensor *x = shard_normal_with(shard_shape{2, {4, 20}}, 0.0, 1.0, nullptr);
        shard_tensor *target = shard_from_host_with(labels, shard_shape{1, {4}}, &integers);
        shard_cross_entropy_options options = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
        options.label_smoothing = 0.1;
        shard_tensor *rank = nullptr;
        shard_tensor *loss = shard_cross_entropy_with(shard_forward(model, x), target, &options, &rank);
        shard_backward(loss);
        shard_clip_options clip = SHARD_CLIP_OPTIONS_INIT;
        shard_clip_grad_norm_with(optimizer, 10.0, &clip, nullptr);
        shard_step(optimizer);
        value = shard_item(loss);
        if (shard_count_top_k(rank, 1000) != 4)
            shard_error(SHARD_ERROR_INTERNAL, "every label is among 1000 classes");
        shard_tensor *logits = nullptr;
        SHARD_NO_GRAD SHARD_AUTOCAST(SHARD_BFLOAT16) logits = shard_forward(model, x);
        if (shard_requires_grad(logits) || shard_tensor_dtype(logits) != SHARD_BFLOAT16)
            shard_error(SHARD_ERROR_INTERNAL, "logits of %s", shard_dtype_name(shard_tensor_dtype(logits)));
    }
    return value;
}

shard_module *make_model(shard_group *group)
{
    shard_nn_linear_options without_bias = SHARD_NN_LINEAR_OPTIONS_INIT;
    without_bias.bias = false;
    shard_module *layers[] = {shard_nn_linear_with(20, 64, nullptr), shard_nn_relu(),
                              shard_nn_parallel_linear_with(64, 1000, SHARD_SPLIT_COLUMN, group, &without_bias)};
    return shard_nn_sequential_of(3, layers);
}

bool saves(shard_module *model, const char *path)
{
    shard_metadata *metadata = shard_metadata_create(), *found = nullptr;
    shard_metadata_set_integer(metadata, "step", 20);
    shard_tensors *state = shard_state_dict(model);
    shard_save_with(state, path, metadata, nullptr);
    shard_load_with(state, path, nullptr, &found);
    int64_t step = 0;
    shard_metadata_get_integer(found, "step", &step);
    shard_tensors_destroy(state);
    shard_metadata_destroy(metadata);
    shard_metadata_destroy(found);
    return step == 20;
}

} // namespace

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    shard_mesh_options grid = SHARD_MESH_OPTIONS_INIT;
    grid.model = shard_group_size(shard_world());
    shard_mesh *mesh = shard_mesh_create_with(&grid);
    shard_module *model = make_model(shard_mesh_model_group(mesh));
    shard_sgd_options options = SHARD_SGD_OPTIONS_INIT;
    options.lr = 0.1;
    options.momentum = 0.9;
    shard_tensors *parameters = shard_parameters(model);
    shard_optimizer *optimizer = shard_sgd_with(parameters, &options);
    shard_tensors_destroy(parameters); // the optimizer has references of its own
    double first = 0, last = 0;
    for (int step = 0; step < 20; step++)
        (step ? last : first) = train_step(model, optimizer);
    bool saved = argc < 2 || saves(model, argv[1]);
    bool trained = shard_group_size(shard_world()) == 2 && last < 0.5 * first;
    if (!saved || !trained)
        shard_error(SHARD_ERROR_INTERNAL, "losses from %g to %g on %d ranks, saved: %d", first, last,
                    shard_group_size(shard_world()), saved);
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    return shard_finalize();
}
