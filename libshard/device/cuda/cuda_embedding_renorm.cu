/*
 * Rows of an embedding whose norm is larger than a bound are scaled down to it.
 *
 * Invariants: an index may be there several times. The scaled rows are computed into other
 * memory, a row for each position of the index, and then stored: positions of one row store
 * the same bits, so that it does not matter which is last.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

struct Positions {
    int64_t n, dim, row0, rows;
    const int64_t *index;

    /* -1: another part's */
    __device__ int64_t row(int64_t position) const
    {
        int64_t from = index[position] - row0;
        return from >= 0 && from < rows ? from : -1;
    }
};

struct PowerOf {
    using Join = Sum;
    double power;
    __device__ double of(double x) const { return power == 2 ? x * x : power == 1 ? fabs(x) : pow(fabs(x), power); }
};
struct SizeOf {
    using Join = Maximum;
    __device__ double of(double x) const { return fabs(x); }
};

/* A warp sums a row. */
template <class T, class Form> static __global__ void sum_rows_of(Positions p, const T *weight, Form form, double *sum)
{
    int lane = (int)threadIdx.x % WARP;
    int64_t step = (int64_t)gridDim.x * (BLOCK / WARP);
    for (int64_t i = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; i < p.n; i += step) {
        int64_t row = p.row(i);
        double own = 0;
        for (int64_t j = lane; row >= 0 && j < p.dim; j += WARP)
            own = Form::Join::join(own, form.of((double)to_real(weight[row * p.dim + j])));
        double all = warp_reduce<typename Form::Join>(own);
        if (lane == 0)
            sum[i] = all;
    }
}

/* Replaces each row's sum by the row's factor; 1: unchanged. */
static __global__ void find_factors(Positions p, double power, double max_norm, double *sum)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < p.n; i += (int64_t)gridDim.x * BLOCK) {
        double norm = power == INFINITY ? sum[i] : power == 2 ? sqrt(sum[i]) : pow(sum[i], 1 / power);
        sum[i] = norm > max_norm ? max_norm / (norm + 1e-7) : 1;
    }
}

template <class T> static __global__ void scale_rows(Positions p, const double *factor, const T *weight, T *scaled)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < p.n * p.dim; i += (int64_t)gridDim.x * BLOCK) {
        int64_t position = i / p.dim, row = p.row(position);
        if (row >= 0)
            scaled[i] = round_to<T>(to_real(weight[row * p.dim + (i - position * p.dim)]) * (Real<T>)factor[position]);
    }
}

template <class T> static __global__ void store_rows(Positions p, const double *factor, const T *scaled, T *weight)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < p.n * p.dim; i += (int64_t)gridDim.x * BLOCK) {
        int64_t position = i / p.dim, row = p.row(position);
        if (row >= 0 && factor[position] != 1)
            weight[row * p.dim + (i - position * p.dim)] = scaled[i];
    }
}

shard_status shard_cuda_embedding_power_sums(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                             const int64_t *index, const void *weight, double power, double *sum,
                                             shard_dtype dtype)
{
    if (n == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Positions p = {n, dim, row0, rows, index};
        unsigned blocks = blocks_for(device, n, BLOCK / WARP);
        if (power == INFINITY)
            return launch(device, sum_rows_of<T, SizeOf>, blocks, BLOCK, p, (const T *)weight, SizeOf(), sum);
        return launch(device, sum_rows_of<T, PowerOf>, blocks, BLOCK, p, (const T *)weight, PowerOf{power}, sum);
    });
}

shard_status shard_cuda_embedding_renorm(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                         const int64_t *index, double power, double max_norm, double *sum, void *weight,
                                         shard_dtype dtype)
{
    if (n == 0 || dim == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Positions p = {n, dim, row0, rows, index};
        size_t bytes = (size_t)(n * dim) * sizeof(T);
        T *scaled = (T *)shard_cuda_scratch(device, bytes);
        if (!scaled)
            return shard_last_status();
        unsigned blocks = blocks_for(device, n * dim, BLOCK);
        shard_status status = launch(device, find_factors, blocks_for(device, n, BLOCK), BLOCK, p, power, max_norm, sum);
        if (status == SHARD_OK)
            status = launch(device, scale_rows<T>, blocks, BLOCK, p, (const double *)sum, (const T *)weight, scaled);
        if (status == SHARD_OK)
            status = launch(device, store_rows<T>, blocks, BLOCK, p, (const double *)sum, (const T *)scaled, (T *)weight);
        shard_cuda_scratch_release(device, scaled, bytes);
        return status;
    });
}
