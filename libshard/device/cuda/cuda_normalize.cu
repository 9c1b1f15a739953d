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

/* ---- rows of a matrix: a warp has a row, and reads it twice, the second time from a cache ---- */

/* The inverse of max(norm, eps), and dot / square, or 0 where the norm is below eps. */
template <class R> struct UnitFactors {
    R inverse, slope;
    __device__ UnitFactors(double square, double dot, double eps)
    {
        double norm = sqrt(square);
        inverse = (R)(1 / (norm < eps ? eps : norm));
        slope = (R)(norm < eps ? 0 : dot / square);
    }
};

template <class From> struct MatrixRows {
    int64_t n, in;
    const int64_t *list; /* NULL: the rows are one after the other */
    const From *rows;
    double eps;

    __device__ const From *row(int64_t i) const
    {
        return rows + (list ? list[i] : i) * in;
    }
    /* Calls body(i) for each row of this warp. */
    template <class Body> __device__ void each(Body &&body) const
    {
        int64_t step = (int64_t)gridDim.x * (BLOCK / WARP);
        for (int64_t i = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; i < n; i += step)
            body(i);
    }
    /* Calls body(k) for the packs of N elements of this thread. */
    template <int N, class Body> __device__ void along(Body &&body) const
    {
        for (int64_t k = (int64_t)(threadIdx.x % WARP) * N; k < in; k += WARP * N)
            body(k);
    }
};

template <class From, class To, int N>
static __global__ void unit_rows(MatrixRows<From> of, double *square, To *unit)
{
    using R = Real<From>;
    of.each([&](int64_t i) {
        const From *x = of.row(i);
        double sum = 0;
        of.template along<N>([&](int64_t k) {
            Pack<From, N> pack = load_pack<From, N>(x + k);
            for (int j = 0; j < N; j++) {
                double value = (double)to_real(pack.value[j]);
                sum = fma(value, value, sum);
            }
        });
        sum = warp_reduce<Sum>(sum);
        if (threadIdx.x % WARP == 0)
            square[i] = sum;
        UnitFactors<R> by(sum, 0, of.eps);
        of.template along<N>([&](int64_t k) {
            Pack<From, N> pack = load_pack<From, N>(x + k);
            Pack<To, N> out;
            for (int j = 0; j < N; j++)
                out.value[j] = round_to<To>(to_real(pack.value[j]) * by.inverse);
            store_pack(unit + i * of.in + k, out);
        });
    });
}

template <class From, int N>
static __global__ void unit_rows_backward(MatrixRows<From> of, const double *square, Real<From> *gradient)
{
    using R = Real<From>;
    of.each([&](int64_t i) {
        const From *x = of.row(i);
        R *own = gradient + i * of.in;
        double dot = 0;
        of.template along<N>([&](int64_t k) {
            Pack<From, N> pack = load_pack<From, N>(x + k);
            Pack<R, N> by_unit = load_pack<R, N>(own + k);
            for (int j = 0; j < N; j++)
                dot = fma((double)to_real(pack.value[j]), (double)by_unit.value[j], dot);
        });
        dot = warp_reduce<Sum>(dot);
        UnitFactors<R> by(square[i], dot, of.eps);
        of.template along<N>([&](int64_t k) {
            Pack<From, N> pack = load_pack<From, N>(x + k);
            Pack<R, N> out = load_pack<R, N>(own + k);
            for (int j = 0; j < N; j++)
                out.value[j] = (out.value[j] - to_real(pack.value[j]) * by.slope) * by.inverse;
            store_pack(own + k, out);
        });
    });
}

/* Elements that both types move in one access of at most 16 bytes. */
template <class A, class B> constexpr int common_pack()
{
    return 16 / (int)(sizeof(A) > sizeof(B) ? sizeof(A) : sizeof(B));
}

/* Whether each row begins at a multiple of 16 bytes of packs of N. */
template <int N> static bool aligned_rows_of(int64_t in, const void *a, const void *b)
{
    return in % N == 0 && aligned16(a, b);
}

shard_status shard_cuda_unit_rows(shard_device *device, int64_t n, int64_t in, const int64_t *list, const void *rows,
                                  shard_dtype from, double eps, double *square, void *unit, shard_dtype to)
{
    if (n == 0)
        return SHARD_OK;
    return by_float(from, [&](auto f) {
        return by_float(to, [&](auto t) {
            using From = decltype(f);
            using To = decltype(t);
            if constexpr (std::is_same<Real<From>, Real<To>>::value) {
                constexpr int N = common_pack<From, To>();
                MatrixRows<From> of = {n, in, list, (const From *)rows, eps};
                auto kernel = aligned_rows_of<N>(in, rows, unit) ? unit_rows<From, To, N> : unit_rows<From, To, 1>;
                return launch(device, kernel, blocks_for(device, n, BLOCK / WARP), BLOCK, of, square, (To *)unit);
            } else {
                return shard_error(SHARD_ERROR_INTERNAL, "cuda: unit_rows of dtype %d to %d", (int)from, (int)to);
            }
        });
    });
}

shard_status shard_cuda_unit_rows_backward(shard_device *device, int64_t n, int64_t in, const int64_t *list, const void *rows,
                                           shard_dtype from, double eps, const double *square, void *gradient)
{
    if (n == 0)
        return SHARD_OK;
    return by_float(from, [&](auto f) {
        using From = decltype(f);
        using R = Real<From>;
        constexpr int N = common_pack<From, R>();
        MatrixRows<From> of = {n, in, list, (const From *)rows, eps};
        auto kernel = aligned_rows_of<N>(in, rows, gradient) ? unit_rows_backward<From, N> : unit_rows_backward<From, 1>;
        return launch(device, kernel, blocks_for(device, n, BLOCK / WARP), BLOCK, of, square, (R *)gradient);
    });
}
