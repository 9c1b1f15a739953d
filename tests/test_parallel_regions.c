/* That small work on the CPU is done by the calling thread: counts the parallel regions, which are calls of the compiler's
 * OpenMP runtime. */
#include "support/ranks.h"

#include <shard/shard.h>

#include <dlfcn.h>

enum { IN = 8, ROWS = 3 };

typedef void region(void (*part)(void *), void *data, unsigned threads, unsigned flags);

static int regions_of_threads;

region GOMP_parallel;

/* In place of libgomp's, which it calls. One thread is asked for where an `if` is false. */
void GOMP_parallel(void (*part)(void *), void *data, unsigned threads, unsigned flags)
{
    region *next;
    *(void **)&next = dlsym(RTLD_NEXT, "GOMP_parallel");
    __atomic_fetch_add(&regions_of_threads, threads != 1, __ATOMIC_RELAXED);
    next(part, data, threads, flags);
}

START_TEST(test_has_no_threads_for_a_small_product)
{
    SHARD_SCOPE {
        shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *weight = shard_normal(SHARD_SHAPE(IN, IN), 0, 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
        regions_of_threads = 0;
        check_ok(shard_backward(shard_sum(shard_linear(x, weight, NULL))));
        ck_assert_int_eq(regions_of_threads, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parallel regions");
    TCase *tcase = test_case(suite, "parallel regions");
    tcase_add_test(tcase, test_has_no_threads_for_a_small_product);
    return test_run_on_cpu(suite);
}
