/*
 * Buckets: parameters of one dtype and one replica group in one piece of memory, their
 * gradients in another, in about the order in which backward fills them: the reverse of
 * that in which the parameters were added. A parameter is a view of its bucket.
 *
 * A bucket may be dealt out: each member of its group updates one range of it, its part.
 *
 * A engine makes buckets and destroys them (engine.h), their parameters live on. Memory of
 * all of a bucket's gradients (dealing GRADIENTS) is made by the first one that backward
 * writes there and given back when the sum is in the parts; of all its values (VALUES), when
 * one is needed, and given back when others come (gathered.h), by backward, or after a step.
 * A weight too large for that has either in blocks of its rows, where it can (row_blocks.h).
 */
#ifndef SHARD_PARALLEL_BUCKET_H
#define SHARD_PARALLEL_BUCKET_H

#include "tensor/tensor.h"

/* What ranks share out among them, as ZeRO's stages: https://arxiv.org/abs/1910.02054 */
typedef enum shard_partition_level {
    SHARD_PARTITION_NONE = 0,   /* each updates everything */
    SHARD_PARTITION_OPTIMIZER,  /* each updates its part */
    SHARD_PARTITION_GRADIENTS,  /* and keeps the gradient of its part alone, */
    SHARD_PARTITION_PARAMETERS, /* and the values of its part */
} shard_partition_level;

typedef struct shard_bucket_options {
    shard_partition_level level;
    bool whole_parameters; /* parts begin and end with parameters; else all are as long */
    bool broadcast;        /* the values become those of each group's first member */
    size_t bytes;          /* a bucket is full from this on */
} shard_bucket_options;

typedef struct shard_bucket_member {
    struct shard_bucket *bucket;
    shard_tensor *parameter; /* a share */
    uint64_t module;         /* a hash: which one it belongs to */
    int64_t index;           /* in the order in which parameters were added */
    int owner;               /* whose part it is in, with whole_parameters */
    int64_t start, size;     /* elements of the bucket */
    /* Of a bucket that is dealt out: what of the parameter is this rank's to update, a
     * leaf with its gradient, and at which element that begins. */
    shard_tensor *part;
    int64_t part_start;
    bool ready;  /* its gradient is complete, */
    bool scaled; /* and is what it adds to the sum */
} shard_bucket_member;

typedef struct shard_bucket {
    shard_group *group; /* of more than one member */
    shard_device *device;
    shard_dtype dtype;
    shard_bucket_member *members;
    int64_t count, capacity;
    int64_t turn;                              /* the higher, the earlier in backward; no two are alike */
    int64_t size;                              /* elements; those between parameters are zeros */
    int64_t *parts;                            /* [members of group] elements of each one's part; NULL: not dealt out */
    int64_t local_start, own;                  /* this rank's */
    shard_storage *values, *gradients;         /* of all elements */
    shard_storage *local_values, *local_gradients; /* of the own part, where only that is kept; else NULL */
    struct shard_row_blocks *row_blocks;       /* of a weight alone that is too large for a bucket; else NULL */
    /* While backward runs: */
    struct shard_engine *engine;
    int64_t waiting; /* members that are not ready */
    bool adds;       /* the own part has a gradient already, to which this one is added */
    shard_request *request;
    shard_request *publishing; /* the values' gather, after a step */
} shard_bucket;

typedef struct shard_buckets {
    shard_bucket **all; /* in the order in which backward fills them */
    int64_t count, capacity;
} shard_buckets;

/* Bytes of `mib` MiB; 0 is 25. */
size_t shard_bucket_bytes(double mib);

/* The group over which a parameter is replicated; NULL is this rank alone. */
shard_group *shard_parameter_group(const shard_tensor *parameter);

/* Elements of each part of a parameter if all were as long: the same on all ranks. */
int64_t shard_share_of(const shard_tensor *parameter);

/* A member that has no bucket yet. */
shard_bucket_member shard_bucket_candidate(shard_tensor *parameter, const char *name, int64_t index);

/* Moves the candidates' parameters into new buckets, which are added. Collective over the
 * parameters' groups. */
shard_status shard_buckets_add(shard_buckets *buckets, shard_bucket_member *candidates, int64_t count,
                               const shard_bucket_options *options);

/* Zeros between the parameters in memory of all elements, which is reduced along. */
shard_status shard_bucket_zero_gaps(const shard_bucket *bucket, void *memory);

/* The parameters keep their memory. */
void shard_bucket_destroy(shard_bucket *bucket);

#endif
