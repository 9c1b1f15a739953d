/*
 * How kernels divide the rows of a matrix. A row, or a chunk of one, belongs to a
 * team: a warp where rows are short, else a block. A team reads it in packs of 16
 * bytes where they are aligned, several in flight for each thread, and what stands
 * before and after them one by one: rows begin at any multiple of the element's size.
 *
 * Flags in kernels' arguments are 64-bit, so that no byte between them is undefined: the
 * emulation would take it for a pointer.
 */
#ifndef SHARD_DEVICE_CUDA_ROWS_CUH
#define SHARD_DEVICE_CUDA_ROWS_CUH

#include "device/cuda/kernel.cuh"

#include <initializer_list>

namespace shard
{

enum {
    PACKS = 4,              /* in flight for each thread */
    SHORT_ROW = 4096,       /* bytes of a row up to which a warp is its team */
    LEAST_CHUNK = 4 * 1024, /* elements of a row that are worth a block */
};

/* Rows of `cols` elements, each in `chunks` of `width` but for the last. */
struct Rows {
    int64_t rows, cols;
    int64_t chunks, width;
};

/* A team's place: thread `lane` of LANES works on chunk `index`; the next one is `step` on. */
template <int LANES> struct Team {
    int lane;
    int64_t index, step;
    __device__ Team()
        : lane((int)threadIdx.x % LANES), index((int64_t)blockIdx.x * (BLOCK / LANES) + threadIdx.x / LANES),
          step((int64_t)gridDim.x * (BLOCK / LANES))
    {
    }
};

/* Every thread of the team takes part and gets the result. */
template <int LANES, class Join, class R> static __device__ inline R team_reduce(R value)
{
    if constexpr (LANES == WARP)
        return warp_reduce<Join>(value);
    else
        return block_reduce<LANES, Join>(value);
}

/* The positions of packs among n elements: `packs` of them after `head` single ones. Arrays that are read together
 * have the same alignment, or are not `packed`. */
template <class T> struct Cut {
    int64_t n, head, packs;
    __device__ Cut(const T *from, int64_t n_, bool packed) : n(n_)
    {
        int64_t before = (int64_t)((16 - ((uintptr_t)from & 15)) & 15) / (int64_t)sizeof(T);
        head = packed && before < n ? before : n;
        packs = (n - head) / Pack<T>::SIZE;
    }
    __device__ int64_t pack(int64_t i) const
    {
        return head + i * Pack<T>::SIZE;
    }
    __device__ int64_t singles() const
    {
        return n - packs * Pack<T>::SIZE;
    }
    __device__ int64_t single(int64_t i) const
    {
        return i < head ? i : i + packs * Pack<T>::SIZE;
    }
};

/* Calls batch(first) for COUNT packs at a time as long as there are so many, then for half as many. */
template <int COUNT, class T, class Batch>
static __device__ inline void walk_packs(const Cut<T> &cut, int64_t i, int64_t lanes, Batch &batch)
{
    for (; i + (COUNT - 1) * lanes < cut.packs; i += COUNT * lanes) {
        int64_t first[COUNT];
        for (int k = 0; k < COUNT; k++)
            first[k] = cut.pack(i + k * lanes);
        batch(first);
    }
    if constexpr (COUNT > 1)
        walk_packs<COUNT / 2>(cut, i, lanes, batch);
}

/* Applies the functions to the elements of thread `lane` of `lanes`: calls batch(first) for packs of elements from
 * first[0], first[1] ... on, at most AHEAD of them, then single(i) for single elements. */
template <int AHEAD = PACKS, class T, class Batch, class Single>
static __device__ inline void walk(const Cut<T> &cut, int lane, int lanes, Batch &&batch, Single &&single)
{
    walk_packs<AHEAD>(cut, lane, lanes, batch);
    for (int64_t i = lane; i < cut.singles(); i += lanes)
        single(cut.single(i));
}

/* Loads COUNT packs before any is used, as numbers. */
template <class T, int COUNT>
static __device__ inline void load_batch(const T *from, const int64_t (&first)[COUNT], Real<T> (&value)[COUNT * Pack<T>::SIZE])
{
    Pack<T> pack[COUNT];
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        pack[k] = load_pack(from + first[k]);
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        for (int j = 0; j < Pack<T>::SIZE; j++)
            value[k * Pack<T>::SIZE + j] = to_real(pack[k].value[j]);
}

/* Packs of as many elements of U as packs of T have; U is of T's size or half of it. */
template <class T, int COUNT, class U>
static __device__ inline void store_like(U *to, const int64_t (&first)[COUNT], const Real<T> (&value)[COUNT * Pack<T>::SIZE])
{
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        Pack<U, Pack<T>::SIZE> pack;
        for (int j = 0; j < Pack<T>::SIZE; j++)
            pack.value[j] = round_to<U>(value[k * Pack<T>::SIZE + j]);
        store_pack(to + first[k], pack);
    }
}

template <class T, int COUNT>
static __device__ inline void store_batch(T *to, const int64_t (&first)[COUNT], const Real<T> (&value)[COUNT * Pack<T>::SIZE])
{
    store_like<T>(to, first, value);
}

/* Whether arrays can be read in packs together: all as far from a multiple of 16 (NULL is like any). */
inline bool aligned_alike(const void *a, const void *b)
{
    return b == NULL || (((uintptr_t)a ^ (uintptr_t)b) & 15) == 0;
}

/* Whether packs of 16 bytes of `from` are aligned where as many elements of `to` are; both are [rows, cols]. */
inline bool packs_alike(const void *from, size_t size, const void *to, size_t to_size)
{
    uintptr_t elements = (uintptr_t)from / size, others = (uintptr_t)to / to_size;
    return ((elements ^ others) & (16 / size - 1)) == 0;
}

/* Chunks of rows so that there are enough for the device's blocks to even out, and none
 * is too short for one. */
inline Rows cut_rows(shard_device *device, int64_t rows, int64_t cols)
{
    int64_t wanted = divide_up((int64_t)shard_cuda_of(device)->multiprocessors * 32, rows), most = cols / LEAST_CHUNK;
    int64_t chunks = wanted < most ? wanted : most;
    if (chunks <= 1)
        return Rows{rows, cols, 1, cols};
    int64_t width = divide_up(divide_up(cols, chunks), 64) * 64;
    return Rows{rows, cols, divide_up(cols, width), width};
}

inline bool short_rows(int64_t cols, size_t size)
{
    return cols * (int64_t)size <= SHORT_ROW;
}

/* Blocks for so many teams. */
inline unsigned team_blocks(int64_t teams, int lanes)
{
    int64_t blocks = divide_up(teams, BLOCK / lanes), most = 1 << 30;
    return (unsigned)(blocks < most ? blocks : most);
}

/* Two steps on each row: Form::measure computes a Form::Part of a chunk, Form::join combines those of a row, and
 * Form::write uses the result for every element. A row of one team is done at once, so that its second reading is
 * mostly from cache. */
enum { MEASURE = 1, WRITE = 2 };

template <class Form, int LANES, int STEPS> static __global__ void row_steps(Form form, Rows shape, typename Form::Part *parts)
{
    Team<LANES> team;
    for (int64_t index = team.index; index < shape.rows * shape.chunks; index += team.step) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width;
        typename Form::Part part;
        if constexpr ((STEPS & MEASURE) != 0)
            part = form.template measure<LANES>(row, start, count, team.lane);
        else
            part = form.template join<LANES>(parts + row * shape.chunks, shape.chunks, team.lane);
        if constexpr ((STEPS & WRITE) != 0)
            form.template write<LANES>(row, start, count, team.lane, part);
        else if (team.lane == 0)
            parts[index] = part;
    }
}

template <class Form> static shard_status run_rows(shard_device *device, const Form &form, const Rows &shape, bool few)
{
    typename Form::Part *none = NULL;
    int64_t teams = shape.rows * shape.chunks;
    if (shape.chunks == 1)
        return launch(device, few ? row_steps<Form, WARP, MEASURE | WRITE> : row_steps<Form, BLOCK, MEASURE | WRITE>,
                      team_blocks(teams, few ? WARP : BLOCK), BLOCK, form, shape, none);
    size_t bytes = (size_t)teams * sizeof(typename Form::Part);
    void *parts = shard_cuda_scratch(device, bytes);
    if (!parts)
        return shard_last_status();
    shard_status status = SHARD_OK;
    for (auto kernel : {row_steps<Form, BLOCK, MEASURE>, row_steps<Form, BLOCK, WRITE>})
        if (status == SHARD_OK)
            status = launch(device, kernel, team_blocks(teams, BLOCK), BLOCK, form, shape, (typename Form::Part *)parts);
    shard_cuda_scratch_release(device, parts, bytes);
    return status;
}

} // namespace shard

#endif
