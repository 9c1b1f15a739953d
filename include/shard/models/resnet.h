/*
 * shard/models/resnet.h: ResNet (He, Zhang, Ren, Sun, "Deep residual learning for image
 * recognition", CVPR 2016), as torchvision.models.resnet18 to resnet152: the names, shapes
 * and initial values are torchvision's, so that state dicts go both ways. The 3x3
 * convolution of a bottleneck has the stride, as in torchvision ("v1.5").
 *
 *     shard_module *model = shard_resnet("resnet50", 1000000);
 *     shard_convert_parallel_linear(&model, "fc", SHARD_SPLIT_COLUMN, group, NULL);
 *     shard_resnet_gather_features(model, group);
 *
 * The children are conv1, bn1, layer1 to layer4 and fc, the last layer.
 */
#ifndef SHARD_MODELS_RESNET_H
#define SHARD_MODELS_RESNET_H

#include <shard/nn.h>

SHARD_BEGIN_C

typedef enum shard_resnet_stem {
    SHARD_RESNET_STEM_IMAGENET = 0, /* conv1 [64, 3, 7, 7] with stride 2, then a max pooling: 1/4 of each side */
    SHARD_RESNET_STEM_SMALL,        /* conv1 [64, 3, 3, 3], no pooling: for images of 32 to 64 pixels; not in torchvision */
} shard_resnet_stem;

typedef struct shard_resnet_options {
    size_t size;
    shard_resnet_stem stem;
    shard_dtype dtype; /* of weights and values; batch norms of a 16-bit model keep their parameters in float32 */
    int64_t width;     /* channels of the first stage; the others have 2, 4 and 8 times as many. Default: 64, torchvision's. */
} shard_resnet_options;
#define SHARD_RESNET_OPTIONS_VALUES sizeof(shard_resnet_options), SHARD_RESNET_STEM_IMAGENET, SHARD_FLOAT32, 64
#define SHARD_RESNET_OPTIONS_INIT {SHARD_RESNET_OPTIONS_VALUES}

/*
 * Makes a ResNet for images [n, height, width, 3] of options.dtype; its result is the logits [n, num_classes]. arch
 * is "resnet18", "resnet34", "resnet50", "resnet101" or "resnet152". The caller destroys it by shard_module_destroy.
 * NULL with the error set: ARGUMENT, an unknown arch or stem, a width outside [1, 8388607], a dtype that is not floating, or
 * num_classes as of shard_nn_linear; MEMORY; the error that the thread has already. Not
 * collective; its forward is if features are gathered or the last layer is split. As torchvision.models.resnet50.
 */
#define shard_resnet(arch, ...) \
    SHARD_GIVEN(shard_resnet_with(arch, SHARD_OPTIONS(shard_resnet_options, SHARD_RESNET_OPTIONS, __VA_ARGS__)))
SHARD_API shard_module *shard_resnet_with(const char *arch, int64_t num_classes, const shard_resnet_options *options);

/*
 * Gathers features before the last layer: each rank computes the other layers on its own images, and the last
 * layer gets the features of all ranks' images, in rank order. The result is [sum of n, num_classes]. For a last
 * layer that is split over group. NULL ends it. The group must outlive the model's use. Errors: ARGUMENT, a module
 * that shard_resnet has not made. The loss needs the labels of all these images: shard_gather_from_group(labels, 0, group).
 * Not collective, but from then on the model's forward is collective over group.
 */
SHARD_API SHARD_CHECKED shard_status shard_resnet_gather_features(shard_module *resnet, shard_group *group);

/* "resnet18, resnet34, ...", for messages; static. */
SHARD_API const char *shard_resnet_names(void);
/* Whether arch is a name of these; false for NULL. */
SHARD_API bool shard_resnet_exists(const char *arch);

/* The length of the vector that fc reads in a model of width 64: 512 or 2048; 0 for an unknown arch. */
SHARD_API int64_t shard_resnet_features(const char *arch);

SHARD_END_C

#endif
