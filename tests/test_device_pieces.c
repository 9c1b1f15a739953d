/*
 * The entries that work element by element: what they give for a long array, and for
 * any pieces of it one after another, wherever these begin, are the same bits. So the
 * ends of packs, blocks and grids, and arrays that are not aligned, are right where
 * short ones are.
 */
#include "support/check.h"
#include "support/kernels.h"

#include "base/dtype.h"

#include <string.h>

enum { N = 400003 };

static const int64_t pieces[] = {1, 2, 3, 5, 8, 13, 255, 256, 257, 1023, 2049, 4100, 20001, 100003, N};
static const shard_draw draw = {.seed = 7, .number = 3};

/* Elements of inputs and outputs; y is read too by what takes it so. */
typedef struct piece {
    shard_device *device;
    shard_dtype dtype;
    int64_t start, count;
    const void *a, *b;
    void *y, *z, *w;
} piece;

static shard_region region(const piece *p)
{
    return (shard_region){.rows = 1, .cols = p->count, .row0 = 0, .col0 = p->start, .whole_cols = N};
}

static shard_status run_fill(const piece *p)
{
    return p->device->ops->fill(p->device, p->count, 0.7, p->y, p->dtype);
}
static shard_status run_cast_up(const piece *p)
{
    return p->device->ops->cast(p->device, p->count, p->a, p->dtype, p->z, SHARD_FLOAT64);
}
static shard_status run_cast_down(const piece *p)
{
    return p->device->ops->cast(p->device, p->count, p->a, p->dtype, p->z, SHARD_UINT8);
}
static shard_status run_axpby(const piece *p)
{
    return p->device->ops->axpby(p->device, p->count, 0.3, p->a, -1.5, p->y, p->dtype);
}
static shard_status run_lerp(const piece *p)
{
    return p->device->ops->axpby(p->device, p->count, 0.3, p->a, 1 - 0.3, p->y, p->dtype);
}
static shard_status run_scale(const piece *p)
{
    return p->device->ops->axpby(p->device, p->count, 0.3, p->a, 0, p->y, p->dtype);
}
static shard_status run_unary(const piece *p)
{
    return p->device->ops->unary(p->device, SHARD_GELU_TANH, NULL, p->count, p->a, p->y, p->dtype);
}
static shard_status run_unary_backward(const piece *p)
{
    return p->device->ops->unary_backward(p->device, SHARD_RELU, NULL, p->count, p->b, p->a, p->y, p->dtype);
}
static shard_status run_binary(const piece *p)
{
    const shard_expansion over = shard_expansion_rows(1, p->count);
    return p->device->ops->binary(p->device, SHARD_MUL, &over, p->a, p->b, p->y, p->dtype);
}
static shard_status run_sgd(const piece *p)
{
    shard_update update = {
        .size = p->count, .lr = 0.1, .weight_decay = 0.01, .step = 2, .gradient = (void *)p->a, .value = p->y, .state = {p->z}};
    shard_sgd_arguments options = {.momentum = 0.9, .nesterov = true};
    return p->device->ops->sgd(p->device, 1, &update, &options, shard_update_types_of(p->dtype));
}
static shard_status run_adam(const piece *p)
{
    shard_update update = {.size = p->count,
                           .lr = 0.1,
                           .weight_decay = 0.01,
                           .step = 2,
                           .gradient = (void *)p->a,
                           .value = p->w,
                           .state = {p->y, p->z}};
    shard_adam_arguments options = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-3};
    return p->device->ops->adam(p->device, 1, &update, &options, shard_update_types_of(p->dtype));
}
static shard_status run_clip_value(const piece *p)
{
    return p->device->ops->clip_value(p->device, p->count, 0.7, NULL, p->y, p->dtype);
}
static shard_status run_uniform(const piece *p)
{
    shard_region r = region(p);
    return p->device->ops->random_uniform(p->device, &r, draw, -1, 2, p->y, p->dtype);
}
static shard_status run_normal(const piece *p)
{
    shard_region r = region(p);
    return p->device->ops->random_normal(p->device, &r, draw, -1, 2, p->y, p->dtype);
}
static shard_status run_dropout(const piece *p)
{
    shard_region r = region(p);
    return p->device->ops->dropout(p->device, &r, draw, 0.4, p->a, p->y, p->dtype);
}

enum { SAME = -1 };
static const struct {
    const char *name;
    shard_status (*run)(const piece *);
    int z; /* the dtype of the second output */
} entries[] = {
    {"fill", run_fill, SAME},
    {"cast to float64", run_cast_up, SHARD_FLOAT64},
    {"cast to uint8", run_cast_down, SHARD_UINT8},
    {"axpby", run_axpby, SAME},
    {"axpby, alpha + beta 1", run_lerp, SAME},
    {"axpby, beta 0", run_scale, SAME},
    {"unary", run_unary, SAME},
    {"unary_backward", run_unary_backward, SAME},
    {"binary", run_binary, SAME},
    {"sgd", run_sgd, SAME},
    {"adam", run_adam, SAME},
    {"clip_value", run_clip_value, SAME},
    {"random_uniform", run_uniform, SAME},
    {"random_normal", run_normal, SAME},
    {"dropout", run_dropout, SAME},
};
enum { ENTRIES = sizeof entries / sizeof *entries };

START_TEST(pieces_make_the_whole)
{
    shard_dtype dtype = float_dtypes[_i / ENTRIES], z_dtype = dtype;
    int entry = _i % ENTRIES;
    if (entries[entry].z != SAME)
        z_dtype = (shard_dtype)entries[entry].z;
    size_t size = shard_dtype_size(dtype), z_size = shard_dtype_size(z_dtype);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        char *a = array_noise(N, dtype, 1, 0, 9), *b = array_noise(N, dtype, 2, -2, 2);
        char *y[2], *z[2], *w[2];
        for (int k = 0; k < 2; k++) {
            y[k] = array_noise(N, dtype, 3, -2, 2);
            z[k] = array_noise(N, z_dtype, 4, 0, 2);
            w[k] = array_noise(N, dtype, 5, -2, 2);
        }
        piece whole = {device, dtype, 0, N, a, b, y[0], z[0], w[0]};
        ck_assert_int_eq(entries[entry].run(&whole), SHARD_OK);
        int64_t start = 0, count;
        for (int k = 0; start < N; start += count) {
            count = pieces[k++] < N - start ? pieces[k - 1] : N - start;
            size_t at = (size_t)start * size;
            piece p = {device, dtype, start, count, a + at, b + at, y[1] + at, z[1] + (size_t)start * z_size, w[1] + at};
            ck_assert_int_eq(entries[entry].run(&p), SHARD_OK);
        }
        ck_assert_int_eq(device->ops->synchronize(device), SHARD_OK);
        check_same(dtype, N, y[0], y[1], entries[entry].name);
        check_same(z_dtype, N, z[0], z[1], entries[entry].name);
        check_same(dtype, N, w[0], w[1], entries[entry].name);
        array_free(a, N, dtype);
        array_free(b, N, dtype);
        for (int k = 0; k < 2; k++) {
            array_free(y[k], N, dtype);
            array_free(z[k], N, z_dtype);
            array_free(w[k], N, dtype);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_pieces");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, pieces_make_the_whole, 0, 4 * ENTRIES);
    return test_run(suite);
}
