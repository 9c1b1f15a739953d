/* Divisor against the processor's division, on both sides of 2^31 and 2^32. */
#include "device/cuda/divisor.cuh"

extern "C" {
#include "support/check.h"
}

#include <vector>

using shard::Divisor;

/* Those that are near powers of two, small ones, and some between. */
static std::vector<int64_t> numbers()
{
    std::vector<int64_t> all;
    for (int64_t i = 1; i < 300; i++)
        all.push_back(i);
    for (int bit = 8; bit < 63; bit++)
        for (int64_t off = -2; off <= 2; off++)
            all.push_back(((int64_t)1 << bit) + off);
    uint64_t random = 1;
    for (int i = 0; i < 300; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        all.push_back((int64_t)(random >> (1 + random % 60)) | 1);
    }
    all.push_back(INT64_MAX);
    return all;
}

static void check(const Divisor &by, int64_t n)
{
    if (n < 0)
        return;
    int64_t whole = n, rest = by.split(&whole);
    ck_assert_msg(whole == n / by.size && rest == n % by.size && by.quotient(n) == n / by.size, "%lld by %lld: %lld rest %lld",
                  (long long)n, (long long)by.size, (long long)whole, (long long)rest);
}

START_TEST(divides)
{
    const std::vector<int64_t> all = numbers();
    for (int64_t size : all) {
        Divisor by(size);
        check(by, 0);
        for (int64_t n : all) {
            check(by, n);
            int64_t most = n / size * size; /* where the quotient changes */
            for (int64_t off = -1; off <= 1; off++)
                if (off <= 0 || most < INT64_MAX)
                    check(by, most + off);
            if (n < INT64_MAX / size)
                for (int64_t off = -1; off <= 1; off++)
                    check(by, n * size + off);
        }
        check(by, UINT32_MAX);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_divisor");
    TCase *tcase = test_case(suite, "divisor");
    tcase_add_test(tcase, divides);
    return test_run(suite);
}
