/* Scaled logits with a margin at the labels' columns, one pass; the thread that has the label's column computes it. */
#include "device/cuda/rows.cuh"

using namespace shard;

/* Forward: slope is written; backward: `given` is not NULL. */
template <class T> struct Margins {
    const T *x;
    T *y;
    shard_cross_entropy_shape shape; /* its pitch is not 0 */
    shard_margin margin;
    const int64_t *target;
    const double *row_m2, *row_m3, *given;
    double *slope;
    int64_t packed;

    __device__ int64_t own_target(int64_t row) const
    {
        return shard_label_column(&shape, target[row]);
    }
    __device__ Real<T> at_target(int64_t row, Real<T> value) const
    {
        if (given)
            return (Real<T>)(margin.scale * given[row] * (double)value);
        double m2 = row_m2 ? row_m2[row] : margin.m2, m3 = row_m3 ? row_m3[row] : margin.m3;
        return (Real<T>)(margin.scale * shard_margin_cosine((double)value, margin.m1, m2, m3, margin.rule, &slope[row]));
    }
};

template <class T, int LANES> static __global__ void apply(Margins<T> m, Rows shape)
{
    using R = Real<T>;
    Team<LANES> team;
    R scale = (R)m.margin.scale;
    for (int64_t index = team.index; index < shape.rows * shape.chunks; index += team.step) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width, from = row * m.shape.pitch + start;
        int64_t own = m.own_target(row), target = own < 0 ? -1 : own - start;
        const T *x = m.x + from;
        T *y = m.y + from;
        walk(
            Cut<T>(x, count, m.packed), team.lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE];
                load_batch<T, COUNT>(x, first, value);
#pragma unroll
                for (int k = 0; k < COUNT * SIZE; k++)
                    value[k] = first[k / SIZE] + k % SIZE == target ? m.at_target(row, value[k]) : scale * value[k];
                store_batch<T, COUNT>(y, first, value);
            },
            [&](int64_t i) { y[i] = round_to<T>(i == target ? m.at_target(row, to_real(x[i])) : scale * to_real(x[i])); });
    }
}

template <class T> static shard_status run(shard_device *device, Margins<T> m, const shard_cross_entropy_shape *shape)
{
    if (shape->rows == 0 || shape->cols == 0)
        return SHARD_OK;
    m.shape = *shape;
    m.shape.pitch = shard_pitch(shape->pitch, shape->cols);
    m.packed = aligned_alike(m.x, m.y);
    Rows cut = cut_rows(device, shape->rows, shape->cols);
    bool few = short_rows(cut.cols, sizeof(T));
    return launch(device, few ? apply<T, WARP> : apply<T, BLOCK>, team_blocks(cut.rows * cut.chunks, few ? WARP : BLOCK), BLOCK,
                  m, cut);
}

shard_status shard_cuda_margin_logits(shard_device *device, const shard_cross_entropy_shape *shape, const shard_margin *margin,
                                      const void *x, const int64_t *target, const double *row_m2, const double *row_m3, void *y,
                                      double *slope, shard_dtype dtype)
{
    SHARD_TRY(shard_cuda_fill(device, shape->rows, 1.0, slope, SHARD_FLOAT64));
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Margins<T> m = {};
        m.x = (const T *)x;
        m.y = (T *)y;
        m.margin = *margin;
        m.target = target;
        m.row_m2 = row_m2;
        m.row_m3 = row_m3;
        m.slope = slope;
        return run(device, m, shape);
    });
}

shard_status shard_cuda_margin_logits_backward(shard_device *device, const shard_cross_entropy_shape *shape,
                                               const shard_margin *margin, const int64_t *target, const double *slope,
                                               const void *dy, void *dx, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Margins<T> m = {};
        m.x = (const T *)dy;
        m.y = (T *)dx;
        m.margin = *margin;
        m.target = target;
        m.given = slope;
        return run(device, m, shape);
    });
}
