/* Log lines on standard error, "shard[rank] level: text", or for shard_set_log_function. SHARD_LOG is one of
 * error, warn (the default), info, debug. */
#ifndef SHARD_BASE_LOG_H
#define SHARD_BASE_LOG_H

#include <shard/base.h>

void shard_log_message(shard_log_level level, const char *format, ...) SHARD_PRINTF(2, 3);

/* The rank in the mark of each line; -1 (no mark) until it is known. */
void shard_log_set_rank(int rank);
int shard_log_rank(void);

#endif
