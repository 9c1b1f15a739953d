/* The preflight check: what members of a group exchange before a collective. */
#ifndef SHARD_COMM_PREFLIGHT_H
#define SHARD_COMM_PREFLIGHT_H

#include "comm/comm.h"

enum shard_call_operation {
    SHARD_CALL_START,
    SHARD_CALL_BARRIER,
    SHARD_CALL_AGREE,
    SHARD_CALL_FAIL,
    SHARD_CALL_EXCHANGE, /* from here on with data */
    SHARD_CALL_ALL_REDUCE,
    SHARD_CALL_ALL_GATHER,
    SHARD_CALL_REDUCE_SCATTER,
    SHARD_CALL_BROADCAST,
};

/* What a member is about to do. */
typedef struct shard_call {
    const char *name;
    enum shard_call_operation operation;
    shard_device *device; /* whose memory the data is in; NULL: the host's */
    bool chooses;         /* the check is of the device transport to choose */
    shard_dtype dtype;
    int root; /* of a broadcast, else the reduce operation */
    int64_t count;
    const int64_t *counts; /* of the pieces, if there are any */
} shard_call;

#define SHARD_SMALL_BYTES 216

/* What the others receive of it: compared up to `status`. */
typedef struct shard_fingerprint {
    uint64_t sequence;
    uint64_t layout; /* hash of counts, of the public function and of what is agreed on in it */
    int64_t count;
    uint32_t operation, dtype, root; /* operation with flags of where the data is */
    int32_t status;                  /* not SHARD_OK: this member has failed */
    unsigned char data[SHARD_SMALL_BYTES];
} shard_fingerprint;

/* UNSUPPORTED in a capture: a replay would make no preflight check. */
void shard_refuse_captured_collective(void);

/* The preflight check; `bytes` of small travel along, and lie in the peers' fingerprints
 * then. OK only if all are about to do the same and none has an error. */
shard_status shard_preflight(shard_group *group, const shard_call *call, const void *small, size_t bytes);

#endif
