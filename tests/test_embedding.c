/* embedding. */
#include "support/gradcheck.h"
#include "support/ranks.h"

#include "device/device.h"

typedef struct lookup {
    shard_shape shape;
    int64_t index[6];
    int64_t padding_idx;
} lookup;

static shard_tensor *embedding(shard_tensor *const *x, const void *options)
{
    const lookup *at = options;
    return shard_embedding(x[0], shard_from_host(at->index, at->shape, .dtype = SHARD_INT64), at->padding_idx);
}

static const operation operations[] = {
    {"embedding", embedding, &(lookup){{2, {2, 3}}, {4, 0, 2, 2, 4, 2}, -1}, 1, {SHARD_SHAPE(5, 3)}},
    {"one", embedding, &(lookup){{0}, {3}, -1}, 1, {SHARD_SHAPE(5, 3)}},
    {"padding without effect", embedding, &(lookup){{1, {3}}, {4, 0, 2}, 1}, 1, {SHARD_SHAPE(5, 3)}},
    {"no index", embedding, &(lookup){{2, {0, 2}}, {0}, -1}, 1, {SHARD_SHAPE(5, 3)}},
    {"no rows, no index", embedding, &(lookup){{1, {0}}, {0}, -1}, 1, {SHARD_SHAPE(0, 3)}},
    {"no columns", embedding, &(lookup){{1, {3}}, {4, 0, 2}, 1}, 1, {SHARD_SHAPE(5, 0)}},
};

START_TEST(gradients)
{
    check_operation(&operations[_i]);
}
END_TEST

/* The padding row's gradient stays what it was, written or added to. */
START_TEST(pads)
{
    static const int64_t at[] = {1, 3, 1, 0};
    static const double once[] = {1, 1, 0, 0, 0, 0, 1, 1}, both[] = {2, 2, 2, 2, 0, 0, 2, 2};
    SHARD_SCOPE {
        shard_tensor *weight = make_up_tensor(SHARD_SHAPE(4, 2), 1, .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *index = shard_from_host(at, SHARD_SHAPE(4), .dtype = SHARD_INT64);
        shard_tensor *dy = shard_ones(SHARD_SHAPE(4, 2), .dtype = SHARD_FLOAT64);
        check_ok(shard_backward_from(shard_embedding(weight, index, 1), dy));
        check_tensor("first", shard_grad(weight), once, 0);
        shard_zero_grad(weight);
        check_ok(shard_backward_from(shard_embedding(weight, index, -1), dy));
        check_ok(shard_backward_from(shard_embedding(weight, index, 1), dy));
        check_tensor("added up", shard_grad(weight), both, 0);
    }
}
END_TEST

START_TEST(needs_its_index)
{
    static const int64_t at[] = {1, 3};
    SHARD_SCOPE {
        shard_tensor *weight = make_up_tensor(SHARD_SHAPE(4, 2), 1, .requires_grad = true);
        shard_tensor *index = shard_from_host(at, SHARD_SHAPE(2), .dtype = SHARD_INT64);
        shard_tensor *y = shard_embedding(weight, index, -1);
        check_ok(shard_copy_from_host(index, at, sizeof at));
        ck_assert_int_ne(shard_backward_from(y, shard_ones(SHARD_SHAPE(2, 2))), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "backward of embedding: a int64 tensor *");
    }
}
END_TEST

/* Where the device queues, the error is that of the next call that waits for it. */
static void check_outside(shard_tensor *y, const char *pattern)
{
    shard_device *device = shard_device_open(NULL);
    if (!device->ops->host_memory) {
        ck_assert_msg(y && shard_last_status() == SHARD_OK, "%s", shard_last_error());
        ck_assert_int_eq(shard_synchronize(device), SHARD_ERROR_ARGUMENT);
        y = NULL;
    }
    check_refused(y, SHARD_ERROR_ARGUMENT, pattern);
}

START_TEST(refuses)
{
    static const int64_t high[] = {0, 1, 4}, low[] = {0, -1, 2};
    SHARD_SCOPE {
        shard_tensor *weight = shard_zeros(SHARD_SHAPE(4, 2)), *none = shard_zeros(SHARD_SHAPE(0, 2));
        shard_tensor *index = shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64);
        check_outside(shard_embedding(weight, shard_from_host(high, SHARD_SHAPE(3, 1), .dtype = SHARD_INT64), -1),
                      "shard_embedding: index 4 (element 2) is outside of [[]0, 4)");
        check_outside(shard_embedding(weight, shard_from_host(low, SHARD_SHAPE(3), .dtype = SHARD_INT64), -1),
                      "shard_embedding: index -1 (element 1) is outside of [[]0, 4)");
        check_refused(shard_embedding(none, index, -1), SHARD_ERROR_ARGUMENT, "shard_embedding: *without rows*");
        check_refused(shard_embedding(weight, index, 4), SHARD_ERROR_ARGUMENT, "shard_embedding: padding_idx 4 of 4 rows*");
        check_refused(shard_embedding(weight, index, -2), SHARD_ERROR_ARGUMENT, "shard_embedding: padding_idx -2 *");
        check_refused(shard_embedding(weight, shard_zeros(SHARD_SHAPE(2)), -1), SHARD_ERROR_SHAPE,
                      "shard_embedding: needs * int64 index *");
        check_refused(shard_embedding(shard_zeros(SHARD_SHAPE(4)), index, -1), SHARD_ERROR_SHAPE, "shard_embedding: needs *");
        check_refused(shard_embedding(weight, NULL, -1), SHARD_ERROR_ARGUMENT, "shard_embedding: *");
    }
}
END_TEST

/* Each call's counts are its own, also where its gradient is added to that of another call. */
START_TEST(counts_each_call)
{
    static const int64_t at[] = {1, 3, 1, 0};
    static const double both[] = {2, 2, 2, 2, 0, 0, 2, 2};
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_ones(SHARD_SHAPE(4, 2), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *index = shard_from_host(at, SHARD_SHAPE(4), .dtype = SHARD_INT64);
        for (int i = 0; i < 2; i++)
            check_ok(shard_backward_from(shard_embedding(weight, index, -1, .scale_grad_by_freq = true),
                                         shard_ones(SHARD_SHAPE(4, 2), .dtype = SHARD_FLOAT64)));
        check_tensor("gradient", shard_grad(weight), both, 0);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("embedding");
    TCase *tcase = test_case(suite, "embedding");
    tcase_add_loop_test(tcase, gradients, 0, sizeof operations / sizeof *operations);
    tcase_add_test(tcase, pads);
    tcase_add_test(tcase, needs_its_index);
    tcase_add_test(tcase, refuses);
    tcase_add_test(tcase, counts_each_call);
    return test_run(suite);
}
