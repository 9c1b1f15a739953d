/* The record and the walk back over it. */
#include "support/gradcheck.h"
#include "support/kernels.h"
#include "support/ranks.h"

#include "autograd/autograd.h"

#include <pthread.h>

static int64_t in_use(void)
{
    return shard_get_memory_stats(shard_device_open(NULL)).current;
}

static shard_tensor *leaf(double value)
{
    return shard_full(SHARD_SHAPE(2), value, .dtype = SHARD_FLOAT64, .requires_grad = true);
}

static shard_tensor *ones(void)
{
    return shard_ones(SHARD_SHAPE(2), .dtype = SHARD_FLOAT64);
}

static void check_gradient(shard_tensor *of, double expected)
{
    ck_assert_msg(shard_grad(of) != NULL, "no gradient, where %g was expected", expected);
    check_tensor("gradient", shard_grad(of), (double[]){expected, expected}, 1e-15);
}

/* ---- shapes of records ---- */

START_TEST(adds_up_all_paths)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = leaf(5);
        shard_tensor *square = shard_mul(x, x), *product = shard_mul(square, y);
        shard_tensor *z = shard_add(shard_add(product, square), shard_scale(shard_mul(product, product), 0.5));
        check_ok(shard_backward_from(z, ones()));
        /* z = x^2 y + x^2 + x^4 y^2 / 2 */
        check_gradient(x, 2 * 3 * 5 + 2 * 3 + 2 * 27 * 25);
        check_gradient(y, 9 + 81 * 5);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* The gradient of a leaf with respect to itself is added to its own, also while nothing is recorded. */
START_TEST(begins_at_a_leaf)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *dy = ones(), *scalar = shard_full(SHARD_SCALAR, 2.0, .requires_grad = true);
        check_ok(shard_backward_from(x, dy));
        SHARD_NO_GRAD check_ok(shard_backward_from(x, dy));
        check_ok(shard_backward_from(shard_mul(x, x), dy));
        check_gradient(x, 8);
        check_tensor("dy", dy, (double[]){1, 1}, 0);
        check_ok(shard_backward(scalar));
        ck_assert_double_eq(shard_item(shard_grad(scalar)), 1.0);
        shard_set_requires_grad(scalar, false);
        ck_assert_int_ne(shard_backward(scalar), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "shard_backward*depend*");
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* A leaf that was frozen after the forward gets no gradient, and keeps the one that it had. */
START_TEST(leaves_out_what_was_frozen)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = leaf(2), *z = shard_mul(shard_mul(x, y), y), *sum = shard_add(x, x);
        check_ok(shard_backward_from(shard_scale(x, 5), ones()));
        shard_set_requires_grad(x, false);
        check_ok(shard_backward_from(z, ones()));
        check_ok(shard_backward_from(sum, ones()));
        check_gradient(x, 5);
        check_gradient(y, 12);
        shard_set_requires_grad(x, true);
        check_ok(shard_backward_from(shard_mul(x, y), ones()));
        check_gradient(x, 7);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* A gradient that is handed on to two may be overwritten by neither. */
START_TEST(keeps_shared_gradients_apart)
{
    SHARD_SCOPE {
        shard_tensor *a = leaf(1), *b = leaf(1), *c = leaf(1), *dy = ones();
        shard_tensor *sum = shard_add(shard_scale(a, 2), shard_scale(b, 3));
        shard_tensor *z = shard_add(shard_add(sum, shard_reshape(shard_scale(c, 5), SHARD_SHAPE(2))), a);
        check_ok(shard_backward_from(z, dy));
        check_gradient(a, 3);
        check_gradient(b, 3);
        check_gradient(c, 5);
        check_tensor("dy", dy, (double[]){1, 1}, 0);
        ck_assert_int_eq(shard_backward_from(shard_add(a, b), dy), SHARD_OK);
        ck_assert_ptr_ne(shard_data(shard_grad(a)), shard_data(shard_grad(b)));
        ck_assert_ptr_ne(shard_data(shard_grad(a)), shard_data(dy));
    }
}
END_TEST

/* What backward is given is not written to, even where it could be in place. */
START_TEST(leaves_the_given_gradient_alone)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(2), *dy = ones();
        check_ok(shard_backward_from(shard_scale(shard_dropout(shard_scale(x, 3), 0), 4), dy));
        check_tensor("dy", dy, (double[]){1, 1}, 0);
        check_ok(shard_backward_from(shard_reshape(shard_scale(x, 3), SHARD_SHAPE(2, 1)), shard_reshape(dy, SHARD_SHAPE(2, 1))));
        check_tensor("dy", dy, (double[]){1, 1}, 0);
        check_gradient(x, 15);
    }
}
END_TEST

START_TEST(outlives_what_it_was_made_of)
{
    shard_tensor *z = NULL, *x = leaf(3);
    SHARD_SCOPE {
        shard_tensor *y = leaf(2), *product = shard_mul(x, y);
        z = shard_keep(shard_mul(product, product));
    }
    SHARD_SCOPE
        check_ok(shard_backward_from(z, ones()));
    check_gradient(x, 2 * 3 * 4);
    shard_release(z);
    shard_release(x);
    ck_assert_int_eq(in_use(), 0);
    SHARD_SCOPE {
        shard_tensor *y = leaf(2), *product = shard_mul(y, y);
        shard_release(y);
        check_ok(shard_backward_from(shard_scale(product, 2), ones()));
    }
}
END_TEST

/* The gradient of a small part of a large tensor, which stays when the large one is freed. */
START_TEST(keeps_no_large_memory)
{
    shard_tensor *x = leaf(3);
    SHARD_SCOPE {
        shard_tensor *parts[] = {x, shard_zeros(SHARD_SHAPE(10000), .dtype = SHARD_FLOAT64)};
        check_ok(shard_backward(shard_sum(shard_scale(shard_concatenate(parts, 2, 0), 5))));
    }
    check_gradient(x, 5);
    ck_assert_int_lt(in_use(), 10000);
    shard_release(x);
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

static void *deep(void *backward)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(1), *y = x;
        for (int i = 0; i < 10000; i++) {
            shard_tensor *next = shard_add(y, x);
            if (y != x)
                shard_release(y);
            y = next;
        }
        if (*(bool *)backward) {
            check_ok(shard_backward_from(y, ones()));
            check_gradient(x, 10001);
        }
    }
    return NULL;
}

/* On a stack that has no room for a frame a node. */
START_TEST(goes_deep)
{
    for (int backward = 0; backward < 2; backward++) {
        bool option = backward;
        pthread_t thread;
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        ck_assert_int_eq(pthread_attr_setstacksize(&attributes, (size_t)256 << 10), 0);
        ck_assert_int_eq(pthread_create(&thread, &attributes, deep, &option), 0);
        pthread_join(thread, NULL);
        pthread_attr_destroy(&attributes);
        ck_assert_int_eq(in_use(), 0);
    }
}
END_TEST

/* ---- modes ---- */

START_TEST(records_only_what_needs_it)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(1), *constant = ones();
        ck_assert(shard_grad_enabled());
        SHARD_NO_GRAD {
            ck_assert(!shard_grad_enabled());
            SHARD_NO_GRAD
                ck_assert(!shard_grad_enabled());
            ck_assert(!shard_grad_enabled());
            ck_assert(!shard_requires_grad(shard_scale(x, 2)));
        }
        ck_assert(shard_grad_enabled());
        ck_assert(shard_requires_grad(shard_scale(x, 2)));
        ck_assert(!shard_requires_grad(shard_scale(constant, 2)));
        ck_assert(!shard_requires_grad(shard_detach(shard_scale(x, 2))));
        shard_tensor *y = shard_mul(shard_detach(shard_scale(x, 2)), x);
        check_ok(shard_backward_from(y, ones()));
        check_gradient(x, 2);
        ck_assert_ptr_null(shard_grad(constant));
        ck_assert_ptr_null(shard_grad(y));
        ck_assert(shard_set_grad_enabled(false));
        ck_assert(!shard_set_grad_enabled(true));
    }
}
END_TEST

static bool leave_no_grad(void)
{
    SHARD_NO_GRAD
        return shard_grad_enabled();
    return true;
}

START_TEST(restores_the_mode)
{
    ck_assert(!leave_no_grad());
    ck_assert(shard_grad_enabled());
    SHARD_NO_GRAD
        break;
    ck_assert(shard_grad_enabled());
}
END_TEST

START_TEST(accumulates_and_forgets)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(1);
        check_ok(shard_backward_from(shard_scale(x, 2), ones()));
        const void *memory = shard_data(shard_grad(x));
        check_ok(shard_backward_from(shard_scale(x, 3), ones()));
        check_gradient(x, 5);
        shard_zero_grad(x);
        ck_assert_ptr_null(shard_grad(x));
        check_ok(shard_backward_from(shard_scale(x, 7), ones()));
        check_gradient(x, 7);
        ck_assert_ptr_eq(shard_data(shard_grad(x)), memory);
        shard_zero_grad(NULL);
        shard_set_requires_grad(x, false);
        ck_assert(!shard_requires_grad(shard_scale(x, 2)));
    }
}
END_TEST

START_TEST(takes_the_gradient_of_a_scalar)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3);
        check_ok(shard_backward(shard_mean(shard_mul(x, x))));
        check_gradient(x, 3);
    }
}
END_TEST

/* ---- those that wait for gradients ---- */

static void count(shard_tensor *leaf, void *context)
{
    (void)leaf;
    ++*(int *)context;
}

/* A leaf is ready once, after the last of its uses. */
START_TEST(says_when_a_leaf_is_ready)
{
    int ready = 0;
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = leaf(2);
        x->leaf->grad_ready = count;
        x->leaf->grad_ready_context = &ready;
        for (int turn = 1; turn <= 3; turn++) {
            check_ok(shard_backward_from(shard_mul(shard_add(shard_mul(x, y), x), x), ones()));
            ck_assert_int_eq(ready, turn);
        }
        check_ok(shard_backward_from(shard_scale(y, 2), ones()));
        ck_assert_int_eq(ready, 3);
    }
}
END_TEST

static int ends;

static shard_status at_end(void *context)
{
    ck_assert_int_eq(*(int *)context, 1);
    ends++;
    return SHARD_OK;
}

static void ask_for_the_end(shard_tensor *leaf, void *context)
{
    (void)leaf;
    check_ok(shard_at_backward_end(at_end, context, false));
}

START_TEST(calls_once_at_the_end)
{
    int one = 1;
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = leaf(2);
        x->leaf->grad_ready = y->leaf->grad_ready = ask_for_the_end;
        x->leaf->grad_ready_context = y->leaf->grad_ready_context = &one;
        check_ok(shard_backward_from(shard_mul(x, y), ones()));
        ck_assert_int_eq(ends, 1);
    }
    ck_assert_int_ne(shard_at_backward_end(at_end, &one, false), SHARD_OK);
    check_error(SHARD_ERROR_INTERNAL, "shard_at_backward_end*outside*");
}
END_TEST

static void backward_again(shard_tensor *leaf, void *context)
{
    (void)leaf;
    ck_assert_int_ne(shard_backward_from(context, context), SHARD_OK);
}

/* ---- errors ---- */

START_TEST(refuses)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = shard_mul(x, x);
        ck_assert_int_ne(shard_backward(y), SHARD_OK);
        check_error(SHARD_ERROR_SHAPE, "shard_backward: *one element*");
        ck_assert_int_ne(shard_backward_from(y, shard_ones(SHARD_SHAPE(2))), SHARD_OK);
        check_error(SHARD_ERROR_SHAPE, "shard_backward_from: *shard_cast*");
        ck_assert_int_ne(shard_backward_from(y, shard_ones(SHARD_SHAPE(3), .dtype = SHARD_FLOAT64)), SHARD_OK);
        check_error(SHARD_ERROR_SHAPE, "shard_backward_from: *shape [[]3]*");
        if (on_other_device()) {
            shard_tensor *there = shard_to_device(ones(), shard_device_open("cpu"));
            ck_assert_int_eq(shard_backward_from(y, there), SHARD_ERROR_SHAPE);
            check_error(SHARD_ERROR_SHAPE, "shard_backward_from: a gradient on cpu for a tensor on *; one device is needed*");
        }
        ck_assert_int_ne(shard_backward_from(ones(), ones()), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "shard_backward*depend*");
        ck_assert_int_ne(shard_backward(NULL), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "shard_backward: *loss*");
        int64_t parameters = shard_get_memory_by_kind(shard_device_of(y), SHARD_MEMORY_PARAMETERS).current;
        shard_set_requires_grad(y, false);
        check_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: *leaf*");
        ck_assert_int_eq(shard_get_memory_by_kind(shard_device_of(y), SHARD_MEMORY_PARAMETERS).current, parameters);
        shard_set_requires_grad(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT32), true);
        check_error(SHARD_ERROR_ARGUMENT, "shard_set_requires_grad: int32*");
        ck_assert_ptr_null(shard_zeros(SHARD_SHAPE(2), .dtype = SHARD_INT64, .requires_grad = true));
        check_error(SHARD_ERROR_ARGUMENT, "*int64 has no gradient*");
        x->leaf->grad_ready = backward_again;
        x->leaf->grad_ready_context = y;
        shard_backward_from(shard_scale(x, 2), ones());
        check_error(SHARD_ERROR_ARGUMENT, "shard_backward*within*");
    }
}
END_TEST

/* After a backward that failed half way the next one is whole. */
START_TEST(recovers_from_an_error)
{
    int ready = 0;
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = leaf(2);
        x->leaf->grad_ready = count;
        x->leaf->grad_ready_context = &ready;
        shard_tensor *product = shard_mul(x, y), *z = shard_add(shard_mul(product, product), x);
        check_ok(shard_copy_from_host(y, (double[]){2, 2}, 2 * sizeof(double)));
        ck_assert_int_ne(shard_backward_from(z, ones()), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "backward of mul: *written to*");
        shard_zero_grad(x);
        ready = 0;
        check_ok(shard_backward_from(shard_add(shard_mul(x, y), x), ones()));
        check_gradient(x, 3);
        check_gradient(y, 3);
        ck_assert_int_eq(ready, 1);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* A tensor has had one of its gradients when the backward fails: the next backward, from another result of it, begins anew. */
START_TEST(forgets_half_a_gradient)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *y = leaf(2), *shared = shard_scale(x, 2), *other = shard_scale(shared, 5);
        shard_tensor *stale = shard_mul(shared, y), *failing = shard_add(stale, shard_scale(shared, 7));
        check_ok(shard_copy_from_host(y, (double[]){2, 2}, 2 * sizeof(double)));
        ck_assert_int_ne(shard_backward_from(failing, ones()), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "backward of mul: *written to*");
        check_ok(shard_backward_from(other, ones()));
        check_gradient(x, 10);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

START_TEST(walks_a_record_once)
{
    SHARD_SCOPE {
        shard_tensor *x = leaf(3), *shared = shard_mul(x, x), *a = shard_scale(shared, 2), *b = shard_scale(shared, 3);
        check_ok(shard_backward_from(a, ones()));
        ck_assert_int_ne(shard_backward_from(b, ones()), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "shard_backward: *mul*freed*");
        check_gradient(x, 12);
    }
}
END_TEST

static shard_tensor *sum_of_row(shard_tensor *x)
{
    return shard_sum_dim(x, 0, false);
}

static shard_tensor *mean_of_row(shard_tensor *x)
{
    return shard_mean_dim(x, 0, false);
}

static shard_tensor *largest(shard_tensor *x)
{
    return shard_max_dim(x, 0, false, NULL);
}

static shard_tensor *smallest(shard_tensor *x)
{
    return shard_min_dim(x, 0, false, NULL);
}

/* Functions that share a backward are named in errors all the same. */
START_TEST(names_the_function)
{
    static const struct {
        shard_tensor *(*function)(shard_tensor *x);
        const char *text;
    } cases[] = {
        {shard_tanh, "shard_backward: the record of tanh was freed *"},
        {shard_gelu_tanh, "shard_backward: the record of gelu_tanh was freed *"},
        {shard_log1p, "shard_backward: the record of log1p was freed *"},
        {shard_sum, "shard_backward: the record of sum was freed *"},
        {shard_mean, "shard_backward: the record of mean was freed *"},
        {sum_of_row, "shard_backward: the record of sum_dim was freed *"},
        {mean_of_row, "shard_backward: the record of mean_dim was freed *"},
        {shard_softmax, "shard_backward: the record of softmax was freed *"},
        {shard_log_softmax, "shard_backward: the record of log_softmax was freed *"},
        {largest, "shard_backward: the record of max_dim was freed *"},
        {smallest, "shard_backward: the record of min_dim was freed *"},
        {shard_neg, "shard_backward: the record of neg was freed *"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        SHARD_SCOPE {
            shard_tensor *y = cases[i].function(leaf(3)), *dy = shard_ones(shard_tensor_shape(y), .dtype = SHARD_FLOAT64);
            check_ok(shard_backward_from(y, dy));
            ck_assert_int_ne(shard_backward_from(y, dy), SHARD_OK);
            check_error(SHARD_ERROR_ARGUMENT, cases[i].text);
        }
}
END_TEST

/* A gradient that is itself an operand, or the gradient that the next backward begins with. */
START_TEST(reads_a_gradient_that_it_adds_to)
{
    SHARD_SCOPE {
        const double weights[] = {1, 0.5, 2, -1};
        shard_tensor *x = shard_from_host((double[]){1, 2, 3, 4}, SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *w = shard_from_host(weights, SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *square = shard_ones(SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64), *g = NULL;
        check_ok(shard_backward_from(shard_linear(x, w, NULL), square));
        g = shard_grad(w);
        check_tensor("dw", g, (double[]){4, 6, 4, 6}, 0);
        check_ok(shard_backward_from(shard_linear(g, w, NULL), square)); /* + square^T g */
        check_tensor("dw", g, (double[]){12, 18, 12, 18}, 0);
        check_ok(shard_backward_from(shard_matmul(g, w), square)); /* + g^T square */
        check_tensor("dw", g, (double[]){36, 42, 48, 54}, 0);
        shard_zero_grad(x);
        check_ok(shard_backward_from(shard_linear(x, w, NULL), g)); /* + g^T x */
        check_tensor("dw", g, (double[]){36 + 36 + 3 * 48, 42 + 72 + 4 * 48, 48 + 42 + 3 * 54, 54 + 84 + 4 * 54}, 0);
        check_tensor("dx", shard_grad(x), (double[]){36 + 84, 18 - 42, 48 + 108, 24 - 54}, 0);
        shard_tensor *v = leaf(2);
        check_ok(shard_backward_from(shard_scale(v, 3), ones()));
        check_ok(shard_backward_from(shard_add(v, leaf(1)), shard_grad(v)));
        check_gradient(v, 6);
    }
    ck_assert_int_eq(in_use(), 0);
}
END_TEST

/* A gradient that an operation has saved, and to which a later one of the same backward adds in place. */
START_TEST(notices_a_saved_gradient)
{
    SHARD_SCOPE {
        shard_tensor *w = shard_ones(SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *v = shard_ones(SHARD_SHAPE(2, 2), .dtype = SHARD_FLOAT64, .requires_grad = true);
        shard_tensor *x = shard_ones(SHARD_SHAPE(3, 2), .dtype = SHARD_FLOAT64);
        check_ok(shard_backward(shard_sum(shard_linear(x, w, NULL))));
        shard_tensor *product = shard_mul(v, shard_grad(w)), *y = shard_linear(x, w, NULL);
        ck_assert_int_ne(shard_backward(shard_add(shard_sum(product), shard_sum(y))), SHARD_OK);
        check_error(SHARD_ERROR_ARGUMENT, "backward of *: *written to*");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("backward");
    TCase *records = test_case(suite, "records");
    tcase_add_test(records, adds_up_all_paths);
    tcase_add_test(records, begins_at_a_leaf);
    tcase_add_test(records, leaves_out_what_was_frozen);
    tcase_add_test(records, notices_a_saved_gradient);
    tcase_add_test(records, reads_a_gradient_that_it_adds_to);
    tcase_add_test(records, keeps_shared_gradients_apart);
    tcase_add_test(records, leaves_the_given_gradient_alone);
    tcase_add_test(records, outlives_what_it_was_made_of);
    tcase_add_test(records, keeps_no_large_memory);
    tcase_add_test(records, goes_deep);
    tcase_add_test(records, walks_a_record_once);
    TCase *modes = test_case(suite, "modes");
    tcase_add_test(modes, records_only_what_needs_it);
    tcase_add_test(modes, restores_the_mode);
    tcase_add_test(modes, accumulates_and_forgets);
    tcase_add_test(modes, takes_the_gradient_of_a_scalar);
    TCase *waiting = test_case(suite, "waiting");
    tcase_add_test(waiting, says_when_a_leaf_is_ready);
    tcase_add_test(waiting, calls_once_at_the_end);
    TCase *errors = test_case(suite, "errors");
    tcase_add_test(errors, refuses);
    tcase_add_test(errors, names_the_function);
    tcase_add_test(errors, recovers_from_an_error);
    tcase_add_test(errors, forgets_half_a_gradient);
    return test_run(suite);
}
