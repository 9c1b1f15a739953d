/*
 * Functions of one number and their gradients.
 *
 * The forms of gelu are x P(x), with P the normal distribution or, for GELU_TANH,
 * the logistic function of 2 u, u = sqrt(2 / pi) (x + 0.044715 x^3), which is
 * (1 + tanh u) / 2. P is right to a few units in the tails too, where
 * 1 + erf(x / sqrt(2)) has lost all digits.
 */
#include "device/cuda/map.cuh"

using namespace shard;

static const double ROOT = 0.79788456080286535588; /* sqrt(2 / pi) */
static const double CUBIC = 0.044715;

static __device__ inline float exponential(float x)
{
    return expf(x);
}
static __device__ inline double exponential(double x)
{
    return exp(x);
}

/* P(x); *density is exp(-x^2 / 2). */
static __device__ inline double normal(double x, double *density)
{
    *density = exponential(-0.5 * x * x);
    return normcdf(x);
}

/* P(-t) for t >= 0 is exp(-t^2 / 2) times a function that a polynomial in (t - 4) / (t + 4) of degree 9
 * gives with a relative error of 2^-25, up to t = 14.5, beyond which P(-t) is 0. The rounding of t^2,
 * which the exponential would magnify, is made good. */
static __device__ inline float normal(float x, float *density)
{
    const float coefficient[] = {-6.52831432e-5f, -1.67822713e-4f, 6.57762858e-4f, 5.02549268e-4f,  -8.49791789e-3f,
                                 3.08654993e-2f,  -7.17067428e-2f, 1.24379202e-1f, -1.70397741e-1f, 9.44106422e-2f};
    float t = fminf(fabsf(x), 16), square = t * t, rounding = __fmaf_rn(t, t, -square);
    float bell = exponential(-0.5f * square), u = __fdividef(t - 4, t + 4), sum = coefficient[0];
    bell = __fmaf_rn(bell, -0.5f * rounding, bell);
#pragma unroll
    for (int i = 1; i < 10; i++)
        sum = __fmaf_rn(sum, u, coefficient[i]);
    *density = bell;
    return x < 0 ? sum * bell : 1 - sum * bell;
}

#define SHARD_BOTH(name, function)                                                                                               \
    static __device__ inline float name(float x)                                                                                 \
    {                                                                                                                            \
        return function##f(x);                                                                                                   \
    }                                                                                                                            \
    static __device__ inline double name(double x)                                                                               \
    {                                                                                                                            \
        return function(x);                                                                                                      \
    }
SHARD_BOTH(logarithm, log)
SHARD_BOTH(logarithm_of_next, log1p)
SHARD_BOTH(root, sqrt)
SHARD_BOTH(inverse_root, rsqrt)
SHARD_BOTH(size_of, fabs)
SHARD_BOTH(hyperbolic_tangent, tanh)
#undef SHARD_BOTH

static __device__ inline float raise_to(float x, float power)
{
    return powf(x, power);
}
static __device__ inline double raise_to(double x, double power)
{
    return pow(x, power);
}

/* 1 / (1 + exp(-2 u)), and its factor in the derivative with respect to 2 u. */
template <class R> static __device__ inline R logistic(R u, R *rest)
{
    R e = exponential(u < 0 ? 2 * u : -2 * u), inverse = 1 / (1 + e);
    *rest = (u < 0 ? 1 : e) * inverse;
    return (u < 0 ? e : 1) * inverse;
}

/* x^power, as torch.pow: some powers are products, quotients and roots. */
template <class R> static __device__ inline R raise(R x, R power)
{
    return power == 0         ? 1
           : power == 1       ? x
           : power == 2       ? x * x
           : power == 3       ? x * x * x
           : power == -1      ? 1 / x
           : power == (R)0.5  ? root(x)
           : power == (R)-0.5 ? 1 / root(x)
                              : raise_to(x, power);
}

/* The kind's scalars. */
template <class R> struct Scalars {
    R first, second;
};

/* With z = beta x: max(z, 0) + log(1 + exp(-|z|)), in which nothing overflows. */
template <class R> static __device__ inline R softplus(R x, Scalars<R> scalars)
{
    R z = scalars.first * x, sum = (z > 0 ? z : 0) + logarithm_of_next(exponential(z < 0 ? z : -z));
    return z > scalars.second ? x : sum / scalars.first;
}

template <class R, shard_unary UNARY> static __device__ inline R value(R x, Scalars<R> scalars)
{
    R rest;
    switch (UNARY) {
    case SHARD_RELU:
        return 0 > x ? 0 : x;
    case SHARD_LEAKY_RELU:
        return x > 0 ? x : x * scalars.first;
    case SHARD_GELU:
        return x * normal(x, &rest);
    case SHARD_GELU_TANH:
        return x * logistic((R)ROOT * x * (1 + (R)CUBIC * x * x), &rest);
    case SHARD_SILU:
        return x * logistic(x / 2, &rest);
    case SHARD_SOFTPLUS:
        return softplus(x, scalars);
    case SHARD_EXP:
        return exponential(x);
    case SHARD_LOG:
        return logarithm(x);
    case SHARD_LOG1P:
        return logarithm_of_next(x);
    case SHARD_SQRT:
        return root(x);
    case SHARD_RSQRT:
        return inverse_root(x);
    case SHARD_ABS:
        return size_of(x);
    case SHARD_TANH:
        return hyperbolic_tangent(x);
    case SHARD_SIGMOID:
        return logistic(x / 2, &rest);
    case SHARD_SHIFT:
        return x + scalars.first;
    case SHARD_CLAMP:
        x = x < scalars.first ? scalars.first : x;
        return x > scalars.second ? scalars.second : x;
    case SHARD_POWER:
        return raise(x, scalars.first);
    }
    return x;
}

/* Beyond 30 the second term is 0, which its factors' overflow must not hide. */
template <class R> static __device__ inline R gelu_tanh_slope(R x)
{
    R v = x > 30 ? 30 : x < -30 ? -30 : x;
    R rest, square = (R)CUBIC * v * v, part = logistic((R)ROOT * v * (1 + square), &rest);
    return part + 2 * (R)ROOT * v * (1 + 3 * square) * (part * rest);
}

template <class R, shard_unary UNARY> static __device__ inline R gradient(R x, R dy, Scalars<R> scalars)
{
    R part, density, rest;
    switch (UNARY) {
    case SHARD_RELU:
        return x <= 0 ? 0 : dy;
    case SHARD_LEAKY_RELU:
        return x > 0 ? dy : dy * scalars.first;
    case SHARD_GELU:
        part = normal(x, &density);
        return dy * (part + x * ((R)0.39894228040143267794 * density));
    case SHARD_GELU_TANH:
        return dy * gelu_tanh_slope(x);
    case SHARD_SILU:
        part = logistic(x / 2, &rest);
        return dy * (part + x * (part * rest));
    case SHARD_SOFTPLUS:
        part = logistic(scalars.first * x / 2, &rest);
        return scalars.first * x > scalars.second ? dy : dy * part;
    case SHARD_EXP:
        return dy * x;
    case SHARD_LOG:
        return dy / x;
    case SHARD_LOG1P:
        return dy / (1 + x);
    case SHARD_SQRT:
        return dy / (2 * x);
    case SHARD_RSQRT:
        return (R)-0.5 * dy * (x * x * x);
    case SHARD_ABS:
        return x > 0 ? dy : x < 0 ? -dy : x * 0;
    case SHARD_TANH:
        return dy * (1 - x * x);
    case SHARD_SIGMOID:
        return dy * ((1 - x) * x);
    case SHARD_SHIFT:
        return dy;
    case SHARD_CLAMP:
        return x >= scalars.first && x <= scalars.second ? dy : 0;
    case SHARD_POWER:
        return scalars.first == 0 ? 0 : dy * (scalars.first * raise(x, scalars.first - 1));
    }
    return dy;
}

template <class T, shard_unary UNARY> struct Unary {
    const T *x;
    T *y;
    Scalars<Real<T>> scalars;

    template <int N> using In = Pack<T, N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        return load_pack<T, N>(x + i);
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(value<Real<T>, UNARY>(to_real(in.value[k]), scalars));
        store_pack(y + i, out);
    }
};

template <class T, shard_unary UNARY> struct UnaryBackward {
    const T *x, *dy;
    T *dx;
    Scalars<Real<T>> scalars;

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
            out.value[k] = round_to<T>(gradient<Real<T>, UNARY>(to_real(in.x.value[k]), to_real(in.dy.value[k]), scalars));
        store_pack(dx + i, out);
    }
};

template <class R> static Scalars<R> scalars_of(const double *scalars)
{
    return scalars ? Scalars<R>{(R)scalars[0], (R)scalars[1]} : Scalars<R>{};
}

template <shard_unary UNARY>
static shard_status forward(shard_device *device, const double *scalars, int64_t n, const void *x, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Unary<T, UNARY> body = {(const T *)x, (T *)y, scalars_of<Real<T>>(scalars)};
        return run_map<Pack<T>::SIZE, 4>(device, n, aligned16(x, y), body);
    });
}

template <shard_unary UNARY>
static shard_status backward(shard_device *device, const double *scalars, int64_t n, const void *x, const void *dy, void *dx,
                             shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        UnaryBackward<T, UNARY> body = {(const T *)x, (const T *)dy, (T *)dx, scalars_of<Real<T>>(scalars)};
        return run_map<Pack<T>::SIZE, 2>(device, n, aligned16(x, dy, dx), body);
    });
}

#define SHARD_UNARIES(X)                                                                                                         \
    X(SHARD_RELU)                                                                                                                \
    X(SHARD_LEAKY_RELU)                                                                                                          \
    X(SHARD_GELU)                                                                                                                \
    X(SHARD_GELU_TANH)                                                                                                           \
    X(SHARD_SILU)                                                                                                                \
    X(SHARD_SOFTPLUS)                                                                                                            \
    X(SHARD_EXP)                                                                                                                 \
    X(SHARD_LOG)                                                                                                                 \
    X(SHARD_LOG1P)                                                                                                               \
    X(SHARD_SQRT)                                                                                                                \
    X(SHARD_RSQRT)                                                                                                               \
    X(SHARD_ABS)                                                                                                                 \
    X(SHARD_TANH)                                                                                                                \
    X(SHARD_SIGMOID)                                                                                                             \
    X(SHARD_SHIFT)                                                                                                               \
    X(SHARD_CLAMP)                                                                                                               \
    X(SHARD_POWER)

shard_status shard_cuda_unary(shard_device *device, shard_unary unary, const double *scalars, int64_t n, const void *x, void *y,
                              shard_dtype dtype)
{
    switch (unary) {
#define SHARD_RUN_KIND(kind)                                                                                                     \
    case kind:                                                                                                                   \
        return forward<kind>(device, scalars, n, x, y, dtype);
        SHARD_UNARIES(SHARD_RUN_KIND)
#undef SHARD_RUN_KIND
    }
    return shard_error(SHARD_ERROR_INTERNAL, "cuda: %d is no unary function", (int)unary);
}

shard_status shard_cuda_unary_backward(shard_device *device, shard_unary unary, const double *scalars, int64_t n, const void *x,
                                       const void *dy, void *dx, shard_dtype dtype)
{
    switch (unary) {
#define SHARD_RUN_KIND(kind)                                                                                                     \
    case kind:                                                                                                                   \
        return backward<kind>(device, scalars, n, x, dy, dx, dtype);
        SHARD_UNARIES(SHARD_RUN_KIND)
#undef SHARD_RUN_KIND
    }
    return shard_error(SHARD_ERROR_INTERNAL, "cuda: %d is no unary function", (int)unary);
}
