/*
 * shard_resnet against torchvision's: names, shapes and kinds of all tensors
 * of the five architectures, and for two of them results, gradients and running
 * statistics for made-up values. golden/make_resnet.py made what is compared with.
 */
#include "support/check.h"
#include "support/golden_model.h"
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

static void check_no_error(void)
{
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s", shard_last_error());
}

/* ---- against torchvision ---- */

static const char *const archs[] = {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"};

static bool range_of(const golden_model *of, const char *name, shard_shape shape, double *low, double *high)
{
    if (shape.ndim == 4)
        *high = sqrt(6.0 / (double)(shape.dim[0] * shape.dim[2] * shape.dim[3]));
    else if (strncmp(name, "fc.", 3) == 0)
        *high = 1 / sqrt((double)shard_resnet_features(of->arch));
    else
        return false;
    *low = -*high;
    return true;
}

static golden_model golden_of(const char *arch)
{
    return (golden_model){"resnet", arch, IMAGES, SIDE, CLASSES, 3, range_of};
}

START_TEST(test_names_and_shapes)
{
    golden_model expected = golden_of(archs[_i]);
    shard_module *model = shard_resnet(expected.arch, 1000);
    check_golden_names(&expected, model);
    shard_module_destroy(model);
}
END_TEST

static const char *const valued_archs[] = {"resnet18", "resnet50"};

START_TEST(test_values)
{
    golden_model expected = golden_of(valued_archs[_i]);
    shard_module *model = shard_resnet(expected.arch, CLASSES);
    check_golden_values(&expected, model);
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

/* Each of the names, which error messages show, can be made. */
static void check_names(const char *names, bool (*exists)(const char *arch), int count)
{
    char name[40];
    int found = 0;
    for (const char *at = names; *at; at += strspn(at, ", "), found++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        ck_assert_msg(exists(name), "%s of \"%s\"", name, names);
        at += strcspn(at, ",");
    }
    ck_assert_int_eq(found, count);
}

START_TEST(test_names)
{
    check_names(shard_resnet_names(), shard_resnet_exists, 5);
    check_names(shard_iresnet_names(), shard_iresnet_exists, 5);
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
    check_error(SHARD_ERROR_ARGUMENT, "*-1*");
    ck_assert(!shard_resnet_exists(NULL) && shard_resnet_features(NULL) == 0 && shard_resnet_features("vgg") == 0);
    ck_assert_int_eq(shard_resnet_gather_features(NULL, NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_resnet_gather_features: resnet *");
    shard_module *linear = shard_nn_linear(2, 3);
    ck_assert_int_eq(shard_resnet_gather_features(linear, NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*a module of type \"linear\"*");
    shard_module_destroy(linear);
}
END_TEST

/* Two ranks with other images, whose features meet: the logits of all, on each, as of one process. */
static void gathers(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world), ranks = shard_group_size(world);
    float pixels[2][16 * 16 * 3];
    for (uint32_t i = 0; i < sizeof pixels / sizeof **pixels; i++)
        pixels[i / (16 * 16 * 3)][i % (16 * 16 * 3)] = (float)golden_number(5, i);
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
            check_golden_number("a gathered logit", (double)got[i], (double)expected[i], 1e-5, 1 + fabs((double)expected[i]));
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
    tcase_add_test(tcase, test_names);
    tcase_add_test(tcase, test_unknown_architecture);
    tcase_add_test(tcase, test_refusals);
    tcase_add_test(tcase, test_gathers_features);
    return test_run(suite);
}
