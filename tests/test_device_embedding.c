/* Embedding: rows of a part of the weight, and the gradient's sums in order. */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

/* n, dim, row0, rows */
static const int64_t shapes[][4] = {{0, 5, 0, 7},        {9, 0, 0, 7},      {9, 5, 3, 0},     {1, 1, 0, 1},  {40, 7, 2, 11},
                                    {3000, 33, 10, 200}, {50, 2051, 0, 60}, {300, 64, 5, 20}, {20, 4, 0, 30}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static int64_t *indices(int64_t n)
{
    int64_t *index = array_new(n, SHARD_INT64);
    for (int64_t i = 0; i < n; i++)
        index[i] = (int64_t)(fabs(noise(1, i)) * 30);
    return index;
}

START_TEST(forward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++) {
            int64_t n = shapes[s][0], dim = shapes[s][1], row0 = shapes[s][2], rows = shapes[s][3], *index = indices(n);
            void *weight = array_noise(rows * dim, dtype, 2, -1, 1), *y = array_new(n * dim, dtype);
            RUN(device, embedding, n, dim, row0, rows, index, weight, y, dtype);
            for (int64_t i = 0; i < n * dim; i++) {
                int64_t row = index[i / dim] - row0;
                bool here = row >= 0 && row < rows;
                check_close(dtype, array_get(y, i, dtype), here ? array_get(weight, row * dim + i % dim, dtype) : 0, 0,
                            device->name, i);
            }
            array_free(index, n, SHARD_INT64);
            array_free(weight, rows * dim, dtype);
            array_free(y, n * dim, dtype);
        }
}
END_TEST

/* counts[row]: how many of the indices are of that row of the part. */
static int64_t *count_rows(int64_t n, const int64_t *index, int64_t row0, int64_t rows)
{
    int64_t *counts = array_new(rows, SHARD_INT64);
    for (int64_t row = 0; row < rows; row++)
        counts[row] = 0;
    for (int64_t i = 0; i < n; i++)
        if (index[i] >= row0 && index[i] - row0 < rows)
            counts[index[i] - row0]++;
    return counts;
}

/* In the order of the index, in float or double, rounded once: the same bits; also of means. */
START_TEST(backward)
{
    shard_dtype dtype = float_dtypes[_i];
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int way = 0; way < 3; way++) {
                bool accumulate = way > 0, by_count = way > 1;
                int64_t n = shapes[s][0], dim = shapes[s][1], row0 = shapes[s][2], rows = shapes[s][3], *index = indices(n);
                int64_t *counts = count_rows(n, index, row0, rows);
                void *dy = array_noise(n * dim, dtype, 2, -1, 1), *dweight = array_noise(rows * dim, dtype, 3, -1, 1);
                void *want = array_noise(rows * dim, dtype, 3, -1, 1);
                RUN(device, embedding_backward, n, dim, row0, rows, index, dy, by_count, accumulate, dweight, dtype);
                for (int64_t to = 0; to < rows * dim; to++) {
                    int64_t count = counts[to / dim];
                    double total = accumulate ? array_get(want, to, dtype) : 0,
                           factor = by_count && count ? 1.0 / (double)count : 1;
                    for (int64_t i = 0; i < n && count > 0; i++)
                        if (index[i] - row0 == to / dim) {
                            double x = array_get(dy, i * dim + to % dim, dtype);
                            total =
                                dtype == SHARD_FLOAT64 ? total + factor * x : (double)((float)total + (float)factor * (float)x);
                        }
                    array_put(want, to, dtype, total);
                }
                check_same(dtype, rows * dim, dweight, want, device->name);
                array_free(index, n, SHARD_INT64);
                array_free(counts, rows, SHARD_INT64);
                array_free(dy, n * dim, dtype);
                array_free(dweight, rows * dim, dtype);
                array_free(want, rows * dim, dtype);
            }
}
END_TEST

/* Of a row, to the power: what embedding_power_sums finds. */
static double power_sum(const void *weight, int64_t row, int64_t dim, double power, shard_dtype dtype)
{
    double sum = 0;
    for (int64_t j = 0; j < dim; j++) {
        double size = fabs(array_get(weight, row * dim + j, dtype));
        sum = power == INFINITY ? fmax(sum, size) : power == 2 ? sum + size * size : sum + pow(size, power);
    }
    return sum;
}

/* The norms of the rows that the index names, and rows scaled down to a bound, once each. */
static void check_renorm(shard_device *device, const int64_t *shape, double power, shard_dtype dtype)
{
    int64_t n = shape[0], dim = shape[1], row0 = shape[2], rows = shape[3], *index = indices(n);
    int64_t *counts = count_rows(n, index, row0, rows);
    double *sum = array_new(n, SHARD_FLOAT64), bound = 0.45 * (power == INFINITY ? 2 : pow((double)dim, 1 / power));
    void *weight = array_noise(rows * dim, dtype, 2, -1, 1), *first = array_noise(rows * dim, dtype, 2, -1, 1);
    RUN(device, embedding_power_sums, n, dim, row0, rows, index, weight, power, sum, dtype);
    for (int64_t i = 0; i < n; i++) {
        int64_t row = index[i] - row0;
        double want = row >= 0 && row < rows ? power_sum(first, row, dim, power, dtype) : 0;
        check_close(SHARD_FLOAT64, sum[i], want, 1e-12 * want, device->name, i);
    }
    RUN(device, embedding_renorm, n, dim, row0, rows, index, power, bound, sum, weight, dtype);
    for (int64_t row = 0; row < rows; row++) {
        double norm = counts[row] ? power_sum(first, row, dim, power, dtype) : 0;
        norm = power == INFINITY ? norm : pow(norm, 1 / power);
        for (int64_t to = row * dim; to < (row + 1) * dim; to++) {
            double x = array_get(first, to, dtype), want = norm > bound ? x * bound / (norm + 1e-7) : x;
            check_close(dtype, array_get(weight, to, dtype), want, norm > bound ? 64 * compute_unit(dtype) * fabs(want) : 0,
                        device->name, to);
        }
    }
    array_free(index, n, SHARD_INT64);
    array_free(counts, rows, SHARD_INT64);
    array_free(sum, n, SHARD_FLOAT64);
    array_free(weight, rows * dim, dtype);
    array_free(first, rows * dim, dtype);
}

START_TEST(renorm)
{
    static const double powers[] = {1, 2, 3.5, INFINITY};
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++)
        for (int s = 0; s < SHAPES; s++)
            for (int p = 0; p < 4; p++)
                if (powers[p] == 2 || shapes[s][0] < 1000)
                    check_renorm(device, shapes[s], powers[p], float_dtypes[_i]);
}
END_TEST

/* So many indices and rows that sorting takes several passes over many tiles; a third
 * of them are one row's, and some are another part's. Rows of many positions are summed
 * in parts elsewhere than on the CPU. */
START_TEST(many)
{
    enum { INDICES = 600011, ROWS = 1000, DIM = 3, IN_ORDER = 128 };
    static double exact[ROWS * DIM];
    int64_t *index = array_new(INDICES, SHARD_INT64);
    for (int64_t i = 0; i < INDICES; i++)
        index[i] = i % 3 == 0 ? 690 : (int64_t)(fabs(noise(1, i)) * (ROWS + 200));
    float *dy = array_noise(INDICES * DIM, SHARD_FLOAT32, 2, -1, 1), *want = array_new(ROWS * DIM, SHARD_FLOAT32);
    float *dweight = array_new(ROWS * DIM, SHARD_FLOAT32);
    for (int64_t i = 0; i < ROWS * DIM; i++)
        want[i] = 0;
    for (int64_t i = 0; i < INDICES; i++)
        for (int64_t j = 0; index[i] >= 100 && index[i] < 100 + ROWS && j < DIM; j++)
            want[(index[i] - 100) * DIM + j] += dy[i * DIM + j], exact[(index[i] - 100) * DIM + j] += (double)dy[i * DIM + j];
    int64_t *counts = count_rows(INDICES, index, 100, ROWS);
    shard_device *device;
    for (int set = 0; (device = kernel_device(set)); set++) {
        RUN(device, embedding_backward, INDICES, DIM, 100, ROWS, index, dy, false, false, dweight, SHARD_FLOAT32);
        for (int64_t i = 0; i < ROWS * DIM && on_other_device(); i++)
            if (counts[i / DIM] > IN_ORDER) {
                check_close(SHARD_FLOAT32, (double)dweight[i], exact[i], 2e-3, device->name, i);
                dweight[i] = want[i];
            }
        check_same(SHARD_FLOAT32, ROWS * DIM, dweight, want, device->name);
    }
}
END_TEST

/* Rows 1, 2 and 3 have these numbers of positions among those of row 0; dy is 2^24 at the first position of each and
 * 1 elsewhere: what is added to 2^24 one by one is lost. */
static void check_frequent(shard_device *device, int64_t dim, shard_dtype dtype, bool accumulate, bool by_count)
{
    enum { ROWS = 4, MOST = 6000 };
    static const int64_t counts[ROWS] = {700, 2048, 129, 1024};
    int64_t *index = array_new(MOST, SHARD_INT64), n = 0, seen[ROWS] = {0};
    for (int64_t i = 0; i < MOST; i++) {
        int64_t row = i % 7 == 0 ? 0 : i % 5 == 0 ? 2 : i % 3 == 0 ? 3 : 1;
        if (seen[row] < counts[row])
            seen[row]++, index[n++] = row;
    }
    void *dy = array_new(n * dim, dtype), *dweight = array_new(ROWS * dim, dtype), *again = array_new(ROWS * dim, dtype);
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0, first = seen[index[i]]++ == 0; j < dim; j++)
            array_put(dy, i * dim + j, dtype, first ? 0x1p24 : 1);
    for (int run = 0; run < 2; run++) {
        for (int64_t i = 0; i < ROWS * dim; i++)
            array_put(run ? again : dweight, i, dtype, 64);
        RUN(device, embedding_backward, n, dim, 0, ROWS, index, dy, by_count, accumulate, run ? again : dweight, dtype);
    }
    check_same(dtype, ROWS * dim, dweight, again, "again");
    for (int64_t i = 0; i < ROWS * dim; i++) {
        ck_assert_int_eq(seen[i / dim], counts[i / dim]);
        double factor = by_count ? 1.0 / (double)counts[i / dim] : 1, lost = 128 * factor; /* of the first part */
        double want = (0x1p24 + (double)counts[i / dim] - 1) * factor + (accumulate ? 64 : 0);
        check_close(dtype, array_get(dweight, i, dtype), want, lost + want * 0x1p-22, device->name, i);
    }
    array_free(index, MOST, SHARD_INT64);
    array_free(dy, n * dim, dtype);
    array_free(dweight, ROWS * dim, dtype);
    array_free(again, ROWS * dim, dtype);
}

START_TEST(frequent_rows)
{
    shard_device *device = kernel_device(0);
    for (int way = 0; way < 4 && on_other_device(); way++) {
        check_frequent(device, 3, float_dtypes[_i], way & 1, way & 2);
        check_frequent(device, 40, float_dtypes[_i], way & 1, way & 2);
    }
}
END_TEST

/* A row's sum is the same bits whatever the other rows are. */
START_TEST(rows_alone)
{
    enum { N = 3000, DIM = 3, ROWS = 4 };
    shard_device *device = kernel_device(0);
    int64_t *index = array_new(N, SHARD_INT64), *own = array_new(N, SHARD_INT64);
    for (int64_t i = 0; i < N; i++)
        index[i] = i % 4 == 3 ? 2 : (int64_t)(fabs(noise(3, i)) * 4);
    float *dy = array_noise(N * DIM, SHARD_FLOAT32, 2, -1, 1), *alone = array_new(N * DIM, SHARD_FLOAT32);
    float *all = array_new(ROWS * DIM, SHARD_FLOAT32), *one = array_new(DIM, SHARD_FLOAT32);
    RUN(device, embedding_backward, N, DIM, 0, ROWS, index, dy, false, false, all, SHARD_FLOAT32);
    for (int64_t row = 0; row < ROWS; row++) {
        int64_t n = 0;
        for (int64_t i = 0; i < N; i++)
            if (index[i] == row) {
                memcpy(alone + n * DIM, dy + i * DIM, DIM * sizeof *dy);
                own[n++] = row;
            }
        ck_assert_int_gt(n, 128);
        RUN(device, embedding_backward, n, DIM, row, 1, own, alone, false, false, one, SHARD_FLOAT32);
        check_same(SHARD_FLOAT32, DIM, one, all + row * DIM, device->name);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_embedding");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, forward, 0, 4);
    tcase_add_loop_test(all, backward, 0, 4);
    tcase_add_loop_test(all, renorm, 0, 4);
    tcase_add_test(all, many);
    tcase_add_loop_test(all, frequent_rows, 0, 2);
    tcase_add_test(all, rows_alone);
    return test_run(suite);
}
