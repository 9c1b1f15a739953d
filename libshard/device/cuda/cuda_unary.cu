/*
 * relu, gelu and their gradients.
 *
 * The forms of gelu are x P(x), with P the normal distribution or, for GELU_TANH,
 * the logistic function of 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3), which is
 * (1 + tanh u) / 2. CUDA's normcdf is right to a few units in the tails too, where
 * erf(x / sqrt(2)) has lost all digits.
 */
#include "device/cuda/map.cuh"

using namespace shard;

static const double ROOT = 0.79788456080286535588; /* sqrt(2 / pi) */
static const double CUBIC = 0.044715;

static __device__ inline float normal(float x)
{
    return normcdff(x);
}
static __device__ inline double normal(double x)
{
    return normcdf(x);
}

static __device__ inline float exponential(float x)
{
    return expf(x);
}
static __device__ inline double exponential(double x)
{
    return exp(x);
}

/* 1 / (1 + exp(-2 u)), and what it is multiplied by for the derivative by 2 u. */
template <class R> static __device__ inline R logistic(R u, R *rest)
{
    R e = exponential(u < 0 ? 2 * u : -2 * u), inverse = 1 / (1 + e);
    *rest = (u < 0 ? 1 : e) * inverse;
    return (u < 0 ? e : 1) * inverse;
}

template <class R, shard_unary UNARY> static __device__ inline R value(R x)
{
    if (UNARY == SHARD_RELU)
        return 0 > x ? 0 : x;
    if (UNARY == SHARD_GELU)
        return x * normal(x);
    R rest;
    return x * logistic((R)ROOT * x * (1 + (R)CUBIC * x * x), &rest);
}

template <class R, shard_unary UNARY> static __device__ inline R gradient(R x, R dy)
{
    if (UNARY == SHARD_RELU)
        return x <= 0 ? 0 : dy;
    if (UNARY == SHARD_GELU)
        return dy * (normal(x) + x * ((R)0.39894228040143267794 * exponential((R)-0.5 * x * x)));
    /* Beyond 30 the second term is 0, which its factors' overflow must not hide. */
    R v = x > 30 ? 30 : x < -30 ? -30 : x;
    R rest, square = (R)CUBIC * v * v, part = logistic((R)ROOT * v * (1 + square), &rest);
    return dy * (part + 2 * (R)ROOT * v * (1 + 3 * square) * (part * rest));
}

template <class T, shard_unary UNARY> struct Unary {
    const T *x;
    T *y;

    template <int N> using In = Pack<T, N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return load_pack<T, N>(x + i);
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(value<Real<T>, UNARY>(to_real(in.value[k])));
        store_pack(y + i, out);
    }
};

template <class T, shard_unary UNARY> struct UnaryBackward {
    const T *x, *dy;
    T *dx;

    template <int N> struct In {
        Pack<T, N> x, dy;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return {load_pack<T, N>(x + i), load_pack<T, N>(dy + i)};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(gradient<Real<T>, UNARY>(to_real(in.x.value[k]), to_real(in.dy.value[k])));
        store_pack(dx + i, out);
    }
};

template <shard_unary UNARY>
static shard_status forward(shard_device *device, int64_t n, const void *x, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        return run_map<Pack<T>::SIZE, 4>(device, n, aligned16(x, y), Unary<T, UNARY>{(const T *)x, (T *)y});
    });
}

template <shard_unary UNARY>
static shard_status backward(shard_device *device, int64_t n, const void *x, const void *dy, void *dx, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        UnaryBackward<T, UNARY> body = {(const T *)x, (const T *)dy, (T *)dx};
        return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(x, dy, dx), body);
    });
}

shard_status shard_cuda_unary(shard_device *device, shard_unary unary, int64_t n, const void *x, void *y, shard_dtype dtype)
{
    switch (unary) {
    case SHARD_RELU:
        return forward<SHARD_RELU>(device, n, x, y, dtype);
    case SHARD_GELU:
        return forward<SHARD_GELU>(device, n, x, y, dtype);
    default:
        return forward<SHARD_GELU_TANH>(device, n, x, y, dtype);
    }
}

shard_status shard_cuda_unary_backward(shard_device *device, shard_unary unary, int64_t n, const void *x, const void *dy,
                                       void *dx, shard_dtype dtype)
{
    switch (unary) {
    case SHARD_RELU:
        return backward<SHARD_RELU>(device, n, x, dy, dx, dtype);
    case SHARD_GELU:
        return backward<SHARD_GELU>(device, n, x, dy, dx, dtype);
    default:
        return backward<SHARD_GELU_TANH>(device, n, x, dy, dx, dtype);
    }
}
