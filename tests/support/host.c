#include "support/host.h"

#include "support/kernels.h"

#include <stdlib.h>

static size_t bytes_of(const shard_tensor *x)
{
    return (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x));
}

void *host_copy(shard_tensor *x)
{
    ck_assert_msg(x != NULL, "a tensor is NULL: %s", shard_last_error());
    void *copy = malloc(bytes_of(x) + 1);
    ck_assert_ptr_nonnull(copy);
    ck_assert_msg(shard_copy_to_host(x, copy, bytes_of(x)) == SHARD_OK, "%s", shard_last_error());
    return copy;
}

void read_values(shard_tensor *x, double *values)
{
    void *copy = host_copy(x);
    for (int64_t i = 0, count = shard_numel(x); i < count; i++)
        values[i] = array_get(copy, i, shard_tensor_dtype(x));
    free(copy);
}

double *values_of(shard_tensor *x)
{
    ck_assert_msg(x != NULL, "a tensor is NULL: %s", shard_last_error());
    double *values = calloc((size_t)shard_numel(x) + 1, sizeof *values);
    ck_assert_ptr_nonnull(values);
    read_values(x, values);
    return values;
}

double value_at(shard_tensor *x, int64_t i)
{
    void *copy = host_copy(x);
    double value = array_get(copy, i, shard_tensor_dtype(x));
    free(copy);
    return value;
}

void copy_elements(shard_tensor *from, shard_tensor *to)
{
    void *copy = host_copy(from);
    ck_assert_msg(shard_copy_from_host(to, copy, bytes_of(to)) == SHARD_OK, "%s", shard_last_error());
    free(copy);
}
