/*
 * The arguments of permute's kernels: dimensions that stay side by side are merged, those of size 1 are removed.
 * Also for kernels.
 */
#ifndef SHARD_DEVICE_PERMUTE_H
#define SHARD_DEVICE_PERMUTE_H

#include <stdint.h>

#ifndef SHARD_KERNEL
#define SHARD_KERNEL static inline
#endif

enum { SHARD_PERMUTE_MOST = 8 };

/* The output's dimensions, outermost first, and the steps of each in the input and in the output, in elements. */
typedef struct shard_layout {
    int64_t ndim;
    int64_t size[SHARD_PERMUTE_MOST], from[SHARD_PERMUTE_MOST], to[SHARD_PERMUTE_MOST];
} shard_layout;

static inline shard_layout shard_layout_merged(int ndim, const int64_t *shape, const int *axes)
{
    shard_layout l = {0};
    int64_t strides[SHARD_PERMUTE_MOST], stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= shape[i];
    }
    for (int i = 0; i < ndim; i++) {
        int64_t size = shape[axes[i]], from = strides[axes[i]];
        if (size == 1)
            continue;
        int64_t last = l.ndim - 1;
        if (last >= 0 && l.from[last] == from * size) {
            l.size[last] *= size;
            l.from[last] = from;
        } else {
            l.size[l.ndim] = size;
            l.from[l.ndim++] = from;
        }
    }
    stride = 1;
    for (int64_t i = l.ndim - 1; i >= 0; i--) {
        l.to[i] = stride;
        stride *= l.size[i];
    }
    return l;
}

/* Removes dimension i. */
static inline void shard_layout_take_out(shard_layout *l, int64_t i)
{
    l->ndim--;
    for (; i < l->ndim; i++) {
        l->size[i] = l->size[i + 1];
        l->from[i] = l->from[i + 1];
        l->to[i] = l->to[i + 1];
    }
}

static inline int64_t shard_layout_count(const shard_layout *l)
{
    int64_t n = 1;
    for (int i = 0; i < l->ndim; i++)
        n *= l->size[i];
    return n;
}

/* The index-th element's positions in the input and the output. */
SHARD_KERNEL void shard_layout_locate(const shard_layout *l, int64_t index, int64_t *from, int64_t *to)
{
    *from = *to = 0;
    for (int64_t i = l->ndim - 1; i >= 0; i--) {
        int64_t outer = i > 0 ? index / l->size[i] : 0, position = index - outer * l->size[i];
        index = outer;
        *from += position * l->from[i];
        *to += position * l->to[i];
    }
}

#endif
