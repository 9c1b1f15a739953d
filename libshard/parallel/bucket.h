/*
 * Buckets: parameters of one dtype, device and replica group in one unit. Their order is about the
 * order in which backward fills their gradients: the reverse of the order in which the parameters were
 * added. A parameter is a view of its bucket.
 *
 * An engine makes and destroys buckets (engine.h); the parameters keep their memory. From the partition
 * level GRADIENTS on, memory for all gradients of a bucket is allocated when backward writes the first
 * one, and freed when the sum is in the ranks' ranges. At the level PARAMETERS, memory for all values is
 * materialized when one is needed (unshard.h). A matrix that is larger than a bucket is streamed in row
 * blocks where possible (row_blocks.h).
 *
 * Up to the level OPTIMIZER each parameter whose gradient may be deferred (autograd/deferred.h) has a bucket of its own, whose
 * gradient has no memory while it is deferred. Ranges are whole rows, the same of the matrix and its bias, whose bucket is the
 * next one. A bias without its matrix among the parameters that were added with it is in a bucket as others.
 */
#ifndef SHARD_PARALLEL_BUCKET_H
#define SHARD_PARALLEL_BUCKET_H

#include "parallel/row_blocks.h"

#include <shard/parallel.h>

typedef struct shard_bucket_entry {
    struct shard_bucket *bucket;
    shard_tensor *parameter; /* a reference */
    shard_writes *writes;    /* for the parameter, until it has moved into the bucket */
    char name[SHARD_UNIT_NAME];
    uint64_t prefix;         /* a hash of the module's name */
    int64_t index;           /* number of the parameter, in the order of addition */
    /* The matrix together with whose gradient this one may be deferred; of a matrix itself. NULL: it is not deferred. */
    const shard_tensor *deferred_with;
    int owner;               /* with whole_parameters: the rank whose range has the parameter */
    int64_t start, size;     /* the parameter's elements of the unit */
    shard_tensor *local;     /* in a partitioned bucket: the parameter's local range, a leaf with its gradient */
    bool ready;    /* its gradient is complete */
    double factor; /* times which its gradient is this rank's summand */
} shard_bucket_entry;

typedef struct shard_bucket {
    shard_unit *unit;
    shard_bucket_entry *entries;
    int64_t count, capacity;
    size_t even_bytes;            /* of the entries, each with the even size of its shards */
    int64_t turn;                 /* a higher number is earlier in backward; all differ */
    shard_row_blocks *row_blocks; /* NULL: the bucket is not streamed */
    bool defers;                  /* the gradient of its only parameter may be deferred */
    /* While backward runs: */
    struct shard_engine *engine;
    int64_t waiting; /* entries that are not ready */
    shard_unit_sum sum;
    shard_request *publishing; /* the gather of the values, after a step */
    bool updated;              /* a step has updated the values, which were not published since */
} shard_bucket;

typedef struct shard_buckets {
    shard_bucket **all; /* in the order in which backward fills them */
    int64_t count, capacity;
} shard_buckets;

typedef struct shard_bucket_options {
    shard_partition_level level;
    bool whole_parameters; /* ranges begin and end with parameters; else all ranges have the same size */
    bool broadcast;        /* all ranks get the values of their group's first rank */
    size_t bytes;          /* the size from which on a bucket is full */
    shard_unshard_order *order;
    /* As shard_row_blocks_options.begin, for the bucket that is streamed. */
    bool (*begin_rows)(void *bucket, const shard_pending_sums *pending, double *scale);
} shard_bucket_options;

/* Bytes of `mib` MiB; at least 1. */
size_t shard_bucket_bytes(double mib);
/* Sets level, whole_parameters and bytes. ARGUMENT, in the name of the public function, if there is no such stage from
 * `least` on, no such partition or no such size. */
shard_status shard_bucket_options_set(shard_bucket_options *options, const char *function, shard_partition_level least, int stage,
                                      shard_zero_partition partition, double bucket_mib);

/* Makes an entry without a bucket. */
shard_bucket_entry shard_bucket_candidate(shard_tensor *parameter, const char *name, int64_t index);

/* Moves the candidates' parameters into new buckets and adds these to `buckets`; sorts the candidates. Collective over the
 * parameters' replica groups. */
shard_status shard_buckets_add(shard_buckets *buckets, shard_bucket_entry *candidates, int64_t count,
                               const shard_bucket_options *options);

/* Sets the gaps between parameters to zero, in memory of all elements: reductions include them. */
shard_status shard_bucket_zero_gaps(const shard_bucket *bucket, void *memory);

/* Destroys the bucket; its parameters keep their memory. */
void shard_bucket_destroy(shard_bucket *bucket);

#endif
