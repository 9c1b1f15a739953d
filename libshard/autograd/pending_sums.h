/*
 * Pending sums: gradients of parameters that are summed over groups later.
 *
 * The ranks of a group may each compute from different rows, columns or summands, until a
 * gather or a sum makes one result of them that is replicated. The backward of each rank then
 * goes through its local values only, and makes one summand of a parameter's gradient; the
 * gradient is the sum over the group. With several groups, the rows are split over the product
 * of the groups. So a gradient has a set of groups in addition to its placement
 * (shard_tensor.pending), which backward passes on:
 *
 * - The dx of every operation is a pending sum over the groups of its dy. If dy is split over a
 *   group and dx is whole, it is a pending sum over that group too.
 * - The gradient of the local input of a gather or a sum is a pending sum over its group.
 * - If a tensor is replicated over a group (the result of a gather, a sum or a copy), a pending
 *   sum over the group is a PARTIAL gradient of it, and is summed. So no gradient is both placed
 *   over a group and a pending sum over it.
 * - A gradient without a pending sum over a group counts in full on each of its ranks: it was
 *   made from replicated values (a PARTIAL gradient that was summed, the gathered gradient of a
 *   scatter, a use of a whole tensor). A copy does not change it. The exception is a copy after
 *   which each rank computes a different loss (no tensor up to the loss is placed, gathered or
 *   summed over the group): the gradient is of the sum of the losses, and each rank has a
 *   summand.
 * - Two gradients are added: if one counts in full on each rank of a group over which the other
 *   one is a pending sum, 1 / ranks of it is added.
 * - A leaf's gradient keeps its set. The sum is taken by data parallel over the replica group or
 *   by shard_all_reduce, which remove the group from the set.
 *
 * Groups are the same if their ranks are. Groups that differ are rows and columns of a grid, as
 * those of a mesh. A gradient over two with several ranks in common is refused. A rank does not
 * see that groups with itself alone in common are no grid: that needs the other ranks' groups.
 */
#ifndef SHARD_AUTOGRAD_PENDING_SUMS_H
#define SHARD_AUTOGRAD_PENDING_SUMS_H

#include "tensor/tensor.h"

/* Whether there is a pending sum over a group with these ranks. */
bool shard_pending_sums_has(const shard_pending_sums *pending, const shard_group *group);
bool shard_pending_sums_equal(const shard_pending_sums *a, const shard_pending_sums *b);

/* Adds a group, or all groups of another set. UNSUPPORTED where some ranks of a group, but
 * not all, are in a group of the set with this rank. */
shard_status shard_pending_sums_add(shard_pending_sums *pending, shard_group *group);
shard_status shard_pending_sums_join(shard_pending_sums *pending, const shard_pending_sums *other);
/* UNSUPPORTED under the same condition; `what` is the first word of the text. */
shard_status shard_pending_sums_check(const char *what, const shard_pending_sums *pending, const shard_group *group);

/* Removes the groups whose ranks are all in `group`, over which the sum was taken. */
void shard_pending_sums_remove(shard_pending_sums *pending, const shard_group *group);

/* The number of ranks of all groups together; of these, of those in `group` (NULL: all). */
int64_t shard_pending_sums_ranks(const shard_pending_sums *pending, const shard_group *group);

#endif
