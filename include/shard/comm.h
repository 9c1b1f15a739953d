/*
 * shard/comm.h: groups of ranks that communicate.
 *
 * A group is made by a mesh (shard/distributed.h), shard_group_create or shard_group_split. It numbers its ranks from
 * 0, in the world's order; shard_group_world_rank gives the world's number. Where nothing else is said, as of an option, a NULL
 * group is the group of this rank alone. It is an error (ARGUMENT) for functions that make groups of it (shard_group_create,
 * shard_group_split) or name its replicas (shard_group_set_replicas).
 *
 * Before each collective the group's ranks compare the call: the public function, sizes and settings (for
 * shard_step: learning rate, optimizer, clip value). A difference (MISMATCH), a failed rank (PEER) or a rank
 * that does not come within SHARD_TIMEOUT seconds (600; TIMEOUT) makes the call fail on every rank with the
 * same text. If calls or settings differ, the text names the first rank whose value differs from the majority's. Of equally
 * frequent values, that of the lowest rank counts. docs/errors.md has examples, and the rules for forked processes.
 *
 * Sums of bfloat16 and float16 are accumulated in float32 and rounded once, on every transport. Between
 * GPUs, SHARD_NCCL_REDUCED_PRECISION=1, set on all ranks, lets NCCL sum in its fastest way (in the
 * switches, where there is NVLink SHARP): in NCCL's order, rounded to 16 bits after additions.
 */
#ifndef SHARD_COMM_H
#define SHARD_COMM_H

#include <shard/base.h>

SHARD_BEGIN_C

typedef struct shard_group shard_group;

/* SHARD_MAX and SHARD_MIN are undefined if one of the values is NaN. */
typedef enum shard_reduce_op { SHARD_SUM, SHARD_MAX, SHARD_MIN } shard_reduce_op;

/* This process's rank in the group, 0 to size - 1, and the number of its ranks. NULL is the group of this rank alone: 0
 * and 1. Not collective. */
SHARD_API int shard_group_rank(const shard_group *group);
SHARD_API int shard_group_size(const shard_group *group);

/* The world's rank of the group's rank `rank`; 0 if the group is NULL or has no such rank. Not collective. */
SHARD_API int shard_group_world_rank(const shard_group *group, int rank);

/* The host transport: "self", "shm", "mpi" or "exchange" (shard_init_with); static. Not collective. */
SHARD_API const char *shard_group_transport(const shard_group *group);

/*
 * The caller's exchange of bytes, for shard_init_with (shard/distributed.h): an all-gather. It sets receive
 * [count][bytes] to the send [bytes] of each of the ranks, in the order of `ranks`, which ascends. Every rank in `ranks` calls it
 * at the same time with the same ranks and bytes; other ranks do not. Returns SHARD_OK, or another status if it fails,
 * for example since a rank has ended. It may report the reason by shard_error.
 *
 * The library calls it from a thread of its own, one call at a time, with all signals blocked.
 */
typedef shard_status shard_exchange_function(void *context, const int *ranks, int count, const void *send, void *receive,
                                             size_t bytes);

/* ---- groups of the caller's own ---- */

/*
 * Groups of the caller's own are used as those of a mesh: with every collective, parallel layer and placement. Groups that are
 * gathered or summed over in one step have the same ranks, or are rows and columns of a grid (shard/distributed.h). A tensor that
 * is placed over a group is placed over every group of the same ranks.
 *
 * Destroy a group after everything that is placed on it, at the latest after shard_finalize. After shard_finalize a group can
 * only be destroyed: a collective over it is an error (ARGUMENT).
 */

/* The group of `count` ranks of the parent, in any order, without duplicates. Every rank of the parent calls it with the same
 * ranks, also one that is not among them: it gets NULL without an error. The caller destroys the group by shard_group_destroy.
 * NULL with the error set, on all ranks: MISMATCH, lists that differ; ARGUMENT, a list of one rank that is wrong, and PEER on
 * the others. Collective over parent. As torch.distributed.new_group. */
SHARD_API shard_group *shard_group_create(shard_group *parent, const int *ranks, int count);

/* Divides the parent's ranks into groups: those with the same color >= 0 are one. Returns this rank's group, which the caller
 * destroys by shard_group_destroy; NULL without an error where color is -1. NULL with the error set, on all ranks: ARGUMENT,
 * another negative color, and PEER on the others. Collective over parent. As MPI_Comm_split with equal keys and
 * torch.distributed.split_group. */
SHARD_API shard_group *shard_group_split(shard_group *parent, int color);

/* Destroys a group of shard_group_create or shard_group_split; NULL is fine. The world and groups of a mesh are not destroyed,
 * and the thread has an error (ARGUMENT). Collective over the group, without a preflight check. */
SHARD_API void shard_group_destroy(shard_group *group);

/* Sets the replica group of tensors that are split over `group` from now on (shard_tensor_replica_group). Its ranks hold the
 * same shards. shard_data_parallel averages over it. A mesh sets that of its groups. NULL, the value at first: no other rank.
 * `replicas` stays as long as tensors are made on `group`, and these are. Errors: ARGUMENT, groups that have more than this rank
 * in common; the world or a mesh's group. Not collective. */
SHARD_API SHARD_CHECKED shard_status shard_group_set_replicas(shard_group *group, shard_group *replicas);

/* ---- collectives without data ---- */

/* Returns when all ranks of the group have called it. Collective over group. As torch.distributed.barrier. */
SHARD_API SHARD_CHECKED shard_status shard_barrier(shard_group *group);

/* Fails on all ranks of the group if one has an error, with the same text, which names the lowest such rank and its
 * error. Collective over group. */
SHARD_API SHARD_CHECKED shard_status shard_agree(shard_group *group);

/* The range of `size` elements that rank `rank` of `ranks` has: ranges differ by at most one element, the larger
 * ones first. {0, 0} with the error set if there is no such rank, or size is negative. Not collective. As torch.tensor_split. */
typedef struct shard_range {
    int64_t start, size;
} shard_range;
SHARD_API shard_range shard_split_range(int64_t size, int ranks, int rank);

SHARD_END_C

#endif
