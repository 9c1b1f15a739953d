/* Checksums that a second thread computes while the first one waits for a disk. */
#ifndef SHARD_CHECKPOINT_SUMMING_H
#define SHARD_CHECKPOINT_SUMMING_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* The checksum of one chunk of data; {0}: none. */
typedef struct shard_summing {
    const void *data;
    int64_t bytes;
    uint64_t crc;
    bool threaded;
    pthread_t thread;
} shard_summing;

/* Begins with data that stays as it is until shard_summing_finish, which must follow. */
void shard_summing_start(shard_summing *summing, const void *data, int64_t bytes);
/* Extends *crc by the data's checksum. Nothing happens if nothing was begun. */
void shard_summing_finish(shard_summing *summing, uint64_t *crc);

#endif
