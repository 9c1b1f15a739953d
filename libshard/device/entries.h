/*
 * The functions of a device: one list, of which the table (shard_device_ops in device/device.h, which has the rules for
 * every entry), the declarations and the devices' tables are made. An entry is
 * SHARD_<FAMILY>_ENTRY(result, name, parameters). A file defines the macros of the families that it wants, then includes
 * this file, which undefines them.
 *
 * The families differ in where an entry's function is: shard_cuda_<name> in cuda/; of MEMORY and PRODUCT
 * shard_cpu_<name> in cpu/, of KERNEL KERNEL(name) in cpu/kernels/.
 */
#ifndef SHARD_MEMORY_ENTRY
#define SHARD_MEMORY_ENTRY(result, name, ...)
#endif
#ifndef SHARD_PRODUCT_ENTRY
#define SHARD_PRODUCT_ENTRY(result, name, ...)
#endif
#ifndef SHARD_KERNEL_ENTRY
#define SHARD_KERNEL_ENTRY(result, name, ...)
#endif

/* ---- memory ---- */

/* Aligned to 64 bytes, content undefined; bytes > 0. NULL with the error set. Called
 * through shard_device_allocate, which counts by kind. */
SHARD_MEMORY_ENTRY(void *, allocate, shard_device *, size_t bytes)
SHARD_MEMORY_ENTRY(void, release, shard_device *, void *memory, size_t bytes)
SHARD_MEMORY_ENTRY(void, memory_stats, const shard_device *, shard_memory_stats *stats)
SHARD_MEMORY_ENTRY(void, reset_peak, shard_device *)
SHARD_MEMORY_ENTRY(void, trim, shard_device *)
/* Host memory that the device reaches too, for staging: pinned. As allocate. */
SHARD_MEMORY_ENTRY(void *, allocate_host, shard_device *, size_t bytes)
SHARD_MEMORY_ENTRY(void, release_host, shard_device *, void *memory, size_t bytes)
SHARD_MEMORY_ENTRY(shard_status, synchronize, shard_device *)
/* Marks in the queue: record sets one, synchronize waits for the last that was set, if any. create returns NULL
 * with the error set; destroy takes NULL. */
SHARD_MEMORY_ENTRY(void *, event_create, shard_device *)
SHARD_MEMORY_ENTRY(void, event_destroy, shard_device *, void *event)
SHARD_MEMORY_ENTRY(shard_status, event_record, shard_device *, void *event)
SHARD_MEMORY_ENTRY(shard_status, event_synchronize, shard_device *, void *event)
/* Later work goes to that stream of the caller, after all that is queued; NULL: to the device's own. ARGUMENT for a stream
 * that it cannot use. */
SHARD_MEMORY_ENTRY(shard_status, use_stream, shard_device *, void *stream)
/* Calls between begin and end are recorded, and executed at each launch. *executable (NULL after a failure) is
 * valid until destroy; without `executable` the record is discarded. nodes: the number of recorded operations.
 * UNSUPPORTED on a device without graphs. */
SHARD_MEMORY_ENTRY(shard_status, graph_begin, shard_device *)
SHARD_MEMORY_ENTRY(shard_status, graph_end, shard_device *, void **executable)
SHARD_MEMORY_ENTRY(shard_status, graph_launch, shard_device *, void *executable)
SHARD_MEMORY_ENTRY(int64_t, graph_nodes, shard_device *, const void *executable)
SHARD_MEMORY_ENTRY(void, graph_destroy, shard_device *, void *executable)
/* Returns the fault that the device has found so far, as an entry that waits, but without waiting. */
SHARD_MEMORY_ENTRY(shard_status, report, shard_device *)
/* from_host may be overwritten on return, unless it is memory of allocate_host: then only after a later entry
 * that waits. */
SHARD_MEMORY_ENTRY(shard_status, copy_in, shard_device *, void *to, const void *from_host, size_t bytes)
SHARD_MEMORY_ENTRY(shard_status, copy_out, shard_device *, void *to_host, const void *from, size_t bytes)
/* As copy_out without waiting: to_host, memory of allocate_host, has the values once the device has executed the
 * copy. */
SHARD_MEMORY_ENTRY(shard_status, copy_out_async, shard_device *, void *to_host, const void *from, size_t bytes)
/* New memory, as of allocate, with a copy of from_host, memory of allocate_host. The copy runs concurrently with
 * the queue; synchronize and events include it. Work that is queued after wait_arrival(device, *arrival) sees
 * the copy; *arrival NULL: it is complete. Released as memory of allocate, after that call. NULL with the error
 * set. */
SHARD_MEMORY_ENTRY(void *, copy_in_async, shard_device *, const void *from_host, size_t bytes, void **arrival)
/* Makes the work that is queued later wait for the copy, and frees the arrival, unless it fails. `used` false: the
 * memory is only released, which a capture does not refuse. */
SHARD_MEMORY_ENTRY(shard_status, wait_arrival, shard_device *, void *arrival, bool used)
/* rows rows of width bytes; pitches are bytes from one row to the next. */
SHARD_MEMORY_ENTRY(shard_status, copy_rows, shard_device *, void *to, size_t to_pitch, const void *from, size_t from_pitch,
               size_t width, size_t rows)
SHARD_MEMORY_ENTRY(shard_status, zero, shard_device *, void *to, size_t bytes)

/* ---- elements ---- */

/* Every dtype. */
SHARD_KERNEL_ENTRY(shard_status, fill, shard_device *, int64_t n, double value, void *y, shard_dtype)
/* From and to every dtype; to an integer truncates towards zero, as PyTorch. */
SHARD_KERNEL_ENTRY(shard_status, cast, shard_device *, int64_t n, const void *x, shard_dtype from, void *y, shard_dtype to)
/* y = alpha x + beta y; y is not read if beta is 0; x may be y. Where alpha + beta is 1, y + alpha (x - y),
 * as torch.lerp: factors that are rounded one by one no longer add up to 1, and averages drift away. */
SHARD_KERNEL_ENTRY(shard_status, axpby, shard_device *, int64_t n, double alpha, const void *x, double beta, void *y, shard_dtype)
/* scalars_host [2], NULL for a kind that has none. y may be x. */
SHARD_KERNEL_ENTRY(shard_status, unary, shard_device *, shard_unary, const double *scalars_host, int64_t n, const void *x,
               void *y, shard_dtype)
/* x is the operand that the kind's gradient is computed from. dx may be dy. */
SHARD_KERNEL_ENTRY(shard_status, unary_backward, shard_device *, shard_unary, const double *scalars_host, int64_t n,
               const void *x, const void *dy, void *dx, shard_dtype)
/* y = a op b, as operands 0 and 1. y may be one that is not repeated. */
SHARD_KERNEL_ENTRY(shard_status, binary, shard_device *, shard_binary, const shard_expansion *, const void *a, const void *b,
               void *y, shard_dtype)
/* dx = dy times the derivative by operand 0 or 1, for each element of the result; of DIV by
 * operand 1, POW, MINIMUM, MAXIMUM and PRELU. dx may be dy. */
SHARD_KERNEL_ENTRY(shard_status, binary_backward, shard_device *, shard_binary, int operand, const shard_expansion *,
               const void *a, const void *b, const void *dy, void *dx, shard_dtype)
/* y = 1 where a op b, else 0; every dtype. */
SHARD_KERNEL_ENTRY(shard_status, compare, shard_device *, shard_comparison, const shard_expansion *, const void *a,
               const void *b, uint8_t *y, shard_dtype)
/* y = a where condition is not 0, else b: operands 1, 2 and 0. Every dtype. y may be an
 * operand of its type that is not repeated. */
SHARD_KERNEL_ENTRY(shard_status, where, shard_device *, const shard_expansion *, const uint8_t *condition, const void *a,
               const void *b, void *y, shard_dtype)
/* y[j] = sum over i of x[i, j], added to y if accumulate. `to` is `from`, or float32 if that is a 16-bit type.
 * Memory after the last row, up to its pitch, may be read. */
SHARD_KERNEL_ENTRY(shard_status, sum_rows, shard_device *, int64_t rows, int64_t cols, int64_t pitch, const void *x,
               shard_dtype from, bool accumulate, void *y, shard_dtype to)
/* y = x with its dimensions in the order axes: y.shape[i] = shape[axes[i]].
 * Every dtype; ndim <= 8. */
SHARD_KERNEL_ENTRY(shard_status, permute, shard_device *, int ndim, const int64_t *shape, const int *axes, const void *x,
               void *y, shard_dtype)

/* ---- random numbers ---- */

SHARD_KERNEL_ENTRY(shard_status, random_uniform, shard_device *, const shard_region *, shard_draw, double low, double high,
               void *y, shard_dtype)
SHARD_KERNEL_ENTRY(shard_status, random_normal, shard_device *, const shard_region *, shard_draw, double mean, double deviation,
               void *y, shard_dtype)
/* As torch.nn.init.trunc_normal_: base/random.h. */
SHARD_KERNEL_ENTRY(shard_status, random_truncated_normal, shard_device *, const shard_region *, shard_draw,
               const shard_truncated_normal *, void *y, shard_dtype)
/* y = x / (1 - p) where the element's uniform is >= p, else 0. The backward is
 * the same call on the gradient. y may be x. */
SHARD_KERNEL_ENTRY(shard_status, dropout, shard_device *, const shard_region *, shard_draw, double p, const void *x, void *y,
               shard_dtype)

/* ---- products ---- */

SHARD_PRODUCT_ENTRY(shard_status, matmul, shard_device *, const shard_matmul_shape *, const void *a, const void *b, void *c,
                shard_dtype)
/* bias [out] or NULL. */
SHARD_PRODUCT_ENTRY(shard_status, linear, shard_device *, const shard_linear_shape *, const void *x, const void *weight,
                const void *bias, void *y, shard_dtype)
/* The pitch that rows of so many elements should have where products write or read them: `cols` where dense ones
 * are as fast. */
SHARD_PRODUCT_ENTRY(int64_t, row_pitch, const shard_device *, int64_t cols, shard_dtype)
/* bias [o] or NULL; of a 16-bit type the sums may be rounded before it is added, too. */
SHARD_PRODUCT_ENTRY(shard_status, conv2d, shard_device *, const shard_conv_shape *, const void *x, const void *weight,
                const void *bias, void *y, shard_dtype)
SHARD_PRODUCT_ENTRY(shard_status, conv2d_backward_data, shard_device *, const shard_conv_shape *, const void *weight,
                const void *dy, void *dx, shard_dtype)
/* Overwrites dweight, and dbias if it is not NULL. */
SHARD_PRODUCT_ENTRY(shard_status, conv2d_backward_weight, shard_device *, const shard_conv_shape *, const void *x,
                const void *dy, void *dweight, void *dbias, shard_dtype)

/* ---- pooling ---- */

/* argmax [n, oh, ow, c] is the position h * w_in + w of each maximum (the first
 * in case of ties, a NaN before all); NULL if no gradient is wanted. */
SHARD_KERNEL_ENTRY(shard_status, max_pool, shard_device *, const shard_pool_shape *, const void *x, void *y, int32_t *argmax,
               shard_dtype)
SHARD_KERNEL_ENTRY(shard_status, max_pool_backward, shard_device *, const shard_pool_shape *, const void *dy,
               const int32_t *argmax, void *dx, shard_dtype)
SHARD_KERNEL_ENTRY(shard_status, avg_pool, shard_device *, const shard_pool_shape *, const void *x, void *y, shard_dtype)
SHARD_KERNEL_ENTRY(shard_status, avg_pool_backward, shard_device *, const shard_pool_shape *, const void *dy, void *dx,
               shard_dtype)

/* ---- normalization; its parameters are float64 for float64, else float32 ---- */

/* Over each row; mean and rstd [rows]; gamma and beta [cols], both or neither NULL. */
SHARD_KERNEL_ENTRY(shard_status, layer_norm, shard_device *, int64_t rows, int64_t cols, const void *x, const void *gamma,
               const void *beta, double eps, void *y, double *mean, double *rstd, shard_dtype)
/* dgamma, dbeta [cols] are overwritten; both NULL if gamma is. dx NULL if not wanted; it may be dy. */
SHARD_KERNEL_ENTRY(shard_status, layer_norm_backward, shard_device *, int64_t rows, int64_t cols, const void *x,
               const void *gamma, const double *mean, const double *rstd, const void *dy, void *dx, void *dgamma,
               void *dbeta, shard_dtype)
/* Batch norm over [rows, channels], in two halves each way so that the sums can
 * be reduced over a group in between. With d = x - shift (shift
 * [channels], any value near the mean, against cancellation; NULL: 0):
 * sums [2 * channels] = sum d, then sum d^2. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_sums, shard_device *, int64_t rows, int64_t channels, const void *x,
               const double *shift, double *sums, shard_dtype)
/* Converts such sums, in place, to those of x and x^2, which ranks with different shifts can add. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_unshift, shard_device *, int64_t rows, int64_t channels, const double *shift,
               double *sums)
/* From the sums over `count` rows, about shift as above: mean, rstd = 1 / sqrt(variance + eps) [channels], the
 * variance being that of the rows. running_mean and running_var [channels] of the parameters' dtype, if not
 * NULL, become (1 - momentum) * old + momentum * the mean, or squares / (count - 1). count 0: mean = shift,
 * variance = 0, and the running ones are unchanged. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_statistics, shard_device *, int64_t channels, double count, const double *shift,
               const double *sums, double eps, double momentum, void *running_mean, void *running_var, double *mean,
               double *rstd, shard_dtype)
/* sums and statistics in one, of rows that no group shares, with the first row as shift: the same bits. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_measure, shard_device *, int64_t rows, int64_t channels, const void *x, double eps,
               double momentum, void *running_mean, void *running_var, double *mean, double *rstd, shard_dtype)
/* mean and rstd from the running statistics. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_recall, shard_device *, int64_t channels, const void *running_mean,
               const void *running_var, double eps, double *mean, double *rstd, shard_dtype)
/* y = relu?(gamma * (x - mean) * rstd + beta + residual); mean, rstd [channels];
 * gamma, beta both or neither NULL; residual like x, or NULL. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm, shard_device *, int64_t rows, int64_t channels, const void *x, const double *mean,
               const double *rstd, const void *gamma, const void *beta, const void *residual, bool relu, void *y, shard_dtype)
/* With dz = dy, or 0 where relu was on and y (its output) is 0 or less (dy where it is NaN):
 * sums [2 * channels] = sum dz, then sum dz * (x - mean) * rstd. y NULL: no relu.
 * dbeta and dgamma [channels], where they are not NULL, are the same two. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_backward_sums, shard_device *, int64_t rows, int64_t channels, const void *x,
               const void *y, const void *dy, const double *mean, const double *rstd, double *sums, void *dgamma,
               void *dbeta, shard_dtype)
/* dx = gamma * rstd * (dz - sums0 / count - xhat * sums1 / count), where count is
 * the rows of the whole group (0: mean and rstd were constants, no correction);
 * dresidual = dz if not NULL. dx NULL if not wanted; dx may be dy. */
SHARD_KERNEL_ENTRY(shard_status, batch_norm_backward, shard_device *, int64_t rows, int64_t channels, const void *x,
               const void *y, const void *dy, const double *mean, const double *rstd, const void *gamma, const double *sums,
               double count, void *dx, void *dresidual, shard_dtype)

/* ---- along a dimension: x [outer, size, inner] ---- */

/* y [outer, inner] = factor * the sum of x along the dimension, added up in double. */
SHARD_KERNEL_ENTRY(shard_status, sum_dim, shard_device *, const shard_axis *, double factor, const void *x, void *y, shard_dtype)
/* Its gradient: each element of x [outer, size, inner] = factor * y's [outer, inner]. */
SHARD_KERNEL_ENTRY(shard_status, spread_dim, shard_device *, const shard_axis *, double factor, const void *y, void *x,
               shard_dtype)
/* The order of elements: a NaN comes first, then the larger one (not `largest`: the smaller one), of equal ones
 * the one with the smaller index. An element's index is start + its position along the dimension, or its entry
 * in `index_of`, of x's shape; an element of INT64_MAX there does not exist if its value is -infinity
 * (infinity). y, index [outer, inner]: the first element; -infinity (infinity) and INT64_MAX if size is 0. */
SHARD_KERNEL_ENTRY(shard_status, extreme_dim, shard_device *, const shard_axis *, bool largest, int64_t start,
               const int64_t *index_of, const void *x, void *y, int64_t *index, shard_dtype)
/* y, index [rows, k]: the first k of each row of x [rows, cols], largest first, in that order;
 * behind the last one -infinity and INT64_MAX. k > 0. */
SHARD_KERNEL_ENTRY(shard_status, top_k, shard_device *, int64_t rows, int64_t cols, int64_t k, int64_t start,
               const int64_t *index_of, const void *x, void *y, int64_t *index, shard_dtype)
/* y [outer, count, inner] = x at index - start along the dimension, 0 where that is outside
 * [0, size) or the index is `skip`; index [outer, count, inner]. */
SHARD_KERNEL_ENTRY(shard_status, gather_at, shard_device *, const shard_axis *, int64_t count, int64_t start, int64_t skip,
               const int64_t *index, const void *x, void *y, shard_dtype)
/* x at index - start += factor * value, nowhere where y above is 0; value like index, or
 * NULL: ones. Indices that are equal count in their order, each sum rounded. */
SHARD_KERNEL_ENTRY(shard_status, add_at, shard_device *, const shard_axis *, int64_t count, int64_t start, int64_t skip,
               const int64_t *index, double factor, const void *value, void *x, shard_dtype)
/* y = x / max(sqrt(square), eps), where square [outer, inner] is the sum of x^2 along the
 * dimension: computed here if `measure`, else given (the sum over several arrays). y NULL: not
 * wanted; it may be x. */
SHARD_KERNEL_ENTRY(shard_status, normalize, shard_device *, const shard_axis *, double eps, bool measure, const void *x,
               double *square, void *y, shard_dtype)
/* dx = (dy - x dot / square) / sqrt(square), or dy / eps where sqrt(square) < eps; dot [outer,
 * inner], the sum of x dy, as square above. dx NULL: not wanted; it may be dy. */
SHARD_KERNEL_ENTRY(shard_status, normalize_backward, shard_device *, const shard_axis *, double eps, bool measure,
               const void *x, const double *square, const void *dy, double *dot, void *dx, shard_dtype)
/* unit [n, in], of dtype `to`: rows of a matrix [.., in], of dtype `from`, divided by max(sqrt(square), eps), rounded once;
 * square [n]: the sums of their squares. The rows are the first n, or those of the list, which are there. float64 goes with
 * float64 alone. */
SHARD_KERNEL_ENTRY(shard_status, unit_rows, shard_device *, int64_t n, int64_t in, const int64_t *list, const void *rows,
               shard_dtype from, double eps, double *square, void *unit, shard_dtype to)
/* gradient [n, in], float64 of float64 rows, else float32: from that by unit to that by the rows, as normalize_backward. */
SHARD_KERNEL_ENTRY(shard_status, unit_rows_backward, shard_device *, int64_t n, int64_t in, const int64_t *list,
               const void *rows, shard_dtype from, double eps, const double *square, void *gradient)

/* y [pixels, channels] = (x - mean_host[channel]) * factor_host[channel], arrays of channels, at most
 * SHARD_IMAGE_CHANNELS. */
SHARD_KERNEL_ENTRY(shard_status, normalize_images, shard_device *, int64_t pixels, int64_t channels, const uint8_t *x,
               const double *mean_host, const double *factor_host, void *y, shard_dtype)

/* ---- softmax and loss ---- */

SHARD_KERNEL_ENTRY(shard_status, softmax, shard_device *, bool log, int64_t rows, int64_t cols, const void *x, void *y,
               shard_dtype)
/* From y, the forward's result. dx may be dy. */
SHARD_KERNEL_ENTRY(shard_status, softmax_backward, shard_device *, bool log, int64_t rows, int64_t cols, const void *y,
               const void *dy, void *dx, shard_dtype)
/* y [batch, heads, queries, out] = softmax(scores) value, lse [batch, heads, queries] = the logarithm of the sum of a query's
 * exp(score). Without keys y is 0 and lse -inf. No array of the kernels has a number for each query and key. */
SHARD_KERNEL_ENTRY(shard_status, attention, shard_device *, const shard_attention_shape *, const void *query, const void *key,
               const void *value, void *y, double *lse, shard_dtype)
/* y and lse are those of the forward. A gradient that is NULL is not wanted. */
SHARD_KERNEL_ENTRY(shard_status, attention_backward, shard_device *, const shard_attention_shape *, const void *query,
               const void *key, const void *value, const void *y, const double *lse, const void *dy, void *dquery, void *dkey,
               void *dvalue, shard_dtype)
/* The fault (index[i], i, limit) for the first index that is neither ignore_index nor in [0, limit). hash is
 * NULL, or is set to a hash of all n indices. */
SHARD_KERNEL_ENTRY(shard_status, check_index, shard_device *, int64_t n, const int64_t *index, int64_t limit,
               int64_t ignore_index, const shard_fault *, uint64_t *hash)
/* position, row [rows] = shard_label_find of the labels in `list` [count]. The fault (label, i, count) for the first label of
 * these columns that the list lacks. */
SHARD_KERNEL_ENTRY(shard_status, find_labels, shard_device *, const shard_cross_entropy_shape *, int64_t count,
               const int64_t *list, const int64_t *label, int64_t *position, int64_t *row, const shard_fault *)
/* The fault (the rank, a rank of most, 0) if a rank's hash differs from that of most ranks: the first of each, of equally
 * frequent hashes the one that comes first counts. The ranks' digests begin `stride` bytes, a multiple of 8, from each other. */
SHARD_KERNEL_ENTRY(shard_status, compare_digests, shard_device *, int64_t ranks, size_t stride, const shard_label_digest *,
                   const shard_fault *)
/* stats [rows, SHARD_CE_STATS], one pass over x [rows, cols]. target [rows] int64 labels, or NULL and
 * probability [rows, cols] of x's dtype. weight [cols] of x's dtype for these columns, or NULL. cols may be 0:
 * the maximum is then -inf. ahead [rows] is NULL, or is set to the result of count_ahead, for labels alone, 0
 * for ignored rows. logit is the argument of count_ahead, or NULL if x has all classes. The counts are of the logits
 * as they are given, not mapped. */
SHARD_KERNEL_ENTRY(shard_status, cross_entropy_stats, shard_device *, const shard_cross_entropy_shape *, const void *x,
               const int64_t *target, const void *probability, const void *weight, double *stats, const double *logit,
               int64_t *ahead, shard_dtype)
/* Joins the ranks' statistics: numbers [SHARD_CE_NUMBERS, rows], and *result = the sum of the rows' losses, or
 * (mean) that divided by the sum of their weights: the target's (1 with probabilities) times row_weight [rows]
 * (NULL: ones). 0 / 0 is NaN. In double; the ranks' sums are added in rank order, and begin `stride` doubles from
 * each other. target as for the statistics.
 * rank [rows] is NULL, or is set to the sum of the ranks' ahead, which begin `stride` int64_t from each other;
 * INT64_MAX for ignored rows. */
SHARD_KERNEL_ENTRY(shard_status, cross_entropy_join, shard_device *, const shard_cross_entropy_shape *, bool mean, int64_t ranks,
                   int64_t stride, const double *stats, const int64_t *ahead, const int64_t *target, const double *row_weight,
                   double *numbers, double *result, int64_t *rank)
/* dx = scale_i * (slope_i exp(x - lse_i) - q), times the derivative of x by the logits. dx may be the logits. */
SHARD_KERNEL_ENTRY(shard_status, cross_entropy_backward, shard_device *, const shard_cross_entropy_shape *, const void *x,
                   const int64_t *target, const void *probability, const void *weight, const shard_loss_rows *, void *dx,
                   shard_dtype)
/* The same of dense float32 logits, rounded to dx, of 16 bits; the logits are undefined afterwards. target_slope: [rows], a factor
 * of the derivative at the target, as a margin has; NULL: 1. */
SHARD_KERNEL_ENTRY(shard_status, cross_entropy_backward_narrow, shard_device *, const shard_cross_entropy_shape *, void *x,
                   const int64_t *target, const void *weight, const shard_loss_rows *, const double *target_slope, void *dx,
                   shard_dtype)
/* out[i] = x[i, target - col0] if the target is in this range of columns, else 0: the sum over ranks is the
 * target's logit. */
SHARD_KERNEL_ENTRY(shard_status, pick_target, shard_device *, const shard_cross_entropy_shape *, const void *x,
               const int64_t *target, double *out, shard_dtype)
/* ahead[i] = the number of these logits that come before the target's in the order of values down, then columns
 * up; logit[i] is the target's. `ignored` for ignored rows. */
SHARD_KERNEL_ENTRY(shard_status, count_ahead, shard_device *, const shard_cross_entropy_shape *, const void *x,
               const int64_t *target, const double *logit, int64_t ignored, int64_t *ahead, shard_dtype)

/* y = scale * x, at the target's column scale * the margin's cosine of x; slope[row] = its derivative by x without the
 * scale, 1 where the target is ignored or not here. row_m2, row_m3 [rows] or NULL: in place of m2 and m3. y may be x. */
SHARD_KERNEL_ENTRY(shard_status, margin_logits, shard_device *, const shard_cross_entropy_shape *, const shard_margin *,
                   const void *x, const int64_t *target, const double *row_m2, const double *row_m3, void *y, double *slope,
                   shard_dtype)
/* dx = scale * dy, at the target's column times slope[row]. dx may be dy. */
SHARD_KERNEL_ENTRY(shard_status, margin_logits_backward, shard_device *, const shard_cross_entropy_shape *, const shard_margin *,
                   const int64_t *target, const double *slope, const void *dy, void *dx, shard_dtype)
/* The fault (row, class, position) for the first of the pairs [2, pairs] that is not larger than the one before it. */
SHARD_KERNEL_ENTRY(shard_status, check_pairs, shard_device *, int64_t pairs, const int64_t *pair, const shard_fault *)
/* each [rows, cols] = the elements' losses, and *sum = their sum, in double; NULL: not wanted. target or pair is NULL.
 * weight, positive [cols] of x's dtype or NULL, row_weight [rows] or NULL. */
SHARD_KERNEL_ENTRY(shard_status, binary_cross_entropy, shard_device *, const shard_binary_loss_shape *, const void *x,
                   const void *target, const int64_t *pair, const void *weight, const void *positive, const double *row_weight,
                   void *each, double *sum, shard_dtype)
/* dx = *scale * the derivative of the element's loss, times dy [rows, cols] if that is not NULL. dx may be x. */
SHARD_KERNEL_ENTRY(shard_status, binary_cross_entropy_backward, shard_device *, const shard_binary_loss_shape *, const void *x,
                   const void *target, const int64_t *pair, const void *weight, const void *positive, const double *row_weight,
                   const double *scale, const void *dy, void *dx, shard_dtype)

/* ---- the head: sweeps over tiles of a weight (device/head.h) ---- */

/* Merges the statistics of a tile (SHARD_CE_STATS) into stats, whose maximum is -inf before the first one. center
 * [rows]: the new maxima, 0 for -inf. sum [rows, in], the sums of exponentials times something, is brought from the old
 * maximum to the new one; NULL: not wanted. */
SHARD_KERNEL_ENTRY(shard_status, head_merge, shard_device *, int64_t rows, int64_t in, const double *tile_stats, double *stats,
               double *center, void *sum, shard_dtype)
/* dx [rows, in] = scale_i (slope_i exp(max_i - lse_i) sum_i - sum over c of q_ic weight_c), q of labels; the maxima are
 * those of stats. weight [cols, in] is of weight_dtype. spread [in]: the sum over c of w_c weight_c; NULL without
 * smoothing. class_weight [cols] (NULL: ones), sum, spread and dx are of the last dtype, float32 or float64. */
SHARD_KERNEL_ENTRY(shard_status, head_input_gradient, shard_device *, const shard_cross_entropy_shape *, int64_t in,
                   const int64_t *target, const void *class_weight, const void *weight, shard_dtype weight_dtype,
                   const double *stats, const shard_loss_rows *, const void *sum, const void *spread, void *dx, shard_dtype)

/* ---- embedding ---- */

/* y [n, dim] = weight[index - row0], zeros where row0 <= index < row0 + rows does not hold. */
SHARD_KERNEL_ENTRY(shard_status, embedding, shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows,
               const int64_t *index, const void *weight, void *y, shard_dtype)
/* dweight [rows, dim] is overwritten (accumulate: added to); sums in index order, on a GPU those of more than 128
 * positions in parts. by_count: each dy is divided by the number of times that its index is in index. */
SHARD_KERNEL_ENTRY(shard_status, embedding_backward, shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows,
               const int64_t *index, const void *dy, bool by_count, bool accumulate, void *dweight, shard_dtype)
/* sum[i] = the sum of |x|^power over row index[i] - row0 of weight, or the largest |x| of power INFINITY; 0 where that
 * row is not here. power > 0. */
SHARD_KERNEL_ENTRY(shard_status, embedding_power_sums, shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows,
               const int64_t *index, const void *weight, double power, double *sum, shard_dtype)
/* Multiplies each row that index names, once, by max_norm / (norm + 1e-7) if norm > max_norm, where norm is
 * sum[i]^(1 / power), or sum[i] of power INFINITY. sum is overwritten. As torch.embedding_renorm_. */
SHARD_KERNEL_ENTRY(shard_status, embedding_renorm, shard_device *, int64_t n, int64_t dim, int64_t row0, int64_t rows,
               const int64_t *index, double power, double max_norm, double *sum, void *weight, shard_dtype)

/* ---- norms and clipping ---- */

/* *sum = the sum of |x|^power; of power INFINITY the largest |x|, a NaN before all.
 * In double. power > 0. */
SHARD_KERNEL_ENTRY(shard_status, power_sum, shard_device *, int64_t n, double power, const void *x, double *sum, shard_dtype)
/* *norm = *scale * (*sum)^(1 / power), or *scale * *sum of power INFINITY; *scale is
 * multiplied by min(1, max_norm / (*norm + 1e-6)), and by 1 for a max_norm INFINITY, whatever the norm is. As
 * torch.nn.utils.clip_grad_norm_. */
SHARD_KERNEL_ENTRY(shard_status, clip_scale, shard_device *, double power, double max_norm, const double *sum, double *norm,
               double *scale)
/* x = x into [-bound, bound], where *scale (NULL: 1) times the result is meant: into
 * [-bound / *scale, bound / *scale]. NaN stays. */
SHARD_KERNEL_ENTRY(shard_status, clip_value, shard_device *, int64_t n, double bound, const double *scale, void *x, shard_dtype)

/* Of each of `count` arrays, in few launches; as power_sum of power 2, in an order that depends on the array's
 * size alone. */
SHARD_KERNEL_ENTRY(shard_status, square_sums, shard_device *, int64_t count, const shard_square_sum *, shard_dtype)

/* ---- optimizer steps; each one pass ---- */

/* Steps of `count` updates, which have no memory in common but factors, in few launches. The result of an
 * element depends neither on other updates of the list nor on how a parameter is divided into updates. With random
 * rounding the arrays of a step have random numbers of their own. */

/* As torch.optim.SGD. state: momentum_buffer, of which the first step reads nothing. */
SHARD_KERNEL_ENTRY(shard_status, sgd, shard_device *, int64_t count, const shard_update *, const shard_sgd_arguments *,
                   shard_update_types)
/* As torch.optim.Adam and AdamW. state: exp_avg, exp_avg_sq, of amsgrad max_exp_avg_sq; zeros before the first step. */
SHARD_KERNEL_ENTRY(shard_status, adam, shard_device *, int64_t count, const shard_update *, const shard_adam_arguments *,
                   shard_update_types)
/* LAMB's first half: Adam's moments, and in place of the gradient AdamW's update of the value divided by lr. It
 * uses the betas and eps of the options. (The second half is sgd, with the trust ratio.) */
SHARD_KERNEL_ENTRY(shard_status, lamb_update, shard_device *, int64_t count, const shard_update *, const shard_adam_arguments *,
                   shard_update_types)
/* Adagrad and Adam (with AdamW's weight decay) whose second moment is one number for each row of `columns` elements: the sum,
 * or the average, of the means of the squares of the row's gradient. An update has whole rows. state: the rows' numbers, of
 * float64 for float64 values, else of float32; with beta1 above 0 exp_avg. Of each the first step reads nothing. */
SHARD_KERNEL_ENTRY(shard_status, rowwise, shard_device *, int64_t count, const shard_update *, const shard_rowwise_arguments *,
                   shard_update_types)
/* ratio[i] from the sums of squares [layers][2] of each layer's weight and gradient. */
SHARD_KERNEL_ENTRY(shard_status, trust_ratio, shard_device *, int64_t layers, const shard_trust_options *,
               const double *squares, double *ratio)

#undef SHARD_MEMORY_ENTRY
#undef SHARD_PRODUCT_ENTRY
#undef SHARD_KERNEL_ENTRY
