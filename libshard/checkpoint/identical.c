/* Whether all ranks have the same lists of tensors. */
#include "checkpoint/ranges.h"
#include "distributed/identical.h"

#include <shard/distributed.h>

#include <stdlib.h>

static shard_status describe(shard_identical_lines *a, const char *function, const shard_tensors *tensors, const char *argument)
{
    if (!tensors)
        return shard_null_argument(function, "tensors");
    SHARD_TRY(shard_identical_lines_add(a, shard_strdup(argument)));
    for (int64_t i = 0; i < shard_tensors_count(tensors); i++) {
        const shard_tensor *tensor = shard_tensors_at(tensors, i);
        const char *name = shard_tensors_name(tensors, i);
        shard_shape shape = shard_tensor_whole_shape(tensor);
        SHARD_TRY(shard_check_saved(function, name, tensor));
        SHARD_TRY(shard_identical_lines_add(a, shard_format("\"%s\" %s %s %s", name, shard_dtype_name(tensor->dtype),
                                                            shard_shape_text(&shape),
                                                            shard_placement_text(shard_local_placement(tensor)))));
    }
    return SHARD_OK;
}

shard_status shard_tensors_check_identical(const char *function, const shard_tensors *tensors, const char *argument)
{
    shard_identical_lines mine = {0};
    if (shard_last_status() == SHARD_OK)
        describe(&mine, function, tensors, argument);
    char *what = shard_format("%s: the arguments differ between ranks", function);
    shard_status status = shard_identical_lines_check(&mine, shard_world(), what);
    free(what);
    return status;
}
