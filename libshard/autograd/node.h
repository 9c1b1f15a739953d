/* Nodes, between the files of this folder. */
#ifndef SHARD_AUTOGRAD_NODE_H
#define SHARD_AUTOGRAD_NODE_H

#include "autograd/autograd.h"

/* The node that made a tensor, NULL for a leaf. */
static inline shard_node *shard_node_of(const shard_tensor *tensor)
{
    return (shard_node *)tensor->history;
}

/* Frees what backward needed. */
void shard_node_clear(shard_node *node);

#endif
