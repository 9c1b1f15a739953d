/* Nodes, between the files of this folder. */
#ifndef SHARD_AUTOGRAD_NODE_H
#define SHARD_AUTOGRAD_NODE_H

#include "autograd/autograd.h"

/* Frees what backward needed. */
void shard_node_clear(shard_node *node);

#endif
