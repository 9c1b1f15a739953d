/*
 * Division by the 2-norm along a dimension, and its gradient. Sums are double. A line's second
 * reading, by the team that has just read it, is mostly from cache. Each element is written by
 * the thread that read it, so that results may take the place of what they are computed from.
 */
#include "device/cuda/axis.cuh"

using namespace shard;

template <class T> struct Normalize {
    using R = Real<T>;
    double eps;
    int64_t measure;
    const T *x;
    double *square;
    T *y;

    template <int LANES> __device__ void run(const Line &line, int lane) const
    {
        double sum = 0;
        if (measure) {
            for (int64_t k = lane; k < line.size; k += LANES) {
                double value = (double)to_real(x[line.at(k)]);
                sum = fma(value, value, sum);
            }
            sum = line_sum<LANES>(sum);
            if (lane == 0)
                square[line.index] = sum;
        } else {
            sum = square[line.index];
        }
        if (!y)
            return;
        double norm = sqrt(sum);
        R inverse = (R)(1 / (norm < eps ? eps : norm));
        for (int64_t k = lane; k < line.size; k += LANES)
            y[line.at(k)] = round_to<T>(to_real(x[line.at(k)]) * inverse);
    }
};

shard_status shard_cuda_normalize(shard_device *device, const shard_axis *axis, double eps, bool measure, const void *x,
                                  double *square, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_along(device, Normalize<T>{eps, measure, (const T *)x, square, (T *)y}, *axis);
    });
}

template <class T> struct NormalizeBackward {
    using R = Real<T>;
    double eps;
    int64_t measure;
    const T *x;
    const double *square;
    const T *dy;
    double *dot;
    T *dx;

    template <int LANES> __device__ void run(const Line &line, int lane) const
    {
        double sum = 0;
        if (measure) {
            for (int64_t k = lane; k < line.size; k += LANES)
                sum = fma((double)to_real(x[line.at(k)]), (double)to_real(dy[line.at(k)]), sum);
            sum = line_sum<LANES>(sum);
            if (lane == 0)
                dot[line.index] = sum;
        } else {
            sum = dot[line.index];
        }
        if (!dx)
            return;
        double squares = square[line.index], norm = sqrt(squares);
        R inverse = (R)(1 / (norm < eps ? eps : norm)), slope = (R)(norm < eps ? 0 : sum / squares);
        for (int64_t k = lane; k < line.size; k += LANES) {
            int64_t i = line.at(k);
            dx[i] = round_to<T>((to_real(dy[i]) - to_real(x[i]) * slope) * inverse);
        }
    }
};

shard_status shard_cuda_normalize_backward(shard_device *device, const shard_axis *axis, double eps, bool measure, const void *x,
                                           const double *square, const void *dy, double *dot, void *dx, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_along(device, NormalizeBackward<T>{eps, measure, (const T *)x, square, (const T *)dy, dot, (T *)dx}, *axis);
    });
}
