/*
 * Contributions: gradients that are to be summed over groups once they have reached
 * a parameter.
 *
 * Where a group's members compute from their own rows, columns or summands until a
 * gather or a sum makes a result of them that all have, each member's backward goes
 * through its own part alone. What that makes of a parameter is the member's
 * contribution; the gradient is the sum over the group. Members of several groups
 * deal their rows out over the product of them. So a gradient has a set of groups
 * beside its placement (shard_tensor.contribution), which the walk carries:
 *
 * - every operation's dx contributes to what its dy contributes to; where dy is
 *   split over a group and dx is whole, over that group too;
 * - the gradient of the local input of a gather or a sum contributes over its
 *   group;
 * - a tensor that is the same on every member (the result of a gather, a sum or a
 *   copy over a group) has a gradient: contributions over the group are a PARTIAL
 *   gradient there, and are summed. So nothing is ever both placed over a group and
 *   a contribution over it;
 * - a gradient without a pending sum over a group counts in full on each of its
 *   ranks: it came from what is the same there (a PARTIAL gradient that was summed, the
 *   gathered gradient of a scatter, a use of a whole tensor). A copy leaves it as it
 *   is. The exception is a copy whose result makes a loss of each rank's own (nothing
 *   up to the loss is placed, gathered or summed over the group): there the gradient
 *   is of the sum of the losses, and each rank has a summand;
 * - where two gradients meet, one that counts in full on each member of a group
 *   over which the other one contributes brings 1 / members of itself;
 * - a leaf's gradient keeps its set, for whoever sums it: data parallel over the
 *   replica group, shard_all_reduce. What has been summed leaves the set.
 *
 * Groups are the same if their members are. Two that are not share one rank, as
 * those of a mesh do; a gradient that would need others is refused.
 */
#ifndef SHARD_AUTOGRAD_CONTRIBUTION_H
#define SHARD_AUTOGRAD_CONTRIBUTION_H

#include "tensor/tensor.h"

/* Whether it is one over a group with these members. */
bool shard_contribution_has(const shard_contribution *contribution, const shard_group *group);
bool shard_contribution_equal(const shard_contribution *a, const shard_contribution *b);

/* Puts a group, or all of another one's, into the set. UNSUPPORTED where some of its
 * members, but not all, are in a group of the set with this rank. */
shard_status shard_contribution_add(shard_contribution *contribution, shard_group *group);
shard_status shard_contribution_join(shard_contribution *contribution, const shard_contribution *other);
/* UNSUPPORTED under the same condition; `what` is the first word of the text. */
shard_status shard_contribution_check(const char *what, const shard_contribution *contribution, const shard_group *group);

/* Takes out the groups whose members are all in `group`, which has been summed over. */
void shard_contribution_remove(shard_contribution *contribution, const shard_group *group);

/* How many members all of its groups have; of those, how many are in `group` (NULL: all). */
int64_t shard_contribution_members(const shard_contribution *contribution, const shard_group *group);

#endif
