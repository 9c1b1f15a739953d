/* Converts images of 8 bits a channel to floating numbers of a given mean and deviation. */
#include "op/op.h"

#include <inttypes.h>

static bool check(const char *function, const shard_tensor *x, const double *mean, const double *std, shard_dtype dtype)
{
    if (!mean || !std)
        return shard_null_argument(function, mean ? "std" : "mean"), false;
    if (x->dtype != SHARD_UINT8 || !shard_dtype_is_float(dtype)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: from %s to %s; it makes floating numbers of uint8", function, shard_dtype_name(x->dtype),
                    shard_dtype_name(dtype));
        return false;
    }
    int ndim = x->shape.ndim;
    int64_t channels = ndim ? x->shape.dim[ndim - 1] : 0;
    if (ndim == 0 || channels > SHARD_IMAGE_CHANNELS) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a tensor of shape %s; [..., channels] with at most %d channels is needed", function,
                    shard_shape_text(&x->shape), SHARD_IMAGE_CHANNELS);
        return false;
    }
    for (int64_t c = 0; c < channels; c++)
        if (!(std[c] > 0) || !isfinite(std[c]) || !isfinite(mean[c])) {
            shard_error(SHARD_ERROR_ARGUMENT,
                        "%s: mean and std of channel %" PRId64 " are %g and %g; two finite numbers are needed, std positive",
                        function, c, mean[c], std[c]);
            return false;
        }
    return shard_check_carried(function, x, ndim - 1);
}

shard_tensor *shard_normalize_images(shard_tensor *x, const double *mean, const double *std, shard_dtype dtype)
{
    const char *function = "shard_normalize_images";
    if (!shard_check_operand(function, x) || !check(function, x, mean, std, dtype))
        return NULL;
    double middle[SHARD_IMAGE_CHANNELS], factor[SHARD_IMAGE_CHANNELS];
    int64_t channels = x->shape.dim[x->shape.ndim - 1];
    for (int64_t c = 0; c < channels; c++) {
        middle[c] = 255 * mean[c];
        factor[c] = 1 / (255 * std[c]);
    }
    shard_tensor *y = shard_tensor_make(x->shape, dtype, shard_device_of(x));
    void *memory[2];
    if (!y || !shard_load(SHARD_INPUTS(x, y), memory))
        return shard_result(y, shard_last_status());
    y->placement = x->placement;
    int64_t pixels = shard_shape_product(&x->shape, 0, x->shape.ndim - 1);
    return shard_result(y, SHARD_RUN(x, normalize_images, pixels, channels, memory[0], middle, factor, memory[1], dtype));
}
