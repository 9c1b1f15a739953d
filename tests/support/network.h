/*
 * What networks of a mesh of up to three axes are made of, to be compared with one process: leaves, operations
 * between tensors of one shape, and the comparison of all gradients.
 */
#ifndef TESTS_SUPPORT_NETWORK_H
#define TESTS_SUPPORT_NETWORK_H

#include "support/job.h"

#include "tensor/tensor.h"

enum { NET_ROWS = 6, NET_FEATURES = 5 };

/* What the operations take beside x; ROW and COLUMN are split over the model group. */
enum {
    NET_X,
    NET_GAIN,
    NET_BIAS,
    NET_SQUARE,
    NET_TABLE,
    NET_KERNEL,
    NET_NORM_WEIGHT,
    NET_NORM_BIAS,
    NET_HAND,
    NET_COLUMN,
    NET_COLUMN_BIAS,
    NET_ROW,
    NET_ROW_BIAS,
    NET_LEAVES
};

typedef struct net {
    shard_group *model, *data; /* NULL: one process */
    shard_group *expert;       /* a third axis; NULL: none. Set by the caller, as no leaf is split over it */
    shard_module *column, *row;
    shard_tensor *leaf[NET_LEAVES];
} net;

/* Leaves with gradients, in the innermost scope; the same whole values on any mesh. */
net make_net(shard_group *model, shard_group *data, shard_dtype dtype);
void free_net(const net *n);

/* Which dimension of an operation's x may be split. */
enum { BY_ROWS = 1, BY_COLUMNS = 2, BY_BOTH = 3 };

/* [rows, NET_FEATURES] to the same. */
typedef struct net_operation {
    const char *name;
    shard_tensor *(*make)(const net *, shard_tensor *x);
    int split;
    bool rounds; /* to float32 */
    bool placed; /* x's columns may be split, too, where its placement says so: the operation goes over all of them */
    bool sharp;  /* its gradient changes much with little of x: not compared in 16 bits */
} net_operation;
extern const net_operation net_operations[];
extern const int net_operation_count;

/* x times a loss or rows of the leaves that are split over the model group, which all its ranks have the same x for. */
enum { NET_SPLIT_LOSSES = 6 };
shard_tensor *net_split_loss(const net *n, shard_tensor *x, int kind);

/* A label for each of x's rows. */
shard_tensor *net_labels(const shard_tensor *x);
/* This rank's part of `size`; its rows of x, by shard_narrow: no tensor says that they are a part. */
shard_range own_range(int64_t size, const shard_group *group);
shard_tensor *own_rows(shard_tensor *x, const shard_group *group);

/* Takes the pending sums of the gradients of `split`, a net on a mesh, and fails unless they are those of `one`, to
 * tolerance times a gradient's largest element, or a size that is more than rounding. */
void compare_gradients(const char *name, const net *split, const net *one, double tolerance);

#endif
