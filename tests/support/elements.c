#include "support/elements.h"

#include <stdlib.h>
#include <string.h>

shard_tensor *make_part(shard_shape whole, shard_dtype dtype, int dim, shard_group *group)
{
    shard_shape own = whole;
    if (!group || dim < 0)
        return shard_empty(own, .dtype = dtype);
    shard_range range = shard_split_range(whole.dim[dim], shard_group_size(group), shard_group_rank(group));
    own.dim[dim] = range.size;
    return shard_as_split(shard_empty(own, .dtype = dtype), dim, group, range.start, whole.dim[dim]);
}

/* The bits of all elements of x; freed by free(). */
static unsigned char *bits_of(const shard_tensor *x, uint64_t seed)
{
    shard_shape own = shard_tensor_shape(x);
    shard_placement placement = shard_tensor_placement(x);
    shard_shape whole = shard_tensor_whole_shape(x);
    size_t size = shard_dtype_size(shard_tensor_dtype(x));
    int64_t at[SHARD_MAX_DIMS] = {0};
    unsigned char *bits = calloc((size_t)shard_numel(x) + 1, size);
    ck_assert_ptr_nonnull(bits);
    for (int64_t i = 0; i < shard_numel(x); i++) {
        uint64_t index = 0;
        for (int d = 0; d < own.ndim; d++) {
            bool split = placement.kind == SHARD_SPLIT && placement.dim == d;
            index = index * (uint64_t)whole.dim[d] + (uint64_t)(at[d] + (split ? placement.start : 0));
        }
        uint64_t value = (index + 1) * 0x9e3779b97f4a7c15u ^ (seed + 1) * 0xbf58476d1ce4e5b9u;
        value ^= value >> 29;
        memcpy(bits + (size_t)i * size, &value, size);
        for (int d = own.ndim - 1; d >= 0 && ++at[d] == own.dim[d]; d--)
            at[d] = 0;
    }
    return bits;
}

void set_elements(shard_tensor *x, uint64_t seed)
{
    ck_assert_msg(x != NULL, "%s", shard_last_error());
    unsigned char *bits = bits_of(x, seed);
    check_ok(shard_copy_from_host(x, bits, (size_t)shard_numel(x) * shard_dtype_size(shard_tensor_dtype(x))));
    free(bits);
}

void check_elements(const char *name, shard_tensor *x, uint64_t seed)
{
    ck_assert_msg(x != NULL, "%s: no tensor: %s", name, shard_last_error());
    size_t size = shard_dtype_size(shard_tensor_dtype(x)), bytes = (size_t)shard_numel(x) * size;
    unsigned char *wanted = bits_of(x, seed), *got = malloc(bytes + 1);
    ck_assert_ptr_nonnull(got);
    check_ok(shard_copy_to_host(x, got, bytes));
    for (size_t i = 0; i < bytes; i++)
        ck_assert_msg(got[i] == wanted[i], "%s: element %zu of %lld differs", name, i / size, (long long)shard_numel(x));
    free(wanted);
    free(got);
}
