/* Memory of others: shard_from_memory, DLPack in and out, and the log's lines. */
#include "support/gradcheck.h"
#include "support/job.h"

#include <shard/dlpack.h>

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

static void count_release(void *context)
{
    ++*(int *)context;
}

/* The memory is read and written in place, and released with the last tensor on it. */
START_TEST(from_memory)
{
    float memory[6] = {1, 2, 3, 4, 5, 6};
    int released = 0;
    shard_device *cpu = shard_device_open("cpu");
    int64_t before = shard_get_memory_stats(cpu).current;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_memory(memory, SHARD_SHAPE(2, 3), SHARD_FLOAT32, cpu, count_release, &released);
        ck_assert_ptr_eq(shard_data(x), memory);
        ck_assert_int_eq(shard_get_memory_stats(cpu).current, before);
        ck_assert_double_eq(shard_item(shard_sum(x)), 21);
        shard_tensor *row = shard_keep(shard_narrow(x, 0, 1, 1));
        float ones[6] = {1, 1, 1, 1, 1, 1};
        check_ok(shard_copy_from_host(x, ones, sizeof ones));
        ck_assert_double_eq(memory[5], 1);
        shard_release(x);
        ck_assert_int_eq(released, 0);
        ck_assert_double_eq(shard_item(shard_sum(row)), 3);
        shard_release(row);
        ck_assert_int_eq(released, 1);
        shard_tensor *empty = shard_from_memory(memory, SHARD_SHAPE(0, 3), SHARD_FLOAT32, cpu, count_release, &released);
        ck_assert_int_eq(shard_numel(empty), 0);
        ck_assert_int_eq(released, 2); /* at once */
        empty = shard_from_memory(NULL, SHARD_SHAPE(3, 0), SHARD_FLOAT32, cpu, count_release, &released);
        ck_assert_int_eq(shard_numel(empty), 0);
        ck_assert_int_eq(released, 3);
    }
    ck_assert_int_eq(released, 3);
    ck_assert_int_eq(shard_get_memory_stats(cpu).current, before);
}
END_TEST

/* A leaf of two numbers on the memory. */
static shard_tensors *list_in_memory(double *memory, int *released)
{
    shard_tensor *leaf =
        shard_from_memory(memory, SHARD_SHAPE(2), SHARD_FLOAT64, shard_device_open("cpu"), count_release, released);
    shard_set_requires_grad(leaf, true);
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, "w", leaf));
    return list;
}

/* A leaf on it trains there, and stays there under ZeRO on one rank. */
START_TEST(trains_in_memory)
{
    double memory[2] = {1, 2};
    int released = 0;
    SHARD_SCOPE
    {
        shard_tensors *list = list_in_memory(memory, &released);
        shard_tensor *leaf = shard_tensors_at(list, 0);
        shard_optimizer *sgd = shard_sgd(list, .lr = 0.5);
        check_ok(shard_backward(shard_sum(leaf)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq(memory[0], 0.5);
        ck_assert_double_eq(memory[1], 1.5);
        shard_optimizer *zero = shard_zero_optimizer(sgd, .stage = 1);
        ck_assert_ptr_nonnull(zero);
        check_ok(shard_backward(shard_sum(leaf)));
        check_ok(shard_step(zero));
        ck_assert_double_eq(memory[0], 0); /* one rank has no buckets */
        ck_assert_double_eq(value_at(leaf, 0), 0);
        shard_optimizer_destroy(zero);
        shard_tensors_destroy(list);
    }
    ck_assert_int_eq(released, 1);
}
END_TEST

/* Moved into buckets, over two ranks, it leaves the memory, which is released. */
static void leaves_memory(shard_group *world, void *context)
{
    (void)world;
    bool partitions = *(const bool *)context;
    double memory[2] = {1, 2};
    int released = 0;
    SHARD_SCOPE
    {
        shard_tensors *list = list_in_memory(memory, &released);
        shard_tensor *leaf = shard_tensors_at(list, 0);
        shard_optimizer *sgd = shard_sgd(list, .lr = 0.5);
        shard_data_parallel *dp = partitions ? NULL : shard_data_parallel_create(list);
        ck_assert_msg(partitions ? shard_zero_optimizer(sgd, .stage = 1) != NULL : dp != NULL, "%s", shard_last_error());
        check_ok(shard_backward(shard_sum(leaf)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq(value_at(leaf, 0), 0.5);
        ck_assert_double_eq(memory[0], 1);
        ck_assert_int_eq(released, 1);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
        shard_tensors_destroy(list);
    }
    ck_assert_int_eq(released, 1);
}

START_TEST(moves_out_of_memory)
{
    bool partitions = _i;
    run_job(2, leaves_memory, &partitions);
}
END_TEST

/* An operation of another library, which keeps its result and reuses one buffer for gradients: both are read, not written. */
static float kept_result[4], kept_gradient[4];

static shard_tensor *kept_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)op, (void)inputs;
    check_ok(shard_copy_to_host(input[0], kept_result, sizeof kept_result));
    return shard_from_memory(kept_result, SHARD_SHAPE(2, 2), SHARD_FLOAT32, shard_device_open("cpu"), NULL, NULL);
}

static shard_status kept_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)op;
    check_ok(shard_copy_to_host(dy, kept_gradient, sizeof kept_gradient));
    for (int i = 0; i < inputs; i++)
        dx[i] = shard_from_memory(kept_gradient, SHARD_SHAPE(2, 2), SHARD_FLOAT32, shard_device_open("cpu"), NULL, NULL);
    return shard_last_status();
}

static const shard_custom_op_type kept_type = {.name = "kept", .forward = kept_forward, .backward = kept_backward};

static shard_tensor *ones_leaf(void)
{
    return shard_ones(SHARD_SHAPE(2, 2), .requires_grad = true, .device = shard_device_open("cpu"));
}

START_TEST(leaves_memory_alone)
{
    const double one[4] = {1, 1, 1, 1}, three[4] = {3, 3, 3, 3}, ten[4] = {10, 10, 10, 10}, hundred[4] = {100, 100, 100, 100};
    SHARD_SCOPE
    {
        /* in place, by an operation before it */
        shard_tensor *u = ones_leaf(), *w = ones_leaf(), *b = ones_leaf();
        check_ok(shard_backward(shard_sum(shard_custom_op_apply(&kept_type, NULL, shard_scale(u, 10), shard_scale(w, 100)))));
        check_tensor("du", shard_grad(u), ten, 0);
        check_tensor("dw", shard_grad(w), hundred, 0);
        check_ok(shard_backward(shard_sum(shard_custom_op_apply(
            &kept_type, NULL,
            shard_div(shard_scale(b, 1), shard_full(SHARD_SHAPE(2, 2), 0.1, .device = shard_device_open("cpu")))))));
        check_tensor("db", shard_grad(b), ten, 1e-5);
        ck_assert_float_eq(kept_gradient[0], 1);
        /* as a leaf's gradient */
        shard_tensor *v = ones_leaf();
        check_ok(shard_backward(shard_sum(shard_custom_op_apply(&kept_type, NULL, v))));
        check_tensor("dv", shard_grad(v), one, 0);
        check_ok(shard_backward(shard_sum(shard_scale(shard_custom_op_apply(&kept_type, NULL, v), 2))));
        ck_assert_float_eq(kept_gradient[0], 2);
        check_tensor("dv", shard_grad(v), three, 0);
        /* as logits */
        shard_tensor *labels =
            shard_from_host((int64_t[]){0, 1}, SHARD_SHAPE(2), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_tensor *target = shard_zeros(SHARD_SHAPE(2, 2), .device = shard_device_open("cpu"));
        for (int binary = 0; binary < 2; binary++) {
            shard_tensor *logits = shard_custom_op_apply(&kept_type, NULL, shard_scale(v, 5)), *loss = NULL;
            loss = binary ? shard_binary_cross_entropy_with_logits(logits, target) : shard_cross_entropy(logits, labels);
            shard_release(logits);
            check_ok(shard_backward(loss));
            ck_assert_float_eq(kept_result[0], 5);
        }
    }
}
END_TEST

START_TEST(refuses_memory)
{
    _Alignas(8) char memory[16];
    int released = 0;
    SHARD_SCOPE
    {
        ck_assert_ptr_null(shard_from_memory(memory + 2, SHARD_SHAPE(2), SHARD_FLOAT32, NULL, count_release, &released));
        check_error(SHARD_ERROR_ARGUMENT, "shard_from_memory: memory at * is not aligned to the 4 bytes of a float32");
        ck_assert_ptr_null(shard_from_memory(memory, SHARD_SHAPE(2), (shard_dtype)17, NULL, count_release, &released));
        check_error(SHARD_ERROR_ARGUMENT, "shard_from_memory: *dtype 17*");
        ck_assert_ptr_null(shard_from_memory(memory, SHARD_SHAPE(-2), SHARD_FLOAT32, NULL, count_release, &released));
        ck_assert_int_ne(shard_last_status(), SHARD_OK);
        shard_clear_error();
    }
    ck_assert_int_eq(released, 0);
}
END_TEST

/* Out and in again: the same memory, which stays until both have gone. */
START_TEST(dlpack_round)
{
    static const shard_dtype dtypes[SHARD_DTYPES] = {SHARD_FLOAT32, SHARD_FLOAT64, SHARD_BFLOAT16, SHARD_FLOAT16,
                                                     SHARD_INT64,   SHARD_INT32,   SHARD_UINT8};
    static const uint8_t codes[SHARD_DTYPES] = {kDLFloat, kDLFloat, kDLBfloat, kDLFloat, kDLInt, kDLInt, kDLUInt};
    shard_device *cpu = shard_device_open("cpu");
    int64_t before = shard_get_memory_stats(cpu).current;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(2, 3), 3.0, .dtype = dtypes[_i], .device = cpu);
        DLManagedTensorVersioned *managed = shard_to_dlpack(x);
        ck_assert_msg(managed, "%s", shard_last_error());
        ck_assert_int_eq(managed->version.major, 1);
        ck_assert_int_eq(managed->dl_tensor.ndim, 2);
        ck_assert_int_eq(managed->dl_tensor.strides[0], 3);
        ck_assert_int_eq(managed->dl_tensor.strides[1], 1);
        ck_assert_int_eq(managed->dl_tensor.dtype.code, codes[_i]);
        ck_assert_int_eq(managed->dl_tensor.dtype.lanes, 1);
        ck_assert_int_eq(managed->dl_tensor.device.device_type, kDLCPU);
        ck_assert_int_eq(managed->dl_tensor.dtype.bits, (int)shard_dtype_size(dtypes[_i]) * 8);
        void *memory = shard_data(x);
        ck_assert_ptr_eq(managed->dl_tensor.data, memory);
        DLManagedTensorVersioned *row = shard_to_dlpack(shard_narrow(x, 0, 1, 1)); /* of a view */
        ck_assert_msg(row, "%s", shard_last_error());
        ck_assert_ptr_eq((char *)row->dl_tensor.data + row->dl_tensor.byte_offset,
                         (char *)memory + 3 * shard_dtype_size(dtypes[_i]));
        row->deleter(row);
        shard_release(x);
        shard_tensor *y = shard_from_dlpack(managed);
        ck_assert_msg(y, "%s", shard_last_error());
        ck_assert_ptr_eq(shard_data(y), memory);
        ck_assert_int_eq(shard_tensor_dtype(y), dtypes[_i]);
        ck_assert_int_eq(shard_tensor_size(y, 1), 3);
        ck_assert_double_eq(shard_item(shard_cast(shard_narrow(shard_reshape(y, SHARD_SHAPE(6)), 0, 5, 1), SHARD_FLOAT64)), 3);
        managed = shard_to_dlpack(shard_empty(SHARD_SHAPE(2, 0), .dtype = dtypes[_i], .device = cpu));
        ck_assert_msg(managed, "%s", shard_last_error());
        ck_assert_ptr_null(managed->dl_tensor.data);
        shard_tensor *empty = shard_from_dlpack(managed);
        ck_assert_msg(empty, "%s", shard_last_error());
        ck_assert_int_eq(shard_tensor_size(empty, 0), 2);
    }
    ck_assert_int_eq(shard_get_memory_stats(cpu).current, before);
}
END_TEST

/* The same struct of before version 1. */
START_TEST(unversioned_round)
{
    shard_device *cpu = shard_device_open("cpu");
    int64_t before = shard_get_memory_stats(cpu).current;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_full(SHARD_SHAPE(2, 3), 3.0, .device = cpu);
        void *memory = shard_data(x);
        DLManagedTensor *managed = shard_to_dlpack_unversioned(x);
        ck_assert_msg(managed, "%s", shard_last_error());
        ck_assert_ptr_eq(managed->dl_tensor.data, memory);
        shard_release(x);
        shard_tensor *y = shard_from_dlpack_unversioned(managed);
        ck_assert_msg(y, "%s", shard_last_error());
        ck_assert_ptr_eq(shard_data(y), memory);
        ck_assert_double_eq(shard_item(shard_sum(y)), 18);
        managed = shard_to_dlpack_unversioned(y); /* deleted by a consumer */
        managed->deleter(managed);
        ck_assert_double_eq(shard_item(shard_sum(y)), 18);
    }
    ck_assert_int_eq(shard_get_memory_stats(cpu).current, before);
    int64_t shape[2] = {2, 2}, strides[2] = {1, 2};
    float values[4] = {0};
    DLManagedTensor gaps = {.dl_tensor = {values, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, strides, 0}};
    ck_assert_ptr_null(shard_from_dlpack_unversioned(&gaps));
    check_error(SHARD_ERROR_UNSUPPORTED, "shard_from_dlpack_unversioned: *without gaps*");
}
END_TEST

static void delete (DLManagedTensorVersioned *managed)
{
    ++*(int *)managed->manager_ctx;
}

typedef struct dlpack_case {
    uint32_t major;
    uint64_t flags;
    DLDeviceType device;
    DLDataType dtype;
    int64_t strides[2];
    uint64_t offset;
    const char *error;   /* NULL: it is read */
    shard_status status; /* of the error; 0: UNSUPPORTED */
} dlpack_case;

static const dlpack_case dlpack_cases[] = {
    {1, 0, kDLCPU, {kDLFloat, 32, 1}, {2, 1}, 8, NULL},
    {2, 0, kDLCPU, {kDLFloat, 32, 1}, {2, 1}, 0, "*a tensor of DLPack 2.0; version 1 is read"},
    {1, DLPACK_FLAG_BITMASK_READ_ONLY, kDLCPU, {kDLFloat, 32, 1}, {2, 1}, 0, "*read-only*"},
    {1, 0, kDLCUDAHost, {kDLFloat, 32, 1}, {2, 1}, 8, NULL},
    {1, 0, kDLCUDAManaged, {kDLFloat, 32, 1}, {2, 1}, 0, "*DLPack's device 13;*"},
    {1, 0, kDLCPU, {kDLComplex, 64, 1}, {2, 1}, 0, "*no dtype for DLPack's code 5 of 64 bits*"},
    {1, 0, kDLCPU, {kDLFloat, 32, 4}, {2, 1}, 0, "*4 lanes*"},
    {1, 0, kDLCPU, {kDLFloat, 32, 1}, {1, 2}, 0, "*without gaps*"},
    {1, 0, kDLCPU, {kDLFloat, 32, 1}, {2, 1}, 2, "*is not aligned*", SHARD_ERROR_ARGUMENT},
};

START_TEST(dlpack_in)
{
    const dlpack_case *c = &dlpack_cases[_i];
    _Alignas(16) float memory[6] = {1, 2, 3, 4, 5, 6};
    int64_t shape[2] = {2, 2}, strides[2] = {c->strides[0], c->strides[1]};
    int deleted = 0;
    DLManagedTensorVersioned managed = {
        .version = {c->major, 0},
        .manager_ctx = &deleted,
        .deleter = delete,
        .flags = c->flags,
        .dl_tensor = {memory, {c->device, 0}, 2, c->dtype, shape, strides, c->offset},
    };
    SHARD_SCOPE
    {
        shard_tensor *x = shard_from_dlpack(&managed);
        if (c->error) {
            ck_assert_ptr_null(x);
            check_error(c->status ? c->status : SHARD_ERROR_UNSUPPORTED, c->error);
        } else {
            ck_assert_double_eq(shard_item(shard_sum(x)), 18);
        }
        ck_assert_int_eq(deleted, 0);
    }
    ck_assert_int_eq(deleted, c->error == NULL);
}
END_TEST

START_TEST(dlpack_sizes)
{
    static const struct {
        bool data;
        int ndim;
        int64_t shape[3];
        shard_status status; /* OK: it is read */
        const char *error;
    } cases[] = {
        {false, 1, {4}, SHARD_ERROR_ARGUMENT, "shard_from_dlpack: a tensor of shape [[]4] without data"},
        {false, 2, {4, 0}, SHARD_OK, NULL},
        {false, 3, {0, INT64_MAX, 2}, SHARD_ERROR_MEMORY, "*overflows"},
        {true, 3, {INT64_MAX, 2, 3}, SHARD_ERROR_MEMORY, "*overflows"},
        {true, 2, {-1, -4}, SHARD_ERROR_SHAPE, "*a size is negative"},
        {true, SHARD_MAX_DIMS + 1, {1}, SHARD_ERROR_UNSUPPORTED, "shard_from_dlpack: *dimensions*"},
        {true, -1, {1}, SHARD_ERROR_UNSUPPORTED, "shard_from_dlpack: *dimensions*"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t shape[SHARD_MAX_DIMS + 1] = {cases[i].shape[0], cases[i].shape[1], cases[i].shape[2]}, strides[3] = {1, 1, 1};
        float memory[4];
        int deleted = 0;
        DLManagedTensorVersioned managed = {
            .version = {1, 0},
            .manager_ctx = &deleted,
            .deleter = delete,
            .dl_tensor = {cases[i].data ? memory : NULL, {kDLCPU, 0}, cases[i].ndim, {kDLFloat, 32, 1}, shape, strides, 0},
        };
        SHARD_SCOPE
        {
            shard_tensor *x = shard_from_dlpack(&managed);
            if (cases[i].status == SHARD_OK)
                ck_assert_ptr_nonnull(x);
            else
                check_refused(x, cases[i].status, cases[i].error);
        }
        ck_assert_int_eq(deleted, cases[i].status == SHARD_OK);
    }
}
END_TEST

static void keep_line(shard_log_level level, int rank, const char *line, void *context)
{
    snprintf(context, 64, "%d %d %s", level, rank, line);
}

START_TEST(gets_log_lines)
{
    char line[64] = "";
    shard_set_log_function(keep_line, line);
    shard_log_message(SHARD_LOG_DEBUG, "not from this level on");
    ck_assert_str_eq(line, "");
    shard_log_message(SHARD_LOG_ERROR, "%d\n", 7);
    shard_set_log_function(NULL, NULL);
    ck_assert_str_eq(line, "0 -1 7\\n");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("foreign");
    TCase *tcase = test_case(suite, "memory");
    tcase_add_test(tcase, from_memory);
    tcase_add_test(tcase, trains_in_memory);
    tcase_add_loop_test(tcase, moves_out_of_memory, 0, 2);
    tcase_add_test(tcase, leaves_memory_alone);
    tcase_add_test(tcase, refuses_memory);
    tcase_add_loop_test(tcase, dlpack_round, 0, SHARD_DTYPES);
    tcase_add_test(tcase, unversioned_round);
    tcase_add_loop_test(tcase, dlpack_in, 0, sizeof dlpack_cases / sizeof *dlpack_cases);
    tcase_add_test(tcase, dlpack_sizes);
    tcase_add_test(tcase, gets_log_lines);
    return test_run(suite);
}
