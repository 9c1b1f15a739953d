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
 *   event_synchronize wait, and trim, which reports no fault. Results are the same in every run for the same
 *   shapes and number of threads.
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

struct shard_device {
    const struct shard_device_ops *ops;
    const char *name;
    void *state;                /* the device's own */
    shard_memory_count *memory; /* [SHARD_MEMORY_KINDS] */
    bool allow_tf32; /* as shard_set_allow_tf32 says; read by products and convolutions of float32 */
};

/* Functions of one number; s0, s1: their scalars. The comments name the operand of the gradient: x, or the result y. */
typedef enum shard_unary {
    SHARD_RELU,      /* x or y */
    SHARD_GELU,      /* x; exact, by erf */
    SHARD_GELU_TANH, /* x */
    SHARD_EXP,       /* y */
    SHARD_LOG,       /* x */
    SHARD_LOG1P,     /* x */
    SHARD_SQRT,      /* y */
    SHARD_RSQRT,     /* y; 1 / sqrt(x) */
    SHARD_ABS,       /* x; 0 at 0 */
    SHARD_TANH,      /* y */
    SHARD_SIGMOID,   /* y; 1 / (1 + exp(-x)) */
    SHARD_SHIFT,     /* not read; x + s0 */
    SHARD_CLAMP,     /* x; min(max(x, s0), s1); 1 where s0 <= x <= s1 */
    SHARD_POWER,     /* x; x^s0 */
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
 * wide_c: c is float32 and not rounded, though a and b are of 16 bits. */
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

/* Row blocks of a streamed matrix (tensor/tensor.h, shard_rows) are multiples of these; the last block is longer,
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

/* Per row: the maximum m of x, sum exp(x - m), a, b, and the target's weight w_y
 * (0 where this part does not own it, where ignored, and for probabilities). */
enum { SHARD_CE_MAX, SHARD_CE_SUM, SHARD_CE_A, SHARD_CE_B, SHARD_CE_WEIGHT, SHARD_CE_STATS };

/* The join of the ranks' statistics, arrays of [rows] one after the other: lse, the slope b + 2 * z_loss * lse, the
 * derivative of the result by the row's loss without r, the row's loss. */
enum { SHARD_CE_LSE, SHARD_CE_SLOPE, SHARD_CE_FACTOR, SHARD_CE_LOSS, SHARD_CE_NUMBERS };

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
} shard_step_factors;

/* One parameter of an optimizer's step, or a flat range of one, with its settings. Factors are float64 scalars in
 * device memory, which the host need not know. */
typedef struct shard_update {
    int64_t size; /* elements of each array */
    double lr, weight_decay;
    int64_t step;              /* 1, 2, ...; in the first one the states are not read */
    /* In a capture: device memory with the values of a replay for lr and step; NULL: those above. */
    const shard_step_factors *factors;
    const double *grad_scale;  /* of the gradient, before weight decay is added; NULL: 1 */
    const double *trust_ratio; /* of their sum (SGD's step alone takes it, for LARS and LAMB); NULL: 1 */
    void *gradient, *value;
    void *state[SHARD_OPTIMIZER_STATES]; /* the optimizer's states; the rest is not read */
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
    return factors;
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

    /* ---- memory ---- */

    /* Aligned to 64 bytes, content undefined; bytes > 0. NULL with the error set. Called
     * through shard_device_allocate, which counts by kind. */
    void *(*allocate)(shard_device *, size_t bytes);
    void (*release)(shard_device *, void *memory, size_t bytes);
    void (*memory_stats)(const shard_device *, shard_memory_stats *stats);
    void (*reset_peak)(shard_device *);
    void (*trim)(shard_device *);
    /* Host memory that the device reaches too, for staging: pinned. As allocate. */
    void *(*allocate_host)(shard_device *, size_t bytes);
    void (*release_host)(shard_device *, void *memory, size_t bytes);
    shard_status (*synchronize)(shard_device *);
    /* Marks in the queue: record sets one, synchronize waits for the last that was set, if any. create returns NULL
     * with the error set; destroy takes NULL. */
    void *(*event_create)(shard_device *);
    void (*event_destroy)(shard_device *, void *event);
    shard_status (*event_record)(shard_device *, void *event);
    shard_status (*event_synchronize)(shard_device *, void *event);
    /* Calls between begin and end are recorded, and executed at each launch. *executable (NULL after a failure) is
     * valid until destroy; without `executable` the record is discarded. nodes: the number of recorded operations.
     * UNSUPPORTED on a device without graphs. */
    shard_status (*graph_begin)(shard_device *);
    shard_status (*graph_end)(shard_device *, void **executable);
    shard_status (*graph_launch)(shard_device *, void *executable);
    int64_t (*graph_nodes)(shard_device *, const void *executable);
    void (*graph_destroy)(shard_device *, void *executable);
    /* Returns the fault that the device has found so far, as an entry that waits, but without waiting. */
    shard_status (*report)(shard_device *);
    /* from_host may be overwritten on return, unless it is memory of allocate_host: then only after a later entry
     * that waits. */
    shard_status (*copy_in)(shard_device *, void *to, const void *from_host, size_t bytes);
    shard_status (*copy_out)(shard_device *, void *to_host, const void *from, size_t bytes);
    /* As copy_out without waiting: to_host, memory of allocate_host, has the values once the device has executed the
     * copy. */
    shard_status (*copy_out_async)(shard_device *, void *to_host, const void *from, size_t bytes);
    /* New memory, as of allocate, with a copy of from_host, memory of allocate_host. The copy runs concurrently with
     * the queue; synchronize and events include it. Work that is queued after wait_arrival(device, *arrival) sees
     * the copy; *arrival NULL: it is complete. Released as memory of allocate, after that call. NULL with the error
     * set. */
    void *(*copy_in_async)(shard_device *, const void *from_host, size_t bytes, void **arrival);
    /* Makes the work that is queued later wait for the copy, and frees the arrival, unless it fails. */
    shard_status (*wait_arrival)(shard_device *, void *arrival);
    /* rows rows of width bytes; pitches are bytes from one row to the next. */
    shard_status (*copy_rows)(shard_device *, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t rows);
    shard_status (*zero)(shard_device *, void *to, size_t bytes);

    /* ---- elements ---- */

    /* Every dtype. */
    shard_status (*fill)(shard_device *, int64_t n, double value, void *y, shard_dtype);
    /* From and to every dtype; to an integer truncates towards zero, as PyTorch. */
    shard_status (*cast)(shard_device *, int64_t n, const void *x, shard_dtype from, void *y, shard_dtype to);
    /* y = alpha x + beta y; y is not read if beta is 0; x may be y. Where alpha + beta is 1, y + alpha (x - y),
     * as torch.lerp: factors that are rounded one by one no longer add up to 1, and averages drift away. */
    shard_status (*axpby)(shard_device *, int64_t n, double alpha, const void *x, double beta, void *y, shard_dtype);
    /* scalars_host [2], NULL for a kind that has none. y may be x. */
    shard_status (*unary)(shard_device *, shard_unary, const double *scalars_host, int64_t n, const void *x, void *y, shard_dtype);
    /* x is the operand that the kind's gradient is computed from. dx may be dy. */
    shard_status (*unary_backward)(shard_device *, shard_unary, const double *scalars_host, int64_t n, const void *x,
                                   const void *dy, void *dx, shard_dtype);
    /* y = a op b, as operands 0 and 1. y may be one that is not repeated. */
    shard_status (*binary)(shard_device *, shard_binary, const shard_expansion *, const void *a, const void *b, void *y,
                           shard_dtype);
    /* dx = dy times the derivative by operand 0 or 1, for each element of the result; of DIV by
     * operand 1, POW, MINIMUM and MAXIMUM. dx may be dy. */
    shard_status (*binary_backward)(shard_device *, shard_binary, int operand, const shard_expansion *, const void *a,
                                    const void *b, const void *dy, void *dx, shard_dtype);
    /* y = 1 where a op b, else 0; every dtype. */
    shard_status (*compare)(shard_device *, shard_comparison, const shard_expansion *, const void *a, const void *b, uint8_t *y,
                            shard_dtype);
    /* y = a where condition is not 0, else b: operands 1, 2 and 0. Every dtype. y may be an
     * operand of its type that is not repeated. */
    shard_status (*where)(shard_device *, const shard_expansion *, const uint8_t *condition, const void *a, const void *b, void *y,
                          shard_dtype);
    /* y[j] = sum over i of x[i, j], added to y if accumulate. `to` is `from`, or float32 if that is a 16-bit type.
     * Memory after the last row, up to its pitch, may be read. */
    shard_status (*sum_rows)(shard_device *, int64_t rows, int64_t cols, int64_t pitch, const void *x, shard_dtype from,
                             bool accumulate, void *y, shard_dtype to);
    /* y = x with its dimensions in the order axes: y.shape[i] = shape[axes[i]].
     * Every dtype; ndim <= 8. */
    shard_status (*permute)(shard_device *, int ndim, const int64_t *shape, const int *axes, const void *x, void *y, shard_dtype);

    /* ---- random numbers ---- */

    shard_status (*random_uniform)(shard_device *, const shard_region *, shard_draw, double low, double high, void *y, shard_dtype);
    shard_status (*random_normal)(shard_device *, const shard_region *, shard_draw, double mean, double deviation, void *y,
                                  shard_dtype);
    /* As torch.nn.init.trunc_normal_: base/random.h. */
    shard_status (*random_truncated_normal)(shard_device *, const shard_region *, shard_draw, const shard_truncated_normal *,
                                            void *y, shard_dtype);
    /* y = x / (1 - p) where the element's uniform is >= p, else 0. The backward is
     * the same call on the gradient. y may be x. */
    shard_status (*dropout)(shard_device *, const shard_region *, shard_draw, double p, const void *x, void *y, shard_dtype);

    /* ---- products ---- */

    shard_status (*matmul)(shard_device *, const shard_matmul_shape *, const void *a, const void *b, void *c, shard_dtype);
    /* bias [out] or NULL. */
    shard_status (*linear)(shard_device *, const shard_linear_shape *, const void *x, const void *weight, const void *bias,
                           void *y, shard_dtype);
    /* The pitch that rows of so many elements should have where products write or read them: `cols` where dense ones
     * are as fast. */
    int64_t (*row_pitch)(const shard_device *, int64_t cols, shard_dtype);
    /* bias [o] or NULL; of a 16-bit type the sums may be rounded before it is added, too. */
    shard_status (*conv2d)(shard_device *, const shard_conv_shape *, const void *x, const void *weight, const void *bias, void *y,
                           shard_dtype);
    shard_status (*conv2d_backward_data)(shard_device *, const shard_conv_shape *, const void *weight, const void *dy, void *dx,
                                         shard_dtype);
    /* Overwrites dweight, and dbias if it is not NULL. */
    shard_status (*conv2d_backward_weight)(shard_device *, const shard_conv_shape *, const void *x, const void *dy, void *dweight,
                                           void *dbias, shard_dtype);

    /* ---- pooling ---- */

    /* argmax [n, oh, ow, c] is the position h * w_in + w of each maximum (the first
     * in case of ties, a NaN before all); NULL if no gradient is wanted. */
    shard_status (*max_pool)(shard_device *, const shard_pool_shape *, const void *x, void *y, int32_t *argmax, shard_dtype);
    shard_status (*max_pool_backward)(shard_device *, const shard_pool_shape *, const void *dy, const int32_t *argmax, void *dx,
                                      shard_dtype);
    shard_status (*avg_pool)(shard_device *, const shard_pool_shape *, const void *x, void *y, shard_dtype);
    shard_status (*avg_pool_backward)(shard_device *, const shard_pool_shape *, const void *dy, void *dx, shard_dtype);

    /* ---- normalisation; its parameters are float64 for float64, else float32 ---- */

    /* Over each row; mean and rstd [rows]; gamma and beta [cols], both or neither NULL. */
    shard_status (*layer_norm)(shard_device *, int64_t rows, int64_t cols, const void *x, const void *gamma, const void *beta,
                               double eps, void *y, double *mean, double *rstd, shard_dtype);
    /* dgamma, dbeta [cols] are overwritten; both NULL if gamma is. dx NULL if not wanted; it may be dy. */
    shard_status (*layer_norm_backward)(shard_device *, int64_t rows, int64_t cols, const void *x, const void *gamma,
                                        const double *mean, const double *rstd, const void *dy, void *dx, void *dgamma,
                                        void *dbeta, shard_dtype);
    /* Batch norm over [rows, channels], in two halves each way so that the sums can
     * be reduced over a group in between. With d = x - shift (shift
     * [channels], any value near the mean, against cancellation; NULL: 0):
     * sums [2 * channels] = sum d, then sum d^2. */
    shard_status (*batch_norm_sums)(shard_device *, int64_t rows, int64_t channels, const void *x, const double *shift, double *sums,
                                    shard_dtype);
    /* Converts such sums, in place, to those of x and x^2, which ranks with different shifts can add. */
    shard_status (*batch_norm_unshift)(shard_device *, int64_t rows, int64_t channels, const double *shift, double *sums);
    /* From the sums over `count` rows, about shift as above: mean, rstd = 1 / sqrt(variance + eps) [channels], the
     * variance being that of the rows. running_mean and running_var [channels] of the parameters' dtype, if not
     * NULL, become (1 - momentum) * old + momentum * the mean, or squares / (count - 1). count 0: mean = shift,
     * variance = 0, and the running ones are unchanged. */
    shard_status (*batch_norm_statistics)(shard_device *, int64_t channels, double count, const double *shift, const double *sums,
                                          double eps, double momentum, void *running_mean, void *running_var, double *mean,
                                          double *rstd, shard_dtype);
    /* sums and statistics in one, of rows that no group shares, with the running mean as shift if there is one: the same bits. */
    shard_status (*batch_norm_measure)(shard_device *, int64_t rows, int64_t channels, const void *x, double eps, double momentum,
                                       void *running_mean, void *running_var, double *mean, double *rstd, shard_dtype);
    /* mean and rstd from the running statistics. */
    shard_status (*batch_norm_recall)(shard_device *, int64_t channels, const void *running_mean, const void *running_var,
                                      double eps, double *mean, double *rstd, shard_dtype);
    /* y = relu?(gamma * (x - mean) * rstd + beta + residual); mean, rstd [channels];
     * gamma, beta both or neither NULL; residual like x, or NULL. */
    shard_status (*batch_norm)(shard_device *, int64_t rows, int64_t channels, const void *x, const double *mean,
                               const double *rstd, const void *gamma, const void *beta, const void *residual, bool relu, void *y,
                               shard_dtype);
    /* With dz = dy, or 0 where relu was on and y (its output) is 0 or less (dy where it is NaN):
     * sums [2 * channels] = sum dz, then sum dz * (x - mean) * rstd. y NULL: no relu.
     * dbeta and dgamma [channels], where they are not NULL, are the same two. */
    shard_status (*batch_norm_backward_sums)(shard_device *, int64_t rows, int64_t channels, const void *x, const void *y,
                                             const void *dy, const double *mean, const double *rstd, double *sums, void *dgamma,
                                             void *dbeta, shard_dtype);
    /* dx = gamma * rstd * (dz - sums0 / count - xhat * sums1 / count), where count is
     * the rows of the whole group (0: mean and rstd were constants, no correction);
     * dresidual = dz if not NULL. dx NULL if not wanted; dx may be dy. */
    shard_status (*batch_norm_backward)(shard_device *, int64_t rows, int64_t channels, const void *x, const void *y,
                                        const void *dy, const double *mean, const double *rstd, const void *gamma,
                                        const double *sums, double count, void *dx, void *dresidual, shard_dtype);

    /* ---- along a dimension: x [outer, size, inner] ---- */

    /* y [outer, inner] = factor * the sum of x along the dimension, added up in double. */
    shard_status (*sum_dim)(shard_device *, const shard_axis *, double factor, const void *x, void *y, shard_dtype);
    /* Its gradient: each element of x [outer, size, inner] = factor * y's [outer, inner]. */
    shard_status (*spread_dim)(shard_device *, const shard_axis *, double factor, const void *y, void *x, shard_dtype);
    /* The order of elements: a NaN comes first, then the larger one (not `largest`: the smaller one), of equal ones
     * the one with the smaller index. An element's index is start + its position along the dimension, or its entry
     * in `index_of`, of x's shape; an element of INT64_MAX there does not exist if its value is -infinity
     * (infinity). y, index [outer, inner]: the first element; -infinity (infinity) and INT64_MAX if size is 0. */
    shard_status (*extreme_dim)(shard_device *, const shard_axis *, bool largest, int64_t start, const int64_t *index_of,
                                const void *x, void *y, int64_t *index, shard_dtype);
    /* y, index [rows, k]: the first k of each row of x [rows, cols], largest first, in that order;
     * behind the last one -infinity and INT64_MAX. k > 0. */
    shard_status (*top_k)(shard_device *, int64_t rows, int64_t cols, int64_t k, int64_t start, const int64_t *index_of,
                          const void *x, void *y, int64_t *index, shard_dtype);
    /* y [outer, count, inner] = x at index - start along the dimension, 0 where that is outside
     * [0, size) or the index is `skip`; index [outer, count, inner]. */
    shard_status (*gather_at)(shard_device *, const shard_axis *, int64_t count, int64_t start, int64_t skip,
                              const int64_t *index, const void *x, void *y, shard_dtype);
    /* x at index - start += factor * value, nowhere where y above is 0; value like index, or
     * NULL: ones. Indices that are equal count in their order, each sum rounded. */
    shard_status (*add_at)(shard_device *, const shard_axis *, int64_t count, int64_t start, int64_t skip, const int64_t *index,
                           double factor, const void *value, void *x, shard_dtype);
    /* y = x / max(sqrt(square), eps), where square [outer, inner] is the sum of x^2 along the
     * dimension: computed here if `measure`, else given (the sum over several arrays). y NULL: not
     * wanted; it may be x. */
    shard_status (*normalize)(shard_device *, const shard_axis *, double eps, bool measure, const void *x, double *square, void *y,
                              shard_dtype);
    /* dx = (dy - x dot / square) / sqrt(square), or dy / eps where sqrt(square) < eps; dot [outer,
     * inner], the sum of x dy, as square above. dx NULL: not wanted; it may be dy. */
    shard_status (*normalize_backward)(shard_device *, const shard_axis *, double eps, bool measure, const void *x,
                                       const double *square, const void *dy, double *dot, void *dx, shard_dtype);

    /* y [pixels, channels] = (x - mean_host[channel]) * factor_host[channel], arrays of channels, at most
     * SHARD_IMAGE_CHANNELS. */
    shard_status (*normalize_images)(shard_device *, int64_t pixels, int64_t channels, const uint8_t *x, const double *mean_host,
                                     const double *factor_host, void *y, shard_dtype);

    /* ---- softmax and loss ---- */

    shard_status (*softmax)(shard_device *, bool log, int64_t rows, int64_t cols, const void *x, void *y, shard_dtype);
    /* From y, the forward's result. dx may be dy. */
    shard_status (*softmax_backward)(shard_device *, bool log, int64_t rows, int64_t cols, const void *y, const void *dy, void *dx,
                                     shard_dtype);
    /* The fault (index[i], i, limit) for the first index that is neither ignore_index nor in [0, limit). hash is
     * NULL, or is set to a hash of all n indices. */
    shard_status (*check_index)(shard_device *, int64_t n, const int64_t *index, int64_t limit, int64_t ignore_index,
                                const shard_fault *, uint64_t *hash);
    /* The fault (the rank, the first rank, 0) if a rank's hash differs from the first rank's. The ranks' digests
     * begin `stride` bytes, a multiple of 8, from each other. */
    shard_status (*compare_digests)(shard_device *, int64_t members, size_t stride, const shard_label_digest *,
                                    const shard_fault *);
    /* stats [rows, SHARD_CE_STATS], one pass over x [rows, cols]. target [rows] int64 labels, or NULL and
     * probability [rows, cols] of x's dtype. weight [cols] of x's dtype for these columns, or NULL. cols may be 0:
     * the maximum is then -inf. ahead [rows] is NULL, or is set to the result of count_ahead, for labels alone, 0
     * for ignored rows. logit is the argument of count_ahead, or NULL if x has all classes. The counts are of the logits
     * as they are given, not mapped. */
    shard_status (*cross_entropy_stats)(shard_device *, const shard_cross_entropy_shape *, const void *x, const int64_t *target,
                                        const void *probability, const void *weight, double *stats,
                                        const double *logit, int64_t *ahead, shard_dtype);
    /* Joins the ranks' statistics: numbers [SHARD_CE_NUMBERS, rows], and *result = the sum of the rows' losses, or
     * (mean) that divided by the sum of their weights: the target's (1 with probabilities) times row_weight [rows]
     * (NULL: ones). 0 / 0 is NaN. In double; the ranks' sums are added in rank order, and begin `stride` doubles from
     * each other. target as for the statistics.
     * rank [rows] is NULL, or is set to the sum of the ranks' ahead, which begin `stride` int64_t from each other;
     * INT64_MAX for ignored rows. */
    shard_status (*cross_entropy_join)(shard_device *, const shard_cross_entropy_shape *, bool mean, int64_t members,
                                       int64_t stride, const double *stats, const int64_t *ahead, const int64_t *target,
                                       const double *row_weight, double *numbers, double *result, int64_t *rank);
    /* dx = scale_i * (slope_i exp(x - lse_i) - q), times the derivative of x by the logits; lse, slope, scale [rows]. dx may
     * be the logits. */
    shard_status (*cross_entropy_backward)(shard_device *, const shard_cross_entropy_shape *, const void *x,
                                           const int64_t *target, const void *probability, const void *weight, const double *lse,
                                           const double *slope, const double *scale, void *dx, shard_dtype);
    /* out[i] = x[i, target - col0] if the target is in this range of columns, else 0: the sum over ranks is the
     * target's logit. */
    shard_status (*pick_target)(shard_device *, const shard_cross_entropy_shape *, const void *x, const int64_t *target, double *out,
                                shard_dtype);
    /* ahead[i] = the number of these logits that come before the target's in the order of values down, then columns
     * up; logit[i] is the target's. `ignored` for ignored rows. */
    shard_status (*count_ahead)(shard_device *, const shard_cross_entropy_shape *, const void *x, const int64_t *target,
                                const double *logit, int64_t ignored, int64_t *ahead, shard_dtype);

    /* y = scale * x, at the target's column scale * the margin's cosine of x; slope[row] = its derivative by x without the
     * scale, 1 where the target is ignored or not here. row_m2, row_m3 [rows] or NULL: in place of m2 and m3. y may be x. */
    shard_status (*margin_logits)(shard_device *, const shard_cross_entropy_shape *, const shard_margin *, const void *x,
                                  const int64_t *target, const double *row_m2, const double *row_m3, void *y, double *slope,
                                  shard_dtype);
    /* dx = scale * dy, at the target's column times slope[row]. dx may be dy. */
    shard_status (*margin_logits_backward)(shard_device *, const shard_cross_entropy_shape *, const shard_margin *,
                                           const int64_t *target, const double *slope, const void *dy, void *dx, shard_dtype);
    /* The fault (row, class, position) for the first of the pairs [2, pairs] that is not larger than the one before it. */
    shard_status (*check_pairs)(shard_device *, int64_t pairs, const int64_t *pair, const shard_fault *);
    /* each [rows, cols] = the elements' losses, and *sum = their sum, in double; NULL: not wanted. target or pair is NULL.
     * weight, positive [cols] of x's dtype or NULL, row_weight [rows] or NULL. */
    shard_status (*binary_cross_entropy)(shard_device *, const shard_binary_loss_shape *, const void *x, const void *target,
                                         const int64_t *pair, const void *weight, const void *positive, const double *row_weight,
                                         void *each, double *sum, shard_dtype);
    /* dx = *scale * the derivative of the element's loss, times dy [rows, cols] if that is not NULL. dx may be x. */
    shard_status (*binary_cross_entropy_backward)(shard_device *, const shard_binary_loss_shape *, const void *x,
                                                  const void *target, const int64_t *pair, const void *weight,
                                                  const void *positive, const double *row_weight, const double *scale,
                                                  const void *dy, void *dx, shard_dtype);

    /* ---- embedding ---- */

    /* y [n, dim] = weight[index - row0], zeros where row0 <= index < row0 + rows does not hold. */
    shard_status (*embedding)(shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows, const int64_t *index,
                              const void *weight, void *y, shard_dtype);
    /* dweight [rows, dim] is overwritten (accumulate: added to); sums in index order, on a GPU those of more than 128
     * positions in parts. by_count: each dy is divided by the number of times that its index is in index. */
    shard_status (*embedding_backward)(shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows, const int64_t *index,
                                       const void *dy, bool by_count, bool accumulate, void *dweight, shard_dtype);
    /* sum[i] = the sum of |x|^power over row index[i] - row0 of weight, or the largest |x| of power INFINITY; 0 where that
     * row is not here. power > 0. */
    shard_status (*embedding_power_sums)(shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows,
                                         const int64_t *index, const void *weight, double power, double *sum, shard_dtype);
    /* Multiplies each row that index names, once, by max_norm / (norm + 1e-7) if norm > max_norm, where norm is
     * sum[i]^(1 / power), or sum[i] of power INFINITY. sum is overwritten. As torch.embedding_renorm_. */
    shard_status (*embedding_renorm)(shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows, const int64_t *index,
                                     double power, double max_norm, double *sum, void *weight, shard_dtype);

    /* ---- norms and clipping ---- */

    /* *sum = the sum of |x|^power; of power INFINITY the largest |x|, a NaN before all.
     * In double: of float32 and 16-bit types a sum of squares is finite exactly if all
     * elements are. power > 0. */
    shard_status (*power_sum)(shard_device *, int64_t n, double power, const void *x, double *sum, shard_dtype);
    /* *norm = *scale * (*sum)^(1 / power), or *scale * *sum of power INFINITY; *scale is
     * multiplied by min(1, max_norm / (*norm + 1e-6)). As torch.nn.utils.clip_grad_norm_. */
    shard_status (*clip_scale)(shard_device *, double power, double max_norm, const double *sum, double *norm, double *scale);
    /* x = x into [-bound, bound], where *scale (NULL: 1) times the result is meant: into
     * [-bound / *scale, bound / *scale]. NaN stays. */
    shard_status (*clip_value)(shard_device *, int64_t n, double bound, const double *scale, void *x, shard_dtype);

    /* Of each of `count` arrays, in few launches; as power_sum of power 2, in an order that depends on the array's
     * size alone. */
    shard_status (*square_sums)(shard_device *, int64_t count, const shard_square_sum *, shard_dtype);

    /* ---- optimizer steps; each one pass ---- */

    /* Steps of `count` updates, which have no memory in common but factors, in few launches. The result of an
     * element depends neither on other updates of the list nor on how a parameter is divided into updates. */

    /* As torch.optim.SGD. state: momentum_buffer, of which the first step reads nothing. */
    shard_status (*sgd)(shard_device *, int64_t count, const shard_update *, const shard_sgd_arguments *, shard_dtype);
    /* As torch.optim.Adam and AdamW. state: exp_avg, exp_avg_sq, of amsgrad max_exp_avg_sq; zeros before the first step. */
    shard_status (*adam)(shard_device *, int64_t count, const shard_update *, const shard_adam_arguments *, shard_dtype);
    /* LAMB's first half: Adam's moments, and in place of the gradient AdamW's update of the value divided by lr. It
     * uses the betas and eps of the options. (The second half is sgd, with the trust ratio.) */
    shard_status (*lamb_update)(shard_device *, int64_t count, const shard_update *, const shard_adam_arguments *, shard_dtype);
    /* ratio[i] from the sums of squares [layers][2] of each layer's weight and gradient. */
    shard_status (*trust_ratio)(shard_device *, int64_t layers, const shard_trust_options *, const double *squares, double *ratio);
} shard_device_ops;

/*
 * The table's functions by name, for code that is the same for each (declarations, tables, checks): X(name). An
 * entry is listed here and above; its function is shard_cuda_<name> in cuda/, shard_cpu_<name> in cpu/ or, for
 * kernels, KERNEL(name) in cpu/kernels/.
 */
#define SHARD_DEVICE_MEMORY_ENTRIES(X)                                                                                           \
    X(allocate)                                                                                                                  \
    X(release)                                                                                                                   \
    X(memory_stats)                                                                                                              \
    X(reset_peak)                                                                                                                \
    X(trim)                                                                                                                      \
    X(allocate_host)                                                                                                             \
    X(release_host)                                                                                                              \
    X(synchronize)                                                                                                               \
    X(event_create)                                                                                                              \
    X(event_destroy)                                                                                                             \
    X(event_record)                                                                                                              \
    X(event_synchronize)                                                                                                         \
    X(graph_begin)                                                                                                               \
    X(graph_end)                                                                                                                 \
    X(graph_launch)                                                                                                              \
    X(graph_nodes)                                                                                                               \
    X(graph_destroy)                                                                                                             \
    X(report)                                                                                                                    \
    X(copy_in)                                                                                                                   \
    X(copy_out)                                                                                                                  \
    X(copy_out_async)                                                                                                            \
    X(copy_in_async)                                                                                                             \
    X(wait_arrival)                                                                                                              \
    X(copy_rows)                                                                                                                 \
    X(zero)

#define SHARD_DEVICE_PRODUCT_ENTRIES(X)                                                                                          \
    X(matmul)                                                                                                                    \
    X(linear)                                                                                                                    \
    X(row_pitch)                                                                                                                 \
    X(conv2d)                                                                                                                    \
    X(conv2d_backward_data)                                                                                                      \
    X(conv2d_backward_weight)

#define SHARD_DEVICE_KERNEL_ENTRIES(X)                                                                                           \
    X(fill)                                                                                                                      \
    X(cast)                                                                                                                      \
    X(axpby)                                                                                                                     \
    X(unary)                                                                                                                     \
    X(unary_backward)                                                                                                            \
    X(binary)                                                                                                                    \
    X(binary_backward)                                                                                                           \
    X(compare)                                                                                                                   \
    X(where)                                                                                                                     \
    X(sum_rows)                                                                                                                  \
    X(permute)                                                                                                                   \
    X(random_uniform)                                                                                                            \
    X(random_normal)                                                                                                             \
    X(random_truncated_normal)                                                                                                   \
    X(dropout)                                                                                                                   \
    X(max_pool)                                                                                                                  \
    X(max_pool_backward)                                                                                                         \
    X(avg_pool)                                                                                                                  \
    X(avg_pool_backward)                                                                                                         \
    X(layer_norm)                                                                                                                \
    X(layer_norm_backward)                                                                                                       \
    X(batch_norm_sums)                                                                                                           \
    X(batch_norm_unshift)                                                                                                        \
    X(batch_norm_statistics)                                                                                                     \
    X(batch_norm_measure)                                                                                                        \
    X(batch_norm_recall)                                                                                                         \
    X(batch_norm)                                                                                                                \
    X(batch_norm_backward_sums)                                                                                                  \
    X(batch_norm_backward)                                                                                                       \
    X(sum_dim)                                                                                                                   \
    X(spread_dim)                                                                                                                \
    X(extreme_dim)                                                                                                               \
    X(top_k)                                                                                                                     \
    X(gather_at)                                                                                                                 \
    X(add_at)                                                                                                                    \
    X(normalize)                                                                                                                 \
    X(normalize_backward)                                                                                                        \
    X(normalize_images)                                                                                                          \
    X(softmax)                                                                                                                   \
    X(softmax_backward)                                                                                                          \
    X(check_index)                                                                                                               \
    X(compare_digests)                                                                                                           \
    X(cross_entropy_stats)                                                                                                       \
    X(cross_entropy_join)                                                                                                        \
    X(cross_entropy_backward)                                                                                                    \
    X(pick_target)                                                                                                               \
    X(count_ahead)                                                                                                               \
    X(margin_logits)                                                                                                             \
    X(margin_logits_backward)                                                                                                    \
    X(check_pairs)                                                                                                               \
    X(binary_cross_entropy)                                                                                                      \
    X(binary_cross_entropy_backward)                                                                                             \
    X(embedding)                                                                                                                 \
    X(embedding_backward)                                                                                                        \
    X(embedding_power_sums)                                                                                                      \
    X(embedding_renorm)                                                                                                          \
    X(power_sum)                                                                                                                 \
    X(square_sums)                                                                                                               \
    X(clip_scale)                                                                                                                \
    X(clip_value)                                                                                                                \
    X(sgd)                                                                                                                       \
    X(adam)                                                                                                                      \
    X(lamb_update)                                                                                                               \
    X(trust_ratio)

#define SHARD_DEVICE_ENTRIES(X)                                                                                                  \
    SHARD_DEVICE_MEMORY_ENTRIES(X)                                                                                               \
    SHARD_DEVICE_PRODUCT_ENTRIES(X)                                                                                              \
    SHARD_DEVICE_KERNEL_ENTRIES(X)

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

/* This rank's device whose memory the host does not reach, for collectives: the default device, else one that was
 * opened before. NULL if there is none, or with the error set. */
shard_device *shard_accelerator(void);

/* The last device that was opened whose memory the host does not reach; NULL if there is none. Opens none. */
shard_device *shard_opened_accelerator(void);

/* The device of this thread's tensors without a named one. NULL with the error set. */
shard_device *shard_default_device(void);

#endif
