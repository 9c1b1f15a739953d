#include "support/network.h"

#include <math.h>
#include <stdlib.h>

net make_net(shard_group *model, shard_group *data, shard_dtype dtype)
{
    static const shard_shape shapes[] = {
        [NET_X] = {.ndim = 2, .dim = {NET_ROWS, NET_FEATURES}},
        [NET_GAIN] = {.ndim = 1, .dim = {NET_FEATURES}},
        [NET_BIAS] = {.ndim = 1, .dim = {NET_FEATURES}},
        [NET_SQUARE] = {.ndim = 2, .dim = {NET_FEATURES, NET_FEATURES}},
        [NET_TABLE] = {.ndim = 2, .dim = {NET_ROWS, NET_FEATURES}},
        [NET_KERNEL] = {.ndim = 4, .dim = {NET_FEATURES, NET_FEATURES, 1, 1}},
        [NET_NORM_WEIGHT] = {.ndim = 1, .dim = {NET_FEATURES}},
        [NET_NORM_BIAS] = {.ndim = 1, .dim = {NET_FEATURES}},
        [NET_HAND] = {.ndim = 2, .dim = {NET_FEATURES, NET_FEATURES}},
    };
    net n = {.model = model, .data = data};
    n.column = shard_nn_parallel_linear(NET_FEATURES, NET_FEATURES, SHARD_SPLIT_COLUMN, model, .dtype = dtype);
    n.row = shard_nn_parallel_linear(NET_FEATURES, NET_FEATURES, SHARD_SPLIT_ROW, model, .dtype = dtype);
    n.leaf[NET_COLUMN] = shard_module_tensor(n.column, "weight");
    n.leaf[NET_COLUMN_BIAS] = shard_module_tensor(n.column, "bias");
    n.leaf[NET_ROW] = shard_module_tensor(n.row, "weight");
    n.leaf[NET_ROW_BIAS] = shard_module_tensor(n.row, "bias");
    for (int i = 0; i < NET_COLUMN; i++) {
        bool wide = i == NET_NORM_WEIGHT || i == NET_NORM_BIAS;
        n.leaf[i] = shard_empty(shapes[i], .dtype = wide && dtype != SHARD_FLOAT64 ? SHARD_FLOAT32 : dtype);
    }
    for (int i = 0; i < NET_LEAVES; i++) {
        shard_tensor *values = made_up(shard_tensor_shape(n.leaf[i]), 0, SHARD_FLOAT64);
        values->placement = n.leaf[i]->placement;
        fill_made_up(values, 100 + (uint64_t)i);
        values = shard_cast(values, shard_tensor_dtype(n.leaf[i]));
        size_t bytes = (size_t)shard_numel(values) * shard_dtype_size(values->dtype);
        void *on_host = malloc(bytes + 1);
        check_ok(shard_copy_to_host(values, on_host, bytes));
        SHARD_NO_GRAD
        {
            check_ok(shard_copy_from_host(n.leaf[i], on_host, bytes));
        }
        free(on_host);
        shard_set_requires_grad(n.leaf[i], true);
    }
    return n;
}

void free_net(const net *n)
{
    shard_module_destroy(n->column);
    shard_module_destroy(n->row);
}

/* ---- operations ---- */

#define UNARY(name, call)                                                                                                        \
    static shard_tensor *name(const net *n, shard_tensor *x)                                                                     \
    {                                                                                                                            \
        (void)n;                                                                                                                 \
        return call;                                                                                                             \
    }
UNARY(relu, shard_relu(x))
UNARY(gelu, shard_gelu(x))
UNARY(gelu_tanh, shard_gelu_tanh(x))
UNARY(activations, shard_softplus(shard_leaky_relu(shard_silu(x), 0.2), 2, 20))
UNARY(scale, shard_scale(x, -1.5))
/* x times y, which may be of another dtype. */
static shard_tensor *times(shard_tensor *x, shard_tensor *y)
{
    return shard_mul(x, shard_cast(y, shard_tensor_dtype(x)));
}

UNARY(square, shard_mul(x, x))
UNARY(two_uses, shard_add(x, shard_gelu(x)))
UNARY(softmax, shard_softmax(x))
UNARY(log_softmax, shard_log_softmax(x))
UNARY(logsumexp, shard_mul(x, shard_logsumexp(x, -1, true)))
UNARY(dropout, shard_dropout(x, 0.3))
UNARY(mean, shard_mul(x, shard_mean(x)))
UNARY(sum, shard_mul(x, shard_sum(x)))
UNARY(reshape, shard_reshape(shard_flatten(x, 0, -1), shard_tensor_shape(x)))
UNARY(transpose, shard_transpose(shard_gelu(shard_transpose(x, 0, 1)), 0, 1))
UNARY(narrow, shard_mul(x, shard_mean(shard_narrow(x, 0, 0, 1))))
UNARY(cast, shard_cast(shard_gelu(shard_cast(x, SHARD_FLOAT32)), shard_tensor_dtype(x)))
UNARY(add, shard_add(x, n->leaf[NET_BIAS]))
UNARY(mul, shard_mul(x, n->leaf[NET_GAIN]))
UNARY(linear, shard_linear(x, n->leaf[NET_SQUARE], n->leaf[NET_BIAS]))
UNARY(matmul, shard_matmul(x, n->leaf[NET_SQUARE]))

/* Each row is a head, of which the features are queries, keys and values. */
static shard_tensor *attend(shard_tensor *x)
{
    shard_tensor *heads = shard_reshape(x, SHARD_SHAPE(-1, NET_FEATURES, 1));
    return shard_reshape(shard_scaled_dot_product_attention(heads, heads, heads, .is_causal = true), shard_tensor_shape(x));
}
UNARY(attention, attend(x))
UNARY(layer_norm, shard_layer_norm(x, n->leaf[NET_NORM_WEIGHT], n->leaf[NET_NORM_BIAS], 0.1))
UNARY(batch_norm, shard_batch_norm(x, NULL, NULL, n->leaf[NET_NORM_WEIGHT], n->leaf[NET_NORM_BIAS], .training = true, .eps = 0.1))

shard_tensor *net_labels(const shard_tensor *x)
{
    static const int64_t label[] = {4, 0, 2, 1, 1, 3};
    return shard_from_host(label, SHARD_SHAPE(x->shape.dim[0]), .dtype = SHARD_INT64);
}
UNARY(embedding, shard_mul(x, shard_embedding(n->leaf[NET_TABLE], net_labels(x), -1)))
UNARY(cross_entropy, times(x, shard_cross_entropy(x, net_labels(x))))

static shard_tensor *quarters(const shard_tensor *x)
{
    return shard_full(shard_tensor_shape(x), 0.25, .dtype = shard_tensor_dtype(x));
}
UNARY(binary_cross_entropy, times(x, shard_binary_cross_entropy_with_logits(x, quarters(x))))

static shard_tensor *cube_forward(shard_custom_op *op, int inputs, shard_tensor *const *input)
{
    (void)inputs;
    check_ok(shard_custom_op_save(op, 0, input[0]));
    return shard_mul(shard_mul(input[0], input[0]), input[0]);
}

static shard_status cube_backward(shard_custom_op *op, shard_tensor *dy, int inputs, shard_tensor **dx)
{
    (void)inputs;
    shard_tensor *x = shard_custom_op_saved(op, 0);
    dx[0] = shard_mul(shard_scale(shard_mul(x, x), 3), dy);
    return shard_last_status();
}

static const shard_custom_op_type cube_type = {.name = "cube", .forward = cube_forward, .backward = cube_backward};
UNARY(own_operation, shard_custom_op_apply(&cube_type, NULL, x))

static shard_tensor *as_image(shard_tensor *x)
{
    return shard_reshape(x, SHARD_SHAPE(1, x->shape.dim[0], 1, NET_FEATURES));
}
UNARY(conv2d, shard_reshape(shard_conv2d(as_image(x), n->leaf[NET_KERNEL], n->leaf[NET_BIAS]), shard_tensor_shape(x)))
UNARY(max_pool, shard_reshape(shard_max_pool2d(as_image(x), 3, .stride = 1, .padding = 1), shard_tensor_shape(x)))
UNARY(avg_pool, shard_reshape(shard_avg_pool2d(as_image(x), 3, .stride = 1, .padding = 1), shard_tensor_shape(x)))

/* Positive, and far from 0. */
static shard_tensor *positive(shard_tensor *x)
{
    return shard_add_scalar(shard_mul(x, x), 1.0);
}
UNARY(sub, shard_sub(shard_gelu(x), x))
UNARY(division, shard_div(x, positive(x)))
UNARY(power, shard_pow(positive(x), shard_scale(x, 0.5)))
UNARY(minimum, shard_minimum(x, shard_scale(x, 0.25)))
UNARY(prelu, shard_prelu(x, n->leaf[NET_GAIN]))
UNARY(maximum, shard_maximum(shard_gelu(x), x))
UNARY(clamp, shard_clamp(x, -0.4, 0.6))
/* Within 4, so that its exponential is finite: that of a deep network's numbers need not be. */
static shard_tensor *bounded(shard_tensor *x)
{
    return shard_scale(shard_tanh(shard_scale(x, 0.25)), 4);
}
UNARY(functions, shard_tanh(shard_sub(shard_log(positive(x)), shard_sigmoid(shard_exp(bounded(x))))))
UNARY(where, shard_where(shard_gt_scalar(x, 0.1), shard_exp(bounded(x)), shard_scale(x, -0.5)))
UNARY(clone, shard_mul(shard_clone(x), x))
UNARY(broadcast_rows, shard_mul(x, shard_sub(n->leaf[NET_GAIN], shard_sum_dim(x, -1, true))))
UNARY(mean_dim, shard_sub(x, shard_mean_dim(x, -1, true)))
UNARY(mean_rows, shard_sub(x, shard_scale(shard_mean_dim(x, 0, true), 0.5))) /* half: their sum is not 0 */
UNARY(max_dim, shard_mul(x, shard_max_dim(x, -1, true, NULL)))
UNARY(min_rows, shard_mul(x, shard_min_dim(x, 0, true, NULL)))
UNARY(top_k, shard_mul(x, shard_sum_dim(shard_top_k(x, x->shape.ndim == 2 ? 3 : 1, NULL), -1, true)))
UNARY(normalize, shard_normalize(x, -1, 1e-3))
UNARY(mse_loss, shard_mul(x, shard_mse_loss(shard_gelu(x), x)))

/* The columns in another order: those from the third on first. */
static shard_tensor *rotate(const net *n, shard_tensor *x)
{
    (void)n;
    shard_tensor *part[] = {shard_narrow(x, -1, 2, NET_FEATURES - 2), shard_narrow(x, -1, 0, 2)};
    return shard_concatenate(part, 2, -1);
}

/* The label's element of each row times the row, less a margin at the label. One label for all rows, as x may be some
 * of them. */
static shard_tensor *at_labels(const net *n, shard_tensor *x)
{
    (void)n;
    if (!x || x->shape.ndim != 2)
        return x;
    shard_tensor *labels = shard_full(SHARD_SHAPE(x->shape.dim[0]), 2, .dtype = SHARD_INT64);
    shard_tensor *picked = shard_pick_labels(x, labels, -1);
    if (picked && picked->placement.kind == SHARD_PARTIAL)
        picked = shard_reduce_from_group(picked, picked->placement.group);
    shard_tensor *less = shard_add_at_labels(x, labels, picked, -0.5, -1);
    return shard_mul(less, shard_reshape(picked, SHARD_SHAPE(-1, 1)));
}

/* Cosines with a margin at the label's. */
static shard_tensor *margin(const net *n, shard_tensor *x)
{
    (void)n;
    if (!x || x->shape.ndim != 2)
        return x;
    shard_tensor *labels = shard_full(SHARD_SHAPE(x->shape.dim[0]), 2, .dtype = SHARD_INT64);
    return shard_margin_logits(shard_scale(shard_tanh(x), 0.9), labels, .scale = 1.5, .m2 = 0.5, .rule = SHARD_MARGIN_COSINE);
}

/* One label for all rows, as x may be some of them. */
static shard_tensor *same_labels(const shard_tensor *x)
{
    return shard_full(SHARD_SHAPE(x->shape.dim[0]), 2, .dtype = SHARD_INT64);
}

/* x times 1 + y / 4, for y of a number for each row. */
static shard_tensor *times_rows(shard_tensor *x, shard_tensor *y)
{
    y = shard_cast(shard_reshape(y, SHARD_SHAPE(-1, 1)), shard_tensor_dtype(x));
    return shard_mul(x, shard_add_scalar(shard_scale(y, 0.25), 1));
}

/* An operation of matrices; x as it is if it has another dimension. */
#define OF_MATRIX(name, call)                                                                                                    \
    static shard_tensor *name(const net *n, shard_tensor *x)                                                                     \
    {                                                                                                                            \
        (void)n;                                                                                                                 \
        return !x || x->shape.ndim != 2 ? x : call;                                                                              \
    }

static shard_tensor *slices(const net *n, shard_tensor *x)
{
    (void)n;
    shard_tensor *part[] = {shard_slice(x, -1, 2, 1), shard_slice(x, -1, 2, 0)};
    return shard_concatenate(part, 2, -1);
}

static shard_tensor *reversed(shard_tensor *x)
{
    static const int axes[][3] = {{0}, {1, 0}, {2, 1, 0}};
    return x ? shard_permute(x, axes[x->shape.ndim - 1]) : NULL;
}
UNARY(permute, reversed(shard_gelu(reversed(x))))
UNARY(roots, shard_mul(shard_sqrt(positive(x)), shard_rsqrt(shard_add_scalar(positive(x), 1))))
UNARY(powers, shard_sub(shard_pow_scalar(positive(x), 0.7), shard_log1p(shard_mul(x, x))))
UNARY(sign, shard_neg(shard_abs(x)))
UNARY(to_device, shard_to_device(shard_gelu(x), shard_tensor_device(x)))

/* Each comparison, of numbers that are far from each other but where x is about 0. */
static shard_tensor *comparisons(const net *n, shard_tensor *x)
{
    (void)n;
    shard_tensor *y = shard_scale(x, 0.5), *twice = shard_scale(x, 2);
    shard_tensor *low = shard_where(shard_eq(x, x), shard_where(shard_ge(x, y), x, y), twice);
    shard_tensor *high = shard_where(shard_ne(x, x), x, shard_where(shard_gt(twice, x), twice, x));
    return shard_where(shard_lt(x, y), low, shard_where(shard_le(x, y), y, high));
}

static shard_tensor *comparisons_with_numbers(const net *n, shard_tensor *x)
{
    (void)n;
    shard_tensor *twice = shard_scale(x, 2);
    shard_tensor *low = shard_where(shard_eq_scalar(x, 99), x, shard_where(shard_le_scalar(x, -0.5), x, twice));
    shard_tensor *high = shard_where(shard_ne_scalar(x, 99), shard_where(shard_ge_scalar(x, 0.5), twice, x), twice);
    return shard_where(shard_lt_scalar(x, 0.1), low, high);
}

static shard_tensor *positions(const net *n, shard_tensor *x)
{
    (void)n;
    shard_tensor *most = shard_cast(shard_argmax(x, -1, true), shard_tensor_dtype(x));
    shard_tensor *least = shard_cast(shard_argmin(x, -1, true), shard_tensor_dtype(x));
    return shard_add(shard_mul(x, shard_add_scalar(shard_scale(most, 0.25), 1)), shard_scale(shard_mul(x, least), 0.1));
}
OF_MATRIX(label_rank, times_rows(x, shard_label_rank(x, same_labels(x), -100)))
OF_MATRIX(one_hot, shard_sub(x, shard_scale(shard_one_hot(same_labels(x), NET_FEATURES, .like = x), 0.5)))
OF_MATRIX(linear_top_k,
          times_rows(x, shard_sum_dim(shard_linear_top_k(x, n->leaf[NET_SQUARE], n->leaf[NET_BIAS], 2, NULL), -1, false)))
UNARY(global_avg_pool, shard_mul(x, shard_global_avg_pool2d(as_image(x))))

static shard_tensor *images(const net *n, shard_tensor *x)
{
    static const double mean[NET_FEATURES] = {0.1, 0.2, 0.3, 0.4, 0.5}, deviation[NET_FEATURES] = {1, 2, 0.5, 1, 3};
    (void)n;
    shard_tensor *bytes = shard_full(shard_tensor_shape(x), 100, .dtype = SHARD_UINT8);
    bytes = shard_as_placed(bytes, shard_tensor_placement(x));
    return shard_add(x, shard_normalize_images(bytes, mean, deviation, shard_tensor_dtype(x)));
}

/* Margins from the norms of the rows, without a gradient. */
static shard_tensor *adaface(const net *n, shard_tensor *x)
{
    (void)n;
    shard_dtype dtype = shard_tensor_dtype(x);
    shard_tensor *norms = shard_sqrt(shard_sum_dim(shard_mul(shard_detach(x), shard_detach(x)), -1, false)), *m3;
    shard_tensor *m2 = shard_adaface_margins(norms, shard_full(SHARD_SCALAR, 2, .dtype = dtype),
                                             shard_full(SHARD_SCALAR, 1, .dtype = dtype), &m3, .h = 0.2);
    return shard_margin_logits(shard_scale(shard_tanh(x), 0.9), same_labels(x), .scale = 1.5, .row_m2 = m2, .row_m3 = m3,
                               .rule = SHARD_MARGIN_CLAMP);
}

/* ---- losses, as factors of x ---- */

/* A one in each row. */
static shard_tensor *net_pairs(const shard_tensor *x)
{
    int64_t pairs[2 * NET_ROWS], rows = x->shape.dim[0];
    for (int64_t i = 0; i < rows; i++) {
        pairs[i] = i;
        pairs[rows + i] = i * 2 % NET_FEATURES;
    }
    return shard_from_host(pairs, SHARD_SHAPE(2, rows), .dtype = SHARD_INT64);
}

static shard_tensor *cross_entropy_options(const net *n, shard_tensor *x)
{
    (void)n;
    shard_tensor *weight = shard_full(SHARD_SHAPE(NET_FEATURES), 0.5, .dtype = shard_tensor_dtype(x)), *rank;
    shard_tensor *rows = shard_full(SHARD_SHAPE(x->shape.dim[0]), 2, .dtype = shard_tensor_dtype(x));
    return times(x, shard_cross_entropy_with_rank(x, net_labels(x), &rank, .weight = weight, .row_weight = rows,
                                                  .label_smoothing = 0.1, .z_loss = 0.01, .logit_scale = 1.5, .soft_cap = 4));
}
OF_MATRIX(loss_of_rows,
          times_rows(x, shard_cross_entropy(x, same_labels(x), .reduction = SHARD_REDUCTION_NONE, .label_smoothing = 0.1)))
OF_MATRIX(linear_loss_of_rows, times_rows(x, shard_linear_cross_entropy(x, n->leaf[NET_SQUARE], n->leaf[NET_BIAS], same_labels(x),
                                                                        .reduction = SHARD_REDUCTION_NONE, .z_loss = 0.01)))
UNARY(linear_loss,
      times(x, shard_linear_cross_entropy(x, n->leaf[NET_SQUARE], n->leaf[NET_BIAS], net_labels(x), .label_smoothing = 0.1)))
UNARY(linear_cosines, times(x, shard_linear_cross_entropy(x, n->leaf[NET_SQUARE], NULL, net_labels(x), .normalized = true,
                                                          .margin = SHARD_MARGIN(.scale = 3, .m3 = 0.2))))
static shard_tensor *sampled_loss(const net *n, shard_tensor *x)
{
    shard_tensor *labels = net_labels(x), *sample = shard_sample_classes(labels, n->leaf[NET_SQUARE], 0.5, 3, 4);
    return shard_linear_cross_entropy(x, n->leaf[NET_SQUARE], n->leaf[NET_BIAS], labels, .sample = sample,
                                      .sample_correction = shard_sample_correction(sample, labels, 0.5));
}
UNARY(linear_sample, times(x, sampled_loss(n, x)))
UNARY(binary_pairs, times(x, shard_binary_cross_entropy_with_logits(x, net_pairs(x), .reduction = SHARD_REDUCTION_BATCH_MEAN)))
UNARY(linear_binary, times(x, shard_linear_binary_cross_entropy(x, n->leaf[NET_SQUARE], n->leaf[NET_BIAS], net_pairs(x))))

/* Over the model group, of a weight that is split by rows or by columns. */
shard_tensor *net_split_loss(const net *n, shard_tensor *x, int kind)
{
    shard_tensor *weight = n->leaf[NET_COLUMN], *bias = n->leaf[NET_COLUMN_BIAS];
    switch (kind) {
    case 0:
        return times(x, shard_linear_cross_entropy(x, weight, bias, net_labels(x), .label_smoothing = 0.1, .soft_cap = 5));
    case 1:
        return times(x, shard_linear_binary_cross_entropy(x, weight, bias, net_pairs(x)));
    case 2:
        return times(x, shard_linear_cross_entropy(x, weight, NULL, net_labels(x), .normalized = true,
                                                   .margin = SHARD_MARGIN(.scale = 3, .m2 = 0.2)));
    case 3:
        return shard_mul(x, shard_reduce_from_group(shard_embedding(weight, same_labels(x), -1), n->model));
    case 4:
        return shard_mul(x, shard_gather_from_group(shard_embedding(n->leaf[NET_ROW], same_labels(x), -1), -1, n->model));
    default:
        return times_rows(x, shard_sum_dim(shard_linear_top_k(x, weight, bias, 2, NULL), -1, false));
    }
}

const net_operation net_operations[] = {
    {"relu", relu, BY_BOTH},
    {"gelu", gelu, BY_BOTH},
    {"gelu_tanh", gelu_tanh, BY_BOTH},
    {"silu, leaky_relu, softplus", activations, BY_BOTH},
    {"scale", scale, BY_BOTH},
    {"a square", square, BY_BOTH},
    {"two uses", two_uses, BY_BOTH},
    {"softmax", softmax, BY_ROWS, .placed = true},
    {"log_softmax", log_softmax, BY_ROWS, .placed = true},
    {"logsumexp", logsumexp, BY_ROWS, .placed = true},
    {"dropout", dropout, 0},
    {"mean", mean, 0},
    {"sum", sum, 0},
    {"reshape", reshape, 0},
    {"transpose", transpose, BY_BOTH},
    {"narrow", narrow, 0},
    {"cast", cast, BY_BOTH, .rounds = true},
    {"add", add, BY_ROWS},
    {"mul", mul, BY_ROWS},
    {"linear", linear, BY_ROWS},
    {"matmul", matmul, BY_ROWS},
    {"attention", attention, BY_ROWS},
    {"layer_norm", layer_norm, BY_ROWS},
    {"batch_norm", batch_norm, 0},
    {"embedding", embedding, 0},
    {"cross_entropy", cross_entropy, 0},
    {"binary_cross_entropy", binary_cross_entropy, 0},
    {"conv2d", conv2d, 0},
    {"max_pool", max_pool, 0},
    {"avg_pool", avg_pool, 0},
    {"an own operation", own_operation, BY_BOTH},
    {"sub", sub, BY_BOTH},
    {"div", division, BY_BOTH},
    {"pow", power, BY_BOTH, .sharp = true},
    {"minimum", minimum, BY_BOTH, .sharp = true},
    {"maximum", maximum, BY_BOTH, .sharp = true},
    {"clamp", clamp, BY_BOTH, .sharp = true},
    {"prelu", prelu, BY_ROWS, .sharp = true},
    {"exp, log, tanh, sigmoid", functions, BY_BOTH},
    {"where", where, BY_BOTH, .sharp = true},
    {"clone", clone, BY_BOTH},
    {"a broadcast column and row", broadcast_rows, BY_ROWS},
    {"mean_dim", mean_dim, BY_ROWS},
    {"mean_dim of rows", mean_rows, BY_COLUMNS},
    {"max_dim", max_dim, BY_ROWS, .placed = true, .sharp = true},
    {"min_dim of rows", min_rows, BY_COLUMNS, .sharp = true},
    {"top_k", top_k, BY_ROWS, .placed = true, .sharp = true},
    {"normalize", normalize, BY_ROWS, .placed = true},
    {"mse_loss", mse_loss, 0},
    {"concatenate", rotate, BY_ROWS},
    {"pick and add at labels", at_labels, BY_ROWS, .placed = true, .sharp = true},
    {"margin_logits", margin, BY_ROWS, .placed = true, .sharp = true},
    {"slice", slices, BY_ROWS},
    {"permute", permute, BY_BOTH},
    {"sqrt, rsqrt", roots, BY_BOTH},
    {"pow_scalar, log1p", powers, BY_BOTH},
    {"neg, abs", sign, BY_BOTH, .sharp = true},
    {"to_device", to_device, BY_BOTH},
    {"comparisons", comparisons, BY_BOTH, .sharp = true},
    {"comparisons with numbers", comparisons_with_numbers, BY_BOTH, .sharp = true},
    {"argmax, argmin", positions, BY_ROWS, .placed = true, .sharp = true},
    {"label_rank", label_rank, BY_ROWS, .placed = true, .sharp = true},
    {"one_hot", one_hot, BY_ROWS, .placed = true},
    {"linear_top_k", linear_top_k, BY_ROWS, .sharp = true},
    {"global_avg_pool", global_avg_pool, 0},
    {"normalize_images", images, BY_ROWS},
    {"adaface_margins", adaface, 0, .sharp = true},
    {"cross_entropy with options", cross_entropy_options, 0, .sharp = true},
    {"cross_entropy of each row", loss_of_rows, BY_ROWS, .placed = true},
    {"linear_cross_entropy of each row", linear_loss_of_rows, BY_ROWS, .sharp = true},
    {"linear_cross_entropy", linear_loss, 0},
    {"linear_cross_entropy of cosines", linear_cosines, 0, .sharp = true},
    {"linear_cross_entropy of a sample", linear_sample, 0, .sharp = true},
    {"binary_cross_entropy of pairs", binary_pairs, 0},
    {"linear_binary_cross_entropy", linear_binary, 0, .sharp = true},
};
const int net_operation_count = sizeof net_operations / sizeof *net_operations;

/* ---- parts ---- */

shard_range own_range(int64_t size, const shard_group *group)
{
    return shard_split_range(size, shard_group_size(group), shard_group_rank(group));
}

shard_tensor *own_rows(shard_tensor *x, const shard_group *group)
{
    ck_assert_msg(x != NULL, "%s", shard_last_error());
    shard_range rows = own_range(x->shape.dim[0], group);
    return shard_narrow(x, 0, rows.start, rows.size);
}

/* ---- gradients ---- */

static double largest_gradient(const net *n)
{
    double largest = 0;
    for (int i = 0; i < NET_LEAVES; i++) {
        if (!shard_grad(n->leaf[i]))
            continue;
        double *values = values_of(shard_grad(n->leaf[i]));
        largest = fmax(largest, largest_of(values, shard_numel(n->leaf[i])));
        free(values);
    }
    return largest;
}

/* `least` is what a gradient of nothing but rounding is compared to. */
static void compare(const char *what, shard_tensor *leaf, shard_tensor *expected, int index, double least, double tolerance)
{
    shard_tensor *gradient = shard_grad(leaf);
    if (!shard_grad(expected)) {
        ck_assert_ptr_null(gradient);
        return;
    }
    ck_assert_ptr_nonnull(gradient);
    shard_pending_sums pending = gradient->pending;
    for (int i = 0; i < pending.count; i++)
        check_ok(shard_all_reduce(gradient, SHARD_SUM, pending.group[i]));
    double *values = values_of(shard_grad(expected));
    double largest = fmax(largest_of(values, shard_numel(expected)), least);
    char *name = shard_format("%s: leaf %d / %g", what, index, largest);
    /* check_part adds 1 to what is compared. */
    for (int64_t i = 0; i < shard_numel(expected); i++)
        values[i] /= largest;
    shard_tensor *wide = shard_cast(shard_detach(gradient), SHARD_FLOAT64);
    wide = shard_scale(wide, 1 / largest);
    wide->placement = gradient->placement;
    check_part_at(__FILE__, __LINE__, name, wide, values, tolerance);
    free(values);
    free(name);
}

void compare_gradients(const char *name, const net *split, const net *one, double tolerance)
{
    double least = fmax(0.05 * largest_gradient(one), 0.01);
    for (int i = 0; i < NET_LEAVES; i++)
        compare(name, split->leaf[i], one->leaf[i], i, least, tolerance);
}
