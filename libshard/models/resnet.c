/* ResNet: two kinds of block, stages of blocks, a stem and a last layer. */
#include <shard/models/resnet.h>

#include "base/error.h"
#include "base/options.h"
#include "base/memory.h"
#include "models/block.h"
#include "nn/nn.h"

#include <inttypes.h>
#include <string.h>

#define STAGES 4
#define MOST_BLOCKS 36 /* of a stage: resnet152's third */

typedef struct architecture {
    const char *name;
    bool bottleneck;
    int blocks[STAGES];
} architecture;

static const architecture architectures[] = {
    {"resnet18", false, {2, 2, 2, 2}},  {"resnet34", false, {3, 4, 6, 3}},  {"resnet50", true, {3, 4, 6, 3}},
    {"resnet101", true, {3, 4, 23, 3}}, {"resnet152", true, {3, 8, 36, 3}},
};

typedef struct resnet {
    shard_resnet_stem stem;
    shard_group *gather;
} resnet;

const char *shard_resnet_names(void)
{
    return "resnet18, resnet34, resnet50, resnet101, resnet152";
}

static const architecture *find(const char *name)
{
    for (size_t i = 0; name && i < sizeof architectures / sizeof *architectures; i++)
        if (strcmp(architectures[i].name, name) == 0)
            return &architectures[i];
    return NULL;
}

bool shard_resnet_exists(const char *arch)
{
    return find(arch) != NULL;
}

/* The ratio of a block's output channels to its inner channels. */
static int64_t expansion(const architecture *arch)
{
    return arch->bottleneck ? 4 : 1;
}

int64_t shard_resnet_features(const char *arch)
{
    const architecture *found = find(arch);
    return found ? 512 * expansion(found) : 0;
}

/* ---- blocks ---- */

/* Releases x early: without gradients nothing else uses it. */
static shard_tensor *convolve_norm_relu(shard_module *module, const char *convolution, const char *norm, shard_tensor *x,
                                        shard_tensor *residual)
{
    shard_tensor *y = shard_forward(shard_module_child(module, convolution), x);
    shard_tensor *z = shard_nn_batch_norm_relu(shard_module_child(module, norm), y, residual);
    shard_release(y);
    return z;
}

static shard_tensor *basic_forward(shard_module *block, shard_tensor *x)
{
    shard_tensor *y = convolve_norm_relu(block, "conv1", "bn1", x, NULL);
    shard_tensor *shortcut = shard_block_shortcut(block, x);
    return convolve_norm_relu(block, "conv2", "bn2", shortcut ? y : NULL, shortcut); /* without one, there was an error */
}

static shard_tensor *bottleneck_forward(shard_module *block, shard_tensor *x)
{
    shard_tensor *y = convolve_norm_relu(block, "conv1", "bn1", x, NULL);
    shard_tensor *z = convolve_norm_relu(block, "conv2", "bn2", y, NULL);
    shard_release(y);
    shard_tensor *shortcut = shard_block_shortcut(block, x);
    return convolve_norm_relu(block, "conv3", "bn3", shortcut ? z : NULL, shortcut);
}

static const shard_module_type basic_block = {.name = "basic block", .forward = basic_forward};
static const shard_module_type bottleneck = {.name = "bottleneck", .forward = bottleneck_forward};

static void add_convolution(shard_module *module, const char *convolution, const char *norm, int64_t in, int64_t out,
                            int64_t kernel, int64_t stride, shard_dtype dtype)
{
    shard_module_add_child(
        module, convolution,
        shard_nn_conv2d(in, out, kernel, .stride = stride, .padding = kernel / 2, .bias = false, .dtype = dtype));
    shard_module_add_child(module, norm, shard_nn_batch_norm(out, .dtype = dtype));
}

static shard_module *make_block(const architecture *arch, int64_t in, int64_t width, int64_t stride, shard_dtype dtype)
{
    int64_t out = width * expansion(arch);
    shard_module *block = shard_module_create(arch->bottleneck ? &bottleneck : &basic_block, NULL);
    if (arch->bottleneck) {
        add_convolution(block, "conv1", "bn1", in, width, 1, 1, dtype);
        add_convolution(block, "conv2", "bn2", width, width, 3, stride, dtype);
        add_convolution(block, "conv3", "bn3", width, out, 1, 1, dtype);
    } else {
        add_convolution(block, "conv1", "bn1", in, width, 3, stride, dtype);
        add_convolution(block, "conv2", "bn2", width, width, 3, 1, dtype);
    }
    if (stride != 1 || in != out)
        shard_module_add_child(block, "downsample",
                               shard_nn_sequential(shard_nn_conv2d(in, out, 1, .stride = stride, .bias = false, .dtype = dtype),
                                                   shard_nn_batch_norm(out, .dtype = dtype)));
    return shard_module_checked(block, shard_last_status());
}

static shard_module *make_stage(const architecture *arch, int blocks, int64_t in, int64_t width, int64_t stride,
                                shard_dtype dtype)
{
    shard_module *block[MOST_BLOCKS];
    for (int i = 0; i < blocks; i++)
        block[i] =
            i == 0 ? make_block(arch, in, width, stride, dtype) : make_block(arch, width * expansion(arch), width, 1, dtype);
    return shard_nn_sequential_of(blocks, block);
}

/* ---- the model ---- */

static shard_tensor *replace(shard_tensor *x, shard_tensor *y)
{
    shard_release(x);
    return y;
}

static shard_tensor *resnet_forward(shard_module *module, shard_tensor *images)
{
    const resnet *own = shard_module_data(module);
    shard_tensor *x = convolve_norm_relu(module, "conv1", "bn1", images, NULL);
    if (own->stem == SHARD_RESNET_STEM_IMAGENET)
        x = replace(x, shard_max_pool2d(x, 3, .stride = 2, .padding = 1));
    x = replace(x, shard_forward(shard_module_child(module, "layer1"), x));
    x = replace(x, shard_forward(shard_module_child(module, "layer2"), x));
    x = replace(x, shard_forward(shard_module_child(module, "layer3"), x));
    x = replace(x, shard_forward(shard_module_child(module, "layer4"), x));
    x = replace(x, shard_global_avg_pool2d(x));
    x = shard_gather_from_group(x, 0, own->gather);
    return shard_forward(shard_module_child(module, "fc"), x);
}

static const shard_module_type resnet_type = {.name = "resnet", .forward = resnet_forward, .destroy = shard_module_free};

static shard_status check(const char *arch, const shard_resnet_options *options)
{
    if (!arch)
        return shard_null_argument("shard_resnet", "arch");
    if (!find(arch))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_resnet: there is no \"%s\"; there are %s", arch, shard_resnet_names());
    if (options->width < 1 || options->width > SHARD_MODEL_MOST_WIDTH)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_resnet: width %" PRId64 "; 1 to %" PRId64 " channels", options->width,
                           SHARD_MODEL_MOST_WIDTH);
    if (options->stem != SHARD_RESNET_STEM_IMAGENET && options->stem != SHARD_RESNET_STEM_SMALL)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_resnet: there is no stem %d", (int)options->stem);
    if (!shard_dtype_is_float(options->dtype))
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_resnet: dtype %s; a floating one is needed",
                           shard_dtype_name(options->dtype));
    return SHARD_OK;
}

shard_module *shard_resnet_with(const char *arch, int64_t num_classes, const shard_resnet_options *given)
{
    SHARD_READ_OPTIONS(shard_resnet_options, SHARD_RESNET_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    if (check(arch, &options) != SHARD_OK)
        return NULL;
    const architecture *found = find(arch);
    resnet *own = shard_calloc(1, sizeof *own);
    if (!own)
        return NULL;
    own->stem = options.stem;
    shard_module *module = shard_module_create(&resnet_type, own);
    bool small = options.stem == SHARD_RESNET_STEM_SMALL;
    add_convolution(module, "conv1", "bn1", 3, options.width, small ? 3 : 7, small ? 1 : 2, options.dtype);
    static const char *const stage[STAGES] = {"layer1", "layer2", "layer3", "layer4"};
    int64_t in = options.width;
    for (int i = 0; i < STAGES; i++) {
        int64_t width = options.width << i;
        shard_module_add_child(module, stage[i], make_stage(found, found->blocks[i], in, width, i == 0 ? 1 : 2, options.dtype));
        in = width * expansion(found);
    }
    shard_module_add_child(module, "fc", shard_nn_linear(in, num_classes, .dtype = options.dtype));
    return shard_module_checked(module, shard_last_status());
}

shard_status shard_resnet_gather_features(shard_module *module, shard_group *group)
{
    if (!module)
        return shard_null_argument("shard_resnet_gather_features", "resnet");
    if (shard_module_get_type(module) != &resnet_type)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "shard_resnet_gather_features: a module of type \"%s\", which shard_resnet has not made",
                           shard_module_type_name(module));
    resnet *own = shard_module_data(module);
    own->gather = group;
    return SHARD_OK;
}
