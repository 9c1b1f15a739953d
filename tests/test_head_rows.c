/* Gradients that are taken by rows (shard_take_gradient_rows), and those of several batches. */
#include "support/head.h"
#include "support/loss.h"
#include "support/threads.h"

#include "base/error.h"
#include "device/head.h"
#include "tensor/tensor.h"

#include <shard/shard.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct taken {
    double sum[HEAD_CLASSES * HEAD_IN];
    atomic_int times[HEAD_CLASSES];
    int64_t columns;
    shard_dtype dtype;
    atomic_int runs, fails_at; /* the run that fails, counted from 1; 0: none */
} taken;

/* Called by several threads at a time. */
static shard_status take(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    taken *t = context;
    ck_assert_ptr_eq(device, shard_default_device());
    if (atomic_fetch_add(&t->runs, 1) + 1 == atomic_load(&t->fails_at))
        return SHARD_ERROR_IO;
    char host[HEAD_IN * sizeof(double)];
    size_t size = shard_dtype_size(t->dtype);
    for (int64_t i = 0; i < count; i++) {
        atomic_fetch_add(&t->times[first + i], 1);
        const char *row = (char *)gradient + (size_t)(i * t->columns) * size;
        if (device->ops->copy_out(device, host, row, (size_t)t->columns * size) != SHARD_OK)
            return SHARD_ERROR_DEVICE;
        for (int64_t k = 0; k < t->columns; k++)
            t->sum[(first + i) * t->columns + k] =
                size == sizeof(double) ? ((double *)(void *)host)[k] : (double)((float *)(void *)host)[k];
    }
    return SHARD_OK;
}

static void take_all(shard_tensor *gradient, taken *t)
{
    memset(t, 0, sizeof *t);
    t->columns = HEAD_IN;
    t->dtype = gradient->dtype == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32;
    check_ok(shard_take_gradient_rows(gradient, take, t));
}

static void check_taken(const taken *t, const head_result *expected, const head_call *c, int d, bool deferred)
{
    int64_t rows = c->weight->shape.dim[0], passed = 0;
    double rounded[HEAD_CLASSES * HEAD_IN];
    for (int64_t i = 0; i < rows * HEAD_IN; i++)
        rounded[i] = round_to(head_dtypes[d].weight, t->sum[i]);
    head_check_bits("rows", rounded, expected->dweight, rows * HEAD_IN, c->form, d);
    for (int64_t i = 0; i < rows; i++) {
        if (atomic_load(&t->times[i]) > 1)
            ck_abort_msg("row %lld was passed %d times", (long long)i, atomic_load(&t->times[i]));
        passed += atomic_load(&t->times[i]);
    }
    ck_assert_int_eq(passed, c->softmax.sample && deferred ? shard_numel(c->softmax.sample) : rows);
}

static void rows_add_up(shard_group *world, void *context)
{
    (void)context;
    static head_result expected, found;
    static taken t;
    const shard_head_backward_options deferred = {sizeof deferred, false, true};
    for (int form = 0; form < HEAD_FORMS; form++)
        for (int d = 0; d < HEAD_DTYPES; d++)
            SHARD_SCOPE
            {
                head_call c;
                head_make(&c, (head_form)form, d, world);
                head_record(&c, 1, &expected);
                head_run(&c, world, &deferred, &found); /* reads the values of deferred gradients */
                head_check_results(&found, &expected, &c, d, shard_group_size(world));
                shard_head_saved *saved;
                shard_tensor *loss = head_forward(&c, c.target, &saved, &found), *dweight, *dbias, *whole;
                check_ok(shard_head_backward(saved, head_dy(loss), NULL, &dweight, &dbias, .deferred = true));
                check_ok(shard_head_backward(saved, head_dy(loss), NULL, &whole, NULL));
                shard_head_saved_destroy(saved);
                take_all(dweight, &t);
                check_taken(&t, &expected, &c, d, true);
                if (dbias)
                    read_values(dbias, found.dbias);
                head_check_bits("dbias", found.dbias, expected.dbias, HEAD_CLASSES, c.form, d);
                take_all(dweight, &t); /* again: nothing was kept */
                check_taken(&t, &expected, &c, d, true);
                take_all(whole, &t); /* in memory */
                check_taken(&t, &expected, &c, d, false);
            }
}

START_TEST(test_rows_add_up)
{
    run_ranks(_i + 1, rows_add_up);
}
END_TEST

/* Of shard_grad, in memory or deferred. */
START_TEST(test_gradient_of_record)
{
    static head_result expected;
    static taken t;
    for (int deferred = 0; deferred < 2; deferred++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, NO_BIAS, 0, NULL);
            head_record(&c, 1, &expected);
            head_set_requires(&c, true);
            c.weight->leaf->defers_grad = deferred;
            shard_tensor *loss = shard_linear_cross_entropy_with(c.x, c.weight, c.bias, c.target, &c.softmax, NULL);
            check_ok(shard_backward_from(loss, head_dy(loss)));
            take_all(shard_grad(c.weight), &t);
            ck_assert_int_eq(shard_grad(c.weight)->storage->memory == NULL, deferred);
            check_taken(&t, &expected, &c, 0, deferred);
        }
}
END_TEST

/* The gradient of the weight of a new call. */
static shard_tensor *make_gradient(head_call *c, bool deferred)
{
    static head_result r;
    shard_head_saved *saved;
    head_make(c, NO_BIAS, 0, NULL);
    shard_tensor *loss = head_forward(c, c->target, &saved, &r), *dweight;
    check_ok(shard_head_backward(saved, head_dy(loss), NULL, &dweight, NULL, .deferred = deferred));
    shard_head_saved_destroy(saved);
    return dweight;
}

START_TEST(test_failing_rows)
{
    static taken t;
    for (int deferred = 0; deferred < 2; deferred++)
        SHARD_SCOPE
        {
            head_call c;
            shard_tensor *dweight = make_gradient(&c, deferred);
            take_all(dweight, &t);
            int runs = atomic_load(&t.runs);
            memset(&t, 0, sizeof t);
            t.columns = HEAD_IN;
            t.fails_at = runs;
            ck_assert_int_eq(shard_take_gradient_rows(dweight, take, &t), SHARD_ERROR_IO);
            check_error(SHARD_ERROR_IO, "shard_take_gradient_rows: *");
            ck_assert_int_eq(shard_take_gradient_rows(c.target, take, &t), SHARD_ERROR_SHAPE);
            check_error(SHARD_ERROR_SHAPE, "shard_take_gradient_rows: * matrix *");
        }
}
END_TEST

/* Of the threads of a sweep: the text of one that is not the caller's. */
typedef struct failing {
    pthread_t caller;
    atomic_int others; /* calls by other threads */
    bool fails;
} failing;

static shard_status take_or_fail(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    failing *f = context;
    (void)device, (void)count, (void)gradient;
    ck_assert_int_eq(shard_last_status(), SHARD_OK);
    if (pthread_equal(pthread_self(), f->caller))
        return SHARD_OK;
    atomic_fetch_add(&f->others, 1);
    return f->fails ? shard_error(SHARD_ERROR_IO, "no room for the rows from %d on", (int)first) : SHARD_OK;
}

START_TEST(test_failing_thread)
{
    int before = set_threads(3);
    shard_head_tile = 16;
    SHARD_SCOPE
    {
        head_call c;
        shard_tensor *dweight = make_gradient(&c, true);
        for (int pass = 0; pass < 2; pass++) {
            failing f = {.caller = pthread_self(), .fails = pass == 0};
            shard_status status = shard_take_gradient_rows(dweight, take_or_fail, &f);
#ifdef _OPENMP
            if (shard_default_device()->ops->host_memory)
                ck_assert_int_gt(atomic_load(&f.others), 0);
#endif
            if (f.fails && atomic_load(&f.others) > 0)
                check_error(status, "no room for the rows from *");
            else
                check_ok(status);
        }
    }
    shard_head_tile = 0;
    set_threads(before);
}
END_TEST

/* ---- several batches ---- */

static void batches_add_up(shard_group *world, void *context)
{
    (void)context;
    static head_result expected, found;
    static taken t;
    for (int form = 0; form < HEAD_FORMS; form++)
        for (int d = 0; d < HEAD_DTYPES; d++)
            for (int deferred = 0; deferred < 2; deferred++)
                SHARD_SCOPE
                {
                    if (form == SAMPLE || form == SAMPLE_MARGIN)
                        continue; /* the second batch has other labels */
                    head_call c;
                    head_make(&c, (head_form)form, d, world);
                    shard_make_leaf(c.weight)->defers_grad = deferred;
                    if (c.bias)
                        shard_make_leaf(c.bias)->defers_grad = deferred;
                    head_record(&c, 2, &expected);
                    shard_tensor *dweight = NULL, *dbias = NULL, *first = NULL;
                    memset(&found, 0, sizeof found);
                    for (int i = 0; i < 2; i++) {
                        shard_head_saved *saved;
                        shard_tensor *loss = head_forward(&c, i ? head_target(c.form, i) : c.target, &saved, &found);
                        check_ok(shard_head_backward(saved, head_dy(loss), NULL, &dweight, &dbias, .accumulate = true,
                                                     .deferred = deferred));
                        shard_head_saved_destroy(saved);
                        ck_assert(i == 0 || dweight == first);
                        first = dweight;
                    }
                    if (deferred) {
                        ck_assert(!dweight->storage->memory);
                        take_all(dweight, &t);
                        ck_assert(!dweight->storage->memory);
                        check_taken(&t, &expected, &c, d, true);
                    }
                    head_read_parameters(&c, dweight, dbias, &found);
                    head_check_bits("dweight", found.dweight, expected.dweight, HEAD_CLASSES * HEAD_IN, c.form, d);
                    head_check_bits("dbias", found.dbias, expected.dbias, HEAD_CLASSES, c.form, d);
                }
}

START_TEST(test_batches_add_up)
{
    run_ranks(_i + 1, batches_add_up);
}
END_TEST

/* A batch that cannot be deferred, of another weight, is added to the values. */
START_TEST(test_adds_to_other)
{
    static head_result r;
    SHARD_SCOPE
    {
        head_call a, b;
        head_make(&a, NO_BIAS, 0, NULL);
        head_make(&b, CAPPED, 0, NULL);
        const head_call *both[] = {&a, &b};
        shard_tensor *sum = NULL, *each[2];
        for (int i = 0; i < 2; i++) {
            shard_head_saved *saved;
            shard_tensor *dy = head_dy(head_forward(both[i], both[i]->target, &saved, &r));
            check_ok(shard_head_backward(saved, dy, NULL, &each[i], NULL));
            check_ok(shard_head_backward(saved, dy, NULL, &sum, NULL, .accumulate = true, .deferred = true));
            shard_head_saved_destroy(saved);
        }
        ck_assert(sum->storage->memory);
        double found[HEAD_CLASSES * HEAD_IN], expected[2][HEAD_CLASSES * HEAD_IN];
        read_values(sum, found);
        read_values(each[0], expected[0]);
        read_values(each[1], expected[1]);
        for (int i = 0; i < HEAD_CLASSES * HEAD_IN; i++)
            check_number(found[i], expected[0][i] + expected[1][i], 1e-6, "sum", i);
    }
}
END_TEST
static void write_to(shard_tensor *tensor)
{
    double bytes[HEAD_CLASSES * HEAD_IN] = {0};
    check_ok(shard_copy_from_host(tensor, bytes, shard_tensor_bytes(tensor)));
}

/* The gradient has copies of x and the labels, and not of the other operands. */
START_TEST(test_written)
{
    static head_result r;
    static taken t;
    for (int which = 0; which < 5; which++)
        SHARD_SCOPE
        {
            head_call c;
            head_make(&c, PLAIN, 0, NULL);
            shard_tensor *written[] = {c.x, c.target, c.weight, c.bias, c.softmax.weight}, *dweight;
            shard_head_saved *saved;
            shard_tensor *loss = head_forward(&c, c.target, &saved, &r);
            check_ok(shard_head_backward(saved, head_dy(loss), NULL, &dweight, NULL, .deferred = true));
            shard_head_saved_destroy(saved);
            write_to(written[which]);
            if (which < 2) {
                take_all(dweight, &t);
                continue;
            }
            ck_assert_int_eq(shard_take_gradient_rows(dweight, take, &t), SHARD_ERROR_ARGUMENT);
            check_error(SHARD_ERROR_ARGUMENT, "*was written to after*");
        }
}
END_TEST

enum { LARGE_ROWS = 600, LARGE_COLUMNS = 2000 };

static shard_status take_large(void *context, shard_device *device, int64_t first, int64_t count, void *gradient)
{
    return device->ops->copy_out(device, (float *)context + first * LARGE_COLUMNS, gradient,
                                 (size_t)(count * LARGE_COLUMNS) * sizeof(float));
}

/* A gradient in memory that is passed in several runs. */
START_TEST(takes_large_gradients)
{
    size_t bytes = (size_t)LARGE_ROWS * LARGE_COLUMNS * sizeof(float);
    float *found = calloc(1, bytes), *given = malloc(bytes);
    ck_assert(found && given);
    for (int i = 0; i < LARGE_ROWS * LARGE_COLUMNS; i++)
        given[i] = (float)(i % 9973);
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_zeros(SHARD_SHAPE(LARGE_ROWS, LARGE_COLUMNS), .requires_grad = true);
        check_ok(shard_backward_from(shard_scale(weight, 1), shard_from_host(given, SHARD_SHAPE(LARGE_ROWS, LARGE_COLUMNS))));
        check_ok(shard_take_gradient_rows(shard_grad(weight), take_large, found));
    }
    ck_assert_mem_eq(found, given, bytes);
    free(found);
    free(given);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("head_rows");
    TCase *tcase = test_case(suite, "head_rows");
    tcase_add_loop_test(tcase, test_rows_add_up, 0, 3);
    tcase_add_loop_test(tcase, test_batches_add_up, 0, 2);
    tcase_add_test(tcase, test_gradient_of_record);
    tcase_add_test(tcase, test_failing_rows);
    tcase_add_test(tcase, test_failing_thread);
    tcase_add_test(tcase, test_adds_to_other);
    tcase_add_test(tcase, test_written);
    tcase_add_test(tcase, takes_large_gradients);
    return test_run(suite);
}
