#include "support/sample.h"

#include "support/check.h"

#include <stdlib.h>
#include <string.h>

int64_t sample_offset;

static sample sample_new(int64_t count, shard_dtype dtype)
{
    sample s = {.count = count, .dtype = dtype, .value = calloc((size_t)count + 1, sizeof(double)), .offset = sample_offset};
    ck_assert_ptr_nonnull(s.value);
    s.data = (char *)array_new(count + s.offset, dtype) + (size_t)s.offset * shard_dtype_size(dtype);
    return s;
}

sample sample_random(int64_t count, shard_dtype dtype, uint64_t seed)
{
    sample s = sample_new(count, dtype);
    for (int64_t i = 0; i < count; i++)
        array_put(s.data, i, dtype, noise(seed, i));
    sample_read(&s);
    return s;
}

sample sample_unset(int64_t count, shard_dtype dtype)
{
    sample s = sample_new(count, dtype);
    if (count > 0)
        memset(s.data, 0xff, (size_t)count * shard_dtype_size(dtype));
    return s;
}

void sample_read(sample *s)
{
    for (int64_t i = 0; i < s->count; i++)
        s->value[i] = array_get(s->data, i, s->dtype);
}

void sample_free(sample *s)
{
    array_free((char *)s->data - (size_t)s->offset * shard_dtype_size(s->dtype), s->count + s->offset, s->dtype);
    free(s->value);
}

void sample_check(sample *s, const double *wanted, const double *magnitude, int64_t terms, const char *what)
{
    sample_read(s);
    double error = compute_unit(s->dtype) * (4 + sqrt((double)terms));
    for (int64_t i = 0; i < s->count; i++)
        check_close(s->dtype, s->value[i], (long double)wanted[i], (long double)(error * magnitude[i]), what, i);
}
