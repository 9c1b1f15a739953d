#include "support/sample.h"

#include "support/check.h"

#include <stdlib.h>
#include <string.h>

static sample sample_of(void *data, int64_t count, shard_dtype dtype)
{
    sample s = {.count = count, .dtype = dtype, .data = data, .value = calloc((size_t)count + 1, sizeof(double))};
    ck_assert_ptr_nonnull(s.value);
    return s;
}

sample sample_random(int64_t count, shard_dtype dtype, uint64_t seed)
{
    sample s = sample_of(array_noise(count, dtype, seed, -1, 1), count, dtype);
    sample_read(&s);
    return s;
}

sample sample_unset(int64_t count, shard_dtype dtype)
{
    sample s = sample_of(array_new(count, dtype), count, dtype);
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
    array_free(s->data, s->count, s->dtype);
    free(s->value);
}

void sample_check(sample *s, const double *wanted, const double *magnitude, int64_t terms, const char *what)
{
    sample_read(s);
    double error = compute_unit(s->dtype) * (4 + sqrt((double)terms));
    for (int64_t i = 0; i < s->count; i++)
        check_close(s->dtype, s->value[i], (long double)wanted[i], (long double)(error * magnitude[i]), what, i);
}
