/*
 * ResNet (He, Zhang, Ren, Sun, "Deep residual learning for image recognition",
 * CVPR 2016), with torchvision's names, shapes and initial values, so that its
 * state dicts load here and ours there. The 3x3 convolution of a bottleneck has
 * the stride, as in torchvision ("v1.5").
 */
#ifndef IMAGENET_RESNET_H
#define IMAGENET_RESNET_H

#include <shard/nn.h>

/* "resnet18, resnet34, ...", for messages; static. */
const char *resnet_names(void);
bool resnet_exists(const char *arch);

/* The size of the vector that the final layer, "fc", reads. */
int64_t resnet_features(const char *arch);

typedef enum resnet_stem {
    RESNET_STEM_IMAGENET = 0, /* 7x7 with stride 2, then a pooling: 1/4 of each side */
    RESNET_STEM_SMALL,        /* 3x3, no pooling: for images of 32 to 64 pixels */
} resnet_stem;

/* A model for images [n, h, w, 3] of dtype; its result is [n, num_classes]. Batch
 * norms of a 16-bit model keep their parameters in float32. NULL with the error set. */
shard_module *resnet_create(const char *arch, resnet_stem stem, int64_t num_classes, shard_dtype dtype);

/*
 * From now on each rank computes the backbone on its own images, and what the final
 * layer reads is the features of all members' images, in rank order: the result is
 * [sum of n, num_classes]. For a final layer that is split over that group. NULL: none
 * any more.
 */
void resnet_gather_features(shard_module *resnet, shard_group *group);

#endif
