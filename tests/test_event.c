/* Marks in what is queued on the device that SHARD_DEVICE names: what a wait for one has waited for. */
#include "support/job.h"

#include <shard/op.h>

enum { COUNT = 1000, BYTES = COUNT * sizeof(float), ROUNDS = 3 };

static shard_tensor *copy_of(float *memory, float value)
{
    for (int i = 0; i < COUNT; i++)
        memory[i] = value;
    return shard_from_host(memory, SHARD_SHAPE(COUNT));
}

/* The memory that the device copies from is used anew after each wait; an event may be recorded twice before. */
START_TEST(waits_for_copies)
{
    shard_device *device = shard_device_open(NULL);
    shard_event *event = shard_event_create(device);
    float *first = shard_device_allocate_host(device, BYTES), *second = shard_device_allocate_host(device, BYTES);
    ck_assert_msg(event && first && second, "%s", shard_last_error());
    SHARD_SCOPE {
        shard_tensor *copies[2 * ROUNDS];
        for (int i = 0; i < ROUNDS; i++) {
            copies[2 * i] = copy_of(first, (float)(2 * i + 1));
            check_ok(shard_event_record(event));
            copies[2 * i + 1] = copy_of(second, (float)(2 * i + 2));
            check_ok(shard_event_record(event));
            check_ok(shard_event_synchronize(event));
            check_ok(shard_event_synchronize(event));
        }
        for (int i = 0; i < 2 * ROUNDS; i++) {
            float values[COUNT];
            check_ok(shard_copy_to_host(copies[i], values, sizeof values));
            for (int k = 0; k < COUNT; k++)
                ck_assert_msg(values[k] == (float)(i + 1), "copy %d has %g at %d", i, (double)values[k], k);
        }
    }
    shard_event_destroy(event);
    shard_device_free_host(device, first, BYTES);
    shard_device_free_host(device, second, BYTES);
}
END_TEST

/* The same of copies beside what is computed, whether what they bring is used before the wait or not, and back. */
START_TEST(waits_for_copies_beside)
{
    shard_device *device = shard_device_open(NULL);
    shard_event *event = shard_event_create(device);
    float *to_device = shard_device_allocate_host(device, BYTES), *from_device = shard_device_allocate_host(device, BYTES);
    ck_assert_msg(event && to_device && from_device, "%s", shard_last_error());
    SHARD_SCOPE {
        shard_tensor *copies[2 * ROUNDS];
        for (int i = 0; i < 2 * ROUNDS; i++) {
            for (int k = 0; k < COUNT; k++)
                to_device[k] = (float)(i + k);
            copies[i] = shard_from_host_async(to_device, SHARD_SHAPE(COUNT));
            ck_assert_msg(copies[i] != NULL, "%s", shard_last_error());
            if (i % 2) {
                shard_tensor *twice = shard_scale(copies[i], 2);
                check_ok(shard_copy_to_host_async(twice, from_device, BYTES));
                shard_release(twice);
            }
            if (i % 3 == 0) {
                check_ok(shard_synchronize(device));
            } else {
                check_ok(shard_event_record(event));
                check_ok(shard_event_synchronize(event));
            }
            for (int k = 0; k < COUNT && i % 2; k++)
                ck_assert_msg(from_device[k] == (float)(2 * (i + k)), "round %d has %g at %d", i, (double)from_device[k], k);
        }
        for (int i = 0; i < 2 * ROUNDS; i++) {
            float values[COUNT];
            check_ok(shard_copy_to_host(copies[i], values, sizeof values));
            for (int k = 0; k < COUNT; k++)
                ck_assert_msg(values[k] == (float)(i + k), "copy %d has %g at %d", i, (double)values[k], k);
        }
    }
    shard_event_destroy(event);
    shard_device_free_host(device, to_device, BYTES);
    shard_device_free_host(device, from_device, BYTES);
}
END_TEST

/* Memory that is released is not what a later copy is made in before the work that reads it is done; a copy that
 * nobody used is released, too. */
START_TEST(reuses_memory)
{
    shard_device *device = shard_device_open(NULL);
    enum { BATCHES = 6 };
    float *batches[BATCHES];
    double sums[BATCHES];
    shard_tensor *sum[BATCHES];
    int64_t before = shard_get_memory_stats(device).current;
    SHARD_SCOPE {
        for (int i = 0; i < BATCHES; i++) {
            batches[i] = shard_device_allocate_host(device, BYTES);
            ck_assert_ptr_nonnull(batches[i]);
            sums[i] = 0;
            for (int k = 0; k < COUNT; k++)
                sums[i] += (double)(batches[i][k] = (float)((i + 1) * (k % 17)));
            shard_tensor *batch = shard_from_host_async(batches[i], SHARD_SHAPE(COUNT));
            shard_release(shard_from_host_async(batches[0], SHARD_SHAPE(COUNT)));
            sum[i] = shard_sum(batch);
            shard_release(batch);
        }
        for (int i = 0; i < BATCHES; i++)
            ck_assert_double_eq_tol(shard_item(sum[i]), sums[i], 1e-6 * sums[i]);
    }
    check_ok(shard_synchronize(device));
    for (int i = 0; i < BATCHES; i++)
        shard_device_free_host(device, batches[i], BYTES);
    ck_assert_int_eq(shard_get_memory_stats(device).current, before);
}
END_TEST

START_TEST(copies_nothing)
{
    SHARD_SCOPE {
        shard_tensor *none = shard_from_host_async(NULL, SHARD_SHAPE(0, 3));
        ck_assert_int_eq(shard_numel(none), 0);
        check_ok(shard_copy_to_host_async(none, NULL, 0));
        ck_assert_ptr_null(shard_from_host_async(NULL, SHARD_SHAPE(3)));
        check_error(SHARD_ERROR_ARGUMENT, "shard_from_host_async: data *");
        float three[3];
        ck_assert_int_eq(shard_copy_to_host_async(shard_ones(SHARD_SHAPE(2)), three, sizeof three), SHARD_ERROR_SHAPE);
        check_error(SHARD_ERROR_SHAPE, "shard_copy_to_host_async: 12*");
    }
}
END_TEST

START_TEST(never_recorded)
{
    shard_event *event = shard_event_create(shard_device_open(NULL));
    ck_assert_msg(event != NULL, "%s", shard_last_error());
    check_ok(shard_event_synchronize(event));
    SHARD_SCOPE {
        ck_assert_double_eq(shard_item(shard_ones(SHARD_SCALAR)), 1);
    }
    check_ok(shard_event_synchronize(event));
    shard_event_destroy(event);
    check_ok(shard_last_status());
}
END_TEST

/* Streams of a GPU: test_cuda_stream.c. */
START_TEST(cpu_has_no_stream)
{
    shard_device *cpu = shard_device_open("cpu");
    check_ok(shard_device_use_stream(cpu, NULL));
    ck_assert_int_eq(shard_device_use_stream(cpu, cpu), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_device_use_stream: *streams*");
    ck_assert_int_eq(shard_device_use_stream(NULL, NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_device_use_stream: device *");
}
END_TEST

START_TEST(refuses_null)
{
    ck_assert_ptr_null(shard_event_create(NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_event_create: device *");
    ck_assert_int_eq(shard_event_record(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_event_record: event *");
    ck_assert_int_eq(shard_event_synchronize(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_event_synchronize: event *");
    shard_event_destroy(NULL);
    check_ok(shard_last_status());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("event");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, waits_for_copies);
    tcase_add_test(all, waits_for_copies_beside);
    tcase_add_test(all, reuses_memory);
    tcase_add_test(all, copies_nothing);
    tcase_add_test(all, never_recorded);
    tcase_add_test(all, cpu_has_no_stream);
    tcase_add_test(all, refuses_null);
    return test_run(suite);
}
