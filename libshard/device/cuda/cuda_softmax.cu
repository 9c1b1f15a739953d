/*
 * Softmax of rows, or its logarithm, and its gradient. Results may overwrite the operands: each element is written
 * by the thread that read it.
 */
#include "device/cuda/exp_sum.cuh"

using namespace shard;

template <class T, bool LOG> struct Softmax {
    using R = Real<T>;
    struct Part {
        R max;
        double sum; /* of the exponentials, relative to max */
    };
    const T *x;
    T *y;
    int64_t cols;
    int64_t packed;

    template <int LANES> __device__ Part measure(int64_t row, int64_t start, int64_t count, int lane) const
    {
        const T *from = x + row * cols + start;
        ExpSum<R> e;
        walk(
            Cut<T>(from, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first };
                R value[COUNT * Pack<T>::SIZE];
                load_batch<T, COUNT>(from, first, value);
                e.add(value);
            },
            [&](int64_t i) {
                R value[1] = {to_real(from[i])};
                e.add(value);
            });
        Part part;
        part.max = team_reduce<LANES, Maximum>(e.max);
        part.sum = team_reduce<LANES, Sum>(e.relative_to(part.max));
        return part;
    }

    template <int LANES> __device__ Part join(const Part *parts, int64_t chunks, int lane) const
    {
        Part all = {-INFINITY, 0};
        for (int64_t i = lane; i < chunks; i += LANES)
            all.max = fmax(all.max, parts[i].max);
        all.max = team_reduce<LANES, Maximum>(all.max);
        for (int64_t i = lane; i < chunks; i += LANES)
            all.sum += parts[i].max == all.max ? parts[i].sum : parts[i].sum * exp((double)parts[i].max - (double)all.max);
        all.sum = team_reduce<LANES, Sum>(all.sum);
        return all;
    }

    template <int LANES> __device__ void write(int64_t row, int64_t start, int64_t count, int lane, const Part &part) const
    {
        const T *from = x + row * cols + start;
        T *to = y + row * cols + start;
        R max = part.max, log_sum = LOG ? (R)log(part.sum) : 0, inverse = (R)(1 / part.sum);
        auto result = [&](R value) { return LOG ? value - max - log_sum : exp(value - max) * inverse; };
        walk(
            Cut<T>(from, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first };
                R value[COUNT * Pack<T>::SIZE];
                load_batch<T, COUNT>(from, first, value);
#pragma unroll
                for (R &v : value)
                    v = result(v);
                store_batch<T, COUNT>(to, first, value);
            },
            [&](int64_t i) { to[i] = round_to<T>(result(to_real(from[i]))); });
    }
};

shard_status shard_cuda_softmax(shard_device *device, bool log, int64_t rows, int64_t cols, const void *x, void *y,
                                shard_dtype dtype)
{
    if (rows == 0 || cols == 0)
        return SHARD_OK;
    Rows cut = cut_rows(device, rows, cols);
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        bool packed = aligned_alike(x, y), few = short_rows(cols, sizeof(T));
        return log ? run_rows(device, Softmax<T, true>{(const T *)x, (T *)y, cols, packed}, cut, few)
                   : run_rows(device, Softmax<T, false>{(const T *)x, (T *)y, cols, packed}, cut, few);
    });
}

/* ---- gradient ---- */

template <class T, bool LOG> struct SoftmaxBackward {
    using R = Real<T>;
    struct Part {
        double sum; /* of y dy, or of dy for the logarithm */
    };
    const T *y, *dy;
    T *dx;
    int64_t cols;
    int64_t packed;

    template <int LANES> __device__ Part measure(int64_t row, int64_t start, int64_t count, int lane) const
    {
        const T *out = y + row * cols + start, *gradient = dy + row * cols + start;
        double sum = 0;
        walk(
            Cut<T>(gradient, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, N = COUNT * Pack<T>::SIZE };
                R value[N], factor[N], total = 0;
                load_batch<T, COUNT>(gradient, first, value);
                if (!LOG)
                    load_batch<T, COUNT>(out, first, factor);
#pragma unroll
                for (int k = 0; k < N; k++)
                    total += LOG ? value[k] : factor[k] * value[k];
                sum += (double)total;
            },
            [&](int64_t i) { sum += (double)to_real(gradient[i]) * (LOG ? 1 : (double)to_real(out[i])); });
        return Part{team_reduce<LANES, Sum>(sum)};
    }

    template <int LANES> __device__ Part join(const Part *parts, int64_t chunks, int lane) const
    {
        double sum = 0;
        for (int64_t i = lane; i < chunks; i += LANES)
            sum += parts[i].sum;
        return Part{team_reduce<LANES, Sum>(sum)};
    }

    template <int LANES> __device__ void write(int64_t row, int64_t start, int64_t count, int lane, const Part &part) const
    {
        const T *out = y + row * cols + start, *gradient = dy + row * cols + start;
        T *to = dx + row * cols + start;
        R sum = (R)part.sum;
        auto result = [&](R value, R g) { return LOG ? g - exp(value) * sum : value * (g - sum); };
        walk(
            Cut<T>(gradient, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, N = COUNT * Pack<T>::SIZE };
                R value[N], g[N];
                load_batch<T, COUNT>(out, first, value);
                load_batch<T, COUNT>(gradient, first, g);
#pragma unroll
                for (int k = 0; k < N; k++)
                    g[k] = result(value[k], g[k]);
                store_batch<T, COUNT>(to, first, g);
            },
            [&](int64_t i) { to[i] = round_to<T>(result(to_real(out[i]), to_real(gradient[i]))); });
    }
};

shard_status shard_cuda_softmax_backward(shard_device *device, bool log, int64_t rows, int64_t cols, const void *y,
                                         const void *dy, void *dx, shard_dtype dtype)
{
    if (rows == 0 || cols == 0)
        return SHARD_OK;
    Rows cut = cut_rows(device, rows, cols);
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const T *out = (const T *)y, *gradient = (const T *)dy;
        bool packed = aligned_alike(out, dy) && aligned_alike(out, dx), few = short_rows(cols, sizeof(T));
        return log ? run_rows(device, SoftmaxBackward<T, true>{out, gradient, (T *)dx, cols, packed}, cut, few)
                   : run_rows(device, SoftmaxBackward<T, false>{out, gradient, (T *)dx, cols, packed}, cut, few);
    });
}
