/*
 * Cross-entropy over a range of the columns: one pass over the logits for the statistics, one for the gradient,
 * which may overwrite them.
 *
 * A row's q is a constant `spread`, or keep * probability + spread, times the columns' weights; a label adds `keep`
 * times its weight at the target. A second kernel joins the statistics of chunks of a row, in an order that depends
 * on the shape alone, and adds the label's summands. The ranks' statistics are joined in the same way, in rank
 * order.
 */
#include "device/cuda/exp_sum.cuh"
#include "device/cuda/label_rank.cuh"

using namespace shard;

/* The columns' summands of q in a row: none, one constant, or one for each column. Mapped logits have the general form,
 * so that kernels of other logits are not larger for them. */
enum { NO_TARGETS, SAME_TARGETS, OWN_TARGETS, MAPPED };
template <int TARGETS> constexpr bool by_column = TARGETS == OWN_TARGETS || TARGETS == MAPPED;

template <class T> struct Loss {
    const T *x, *probability, *weight;
    const int64_t *target;
    shard_cross_entropy_shape shape; /* its pitch is not 0 */
    double keep, spread;
    Real<T> scale, rate, cap, inverse_cap; /* of the map; cap and inverse_cap are 0 without a cap */
    int64_t packed;                        /* x and `also` are read in packs together */
    int64_t alike;                         /* and rows of probabilities begin as far from a multiple of 16 as theirs */

    __device__ bool ignores(int64_t row) const
    {
        return target && shard_label_ignored(&shape, target[row]);
    }
    /* The column of the target's logit in this part, -1 if it has none here. */
    __device__ int64_t own_target(int64_t row) const
    {
        return target ? shard_label_column(&shape, target[row]) : -1;
    }
    /* Of a pack of x. */
    __device__ Pack<T> load_probabilities(const T *from) const
    {
        if (alike)
            return load_pack(from);
        Pack<T> pack;
        for (int j = 0; j < Pack<T>::SIZE; j++)
            pack.value[j] = from[j];
        return pack;
    }
    __device__ Real<T> weight_of(int64_t column) const
    {
        return weight ? to_real(weight[column]) : 1;
    }
    __device__ Real<T> mapped(Real<T> x) const
    {
        return cap > 0 ? cap * tanh(rate * x) : rate * x;
    }
};

/* Packs of the logits that a thread loads ahead; as many again of the columns' weights or probabilities. */
template <int TARGETS> constexpr int packs_ahead = by_column<TARGETS> ? PACKS / 2 : PACKS;

/* ---- statistics ---- */

/* Of a chunk: the exponentials are relative to its maximum. */
struct LossPart {
    double max, sum, a, b;
    int64_t ahead;
};

/* The row's count of logits before the target's; ahead NULL: not counted. */
struct Ranking {
    const double *logit; /* [rows], of the targets; NULL: this part has them */
    int64_t *ahead;      /* [rows] */
};

/* Of a row that is not ignored. */
template <class T> static __device__ inline Real<T> target_logit(const Loss<T> &l, const Ranking &ranking, int64_t row)
{
    return ranking.logit ? (Real<T>)ranking.logit[row] : to_real(l.x[row * l.shape.pitch + l.own_target(row)]);
}

/* Adds q x and q of a column's element; without probabilities they are 0. Of labels that are not smoothed there is no q: 0 times
 * the -inf of a masked class would be NaN. */
template <class T>
static __device__ inline void add_target(const Loss<T> &l, Real<T> x, T probability, int64_t column, double *a, double *b)
{
    if (!l.probability && l.spread == 0)
        return;
    double q = (l.keep * (double)to_real(probability) + l.spread) * (double)l.weight_of(column);
    *a += q * (double)x;
    *b += q;
}

template <class T, int LANES, int TARGETS, bool RANKED>
static __device__ inline void measure_parts(const Loss<T> &l, const Ranking &ranking, const Rows &shape, LossPart *parts)
{
    using R = Real<T>;
    Team<LANES> team;
    for (int64_t index = team.index; index < shape.rows * shape.chunks; index += team.step) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width, from = row * l.shape.pitch + start;
        const T *x = l.x + from, *probability = l.probability ? l.probability + row * shape.cols + start : NULL;
        ExpSum<R> e;
        double a = 0, b = 0;
        bool ranked = RANKED && !l.ignores(row);
        int64_t left = ranked ? l.target[row] - l.shape.col0 - start : 0; /* columns of this chunk */
        int ahead = 0;
        R own = ranked ? target_logit(l, ranking, row) : R(0);
        walk<packs_ahead<TARGETS>>(
            Cut<T>(x, count, l.packed), team.lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE];
                load_batch<T, COUNT>(x, first, value);
#pragma unroll
                for (int k = 0; k < (RANKED ? COUNT : 0); k++) {
                    int64_t rest = left - first[k];
                    int these = rest < 0 ? 0 : rest < SIZE ? (int)rest : SIZE;
#pragma unroll
                    for (int j = 0; j < SIZE; j++) /* the target's own logit may come from another product, of other last bits */
                        ahead += rest != j && comes_before(value[k * SIZE + j], own, j < these);
                }
#pragma unroll
                for (int k = 0; k < (TARGETS == MAPPED ? COUNT * SIZE : 0); k++)
                    value[k] = l.mapped(value[k]);
                e.add(value);
#pragma unroll
                for (int k = 0; k < (by_column<TARGETS> ? COUNT : 0); k++) {
                    Pack<T> pack = {};
                    if (probability)
                        pack = l.load_probabilities(probability + first[k]);
#pragma unroll
                    for (int j = 0; j < SIZE; j++)
                        add_target(l, value[k * SIZE + j], pack.value[j], start + first[k] + j, &a, &b);
                }
#pragma unroll
                for (int k = 0; k < (TARGETS == SAME_TARGETS ? COUNT * SIZE : 0); k++)
                    a += (double)value[k];
            },
            [&](int64_t i) {
                R value[1] = {to_real(x[i])};
                if (RANKED)
                    ahead += i != left && comes_before(value[0], own, i < left);
                if (TARGETS == MAPPED)
                    value[0] = l.mapped(value[0]);
                e.add(value);
                if (by_column<TARGETS>)
                    add_target(l, value[0], probability ? probability[i] : T(0), start + i, &a, &b);
                if (TARGETS == SAME_TARGETS)
                    a += (double)value[0];
            });
        R max = team_reduce<LANES, Maximum>(e.max);
        double sum = team_reduce<LANES, Sum>(e.relative_to(max));
        if (TARGETS != NO_TARGETS)
            a = team_reduce<LANES, Sum>(a);
        if (by_column<TARGETS>)
            b = team_reduce<LANES, Sum>(b);
        if (TARGETS == SAME_TARGETS) {
            a *= l.spread;
            b = l.spread * (double)count;
        }
        int64_t all_ahead = RANKED ? team_reduce<LANES, Sum>((int64_t)ahead) : 0;
        if (team.lane == 0)
            parts[index] = LossPart{(double)max, sum, a, b, ranked ? all_ahead : 0};
    }
}

template <class T, int LANES, int TARGETS>
static __global__ void sum_parts(Loss<T> l, Ranking ranking, Rows shape, LossPart *parts)
{
    measure_parts<T, LANES, TARGETS, false>(l, ranking, shape, parts);
}

/* Three blocks a multiprocessor: fewer have too few bytes under way. */
template <class T, int LANES, int TARGETS>
static __global__ void __launch_bounds__(BLOCK, 3) sum_and_rank_parts(Loss<T> l, Ranking ranking, Rows shape, LossPart *parts)
{
    measure_parts<T, LANES, TARGETS, true>(l, ranking, shape, parts);
}

/* The sum of a chunk relative to the row's maximum. */
static __device__ inline double rescaled(const LossPart &part, double max)
{
    return part.max == max ? part.sum : part.sum * exp(part.max - max);
}

/* A warp joins the chunks of a row. */
template <class T> static __global__ void join_parts(Loss<T> l, Ranking ranking, Rows shape, const LossPart *parts, double *stats)
{
    Team<WARP> team;
    for (int64_t row = team.index; row < shape.rows; row += team.step) {
        const LossPart *chunk = parts + row * shape.chunks;
        double max = -INFINITY, sum = 0, a = 0, b = 0;
        int64_t ahead = 0;
        for (int64_t i = team.lane; i < shape.chunks; i += WARP)
            max = fmax(max, chunk[i].max);
        max = warp_reduce<Maximum>(max);
        for (int64_t i = team.lane; i < shape.chunks; i += WARP) {
            sum += rescaled(chunk[i], max);
            a += chunk[i].a;
            b += chunk[i].b;
            ahead += chunk[i].ahead;
        }
        sum = warp_reduce<Sum>(sum);
        a = warp_reduce<Sum>(a);
        b = warp_reduce<Sum>(b);
        ahead = warp_reduce<Sum>(ahead);
        if (team.lane != 0)
            continue;
        bool ignored = l.ignores(row);
        int64_t target = l.own_target(row);
        double weight = target >= 0 ? (double)l.weight_of(target) : 0;
        double *out = stats + row * SHARD_CE_STATS;
        Real<T> x = target >= 0 ? to_real(l.x[row * l.shape.pitch + target]) : 0;
        if (l.shape.map.maps)
            x = l.mapped(x);
        out[SHARD_CE_MAX] = max;
        out[SHARD_CE_SUM] = sum;
        out[SHARD_CE_A] = ignored ? 0 : a + (target >= 0 ? l.keep * weight * (double)x : 0);
        out[SHARD_CE_B] = ignored ? 0 : b + l.keep * weight;
        out[SHARD_CE_WEIGHT] = weight;
        if (ranking.ahead)
            ranking.ahead[row] = ahead;
    }
}

template <class T>
static Loss<T> loss_of(const shard_cross_entropy_shape *shape, const void *x, const int64_t *target, const void *probability,
                       const void *weight, const void *also)
{
    Loss<T> l = {};
    l.x = (const T *)x;
    l.probability = target ? NULL : (const T *)probability;
    l.weight = (const T *)weight;
    l.target = target;
    l.shape = *shape;
    l.shape.pitch = shard_pitch(shape->pitch, shape->cols);
    l.keep = 1 - shape->smoothing;
    l.spread = shape->classes ? shape->smoothing / (double)shape->classes : 0;
    l.scale = (Real<T>)shape->map.scale;
    l.rate = (Real<T>)shard_logit_rate(&shape->map);
    l.cap = (Real<T>)shape->map.soft_cap;
    l.inverse_cap = shape->map.soft_cap > 0 ? (Real<T>)(1 / shape->map.soft_cap) : 0;
    l.packed = aligned_alike(l.x, also);
    l.alike = aligned_alike(l.x, l.probability) && (l.shape.pitch - shape->cols) * (int64_t)sizeof(T) % 16 == 0;
    return l;
}

/* Kernel<T, LANES, TARGETS> for these rows and this q, called by `call`. */
#define BY_TARGETS(kernel, T, short, l, call)                                                                                    \
    ((l).shape.map.maps ? ((short) ? call(kernel<T, WARP, MAPPED>) : call(kernel<T, BLOCK, MAPPED>))                             \
     : (l).probability || ((l).spread != 0 && (l).weight)                                                                        \
         ? ((short) ? call(kernel<T, WARP, OWN_TARGETS>) : call(kernel<T, BLOCK, OWN_TARGETS>))                                  \
     : (l).spread != 0 ? ((short) ? call(kernel<T, WARP, SAME_TARGETS>) : call(kernel<T, BLOCK, SAME_TARGETS>))                  \
                       : ((short) ? call(kernel<T, WARP, NO_TARGETS>) : call(kernel<T, BLOCK, NO_TARGETS>)))

shard_status shard_cuda_cross_entropy_stats(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                            const int64_t *target, const void *probability, const void *weight, double *stats,
                                            const double *logit, int64_t *ahead, shard_dtype dtype)
{
    if (shape->rows == 0)
        return SHARD_OK;
    Rows cut = cut_rows(device, shape->rows, shape->cols);
    int64_t teams = cut.rows * cut.chunks;
    size_t bytes = (size_t)teams * sizeof(LossPart);
    LossPart *parts = (LossPart *)shard_cuda_scratch(device, bytes);
    if (!parts)
        return shard_last_status();
    shard_status status = by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Loss<T> l = loss_of<T>(shape, x, target, probability, weight, NULL);
        bool few = short_rows(cut.cols, sizeof(T));
        Ranking ranking = {logit, ahead};
        auto run = [&](auto kernel) {
            return launch(device, kernel, team_blocks(teams, few ? WARP : BLOCK), BLOCK, l, ranking, cut, parts);
        };
        SHARD_TRY(ahead ? BY_TARGETS(sum_and_rank_parts, T, few, l, run) : BY_TARGETS(sum_parts, T, few, l, run));
        return launch(device, join_parts<T>, team_blocks(cut.rows, WARP), BLOCK, l, ranking, cut, parts, stats);
    });
    shard_cuda_scratch_release(device, parts, bytes);
    return status;
}

/* ---- all parts of the rows ---- */

/* The ranks' statistics and counts of a row, which begin `stride` from each other. */
struct Gathered {
    int64_t ranks, stride;
    const double *stats;
    const int64_t *ahead;
};

/* A row's log-sum-exp, slope, loss and its weight in the mean. A rank without a finite logit adds 0, also if
 * no rank has one; a NaN is in the maximum or the sum, and stays. */
static __device__ inline void join_row(const Gathered &gathered, const shard_cross_entropy_shape &shape, int64_t row, bool labels,
                                       bool ignored, double row_weight, double *numbers)
{
    double largest = -INFINITY, sum = 0, a = 0, b = 0, weight = 0;
    for (int64_t rank = 0; rank < gathered.ranks; rank++) {
        double max = gathered.stats[rank * gathered.stride + row * SHARD_CE_STATS + SHARD_CE_MAX];
        largest = max > largest ? max : largest;
    }
    for (int64_t rank = 0; rank < gathered.ranks; rank++) {
        const double *part = gathered.stats + rank * gathered.stride + row * SHARD_CE_STATS;
        sum += part[SHARD_CE_SUM] * (part[SHARD_CE_MAX] == largest ? 1 : exp(part[SHARD_CE_MAX] - largest));
        a += part[SHARD_CE_A];
        b += part[SHARD_CE_B];
        weight += part[SHARD_CE_WEIGHT];
    }
    int64_t rows = shape.rows;
    double log_sum = log(sum), lse = largest + log_sum;
    numbers[SHARD_CE_LSE * rows + row] = lse;
    numbers[SHARD_CE_LSE_ERROR * rows + row] = shard_row_lse_error(largest, log_sum);
    numbers[SHARD_CE_SLOPE * rows + row] = shard_row_slope(b, lse, shape.z_loss);
    numbers[SHARD_CE_FACTOR * rows + row] = ignored ? 0 : row_weight * (labels ? weight : 1);
    numbers[SHARD_CE_LOSS * rows + row] = ignored ? 0 : row_weight * shard_row_loss(a, b, largest, log_sum, shape.z_loss);
}

static __device__ inline int64_t join_ahead(const Gathered &gathered, int64_t row)
{
    int64_t sum = 0;
    for (int64_t rank = 0; rank < gathered.ranks; rank++)
        sum += gathered.ahead[rank * gathered.stride + row];
    return sum;
}

/* Losses and weights of the rows of a block. */
struct LossSum {
    double loss, weight;
};

/* Blocks that sum the rows, as many as a block has threads at most: their number depends on
 * the rows alone, and so does the order of the sums. */
static unsigned loss_blocks(int64_t rows)
{
    int64_t blocks = divide_up(rows, BLOCK);
    return (unsigned)(blocks < (int64_t)BLOCK ? blocks : (int64_t)BLOCK);
}

static __global__ void join_rows(shard_cross_entropy_shape shape, Gathered gathered, const int64_t *target,
                                 const double *row_weight, double *numbers, int64_t *rank, LossSum *sums)
{
    double loss = 0, weight = 0;
    int64_t step = (int64_t)gridDim.x * BLOCK;
    for (int64_t row = (int64_t)blockIdx.x * BLOCK + threadIdx.x; row < shape.rows; row += step) {
        bool ignored = target && shard_label_ignored(&shape, target[row]);
        join_row(gathered, shape, row, target != NULL, ignored, row_weight ? row_weight[row] : 1, numbers);
        if (rank)
            rank[row] = ignored ? INT64_MAX : join_ahead(gathered, row);
        loss += numbers[SHARD_CE_LOSS * shape.rows + row];
        weight += numbers[SHARD_CE_FACTOR * shape.rows + row];
    }
    loss = block_reduce<BLOCK, Sum>(loss);
    weight = block_reduce<BLOCK, Sum>(weight);
    if (threadIdx.x == 0)
        sums[blockIdx.x] = LossSum{loss, weight};
}

/* Each block adds up the sums of all `blocks`, and turns the weights of its rows into their factors. */
static __global__ void share_losses(shard_cross_entropy_shape shape, int64_t mean, const int64_t *target,
                                    const double *row_weight, int64_t blocks, const LossSum *sums, double *numbers,
                                    double *result)
{
    double *factor = numbers + SHARD_CE_FACTOR * shape.rows;
    bool adds = threadIdx.x < blocks;
    double sum = block_reduce<BLOCK, Sum>(adds ? sums[threadIdx.x].loss : 0);
    double weights = block_reduce<BLOCK, Sum>(adds ? sums[threadIdx.x].weight : 0);
    int64_t step = (int64_t)gridDim.x * BLOCK;
    for (int64_t row = (int64_t)blockIdx.x * BLOCK + threadIdx.x; row < shape.rows; row += step) {
        double weight = row_weight ? row_weight[row] : 1;
        factor[row] = target && shard_label_ignored(&shape, target[row]) ? 0 : mean ? weight / weights : weight;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *result = !mean ? sum : weights != 0 ? sum / weights : NAN;
}

shard_status shard_cuda_cross_entropy_join(shard_device *device, const shard_cross_entropy_shape *shape, bool mean, int64_t ranks,
                                           int64_t stride, const double *stats, const int64_t *ahead, const int64_t *target,
                                           const double *row_weight, double *numbers, double *result, int64_t *rank)
{
    unsigned blocks = loss_blocks(shape->rows);
    size_t bytes = blocks * sizeof(LossSum);
    LossSum *sums = (LossSum *)shard_cuda_scratch(device, bytes);
    if (!sums)
        return shard_last_status();
    Gathered all = {ranks, stride, stats, ahead};
    shard_status status = SHARD_OK;
    if (blocks)
        status = launch(device, join_rows, blocks, BLOCK, *shape, all, target, row_weight, numbers, rank, sums);
    if (status == SHARD_OK)
        status = launch(device, share_losses, blocks ? blocks : 1, BLOCK, *shape, (int64_t)mean, target, row_weight,
                        (int64_t)blocks, sums, numbers, result);
    shard_cuda_scratch_release(device, sums, bytes);
    return status;
}

/* ---- gradient ---- */

/* The constants of a row: dx = factor * exp(x - center) - constant, and less at the target. */
template <class R> struct RowGradient {
    R factor, center, keep, spread;
    int64_t target;
};

template <class T>
static __device__ inline RowGradient<Real<T>> row_gradient(const Loss<T> &l, int64_t row, const shard_loss_rows &rows)
{
    using R = Real<T>;
    RowGradient<R> g;
    double scale = rows.scale[row];
    g.center = (R)rows.lse[row];
    g.factor = (R)(scale * rows.slope[row] * shard_row_exponential(&rows, row, (double)g.center));
    g.keep = (R)(scale * l.keep);
    g.spread = (R)(scale * l.spread);
    g.target = l.own_target(row);
    return g;
}

/* The gradient by the logit x of a column, without the label's summand; without probabilities they are 0. Mapped logits
 * are complete, the label's summand included. */
template <class T, int TARGETS>
static __device__ inline Real<T> gradient(const Loss<T> &l, const RowGradient<Real<T>> &g, Real<T> x, T probability,
                                          int64_t column)
{
    if (TARGETS == MAPPED)
        x = l.mapped(x);
    Real<T> dx = g.factor * exp(x - g.center);
    if (TARGETS == SAME_TARGETS)
        dx -= g.spread;
    if (by_column<TARGETS>)
        dx -= (g.keep * to_real(probability) + g.spread) * l.weight_of(column);
    if (TARGETS == MAPPED)
        dx = (dx - (column == g.target ? g.keep * l.weight_of(column) : 0)) * shard_logit_slope(x, l.scale, l.inverse_cap);
    return dx;
}

/* U: of the gradient. target_slope: [rows], a factor at the target; NULL: 1. */
template <class T, class U, int LANES, int TARGETS>
static __device__ inline void differentiate(const Loss<T> &l, const Rows &shape, const shard_loss_rows &rows,
                                            const double *target_slope, U *dx)
{
    using R = Real<T>;
    Team<LANES> team;
    for (int64_t index = team.index; index < shape.rows * shape.chunks; index += team.step) {
        int64_t row = index / shape.chunks, start = index % shape.chunks * shape.width;
        int64_t count = shape.cols - start < shape.width ? shape.cols - start : shape.width, from = row * l.shape.pitch + start;
        const T *x = l.x + from, *probability = l.probability ? l.probability + row * shape.cols + start : NULL;
        U *out = dx + from;
        bool ignored = l.ignores(row);
        RowGradient<R> g = row_gradient(l, row, rows);
        int64_t target = g.target - start;
        bool own = by_column<TARGETS> && probability;
        R later = TARGETS != MAPPED && g.target >= 0 ? g.keep * l.weight_of(g.target) : 0; /* the label's summand */
        R factor = target_slope ? (R)target_slope[row] : 1;
        walk<packs_ahead<TARGETS>>(
            Cut<T>(x, count, l.packed), team.lane, LANES,
            [&](auto &first) {
                enum { COUNT = sizeof first / sizeof *first, SIZE = Pack<T>::SIZE };
                R value[COUNT * SIZE];
                load_batch<T, COUNT>(x, first, value);
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    Pack<T> pack = {};
                    if (own)
                        pack = l.load_probabilities(probability + first[k]);
#pragma unroll
                    for (int j = 0; j < SIZE; j++) {
                        R *v = &value[k * SIZE + j];
                        *v = gradient<T, TARGETS>(l, g, *v, pack.value[j], start + first[k] + j);
                        *v = ignored ? 0 : *v;
                    }
                    if (target >= first[k] && target < first[k] + SIZE && g.target >= 0)
#pragma unroll
                        for (int j = 0; j < SIZE; j++) {
                            R *v = &value[k * SIZE + j];
                            *v = target == first[k] + j ? (*v - later) * factor : *v;
                        }
                }
                store_like<T, COUNT>(out, first, value);
            },
            [&](int64_t i) {
                R value = gradient<T, TARGETS>(l, g, to_real(x[i]), own ? probability[i] : T(0), start + i);
                if (g.target >= 0 && target == i)
                    value = (value - later) * factor;
                out[i] = round_to<U>(ignored ? 0 : value);
            });
    }
}

template <class T, int LANES, int TARGETS>
static __global__ void backward(Loss<T> l, Rows shape, shard_loss_rows rows, T *dx)
{
    differentiate<T, T, LANES, TARGETS>(l, shape, rows, NULL, dx);
}

template <class U, int LANES, int TARGETS>
static __global__ void backward_narrow(Loss<float> l, Rows shape, shard_loss_rows rows, const double *target_slope, U *dx)
{
    differentiate<float, U, LANES, TARGETS>(l, shape, rows, target_slope, dx);
}

shard_status shard_cuda_cross_entropy_backward(shard_device *device, const shard_cross_entropy_shape *shape, const void *x,
                                               const int64_t *target, const void *probability, const void *weight,
                                               const shard_loss_rows *rows, void *dx, shard_dtype dtype)
{
    if (shape->rows == 0 || shape->cols == 0)
        return SHARD_OK;
    Rows cut = cut_rows(device, shape->rows, shape->cols);
    return by_float(dtype, [&](auto t) {
        using T = decltype(t);
        Loss<T> l = loss_of<T>(shape, x, target, probability, weight, dx);
        bool few = short_rows(cut.cols, sizeof(T));
        unsigned blocks = team_blocks(cut.rows * cut.chunks, few ? WARP : BLOCK);
        auto run = [&](auto kernel) { return launch(device, kernel, blocks, BLOCK, l, cut, *rows, (T *)dx); };
        return BY_TARGETS(backward, T, few, l, run);
    });
}

shard_status shard_cuda_cross_entropy_backward_narrow(shard_device *device, const shard_cross_entropy_shape *shape, void *x,
                                                      const int64_t *target, const void *weight, const shard_loss_rows *rows,
                                                      const double *target_slope, void *dx, shard_dtype dtype)
{
    if (shape->rows == 0 || shape->cols == 0)
        return SHARD_OK;
    Rows cut = cut_rows(device, shape->rows, shape->cols);
    Loss<float> l = loss_of<float>(shape, x, target, NULL, weight, NULL);
    bool few = short_rows(cut.cols, sizeof(float));
    unsigned blocks = team_blocks(cut.rows * cut.chunks, few ? WARP : BLOCK);
    l.packed = (((uintptr_t)x / 2 ^ (uintptr_t)dx) & 7) == 0; /* a pack of 16 bytes becomes one of 8 */
    auto run = [&](auto kernel, auto *to) {
        return launch(device, kernel, blocks, BLOCK, l, cut, *rows, target_slope, to);
    };
    if (dtype == SHARD_BFLOAT16) {
        auto to = [&](auto kernel) { return run(kernel, (__nv_bfloat16 *)dx); };
        return BY_TARGETS(backward_narrow, __nv_bfloat16, few, l, to);
    }
    auto to = [&](auto kernel) { return run(kernel, (__half *)dx); };
    return BY_TARGETS(backward_narrow, __half, few, l, to);
}
