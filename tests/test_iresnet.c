/*
 * shard_iresnet against PyTorch: names, shapes and kinds of all tensors of the five architectures, and for two of them
 * results, gradients and running statistics for made-up values. golden/make_iresnet.py made what is compared with.
 */
#include "support/check.h"
#include "support/host.h"
#include "support/job.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 3, SIDE = 27, WIDTH = 8, FEATURES = 12, IMAGE_NUMBERS = IMAGES * SIDE * SIDE * 3 };

static const char *const archs[] = {"iresnet18", "iresnet34", "iresnet50", "iresnet100", "iresnet200"};

static FILE *open_golden(const char *name)
{
    char path[64];
    snprintf(path, sizeof path, "golden/%s", name);
    FILE *file = fopen(test_file(path), "r");
    ck_assert_msg(file != NULL, "%s is missing", path);
    return file;
}

static void check_no_error(void)
{
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s", shard_last_error());
}

/* ---- names ---- */

static void check_entry(const shard_tensors *state, char *line)
{
    char *rest, *kind = strtok_r(line, " \n", &rest), *name = strtok_r(NULL, " \n", &rest), *size;
    shard_tensor *tensor = shard_tensors_find(state, name);
    ck_assert_msg(tensor != NULL, "%s is missing", name);
    ck_assert_msg(shard_requires_grad(tensor) == (strcmp(kind, "parameter") == 0), "%s is no %s", name, kind);
    shard_shape shape = shard_tensor_shape(tensor);
    int ndim = 0;
    for (; (size = strtok_r(NULL, " \n", &rest)); ndim++)
        ck_assert_msg(ndim < shape.ndim && shape.dim[ndim] == atoll(size), "size %d of %s is not %s", ndim, name, size);
    ck_assert_msg(ndim == shape.ndim, "%s has %d dimensions, not %d", name, shape.ndim, ndim);
}

START_TEST(test_names_and_shapes)
{
    const char *arch = archs[_i];
    shard_module *model = shard_iresnet(arch);
    shard_tensors *state = shard_state_dict(model);
    check_no_error();
    FILE *file = open_golden("iresnet_names.txt");
    char line[256];
    int64_t count = 0;
    size_t length = strlen(arch);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, arch, length) == 0 && line[length] == ' ') {
            check_entry(state, line + length + 1);
            count++;
        }
    fclose(file);
    ck_assert_int_gt(count, 100);
    ck_assert_int_eq(shard_tensors_count(state), count);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
}
END_TEST

/* Convolutions are normal with a deviation of 0.1, slopes are 0.25; the rest is the layers' own. */
START_TEST(test_initial_values)
{
    shard_manual_seed(7);
    shard_module *model = shard_iresnet("iresnet18", .image_size = 32);
    shard_tensors *state = shard_state_dict(model);
    shard_tensor *weight = shard_tensors_find(state, "layer4.0.conv2.weight"),
                 *slopes = shard_tensors_find(state, "prelu.weight");
    float *values = host_copy(weight), *slope = host_copy(slopes);
    double squares = 0, count = (double)shard_numel(weight);
    for (int64_t i = 0; i < shard_numel(weight); i++)
        squares += (double)values[i] * (double)values[i];
    ck_assert_double_eq_tol(sqrt(squares / count), 0.1, 0.001);
    for (int i = 0; i < 64; i++)
        ck_assert(slope[i] == 0.25f);
    free(values);
    free(slope);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
}
END_TEST

START_TEST(test_no_images)
{
    shard_module *model = shard_iresnet("iresnet18", .image_size = 16, .width = 4, .num_features = 6);
    SHARD_SCOPE
    {
        shard_tensor *y = shard_forward(model, shard_normal(SHARD_SHAPE(0, 16, 16, 3), 0, 1));
        check_no_error();
        ck_assert_int_eq(shard_tensor_size(y, 0), 0);
        ck_assert_int_eq(shard_tensor_size(y, 1), 6);
        shard_backward(shard_sum(y));
        check_no_error();
    }
    shard_module_destroy(model);
}
END_TEST

/* Dropout of everything leaves fc's bias, the same for each image. */
START_TEST(test_dropout)
{
    shard_module *model = shard_iresnet("iresnet18", .image_size = 16, .width = 4, .num_features = 6, .dropout = 1);
    shard_module *fc = shard_module_child(model, "fc");
    SHARD_SCOPE
    {
        shard_tensor *y = shard_forward(model, shard_normal(SHARD_SHAPE(2, 16, 16, 3), 0, 1));
        float *values = host_copy(y);
        for (int i = 0; i < 12; i++)
            ck_assert(values[i] == 0); /* a batch norm of equal rows */
        free(values);
        shard_module_set_training(model, false);
        y = shard_forward(model, shard_normal(SHARD_SHAPE(2, 16, 16, 3), 0, 1));
        values = host_copy(y);
        float *bias = host_copy(shard_module_tensor(fc, "bias"));
        ck_assert(fabsf(values[0] - bias[0]) > 1e-3f);
        free(values);
        free(bias);
    }
    shard_module_destroy(model);
}
END_TEST

START_TEST(test_refusals)
{
    ck_assert_ptr_null(shard_iresnet(NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: arch *");
    ck_assert_ptr_null(shard_iresnet("r50"));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: *\"r50\"*iresnet100*");
    ck_assert_ptr_null(shard_iresnet("iresnet18", .width = 0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: width 0; 1 to *");
    ck_assert_ptr_null(shard_iresnet("iresnet18", .width = INT64_MAX / 8));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: width 1152921504606846975; 1 to *");
    ck_assert_ptr_null(shard_iresnet("iresnet18", .dtype = SHARD_INT64));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: dtype int64*");
    ck_assert_ptr_null(shard_iresnet("iresnet18", .num_features = 0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: num_features 0*");
    ck_assert_ptr_null(shard_iresnet("iresnet18", .image_size = 0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: image_size 0*");
    ck_assert_ptr_null(shard_iresnet("iresnet18", .dropout = 1.5));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_dropout: 1.5*");
    ck_assert_ptr_null(shard_nn_prelu(0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_prelu: 0 channels*");
    ck_assert_ptr_null(shard_nn_prelu(1, .init = NAN));
    check_error(SHARD_ERROR_ARGUMENT, "shard_nn_prelu: *nan*");
    ck_assert(!shard_iresnet_exists(NULL) && !shard_iresnet_exists("resnet18") && shard_iresnet_exists("iresnet34"));
}
END_TEST

/* ---- values ---- */

/* In [0, 1); the same as in golden/make_iresnet.py. */
static double made_up_number(uint32_t seed, uint32_t index)
{
    uint32_t x = index + 1 + 1000003 * (seed + 1);
    x *= 2654435761u;
    x ^= x >> 15;
    x *= 2246822519u;
    x ^= x >> 13;
    x *= 3266489917u;
    x ^= x >> 16;
    return x / 4294967296.0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcmp(text + length - tail, end) == 0;
}

static void fill(const char *name, uint32_t seed, shard_tensor *tensor)
{
    if (shard_tensor_dtype(tensor) == SHARD_INT64)
        return;
    shard_shape shape = shard_tensor_shape(tensor);
    int64_t count = shard_numel(tensor);
    float *values = malloc((size_t)count * sizeof *values);
    double low = -0.5, high = 0.5;
    if (shape.ndim == 4)
        low = -(high = sqrt(6.0 / (double)(shape.dim[1] * shape.dim[2] * shape.dim[3])));
    else if (shape.ndim == 2)
        low = -(high = 1 / sqrt((double)shape.dim[1]));
    else if (ends_with(name, "prelu.weight"))
        low = -0.25, high = 0.75;
    else if (ends_with(name, "bn3.weight"))
        low = 0.2, high = 0.4;
    else if (ends_with(name, "weight") || ends_with(name, "running_var"))
        low = 0.5, high = 1.5;
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(low + (high - low) * made_up_number(seed, (uint32_t)i));
    ck_assert_int_eq(shard_copy_from_host(tensor, values, (size_t)count * sizeof *values), SHARD_OK);
    free(values);
}

/* Seeds go by the order of PyTorch's state dict. */
static void fill_all(const char *arch, const shard_tensors *state)
{
    FILE *file = open_golden("iresnet_names.txt");
    char line[256], of[32], kind[32], name[128];
    uint32_t seed = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%31s %31s %127s", of, kind, name) == 3 && strcmp(of, arch) == 0)
            fill(name, seed++, shard_tensors_find(state, name));
    fclose(file);
}

static void check_number(const char *what, double got, double expected, double tolerance, double scale)
{
    ck_assert_msg(fabs(got - expected) <= tolerance * scale, "%s is %.9g, PyTorch's is %.9g", what, got, expected);
}

/* The numbers behind a line's name, or NULL if the line is another. */
static char *after(char *line, const char *arch, const char *kind)
{
    char begin[64];
    snprintf(begin, sizeof begin, "%s %s ", arch, kind);
    return strncmp(line, begin, strlen(begin)) == 0 ? line + strlen(begin) : NULL;
}

static void check_features(const char *what, shard_tensor *features, char *numbers, double tolerance)
{
    float *values = host_copy(features);
    for (int i = 0; i < IMAGES * FEATURES; i++) {
        double expected = strtod(numbers, &numbers);
        check_number(what, (double)values[i], expected, tolerance, 1 + fabs(expected));
    }
    free(values);
}

static double sum_of(shard_tensor *tensor, bool magnitudes)
{
    double sum = 0;
    if (shard_tensor_dtype(tensor) == SHARD_INT64)
        return shard_item(tensor);
    float *values = host_copy(tensor);
    for (int64_t i = 0; i < shard_numel(tensor); i++)
        sum += magnitudes ? fabs((double)values[i]) : (double)values[i];
    free(values);
    return sum;
}

/* 1 if the line is the architecture's. */
static int check_line(const char *arch, char *line, const shard_tensors *state, shard_tensor *evaluated, shard_tensor *trained,
                      shard_tensor *loss)
{
    char *rest, name[128];
    double expected;
    if ((rest = after(line, arch, "evaluation")))
        check_features("a feature of evaluation", evaluated, rest, 2e-5);
    else if ((rest = after(line, arch, "training")))
        check_features("a feature of training", trained, rest, 2e-4);
    else if ((rest = after(line, arch, "loss")))
        check_number("the loss", shard_item(loss), strtod(rest, NULL), 1e-4, 1);
    else if ((rest = after(line, arch, "gradient")) && sscanf(rest, "%127s %lf", name, &expected) == 2)
        check_number(name, sum_of(shard_grad(shard_tensors_find(state, name)), true), expected, 1e-2, 1e-4 + expected);
    else if ((rest = after(line, arch, "buffer")) && sscanf(rest, "%127s %lf", name, &expected) == 2)
        check_number(name, sum_of(shard_tensors_find(state, name), false), expected, 2e-5, 1 + fabs(expected));
    else
        return 0;
    return 1;
}

static const char *const valued_archs[] = {"iresnet18", "iresnet50"};

START_TEST(test_values)
{
    const char *arch = valued_archs[_i];
    shard_module *model = shard_iresnet(arch, .image_size = SIDE, .width = WIDTH, .num_features = FEATURES);
    shard_tensors *state = shard_state_dict(model);
    check_no_error();
    fill_all(arch, state);
    float *pixels = malloc(IMAGE_NUMBERS * sizeof *pixels);
    for (uint32_t i = 0; i < IMAGE_NUMBERS; i++)
        pixels[i] = (float)(2 * made_up_number(9999, i) - 1);
    int64_t labels[IMAGES];
    for (int i = 0; i < IMAGES; i++)
        labels[i] = i * 5 % FEATURES;
    SHARD_SCOPE
    {
        shard_tensor *images = shard_from_host(pixels, SHARD_SHAPE(IMAGES, SIDE, SIDE, 3));
        shard_module_set_training(model, false);
        shard_tensor *evaluated = shard_forward(model, images);
        shard_module_set_training(model, true);
        shard_tensor *trained = shard_forward(model, images);
        shard_tensor *loss = shard_cross_entropy(trained, shard_from_host(labels, SHARD_SHAPE(IMAGES), .dtype = SHARD_INT64));
        shard_backward(loss);
        check_no_error();
        FILE *file = open_golden("iresnet_values.txt");
        static char line[8192];
        int lines = 0;
        while (fgets(line, sizeof line, file))
            lines += check_line(arch, line, state, evaluated, trained, loss);
        fclose(file);
        ck_assert_int_eq(lines, 2 + shard_tensors_count(state)); /* all but features.weight, and three more */
    }
    free(pixels);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("iresnet");
    TCase *tcase = test_case(suite, "iresnet");
    tcase_add_loop_test(tcase, test_names_and_shapes, 0, sizeof archs / sizeof *archs);
    tcase_add_loop_test(tcase, test_values, 0, sizeof valued_archs / sizeof *valued_archs);
    tcase_add_test(tcase, test_initial_values);
    tcase_add_test(tcase, test_no_images);
    tcase_add_test(tcase, test_dropout);
    tcase_add_test(tcase, test_refusals);
    return test_run(suite);
}
