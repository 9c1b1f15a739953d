#include "synthetic.h"

#include "random.h"
#include "transform.h"

#define GRID 8 /* the pattern is GRID x GRID flat fields */

int64_t synthetic_label(const synthetic *source, int64_t sample)
{
    return (int64_t)(random_hash('l', (uint64_t)(source->first + sample), 0) % (uint64_t)source->num_classes);
}

void synthetic_image(const synthetic *source, int64_t sample, int64_t size, uint8_t *out)
{
    float pattern[GRID * GRID * 3];
    random_stream of_class = random_start('c', 0, (uint64_t)synthetic_label(source, sample));
    for (int i = 0; i < GRID * GRID * 3; i++)
        pattern[i] = (float)random_between(&of_class, -1.2, 1.2);

    random_stream of_sample = random_start('s', 0, (uint64_t)(source->first + sample));
    for (int64_t y = 0; y < size; y++)
        for (int64_t x = 0; x < size; x++) {
            const float *field = pattern + (y * GRID / size * GRID + x * GRID / size) * 3;
            uint64_t noise = random_next(&of_sample);
            for (int c = 0; c < 3; c++, noise >>= 20) /* uniform in [-1.2, 1.2) of 20 bits a channel */
                *out++ = image_level(c, (double)(field[c] + ((float)(noise & 0xfffff) * 0x1p-19f - 1) * 1.2f));
        }
}
