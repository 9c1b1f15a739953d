/* The machine that this process runs on. */
#ifndef SHARD_BASE_MACHINE_H
#define SHARD_BASE_MACHINE_H

#include <stdint.h>

/* A hash of the machine's name and of its boot, as names may be the same: equal for the processes of one machine. */
uint64_t shard_hash_machine(void);

#endif
