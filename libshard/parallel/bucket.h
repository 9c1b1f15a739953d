/*
 * Buckets: parameters of one dtype, device and replica group in one unit, in about the order in which
 * backward fills their gradients: the reverse of that in which the parameters were added. A
 * parameter is a view of its bucket.
 *
 * An engine makes buckets and destroys them (engine.h), their parameters live on. From the partition
 * level GRADIENTS on, memory of all of a bucket's gradients is made by the first one that backward
 * writes there, and freed when the sum is in the ranks' ranges; from PARAMETERS on, memory of all its values
 * is materialized when one is needed (unshard.h). A matrix that is larger than a bucket is streamed
 * in row blocks, where it can be (row_blocks.h).
 */
#ifndef SHARD_PARALLEL_BUCKET_H
#define SHARD_PARALLEL_BUCKET_H

#include "parallel/row_blocks.h"

typedef struct shard_bucket_entry {
    struct shard_bucket *bucket;
    shard_tensor *parameter; /* a reference */
    uint64_t prefix;         /* a hash of the module's name */
    int64_t index;           /* in the order in which parameters were added */
    int owner;               /* the rank whose range it is in, with whole_parameters */
    int64_t start, size;     /* elements of the unit */
    /* Of a partitioned bucket: the flat range of the parameter that is this rank's to update, a leaf with its
     * gradient, and at which element of the parameter it begins. */
    shard_tensor *local;
    int64_t local_start;
    bool ready;  /* its gradient is complete */
    bool scaled; /* its gradient is this rank's summand */
} shard_bucket_entry;

typedef struct shard_bucket {
    shard_unit *unit;
    shard_bucket_entry *entries;
    int64_t count, capacity;
    int64_t turn;                 /* the higher, the earlier in backward; no two are equal */
    shard_row_blocks *row_blocks; /* NULL: it is not streamed */
    /* While backward runs: */
    struct shard_engine *engine;
    int64_t waiting; /* entries that are not ready */
    shard_unit_sum sum;
    shard_request *publishing; /* the gather of the values, after a step */
} shard_bucket;

typedef struct shard_buckets {
    shard_bucket **all; /* in the order in which backward fills them */
    int64_t count, capacity;
} shard_buckets;

typedef struct shard_bucket_options {
    shard_partition_level level;
    bool whole_parameters; /* ranges begin and end with parameters; else all are equally long */
    bool broadcast;        /* the values become those of each group's first rank */
    size_t bytes;          /* a bucket is full from this on */
    shard_unshard_order *order;
    /* As shard_row_blocks_options.begin, of the bucket that is streamed. */
    bool (*begin_rows)(void *bucket, const shard_contribution *contribution, double *scale);
} shard_bucket_options;

#define SHARD_BUCKET_MIB_MAX 1e9
/* Bytes of `mib` MiB, 0 to SHARD_BUCKET_MIB_MAX; at least 1. */
size_t shard_bucket_bytes(double mib);

/* An entry that has no bucket yet. */
shard_bucket_entry shard_bucket_candidate(shard_tensor *parameter, const char *name, int64_t index);

/* Moves the candidates' parameters into new buckets, which are added. Collective over the
 * parameters' groups. */
shard_status shard_buckets_add(shard_buckets *buckets, shard_bucket_entry *candidates, int64_t count,
                               const shard_bucket_options *options);

/* Zeros between the parameters in memory of all elements, which is reduced along. */
shard_status shard_bucket_zero_gaps(const shard_bucket *bucket, void *memory);

/* The parameters keep their memory. */
void shard_bucket_destroy(shard_bucket *bucket);

#endif
