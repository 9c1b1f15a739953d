/* Modules: names, training mode, own modules, what happens on failure. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/job.h"
#include "support/options.h"

#include "device/device.h"

#include <stdlib.h>
#include <string.h>

static shard_module *small_net(void)
{
    shard_module *features = shard_nn_sequential(shard_nn_conv2d(3, 4, 3, .padding = 1, .bias = false), shard_nn_batch_norm(4),
                                                 shard_nn_relu(), shard_nn_max_pool2d(2, -1, 0));
    return shard_nn_sequential(features, shard_nn_global_avg_pool2d(), shard_nn_dropout(0.5), shard_nn_linear(4, 5));
}

START_TEST(test_names)
{
    static const char *const parameters[] = {"0.0.weight", "0.1.weight", "0.1.bias", "3.weight", "3.bias"};
    static const char *const state[] = {"0.0.weight",       "0.1.weight",      "0.1.bias",
                                        "0.1.running_mean", "0.1.running_var", "0.1.num_batches_tracked",
                                        "3.weight",         "3.bias"};
    shard_module *net = small_net();
    shard_tensors *list = shard_parameters(net), *all = shard_state_dict(net);
    ck_assert_int_eq(shard_tensors_count(list), 5);
    ck_assert_int_eq(shard_tensors_count(all), 8);
    for (int i = 0; i < 5; i++) {
        ck_assert_str_eq(shard_tensors_name(list, i), parameters[i]);
        ck_assert(shard_requires_grad(shard_tensors_at(list, i)));
    }
    for (int i = 0; i < 8; i++)
        ck_assert_str_eq(shard_tensors_name(all, i), state[i]);
    ck_assert(!shard_requires_grad(shard_tensors_find(all, "0.1.running_mean")));
    ck_assert_int_eq(shard_tensor_shape(shard_tensors_find(all, "0.1.num_batches_tracked")).ndim, 0);
    ck_assert_ptr_null(shard_tensors_find(all, "3.missing"));
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
    shard_tensors_destroy(list);
    shard_tensors_destroy(all);
    shard_module_destroy(net);
}
END_TEST

START_TEST(test_training_mode)
{
    shard_module *net = small_net();
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(6, 8, 8, 3), 1, SHARD_FLOAT32);
        shard_tensor *a = shard_forward(net, x), *b = shard_forward(net, x);
        double *first = values_of(a), *second = values_of(b);
        ck_assert(memcmp(first, second, 30 * sizeof *first) != 0); /* dropout draws anew */
        free(first);
        free(second);
        shard_module_set_training(net, false);
        ck_assert(!shard_module_is_training(shard_module_child_at(shard_module_child_at(net, 0), 1)));
        check_close(shard_forward(net, x), shard_forward(net, x), 0);
        shard_tensors *all = shard_state_dict(net);
        ck_assert_double_eq(shard_item(shard_tensors_find(all, "0.1.num_batches_tracked")), 2);
        shard_tensors_destroy(all);
    }
    shard_module_destroy(net);
}
END_TEST

/* Initial values have PyTorch's distributions, and a seed repeats them. */
START_TEST(test_initial_values)
{
    SHARD_SCOPE
    {
        shard_manual_seed(4);
        shard_module *linear = shard_nn_linear(100, 400), *conv = shard_nn_conv2d(16, 32, 3);
        ck_assert_ptr_nonnull(shard_module_tensor(conv, "bias"));
        double *weight = values_of(shard_module_tensor(linear, "weight"));
        double *kernel = values_of(shard_module_tensor(conv, "weight"));
        double low = 0, high = 0, sum = 0, squares = 0;
        for (int i = 0; i < 40000; i++) {
            low = weight[i] < low ? weight[i] : low;
            high = weight[i] > high ? weight[i] : high;
        }
        ck_assert_double_eq_tol(low, -0.1, 1e-3);
        ck_assert_double_eq_tol(high, 0.1, 1e-3);
        for (int i = 0; i < 32 * 16 * 9; i++) {
            sum += kernel[i];
            squares += kernel[i] * kernel[i];
        }
        ck_assert_double_eq_tol(squares / (32 * 16 * 9), 2.0 / (32 * 9), 0.1 * 2.0 / (32 * 9));
        ck_assert_double_eq_tol(sum / (32 * 16 * 9), 0.0, 0.005);
        shard_manual_seed(4);
        shard_module *again = shard_nn_linear(100, 400);
        double *same = values_of(shard_module_tensor(again, "weight"));
        ck_assert_mem_eq(weight, same, 40000 * sizeof *weight);
        free(weight);
        free(kernel);
        free(same);
        shard_module_destroy(linear);
        shard_module_destroy(conv);
        shard_module_destroy(again);
    }
}
END_TEST

static int destroyed;

static shard_tensor *twice(shard_module *module, shard_tensor *x)
{
    shard_tensor *temporary = shard_mul(x, shard_module_tensor(module, "factor"));
    return shard_add(temporary, temporary);
}

static void count_destroyed(shard_module *module)
{
    ck_assert_ptr_nonnull(module);
    destroyed++;
}

static const shard_module_type twice_type = {.name = "twice", .forward = twice, .destroy = count_destroyed};

START_TEST(test_own_module)
{
    shard_device *device = shard_device_open(NULL);
    int64_t before = shard_get_memory_stats(device).current;
    shard_module *module = shard_module_create(&twice_type, NULL);
    SHARD_SCOPE
    {
        check_ok(shard_module_add_parameter(module, "factor", shard_full(SHARD_SHAPE(3), 5.0)));
        shard_tensor *y = shard_forward(module, shard_full(SHARD_SHAPE(2, 3), 2.0));
        ck_assert_double_eq(value_at(y, 5), 20.0);
        ck_assert_int_eq(shard_module_add_parameter(module, "factor", shard_full(SHARD_SHAPE(3), 5.0)), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*tensor \"factor\" already*");
        ck_assert_int_eq(shard_module_add_child(module, "a.b", shard_nn_relu()), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*\"a.b\" is not a valid name*");
        ck_assert_ptr_null(shard_module_child(module, "fc"));
        check_error(SHARD_ERROR_ARGUMENT, "*has no child \"fc\"*");
        ck_assert_int_eq(shard_module_add_parameter(module, "bad", shard_zeros(SHARD_SHAPE(1), .dtype = SHARD_INT64)),
                         SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*int64*no gradient*");
    }
    shard_module_destroy(module);
    ck_assert_int_eq(destroyed, 1);
    ck_assert_int_eq(shard_get_memory_stats(device).current, before);
}
END_TEST

/* Parameters of the caller's values and of the caller's memory, added and set: in a backward, with autocast and without. */
START_TEST(test_own_values)
{
    float values[] = {2, 3}, memory[] = {5, 7};
    for (int amp = 0; amp < 2; amp++) {
        shard_module *linear = shard_nn_linear(2, 1, .bias = false);
        shard_module *module = shard_module_create(&twice_type, NULL);
        SHARD_SCOPE
        {
            shard_tensor *weight = shard_from_host(values, SHARD_SHAPE(1, 2));
            shard_tensor *factor = shard_from_host(memory, SHARD_SHAPE(1));
            check_ok(shard_module_set_parameter(linear, "weight", weight));
            check_ok(shard_module_add_parameter(module, "factor", factor));
            shard_tensor *y = NULL;
            SHARD_AUTOCAST(amp ? SHARD_BFLOAT16 : SHARD_FLOAT32)
            {
                y = shard_sum(shard_forward(module, shard_forward(linear, shard_ones(SHARD_SHAPE(1, 2)))));
            }
            check_ok(shard_backward(y));
            ck_assert_double_eq(value_at(y, 0), 2 * 5 * 5);
            ck_assert_double_eq(value_at(shard_grad(weight), 1), 2 * 5);
            ck_assert_double_eq(value_at(shard_grad(factor), 0), 2 * 5);
        }
        shard_module_destroy(module);
        shard_module_destroy(linear);
    }
    if (!shard_device_open(NULL)->ops->host_memory)
        return;
    shard_module *linear = shard_nn_linear(2, 1, .bias = false);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_from_memory(memory, SHARD_SHAPE(1, 2), SHARD_FLOAT32, NULL, NULL, NULL);
        check_ok(shard_module_set_parameter(linear, "weight", weight));
        check_ok(shard_backward(shard_sum(shard_forward(linear, shard_full(SHARD_SHAPE(1, 2), 3)))));
        ck_assert_double_eq(value_at(shard_grad(weight), 1), 3);
    }
    shard_module_destroy(linear);
}
END_TEST

/* A result is the caller's, also of a module that hands its input or a parameter on. */
static shard_tensor *constant(shard_module *module, shard_tensor *x)
{
    (void)x;
    return shard_module_tensor(module, "value");
}

static const shard_module_type constant_type = {.name = "constant", .forward = constant};

START_TEST(test_passes_on)
{
    shard_device *device = shard_device_open(NULL);
    int64_t before = shard_get_memory_stats(device).current;
    shard_module *modules[] = {shard_nn_dropout(0.5), shard_nn_sequential_of(0, NULL),
                               shard_nn_sequential(shard_nn_dropout(0.5), shard_nn_dropout(0.5)),
                               shard_module_create(&constant_type, NULL)};
    shard_tensor *value = shard_full(SHARD_SHAPE(3), 2.0);
    check_ok(shard_module_add_parameter(modules[3], "value", value));
    shard_release(value);
    for (int i = 0; i < 4; i++) {
        shard_module_set_training(modules[i], false);
        shard_tensor *leaf = shard_full(SHARD_SHAPE(3), 2.0, .requires_grad = true);
        shard_tensor *x = shard_scale(leaf, 1.0), *y = shard_forward(modules[i], x);
        ck_assert_ptr_ne(y, x);
        shard_release(x);
        shard_tensor *loss = shard_sum(y);
        shard_release(y);
        ck_assert_double_eq(shard_item(loss), 6.0);
        check_ok(shard_backward(loss));
        ck_assert(i == 3 || value_at(shard_grad(leaf), 2) == 1.0f);
        shard_release(loss);
        shard_release(leaf);
    }
    ck_assert_double_eq(value_at(shard_grad(shard_module_tensor(modules[3], "value")), 2), 1.0);
    for (int i = 0; i < 4; i++)
        shard_module_destroy(modules[i]);
    ck_assert_int_eq(shard_get_memory_stats(device).current, before);
}
END_TEST

/* A maker that fails takes the others down with it, and the first error stands. */
START_TEST(test_failure)
{
    ck_assert_ptr_null(shard_nn_sequential(shard_nn_linear(3, 4), shard_nn_linear(0, 4), shard_nn_dropout(2.0)));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_linear: from 0*");
    ck_assert_ptr_null(shard_nn_conv2d(1, 1, INT64_C(1) << 32));
    check_error(SHARD_ERROR_MEMORY, "*[[]1, 1, 4294967296, 4294967296]: its size overflows");
    ck_assert_ptr_null(shard_forward(NULL, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "*shard_forward: module is NULL*");
}
END_TEST

/* A module in the list that is below another one of it is refused, and not destroyed a second time. */
START_TEST(test_listed_below)
{
    shard_module *backbone = shard_nn_sequential(shard_nn_linear(3, 4));
    ck_assert_ptr_null(shard_nn_sequential(NULL, backbone, shard_module_child(backbone, "0")));
    check_error(SHARD_ERROR_ARGUMENT, "*child is NULL*");
    backbone = shard_nn_sequential(shard_nn_linear(3, 4));
    ck_assert_ptr_null(shard_nn_sequential(shard_module_child(backbone, "0"), backbone, backbone));
    check_error(SHARD_ERROR_ARGUMENT, "*\"0\", a linear, is a child already*");
}
END_TEST

/* A module has one parent; what is refused stays whose it is, and nothing is freed twice. */
START_TEST(test_one_parent)
{
    shard_module *child = shard_nn_relu(), *parent = shard_nn_sequential(child);
    ck_assert_ptr_null(shard_nn_sequential(child));
    check_error(SHARD_ERROR_ARGUMENT, "*: \"0\", a relu, is a child already, of a sequential:*");
    ck_assert_ptr_null(shard_nn_sequential(shard_nn_gelu(), child, shard_nn_gelu()));
    check_error(SHARD_ERROR_ARGUMENT, "*\"1\", a relu, is a child already*");
    ck_assert_int_eq(shard_module_add_child(parent, "again", child), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*is a child already*");
    ck_assert_int_eq(shard_module_add_child(parent, "itself", parent), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_module_add_child: \"itself\", a sequential, *");
    shard_module *above = shard_nn_sequential(parent);
    ck_assert_int_eq(shard_module_add_child(child, "above", above), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_module_add_child: \"above\", a sequential, *");
    ck_assert_int_eq(shard_module_child_count(parent), 1);
    shard_module_destroy(child); /* its parent does */
    check_error(SHARD_ERROR_ARGUMENT, "shard_module_destroy: *child*");
    ck_assert_ptr_eq(shard_module_child_at(parent, 0), child);
    shard_module_destroy(above);

    shard_module *twice_given = shard_nn_relu();
    ck_assert_ptr_null(shard_nn_sequential(twice_given, twice_given));
    check_error(SHARD_ERROR_ARGUMENT, "*\"1\", a relu, is a child already*");
    twice_given = shard_nn_relu();
    ck_assert_ptr_null(shard_nn_sequential(shard_nn_linear(0, 1), twice_given, twice_given));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_linear: from 0*");
    ck_assert_ptr_null(shard_nn_sequential_of(3, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_sequential_of: modules is NULL*");
    ck_assert_ptr_null(shard_nn_sequential_of(-1, NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_sequential_of: -1*");
}
END_TEST

/* The new child stands where the old one was, under its name; what is refused leaves the module as it is. */
START_TEST(test_set_child)
{
    shard_module *first = shard_nn_linear(2, 3), *model = shard_nn_sequential(first, shard_nn_relu());
    SHARD_SCOPE
    {
        shard_module *head = shard_nn_linear(2, 5, .bias = false);
        check_ok(shard_module_set_child(model, "0", head));
        ck_assert_ptr_eq(shard_module_child_at(model, 0), head);
        ck_assert_str_eq(shard_module_child_name(model, 0), "0");
        shard_tensors *parameters = shard_parameters(model);
        ck_assert_int_eq(shard_tensors_count(parameters), 1);
        ck_assert_str_eq(shard_tensors_name(parameters, 0), "0.weight");
        shard_tensors_destroy(parameters);
        ck_assert_int_eq(shard_tensor_size(shard_forward(model, shard_ones(SHARD_SHAPE(1, 2))), 1), 5);
        ck_assert_int_eq(shard_module_set_child(model, "1", head), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*is a child already*");
        ck_assert_int_eq(shard_module_set_child(model, "head", shard_nn_relu()), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*no child \"head\"*");
        ck_assert_int_eq(shard_module_child_count(model), 2);
    }
    shard_module_destroy(model);
}
END_TEST

/* Names with dots lead to the modules below, as those of a state dict; an error has the module where the way ends. */
START_TEST(test_dotted_names)
{
    shard_module *inner = shard_nn_sequential(shard_nn_linear(2, 3), shard_nn_relu()), *model = shard_nn_sequential(inner);
    SHARD_SCOPE
    {
        shard_module *linear = shard_module_child_at(inner, 0);
        ck_assert_ptr_eq(shard_module_child(model, "0.0"), linear);
        ck_assert_ptr_eq(shard_module_tensor(model, "0.0.bias"), shard_module_tensor(linear, "bias"));
        ck_assert_ptr_eq(shard_module_optional(model, "0.0.bias"), shard_module_tensor(linear, "bias"));
        shard_tensor *weight = shard_ones(SHARD_SHAPE(3, 2));
        check_ok(shard_module_set_parameter(model, "0.0.weight", weight));
        ck_assert_ptr_eq(shard_module_tensor(linear, "weight"), weight);
        static const char *const lacking[] = {"0.2.weight", "00.0.weight", "0.0.slope", "0.0.", ".0", "0..0", "0.0.weight.0"};
        for (int i = 0; i < (int)(sizeof lacking / sizeof *lacking); i++) {
            ck_assert_ptr_null(shard_module_optional(model, lacking[i]));
            check_ok(shard_last_status());
            ck_assert_ptr_null(shard_module_tensor(model, lacking[i]));
            check_error(SHARD_ERROR_ARGUMENT, "shard_module_tensor: * has no *");
        }
        ck_assert_int_eq(shard_module_set_parameter(model, "0.1.weight", weight), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*relu 0.1 has no parameter*");
        check_ok(shard_module_set_child(model, "0.1", shard_nn_gelu()));
        ck_assert_str_eq(shard_module_get_type(shard_module_child(inner, "1"))->name, "gelu");
        ck_assert_int_eq(shard_module_set_child(model, "0.0", model), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*would be a child of itself*");
        ck_assert_ptr_eq(shard_module_child(model, "0.0"), linear);
    }
    shard_module_destroy(model);
}
END_TEST

/* A type without a forward holds children; calling it is an error. */
START_TEST(test_without_forward)
{
    static const shard_module_type types[] = {{.name = "holder"}, {.name = NULL}};
    static const char *const texts[] = {"shard_forward: holder has no forward*",
                                        "shard_forward: a module without a name has no *"};
    for (int i = 0; i < 2; i++)
        SHARD_SCOPE
        {
            shard_module *module = shard_module_create(&types[i], NULL);
            check_ok(shard_module_add_child(module, "a", shard_nn_relu()));
            ck_assert_ptr_null(shard_forward(module, shard_ones(SHARD_SHAPE(2))));
            check_error(SHARD_ERROR_ARGUMENT, texts[i]);
            ck_assert_ptr_null(shard_module_child(module, "b"));
            check_error(SHARD_ERROR_ARGUMENT,
                        i ? "shard_module_child: a module without a name *" : "shard_module_child: holder *");
            shard_module_destroy(module);
        }
}
END_TEST

static shard_tensor *return_nothing(shard_module *module, shard_tensor *x)
{
    (void)module, (void)x;
    return NULL;
}

/* A forward that returns NULL without an error gets one, with its type's name, also as a child. */
START_TEST(test_silent_forward)
{
    static const shard_module_type type = {.name = "silent", .forward = return_nothing};
    SHARD_SCOPE {
        shard_module *module = shard_nn_sequential(shard_module_create(&type, NULL), shard_nn_relu());
        ck_assert_ptr_null(shard_forward(module, shard_ones(SHARD_SHAPE(2))));
        check_error(SHARD_ERROR_ARGUMENT, "shard_forward: *silent returned NULL and gave no reason*");
        shard_module_destroy(module);
    }
}
END_TEST

/* One tensor in two modules: an embedding whose weight is also the head's. */
START_TEST(test_shared_weight)
{
    SHARD_SCOPE
    {
        shard_module *embedding = shard_nn_embedding(4, 3, -1), *head = shard_nn_linear(3, 4, .bias = false);
        shard_module *model = shard_nn_sequential(embedding, head);
        shard_tensor *weight = shard_module_tensor(embedding, "weight"), *own = shard_module_tensor(head, "weight");
        int64_t token = 2;
        check_ok(shard_module_set_parameter(head, "weight", weight));
        ck_assert_ptr_eq(shard_module_tensor(head, "weight"), weight);
        shard_tensor *x = shard_from_host(&token, SHARD_SHAPE(1), .dtype = SHARD_INT64);
        double before = value_at(weight, 6);
        shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 1);
        check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        /* y = W w_2: w_2 of each row of W as the head's, and the sum of W's rows as the embedding's. */
        double expected = 0;
        for (int i = 0; i < 4; i++)
            expected += value_at(weight, 3 * i);
        expected += before;
        ck_assert_double_eq_tol(value_at(shard_grad(weight), 6), expected, 1e-6);
        check_ok(shard_step(sgd));
        ck_assert_double_eq_tol(value_at(weight, 6), before - expected, 1e-6);
        ck_assert_int_eq(shard_module_set_parameter(head, "bias", weight), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*linear has no parameter *bias*");
        ck_assert_int_eq(shard_module_set_parameter(head, "weight", shard_zeros(SHARD_SHAPE(3, 4))), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "*\"weight\" of a linear is float32 [[]4, 3] (*), not float32 [[]3, 4] (*)");
        ck_assert_int_eq(shard_module_set_parameter(head, "weight", shard_scale(weight, 2)), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "shard_module_set_parameter: \"weight\" of a linear is the result of an operation*");
        ck_assert_int_eq(shard_module_set_parameter(head, NULL, weight), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "*name is NULL*");
        (void)own;
        shard_optimizer_destroy(sgd);
        shard_module_destroy(model);
    }
}
END_TEST

/* Options of layer_norm: no parameters, no bias, another dtype. */
START_TEST(test_layer_norm_options)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_host(((double[]){1, 2, 4, 5}), SHARD_SHAPE(1, 4), .dtype = SHARD_FLOAT64);
        shard_module *bare = shard_nn_layer_norm(4, 1e-5, .elementwise_affine = false);
        shard_module *no_bias = shard_nn_layer_norm(4, 1e-5, .bias = false, .dtype = SHARD_FLOAT64);
        shard_tensors *none = shard_parameters(bare), *weight = shard_parameters(no_bias);
        ck_assert_int_eq(shard_tensors_count(none), 0);
        ck_assert_int_eq(shard_tensors_count(weight), 1);
        ck_assert_int_eq(shard_tensor_dtype(shard_tensors_find(weight, "weight")), SHARD_FLOAT64);
        shard_tensor *y = shard_forward(no_bias, x), *z = shard_forward(bare, x);
        ck_assert_double_eq_tol(value_at(y, 3), 2 / sqrt(2.5 + 1e-5), 1e-12);
        ck_assert_double_eq_tol(value_at(z, 3), 2 / sqrt(2.5 + 1e-5), 1e-12);
        check_ok(shard_backward(shard_sum(shard_mul(y, x))));
        ck_assert_double_eq_tol(value_at(shard_grad(shard_tensors_find(weight, "weight")), 3), 5 * 2 / sqrt(2.5 + 1e-5), 1e-12);
        shard_tensors_destroy(none);
        shard_tensors_destroy(weight);
        shard_module_destroy(bare);
        shard_module_destroy(no_bias);
    }
}
END_TEST

/* What every forward would refuse is refused where the layer is made. */
START_TEST(test_bad_options)
{
    ck_assert_ptr_null(shard_nn_batch_norm(4, .momentum = 7));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_batch_norm: momentum 7, eps *");
    ck_assert_ptr_null(shard_nn_batch_norm(4, .eps = -1));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_batch_norm: momentum *, eps -1;*");
    ck_assert_ptr_null(shard_nn_batch_norm(4, .dtype = SHARD_INT64));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_batch_norm: dtype int64;*");
    ck_assert_ptr_null(shard_nn_layer_norm(4, NAN));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_layer_norm: eps is *");
    ck_assert_ptr_null(shard_nn_layer_norm(4, 1e-5, .dtype = SHARD_INT32));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_layer_norm: dtype int32;*");
    ck_assert_ptr_null(shard_nn_embedding(4, 4, -1, .max_norm = -2));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_embedding: max_norm -2, *");
    ck_assert_ptr_null(shard_nn_parallel_embedding(4, 4, -1, SHARD_SPLIT_ROW, NULL, .norm_type = 0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_embedding: *norm_type 0*");
    ck_assert_ptr_null(shard_nn_conv2d(4, 4, 3, .stride = 0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_conv2d: stride 0, *");
    ck_assert_ptr_null(shard_nn_conv2d(4, 4, 3, .dilation = -1));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_conv2d: *dilation -1 *");
    ck_assert_ptr_null(shard_nn_linear(4, 4, .dtype = SHARD_INT64));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_linear: dtype int64;*");
    ck_assert_ptr_null(shard_nn_parallel_classifier(4, 4, NULL, .dtype = SHARD_INT32));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_parallel_classifier: dtype int32;*");
    ck_assert_ptr_null(shard_nn_conv2d(4, 4, 3, .dtype = SHARD_UINT8));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_conv2d: dtype uint8;*");
    ck_assert_ptr_null(shard_nn_embedding(4, 4, -1, .dtype = SHARD_INT64));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_embedding: dtype int64;*");
    ck_assert_ptr_null(shard_nn_prelu(4, .dtype = SHARD_INT64));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_prelu: dtype int64;*");
}
END_TEST

/* Layers that are one operation. */
START_TEST(test_one_operation)
{
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(2, 5, 5, 3), 0, 3);
        const struct {
            shard_module *module;
            shard_tensor *y;
        } layers[] = {
            {shard_nn_relu(), shard_relu(x)},
            {shard_nn_leaky_relu(0.2), shard_leaky_relu(x, 0.2)},
            {shard_nn_gelu(), shard_gelu(x)},
            {shard_nn_silu(), shard_silu(x)},
            {shard_nn_softplus(2, 3), shard_softplus(x, 2, 3)},
            {shard_nn_sigmoid(), shard_sigmoid(x)},
            {shard_nn_tanh(), shard_tanh(x)},
            {shard_nn_max_pool2d(3, 2, 1), shard_max_pool2d(x, 3, .stride = 2, .padding = 1)},
            {shard_nn_avg_pool2d(3, 2, 1), shard_avg_pool2d(x, 3, .stride = 2, .padding = 1)},
            {shard_nn_avg_pool2d(2, -1, 0), shard_avg_pool2d(x, 2)},
            {shard_nn_global_avg_pool2d(), shard_global_avg_pool2d(x)},
        };
        for (int i = 0; i < (int)(sizeof layers / sizeof *layers); i++) {
            const char *name = shard_module_get_type(layers[i].module)->name;
            double *values = values_of(layers[i].y);
            check_tensor(name, shard_forward(layers[i].module, x), values, 0);
            free(values);
            shard_module_destroy(layers[i].module);
        }
        shard_module *softplus = shard_nn_softplus(0, 20);
        check_refused(shard_forward(softplus, x), SHARD_ERROR_ARGUMENT, "shard_softplus: beta 0 *");
        shard_module_destroy(softplus);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("module");
    TCase *tcase = test_case(suite, "module");
    tcase_add_test(tcase, test_names);
    tcase_add_test(tcase, test_training_mode);
    tcase_add_test(tcase, test_initial_values);
    tcase_add_test(tcase, test_own_module);
    tcase_add_test(tcase, test_own_values);
    tcase_add_test(tcase, test_passes_on);
    tcase_add_test(tcase, test_failure);
    tcase_add_test(tcase, test_listed_below);
    tcase_add_test(tcase, test_one_parent);
    tcase_add_test(tcase, test_set_child);
    tcase_add_test(tcase, test_dotted_names);
    tcase_add_test(tcase, test_without_forward);
    tcase_add_test(tcase, test_silent_forward);
    tcase_add_test(tcase, test_shared_weight);
    tcase_add_test(tcase, test_layer_norm_options);
    tcase_add_test(tcase, test_bad_options);
    tcase_add_test(tcase, test_one_operation);
    return test_run(suite);
}
