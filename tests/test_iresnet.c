/*
 * shard_iresnet against PyTorch: names, shapes and kinds of all tensors of the five architectures, and for two of them
 * results, gradients and running statistics for made-up values. golden/make_iresnet.py made what is compared with.
 */
#include "support/check.h"
#include "support/golden_model.h"
#include "support/host.h"
#include "support/job.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IMAGES = 3, SIDE = 27, WIDTH = 8, FEATURES = 12 };

static const char *const archs[] = {"iresnet18", "iresnet34", "iresnet50", "iresnet100", "iresnet200"};

static void check_no_error(void)
{
    ck_assert_msg(shard_last_status() == SHARD_OK, "%s", shard_last_error());
}

/* ---- against PyTorch ---- */

static bool range_of(const golden_model *of, const char *name, shard_shape shape, double *low, double *high)
{
    (void)of;
    if (shape.ndim == 4)
        *high = sqrt(6.0 / (double)(shape.dim[1] * shape.dim[2] * shape.dim[3]));
    else if (shape.ndim == 2)
        *high = 1 / sqrt((double)shape.dim[1]);
    else if (strstr(name, "prelu.weight"))
        return *low = -0.25, *high = 0.75, true;
    else
        return false;
    *low = -*high;
    return true;
}

static golden_model golden_of(const char *arch)
{
    return (golden_model){"iresnet", arch, IMAGES, SIDE, FEATURES, 5, range_of};
}

START_TEST(test_names_and_shapes)
{
    golden_model expected = golden_of(archs[_i]);
    shard_module *model = shard_iresnet(expected.arch);
    check_golden_names(&expected, model);
    shard_module_destroy(model);
}
END_TEST

static const char *const valued_archs[] = {"iresnet18", "iresnet50"};

START_TEST(test_values)
{
    golden_model expected = golden_of(valued_archs[_i]);
    shard_module *model = shard_iresnet(expected.arch, .image_size = SIDE, .width = WIDTH, .num_features = FEATURES);
    check_golden_values(&expected, model);
    shard_module_destroy(model);
}
END_TEST

/* ---- the rest ---- */

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
