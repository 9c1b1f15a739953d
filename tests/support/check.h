/*
 * What every test program needs besides Check itself. Each test runs in a
 * child of its own: the parent must not touch OpenMP or MPI, so that nothing
 * but the tests' bodies may compute.
 */
#ifndef TESTS_SUPPORT_CHECK_H
#define TESTS_SUPPORT_CHECK_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>

/* A case of the suite, for tests that take at most a minute each. */
TCase *test_case(Suite *suite, const char *name);

/* By what every deadline of a test is multiplied: CK_TIMEOUT_MULTIPLIER, with which Check multiplies its own. */
double deadline_multiplier(void);

/* SHARD_TEST_PART=K/N adds each Nth test from the Kth on; each number of a loop is a test. */

/* The path of a file under tests/, where they were built or, elsewhere, where SHARD_TEST_FILES says; until the fourth call
 * after this one. */
const char *test_file(const char *name);

/* Runs the suite and frees it; what main returns. Running no test at all, as a
 * mistyped CK_RUN_CASE does, is a failure. */
int test_run(Suite *suite);

/* The same for a suite of the CPU's own ways: skipped, and said so, where SHARD_DEVICE
 * names another device. */
int test_run_on_cpu(Suite *suite);

/* SplitMix64: a number that depends on the state alone, all bits evenly. */
uint64_t mix(uint64_t state);

/* Whether the two are equal, or finite and at most bound apart. A NaN is within nothing: a test that expects one asks isnan. */
bool is_within(double got, double wanted, double bound);

/* The largest magnitude of those that are finite. */
double largest_of(const double *values, int64_t count);

/* Fails unless all are within tolerance times largest_of(expected), or times `least` where that is larger. The format and
 * what follows say what they are. */
void check_doubles(const double *values, const double *expected, int64_t count, double tolerance, double least,
                   const char *format, ...) CK_ATTRIBUTE_FORMAT(printf, 6, 7);

/* Whether products of the same matrices are the same bits wherever these lie in memory: not on a GPU, whose
 * cuBLAS chooses its algorithms by addresses, too, and promises the same bits for the same call alone. */
bool products_are_exact(void);

/* Whether the build's cuda device is the emulated one. */
bool cuda_is_emulated(void);

#endif
