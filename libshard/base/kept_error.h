/* Which error a thread has, and errors that it takes away and puts back later. */
#ifndef SHARD_BASE_KEPT_ERROR_H
#define SHARD_BASE_KEPT_ERROR_H

#include <shard/base.h>

#include <stdint.h>

/* Room for any error's text. */
#define SHARD_ERROR_TEXT_BYTES 512

typedef struct shard_kept_error {
    shard_status status;
    uint64_t serial;
    char text[SHARD_ERROR_TEXT_BYTES];
} shard_kept_error;

/* The serial number of the thread's error: no other error of this process has it. 0: there is none. */
uint64_t shard_error_serial(void);

/* How many errors shard_clear_error has cleared, on all threads. */
uint64_t shard_errors_cleared(void);

/* Clears the thread's error, which *kept has then. */
void shard_keep_error(shard_kept_error *kept);
/* Replaces the thread's error, or its absence, by the kept one. */
void shard_put_back_error(const shard_kept_error *kept);

#endif
