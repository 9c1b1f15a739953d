/* Autocast and leaves on one rank: the copies of the weights in 16 bits, and gradients of float32. */
#include "support/gradcheck.h"
#include "support/host.h"
#include "support/ranks.h"

#include "op/autocast.h"
#include "op/op.h"
#include "support/options.h"

#include <shard/shard.h>

#include <pthread.h>
#include <stdlib.h>

#define MATRIX SHARD_SHAPE(6, 5)

static const shard_dtype modes[] = {SHARD_BFLOAT16, SHARD_FLOAT16};

/* ---- the copies of leaves ---- */

static shard_tensor *operand_of(shard_tensor *x)
{
    shard_tensor *input[] = {x}, *operand[1];
    shard_autocast_product(1, input, operand);
    ck_assert_ptr_eq(input[0], x);
    ck_assert_msg(operand[0] != NULL, "%s", shard_last_error());
    return operand[0];
}

START_TEST(copies_are_kept)
{
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_full(MATRIX, 1.5, .requires_grad = true), *other = shard_ones(MATRIX, .requires_grad = true);
        shard_tensor *frozen = shard_ones(MATRIX);
        int64_t before = shard_get_memory_stats(shard_tensor_device(weight)).current;
        SHARD_AUTOCAST(SHARD_BFLOAT16) SHARD_SCOPE
        {
            shard_tensor *copy = operand_of(weight), *values = shard_detach(copy);
            ck_assert_int_eq(shard_tensor_dtype(copy), SHARD_BFLOAT16);
            ck_assert_ptr_ne(operand_of(other), copy);
            ck_assert_ptr_eq(operand_of(weight), copy);
            ck_assert_ptr_ne(operand_of(frozen), operand_of(frozen)); /* data */
            double twos[30];
            for (int i = 0; i < 30; i++)
                twos[i] = 2;
            float *numbers = host_copy(weight);
            for (int i = 0; i < 30; i++)
                numbers[i] = (float)twos[i];
            check_ok(shard_copy_from_host(weight, numbers, 30 * sizeof *numbers));
            free(numbers);
            check_tensor("the new copy", operand_of(weight), twos, 0);
            ck_assert_double_eq(value_at(values, 0), 1.5);
            SHARD_AUTOCAST(SHARD_FLOAT16)
            {
                ck_assert_int_eq(shard_tensor_dtype(operand_of(weight)), SHARD_FLOAT16);
                check_tensor("the other type's copy", operand_of(weight), twos, 0);
            }
            ck_assert_int_eq(shard_tensor_dtype(operand_of(weight)), SHARD_BFLOAT16);
        }
        ck_assert_int_eq(shard_get_memory_stats(shard_tensor_device(weight)).current,
                         before + 3 * 30 * 4); /* the values, made now */
        ck_assert_ptr_eq(operand_of(weight), weight);
    }
}
END_TEST

/* Leaves that come and go while the mode is on take their copies with them, and none of a
 * module is left; so does a leaf that moves. */
START_TEST(copies_go_with_their_leaves)
{
    shard_device *device = shard_device_open(NULL);
    SHARD_SCOPE SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        shard_tensor *weight = shard_full(MATRIX, 1.5, .requires_grad = true), *copy = operand_of(weight);
        int64_t before = shard_get_memory_stats(device).current;
        for (int i = 0; i < 4; i++) {
            SHARD_SCOPE
                operand_of(shard_ones(SHARD_SHAPE(1000), .requires_grad = true));
            ck_assert_int_eq(shard_get_memory_stats(device).current, before);
        }
        shard_module *module = shard_nn_sequential(shard_nn_linear(30, 40), shard_nn_linear(40, 50));
        SHARD_SCOPE
            check_ok(shard_backward(shard_sum(shard_forward(module, shard_ones(SHARD_SHAPE(2, 30))))));
        shard_module_destroy(module);
        ck_assert_int_eq(shard_get_memory_stats(device).current, before);
        ck_assert_ptr_eq(operand_of(weight), copy);
        shard_storage *elsewhere = shard_storage_make(device, 30 * sizeof(float));
        check_ok(shard_tensor_move(weight, elsewhere, 0));
        shard_storage_unref(elsewhere);
        ck_assert_int_eq(shard_get_memory_stats(device).current, before - 30 * 2);
    }
}
END_TEST

static void *use_in_thread(void *weight)
{
    shard_set_autocast(SHARD_BFLOAT16);
    SHARD_SCOPE
        ck_assert_int_eq(shard_tensor_dtype(operand_of(weight)), SHARD_BFLOAT16);
    return NULL;
}

/* A thread that ends with the mode on leaves no copy, and not with one that another has used since. */
START_TEST(copies_go_with_their_thread)
{
    shard_device *device = shard_device_open(NULL);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_full(MATRIX, 1.5, .requires_grad = true);
        ck_assert_double_eq(value_at(weight, 0), 1.5);
        int64_t before = shard_get_memory_stats(device).current;
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, use_in_thread, weight), 0);
        pthread_join(thread, NULL);
        ck_assert_int_eq(shard_get_memory_stats(device).current, before);
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        {
            operand_of(weight);
            ck_assert_int_eq(pthread_create(&thread, NULL, use_in_thread, weight), 0); /* takes it over */
            pthread_join(thread, NULL);
            ck_assert_int_eq(shard_get_memory_stats(device).current, before);
            ck_assert_double_eq(value_at(operand_of(weight), 29), 1.5);
        }
        ck_assert_int_eq(shard_get_memory_stats(device).current, before);
    }
}
END_TEST

/* Two moves, after which the leaf may be where its copy was made, in memory of that version. */
START_TEST(copies_follow_moves)
{
    enum { MANY = 32 };
    shard_storage *storage[MANY], *between = shard_storage_make(shard_device_open(NULL), 30 * sizeof(float));
    SHARD_SCOPE SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        shard_tensor *weight = shard_full(MATRIX, 1.5, .requires_grad = true);
        check_ok(shard_tensor_move(weight, shard_storage_make(shard_tensor_device(weight), 30 * sizeof(float)), 0));
        shard_storage_unref(weight->storage); /* its maker's share */
        ck_assert_double_eq(value_at(operand_of(weight), 7), 1.5);
        uintptr_t address = (uintptr_t)weight->storage;
        uint64_t version = shard_tensor_version(weight);
        for (int i = 0; i < MANY; i++)
            storage[i] = shard_storage_make(shard_tensor_device(weight), 30 * sizeof(float));
        for (int i = 0; i < MANY; i++) /* then the allocator gives again what it gets last */
            shard_storage_unref(storage[i]);
        check_ok(shard_tensor_move(weight, between, 0));
        shard_storage *pick = NULL;
        for (int i = 0; i < MANY; i++) {
            storage[i] = shard_storage_make(shard_tensor_device(weight), 30 * sizeof(float));
            pick = !pick || (uintptr_t)storage[i] == address ? storage[i] : pick;
        }
        float twos[30];
        for (int i = 0; i < 30; i++)
            twos[i] = 2;
        check_ok(shard_copy_from_host(weight, twos, sizeof twos));
        check_ok(shard_tensor_move(weight, pick, 0));
        weight->storage->version -= shard_tensor_version(weight) - version;
        ck_assert_double_eq(value_at(operand_of(weight), 7), 2);
        for (int i = 0; i < MANY; i++)
            shard_storage_unref(storage[i]);
    }
    shard_storage_unref(between);
}
END_TEST

/* A step between two forwards of one scope. */
START_TEST(follows_a_step)
{
    shard_module *layer = shard_nn_linear(1, 1, .bias = false);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(layer), .lr = 0.5);
    SHARD_SCOPE SHARD_AUTOCAST(SHARD_BFLOAT16)
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(1, 1)), *weight = shard_module_tensor(layer, "weight");
        float first = 1;
        check_ok(shard_copy_from_host(weight, &first, sizeof first));
        for (int i = 0; i < 3; i++) {
            shard_tensor *y = shard_forward(layer, x);
            ck_assert_double_eq(shard_item(y), 1 - 0.5 * i);
            check_ok(shard_backward(shard_sum(y)));
            check_ok(shard_step(sgd));
        }
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(layer);
}
END_TEST

/* ---- gradients of float32 leaves ---- */

/* A bias that is added after the product, of a single row too. */
START_TEST(adds_a_bias)
{
    for (int ndim = 1; ndim < 3; ndim++)
        SHARD_SCOPE
        {
            shard_shape shape = ndim == 1 ? SHARD_SHAPE(5) : SHARD_SHAPE(257, 5);
            shard_tensor *y = shard_zeros(shape, .dtype = modes[_i], .requires_grad = true);
            shard_tensor *bias = shard_full(SHARD_SHAPE(5), 1.5, .requires_grad = true), *sum = NULL;
            SHARD_AUTOCAST(modes[_i])
                sum = shard_add_bias(y, bias);
            ck_assert_int_eq(shard_tensor_dtype(sum), modes[_i]);
            ck_assert_double_eq(value_at(sum, 4), 1.5);
            check_ok(shard_backward(shard_sum(shard_cast(sum, SHARD_FLOAT32))));
            ck_assert_int_eq(shard_tensor_dtype(shard_grad(bias)), SHARD_FLOAT32);
            ck_assert_double_eq(value_at(shard_grad(bias), 4), ndim == 1 ? 1 : 257); /* bfloat16 has 256 and 258 */
        }
}
END_TEST

/* 1 + 1024 / 1024: in 16 bits it would stay 1. */
START_TEST(accumulates_in_float32)
{
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_ones(SHARD_SHAPE(1, 1), .requires_grad = true);
        shard_tensor *bias = shard_ones(SHARD_SHAPE(1), .requires_grad = true);
        shard_tensor *filter = shard_ones(SHARD_SHAPE(1, 1, 1, 1), .requires_grad = true);
        for (int i = 0; i <= 1024; i++)
            SHARD_SCOPE
            {
                shard_tensor *dy = shard_full(SHARD_SHAPE(1, 1), i == 0 ? 1.0 : 0x1p-10, .dtype = modes[_i]);
                shard_tensor *y = NULL, *pixel = NULL;
                SHARD_AUTOCAST(modes[_i])
                {
                    y = shard_linear(shard_ones(SHARD_SHAPE(1, 1)), weight, bias);
                    pixel = shard_conv2d(shard_ones(SHARD_SHAPE(1, 1, 1, 1)), filter, NULL);
                }
                check_ok(shard_backward_from(y, dy));
                check_ok(shard_backward_from(pixel, shard_reshape(dy, SHARD_SHAPE(1, 1, 1, 1))));
            }
        ck_assert_double_eq(shard_item(shard_grad(weight)), 2);
        ck_assert_double_eq(shard_item(shard_grad(bias)), 2);
        ck_assert_double_eq(shard_item(shard_grad(filter)), 2);
    }
}
END_TEST

/* Used twice in one forward: both uses share the copy, and their gradients add up in
 * float32; freed records of one do not harm the other. */
START_TEST(shares_a_weight)
{
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_ones(SHARD_SHAPE(1, 1), .requires_grad = true);
        SHARD_AUTOCAST(SHARD_BFLOAT16)
        {
            shard_tensor *a = shard_linear(shard_full(SHARD_SHAPE(1, 1), 256.0), weight, NULL);
            shard_tensor *b = shard_linear(shard_ones(SHARD_SHAPE(1, 1)), weight, NULL);
            check_ok(shard_backward(shard_sum(shard_add(a, b))));
            ck_assert_double_eq(shard_item(shard_grad(weight)), 257); /* which bfloat16 has not */
            check_ok(shard_backward(shard_sum(shard_linear(shard_ones(SHARD_SHAPE(1, 1)), weight, NULL))));
            ck_assert_double_eq(shard_item(shard_grad(weight)), 258);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("autocast_leaves");
    TCase *tcase = test_case(suite, "autocast_leaves");
    tcase_add_test(tcase, copies_are_kept);
    tcase_add_test(tcase, copies_go_with_their_leaves);
    tcase_add_test(tcase, copies_go_with_their_thread);
    tcase_add_test(tcase, copies_follow_moves);
    tcase_add_test(tcase, follows_a_step);
    tcase_add_loop_test(tcase, adds_a_bias, 0, 2);
    tcase_add_loop_test(tcase, accumulates_in_float32, 0, 2);
    tcase_add_test(tcase, shares_a_weight);
    return test_run(suite);
}
