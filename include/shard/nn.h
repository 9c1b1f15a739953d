/*
 * shard/nn.h: modules: named parameters, layers, parallel layers, and the conversion of a model's linear and
 * embedding layers into parallel ones.
 *
 * A module owns its children; its own owner destroys it, and it has at most one parent. Makers that have modules as
 * arguments take ownership of them, also when they fail. The exception is a module with a parent: it stays with that
 * parent, and the call fails (ARGUMENT). Weights are shared by adding one tensor to several modules, as tied layers
 * in PyTorch:
 *
 *     shard_module_set_parameter(head, "weight", shard_module_tensor(embedding, "weight"));
 *
 * shard_parameters lists it under each of its names, and optimizers step it once. Share weights after a conversion,
 * which makes a new weight for each layer and refuses one that shares it, or its bias, already.
 *
 * Names are torchvision's and shapes PyTorch's, so that both load each other's state dicts. Initial values have PyTorch's
 * distributions, except those of shard_nn_conv2d, which has torchvision's. They are made when they are first needed; of a split
 * parameter a rank makes only its local shard.
 */
#ifndef SHARD_NN_H
#define SHARD_NN_H

#include <shard/distributed.h>
#include <shard/op.h>

SHARD_BEGIN_C

typedef struct shard_module shard_module;

/* ---- use ---- */

/* The module's result for x, recorded; a view of x if the module returns x itself, as dropout in evaluation. NULL
 * in, NULL out. Collective where the module's layers are. As calling a torch.nn.Module. */
SHARD_API shard_tensor *shard_forward(shard_module *module, shard_tensor *x);

/* Destroys the module and all modules below it. NULL is fine. Errors: ARGUMENT, a module with a parent, which
 * destroys it: nothing happens. */
SHARD_API void shard_module_destroy(shard_module *module);

/* Switches the module and all modules below it to training (the initial state) or evaluation, for dropout and batch
 * norm. As torch.nn.Module.train and eval. */
SHARD_API void shard_module_set_training(shard_module *module, bool training);
SHARD_API bool shard_module_is_training(const shard_module *module);

/* Lists of the parameters, and of parameters and buffers, of the module and all modules below it, by dotted names
 * ("layer1.0.conv1.weight") in the order they were added. The caller destroys the list. NULL with the error set. As
 * named_parameters and state_dict. */
SHARD_API shard_tensors *shard_parameters(shard_module *module);
SHARD_API shard_tensors *shard_state_dict(shard_module *module);

/* ---- layers ---- */

/* Makers of layers, here and in the next two sections: NULL with the error set (ARGUMENT, a size below 1, a dtype that is not
 * floating, or another option that is out of range; MEMORY). Not collective. */

/* A linear layer: y = x W^T + b; weight [out, in], bias [out]. As torch.nn.Linear. */
typedef struct shard_nn_linear_options {
    size_t size;
    bool bias; /* Default: true. */
    shard_dtype dtype;
    /* For a parallel layer, or one that is converted: the size of each shard is a multiple of this number, which divides the
     * split features.
     * With the size of an attention head each rank has whole heads, also if ranks do not divide their number.
     * Default: 1. */
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

/* A linear layer that is split over group (NULL: of this rank alone); initial values are those of the whole layer.
 * - ROW: x is split along its last dimension, or local, and each rank takes its range of it. The result is local.
 * - COLUMN: x is local and identical on all ranks of the group, which is not checked; the result is split along its last
 *   dimension, and is the input of a ROW layer without communication in between (both with one .split_multiple).
 * - NONE: the layer is local on each rank, and group is not used.
 * The ranges are those of shard_split_range, in units of .split_multiple; they may be uneven, and empty. Not collective, but
 * the forward of ROW and backwards are, over group. As torchshard.nn.ParallelLinear. */
#define shard_nn_parallel_linear(in, out, split, ...) \
    SHARD_GIVEN(shard_nn_parallel_linear_with(         \
        in, out, split, SHARD_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_parallel_linear_with(int64_t in, int64_t out, shard_split split, shard_group *group,
                                                      const shard_nn_linear_options *options);

/* Computes a parallel linear layer: for ROW it splits a local x, and sums the partial results; then it adds bias
 * (NULL: none). A local x is split as by shard_scatter_to_group; for a weight of other ranges (UNSUPPORTED) x must
 * be split in the same ranges. Collective over weight's group for ROW. As torchshard.nn.functional.parallel_linear. */
SHARD_API shard_tensor *shard_parallel_linear(shard_tensor *x, shard_tensor *weight, shard_tensor *bias);

/* A classifier: a COLUMN layer (or, with group NULL, a local one) for models with very many classes. While it trains, neither
 * its logits nor the gradient of its weight are in memory as a whole: shard_cross_entropy of the forward's result with labels
 * is shard_linear_cross_entropy, shard_binary_cross_entropy_with_logits with pairs is shard_linear_binary_cross_entropy, and
 * shard_step computes the gradient for some rows of the weight at a time. Values and gradients are those of
 * shard_nn_parallel_linear, apart from rounding. docs/classifier.md has the uses that compute logits or the whole gradient.
 * Errors: as other makers of layers; ARGUMENT, of the logits after x, weight or bias were written to, and of the weight's
 * gradient after weight, bias or class weights were. Not collective, but its loss and backward are, over group. As a
 * torch.nn.Linear with Apple's linear_cross_entropy, and an optimizer step in backward. */
#define shard_nn_parallel_classifier(in, classes, ...)                                                                           \
    SHARD_GIVEN(shard_nn_parallel_classifier_with(in, classes,                                                                   \
                                                  SHARD_OPTIONS(shard_nn_linear_options, SHARD_NN_LINEAR_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_parallel_classifier_with(int64_t in, int64_t classes, shard_group *group,
                                                          const shard_nn_linear_options *options);

typedef struct shard_nn_conv2d_options {
    size_t size;
    int64_t stride, padding, dilation, groups; /* Defaults: 1, 0, 1, 1. */
    bool bias; /* false before a batch norm. Default: true. */
    shard_dtype dtype;
} shard_nn_conv2d_options;
#define SHARD_NN_CONV2D_OPTIONS_VALUES sizeof(shard_nn_conv2d_options), 1, 0, 1, 1, true, SHARD_FLOAT32
#define SHARD_NN_CONV2D_OPTIONS_INIT {SHARD_NN_CONV2D_OPTIONS_VALUES}
/* A convolution: weight [out, in / groups, kernel, kernel], bias [out]. The weight's initial values are kaiming normal by fan
 * out, as in torchvision's ResNet; torch.nn.Conv2d has kaiming uniform by fan in (shard_nn_init_kaiming_uniform with .a =
 * sqrt(5)). The bias has PyTorch's. As torch.nn.Conv2d. */
#define shard_nn_conv2d(in, out, ...) \
    SHARD_GIVEN(shard_nn_conv2d_with(in, out, SHARD_OPTIONS(shard_nn_conv2d_options, SHARD_NN_CONV2D_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_conv2d_with(int64_t in, int64_t out, int64_t kernel, const shard_nn_conv2d_options *options);

/* A batch norm: weight, bias [channels]; buffers running_mean, running_var, num_batches_tracked. With a group the
 * forward in training is collective. A training batch of one row in all is an error, as in shard_batch_norm: one sample of an
 * image of one pixel, or of a vector. As torch.nn.BatchNorm2d and SyncBatchNorm. */
typedef struct shard_nn_batch_norm_options {
    size_t size;
    double momentum, eps; /* Defaults: 0.1, 1e-5. */
    shard_group *group;   /* synchronized over it while training */
    shard_dtype dtype;    /* of the values; parameters and buffers of a 16-bit batch norm are float32 */
} shard_nn_batch_norm_options;
#define SHARD_NN_BATCH_NORM_OPTIONS_VALUES sizeof(shard_nn_batch_norm_options), 0.1, 1e-5, NULL, SHARD_FLOAT32
#define SHARD_NN_BATCH_NORM_OPTIONS_INIT {SHARD_NN_BATCH_NORM_OPTIONS_VALUES}
#define shard_nn_batch_norm(...)           \
    SHARD_GIVEN(shard_nn_batch_norm_with( \
        SHARD_OPTIONS(shard_nn_batch_norm_options, SHARD_NN_BATCH_NORM_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_batch_norm_with(int64_t channels, const shard_nn_batch_norm_options *options);
/* relu(batch_norm(x) + residual) in one pass; residual NULL: none. For custom modules with a batch norm as a child.
 * Collective as the batch norm's forward. */
SHARD_API shard_tensor *shard_nn_batch_norm_relu(shard_module *batch_norm, shard_tensor *x, shard_tensor *residual);
/* Synchronizes every batch norm of the module over group from now on, as SyncBatchNorm.convert_sync_batchnorm; NULL
 * ends it. Not collective, but the module's forward is, over group, while training. */
SHARD_API void shard_nn_sync_batch_norm(shard_module *module, shard_group *group);

/* A layer norm of the last dimension: weight, bias [size]. eps is 1e-5 in torch. As torch.nn.LayerNorm. */
typedef struct shard_nn_layer_norm_options {
    size_t size;
    bool elementwise_affine; /* false: neither weight nor bias. Default: true. */
    bool bias;               /* false: weight alone. Default: true. */
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
    double max_norm, norm_type; /* as shard_embedding. Defaults: INFINITY, 2. */
    bool scale_grad_by_freq;
    shard_dtype dtype;
} shard_nn_embedding_options;
#define SHARD_NN_EMBEDDING_OPTIONS_VALUES sizeof(shard_nn_embedding_options), INFINITY, 2.0, false, SHARD_FLOAT32
#define SHARD_NN_EMBEDDING_OPTIONS_INIT {SHARD_NN_EMBEDDING_OPTIONS_VALUES}
/* weight [count, dim], standard normal, the padding row zeros. The row padding_idx gets no gradient; -1: none.
 * x is int64 [...], the result [..., dim]. As torch.nn.Embedding. */
#define shard_nn_embedding(count, dim, ...) \
    SHARD_GIVEN(shard_nn_embedding_with(   \
        count, dim, SHARD_OPTIONS(shard_nn_embedding_options, SHARD_NN_EMBEDDING_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_embedding_with(int64_t count, int64_t dim, int64_t padding_idx,
                                                const shard_nn_embedding_options *options);

/* An embedding layer that is split over group: ROW splits weight along dimension 0, the vocabulary (torchshard's dim
 * 0), COLUMN along dimension 1 (torchshard's dim 1 or -1). x is the same on all ranks of group, and the result is
 * local: the sum of the ranks' results, or their columns, gathered. Shards may be uneven, and empty if there are
 * more ranks than rows or columns. NONE: the layer is local on each rank. Initial values are those of the whole
 * layer. Not collective, but its forward is, over group. As torchshard.nn.ParallelEmbedding. */
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

/* ---- activations, dropout, pooling ---- */

/* Modules of shard_relu, shard_gelu and so on. The forward checks the numbers. */
SHARD_API shard_module *shard_nn_relu(void);
SHARD_API shard_module *shard_nn_leaky_relu(double negative_slope);
SHARD_API shard_module *shard_nn_gelu(void);
SHARD_API shard_module *shard_nn_silu(void);
SHARD_API shard_module *shard_nn_softplus(double beta, double threshold);
SHARD_API shard_module *shard_nn_sigmoid(void);
SHARD_API shard_module *shard_nn_tanh(void);
/* shard_dropout in training, in evaluation x itself; p in [0, 1]. */
SHARD_API shard_module *shard_nn_dropout(double p);
/* Gives every dropout of the module this .group of shard_dropout from now on, the ranks with the samples of one batch; NULL ends
 * it. Then training has the same dropout on any number of ranks. Not collective, but the module's forward is, over group, while
 * training. */
SHARD_API void shard_nn_sync_dropout(shard_module *module, shard_group *group);

typedef struct shard_nn_prelu_options {
    size_t size;
    double init; /* of all slopes. Default: 0.25. */
    shard_dtype dtype;
} shard_nn_prelu_options;
#define SHARD_NN_PRELU_OPTIONS_VALUES sizeof(shard_nn_prelu_options), 0.25, SHARD_FLOAT32
#define SHARD_NN_PRELU_OPTIONS_INIT                                                                                              \
    {                                                                                                                            \
        SHARD_NN_PRELU_OPTIONS_VALUES                                                                                            \
    }
/* shard_prelu with a weight [channels]; 1: one slope for all channels. As torch.nn.PReLU. */
#define shard_nn_prelu(...)                                                                                                      \
    SHARD_GIVEN(shard_nn_prelu_with(SHARD_OPTIONS(shard_nn_prelu_options, SHARD_NN_PRELU_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_nn_prelu_with(int64_t channels, const shard_nn_prelu_options *options);

/* Flattens all dimensions but the first into one. Images [n, h, w, c] become rows in the order c, h, w, which PyTorch's have, so
 * that the weight of a linear layer behind it is the same in both; shard_flatten keeps the order h, w, c. As torch.nn.Flatten. */
SHARD_API shard_module *shard_nn_flatten(void);
/* stride -1: the kernel's size. The other options of shard_max_pool2d and shard_avg_pool2d have their defaults. The forward
 * checks the three numbers. */
SHARD_API shard_module *shard_nn_max_pool2d(int64_t kernel, int64_t stride, int64_t padding);
SHARD_API shard_module *shard_nn_avg_pool2d(int64_t kernel, int64_t stride, int64_t padding);
SHARD_API shard_module *shard_nn_global_avg_pool2d(void);

/* A sequence of modules, named "0", "1", ...; as torch.nn.Sequential. */
#define shard_nn_sequential(...)                                                                                   \
    SHARD_GIVEN(shard_nn_sequential_of((int)(sizeof((shard_module *[]){__VA_ARGS__}) / sizeof(shard_module *)),    \
                                       (shard_module *[]){__VA_ARGS__}))
SHARD_API shard_module *shard_nn_sequential_of(int count, shard_module **modules);

/* ---- conversion ---- */

/*
 * Replaces every linear layer of the module, itself included, whose dotted name matches pattern (fnmatch; NULL: all)
 * by a parallel one over group. A layer with values gets those of the group's first rank; a layer whose initial
 * values were not needed yet never makes the whole. *module may be replaced; a child is replaced in its parent too.
 * Sets *converted (NULL is fine) to the number of layers. Call it before data parallel and optimizers are made.
 * Errors: ARGUMENT, no layer matches, or only split layers, split is neither ROW nor COLUMN, a layer whose
 * .split_multiple does not divide the features that are split, or a layer that shares its weight or bias with another one of the
 * module; MISMATCH, layers differ between ranks. *converted is unchanged then, and layers that were
 * converted before the error stay so. Collective over group. As torchshard.nn.ParallelLinear.convert_parallel_linear.
 */
SHARD_API SHARD_CHECKED shard_status shard_convert_parallel_linear(shard_module **module, const char *pattern, shard_split split,
                                                                   shard_group *group, int *converted);

/* As shard_convert_parallel_linear with COLUMN; the new layers are those of shard_nn_parallel_classifier. Collective over
 * group. */
SHARD_API SHARD_CHECKED shard_status shard_convert_parallel_classifier(shard_module **module, const char *pattern,
                                                                       shard_group *group, int *converted);

/* As shard_convert_parallel_linear for embedding layers, which keep their padding_idx and options. Collective over
 * group. As torchshard.nn.ParallelEmbedding.convert_parallel_embedding. */
SHARD_API SHARD_CHECKED shard_status shard_convert_parallel_embedding(shard_module **module, const char *pattern,
                                                                      shard_split split, shard_group *group, int *converted);

/* ---- initial values, in place ---- */

/* Set the values of a leaf: a parameter of a module, local or split, also in the memory of shard_data_parallel or
 * shard_zero_optimizer. Random values take the next draw of the thread's generator, and are the same for any number of ranks
 * and any split. Fan in and fan out are those of the whole tensor [out, in, ...]. docs/pytorch.md ("Initial values") has the
 * conditions.
 * Errors: ARGUMENT, a result of an operation, a dtype that is not floating (not for constants), numbers that make no
 * distribution, or that the dtype does not have; SHAPE, fewer than two dimensions for xavier and kaiming; UNSUPPORTED, a
 * partial tensor, and random values of one that is split along another dimension than the first or last, or in a graph's
 * capture. Not collective, but replicas are identical only if all ranks make the call. As torch.nn.init, and
 * torchshard.nn.init.shard_init_helper_ around it. */
SHARD_API SHARD_CHECKED shard_status shard_nn_init_constant(shard_tensor *tensor, double value);
SHARD_API SHARD_CHECKED shard_status shard_nn_init_zeros(shard_tensor *tensor);
SHARD_API SHARD_CHECKED shard_status shard_nn_init_ones(shard_tensor *tensor);
SHARD_API SHARD_CHECKED shard_status shard_nn_init_uniform(shard_tensor *tensor, double low, double high);
SHARD_API SHARD_CHECKED shard_status shard_nn_init_normal(shard_tensor *tensor, double mean, double std);
/* Normal numbers between low and high, by the inverse of the cumulative distribution. As trunc_normal_ with its a
 * and b. Farther than some 4 std from the mean there are few different numbers, and from 5.4 on the bound alone. */
SHARD_API SHARD_CHECKED shard_status shard_nn_init_trunc_normal(shard_tensor *tensor, double mean, double std, double low,
                                                                double high);

/* Standard deviation gain * sqrt(2 / (fan in + fan out)). Glorot, Bengio 2010. gain is 1 or shard_nn_init_gain's;
 * its sign does not count. */
SHARD_API SHARD_CHECKED shard_status shard_nn_init_xavier_uniform(shard_tensor *tensor, double gain);
SHARD_API SHARD_CHECKED shard_status shard_nn_init_xavier_normal(shard_tensor *tensor, double gain);

typedef enum shard_fan { SHARD_FAN_IN = 0, SHARD_FAN_OUT } shard_fan;
typedef enum shard_nonlinearity {
    SHARD_NONLINEARITY_LEAKY_RELU = 0,
    SHARD_NONLINEARITY_RELU,
    SHARD_NONLINEARITY_LINEAR, /* and convolutions */
    SHARD_NONLINEARITY_SIGMOID,
    SHARD_NONLINEARITY_TANH,
    SHARD_NONLINEARITY_SELU,
} shard_nonlinearity;
/* The gain of a nonlinearity, as torch.nn.init.calculate_gain. negative_slope is for LEAKY_RELU (torch's default is
 * 0.01). NAN with the error set. */
SHARD_API double shard_nn_init_gain(shard_nonlinearity nonlinearity, double negative_slope);

typedef struct shard_nn_init_kaiming_options {
    size_t size;
    /* the negative slope of LEAKY_RELU; with 0, torch's default, it is RELU */
    double a;
    shard_fan mode;
    shard_nonlinearity nonlinearity;
} shard_nn_init_kaiming_options;
#define SHARD_NN_INIT_KAIMING_OPTIONS_VALUES \
    sizeof(shard_nn_init_kaiming_options), 0.0, SHARD_FAN_IN, SHARD_NONLINEARITY_LEAKY_RELU
#define SHARD_NN_INIT_KAIMING_OPTIONS_INIT {SHARD_NN_INIT_KAIMING_OPTIONS_VALUES}
/* Standard deviation gain / sqrt(fan of the mode). He et al. 2015. */
#define shard_nn_init_kaiming_uniform(...)                                                                                       \
    SHARD_GIVEN_STATUS(shard_nn_init_kaiming_uniform_with(                                                                       \
        SHARD_OPTIONS(shard_nn_init_kaiming_options, SHARD_NN_INIT_KAIMING_OPTIONS, __VA_ARGS__)))
#define shard_nn_init_kaiming_normal(...)                                                                                        \
    SHARD_GIVEN_STATUS(shard_nn_init_kaiming_normal_with(                                                                        \
        SHARD_OPTIONS(shard_nn_init_kaiming_options, SHARD_NN_INIT_KAIMING_OPTIONS, __VA_ARGS__)))
SHARD_API SHARD_CHECKED shard_status shard_nn_init_kaiming_uniform_with(shard_tensor *tensor,
                                                                        const shard_nn_init_kaiming_options *options);
SHARD_API SHARD_CHECKED shard_status shard_nn_init_kaiming_normal_with(shard_tensor *tensor,
                                                                       const shard_nn_init_kaiming_options *options);

/* ---- custom modules ---- */

typedef struct shard_module_type {
    const char *name;
    /* Returns the result, or NULL with the error set (shard_error); its temporaries are freed when it returns. A type
     * whose .forward is NULL cannot be called. */
    shard_tensor *(*forward)(shard_module *module, shard_tensor *x);
    /* Frees data's memory (not parameters or children); NULL: nothing to free. */
    void (*destroy)(shard_module *module);
} shard_module_type;

/* Makes a module of a custom type. data belongs to the module: type->destroy frees it, also if this function fails.
 * type must outlive the module. NULL with the error set. Not collective. */
SHARD_API shard_module *shard_module_create(const shard_module_type *type, void *data);
SHARD_API void *shard_module_data(const shard_module *module);
SHARD_API const shard_module_type *shard_module_get_type(const shard_module *module);

/* Adds a tensor by name and sets its requires_grad: true for a parameter, false for a buffer. The module takes a
 * reference. Errors: ARGUMENT, a name that is empty, has a dot or is in use, a result of an operation, a parameter whose dtype is
 * not floating; for a NULL tensor the thread's error. Not collective. As register_parameter and register_buffer. */
SHARD_API SHARD_CHECKED shard_status shard_module_add_parameter(shard_module *module, const char *name, shard_tensor *tensor);
SHARD_API SHARD_CHECKED shard_status shard_module_add_buffer(shard_module *module, const char *name, shard_tensor *tensor);
/* Replaces a parameter by another tensor of the same shape, dtype, placement and device (else SHAPE), as head.weight =
 * embedding.weight; the name may be dotted. The module takes a reference and sets requires_grad. Errors: ARGUMENT, no such
 * parameter, or a tensor that cannot be one. Call it before data parallel and optimizers are made. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_module_set_parameter(shard_module *module, const char *name, shard_tensor *tensor);
/* Adds a child, which the module owns from now on. After an error it is destroyed, but for a child that has a parent
 * already, or that is the module or above it: it stays with its owner. Errors: ARGUMENT, such a child, a name as of
 * shard_module_add_parameter. */
SHARD_API SHARD_CHECKED shard_status shard_module_add_child(shard_module *module, const char *name, shard_module *child);

/* Replaces a child, here or below, by its dotted name. The old one is destroyed with all modules below it, as model.fc = head in
 * PyTorch. The module owns the new one from now on. Errors: ARGUMENT, no such child, and those of shard_module_add_child; the
 * module is unchanged then, and the new one is destroyed or stays with its owner, as there. Call it before data parallel and
 * optimizers are made. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_module_set_child(shard_module *module, const char *name, shard_module *child);

/* A child, parameter or buffer, which is the module's: it is not released. The name may be dotted, as in a state dict: "0.bias"
 * is the bias of the child "0"; as get_submodule and get_parameter in torch. shard_module_child and shard_module_tensor: NULL
 * with the error set if there is none. shard_module_optional: NULL without an error, for tensors that a module may lack (a
 * bias). Look children up when they are used, since a conversion may replace them. */
SHARD_API shard_module *shard_module_child(const shard_module *module, const char *name);
SHARD_API shard_tensor *shard_module_tensor(const shard_module *module, const char *name);
SHARD_API shard_tensor *shard_module_optional(const shard_module *module, const char *name);
/* The number of children, and a child and its name by index. NULL, without an error, for an index that is out of range. */
SHARD_API int shard_module_child_count(const shard_module *module);
SHARD_API shard_module *shard_module_child_at(const shard_module *module, int index);
SHARD_API const char *shard_module_child_name(const shard_module *module, int index);

SHARD_END_C

#endif
