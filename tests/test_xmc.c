/* The reader of projects/debs: what it accepts, its exact errors, and files that are cut or changed anywhere; and the measures.
 */
#include "support/ranks.h"
#include "support/scratch.h"

#include "measures.h"
#include "xmc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SAMPLE "3 4 6\n5,0,2 0:1 3:-2.5e-1\n 1:0.5\n1 3:.5 2:7 \n"

static const char *put(const char *text)
{
    const char *path = scratch_path("data.txt");
    write_file(path, text, strlen(text));
    return path;
}

START_TEST(test_accepts)
{
    static const int32_t labels[] = {0, 2, 5, 1};
    static const xmc_feature features[] = {{0, 1}, {3, -0.25f}, {1, 0.5f}, {2, 7}, {3, 0.5f}};
    static const int64_t label_begin[] = {0, 3, 3, 4}, feature_begin[] = {0, 2, 3, 5};
    xmc_data *data = xmc_open(put(SAMPLE));
    ck_assert_msg(data != NULL, "%s", shard_last_error());
    ck_assert_int_eq(data->points, 3);
    ck_assert_int_eq(data->features, 4);
    ck_assert_int_eq(data->labels, 6);
    ck_assert_mem_eq(data->label_begin, label_begin, sizeof label_begin);
    ck_assert_mem_eq(data->feature_begin, feature_begin, sizeof feature_begin);
    ck_assert_mem_eq(data->label, labels, sizeof labels);
    for (int i = 0; i < 5; i++) {
        ck_assert_int_eq(data->feature[i].number, features[i].number);
        ck_assert(data->feature[i].value == features[i].value);
    }
    xmc_close(data);
}
END_TEST

/* The last line may lack its end, also behind a space; a point may have neither labels nor features, or labels alone. */
START_TEST(test_accepts_bare_points)
{
    xmc_data *data = xmc_open(put(_i ? "4 2 2\n\n1\n0 \n 1:1 " : "4 2 2\n\n1\n0 \n 1:1"));
    ck_assert_msg(data != NULL, "%s", shard_last_error());
    ck_assert_int_eq(data->label_begin[4], 2);
    ck_assert_int_eq(data->feature_begin[4], 1);
    xmc_close(data);
}
END_TEST

static const struct {
    const char *text, *pattern; /* after the path */
} bad[] = {
    {"", ": line 1: the first line is*"},
    {"3 4\n", ": line 1: the first line is*"},
    {"3 4 6 7\n", ": line 1: the first line is*"},
    {"3 4 6", ": line 1: the first line is*"},
    {"3 4 6\r\n", ": line 1: *not a number of labels*"},
    {"3  4 6\n", ": line 1: \"\" is not a number of features*"},
    {"-3 4 6\n", ": line 1: \"-3\" is not a number of points*"},
    {"3 4 2147483647\n", ": line 1: \"2147483647\" is not a number of labels*"},
    {"99999999999999999999 4 6\n", ": line 1: \"99999999999999999999\" is not a number of points*"},
    {"0 4 6\n", ": line 1: \"0\" is not a number of points*"},
    {"3 0 6\n", ": line 1: \"0\" is not a number*"},
    {"2147483646 4 6\n1 1:1\n", ": it has 1 points, *2147483646"},
    {"1 4 6\n1 1:1\n2 2:1\n", ": line 3: *fewer points"},
    {"1 4 6\n6 1:1\n", ": line 2: \"6\" is not a label*"},
    {"1 4 6\n1,,2 1:1\n", ": line 2: \"\" is not a label*"},
    {"1 4 6\n1, 1:1\n", ": line 2: \"\" is not a label*"},
    {"1 4 6\n+1 1:1\n", ": line 2: \"+1\" is not a label*"},
    {"1 4 6\n1.0 1:1\n", ": line 2: \"1.0\" is not a label*"},
    {"1 4 6\n-12345 1:1\n", ": line 2: \"-12345\" is not a label*"},
    {"1 4 6\nx00001 1:1\n", ": line 2: \"x00001\" is not a label*"},
    {"1 4 6\n1.50000 1:1\n", ": line 2: \"1.50000\" is not a label*"},
    {"x12345 4 6\n1 1:1\n", ": line 1: \"x12345\" is not a number of points*"},
    {"1 4 6\n3,1,3 1:1\n", ": line 2: *label 3 * twice"},
    {"1 4 6\n0:1 1:1\n", ": line 2: labels come first*"},
    {"1 4 6\n1 4:1\n", ": line 2: \"4\" is not a feature *"},
    {"1 4 6\n1 x:1\n", ": line 2: \"x\" is not a feature *"},
    {"1 4 6\n1 :1\n", ": line 2: \"\" is not a feature *"},
    {"1 4 6\n1 2\n", ": line 2: \"2\" is not a feature:value*"},
    {"1 4 6\n1 2,3:1\n", ": line 2: \"2\" is not a feature:value*"},
    {"1 4 6\n1  2:1\n", ": line 2: \"\" is not a feature:value*"},
    {"1 4 6\n1 2:1:1\n", ": line 2: a value is followed by*"},
    {"1 4 6\n1 2:1,3:1\n", ": line 2: a value is followed by*"},
    {"1 4 6\n1 2:\n", ": line 2: \"\" is not a value*"},
    {"1 4 6\n1 2:nan\n", ": line 2: \"nan\" is not a value*"},
    {"1 4 6\n1 2:1e99\n", ": line 2: \"1e99\" is not a value*"},
    {"1 4 6\n1 2:0x1\n", ": line 2: \"0x1\" is not a value*"},
    {"1 4 6\n1 2:1-\n", ": line 2: \"1-\" is not a value*"},
    {"1 4 6\n1 2:1 0:1 2:1\n", ": line 2: *feature 2 * twice"},
    {"1 4 6\n1 2:1\tx\n", ": line 2: *is not a value*"},
    {"1 4 6\n1 2:0.00000000000000000000000000000000000000000000001\n", ": line 2: *too long"},
};

START_TEST(test_refuses)
{
    char pattern[512];
    const char *path = put(bad[_i].text);
    snprintf(pattern, sizeof pattern, "%s%s", path, bad[_i].pattern);
    ck_assert(xmc_open(path) == NULL);
    check_error(SHARD_ERROR_FORMAT, pattern);
}
END_TEST

START_TEST(test_refuses_a_zero_byte)
{
    const char *path = scratch_path("data.txt");
    write_file(path, "1 4 6\n1 2:1\0\n", 13);
    ck_assert(xmc_open(path) == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_FORMAT);
}
END_TEST

START_TEST(test_refuses_other_files)
{
    ck_assert(xmc_open("/nowhere/train.txt") == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_IO);
    shard_clear_error();
    ck_assert(xmc_open("/") == NULL);
    ck_assert_int_eq(shard_last_status(), SHARD_ERROR_IO);
    shard_clear_error();
    ck_assert_int_eq(mkfifo(scratch_path("fifo"), 0600), 0);
    ck_assert(xmc_open(scratch_path("fifo")) == NULL);
    check_error(SHARD_ERROR_IO, "*/fifo: not a regular file");
}
END_TEST

/* Whatever was read is in range. */
static void check_sound(const xmc_data *data)
{
    for (int64_t i = 0; i < data->points; i++) {
        ck_assert(data->label_begin[i] <= data->label_begin[i + 1] && data->feature_begin[i] <= data->feature_begin[i + 1]);
        for (int64_t k = data->label_begin[i]; k < data->label_begin[i + 1]; k++)
            ck_assert(data->label[k] >= 0 && data->label[k] < data->labels &&
                      (k == data->label_begin[i] || data->label[k - 1] < data->label[k]));
        for (int64_t k = data->feature_begin[i]; k < data->feature_begin[i + 1]; k++)
            ck_assert(data->feature[k].number >= 0 && data->feature[k].number < data->features &&
                      isfinite(data->feature[k].value));
    }
}

/* Each byte by each of the characters that mean something, and cut there. */
START_TEST(test_changed_files)
{
    static const char others[] = "09 ,:.-e\nx";
    char text[sizeof SAMPLE];
    int cases = 0, taken = 0;
    for (size_t at = 0; at < sizeof SAMPLE - 1; at++)
        for (size_t other = 0; other < sizeof others; other++, cases++) {
            memcpy(text, SAMPLE, sizeof text);
            text[at] = others[other]; /* the last one is 0: the file ends there */
            xmc_data *data = xmc_open(put(text));
            taken += data != NULL;
            if (data)
                check_sound(data);
            else
                ck_assert_int_eq(shard_last_status(), SHARD_ERROR_FORMAT);
            xmc_close(data);
            shard_clear_error();
        }
    ck_assert(taken > 0 && taken < cases / 2);
    printf("cases: %d\n", cases);
}
END_TEST

/* ---- measures ---- */

enum { POINTS = 97, LABELS = 40 };

static bool is_one(int64_t point, int64_t label)
{
    return (point * point + 7 * label + 3 * point * label) % 11 == 0 && point % 13 != 5;
}

/* The data as text, so that the numbers are those of the reader. */
static xmc_data *make_data(void)
{
    const char *path = scratch_path("measured.txt");
    FILE *file = fopen(path, "w");
    fprintf(file, "%d 1 %d\n", POINTS, LABELS);
    for (int64_t i = 0; i < POINTS; i++) {
        int count = 0;
        for (int label = 0; label < LABELS; label++)
            if (is_one(i, label))
                fprintf(file, "%s%d", count++ ? "," : "", label);
        fputs(" 0:1\n", file);
    }
    ck_assert_int_eq(fclose(file), 0);
    return xmc_open(path);
}

/* The numbers of measure() and inverse_propensities() in projects/debs/baselines.py, by NumPy, for the same points. */
START_TEST(test_measures)
{
    static const double expected[3][MEASURES_K] = {{10.3092783505155, 7.90378006872852, 7.01030927835052},
                                                   {12.5954732135613, 9.77128397142789, 13.0818690110474},
                                                   {3.60082304526749, 8.43621399176955, 12.4485596707819}};
    xmc_data *data = make_data();
    ck_assert_msg(data != NULL, "%s", shard_last_error());
    double *inverse = measures_inverse_propensities(data, 0.55, 1.5);
    measures sum = {0};
    ck_assert_double_eq_tol(inverse[0], 2.71537847431289, 1e-12);
    ck_assert_double_eq_tol(inverse[1], 2.18894971811022, 1e-12);
    for (int64_t i = 0; i < POINTS; i++) {
        int64_t predicted[MEASURES_TOP], begin = data->label_begin[i];
        for (int64_t k = 0; k < MEASURES_TOP; k++)
            predicted[k] = (3 * i + 7 * k * (1 + i % 3)) % LABELS;
        measures_add(&sum, predicted, data->label + begin, data->label_begin[i + 1] - begin, inverse);
    }
    for (int k = 0; k < MEASURES_K; k++) {
        ck_assert_double_eq_tol(measures_precision(&sum, k), expected[0][k], 1e-10);
        ck_assert_double_eq_tol(measures_propensity_scored(&sum, k), expected[1][k], 1e-10);
        ck_assert_double_eq_tol(measures_recall(&sum, k), expected[2][k], 1e-10);
    }
    free(inverse);
    xmc_close(data);
}
END_TEST

START_TEST(test_refuses_propensities)
{
    xmc_data *data = xmc_open(put(SAMPLE)); /* labels 3 and 4 have no points */
    double *inverse = measures_inverse_propensities(data, 0.55, 0.001);
    ck_assert(inverse && isfinite(inverse[3]));
    free(inverse);
    ck_assert_ptr_null(measures_inverse_propensities(data, 0.55, 0));
    check_error(
        SHARD_ERROR_ARGUMENT,
        "--propensity-a 0.55, --propensity-b 0: the propensity of label 3, of 0 training points, has no finite inverse: *");
    xmc_close(data);
}
END_TEST

START_TEST(test_no_points)
{
    measures none = {0};
    ck_assert(measures_precision(&none, 0) == 0 && measures_propensity_scored(&none, 0) == 0 && measures_recall(&none, 0) == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("xmc");
    TCase *reading = test_case(suite, "reading"), *measuring = test_case(suite, "measuring");
    tcase_add_test(reading, test_accepts);
    tcase_add_loop_test(reading, test_accepts_bare_points, 0, 2);
    tcase_add_loop_test(reading, test_refuses, 0, sizeof bad / sizeof *bad);
    tcase_add_test(reading, test_refuses_a_zero_byte);
    tcase_add_test(reading, test_refuses_other_files);
    tcase_add_test(reading, test_changed_files);
    tcase_add_test(measuring, test_measures);
    tcase_add_test(measuring, test_refuses_propensities);
    tcase_add_test(measuring, test_no_points);
    scratch_open();
    int code = test_run(suite);
    scratch_close();
    return code;
}
