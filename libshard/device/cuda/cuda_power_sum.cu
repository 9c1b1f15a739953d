/*
 * The sum of |x|^power, or the largest |x|. Each block strides over the array, several packs at a time in a thread;
 * a second launch joins the results of several blocks. In double, and in an order that n determines (and the number
 * of blocks that keep the device busy; for a list's arrays n alone).
 */
#include "device/cuda/list.cuh"

using namespace shard;

enum { AHEAD = 4, ARRAY_BLOCKS = 1024 /* of an array of a list, at most */ };

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
/* Combines with the result so far. */
template <class Form> struct Found {
    using Join = typename Form::Join;
    __device__ double of(double x) const { return x; }
};

/* N elements: in one access, or where x is not aligned for that, one by one. */
template <class T, int N> static __device__ inline Pack<T, N> load(const T *x, bool aligned)
{
    if (aligned)
        return load_pack<T, N>(x);
    Pack<T, N> pack;
    for (int k = 0; k < N; k++)
        pack.value[k] = x[k];
    return pack;
}

/* The result of thread `first` of `stride` threads. */
template <class T, int N, class Form>
static __device__ inline double find(int64_t first, int64_t stride, int64_t n, const T *x, Form form)
{
    int64_t packs = n / N;
    bool aligned = (uintptr_t)x % sizeof(Pack<T, N>) == 0;
    double sum[N] = {};
    for (int64_t i = first; i < packs; i += AHEAD * stride) {
        Pack<T, N> in[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (i + a * stride < packs)
                in[a] = load<T, N>(x + (i + a * stride) * N, aligned);
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
    return sum[0];
}

template <class T, int N, class Form> static __global__ void power_sum(int64_t n, const T *x, Form form, double *sums)
{
    double own = find<T, N>((int64_t)blockIdx.x * BLOCK + threadIdx.x, (int64_t)gridDim.x * BLOCK, n, x, form);
    double all = block_reduce<BLOCK, typename Form::Join>(own);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = all;
}

template <class T, class Form> static shard_status run(shard_device *device, int64_t n, const T *x, Form form, double *sum)
{
    const int pack = Pack<T>::SIZE;
    unsigned blocks = blocks_for(device, n, (int64_t)BLOCK * pack * AHEAD);
    if (blocks == 1)
        return launch(device, power_sum<T, pack, Form>, 1, BLOCK, n, x, form, sum);
    double *sums = (double *)shard_cuda_scratch(device, blocks * sizeof *sums);
    if (!sums)
        return shard_last_status();
    shard_status status = launch(device, power_sum<T, pack, Form>, blocks, BLOCK, n, x, form, sums);
    if (status == SHARD_OK)
        status = launch(device, power_sum<double, 1, Found<Form>>, 1, BLOCK, (int64_t)blocks, (const double *)sums,
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

/* ---- lists ---- */

template <class T> struct Squared {
    int64_t n;
    const T *x;
    double *sum;
};

/* found: of each block */
template <class T, int N> static __global__ void square_sums(const __grid_constant__ List<Squared<T>> list, double *found)
{
    Part part = list.part();
    Squared<T> item = list.item[part.item];
    double own = find<T, N>((int64_t)part.block * BLOCK + threadIdx.x, (int64_t)part.blocks * BLOCK, item.n, item.x, Square());
    double all = block_reduce<BLOCK, Sum>(own);
    if (threadIdx.x == 0)
        found[blockIdx.x] = all;
}

/* A block has an item. */
template <class T> static __global__ void join_squares(const __grid_constant__ List<Squared<T>> list, const double *found)
{
    unsigned from = list.first[blockIdx.x], blocks = list.first[blockIdx.x + 1] - from;
    double all = block_reduce<BLOCK, Sum>(find<double, 1>(threadIdx.x, BLOCK, blocks, found + from, Found<Square>()));
    if (threadIdx.x == 0)
        *list.item[blockIdx.x].sum = all;
}

shard_status shard_cuda_square_sums(shard_device *device, int64_t count, const shard_square_sum *arrays, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        const int pack = Pack<T>::SIZE;
        auto item_of = [&](int64_t i, Squared<T> *item) {
            *item = {arrays[i].size, (const T *)arrays[i].x, arrays[i].sum};
            int64_t blocks = divide_up(item->n, (int64_t)BLOCK * pack * AHEAD);
            return blocks < 1 ? 1 : blocks < ARRAY_BLOCKS ? blocks : (int64_t)ARRAY_BLOCKS;
        };
        return by_lists<Squared<T>>(count, INT64_MAX, item_of, [&](const List<Squared<T>> &list, int items, unsigned blocks) {
            double *found = (double *)shard_cuda_scratch(device, blocks * sizeof *found);
            if (!found)
                return shard_last_status();
            shard_status status = launch(device, square_sums<T, pack>, blocks, BLOCK, list, found);
            if (status == SHARD_OK)
                status = launch(device, join_squares<T>, (unsigned)items, BLOCK, list, found);
            shard_cuda_scratch_release(device, found, blocks * sizeof *found);
            return status;
        });
    });
}
