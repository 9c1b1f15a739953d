/*
 * How operands are expanded to the shape of a result (NumPy's broadcasting): an operand's
 * dimension of size 1, or one that it lacks in front, is repeated. Dimensions that stay side
 * by side in every operand are merged, those of size 1 are gone. Also for kernels.
 */
#ifndef SHARD_DEVICE_EXPANSION_H
#define SHARD_DEVICE_EXPANSION_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

enum { SHARD_EXPANSION_DIMS = 8, SHARD_EXPANSION_OPERANDS = 3 };

/* The result's dimensions, outermost first, at least one; and the step of each in an operand, in elements: 0 if it
 * is repeated. The last dimension's steps are 0 or 1. */
typedef struct shard_expansion {
    int64_t ndim;
    int64_t size[SHARD_EXPANSION_DIMS];
    int64_t step[SHARD_EXPANSION_OPERANDS][SHARD_EXPANSION_DIMS];
} shard_expansion;

/* Puts a dimension behind the others, or makes the last one longer by it. */
static inline void shard_expansion_append(shard_expansion *over, int64_t size, const int64_t *step)
{
    int64_t last = over->ndim - 1;
    bool merge = last >= 0;
    for (int k = 0; k < SHARD_EXPANSION_OPERANDS && merge; k++)
        merge = over->step[k][last] == step[k] * size;
    if (!merge)
        last = over->ndim++;
    over->size[last] = merge ? over->size[last] * size : size;
    for (int k = 0; k < SHARD_EXPANSION_OPERANDS; k++)
        over->step[k][last] = step[k];
}

/* Of operands of these shapes, whose last dimension is the result's last one; the rest of
 * the operands counts as one element. */
static inline shard_expansion shard_expansion_of(int ndim, const int64_t *shape, int operands, const int *operand_ndim,
                                                 const int64_t *const *operand_shape)
{
    int64_t steps[SHARD_EXPANSION_DIMS][SHARD_EXPANSION_OPERANDS], all = 1;
    shard_expansion over;
    memset(&over, 0, sizeof over);
    memset(steps, 0, sizeof steps);
    for (int k = 0; k < operands; k++) {
        int64_t step = 1;
        for (int i = ndim - 1, j = operand_ndim[k] - 1; j >= 0; i--, j--) {
            steps[i][k] = operand_shape[k][j] == 1 ? 0 : step;
            step *= operand_shape[k][j];
        }
    }
    for (int i = 0; i < ndim; i++)
        all *= shape[i];
    for (int i = 0; i < ndim && all > 0; i++)
        if (shape[i] != 1)
            shard_expansion_append(&over, shape[i], steps[i]);
    const int64_t ones[SHARD_EXPANSION_OPERANDS] = {1, 1, 1};
    if (over.ndim == 0)
        shard_expansion_append(&over, all, ones);
    return over;
}

/* Of [rows, cols] and [cols]; of two arrays of one shape where rows is 1. */
static inline shard_expansion shard_expansion_rows(int64_t rows, int64_t cols)
{
    const int64_t a[] = {rows, cols}, *const shapes[] = {a, a + 1};
    const int ndim[] = {2, 1};
    return shard_expansion_of(2, a, 2, ndim, shapes);
}

static inline int64_t shard_expansion_count(const shard_expansion *over)
{
    int64_t n = 1;
    for (int i = 0; i < over->ndim; i++)
        n *= over->size[i];
    return n;
}

/* Whether the operand is an array like the result. */
static inline bool shard_expansion_dense(const shard_expansion *over, int operand)
{
    int64_t step = 1;
    bool dense = true;
    for (int64_t i = over->ndim - 1; i >= 0 && dense; i--) {
        dense = over->step[operand][i] == step;
        step *= over->size[i];
    }
    return dense;
}

/* Whether the operand is repeated over rows of a dense result alone, whose length is set in *cols. */
static inline bool shard_expansion_by_rows(const shard_expansion *over, int operand, int64_t *cols)
{
    const int64_t *step = over->step[operand], *size = over->size;
    *cols = over->ndim == 1 ? 1 : size[1];
    return (over->ndim == 1 && step[0] == 0) || (over->ndim == 2 && step[0] == 0 && step[1] == 1);
}

/* The index in an operand of the result's index-th element. */
SHARD_KERNEL int64_t shard_expansion_locate(const shard_expansion *over, int operand, int64_t index)
{
    int64_t at = 0;
    for (int64_t i = over->ndim - 1; i >= 0; i--) {
        int64_t outer = i > 0 ? index / over->size[i] : 0;
        at += (index - outer * over->size[i]) * over->step[operand][i];
        index = outer;
    }
    return at;
}

#endif
