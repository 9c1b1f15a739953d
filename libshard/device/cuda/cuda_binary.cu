/*
 * Functions of two numbers and their gradients, of operands that are repeated to the
 * result's shape.
 *
 * Invariants: y may be an operand that is not repeated. Operands of y's shape move in packs
 * wherever they are aligned, also where a pack crosses the end of a row; elements of a repeated
 * operand are then read one by one, from the caches. Sums and products of arrays and of rows are kernels of
 * their own; the rest has one for each type, whose kind is known when it runs.
 */
#include "device/cuda/expansion.cuh"

using namespace shard;

static __device__ inline float power_of(float x, float power)
{
    return powf(x, power);
}
static __device__ inline double power_of(double x, double power)
{
    return pow(x, power);
}
static __device__ inline float logarithm(float x)
{
    return logf(x);
}
static __device__ inline double logarithm(double x)
{
    return log(x);
}

template <class R> static __device__ inline R value(shard_binary binary, R a, R b)
{
    switch (binary) {
    case SHARD_ADD:
        return a + b;
    case SHARD_SUB:
        return a - b;
    case SHARD_MUL:
        return a * b;
    case SHARD_DIV:
        return a / b;
    case SHARD_POW:
        return power_of(a, b);
    case SHARD_MINIMUM:
        return a < b || a != a ? a : b;
    case SHARD_MAXIMUM:
        return a > b || a != a ? a : b;
    case SHARD_PRELU:
        return a > 0 ? a : b * a;
    }
    return a;
}

/* Of dy, by the operand. */
template <class R> static __device__ inline R gradient(shard_binary binary, int operand, R a, R b, R dy)
{
    if (binary == SHARD_DIV)
        return -dy * ((a / b) / b);
    if (binary == SHARD_POW && operand == 0)
        return b == 0 ? 0 : dy * (b * power_of(a, b - 1));
    if (binary == SHARD_POW)
        return a == 0 && b >= 0 ? 0 : dy * (power_of(a, b) * logarithm(a));
    if (binary == SHARD_PRELU)
        return a > 0 ? (operand == 0 ? dy : 0) : (operand == 0 ? b : a) * dy;
    bool other = (binary == SHARD_MINIMUM) == (operand == 0) ? a > b : a < b;
    return other ? 0 : a == b ? dy / 2 : dy;
}

/* KIND: a shard_binary, or -1 where it is `binary`. */
template <class T, int KIND, Columns LEFT, Columns RIGHT> struct Binary {
    shard_binary binary;
    Source<T, LEFT> a;
    Source<T, RIGHT> b;
    T *y;

    template <int N> struct In {
        Pack<T, N> a, b;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        const int pack = Pack<T>::SIZE;
        return {a.template load<N, pack>(i), b.template load<N, pack>(i)};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(
                value<Real<T>>(KIND < 0 ? binary : (shard_binary)KIND, to_real(in.a.value[k]), to_real(in.b.value[k])));
        store_pack(y + i, out);
    }
};

template <class T, Columns LEFT, Columns RIGHT> struct BinaryBackward {
    shard_binary binary;
    int operand;
    Source<T, LEFT> a;
    Source<T, RIGHT> b;
    const T *dy;
    T *dx;

    template <int N> struct In {
        Pack<T, N> a, b, dy;
    };
    template <int N> __device__ In<N> load(int64_t i) const
    {
        const int pack = Pack<T>::SIZE;
        return {a.template load<N, pack>(i), b.template load<N, pack>(i), load_pack<T, N>(dy + i)};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        Pack<T, N> out;
        for (int k = 0; k < N; k++)
            out.value[k] = round_to<T>(
                gradient<Real<T>>(binary, operand, to_real(in.a.value[k]), to_real(in.b.value[k]), to_real(in.dy.value[k])));
        store_pack(dx + i, out);
    }
};

/* Two arrays, or one and rows. */
template <class T, int KIND>
static shard_status run_rows(shard_device *device, shard_binary binary, int64_t n, int64_t cols, const T *a, const T *b, T *y)
{
    const int pack = Pack<T>::SIZE;
    if (cols == n)
        return run_map<pack, 2>(device, n, aligned16(a, b, y), Binary<T, KIND, SAME, SAME>{binary, {a, 0}, {b, 0}, y});
    if (cols % pack == 0 && aligned16(b))
        return run_map<pack, 2>(device, n, aligned16(a, y), Binary<T, KIND, SAME, PACKED>{binary, {a, 0}, {b, cols / pack}, y});
    return run_map<pack, 2>(device, n, aligned16(a, y), Binary<T, KIND, SAME, ANY>{binary, {a, 0}, {b, cols}, y});
}

shard_status shard_cuda_binary(shard_device *device, shard_binary binary, const shard_expansion *over, const void *a,
                               const void *b, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const T *left = (const T *)a, *right = (const T *)b;
        int64_t n = shard_expansion_count(over), cols = n;
        bool same = shard_expansion_dense(over, 1);
        if (!shard_expansion_dense(over, 0) || !(same || shard_expansion_by_rows(over, 1, &cols))) {
            Binary<T, -1, STRIDED, STRIDED> body = {binary, {left, *over, 0}, {right, *over, 1}, (T *)y};
            return run_map<Pack<T>::SIZE, 1>(device, n, aligned16(y), body);
        }
        if (binary == SHARD_ADD)
            return run_rows<T, SHARD_ADD>(device, binary, n, cols, left, right, (T *)y);
        if (binary == SHARD_MUL)
            return run_rows<T, SHARD_MUL>(device, binary, n, cols, left, right, (T *)y);
        return run_rows<T, -1>(device, binary, n, cols, left, right, (T *)y);
    });
}

shard_status shard_cuda_binary_backward(shard_device *device, shard_binary binary, int operand, const shard_expansion *over,
                                        const void *a, const void *b, const void *dy, void *dx, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const int pack = Pack<T>::SIZE;
        const T *left = (const T *)a, *right = (const T *)b, *gradient = (const T *)dy;
        int64_t n = shard_expansion_count(over);
        if (shard_expansion_dense(over, 0) && shard_expansion_dense(over, 1)) {
            BinaryBackward<T, SAME, SAME> body = {binary, operand, {left, 0}, {right, 0}, gradient, (T *)dx};
            return run_map<pack, 2>(device, n, aligned16(a, b, dy, dx), body);
        }
        BinaryBackward<T, STRIDED, STRIDED> body = {binary, operand, {left, *over, 0}, {right, *over, 1}, gradient, (T *)dx};
        return run_map<pack, 1>(device, n, aligned16(dy, dx), body);
    });
}
