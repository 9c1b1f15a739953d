/*
 * Column sums.
 *
 * A block takes `width` packs side by side (its columns) and a range of the rows, of
 * which its BLOCK / width groups of threads take rows in turn; then the groups' sums are added, as a tree. Where
 * there are several ranges, their sums are summed in the same way by a second launch.
 *
 * Invariants: sums are double, so that the result is the sum rounded once. The ranges
 * and the order depend on the shape and on x's alignment alone.
 */
#include "device/cuda/kernel.cuh"

using namespace shard;

enum {
    BLOCKS = 2048, /* wanted, where each thread then has enough rows */
    WIDEST = 32,   /* packs */
    AHEAD = 8,     /* rows that a thread has under way; half of it where it takes packs of several elements */
};

template <class T, int N> struct Rows {
    int64_t rows, cols, pitch;
    int64_t range; /* rows of one */
    int width, groups;
    const T *x;

    /* Adds the column's rows first, first + step, ... up to end. */
    __device__ void add(int64_t column, int64_t first, int64_t end, int step, double *sums) const
    {
        const int ahead = N > 1 ? AHEAD / 2 : AHEAD;
        int64_t row = first;
        for (; row + (ahead - 1) * step < end; row += ahead * step) {
            Pack<T, N> in[ahead];
#pragma unroll
            for (int a = 0; a < ahead; a++)
                in[a] = load_pack<T, N>(x + (row + a * step) * pitch + column);
#pragma unroll
            for (int a = 0; a < ahead; a++)
                for (int k = 0; k < N; k++)
                    sums[k] += (double)to_real(in[a].value[k]);
        }
        for (; row < end; row += step) {
            Pack<T, N> in = load_pack<T, N>(x + row * pitch + column);
            for (int k = 0; k < N; k++)
                sums[k] += (double)to_real(in.value[k]);
        }
    }
};

/* y [ranges, cols], one range for each blockIdx.y; added to y if accumulate. */
template <class T, int N, class To> static __global__ void sum_ranges(Rows<T, N> r, bool accumulate, To *y)
{
    __shared__ double shared[BLOCK * N];
    int group = (int)threadIdx.x / r.width, across = r.width * N;
    int64_t block_column = (int64_t)blockIdx.x * across, column = block_column + (int)threadIdx.x % r.width * N;
    int64_t start = (int64_t)blockIdx.y * r.range, end = start + r.range < r.rows ? start + r.range : r.rows;
    double sums[N] = {};
    if (group < r.groups && column < r.cols)
        r.add(column, start + group, end, r.groups, sums);
    for (int k = 0; k < N; k++)
        shared[threadIdx.x * N + k] = sums[k];
    int half = 1;
    while (2 * half < r.groups)
        half *= 2;
    for (; half > 0; half /= 2) {
        __syncthreads();
        int others = (r.groups < 2 * half ? r.groups - half : half) * across;
        for (int i = (int)threadIdx.x; i < others; i += BLOCK)
            shared[i] += shared[half * across + i];
    }
    /* Each thread reads the sums that it has written itself. */
    for (int i = (int)threadIdx.x; i < across && block_column + i < r.cols; i += BLOCK) {
        To *to = y + (int64_t)blockIdx.y * r.cols + block_column + i;
        *to = round_to<To>((Real<To>)(accumulate ? shared[i] + (double)to_real(*to) : shared[i]));
    }
}

struct Cut {
    int64_t tiles, ranges, range;
    int width;
};

static Cut cut(int64_t rows, int64_t packs, int64_t most_ranges)
{
    Cut c;
    c.tiles = divide_up(packs, WIDEST);
    c.width = (int)divide_up(packs, c.tiles);
    int64_t least = (int64_t)AHEAD * (BLOCK / c.width), ranges = divide_up(BLOCKS, c.tiles);
    ranges = ranges < rows / least ? ranges : rows / least;
    ranges = ranges < most_ranges ? ranges : most_ranges;
    c.range = divide_up(rows, ranges < 1 ? 1 : ranges);
    c.ranges = rows ? divide_up(rows, c.range) : 1;
    return c;
}

template <class T, int N, class To>
static shard_status sum(shard_device *device, const Cut &c, int64_t rows, int64_t cols, int64_t pitch, const T *x,
                        bool accumulate, To *y)
{
    return launch(device, sum_ranges<T, N, To>, dim3((unsigned)c.tiles, (unsigned)c.ranges), BLOCK,
                  Rows<T, N>{rows, cols, pitch, c.range, c.width, BLOCK / c.width, x}, accumulate, y);
}

template <class T, int N, class To>
static shard_status sum_rows(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const T *x, bool accumulate, To *y)
{
    Cut c = cut(rows, divide_up(cols, N), BLOCKS);
    if (c.ranges == 1)
        return sum<T, N>(device, c, rows, cols, pitch, x, accumulate, y);
    size_t bytes = (size_t)(c.ranges * cols) * sizeof(double);
    double *partial = (double *)shard_cuda_scratch(device, bytes);
    if (!partial)
        return shard_last_status();
    shard_status status = sum<T, N>(device, c, rows, cols, pitch, x, false, partial);
    if (status == SHARD_OK)
        status = sum<double, 1>(device, cut(c.ranges, cols, 1), c.ranges, cols, cols, (const double *)partial, accumulate, y);
    shard_cuda_scratch_release(device, partial, bytes);
    return status;
}

template <class T, class To>
static shard_status sum_to(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const T *x, bool accumulate, To *y)
{
    const int pack = Pack<T>::SIZE;
    if (pitch % pack == 0 && aligned16(x)) /* the last pack of a row may be half of it behind its columns */
        return sum_rows<T, pack>(device, rows, cols, pitch, x, accumulate, y);
    return sum_rows<T, 1>(device, rows, cols, pitch, x, accumulate, y);
}

shard_status shard_cuda_sum_rows(shard_device *device, int64_t rows, int64_t cols, int64_t pitch, const void *x, shard_dtype from,
                                 bool accumulate, void *y, shard_dtype to)
{
    int64_t apart = shard_pitch(pitch, cols);
    if (cols == 0)
        return SHARD_OK;
    return by_float(from, [&](auto t) {
        using T = decltype(t);
        if (to == from)
            return sum_to(device, rows, cols, apart, (const T *)x, accumulate, (T *)y);
        return sum_to(device, rows, cols, apart, (const T *)x, accumulate, (Real<T> *)y);
    });
}
