/*
 * shard/op.h: operations on tensors, each with its gradient.
 *
 * All are makers: the result, or NULL with the error set; a NULL operand gives
 * NULL and leaves the first error alone. Inputs must be of one floating dtype
 * (but for autocast, below) and device unless said otherwise. What an operation does with a split operand
 * is its placement rule, stated for each; "carries" means that the result is
 * placed as the operand is. A placement without a rule is refused (UNSUPPORTED).
 * Not collective unless said.
 *
 * A member that has failed takes part in a collective operation all the same, as far as
 * an operand or option tells its group, and all members fail with its text at once. Where
 * nothing does (a loss of NULL logits and whole labels; shard_forward and shard_backward
 * of NULL), it skips what the others have entered: they wait until it comes to its next
 * collective, of whatever group (shard_step, shard_agree), and fail with its text 0.2
 * seconds later; only if it comes to none do they wait for SHARD_TIMEOUT. The group that
 * they waited in cannot be used again, unless it is the one that the member came to: the
 * world's, as in shard_data_parallel's backward and in shard_step. A loop without a
 * collective that all ranks come to, as an evaluation may be, does well to call
 * shard_agree(shard_world()) each time.
 *
 * No operation waits for a GPU, but shard_to_device for the one that it copies from. What only
 * the GPU sees, that a label or an index is out of range or that members have other labels, is
 * the operation's error on the CPU. On a GPU it is, with the same status and text, that of the
 * next call, of any thread, that waits for that GPU: shard_item, shard_copy_to_host,
 * shard_to_device, shard_synchronize, shard_event_synchronize, shard_trim_memory; saving; a
 * collective that goes through host memory; shard_finalize. Or of the next collective of several ranks, whatever of, that begins when the GPU has found
 * it: these look without waiting, so that all ranks fail together, some collectives late.
 * Until then the row counts as an ignored one, and an index gives zeros: this rank reads
 * nothing that was computed with it without the error; parameters may be stepped with it,
 * and another rank may have read its part of a sum.
 * The first one only is kept.
 *
 * Who goes on after an error lets shard_step fail by it, calls shard_synchronize on every
 * rank, then shard_clear_error, and drops what was computed before. An error that all ranks
 * have got by shard_step or shard_agree(shard_world()) is not sent again: collectives
 * return it at once. So ranks that have cleared it are together again, wherever in the step
 * they learned of it; for one that has not, those that have wait.
 */
#ifndef SHARD_OP_H
#define SHARD_OP_H

#include <shard/autograd.h>

#include <math.h>

SHARD_BEGIN_C

/* ---- mixed precision ---- */

/*
 * SHARD_AUTOCAST(SHARD_BFLOAT16) { loss = ...; }: forward in 16 bits where that is
 * sound, as torch.autocast; the backward, inside or behind, runs in the types that the
 * forward has recorded. Parameters stay float32, and so do their gradients. What runs
 * in which type:
 *   16 bits       shard_linear, shard_matmul, shard_conv2d: float32 and 16-bit operands
 *                 are cast, a leaf's values (a weight's) once until it is written to. That
 *                 copy stays until the leaf moves (into a bucket) or is destroyed, the mode
 *                 is off again, or the thread ends. Sums are in float32 and rounded
 *                 once to the result; the gradient of a float32 operand is float32, not
 *                 rounded on the way (of shard_conv2d: rounded once to 16 bits).
 *   float32       shard_softmax, shard_log_softmax, shard_layer_norm, shard_normalize,
 *                 shard_sum, shard_sum_dim, shard_exp, shard_log, shard_log1p, shard_rsqrt,
 *                 shard_pow, shard_pow_scalar, shard_mse_loss: 16-bit operands are cast.
 *   the loss      shard_cross_entropy takes 16-bit logits as they are, which saves their
 *                 float32 copy; its sums and its result are of float32 or better, the
 *                 gradient of the logits is of 16 bits. Class weights or probabilities of
 *                 another type: all are cast to the widest.
 *   the widest    shard_add, shard_sub, shard_mul, shard_div, shard_minimum, shard_maximum,
 *                 shard_where, comparisons, shard_add_at_labels, shard_concatenate, the residual of
 *                 shard_batch_norm: of two floating types the wider one (float32 of the two of 16 bits).
 *   what comes    all else: relu, gelu, batch norm (its parameters and statistics are
 *                 float32 anyway), pooling, dropout, embedding, shape, collectives,
 *                 what is largest along a dimension, means, what is at labels.
 * float64 stays float64 everywhere. Over ranks: a member's part of a ROW layer's result,
 * of the gradient of a COLUMN layer's input, of anything of 16 bits that is summed over a
 * group, is rounded to 16 bits, and the sum, which is in float32, once more.
 * Gradients of float32 parameters are summed in float32.
 * SHARD_FLOAT16, whose range is small, needs a shard_grad_scaler. SHARD_FLOAT32 switches
 * it off inside another. Of this thread.
 */
#define SHARD_AUTOCAST(dtype) \
    SHARD_AUTOCAST_IN(dtype, SHARD_JOIN(shard_autocast_, __LINE__), SHARD_JOIN(shard_autocast_turn_, __LINE__))
#define SHARD_AUTOCAST_IN(dtype, before, turn)                                                                            \
    for (bool turn = true; turn; turn = false)                                                                           \
        for (shard_dtype before __attribute__((unused, cleanup(shard_restore_autocast))) = shard_set_autocast(dtype); turn; \
             turn = false)

/* SHARD_BFLOAT16, SHARD_FLOAT16, or SHARD_FLOAT32, at first: off. Returns what it was
 * before. Another dtype is an error (ARGUMENT), and changes nothing. Not collective,
 * but ranks that share a layer or a loss must agree. */
SHARD_API shard_dtype shard_set_autocast(shard_dtype dtype);
SHARD_API shard_dtype shard_autocast_dtype(void);

static inline void shard_restore_autocast(const shard_dtype *before)
{
    shard_set_autocast(*before);
}

/* ---- shape; of any dtype; all carry, PARTIAL too, where what is split stays apart ---- */

/* The same memory as another shape of as many elements; one size may be -1. Of a
 * split tensor, shape is this part's: the split dimension may take in dimensions
 * behind it, or become several of which the first is split ([rows, -1, 64] of
 * columns), but not take in one before it. Sizes of 1 may leave open which one is
 * split: then it is the -1. */
SHARD_API shard_tensor *shard_reshape(shard_tensor *x, shard_shape shape);
/* Dimensions [start, end] become one; negative counts from the end. As torch.flatten,
 * but of [n, h, w, c] images in that order. A view. */
SHARD_API shard_tensor *shard_flatten(shard_tensor *x, int start, int end);
/* Elements [start, start + length) of dimension dim (negative: from the end), which may not be
 * split: x[:, start:start + length] for dim 1. As torch.narrow, but a view of dimension 0 alone; of
 * another one a copy. */
SHARD_API shard_tensor *shard_narrow(shard_tensor *x, int dim, int64_t start, int64_t length);
/* Part `part` of `parts` along dim, ranges as of shard_split_range, so that parts may be uneven: the
 * k, q and v of a layer's result. As torchshard.slice and torch.tensor_split, which give all parts. */
SHARD_API shard_tensor *shard_slice(shard_tensor *x, int dim, int parts, int part);
/* `count` tensors, at least one, one after the other along dim (negative: from the end), along which
 * none may be split; their other sizes, dtypes and placements are the same. A copy. As torch.cat:
 *     shard_concatenate((shard_tensor *[]){a, b, c}, 3, -1) */
SHARD_API shard_tensor *shard_concatenate(shard_tensor *const *x, int count, int dim);
/* y.shape[i] = x.shape[axes[i]]; a copy. axes has ndim entries. */
SHARD_API shard_tensor *shard_permute(shard_tensor *x, const int *axes);
SHARD_API shard_tensor *shard_transpose(shard_tensor *x, int dim0, int dim1);

/* ---- elements; all carry ---- */

/* Any dtype to any, the same one without a copy; differentiable between floating
 * ones. Carries PARTIAL too, to a floating dtype. */
SHARD_API shard_tensor *shard_cast(shard_tensor *x, shard_dtype dtype);
/* factor * x, and -x. Carry PARTIAL too. */
SHARD_API shard_tensor *shard_scale(shard_tensor *x, double factor);
SHARD_API shard_tensor *shard_neg(shard_tensor *x);
/* x + number: torch.add(x, number). */
SHARD_API shard_tensor *shard_add_scalar(shard_tensor *x, double number);
/* x^exponent of each element: torch.pow(x, exponent). */
SHARD_API shard_tensor *shard_pow_scalar(shard_tensor *x, double exponent);
/* min(max(x, min), max), as torch.clamp: NaN stays NaN, and where min > max all other elements become max. A
 * bound may be -INFINITY or INFINITY; a NaN bound is an error (ARGUMENT). The gradient goes through
 * where min <= x <= max. */
SHARD_API shard_tensor *shard_clamp(shard_tensor *x, double min, double max);
/* As torch.exp, torch.log, ...: values and gradients at the ends of the range, too. shard_log1p is
 * log(1 + x), shard_rsqrt is 1 / sqrt(x), shard_sigmoid is 1 / (1 + exp(-x)). The gradient of
 * shard_abs is 0 at 0, that of shard_sqrt is infinite there. */
SHARD_API shard_tensor *shard_exp(shard_tensor *x);
SHARD_API shard_tensor *shard_log(shard_tensor *x);
SHARD_API shard_tensor *shard_log1p(shard_tensor *x);
SHARD_API shard_tensor *shard_sqrt(shard_tensor *x);
SHARD_API shard_tensor *shard_rsqrt(shard_tensor *x);
SHARD_API shard_tensor *shard_abs(shard_tensor *x);
SHARD_API shard_tensor *shard_tanh(shard_tensor *x);
SHARD_API shard_tensor *shard_sigmoid(shard_tensor *x);
SHARD_API shard_tensor *shard_relu(shard_tensor *x);
/* Exact (by erf), as torch's default; or the tanh approximation. */
SHARD_API shard_tensor *shard_gelu(shard_tensor *x);
SHARD_API shard_tensor *shard_gelu_tanh(shard_tensor *x);
/* Of two tensors, broadcast as by NumPy and PyTorch: shapes are compared from the last dimension
 * on; sizes are equal, or 1 in one of them, or missing, and what is 1 or missing is repeated
 * ([n, 1] or [c] or a scalar with [n, c]), in either operand. The gradient of what is repeated is
 * the sum, in float32 or better, over the dimensions that it is repeated along. A split operand
 * goes with one that is split in the same way, or with a whole one that is repeated along the split
 * dimension ([n, 1] with [n, c] split along 1); shard_add and shard_sub take PARTIAL with PARTIAL.
 * shard_pow: a^exponent, as torch.pow. The smaller and the larger one of a pair with a NaN is NaN;
 * the gradient of two that are equal is halved, as torch.minimum and torch.maximum. */
SHARD_API shard_tensor *shard_add(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_sub(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_mul(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_div(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_pow(shard_tensor *a, shard_tensor *exponent);
SHARD_API shard_tensor *shard_minimum(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_maximum(shard_tensor *a, shard_tensor *b);
/* 1 where a == b (!=, <, <=, >, >=), else 0, of any one dtype, broadcast and placed as above: as
 * torch.eq and so on, but uint8, as there is no bool here. What compares with NaN is 0, but 1 for
 * shard_ne. No gradient. */
SHARD_API shard_tensor *shard_eq(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_ne(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_lt(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_le(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_gt(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_ge(shard_tensor *a, shard_tensor *b);
/* The same with a number, which is rounded to a floating x's dtype; integers are compared with it
 * as it is. */
SHARD_API shard_tensor *shard_eq_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_ne_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_lt_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_le_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_gt_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_ge_scalar(shard_tensor *x, double number);
/* a's element where condition (uint8) is not 0, else b's: torch.where. a and b of any one dtype;
 * the three are broadcast and placed as above. The gradient of an element that was not taken is
 * 0, also where dy is NaN. shard_where(mask, shard_full(SHARD_SCALAR, 0.0), x) is masked_fill. */
SHARD_API shard_tensor *shard_where(shard_tensor *condition, shard_tensor *a, shard_tensor *b);
/* The values in memory of their own, of any dtype; differentiable, as torch.clone. Carries PARTIAL
 * too. */
SHARD_API shard_tensor *shard_clone(shard_tensor *x);
/* The values on another device, of any dtype; on the same one a view. Differentiable, as x.to(device)
 * in PyTorch: the gradient goes back to x's device. Waits for the GPU that values come from. Carries
 * PARTIAL too. */
SHARD_API shard_tensor *shard_to_device(shard_tensor *x, shard_device *device);
/* Zeroes elements with probability p and scales the rest by 1 / (1 - p); takes
 * the thread's next draw. Whether an element is zeroed depends on its index in
 * the whole tensor, so that a split tensor gets the values of the whole one. A tensor of three or
 * more dimensions that is split along one between the first and the last is refused (UNSUPPORTED). */
SHARD_API shard_tensor *shard_dropout(shard_tensor *x, double p);
/* The sum, and the mean, of all elements: a scalar. A split x gives PARTIAL, part of
 * the whole tensor's mean. */
SHARD_API shard_tensor *shard_sum(shard_tensor *x);
SHARD_API shard_tensor *shard_mean(shard_tensor *x);

/* ---- along a dimension; dim is negative: from the end. keepdim leaves it with size 1 ----
 * All carry a split of another dimension. */

/* As torch.sum and torch.mean with dim, added up in float64. Where dim itself is split the result
 * is PARTIAL, part of the whole tensor's sum or mean. Carry PARTIAL too. */
SHARD_API shard_tensor *shard_sum_dim(shard_tensor *x, int dim, bool keepdim);
SHARD_API shard_tensor *shard_mean_dim(shard_tensor *x, int dim, bool keepdim);
/* The largest and the smallest element; NaN comes before all numbers. *indices (NULL: not wanted)
 * is an int64 tensor of the result's shape (NULL on an error), where along dim it is: the first one of equal
 * elements, which gets the gradient. As torch.max and torch.min with dim, but that their index of
 * equal elements is not said. A dimension of size 0 is an error. Where dim itself is split, the result
 * is whole and identical on all ranks, indices are those in the whole dimension, and a value
 * and an index of each rank are gathered: collective over x's group. A rank may have no elements. */
SHARD_API shard_tensor *shard_max_dim(shard_tensor *x, int dim, bool keepdim, shard_tensor **indices);
SHARD_API shard_tensor *shard_min_dim(shard_tensor *x, int dim, bool keepdim, shard_tensor **indices);
/* Those indices alone. No gradient. */
SHARD_API shard_tensor *shard_argmax(shard_tensor *x, int dim, bool keepdim);
SHARD_API shard_tensor *shard_argmin(shard_tensor *x, int dim, bool keepdim);
/* The k largest of the last dimension, largest first: [..., k]; 0 <= k <= the whole dimension's
 * size. NaN, equal elements, *indices and a split last dimension as above: of logits that are
 * split along classes, k values and indices a row of each rank are gathered, and indices
 * are classes of the whole; k may exceed a rank's own classes. As torch.topk. */
SHARD_API shard_tensor *shard_top_k(shard_tensor *x, int64_t k, shard_tensor **indices);

/* ---- products ---- */

/* [..., m, k] times [..., k, n]; leading dimensions equal, or b without any.
 * A split leading dimension is carried (both split in the same way, or b whole without it), and a
 * split m if b is whole. */
SHARD_API shard_tensor *shard_matmul(shard_tensor *a, shard_tensor *b);
/* x [..., in] weight [out, in] (transposed) + bias [out] or NULL: [..., out].
 * Carries a split leading dimension of x. By the weight's placement:
 *   whole                  x not split along in;
 *   split along out        (COLUMN) x whole: the result is split along out, bias
 *                          too; the gradient of x is PARTIAL;
 *   split along in         (ROW) x split in the same way along in, bias NULL: the result is PARTIAL. */
SHARD_API shard_tensor *shard_linear(shard_tensor *x, shard_tensor *weight, shard_tensor *bias);

/* ---- images [n, h, w, c]; carry a split n ---- */

typedef struct shard_conv2d_options {
    size_t size;
    int64_t stride, padding; /* both directions; 1 and 0 */
    int64_t stride_h, stride_w, padding_h, padding_w; /* of one direction; -1: as above */
    int64_t dilation, groups; /* 1 */
} shard_conv2d_options;
#define SHARD_CONV2D_OPTIONS_VALUES sizeof(shard_conv2d_options), 1, 0, -1, -1, -1, -1, 1, 1
#define SHARD_CONV2D_OPTIONS_INIT {SHARD_CONV2D_OPTIONS_VALUES}
/* weight [out, c / groups, kh, kw], bias [out] or NULL: [n, oh, ow, out]. */
#define shard_conv2d(x, weight, ...) \
    SHARD_GIVEN(shard_conv2d_with(x, weight, SHARD_OPTIONS(shard_conv2d_options, SHARD_CONV2D_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_conv2d_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                          const shard_conv2d_options *options);

typedef struct shard_pool2d_options {
    size_t size;
    int64_t stride; /* -1: the kernel's size */
    int64_t padding; /* at most half the kernel; 0 */
    bool ceil_mode;
    bool count_include_pad; /* average: divide by the kernel's size; else by the elements that are inside; true */
} shard_pool2d_options;
#define SHARD_POOL2D_OPTIONS_VALUES sizeof(shard_pool2d_options), -1, 0, false, true
#define SHARD_POOL2D_OPTIONS_INIT {SHARD_POOL2D_OPTIONS_VALUES}
#define shard_max_pool2d(x, ...) \
    SHARD_GIVEN(shard_max_pool2d_with(x, SHARD_OPTIONS(shard_pool2d_options, SHARD_POOL2D_OPTIONS, __VA_ARGS__)))
#define shard_avg_pool2d(x, ...) \
    SHARD_GIVEN(shard_avg_pool2d_with(x, SHARD_OPTIONS(shard_pool2d_options, SHARD_POOL2D_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_max_pool2d_with(shard_tensor *x, int64_t kernel, const shard_pool2d_options *options);
SHARD_API shard_tensor *shard_avg_pool2d_with(shard_tensor *x, int64_t kernel, const shard_pool2d_options *options);
/* The mean over h and w: [n, c]. As adaptive_avg_pool2d(1) and flatten. */
SHARD_API shard_tensor *shard_global_avg_pool2d(shard_tensor *x);

/* ---- normalisation ---- */

typedef struct shard_batch_norm_options {
    size_t size;
    bool training;      /* statistics of this batch, and the running ones are updated */
    double momentum;    /* of the running statistics; 0.1 */
    double eps;         /* 1e-5 */
    shard_group *group; /* statistics over all its members' batches (sync batch norm); NULL: own */
    shard_tensor *residual; /* added before relu, like x; NULL: none */
    bool relu;          /* relu(batch_norm(x) + residual) in one pass */
} shard_batch_norm_options;
#define SHARD_BATCH_NORM_OPTIONS_VALUES sizeof(shard_batch_norm_options), false, 0.1, 1e-5, NULL, NULL, false
#define SHARD_BATCH_NORM_OPTIONS_INIT {SHARD_BATCH_NORM_OPTIONS_VALUES}
/* Over all but the last dimension of x [..., c]. weight, bias (both or neither
 * NULL), running_mean, running_var [c] are float64 for float64, else float32.
 * As torch.nn.functional.batch_norm (the running variance is the unbiased one)
 * and SyncBatchNorm. Carries a split leading dimension. Collective over
 * options.group, forward and backward, when training. */
#define shard_batch_norm(x, running_mean, running_var, weight, ...) \
    SHARD_GIVEN(shard_batch_norm_with(x, running_mean, running_var, weight, \
                                      SHARD_OPTIONS(shard_batch_norm_options, SHARD_BATCH_NORM_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_batch_norm_with(shard_tensor *x, shard_tensor *running_mean, shard_tensor *running_var,
                                              shard_tensor *weight, shard_tensor *bias, const shard_batch_norm_options *options);
/* Over the last dimension, which may not be split; weight and bias as above.
 * eps is 1e-5 in torch. Carries a split leading dimension. */
SHARD_API shard_tensor *shard_layer_norm(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, double eps);

/* x / max(norm, eps), where norm is the 2-norm along dimension dim (negative: from the end):
 * x's shape. As torch.nn.functional.normalize with p = 2, but that dim is always named there
 * (torch's default is 1). eps is 1e-12 there. Carries any split dimension: the rows of a weight that
 * is split by rows are normalised where they are. Where dim itself is split, the ranks' sums of
 * squares are added up, one float64 number a vector; in the backward too. Collective over
 * x's group then, forward and backward. */
SHARD_API shard_tensor *shard_normalize(shard_tensor *x, int dim, double eps);

/* (x / 255 - mean) / std with a mean and a std for each channel: x uint8 [..., channels], at most 16 of them, mean and
 * std arrays of so many numbers, the result of dtype, a floating one. As torchvision's ToTensor and
 * Normalize, but that channels are the last dimension. Images go to a GPU as they are, with a quarter
 * of the bytes, and become numbers there. No gradient. Carries a split dimension other than the last. */
SHARD_API shard_tensor *shard_normalize_images(shard_tensor *x, const double *mean, const double *std, shard_dtype dtype);

/* ---- softmax and loss ---- */

/* Over the last dimension, which may not be split. Carry a split leading one. */
SHARD_API shard_tensor *shard_softmax(shard_tensor *x);
SHARD_API shard_tensor *shard_log_softmax(shard_tensor *x);

typedef enum shard_reduction { SHARD_REDUCTION_MEAN = 0, SHARD_REDUCTION_SUM, SHARD_REDUCTION_NONE } shard_reduction;

typedef struct shard_cross_entropy_options {
    size_t size;
    shard_tensor *weight;      /* [classes], or split like the logits' classes; NULL: ones */
    int64_t ignore_index;      /* a label that does not count; -100 */
    double label_smoothing;    /* in [0, 1] */
    shard_reduction reduction; /* the mean divides by the sum of the labels' weights */
} shard_cross_entropy_options;
#define SHARD_CROSS_ENTROPY_OPTIONS_VALUES sizeof(shard_cross_entropy_options), NULL, -100, 0.0, SHARD_REDUCTION_MEAN
#define SHARD_CROSS_ENTROPY_OPTIONS_INIT {SHARD_CROSS_ENTROPY_OPTIONS_VALUES}
/* logits [..., classes] and labels int64 [...], or probabilities like the logits: a scalar, or of
 * the labels' shape for NONE. [rows, classes] with [rows], one row [classes] with a scalar label,
 * images [n, h, w, classes] with [n, h, w]: every element of the leading dimensions is a row. As
 * torch.nn.functional.cross_entropy, but that classes are the last dimension, as channels are
 * throughout; torch has them second, [n, classes, h, w] (shard_permute brings those here). The last dimension is
 * taken also where another one has the same size.
 * The mean with probabilities divides by the number of rows.
 * Weight and probabilities are of the logits' dtype and get no gradient.
 * Logits split along classes (the result of a COLUMN linear) give the sharded
 * loss: an exchange of some bytes and an all-gather of a few numbers a row, the same value
 * on every member; labels are the same whole ones on every member, probabilities are split like
 * the logits. A label outside [0, classes), labels or options that differ, or any
 * other error of one member is an error on all of them (see above for NULL logits; and for
 * when it comes: on GPUs with a wrong label of one member that member names it, the others
 * that its labels differ).
 * Logits split along a leading dimension, with the labels of the local rows, give the loss of the local rows:
 * PARTIAL for SUM, split like them for NONE, refused for MEAN.
 * *label_rank (NULL: not wanted) becomes shard_label_rank(logits, labels, ignore_index), for top-k accuracy
 * (shard_count_top_k), counted in the same pass over the logits, where shard_label_rank takes a second one; all
 * members want it or none. Split classes take one more all-gather, of a number a row. NULL after an error; refused
 * with probabilities. The macro for it is shard_cross_entropy_with_rank(logits, target, &label_rank, ...).
 * The backward needs the logits; it writes the gradient over them if they have been
 * released by then, else next to them.
 * Collective over the logits' group if they are split along classes. */
#define shard_cross_entropy(logits, ...)  \
    SHARD_GIVEN(shard_cross_entropy_with( \
        logits, SHARD_OPTIONS(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__), NULL))
SHARD_API shard_tensor *shard_cross_entropy_with(shard_tensor *logits, shard_tensor *target,
                                                 const shard_cross_entropy_options *options, shard_tensor **label_rank);
/* The macro with *label_rank. */
#define shard_cross_entropy_with_rank(logits, target, ...) \
    SHARD_GIVEN(shard_cross_entropy_with(                  \
        logits, target, SHARD_OPTIONS_BEFORE(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
/* The same function under TorchShard's name. */
#define shard_parallel_cross_entropy shard_cross_entropy

typedef struct shard_mse_loss_options {
    size_t size;
    shard_reduction reduction; /* the mean is over all elements */
} shard_mse_loss_options;
#define SHARD_MSE_LOSS_OPTIONS_VALUES sizeof(shard_mse_loss_options), SHARD_REDUCTION_MEAN
#define SHARD_MSE_LOSS_OPTIONS_INIT {SHARD_MSE_LOSS_OPTIONS_VALUES}
/* (input - target)^2, both of one shape: a scalar, or of their shape for NONE. As
 * torch.nn.functional.mse_loss; both get gradients. Both operands may be split, over the same
 * group and ranges: mean and sum are then PARTIAL, summands of the whole tensors' mean or sum
 * (shard_reduce_from_group makes them whole), and the result of NONE is split like the operands. */
#define shard_mse_loss(input, ...) \
    SHARD_GIVEN(shard_mse_loss_with(input, SHARD_OPTIONS(shard_mse_loss_options, SHARD_MSE_LOSS_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_mse_loss_with(shard_tensor *input, shard_tensor *target, const shard_mse_loss_options *options);

/* For each row, how many logits come before the label's (larger, or equal with a
 * smaller column; NaN is larger than numbers): int64, of the labels' shape; the label is in the
 * top k if that is < k. A row whose label is ignore_index gives INT64_MAX, which is
 * in no top k. Logits [..., classes] and labels [...] are as for the loss. Carries a split leading
 * dimension. No gradient. Logits split along
 * classes are not gathered: a few numbers a row are. Collective over the logits'
 * group if they are split along classes. */
SHARD_API shard_tensor *shard_label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index);
/* How many rows of shard_label_rank's result, of those here, are < k; -1 with the error set. */
SHARD_API int64_t shard_count_top_k(shard_tensor *label_rank, int64_t k);

/* ---- the labels' columns: what margin losses need ----
 * x is [..., classes]; labels are int64 of its leading dimensions' shape, placed as x's rows (of
 * split rows: the local rows' labels, as for the loss). A label that is ignore_index has no column;
 * another one outside [0, classes) is an error. Where x is split along classes, labels are the whole
 * ones, the same on all ranks (not checked), and each rank takes those in its range. Not collective. */

/* x at the row's label, 0 for an ignored one: labels' shape. As torch.gather(x, -1,
 * labels.unsqueeze(-1)).squeeze(-1). Of split classes PARTIAL (shard_reduce_from_group makes it whole). */
SHARD_API shard_tensor *shard_pick_labels(shard_tensor *x, shard_tensor *labels, int64_t ignore_index);
/* x, with factor * values added at the row's label; values, of labels' shape and x's dtype, or NULL: ones
 * (if the thread has an error already, NULL may be a failed operation's result and gives NULL).
 * As torch.scatter_add along the last dimension. Carries. Of split classes values are whole, and their
 * gradient is PARTIAL. CosFace's margin is shard_add_at_labels(cosine, labels, NULL, -margin, -100). */
SHARD_API shard_tensor *shard_add_at_labels(shard_tensor *x, shard_tensor *labels, shard_tensor *values, double factor,
                                            int64_t ignore_index);

typedef struct shard_one_hot_options {
    size_t size;
    shard_dtype dtype;     /* float32; an integer one is cast from it */
    shard_tensor *like;    /* the result has its dtype and placement; NULL: whole classes, placed as labels */
    int64_t ignore_index;  /* as shard_cross_entropy_options; -100 */
} shard_one_hot_options;
#define SHARD_ONE_HOT_OPTIONS_VALUES sizeof(shard_one_hot_options), SHARD_FLOAT32, NULL, -100
#define SHARD_ONE_HOT_OPTIONS_INIT {SHARD_ONE_HOT_OPTIONS_VALUES}
/* 1 at the label, else 0: [..., classes] for labels int64 [...]; an ignored label gives zeros. As
 * torch.nn.functional.one_hot, which gives int64. .like = logits of split classes makes this
 * rank's classes alone; classes is then the whole number. No gradient. */
#define shard_one_hot(labels, ...) \
    SHARD_GIVEN(shard_one_hot_with(labels, SHARD_OPTIONS(shard_one_hot_options, SHARD_ONE_HOT_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_one_hot_with(shard_tensor *labels, int64_t classes, const shard_one_hot_options *options);

/* ---- embedding ---- */

typedef struct shard_embedding_options {
    size_t size;
    double max_norm;         /* rows of a larger norm are scaled down to it, in the weight; INFINITY: none are */
    double norm_type;        /* the p of that norm, more than 0; INFINITY: the largest element; 2 */
    bool scale_grad_by_freq; /* a row's gradient is divided by the number of times that it is in index */
} shard_embedding_options;
#define SHARD_EMBEDDING_OPTIONS_VALUES sizeof(shard_embedding_options), INFINITY, 2.0, false
#define SHARD_EMBEDDING_OPTIONS_INIT {SHARD_EMBEDDING_OPTIONS_VALUES}

/* Rows of weight [count, dim] at index int64 [...]: [..., dim]. A weight split along
 * dim 0 gives PARTIAL (each index is in one part), along dim 1 a result split
 * along its last dimension. Carries a split index. padding_idx: a row that gets
 * no gradient; -1 for none. An index outside [0, count) is an error.
 *
 * max_norm changes the rows that index names, and no others, before they are read: a write to
 * the weight, outside of the record. Replicas whose batches differ change different rows, as under
 * torch's DistributedDataParallel, and are not equal until shard_zero_optimizer's next step (stages 1 and 2)
 * or at all. A weight that is kept in parts (stage 3) is refused (UNSUPPORTED). Collective over the
 * weight's group if there is a max_norm and the weight is split along dim 1. As
 * torch.nn.functional.embedding. */
#define shard_embedding(weight, index, ...) \
    SHARD_GIVEN(shard_embedding_with(weight, index, SHARD_OPTIONS(shard_embedding_options, SHARD_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_embedding_with(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                                             const shard_embedding_options *options);

/* ---- own operations, with their gradients; as torch.autograd.Function ---- */

/* One call of an own operation: from its forward to its backward. */
typedef struct shard_custom_op shard_custom_op;

#define SHARD_CUSTOM_OP_INPUTS 8
#define SHARD_CUSTOM_OP_SAVED 16

/*
 * An own operation is a forward and a backward. Both compute with tensors, by any operation (nothing is recorded), or on
 * the host (shard_copy_to_host, shard_from_host). Their tensors are in a scope that the library opens around each call.
 * A split input has the shape of the local shard. Other operations accept or refuse its placement as always;
 * shard_as_placed(shard_detach(x), (shard_placement){0}) is the local shard without a placement.
 *
 * Placements:
 *   result  as forward returns it (shard_as_placed): as an input, split, PARTIAL, or local. A sum or a gather of local
 *           results over a group follows the operation (shard_reduce_from_group, shard_gather_from_group).
 *   dy      as the result. The gradient of a PARTIAL result is that of the whole sum. dy itself is never PARTIAL.
 *   dx[i]   of a split input: the local shard of the gradient. Of another input: PARTIAL, if backward returns it so
 *           (shard_as_placed); else the whole gradient. Exception: where dy is split and the input is not, a dx[i]
 *           without a placement is this rank's summand (a pending sum, as a weight's gradient from the local rows),
 *           unless whole_gradients is set: then backward has gathered or summed it.
 *
 * An error inside a function (shard_error, or that of any call) is reported with the operation's name. The call or the
 * backward fails with it. An error of one rank reaches the others as that of any operation (see the top of this header).
 */
typedef struct shard_custom_op_type {
    const char *name; /* for messages */
    /* Returns the result, which may be an input; NULL with the error set. A result of an integer dtype has no gradient. */
    shard_tensor *(*forward)(shard_custom_op *op, int inputs, shard_tensor *const *input);
    /* Sets dx[i] for each input that requires a gradient (shard_custom_op_wants_gradient), given dy, the gradient with
     * respect to the result. dx[i] may be dy; dy must not be written to. dx[i] is cast to the input's dtype. Runs in the
     * autocast mode of the forward, as torch.amp.custom_bwd. NULL: no input may require a gradient. */
    shard_status (*backward)(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx);
    void (*destroy)(void *context); /* NULL: nothing to free */
    bool whole_gradients;
} shard_custom_op_type;

/* shard_custom_op_apply(&type, context, x, weight): the result of forward, recorded. At most SHARD_CUSTOM_OP_INPUTS inputs, of
 * any dtype, on one device. A NULL input is left out: forward gets NULL. If the thread has an error already, a NULL input
 * gives NULL and nothing runs. The operation owns context, also after an error: type->destroy is called once, after the
 * backward or when none can follow. type must outlive the record; it is usually static. Errors: ARGUMENT (a missing
 * function, too many inputs), SHAPE (devices, gradients), UNSUPPORTED (placements), and those of the functions.
 * Collective where the functions are. */
#define shard_custom_op_apply(type, context, ...)                                                               \
    shard_custom_op_apply_with(type, context, (int)(sizeof((shard_tensor *[]){__VA_ARGS__}) / sizeof(shard_tensor *)), \
                               (shard_tensor *[]){__VA_ARGS__})
SHARD_API shard_tensor *shard_custom_op_apply_with(const shard_custom_op_type *type, void *context, int inputs,
                                                   shard_tensor *const *input);

/* ---- inside an own operation ---- */

/* The context that was given to shard_custom_op_apply. NULL for NULL. */
SHARD_API void *shard_custom_op_context(const shard_custom_op *op);
/* Whether input i requires a gradient. False in a forward that is not recorded. As ctx.needs_input_grad. */
SHARD_API bool shard_custom_op_wants_gradient(const shard_custom_op *op, int input);
/* In forward: keeps a tensor (an input, the result, any other) for the backward, in slot 0 to SHARD_CUSTOM_OP_SAVED - 1. Does
 * nothing in a forward that is not recorded. Errors: ARGUMENT. As ctx.save_for_backward. */
SHARD_API shard_status shard_custom_op_save(shard_custom_op *op, int slot, shard_tensor *tensor);
/* The saved tensor, placed as it was; it must not be written to. Belongs to the operation. NULL if there is none. NULL with
 * the error set if it was written to since (ARGUMENT). As ctx.saved_tensors. */
SHARD_API shard_tensor *shard_custom_op_saved(shard_custom_op *op, int slot);
/* In backward: a new tensor with the shape, dtype, device and placement of input i, to be dx[i]. Its content is undefined. */
SHARD_API shard_tensor *shard_custom_op_make_gradient(shard_custom_op *op, int input);

SHARD_END_C

#endif
