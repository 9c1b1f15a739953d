/*
 * shard/op.h: operations on tensors, each with its gradient.
 *
 * Each returns its result, or NULL with the error set. A NULL operand gives NULL and leaves the
 * first error as it is. Operands have one floating dtype and one device, unless the comment says
 * otherwise (and except under autocast, below). Not collective unless the comment says so.
 *
 * The comment of an operation gives its placement rule: which splits of its operands it accepts,
 * and how the result is placed. "Carries" means that the result is placed as the operand is. Other
 * placements are refused (UNSUPPORTED).
 *
 * A rank that has failed still takes part in the collectives of its step, so that all ranks fail with
 * one text. No operation waits for a GPU, except shard_to_device for the GPU that it copies from; an error that
 * only the GPU sees (a label or an index out of range) is reported by the next call that waits for it, or
 * by a later collective. docs/errors.md describes both, and how a program continues after an error.
 */
#ifndef SHARD_OP_H
#define SHARD_OP_H

#include <shard/autograd.h>

#include <math.h>

SHARD_BEGIN_C

/* ---- mixed precision ---- */

/*
 * SHARD_AUTOCAST(SHARD_BFLOAT16) { loss = ...; }: the forward in 16 bits where that is safe, as
 * torch.autocast. The backward, inside or after the block, runs in the types of the forward. Parameters and
 * their gradients stay float32. Types of the operations:
 *   16 bits       shard_linear, shard_matmul, shard_conv2d, shard_scaled_dot_product_attention: float32
 *                 and 16-bit operands are cast. The cast values of a leaf (a weight) are kept until the leaf
 *                 is written to or moves (into a bucket), the mode is switched off, or the thread ends. Sums
 *                 are in float32 and rounded once to the result. The gradient of a float32 operand is float32
 *                 without rounding to 16 bits (except of shard_conv2d: rounded once; of
 *                 shard_scaled_dot_product_attention: rounded, and computed from the rounded result).
 *   float32       shard_softmax, shard_log_softmax, shard_layer_norm, shard_normalize,
 *                 shard_sum, shard_sum_dim, shard_exp, shard_log, shard_log1p, shard_rsqrt,
 *                 shard_pow, shard_pow_scalar, shard_mse_loss: 16-bit operands are cast.
 *   the loss      shard_cross_entropy reads 16-bit logits without a float32 copy. Its sums and its
 *                 result are float32 or wider, the gradient of the logits is 16-bit. If class weights or
 *                 probabilities have another type, all are cast to the widest.
 *   the widest    shard_add, shard_sub, shard_mul, shard_div, shard_minimum, shard_maximum,
 *                 shard_where, comparisons, shard_add_at_labels, shard_concatenate, the residual of
 *                 shard_batch_norm: the wider one of two floating types (float32 for the two 16-bit types).
 *   the operand's all others: relu, gelu, prelu (its weight is cast), batch norm (its parameters and
 *                 statistics are float32 in any case), pooling, dropout, embedding, shapes, collectives, maxima and means
 *                 along a dimension, values at labels.
 * float64 stays float64. Over ranks: a rank's partial result of a ROW layer, its partial gradient of the input
 * of a COLUMN layer, and any other 16-bit summand is rounded to 16 bits; the sum is computed in float32
 * and rounded once more. Gradients of float32 parameters are summed in float32.
 * SHARD_FLOAT16 needs a shard_grad_scaler, as its range is small. SHARD_FLOAT32 switches autocast off inside
 * another block. The mode belongs to the thread.
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

/* ---- shape; any dtype; all carry, PARTIAL too, if the ranges of a split dimension stay separate ---- */

/* A view with another shape of the same number of elements; one size may be -1. As torch.reshape. For a
 * split tensor, shape is that of the local shard. The split dimension may be merged with dimensions
 * after it, or be divided into several, of which the first is split ([rows, -1, 64] of columns). It cannot be
 * merged with a dimension before it. If sizes of 1 leave open which dimension is split, it is the one given as -1. */
SHARD_API shard_tensor *shard_reshape(shard_tensor *x, shard_shape shape);
/* Merges dimensions start to end (included; negative: from the end). As torch.flatten; images
 * [n, h, w, c] are flattened in that order. A view. */
SHARD_API shard_tensor *shard_flatten(shard_tensor *x, int start, int end);
/* Elements [start, start + length) of dimension dim (negative: from the end), which may not be
 * split: x[:, start:start + length] for dim 1. A view for dimension 0, else a copy. As torch.narrow. */
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

/* ---- elements; all carry ---- */

/* Converts to a dtype; without a copy if x has it. Differentiable between floating dtypes. As x.to(dtype) in
 * PyTorch. Carries PARTIAL too, to a floating dtype. */
SHARD_API shard_tensor *shard_cast(shard_tensor *x, shard_dtype dtype);
/* factor * x, and -x. Carry PARTIAL too. */
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
/* The exact function (by erf), torch's default; and the tanh approximation. */
SHARD_API shard_tensor *shard_gelu(shard_tensor *x);
SHARD_API shard_tensor *shard_gelu_tanh(shard_tensor *x);
/* x where x > 0, else weight * x; weight has one number, [1] or a scalar, or one for each channel, x's last dimension:
 * [channels]. Where channels are split, a weight of them is split in the same way. The gradient of the weight is summed in
 * float32 or wider. As torch.nn.functional.prelu, whose channels are the second dimension. Errors: SHAPE, another weight;
 * UNSUPPORTED, another placement. */
SHARD_API shard_tensor *shard_prelu(shard_tensor *x, shard_tensor *weight);
/* a + b, a - b, a * b, a / b, a^exponent, and the smaller and larger one of each pair; as torch.add and so on.
 * Operands are broadcast as in PyTorch: shapes are compared from the last dimension on, and a size that is 1 or missing
 * is repeated ([n, 1] or [c] or a scalar with [n, c]), in either operand. The gradient of a repeated operand is
 * the sum over the dimensions that it is repeated along, in float32 or wider.
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
 * Operands have one dtype, any, and are broadcast and placed as above. A comparison with NaN gives 0, shard_ne
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
 * broadcast and placed as above. The gradient of an element that was not taken is 0, also where dy is
 * NaN. shard_where(mask, shard_full(SHARD_SCALAR, 0.0), x) is masked_fill. */
SHARD_API shard_tensor *shard_where(shard_tensor *condition, shard_tensor *a, shard_tensor *b);
/* A copy, of any dtype; differentiable, as torch.clone. Carries PARTIAL too. */
SHARD_API shard_tensor *shard_clone(shard_tensor *x);
/* A copy on another device, of any dtype; a view if x is on that device. Differentiable, as x.to(device)
 * in PyTorch: the gradient is copied to x's device. Waits for the GPU that the values are copied from. Carries
 * PARTIAL too. */
SHARD_API shard_tensor *shard_to_device(shard_tensor *x, shard_device *device);
/* Zeroes elements with probability p and scales the others by 1 / (1 - p), as torch.nn.functional.dropout. Takes the
 * thread's next draw. The choice depends on the element's index in the whole tensor, so that a split tensor has the
 * values of the whole one. A tensor that is split along a dimension between the first and the last is refused
 * (UNSUPPORTED). */
SHARD_API shard_tensor *shard_dropout(shard_tensor *x, double p);
/* The sum and the mean of all elements, a scalar. A split x gives PARTIAL: this rank's summand of the whole tensor's
 * sum or mean. */
SHARD_API shard_tensor *shard_sum(shard_tensor *x);
SHARD_API shard_tensor *shard_mean(shard_tensor *x);

/* ---- along a dimension; a negative dim counts from the end; keepdim keeps the dimension with size 1 ----
 * All carry a split along another dimension. */

/* As torch.sum and torch.mean with dim; sums are computed in float64. If dim itself is split, the result is PARTIAL:
 * this rank's summand of the whole tensor's sum or mean. Carry PARTIAL too. */
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
 * classes. Collective over x's group if the last dimension is split. */
SHARD_API shard_tensor *shard_top_k(shard_tensor *x, int64_t k, shard_tensor **indices);

/* ---- products ---- */

/* [..., m, k] times [..., k, n]; leading dimensions are equal, or b has none. As torch.matmul.
 * Carries a split leading dimension (both operands are split in the same way, or b has none), and a
 * split m if b is local. */
SHARD_API shard_tensor *shard_matmul(shard_tensor *a, shard_tensor *b);
/* x [..., in] weight [out, in] (transposed) + bias [out] or NULL: [..., out].
 * As torch.nn.functional.linear. Carries a split leading dimension of x. By the weight's placement:
 *   local                  x is not split along in;
 *   split along out        (COLUMN) x is local; the result is split along out, as bias is; the
 *                          gradient of x is PARTIAL;
 *   split along in         (ROW) x is split in the same way along in, bias is NULL; the result is PARTIAL. */
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

/* The maximum and the mean over windows of kernel x kernel: [n, oh, ow, c]. As torch.nn.functional.max_pool2d and
 * avg_pool2d. Carry a split n. */
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
    shard_group *group; /* statistics over the batches of all its ranks (sync batch norm); NULL: own */
    shard_tensor *residual; /* added before relu, like x; NULL: none */
    bool relu;          /* relu(batch_norm(x) + residual) in one pass */
} shard_batch_norm_options;
#define SHARD_BATCH_NORM_OPTIONS_VALUES sizeof(shard_batch_norm_options), false, 0.1, 1e-5, NULL, NULL, false
#define SHARD_BATCH_NORM_OPTIONS_INIT {SHARD_BATCH_NORM_OPTIONS_VALUES}
/* Over all but the last dimension of x [..., c]. weight, bias (both or neither
 * NULL), running_mean, running_var [c] are float64 for float64, else float32.
 * As torch.nn.functional.batch_norm (the running variance is unbiased) and
 * SyncBatchNorm. Carries a split leading dimension. Collective over
 * options.group, forward and backward, when training. */
#define shard_batch_norm(x, running_mean, running_var, weight, ...) \
    SHARD_GIVEN(shard_batch_norm_with(x, running_mean, running_var, weight, \
                                      SHARD_OPTIONS(shard_batch_norm_options, SHARD_BATCH_NORM_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_batch_norm_with(shard_tensor *x, shard_tensor *running_mean, shard_tensor *running_var,
                                              shard_tensor *weight, shard_tensor *bias, const shard_batch_norm_options *options);
/* Normalizes the last dimension, which may not be split; weight and bias as above. eps is 1e-5 in PyTorch. As
 * torch.nn.functional.layer_norm. Carries a split leading dimension. */
SHARD_API shard_tensor *shard_layer_norm(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, double eps);

/* x / max(norm, eps), where norm is the 2-norm along dimension dim (negative: from the end). As
 * torch.nn.functional.normalize with p = 2; dim has no default here. eps is 1e-12 in PyTorch. Carries any split: the rows of
 * a weight that is split by rows are normalized without communication. If dim itself is split, the ranks' sums of squares
 * are added, one float64 number for each vector, in forward and backward: collective over x's group. */
SHARD_API shard_tensor *shard_normalize(shard_tensor *x, int dim, double eps);

/* (x / 255 - mean) / std for each channel: x is uint8 [..., channels] with at most 16 channels, mean and std are arrays
 * with a number for each, the result has the floating dtype. As torchvision's ToTensor and Normalize, with channels
 * last. Images are copied to a GPU as bytes and converted there. No gradient. Carries a split dimension other than the
 * last. */
SHARD_API shard_tensor *shard_normalize_images(shard_tensor *x, const double *mean, const double *std, shard_dtype dtype);

/* ---- softmax and loss ---- */

/* Over the last dimension, which may not be split. As torch.softmax and torch.log_softmax. Carry a split leading
 * dimension. */
SHARD_API shard_tensor *shard_softmax(shard_tensor *x);
SHARD_API shard_tensor *shard_log_softmax(shard_tensor *x);

/* ---- attention ---- */

typedef struct shard_scaled_dot_product_attention_options {
    size_t size;
    bool is_causal; /* query i has the keys up to i + offset alone; false */
    int64_t offset; /* of is_causal: keys before the first query's own, as a key-value cache has; of at least 0; 0 */
    double scale;   /* of the scores query . key; INFINITY: 1 / sqrt(in) */
} shard_scaled_dot_product_attention_options;
#define SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_VALUES sizeof(shard_scaled_dot_product_attention_options), false, 0, INFINITY
#define SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_INIT   \
    {                                                     \
        SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_VALUES \
    }
/* softmax(scale * query key^T) value: query [..., heads, queries, in], key [..., key heads, keys, in] and value
 * [..., key heads, keys, out] give [..., heads, queries, out]; or [queries, in], [keys, in] and [keys, out]. Head h has key
 * head h / (heads / key heads), where heads are a multiple of key heads: torch's enable_gqa. As
 * torch.nn.functional.scaled_dot_product_attention without attn_mask and dropout. With is_causal and offset 0, query i has keys 0
 * to i also where queries and keys differ in number, as in torch. To generate with a cache of n earlier keys, offset is n:
 * key and value have those of the cache first. Without keys the result is 0.
 * Computed in tiles: no memory has a number for each query and key, in forward or backward. Maxima, sums and gradients are in
 * float32 or wider. The backward uses the result, and one number for each query.
 * Carries a split along heads or along a dimension before them: all three operands are split over one group along this
 * dimension, each rank with the key heads of its heads. Not collective. Errors: SHAPE, shapes that do not fit; ARGUMENT, an
 * offset below 0 or without is_causal, or a scale that is NaN or -inf; UNSUPPORTED, another placement. */
#define shard_scaled_dot_product_attention(query, key, ...)                                            \
    SHARD_GIVEN(shard_scaled_dot_product_attention_with(                                               \
        query, key,                                                                                    \
        SHARD_OPTIONS(shard_scaled_dot_product_attention_options, SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_scaled_dot_product_attention_with(shard_tensor *query, shard_tensor *key, shard_tensor *value,
                                                                const shard_scaled_dot_product_attention_options *options);

typedef enum shard_reduction {
    SHARD_REDUCTION_MEAN = 0,
    SHARD_REDUCTION_SUM,
    SHARD_REDUCTION_NONE,
    SHARD_REDUCTION_BATCH_MEAN, /* the sum divided by the number of rows; of shard_binary_cross_entropy_with_logits alone */
} shard_reduction;

typedef struct shard_margin_logits_options shard_margin_logits_options;

typedef struct shard_cross_entropy_options {
    size_t size;
    shard_tensor *weight;      /* [classes], or split like the logits' classes; NULL: ones */
    int64_t ignore_index;      /* a label that does not count; -100 */
    double label_smoothing;    /* in [0, 1] */
    shard_reduction reduction; /* the mean divides by the sum of the labels' weights, times row_weight */
    shard_tensor *row_weight;  /* like the labels: a factor of each row's loss, any floating dtype; NULL: ones */
    double z_loss;             /* z_loss * lse^2 is added to a row's loss, where lse = log(sum(exp(logits))); 0 */
    double logit_scale;        /* logits are multiplied by it first; above 0; 1 */
    double soft_cap;           /* then become soft_cap * tanh(logits / soft_cap); 0: they do not */
    shard_tensor *sample;      /* shard_sample_classes: the classes that count; NULL: all */
    bool normalized;           /* logits are cosines of x and the weight's rows: see shard_linear_cross_entropy; false */
    const shard_margin_logits_options *margin; /* SHARD_MARGIN(.m2 = 0.5): shard_margin_logits of the logits; NULL: none */
    double stash_share; /* of a loss without logits: the stash's part of the weight's bytes; of at least 0; 0.05 */
} shard_cross_entropy_options;
#define SHARD_CROSS_ENTROPY_OPTIONS_VALUES                                                                                       \
    sizeof(shard_cross_entropy_options), NULL, -100, 0.0, SHARD_REDUCTION_MEAN, NULL, 0.0, 1.0, 0.0, NULL, false, NULL, 0.05
#define SHARD_CROSS_ENTROPY_OPTIONS_INIT {SHARD_CROSS_ENTROPY_OPTIONS_VALUES}
/* logits [..., classes] and labels int64 [...], or probabilities like the logits: a scalar, or of
 * the labels' shape for NONE. As torch.nn.functional.cross_entropy, but classes are the last dimension (torch: the
 * second); every element of the leading dimensions is a row: [rows, classes] with [rows], [classes] with a scalar label,
 * images [n, h, w, classes] with [n, h, w]. The mean with probabilities divides by the number of rows, or the sum of
 * row_weight. Weight and probabilities have the logits' dtype; they and row_weight get no gradient. docs/losses.md has the
 * formula of all options; none of them makes another tensor of logits.
 *
 * Logits that are split along classes (the result of a COLUMN linear) give the sharded loss: a few numbers of each row are
 * gathered, and every rank has the same value. All ranks have the same labels and row weights; probabilities are split
 * like the logits. A label outside [0, classes), or labels, row weights or options that differ, is an error on all ranks.
 * Logits that are split along a leading dimension, with the labels of the local rows: PARTIAL for SUM, split like the
 * logits for NONE, refused for MEAN.
 *
 * *label_rank (NULL: not wanted) becomes shard_label_rank(logits, labels, ignore_index), for top-k accuracy
 * (shard_count_top_k). It is counted in the same pass over the logits, with one more all-gather if classes are split. All
 * ranks want it or none does. NULL after an error; refused with probabilities. Its macro is
 * shard_cross_entropy_with_rank(logits, target, &label_rank, ...). The backward writes the gradient over the logits if no
 * other tensor refers to them by then.
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

/* shard_cross_entropy(shard_linear(x, weight, bias), target, ...) without the logits: they exist for a tile of classes at a
 * time, in the forward and again in the backward. The gradient of x is made in the forward's sweep, that of the weight
 * in the backward's. x [..., in] and labels int64 [...]; weight [classes, in], whole or split along classes; bias [classes]
 * or NULL; all of one dtype, or x of 16 bits (as under SHARD_AUTOCAST) with a float32 weight, whose tiles are
 * then rounded. The loss is float64 for float64, else float32; the options' weight may have any floating dtype. With
 * soft_cap and label_smoothing the gradient of x costs another sweep in the backward.
 * .stash_share: the forward keeps the exponentials of its first tiles for the backward, which then does not compute these
 * logits again: the stash. It has at most this part of the bytes of the local weight, in memory until the weight's gradient is
 * computed. 0: no stash. With x and weight of one dtype, about rows / in is enough for all tiles; a larger value keeps no
 * more. Gradients of weight and bias differ by rounding: the stash is float32, of bfloat16 features bfloat16. There is none on
 * a GPU, with .sample, .normalized or .margin, for more than 1,024 rows, for float64, for bfloat16 features with soft_cap, and
 * where replicas gather the rows of a classifier.
 * .normalized: x and the weight's rows are divided by their norms, as by shard_normalize with an eps of 1e-12; there is no bias.
 * .margin: then the labels' logits get the margin, and all of them its scale; its ignore_index is not read. Together they
 * are shard_normalize of x and of the weight, shard_linear, shard_margin_logits and this loss, with exact derivatives, and
 * neither logits nor a normalized weight is in memory. shard_cross_entropy of the logits of shard_nn_parallel_classifier in
 * training has both options too; of other logits, which are cosines then, it has .margin alone.
 * Refused: a soft cap with .sample, .normalized or .margin; a logit_scale with .sample and a bias.
 * Rows that are split over a group give SHARD_REDUCTION_NONE alone. All ranks of the weight's group have the same x and
 * labels, as for a column-parallel layer. Differs from the two functions by rounding.
 * *label_rank (NULL: not wanted) is as for shard_cross_entropy: it is counted in the forward's sweep, after a product of x with
 * the labels' rows of the weight, whose logits are exchanged if classes are split. As PyTorch's
 * torch.nn.functional.linear_cross_entropy; Apple's cut cross-entropy, Liger's fused linear cross-entropy. Forward and backward
 * as calls of their own: shard/head.h.
 * Collective over the weight's group if it is split. */
#define shard_linear_cross_entropy(x, weight, bias, ...)                                                                         \
    SHARD_GIVEN(shard_linear_cross_entropy_with(                                                                                 \
        x, weight, bias, SHARD_OPTIONS(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__), NULL))
SHARD_API shard_tensor *shard_linear_cross_entropy_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                        shard_tensor *target, const shard_cross_entropy_options *options,
                                                        shard_tensor **label_rank);
/* The macro with *label_rank. */
#define shard_linear_cross_entropy_with_rank(x, weight, bias, target, ...)                                                       \
    SHARD_GIVEN(shard_linear_cross_entropy_with(                                                                                 \
        x, weight, bias, target, SHARD_OPTIONS_BEFORE(shard_cross_entropy_options, SHARD_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))

/* The classes of a step's sample, for the option .sample of shard_linear_cross_entropy and, with labels, of shard_cross_entropy
 * of the logits of shard_nn_parallel_classifier in training: this rank's, int64 [n], in ascending order, in the host's memory.
 * weight [classes, ...] is the last layer's, whole or split along classes; of it the shape and the placement alone are read.
 *
 * A class is in the sample if it is one of the labels (of any shape; all ranks have the same ones), or if a random number in
 * [0, 1), which depends on seed, step and class alone, is below rate. So the sample is the same for any number of ranks, and
 * again after a checkpoint is loaded, and has about rate * classes classes. Any other ascending list of this rank's classes
 * which has the labels is a sample, too, as one of hard negatives.
 *
 * With a sample, the softmax, label smoothing and gradients are those of a layer of these classes alone. Of a classifier's
 * deferred gradient shard_step updates the sampled rows and their optimizer state alone: weight decay and momentum do not move
 * other rows. Micro-batches with one sample, drawn with all their labels, add up to such a gradient. A gradient that is
 * computed as a whole (shard_nn_parallel_classifier says when; of micro-batches with several samples; of a bias always) has
 * zeros in the other rows, which weight decay and momentum then do move. Evaluation takes no sample: all classes.
 *
 * Waits for the device of the labels, as the loss with a sample does. Errors: ARGUMENT, a rate outside [0, 1], a negative step;
 * UNSUPPORTED, in a graph's capture. Not collective. As Partial FC (An et al. 2022), which draws per rank. */
SHARD_API shard_tensor *shard_sample_classes(shard_tensor *labels, shard_tensor *weight, double rate, uint64_t seed,
                                             int64_t step);

typedef struct shard_binary_cross_entropy_options {
    size_t size;
    shard_tensor *pos_weight;  /* [classes], or split like the logits' classes: a factor of the targets' ones; NULL: ones */
    shard_tensor *weight;      /* [classes], or split like them: a factor of a class's losses; NULL: ones */
    shard_tensor *row_weight;  /* [rows...], any floating dtype: a factor of a row's losses; NULL: ones */
    shard_reduction reduction; /* the mean is over rows times all classes; weights do not change the divisor */
    bool gradient_only;        /* of a reduction: the loss is 0, as its value is not computed; its gradients are as ever */
    double stash_share;        /* of a loss without logits, as shard_cross_entropy_options; 0.05 */
} shard_binary_cross_entropy_options;
#define SHARD_BINARY_CROSS_ENTROPY_OPTIONS_VALUES                                                                                \
    sizeof(shard_binary_cross_entropy_options), NULL, NULL, NULL, SHARD_REDUCTION_MEAN, false, 0.05
#define SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT                                                                                  \
    {                                                                                                                            \
        SHARD_BINARY_CROSS_ENTROPY_OPTIONS_VALUES                                                                                \
    }
/* Logits [rows..., classes] and the target, which is of one of two kinds; a scalar, or of the logits' shape for NONE:
 *   floating   like the logits, with their dtype: each element is the probability of a one;
 *   int64      pairs [2, n] of the ones, a row (counted over the leading dimensions) and a class each, in ascending order,
 *              as torch.sparse_coo_tensor's indices after coalesce(). All else is 0, and is stored nowhere. A pair that is out
 *              of range, or not larger than the one before it by row and then by class, is an error: none is there twice.
 * As torch.nn.functional.binary_cross_entropy_with_logits. Target, weight and pos_weight get no gradient; weights have
 * the logits' dtype. Also under SHARD_AUTOCAST, 16-bit logits are read as they are, except for NONE.
 *
 * Logits that are split along classes: all ranks have the same pairs, of all classes, and the same row weights; one number
 * of each rank is gathered, and every rank has the same value. Pairs, row weights or options that differ are an error on
 * all ranks. For NONE nothing is gathered or compared, and the result is split like the logits.
 * Logits that are split along a leading dimension, with the targets of the local rows, whose pairs count these: PARTIAL for a
 * reduction, this rank's summand of the whole sum or mean.
 * The backward writes the gradient over the logits if no other tensor refers to them by then. Collective over the
 * logits' group if they are split along classes, except for NONE. */
#define shard_binary_cross_entropy_with_logits(logits, ...)                                                                      \
    SHARD_GIVEN(shard_binary_cross_entropy_with_logits_with(                                                                     \
        logits, SHARD_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_binary_cross_entropy_with_logits_with(shard_tensor *logits, shard_tensor *target,
                                                                    const shard_binary_cross_entropy_options *options);

/* shard_binary_cross_entropy_with_logits(shard_linear(x, weight, bias), target, ...) without the logits, as
 * shard_linear_cross_entropy: the same operands, and pairs as the target. One sweep over the weight gives the loss and the
 * gradient of x, another one in the backward that of the weight. The options' weights may have any floating dtype. A floating
 * target, which is as large as the logits, and SHARD_REDUCTION_NONE give the two functions, with their logits. Rows that are
 * split over a group are refused (UNSUPPORTED). Differs from the two functions by rounding. As the last layer of Renee (Jain et
 * al. 2023) and ELMO (Zhang et al. 2025). Collective over the weight's group if it is split. */
#define shard_linear_binary_cross_entropy(x, weight, bias, ...)                                                                  \
    SHARD_GIVEN(shard_linear_binary_cross_entropy_with(                                                                          \
        x, weight, bias, SHARD_OPTIONS(shard_binary_cross_entropy_options, SHARD_BINARY_CROSS_ENTROPY_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_linear_binary_cross_entropy_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                                               shard_tensor *target,
                                                               const shard_binary_cross_entropy_options *options);

/* shard_top_k(shard_linear(x, weight, bias), k, indices) without the logits, with the operands of shard_linear_cross_entropy: the
 * k largest logits of each row, largest first, and their classes of the whole layer, [..., k], for evaluation and for the
 * nearest classes of a feature. Values are float64 for float64, else float32. No gradient. x may be split along a leading
 * dimension with a whole weight; results are placed as x's rows. Errors: ARGUMENT, k below 0 or above the number of classes;
 * SHAPE, UNSUPPORTED, operands and placements that shard_linear refuses. Collective over the weight's group if it is split. */
SHARD_API shard_tensor *shard_linear_top_k(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, int64_t k,
                                           shard_tensor **indices);

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

/* For each row, how many logits precede the label's (larger, or equal with a smaller column; NaN is larger than
 * numbers): int64, of the labels' shape. The label is in the top k if that is < k. A row whose label is
 * ignore_index gives INT64_MAX. Logits [..., classes] and labels [...] are as for the loss. Carries a split leading
 * dimension. No gradient. Of logits that are split along classes a few numbers of each row are gathered. Collective over
 * the logits' group if they are split along classes. */
SHARD_API shard_tensor *shard_label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index);
/* How many of the local rows of shard_label_rank's result are < k; -1 with the error set. Not collective. */
SHARD_API int64_t shard_count_top_k(shard_tensor *label_rank, int64_t k);

/* P@k of multi-label predictions: the fraction of each row's first k of `indices` that is in pairs, averaged over the rows.
 * indices are shard_top_k's, int64 [rows..., >= k]; those of logits that are split along classes are the same on all ranks,
 * and so is the result. Of rows that are split it is the mean over the local ones, and pairs count these. Pairs are int64
 * [2, n], in ascending order as for the binary cross-entropy. With inverse_propensity (floating [classes], local, finite and
 * not negative; NULL: without) a class counts as much as its number there, and the sum over the rows is divided by the
 * largest that any prediction could have: PSP@k. Waits for the device; 0 for no rows; -1 with the error set. Not
 * collective. */
SHARD_API double shard_precision_at_k(shard_tensor *indices, shard_tensor *pairs, int64_t k, shard_tensor *inverse_propensity);

/* ---- the labels' columns, for margin losses ----
 * x is [..., classes]; labels are int64 of its leading dimensions' shape, placed as x's rows (for split rows: the labels of
 * the local rows). A label that is ignore_index has no column; another one outside [0, classes) is an error. If x
 * is split along classes, all ranks have the same labels (not checked), and each rank takes those in its
 * range. Not collective. */

/* x at the row's label, 0 for an ignored one: labels' shape. As torch.gather(x, -1,
 * labels.unsqueeze(-1)).squeeze(-1). PARTIAL if classes are split (shard_reduce_from_group takes the sum). */
SHARD_API shard_tensor *shard_pick_labels(shard_tensor *x, shard_tensor *labels, int64_t ignore_index);
/* A copy of x with factor * values added at the row's label. values has labels' shape and x's dtype, or is NULL for
 * ones (if the thread has an error already, NULL may be a failed operation's result and gives NULL). As
 * torch.scatter_add along the last dimension. Carries. If classes are split, values are local, the same on all ranks, and
 * their gradient is PARTIAL. CosFace's margin is shard_add_at_labels(cosine, labels, NULL, -margin, -100). */
SHARD_API shard_tensor *shard_add_at_labels(shard_tensor *x, shard_tensor *labels, shard_tensor *values, double factor,
                                            int64_t ignore_index);

/* The label's logit where the angle m1 * acos(c) + m2 is outside [0, pi]; a plain cosine would reward a worse feature
 * there. */
typedef enum shard_margin_rule {
    SHARD_MARGIN_LINEAR = 0, /* c - m2 * sin(m2) - m3 above pi, c + m2 * sin(m2) - m3 below 0, for m1 = 1: as ArcFace */
    SHARD_MARGIN_CLAMP,      /* the angle is clamped to [0.001, pi - 0.001], with a gradient of 0: AdaFace */
    SHARD_MARGIN_EASY,       /* as LINEAR, and c - m3 where c <= 0: insightface's easy_margin */
    SHARD_MARGIN_COSINE,     /* the cosine of any angle: insightface's CombinedMarginLoss */
} shard_margin_rule;

struct shard_margin_logits_options {
    size_t size;
    double scale;         /* s, above 0; 64 */
    double m1, m2, m3;    /* SphereFace's factor, ArcFace's angle and CosFace's difference; 1, 0, 0 */
    shard_tensor *row_m2; /* like the labels, any floating dtype: in place of m2; NULL: none */
    shard_tensor *row_m3; /* the same in place of m3 */
    int64_t ignore_index; /* -100 */
    shard_margin_rule rule;
};
#define SHARD_MARGIN_LOGITS_OPTIONS_VALUES                                                                                       \
    sizeof(shard_margin_logits_options), 64.0, 1.0, 0.0, 0.0, NULL, NULL, -100, SHARD_MARGIN_LINEAR
#define SHARD_MARGIN_LOGITS_OPTIONS_INIT                                                                                         \
    {                                                                                                                            \
        SHARD_MARGIN_LOGITS_OPTIONS_VALUES                                                                                       \
    }
/* Such options with the fields that are given, for .margin of a loss. */
#define SHARD_MARGIN(...) (&(const shard_margin_logits_options){SHARD_MARGIN_LOGITS_OPTIONS_VALUES, __VA_ARGS__})
/* scale * cosines, where the label's cosine c first becomes cos(m1 * acos(c) + m2) - m3: ArcFace (m2 = 0.5), CosFace
 * (m3 = 0.4), and combined margins as insightface's CombinedMarginLoss. cosines are products of normalized features and
 * normalized rows of a weight; a c outside [-1, 1] counts as the nearer end. The derivative is exact, with two bounds: at
 * an angle of less than 0.001 to 0 or pi it is divided by 0.001 instead of the sine. (insightface takes the derivative of
 * ArcFace's margin for 1.) Row margins get no gradient; they are placed as the labels, and are the same on all ranks if
 * classes are split (not checked). Carries. docs/losses.md has a whole ArcFace and AdaFace head. */
#define shard_margin_logits(cosines, ...)                                                                                        \
    SHARD_GIVEN(                                                                                                                 \
        shard_margin_logits_with(cosines, SHARD_OPTIONS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_margin_logits_with(shard_tensor *cosines, shard_tensor *labels,
                                                 const shard_margin_logits_options *options);

typedef struct shard_adaface_margins_options {
    size_t size;
    double m, h;    /* the margin, 0.4, and the factor of the normalized norm, 0.333 */
    double t_alpha; /* of the new batch in the running statistics, in [0, 1]; 0: they stay; 0.01 */
} shard_adaface_margins_options;
#define SHARD_ADAFACE_MARGINS_OPTIONS_VALUES sizeof(shard_adaface_margins_options), 0.4, 0.333, 0.01
#define SHARD_ADAFACE_MARGINS_OPTIONS_INIT                                                                                       \
    {                                                                                                                            \
        SHARD_ADAFACE_MARGINS_OPTIONS_VALUES                                                                                     \
    }
/* AdaFace's margins for features of these norms [...], which is the labels' shape: the result is row_m2 of
 * shard_margin_logits, *row_m3 (NULL: not wanted) its row_m3, float64, with .rule = SHARD_MARGIN_CLAMP. mean and std are
 * tensors of one floating number, 20 and 100 at first: the running statistics of the norms, which are updated before they
 * are used. Norms are clamped to [0.001, 100]. A batch of one row leaves std as it is, an empty one both. No gradient. All ranks
 * with the same rows have the same margins; norms split along a dimension have the statistics of all ranks' rows: collective over
 * their group. As AdaFace's head.py. */
#define shard_adaface_margins(norms, mean, std, ...)                                                                             \
    SHARD_GIVEN(shard_adaface_margins_with(                                                                                      \
        norms, mean, std, SHARD_OPTIONS_BEFORE(shard_adaface_margins_options, SHARD_ADAFACE_MARGINS_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_adaface_margins_with(shard_tensor *norms, shard_tensor *mean, shard_tensor *std,
                                                   const shard_adaface_margins_options *options, shard_tensor **row_m3);

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
 * or at all. A partitioned weight (stage 3) is refused (UNSUPPORTED). Collective over the
 * weight's group if there is a max_norm and the weight is split along dim 1. As
 * torch.nn.functional.embedding. */
#define shard_embedding(weight, index, ...) \
    SHARD_GIVEN(shard_embedding_with(weight, index, SHARD_OPTIONS(shard_embedding_options, SHARD_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_embedding_with(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                                             const shard_embedding_options *options);

/* ---- custom operations, with their gradients; as torch.autograd.Function ---- */

/* One call of a custom operation: from its forward to its backward. */
typedef struct shard_custom_op shard_custom_op;

#define SHARD_CUSTOM_OP_INPUTS 8
#define SHARD_CUSTOM_OP_SAVED 16

/*
 * A custom operation is a forward and a backward. Both compute with tensors, by any operation (nothing is recorded), or on
 * the host (shard_copy_to_host, shard_from_host). Their tensors are in a scope that the library opens around each call.
 * A split input has the shape of the local shard. Other operations accept or refuse its placement as always;
 * shard_as_placed(shard_detach(x), (shard_placement){0}) is the local shard without a placement.
 *
 * Placements:
 *   result  as forward returns it (shard_as_placed): as an input, split, PARTIAL, or local. A sum or a gather of local
 *           results over a group follows the operation (shard_reduce_from_group, shard_gather_from_group). A collective
 *           inside forward is right only over a group over which an input is split.
 *   dy      as the result. The gradient of a PARTIAL result is that of the whole sum. dy itself is never PARTIAL.
 *   dx[i]   of a split input: the local shard of the gradient. Of another input: PARTIAL, if backward returns it so
 *           (shard_as_placed); else the whole gradient. Exception: where dy is split and the input is not, a dx[i]
 *           without a placement is this rank's summand (a pending sum, as a weight's gradient from the local rows),
 *           unless whole_gradients is set: then backward has gathered or summed it.
 *
 * An error inside a function (shard_error, or that of any call) is reported with the operation's name. The call or the
 * backward fails with it. An error of one rank reaches the others as that of any operation (docs/errors.md).
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

/* ---- inside a custom operation ---- */

/* The context that was given to shard_custom_op_apply. NULL for NULL. */
SHARD_API void *shard_custom_op_context(const shard_custom_op *op);
/* Whether input i requires a gradient. False in a forward that is not recorded. As ctx.needs_input_grad. */
SHARD_API bool shard_custom_op_wants_gradient(const shard_custom_op *op, int input);
/* In forward: keeps a tensor (an input, the result, any other) for the backward, in slot 0 to SHARD_CUSTOM_OP_SAVED - 1. Does
 * nothing in a forward that is not recorded. Errors: ARGUMENT. As ctx.save_for_backward. */
SHARD_API SHARD_CHECKED shard_status shard_custom_op_save(shard_custom_op *op, int slot, shard_tensor *tensor);
/* The saved tensor, placed as it was; it must not be written to. Belongs to the operation. NULL if there is none. NULL with
 * the error set if it was written to since (ARGUMENT). As ctx.saved_tensors. */
SHARD_API shard_tensor *shard_custom_op_saved(shard_custom_op *op, int slot);
/* In backward: a new tensor with the shape, dtype, device and placement of input i, to be dx[i]. Its content is undefined. */
SHARD_API shard_tensor *shard_custom_op_make_gradient(shard_custom_op *op, int input);

SHARD_END_C

#endif
