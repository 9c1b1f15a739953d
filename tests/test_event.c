/* Marks in what is queued on the device that SHARD_DEVICE names: what a wait for one has waited for. */
#include "support/job.h"

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
    float *first = shard_allocate_host(device, BYTES), *second = shard_allocate_host(device, BYTES);
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
    shard_free_host(device, first, BYTES);
    shard_free_host(device, second, BYTES);
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

START_TEST(refuses_null)
{
    ck_assert_ptr_null(shard_event_create(NULL));
    check_error(SHARD_ERROR_ARGUMENT, "shard_event_create: device is NULL");
    ck_assert_int_eq(shard_event_record(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_event_record: event is NULL");
    ck_assert_int_eq(shard_event_synchronize(NULL), SHARD_ERROR_ARGUMENT);
    check_error(SHARD_ERROR_ARGUMENT, "shard_event_synchronize: event is NULL");
    shard_event_destroy(NULL);
    check_ok(shard_last_status());
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("event");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, waits_for_copies);
    tcase_add_test(all, never_recorded);
    tcase_add_test(all, refuses_null);
    return test_run(suite);
}
