/*
 * Layer norm over the rows of [rows, cols]. Statistics are double, summed about the row's first element, against
 * cancellation. The constant term has the digits of the mean that float loses.
 */
#include "device/cuda/columns.cuh"
#include "device/cuda/rows.cuh"

using namespace shard;

/* Two sums over a row, or a chunk of it. */
struct RowSums {
    double first, second;
};

template <int LANES> static __device__ inline RowSums team_sums(double first, double second)
{
    RowSums sums;
    sums.first = team_reduce<LANES, Sum>(first);
    sums.second = team_reduce<LANES, Sum>(second);
    return sums;
}

template <int LANES> static __device__ inline RowSums join_sums(const RowSums *parts, int64_t chunks, int lane)
{
    double first = 0, second = 0;
    for (int64_t i = lane; i < chunks; i += LANES) {
        first += parts[i].first;
        second += parts[i].second;
    }
    return team_sums<LANES>(first, second);
}

/* Parameters from a column on, or all `missing` if they are NULL. */
template <int N, class R> static __device__ inline void load_parameters(const R *from, int64_t column, R missing, R (&to)[N])
{
    if (!from) {
        for (int k = 0; k < N; k++)
            to[k] = missing;
    } else if (N > 1 && ((uintptr_t)(from + column) & 15) == 0) {
        enum { SIZE = N < Pack<R>::SIZE ? N : (int)Pack<R>::SIZE };
        for (int k = 0; k < N; k += SIZE) {
            Pack<R, SIZE> pack = load_pack<R, SIZE>(from + column + k);
            for (int j = 0; j < SIZE; j++)
                to[k + j] = pack.value[j];
        }
    } else {
        for (int k = 0; k < N; k++)
            to[k] = from[column + k];
    }
}

/* ---- forward ---- */

template <class T> struct LayerNorm {
    using R = Real<T>;
    using Part = RowSums; /* of x - the row's first, and of its square */
    const T *x;
    const R *gamma, *beta;
    int64_t cols;
    double eps;
    T *y;
    double *mean, *rstd;
    int64_t packed;

    template <int LANES> __device__ Part measure(int64_t row, int64_t start, int64_t count, int lane) const
    {
        const T *from = x + row * cols + start;
        double shift = (double)to_real(x[row * cols]), sum = 0, squares = 0;
        auto add = [&](R value) {
            double d = (double)value - shift;
            sum += d;
            squares = fma(d, d, squares);
        };
        walk(
            Cut<T>(from, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first };
                R value[COUNT * Pack<T>::SIZE];
                load_batch<T, COUNT>(from, first, value);
#pragma unroll
                for (R v : value)
                    add(v);
            },
            [&](int64_t i) { add(to_real(from[i])); });
        return team_sums<LANES>(sum, squares);
    }

    template <int LANES> __device__ Part join(const Part *parts, int64_t chunks, int lane) const
    {
        return join_sums<LANES>(parts, chunks, lane);
    }

    template <int LANES> __device__ void write(int64_t row, int64_t start, int64_t count, int lane, const Part &sums) const
    {
        double off = sums.first / (double)cols, middle = (double)to_real(x[row * cols]) + off;
        double variance = sums.second / (double)cols - off * off, inverse = 1 / sqrt((variance < 0 ? 0 : variance) + eps);
        R center = (R)middle, factor = (R)inverse, rest = (R)(((double)center - middle) * inverse);
        if (start == 0 && lane == 0) {
            mean[row] = middle;
            rstd[row] = inverse;
        }
        auto result = [&](R value, R g, R b) { return ((value - center) * factor + rest) * g + b; };
        const T *from = x + row * cols + start;
        T *to = y + row * cols + start;
        walk(
            Cut<T>(from, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE];
                load_batch<T, COUNT>(from, first, value);
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    R g[SIZE], b[SIZE];
                    load_parameters(gamma, start + first[k], (R)1, g);
                    load_parameters(beta, start + first[k], (R)0, b);
#pragma unroll
                    for (int j = 0; j < SIZE; j++)
                        value[k * SIZE + j] = result(value[k * SIZE + j], g[j], b[j]);
                }
                store_batch<T, COUNT>(to, first, value);
            },
            [&](int64_t i) {
                R g = gamma ? gamma[start + i] : 1, b = beta ? beta[start + i] : 0;
                to[i] = round_to<T>(result(to_real(from[i]), g, b));
            });
    }
};

shard_status shard_cuda_layer_norm(shard_device *device, int64_t rows, int64_t cols, const void *x, const void *gamma,
                                   const void *beta, double eps, void *y, double *mean, double *rstd, shard_dtype dtype)
{
    if (rows == 0 || cols == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        using R = Real<T>;
        LayerNorm<T> form = {
            (const T *)x, (const R *)gamma, (const R *)beta, cols, eps, (T *)y, mean, rstd, aligned_alike(x, y)};
        return run_rows(device, form, cut_rows(device, rows, cols), short_rows(cols, sizeof(T)));
    });
}

/* ---- backward ---- */

/* dx = rstd (g - mean g - xhat mean (g xhat)), with g = gamma dy. */
template <class T> struct LayerNormBackward {
    using R = Real<T>;
    using Part = RowSums; /* of g and g (x - mean) */
    const T *x, *dy;
    const R *gamma;
    const double *mean, *rstd;
    int64_t cols;
    T *dx;
    int64_t packed;

    template <int LANES> __device__ Part measure(int64_t row, int64_t start, int64_t count, int lane) const
    {
        const T *from = x + row * cols + start, *gradient = dy + row * cols + start;
        double middle = mean[row], sum = 0, products = 0;
        auto add = [&](R value, R dz, R factor) {
            double g = (double)dz * (double)factor;
            sum += g;
            products = fma(g, (double)value - middle, products);
        };
        walk<PACKS / 2>(
            Cut<T>(from, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE], dz[COUNT * SIZE];
                load_batch<T, COUNT>(from, first, value);
                load_batch<T, COUNT>(gradient, first, dz);
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    R factor[SIZE];
                    load_parameters(gamma, start + first[k], (R)1, factor);
#pragma unroll
                    for (int j = 0; j < SIZE; j++)
                        add(value[k * SIZE + j], dz[k * SIZE + j], factor[j]);
                }
            },
            [&](int64_t i) { add(to_real(from[i]), to_real(gradient[i]), gamma ? gamma[start + i] : 1); });
        return team_sums<LANES>(sum, products);
    }

    template <int LANES> __device__ Part join(const Part *parts, int64_t chunks, int lane) const
    {
        return join_sums<LANES>(parts, chunks, lane);
    }

    template <int LANES> __device__ void write(int64_t row, int64_t start, int64_t count, int lane, const Part &sums) const
    {
        double correlation = sums.second * rstd[row] / (double)cols * rstd[row];
        R center = (R)mean[row], factor = (R)rstd[row], slope = (R)correlation;
        R constant = (R)(sums.first / (double)cols + ((double)center - mean[row]) * correlation);
        auto result = [&](R value, R dz, R g) { return factor * (dz * g - constant - (value - center) * slope); };
        const T *from = x + row * cols + start, *gradient = dy + row * cols + start;
        T *to = dx + row * cols + start;
        walk<PACKS / 2>(
            Cut<T>(from, count, packed), lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE], dz[COUNT * SIZE];
                load_batch<T, COUNT>(from, first, value);
                load_batch<T, COUNT>(gradient, first, dz);
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    R g[SIZE];
                    load_parameters(gamma, start + first[k], (R)1, g);
#pragma unroll
                    for (int j = 0; j < SIZE; j++)
                        dz[k * SIZE + j] = result(value[k * SIZE + j], dz[k * SIZE + j], g[j]);
                }
                store_batch<T, COUNT>(to, first, dz);
            },
            [&](int64_t i) {
                to[i] = round_to<T>(result(to_real(from[i]), to_real(gradient[i]), gamma ? gamma[start + i] : 1));
            });
    }
};

/* The columns' sums of dy and dy xhat. */
template <class T, int N> struct LayerNormParameters {
    enum { AHEAD = 2 };
    using R = Real<T>;
    struct Term {
    };
    struct Item {
        Pack<T, N> x, dy;
        double mean, rstd;
    };
    const T *x, *dy;
    const double *mean, *rstd;
    int64_t cols;
    R *dgamma, *dbeta;

    __device__ Term term(int64_t) const
    {
        return Term();
    }
    __device__ Item load(int64_t row, int64_t column) const
    {
        int64_t at = row * cols + column;
        return Item{load_pack<T, N>(x + at), load_pack<T, N>(dy + at), mean[row], rstd[row]};
    }
    __device__ void take(const Item &item, const Term (&)[N], int64_t, int64_t, double (&sum)[SUMS][N]) const
    {
        for (int k = 0; k < N; k++) {
            double dz = (double)to_real(item.dy.value[k]);
            sum[0][k] += dz;
            sum[1][k] = fma(dz, ((double)to_real(item.x.value[k]) - item.mean) * item.rstd, sum[1][k]);
        }
    }
    __device__ void store(int64_t column, const double *sum) const
    {
        dbeta[column] = (R)sum[0];
        dgamma[column] = (R)sum[1];
    }
};

template <class T, int N>
static shard_status parameters(shard_device *device, int64_t rows, const LayerNormBackward<T> &l, void *dgamma, void *dbeta)
{
    using R = Real<T>;
    LayerNormParameters<T, N> form = {l.x, l.dy, l.mean, l.rstd, l.cols, (R *)dgamma, (R *)dbeta};
    return run_sums<N>(device, form, rows, l.cols);
}

/* The parameters' gradients first: dx may be dy. */
shard_status shard_cuda_layer_norm_backward(shard_device *device, int64_t rows, int64_t cols, const void *x, const void *gamma,
                                            const double *mean, const double *rstd, const void *dy, void *dx, void *dgamma,
                                            void *dbeta, shard_dtype dtype)
{
    if (cols == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const T *from = (const T *)x;
        bool packed = aligned_alike(from, dy) && aligned_alike(from, dx), wide = cols % Pack<T>::SIZE == 0 && aligned16(x, dy);
        LayerNormBackward<T> form = {from, (const T *)dy, (const Real<T> *)gamma, mean, rstd, cols, (T *)dx, packed};
        if (gamma)
            SHARD_TRY(wide ? (parameters<T, Pack<T>::SIZE>(device, rows, form, dgamma, dbeta))
                           : (parameters<T, 1>(device, rows, form, dgamma, dbeta)));
        if (!dx || rows == 0)
            return SHARD_OK;
        return run_rows(device, form, cut_rows(device, rows, cols), short_rows(cols, sizeof(T)));
    });
}
