#include "allocation_scenarios.h"

#include <shard/dlpack.h>
#include <shard/shard.h>

#include "traced_calls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

double scenario_sum;
char scenario_folder[400];

/* ---- operands and results ---- */

static void add(double number)
{
    if (shard_last_status() == SHARD_OK)
        scenario_sum += number;
}

/* Adds the elements; integers are cast. */
static shard_tensor *note(shard_tensor *x)
{
    if (x && shard_last_status() == SHARD_OK) {
        bool whole = shard_dtype_is_float(shard_tensor_dtype(x));
        add(shard_item(shard_sum(whole ? x : shard_cast(x, SHARD_FLOAT64))));
    }
    return x;
}

static shard_tensor *from(const float *numbers, shard_shape shape)
{
    return shard_from_host(numbers, shape);
}

static shard_tensor *matrix(void)
{
    static const float numbers[] = {0.5f, 0.25f, 0.75f, 0.125f, 0.625f, 0.375f, 0.875f, 0.0625f, 0.3f, 0.7f, 0.2f, 0.9f};
    return from(numbers, SHARD_SHAPE(4, 3));
}

static shard_tensor *leaf(void)
{
    shard_tensor *x = matrix();
    shard_set_requires_grad(x, true);
    return x;
}

static shard_tensor *leaf_of(shard_shape shape, double value)
{
    return shard_full(shape, value, .requires_grad = true);
}

static shard_tensor *labels(void)
{
    return shard_from_host((int64_t[]){0, 2, 1, 2}, SHARD_SHAPE(4), .dtype = SHARD_INT64);
}

static shard_tensor *pairs(void)
{
    return shard_from_host((int64_t[]){0, 2, 1, 1}, SHARD_SHAPE(2, 2), .dtype = SHARD_INT64);
}

/* The backward of the sum of y, and the gradient of x. */
static void back(shard_tensor *y, shard_tensor *x)
{
    note(y);
    shard_backward(shard_sum(y));
    if (x)
        note(shard_grad(x));
}

/* ---- operations ---- */

typedef shard_tensor *unary(shard_tensor *x);
typedef shard_tensor *binary(shard_tensor *a, shard_tensor *b);
typedef shard_tensor *scalar(shard_tensor *x, double number);
#define FOR_EACH(type, name, ...)                                                                                                \
    for (type *const all_of_it[] = {__VA_ARGS__}, *const *name = all_of_it;                                                      \
         name < all_of_it + sizeof all_of_it / sizeof *all_of_it; name++)

static void run_unary(void)
{
    FOR_EACH(unary, f, shard_neg, shard_exp, shard_log, shard_log1p, shard_sqrt, shard_rsqrt, shard_abs, shard_tanh,
             shard_sigmoid, shard_relu, shard_gelu, shard_gelu_tanh, shard_silu, shard_sum, shard_mean, shard_softmax,
             shard_log_softmax, shard_clone)
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back((*f)(x), x);
    }
}

static void run_scalars(void)
{
    FOR_EACH(scalar, f, shard_scale, shard_add_scalar, shard_pow_scalar, shard_leaky_relu)
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back((*f)(x, 2.5), x);
    }
    FOR_EACH(scalar, f, shard_eq_scalar, shard_ne_scalar, shard_lt_scalar, shard_le_scalar, shard_gt_scalar, shard_ge_scalar)
    SHARD_SCOPE
    note((*f)(matrix(), 0.5));
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back(shard_softplus(shard_clamp(x, 0.2, 0.6), 1, 20), x);
        shard_zero_grad(x);
    }
}

static void run_binary(void)
{
    FOR_EACH(binary, f, shard_add, shard_sub, shard_mul, shard_div, shard_pow, shard_minimum, shard_maximum)
    SHARD_SCOPE
    {
        shard_tensor *a = leaf(), *b = leaf_of(SHARD_SHAPE(3), 0.5);
        back((*f)(a, b), a);
        note(shard_grad(b));
    }
    SHARD_SCOPE
    {
        shard_tensor *a = leaf(), *b = leaf_of(SHARD_SHAPE(3), 0.5);
        back(shard_prelu(a, b), a);
        note(shard_grad(b));
    }
    FOR_EACH(binary, f, shard_eq, shard_ne, shard_lt, shard_le, shard_gt, shard_ge)
    SHARD_SCOPE
    {
        shard_tensor *condition = note((*f)(matrix(), shard_full(SHARD_SHAPE(3), 0.5))), *a = leaf();
        back(shard_where(condition, a, shard_zeros(SHARD_SHAPE(3))), a);
    }
}

static void run_shapes(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back(shard_reshape(x, SHARD_SHAPE(2, 6)), x);
        back(shard_flatten(x, 0, -1), x);
        back(shard_narrow(x, 1, 1, 2), x);
        back(shard_slice(x, 0, 2, 1), x);
        back(shard_concatenate((shard_tensor *[]){x, shard_detach(x)}, 2, 1), x);
        back(shard_permute(x, (int[]){1, 0}), x);
        back(shard_transpose(x, 0, 1), x);
    }
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back(shard_cast(x, SHARD_FLOAT64), x);
        back(shard_to_device(x, shard_device_open("cpu")), x);
        back(shard_sum_dim(x, 0, true), x);
        back(shard_mean_dim(x, 1, false), x);
        back(shard_logsumexp(x, 0, true), x);
        back(shard_dropout(x, 0.0), x);
        note(shard_as_placed(shard_detach(x), (shard_placement){0}));
        note(shard_as_split(shard_detach(x), 0, NULL, 0, 4));
        note(shard_one_hot(labels(), 3));
        shard_manual_seed(7);
        shard_dropout(x, 0.5);
    }
}

/* Indices are there where values are. */
static void check_indices(const shard_tensor *values, const shard_tensor *indices)
{
    if (!values != !indices)
        abort();
}

/* Of a classifier's logits that are not in memory, of 16 bits. */
static void run_top_k(void)
{
    shard_manual_seed(1);
    shard_module *classifier = shard_nn_parallel_classifier(3, 4, NULL, .dtype = SHARD_BFLOAT16);
    SHARD_SCOPE
    {
        shard_tensor *logits = shard_forward(classifier, shard_cast(matrix(), SHARD_BFLOAT16)), *indices = NULL;
        SHARD_NO_GRAD
        {
            shard_tensor *values = note(shard_top_k(logits, 2, &indices));
            check_indices(values, indices);
            note(indices);
        }
    }
    shard_module_destroy(classifier);
}

static void run_extremes(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = leaf(), *indices = NULL;
        back(shard_max_dim(x, 1, false, &indices), x);
        note(indices);
        back(shard_min_dim(x, 0, true, NULL), x);
        note(shard_argmax(x, 1, false));
        note(shard_argmin(x, 1, false));
        back(shard_top_k(x, 2, &indices), x);
        add(shard_precision_at_k(indices, pairs(), 2, NULL));
        add(shard_precision_at_k(indices, pairs(), 1, shard_ones(SHARD_SHAPE(3))));
        shard_tensor *rank = note(shard_label_rank(x, labels(), -100));
        add((double)shard_count_top_k(rank, 2));
        back(shard_pick_labels(x, labels(), -100), x);
        back(shard_add_at_labels(x, labels(), NULL, 0.5, -100), x);
        back(shard_margin_logits(shard_scale(x, 0.5), labels(), .m2 = 0.5), x);
    }
}

static void run_products(void)
{
    SHARD_SCOPE
    {
        shard_tensor *a = leaf(), *w = leaf_of(SHARD_SHAPE(5, 3), 0.5), *b = leaf_of(SHARD_SHAPE(5), 0.25);
        back(shard_matmul(a, shard_transpose(w, 0, 1)), a);
        back(shard_linear(a, w, b), w);
        back(shard_parallel_linear(a, w, b), b);
        shard_dtype before = shard_set_autocast(SHARD_BFLOAT16);
        add(shard_autocast_dtype());
        back(shard_linear(a, w, b), w);
        shard_set_autocast(before);
    }
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(SHARD_SHAPE(1, 6, 6, 4), 0.5), *w = leaf_of(SHARD_SHAPE(8, 4, 3, 3), 0.25);
        back(shard_conv2d(x, w, leaf_of(SHARD_SHAPE(8), 1.0), .stride = 2, .padding = 1), w);
        back(shard_max_pool2d(x, 2), x);
        back(shard_avg_pool2d(x, 2), x);
        back(shard_global_avg_pool2d(x), x);
        note(shard_normalize_images(shard_zeros(SHARD_SHAPE(1, 2, 2, 3), .dtype = SHARD_UINT8), (double[]){1, 2, 3},
                                    (double[]){4, 5, 6}, SHARD_FLOAT32));
    }
}

static void run_norms(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = leaf(), *w = leaf_of(SHARD_SHAPE(3), 1.0), *b = leaf_of(SHARD_SHAPE(3), 0.0);
        back(shard_batch_norm(x, shard_zeros(SHARD_SHAPE(3)), shard_ones(SHARD_SHAPE(3)), w, b, .training = true, .relu = true),
             x);
        back(shard_layer_norm(x, w, b, 1e-5), w);
        back(shard_normalize(x, 1, 1e-12), x);
        shard_tensor *additive = NULL, *mean = shard_full(SHARD_SCALAR, 20.0), *std = shard_full(SHARD_SCALAR, 100.0);
        note(shard_adaface_margins(shard_sum_dim(shard_detach(x), 1, false), mean, std, &additive));
        note(additive);
        shard_tensor *weight = leaf();
        back(shard_embedding(weight, labels(), -1, .scale_grad_by_freq = true), weight);
        back(shard_parallel_embedding(weight, labels(), -1), weight);
        note(shard_embedding(shard_detach(weight), labels(), -1, .max_norm = 0.5));
    }
}

static void run_attention(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = leaf_of(SHARD_SHAPE(2, 3, 4), 0.5);
        back(shard_scaled_dot_product_attention(x, x, x, .is_causal = true), x);
    }
}

static void run_losses(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = leaf(), *w = leaf_of(SHARD_SHAPE(3, 3), 0.5), *rank = NULL;
        back(shard_cross_entropy(x, labels(), .label_smoothing = 0.1, .z_loss = 1e-3), x);
        back(shard_cross_entropy_with_rank(x, labels(), &rank), x);
        note(rank);
        back(shard_linear_cross_entropy(x, w, NULL, labels(), .weight = shard_ones(SHARD_SHAPE(3))), w);
        shard_tensor *sample = shard_sample_classes(labels(), w, 0.5, 1, 0);
        back(shard_linear_cross_entropy(x, w, NULL, labels(), .sample = sample), x);
        back(shard_linear_cross_entropy(x, w, NULL, labels(), .sample = sample,
                                        .sample_correction = shard_sample_correction(sample, labels(), 0.5)),
             w);
        back(shard_binary_cross_entropy_with_logits(x, pairs()), x);
        back(shard_binary_cross_entropy_with_logits(x, shard_detach(x), .reduction = SHARD_REDUCTION_NONE), x);
        back(shard_linear_binary_cross_entropy(x, w, NULL, pairs(), .row_weight = shard_ones(SHARD_SHAPE(4))), w);
        back(shard_mse_loss(x, shard_zeros(SHARD_SHAPE(4, 3))), x);
        shard_tensor *indices = NULL;
        note(shard_linear_top_k(x, w, NULL, 2, &indices));
        note(indices);
    }
}

static shard_status take_rows(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    (void)context, (void)device, (void)first, (void)count, (void)gradient;
    return SHARD_OK;
}

static void run_heads(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = matrix(), *w = shard_full(SHARD_SHAPE(3, 3), 0.5), *b = shard_zeros(SHARD_SHAPE(3));
        shard_head_saved *saved = NULL;
        shard_tensor *dx = NULL, *dw = NULL, *db = NULL;
        shard_tensor *loss = note(shard_linear_cross_entropy_forward(x, w, b, labels(), &saved));
        shard_head_backward(saved, loss ? shard_ones(SHARD_SCALAR) : NULL, &dx, &dw, &db);
        note(dx), note(dw), note(db);
        shard_head_backward(saved, loss ? shard_ones(SHARD_SCALAR) : NULL, NULL, &dw, NULL, .deferred = true);
        shard_take_gradient_rows(dw, take_rows, NULL);
        note(dw);
        shard_head_saved_destroy(saved);
        saved = NULL;
        note(shard_linear_binary_cross_entropy_forward(x, w, NULL, pairs(), &saved));
        shard_head_saved_destroy(saved);
    }
}

typedef struct counted {
    int freed;
} counted;

static shard_tensor *op_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    shard_custom_op_save(op, 0, input[0]);
    return shard_custom_op_context(op) && shard_custom_op_wants_gradient(op, 0) ? shard_scale(input[0], 2) : NULL;
}

static shard_status op_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    dx[0] = shard_custom_op_make_gradient(op, 0);
    shard_tensor *y = shard_mul(shard_custom_op_saved(op, 0), dy);
    if (dx[0] && y) {
        float numbers[12];
        shard_copy_to_host(y, numbers, sizeof numbers);
        shard_copy_from_host(dx[0], numbers, sizeof numbers);
    }
    return shard_last_status();
}

static void op_destroy(void *context)
{
    ((counted *)context)->freed++;
}

static void run_custom(void)
{
    static const shard_custom_op_type type = {
        .name = "twice", .forward = op_forward, .backward = op_backward, .destroy = op_destroy};
    counted context = {0};
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back(shard_custom_op_apply(&type, &context, x), x);
    }
    if (context.freed != 1)
        scenario_sum += 1e9;
}

/* ---- tensors ---- */

static void release_memory(void *context)
{
    free(context);
}

static void run_makers(void)
{
    float numbers[4] = {1, 2, 3, 4};
    SHARD_SCOPE
    {
        shard_device *device = shard_device_open(NULL), *cpu = shard_device_open("cpu");
        const shard_tensor_options options = SHARD_TENSOR_OPTIONS_INIT;
        shard_copy_from_host(shard_empty_with(SHARD_SHAPE(4), &options), numbers, sizeof numbers);
        note(shard_full_with(SHARD_SHAPE(4), 2, &options));
        note(shard_from_host_with(numbers, SHARD_SHAPE(4), &options));
        shard_from_host_async_with(numbers, SHARD_SHAPE(4), &options);
        shard_uniform_with(SHARD_SHAPE(4), 0, 1, &options);
        shard_normal_with(SHARD_SHAPE(4), 0, 1, &options);
        shard_tensor *x = shard_empty(SHARD_SHAPE(4));
        shard_copy_from_host(x, numbers, sizeof numbers);
        note(x);
        shard_manual_seed(3);
        note(shard_uniform(SHARD_SHAPE(4), 0.0, 1.0));
        note(shard_normal(SHARD_SHAPE(4), 0.0, 1.0));
        shard_set_random_state(shard_get_random_state());
        float *pinned = shard_device_allocate_host(device, sizeof numbers);
        if (pinned) {
            memcpy(pinned, numbers, sizeof numbers);
            note(shard_from_host_async(pinned, SHARD_SHAPE(4)));
            shard_copy_to_host_async(x, pinned, sizeof numbers);
            shard_synchronize(device);
            if (shard_last_status() == SHARD_OK)
                add(pinned[3]);
        }
        shard_synchronize(device);
        shard_device_free_host(device, pinned, sizeof numbers);
        float *memory = calloc(4, sizeof *memory);
        shard_tensor *own = shard_from_memory(memory, SHARD_SHAPE(4), SHARD_FLOAT32, cpu, release_memory, memory);
        if (!own)
            free(memory);
        note(own);
        DLManagedTensorVersioned *managed = shard_to_dlpack(own);
        shard_tensor *again = managed ? shard_from_dlpack(managed) : NULL;
        if (managed && !again)
            managed->deleter(managed);
        note(again);
        DLManagedTensor *unversioned = shard_to_dlpack_unversioned(own);
        again = unversioned ? shard_from_dlpack_unversioned(unversioned) : NULL;
        if (unversioned && !again)
            unversioned->deleter(unversioned);
        note(again);
        shard_materialize(x);
        add(shard_data(x) != NULL);
        add((double)shard_numel(x) + (double)shard_tensor_size(x, 0) + (double)shard_tensor_dtype(x) +
            shard_tensor_shape(x).ndim + shard_tensor_whole_shape(x).ndim + (double)shard_tensor_placement(x).kind +
            shard_requires_grad(x) + (shard_tensor_device(x) == device) + (shard_tensor_replica_group(x) == NULL));
        shard_tensor_set_replica_group(x, NULL);
        shard_tensor *kept = shard_keep(shard_ones(SHARD_SHAPE(2)));
        shard_release(kept);
    }
}

static void run_lists(void)
{
    shard_tensors *list = shard_tensors_create(), *other = NULL;
    SHARD_SCOPE
    {
        char name[16];
        for (int i = 0; i < 20; i++) {
            snprintf(name, sizeof name, "a.%d", i);
            shard_tensors_add(list, name, shard_ones(SHARD_SHAPE(1)));
        }
    }
    shard_tensors_extend(list, "b.", list);
    other = shard_tensors_subset(list, "b.");
    shard_tensors_rename(list, "a.3", "three");
    shard_tensors_remove(list, "a.4");
    add((double)shard_tensors_count(list) + (shard_tensors_find(list, "three") != NULL) +
        (shard_tensors_find(other, "a.4") == shard_tensors_at(other, 4)) + (shard_tensors_name(list, 3) != NULL));
    shard_tensors_destroy(other);
    shard_tensors_destroy(list);
}

/* ---- modules ---- */

static shard_tensor *custom_forward(shard_module *module, shard_tensor *x)
{
    return shard_forward(shard_module_child(module, "inner"), shard_mul(x, shard_module_tensor(module, "scale")));
}

static void custom_destroy(shard_module *module)
{
    free(shard_module_data(module));
}

static const shard_module_type custom_type = {.name = "custom", .forward = custom_forward, .destroy = custom_destroy};

static void run_custom_module(void)
{
    SHARD_SCOPE
    {
        void *data = malloc(8);
        shard_module *module = shard_module_create(&custom_type, data);
        shard_module_add_parameter(module, "scale", shard_full(SHARD_SHAPE(3), 0.5));
        shard_module_add_buffer(module, "count", shard_zeros(SHARD_SHAPE(1)));
        shard_module_add_child(module, "inner", shard_nn_linear(3, 2));
        shard_module_set_parameter(module, "scale", shard_full(SHARD_SHAPE(3), 0.25));
        shard_module_set_child(module, "inner", shard_nn_sequential(shard_nn_linear(3, 2), shard_nn_relu()));
        add(shard_module_child_count(module) + (shard_module_child_at(module, 0) != NULL) +
            (shard_module_child_name(module, 0) != NULL) + (shard_module_optional(module, "none") == NULL) +
            (shard_module_get_type(module) == &custom_type) + shard_module_is_training(module));
        shard_module_set_training(module, false);
        shard_forward(module, matrix());
        shard_module_destroy(module);
    }
}

static void run_model(shard_module *module, shard_shape shape)
{
    SHARD_SCOPE
    {
        shard_tensor *y = shard_forward(module, shard_full(shape, 0.5));
        shard_backward(shard_sum(y));
    }
    shard_tensors *list = shard_state_dict(module);
    shard_tensors_destroy(list);
    shard_module_destroy(module);
}

static void run_layers(void)
{
    run_model(shard_nn_sequential(shard_nn_conv2d(4, 8, 3, .padding = 1), shard_nn_batch_norm(8), shard_nn_relu(),
                                  shard_nn_prelu(8), shard_nn_gelu(), shard_nn_max_pool2d(2, -1, 0), shard_nn_dropout(0.5),
                                  shard_nn_global_avg_pool2d(), shard_nn_flatten(), shard_nn_layer_norm(8, 1e-5),
                                  shard_nn_linear(8, 3)),
              SHARD_SHAPE(2, 4, 4, 4));
    run_model(shard_nn_sequential(shard_nn_prelu(4), shard_nn_avg_pool2d(2, -1, 0), shard_nn_leaky_relu(0.1), shard_nn_silu(),
                                  shard_nn_softplus(1, 20), shard_nn_sigmoid(), shard_nn_tanh()),
              SHARD_SHAPE(2, 4, 4, 4));
    shard_module *norm = shard_nn_batch_norm(3);
    shard_nn_sync_batch_norm(norm, NULL);
    shard_nn_sync_dropout(norm, NULL);
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back(shard_nn_batch_norm_relu(norm, x, x), x);
    }
    shard_module_destroy(norm);
    run_model(shard_nn_parallel_linear(3, 4, SHARD_SPLIT_COLUMN, NULL), SHARD_SHAPE(2, 3));
    shard_module *head = shard_nn_parallel_classifier(3, 4, NULL);
    SHARD_SCOPE
    shard_backward(shard_cross_entropy(shard_forward(head, matrix()), labels()));
    shard_module_destroy(head);
    shard_module *embedding = shard_nn_embedding(5, 3, 0),
                 *parallel = shard_nn_parallel_embedding(5, 3, -1, SHARD_SPLIT_ROW, NULL);
    SHARD_SCOPE
    {
        note(shard_forward(embedding, labels()) ? shard_ones(SHARD_SHAPE(1)) : NULL);
        shard_forward(parallel, labels());
    }
    shard_module_destroy(embedding);
    shard_module_destroy(parallel);
}

static void run_convert(void)
{
    int converted = 0;
    shard_module *module = shard_nn_sequential(shard_nn_linear(3, 4), shard_nn_linear(4, 5), shard_nn_embedding(4, 2, -1));
    shard_convert_parallel_linear(&module, "0", SHARD_SPLIT_ROW, NULL, &converted);
    shard_convert_parallel_classifier(&module, "1", NULL, NULL);
    shard_convert_parallel_embedding(&module, NULL, SHARD_SPLIT_COLUMN, NULL, NULL);
    add(converted);
    shard_module_destroy(module);
}

static void run_initial_values(void)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_empty(SHARD_SHAPE(4, 3));
        shard_nn_init_constant(x, 2);
        note(x);
        shard_nn_init_zeros(x);
        shard_nn_init_ones(x);
        shard_manual_seed(5);
        shard_nn_init_uniform(x, 0, 1);
        note(x);
        shard_nn_init_normal(x, 0, 1);
        shard_nn_init_trunc_normal(x, 0, 1, -2, 2);
        shard_nn_init_xavier_uniform(x, 1);
        shard_nn_init_xavier_normal(x, shard_nn_init_gain(SHARD_NONLINEARITY_TANH, 0));
        shard_nn_init_kaiming_uniform(x);
        note(x);
        shard_nn_init_kaiming_normal(x);
        note(x);
    }
}

static void run_models(void)
{
    shard_module *module = shard_resnet("resnet18", 10),
                 *faces = shard_iresnet("iresnet18", .image_size = 16, .width = 2, .num_features = 3);
    shard_resnet_gather_features(module, NULL);
    shard_tensors *list = shard_parameters(module), *of_faces = shard_parameters(faces);
    add((double)shard_tensors_count(list) + (shard_resnet_names() != NULL) + shard_resnet_exists("resnet18") +
        (double)shard_resnet_features("resnet18"));
    add((double)shard_tensors_count(of_faces) + (shard_iresnet_names() != NULL) + shard_iresnet_exists("iresnet18"));
    shard_tensors_destroy(list);
    shard_tensors_destroy(of_faces);
    shard_module_destroy(module);
    shard_module_destroy(faces);
}

/* ---- training ---- */

typedef shard_optimizer *maker(const shard_tensors *list);
#define MAKER(name)                                                                                                              \
    static shard_optimizer *make_##name(const shard_tensors *list)                                                               \
    {                                                                                                                            \
        return shard_##name(list, .lr = 0.1);                                                                                    \
    }
MAKER(sgd)
MAKER(adam)
MAKER(adamw)
MAKER(lars)
MAKER(lamb)
MAKER(rowwise_adagrad)
MAKER(rowwise_adam)

static void train(shard_tensor *w, shard_optimizer *optimizer)
{
    for (int step = 0; step < 2; step++) {
        SHARD_SCOPE
        shard_backward(shard_sum(shard_mul(w, w)));
        shard_clip_grad_norm(optimizer, 0.5, NULL);
        shard_step(optimizer);
    }
    note(w);
}

static shard_tensors *list_of(shard_tensor *w)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "w", w);
    return list;
}

static void run_optimizers(void)
{
    FOR_EACH(maker, make, make_sgd, make_adam, make_adamw, make_lars, make_lamb, make_rowwise_adagrad, make_rowwise_adam)
    SHARD_SCOPE
    {
        shard_tensor *w = leaf();
        shard_tensors *list = list_of(w);
        shard_optimizer *optimizer = (*make)(list);
        train(w, optimizer);
        shard_tensors *state = shard_optimizer_state_dict(optimizer);
        add((double)shard_tensors_count(state));
        shard_tensors_destroy(state);
        shard_optimizer_destroy(optimizer);
        shard_tensors_destroy(list);
    }
}

static void run_settings(void)
{
    SHARD_SCOPE
    {
        shard_tensor *w = leaf(), *v = leaf_of(SHARD_SHAPE(3), 0.5);
        shard_tensors *list = list_of(w), *more = list_of(v);
        shard_optimizer *sgd = shard_sgd(list, .momentum = 0.9), *adam = NULL;
        shard_optimizer_add_param_group(sgd, more, .lr_scale = 0.5, .prefix = "more.");
        shard_optimizer_set_lr(sgd, 0.2);
        const shard_schedule schedule = SHARD_SCHEDULE(.base_lr = 1.0);
        add(shard_optimizer_lr(sgd) + shard_schedule_lr(&schedule, 3) + shard_optimizer_skipped(sgd));
        shard_ema *ema = shard_ema_create(sgd);
        SHARD_SCOPE
        shard_backward(shard_add(shard_sum(w), shard_sum(v)));
        shard_clip_grad_value(sgd, 0.5);
        double norm = 0;
        shard_clip_grad_norm_of(&sgd, 1, 1.0, &norm);
        add(norm);
        shard_step(sgd);
        shard_ema_update(ema);
        shard_ema_swap(ema);
        note(w);
        shard_ema_swap(ema);
        note(v);
        shard_tensors *state = shard_ema_state_dict(ema);
        shard_tensors_destroy(state);
        shard_ema_destroy(ema);
        shard_optimizer_zero_grad(sgd);
        shard_optimizer_destroy(adam);
        shard_optimizer_destroy(sgd);
        shard_tensors_destroy(more);
        shard_tensors_destroy(list);
    }
}

static void run_scaler(void)
{
    SHARD_SCOPE
    {
        shard_tensor *w = leaf();
        shard_tensors *list = list_of(w);
        shard_optimizer *sgd = shard_sgd(list, .lr = 0.1);
        shard_grad_scaler *scaler = shard_grad_scaler_create(.init_scale = 4.0);
        SHARD_SCOPE
        shard_backward(shard_grad_scaler_scale(scaler, shard_sum(shard_mul(w, w))));
        shard_grad_scaler_unscale(scaler, sgd);
        shard_grad_scaler_step(scaler, sgd);
        add(scaler ? shard_grad_scaler_overflowed(scaler) + shard_grad_scaler_get_scale(scaler) : 0);
        shard_grad_scaler_update(scaler);
        shard_tensors *state = shard_grad_scaler_state_dict(scaler);
        shard_tensors_destroy(state);
        shard_grad_scaler_set_scale(scaler, 2);
        note(w);
        shard_grad_scaler_destroy(scaler);
        shard_optimizer_destroy(sgd);
        shard_tensors_destroy(list);
    }
}

static void run_engines(void)
{
    for (int stage = 0; stage < 4; stage++) {
        shard_manual_seed(1);
        shard_module *module = shard_nn_sequential(shard_nn_linear(3, 4), shard_nn_batch_norm(4), shard_nn_linear(4, 2));
        shard_tensors *state = shard_state_dict(module);
        shard_optimizer *sgd = shard_sgd(module, .lr = 0.1, .momentum = 0.9);
        shard_data_parallel *engine = stage == 0 ? shard_data_parallel_create(state, .buffers = state) : NULL;
        if (stage == 0)
            shard_data_parallel_set_sync(engine, true);
        else
            shard_zero_optimizer(sgd, .stage = stage, .overlap = stage == 2);
        for (int step = 0; step < 2; step++) {
            SHARD_SCOPE
            shard_backward(shard_sum(shard_forward(module, matrix())));
            shard_step(sgd);
        }
        shard_check_replicas(state);
        SHARD_SCOPE
        note(shard_forward(module, matrix()));
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(engine);
        shard_tensors_destroy(state);
        shard_module_destroy(module);
    }
}

/* ---- files ---- */

static void run_metadata(void)
{
    shard_metadata *metadata = shard_metadata_create();
    int64_t integer = 0;
    double number = 0;
    shard_metadata_set(metadata, "name", "value");
    shard_metadata_set_integer(metadata, "step", 12);
    shard_metadata_set_number(metadata, "loss", 0.1);
    shard_metadata_get_integer(metadata, "step", &integer);
    shard_metadata_get_number(metadata, "loss", &number);
    add((double)integer + number + (shard_metadata_get(metadata, "name") != NULL));
    shard_metadata_destroy(metadata);
}

static void run_files(void)
{
    char path[500];
    snprintf(path, sizeof path, "%s/file", scenario_folder);
    shard_metadata *metadata = shard_metadata_create(), *found = NULL;
    shard_metadata_set(metadata, "name", "value");
    SHARD_SCOPE
    {
        shard_tensors *list = list_of(matrix()), *other = list_of(shard_zeros(SHARD_SHAPE(4, 3)));
        shard_tensors_add(list, "v", shard_ones(SHARD_SHAPE(5), .dtype = SHARD_INT64));
        shard_save(list, path, metadata);
        shard_load_with_metadata(other, path, &found, .allow_unexpected = true);
        note(shard_tensors_find(other, "w"));
        shard_verify(path);
        shard_tensors *shapes = shard_inspect(path, NULL);
        add((double)shard_tensors_count(shapes));
        shard_tensors_destroy(shapes);
        shapes = shard_inspect_loadable(path, NULL);
        add((double)shard_tensors_count(shapes));
        shard_tensors_destroy(shapes);
        shard_tensors *whole = shard_collect_state_dict(list, 0), *part = shard_relocate_state_dict(list, whole);
        shard_load_state_dict(other, part, .allow_unexpected = true);
        note(shard_tensors_find(other, "w"));
        shard_tensors_destroy(part);
        shard_tensors_destroy(whole);
        shard_tensors_destroy(other);
        shard_tensors_destroy(list);
    }
    shard_metadata_destroy(found);
    shard_metadata_destroy(metadata);
}

static void run_saves_in_background(void)
{
    char path[500], folder[500];
    bool done = false;
    snprintf(path, sizeof path, "%s/background", scenario_folder);
    snprintf(folder, sizeof folder, "%s/background-steps", scenario_folder);
    SHARD_SCOPE
    {
        shard_tensors *list = list_of(matrix());
        shard_metadata *metadata = shard_metadata_create();
        shard_metadata_set(metadata, "name", "value");
        shard_async_save *save = shard_save_async(list, path, metadata);
        shard_metadata_destroy(metadata);
        while (shard_async_save_poll(save, &done) == SHARD_OK && !done) /* it allocates when the writers have ended */
            usleep(200);
        shard_async_save_finish(save);
        shard_async_save_finish(shard_save_checkpoint_async(list, folder, 1, NULL));
        shard_tensors_destroy(list);
    }
}

static void run_module_files(void)
{
    char path[500];
    snprintf(path, sizeof path, "%s/module", scenario_folder);
    shard_module *module = shard_nn_linear(3, 2), *other = shard_nn_linear(3, 2);
    shard_save_module(module, path);
    shard_load_module(other, path);
    shard_tensors *state = shard_state_dict(module);
    shard_module_load_state_dict(other, state);
    shard_tensors_destroy(state);
    shard_module_destroy(other);
    shard_module_destroy(module);
}

static void run_directory(void)
{
    char folder[500], path[600] = "";
    int64_t step = -1;
    snprintf(folder, sizeof folder, "%s/steps", scenario_folder);
    SHARD_SCOPE
    {
        shard_tensors *list = list_of(matrix());
        for (int64_t i = 1; i <= 4; i++)
            shard_save_checkpoint(list, folder, i, NULL);
        shard_latest_checkpoint(folder, INT64_MAX, &step, path, sizeof path);
        add((double)step);
        shard_tensors_destroy(list);
    }
}

/* ---- ranks, devices, samples ---- */

static void run_groups(void)
{
    shard_group *world = shard_world(), *a = shard_group_create(world, (int[]){0}, 1), *b = shard_group_split(world, 0);
    shard_mesh *mesh = shard_mesh_create();
    shard_group_set_replicas(a, b);
    add(shard_group_rank(a) + shard_group_size(b) + shard_group_world_rank(a, 0) + (shard_group_transport(a) != NULL));
    if (mesh)
        add(shard_mesh_coordinate(mesh, "data") + (shard_mesh_group(mesh, "data") == shard_mesh_data_group(mesh)) +
            (shard_mesh_model_group(mesh) != NULL) + (shard_mesh_replica_group(mesh, "model") != NULL));
    shard_barrier(world);
    shard_agree(world);
    SHARD_SCOPE
    {
        shard_tensor *x = leaf();
        back(shard_copy_to_group(x, a), x);
        back(shard_scatter_to_group(x, 0, a), x);
        back(shard_reduce_from_group(x, a), x);
        back(shard_gather_from_group(x, 0, a), x);
        shard_tensor *y = matrix();
        shard_all_reduce(y, SHARD_SUM, a);
        shard_broadcast(y, 0, a);
        shard_backward_from(shard_scale(x, 2), y);
        note(shard_grad(x));
    }
    add((double)shard_split_range(10, 3, 1).size);
    shard_mesh_destroy(mesh);
    shard_group_destroy(a);
    shard_group_destroy(b);
}

static void run_sampler(void)
{
    shard_group_sampler *sampler = shard_group_sampler_create(10, .batch = 4, .shuffle = true);
    int64_t samples[16], count = 0;
    shard_group_sampler_set_epoch(sampler, 1);
    shard_group_sampler_next(sampler, samples, &count);
    add((double)(count + shard_group_sampler_steps(sampler) + shard_group_sampler_max_local_batch(sampler) +
                 shard_group_sampler_last_batch_size(sampler) + shard_group_sampler_epoch(sampler) +
                 shard_group_sampler_step(sampler)));
    shard_group_sampler_seek(sampler, 2, 1);
    add((double)shard_group_sampler_local_range(sampler, 1).size + (double)shard_group_sampler_sample_at(sampler, 0, 3));
    shard_group_sampler_destroy(sampler);
}

static void log_line(shard_log_level level, int rank, const char *line, void *context)
{
    (void)level, (void)rank, (void)line, (void)context;
}

static void run_devices(void)
{
    shard_device *device = shard_device_open(NULL);
    shard_set_default_device(device);
    shard_event *event = shard_event_create(device);
    shard_event_record(event);
    shard_event_synchronize(event);
    shard_event_destroy(event);
    shard_set_allow_tf32(device, shard_allow_tf32(device));
    FILE *file = fopen("/dev/null", "w");
    if (file) {
        shard_memory_report(device, file);
        fclose(file);
    }
    shard_get_memory_stats(device);
    shard_get_memory_by_kind(device, SHARD_MEMORY_WORKSPACE);
    shard_reset_peak_memory(device);
    shard_trim_memory(device);
    shard_device_use_stream(device, NULL);
    add(shard_is_capturing() + (shard_device_name(device) != NULL) + (shard_memory_kind_name(SHARD_MEMORY_WORKSPACE) != NULL) +
        (shard_version() != NULL) + (shard_status_name(SHARD_OK) != NULL) + (shard_dtype_name(SHARD_UINT8) != NULL) +
        (double)shard_dtype_size(SHARD_INT64));
    shard_set_log_function(log_line, NULL);
    shard_set_log_function(NULL, NULL);
    char text[8];
    shard_printable(text, sizeof text, "text");
    shard_set_grad_enabled(shard_grad_enabled());
    if (shard_last_error()[0] == 0)
        shard_clear_error();
}

#define ROW(name)                                                                                                                \
    {                                                                                                                            \
#name, run_##name                                                                                                        \
    }
const allocation_scenario allocation_scenarios[] = {
    ROW(unary),         ROW(scalars), ROW(binary),  ROW(shapes),         ROW(extremes),  ROW(products),
    ROW(norms),         ROW(losses),  ROW(heads),   ROW(custom),         ROW(makers),    ROW(lists),
    ROW(custom_module), ROW(layers),  ROW(convert), ROW(initial_values), ROW(models),    ROW(optimizers),
    ROW(settings),      ROW(scaler),  ROW(engines), ROW(metadata),       ROW(files),     ROW(module_files),
    ROW(directory),     ROW(groups),  ROW(sampler), ROW(devices),        ROW(attention), ROW(saves_in_background),
    ROW(top_k),
};
const int allocation_scenario_count = (int)(sizeof allocation_scenarios / sizeof *allocation_scenarios);
