/* scaled_dot_product_attention: its backward computes the scores again, from the log-sum-exp of each query. */
#include "base/math.h"
#include "base/options.h"
#include "op/autocast.h"
#include "op/op.h"

#include <inttypes.h>

enum { QUERY, KEY, VALUE, INPUTS };
enum { SAVED_Y = INPUTS, SAVED_LSE };

typedef struct attention_context {
    shard_attention_shape shape;
} attention_context;

static shard_status attention_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const shard_attention_shape *shape = &((const attention_context *)node->context)->shape;
    shard_tensor *operand[INPUTS], *to[INPUTS] = {NULL}, *y = shard_saved(node, SAVED_Y), *lse = shard_saved(node, SAVED_LSE);
    if (!y || !lse)
        return shard_last_status();
    for (int i = 0; i < INPUTS; i++) {
        operand[i] = shard_saved_operand(node, i, dy->dtype);
        if (!operand[i] || (shard_wants(node, i) && !(to[i] = shard_gradient_of_type(node, i, dy->dtype))))
            return shard_last_status();
    }
    void *memory[9];
    if (!shard_load(SHARD_INPUTS(operand[QUERY], operand[KEY], operand[VALUE], y, lse, dy, to[QUERY], to[KEY], to[VALUE]),
                    memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(dy, attention_backward, shape, memory[0], memory[1], memory[2], memory[3], memory[4], memory[5],
                        memory[6], memory[7], memory[8], dy->dtype));
    for (int i = 0; i < INPUTS; i++) {
        dx[i] = shard_gradient_as_input(node, i, to[i]);
        if (to[i] && !dx[i])
            return shard_last_status();
    }
    return SHARD_OK;
}

static const shard_node_type attention_type = {.name = "scaled_dot_product_attention", .backward = attention_backward};

/* The size of a dimension of the whole tensor. */
static int64_t whole_size(const shard_tensor *x, int dim)
{
    return x->placement.kind == SHARD_SPLIT && x->placement.dim == dim ? x->placement.whole : x->shape.dim[dim];
}

/* The whole tensors' heads of each key head; 0 if there is no such number. */
static int64_t heads_of_key_head(const shard_tensor *query, const shard_tensor *key)
{
    int dim = query->shape.ndim - 3;
    int64_t heads = dim < 0 ? 1 : whole_size(query, dim), key_heads = dim < 0 ? 1 : whole_size(key, dim);
    if (key_heads == 0)
        return heads == 0;
    return heads % key_heads == 0 ? heads / key_heads : 0;
}

static bool check_shapes(const char *function, const shard_tensor *query, const shard_tensor *key, const shard_tensor *value)
{
    int ndim = query->shape.ndim, last = ndim - 1;
    bool fit = ndim >= 2 && key->shape.ndim == ndim && value->shape.ndim == ndim && heads_of_key_head(query, key) > 0 &&
               query->shape.dim[last] == key->shape.dim[last];
    for (int i = 0; fit && i < last; i++)
        fit = key->shape.dim[i] == value->shape.dim[i] && (i >= ndim - 3 || key->shape.dim[i] == query->shape.dim[i]);
    if (!fit)
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: query, key and value have shapes %s, %s and %s; [..., heads, queries, in], [..., key heads, keys, in] "
                    "and [..., key heads, keys, out] with heads that are a multiple of key heads are needed",
                    function, shard_tensor_shape_text(query), shard_tensor_shape_text(key), shard_tensor_shape_text(value));
    return fit;
}

/* All are local, or split in the same way along heads or a dimension before them. */
static bool check_placements(const char *function, const shard_tensor *query, const shard_tensor *key, const shard_tensor *value)
{
    int ndim = query->shape.ndim, dim = query->placement.dim;
    if (!shard_check_carried(function, query, ndim - 2) || !shard_check_carried(function, key, ndim - 2) ||
        !shard_check_carried(function, value, ndim - 2))
        return false;
    shard_placement wanted = key->placement;
    if (key->placement.kind == SHARD_SPLIT && dim == ndim - 3) {
        wanted.start *= heads_of_key_head(query, key);
        wanted.whole *= heads_of_key_head(query, key);
    }
    bool matches = shard_placement_equal(&query->placement, &wanted) &&
                   shard_placement_equal(&key->placement, &value->placement) &&
                   (ndim < 3 || query->shape.dim[ndim - 3] == key->shape.dim[ndim - 3] * heads_of_key_head(query, key));
    if (!matches)
        shard_error(SHARD_ERROR_UNSUPPORTED,
                    "%s: query is %s, key is %s, value is %s; all three must be local, or split over one group along heads or a "
                    "dimension before them, each rank with the key heads of its heads",
                    function, shard_placement_text(&query->placement), shard_placement_text(&key->placement),
                    shard_placement_text(&value->placement));
    return matches;
}

static bool check_options(const char *function, const shard_scaled_dot_product_attention_options *options)
{
    if (options->offset < 0 || (options->offset > 0 && !options->is_causal)) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: an offset of %" PRId64 " with is_causal %s; it is the number of keys before the first query's own, and "
                    "counts with is_causal alone",
                    function, options->offset, options->is_causal ? "true" : "false");
        return false;
    }
    if (isnan(options->scale) || options->scale == -(double)INFINITY) {
        shard_error(SHARD_ERROR_ARGUMENT, "%s: a scale of %g; a finite one is needed, or INFINITY for 1 / sqrt(in)", function,
                    options->scale);
        return false;
    }
    return true;
}

static shard_attention_shape shape_of(const shard_tensor *query, const shard_tensor *key, const shard_tensor *value,
                                      const shard_scaled_dot_product_attention_options *options)
{
    int ndim = query->shape.ndim;
    int64_t in = query->shape.dim[ndim - 1];
    return (shard_attention_shape){
        .batch = ndim < 3 ? 1 : shard_shape_product(&query->shape, 0, ndim - 3),
        .heads = ndim < 3 ? 1 : query->shape.dim[ndim - 3],
        .key_heads = ndim < 3 ? 1 : key->shape.dim[ndim - 3],
        .queries = query->shape.dim[ndim - 2],
        .keys = key->shape.dim[ndim - 2],
        .in = in,
        .out = value->shape.dim[ndim - 1],
        .offset = shard_min(options->offset, key->shape.dim[key->shape.ndim - 2]), /* no further key would be seen */
        .scale = isfinite(options->scale) ? options->scale
                 : in > 0                 ? 1 / sqrt((double)in)
                                          : 1,
        .causal = options->is_causal,
    };
}

static shard_tensor *attention(shard_tensor **input, const shard_scaled_dot_product_attention_options *options)
{
    static const char function[] = "shard_scaled_dot_product_attention";
    shard_tensor *operand[INPUTS];
    shard_autocast_product(INPUTS, input, operand);
    shard_tensor *query = operand[QUERY], *key = operand[KEY], *value = operand[VALUE];
    if (!shard_check_operands(function, INPUTS, operand) || !check_shapes(function, query, key, value) ||
        !check_placements(function, query, key, value) || !check_options(function, options))
        return NULL;
    shard_attention_shape shape = shape_of(query, key, value, options);
    shard_shape result = query->shape;
    result.dim[result.ndim - 1] = shape.out;
    shard_tensor *y = shard_tensor_make(result, query->dtype, shard_device_of(query));
    shard_tensor *lse = shard_workspace(query, shape.batch * shape.heads * shape.queries, SHARD_FLOAT64);
    void *memory[5];
    if (!y || !lse || !shard_load(SHARD_INPUTS(query, key, value, y, lse), memory))
        return NULL;
    y->placement = query->placement;
    if (SHARD_RUN(query, attention, &shape, memory[0], memory[1], memory[2], memory[3], memory[4], query->dtype) != SHARD_OK)
        return NULL;
    shard_node *node = shard_record(&attention_type, y, INPUTS, input, sizeof(attention_context));
    if (node) {
        ((attention_context *)node->context)->shape = shape;
        for (int i = 0; i < INPUTS; i++)
            shard_save_operand(node, i, input[i], operand[i]);
        shard_save_for_backward(node, SAVED_Y, y);
        shard_save_for_backward(node, SAVED_LSE, lse);
    }
    return y;
}

shard_tensor *shard_scaled_dot_product_attention_with(shard_tensor *query, shard_tensor *key, shard_tensor *value,
                                                      const shard_scaled_dot_product_attention_options *given)
{
    SHARD_READ_OPTIONS(shard_scaled_dot_product_attention_options, SHARD_SCALED_DOT_PRODUCT_ATTENTION_OPTIONS_INIT, options,
                       given);
    if (!options_ok)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(attention((shard_tensor *[]){query, key, value}, &options), &scope);
    shard_scope_close(&scope);
    return y;
}
