/* Brings weights into blocks of outputs. */
#include "device/cpu/cpu_conv2d.h"

#include "base/math.h"
#include "device/cpu/cpu_tile.h"

#include <string.h>

enum { INPUTS = 16, MOST_BLOCK = 64, MOST_TAPS = 25 };

/* Inputs [input, end) of the outputs [output, + filled): their floats of each
 * output lie together, those of each input and tap shall. */
static void pack_outputs(const shard_conv_shape *s, int64_t block, int64_t output, int64_t filled, int64_t input, int64_t end,
                         const float *weight, float *packed)
{
    float buffer[INPUTS * MOST_TAPS * MOST_BLOCK];
    int64_t taps = s->kh * s->kw;
    if (filled < block)
        memset(buffer, 0, (size_t)((end - input) * taps * block) * sizeof *buffer);
    shard_cpu_transpose(filled, (end - input) * taps, weight + (output * s->c + input) * taps, s->c * taps, buffer, block);
    for (int64_t tap = 0; tap < taps; tap++) {
        float *to = packed + (output * taps + tap * block) * s->c;
        for (int64_t j = input; j < end; j++)
            memcpy(to + j * block, buffer + ((j - input) * taps + tap) * block, (size_t)block * sizeof *to);
    }
}

/* As above for the transposed weights, in which inputs and outputs are exchanged. */
static void pack_transposed(const shard_conv_shape *s, int64_t block, int64_t output, int64_t filled, int64_t input, int64_t end,
                            const float *weight, float *packed)
{
    int64_t taps = s->kh * s->kw;
    for (int64_t j = input; j < end; j++) {
        float *to = packed + output * taps * s->o + j * block;
        shard_cpu_transpose(filled, taps, weight + (j * s->c + output) * taps, taps, to, block * s->o);
        for (int64_t tap = 0; tap < taps && filled < block; tap++)
            memset(to + tap * block * s->o + filled, 0, (size_t)(block - filled) * sizeof *to);
    }
}

bool shard_cpu_conv2d_can_pack(const shard_conv_shape *s)
{
    return s->groups == 1 && s->kh * s->kw <= MOST_TAPS;
}

void shard_cpu_conv2d_pack(const shard_conv_shape *s, bool transposed, int64_t block, const float *weight, float *packed)
{
    int64_t outputs = transposed ? s->c : s->o, inputs = transposed ? s->o : s->c;
    int64_t blocks = shard_divide_up(outputs, block), parts = shard_divide_up(inputs, INPUTS);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < blocks * parts; i++) {
        int64_t output = i / parts * block, filled = outputs - output < block ? outputs - output : block;
        int64_t input = i % parts * INPUTS, end = inputs - input < INPUTS ? inputs : input + INPUTS;
        (transposed ? pack_transposed : pack_outputs)(s, block, output, filled, input, end, weight, packed);
    }
}
