/* The head's rows: the merge of a tile's statistics, and the gradient of the features. A block works on a row. */
#include "device/cuda/kernel.cuh"

using namespace shard;

/* Adds a tile's statistics of a row; returns the factor from the old maximum to the new one. The exponentials are relative to the
 * maximum, *center, or to 0 while all logits are -inf. */
static __device__ inline double merge_row(const double *tile, double *stats, double *center)
{
    double old = stats[SHARD_CE_MAX], more = tile[SHARD_CE_MAX], max = more > old ? more : old;
    double factor = max > old ? exp(old - max) : 1, of_tile = max > more ? exp(more - max) : 1;
    stats[SHARD_CE_MAX] = max;
    stats[SHARD_CE_SUM] = stats[SHARD_CE_SUM] * factor + tile[SHARD_CE_SUM] * of_tile;
    for (int k = SHARD_CE_A; k < SHARD_CE_STATS; k++)
        stats[k] += tile[k];
    *center = max == -INFINITY ? 0 : max;
    return factor;
}

template <class T>
static __global__ void merge(int64_t rows, int64_t in, const double *tile_stats, double *stats, double *center, T *sum)
{
    __shared__ double factor;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        if (threadIdx.x == 0)
            factor = merge_row(tile_stats + row * SHARD_CE_STATS, stats + row * SHARD_CE_STATS, center + row);
        __syncthreads();
        T by = (T)factor;
        for (int64_t k = threadIdx.x; sum && by != 1 && k < in; k += BLOCK)
            sum[row * in + k] *= by;
        __syncthreads();
    }
}

shard_status shard_cuda_head_merge(shard_device *device, int64_t rows, int64_t in, const double *tile_stats, double *stats,
                                   double *center, void *sum, shard_dtype dtype)
{
    if (rows == 0)
        return SHARD_OK;
    unsigned blocks = blocks_for(device, rows, 1);
    if (dtype == SHARD_FLOAT64)
        return launch(device, merge<double>, blocks, BLOCK, rows, in, tile_stats, stats, center, (double *)sum);
    return launch(device, merge<float>, blocks, BLOCK, rows, in, tile_stats, stats, center, (float *)sum);
}

/* T: of the weight; R: of all other arrays. */
template <class T, class R> struct Features {
    shard_cross_entropy_shape shape;
    int64_t in;
    const int64_t *target;
    const R *class_weight;
    const T *weight;
    const double *stats;
    shard_loss_rows rows;
    const R *sum, *spread;
    R *dx;

    __device__ void run(int64_t row, int64_t lane) const
    {
        double by = rows.scale[row], share = shape.classes ? shape.smoothing / (double)shape.classes : 0;
        int64_t column = shard_label_column(&shape, target[row]);
        bool has_target = column >= 0;
        double exponential = shape.cols > 0 ? shard_row_exponential(&rows, row, stats[row * SHARD_CE_STATS + SHARD_CE_MAX]) : 0;
        double of_map = shape.map.maps ? shard_label_slope(&shape, stats + row * SHARD_CE_STATS) : 1;
        R of_sum = (R)(by * rows.slope[row] * exponential), of_spread = (R)(by * share * of_map);
        R of_target = has_target ? (R)(by * (1 - shape.smoothing) * of_map) : 0;
        if (has_target && class_weight)
            of_target *= class_weight[column];
        for (int64_t k = lane; k < in; k += BLOCK) {
            R value = of_sum * sum[row * in + k];
            if (has_target)
                value -= of_target * (R)to_real(weight[column * in + k]);
            if (spread)
                value -= of_spread * spread[k];
            dx[row * in + k] = by == 0 ? 0 : value;
        }
    }
};

template <class Form> static __global__ void input_gradient(Form form)
{
    for (int64_t row = blockIdx.x; row < form.shape.rows; row += gridDim.x)
        form.run(row, threadIdx.x);
}

shard_status shard_cuda_head_input_gradient(shard_device *device, const shard_cross_entropy_shape *shape, int64_t in,
                                            const int64_t *target, const void *class_weight, const void *weight,
                                            shard_dtype weight_dtype, const double *stats, const shard_loss_rows *rows,
                                            const void *sum, const void *spread, void *dx, shard_dtype dtype)
{
    (void)dtype; /* float64 exactly if the weight is */
    if (shape->rows == 0)
        return SHARD_OK;
    return by_float(weight_dtype, [&](auto t) {
        using T = decltype(t);
        using R = Real<T>;
        Features<T, R> form = {*shape, in,    target,           (const R *)class_weight, (const T *)weight,
                               stats,  *rows, (const R *)sum,   (const R *)spread,       (R *)dx};
        return launch(device, input_gradient<Features<T, R>>, blocks_for(device, shape->rows, 1), BLOCK, form);
    });
}
