/*
 * Embedding: rows of the weight by their indices, and the gradient's sums.
 *
 * Invariants: rows are copied in words as large as they and the pointers allow. For the
 * gradient the positions of the indices are sorted by their rows first, by a radix sort
 * that keeps the order of equal ones, so that each row's positions follow each other, in
 * order. One thread then sums a pack of columns of one row in that order; of a row with
 * more than CHUNK positions, a thread each CHUNK of them, and then a block their sums.
 * The order of a row's sum depends on its number of positions alone.
 */
#include "device/cuda/divisor.cuh"
#include "device/cuda/map.cuh"

using namespace shard;

/* ---- forward ---- */

/* Words of `dim` to a row. */
template <class W> struct Lookup {
    Divisor dim;
    int64_t row0, rows;
    const int64_t *index;
    const W *weight;
    W *y;

    template <int N> using In = Pack<W, N>;
    template <int N> __device__ In<N> load(int64_t i) const
    {
        int64_t position = i, column = dim.split(&position), from = index[position];
        bool own = from >= row0 && from - row0 < rows;
        return own ? load_pack<W, N>(weight + (from - row0) * dim.size + column) : In<N>{};
    }
    template <int N> __device__ void store(int64_t i, const In<N> &in) const
    {
        store_pack(y + i, in);
    }
};

shard_status shard_cuda_embedding(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows, const int64_t *index,
                                  const void *weight, void *y, shard_dtype dtype)
{
    if (dim == 0)
        return SHARD_OK;
    return by_dtype(dtype, [&](auto t) {
        int64_t bytes = dim * (int64_t)sizeof t;
        auto run = [&](auto w) {
            using W = decltype(w);
            Lookup<W> body = {Divisor(bytes / (int64_t)sizeof(W)), row0, rows, index, (const W *)weight, (W *)y};
            return run_map<1, 4>(device, n * body.dim.size, true, body);
        };
        uintptr_t all = (uintptr_t)weight | (uintptr_t)y | (uintptr_t)bytes;
        return all % 16 == 0  ? run(Word<16>())
               : all % 8 == 0 ? run(Word<8>())
               : all % 4 == 0 ? run(Word<4>())
               : all % 2 == 0 ? run(Word<2>())
                              : run(Word<1>());
    });
}

/* ---- the positions, sorted by row ---- */

enum {
    DIGIT = 8,         /* bits of a pass */
    BINS = 1 << DIGIT, /* as many as threads of a block */
    TILE = 8 * BLOCK,  /* positions that a block sorts */
    WARPS = BLOCK / WARP,
    FEW_TILES = 8, /* that a thread goes through by itself */
};
static_assert((int)BINS == (int)BLOCK, "a thread counts a bin");

typedef struct Sorting {
    int64_t n, tiles;
    int64_t row0, rows;
    const int64_t *index;
    int64_t *counts; /* [BINS, tiles], then where each tile's part of each bin begins */
    int64_t *totals; /* [BINS] */
} Sorting;

/* The row of a position in this part; those that it has not come after all others. */
static __device__ inline int64_t row_of(const Sorting &s, int64_t position)
{
    int64_t index = s.index[position];
    return index >= s.row0 && index - s.row0 < s.rows ? index - s.row0 : s.rows;
}

/* The i-th position so far. */
static __device__ inline int64_t position_at(const int64_t *order, int64_t i)
{
    return order ? order[i] : i;
}

static __device__ inline int digit_of(const Sorting &s, int64_t position, int shift)
{
    return (int)(row_of(s, position) >> shift & (BINS - 1));
}

static __global__ void count_digits(Sorting s, const int64_t *order, int shift)
{
    __shared__ int counts[BINS];
    counts[threadIdx.x] = 0;
    __syncthreads();
    int64_t start = (int64_t)blockIdx.x * TILE, end = start + TILE < s.n ? start + TILE : s.n;
    for (int64_t i = start + threadIdx.x; i < end; i += BLOCK)
        atomicAdd(&counts[digit_of(s, position_at(order, i), shift)], 1);
    __syncthreads();
    s.counts[threadIdx.x * s.tiles + blockIdx.x] = counts[threadIdx.x];
}

/* Exclusive prefix sums of the block's values; *total is the sum of all. */
static __device__ inline int64_t prefix(int64_t value, int64_t *total)
{
    __shared__ int64_t sums[WARPS];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int64_t sum = value, before = 0, all = 0; /* of the warp's values up to this one; of earlier warps */
    for (int step = 1; step < WARP; step *= 2) {
        int64_t other = __shfl_up_sync(0xffffffffu, sum, (unsigned)step);
        sum += lane >= step ? other : 0;
    }
    if (lane == WARP - 1)
        sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        before += w < warp ? sums[w] : 0;
        all += sums[w];
    }
    __syncthreads(); /* read before the next call writes */
    *total = all;
    return before + sum - value;
}

/* Each thread turns one bin's counts into where they begin in the bin, where these are few. */
static __global__ void place_few_tiles(Sorting s)
{
    int64_t *counts = s.counts + threadIdx.x * s.tiles, before = 0;
    for (int64_t i = 0; i < s.tiles; i++) {
        int64_t count = counts[i];
        counts[i] = before;
        before += count;
    }
    s.totals[threadIdx.x] = before;
}

/* Each block turns those of one bin. */
static __global__ void place_tiles(Sorting s)
{
    int64_t *counts = s.counts + blockIdx.x * s.tiles, before = 0, total;
    for (int64_t start = 0; start < s.tiles; start += BLOCK) {
        int64_t i = start + threadIdx.x, own = prefix(i < s.tiles ? counts[i] : 0, &total);
        if (i < s.tiles)
            counts[i] = before + own;
        before += total;
    }
    if (threadIdx.x == 0)
        s.totals[blockIdx.x] = before;
}

/* Lanes whose digit is the caller's. */
static __device__ inline unsigned lanes_like(int digit)
{
    unsigned like = 0xffffffffu;
    for (int bit = 0; bit <= DIGIT; bit++) {
        unsigned set = __ballot_sync(0xffffffffu, digit >> bit & 1);
        like &= digit >> bit & 1 ? set : ~set;
    }
    return like;
}

/* Moves the positions to their bins, in order. */
static __global__ void move_positions(Sorting s, const int64_t *order, int64_t *sorted, int shift)
{
    __shared__ int64_t begins[BINS];
    __shared__ int warps[WARPS][BINS + 1]; /* each warp's count of a digit; the last: no position */
    int64_t total, begin = prefix(s.totals[threadIdx.x], &total);
    begins[threadIdx.x] = begin + s.counts[threadIdx.x * s.tiles + blockIdx.x];
    int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
    int64_t start = (int64_t)blockIdx.x * TILE, end = start + TILE < s.n ? start + TILE : s.n;
    for (; start < end; start += BLOCK) {
        int64_t i = start + threadIdx.x, position = i < end ? position_at(order, i) : 0;
        int digit = i < end ? digit_of(s, position, shift) : BINS;
        for (int w = 0; w < WARPS; w++)
            warps[w][threadIdx.x] = 0;
        __syncthreads();
        unsigned like = lanes_like(digit), earlier = like & ((1u << lane) - 1);
        if (earlier == 0)
            warps[warp][digit] = __popc(like);
        __syncthreads();
        if (i < end) {
            int64_t to = begins[digit] + __popc(earlier);
            for (int w = 0; w < warp; w++)
                to += warps[w][digit];
            sorted[to] = position;
        }
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            begins[threadIdx.x] += warps[w][threadIdx.x];
    }
}

/* ---- backward ---- */

enum {
    AHEAD = 8,              /* rows of dy that a thread has under way */
    CHUNK = 128,            /* positions that a thread sums */
    ACROSS = 32,            /* packs of columns that a block sums chunks of, */
    TURNS = BLOCK / ACROSS, /* a thread each TURNS-th chunk */
};

/* The sorted positions, and where in them the row of each begins: n where this part has not got it. */
struct Sorted {
    int64_t n;
    const int64_t *order, *begins;

    /* How many follow the i-th, `step` apart, that are of its row: it counts as well. */
    __device__ int64_t count(int64_t i, int64_t step) const
    {
        int64_t begin = begins[i], found = 0, jump = 1;
        auto reaches = [&](int64_t steps) { return steps < (n - i + step - 1) / step && begins[i + steps * step] == begin; };
        for (; reaches(found + jump); jump *= 2)
            found += jump;
        for (; jump > 0; jump /= 2)
            found += reaches(found + jump) ? jump : 0;
        return found + 1;
    }
    /* Whether a row that begins there has several chunks. */
    __device__ bool is_long(int64_t begin) const
    {
        return begin + CHUNK < n && begins[begin + CHUNK] == begin;
    }
    /* Where the sum of a chunk goes, among twice as many as the positions have CHUNKs: at most one
     * row's first chunk and one other chunk begin in each CHUNK of positions. */
    __device__ int64_t slot(int64_t i) const
    {
        return i / CHUNK * 2 + (begins[i] != i);
    }
};

static __global__ void find_rows(Sorting s, const int64_t *order, int64_t *begins)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x; i < s.n; i += (int64_t)gridDim.x * BLOCK) {
        int64_t row = row_of(s, order[i]), begin = i, jump = 1;
        auto reaches = [&](int64_t at) { return at >= 0 && row_of(s, order[at]) == row; };
        for (; reaches(begin - jump); jump *= 2)
            begin -= jump;
        for (; jump > 0; jump /= 2)
            begin -= reaches(begin - jump) ? jump : 0;
        begins[i] = row < s.rows ? begin : s.n;
    }
}

/* The positions from the i-th on, those before `end` that are of the row that begins there. */
static __device__ inline int next_positions(const Sorted &s, int64_t i, int64_t end, int64_t begin, int64_t *positions)
{
    int count = 0;
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
        positions[a] = i + a < end ? s.order[i + a] : -1;
        count += count == a && positions[a] >= 0 && s.begins[i + a] == begin;
    }
    return count;
}

template <class R, int N> static __device__ inline void store_sums(R *to, const R (&sums)[N])
{
    enum { SIZE = N * sizeof(R) > 16 ? 16 / sizeof(R) : N };
    for (int k = 0; k < N; k += SIZE) {
        Pack<R, SIZE> pack;
        for (int j = 0; j < SIZE; j++)
            pack.value[j] = sums[k + j];
        store_pack(to + k, pack);
    }
}

/* Sums dy's elements in a pack of columns of one row, or of a chunk of it, which begins at the thread's position:
 * added to dweight, or to `chunks` of a row that has several. */
template <class T, int N>
static __global__ void sum_positions(Sorted s, Sorting sorting, Divisor packs, bool by_count, bool accumulate, const T *dy,
                                     Real<T> *chunks, T *dweight)
{
    int64_t i = (int64_t)blockIdx.x * BLOCK + threadIdx.x, column = packs.split(&i) * N, dim = packs.size * N;
    if (i >= s.n)
        return;
    int64_t begin = s.begins[i], positions[AHEAD];
    if (begin == s.n || (i - begin) % CHUNK != 0)
        return;
    bool whole = !s.is_long(begin);
    int64_t end = i + CHUNK < s.n ? i + CHUNK : s.n, at = i;
    T *to = dweight + row_of(sorting, s.order[i]) * dim + column;
    Pack<T, N> out;
    Real<T> sums[N] = {}, factor = by_count ? (Real<T>)(1.0 / (double)s.count(begin, 1)) : 1;
    if (accumulate && whole) {
        out = load_pack<T, N>(to);
        for (int k = 0; k < N; k++)
            sums[k] = to_real(out.value[k]);
    }
    for (int count = next_positions(s, at, end, begin, positions); count > 0;) {
        Pack<T, N> in[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (a < count)
                in[a] = load_pack<T, N>(dy + positions[a] * dim + column);
        at += AHEAD; /* found while those are under way */
        int next = count == AHEAD ? next_positions(s, at, end, begin, positions) : 0;
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            for (int k = 0; a < count && k < N; k++)
                sums[k] += factor * to_real(in[a].value[k]);
        count = next;
    }
    if (!whole) {
        store_sums(chunks + s.slot(i) * dim + column, sums);
        return;
    }
    for (int k = 0; k < N; k++)
        out.value[k] = round_to<T>(sums[k]);
    store_pack(to, out);
}

/* Adds up the chunks of the row, at most one, that has several and begins in the block's CHUNK of positions. */
template <class T, int N>
static __global__ void sum_chunks(Sorted s, Sorting sorting, int64_t packs, bool accumulate, const Real<T> *chunks, T *dweight)
{
    __shared__ int64_t found;
    __shared__ Real<T> shared[TURNS][ACROSS][N];
    if (threadIdx.x == 0)
        found = -1;
    __syncthreads();
    int64_t own = (int64_t)blockIdx.x * CHUNK + threadIdx.x;
    if (threadIdx.x < CHUNK && own < s.n && s.begins[own] == own && s.is_long(own))
        found = own;
    __syncthreads();
    int64_t begin = found, dim = packs * N;
    if (begin < 0)
        return;
    int turn = (int)threadIdx.x / ACROSS, lane = (int)threadIdx.x % ACROSS;
    int64_t count = s.count(begin, CHUNK);
    T *row = dweight + row_of(sorting, s.order[begin]) * dim;
    for (int64_t first = (int64_t)blockIdx.y * ACROSS; first < packs; first += (int64_t)gridDim.y * ACROSS) {
        int64_t column = (first + lane) * N;
        Real<T> sums[N] = {};
#pragma unroll 4
        for (int64_t i = turn; column < dim && i < count; i += TURNS)
            for (int k = 0; k < N; k++)
                sums[k] += chunks[s.slot(begin + i * CHUNK) * dim + column + k];
        for (int k = 0; k < N; k++)
            shared[turn][lane][k] = sums[k];
        __syncthreads();
        if (turn == 0 && column < dim) {
            Pack<T, N> out;
            if (accumulate)
                out = load_pack<T, N>(row + column);
            for (int k = 0; k < N; k++) {
                for (int other = 1; other < TURNS; other++)
                    sums[k] += shared[other][lane][k];
                out.value[k] = round_to<T>(accumulate ? to_real(out.value[k]) + sums[k] : sums[k]);
            }
            store_pack(row + column, out);
        }
        __syncthreads(); /* read before the next columns are written */
    }
}

/* Fills one of the two orders and returns it. */
static shard_status sort_positions(shard_device *device, const Sorting &s, int64_t *orders[2], const int64_t **sorted)
{
    const int64_t *order = NULL;
    int passes = 0;
    for (int shift = 0; shift == 0 || s.rows >> shift; shift += DIGIT) {
        int64_t *to = orders[passes++ % 2];
        SHARD_TRY(launch(device, count_digits, (unsigned)s.tiles, BLOCK, s, order, shift));
        SHARD_TRY(s.tiles <= FEW_TILES ? launch(device, place_few_tiles, 1, BINS, s) : launch(device, place_tiles, BINS, BLOCK, s));
        SHARD_TRY(launch(device, move_positions, (unsigned)s.tiles, BLOCK, s, order, to, shift));
        order = to;
    }
    *sorted = order;
    return SHARD_OK;
}

shard_status shard_cuda_embedding_backward(shard_device *device, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                           const int64_t *index, const void *dy, bool by_count, bool accumulate, void *dweight,
                                           shard_dtype dtype)
{
    if (rows == 0 || dim == 0)
        return SHARD_OK;
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        if (!accumulate)
            SHARD_TRY(shard_cuda_zero(device, dweight, (size_t)(rows * dim) * sizeof(T)));
        if (n == 0)
            return SHARD_OK;
        int64_t tiles = divide_up(n, TILE), slots = n > CHUNK ? 2 * divide_up(n, CHUNK) : 0;
        int64_t words = 2 * n + BINS * (tiles + 1);
        size_t bytes = (size_t)words * sizeof(int64_t),
               aligned = (bytes + SHARD_CUDA_ALIGN - 1) / SHARD_CUDA_ALIGN * SHARD_CUDA_ALIGN;
        size_t all = aligned + (size_t)(slots * dim) * sizeof(Real<T>);
        int64_t *scratch = (int64_t *)shard_cuda_scratch(device, all), *orders[] = {scratch, scratch + n};
        if (!scratch)
            return shard_last_status();
        Sorting s = {n, tiles, row0, rows, index, scratch + 2 * n, scratch + 2 * n + BINS * tiles};
        const int64_t *order = NULL;
        shard_status status = sort_positions(device, s, orders, &order);
        int64_t *begins = order == orders[0] ? orders[1] : orders[0];
        if (status == SHARD_OK)
            status = launch(device, find_rows, blocks_for(device, n, BLOCK), BLOCK, s, order, begins);
        const int pack = Pack<T>::SIZE;
        bool packed = dim % pack == 0 && aligned16(dy, dweight);
        Sorted sorted = {n, order, begins};
        Real<T> *chunks = (Real<T> *)((char *)scratch + aligned);
        int64_t packs = packed ? dim / pack : dim, across = divide_up(packs, ACROSS);
        if (status == SHARD_OK)
            status = launch(device, packed ? sum_positions<T, pack> : sum_positions<T, 1>, (unsigned)divide_up(n * packs, BLOCK),
                            BLOCK, sorted, s, Divisor(packs), by_count, accumulate, (const T *)dy, chunks, (T *)dweight);
        if (status == SHARD_OK && slots > 0)
            status = launch(device, packed ? sum_chunks<T, pack> : sum_chunks<T, 1>,
                            dim3((unsigned)divide_up(n, CHUNK), (unsigned)(across < 1024 ? across : 1024)), BLOCK, sorted, s,
                            packs, accumulate, (const Real<T> *)chunks, (T *)dweight);
        shard_cuda_scratch_release(device, scratch, all);
        return status;
    });
}
