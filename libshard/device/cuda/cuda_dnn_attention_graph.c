/*
 * The formulas operation by operation, in the form in which cuDNN knows them as attention and computes them in one kernel, on
 * tensor cores and without an array of all scores in memory (as NVIDIA/cudnn-frontend, scaled_dot_product_flash_attention).
 * Scores are float32; the softmax and the gradients of scores are rounded to the operands' type before they are multiplied, and
 * each head's gradients of keys and values before they are added up over the heads of a key head.
 *
 * The gradient of the queries is a sum over all keys. cuDNN adds its terms up by atomic operations, in an order that differs
 * from run to run, or stores the gradients of scores in its workspace and multiplies them in one product. The backward asks
 * for the latter.
 */
#include "device/cuda/cuda_dnn_attention_graph.h"

enum { ROW_DIM = 2, COLUMN_DIM };

typedef cudnnBackendDescriptor_t descriptor;
typedef shard_attention_graph attention;

/* ---- tensors ---- */

static descriptor tensor(shard_cuda_dnn_graph *g, int64_t name, cudnnDataType_t type, const int64_t *size, const int64_t *stride,
                         bool by_value)
{
    descriptor made = shard_cuda_dnn_begin(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    int64_t alignment = ATTENTION_ALIGNMENT, unique = name ? name : ATTENTION_END + g->count;
    bool is_virtual = name == 0;
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &unique);
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, size);
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, stride);
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    shard_cuda_dnn_set(g, made, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value);
    shard_cuda_dnn_finish(g, made);
    return made;
}

/* [batch, heads, rows, cols], in no memory if it has no name. */
static descriptor rows_of(shard_cuda_dnn_graph *g, const attention *a, int64_t name, cudnnDataType_t type, int64_t heads,
                          int64_t rows, int64_t cols)
{
    return tensor(g, name, type, (const int64_t[]){a->shape.batch, heads, rows, cols},
                  (const int64_t[]){heads * rows * cols, rows * cols, cols, 1}, false);
}

/* The transposes [batch, heads, cols, rows] of such rows. */
static descriptor transposed(shard_cuda_dnn_graph *g, const attention *a, int64_t name, cudnnDataType_t type, int64_t heads,
                             int64_t rows, int64_t cols)
{
    return tensor(g, name, type, (const int64_t[]){a->shape.batch, heads, cols, rows},
                  (const int64_t[]){heads * rows * cols, rows * cols, 1, cols}, false);
}

static descriptor number(shard_cuda_dnn_graph *g, int64_t name, cudnnDataType_t type)
{
    return tensor(g, name, type, (const int64_t[]){1, 1, 1, 1}, (const int64_t[]){1, 1, 1, 1}, true);
}

/* A number for each query and key. */
static descriptor scores(shard_cuda_dnn_graph *g, const attention *a, cudnnDataType_t type)
{
    return rows_of(g, a, 0, type, a->shape.heads, a->shape.queries, a->shape.keys);
}

/* A number for each query. */
static descriptor sums(shard_cuda_dnn_graph *g, const attention *a, int64_t name)
{
    return rows_of(g, a, name, CUDNN_DATA_FLOAT, a->shape.heads, a->shape.queries, 1);
}

/* ---- operations: each returns its result ---- */

static void part(shard_cuda_dnn_graph *g, descriptor operation, cudnnBackendAttributeName_t name, descriptor of)
{
    shard_cuda_dnn_set(g, operation, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &of);
}

static descriptor multiply(shard_cuda_dnn_graph *g, descriptor a, descriptor b, descriptor result)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    descriptor product = shard_cuda_dnn_begin(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    shard_cuda_dnn_set(g, product, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    shard_cuda_dnn_finish(g, product);
    descriptor operation = shard_cuda_dnn_begin(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    part(g, operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
    part(g, operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
    part(g, operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, result);
    part(g, operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, product);
    shard_cuda_dnn_add(g, operation);
    return result;
}

/* axis: of GEN_INDEX; else -1. other, mask: NULL if the function has none. */
static descriptor apply(shard_cuda_dnn_graph *g, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis, descriptor x,
                        descriptor other, descriptor mask, descriptor result)
{
    descriptor function = shard_cuda_dnn_begin(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    shard_cuda_dnn_set(g, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
    shard_cuda_dnn_set(g, function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &type);
    if (axis >= 0)
        shard_cuda_dnn_set(g, function, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis);
    shard_cuda_dnn_finish(g, function);
    descriptor operation = shard_cuda_dnn_begin(g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    part(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
    part(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (other)
        part(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, other);
    if (mask)
        part(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, mask);
    part(g, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, result);
    shard_cuda_dnn_add(g, operation);
    return result;
}

static descriptor map(shard_cuda_dnn_graph *g, cudnnPointwiseMode_t mode, descriptor x, descriptor other, descriptor result)
{
    return apply(g, mode, CUDNN_DATA_FLOAT, -1, x, other, NULL, result);
}

static descriptor reduce(shard_cuda_dnn_graph *g, cudnnReduceTensorOp_t operator, descriptor x, descriptor result)
{
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    descriptor reduction = shard_cuda_dnn_begin(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    shard_cuda_dnn_set(g, reduction, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &operator);
    shard_cuda_dnn_set(g, reduction, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    shard_cuda_dnn_finish(g, reduction);
    descriptor operation = shard_cuda_dnn_begin(g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    part(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, reduction);
    part(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
    part(g, operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, result);
    shard_cuda_dnn_add(g, operation);
    return result;
}

/* The same elements in memory, with the result's sizes and strides. */
static descriptor view(shard_cuda_dnn_graph *g, descriptor x, descriptor result)
{
    descriptor operation = shard_cuda_dnn_begin(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    part(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
    part(g, operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, result);
    shard_cuda_dnn_add(g, operation);
    return result;
}

/* ---- graphs ---- */

/* -infinity for the keys that the mask hides from a query. */
static descriptor masked(shard_cuda_dnn_graph *g, const attention *a, descriptor score)
{
    if (!a->shape.causal)
        return score;
    descriptor row =
        apply(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, ROW_DIM, score, NULL, NULL, scores(g, a, CUDNN_DATA_INT32));
    descriptor column =
        apply(g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, COLUMN_DIM, score, NULL, NULL, scores(g, a, CUDNN_DATA_INT32));
    if (a->shape.offset > 0)
        row = apply(g, CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, -1, row, number(g, ATTENTION_OFFSET, CUDNN_DATA_INT32), NULL,
                    scores(g, a, CUDNN_DATA_INT32));
    descriptor seen =
        apply(g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, -1, row, column, NULL, scores(g, a, CUDNN_DATA_BOOLEAN));
    return apply(g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, -1, score, number(g, ATTENTION_LOWEST, CUDNN_DATA_FLOAT),
                 seen, scores(g, a, CUDNN_DATA_FLOAT));
}

void shard_cuda_dnn_describe_attention(shard_cuda_dnn_graph *g, const attention *a)
{
    const shard_attention_shape *s = &a->shape;
    cudnnDataType_t type = shard_cuda_dnn_type(a->dtype), f = CUDNN_DATA_FLOAT;
    descriptor query = rows_of(g, a, ATTENTION_QUERY, type, s->heads, s->queries, s->in);
    descriptor key = transposed(g, a, ATTENTION_KEY, type, 1, s->keys, s->in),
               value = rows_of(g, a, ATTENTION_VALUE, type, 1, s->keys, s->out);
    descriptor y = rows_of(g, a, ATTENTION_Y, type, s->heads, s->queries, s->out), lse = sums(g, a, ATTENTION_LSE);

    descriptor score = multiply(g, query, key, scores(g, a, f));
    score = masked(g, a, map(g, CUDNN_POINTWISE_MUL, score, number(g, ATTENTION_SCALE, f), scores(g, a, f)));
    descriptor most = reduce(g, CUDNN_REDUCE_TENSOR_MAX, score, sums(g, a, 0));
    descriptor weight = map(g, CUDNN_POINTWISE_SUB, score, most, scores(g, a, f));
    weight = map(g, CUDNN_POINTWISE_EXP, weight, NULL, scores(g, a, f));
    descriptor sum = reduce(g, CUDNN_REDUCE_TENSOR_ADD, weight, sums(g, a, 0));
    map(g, CUDNN_POINTWISE_ADD, most, map(g, CUDNN_POINTWISE_LOG, sum, NULL, sums(g, a, 0)), lse);
    multiply(g, map(g, CUDNN_POINTWISE_DIV, weight, sum, scores(g, a, type)), value, y);
}

/* to = the sum over the heads of transposed scores x times rows of a head, x rounded to the operands' type. */
static void add_over_heads(shard_cuda_dnn_graph *g, const attention *a, descriptor x, descriptor rows, int64_t cols,
                           descriptor to)
{
    const shard_attention_shape *s = &a->shape;
    cudnnDataType_t type = shard_cuda_dnn_type(a->dtype);
    descriptor turned = view(g, x, transposed(g, a, 0, type, s->heads, s->queries, s->keys));
    if (s->heads == 1)
        multiply(g, turned, rows, to);
    else
        reduce(g, CUDNN_REDUCE_TENSOR_ADD, multiply(g, turned, rows, rows_of(g, a, 0, type, s->heads, s->keys, cols)), to);
}

void shard_cuda_dnn_describe_attention_backward(shard_cuda_dnn_graph *g, const attention *a)
{
    const shard_attention_shape *s = &a->shape;
    cudnnDataType_t type = shard_cuda_dnn_type(a->dtype), f = CUDNN_DATA_FLOAT;
    descriptor query = rows_of(g, a, ATTENTION_QUERY, type, s->heads, s->queries, s->in);
    descriptor key = transposed(g, a, ATTENTION_KEY, type, 1, s->keys, s->in),
               value = transposed(g, a, ATTENTION_VALUE, type, 1, s->keys, s->out);
    descriptor y = rows_of(g, a, ATTENTION_Y, type, s->heads, s->queries, s->out), lse = sums(g, a, ATTENTION_LSE);
    descriptor dy = rows_of(g, a, ATTENTION_DY, type, s->heads, s->queries, s->out), scale = number(g, ATTENTION_SCALE, f);

    descriptor term = map(g, CUDNN_POINTWISE_MUL, dy, y, rows_of(g, a, 0, f, s->heads, s->queries, s->out));
    term = reduce(g, CUDNN_REDUCE_TENSOR_ADD, term, sums(g, a, 0));
    term = map(g, CUDNN_POINTWISE_MUL, term, number(g, ATTENTION_ONE, f),
               sums(g, a, ATTENTION_TERM)); /* cuDNN's form has a factor of dropout there */

    descriptor weight = multiply(g, query, key, scores(g, a, f));
    weight = map(g, CUDNN_POINTWISE_MUL, weight, scale, scores(g, a, f));
    weight = masked(g, a, map(g, CUDNN_POINTWISE_SUB, weight, lse, scores(g, a, f)));
    weight = map(g, CUDNN_POINTWISE_EXP, weight, NULL, scores(g, a, f));
    add_over_heads(g, a, weight, dy, s->out, rows_of(g, a, ATTENTION_DVALUE, type, 1, s->keys, s->out));

    descriptor slope = multiply(g, dy, value, scores(g, a, f));
    slope = map(g, CUDNN_POINTWISE_SUB, slope, term, scores(g, a, f));
    slope = map(g, CUDNN_POINTWISE_MUL, slope, weight, scores(g, a, f));
    slope = map(g, CUDNN_POINTWISE_MUL, slope, scale, scores(g, a, f));
    add_over_heads(g, a, slope, query, s->in, rows_of(g, a, ATTENTION_DKEY, type, 1, s->keys, s->in));
    multiply(g, slope, view(g, key, rows_of(g, a, 0, type, 1, s->keys, s->in)),
             rows_of(g, a, ATTENTION_DQUERY, type, s->heads, s->queries, s->in));
}
