/*
 * Batch norm over [rows, channels]. Sums, means and deviations are double. The mean is the sum of its float value,
 * which is subtracted first, and a rest, which goes into the constant term, so that float loses little of x - mean.
 */
#include "device/cuda/columns.cuh"

using namespace shard;

/* Calls body(T(), N): N channels in one access where all arrays (NULL counts) and each row are aligned, else one. */
template <class Body, class... Pointers>
static shard_status by_channels(shard_dtype dtype, int64_t channels, Body &&body, Pointers... pointers)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        if (channels % Pack<T>::SIZE == 0 && aligned16(pointers...))
            return body(t, std::integral_constant<int, Pack<T>::SIZE>());
        return body(t, std::integral_constant<int, 1>());
    });
}

/* ---- sums ---- */

/* Of d and d^2, d = x - shift. Finish has each channel's shift, and takes its sums. */
template <class T, int N, class Finish> struct BatchNormSums {
    enum { AHEAD = 4 };
    struct Term {
        double shift;
    };
    struct Item {
        Pack<T, N> x;
    };
    const T *x;
    int64_t channels;
    Finish finish;

    __device__ Term term(int64_t channel) const
    {
        return Term{finish.shift_of(channel)};
    }
    __device__ Item load(int64_t row, int64_t channel) const
    {
        return Item{load_pack<T, N>(x + row * channels + channel)};
    }
    __device__ void take(const Item &item, const Term (&t)[N], int64_t, int64_t, double (&sum)[SUMS][N]) const
    {
        for (int k = 0; k < N; k++) {
            double d = (double)to_real(item.x.value[k]) - t[k].shift;
            sum[0][k] += d;
            sum[1][k] = fma(d, d, sum[1][k]);
        }
    }
    __device__ void store(int64_t channel, const double *sum) const
    {
        finish.take(channel, sum[0], sum[1]);
    }
};

struct KeepSums {
    const double *shift;
    int64_t channels;
    double *sums;

    __device__ double shift_of(int64_t channel) const
    {
        return shift ? shift[channel] : 0;
    }
    __device__ void take(int64_t channel, double sum, double squares) const
    {
        sums[channel] = sum;
        sums[channels + channel] = squares;
    }
};

shard_status shard_cuda_batch_norm_sums(shard_device *device, int64_t rows, int64_t channels, const void *x, const double *shift,
                                        double *sums, shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    return by_channels(
        dtype, channels,
        [&](auto t, auto n) {
            using T = decltype(t);
            BatchNormSums<T, n(), KeepSums> form = {(const T *)x, channels, {shift, channels, sums}};
            return run_sums<n()>(device, form, rows, channels);
        },
        x);
}

/* x, dy and y of some channels of a row; dy counts but where y is 0 or less; everywhere without y. */
template <class T, int N> struct BatchNormItem {
    Pack<T, N> x, dy, y;
    __device__ BatchNormItem()
    {
    }
    __device__ BatchNormItem(const T *x_, const T *dy_, const T *y_, int64_t at)
        : x(load_pack<T, N>(x_ + at)), dy(load_pack<T, N>(dy_ + at))
    {
        if (y_)
            y = load_pack<T, N>(y_ + at);
    }
    __device__ Real<T> gradient(bool relu, int k) const
    {
        return relu && to_real(y.value[k]) <= 0 ? 0 : to_real(dy.value[k]);
    }
};

/* Of dz and dz (x - mean) rstd. */
template <class T, int N> struct BatchNormGradientSums {
    enum { AHEAD = 2 };
    using Item = BatchNormItem<T, N>;
    struct Term {
        double mean;
    };
    const T *x, *y, *dy;
    const double *mean, *rstd;
    int64_t channels;
    double *sums;
    Real<T> *dgamma, *dbeta;

    __device__ Term term(int64_t channel) const
    {
        return Term{mean[channel]};
    }
    __device__ Item load(int64_t row, int64_t channel) const
    {
        return Item(x, dy, y, row * channels + channel);
    }
    __device__ void take(const Item &item, const Term (&t)[N], int64_t, int64_t, double (&sum)[SUMS][N]) const
    {
        for (int k = 0; k < N; k++) {
            double dz = (double)item.gradient(y != NULL, k);
            sum[0][k] += dz;
            sum[1][k] = fma(dz, (double)to_real(item.x.value[k]) - t[k].mean, sum[1][k]);
        }
    }
    __device__ void store(int64_t channel, const double *sum) const
    {
        double product = sum[1] * rstd[channel];
        sums[channel] = sum[0];
        sums[channels + channel] = product;
        if (dbeta)
            dbeta[channel] = (Real<T>)sum[0];
        if (dgamma)
            dgamma[channel] = (Real<T>)product;
    }
};

shard_status shard_cuda_batch_norm_backward_sums(shard_device *device, int64_t rows, int64_t channels, const void *x,
                                                 const void *y, const void *dy, const double *mean, const double *rstd,
                                                 double *sums, void *dgamma, void *dbeta, shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    return by_channels(
        dtype, channels,
        [&](auto t, auto n) {
            using T = decltype(t);
            using R = Real<T>;
            return run_sums<n()>(device,
                                 BatchNormGradientSums<T, n()>{(const T *)x, (const T *)y, (const T *)dy, mean, rstd, channels,
                                                               sums, (R *)dgamma, (R *)dbeta},
                                 rows, channels);
        },
        x, y, dy);
}

/* ---- from sums to statistics, a thread for each channel ---- */

static __device__ inline int64_t own_channel()
{
    return (int64_t)blockIdx.x * BLOCK + threadIdx.x;
}

static __global__ void unshift(double rows, int64_t channels, const double *shift, double *sums)
{
    int64_t c = own_channel();
    if (c >= channels)
        return;
    double off = sums[c] / rows, mean = shift[c] + off;
    sums[channels + c] = sums[channels + c] - rows * off * off + rows * mean * mean;
    sums[c] = rows * mean;
}

shard_status shard_cuda_batch_norm_unshift(shard_device *device, int64_t rows, int64_t channels, const double *shift,
                                           double *sums)
{
    if (rows == 0 || channels == 0 || !shift)
        return SHARD_OK;
    return launch(device, unshift, (unsigned)divide_up(channels, BLOCK), BLOCK, (double)rows, channels, shift, sums);
}

/* From the sums of a channel to its mean and deviation, which the running ones follow. */
template <class R> struct Statistics {
    double count, eps, momentum;
    R *running_mean, *running_var; /* NULL: there are none */
    double *mean, *rstd;

    /* running = (1 - momentum) running + momentum now. */
    __device__ void follow(double now, R *running) const
    {
        *running = (R)((1 - momentum) * (double)*running + momentum * now);
    }
    __device__ void set(int64_t c, double shift, double sum, double sum_of_squares) const
    {
        double off = count > 0 ? sum / count : 0; /* of the mean from the shift */
        double squares = count > 0 ? sum_of_squares - count * off * off : 0;
        squares = squares < 0 ? 0 : squares;
        double now = shift + off;
        mean[c] = now;
        rstd[c] = 1 / sqrt((count > 0 ? squares / count : 0) + eps);
        if (running_mean && count > 0) {
            follow(now, &running_mean[c]);
            follow(squares / (count - 1), &running_var[c]);
        }
    }
};

/* The same of sums about the first row. */
template <class T> struct Measured {
    Statistics<Real<T>> to;
    const T *first; /* NULL: there are no rows */

    __device__ double shift_of(int64_t c) const
    {
        return first ? (double)to_real(first[c]) : 0;
    }
    __device__ void take(int64_t c, double sum, double squares) const
    {
        to.set(c, shift_of(c), sum, squares);
    }
};

template <class R> static __global__ void statistics(int64_t channels, const double *shift, const double *sums, Statistics<R> to)
{
    int64_t c = own_channel();
    if (c < channels)
        to.set(c, shift ? shift[c] : 0, sums[c], sums[channels + c]);
}

shard_status shard_cuda_batch_norm_statistics(shard_device *device, int64_t channels, double count, const double *shift,
                                              const double *sums, double eps, double momentum, void *running_mean,
                                              void *running_var, double *mean, double *rstd, shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using R = Real<decltype(t)>;
        Statistics<R> to = {count, eps, momentum, (R *)running_mean, (R *)running_var, mean, rstd};
        return launch(device, statistics<R>, (unsigned)divide_up(channels, BLOCK), BLOCK, channels, shift, sums, to);
    });
}

shard_status shard_cuda_batch_norm_measure(shard_device *device, int64_t rows, int64_t channels, const void *x, double eps,
                                           double momentum, void *running_mean, void *running_var, double *mean, double *rstd,
                                           shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    return by_channels(
        dtype, channels,
        [&](auto t, auto n) {
            using T = decltype(t);
            using R = Real<T>;
            Statistics<R> to = {(double)rows, eps, momentum, (R *)running_mean, (R *)running_var, mean, rstd};
            BatchNormSums<T, n(), Measured<T>> form = {(const T *)x, channels, {to, rows ? (const T *)x : NULL}};
            return run_sums<n()>(device, form, rows, channels);
        },
        x);
}

template <class R>
static __global__ void recall(int64_t channels, const R *running_mean, const R *running_var, double eps, double *mean,
                              double *rstd)
{
    int64_t c = own_channel();
    if (c >= channels)
        return;
    mean[c] = (double)running_mean[c];
    rstd[c] = 1 / sqrt((double)running_var[c] + eps);
}

shard_status shard_cuda_batch_norm_recall(shard_device *device, int64_t channels, const void *running_mean,
                                          const void *running_var, double eps, double *mean, double *rstd, shard_dtype dtype)
{
    if (channels == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using R = Real<decltype(t)>;
        return launch(device, recall<R>, (unsigned)divide_up(channels, BLOCK), BLOCK, channels, (const R *)running_mean,
                      (const R *)running_var, eps, mean, rstd);
    });
}

/* ---- forward ---- */

/* y = scale * (x - center) + offset + residual. */
template <class T, int N> struct BatchNormForward {
    enum { AHEAD = 4 };
    using R = Real<T>;
    struct Term {
        R center, scale, offset;
    };
    struct Item {
        Pack<T, N> x, residual;
    };
    const T *x, *residual;
    const double *mean, *rstd;
    const R *gamma, *beta;
    int64_t channels;
    int64_t relu;
    T *y;

    __device__ Term term(int64_t c) const
    {
        double factor = (gamma ? (double)gamma[c] : 1) * rstd[c];
        Term t;
        t.center = (R)mean[c];
        t.scale = (R)factor;
        t.offset = (R)((beta ? (double)beta[c] : 0) + ((double)t.center - mean[c]) * factor);
        return t;
    }
    __device__ Item load(int64_t row, int64_t channel) const
    {
        Item item = {};
        item.x = load_pack<T, N>(x + row * channels + channel);
        if (residual)
            item.residual = load_pack<T, N>(residual + row * channels + channel);
        return item;
    }
    __device__ void take(const Item &item, const Term (&t)[N], int64_t row, int64_t channel) const
    {
        Pack<T, N> out;
        R lowest = relu ? (R)0 : (R)-INFINITY;
        for (int k = 0; k < N; k++) {
            R value = t[k].scale * (to_real(item.x.value[k]) - t[k].center) + t[k].offset;
            if (residual)
                value += to_real(item.residual.value[k]);
            out.value[k] = round_to<T>(lowest > value ? lowest : value);
        }
        store_pack(y + row * channels + channel, out);
    }
};

shard_status shard_cuda_batch_norm(shard_device *device, int64_t rows, int64_t channels, const void *x, const double *mean,
                                   const double *rstd, const void *gamma, const void *beta, const void *residual, bool relu,
                                   void *y, shard_dtype dtype)
{
    if (rows == 0 || channels == 0)
        return SHARD_OK;
    return by_channels(
        dtype, channels,
        [&](auto t, auto n) {
            using T = decltype(t);
            using R = Real<T>;
            return run_map<n()>(device,
                                BatchNormForward<T, n()>{(const T *)x, (const T *)residual, mean, rstd, (const R *)gamma,
                                                         (const R *)beta, channels, relu, (T *)y},
                                rows, channels);
        },
        x, residual, y);
}

/* ---- backward ---- */

/* dx = scale * (dz - offset - (x - center) * slope), dresidual = dz. */
template <class T, int N> struct BatchNormBackward {
    enum { AHEAD = 2 };
    using R = Real<T>;
    using Item = BatchNormItem<T, N>;
    struct Term {
        R center, scale, offset, slope;
    };
    const T *x, *y, *dy;
    const double *mean, *rstd;
    const R *gamma;
    const double *sums;
    double count;
    int64_t channels;
    T *dx, *dresidual;

    __device__ Term term(int64_t c) const
    {
        double correlation = count > 0 ? rstd[c] * sums[channels + c] / count : 0;
        Term t;
        t.center = (R)mean[c];
        t.scale = (R)((gamma ? (double)gamma[c] : 1) * rstd[c]);
        t.offset = (R)((count > 0 ? sums[c] / count : 0) + ((double)t.center - mean[c]) * correlation);
        t.slope = (R)correlation;
        return t;
    }
    __device__ Item load(int64_t row, int64_t channel) const
    {
        return Item(x, dy, y, row * channels + channel);
    }
    __device__ void take(const Item &item, const Term (&t)[N], int64_t row, int64_t channel) const
    {
        Pack<T, N> out, dz;
        for (int k = 0; k < N; k++) {
            R gradient = item.gradient(y != NULL, k);
            dz.value[k] = round_to<T>(gradient);
            out.value[k] =
                round_to<T>(t[k].scale * (gradient - t[k].offset - (to_real(item.x.value[k]) - t[k].center) * t[k].slope));
        }
        if (dresidual)
            store_pack(dresidual + row * channels + channel, dz);
        if (dx)
            store_pack(dx + row * channels + channel, out);
    }
};

shard_status shard_cuda_batch_norm_backward(shard_device *device, int64_t rows, int64_t channels, const void *x, const void *y,
                                            const void *dy, const double *mean, const double *rstd, const void *gamma,
                                            const double *sums, double count, void *dx, void *dresidual, shard_dtype dtype)
{
    if (rows == 0 || channels == 0)
        return SHARD_OK;
    return by_channels(
        dtype, channels,
        [&](auto t, auto n) {
            using T = decltype(t);
            using R = Real<T>;
            return run_map<n()>(device,
                                BatchNormBackward<T, n()>{(const T *)x, (const T *)y, (const T *)dy, mean, rstd, (const R *)gamma,
                                                          sums, count, channels, (T *)dx, (T *)dresidual},
                                rows, channels);
        },
        x, y, dy, dx, dresidual);
}
