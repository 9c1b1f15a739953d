/* The ranks whose values differ from those of most ranks, for the messages of errors that all ranks of a group find in what
 * they have exchanged. */
#ifndef SHARD_COMM_MAJORITY_H
#define SHARD_COMM_MAJORITY_H

#include "comm/transport.h"

typedef struct shard_majority {
    int odd;   /* of the group: the first rank with another value than most ranks have */
    int usual; /* the first rank with the value that most have; of equally frequent ones that of the lowest rank counts */
    char odd_ranks[96];   /* all ranks with other values, as world ranks: "rank 0"; "ranks 1 and 2"; of many the first ones */
    char usual_ranks[96]; /* those with the value that most have */
} shard_majority;

/* Whether the ranks' values differ: that of each rank of the group is the `bytes` bytes at values + rank * stride. Fills found
 * then. The group may have no list of world_ranks: its ranks are numbered from 0. */
bool shard_find_majority(const shard_group *group, const void *values, size_t bytes, size_t stride, shard_majority *found);

#endif
