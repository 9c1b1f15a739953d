/*
 * Scaled dot product attention in tiles of SIDE x SIDE scores, which are in shared memory alone: of float32 and float64, and of
 * the 16-bit types where cuDNN has not got it.
 *
 * A block computes SIDE rows of a result, or of a gradient, for some columns: it goes over the tiles of the other operand's
 * rows, computes the scores in registers, and multiplies them by those rows. A gradient is computed by one block from the
 * first tile to the last, without atomic additions, so that its bits are the same in each run. Threads are 16 x 16: thread
 * (y, x) has rows 4 y to 4 y + 3, the columns 4 x to 4 x + 3 of a tile of scores, and columns x, x + 16, ... of the result.
 */
#include "device/cuda/exp_sum.cuh"

#include "device/cuda/cuda_attention.h"

using namespace shard;

enum {
    SIDE = 64,
    ACROSS = 16, /* threads along each side */
    EACH = SIDE / ACROSS,
    DEPTH_BYTES = 64, /* of a row that is in shared memory at a time */
    GAP = 4,          /* keeps columns of shared memory in different banks */
};

/* Shared memory of a block: the tile's scores, or what they become, by rows of the result; and a part of two operands. */
template <class R> struct Shared {
    enum { DEPTH = DEPTH_BYTES / sizeof(R) };
    R weight[SIDE][SIDE + GAP]; /* [other row][own row] */
    union {
        struct {
            R own[DEPTH][SIDE + GAP], other[DEPTH][SIDE + GAP];
        } scores;
        R rows[DEPTH][2 * SIDE];
    };
};

/* Rows of an operand in memory: `count` of `cols` elements. */
template <class T> struct Matrix {
    const T *data;
    int64_t cols;
    int64_t count;

    __device__ Matrix from(int64_t row, int64_t most) const
    {
        Matrix part = {data + row * cols, cols, count - row < most ? count - row : most};
        return part;
    }
};

/* to[k][i] = element first + k of row i; 0 where there is none. Neighbouring threads read neighbouring elements. */
template <class T, class R, int DEPTH>
static __device__ inline void load_columns(const Matrix<T> &from, int64_t first, R (&to)[DEPTH][SIDE + GAP])
{
    for (int i = threadIdx.x; i < SIDE * DEPTH; i += BLOCK) {
        int row = i / DEPTH, k = i % DEPTH;
        to[k][row] = row < from.count && first + k < from.cols ? to_real(from.data[row * from.cols + first + k]) : 0;
    }
}

/* sum[i][j] = own row 4 y + i times other row 4 x + j. Every thread of the block takes part. */
template <class T, class R>
static __device__ inline void multiply(Shared<R> &shared, const Matrix<T> &own, const Matrix<T> &other, R (&sum)[EACH][EACH])
{
    enum { DEPTH = Shared<R>::DEPTH };
    int y = threadIdx.x / ACROSS * EACH, x = threadIdx.x % ACROSS * EACH;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++)
            sum[i][j] = 0;
    for (int64_t first = 0; first < own.cols; first += DEPTH) {
        __syncthreads(); /* the last readers are done */
        load_columns(own, first, shared.scores.own);
        load_columns(other, first, shared.scores.other);
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < DEPTH; k++) {
            R a[EACH], b[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                a[i] = shared.scores.own[k][y + i];
                b[i] = shared.scores.other[k][x + i];
            }
#pragma unroll
            for (int i = 0; i < EACH; i++)
                for (int j = 0; j < EACH; j++)
                    sum[i][j] = fma(a[i], b[j], sum[i][j]);
        }
    }
}

/* result[i][c] += the tile's weights of own row 4 y + i, times column `column` + x + 16 c of the other rows. */
template <class T, class R, int COLS>
static __device__ inline void add_weighted(Shared<R> &shared, const Matrix<T> &other, int64_t column, R (&result)[EACH][COLS])
{
    enum { DEPTH = Shared<R>::DEPTH, WIDTH = ACROSS * COLS };
    int y = threadIdx.x / ACROSS * EACH, x = threadIdx.x % ACROSS;
    for (int64_t first = 0; first < other.count; first += DEPTH) {
        __syncthreads(); /* weights are written, and the last readers are done */
        for (int i = threadIdx.x; i < DEPTH * WIDTH; i += BLOCK) {
            int64_t row = first + i / WIDTH, k = column + i % WIDTH;
            shared.rows[i / WIDTH][i % WIDTH] = row < other.count && k < other.cols ? to_real(other.data[row * other.cols + k]) : 0;
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < DEPTH; k++) {
            R a[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++)
                a[i] = shared.weight[first + k][y + i];
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                R b = shared.rows[k][x + ACROSS * c];
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    result[i][c] = fma(a[i], b, result[i][c]);
            }
        }
    }
}

/* Writes the thread's elements of rows [first, first + count) of `cols` columns. */
template <class T, class R, int COLS>
static __device__ inline void write(T *to, int64_t count, int64_t cols, int64_t column, const R (&result)[EACH][COLS])
{
    int y = threadIdx.x / ACROSS * EACH, x = threadIdx.x % ACROSS;
    for (int i = 0; i < EACH && y + i < count; i++)
        for (int c = 0; c < COLS; c++)
            if (column + x + ACROSS * c < cols)
                to[(y + i) * cols + column + x + ACROSS * c] = round_to<T>(result[i][c]);
}

/* The threads of a row are 16 neighbours of a warp. */
template <class Join, class R> static __device__ inline R row_reduce(R value)
{
    for (int step = ACROSS / 2; step > 0; step /= 2)
        value = Join::join(value, __shfl_xor_sync(0xffffffffu, value, step));
    return value;
}

/* fmax, which leaves a NaN out: it comes into the sum. */
struct Highest {
    template <class R> static __device__ inline R join(R a, R b) { return fmax(a, b); }
};

template <class T> struct Attention {
    shard_attention_shape s;
    const T *query, *key, *value, *dy, *y;
    const double *lse, *term;
    int64_t tiles, chunks; /* tiles of own rows of a head, runs of a result's columns */

    __device__ Matrix<T> queries_of(const T *x, int64_t head, int64_t cols) const
    {
        Matrix<T> rows = {x + head * s.queries * cols, cols, s.queries};
        return rows;
    }
    __device__ Matrix<T> keys_of(const T *x, int64_t key_head, int64_t cols) const
    {
        Matrix<T> rows = {x + key_head * s.keys * cols, cols, s.keys};
        return rows;
    }
    __device__ bool sees(int64_t i, int64_t j) const { return j < s.keys && (!s.causal || j <= i + s.offset); }
    /* The keys that queries before `end` have. */
    __device__ int64_t seen_keys(int64_t end) const
    {
        return s.causal && s.offset < s.keys - end ? end + s.offset : s.keys;
    }
};

/* ---- forward ---- */

/* The state of a thread's rows; sum is that of the row's exponentials relative to max. */
template <class R> struct Running {
    R max[EACH];
    double sum[EACH];
};

/* Makes the tile's weights of the scores, and brings the result from the old maxima to the new ones. */
template <class T, class R, int COLS>
static __device__ inline void follow(const Attention<T> &form, Shared<R> &shared, int64_t query, int64_t key,
                                     const R (&score)[EACH][EACH], Running<R> &state, R (&result)[EACH][COLS])
{
    int y = threadIdx.x / ACROSS * EACH, x = threadIdx.x % ACROSS * EACH;
    R scale = (R)form.s.scale;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        R value[EACH], highest = -INFINITY;
        for (int j = 0; j < EACH; j++) {
            value[j] = form.sees(query + y + i, key + x + j) ? score[i][j] * scale : -INFINITY;
            highest = fmax(highest, value[j]);
        }
        highest = fmax(state.max[i], row_reduce<Highest>(highest));
        R reference = highest == -INFINITY ? 0 : highest;
        R factor = state.max[i] == highest ? 1 : exp_relative(state.max[i], reference);
        double sum = 0;
        for (int j = 0; j < EACH; j++) {
            R weight = exp_relative(value[j], reference);
            shared.weight[x + j][y + i] = weight;
            sum += (double)weight;
        }
        state.max[i] = highest;
        state.sum[i] = state.sum[i] * (double)factor + row_reduce<Sum>(sum);
        for (int c = 0; c < COLS; c++)
            result[i][c] *= factor;
    }
}

template <class T, int COLS> static __global__ void __launch_bounds__(BLOCK) attention(Attention<T> form, T *y, double *lse)
{
    using R = Real<T>;
    __shared__ Shared<R> shared;
    const shard_attention_shape &s = form.s;
    int64_t chunk = blockIdx.x % form.chunks, rest = blockIdx.x / form.chunks;
    int64_t head = rest / form.tiles, query = (form.tiles - 1 - rest % form.tiles) * SIDE, column = chunk * ACROSS * COLS;
    int64_t key_head = head / shard_attention_group(&s), row = head * s.queries + query;
    Matrix<T> own = form.queries_of(form.query, head, s.in).from(query, SIDE);
    Running<R> state;
    R result[EACH][COLS] = {};
    for (int i = 0; i < EACH; i++)
        state.max[i] = -INFINITY, state.sum[i] = 0;
    for (int64_t key = 0, keys = form.seen_keys(query + own.count); key < keys; key += SIDE) {
        R score[EACH][EACH];
        multiply(shared, own, form.keys_of(form.key, key_head, s.in).from(key, SIDE), score);
        follow(form, shared, query, key, score, state, result);
        add_weighted(shared, form.keys_of(form.value, key_head, s.out).from(key, SIDE), column, result);
        __syncthreads(); /* before the next tile's weights */
    }
    int y0 = threadIdx.x / ACROSS * EACH;
    for (int i = 0; i < EACH; i++) {
        R inverse = s.keys == 0 ? 0 : (R)(1 / state.sum[i]);
        for (int c = 0; c < COLS; c++)
            result[i][c] *= inverse;
        if (chunk == 0 && threadIdx.x % ACROSS == 0 && y0 + i < own.count)
            lse[row + y0 + i] = (double)state.max[i] + log(state.sum[i]);
    }
    write(y + row * s.out, own.count, s.out, column, result);
}

/* Launches kernel<T, COLS> with 64 or 128 columns of `cols` in a block, for `heads` heads of `rows` rows. */
template <class T, class Body>
static shard_status by_columns(Attention<T> &form, int64_t heads, int64_t rows, int64_t cols, Body &&body)
{
    bool few = cols <= SIDE;
    form.tiles = divide_up(rows, SIDE);
    form.chunks = cols == 0 ? 1 : divide_up(cols, few ? SIDE : 2 * SIDE);
    int64_t blocks = heads * form.tiles * form.chunks;
    if (blocks == 0)
        return SHARD_OK;
    if (blocks > INT32_MAX)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "cuda: attention of %lld heads of %lld rows is too large for one launch",
                           (long long)heads, (long long)rows);
    return few ? body(std::integral_constant<int, EACH>(), (unsigned)blocks)
               : body(std::integral_constant<int, 2 * EACH>(), (unsigned)blocks);
}

shard_status shard_cuda_attention(shard_device *device, const shard_attention_shape *s, const void *query, const void *key,
                                  const void *value, void *y, double *lse, shard_dtype dtype)
{
    bool there;
    SHARD_TRY(shard_cuda_dnn_attention(device, s, query, key, value, y, lse, dtype, &there));
    if (there)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Attention<T> form = {*s, (const T *)query, (const T *)key, (const T *)value, NULL, NULL, NULL, NULL, 0, 0};
        return by_columns(form, s->batch * s->heads, s->queries, s->out, [&](auto cols, unsigned blocks) {
            return launch(device, attention<T, decltype(cols)::value>, blocks, BLOCK, form, (T *)y, lse);
        });
    });
}

/* ---- backward ---- */

/* term[row] = the sum of y dy, by a warp. */
template <class T> static __global__ void sum_terms(int64_t rows, int64_t cols, const T *y, const T *dy, double *term)
{
    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; row < rows;
         row += (int64_t)gridDim.x * (BLOCK / WARP)) {
        double sum = 0;
        for (int64_t k = threadIdx.x % WARP; k < cols; k += WARP)
            sum = fma((double)to_real(y[row * cols + k]), (double)to_real(dy[row * cols + k]), sum);
        sum = warp_reduce<Sum>(sum);
        if (threadIdx.x % WARP == 0)
            term[row] = sum;
    }
}

enum Gradient { OF_QUERY, OF_KEY, OF_VALUE };

/* Makes the weights of a tile: the softmax for the values' gradient, else its slope. own, other: the tile's first rows, of
 * which `head` has the queries. */
template <class T, class R, Gradient OF>
static __device__ inline void slope(const Attention<T> &form, Shared<R> &shared, int64_t head, int64_t own, int64_t other,
                                    const R (&score)[EACH][EACH], const R (&product)[EACH][EACH])
{
    int y = threadIdx.x / ACROSS * EACH, x = threadIdx.x % ACROSS * EACH;
    R scale = (R)form.s.scale;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        for (int j = 0; j < EACH; j++) {
            int64_t first = own + y + i, second = other + x + j;
            int64_t query = OF == OF_QUERY ? first : second, key = OF == OF_QUERY ? second : first;
            R weight = 0;
            if (query < form.s.queries && form.sees(query, key)) {
                double lse = form.lse[head * form.s.queries + query];
                R high = (R)lse, low = (R)(lse - (double)high);
                weight = exp_relative(score[i][j] * scale - high, low);
                if (OF != OF_VALUE)
                    weight = weight * (product[i][j] - (R)form.term[head * form.s.queries + query]) * scale;
            }
            shared.weight[x + j][y + i] = weight;
        }
}

/* Adds a tile's part to the gradient of `own` rows of queries (OF_QUERY) or keys. */
template <class T, class R, int COLS, Gradient OF>
static __device__ inline void add_tile(const Attention<T> &form, Shared<R> &shared, int64_t head, int64_t own, int64_t other,
                                       int64_t column, R (&result)[EACH][COLS])
{
    const shard_attention_shape &s = form.s;
    int64_t key_head = head / shard_attention_group(&s), query = OF == OF_QUERY ? own : other, key = OF == OF_QUERY ? other : own;
    Matrix<T> queries = form.queries_of(form.query, head, s.in).from(query, SIDE);
    Matrix<T> keys = form.keys_of(form.key, key_head, s.in).from(key, SIDE);
    Matrix<T> gradients = form.queries_of(form.dy, head, s.out).from(query, SIDE);
    Matrix<T> values = form.keys_of(form.value, key_head, s.out).from(key, SIDE);
    R score[EACH][EACH], product[EACH][EACH] = {};
    multiply(shared, OF == OF_QUERY ? queries : keys, OF == OF_QUERY ? keys : queries, score);
    if (OF != OF_VALUE)
        multiply(shared, OF == OF_QUERY ? gradients : values, OF == OF_QUERY ? values : gradients, product);
    slope<T, R, OF>(form, shared, head, own, other, score, product);
    add_weighted(shared, OF == OF_QUERY ? keys : OF == OF_KEY ? queries : gradients, column, result);
    __syncthreads(); /* before the next tile's weights */
}

template <class T, int COLS, Gradient OF>
static __global__ void __launch_bounds__(BLOCK) attention_gradient(Attention<T> form, T *to)
{
    using R = Real<T>;
    __shared__ Shared<R> shared;
    const shard_attention_shape &s = form.s;
    int64_t chunk = blockIdx.x % form.chunks, rest = blockIdx.x / form.chunks;
    int64_t head = rest / form.tiles, own = rest % form.tiles * SIDE, column = chunk * ACROSS * COLS; /* of keys: a key head */
    int64_t count = OF == OF_QUERY ? s.queries : s.keys, cols = OF == OF_VALUE ? s.out : s.in, group = shard_attention_group(&s);
    R result[EACH][COLS] = {};
    if (OF == OF_QUERY) {
        own = (form.tiles - 1) * SIDE - own; /* those with most keys first */
        for (int64_t key = 0, keys = form.seen_keys(own + SIDE < count ? own + SIDE : count); key < keys; key += SIDE)
            add_tile<T, R, COLS, OF>(form, shared, head, own, key, column, result);
    } else {
        int64_t first = s.causal && own > s.offset ? (own - s.offset) / SIDE * SIDE : 0; /* queries before it do not see the keys */
        for (int64_t i = head * group; i < (head + 1) * group; i++)
            for (int64_t query = first; query < s.queries; query += SIDE)
                add_tile<T, R, COLS, OF>(form, shared, i, own, query, column, result);
    }
    write(to + (head * count + own) * cols, count - own, cols, column, result);
}

template <class T, Gradient OF> static shard_status compute(shard_device *device, Attention<T> form, void *to)
{
    const shard_attention_shape &s = form.s;
    int64_t heads = s.batch * (OF == OF_QUERY ? s.heads : s.key_heads), rows = OF == OF_QUERY ? s.queries : s.keys;
    int64_t cols = OF == OF_VALUE ? s.out : s.in;
    if (!to || cols == 0)
        return SHARD_OK;
    return by_columns(form, heads, rows, cols, [&](auto count, unsigned blocks) {
        return launch(device, attention_gradient<T, decltype(count)::value, OF>, blocks, BLOCK, form, (T *)to);
    });
}

shard_status shard_cuda_attention_backward(shard_device *device, const shard_attention_shape *s, const void *query,
                                           const void *key, const void *value, const void *y, const double *lse, const void *dy,
                                           void *dquery, void *dkey, void *dvalue, shard_dtype dtype)
{
    bool there;
    SHARD_TRY(shard_cuda_dnn_attention_backward(device, s, query, key, value, y, lse, dy, dquery, dkey, dvalue, dtype, &there));
    if (there)
        return SHARD_OK;
    int64_t rows = s->batch * s->heads * s->queries;
    size_t bytes = (size_t)(rows + 1) * sizeof(double);
    double *term = (double *)shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, bytes);
    if (!term)
        return shard_last_status();
    shard_status status = by_float(dtype, [&](auto t) -> shard_status {
        using T = decltype(t);
        Attention<T> form = {*s,  (const T *)query, (const T *)key, (const T *)value, (const T *)dy, (const T *)y,
                             lse, term,             0,              0};
        if (rows > 0)
            SHARD_TRY(launch(device, sum_terms<T>, blocks_for(device, rows, BLOCK / WARP), BLOCK, rows, s->out, form.y, form.dy,
                             term));
        SHARD_TRY((compute<T, OF_QUERY>(device, form, dquery)));
        SHARD_TRY((compute<T, OF_KEY>(device, form, dkey)));
        return compute<T, OF_VALUE>(device, form, dvalue);
    });
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, term, bytes);
    return status;
}
