/*
 * How kernels divide the columns of a matrix [rows, cols]: a thread owns N columns side
 * by side, moved in one access, and goes down the rows, several of them under way. A block
 * is `width` threads wide and has BLOCK / width groups of threads that take turns; blocks
 * next to each other cover the columns, blocks below each other (segments) take turns again.
 *
 * A Form loads the elements of a row (load), has the constants of a
 * column (term) and combines both (take).
 */
#ifndef SHARD_DEVICE_CUDA_COLUMNS_CUH
#define SHARD_DEVICE_CUDA_COLUMNS_CUH

#include "device/cuda/kernel.cuh"

namespace shard {

enum {
    WIDEST = 32,     /* threads: 512 bytes of a row in packs, and few columns of sums for each block */
    BLOCKS_EACH = 6, /* of a multiprocessor: whole rounds whether it holds 2, 3 or 6 at once */
};

/* tiles: blocks next to each other; segments: blocks below each other. */
struct Columns {
    int64_t rows, cols;
    int64_t tiles, segments, width;
};

/* A thread goes down at least `least` rows, if there are so many. */
inline Columns cut_columns(shard_device *device, int64_t rows, int64_t cols, int pack, int least)
{
    Columns c;
    c.rows = rows;
    c.cols = cols;
    c.tiles = divide_up(cols / pack, WIDEST);
    c.width = divide_up(cols / pack, c.tiles);
    int64_t wanted = divide_up((int64_t)shard_cuda_of(device)->multiprocessors * BLOCKS_EACH, c.tiles);
    int64_t most = divide_up(rows, (int64_t)least * (BLOCK / c.width));
    c.segments = wanted < most ? wanted : most < 1 ? 1 : most;
    return c;
}

template <int N> struct Place {
    int group, groups;
    int64_t column; /* the first of N */
    bool here;      /* else this thread has none */
    __device__ Place(const Columns &c)
    {
        int width = (int)c.width;
        group = (int)threadIdx.x / width;
        groups = BLOCK / width;
        column = (blockIdx.x * c.width + (int)threadIdx.x % width) * N;
        here = group < groups && column < c.cols;
    }
};

/* The terms of the thread's columns. Each is made by one thread of the block; all take part. */
template <int N, class Form>
static __device__ inline void share_terms(const Form &form, const Columns &c, typename Form::Term (&terms)[N])
{
    __shared__ typename Form::Term shared[N][WIDEST]; /* of a thread's columns one below the other */
    int width = (int)c.width;
    int64_t first = (int64_t)blockIdx.x * width * N;
    for (int i = (int)threadIdx.x; i < width * N && first + i < c.cols; i += BLOCK)
        shared[i % N][i / N] = form.term(first + i);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++)
        terms[k] = shared[k][(int)threadIdx.x % width];
}

/* Calls form.take(item, terms, row, column, ...) for the rows of this thread. */
template <int N, class Form, class... Rest>
static __device__ inline void go_down(const Form &form, const Columns &c, const Place<N> &place, Rest &...rest)
{
    typename Form::Term terms[N];
    share_terms<N>(form, c, terms);
    if (!place.here)
        return;
    const int ahead = Form::AHEAD;
    int64_t row = (int64_t)blockIdx.y * place.groups + place.group, step = (int64_t)gridDim.y * place.groups;
    for (; row + (ahead - 1) * step < c.rows; row += ahead * step) {
        typename Form::Item item[ahead];
#pragma unroll
        for (int a = 0; a < ahead; a++)
            item[a] = form.load(row + a * step, place.column);
#pragma unroll
        for (int a = 0; a < ahead; a++)
            form.take(item[a], terms, row + a * step, place.column, rest...);
    }
    for (; row < c.rows; row += step)
        form.take(form.load(row, place.column), terms, row, place.column, rest...);
}

/* ---- maps ---- */

template <class Form, int N> static __global__ void map_columns(Form form, Columns c)
{
    go_down<N>(form, c, Place<N>(c));
}

template <int N, class Form> shard_status run_map(shard_device *device, const Form &form, int64_t rows, int64_t cols)
{
    Columns c = cut_columns(device, rows, cols, N, 8);
    return launch(device, map_columns<Form, N>, dim3((unsigned)c.tiles, (unsigned)c.segments), BLOCK, form, c);
}

/* ---- two sums for each column ---- */

enum { SUMS = 2 };

/* sums [BLOCK / width groups][across] added up into the first group's. */
static __device__ inline void add_groups(double *sums, int groups, int across)
{
    int half = 1;
    while (2 * half < groups)
        half *= 2;
    for (; half > 0; half /= 2) {
        __syncthreads();
        int others = (groups < 2 * half ? groups - half : half) * across;
        for (int i = (int)threadIdx.x; i < others; i += BLOCK)
            sums[i] += sums[half * across + i];
    }
    __syncthreads();
}

/* partial [segments][SUMS][cols]; take adds to sums [SUMS][N]. */
template <class Form, int N> static __global__ void sum_columns(Form form, Columns c, double *partial)
{
    __shared__ double shared[BLOCK * N];
    Place<N> place(c);
    double sums[SUMS][N] = {};
    go_down<N>(form, c, place, sums);
    int across = (int)c.width * N;
    int64_t first = (int64_t)blockIdx.x * across;
#pragma unroll
    for (int which = 0; which < SUMS; which++) {
#pragma unroll
        for (int k = 0; k < N; k++)
            shared[(int)threadIdx.x * N + k] = sums[which][k];
        add_groups(shared, place.groups, across);
        for (int i = (int)threadIdx.x; i < across && first + i < c.cols; i += BLOCK)
            partial[((int64_t)blockIdx.y * SUMS + which) * c.cols + first + i] = shared[i];
        __syncthreads();
    }
}

/* Calls form.store(column, sums) with the segments' sums added up: few columns a block, so
 * that many threads share the segments of each. */
template <class Form> static __global__ void join_columns(Form form, Columns c, const double *partial)
{
    enum { SIDE = 4 };
    __shared__ double shared[BLOCK];
    int64_t column = (int64_t)blockIdx.x * SIDE + threadIdx.x % SIDE;
    double sums[SUMS];
    for (int which = 0; which < SUMS; which++) {
        double sum = 0;
        for (int64_t segment = threadIdx.x / SIDE; column < c.cols && segment < c.segments; segment += BLOCK / SIDE)
            sum += partial[(segment * SUMS + which) * c.cols + column];
        shared[threadIdx.x] = sum;
        add_groups(shared, BLOCK / SIDE, SIDE);
        sums[which] = shared[threadIdx.x % SIDE];
        __syncthreads();
    }
    if (threadIdx.x < SIDE && column < c.cols)
        form.store(column, sums);
}

template <int N, class Form> shard_status run_sums(shard_device *device, const Form &form, int64_t rows, int64_t cols)
{
    Columns c = cut_columns(device, rows, cols, N, 16);
    size_t bytes = (size_t)(c.segments * SUMS * cols) * sizeof(double);
    double *partial = (double *)shard_cuda_scratch(device, bytes);
    if (!partial)
        return shard_last_status();
    dim3 grid((unsigned)c.tiles, (unsigned)c.segments);
    shard_status status = launch(device, sum_columns<Form, N>, grid, BLOCK, form, c, partial);
    if (status == SHARD_OK)
        status = launch(device, join_columns<Form>, (unsigned)divide_up(cols, 4), BLOCK, form, c, (const double *)partial);
    shard_cuda_scratch_release(device, partial, bytes);
    return status;
}

} // namespace shard

#endif
