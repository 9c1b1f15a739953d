/* That small work on the CPU is done by the calling thread: counts the parallel regions whose schedule is static, calls of
 * GOMP_parallel in gcc's OpenMP runtime. Skipped where a large product makes no such call. */
#include "support/ranks.h"

#include <shard/shard.h>

#include <dlfcn.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

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
    SHARD_SCOPE
    {
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

/* The regions with threads of a backward of a product, [count, count] by [count, count]; -1 after an error. */
static int regions_of_product(int64_t count)
{
    shard_status status = SHARD_OK;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(count, count), 0, 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *weight = shard_normal(SHARD_SHAPE(count, count), 0, 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
        regions_of_threads = 0;
        status = shard_backward(shard_sum(shard_linear(x, weight, NULL)));
    }
    return status == SHARD_OK ? regions_of_threads : -1;
}

START_TEST(test_has_no_threads_for_a_small_product)
{
    ck_assert_int_eq(regions_of_product(IN), 0);
}
END_TEST

/* The same of a forward, backward and step of a classifier. */
START_TEST(test_has_no_threads_for_a_small_head)
{
    shard_module *head = shard_nn_parallel_classifier(IN, CLASSES, NULL);
    shard_optimizer *sgd = shard_sgd(head, .lr = 0.1, .momentum = 0.9);
    SHARD_SCOPE
    {
        shard_tensor *labels = shard_from_host((int64_t[ROWS]){0, 2, 4}, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1);
        regions_of_threads = 0;
        check_ok(shard_backward(shard_cross_entropy(shard_forward(head, x), labels)));
        check_ok(shard_step(sgd));
        ck_assert_int_eq(regions_of_threads, 0);
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(head);
}
END_TEST

/* In a process of its own: threads of this one would not be in those of the tests. */
static bool counts_regions(void)
{
    int status = 1;
    pid_t process = fork();
    if (process == 0)
        _exit(regions_of_product(64) <= 0);
    return process > 0 && waitpid(process, &status, 0) == process && status == 0;
}

int main(void)
{
    if (!counts_regions()) {
        printf("no calls of GOMP_parallel: another compiler, or no OpenMP\n");
        return 77;
    }
    Suite *suite = suite_create("parallel regions");
    TCase *tcase = test_case(suite, "parallel regions");
    tcase_add_loop_test(tcase, test_has_no_region_for_a_row, 0, 6);
    tcase_add_test(tcase, test_has_no_threads_for_a_small_product);
    tcase_add_test(tcase, test_has_no_threads_for_a_small_head);
    return test_run_on_cpu(suite);
}
