#include "gpt.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The arguments of a gpt_forward, for its blocks. */
typedef struct gpt_context {
    gpt_config config;
    gpt_cache *cache;
    const gpt_dropout *dropout;
} gpt_context;

typedef struct block_data {
    gpt_context *context;
    int layer;
} block_data;

static void free_data(shard_module *module)
{
    free(shard_module_data(module));
}

/* ---- forward ---- */

static shard_tensor *drop(shard_tensor *x, double p, const gpt_dropout *dropout)
{
    return dropout && p > 0 ? shard_dropout(x, p, .group = dropout->group) : x;
}

/* [samples, tokens, heads * size] to [samples, heads, tokens, size]. */
static shard_tensor *divide_heads(shard_tensor *x, int64_t size)
{
    if (!x)
        return NULL;
    shard_shape shape = shard_tensor_shape(x);
    return shard_transpose(shard_reshape(x, SHARD_SHAPE(shape.dim[0], shape.dim[1], -1, size)), 1, 2);
}

/* The reverse. */
static shard_tensor *join_heads(shard_tensor *x)
{
    if (!x)
        return NULL;
    shard_shape shape = shard_tensor_shape(x);
    return shard_reshape(shard_transpose(x, 1, 2), SHARD_SHAPE(shape.dim[0], shape.dim[2], -1));
}

/* Appends to a tensor of the cache, and returns the whole tensor. */
static shard_tensor *extend(shard_tensor **cached, shard_tensor *added)
{
    shard_tensor *all = *cached ? shard_concatenate((shard_tensor *[]){*cached, added}, 2, 2) : added;
    if (!all)
        return NULL;
    shard_release(*cached);
    return *cached = shard_keep(all);
}

static shard_tensor *attention_forward(shard_module *module, shard_tensor *x)
{
    const block_data *data = shard_module_data(module);
    gpt_cache *cache = data->context->cache;
    int64_t size = data->context->config.n_embd / data->context->config.n_head;
    shard_tensor *q = divide_heads(shard_forward(shard_module_child(module, "q"), x), size);
    shard_tensor *k = divide_heads(shard_forward(shard_module_child(module, "k"), x), size);
    shard_tensor *v = divide_heads(shard_forward(shard_module_child(module, "v"), x), size);
    if (cache) {
        k = extend(&cache->layer[data->layer].key, k);
        v = extend(&cache->layer[data->layer].value, v);
    }
    shard_tensor *y = shard_scaled_dot_product_attention(q, k, v, .is_causal = true, .offset = cache ? cache->length : 0);
    return shard_forward(shard_module_child(module, "c_proj"), join_heads(y));
}

static shard_tensor *mlp_forward(shard_module *module, shard_tensor *x)
{
    x = shard_gelu_tanh(shard_forward(shard_module_child(module, "c_fc"), x));
    return shard_forward(shard_module_child(module, "c_proj"), x);
}

static shard_tensor *block_forward(shard_module *module, shard_tensor *x)
{
    const block_data *data = shard_module_data(module);
    const gpt_dropout *dropout = data->context->dropout;
    double p = dropout ? dropout->resid : 0;
    shard_tensor *y = shard_forward(shard_module_child(module, "ln_1"), x);
    x = shard_add(x, drop(shard_forward(shard_module_child(module, "attn"), y), p, dropout));
    y = shard_forward(shard_module_child(module, "ln_2"), x);
    return shard_add(x, drop(shard_forward(shard_module_child(module, "mlp"), y), p, dropout));
}

static shard_tensor *positions(int64_t first, int64_t count, shard_device *device)
{
    int64_t *number = calloc((size_t)count + 1, sizeof *number);
    if (!number) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " positions", count);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        number[i] = first + i;
    shard_tensor *made = shard_from_host(number, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = device);
    free(number);
    return made;
}

static shard_tensor *transformer_forward(shard_module *module, shard_tensor *tokens)
{
    const gpt_context *context = ((const block_data *)shard_module_data(module))->context;
    const gpt_dropout *dropout = context->dropout;
    shard_module *blocks = shard_module_child(module, "h");
    shard_tensor *place =
        positions(context->cache ? context->cache->length : 0, shard_tensor_size(tokens, 1), shard_tensor_device(tokens));
    shard_tensor *x = shard_add(shard_forward(shard_module_child(module, "wte"), tokens),
                                shard_forward(shard_module_child(module, "wpe"), place));
    x = drop(x, dropout ? dropout->embd : 0, dropout);
    x = shard_forward(blocks, x);
    return shard_forward(shard_module_child(module, "ln_f"), x);
}

static shard_tensor *gpt_module_forward(shard_module *module, shard_tensor *tokens)
{
    return shard_forward(shard_module_child(module, "transformer"), tokens);
}

static const shard_module_type attention_type = {"attention", attention_forward, free_data};
static const shard_module_type mlp_type = {"mlp", mlp_forward, NULL};
static const shard_module_type block_type = {"block", block_forward, free_data};
static const shard_module_type transformer_type = {"transformer", transformer_forward, free_data};
static const shard_module_type gpt_type = {"gpt", gpt_module_forward, free_data};

shard_tensor *gpt_forward(shard_module *gpt, shard_tensor *tokens, gpt_cache *cache, const gpt_dropout *dropout)
{
    gpt_context *context = shard_module_data(gpt);
    int64_t past = cache ? cache->length : 0, count = tokens ? shard_tensor_size(tokens, 1) : 0;
    if (context && past + count > context->config.block_size) {
        shard_error(SHARD_ERROR_SHAPE, "%" PRId64 " tokens after %" PRId64 ", and a block has %" PRId64, count, past,
                    context->config.block_size);
        return NULL;
    }
    if (context) {
        context->cache = cache;
        context->dropout = dropout;
    }
    shard_tensor *x = shard_forward(gpt, tokens);
    if (x && cache)
        cache->length += count;
    return x;
}

/* ---- the head ---- */

static shard_tensor *head_weight(shard_module *gpt)
{
    bool tied = gpt_config_of(gpt)->tie_word_embeddings;
    shard_module *of =
        tied ? shard_module_child(shard_module_child(gpt, "transformer"), "wte") : shard_module_child(gpt, "lm_head");
    return shard_module_tensor(of, "weight");
}

shard_tensor *gpt_loss(shard_module *gpt, shard_tensor *features, shard_tensor *targets)
{
    bool defers = !gpt_config_of(gpt)->tie_word_embeddings && shard_grad_enabled();
    if (!defers) /* a tied weight has the embedding's gradient too, which is in memory */
        return shard_linear_cross_entropy(features, head_weight(gpt), NULL, targets, .reduction = SHARD_REDUCTION_SUM);
    return shard_cross_entropy(shard_forward(shard_module_child(gpt, "lm_head"), features), targets,
                               .reduction = SHARD_REDUCTION_SUM);
}

shard_tensor *gpt_logits(shard_module *gpt, shard_tensor *features)
{
    return shard_linear(features, head_weight(gpt), NULL);
}

const gpt_config *gpt_config_of(const shard_module *gpt)
{
    return &((const gpt_context *)shard_module_data(gpt))->config;
}

void gpt_cache_clear(gpt_cache *cache)
{
    for (int i = 0; i < GPT_MOST_LAYERS; i++) {
        shard_release(cache->layer[i].key);
        shard_release(cache->layer[i].value);
    }
    *cache = (gpt_cache){0};
}

/* ---- making ---- */

static shard_module *make_module(const shard_module_type *type, gpt_context *context, int layer)
{
    block_data *data = calloc(1, sizeof *data);
    if (!data) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for a block");
        return NULL;
    }
    *data = (block_data){context, layer};
    return shard_module_create(type, data);
}

/* Weights are normal with minGPT's deviation, 0.02 or that of a layer that ends a residual path, and biases 0. */
static void add_linear(shard_module *to, const char *name, shard_module *linear, double std)
{
    if (linear) {
        shard_nn_init_normal(shard_module_tensor(linear, "weight"), 0, std);
        shard_nn_init_zeros(shard_module_tensor(linear, "bias"));
    }
    shard_module_add_child(to, name, linear);
}

static shard_module *make_block(gpt_context *context, int layer, shard_group *group)
{
    const gpt_config *c = &context->config;
    int64_t width = c->n_embd, size = c->n_embd / c->n_head;
    double std = 0.02, last = 0.02 / sqrt(2 * (double)c->n_layer);
    shard_module *block = make_module(&block_type, context, layer), *attention = make_module(&attention_type, context, layer);
    shard_module *mlp = shard_module_create(&mlp_type, NULL);
    shard_module_add_child(block, "ln_1", shard_nn_layer_norm(width, c->layer_norm_epsilon));
    static const char *const names[] = {"q", "k", "v"};
    for (int i = 0; i < 3; i++)
        add_linear(attention, names[i], shard_nn_parallel_linear(width, width, SHARD_SPLIT_COLUMN, group, .split_multiple = size),
                   std);
    add_linear(attention, "c_proj", shard_nn_parallel_linear(width, width, SHARD_SPLIT_ROW, group, .split_multiple = size), last);
    shard_module_add_child(block, "attn", attention);
    shard_module_add_child(block, "ln_2", shard_nn_layer_norm(width, c->layer_norm_epsilon));
    add_linear(mlp, "c_fc", shard_nn_parallel_linear(width, 4 * width, SHARD_SPLIT_COLUMN, group), std);
    add_linear(mlp, "c_proj", shard_nn_parallel_linear(4 * width, width, SHARD_SPLIT_ROW, group), last);
    shard_module_add_child(block, "mlp", mlp);
    return block;
}

static void add_embedding(shard_module *to, const char *name, shard_module *embedding)
{
    if (embedding)
        shard_nn_init_normal(shard_module_tensor(embedding, "weight"), 0, 0.02);
    shard_module_add_child(to, name, embedding);
}

shard_module *gpt_make(const gpt_config *config, shard_group *group)
{
    if (config->n_head < shard_group_size(group)) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%" PRId64 " heads over %d ranks: each needs one; take a smaller --model-parallel-size or more --n-head",
                    config->n_head, shard_group_size(group));
        return NULL;
    }
    gpt_context *context = calloc(1, sizeof *context);
    if (!context) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for a network");
        return NULL;
    }
    context->config = *config;
    shard_module *gpt = shard_module_create(&gpt_type, context), *transformer = make_module(&transformer_type, context, -1);
    add_embedding(transformer, "wte",
                  shard_nn_parallel_embedding(config->vocab_size, config->n_embd, -1, SHARD_SPLIT_ROW, group));
    add_embedding(transformer, "wpe", shard_nn_embedding(config->block_size, config->n_embd, -1));
    shard_module *blocks = shard_nn_sequential_of(0, NULL);
    for (int i = 0; i < config->n_layer; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        shard_module_add_child(blocks, name, make_block(context, i, group));
    }
    shard_module_add_child(transformer, "h", blocks);
    shard_module_add_child(transformer, "ln_f", shard_nn_layer_norm(config->n_embd, config->layer_norm_epsilon));
    shard_module_add_child(gpt, "transformer", transformer);
    if (!config->tie_word_embeddings) {
        shard_module *head = shard_nn_parallel_classifier(config->n_embd, config->vocab_size, group, .bias = false);
        if (head)
            shard_nn_init_normal(shard_module_tensor(head, "weight"), 0, 0.02);
        shard_module_add_child(gpt, "lm_head", head);
    }
    if (shard_last_status() == SHARD_OK)
        return gpt;
    shard_module_destroy(gpt);
    return NULL;
}
