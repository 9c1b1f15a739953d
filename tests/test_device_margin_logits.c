/* Logits with margins over parts of the columns, whole, uneven and empty, in rows that are dense or apart, against the
 * definition in long double. */
#include "support/check.h"
#include "support/kernels.h"

#include <string.h>

enum { MAX_PARTS = 4, IGNORE = -100 };

/* rows, classes, and where the parts begin and end */
static const struct {
    int64_t rows, classes;
    int parts;
    int64_t bounds[MAX_PARTS + 1];
} shapes[] = {
    {0, 4, 1, {0, 4}},
    {1, 1, 1, {0, 1}},
    {5, 10, 3, {0, 3, 3, 10}},
    {200, 33, 2, {0, 32, 33}},
    {20, 1030, 4, {0, 1, 500, 1030, 1030}},
    {3, 18001, 2, {0, 1000, 18001}},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

/* The angle passes pi with many of them, and 0 with those of a negative m2. */
static const shard_margin margins[] = {
    {27.5, 1, 0.5, 0.125, SHARD_ANGLE_LINEAR},  {27.5, 1, 0.5, 0, SHARD_ANGLE_CLAMP}, {27.5, 1, 0.5, 0.25, SHARD_ANGLE_EASY},
    {27.5, 1.5, 0.5, 0.25, SHARD_ANGLE_COSINE}, {64, 1, 0, 0.4, SHARD_ANGLE_LINEAR},  {2, 1, -0.5, 0.125, SHARD_ANGLE_LINEAR},
    {2, 1, -0.5, 0.125, SHARD_ANGLE_CLAMP},     {16, 1.5, 0, 0, SHARD_ANGLE_LINEAR},      {16, 0.5, -0.25, 0, SHARD_ANGLE_LINEAR},
};
enum { MARGINS = sizeof margins / sizeof *margins };

/* One part of the columns of a whole problem. */
typedef struct part {
    shard_cross_entropy_shape shape;
    shard_dtype dtype;
    int64_t pitch, *target;
    void *x;
    double *row_m2, *row_m3; /* NULL: those of the margin */
} part;

static part part_new(shard_dtype dtype, int s, int k, bool of_rows)
{
    int64_t rows = shapes[s].rows, classes = shapes[s].classes, first = shapes[s].bounds[k],
            cols = shapes[s].bounds[k + 1] - first;
    int64_t pitches[] = {0, cols + 3, (cols / 64 + 1) * 64}, pitch = pitches[(s + k + of_rows) % 3];
    part p = {.dtype = dtype, .pitch = shard_pitch(pitch, cols), .target = array_new(rows, SHARD_INT64)};
    p.shape = (shard_cross_entropy_shape){
        .rows = rows, .cols = cols, .pitch = pitch, .col0 = first, .classes = classes, .ignore_index = IGNORE};
    p.x = array_new(rows * p.pitch, dtype);
    memset(p.x, 0xff, (size_t)(rows * p.pitch) * shard_dtype_size(dtype)); /* NaN between the rows */
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            array_put(p.x, i * p.pitch + j, dtype, 1.02 * noise(1, i * classes + first + j));
    static const int64_t ignored[] = {IGNORE, INT64_MIN, -1, INT64_MAX};
    for (int64_t i = 0; i < rows; i++)
        p.target[i] = i % 7 == 1   ? ignored[i / 7 % 4]
                      : i % 4 == 3 ? classes - 1
                                   : (int64_t)((noise(4, i) + 1) / 2 * (double)classes);
    if (of_rows) {
        p.row_m2 = array_noise(rows, SHARD_FLOAT64, 2, -0.5, 0.75);
        p.row_m3 = array_noise(rows, SHARD_FLOAT64, 3, 0, 0.5);
    }
    return p;
}

static void part_free(part *p)
{
    array_free(p->x, p->shape.rows * p->pitch, p->dtype);
    array_free(p->target, p->shape.rows, SHARD_INT64);
    array_free(p->row_m2, p->shape.rows, SHARD_FLOAT64);
    array_free(p->row_m3, p->shape.rows, SHARD_FLOAT64);
}

/* The target's cosine with the margin, and its derivative. */
static long double margin_of(const shard_margin *m, long double m2, long double m3, long double c, long double *slope)
{
    long double cosine = fminl(1, fmaxl(-1, c)), sine = fmaxl(sqrtl(1 - cosine * cosine), SHARD_ANGLE_EDGE);
    long double angle = m->m1 * acosl(cosine) + m2, pi = acosl(-1), edge = SHARD_ANGLE_EDGE;
    *slope = 1;
    if ((m->m1 == 1 && m2 == 0 && m->rule != SHARD_ANGLE_CLAMP) || (m->rule == SHARD_ANGLE_EASY && c <= 0))
        return c - m3;
    if ((m->rule == SHARD_ANGLE_LINEAR || m->rule == SHARD_ANGLE_EASY) && angle < 0)
        return c + fmaxl(m2 * sinl(m2), 1 - cosl(m2 / m->m1)) - m3;
    if ((m->rule == SHARD_ANGLE_LINEAR || m->rule == SHARD_ANGLE_EASY) && angle > pi)
        return c - fmaxl(m2 * sinl(m2), 1 + cosl((pi - m2) / m->m1)) - m3;
    *slope = m->m1 * sinl(angle) / sine;
    if (m->rule == SHARD_ANGLE_CLAMP && (angle < edge || angle > pi - edge)) {
        *slope = 0;
        angle = angle < edge ? edge : pi - edge;
    }
    return cosl(angle) - m3;
}

/* The target's column in the part, less than 0 if it has none. */
static int64_t own_column(const part *p, int64_t row)
{
    int64_t target = p->target[row];
    bool own = target >= p->shape.col0 && target < p->shape.col0 + p->shape.cols;
    return own ? target - p->shape.col0 : -1;
}

/* y of x, or (given) dx of dy = x. */
static void check_matrix(shard_device *device, const part *p, const shard_margin *m, const void *x, const void *y,
                         const double *given)
{
    for (int64_t i = 0; i < p->shape.rows * p->pitch; i++) {
        int64_t row = i / p->pitch, column = i % p->pitch;
        if (column >= p->shape.cols) {
            ck_assert(isnan(array_get(y, i, p->dtype)));
            continue;
        }
        long double value = array_get(x, i, p->dtype), slope, want = m->scale * value;
        if (column == own_column(p, row))
            want = m->scale *
                   (given ? given[row] * value
                          : margin_of(m, p->row_m2 ? p->row_m2[row] : m->m2, p->row_m3 ? p->row_m3[row] : m->m3, value, &slope));
        long double error = fabsl(want) * 2 * compute_unit(p->dtype) + m->scale * 32 * 0x1p-53L;
        check_close(p->dtype, array_get(y, i, p->dtype), want, error, device->name, i);
    }
}

static void check_slopes(const part *p, const shard_margin *m, const void *x, const double *slope)
{
    for (int64_t row = 0; row < p->shape.rows; row++) {
        int64_t column = own_column(p, row);
        long double want = 1;
        if (column >= 0)
            margin_of(m, p->row_m2 ? p->row_m2[row] : m->m2, p->row_m3 ? p->row_m3[row] : m->m3,
                      array_get(x, row * p->pitch + column, p->dtype), &want);
        check_close(SHARD_FLOAT64, slope[row], want, (1 + fabsl(want)) * 1e-12L, "slope", row);
    }
}

static void *copy_of(const part *p)
{
    return array_of(p->shape.rows * p->pitch, p->dtype, p->x);
}

/* Both ways, into another array and in place. */
static void check_part(shard_device *device, const part *p, const shard_margin *m)
{
    int64_t n = p->shape.rows * p->pitch;
    double *slope = array_new(p->shape.rows, SHARD_FLOAT64);
    for (int in_place = 0; in_place < 2; in_place++) {
        void *x = copy_of(p), *y = in_place ? x : copy_of(p), *dy = copy_of(p), *dx = in_place ? dy : copy_of(p);
        RUN(device, margin_logits, &p->shape, m, x, p->target, p->row_m2, p->row_m3, y, slope, p->dtype);
        check_matrix(device, p, m, p->x, y, NULL);
        check_slopes(p, m, p->x, slope);
        RUN(device, margin_logits_backward, &p->shape, m, p->target, slope, dy, dx, p->dtype);
        check_matrix(device, p, m, p->x, dx, slope);
        array_free(x, n, p->dtype);
        array_free(dy, n, p->dtype);
        if (!in_place) {
            array_free(y, n, p->dtype);
            array_free(dx, n, p->dtype);
        }
    }
    array_free(slope, p->shape.rows, SHARD_FLOAT64);
}

START_TEST(follows_the_definition)
{
    shard_device *device;
    for (int s = 0; s < SHAPES; s++)
        for (int k = 0; k < shapes[s].parts; k++)
            for (int of_rows = 0; of_rows < 2; of_rows++) {
                part p = part_new(float_dtypes[_i], s, k, of_rows);
                for (int set = 0; (device = kernel_device(set)); set++)
                    for (int m = (s + k) % 2; m<MARGINS; m += shapes[s].classes> 1000 ? 2 : 1)
                        check_part(device, &p, &margins[m]);
                part_free(&p);
            }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("device_margin_logits");
    TCase *all = test_case(suite, "all");
    tcase_add_loop_test(all, follows_the_definition, 0, 4);
    return test_run(suite);
}
