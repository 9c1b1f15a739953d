/*
 * The interface of devices: the table that each device's folder fills.
 *
 * Rules for every entry:
 * - Arrays are contiguous and row-major, rows of a matrix whose shape has a pitch
 *   that much apart; sizes are counts of elements. A count
 *   of 0 is legal, writes only the zeros of empty sums, and returns OK.
 * - Pointers are device memory unless the name ends in _host. Input and output
 *   overlap only where an entry allows it, and then exactly.
 * - T is the dtype argument: one of the four floating types unless said
 *   otherwise. 16-bit types are computed in float32 and rounded once.
 *   Accumulations are in float32 or better; statistics are double.
 * - An entry that fails sets the thread's error and returns its status. Callers
 *   have checked shapes and ranges of enums; entries do not check them again.
 * - Work may be queued, in the order of the calls: only copy_out, synchronize and
 *   event_synchronize wait and report faults. trim, copy_in, release_host and an entry that lacks memory may wait, and
 *   report none. Results are the same in every run for the same shapes and number of threads.
 * - A fault in an entry's data (shard_fault) is its error at once if the memory
 *   is the host's. A device that queues keeps the first fault that it finds until
 *   the next entry that waits, of any thread, or report: it returns the fault.
 */
#ifndef SHARD_DEVICE_DEVICE_H
#define SHARD_DEVICE_DEVICE_H

#include <shard/device.h>

#include "base/random.h"
#include "device/expansion.h"
#include "device/loss_math.h"

/* Bytes in use and their peak; changed by any thread. */
typedef struct shard_memory_count {
    int64_t current, peak;
} shard_memory_count;

struct shard_head_ops;  /* device/head.h */
struct shard_head_loss; /* device/head_sweep.h */
struct shard_update_product;

struct shard_device {
    const struct shard_device_ops *ops;
    const struct shard_head_ops *head; /* fused sweeps; NULL: none */
    /* Kernels of its own for the tiles of sweeps that are composed; NULL: none. */
    const struct shard_head_loss *head_softmax, *head_binary;
    /* Whether steps of SGD and Adam compute the product faster than a product and a step; NULL: never. */
    bool (*steps_product)(const struct shard_update_product *);
    const char *name;
    void *state;                /* the device's own */
    shard_memory_count *memory; /* [SHARD_MEMORY_KINDS] */
    int ordinal;                /* of a GPU */
    bool lists_rows; /* it is faster with lists of rows than with runs; steps of float32 and 16-bit values take shard_update.rows */
    bool allow_tf32; /* as shard_set_allow_tf32 says; read by products and convolutions of float32 */
};

/* Functions of one number; s0, s1: their scalars. The comments name the operand of the gradient: x, or the result y. */
typedef enum shard_unary {
    SHARD_RELU,       /* x or y */
    SHARD_LEAKY_RELU, /* x, or y where s0 >= 0; x where x > 0, else s0 x */
    SHARD_GELU,       /* x; exact, by erf */
    SHARD_GELU_TANH,  /* x */
    SHARD_SILU,       /* x; x / (1 + exp(-x)) */
    SHARD_SOFTPLUS,   /* x; log(1 + exp(s0 x)) / s0, and x where s0 x > s1 */
    SHARD_EXP,        /* y */
    SHARD_LOG,        /* x */
    SHARD_LOG1P,      /* x */
    SHARD_SQRT,       /* y */
    SHARD_RSQRT,      /* y; 1 / sqrt(x) */
    SHARD_ABS,        /* x; 0 at 0 */
    SHARD_TANH,       /* y */
    SHARD_SIGMOID,    /* y; 1 / (1 + exp(-x)) */
    SHARD_SHIFT,      /* not read; x + s0 */
    SHARD_CLAMP,      /* x; min(max(x, s0), s1); 1 where s0 <= x <= s1 */
    SHARD_POWER,      /* x; x^s0 */
} shard_unary;
/* Functions of two numbers. A NaN is both the larger and the smaller one; the gradient of these is halved where the
 * operands are equal. */
typedef enum shard_binary {
    SHARD_ADD,
    SHARD_SUB,
    SHARD_MUL,
    SHARD_DIV,
    SHARD_POW,
    SHARD_MINIMUM,
    SHARD_MAXIMUM,
    SHARD_PRELU, /* a where a > 0, else b * a */
} shard_binary;
typedef enum shard_comparison { SHARD_EQ, SHARD_NE, SHARD_LT, SHARD_LE, SHARD_GT, SHARD_GE } shard_comparison;

/* Which part of a whole matrix an array is: element (i, j) of the array's rows
 * x cols is element (row0 + i) * whole_cols + col0 + j of the whole. */
typedef struct shard_region {
    int64_t rows, cols;
    int64_t row0, col0;
    int64_t whole_cols;
} shard_region;

/* A pitch is the number of elements from one row of a matrix to the next; 0: rows are dense, of `cols` elements.
 * Elements between two rows are not written to. */
SHARD_KERNEL int64_t shard_pitch(int64_t pitch, int64_t cols)
{
    return pitch ? pitch : cols;
}

/* c[batch] = op(a)[batch] op(b)[batch] (+ c if accumulate): op(a) is m x k,
 * op(b) k x n, c m x n. A transposed a is stored k x m. Strides are from one
 * matrix of the batch to the next, in elements; 0 repeats one. ld are the pitches of
 * the matrices as they are stored. k = 0 gives zeros.
 * wide_c: c is float32 and not rounded, though a and b are of 16 bits. A c of 16 bits that is added to
 * may be rounded twice, and so may a linear layer's y with a bias: cuBLAS has kernels that round the product first. */
typedef struct shard_matmul_shape {
    int64_t batch, m, n, k;
    bool transpose_a, transpose_b;
    bool accumulate;
    bool wide_c;
    int64_t stride_a, stride_b, stride_c;
    int64_t ld_a, ld_b, ld_c;
} shard_matmul_shape;

/* y [rows, out] = x [rows, in] weight^T + bias; weight [out, in]. */
typedef struct shard_linear_shape {
    int64_t rows, in, out;
    int64_t pitch_x, pitch_y;
} shard_linear_shape;

/* Row blocks of a streamed matrix (op/rows.h) are multiples of these; the last block is longer,
 * not shorter. On the CPU sums over that many products and more are divided in the same way, so that float32 has the
 * same bits. */
enum { SHARD_ROW_BLOCK = 4096 };

static inline int64_t shard_rows_in_block(int64_t block, int64_t first, int64_t rows)
{
    return rows - first < 2 * block ? rows - first : block;
}

/* An array seen along one of its dimensions, of `size`: [outer, size, inner]. */
typedef struct shard_axis {
    int64_t outer, size, inner;
} shard_axis;

/* Images are [n, h, w, c] (channels last); weights [o, c / groups, kh, kw] as
 * PyTorch's; outputs [n, oh, ow, o]. */
typedef struct shard_conv_shape {
    int64_t n, h, w, c, o;
    int64_t kh, kw, oh, ow;
    int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int64_t groups;
} shard_conv_shape;

enum { SHARD_IMAGE_CHANNELS = 16 };

/* Of a batch, rows of query [heads, queries, in], key [key_heads, keys, in] and value [key_heads, keys, out]; heads is a
 * multiple of key_heads, and head h has key head h / (heads / key_heads). Scores are scale * query . key. causal: query i has
 * the keys up to i + offset. offset >= 0. */
typedef struct shard_attention_shape {
    int64_t batch, heads, key_heads;
    int64_t queries, keys;
    int64_t in, out;
    int64_t offset;
    double scale;
    bool causal;
} shard_attention_shape;

/* Heads of each key head. */
SHARD_KERNEL int64_t shard_attention_group(const shard_attention_shape *shape)
{
    return shape->key_heads ? shape->heads / shape->key_heads : 1;
}

typedef struct shard_pool_shape {
    int64_t n, h, w, c;
    int64_t kh, kw, oh, ow;
    int64_t stride_h, stride_w, pad_h, pad_w;
    bool count_include_pad; /* average pooling: divide by the window's part of the padded image, not of the image */
} shard_pool_shape;

/*
 * Cross-entropy, for the columns [col0, col0 + cols) of `classes` in all. With
 *   x   = the logits, mapped as `map` says;   lse = log sum exp(x_c)
 *   w_c = class_weight[c], 1 without;   e = smoothing;   C = classes;   r = row_weight, 1 without
 *   q_c = w_c * ((1 - e) * [c == target] + e / C)         for labels
 *   q_c = w_c * ((1 - e) * target_probability[c] + e / C) for probabilities
 * the loss of a row is r * (b * lse - a + z_loss * lse^2), where a = sum q_c x_c and b = sum q_c, and
 * its gradient by x r * ((b + 2 * z_loss * lse) * exp(x_c - lse) - q_c). An ignored row has r = q = 0.
 * `pitch` is that of the logits and of the gradient; of probabilities rows are dense.
 */
typedef struct shard_cross_entropy_shape {
    int64_t rows, cols, pitch;
    int64_t col0, classes;
    int64_t ignore_index;
    double smoothing, z_loss;
    shard_logit_map map;
} shard_cross_entropy_shape;

/* A row with such a label counts as ignored, as do those of labels that are no classes,
 * until check_index's fault is reported. */
SHARD_KERNEL bool shard_label_ignored(const shard_cross_entropy_shape *shape, int64_t label)
{
    return label == shape->ignore_index || label < 0 || label >= shape->classes;
}

/* The label's column in this range, or -1. */
SHARD_KERNEL int64_t shard_label_column(const shard_cross_entropy_shape *shape, int64_t label)
{
    bool has = !shard_label_ignored(shape, label) && label >= shape->col0 && label - shape->col0 < shape->cols;
    return has ? label - shape->col0 : -1;
}

/* Finds a label's row in `list` [count], ascending rows of the columns. *position: where it is; *row: the row. For a label of
 * other columns they are count and -1, for an ignored one -1 and -1. False, with count and -1, if the list lacks the row. */
SHARD_KERNEL bool shard_label_find(const shard_cross_entropy_shape *shape, int64_t count, const int64_t *list, int64_t label,
                                   int64_t *position, int64_t *row)
{
    int64_t first = 0, wanted = shard_label_column(shape, label);
    *position = shard_label_ignored(shape, label) ? -1 : count;
    *row = -1;
    if (wanted < 0)
        return true;
    for (int64_t end = count; first < end;) {
        int64_t middle = first + (end - first) / 2;
        if (list[middle] < wanted)
            first = middle + 1;
        else
            end = middle;
    }
    if (first == count || list[first] != wanted)
        return false;
    *position = first;
    *row = wanted;
    return true;
}

/* Per row: the maximum m of x, sum exp(x - m), a, b, and the target's weight w_y
 * (0 where this part does not own it, where ignored, and for probabilities). */
enum { SHARD_CE_MAX, SHARD_CE_SUM, SHARD_CE_A, SHARD_CE_B, SHARD_CE_WEIGHT, SHARD_CE_STATS };

/* The join of the ranks' statistics, arrays of [rows] one after the other: lse, its rounding error (shard_row_lse_error), the
 * slope b + 2 * z_loss * lse, the derivative of the result by the row's loss without r, the row's loss. */
enum { SHARD_CE_LSE, SHARD_CE_LSE_ERROR, SHARD_CE_SLOPE, SHARD_CE_FACTOR, SHARD_CE_LOSS, SHARD_CE_NUMBERS };

/* Gradients with respect to a row's loss: SHARD_CE_LSE, SHARD_CE_LSE_ERROR (NULL: zeros) and SHARD_CE_SLOPE, none of which binary
 * cross-entropy has, and the derivative of the result by the row's loss; arrays [rows] in device memory. */
typedef struct shard_loss_rows {
    const double *lse, *lse_error, *slope, *scale;
} shard_loss_rows;

/* exp(x - lse). */
SHARD_KERNEL double shard_row_exponential(const shard_loss_rows *rows, int64_t row, double x)
{
    return exp(x - rows->lse[row] - (rows->lse_error ? rows->lse_error[row] : 0));
}

/* The derivative of the mapped logits by those before the map: without a cap of all of the row, with one of the label's, from
 * the local statistics of a loss without smoothing; 0 where the label is none of the local classes. */
SHARD_KERNEL double shard_label_slope(const shard_cross_entropy_shape *shape, const double *stats)
{
    double b = stats[SHARD_CE_B], label = shape->map.soft_cap > 0 && b != 0 ? stats[SHARD_CE_A] / b / shape->map.soft_cap : 0;
    return shape->map.scale * (1 - label * label);
}

/* Margins at the labels' columns, for the rows and columns of a shard_cross_entropy_shape, whose smoothing, z_loss and map
 * are not read: see shard_margin_cosine. */
typedef struct shard_margin {
    double scale, m1, m2, m3;
    int64_t rule; /* SHARD_ANGLE_ */
} shard_margin;

/*
 * Binary cross-entropy of the columns [col0, col0 + cols) of `classes` in all: the loss of an element is r * w_c *
 * shard_binary_loss(x, y, positive_c). Without their arrays the weights r, w and positive are 1. The targets y are an
 * array like x with dense rows, or pairs: int64 [2, pairs], rows and then classes, each pair larger than the one before
 * it by row, then by class; y is 1 at the pairs and 0 elsewhere. A pair outside of the rows or of these columns counts
 * nowhere. `pitch` is that of x and of the gradient; of targets and losses rows are dense.
 */
typedef struct shard_binary_loss_shape {
    int64_t rows, cols, pitch;
    int64_t col0, classes;
    int64_t pairs;
} shard_binary_loss_shape;

/* The first of the pairs that is not before (row, class); they ascend. */
SHARD_KERNEL int64_t shard_first_pair(const int64_t *pair, int64_t pairs, int64_t row, int64_t class_)
{
    int64_t first = 0;
    for (int64_t end = pairs; first < end;) {
        int64_t middle = first + (end - first) / 2, at = pair[middle];
        if (at < row || (at == row && pair[pairs + middle] < class_))
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

/* The error for faulty data: the format has three int64_t. Both are valid as long as the process. */
typedef struct shard_fault {
    shard_status status;
    const char *format;
} shard_fault;

/* The data with which ranks compare their labels. */
typedef struct shard_label_digest {
    uint64_t hash;
    int64_t rank; /* the world rank, for messages */
} shard_label_digest;

#define SHARD_OPTIMIZER_STATES 3 /* tensors of state a parameter, at most */

/* The factors of an update that change with each step. */
typedef struct shard_step_factors {
    double lr;
    double first;                       /* 1 in the first step, whose states are not read, else 0 */
    double root_correction, keep, rate; /* of Adam, AdamW and LAMB's first half, see shard_adam_factors */
    double step;
} shard_step_factors;

/* The types of a list of updates. Of float64 values all are float64; else each is one of the other floating types, and
 * the step is computed in float32. */
typedef struct shard_update_types {
    shard_dtype value, gradient, state[SHARD_OPTIMIZER_STATES];
    /* 16-bit values and states are rounded at random (base/rounding.h), else to the nearest. */
    bool stochastic;
} shard_update_types;

static inline shard_update_types shard_update_types_of(shard_dtype dtype)
{
    return (shard_update_types){dtype, dtype, {dtype, dtype, dtype}, false};
}

/* Where the elements of an update are in the whole parameter, for random rounding: element i has the index
 * first + n / width * pitch + n % width, with n = offset + i; with width 0 it has first + i. */
typedef struct shard_update_place {
    int64_t first, offset, width, pitch;
} shard_update_place;

/* The gradient [rows, columns] of an update that is not in memory: a^T b in float32. a [inner, rows] has rows ld_a apart,
 * b [inner, columns]; both are of dtype, bfloat16 or float16. */
typedef struct shard_update_product {
    int64_t rows, columns, inner, ld_a;
    const void *a, *b;
    shard_dtype dtype;
} shard_update_product;

/* One parameter of an optimizer's step, or a flat range of one, with its settings. Factors are float64 scalars in
 * device memory, which the host need not know. */
typedef struct shard_update {
    int64_t size;    /* elements of each array */
    int64_t columns; /* of a row, for `rows` and for the states of row-wise steps, which have one number for each row */
    double lr, weight_decay;
    int64_t step;              /* 1, 2, ...; in the first one the states are not read */
    /* In a capture: device memory with the values of a replay for lr and step; NULL: those above. */
    const shard_step_factors *factors;
    const double *grad_scale;  /* of the gradient, before weight decay is added; NULL: 1 */
    const double *trust_ratio; /* of their sum (SGD's step alone takes it, for LARS and LAMB); NULL: 1 */
    void *gradient, *value;
    /* NULL, or the gradient, which is float32 and not in memory: of a device whose steps_product takes it, in a call of SGD's or
     * Adam's step with this update alone, which has no `rows`. */
    const shard_update_product *product;
    void *state[SHARD_OPTIMIZER_STATES]; /* the optimizer's states; the rest is not read */
    /* Of a 16-bit value, in its type, or NULL: what rounding took from the value, times shard_rounding_unit (base/rounding.h).
     * The step is computed of their sum, and writes both. Read in the first step, too. */
    void *compensation;
    /* Device memory, read when the step runs, or NULL: the rows of value, compensation and states (also the numbers of row-wise
     * steps), of which row0 is the first, that the gradient's rows of `columns` elements are of, each of them once. place is
     * that of row0. Of a device with lists_rows; all updates of a call have rows, or none. */
    const int64_t *rows;
    int64_t row0;
    uint64_t key; /* of stochastic rounding: selects the parameter's random numbers */
    shard_update_place place;
} shard_update;

typedef struct shard_sgd_arguments {
    double momentum, dampening; /* momentum 0: there is no state */
    bool nesterov;
} shard_sgd_arguments;

typedef struct shard_adam_arguments {
    double beta1, beta2, eps;
    bool decoupled; /* AdamW's weight decay: of the parameter, not added to the gradient */
    bool amsgrad;
} shard_adam_arguments;

/* The factors of a step that computes keep * value + rate * exp_avg / (sqrt(exp_avg_sq) * root_correction + eps):
 * Adam's new value, or the result of LAMB's first half. */
static inline shard_step_factors shard_adam_factors(const shard_update *update, const shard_adam_arguments *options, bool lamb)
{
    shard_step_factors factors;
    double step = (double)update->step, decayed = options->decoupled ? 1 - update->lr * update->weight_decay : 1;
    factors.lr = update->lr;
    factors.first = update->step == 1;
    factors.root_correction = 1 / sqrt(1 - pow(options->beta2, step));
    factors.keep = lamb ? update->weight_decay : decayed;
    factors.rate = (lamb ? 1 : -update->lr) / (1 - pow(options->beta1, step));
    factors.step = step;
    return factors;
}

typedef struct shard_rowwise_arguments {
    double beta1, beta2; /* of Adam; beta1 0: there is no first moment, and no state for it */
    double eps;
    bool adam; /* else Adagrad */
} shard_rowwise_arguments;

/* The factors of a row-wise step: keep * value + rate * direction / (sqrt(state of the row) * root_correction + eps). */
static inline shard_step_factors shard_rowwise_factors(const shard_update *update, const shard_rowwise_arguments *options)
{
    const shard_adam_arguments adam = {.beta1 = options->beta1, .beta2 = options->beta2, .decoupled = true};
    if (options->adam)
        return shard_adam_factors(update, &adam, false);
    return (shard_step_factors){update->lr, update->step == 1 ? 1.0 : 0.0, 1, 1, -update->lr, (double)update->step};
}

/* An array, and the address of the sum of the squares of its elements (in device memory). */
typedef struct shard_square_sum {
    int64_t size;
    const void *x;
    double *sum;
} shard_square_sum;

/* A layer's trust ratio: trust_coefficient * w / (grad_scale * g + weight_decay * w + eps), where w and g are
 * the 2-norms of its weight and its gradient; 1 where either is 0. */
typedef struct shard_trust_options {
    double trust_coefficient, weight_decay, eps;
    const double *grad_scale; /* as shard_update */
} shard_trust_options;

typedef struct shard_device_ops {
    /* The host reads and writes the device's memory as its own, and nothing is queued. */
    bool host_memory;

#define SHARD_MEMORY_ENTRY(result, name, ...) result (*name)(__VA_ARGS__);
#define SHARD_PRODUCT_ENTRY SHARD_MEMORY_ENTRY
#define SHARD_KERNEL_ENTRY SHARD_MEMORY_ENTRY
#include "device/entries.h"
} shard_device_ops;

static inline void shard_memory_count_add(shard_memory_count *count, int64_t bytes)
{
    int64_t current = __atomic_add_fetch(&count->current, bytes, __ATOMIC_RELAXED);
    int64_t peak = __atomic_load_n(&count->peak, __ATOMIC_RELAXED);
    while (current > peak && !__atomic_compare_exchange_n(&count->peak, &peak, current, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
        ;
}

static inline void shard_memory_count_reset_peak(shard_memory_count *count)
{
    __atomic_store_n(&count->peak, __atomic_load_n(&count->current, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
}

/* The device's allocate and release; they count the memory as of that kind. */
static inline void *shard_device_allocate(shard_device *device, shard_memory_kind kind, size_t bytes)
{
    void *memory = device->ops->allocate(device, bytes);
    if (memory)
        shard_memory_count_add(&device->memory[kind], (int64_t)bytes);
    return memory;
}

static inline void shard_device_release(shard_device *device, shard_memory_kind kind, void *memory, size_t bytes)
{
    if (!memory)
        return;
    device->ops->release(device, memory, bytes);
    shard_memory_count_add(&device->memory[kind], -(int64_t)bytes);
}

/* The CPU, which is always there; NULL with the error set only if SHARD_CPU_ISA names an instruction set that it
 * does not have. */
shard_device *shard_cpu(void);
/* The number of threads that the CPU computes with for the calling thread. */
int shard_cpu_threads(void);
void shard_cpu_set_threads(int threads);
/* CUDA device `ordinal` (-1: this rank's on its machine), from a plugin that is loaded when it is needed; NULL with
 * the error set. */
shard_device *shard_cuda_open(int ordinal);

/* The last device that was opened whose memory the host does not reach; NULL if there is none. Opens none. */
shard_device *shard_opened_accelerator(void);

/* The device of this thread's tensors without a named one. NULL with the error set. */
shard_device *shard_default_device(void);

#endif
