/*
 * Memory by kind: each kind to the byte through a step of training, the kinds' sum
 * always the whole, their peaks' no less, what kernels take while they run, and the
 * printed table. On whichever device tensors go to.
 */
#include "support/job.h"

#include "tensor/tensor.h"
#include "support/options.h"

#include <stdlib.h>
#include <string.h>

enum { FEATURES = 100, CLASSES = 300, ROWS = 7 };
enum { PARAMETERS = 4 * (CLASSES * FEATURES + CLASSES), BUFFERS = 4 * 2 * FEATURES };

static shard_memory_stats of(shard_memory_kind kind)
{
    return shard_get_memory_by_kind(shard_device_open(NULL), kind);
}

/* Tensors on the host as seen from a GPU count there: steps, batch norm's number of batches. */
static bool on_host(void)
{
    return shard_device_open(NULL) == shard_device_open("cpu");
}

#define check_sum() check_sum_at(__LINE__)
static void check_sum_at(int line)
{
    shard_device *both[] = {shard_device_open("cpu"), shard_device_open(NULL)};
    for (int i = 0; i < 2; i++) {
        int64_t sum = 0, peaks = 0;
        for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++) {
            shard_memory_stats stats = shard_get_memory_by_kind(both[i], (shard_memory_kind)kind);
            ck_assert_int_ge(stats.current, 0);
            ck_assert_int_ge(stats.peak, stats.current);
            ck_assert_int_eq(stats.reserved, 0);
            sum += stats.current;
            peaks += stats.peak;
        }
        shard_memory_stats whole = shard_get_memory_stats(both[i]);
        ck_assert_msg(sum == whole.current, "line %d: the kinds are %lld bytes in all, the device says %lld", line,
                      (long long)sum, (long long)whole.current);
        ck_assert_msg(peaks >= whole.peak, "line %d: the kinds' peaks are %lld bytes in all, the device's is %lld", line,
                      (long long)peaks, (long long)whole.peak);
    }
}

static shard_module *make_model(void)
{
    shard_manual_seed(1);
    shard_module *model = shard_nn_sequential(shard_nn_layer_norm(FEATURES, 1e-5), shard_nn_linear(FEATURES, CLASSES));
    ck_assert_msg(model != NULL, "%s", shard_last_error());
    return model;
}

/* What backward leaves in the leaves of one forward. */
static void backward_once(shard_module *model)
{
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), 5, SHARD_FLOAT32);
        shard_tensor *logits = shard_forward(model, x);
        int64_t labels[ROWS] = {1, 2, 3, 4, 5, 6, 299};
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        shard_tensor *loss = shard_parallel_cross_entropy(logits, target);
        check_ok(shard_last_status());
        ck_assert_int_ge(of(SHARD_MEMORY_ACTIVATIONS).current, 4 * (ROWS * FEATURES + ROWS * CLASSES));
        ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, PARAMETERS + BUFFERS);
        check_sum();
        check_ok(shard_backward(loss));
        check_sum();
    }
}

static void follows_a_step(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_memory_stats before[SHARD_MEMORY_KINDS];
    for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++)
        before[kind] = of((shard_memory_kind)kind);
    shard_module *model = make_model();
    ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, 0); /* initial values that nobody needed yet */
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.1, .momentum = 0.9);
    backward_once(model);
    ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, PARAMETERS + BUFFERS);
    ck_assert_int_eq(of(SHARD_MEMORY_GRADIENTS).current, PARAMETERS + BUFFERS);
    ck_assert_int_eq(of(SHARD_MEMORY_ACTIVATIONS).current, before[SHARD_MEMORY_ACTIVATIONS].current);
    ck_assert_int_eq(of(SHARD_MEMORY_WORKSPACE).current, before[SHARD_MEMORY_WORKSPACE].current);
    ck_assert_int_gt(of(SHARD_MEMORY_WORKSPACE).peak, 0);
    check_ok(shard_step(sgd));
    ck_assert_int_eq(of(SHARD_MEMORY_OPTIMIZER_STATE).current, PARAMETERS + BUFFERS + (on_host() ? 4 * 8 : 0));
    check_sum();

    shard_reset_peak_memory(shard_device_open(NULL));
    for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++)
        ck_assert_int_eq(of((shard_memory_kind)kind).peak, of((shard_memory_kind)kind).current);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
    check_sum();
    for (int kind = 0; kind < SHARD_MEMORY_KINDS; kind++)
        ck_assert_int_eq(of((shard_memory_kind)kind).current, before[kind].current);
    ck_assert_int_eq(of(SHARD_MEMORY_GRADIENTS).peak, PARAMETERS + BUFFERS); /* before they went */
}

START_TEST(test_step)
{
    run_job(1, follows_a_step, NULL);
}
END_TEST

/* In flat buffers, too, parameters are parameters and gradients gradients. */
static void follows_data_parallel(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_module *model = make_model();
    shard_tensors *parameters = shard_parameters(model);
    shard_data_parallel *dp = shard_data_parallel_create(parameters);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    int64_t gap = 0;
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++)
        gap += (64 - 4 * shard_numel(shard_tensors_at(parameters, i)) % 64) % 64;
    ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, PARAMETERS + BUFFERS + gap);
    for (int turn = 0; turn < 2; turn++) {
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), 5, SHARD_FLOAT32);
            check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        }
        ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, PARAMETERS + BUFFERS + gap);
        ck_assert_int_eq(of(SHARD_MEMORY_GRADIENTS).current, PARAMETERS + BUFFERS + gap);
        check_sum();
    }
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_module_destroy(model);
    ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, 0);
    ck_assert_int_eq(of(SHARD_MEMORY_GRADIENTS).current, 0);
}

START_TEST(test_data_parallel)
{
    run_job(2, follows_data_parallel, NULL);
}
END_TEST

/* Workspace that is saved for backward lasts, and is an activation then. */
static void tells_apart(shard_group *world, void *context)
{
    (void)world, (void)context;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up_leaf(SHARD_SHAPE(1, 8, 8, 4), 3, SHARD_FLOAT32);
        ck_assert_int_eq(of(SHARD_MEMORY_PARAMETERS).current, 4 * 8 * 8 * 4); /* a leaf */
        SHARD_NO_GRAD
        shard_max_pool2d(x, 2);
        shard_tensor *y = shard_max_pool2d(x, 2);
        check_ok(shard_last_status());
        int64_t size = 4 * 4 * 4;
        ck_assert_int_eq(shard_numel(y), size);
        ck_assert_int_eq(of(SHARD_MEMORY_WORKSPACE).current, 0);
        ck_assert_int_eq(of(SHARD_MEMORY_ACTIVATIONS).current, 2 * 4 * size + 4 * size); /* two results, where the maxima were */
        shard_storage_set_kind(y->storage, SHARD_MEMORY_BUCKETS);
        ck_assert_int_eq(of(SHARD_MEMORY_BUCKETS).current, 4 * size);
        ck_assert_int_eq(of(SHARD_MEMORY_ACTIVATIONS).current, 4 * size + 4 * size);
        shard_storage_become(y->storage, SHARD_MEMORY_GRADIENTS); /* it is known already */
        ck_assert_int_eq(of(SHARD_MEMORY_BUCKETS).current, 4 * size);
        check_sum();
    }
    ck_assert_int_eq(of(SHARD_MEMORY_BUCKETS).current, 0);
    ck_assert_int_eq(of(SHARD_MEMORY_BUCKETS).peak, 4 * 4 * 4 * 4);
    check_sum();
}

START_TEST(test_kinds)
{
    run_job(1, tells_apart, NULL);
}
END_TEST

enum { WIDE_ROWS = 8, WIDE = 5000, KERNELS = 9 };

/* Kernel i, between memory that is there already; what it computes does not matter. m: x, y [WIDE_ROWS, WIDE], gamma,
 * beta [WIDE]; statistics [4][WIDE]. */
static shard_status run_kernel(int i, shard_device *d, void *m[4], double *s, const int64_t *index)
{
    const shard_device_ops *ops = d->ops;
    int64_t rows = WIDE_ROWS, cols = WIDE;
    double *mean = s, *rstd = s + WIDE, *sums = s + 2 * WIDE;
    shard_dtype type = SHARD_FLOAT32;
    const shard_expansion over = shard_expansion_rows(rows, cols);
    switch (i) {
    case 0:
        return ops->sum_rows(d, rows, cols, 0, m[0], type, false, m[2], type);
    case 1:
        return ops->binary(d, SHARD_ADD, &over, m[0], m[2], m[1], type);
    case 2:
        return ops->softmax(d, true, rows, cols, m[0], m[1], type);
    case 3:
        return ops->softmax_backward(d, true, rows, cols, m[0], m[1], m[1], type);
    case 4:
        return ops->layer_norm_backward(d, rows, cols, m[0], m[2], mean, rstd, m[1], m[1], m[2], m[3], type);
    case 5:
        return ops->batch_norm_sums(d, rows, cols, m[0], NULL, sums, type);
    case 6:
        return ops->batch_norm(d, rows, cols, m[0], mean, rstd, m[2], m[3], NULL, false, m[1], type);
    case 7:
        return ops->batch_norm_backward_sums(d, rows, cols, m[0], NULL, m[1], mean, rstd, sums, NULL, NULL, type);
    default:
        return ops->embedding_backward(d, rows, cols / rows, 0, rows, index, m[0], false, false, m[1], type);
    }
}

/* What a kernel takes while it runs is workspace, all of it. */
static void kernels_take(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_device *device = shard_device_open(NULL);
    SHARD_SCOPE
    {
        int64_t labels[WIDE_ROWS] = {1, 3, 1};
        void *memory[4];
        for (int i = 0; i < 4; i++)
            memory[i] = shard_tensor_memory_to_write(made_up(SHARD_SHAPE(i < 2 ? WIDE_ROWS : 1, WIDE), 5, SHARD_FLOAT32));
        double *statistics = shard_tensor_memory_to_write(shard_ones(SHARD_SHAPE(4, WIDE), .dtype = SHARD_FLOAT64));
        const int64_t *index = shard_tensor_memory(shard_from_host(labels, SHARD_SHAPE(WIDE_ROWS), .dtype = SHARD_INT64));
        for (int i = 0; i < KERNELS; i++) {
            shard_reset_peak_memory(device);
            check_ok(run_kernel(i, device, memory, statistics, index));
            shard_memory_stats whole = shard_get_memory_stats(device), workspace = of(SHARD_MEMORY_WORKSPACE);
            int64_t taken = whole.peak - whole.current, counted = workspace.peak - workspace.current;
            ck_assert_msg(taken == counted, "kernel %d takes %lld bytes, of which %lld are workspace", i, (long long)taken,
                          (long long)counted);
            ck_assert(taken > 0 || !on_host());
        }
        check_ok(device->ops->synchronize(device));
    }
}

START_TEST(test_kernels)
{
    run_job(1, kernels_take, NULL);
}
END_TEST

static void prints(shard_group *world, void *context)
{
    (void)world, (void)context;
    shard_device *device = shard_device_open(NULL);
    shard_tensor *leaf = shard_zeros(SHARD_SHAPE(1024, 1024), .requires_grad = true);
    ck_assert_ptr_nonnull(shard_data(leaf));
    shard_tensor *other = shard_zeros(SHARD_SHAPE(1024, 512));
    ck_assert_ptr_nonnull(shard_data(other));
    shard_release(other);
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    check_ok(shard_memory_report(device, file));
    fclose(file);
    char title[64];
    snprintf(title, sizeof title, "memory of %s, MiB\n", shard_device_name(device));
    ck_assert_msg(strstr(text, title) == text, "%s", text);
    const char *rows[] = {"  parameters               4.0         4.0\n", "  gradients                0.0         0.0\n",
                          "  optimizer state          0.0         0.0\n", "  activations              0.0         2.0\n",
                          "  buckets                  0.0         0.0\n", "  workspace                0.0         0.0\n",
                          "  in all                   4.0         6.0\n"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        ck_assert_msg(strstr(text, rows[i]) != NULL, "no \"%s\" in\n%s", rows[i], text);
    free(text);
    shard_release(leaf);
    FILE *full = fopen("/dev/full", "w");
    ck_assert_ptr_nonnull(full);
    check_fails(shard_memory_report(device, full), SHARD_ERROR_IO, "shard_memory_report: *file: *");
    fclose(full);
    check_fails(shard_memory_report(NULL, stdout), SHARD_ERROR_ARGUMENT, "shard_memory_report: device *");
    check_fails(shard_memory_report(device, NULL), SHARD_ERROR_ARGUMENT, "shard_memory_report: file *");
    ck_assert_str_eq(shard_memory_kind_name(SHARD_MEMORY_OPTIMIZER_STATE), "optimizer state");
    ck_assert_ptr_null(shard_memory_kind_name(SHARD_MEMORY_KINDS));
    ck_assert_int_eq(shard_get_memory_by_kind(NULL, SHARD_MEMORY_BUCKETS).current, 0);
}

/* One table a rank is told from another's by its title. */
static void prints_its_rank(shard_group *world, void *context)
{
    (void)context;
    char *text = NULL, title[64];
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    check_ok(shard_memory_report(shard_device_open("cpu"), file));
    fclose(file);
    snprintf(title, sizeof title, "rank %d: memory of cpu, MiB\n", shard_group_rank(world));
    ck_assert_msg(strstr(text, title) == text, "%s", text);
    free(text);
}

START_TEST(test_ranks)
{
    run_job(3, prints_its_rank, NULL);
}
END_TEST

START_TEST(test_table)
{
    run_job(1, prints, NULL);
}
END_TEST

/* Batches that are loaded ahead are inputs; of a GPU's nothing counts, as they are not on it. */
START_TEST(test_loaded_ahead)
{
    shard_device *device = shard_device_open(NULL);
    int64_t inputs = of(SHARD_MEMORY_ACTIVATIONS).current, all = shard_get_memory_stats(device).current;
    void *batch = shard_device_allocate_host(device, 1000);
    ck_assert_ptr_nonnull(batch);
    ck_assert_int_eq(of(SHARD_MEMORY_ACTIVATIONS).current - inputs, on_host() ? 1000 : 0);
    check_sum();
    shard_device_free_host(device, batch, 1000);
    ck_assert_int_eq(of(SHARD_MEMORY_ACTIVATIONS).current, inputs);
    ck_assert_int_eq(shard_get_memory_stats(device).current, all);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("memory_report");
    TCase *tcase = test_case(suite, "memory_report");
    tcase_add_test(tcase, test_step);
    tcase_add_test(tcase, test_data_parallel);
    tcase_add_test(tcase, test_kinds);
    tcase_add_test(tcase, test_kernels);
    tcase_add_test(tcase, test_table);
    tcase_add_test(tcase, test_ranks);
    tcase_add_test(tcase, test_loaded_ahead);
    return test_run(suite);
}
