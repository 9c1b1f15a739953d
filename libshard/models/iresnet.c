/* iResNet: one kind of block, stages of blocks, a stem, and a linear layer between two batch norms. */
#include <shard/models/iresnet.h>

#include "base/error.h"
#include "base/options.h"
#include "models/block.h"
#include "nn/nn.h"

#include <inttypes.h>
#include <string.h>

#define STAGES 4
#define MOST_BLOCKS 60 /* of a stage: iresnet200's third */
#define MOST_SIDE 65536

typedef struct architecture {
    const char *name;
    int blocks[STAGES];
} architecture;

static const architecture architectures[] = {
    {"iresnet18", {2, 2, 2, 2}},    {"iresnet34", {3, 4, 6, 3}},    {"iresnet50", {3, 4, 14, 3}},
    {"iresnet100", {3, 13, 30, 3}}, {"iresnet200", {6, 26, 60, 6}},
};

const char *shard_iresnet_names(void)
{
    return "iresnet18, iresnet34, iresnet50, iresnet100, iresnet200";
}

static const architecture *find(const char *name)
{
    for (size_t i = 0; name && i < sizeof architectures / sizeof *architectures; i++)
        if (strcmp(architectures[i].name, name) == 0)
            return &architectures[i];
    return NULL;
}

bool shard_iresnet_exists(const char *arch)
{
    return find(arch) != NULL;
}

/* ---- blocks ---- */

/* Releases x: without gradients nothing else uses it. */
static shard_tensor *run(shard_module *module, const char *child, shard_tensor *x)
{
    shard_tensor *y = shard_forward(shard_module_child(module, child), x);
    shard_release(x);
    return y;
}

static shard_tensor *block_forward(shard_module *block, shard_tensor *x)
{
    shard_tensor *y = shard_forward(shard_module_child(block, "bn1"), x);
    y = run(block, "conv1", y);
    y = run(block, "bn2", y);
    y = run(block, "prelu", y);
    y = run(block, "conv2", y);
    y = run(block, "bn3", y);
    return shard_add(y, shard_block_shortcut(block, x));
}

static const shard_module_type block_type = {.name = "iresnet block", .forward = block_forward};

/* insightface's initial values. */
static shard_module *make_convolution(int64_t in, int64_t out, int64_t kernel, int64_t stride, shard_dtype dtype)
{
    shard_module *module =
        shard_nn_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2, .bias = false, .dtype = dtype);
    if (module)
        shard_nn_init_normal(shard_module_tensor(module, "weight"), 0, 0.1);
    return module;
}

static shard_module *make_block(int64_t in, int64_t out, int64_t stride, shard_dtype dtype)
{
    shard_module *block = shard_module_create(&block_type, NULL);
    shard_module_add_child(block, "bn1", shard_nn_batch_norm(in, .dtype = dtype));
    shard_module_add_child(block, "conv1", make_convolution(in, out, 3, 1, dtype));
    shard_module_add_child(block, "bn2", shard_nn_batch_norm(out, .dtype = dtype));
    shard_module_add_child(block, "prelu", shard_nn_prelu(out, .dtype = dtype));
    shard_module_add_child(block, "conv2", make_convolution(out, out, 3, stride, dtype));
    shard_module_add_child(block, "bn3", shard_nn_batch_norm(out, .dtype = dtype));
    if (stride != 1 || in != out)
        shard_module_add_child(
            block, "downsample",
            shard_nn_sequential(make_convolution(in, out, 1, stride, dtype), shard_nn_batch_norm(out, .dtype = dtype)));
    return shard_module_checked(block, shard_last_status());
}

static shard_module *make_stage(int blocks, int64_t in, int64_t out, shard_dtype dtype)
{
    shard_module *block[MOST_BLOCKS];
    for (int i = 0; i < blocks; i++)
        block[i] = i == 0 ? make_block(in, out, 2, dtype) : make_block(out, out, 1, dtype);
    return shard_nn_sequential_of(blocks, block);
}

/* ---- the model ---- */

static shard_tensor *iresnet_forward(shard_module *module, shard_tensor *images)
{
    shard_tensor *x = shard_forward(shard_module_child(module, "conv1"), images);
    x = run(module, "bn1", x);
    x = run(module, "prelu", x);
    x = run(module, "layer1", x);
    x = run(module, "layer2", x);
    x = run(module, "layer3", x);
    x = run(module, "layer4", x);
    x = run(module, "bn2", x);
    shard_tensor *rows = shard_flatten_rows(x);
    shard_release(x);
    x = run(module, "dropout", rows);
    x = run(module, "fc", x);
    return run(module, "features", x);
}

static const shard_module_type iresnet_type = {.name = "iresnet", .forward = iresnet_forward};

static shard_status check(const char *arch, const shard_iresnet_options *options)
{
    if (!arch)
        return shard_null_argument("shard_iresnet", "arch");
    if (!find(arch))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: there is no \"%s\"; there are %s", arch, shard_iresnet_names());
    if (options->num_features < 1)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: num_features %" PRId64 "; at least 1 is needed",
                           options->num_features);
    if (options->width < 1 || options->width > SHARD_MODEL_MOST_WIDTH)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: width %" PRId64 "; 1 to %" PRId64 " channels", options->width,
                           SHARD_MODEL_MOST_WIDTH);
    if (options->image_size < 1 || options->image_size > MOST_SIDE)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: image_size %" PRId64 "; 1 to %d pixels", options->image_size,
                           MOST_SIDE);
    if (!shard_dtype_is_float(options->dtype))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_iresnet: dtype %s; a floating one is needed",
                           shard_dtype_name(options->dtype));
    return SHARD_OK;
}

/* Its weight stays 1, so that the features' scale is the classifier's matter alone. */
static shard_module *make_features(int64_t num_features, shard_dtype dtype)
{
    shard_module *features = shard_nn_batch_norm(num_features, .dtype = dtype);
    if (features)
        shard_set_requires_grad(shard_module_tensor(features, "weight"), false);
    return features;
}

shard_module *shard_iresnet_with(const char *arch, const shard_iresnet_options *given)
{
    SHARD_READ_OPTIONS(shard_iresnet_options, SHARD_IRESNET_OPTIONS_INIT, options, given);
    if (!options_ok || check(arch, &options) != SHARD_OK)
        return NULL;
    static const char *const stage[STAGES] = {"layer1", "layer2", "layer3", "layer4"};
    const architecture *found = find(arch);
    shard_dtype dtype = options.dtype;
    int64_t in = options.width, side = options.image_size;
    shard_module *module = shard_module_create(&iresnet_type, NULL);
    shard_module_add_child(module, "conv1", make_convolution(3, in, 3, 1, dtype));
    shard_module_add_child(module, "bn1", shard_nn_batch_norm(in, .dtype = dtype));
    shard_module_add_child(module, "prelu", shard_nn_prelu(in, .dtype = dtype));
    for (int i = 0; i < STAGES; i++) {
        int64_t out = options.width << i;
        shard_module_add_child(module, stage[i], make_stage(found->blocks[i], in, out, dtype));
        in = out;
        side = (side + 1) / 2;
    }
    shard_module_add_child(module, "bn2", shard_nn_batch_norm(in, .dtype = dtype));
    shard_module_add_child(module, "dropout", shard_nn_dropout(options.dropout));
    shard_module_add_child(module, "fc", shard_nn_linear(in * side * side, options.num_features, .dtype = dtype));
    shard_module_add_child(module, "features", make_features(options.num_features, dtype));
    return shard_module_checked(module, shard_last_status());
}
