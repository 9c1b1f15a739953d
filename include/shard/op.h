/*
 * shard/op.h: operations on tensors, each with its gradient. Losses are in loss.h, operations of one's own in custom_op.h.
 *
 * Each returns its result, or NULL with the error set. A NULL operand gives NULL and leaves the
 * first error as it is. Operands have one floating dtype and one device, unless the comment says
 * otherwise (and except under autocast, below). Not collective unless the comment says so.
 *
 * The comment of an operation gives its placement rule: which placements of its operands it accepts, and that of the
 * result. If it says only that an operand may be split, the result is split in the same way. Other placements are refused
 * (UNSUPPORTED).
 *
 * A rank that has failed still takes part in the collectives of its step, so that all ranks fail with
 * one text. docs/errors.md says how a program continues after an error, which few operations wait for a GPU, and which later call
 * reports a wrong label or index that a GPU has found.
 */
#ifndef SHARD_OP_H
#define SHARD_OP_H

#include <shard/autograd.h>

#include <math.h>

SHARD_BEGIN_C

/* ---- mixed precision ---- */

/*
 * SHARD_AUTOCAST(SHARD_BFLOAT16) { loss = ...; }: the forward in 16 bits where that is safe, as torch.autocast. The backward,
 * inside or after the block, runs in the types of the forward. Parameters and their gradients stay float32. SHARD_FLOAT16 needs
 * a shard_grad_scaler, as its range is small. SHARD_FLOAT32 switches autocast off inside another block. The mode belongs to the
 * thread. break and continue leave only the block, as of SHARD_SCOPE. docs/mixed-precision.md has the type of each operation, and
 * how sums over ranks are rounded.
 */
#define SHARD_AUTOCAST(dtype) \
    SHARD_AUTOCAST_IN(dtype, SHARD_JOIN(shard_autocast_, __LINE__), SHARD_JOIN(shard_autocast_turn_, __LINE__))
#define SHARD_AUTOCAST_IN(dtype, before, turn)                                                                            \
    for (bool turn = true; turn; turn = false)                                                                           \
        for (shard_dtype before __attribute__((unused, cleanup(shard_restore_autocast))) = shard_set_autocast(dtype); turn; \
             turn = false)

/* Sets the mode: SHARD_BFLOAT16, SHARD_FLOAT16, or SHARD_FLOAT32 (off, the initial mode). Returns the previous
 * one. Another dtype is an error (ARGUMENT), and changes nothing. Not collective, but the mode must be
 * equal on all ranks of a split layer or loss. */
SHARD_API shard_dtype shard_set_autocast(shard_dtype dtype);
SHARD_API shard_dtype shard_autocast_dtype(void);

static inline void shard_restore_autocast(const shard_dtype *before)
{
    shard_set_autocast(*before);
}

/* ---- shape; any dtype ----
 * The result has the placement of x, also PARTIAL, if the ranges of a split dimension stay separate. */

/* A view with another shape of the same number of elements; one size may be -1. As torch.reshape. For a
 * split tensor, shape is that of the local shard. The split dimension may be merged with dimensions
 * after it, or be divided into several, of which the first is split ([rows, -1, 64] of columns). It cannot be
 * merged with a dimension before it, unless that has size 1. If sizes of 1 leave open which dimension is split, it is the
 * one that has its size and its place, counted from the front or from the end: of [rows, -1] the rows, of [-1, columns] the
 * columns. One given as -1 precedes if it has that size or that place from the front, or divides a dimension that is split
 * before it. Two of that size and place are UNSUPPORTED. */
SHARD_API shard_tensor *shard_reshape(shard_tensor *x, shard_shape shape);
/* Merges dimensions start to end (included; negative: from the end). As torch.flatten; images
 * [n, h, w, c] are flattened in that order. A view. A split dimension may be merged with those after it, and with those
 * before it if these have size 1, else UNSUPPORTED. */
SHARD_API shard_tensor *shard_flatten(shard_tensor *x, int start, int end);
/* Elements [start, start + length) of dimension dim (negative: from the end), which may not be
 * split: x[:, start:start + length] for dim 1. A view for dimension 0, else a copy. A range outside of [0, size) is SHAPE: start
 * is not counted from the end, as in torch.narrow. */
SHARD_API shard_tensor *shard_narrow(shard_tensor *x, int dim, int64_t start, int64_t length);
/* Range `part` of `parts` along dim, with the ranges of shard_split_range, which may be uneven: for example
 * one of k, q and v of a layer's result. As torchshard.slice and torch.tensor_split, which return all ranges. */
SHARD_API shard_tensor *shard_slice(shard_tensor *x, int dim, int parts, int part);
/* Concatenates `count` tensors, at least one, along dim (negative: from the end). None may be split along dim; their
 * other sizes, dtypes and placements are equal. A copy. As torch.cat:
 *     shard_concatenate((shard_tensor *[]){a, b, c}, 3, -1) */
SHARD_API shard_tensor *shard_concatenate(shard_tensor *const *x, int count, int dim);
/* y.shape[i] = x.shape[axes[i]]; axes has ndim entries. A copy. As torch.permute. */
SHARD_API shard_tensor *shard_permute(shard_tensor *x, const int *axes);
/* Exchanges two dimensions. A copy. As torch.transpose. */
SHARD_API shard_tensor *shard_transpose(shard_tensor *x, int dim0, int dim1);

/* ---- elements ----
 * The result has the placement of x, split or local, also PARTIAL where the comment says so. */

/* Converts to a dtype; without a copy if x has it. Differentiable between floating dtypes. A floating number is truncated to an
 * integer; outside the integer's range it becomes the nearest end, and NaN 0 (PyTorch leaves both undefined). A smaller integer
 * takes the low bits. As x.to(dtype) in PyTorch. x may be PARTIAL, for a floating dtype. */
SHARD_API shard_tensor *shard_cast(shard_tensor *x, shard_dtype dtype);
/* factor * x, and -x. x may be PARTIAL. */
SHARD_API shard_tensor *shard_scale(shard_tensor *x, double factor);
SHARD_API shard_tensor *shard_neg(shard_tensor *x);
/* x + number: torch.add(x, number). */
SHARD_API shard_tensor *shard_add_scalar(shard_tensor *x, double number);
/* x^exponent of each element: torch.pow(x, exponent). */
SHARD_API shard_tensor *shard_pow_scalar(shard_tensor *x, double exponent);
/* min(max(x, min), max), as torch.clamp. NaN stays NaN; if min > max all other elements become max. A bound
 * may be -INFINITY or INFINITY; a NaN bound is an error (ARGUMENT). The gradient is 1 where
 * min <= x <= max, else 0. */
SHARD_API shard_tensor *shard_clamp(shard_tensor *x, double min, double max);
/* As torch.exp, torch.log, and so on, with their values and gradients at the ends of the range. shard_log1p is
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
/* x where x > 0, else negative_slope * x; torch's default is 0.01. A slope that is not finite is an error (ARGUMENT). As
 * torch.nn.functional.leaky_relu. */
SHARD_API shard_tensor *shard_leaky_relu(shard_tensor *x, double negative_slope);
/* The exact function (by erf), torch's default; and the tanh approximation. */
SHARD_API shard_tensor *shard_gelu(shard_tensor *x);
SHARD_API shard_tensor *shard_gelu_tanh(shard_tensor *x);
/* x / (1 + exp(-x)). */
SHARD_API shard_tensor *shard_silu(shard_tensor *x);
/* log(1 + exp(beta * x)) / beta, and x itself where beta * x > threshold; torch's defaults are 1 and 20. The sum has no overflow
 * for any threshold. A beta that is 0, subnormal or not finite in float32, and a NaN threshold are errors (ARGUMENT).
 * As torch.nn.functional.softplus. */
SHARD_API shard_tensor *shard_softplus(shard_tensor *x, double beta, double threshold);
/* x where x > 0, else weight * x; weight has one number, [1] or a scalar, or one for each channel, x's last dimension:
 * [channels]. Where channels are split, a weight of them is split in the same way. The gradient of the weight is summed in
 * float32 or wider, from products in x's dtype. As torch.nn.functional.prelu, whose channels are the second dimension. Errors:
 * SHAPE, another weight; UNSUPPORTED, another placement. */
SHARD_API shard_tensor *shard_prelu(shard_tensor *x, shard_tensor *weight);
/* a + b, a - b, a * b, a / b, a^exponent, and the smaller and larger one of each pair; as torch.add and so on.
 * Operands are expanded to one shape, as PyTorch broadcasts: shapes are compared from the last dimension on, and a size that
 * is 1 or missing is repeated ([n, 1] or [c] or a scalar with [n, c]), in either operand. The gradient of a repeated operand is
 * the sum over the dimensions that it is repeated along, in float32 or wider, of elements that are rounded to their dtype.
 * Placement: a split operand goes with one that is split in the same way, or with a local one that is repeated
 * along the split dimension ([n, 1] with [n, c] split along 1); shard_add and shard_sub take PARTIAL with PARTIAL.
 * shard_minimum and shard_maximum: NaN if one of the pair is NaN; the gradient of equal elements is halved, as
 * torch's. */
SHARD_API shard_tensor *shard_add(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_sub(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_mul(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_div(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_pow(shard_tensor *a, shard_tensor *exponent);
SHARD_API shard_tensor *shard_minimum(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_maximum(shard_tensor *a, shard_tensor *b);
/* 1 where a == b (!=, <, <=, >, >=), else 0, as torch.eq and so on. The result is uint8, as there is no bool dtype.
 * Operands have one dtype, any, and are expanded and placed as above. A comparison with NaN gives 0, shard_ne
 * gives 1. No gradient. */
SHARD_API shard_tensor *shard_eq(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_ne(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_lt(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_le(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_gt(shard_tensor *a, shard_tensor *b);
SHARD_API shard_tensor *shard_ge(shard_tensor *a, shard_tensor *b);
/* Comparisons with a number. For a floating x the number is rounded to x's dtype; integers are compared with
 * the unrounded number. */
SHARD_API shard_tensor *shard_eq_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_ne_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_lt_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_le_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_gt_scalar(shard_tensor *x, double number);
SHARD_API shard_tensor *shard_ge_scalar(shard_tensor *x, double number);
/* a's element where condition (uint8) is not 0, else b's; as torch.where. a and b have one dtype, any. The three are
 * expanded and placed as above. The gradient of an element that was not taken is 0, also where dy is
 * NaN. shard_where(mask, shard_full(SHARD_SCALAR, 0.0), x) is masked_fill. */
SHARD_API shard_tensor *shard_where(shard_tensor *condition, shard_tensor *a, shard_tensor *b);
/* A copy, of any dtype; differentiable, as torch.clone. x may be PARTIAL. */
SHARD_API shard_tensor *shard_clone(shard_tensor *x);
/* A copy on another device, of any dtype; a view if x is on that device. Differentiable, as x.to(device)
 * in PyTorch: the gradient is copied to x's device. Waits for the GPU that the values are copied from. x may
 * be PARTIAL. */
SHARD_API shard_tensor *shard_to_device(shard_tensor *x, shard_device *device);

typedef struct shard_dropout_options {
    size_t size;
    shard_group *group; /* whose ranks have the samples of one batch, in this order; NULL: x is the whole batch */
} shard_dropout_options;
#define SHARD_DROPOUT_OPTIONS_VALUES sizeof(shard_dropout_options), NULL
#define SHARD_DROPOUT_OPTIONS_INIT {SHARD_DROPOUT_OPTIONS_VALUES}
/* Zeroes elements with probability p and scales the others by 1 / (1 - p), as torch.nn.functional.dropout. Takes the
 * thread's next draw. The choice depends on the element's index in the whole tensor, so that a split tensor has the
 * values of the whole one. Of a local x the index is that in x: ranks with different samples drop the elements at the same
 * places. With .group it is the index in the batch, the ranks' samples along dimension 0 one after the other, so that the
 * choice is the same on any number of ranks, if all have one seed and draw; they have the same p and shape of a sample (else
 * MISMATCH). The numbers of samples may differ, and be 0. Collective over .group, the forward alone. Errors: ARGUMENT, p outside
 * [0, 1], .group with an x that is split along dimension 0; UNSUPPORTED, a tensor that is split along a dimension between the
 * first and the last. */
#define shard_dropout(x, ...) \
    SHARD_GIVEN(shard_dropout_with(x, SHARD_OPTIONS(shard_dropout_options, SHARD_DROPOUT_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_dropout_with(shard_tensor *x, double p, const shard_dropout_options *options);

/* The sum and the mean of all elements, a scalar. A split x gives PARTIAL: this rank's summand of the whole tensor's
 * sum or mean. */
SHARD_API shard_tensor *shard_sum(shard_tensor *x);
SHARD_API shard_tensor *shard_mean(shard_tensor *x);

/* ---- along a dimension; a negative dim counts from the end; keepdim keeps the dimension with size 1 ----
 * The result has the placement of an x that is split along another dimension. */

/* As torch.sum and torch.mean with dim; sums are computed in float64. If dim itself is split, the result is PARTIAL:
 * this rank's summand of the whole tensor's sum or mean. x may be PARTIAL. */
SHARD_API shard_tensor *shard_sum_dim(shard_tensor *x, int dim, bool keepdim);
SHARD_API shard_tensor *shard_mean_dim(shard_tensor *x, int dim, bool keepdim);
/* The largest and the smallest element along dim, as torch.max and torch.min with dim. NaN precedes all numbers.
 * *indices (NULL: not wanted) becomes an int64 tensor of the result's shape with the position along dim; of equal
 * elements the first one is taken (PyTorch does not say which), and gets the gradient. NULL after an error. A dimension of
 * size 0 is an error.
 * If dim itself is split, the result is identical on all ranks, indices are those in the whole dimension, and one value
 * and index of each rank are gathered: collective over x's group. A rank's shard may be empty. */
SHARD_API shard_tensor *shard_max_dim(shard_tensor *x, int dim, bool keepdim, shard_tensor **indices);
SHARD_API shard_tensor *shard_min_dim(shard_tensor *x, int dim, bool keepdim, shard_tensor **indices);
/* Only the indices of shard_max_dim and shard_min_dim. No gradient. Collective over x's group if dim is split. */
SHARD_API shard_tensor *shard_argmax(shard_tensor *x, int dim, bool keepdim);
SHARD_API shard_tensor *shard_argmin(shard_tensor *x, int dim, bool keepdim);
/* The k largest elements of the last dimension, largest first: [..., k]; 0 <= k <= the whole dimension's size. As
 * torch.topk. NaN, equal elements and *indices are as for shard_max_dim. For logits that are split along classes, k values and
 * indices of each rank and row are gathered, and indices are classes of the whole layer; k may exceed the local number of
 * classes. All ranks have logits of the same rows, here and for shard_argmax: other rows on some rank are not noticed, and give
 * wrong classes (docs/data-parallel.md, "Evaluation"). Collective over x's group if the last dimension is split. */
SHARD_API shard_tensor *shard_top_k(shard_tensor *x, int64_t k, shard_tensor **indices);

/* ---- products ---- */

/* [..., m, k] times [..., k, n]; leading dimensions are equal, or b has none. As torch.matmul.
 * A leading dimension may be split: both operands in the same way, or b has none. m may be split if b
 * is local. */
SHARD_API shard_tensor *shard_matmul(shard_tensor *a, shard_tensor *b);
/* x [..., in] weight [out, in] (transposed) + bias [out] or NULL: [..., out].
 * As torch.nn.functional.linear. x may be split along a leading dimension. By the weight's placement:
 *   local                  x is not split along in;
 *   split along out        (COLUMN) x is local; the result is split along out, as bias is; the
 *                          gradient of x is PARTIAL;
 *   split along in         (ROW) x is split in the same way along in, bias is NULL; the result is PARTIAL. */
SHARD_API shard_tensor *shard_linear(shard_tensor *x, shard_tensor *weight, shard_tensor *bias);

/* ---- images [n, h, w, c]; n may be split ---- */

typedef struct shard_conv2d_options {
    size_t size;
    int64_t stride, padding; /* of both directions. Defaults: 1, 0. */
    int64_t stride_h, stride_w, padding_h, padding_w; /* of one direction; -1: as of both. Default: -1. */
    int64_t dilation, groups; /* Defaults: 1, 1. */
} shard_conv2d_options;
#define SHARD_CONV2D_OPTIONS_VALUES sizeof(shard_conv2d_options), 1, 0, -1, -1, -1, -1, 1, 1
#define SHARD_CONV2D_OPTIONS_INIT {SHARD_CONV2D_OPTIONS_VALUES}
/* The convolution of x [n, h, w, c] with weight [out, c / groups, kh, kw], plus bias [out] or NULL: [n, oh, ow, out]. weight and
 * bias are not split. As torch.nn.functional.conv2d. */
#define shard_conv2d(x, weight, ...) \
    SHARD_GIVEN(shard_conv2d_with(x, weight, SHARD_OPTIONS(shard_conv2d_options, SHARD_CONV2D_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_conv2d_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                          const shard_conv2d_options *options);

/* The maximum and the mean over windows of kernel x kernel: [n, oh, ow, c]. Images without a window, or without pixels, are
 * SHAPE. As torch.nn.functional.max_pool2d and avg_pool2d. */
typedef struct shard_pool2d_options {
    size_t size;
    int64_t stride; /* -1: the kernel's size. Default: -1. */
    int64_t padding; /* at most half the kernel */
    bool ceil_mode;
    bool count_include_pad; /* average: divide by the kernel's size; else by the elements that are inside. Default: true. */
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

/* ---- normalization ---- */

typedef struct shard_batch_norm_options {
    size_t size;
    bool training;      /* statistics of this batch, and the running ones are updated */
    double momentum;    /* of the running statistics. Default: 0.1. */
    double eps;         /* Default: 1e-5. */
    shard_group *group; /* statistics over the batches of all its ranks (sync batch norm); NULL: of this rank's */
    shard_tensor *residual; /* added before relu, like x; NULL: none */
    bool relu;          /* relu(batch_norm(x) + residual) in one pass */
} shard_batch_norm_options;
#define SHARD_BATCH_NORM_OPTIONS_VALUES sizeof(shard_batch_norm_options), false, 0.1, 1e-5, NULL, NULL, false
#define SHARD_BATCH_NORM_OPTIONS_INIT {SHARD_BATCH_NORM_OPTIONS_VALUES}
/* Over all but the last dimension of x [..., c]. weight and bias, both or neither NULL, and running_mean and running_var, both or
 * neither NULL when training, [c], are float64 for float64, else float32. As torch.nn.functional.batch_norm (the running variance
 * is unbiased) and SyncBatchNorm. x may be split along a leading dimension. Errors: SHAPE, when training one row in all, which
 * has no variance; ARGUMENT, a momentum outside [0, 1], an eps that is negative or NaN, and no running statistics when not
 * training. Without rows on any rank the running statistics stay. Collective over options.group, forward and backward, when
 * training. */
#define shard_batch_norm(x, running_mean, running_var, weight, ...) \
    SHARD_GIVEN(shard_batch_norm_with(x, running_mean, running_var, weight, \
                                      SHARD_OPTIONS(shard_batch_norm_options, SHARD_BATCH_NORM_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_batch_norm_with(shard_tensor *x, shard_tensor *running_mean, shard_tensor *running_var,
                                              shard_tensor *weight, shard_tensor *bias, const shard_batch_norm_options *options);
/* Normalizes the last dimension, which may not be split; weight and bias as above. eps is 1e-5 in PyTorch; a
 * negative or NaN one is ARGUMENT, here and below. As torch.nn.functional.layer_norm. x may be split along a leading dimension.
 */
SHARD_API shard_tensor *shard_layer_norm(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, double eps);

/* x / max(norm, eps), where norm is the 2-norm along dimension dim (negative: from the end). As torch.nn.functional.normalize
 * with p = 2; dim has no default here. eps is 1e-12 in PyTorch. x may be split along any dimension: the rows of a weight that
 * is split by rows are normalized without communication. If dim itself is split, the ranks' sums of squares are added, one
 * float64 number for each vector, in forward and backward: collective over x's group. */
SHARD_API shard_tensor *shard_normalize(shard_tensor *x, int dim, double eps);

/* (x / 255 - mean) / std for each channel: x is uint8 [..., channels] with at most 16 channels, mean and std are arrays
 * with a number for each, the result has the floating dtype. As torchvision's ToTensor and Normalize, with channels
 * last. Images are copied to a GPU as bytes and converted there. No gradient. A dimension other than the last may be
 * split. Errors: ARGUMENT, a number that is not finite, or a std that is not positive; SHAPE, another dtype, or more channels. */
SHARD_API shard_tensor *shard_normalize_images(shard_tensor *x, const double *mean, const double *std, shard_dtype dtype);

/* ---- softmax ---- */

/* Over the last dimension. As torch.softmax and torch.log_softmax. x may be split; if the last dimension is, the result is too,
 * and the call is collective over x's group: some numbers of each row are gathered, and their sums in backward. */
SHARD_API shard_tensor *shard_softmax(shard_tensor *x);
SHARD_API shard_tensor *shard_log_softmax(shard_tensor *x);
/* The logarithm of the sum of the exponentials along dim, which keepdim keeps with size 1. As torch.logsumexp with one dim: -inf
 * for no elements; a row with inf gives NaN, in torch inf. The backward needs x. The result has the placement of an x that is
 * split along another dimension. If dim itself is split, the result is local and identical on all ranks, and the call is
 * collective over x's group. A rank's shard may be empty. */
SHARD_API shard_tensor *shard_logsumexp(shard_tensor *x, int dim, bool keepdim);

/* ---- attention ---- */

typedef struct shard_scaled_dot_product_attention_options {
    size_t size;
    bool is_causal; /* query i has the keys up to i + offset alone */
    int64_t offset; /* of is_causal: keys before the first query's own, as a key-value cache has; 0 or more */
    double scale;   /* of the scores query . key; INFINITY: 1 / sqrt(in). Default: INFINITY. */
} shard_scaled_dot_product_attention_options;
#define SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_VALUES sizeof(shard_scaled_dot_product_attention_options), false, 0, INFINITY
#define SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_INIT   \
    {                                                     \
        SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_VALUES \
    }
/* softmax(scale * query key^T) value: query [..., heads, queries, in], key [..., key heads, keys, in] and value [..., key
 * heads, keys, out] give [..., heads, queries, out]; or [queries, in], [keys, in] and [keys, out]. Head h has key head h /
 * (heads / key heads), where heads are a multiple of key heads: torch's enable_gqa. With is_causal and offset 0, query i has
 * keys 0 to i also where queries and keys differ in number, as in torch. To generate with a cache of n earlier keys, offset is
 * n: key and value have those of the cache first. Without keys the result is 0. docs/performance.md ("Attention") has memory
 * and rounding. Heads, or a dimension before them, may be split: all three operands are split over one group along this
 * dimension, each rank with the key heads of its heads.
 * Errors: SHAPE, shapes that do not fit; ARGUMENT, an offset below 0 or without is_causal, or a scale that is NaN or -inf;
 * UNSUPPORTED, another placement. Not collective. As torch.nn.functional.scaled_dot_product_attention without attn_mask and
 * dropout. */
#define shard_scaled_dot_product_attention(query, key, ...)                                            \
    SHARD_GIVEN(shard_scaled_dot_product_attention_with(                                               \
        query, key,                                                                                    \
        SHARD_OPTIONS(shard_scaled_dot_product_attention_options, SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_scaled_dot_product_attention_with(shard_tensor *query, shard_tensor *key, shard_tensor *value,
                                                                const shard_scaled_dot_product_attention_options *options);

/* ---- embedding ---- */

typedef struct shard_embedding_options {
    size_t size;
    double max_norm;         /* rows of a larger norm are scaled down to it, in the weight; INFINITY: none. Default: INFINITY. */
    double norm_type;        /* the p of that norm, more than 0; INFINITY: the largest element. Default: 2. */
    bool scale_grad_by_freq; /* a row's gradient is divided by the number of times that it is in index, which is not split */
} shard_embedding_options;
#define SHARD_EMBEDDING_OPTIONS_VALUES sizeof(shard_embedding_options), INFINITY, 2.0, false
#define SHARD_EMBEDDING_OPTIONS_INIT {SHARD_EMBEDDING_OPTIONS_VALUES}

/* Rows of weight [count, dim] at index int64 [...]: [..., dim]. A weight split along dim 0 gives PARTIAL (each index is in one
 * part), along dim 1 a result split along its last dimension. index may be split if weight is local. padding_idx: a row that
 * gets no gradient; -1 for none. An index outside [0, count) is an error (ARGUMENT).
 * max_norm changes the rows that index names, and no others, before they are read: a write to the weight, outside of the
 * record. Replicas whose batches differ change different rows, as under torch's DistributedDataParallel, and are not equal
 * until shard_zero_optimizer's next step (stages 1 and 2) or at all. A partitioned weight (stage 3) is refused (UNSUPPORTED).
 * Collective over the weight's group if there is a max_norm and the weight is split along dim 1. As
 * torch.nn.functional.embedding. */
#define shard_embedding(weight, index, ...) \
    SHARD_GIVEN(shard_embedding_with(weight, index, SHARD_OPTIONS(shard_embedding_options, SHARD_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_embedding_with(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                                             const shard_embedding_options *options);

SHARD_END_C

#endif
