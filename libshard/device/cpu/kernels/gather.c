/* Elements of an operand that is repeated, as the result has them: runs of the last dimension, of which the operand
 * has all or one. */
#include "device/cpu/kernels/kernels.h"

#include <string.h>

#define REPEAT(type)                                                                                                             \
    static void repeat_##type(void *to, const void *from, int64_t n)                                                             \
    {                                                                                                                            \
        type value = *(const type *)from, *y = to;                                                                               \
        for (int64_t i = 0; i < n; i++)                                                                                          \
            y[i] = value;                                                                                                        \
    }
REPEAT(uint8_t)
REPEAT(uint16_t)
REPEAT(uint32_t)
REPEAT(uint64_t)

static void repeat(size_t size, void *to, const void *from, int64_t n)
{
    if (size == 4)
        repeat_uint32_t(to, from, n);
    else if (size == 8)
        repeat_uint64_t(to, from, n);
    else if (size == 2)
        repeat_uint16_t(to, from, n);
    else
        repeat_uint8_t(to, from, n);
}

/* Moves to the next run of the last dimension; *at is where the operand has it. */
static void advance(const shard_expansion *over, int operand, int64_t *index, int64_t *at)
{
    for (int64_t i = over->ndim - 2; i >= 0; i--) {
        *at += over->step[operand][i];
        if (++index[i] < over->size[i])
            return;
        index[i] = 0;
        *at -= over->size[i] * over->step[operand][i];
    }
}

void KERNEL(gather)(const shard_expansion *over, int operand, size_t size, const void *x, int64_t start, int64_t count, void *to)
{
    int64_t last = over->ndim - 1, length = over->size[last], step = over->step[operand][last];
    int64_t index[SHARD_EXPANSION_DIMS], rest = start / length, offset = start - rest * length;
    int64_t at = shard_expansion_locate(over, operand, start - offset);
    for (int64_t i = last - 1; i >= 0; i--) {
        index[i] = rest % over->size[i];
        rest /= over->size[i];
    }
    char *y = to;
    while (count > 0) {
        int64_t run = shard_min(length - offset, count);
        const char *from = (const char *)x + (size_t)(at + offset * step) * size;
        if (step)
            memcpy(y, from, (size_t)run * size);
        else
            repeat(size, y, from, run);
        y += (size_t)run * size;
        count -= run;
        offset = 0;
        advance(over, operand, index, &at);
    }
}
