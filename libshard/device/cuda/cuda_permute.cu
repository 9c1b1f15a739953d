/*
 * permute. Where the last dimension stays last its runs are copied, in words as large
 * as the runs and the pointers allow; else tiles of the input's last dimension and the
 * output's are transposed through shared memory.
 *
 * Invariants: elements are words of their size, whatever their type. A tile is as wide
 * as 64 of both dimensions, but longer in one where the other is short, so that few
 * threads idle with three channels too.
 */
#include "device/cuda/divisor.cuh"
#include "device/cuda/map.cuh"
#include "device/permute.h"

using namespace shard;

/* ---- the last dimension stays ---- */

/* Output words follow each other; in the layout the last dimension is in words too. */
template <class W> struct CopyRuns {
    int64_t ndim;
    Divisor size[SHARD_PERMUTE_MOST];
    int64_t from[SHARD_PERMUTE_MOST];
    const W *x;
    W *y;

    CopyRuns(const shard_layout &l, const void *x_, void *y_) : ndim(l.ndim), from(), x((const W *)x_), y((W *)y_)
    {
        for (int64_t i = 0; i < ndim; i++) {
            size[i] = Divisor(l.size[i]);
            from[i] = l.from[i];
        }
    }
    template <int N> using In = Pack<W, N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        const W *at = x;
        for (int64_t k = ndim - 1; k > 0; k--)
            at += size[k].split(&i) * from[k];
        return load_pack<W, N>(at + i * from[0]);
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        store_pack(y + i, in);
    }
};

template <int BYTES> static shard_status copy_words(shard_device *device, shard_layout l, int64_t size, const void *x, void *y)
{
    for (int i = 0; i < l.ndim; i++)
        l.from[i] = l.from[i] * size / BYTES;
    l.from[l.ndim - 1] = 1;
    l.size[l.ndim - 1] = l.size[l.ndim - 1] * size / BYTES;
    return run_map<1, 4>(device, shard_layout_count(&l), true, CopyRuns<Word<BYTES>>(l, x, y));
}

static shard_status copy_runs(shard_device *device, const shard_layout &l, int64_t size, const void *x, void *y)
{
    if (l.ndim < 2) {
        size_t bytes = (size_t)(shard_layout_count(&l) * size);
        return SHARD_CUDA(cudaMemcpyAsync(y, x, bytes, cudaMemcpyDeviceToDevice, shard_cuda_of(device)->stream));
    }
    /* All other dimensions' steps are whole runs. */
    uintptr_t all = (uintptr_t)x | (uintptr_t)y | (uintptr_t)(l.size[l.ndim - 1] * size);
    return all % 16 == 0  ? copy_words<16>(device, l, size, x, y)
           : all % 8 == 0 ? copy_words<8>(device, l, size, x, y)
           : all % 4 == 0 ? copy_words<4>(device, l, size, x, y)
           : all % 2 == 0 ? copy_words<2>(device, l, size, x, y)
                          : copy_words<1>(device, l, size, x, y);
}

/* ---- the last dimension moves ---- */

enum { LEAST_LOG = 2, SIDE_LOG = 6, LONG_LOG = 8 /* no side is longer than the block */ };

/* Elements of a tile; its sides are powers of two. */
template <class W> struct Tile {
    enum { LOG = sizeof(W) == 8 ? 11 : 12, COUNT = 1 << LOG };
};

/* y[i * to + j] = x[i + j * from] for i < rows, j < cols, of each of the other
 * dimensions' elements. */
typedef struct Transpose {
    int64_t rows, cols, from, to;
    int row_log, col_log; /* of a tile's rows and columns */
    int64_t row_tiles, col_tiles, tiles;
    shard_layout others;
} Transpose;

/* to[i * to_step] = from[i * from_step] for i = first, first + step, ... */
template <class W>
static __device__ inline void move_line(const W *from, int64_t from_step, W *to, int64_t to_step, int first, int end, int step)
{
    const int ahead = 8;
    for (; first < end; first += ahead * step) {
        W held[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (first + k * step < end)
                held[k] = from[(first + k * step) * from_step];
#pragma unroll
        for (int k = 0; k < ahead; k++)
            if (first + k * step < end)
                to[(first + k * step) * to_step] = held[k];
    }
}

template <class W> static __global__ void __launch_bounds__(BLOCK, 5) transpose(Transpose t, const W *x, W *y)
{
    const int count = Tile<W>::COUNT;
    __shared__ W tile[count + (count >> LEAST_LOG)]; /* a column of the tile, of its rows and one more, after the other */
    int tile_rows = 1 << t.row_log, tile_cols = 1 << t.col_log, pitch = tile_rows + 1;
    for (int64_t item = blockIdx.x; item < t.tiles; item += gridDim.x) {
        int64_t other = item / (t.row_tiles * t.col_tiles), rest = item - other * t.row_tiles * t.col_tiles, from, to;
        int64_t row0 = rest % t.row_tiles * tile_rows, col0 = rest / t.row_tiles * tile_cols;
        shard_layout_locate(&t.others, other, &from, &to);
        const W *in = x + from + row0 + col0 * t.from;
        W *out = y + to + row0 * t.to + col0;
        int rows = t.rows - row0 < tile_rows ? (int)(t.rows - row0) : tile_rows;
        int cols = t.cols - col0 < tile_cols ? (int)(t.cols - col0) : tile_cols;
        int row = (int)threadIdx.x & (tile_rows - 1), col = (int)threadIdx.x >> t.row_log;
        if (row < rows)
            move_line(in + row, t.from, tile + row, pitch, col, cols, BLOCK >> t.row_log);
        __syncthreads();
        col = (int)threadIdx.x & (tile_cols - 1), row = (int)threadIdx.x >> t.col_log;
        if (col < cols)
            move_line(tile + col * pitch, 1, out + col, t.to, row, rows, BLOCK >> t.col_log);
        __syncthreads(); /* the next tile comes into the same memory */
    }
}

/* Of the power of two that n fits in, from LEAST_LOG to most, and LONG_LOG. */
static int side_log(int64_t n, int most)
{
    int log = LEAST_LOG;
    while (log < most && log < LONG_LOG && (int64_t)1 << log < n)
        log++;
    return log;
}

template <class W> static shard_status run_transpose(shard_device *device, shard_layout l, const void *x, void *y)
{
    int64_t last = l.ndim - 1, contiguous = 0;
    while (l.from[contiguous] != 1)
        contiguous++;
    Transpose t = {.rows = l.size[contiguous], .cols = l.size[last], .from = l.from[last], .to = l.to[contiguous]};
    shard_layout_take_out(&l, last);
    shard_layout_take_out(&l, contiguous);
    t.others = l;
    t.col_log = side_log(t.cols, Tile<W>::LOG - side_log(t.rows, SIDE_LOG));
    t.row_log = side_log(t.rows, Tile<W>::LOG - t.col_log);
    t.row_tiles = divide_up(t.rows, (int64_t)1 << t.row_log);
    t.col_tiles = divide_up(t.cols, (int64_t)1 << t.col_log);
    t.tiles = t.row_tiles * t.col_tiles * shard_layout_count(&l);
    return launch(device, transpose<W>, blocks_for(device, t.tiles, 1), BLOCK, t, (const W *)x, (W *)y);
}

shard_status shard_cuda_permute(shard_device *device, int ndim, const int64_t *shape, const int *axes, const void *x, void *y,
                                shard_dtype dtype)
{
    shard_layout l = shard_layout_merged(ndim, shape, axes);
    if (shard_layout_count(&l) == 0)
        return SHARD_OK;
    return by_dtype(dtype, [&](auto t) {
        if (l.ndim == 0 || l.from[l.ndim - 1] == 1)
            return copy_runs(device, l, sizeof t, x, y);
        return run_transpose<Word<sizeof t>>(device, l, x, y);
    });
}
