/*
 * The sum of |x|^power, or the largest |x|. Each block strides over the array, several
 * packs under way in a thread; where there are several blocks, a second launch joins
 * what they have found. In double, and in an order that n and x's alignment decide.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

enum { AHEAD = 4 };

struct Square {
    using Join = Sum;
    __device__ double of(double x) const { return x * x; }
};
struct Power {
    using Join = Sum;
    double power;
    __device__ double of(double x) const { return power == 1 ? fabs(x) : pow(fabs(x), power); }
};
struct Largest {
    using Join = Maximum;
    __device__ double of(double x) const { return fabs(x); }
};
/* Of what is found already. */
template <class Form> struct Found {
    using Join = typename Form::Join;
    __device__ double of(double x) const { return x; }
};

template <class T, int N, class Form> static __global__ void power_sum(int64_t n, int64_t packs, const T *x, Form form, double *sums)
{
    int64_t first = (int64_t)blockIdx.x * BLOCK + threadIdx.x, stride = (int64_t)gridDim.x * BLOCK;
    double sum[N] = {};
    for (int64_t i = first; i < packs; i += AHEAD * stride) {
        Pack<T, N> in[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (i + a * stride < packs)
                in[a] = load_pack<T, N>(x + (i + a * stride) * N);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (i + a * stride < packs)
                for (int k = 0; k < N; k++)
                    sum[k] = Form::Join::join(sum[k], form.of((double)to_real(in[a].value[k])));
    }
    for (int64_t i = packs * N + first; i < n; i += stride)
        sum[0] = Form::Join::join(sum[0], form.of((double)to_real(x[i])));
    for (int k = 1; k < N; k++)
        sum[0] = Form::Join::join(sum[0], sum[k]);
    double all = block_reduce<BLOCK, typename Form::Join>(sum[0]);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = all;
}

template <class T, class Form> static shard_status run(shard_device *device, int64_t n, const T *x, Form form, double *sum)
{
    const int pack = Pack<T>::SIZE;
    unsigned blocks = blocks_for(device, n, (int64_t)BLOCK * pack * AHEAD);
    int64_t packs = aligned16(x) ? n / pack : 0;
    if (blocks == 1)
        return launch(device, power_sum<T, pack, Form>, 1, BLOCK, n, packs, x, form, sum);
    double *sums = (double *)shard_cuda_scratch(device, blocks * sizeof *sums);
    if (!sums)
        return shard_last_status();
    shard_status status = launch(device, power_sum<T, pack, Form>, blocks, BLOCK, n, packs, x, form, sums);
    if (status == SHARD_OK)
        status = launch(device, power_sum<double, 1, Found<Form>>, 1, BLOCK, (int64_t)blocks, (int64_t)0, (const double *)sums,
                        Found<Form>(), sum);
    shard_cuda_scratch_release(device, sums, blocks * sizeof *sums);
    return status;
}

shard_status shard_cuda_power_sum(shard_device *device, int64_t n, double power, const void *x, double *sum, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        if (power == 2)
            return run(device, n, (const T *)x, Square(), sum);
        if (power == INFINITY)
            return run(device, n, (const T *)x, Largest(), sum);
        return run(device, n, (const T *)x, Power{power}, sum);
    });
}
