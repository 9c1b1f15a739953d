/*
 * shard_resnet against torchvision's: names, shapes and kinds of all tensors
 * of the five architectures, and for two of them results, gradients and running
 * statistics for made-up values. golden/make_resnet.py made what is compared with.
 */
#include "support/check.h"
#include "support/host.h"
#include "support/job.h"

#include <shard/shard.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLASSES 10
#define IMAGES 4
#define SIDE 64
#define IMAGE_NUMBERS (IMAGES * SIDE * SIDE * 3)

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

static const char *const archs[] = {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"};

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
    shard_module *model = shard_resnet(arch, 1000);
    shard_tensors *state = shard_state_dict(model);
    check_no_error();
    FILE *file = open_golden("resnet_names.txt");
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

START_TEST(test_small_stem)
{
    shard_module *model = shard_resnet("resnet18", CLASSES, .stem = SHARD_RESNET_STEM_SMALL);
    SHARD_SCOPE {
        shard_tensor *y = shard_forward(model, shard_normal(SHARD_SHAPE(2, 32, 32, 3), 0, 1));
        check_no_error();
        ck_assert_int_eq(shard_tensor_size(y, 0), 2);
        ck_assert_int_eq(shard_tensor_size(y, 1), CLASSES);
        shard_shape shape = shard_tensor_shape(shard_module_tensor(shard_module_child(model, "conv1"), "weight"));
        ck_assert_int_eq(shape.dim[2], 3);
    }
    shard_module_destroy(model);
}
END_TEST

START_TEST(test_no_images)
{
    shard_module *model = shard_resnet("resnet18", CLASSES);
    SHARD_SCOPE {
        shard_tensor *y = shard_forward(model, shard_normal(SHARD_SHAPE(0, SIDE, SIDE, 3), 0, 1));
        check_no_error();
        ck_assert_int_eq(shard_tensor_size(y, 0), 0);
        shard_backward(shard_sum(y));
        check_no_error();
        shard_tensor *gradient = shard_grad(shard_module_tensor(shard_module_child(model, "conv1"), "weight"));
        float *values = host_copy(gradient);
        for (int64_t i = 0; i < shard_numel(gradient); i++)
            ck_assert_msg(values[i] == 0, "gradient %d is %g", (int)i, (double)values[i]);
        free(values);
    }
    shard_module_destroy(model);
}
END_TEST

START_TEST(test_width)
{
    for (int i = 0; i < 2; i++)
        SHARD_SCOPE
        {
            shard_module *model = shard_resnet(i ? "resnet50" : "resnet18", CLASSES, .stem = SHARD_RESNET_STEM_SMALL, .width = 6);
            shard_tensor *first = shard_module_tensor(shard_module_child(model, "conv1"), "weight"),
                         *last = shard_module_tensor(shard_module_child(model, "fc"), "weight");
            ck_assert_int_eq(shard_tensor_size(first, 0), 6);
            ck_assert_int_eq(shard_tensor_size(last, 1), i ? 192 : 48);
            shard_tensor *logits = shard_forward(model, shard_zeros(SHARD_SHAPE(2, 8, 8, 3)));
            ck_assert_msg(logits && shard_tensor_size(logits, 1) == CLASSES, "%s", shard_last_error());
            shard_module_destroy(model);
        }
}
END_TEST

START_TEST(test_unknown_architecture)
{
    ck_assert_ptr_null(shard_resnet("resnet19", CLASSES));
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_ARGUMENT);
    ck_assert_ptr_nonnull(strstr(shard_last_error(), "resnet152"));
    shard_clear_error();
}
END_TEST

START_TEST(test_refusals)
{
    ck_assert_ptr_null(shard_resnet(NULL, CLASSES));
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet: arch *");
    ck_assert_ptr_null(shard_resnet("resnet18", CLASSES, .stem = (shard_resnet_stem)2));
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet: *stem 2*");
    ck_assert_ptr_null(shard_resnet("resnet18", CLASSES, .width = 0));
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet: width 0; 1 to *");
    ck_assert_ptr_null(shard_resnet("resnet18", CLASSES, .width = INT64_MAX / 8));
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet: width 1152921504606846975; 1 to *");
    ck_assert_ptr_null(shard_resnet("resnet18", CLASSES, .dtype = SHARD_INT64));
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet: dtype int64*");
    ck_assert_ptr_null(shard_resnet("resnet18", -1));
    check_error(shard_last_status(), "*-1*");
    ck_assert(!shard_resnet_exists(NULL) && shard_resnet_features(NULL) == 0 && shard_resnet_features("vgg") == 0);
    ck_assert_int_eq(shard_resnet_gather_features(NULL, NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet_gather_features: resnet *");
    shard_module *linear = shard_nn_linear(2, 3);
    ck_assert_int_eq(shard_resnet_gather_features(linear, NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*a module of type \"linear\"*");
    shard_module_destroy(linear);
}
END_TEST

/* ---- values ---- */

/* In [0, 1); the same as in golden/make_resnet.py. */
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

static void fill(const char *name, uint32_t seed, shard_tensor *tensor, double features)
{
    if (shard_tensor_dtype(tensor) == SHARD_INT64)
        return;
    shard_shape shape = shard_tensor_shape(tensor);
    int64_t count = shard_numel(tensor);
    float *values = malloc((size_t)count * sizeof *values);
    double low = -0.5, high = 0.5;
    if (shape.ndim == 4)
        low = -(high = sqrt(6.0 / (double)(shape.dim[0] * shape.dim[2] * shape.dim[3])));
    else if (strncmp(name, "fc.", 3) == 0)
        low = -(high = 1 / sqrt(features));
    else if (ends_with(name, "bn3.weight"))
        low = 0.2, high = 0.4;
    else if (ends_with(name, "weight") || ends_with(name, "running_var"))
        low = 0.5, high = 1.5;
    for (int64_t i = 0; i < count; i++)
        values[i] = (float)(low + (high - low) * made_up_number(seed, (uint32_t)i));
    ck_assert_int_eq(shard_copy_from_host(tensor, values, (size_t)count * sizeof *values), SHARD_OK);
    free(values);
}

/* Seeds go by the order of torchvision's state dict. */
static void fill_all(const char *arch, const shard_tensors *state)
{
    FILE *file = open_golden("resnet_names.txt");
    char line[256], of[32], kind[32], name[128];
    uint32_t seed = 0;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%31s %31s %127s", of, kind, name) == 3 && strcmp(of, arch) == 0)
            fill(name, seed++, shard_tensors_find(state, name), (double)shard_resnet_features(arch));
    fclose(file);
}

static void check_number(const char *what, double got, double expected, double tolerance, double scale)
{
    ck_assert_msg(fabs(got - expected) <= tolerance * scale, "%s is %.9g, torchvision's is %.9g", what, got, expected);
}

/* The numbers behind a line's name, or NULL if the line is another. */
static char *after(char *line, const char *arch, const char *kind)
{
    char begin[64];
    snprintf(begin, sizeof begin, "%s %s ", arch, kind);
    return strncmp(line, begin, strlen(begin)) == 0 ? line + strlen(begin) : NULL;
}

static void check_logits(const char *what, shard_tensor *logits, char *numbers, double tolerance)
{
    float *values = host_copy(logits);
    for (int i = 0; i < IMAGES * CLASSES; i++) {
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

static void check_line(const char *arch, char *line, const shard_tensors *state, shard_tensor *evaluated, shard_tensor *trained,
                       shard_tensor *loss)
{
    char *rest, name[128];
    double expected;
    if ((rest = after(line, arch, "evaluation")))
        check_logits("a logit of evaluation", evaluated, rest, 2e-5);
    else if ((rest = after(line, arch, "training")))
        check_logits("a logit of training", trained, rest, 2e-4);
    else if ((rest = after(line, arch, "loss")))
        check_number("the loss", shard_item(loss), strtod(rest, NULL), 1e-4, 1);
    else if ((rest = after(line, arch, "gradient")) && sscanf(rest, "%127s %lf", name, &expected) == 2)
        check_number(name, sum_of(shard_grad(shard_tensors_find(state, name)), true), expected, 1e-2,
                     expected); /* torch's own float32 is up to 5e-3 away from its float64, by units that are about 0 */
    else if ((rest = after(line, arch, "buffer")) && sscanf(rest, "%127s %lf", name, &expected) == 2)
        check_number(name, sum_of(shard_tensors_find(state, name), false), expected, 2e-5, 1 + fabs(expected));
}

static const char *const valued_archs[] = {"resnet18", "resnet50"};

START_TEST(test_values)
{
    const char *arch = valued_archs[_i];
    shard_module *model = shard_resnet(arch, CLASSES);
    shard_tensors *state = shard_state_dict(model);
    check_no_error();
    fill_all(arch, state);
    float *pixels = malloc(IMAGE_NUMBERS * sizeof *pixels);
    for (uint32_t i = 0; i < IMAGE_NUMBERS; i++)
        pixels[i] = (float)(2 * made_up_number(9999, i) - 1);
    int64_t labels[IMAGES];
    for (int i = 0; i < IMAGES; i++)
        labels[i] = i * 3 % CLASSES;
    SHARD_SCOPE {
        shard_tensor *images = shard_from_host(pixels, SHARD_SHAPE(IMAGES, SIDE, SIDE, 3));
        shard_module_set_training(model, false);
        shard_tensor *evaluated = shard_forward(model, images);
        shard_module_set_training(model, true);
        shard_tensor *trained = shard_forward(model, images);
        shard_tensor *loss = shard_cross_entropy(trained, shard_from_host(labels, SHARD_SHAPE(IMAGES), .dtype = SHARD_INT64));
        shard_backward(loss);
        check_no_error();
        FILE *file = open_golden("resnet_values.txt");
        static char line[8192];
        while (fgets(line, sizeof line, file))
            check_line(arch, line, state, evaluated, trained, loss);
        fclose(file);
    }
    free(pixels);
    shard_tensors_destroy(state);
    shard_module_destroy(model);
}
END_TEST

/* Two ranks with other images, whose features meet: the logits of all, on each, as of one process. */
static void gathers(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), ranks = shard_group_size(world);
    float pixels[2][16 * 16 * 3];
    for (uint32_t i = 0; i < sizeof pixels / sizeof **pixels; i++)
        pixels[i / (16 * 16 * 3)][i % (16 * 16 * 3)] = (float)made_up_number(5, i);
    shard_manual_seed(3);
    shard_module *model = shard_resnet("resnet18", CLASSES, .stem = SHARD_RESNET_STEM_SMALL);
    shard_module_set_training(model, false);
    SHARD_SCOPE
    {
        shard_tensor *whole = shard_forward(model, shard_from_host(&pixels[0][0], SHARD_SHAPE(2, 16, 16, 3)));
        check_ok(shard_resnet_gather_features(model, world));
        check_ok(shard_convert_parallel_linear(&model, "fc", SHARD_SPLIT_COLUMN, world, NULL));
        shard_tensor *split = shard_forward(model, shard_from_host(pixels[rank], SHARD_SHAPE(2 / ranks, 16, 16, 3)));
        shard_tensor *gathered = shard_gather_from_group(split, -1, world);
        check_no_error();
        float *expected = host_copy(whole), *got = host_copy(gathered);
        for (int i = 0; i < 2 * CLASSES; i++)
            check_number("a gathered logit", (double)got[i], (double)expected[i], 1e-5, 1 + fabs((double)expected[i]));
        free(expected);
        free(got);
    }
    shard_module_destroy(model);
}

START_TEST(test_gathers_features)
{
    run_job(2, gathers, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("resnet");
    TCase *tcase = test_case(suite, "resnet");
    tcase_add_loop_test(tcase, test_names_and_shapes, 0, sizeof archs / sizeof *archs);
    tcase_add_loop_test(tcase, test_values, 0, sizeof valued_archs / sizeof *valued_archs);
    tcase_add_test(tcase, test_small_stem);
    tcase_add_test(tcase, test_no_images);
    tcase_add_test(tcase, test_width);
    tcase_add_test(tcase, test_unknown_architecture);
    tcase_add_test(tcase, test_refusals);
    tcase_add_test(tcase, test_gathers_features);
    return test_run(suite);
}
