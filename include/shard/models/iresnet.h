/*
 * shard/models/iresnet.h: the ResNet of face recognition (Deng, Guo, Xue, Zafeiriou, "ArcFace", CVPR 2019), as
 * iresnet18 to iresnet200 of insightface's recognition/arcface_torch: names, shapes and initial values are insightface's,
 * so that its backbones load and state dicts go both ways.
 *
 *     shard_module *backbone = shard_iresnet("iresnet50");
 *     shard_module *classifier = shard_nn_parallel_classifier(512, identities, group, .bias = false);
 *     shard_tensor *logits = shard_forward(classifier, shard_forward(backbone, faces));
 *     shard_tensor *loss = shard_cross_entropy(logits, labels, .normalized = true, .margin = SHARD_MARGIN(.m2 = 0.5));
 *
 * The children are conv1, bn1, prelu, layer1 to layer4, bn2, dropout, fc and features, a batch norm whose weight is frozen at 1.
 * fc reads the last feature map in PyTorch's order: channels, height, width.
 */
#ifndef SHARD_MODELS_IRESNET_H
#define SHARD_MODELS_IRESNET_H

#include <shard/nn.h>

SHARD_BEGIN_C

typedef struct shard_iresnet_options {
    size_t size;
    int64_t num_features; /* length of the result. Default: 512. */
    int64_t image_size;   /* height and width; each stage halves it, rounded up: fc reads 7 x 7 of 112. Default: 112. */
    int64_t width;        /* channels of the first stage; the others have 2, 4 and 8 times as many. Default: 64, insightface's. */
    double dropout;       /* before fc */
    shard_dtype dtype;    /* of weights and values; batch norms of a 16-bit model keep their parameters in float32 */
} shard_iresnet_options;
#define SHARD_IRESNET_OPTIONS_VALUES sizeof(shard_iresnet_options), 512, 112, 64, 0.0, SHARD_FLOAT32
#define SHARD_IRESNET_OPTIONS_INIT                                                                                               \
    {                                                                                                                            \
        SHARD_IRESNET_OPTIONS_VALUES                                                                                             \
    }

/*
 * Makes an iResNet for images [n, image_size, image_size, 3] of options.dtype; its result is the features [n, num_features].
 * arch is "iresnet18", "iresnet34", "iresnet50", "iresnet100" or "iresnet200". insightface's images are red, green, blue from
 * -1 to 1. The caller destroys it by shard_module_destroy. NULL with the error set: ARGUMENT, an unknown arch, or a number out
 * of range (image_size: 65,536 at most), or a dtype that is not floating; MEMORY; the error that the thread has already. Not
 * collective; its forward is if batch norms are synchronized.
 */
#define shard_iresnet(...)                                                                                                       \
    SHARD_GIVEN(shard_iresnet_with(SHARD_OPTIONS(shard_iresnet_options, SHARD_IRESNET_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_iresnet_with(const char *arch, const shard_iresnet_options *options);

/* "iresnet18, iresnet34, ...", for messages; static. */
SHARD_API const char *shard_iresnet_names(void);
/* Whether arch is a name of these; false for NULL. */
SHARD_API bool shard_iresnet_exists(const char *arch);

SHARD_END_C

#endif
