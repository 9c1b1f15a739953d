/* Files of tests/golden in the format that make_operations.py describes: cases of named tensors. */
#ifndef TESTS_SUPPORT_GOLDEN_H
#define TESTS_SUPPORT_GOLDEN_H

#include <shard/tensor.h>

enum { GOLDEN_TENSORS = 16 };

typedef struct golden {
    char name[20];
    shard_shape shape;
    double *values;
} golden;

typedef struct golden_case {
    golden tensors[GOLDEN_TENSORS];
    int count;
} golden_case;

/* The case of that name; all of these fail the test if something is not as they need it. */
golden_case golden_read(const char *path, const char *name);
void golden_free(golden_case *c);

/* NULL if the case has no such tensor. */
const golden *golden_find(const golden_case *c, const char *name);
shard_tensor *golden_tensor(const golden *tensor, shard_dtype dtype);
/* Fails unless tensor is the one of that name, by check_tensor (support/gradcheck.h). */
void check_golden(const golden_case *c, const char *name, shard_tensor *tensor, double tolerance);

#endif
