/*
 * Row-wise steps. A warp has a row: it sums the squares of the row's gradient, then steps along the row, which is in a
 * cache. Each thread reads and writes the same elements in both passes.
 */
#include "device/cuda/update.cuh"

using namespace shard;

/* The arrays of an update of float64, with the functions of MixedUpdate. */
struct Doubles {
    double *of_gradient, *of_value, *of_average;

    template <int N> __device__ void load_gradient(int64_t i, double *to) const { copy<N>(of_gradient + i, to); }
    template <int N> __device__ void load_value(int64_t i, double *to) const { copy<N>(of_value + i, to); }
    template <int N> __device__ void load_average(int64_t i, double *to) const { copy<N>(of_average + i, to); }
    template <int N> __device__ void store_value(int64_t i, double *x) const { copy<N>(x, of_value + i); }
    template <int N> __device__ void store_average(int64_t i, double *x) const { copy<N>(x, of_average + i); }
    __device__ int64_t row_of(int64_t row) const { return row; }
    template <int N> static __device__ void copy(const double *from, double *to)
    {
        for (int k = 0; k < N; k++)
            to[k] = from[k];
    }
};

template <class Rows> struct Floats {
    MixedUpdate<2, Rows> update;

    __device__ int64_t at(int64_t i) const { return update.index_of(i); }
    __device__ int64_t row_of(int64_t row) const { return update.row_of(row); }
    template <int N> __device__ void load_gradient(int64_t i, float *to) const { load_typed<N>(update.gradient, i, to); }
    template <int N> __device__ void load_value(int64_t i, float *to) const { update.template load_value<N>(at(i), to); }
    template <int N> __device__ void load_average(int64_t i, float *to) const { update.template load_state<N>(1, at(i), to); }
    template <int N> __device__ void store_value(int64_t i, float *x) const { update.template store_value<N>(at(i), x); }
    template <int N> __device__ void store_average(int64_t i, float *x) const { update.template store_state<N>(1, at(i), x); }
};

template <class R, class Arrays> struct Rowwise {
    double beta1, blend1, beta2, blend2, eps;
    double decay; /* added to the gradient */
    double root_correction, keep, rate;
    int64_t first, averages, packed; /* 64-bit: no byte between the members is undefined */
    const shard_step_factors *factors; /* NULL: those above */
    const double *grad_scale;
    int64_t rows, columns;
    R *numbers; /* [rows] */
    Arrays arrays;

    /* The gradient of N elements, with the weight decay that is added to it. */
    template <int N> __device__ void load(int64_t i, R *gradient, R *value, bool needs_value) const
    {
        R scale = scalar<R>(grad_scale);
        arrays.template load_gradient<N>(i, gradient);
        if (needs_value || decay != 0)
            arrays.template load_value<N>(i, value);
        for (int k = 0; k < N; k++)
            gradient[k] = decay != 0 ? scale * gradient[k] + (R)decay * value[k] : scale * gradient[k];
    }
    template <int N> __device__ R sum_squares(int64_t row, int lane) const
    {
        R sum = 0, gradient[N], value[N];
        for (int64_t k = (int64_t)lane * N; k < columns; k += WARP * N) {
            load<N>(row * columns + k, gradient, value, false);
            for (int j = 0; j < N; j++)
                sum += gradient[j] * gradient[j];
        }
        return warp_reduce<Sum>(sum);
    }
    template <int N> __device__ void step_row(int64_t row, int lane) const
    {
        bool starts = factors ? factors->first != 0 : first != 0;
        R root = (R)(factors ? factors->root_correction : root_correction), kept = (R)(factors ? factors->keep : keep);
        R *number_of_row = numbers + arrays.row_of(row);
        R old = starts ? (R)0 : (R)beta2 * *number_of_row;
        R number = old + (R)blend2 * (sum_squares<N>(row, lane) / (R)columns);
        R by = (R)(factors ? factors->rate : rate) / (sqrt(number) * root + (R)eps);
        __syncwarp(); /* all have read it */
        if (lane == 0)
            *number_of_row = number;
        for (int64_t k = (int64_t)lane * N; k < columns; k += WARP * N) {
            R direction[N], value[N], average[N];
            load<N>(row * columns + k, direction, value, true);
            if (averages) {
                for (int j = 0; j < N; j++)
                    average[j] = 0;
                if (!starts)
                    arrays.template load_average<N>(row * columns + k, average);
                for (int j = 0; j < N; j++)
                    direction[j] = average[j] = (R)beta1 * average[j] + (R)blend1 * direction[j];
                arrays.template store_average<N>(row * columns + k, average);
            }
            for (int j = 0; j < N; j++)
                value[j] = kept * value[j] + by * direction[j];
            arrays.template store_value<N>(row * columns + k, value);
        }
    }
};

template <class Body> static __global__ void step_rows(const __grid_constant__ List<Body> list)
{
    Part part = list.part();
    Body item = list.item[part.item];
    int lane = (int)threadIdx.x % WARP;
    int64_t stride = (int64_t)part.blocks * (BLOCK / WARP);
    for (int64_t row = (int64_t)part.block * (BLOCK / WARP) + threadIdx.x / WARP; row < item.rows; row += stride) {
        if (item.packed)
            item.template step_row<MIXED_PACK>(row, lane);
        else
            item.template step_row<1>(row, lane);
    }
}

template <class R, class Arrays> static void set_numbers(Rowwise<R, Arrays> *body, const shard_update *u, const shard_rowwise_arguments *o)
{
    shard_step_factors factors = shard_rowwise_factors(u, o);
    body->beta1 = o->beta1;
    body->blend1 = 1 - o->beta1;
    body->beta2 = o->adam ? o->beta2 : 1;
    body->blend2 = o->adam ? 1 - o->beta2 : 1;
    body->eps = o->eps;
    body->decay = o->adam ? 0 : u->weight_decay;
    body->root_correction = factors.root_correction;
    body->keep = factors.keep;
    body->rate = factors.rate;
    body->first = u->step == 1;
    body->averages = o->adam && o->beta1 > 0;
    body->factors = u->factors;
    body->grad_scale = u->grad_scale;
    body->rows = u->size / u->columns;
    body->columns = u->columns;
    body->numbers = (R *)u->state[0];
}

template <class R, class Arrays, class ArraysOf>
static shard_status run(shard_device *device, int64_t count, const shard_update *updates, const shard_rowwise_arguments *options,
                        ArraysOf &&arrays_of)
{
    using Body = Rowwise<R, Arrays>;
    auto item_of = [&](int64_t i, Body *item) {
        set_numbers(item, &updates[i], options);
        arrays_of(&updates[i], item);
        return divide_up(item->rows, BLOCK / WARP);
    };
    return by_lists<Body>(count, most_blocks(device), item_of, [&](const List<Body> &list, int, unsigned blocks) {
        return launch(device, step_rows<Body>, blocks, BLOCK, list);
    });
}

shard_status shard_cuda_rowwise(shard_device *device, int64_t count, const shard_update *updates,
                                const shard_rowwise_arguments *options, shard_update_types types)
{
    if (types.value == SHARD_FLOAT64)
        return run<double, Doubles>(device, count, updates, options, [&](const shard_update *u, Rowwise<double, Doubles> *item) {
            item->arrays = {(double *)u->gradient, (double *)u->value, item->averages ? (double *)u->state[1] : NULL};
        });
    return by_rows(count, updates, [&](auto rows) {
        using Arrays = Floats<decltype(rows)>;
        return run<float, Arrays>(device, count, updates, options, [&](const shard_update *u, Rowwise<float, Arrays> *item) {
            set_arrays(&item->arrays.update, u, types);
            item->arrays.update.state[0] = {NULL, SHARD_FLOAT32}; /* the rows' numbers are no array of the elements */
            item->packed = u->columns % MIXED_PACK == 0 && aligned_packs(item->arrays.update);
        });
    });
}
