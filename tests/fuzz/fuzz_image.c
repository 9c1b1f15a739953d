/* Any bytes as a picture: decoded at each scale and resampled, or refused with an error. */
#include "image.h"
#include "transform.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static image picture;
    static resampler scratch;
    static uint8_t out[8 * 8 * 3];
    image_file file = {.path = "fuzz", .bytes = (uint8_t *)(uintptr_t)data, .size = size};
    int64_t height, width;
    shard_status status = image_read_size(&file, &height, &width);
    /* Larger pictures only take longer. */
    for (int eighths = 1; status == SHARD_OK && height * width <= 1 << 16 && eighths <= 8; eighths *= 2) {
        status = image_decode(&file, eighths, &picture);
        image_box whole = {0, 0, (double)width, (double)height};
        if (status == SHARD_OK &&
            resample(&picture, box_in_decoded(whole, height, width, &picture), 8, false, out, &scratch) != SHARD_OK)
            abort();
    }
    if (status != shard_last_status())
        abort();
    shard_clear_error();
    return 0;
}
