#include "base/dtype.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} dtypes[SHARD_DTYPES] = {
    [SHARD_FLOAT32] = {"float32", 4, true},   [SHARD_FLOAT64] = {"float64", 8, true},
    [SHARD_BFLOAT16] = {"bfloat16", 2, true}, [SHARD_FLOAT16] = {"float16", 2, true},
    [SHARD_INT64] = {"int64", 8, false},      [SHARD_INT32] = {"int32", 4, false},
    [SHARD_UINT8] = {"uint8", 1, false},
};

size_t shard_dtype_size(shard_dtype dtype)
{
    return (unsigned)dtype < SHARD_DTYPES ? dtypes[dtype].size : 0;
}

const char *shard_dtype_name(shard_dtype dtype)
{
    return (unsigned)dtype < SHARD_DTYPES ? dtypes[dtype].name : "invalid";
}

bool shard_dtype_is_float(shard_dtype dtype)
{
    return (unsigned)dtype < SHARD_DTYPES && dtypes[dtype].is_float;
}
