/* That small work on the CPU is done by the calling thread: counts the parallel regions, which are calls of the compiler's
 * OpenMP runtime. */
#include "support/ranks.h"

#include <shard/shard.h>

#include <dlfcn.h>

enum { IN = 8, CLASSES = 2000, ROWS = 3 };

typedef void region(void (*part)(void *), void *data, unsigned threads, unsigned flags);

static int regions, regions_of_threads;

region GOMP_parallel;

/* In place of libgomp's, which it calls. One thread is asked for where an `if` is false. */
void GOMP_parallel(void (*part)(void *), void *data, unsigned threads, unsigned flags)
{
    region *next;
    *(void **)&next = dlsym(RTLD_NEXT, "GOMP_parallel");
    __atomic_fetch_add(&regions, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&regions_of_threads, threads != 1, __ATOMIC_RELAXED);
    next(part, data, threads, flags);
}

/* The regions of a step of every second class, as a sample: runs of one row. */
static int regions_of_sampled_step(shard_dtype dtype, bool clips)
{
    shard_module *head = shard_nn_parallel_classifier(IN, CLASSES, NULL, .bias = false, .dtype = dtype);
    shard_optimizer *sgd = shard_sgd(head, .lr = 0.1, .momentum = 0.9);
    int64_t label[ROWS] = {0, 2, 4}, class[CLASSES / 2];
    for (int i = 0; i < CLASSES / 2; i++)
        class[i] = 2 * i;
    SHARD_SCOPE {
        shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *sample = shard_from_host(class, SHARD_SHAPE(CLASSES / 2), .dtype = SHARD_INT64);
        shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .dtype = dtype);
        check_ok(shard_backward(shard_cross_entropy(shard_forward(head, x), labels, .sample = sample)));
        regions = 0;
        if (clips)
            check_ok(shard_clip_grad_norm(sgd, 1, NULL));
        check_ok(shard_step(sgd));
    }
    int count = regions;
    shard_optimizer_destroy(sgd);
    shard_module_destroy(head);
    return count;
}

START_TEST(test_has_no_region_for_a_row)
{
    static const shard_dtype dtypes[] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16};
    int count = regions_of_sampled_step(dtypes[_i % 3], _i / 3);
    ck_assert_int_lt(count, CLASSES / 20);
}
END_TEST

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
    tcase_add_loop_test(tcase, test_has_no_region_for_a_row, 0, 6);
    tcase_add_test(tcase, test_has_no_threads_for_a_small_product);
    return test_run_on_cpu(suite);
}
