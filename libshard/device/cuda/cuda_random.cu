/*
 * Random numbers and dropout: those of base/random.h at the element's index in the
 * whole, so that they don't depend on how it is split.
 *
 * Invariants: the same bits as the CPU's, as every operation is rounded as it is
 * written (-fmad=false). A block of Philox gives the numbers of four elements that
 * follow each other in the whole; a pack computes each of its blocks once.
 */
#include "device/cuda/map.cuh"

using namespace shard;

struct Drawing {
    shard_draw draw;
    uint64_t first;      /* the whole's index of element 0 */
    uint64_t whole_cols; /* from one row to the next */
    int64_t cols;        /* of a row; 0: the elements are consecutive in the whole */
};

static __device__ inline uint32_t word(const shard_philox &block, unsigned i)
{
    return i & 2 ? (i & 1 ? block.word[3] : block.word[2]) : (i & 1 ? block.word[1] : block.word[0]);
}

/* Calls each(k, block, index of the element's word in it) for the elements i + k, k < N. */
template <int N, class Each> static __device__ inline void over_words(const Drawing &d, int64_t i, Each each)
{
    uint64_t index = d.first + (uint64_t)i;
    int64_t left = N; /* in the row */
    if (d.cols) {
        int64_t row = i / d.cols, column = i - row * d.cols;
        index = d.first + (uint64_t)row * d.whole_cols + (uint64_t)column;
        left = d.cols - column;
    }
    const shard_draw draw = shard_draw_now(d.draw);
    shard_philox block = shard_philox_block(draw, index >> 2);
#pragma unroll
    for (int k = 0; k < N; k++) {
        each(k, block, (unsigned)(index & 3));
        uint64_t last = index >> 2;
        index++;
        if (--left == 0) {
            index += d.whole_cols - (uint64_t)d.cols;
            left = d.cols;
        }
        if (k + 1 < N && index >> 2 != last)
            block = shard_philox_block(draw, index >> 2);
    }
}

template <class T> struct Uniform {
    Drawing d;
    Real<T> low, range;
    T *y;

    template <int N> struct In {
    };
    template <int N> __device__ In<N> load(int64_t) const
    {
        return {};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &) const
    {
        Pack<T, N> out;
        over_words<N>(d, i, [&](int k, const shard_philox &block, unsigned which) {
            out.value[k] = round_to<T>(low + range * ((Real<T>)(int32_t)(word(block, which) >> 8) * (Real<T>)0x1p-24));
        });
        store_pack(y + i, out);
    }
};

template <class T> struct Normal {
    Drawing d;
    Real<T> mean, deviation;
    T *y;

    template <int N> struct In {
    };
    template <int N> __device__ In<N> load(int64_t) const
    {
        return {};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &) const
    {
        Pack<T, N> out;
        float pair[2];
        over_words<N>(d, i, [&](int k, const shard_philox &block, unsigned which) {
            if (k == 0 || !(which & 1) || d.cols) /* else the last element's other half */
                shard_normal_pair(word(block, which & 2), word(block, (which & 2) + 1), pair);
            out.value[k] = round_to<T>(mean + deviation * (Real<T>)(which & 1 ? pair[1] : pair[0]));
        });
        store_pack(y + i, out);
    }
};

template <class T> struct TruncatedNormal {
    Drawing d;
    float edge, range;
    Real<T> mean, deviation, low, high;
    T *y;

    template <int N> struct In {
    };
    template <int N> __device__ In<N> load(int64_t) const
    {
        return {};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &) const
    {
        Pack<T, N> out;
        over_words<N>(d, i, [&](int k, const shard_philox &block, unsigned which) {
            Real<T> value = mean + deviation * (Real<T>)shard_truncated_normal_of(word(block, which), edge, range);
            out.value[k] = round_to<T>(value < low ? low : value > high ? high : value);
        });
        store_pack(y + i, out);
    }
};

/* An element is kept where its 24 bits are at least the limit. */
template <class T> struct Dropout {
    Drawing d;
    int64_t limit;
    double scale;
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
        over_words<N>(d, i, [&](int k, const shard_philox &block, unsigned which) {
            bool keep = word(block, which) >> 8 >= (uint32_t)limit;
            out.value[k] = round_to<T>(keep ? to_real(in.value[k]) * (Real<T>)scale : 0);
        });
        store_pack(y + i, out);
    }
};

static Drawing drawing_of(const shard_region *region, shard_draw draw)
{
    bool consecutive = region->rows <= 1 || region->cols == region->whole_cols;
    return {draw, (uint64_t)(region->row0 * region->whole_cols + region->col0), (uint64_t)region->whole_cols,
            consecutive ? 0 : region->cols};
}

shard_status shard_cuda_random_uniform(shard_device *device, const shard_region *region, shard_draw draw, double low, double high,
                                       void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Uniform<T> body = {drawing_of(region, draw), (Real<T>)low, (Real<T>)(high - low), (T *)y};
        return run_map<Pack<T>::SIZE, 1>(device, region->rows * region->cols, aligned16(y), body);
    });
}

shard_status shard_cuda_random_normal(shard_device *device, const shard_region *region, shard_draw draw, double mean,
                                      double deviation, void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Normal<T> body = {drawing_of(region, draw), (Real<T>)mean, (Real<T>)deviation, (T *)y};
        return run_map<Pack<T>::SIZE, 1>(device, region->rows * region->cols, aligned16(y), body);
    });
}

shard_status shard_cuda_random_truncated_normal(shard_device *device, const shard_region *region, shard_draw draw,
                                                const shard_truncated_normal *t, void *y, shard_dtype dtype)
{
    double low = shard_truncated_normal_edge(t, t->low), high = shard_truncated_normal_edge(t, t->high);
    return by_float(dtype, [&](auto type) {
        using T = decltype(type);
        TruncatedNormal<T> body = {drawing_of(region, draw), (float)low,         (float)(high - low), (Real<T>)t->mean,
                                   (Real<T>)t->std,          (Real<T>)t->low, (Real<T>)t->high,   (T *)y};
        return run_map<Pack<T>::SIZE, 1>(device, region->rows * region->cols, aligned16(y), body);
    });
}

shard_status shard_cuda_dropout(shard_device *device, const shard_region *region, shard_draw draw, double p, const void *x,
                                void *y, shard_dtype dtype)
{
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Dropout<T> body = {drawing_of(region, draw), (int64_t)ceil(p * 0x1p24), 1 / (1 - p), (const T *)x, (T *)y};
        return run_map<Pack<T>::SIZE, 2>(device, region->rows * region->cols, aligned16(x, y), body);
    });
}
