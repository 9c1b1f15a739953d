/* check_index finds the first bad index, however many there are. */
#include "support/check.h"
#include "support/kernels.h"

START_TEST(finds_the_first)
{
    static const int64_t sizes[] = {0, 1, 1000, 1025, 200001};
    static const int64_t wrong[] = {50, -1, INT64_MIN, INT64_MAX};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < 5; s++) {
            int64_t n = sizes[s], bad = 0, *index = array_new(n, SHARD_INT64);
            for (int64_t i = 0; i < n; i++)
                index[i] = i % 3 == 0 ? -100 : i % 50;
            RUN(device, check_index, n, index, 50, -100, &bad);
            ck_assert_int_eq(bad, -1);
            for (int64_t at = n - 1; at >= 0; at -= n / 17 + 1) { /* from the last on, so that later ones stay bad */
                index[at] = wrong[at % 4];
                RUN(device, check_index, n, index, 50, -100, &bad);
                ck_assert_int_eq(bad, at);
            }
            array_free(index, n, SHARD_INT64);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_check_index");
    tcase_add_test(test_case(suite, "all"), finds_the_first);
    return test_run(suite);
}
