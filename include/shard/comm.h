/*
 * shard/comm.h: groups of ranks that communicate.
 *
 * A group is made by a mesh (shard/distributed.h). Its rank and size are the group's
 * own; the world's rank of a member is shard_group_world_rank.
 *
 * Before each collective the members compare what they are about to do: the public function,
 * the sizes, and its settings (of shard_step: learning rate, optimizer, clip value). A
 * difference (MISMATCH), a failed member (PEER) or one that does not come within SHARD_TIMEOUT
 * seconds (600; TIMEOUT) makes the call fail on every member with the same text. A member that
 * waits for others itself is not named; a rank that was waited for in vain is not waited for
 * again, in any group.
 *
 * Sums of bfloat16 and float16 are accumulated in float32 and rounded once, on every transport. Between
 * GPUs SHARD_NCCL_REDUCED_PRECISION=1, the same on all ranks, leaves them to NCCL: its fastest way
 * (in the switches, where there is NVLink SHARP), in an order of its own, rounded to 16 bits after additions.
 *
 * A process that a rank forks after shard_init is no rank: its collectives fail (UNAVAILABLE), and
 * it frees groups without a word to the others. A rank that closes all descriptors that it
 * does not know (closefrom) closes the library's: under shardrun the others take it for dead.
 */
#ifndef SHARD_COMM_H
#define SHARD_COMM_H

#include <shard/base.h>

SHARD_BEGIN_C

typedef struct shard_group shard_group;

/* The largest and the smallest of values of which one is NaN are undefined. */
typedef enum shard_reduce_op { SHARD_SUM, SHARD_MAX, SHARD_MIN } shard_reduce_op;

/* This process's rank in the group, 0 ... size - 1; 0 and 1 for NULL, which is
 * the group of this rank alone. */
SHARD_API int shard_group_rank(const shard_group *group);
SHARD_API int shard_group_size(const shard_group *group);

/* The world's rank of the group's member. */
SHARD_API int shard_group_world_rank(const shard_group *group, int member);

/* "self", "shm" or "mpi"; static. */
SHARD_API const char *shard_group_transport(const shard_group *group);

/* Collective: returns when all members have called it. */
SHARD_API shard_status shard_barrier(shard_group *group);

/* Collective: whether any member has an error. If so all get the same text,
 * which names the lowest such rank and its error. */
SHARD_API shard_status shard_agree(shard_group *group);

/* The part of `size` elements that belongs to `member` of `members`: parts
 * differ by at most one, the larger ones first. {0, 0} with the error set if there
 * is no such member. */
typedef struct shard_range {
    int64_t start, size;
} shard_range;
SHARD_API shard_range shard_split_range(int64_t size, int members, int member);

SHARD_END_C

#endif
