/*
 * Units: flat memory of one dtype that the ranks of a group reduce and, by ZeRO's partition
 * levels, partition: each rank keeps one flat range of it.
 *
 * A collective moves a flat range of the unit: all of it, for a bucket of many parameters, or one
 * row block, for a matrix that is larger than a bucket. The collectives of all blocks together
 * move as many bytes as one of the whole unit.
 */
#ifndef SHARD_PARALLEL_UNIT_H
#define SHARD_PARALLEL_UNIT_H

#include "tensor/tensor.h"

/* The values that the ranks partition, as ZeRO's stages: https://arxiv.org/abs/1910.02054 */
typedef enum shard_partition_level {
    SHARD_PARTITION_NONE = 0,   /* each rank updates all elements */
    SHARD_PARTITION_OPTIMIZER,  /* each rank updates its range */
    SHARD_PARTITION_GRADIENTS,  /* and keeps only the gradient of its range, */
    SHARD_PARTITION_PARAMETERS, /* and only the values of its range */
} shard_partition_level;

/* Bytes of a parameter's name in messages; of a longer one they have the end. */
#define SHARD_UNIT_NAME 64

typedef struct shard_unit {
    int refs;
    shard_group *group; /* of more than one rank */
    shard_device *device;
    shard_dtype dtype;
    uint64_t identity;                             /* the same on all ranks of the group: each collective compares it */
    char name[SHARD_UNIT_NAME];                    /* of its first parameter, for messages */
    int64_t size;                                  /* elements; gaps between parameters are zeros */
    int64_t *counts;                               /* [ranks of group] elements of each rank's range; NULL: not partitioned */
    int64_t *range_counts;                         /* [ranks of group] workspace: the same for one flat range */
    int64_t local_start, local_size;               /* this rank's range */
    shard_storage *values, *gradients;             /* of all elements */
    shard_storage *local_values, *local_gradients; /* of the local range, if this rank keeps only that; else NULL */
    bool adds;                                     /* the local range has a gradient already, to which the next one is added */
} shard_unit;

/* A flat range of a unit whose gradient is being summed. */
typedef struct shard_unit_sum {
    shard_range range;
    char *gradient;         /* of the range's elements; NULL after an error */
    shard_request *request; /* NULL: the sum does not overlap with computation */
} shard_unit_sum;

/* The caller releases the reference. NULL with the error set. */
shard_unit *shard_unit_create(shard_group *group, shard_device *device, shard_dtype dtype);
/* Copies a parameter's name for messages. */
void shard_unit_copy_name(char name[SHARD_UNIT_NAME], const char *from);
/* Partitions the unit: each rank keeps counts[rank] elements. Takes over counts, which malloc allocated. */
shard_status shard_unit_partition(shard_unit *unit, int64_t *counts);
/* Releases the memory of all elements, and a reference. The last one frees the local values. NULL is ignored. */
void shard_unit_close(shard_unit *unit);
void shard_unit_unref(shard_unit *unit);

static inline shard_range shard_unit_whole(const shard_unit *unit)
{
    return (shard_range){.start = 0, .size = unit->size};
}
static inline size_t shard_unit_bytes(const shard_unit *unit, int64_t elements)
{
    return (size_t)elements * shard_dtype_size(unit->dtype);
}

/* A storage for that number of elements, without memory yet. NULL with the error set. */
shard_storage *shard_unit_storage(const shard_unit *unit, int64_t elements, shard_memory_kind kind);

/* The intersection of a range and the local range. */
shard_range shard_unit_local(const shard_unit *unit, shard_range range);

/* Copies the local elements of a range, whose values are at `from`, to the local values. */
shard_status shard_unit_keep(shard_unit *unit, shard_range range, const void *from);

/* The functions below are collective over the unit's group, also after an error, then with NULL memory. */

/* Starts to gather the values of a range into `to`: from the ranks' local values, or in place if values are not
 * partitioned. */
shard_request *shard_unit_gather(shard_unit *unit, shard_range range, void *to);
shard_status shard_unit_wait(shard_unit *unit, shard_request *request);

/* Starts to sum a range's gradient: in place, or into the ranks' local gradients if gradients are partitioned. */
void shard_unit_reduce(shard_unit *unit, shard_unit_sum *sum);
/* Waits for the sum, and adds it to the local gradient of earlier backwards. Does nothing for a sum that was not started: {0}. */
shard_status shard_unit_end_reduce(shard_unit *unit, shard_unit_sum *sum);

/* ---- parameters ---- */

/* The group over which a parameter is replicated; NULL: no other rank has it. */
shard_group *shard_parameter_group(const shard_tensor *parameter);

/* The group of the list's tensor at index, unless a tensor before it has the same: each group of the list once. Else NULL. */
shard_group *shard_new_parameter_group(const shard_tensors *list, int64_t index);

/* Elements of each rank's shard of a parameter if all shards had the same size: the same on all ranks. */
int64_t shard_parameter_even_size(const shard_tensor *parameter);

#endif
