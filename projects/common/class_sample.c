#include "class_sample.h"

shard_status class_sample_draw(class_sample *made, const int64_t *labels, int64_t count, shard_tensor *weight, double rate,
                               bool corrected, uint64_t seed, int64_t step)
{
    *made = (class_sample){NULL};
    if (rate >= 1)
        return SHARD_OK;
    shard_tensor *all = shard_from_host(labels, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
    made->classes = shard_sample_classes(all, weight, rate, seed, step);
    if (corrected)
        made->correction = shard_sample_correction(made->classes, all, rate);
    return shard_last_status();
}
