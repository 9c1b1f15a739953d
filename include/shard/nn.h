/*
 * shard/nn.h: modules: parameters with names, layers, parallel layers, and the
 * conversion of a model's linear and embedding layers into parallel ones.
 *
 * A module is destroyed by its owner, and owns its children: it has one parent at most.
 * Makers that are given modules take them over, even when they fail, but for a module that
 * has a parent: that one keeps it, and it is an error (ARGUMENT). Weights are shared by adding
 * one tensor to several modules, as tied layers in PyTorch:
 *
 *     shard_module_set_parameter(head, "weight", shard_module_tensor(embedding, "weight"));
 *
 * shard_parameters lists it under each of its names, and optimizers step it once. Share after a
 * conversion, which gives each layer a weight of its own.
 *
 * Names are torchvision's, shapes PyTorch's, so that state dicts go both ways. Initial
 * values are PyTorch's distributions; they are made when first needed, and of a
 * split parameter only the local shard is made.
 */
#ifndef SHARD_NN_H
#define SHARD_NN_H

#include <shard/distributed.h>
#include <shard/op.h>

SHARD_BEGIN_C

typedef struct shard_module shard_module;

/* ---- use ---- */

/* The module's result for x, recorded; a view where it is x itself, as dropout's in
 * evaluation. NULL in, NULL out. Collective where the module's layers are. */
SHARD_API shard_tensor *shard_forward(shard_module *module, shard_tensor *x);

/* Destroys the module and all below it. NULL is fine. Errors: ARGUMENT, a child, which its parent
 * destroys: it stays. */
SHARD_API void shard_module_destroy(shard_module *module);

/* Training (at first) or evaluation, for the module and all below it: dropout,
 * batch norm. As nn.Module.train and eval. */
SHARD_API void shard_module_set_training(shard_module *module, bool training);
SHARD_API bool shard_module_is_training(const shard_module *module);

/* Parameters, and parameters and buffers, of the module and all below it, by dotted
 * names ("layer1.0.conv1.weight") in the order they were added. The caller's, to be
 * destroyed. */
SHARD_API shard_tensors *shard_parameters(shard_module *module);
SHARD_API shard_tensors *shard_state_dict(shard_module *module);

/* ---- layers ---- */

/* y = x W^T + b; weight [out, in], bias [out]. */
typedef struct shard_nn_linear_options {
    size_t size;
    bool bias; /* true */
    shard_dtype dtype;
    /* Of a parallel layer: each shard has a multiple of this many split features, which divides their number.
     * The size of an attention head: each rank then has whole heads, also where ranks do not divide them.
     * 1 as a default. */
    int64_t split_multiple;
} shard_nn_linear_options;
#define SHARD_NN_LINEAR_OPTIONS_VALUES sizeof(shard_nn_linear_options), true, SHARD_FLOAT32, 1
#define SHARD_NN_LINEAR_OPTIONS_INIT {SHARD_NN_LINEAR_OPTIONS_VALUES}
#define shard_nn_linear(in, ...) \
    SHARD_GIVEN(shard_nn_linear_with(in, SHARD_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_linear_with(int64_t in, int64_t out, const shard_nn_linear_options *options);

typedef enum shard_split {
    SHARD_SPLIT_NONE = 0,
    SHARD_SPLIT_ROW,    /* W is split along in: torchshard's dim 0 */
    SHARD_SPLIT_COLUMN, /* W (and bias) along out: torchshard's dim 1 or -1 */
} shard_split;

/* The same, split over group. ROW takes an input that is split along its last
 * dimension, or a whole one, of which it takes the own part; its result is whole.
 * COLUMN takes a whole input; its result is split along the last dimension, so that
 * COLUMN chains into ROW without communication in between (both with one .split_multiple). The
 * shards are those of shard_split_range, in units of .split_multiple, so that they may be uneven. NONE: the layer is whole on each rank,
 * and group is not used. Initial values are those of the whole layer. As
 * torchshard.nn.ParallelLinear. */
#define shard_nn_parallel_linear(in, out, split, ...) \
    SHARD_GIVEN(shard_nn_parallel_linear_with(         \
        in, out, split, SHARD_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_parallel_linear_with(int64_t in, int64_t out, shard_split split, shard_group *group,
                                                      const shard_nn_linear_options *options);

/* The function of it: splits x for ROW where it is whole, sums ROW's partial
 * results, then adds bias (NULL: none). A whole x is split as shard_scatter_to_group does; for a weight of other
 * ranges (UNSUPPORTED) x is split in the same ranges. Collective over weight's group for ROW. As
 * torchshard.nn.functional.parallel_linear. */
SHARD_API shard_tensor *shard_parallel_linear(shard_tensor *x, shard_tensor *weight, shard_tensor *bias);

typedef struct shard_nn_conv2d_options {
    size_t size;
    int64_t stride, padding, dilation, groups; /* 1, 0, 1, 1 */
    bool bias; /* true; false before a batch norm */
    shard_dtype dtype;
} shard_nn_conv2d_options;
#define SHARD_NN_CONV2D_OPTIONS_VALUES sizeof(shard_nn_conv2d_options), 1, 0, 1, 1, true, SHARD_FLOAT32
#define SHARD_NN_CONV2D_OPTIONS_INIT {SHARD_NN_CONV2D_OPTIONS_VALUES}
/* weight [out, in / groups, kernel, kernel]; kaiming normal, fan out, as torchvision's ResNet.
 * bias [out], as PyTorch's. */
#define shard_nn_conv2d(in, out, ...) \
    SHARD_GIVEN(shard_nn_conv2d_with(in, out, SHARD_OPTIONS(shard_nn_conv2d_options, SHARD_NN_CONV2D_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_conv2d_with(int64_t in, int64_t out, int64_t kernel, const shard_nn_conv2d_options *options);

/* weight, bias [channels]; buffers running_mean, running_var, num_batches_tracked. */
typedef struct shard_nn_batch_norm_options {
    size_t size;
    double momentum, eps; /* 0.1, 1e-5 */
    shard_group *group;   /* synchronised over it while training */
    shard_dtype dtype;
} shard_nn_batch_norm_options;
#define SHARD_NN_BATCH_NORM_OPTIONS_VALUES sizeof(shard_nn_batch_norm_options), 0.1, 1e-5, NULL, SHARD_FLOAT32
#define SHARD_NN_BATCH_NORM_OPTIONS_INIT {SHARD_NN_BATCH_NORM_OPTIONS_VALUES}
#define shard_nn_batch_norm(...)           \
    SHARD_GIVEN(shard_nn_batch_norm_with( \
        SHARD_OPTIONS(shard_nn_batch_norm_options, SHARD_NN_BATCH_NORM_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_batch_norm_with(int64_t channels, const shard_nn_batch_norm_options *options);
/* relu(batch_norm(x) + residual) in one pass; residual NULL: none. For own modules
 * that have a batch norm as a child. */
SHARD_API shard_tensor *shard_nn_batch_norm_relu(shard_module *batch_norm, shard_tensor *x, shard_tensor *residual);
/* Synchronises every batch norm of the module over group from now on, as
 * SyncBatchNorm.convert_sync_batchnorm. NULL: none any more. */
SHARD_API void shard_nn_sync_batch_norm(shard_module *module, shard_group *group);

/* weight, bias [size]. eps is 1e-5 in torch. As torch.nn.LayerNorm of the last dimension. */
typedef struct shard_nn_layer_norm_options {
    size_t size;
    bool elementwise_affine; /* true; false: neither weight nor bias */
    bool bias;               /* true; false: weight alone */
    shard_dtype dtype; /* of the values; parameters of 16-bit ones are float32 */
} shard_nn_layer_norm_options;
#define SHARD_NN_LAYER_NORM_OPTIONS_VALUES sizeof(shard_nn_layer_norm_options), true, true, SHARD_FLOAT32
#define SHARD_NN_LAYER_NORM_OPTIONS_INIT {SHARD_NN_LAYER_NORM_OPTIONS_VALUES}
#define shard_nn_layer_norm(size, ...)    \
    SHARD_GIVEN(shard_nn_layer_norm_with( \
        size, SHARD_OPTIONS(shard_nn_layer_norm_options, SHARD_NN_LAYER_NORM_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_layer_norm_with(int64_t size, double eps, const shard_nn_layer_norm_options *options);

/* ---- embedding ---- */

typedef struct shard_nn_embedding_options {
    size_t size;
    double max_norm, norm_type; /* as shard_embedding: rows of a larger norm are scaled down in place; INFINITY: none; 2 */
    bool scale_grad_by_freq;
    shard_dtype dtype;
} shard_nn_embedding_options;
#define SHARD_NN_EMBEDDING_OPTIONS_VALUES sizeof(shard_nn_embedding_options), INFINITY, 2.0, false, SHARD_FLOAT32
#define SHARD_NN_EMBEDDING_OPTIONS_INIT {SHARD_NN_EMBEDDING_OPTIONS_VALUES}
/* weight [count, dim], standard normal, the padding row zeros. The row padding_idx gets no gradient; -1: none.
 * x is int64 [...], the result [..., dim]. As torch.nn.Embedding. NULL with the error set. Not collective. */
#define shard_nn_embedding(count, dim, ...) \
    SHARD_GIVEN(shard_nn_embedding_with(   \
        count, dim, SHARD_OPTIONS(shard_nn_embedding_options, SHARD_NN_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_embedding_with(int64_t count, int64_t dim, int64_t padding_idx,
                                                const shard_nn_embedding_options *options);

/* The same, split over group: ROW splits weight along dimension 0, the vocabulary (torchshard's dim 0), COLUMN along
 * dimension 1 (torchshard's dim 1 or -1). x is the same on all ranks of group, and the result is whole: the sum of
 * what the ranks' rows give, or the ranks' columns gathered. Shards may be uneven, and empty where there are more
 * ranks than rows or columns. NONE: the layer is whole on each rank. Initial values are those of the whole layer. Its
 * forward is collective over group. As torchshard.nn.ParallelEmbedding. NULL with the error set. Not collective. */
#define shard_nn_parallel_embedding(count, dim, padding_idx, split, ...) \
    SHARD_GIVEN(shard_nn_parallel_embedding_with(                        \
        count, dim, padding_idx, split, SHARD_OPTIONS(shard_nn_embedding_options, SHARD_NN_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_parallel_embedding_with(int64_t count, int64_t dim, int64_t padding_idx, shard_split split,
                                                         shard_group *group, const shard_nn_embedding_options *options);

/* The function of it: shard_embedding, then the sum over weight's group where weight is split along dimension 0, or a
 * gather along the last dimension where it is split along dimension 1; a weight that is not split gives shard_embedding
 * alone. Collective over weight's group. NULL with the error set. As torchshard.nn.functional.parallel_embedding. */
#define shard_parallel_embedding(weight, index, ...) \
    SHARD_GIVEN(shard_parallel_embedding_with(       \
        weight, index, SHARD_OPTIONS(shard_embedding_options, SHARD_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_tensor *shard_parallel_embedding_with(shard_tensor *weight, shard_tensor *index, int64_t padding_idx,
                                                      const shard_embedding_options *options);

/* ---- layers without parameters ---- */

/* Modules of shard_relu, shard_gelu and shard_dropout (in training; in evaluation x itself). */
SHARD_API shard_module *shard_nn_relu(void);
SHARD_API shard_module *shard_nn_gelu(void);
SHARD_API shard_module *shard_nn_dropout(double p);
/* All but the first dimension become one. */
SHARD_API shard_module *shard_nn_flatten(void);
/* stride -1: the kernel's size. */
SHARD_API shard_module *shard_nn_max_pool2d(int64_t kernel, int64_t stride, int64_t padding);
SHARD_API shard_module *shard_nn_global_avg_pool2d(void);

/* One after the other, named "0", "1", ... */
#define shard_nn_sequential(...)                                                             \
    shard_nn_sequential_of((int)(sizeof((shard_module *[]){__VA_ARGS__}) / sizeof(shard_module *)), \
                           (shard_module *[]){__VA_ARGS__})
SHARD_API shard_module *shard_nn_sequential_of(int count, shard_module **modules);

/* ---- conversion ---- */

/*
 * Turns every linear layer of the module, itself included, whose dotted name matches
 * pattern (fnmatch; NULL: all) into a parallel one over group, in place. A layer that
 * has its values already keeps those of the group's first rank, whatever the others
 * had; one that has not (its initial values were never needed) never makes the whole.
 * *module may be replaced; one that is a child is replaced in its parent too. Sets *converted
 * (NULL is fine) to their number. Errors: no layer matches, or only layers that are split already; split is neither ROW nor COLUMN (ARGUMENT);
 * layers that differ between ranks (MISMATCH). Before data parallel and optimizers are made.
 * Collective over group. As torchshard.nn.ParallelLinear.convert_parallel_linear.
 */
SHARD_API shard_status shard_convert_parallel_linear(shard_module **module, const char *pattern, shard_split split,
                                                     shard_group *group, int *converted);

/* The same for embedding layers, which keep their padding_idx and options. As
 * torchshard.nn.ParallelEmbedding.convert_parallel_embedding. */
SHARD_API shard_status shard_convert_parallel_embedding(shard_module **module, const char *pattern, shard_split split,
                                                        shard_group *group, int *converted);

/* ---- initial values, in place ---- */

/*
 * Each gives a leaf other values: a parameter of a module, split or not, in the memory of shard_data_parallel or
 * shard_zero_optimizer (in stage 3 each rank makes its own part), or one that has no values yet, which are then made when they
 * are needed. Random ones take the next draw of the thread's generator and depend on the element's index in the whole
 * tensor, so that they are the same for any number of ranks and any split, if the ranks make the same calls after the
 * same shard_manual_seed. Numbers of inputs and outputs (fan in, fan out) are those of the whole tensor [out, in, ...].
 * A row of an embedding that is for padding has values as the others, as torch's: fill it afterwards.
 *
 * Errors: a result of an operation, a dtype that is not floating (not for constants), numbers that make no distribution
 * (ARGUMENT); fewer than two dimensions for xavier and kaiming (SHAPE); a partial tensor, or one that is split along
 * another dimension than the first or last (UNSUPPORTED). Not collective, but replicas are the same only if all ranks
 * make the call. As torch.nn.init, and torchshard.nn.init.shard_init_helper_ around it.
 */
SHARD_API shard_status shard_nn_init_constant(shard_tensor *tensor, double value);
SHARD_API shard_status shard_nn_init_zeros(shard_tensor *tensor);
SHARD_API shard_status shard_nn_init_ones(shard_tensor *tensor);
SHARD_API shard_status shard_nn_init_uniform(shard_tensor *tensor, double low, double high);
SHARD_API shard_status shard_nn_init_normal(shard_tensor *tensor, double mean, double std);
/* Normal numbers between low and high, by the inverse of the cumulative distribution: trunc_normal_, with its a and b. */
SHARD_API shard_status shard_nn_init_trunc_normal(shard_tensor *tensor, double mean, double std, double low, double high);

/* Standard deviation gain * sqrt(2 / (fan in + fan out)). Glorot, Bengio 2010. gain: 1, or shard_nn_init_gain. */
SHARD_API shard_status shard_nn_init_xavier_uniform(shard_tensor *tensor, double gain);
SHARD_API shard_status shard_nn_init_xavier_normal(shard_tensor *tensor, double gain);

typedef enum shard_fan { SHARD_FAN_IN = 0, SHARD_FAN_OUT } shard_fan;
typedef enum shard_nonlinearity {
    SHARD_NONLINEARITY_LEAKY_RELU = 0,
    SHARD_NONLINEARITY_RELU,
    SHARD_NONLINEARITY_LINEAR, /* and convolutions */
    SHARD_NONLINEARITY_SIGMOID,
    SHARD_NONLINEARITY_TANH,
    SHARD_NONLINEARITY_SELU,
} shard_nonlinearity;
/* As torch.nn.init.calculate_gain; negative_slope is of LEAKY_RELU (torch's default there: 0.01). NAN with the error set. */
SHARD_API double shard_nn_init_gain(shard_nonlinearity nonlinearity, double negative_slope);

typedef struct shard_nn_init_kaiming_options {
    size_t size;
    double a; /* the negative slope of LEAKY_RELU; 0, torch's default, makes it RELU */
    shard_fan mode;
    shard_nonlinearity nonlinearity;
} shard_nn_init_kaiming_options;
#define SHARD_NN_INIT_KAIMING_OPTIONS_VALUES \
    sizeof(shard_nn_init_kaiming_options), 0.0, SHARD_FAN_IN, SHARD_NONLINEARITY_LEAKY_RELU
#define SHARD_NN_INIT_KAIMING_OPTIONS_INIT {SHARD_NN_INIT_KAIMING_OPTIONS_VALUES}
/* Standard deviation gain / sqrt(fan of the mode). He et al. 2015. */
#define shard_nn_init_kaiming_uniform(...) \
    SHARD_GIVEN(shard_nn_init_kaiming_uniform_with( \
        SHARD_OPTIONS(shard_nn_init_kaiming_options, SHARD_NN_INIT_KAIMING_OPTIONS, __VA_ARGS__)))
#define shard_nn_init_kaiming_normal(...) \
    SHARD_GIVEN(shard_nn_init_kaiming_normal_with( \
        SHARD_OPTIONS(shard_nn_init_kaiming_options, SHARD_NN_INIT_KAIMING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_status shard_nn_init_kaiming_uniform_with(shard_tensor *tensor, const shard_nn_init_kaiming_options *options);
SHARD_API shard_status shard_nn_init_kaiming_normal_with(shard_tensor *tensor, const shard_nn_init_kaiming_options *options);

/* ---- own modules ---- */

typedef struct shard_module_type {
    const char *name;
    /* The result; temporaries of its own are freed when it returns. NULL: of a module that is not called. */
    shard_tensor *(*forward)(shard_module *module, shard_tensor *x);
    /* Frees what data points to (not parameters or children); NULL: nothing. */
    void (*destroy)(shard_module *module);
} shard_module_type;

/* data is the module's own and is freed by type->destroy, even when this fails.
 * type must outlive the module. */
SHARD_API shard_module *shard_module_create(const shard_module_type *type, void *data);
SHARD_API void *shard_module_data(const shard_module *module);
SHARD_API const shard_module_type *shard_module_get_type(const shard_module *module);

/* Takes a share of the tensor and sets requires_grad (parameter) or not (buffer). A
 * NULL tensor is the error that it was. */
SHARD_API shard_status shard_module_add_parameter(shard_module *module, const char *name, shard_tensor *tensor);
SHARD_API shard_status shard_module_add_buffer(shard_module *module, const char *name, shard_tensor *tensor);
/* Puts another tensor in the place of a parameter: head.weight = embedding.weight. It has that one's shape, dtype
 * and placement (SHAPE). A reference is taken, requires_grad set. Errors: ARGUMENT, no such parameter, or a tensor that
 * cannot be one. Before data parallel and optimizers are made. Not collective. */
SHARD_API shard_status shard_module_set_parameter(shard_module *module, const char *name, shard_tensor *tensor);
/* Takes the child over. Errors: ARGUMENT, a name that is there already, or none; a child that has a parent already, or
 * that the module is or is below: these stay whose they are. */
SHARD_API shard_status shard_module_add_child(shard_module *module, const char *name, shard_module *child);

/* By name, NULL with an error if there is none: look children up when they are
 * used, since a conversion may replace them. shard_module_tensor finds parameters
 * and buffers, shard_module_optional those that a module may be without (a bias): NULL,
 * without an error, if none of that name was added. */
SHARD_API shard_module *shard_module_child(const shard_module *module, const char *name);
SHARD_API shard_tensor *shard_module_tensor(const shard_module *module, const char *name);
SHARD_API shard_tensor *shard_module_optional(const shard_module *module, const char *name);
SHARD_API int shard_module_child_count(const shard_module *module);
SHARD_API shard_module *shard_module_child_at(const shard_module *module, int index);
SHARD_API const char *shard_module_child_name(const shard_module *module, int index);

SHARD_END_C

#endif
