/* Flat buffers: the parameters of one dtype and one replica group in one piece of
 * memory, their gradients in another, in the reverse of the order in which the
 * parameters were added, which is about the order in which backward fills them. */
#ifndef SHARD_DIST_FLAT_H
#define SHARD_DIST_FLAT_H

#include "tensor/tensor.h"

typedef struct shard_flat_parameter {
    shard_tensor *tensor; /* a share */
    int64_t start, size;  /* elements in both buffers */
} shard_flat_parameter;

typedef struct shard_flat {
    shard_group *group; /* never NULL, more than one member */
    shard_dtype dtype;
    shard_storage *values, *gradients;
    int64_t size; /* elements of each, with the gaps that keep parameters on 64 bytes */
    shard_flat_parameter *parameters;
    int64_t count;
    struct shard_flat *next;
} shard_flat;

/* One for each dtype and replica group of more than one member; a parameter that is
 * in the list under two names counts once. NULL with *status OK if there is none. */
shard_flat *shard_flat_create(const shard_tensors *parameters, shard_status *status);
/* All of a list. The parameters keep their memory. */
void shard_flat_destroy(shard_flat *flat);

#endif
