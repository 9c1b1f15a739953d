#include "support/check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tests are linked with --wrap of it. */
void __real__tcase_add_test(TCase *tcase, const TTest *test, int signal, int exit_code, int start, int end);
void __wrap__tcase_add_test(TCase *tcase, const TTest *test, int signal, int exit_code, int start, int end);

void __wrap__tcase_add_test(TCase *tcase, const TTest *test, int signal, int exit_code, int start, int end)
{
    static int added;
    const char *part = getenv("SHARD_TEST_PART");
    int k = 1, n = 1, used = 0;
    if (part && (sscanf(part, "%d/%d%n", &k, &n, &used) != 2 || part[used] || k < 1 || k > n)) {
        fprintf(stderr, "SHARD_TEST_PART is \"%s\", not K/N, the Kth of N parts\n", part);
        exit(2);
    }
    for (int i = start; i < end; i++)
        if (added++ % n == k - 1)
            __real__tcase_add_test(tcase, test, signal, exit_code, i, i + 1);
}

double deadline_multiplier(void)
{
    const char *text = getenv("CK_TIMEOUT_MULTIPLIER");
    double multiplier = text ? atof(text) : 1;
    return multiplier > 0 ? multiplier : 1;
}

const char *test_file(const char *name)
{
    static char paths[4][1024];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    const char *folder = getenv("SHARD_TEST_FILES");
    snprintf(path, sizeof paths[0], "%s/%s", folder && *folder ? folder : TEST_FILES, name);
    return path;
}

uint64_t mix(uint64_t state)
{
    state += 0x9e3779b97f4a7c15u;
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
    state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
    return state ^ (state >> 31);
}

bool is_within(double got, double wanted, double bound)
{
    return got == wanted || (isfinite(got) && isfinite(wanted) && fabs(got - wanted) <= bound);
}

double largest_of(const double *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++)
        if (isfinite(values[i]))
            largest = fmax(largest, fabs(values[i]));
    return largest;
}

void check_doubles(const double *values, const double *expected, int64_t count, double tolerance, double least,
                   const char *format, ...)
{
    double bound = tolerance * fmax(largest_of(expected, count), least);
    for (int64_t i = 0; i < count; i++) {
        if (is_within(values[i], expected[i], bound))
            continue;
        char what[400];
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(what, sizeof what, format, arguments);
        va_end(arguments);
        ck_abort_msg("%s[%lld] is %.17g, expected %.17g (off by %.3g, allowed %.3g)", what, (long long)i, values[i], expected[i],
                     values[i] - expected[i], bound);
    }
}

TCase *test_case(Suite *suite, const char *name)
{
    TCase *tcase = tcase_create(name);
    tcase_set_timeout(tcase, 60);
    suite_add_tcase(suite, tcase);
    return tcase;
}

int test_run(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int run = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (run == 0)
        fprintf(stderr, "no test was run\n");
    return run == 0 || failed > 0;
}

static bool is_on_cpu(void)
{
    const char *device = getenv("SHARD_DEVICE");
    return !device || !*device || strcmp(device, "cpu") == 0;
}

bool cuda_is_emulated(void)
{
#ifdef TEST_CUDA_EMULATED
    return true;
#else
    return false;
#endif
}

bool products_are_exact(void)
{
    const char *products = getenv("SHARD_CUDA_EMULATION_PRODUCTS");
    return is_on_cpu() || (cuda_is_emulated() && (!products || strcmp(products, "loose") != 0));
}

int test_run_on_cpu(Suite *suite)
{
    enum { SKIPPED = 77 }; /* as Meson takes it */
    if (is_on_cpu())
        return test_run(suite);
    printf("skipped: a test of the CPU alone, and SHARD_DEVICE is %s\n", getenv("SHARD_DEVICE"));
    srunner_free(srunner_create(suite));
    return SKIPPED;
}
