/* Top-k accuracy without gathering logits: the rank of a row's label among its classes. */
#include "op/class_rows.h"

#include "comm/function.h"

#include <stdlib.h>

static const shard_class_faults faults = SHARD_CLASS_FAULTS("shard_label_rank");

/* [rows]: the number of local logits before the label's. The first rank of the group sets the rank of ignored rows. */
static shard_tensor *count_local(shard_class_rows *rows)
{
    shard_tensor *rank = shard_class_rows_make(rows, SHARD_INT64), *logit = shard_class_rows_add_picked(rows);
    int64_t ignored = shard_group_rank(rows->group) == 0 ? INT64_MAX : 0;
    void *memory[4];
    if (!rank || !logit || !shard_load(SHARD_INPUTS(rows->labels, logit, rank), memory + 1) ||
        !shard_load_rows(SHARD_INPUTS(rows->logits), memory, &rows->shape.pitch))
        return NULL;
    return shard_result(rank, SHARD_RUN(rank, count_ahead, &rows->shape, memory[0], memory[1], memory[2], ignored, memory[3],
                                        rows->logits->dtype));
}

static shard_tensor *label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index)
{
    shard_class_rows rows = {.function = "shard_label_rank", .faults = &faults};
    bool ready = shard_class_rows_read_labels(&rows, logits, labels, ignore_index) && shard_class_rows_pick(&rows);
    if (shard_class_rows_gather(&rows, ready) != SHARD_OK)
        return NULL;
    shard_tensor *rank = count_local(&rows);
    if (rows.ranks == 1)
        return rank;
    void *memory = rank ? shard_tensor_memory(rank) : NULL;
    return shard_result(
        rank, shard_group_all_reduce(rows.group, shard_device_of(logits), memory, rows.shape.rows, SHARD_INT64, SHARD_SUM));
}

shard_tensor *shard_label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index)
{
    SHARD_FUNCTION("shard_label_rank");
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *rank = shard_scope_return(label_rank(logits, labels, ignore_index), &scope);
    shard_scope_close(&scope);
    return rank;
}

int64_t shard_count_top_k(shard_tensor *label_rank, int64_t k)
{
    if (!shard_check_operand("shard_count_top_k", label_rank))
        return -1;
    if (label_rank->dtype != SHARD_INT64)
        return shard_error(SHARD_ERROR_SHAPE, "shard_count_top_k: the ranks are %s; those of shard_label_rank are int64",
                           shard_dtype_name(label_rank->dtype)),
               -1;
    int64_t count = shard_numel(label_rank), inside = 0, *rank = shard_calloc((size_t)count + 1, sizeof *rank);
    if (!rank || shard_copy_to_host(label_rank, rank, (size_t)count * sizeof *rank) != SHARD_OK)
        inside = -1;
    for (int64_t i = 0; i < count && inside >= 0; i++)
        inside += rank[i] < k;
    free(rank);
    return inside;
}
