/* Top-k accuracy without gathering logits: where a row's label comes among its classes. */
#include "op/class_rows.h"

#include <math.h>

/* [rows], float64, on the device: the label's logit where this part has it, else -inf. */
static shard_tensor *pick_own(const shard_class_rows *rows, shard_tensor *labels)
{
    shard_tensor *picked = shard_workspace(rows->logits, rows->shape.rows, SHARD_FLOAT64);
    void *memory[3];
    if (!picked || !shard_load(SHARD_INPUTS(rows->logits, labels, picked), memory))
        return NULL;
    return shard_result(picked,
                        SHARD_RUN(picked, pick_target, &rows->shape, memory[0], memory[1], memory[2], rows->logits->dtype));
}

/* The same, from whichever part has it. Not the maximum over them: it may be NaN. */
static shard_tensor *pick_any(const shard_class_rows *rows)
{
    int64_t count = rows->shape.rows;
    double *logit = shard_host_workspace(count, SHARD_FLOAT64);
    for (int64_t i = 0; logit && i < count; i++) {
        logit[i] = -INFINITY;
        for (int member = 0; member < rows->members; member++) {
            double picked = *shard_class_row(rows, member, i, 1);
            if (picked != -INFINITY)
                logit[i] = picked;
        }
    }
    return logit ? shard_from_host(logit, SHARD_SHAPE(count), .dtype = SHARD_FLOAT64, .device = shard_device_of(rows->logits))
                 : NULL;
}

/* [rows], int64, on the host: how many of the own logits come before the label's. */
static int64_t *count_own(const shard_class_rows *rows, shard_tensor *labels, shard_tensor *logit)
{
    int64_t count = rows->shape.rows;
    shard_tensor *ahead = logit ? shard_workspace(logit, count, SHARD_INT64) : NULL;
    int64_t *counted = ahead ? shard_host_workspace(count, SHARD_INT64) : NULL;
    void *memory[4];
    if (!counted || !shard_load(SHARD_INPUTS(rows->logits, labels, logit, ahead), memory))
        return NULL;
    if (SHARD_RUN(logit, count_ahead, &rows->shape, memory[0], memory[1], memory[2], memory[3], rows->logits->dtype) != SHARD_OK)
        return NULL;
    return shard_copy_to_host(ahead, counted, (size_t)count * sizeof *counted) == SHARD_OK ? counted : NULL;
}

static bool read_arguments(shard_class_rows *rows, shard_tensor *logits, shard_tensor *labels, int64_t ignore_index)
{
    if (!shard_class_rows_read(rows, logits, labels, ignore_index))
        return false;
    if (!rows->label)
        shard_error(SHARD_ERROR_SHAPE, "%s: labels are %s; int64 is needed", rows->function, shard_dtype_name(labels->dtype));
    return rows->label != NULL;
}

static shard_tensor *label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index)
{
    shard_class_rows rows = {.function = "shard_label_rank"};
    shard_tensor *picked = read_arguments(&rows, logits, labels, ignore_index) ? pick_own(&rows, labels) : NULL;
    if (shard_class_rows_gather(&rows, picked) != SHARD_OK)
        return NULL;
    int64_t count = rows.shape.rows;
    int64_t *ahead = count_own(&rows, labels, pick_any(&rows));
    if (rows.members > 1 && shard_group_all_reduce(rows.group, NULL, ahead, count, SHARD_INT64, SHARD_SUM) != SHARD_OK)
        return NULL;
    for (int64_t i = 0; ahead && i < count; i++)
        if (shard_class_row_ignored(&rows, i))
            ahead[i] = INT64_MAX;
    shard_tensor *rank = ahead ? shard_class_rows_make(&rows, SHARD_INT64) : NULL;
    return rank ? shard_result(rank, shard_copy_from_host(rank, ahead, (size_t)count * sizeof *ahead)) : NULL;
}

shard_tensor *shard_label_rank(shard_tensor *logits, shard_tensor *labels, int64_t ignore_index)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *rank = shard_scope_hand_out(label_rank(logits, labels, ignore_index), &scope);
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
    shard_scope scope;
    shard_scope_open(&scope);
    int64_t count = shard_numel(label_rank), inside = -1;
    int64_t *rank = shard_host_workspace(count, SHARD_INT64);
    if (rank && shard_copy_to_host(label_rank, rank, (size_t)count * sizeof *rank) == SHARD_OK) {
        inside = 0;
        for (int64_t i = 0; i < count; i++)
            inside += rank[i] < k;
    }
    shard_scope_close(&scope);
    return inside;
}
