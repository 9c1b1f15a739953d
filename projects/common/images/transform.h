/*
 * From a picture to the square that a network reads: choose a box, resample it, flip. A box is in pixels of the
 * whole picture and need not be on whole pixels, so that the decoder may first decode the picture at a fraction of
 * its size (image_decode). Squares have 8 bits a channel, as torchvision's between its transforms of PIL's images;
 * the device normalizes them (shard_normalize_images).
 */
#ifndef IMAGES_TRANSFORM_H
#define IMAGES_TRANSFORM_H

#include "image.h"
#include "random.h"

#include <shard/base.h>

/* ImageNet's mean and standard deviation, of red, green, blue from 0 to 1, for shard_normalize_images. */
extern const double image_mean[3], image_deviation[3];

/* The level, 0 to 255, whose normalized value is closest to this number. */
uint8_t image_level(int channel, double normalized);

typedef struct image_box {
    double left, top, width, height;
} image_box;

/* The augmentation of training pictures: one of the kinds of box, then a flip. */
typedef struct augmentation {
    double crop_scale; /* torchvision's RandomResizedCrop: the least fraction of the area, 0.08 for ImageNet */
    /* if above 0, instead of it: each edge of the whole picture moves in or out by up to this fraction of a side.
     * For pictures that a crop would cut, as characters. */
    double shift;
    bool square; /* the largest square in the middle, neither cropped nor distorted; its edges are those that move by `shift` */
    bool flip; /* mirror every second picture; characters are not mirrored */
} augmentation;

/* A training box: as torchvision's RandomResizedCrop (aspect ratio 3/4 to 4/3), shifted edges, or the square. */
image_box training_box(int64_t height, int64_t width, const augmentation *augment, random_stream *random);

/*
 * The validation box. For crops: as torchvision's Resize(size * 256 / 224) of
 * the shorter side and CenterCrop(size), in one step. For shifted pictures
 * (shift above 0) and with `square`: the largest square in the middle.
 */
image_box validation_box(int64_t height, int64_t width, int64_t size, const augmentation *augment);

/* The least eighths (for image_decode) at which the box still has size x size pixels; 8 if it has fewer. */
int box_eighths(image_box box, int64_t size);

/* The box in pixels of `decoded`, which is a picture of height x width at a part of its size. */
image_box box_in_decoded(image_box box, int64_t height, int64_t width, const image *decoded);

/* Memory for resampling that is reused. Start with {0}. */
typedef struct resampler {
    void *memory;
    size_t capacity;
} resampler;
void resampler_free(resampler *scratch);

/*
 * Resamples the box of the picture to size x size with PIL's antialiased bilinear filter (if the box is larger than
 * the result, the triangle widens with it), and optionally mirrors it: out is [size, size, 3], rounded once. The
 * border is repeated outside the picture. Errors: ARGUMENT, MEMORY.
 */
shard_status resample(const image *picture, image_box box, int64_t size, bool flip, uint8_t *out, resampler *scratch);

#endif
