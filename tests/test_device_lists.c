/*
 * The entries that take lists: what they make of an item in a long list is, to the bit, what
 * they make of it alone. So how a list is cut into launches and dealt to blocks is right where
 * single items are (tests/test_device_optimizer.c).
 */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

enum { ITEMS = 300, ARRAYS = 5 /* gradient, value, states */, APART = 3 };

/* None, one, some of a span, of a block and of a grid. */
static int64_t size_of(int64_t i)
{
    static const int64_t sizes[] = {1, 31, 0, 1025, 8, 257, 0, 64, 100};
    return i % 60 == 17 || i == ITEMS - 1 ? 33001 : sizes[i % 9];
}

/* Items lie one after the other, so that few are aligned; every eighth is. */
static int64_t start_of(int64_t i)
{
    int64_t start = 0;
    for (int64_t k = 0; k < i; k++) {
        start += size_of(k) + APART;
        start = k % 8 ? start : (start + 7) / 8 * 8;
    }
    return start;
}

typedef struct lists {
    shard_dtype dtype;
    int64_t n;
    void *array[ARRAYS];
    shard_update updates[ITEMS];
} lists;

static lists *lists_new(shard_dtype dtype, const double *factors)
{
    static lists all[2];
    static int next;
    lists *l = &all[next++ % 2];
    *l = (lists){.dtype = dtype, .n = start_of(ITEMS)};
    for (int k = 0; k < ARRAYS; k++)
        l->array[k] = array_noise(l->n, dtype, (uint64_t)k, k < 3 ? -2 : 0.25, 2);
    for (int64_t i = 0; i < ITEMS; i++) {
        size_t at = (size_t)start_of(i) * shard_dtype_size(dtype);
        shard_update *u = &l->updates[i];
        *u = (shard_update){.size = size_of(i),
                            .lr = 0.1 + 0.01 * (double)(i % 5),
                            .weight_decay = i % 3 == 0 ? 0 : 0.02 * (double)(i % 4),
                            .step = 1 + i % 4,
                            .grad_scale = i % 2 ? &factors[i % 3] : NULL,
                            .trust_ratio = i % 5 ? NULL : &factors[i % 4],
                            .gradient = (char *)l->array[0] + at,
                            .value = (char *)l->array[1] + at,
                            .key = (uint64_t)i,
                            .place.first = 7 * i};
        for (int k = 2; k < ARRAYS; k++)
            u->state[k - 2] = (char *)l->array[k] + at;
    }
    return l;
}

static shard_status run_sgd(shard_device *device, int64_t count, const shard_update *updates, shard_dtype dtype)
{
    shard_sgd_arguments options = {0};
    return device->ops->sgd(device, count, updates, &options, shard_update_types_of(dtype));
}
static shard_status run_momentum(shard_device *device, int64_t count, const shard_update *updates, shard_dtype dtype)
{
    shard_sgd_arguments options = {.momentum = 0.9, .dampening = 0.125};
    return device->ops->sgd(device, count, updates, &options, shard_update_types_of(dtype));
}
static shard_status run_adam(shard_device *device, int64_t count, const shard_update *updates, shard_dtype dtype)
{
    shard_adam_arguments options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
    return device->ops->adam(device, count, updates, &options, shard_update_types_of(dtype));
}
static shard_status run_amsgrad(shard_device *device, int64_t count, const shard_update *updates, shard_dtype dtype)
{
    shard_adam_arguments options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .decoupled = true, .amsgrad = true};
    return device->ops->adam(device, count, updates, &options, shard_update_types_of(dtype));
}
static shard_status run_lamb(shard_device *device, int64_t count, const shard_update *updates, shard_dtype dtype)
{
    shard_adam_arguments options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
    return device->ops->lamb_update(device, count, updates, &options, shard_update_types_of(dtype));
}
/* Of 16-bit types: by kernels for several types. */
static shard_status run_at_random(shard_device *device, int64_t count, const shard_update *updates, shard_dtype dtype)
{
    shard_adam_arguments options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
    shard_update_types types = shard_update_types_of(dtype);
    types.stochastic = true;
    return device->ops->adam(device, count, updates, &options, types);
}

static const struct {
    const char *name;
    shard_status (*run)(shard_device *, int64_t count, const shard_update *, shard_dtype);
} steps[] = {
    {"sgd", run_sgd},
    {"momentum", run_momentum},
    {"adam", run_adam},
    {"adamw, amsgrad", run_amsgrad},
    {"adam, rounded at random", run_at_random},
    {"lamb", run_lamb},
};
enum { STEPS = sizeof steps / sizeof *steps };

START_TEST(a_list_is_its_items)
{
    shard_dtype dtype = float_dtypes[_i / STEPS];
    int kind = _i % STEPS;
    double *factors = array_of(4, SHARD_FLOAT64, (double[]){0.5, 1.25, 0.75, 2});
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        lists *whole = lists_new(dtype, factors), *single = lists_new(dtype, factors);
        void *before = array_noise(whole->n, dtype, kind == STEPS - 1 ? 0 : 1, -2, 2); /* of what the step changes */
        ck_assert_int_eq(steps[kind].run(device, 0, NULL, dtype), SHARD_OK);
        ck_assert_int_eq(steps[kind].run(device, ITEMS, whole->updates, dtype), SHARD_OK);
        for (int64_t i = 0; i < ITEMS; i++)
            ck_assert_int_eq(steps[kind].run(device, 1, &single->updates[i], dtype), SHARD_OK);
        ck_assert_int_eq(device->ops->synchronize(device), SHARD_OK);
        for (int64_t i = 0; i < ITEMS && (dtype == SHARD_FLOAT32 || dtype == SHARD_FLOAT64); i++) /* neither leaves an item out */
            for (int64_t k = start_of(i), end = k + size_of(i); k < end; k += 500)
                ck_assert_msg(array_get(whole->array[kind != STEPS - 1], k, dtype) != array_get(before, k, dtype),
                              "%s: %s: item %d, element %d", device->name, steps[kind].name, (int)i, (int)k);
        for (int k = 0; k < ARRAYS; k++) {
            check_same(dtype, whole->n, whole->array[k], single->array[k], steps[kind].name);
            array_free(whole->array[k], whole->n, dtype);
            array_free(single->array[k], single->n, dtype);
        }
        array_free(before, single->n, dtype);
    }
}
END_TEST

/* One list with each array twice, the second time not aligned, which changes no order. */
START_TEST(square_sums)
{
    enum { LARGE = 2500003 /* more than blocks of an array have at a time */, SHIFT = 1 };
    shard_dtype dtype = float_dtypes[_i];
    int64_t n = start_of(ITEMS), large = dtype == SHARD_FLOAT64 ? LARGE : 70001, all = n + large;
    char *x = array_noise(all, dtype, 1, -3, 3), *shifted = array_new(all + SHIFT, dtype);
    double *sums = array_new(2 * ITEMS + 2, SHARD_FLOAT64), *alone = array_new(1, SHARD_FLOAT64);
    shard_square_sum arrays[2 * ITEMS + 2];
    size_t size = shard_dtype_size(dtype);
    memcpy(shifted + SHIFT * size, x, (size_t)all * size);
    for (int i = 0; i <= ITEMS; i++) {
        size_t at = (size_t)start_of(i) * size;
        int64_t count = i < ITEMS ? size_of(i) : large;
        arrays[2 * i] = (shard_square_sum){count, x + at, sums + 2 * i};
        arrays[2 * i + 1] = (shard_square_sum){count, shifted + SHIFT * size + at, sums + 2 * i + 1};
    }
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        for (int i = 0; i < 2 * ITEMS + 2; i++)
            sums[i] = NAN;
        RUN(device, square_sums, 0, NULL, dtype);
        RUN(device, square_sums, 2 * ITEMS + 2, arrays, dtype);
        for (int i = 0; i <= ITEMS; i++) {
            long double want = 0;
            for (int64_t k = start_of(i), end = k + arrays[2 * i].size; k < end; k++) {
                long double value = array_get(x, k, dtype);
                want += value * value;
            }
            check_close(SHARD_FLOAT64, sums[2 * i], want, 1e-13L * want, device->name, i);
            ck_assert_double_eq(sums[2 * i], sums[2 * i + 1]);
            if (i % 10 && i < ITEMS - 1)
                continue;
            shard_square_sum one = arrays[2 * i];
            one.sum = alone;
            *alone = NAN;
            RUN(device, square_sums, 1, &one, dtype);
            ck_assert_double_eq(*alone, sums[2 * i]);
        }
    }
}
END_TEST

/* ---- rows of a list ---- */

enum { ROWS = 60, LISTED = 24, FEW_COLUMNS = 12, MANY_COLUMNS = 33, LISTED_STATES = 3, LISTED_ARRAYS = LISTED_STATES + 2 };
enum { LISTED_MOMENTUM, LISTED_ADAM, LISTED_ROWWISE, LISTED_AMSGRAD, LISTED_KINDS };

/* Arrays of a matrix and the gradient of the listed rows. */
typedef struct listed {
    float *gradient;
    char *array[LISTED_ARRAYS]; /* the value, three states and the compensation */
    shard_update update;
} listed;

static listed listed_new(int64_t columns, const shard_update_types *types, bool compensates)
{
    const shard_dtype dtypes[] = {types->value, types->state[0], types->state[1], types->state[2], types->value};
    listed l = {.gradient = array_noise(LISTED * columns, SHARD_FLOAT32, 1, -1, 1)};
    for (int k = 0; k < LISTED_ARRAYS; k++) {
        bool small = k == LISTED_ARRAYS - 1;
        l.array[k] = array_noise(ROWS * columns, dtypes[k], 2 + (uint64_t)k, small ? -0.001 : 0.01, small ? 0.001 : 1);
    }
    l.update = (shard_update){.size = LISTED * columns,
                              .columns = columns,
                              .lr = 0.01,
                              .weight_decay = 0.1,
                              .step = 4,
                              .gradient = l.gradient,
                              .value = l.array[0],
                              .state = {l.array[1], l.array[2], l.array[3]},
                              .compensation = compensates ? l.array[LISTED_ARRAYS - 1] : NULL,
                              .key = 5};
    return l;
}

static const shard_rowwise_arguments rowwise = {.adam = true, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};

static shard_status run_listed(shard_device *device, int kind, const shard_update *u, shard_update_types types)
{
    shard_adam_arguments adam = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3, .amsgrad = kind == LISTED_AMSGRAD};
    if (kind == LISTED_MOMENTUM)
        return device->ops->sgd(device, 1, u, &(shard_sgd_arguments){.momentum = 0.9}, types);
    if (kind == LISTED_ROWWISE)
        return device->ops->rowwise(device, 1, u, &rowwise, types);
    return device->ops->adam(device, 1, u, &adam, types);
}

/* The update of one row of the list alone, at its place. */
static shard_update row_of(const listed *l, int kind, const shard_update_types *types, int64_t at, int64_t row)
{
    shard_update u = l->update;
    int64_t columns = u.columns;
    u.size = columns;
    u.gradient = l->gradient + at * columns;
    u.value = l->array[0] + (size_t)(row * columns) * shard_dtype_size(types->value);
    for (int k = 0; k < LISTED_STATES; k++) {
        int64_t first = kind == LISTED_ROWWISE && k == 0 ? row : row * columns;
        u.state[k] = l->array[k + 1] + (size_t)first * shard_dtype_size(types->state[k]);
    }
    if (u.compensation)
        u.compensation = l->array[LISTED_ARRAYS - 1] + (size_t)(row * columns) * shard_dtype_size(types->value);
    u.place.first = row * columns;
    return u;
}

/* A step of a list's rows has the bits of steps of single rows, and leaves the others as they are. */
START_TEST(listed_rows)
{
    enum { FIRST_ROW = 7 };
    const shard_update_types types[] = {
        {SHARD_FLOAT32, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_FLOAT32, SHARD_FLOAT32}},
        {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_BFLOAT16}, .stochastic = true},
        {SHARD_BFLOAT16, SHARD_FLOAT32, {SHARD_FLOAT32, SHARD_BFLOAT16, SHARD_BFLOAT16}},
    };
    int kind = _i / 3;
    shard_update_types of = types[_i % 3];
    int64_t rows[LISTED];
    for (int i = 0; i < LISTED; i++)
        rows[i] = FIRST_ROW + i + i / 5 * 3; /* runs of five rows */
    const int64_t *list = array_of(LISTED, SHARD_INT64, rows);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int64_t columns = FEW_COLUMNS; device->lists_rows && columns <= MANY_COLUMNS;
             columns += MANY_COLUMNS - FEW_COLUMNS) {
            listed whole = listed_new(columns, &of, _i % 3 == 2), single = listed_new(columns, &of, _i % 3 == 2);
            char *before = array_noise(ROWS * columns, of.value, 2, 0.01, 1);
            whole.update.rows = list;
            whole.update.row0 = FIRST_ROW - 1;
            ck_assert_int_eq(run_listed(device, kind, &whole.update, of), SHARD_OK);
            for (int64_t i = 0; i < LISTED; i++) {
                shard_update one = row_of(&single, kind, &of, i, rows[i] - (FIRST_ROW - 1));
                ck_assert_int_eq(run_listed(device, kind, &one, of), SHARD_OK);
            }
            ck_assert_int_eq(device->ops->synchronize(device), SHARD_OK);
            check_same(of.value, ROWS * columns, whole.array[0], single.array[0], "values");
            for (int k = 0; k < LISTED_STATES; k++)
                check_same(of.state[k], ROWS * columns, whole.array[k + 1], single.array[k + 1], "states");
            check_same(of.value, ROWS * columns, whole.array[LISTED_ARRAYS - 1], single.array[LISTED_ARRAYS - 1],
                       "compensations");
            ck_assert_msg(memcmp(whole.array[0], before, (size_t)columns * shard_dtype_size(of.value)) == 0,
                          "row 0 is not listed");
            int64_t last = (rows[LISTED - 1] - FIRST_ROW + 1) * columns;
            ck_assert_msg(array_get(whole.array[0], last, of.value) != array_get(before, last, of.value),
                          "the last row is listed");
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_lists");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, a_list_is_its_items, 0, 4 * STEPS);
    tcase_add_loop_test(all, square_sums, 0, 4);
    tcase_add_loop_test(all, listed_rows, 0, 3 * LISTED_KINDS);
    return test_run(suite);
}
