/*
 * Steps of optimizers whose gradient is a product that is not in memory (shard_update.product). A block computes
 * 128 x 128 elements of it with tensor cores, in the sums' registers, and steps them: the gradient is neither written nor read.
 * The products are slower than cuBLAS's, which pays while the arrays' memory takes longer than the sums.
 */
#ifndef SHARD_DEVICE_CUDA_PRODUCT_CUH
#define SHARD_DEVICE_CUDA_PRODUCT_CUH

#include "device/cuda/tensor_core.cuh"
#include "device/cuda/update.cuh"

#include <cuda_pipeline.h>

namespace shard
{

/* Rows and columns of a block, summands of a stage, and stages, all but one of which are on their way. A warp has 32 x 64
 * elements. Rows of shared memory have some elements more, so that those of a matrix are in different banks. */
enum {
    EDGE = 128,
    DEPTH = 16,
    STAGES = 4,
    PITCH = EDGE + 8,
    SUM_ROWS = EDGE / 2, /* of sums that are in shared memory at a time */
    SUM_PITCH = EDGE + 4,
    WARP_ROWS = 32,
    WARP_COLUMNS = 64,
    TALL = WARP_ROWS / 16, /* fragments of a warp: 16 x 8 sums */
    WIDE = WARP_COLUMNS / 8,
};

template <class T> struct Factors {
    int64_t rows, columns, inner, pitch_a;
    const T *a, *b;
    int64_t aligned; /* packs of the update's arrays are */
};

/* A stage's operands. */
template <class T> struct Stage {
    T a[DEPTH][PITCH], b[DEPTH][PITCH];
};

/* Copies the summands from k on, and zeros where there are none: each thread 16 bytes of both operands. */
template <class T>
static __device__ inline void fetch(const Factors<T> &f, int64_t row0, int64_t column0, int64_t k, Stage<T> *to)
{
    enum { SIZE = 16 / sizeof(T), EACH = EDGE / SIZE };
    int row = (int)threadIdx.x / EACH, column = (int)threadIdx.x % EACH * SIZE;
    bool there = k + row < f.inner, of_a = there && row0 + column < f.rows, of_b = there && column0 + column < f.columns;
    const T *a = of_a ? f.a + (k + row) * f.pitch_a + row0 + column : f.a;
    const T *b = of_b ? f.b + (k + row) * f.columns + column0 + column : f.b;
    __pipeline_memcpy_async(&to->a[row][column], a, 16, of_a ? 0 : 16);
    __pipeline_memcpy_async(&to->b[row][column], b, 16, of_b ? 0 : 16);
}

/* Adds a stage's products of a warp whose first row and column are these. */
template <class T> static __device__ inline void multiply(const Stage<T> &stage, int row, int column, float (&sum)[TALL][WIDE][4])
{
    int lane = (int)threadIdx.x % WARP, in = lane % 8, matrix = lane / 8;
    uint32_t a[TALL][4], b[WIDE / 2][4];
#pragma unroll
    for (int i = 0; i < TALL; i++)
        load_transposed(&stage.a[matrix / 2 * 8 + in][row + 16 * i + matrix % 2 * 8], a[i]);
#pragma unroll
    for (int j = 0; j < WIDE / 2; j++)
        load_transposed(&stage.b[matrix % 2 * 8 + in][column + 16 * j + matrix / 2 * 8], b[j]);
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
            multiply_add<T>(a[i], &b[j / 2][j % 2 * 2], sum[i][j]);
}

/* Puts the warp's sums into shared memory, from this row and column on. */
static __device__ inline void put_sums(const float (&sum)[TALL][WIDE][4], int row, int column, float (*to)[SUM_PITCH])
{
    int lane = (int)threadIdx.x % WARP, g = lane / 4, q = lane % 4;
#pragma unroll
    for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < WIDE; j++)
#pragma unroll
            for (int k = 0; k < 2; k++) {
                Pack<float, 2> pair = {{sum[i][j][2 * k], sum[i][j][2 * k + 1]}};
                *(Word<8> *)&to[row + 16 * i + 8 * k + g][column + 8 * j + 2 * q] = *(const Word<8> *)&pair;
            }
}

/* Steps N elements at a time of these rows, whose sums are in shared memory. */
template <int N, class Body>
static __device__ inline void step_sums(const Body &body, int64_t rows, int64_t columns, int64_t row0, int64_t column0,
                                        const float (*sums)[SUM_PITCH])
{
    for (int e = (int)threadIdx.x; e < SUM_ROWS * EDGE / N; e += BLOCK) {
        int row = e / (EDGE / N), column = e % (EDGE / N) * N;
        if (row0 + row >= rows || column0 + column >= columns)
            continue;
        int64_t i = (row0 + row) * columns + column0 + column;
        body.template store<N>(i, body.arrays.template load<N>(i, &sums[row][column], !body.now.starts));
    }
}

template <class T, class Item> static __global__ void __launch_bounds__(BLOCK, 2) product_step(Factors<T> f, Item item)
{
    __shared__ __align__(128) unsigned char memory[STAGES * sizeof(Stage<T>)];
    static_assert(sizeof memory >= SUM_ROWS * SUM_PITCH * sizeof(float), "room for sums");
    static_assert(BLOCK * 16 == DEPTH * EDGE * sizeof(T) && BLOCK / WARP * WARP_ROWS * WARP_COLUMNS == EDGE * EDGE,
                  "all threads' parts");
    Stage<T> *stages = (Stage<T> *)memory;
    auto sums = (float(*)[SUM_PITCH])memory;
    int64_t across = (f.columns + EDGE - 1) / EDGE;
    int64_t row0 = blockIdx.x / across * EDGE, column0 = blockIdx.x % across * EDGE;
    int warp = (int)threadIdx.x / WARP, row = warp / 2 * WARP_ROWS, column = warp % 2 * WARP_COLUMNS;
    int steps = (int)((f.inner + DEPTH - 1) / DEPTH);
    float sum[TALL][WIDE][4] = {};
    for (int k = 0; k < STAGES - 1; k++) {
        fetch(f, row0, column0, (int64_t)k * DEPTH, &stages[k]);
        __pipeline_commit();
    }
    for (int k = 0; k < steps; k++) {
        __pipeline_wait_prior(STAGES - 2);
        __syncthreads(); /* all threads' copies of stage k have arrived, and all have multiplied stage k - 1 */
        fetch(f, row0, column0, (int64_t)(k + STAGES - 1) * DEPTH, &stages[(k + STAGES - 1) % STAGES]);
        __pipeline_commit();
        multiply(stages[k % STAGES], row, column, sum);
    }
    __pipeline_wait_prior(0);
    auto body = item.begin();
    for (int half = 0; half < EDGE / SUM_ROWS; half++) {
        __syncthreads(); /* the operands, or the last rows' sums, are read */
        if (row / SUM_ROWS == half)
            put_sums(sum, row % SUM_ROWS, column, sums);
        __syncthreads();
        if (f.aligned)
            step_sums<decltype(item.arrays)::PACK>(body, f.rows, f.columns, row0 + half * SUM_ROWS, column0, sums);
        else
            step_sums<1>(body, f.rows, f.columns, row0 + half * SUM_ROWS, column0, sums);
    }
}

template <class T, class Item>
static inline shard_status launch_product(shard_device *device, const shard_update_product *product, const Item &item,
                                          bool aligned)
{
    const Factors<T> f = {product->rows,         product->columns,      product->inner, product->ld_a,
                          (const T *)product->a, (const T *)product->b, aligned};
    int64_t blocks = divide_up(f.rows, EDGE) * divide_up(f.columns, EDGE);
    return launch(device, product_step<T, Item>, (unsigned)blocks, BLOCK, f, item);
}

/* Whether updates with these arrays may have a product: their gradient is float32, and they have no list of rows. */
template <class Arrays> constexpr bool takes_product = false;
template <class V, class S, int STATES> constexpr bool takes_product<TypedUpdate<float, V, S, STATES, SameRows>> = true;
template <int STATES> constexpr bool takes_product<MixedUpdate<STATES, SameRows>> = true;

/* Whether steps compute it: it has few summands, and its operands can be read 16 bytes at a time. An H200 steps a million rows of
 * 512 bfloat16 values with 256 summands in 0.48 ms less than by a product and a step. With more than 512, by estimate, its reads
 * of the operands from the second-level cache take longer than what it saves. */
static inline bool fits_product(const shard_update_product *p)
{
    enum { MOST_INNER = 512 };
    return p->inner > 0 && p->inner <= MOST_INNER && p->rows > 0 && p->columns > 0 && p->columns % 8 == 0 && p->ld_a % 8 == 0 &&
           p->rows % 8 == 0 && shard_dtype_size(p->dtype) == 2 && aligned16(p->a, p->b);
}

static inline shard_status refuse_product()
{
    return shard_error(SHARD_ERROR_INTERNAL, "cuda: a step of arrays of these types takes no product");
}

/* Steps an update with a product by the body. */
template <class Body>
static inline shard_status run_product(shard_device *device, const shard_update *u, const shard_update_types &types,
                                       const decltype(Body::by) &by)
{
    Update<Body> update = {};
    update.by = by;
    set_arrays(&update.arrays, u, types);
    bool aligned = aligned_packs(update.arrays) && u->product->columns % decltype(update.arrays)::PACK == 0;
    return u->product->dtype == SHARD_BFLOAT16 ? launch_product<__nv_bfloat16>(device, u->product, update, aligned)
                                               : launch_product<__half>(device, u->product, update, aligned);
}

} // namespace shard

#endif
