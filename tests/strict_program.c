/*
 * A program in standard C: compiled with -std=c11 -pedantic-errors and every usual warning as
 * an error. Calls each macro that takes options with none of them (test_house.py holds that
 * it is each), and some with one.
 */
#include <shard/shard.h>

#include <math.h>
#include <stdio.h>

static int failed;

static void check(int good, const char *what)
{
    if (good && shard_last_status() == SHARD_OK)
        return;
    failed = 1;
    fprintf(stderr, "%s: %s\n", what, shard_last_error());
    shard_clear_error();
}

static void makes_tensors(void)
{
    float data[2] = {1, 2};
    SHARD_SCOPE
    {
        check(shard_item(shard_zeros(SHARD_SCALAR)) == 0, "shard_zeros");
        check(shard_item(shard_ones(SHARD_SHAPE(1))) == 1, "shard_ones");
        check(shard_item(shard_full(SHARD_SCALAR, 3.0)) == 3, "shard_full");
        check(shard_tensor_dtype(shard_full(SHARD_SCALAR, 3.0, .dtype = SHARD_INT64)) == SHARD_INT64, "an option");
        check(shard_requires_grad(shard_ones(SHARD_SCALAR, .dtype = SHARD_FLOAT64, .requires_grad = true)), "two options");
        check(shard_numel(shard_empty(SHARD_SHAPE(2, 3))) == 6, "shard_empty");
        check(shard_item(shard_sum(shard_from_host(data, SHARD_SHAPE(2)))) == 3, "shard_from_host");
        check(shard_item(shard_sum(shard_from_host_async(data, SHARD_SHAPE(2)))) == 3, "shard_from_host_async");
        check(shard_item(shard_uniform(SHARD_SCALAR, 2.0, 3.0)) >= 2, "shard_uniform");
        check(isfinite(shard_item(shard_normal(SHARD_SCALAR, 0.0, 1.0))), "shard_normal");
    }
}

static shard_tensor *halves(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)op;
    return inputs == 1 ? shard_scale(input[0], 0.5) : NULL;
}

/* Commas of compound literals, in arguments and in options. */
static void takes_compound_literals(void)
{
    SHARD_SCOPE
    {
        check(shard_item(shard_sum(shard_from_host((float[]){1, 2, 3}, SHARD_SHAPE(3)))) == 6, "a literal of data");
        shard_tensor *t = shard_from_host((int64_t[]){4, 5}, ((shard_shape){.ndim = 1, .dim = {2}}), .dtype = SHARD_INT64);
        check(shard_tensor_dtype(t) == SHARD_INT64 && shard_numel(t) == 2, "literals of data and shape, an option");
        t = shard_from_host((double[2][2]){{1, 2}, {3, 4}}, (shard_shape){.ndim = 2, .dim = {2, 2}}, .dtype = SHARD_FLOAT64,
                            .requires_grad = true);
        check(shard_requires_grad(t) && shard_item(shard_sum(t)) == 10, "literals of data and shape, two options");
        t = shard_zeros((shard_shape){.ndim = 2, .dim = {2, 3}}, .requires_grad = true, .dtype = SHARD_FLOAT64);
        check(shard_numel(t) == 6 && shard_requires_grad(t) && shard_tensor_dtype(t) == SHARD_FLOAT64, "shard_zeros, a literal");
        check(shard_numel(shard_ones((shard_shape){.ndim = 2, .dim = {2, 3}})) == 6, "shard_ones, a literal");
        check(shard_numel(shard_empty((shard_shape){.ndim = 2, .dim = {2, 3}})) == 6, "shard_empty, a literal");
        check(shard_item(shard_full((shard_shape){.ndim = 2, .dim = {1, 1}}, 7, .dtype = SHARD_INT32)) == 7, "shard_full, a literal");
        t = shard_uniform((shard_shape){.ndim = 2, .dim = {1, 1}}, 2.0, 3.0, .dtype = SHARD_FLOAT64);
        check(shard_item(t) >= 2 && shard_tensor_dtype(t) == SHARD_FLOAT64, "shard_uniform, a literal");
        check(shard_numel(shard_normal((shard_shape){.ndim = 2, .dim = {2, 3}}, 0, 1)) == 6, "shard_normal, a literal");
    }
}

static void has_losses(shard_tensor *logits, shard_tensor *labels)
{
    shard_tensor *zeros = shard_zeros(SHARD_SHAPE(2, 4)), *margins, *more = NULL;
    shard_tensor *mean = shard_full(SHARD_SCALAR, 20), *deviation = shard_full(SHARD_SCALAR, 100);
    check(shard_cross_entropy(logits, labels, .z_loss = 1e-4, .soft_cap = 30) != NULL, "shard_cross_entropy with options");
    check(fabs(shard_item(shard_binary_cross_entropy_with_logits(zeros, zeros)) - log(2.0)) < 1e-6, "binary cross-entropy");
    check(fabs(shard_item(shard_binary_cross_entropy_with_logits(zeros, zeros, .reduction = SHARD_REDUCTION_BATCH_MEAN)) -
               4 * log(2.0)) < 1e-6,
          "a mean over the rows");
    check(shard_margin_logits(zeros, labels) != NULL, "shard_margin_logits");
    shard_cross_entropy_options options = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    options.margin = SHARD_MARGIN(.scale = 1, .m3 = 0.5);
    check(shard_cross_entropy_with(zeros, labels, &options, NULL) != NULL, "SHARD_MARGIN outside of a macro");
    margins = shard_adaface_margins(shard_ones(SHARD_SHAPE(2)), mean, deviation, &more);
    check(margins && more, "shard_adaface_margins");
    check(shard_adaface_margins(shard_ones(SHARD_SHAPE(2)), mean, deviation, NULL, .t_alpha = 0.5) != NULL, "its options");
    check(shard_margin_logits(zeros, labels, .row_m2 = margins, .row_m3 = more, .rule = SHARD_MARGIN_CLAMP) != NULL,
          "row margins");
}

static void has_head_calls(shard_tensor *x, shard_tensor *weight, shard_tensor *target)
{
    static const int64_t ones[] = {0, 1, 0, 3};
    shard_tensor *pairs = shard_from_host(ones, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64), *dy = shard_ones(SHARD_SCALAR), *dx;
    shard_head_saved *saved;
    check(shard_linear_cross_entropy_forward(x, weight, NULL, target, &saved) && saved, "shard_linear_cross_entropy_forward");
    check(shard_head_backward(saved, dy, &dx, NULL, NULL) == SHARD_OK && dx, "shard_head_backward");
    shard_head_saved_destroy(saved);
    check(shard_linear_binary_cross_entropy_forward(x, weight, NULL, pairs, &saved, .pos_weight = NULL) && saved,
          "shard_linear_binary_cross_entropy_forward");
    check(shard_head_backward(saved, dy, NULL, &dx, NULL, .deferred = true) == SHARD_OK && dx, "its options");
    shard_head_saved_destroy(saved);
}

static void computes(void)
{
    int64_t labels[2] = {0, 3};
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(2, 4, 4, 1)), *weight = shard_ones(SHARD_SHAPE(4, 1, 3, 3));
        shard_tensor *zeros = shard_zeros(SHARD_SHAPE(4)), *ones = shard_ones(SHARD_SHAPE(4));
        x = shard_batch_norm(shard_conv2d(x, weight, NULL), zeros, ones, ones, zeros);
        x = shard_avg_pool2d(shard_max_pool2d(x, 1), 2);
        x = shard_scaled_dot_product_attention(x, x, x);
        x = shard_dropout(x, 0.0);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *loss = shard_cross_entropy(shard_reshape(x, SHARD_SHAPE(2, 4)), target);
        check(fabs(shard_item(loss) - log(4.0)) < 1e-6, "operations");
        shard_tensor *ranks = NULL;
        check(shard_cross_entropy_with_rank(shard_reshape(x, SHARD_SHAPE(2, 4)), target, &ranks) && ranks,
              "shard_cross_entropy_with_rank");
        static const shard_custom_op_type halves_type = {.name = "halves", .forward = halves};
        check(fabs(shard_item(shard_custom_op_apply(&halves_type, NULL, loss)) - log(2.0)) < 1e-6, "an own operation");
        shard_tensor *table = shard_ones(SHARD_SHAPE(4, 2));
        check(shard_embedding(table, target, -1) && shard_parallel_embedding(table, target, -1, .max_norm = 1), "embedding");
        check(shard_item(shard_sum(shard_one_hot(target, 4))) == 2, "shard_one_hot");
        check(shard_item(shard_mse_loss(ones, zeros)) == 1, "shard_mse_loss");
        check(shard_item(shard_mse_loss(ones, zeros, .reduction = SHARD_REDUCTION_SUM)) == 4, "a reduction");
        has_losses(shard_reshape(x, SHARD_SHAPE(2, 4)), target);
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        SHARD_NO_GRAD
        check(shard_parallel_cross_entropy(shard_reshape(x, SHARD_SHAPE(2, 4)), target) != NULL, "modes");
        check(shard_linear_top_k(shard_reshape(x, SHARD_SHAPE(2, 4)), shard_ones(SHARD_SHAPE(4, 4)), NULL, 2, &ranks) != NULL,
              "shard_linear_top_k");
        static const int64_t pairs[] = {0, 1, 0, 3};
        check(shard_linear_binary_cross_entropy(shard_reshape(x, SHARD_SHAPE(2, 4)), shard_ones(SHARD_SHAPE(4, 4)), NULL,
                                                shard_from_host(pairs, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64),
                                                .gradient_only = true) != NULL,
              "shard_linear_binary_cross_entropy");
        check(shard_linear_cross_entropy_with_rank(shard_reshape(x, SHARD_SHAPE(2, 4)), shard_ones(SHARD_SHAPE(4, 4)), NULL,
                                                   target, &ranks, .label_smoothing = 0.1) != NULL &&
                  shard_count_top_k(ranks, 4) == 2,
              "shard_linear_cross_entropy_with_rank");
        check(shard_linear_cross_entropy(shard_reshape(x, SHARD_SHAPE(2, 4)), shard_ones(SHARD_SHAPE(4, 4)), NULL, target,
                                         .label_smoothing = 0.1) != NULL,
              "shard_linear_cross_entropy");
        has_head_calls(shard_reshape(x, SHARD_SHAPE(2, 4)), shard_ones(SHARD_SHAPE(4, 4)), target);
    }
}

static void optimizes(shard_module *model)
{
    shard_optimizer_destroy(shard_adam(model));
    shard_optimizer_destroy(shard_adamw(model, .weight_decay = 0));
    shard_optimizer_destroy(shard_lars(model));
    shard_optimizer_destroy(shard_lamb(model));
    shard_optimizer_destroy(shard_rowwise_adagrad(model));
    shard_optimizer_destroy(shard_rowwise_adam(model, .rounding = SHARD_ROUNDING_STOCHASTIC, .seed = 1));
    shard_tensors *parameters = shard_parameters(model), *none = shard_tensors_create();
    shard_optimizer *optimizer = shard_zero_optimizer(shard_sgd(parameters, .lr = 0.1, .momentum = 0.9));
    shard_tensors_destroy(parameters);
    check(shard_optimizer_lr(optimizer) == 0.1, "options over the defaults");
    check(shard_optimizer_add_param_group(optimizer, none) == SHARD_OK, "shard_optimizer_add_param_group");
    shard_tensors_destroy(none);
    shard_module *head = shard_nn_linear(2, 2);
    check(shard_optimizer_add_param_group(optimizer, head, .prefix = "head.", .lr_scale = 0) == SHARD_OK, "a group of a module");
    shard_module_destroy(head);
    check(shard_clip_grad_norm(optimizer, 1.0, NULL) == SHARD_OK, "shard_clip_grad_norm");
    check(shard_clip_grad_norm_of(&optimizer, 1, 1.0, NULL) == SHARD_OK, "shard_clip_grad_norm_of");
    shard_ema *ema = shard_ema_create(optimizer);
    check(ema != NULL, "shard_ema_create");
    shard_ema_destroy(ema);
    shard_optimizer_destroy(optimizer);
}

static void makes_embeddings(void)
{
    shard_module *modules = shard_nn_sequential(shard_nn_embedding(4, 2, -1), shard_nn_layer_norm(2, 1e-5),
                                                shard_nn_parallel_embedding(4, 2, -1, SHARD_SPLIT_ROW, shard_world()));
    check(modules != NULL, "embeddings");
    shard_tensor *weight = shard_module_tensor(shard_module_child_at(modules, 0), "weight");
    check(shard_nn_init_kaiming_uniform(weight) == SHARD_OK && shard_nn_init_kaiming_normal(weight, .a = 1) == SHARD_OK, "init");
    shard_module_destroy(modules);
}

static void trains(void)
{
    makes_embeddings();
    shard_mesh *mesh = shard_mesh_create();
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *model = shard_nn_sequential(shard_nn_conv2d(1, 2, 3), shard_nn_batch_norm(2), shard_nn_linear(2, 3),
                                              shard_nn_parallel_linear(3, 4, SHARD_SPLIT_COLUMN, group));
    shard_module *classifier = shard_nn_parallel_classifier(3, 4, group, .bias = false);
    check(classifier != NULL, "a classifier");
    shard_module_destroy(classifier);
    shard_tensors *state = shard_state_dict(model);
    shard_data_parallel *data_parallel = shard_data_parallel_create(state), *same = shard_data_parallel_create(model);
    check(same != NULL, "data parallel training of a module");
    shard_data_parallel_destroy(same);
    shard_group_sampler *sampler = shard_group_sampler_create(10);
    shard_grad_scaler *scaler = shard_grad_scaler_create();
    check(model && data_parallel && scaler && shard_group_sampler_steps(sampler) == 10, "what is trained with");
    optimizes(model);
    shard_status status = shard_load(state, "/nowhere/model.safetensors");
    shard_clear_error();
    check(status == SHARD_ERROR_IO, "shard_load");
    shard_metadata *metadata = NULL;
    status = shard_load_with_metadata(state, "/nowhere/model.safetensors", &metadata, .convert = true);
    shard_clear_error();
    check(status == SHARD_ERROR_IO && !metadata, "shard_load_with_metadata");
    status = shard_save_checkpoint(state, "/nowhere/run", 3, NULL, .max_to_keep = 0);
    status = shard_save(state, "/nowhere/model.safetensors", NULL);
    shard_clear_error();
    check(status == SHARD_ERROR_IO, "shard_save");
    shard_async_save *save = shard_save_async(state, "/nowhere/model.safetensors", NULL, .local = true);
    status = shard_last_status();
    shard_clear_error();
    check(!save && status == SHARD_ERROR_IO, "shard_save_async");
    save = shard_save_checkpoint_async(state, "/nowhere/run", 3, NULL, .max_to_keep = 0);
    status = shard_last_status();
    shard_clear_error();
    check(!save && status == SHARD_ERROR_IO, "shard_save_checkpoint_async");
    shard_tensors *own = shard_relocate_state_dict(state, state);
    check(shard_tensors_count(own) == shard_tensors_count(state), "shard_relocate_state_dict");
    shard_tensors_destroy(own);
    check(shard_load_state_dict(state, state) == SHARD_OK, "shard_load_state_dict");
    check(shard_module_load_state_dict(model, state) == SHARD_OK, "shard_module_load_state_dict");
    shard_grad_scaler_destroy(scaler);
    shard_group_sampler_destroy(sampler);
    shard_data_parallel_destroy(data_parallel);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
}

static void makes_models(void)
{
    shard_module *model = shard_resnet("resnet18", 3, .stem = SHARD_RESNET_STEM_SMALL), *other = shard_resnet("resnet18", 3);
    check(model && other && shard_resnet_exists("resnet50") && shard_resnet_features("resnet50") == 2048, "shard_resnet");
    check(shard_resnet_gather_features(model, shard_world()) == SHARD_OK, "shard_resnet_gather_features");
    shard_module *backbone = shard_iresnet("iresnet18", .image_size = 16, .width = 2), *slopes = shard_nn_prelu(3);
    check(backbone && slopes && shard_iresnet_exists("iresnet100") && shard_iresnet_names(), "shard_iresnet");
    shard_module_destroy(backbone);
    shard_module_destroy(slopes);
    shard_module_destroy(model);
    shard_module_destroy(other);
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    makes_tensors();
    takes_compound_literals();
    computes();
    trains();
    makes_models();
    return shard_finalize() || failed;
}
