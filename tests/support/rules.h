/*
 * Placement rules: what an operation makes of split and partial operands. Each rank has its
 * parts of made-up operands, and gets its part of the result and of the gradients that one
 * process gets of the whole ones.
 */
#ifndef TESTS_SUPPORT_RULES_H
#define TESTS_SUPPORT_RULES_H

#include "support/gradcheck.h"
#include "support/ranks.h"

/* Where an operand or result is: split along a dimension, or one of these. */
enum { WHOLE = -1, PARTIAL = -2 };

typedef struct rule {
    const char *name;
    operation_maker *make;
    const void *options;
    int inputs;
    shard_shape shape[OPERATION_INPUTS]; /* of the whole operands */
    int at[OPERATION_INPUTS], result;
    double tolerance; /* 0: 1e-13 */
} rule;

/* Leaves of made-up values: this rank's parts, or the whole ones for a NULL group. */
void make_leaves(const rule *r, shard_group *group, shard_tensor **leaf);

/* Fails unless the rule holds on this rank. Collective. */
void check_rule(const rule *r, shard_group *world);
/* The same of each rule of an array. */
void check_each_rule(const rule *rules, size_t count, shard_group *world);

#endif
