/*
 * Tensors of any dtype and placement whose bits are known: they depend on a seed and
 * on the element's index in the whole tensor.
 */
#ifndef TESTS_SUPPORT_ELEMENTS_H
#define TESTS_SUPPORT_ELEMENTS_H

#include "support/job.h"

/* An empty tensor of this rank's part along dim; whole if group is NULL or dim < 0. */
shard_tensor *make_part(shard_shape whole, shard_dtype dtype, int dim, shard_group *group);

void set_elements(shard_tensor *x, uint64_t seed);
/* Fails the test unless x has exactly these bits; name is for the text. */
void check_elements(const char *name, shard_tensor *x, uint64_t seed);

#endif
