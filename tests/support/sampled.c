#include "support/sampled.h"

#include <stdlib.h>

shard_tensor *labels_of(const int64_t *label, int64_t count)
{
    return shard_from_host(label, SHARD_SHAPE(count), .dtype = SHARD_INT64);
}

int64_t *classes_of(shard_tensor *sample, int64_t *count)
{
    ck_assert_msg(sample, "%s", shard_last_error());
    *count = shard_numel(sample);
    int64_t *class = calloc((size_t)*count + 1, sizeof *class);
    check_ok(shard_copy_to_host(sample, class, (size_t)*count * sizeof *class));
    return class;
}

bool *flags_of(shard_tensor *labels, int64_t classes, double rate, uint64_t seed, int64_t step)
{
    int64_t count,
        *class = classes_of(shard_sample_classes(labels, shard_zeros(SHARD_SHAPE(classes, 1)), rate, seed, step), &count);
    bool *flag = calloc((size_t)classes, sizeof *flag);
    for (int64_t i = 0; i < count; i++)
        flag[class[i]] = true;
    free(class);
    return flag;
}
