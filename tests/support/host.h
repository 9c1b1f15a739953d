/* Tensors' elements on the host, wherever their device keeps them. */
#ifndef TESTS_SUPPORT_HOST_H
#define TESTS_SUPPORT_HOST_H

#include <shard/tensor.h>

/* A copy of the elements, of the tensor's type; freed by free. Fails the test on an error. */
void *host_copy(shard_tensor *x);

/* The elements as numbers; freed by free. */
double *values_of(shard_tensor *x);
/* The same into memory of the caller's. */
void read_values(shard_tensor *x, double *values);
/* Element i as a number. */
double value_at(shard_tensor *x, int64_t i);

/* Gives `to` the elements of `from`, which is of its shape and type. */
void copy_elements(shard_tensor *from, shard_tensor *to);

#endif
