/* Strings by name beside the tensors, and numbers as strings. */
#include "support/comma.h"
#include "support/ranks.h"
#include "support/scratch.h"

#include "base/memory.h"

#include <shard/checkpoint.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

START_TEST(test_strings)
{
    shard_metadata *m = shard_metadata_create();
    ck_assert_ptr_null(shard_metadata_get(m, "arch"));
    check_ok(shard_metadata_set(m, "arch", "resnet18"));
    check_ok(shard_metadata_set(m, "größe\n\"", "名前\t\\"));
    check_ok(shard_metadata_set(m, "arch", "resnet50"));
    check_ok(shard_metadata_set(m, "", ""));
    ck_assert_str_eq(shard_metadata_get(m, "arch"), "resnet50");
    ck_assert_str_eq(shard_metadata_get(m, "größe\n\""), "名前\t\\");
    ck_assert_str_eq(shard_metadata_get(m, ""), "");
    shard_metadata_destroy(m);
    shard_metadata_destroy(NULL);
    ck_assert_ptr_null(shard_metadata_get(NULL, "arch"));
}
END_TEST

static const double numbers[] = {
    0.0,      -0.0,       0.1,      1.0 / 3,   5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, -1e22,
    123456.5, 0x1p53 + 1, INFINITY, -INFINITY, NAN};

static void check_numbers(void)
{
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        shard_metadata *m = shard_metadata_create();
        double value = 17;
        check_ok(shard_metadata_set_number(m, "lr", numbers[i]));
        ck_assert_ptr_null(strchr(shard_metadata_get(m, "lr"), ','));
        check_ok(shard_metadata_get_number(m, "lr", &value));
        ck_assert_msg(memcmp(&value, &numbers[i], sizeof value) == 0, "%a became %a by way of %s", numbers[i], value,
                      shard_metadata_get(m, "lr"));
        shard_metadata_destroy(m);
    }
}

START_TEST(test_numbers)
{
    check_numbers();
    if (!make_decimal_comma())
        return;
    take_decimal_comma();
    check_numbers();
}
END_TEST

/* Texts that ranks compare, too; the program keeps its locale. */
START_TEST(test_plain_text)
{
    char number[8];
    if (!make_decimal_comma())
        return;
    take_decimal_comma();
    char *text = shard_format("lr %.7g", 0.25);
    ck_assert_str_eq(text, "lr 0.25");
    free(text);
    snprintf(number, sizeof number, "%g", 0.25);
    ck_assert_str_eq(number, "0,25");
}
END_TEST

START_TEST(test_integers)
{
    const int64_t integers[] = {0, -1, INT64_MAX, INT64_MIN};
    shard_metadata *m = shard_metadata_create();
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        int64_t value = 17;
        check_ok(shard_metadata_set_integer(m, "step", integers[i]));
        check_ok(shard_metadata_get_integer(m, "step", &value));
        ck_assert_int_eq(value, integers[i]);
    }
    double value = 0;
    check_ok(shard_metadata_set_integer(m, "step", 3));
    check_ok(shard_metadata_get_number(m, "step", &value));
    ck_assert_double_eq(value, 3);
    shard_metadata_destroy(m);
}
END_TEST

/* A run's random state is two of them, whatever its seed. */
START_TEST(test_random_state)
{
    shard_manual_seed(UINT64_MAX - 4);
    shard_release(shard_uniform(SHARD_SHAPE(1), 0.0, 1.0));
    shard_random_state random = shard_get_random_state(), found;
    shard_metadata *m = shard_metadata_create();
    check_ok(shard_metadata_set_integer(m, "seed", random.seed));
    check_ok(shard_metadata_set_integer(m, "draw", random.next_draw));
    shard_tensor *expected = shard_uniform(SHARD_SHAPE(1), 0.0, 1.0);
    shard_manual_seed(0);
    check_ok(shard_metadata_get_integer(m, "seed", &found.seed));
    check_ok(shard_metadata_get_integer(m, "draw", &found.next_draw));
    shard_set_random_state(found);
    shard_tensor *got = shard_uniform(SHARD_SHAPE(1), 0.0, 1.0);
    ck_assert_double_eq(shard_item(got), shard_item(expected));
    shard_release(got);
    shard_release(expected);
    shard_metadata_destroy(m);
}
END_TEST

START_TEST(test_errors)
{
    shard_metadata *m = shard_metadata_create();
    int64_t integer = 17;
    double number = 17;
    ck_assert_int_eq(shard_metadata_get_integer(m, "step", &integer), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_integer: *\"step\"*");
    const char *const wrong[] = {"",     "x",     "1.5", "9223372036854775808", "-9223372036854775809", "+1", "01", "1 2",
                                 "0x10", "\"1\"", "[1]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        check_ok(shard_metadata_set(m, "step", wrong[i]));
        ck_assert_int_eq(shard_metadata_get_integer(m, "step", &integer), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_integer: metadata \"step\" is *, which is not an integer");
    }
    const char *const bad[] = {"", "1e999", "-1e999", "0x10", "1.", ".5", "1,5", "1 2", "infinity", "nan(1)", "[1]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        check_ok(shard_metadata_set(m, "lr", bad[i]));
        ck_assert_int_eq(shard_metadata_get_number(m, "lr", &number), SHARD_ERROR_ARGUMENT);
        check_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_number: metadata \"lr\" is *, which is not a number");
    }
    ck_assert_int_eq(integer, 17);
    ck_assert_double_eq(number, 17);
    ck_assert_int_eq(shard_metadata_set(m, "\xff", "x"), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*must be UTF-8");
    ck_assert_int_eq(shard_metadata_set(m, "x", "\xff"), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "*must be UTF-8");
    ck_assert_int_eq(shard_metadata_set(NULL, "x", "y"), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_metadata_set: metadata *");
    ck_assert_int_eq(shard_metadata_get_number(NULL, "x", &number), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_number: metadata *");
    shard_metadata_destroy(m);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("metadata");
    TCase *tcase = test_case(suite, "metadata");
    tcase_add_test(tcase, test_strings);
    tcase_add_test(tcase, test_numbers);
    tcase_add_test(tcase, test_plain_text);
    tcase_add_test(tcase, test_integers);
    tcase_add_test(tcase, test_random_state);
    tcase_add_test(tcase, test_errors);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
