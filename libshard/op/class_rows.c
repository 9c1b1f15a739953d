/* Rows of logits with their labels: checks, and what the members tell each other. */
#include "op/class_rows.h"

#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

/* Goes before a member's numbers, so that parts which do not belong together are
 * an error instead of a wrong value. */
typedef struct part_head {
    uint64_t labels, options;
    int64_t start, size;
} part_head;
#define HEAD_DOUBLES ((int64_t)(sizeof(part_head) / sizeof(double)))

_Static_assert(sizeof(part_head) % sizeof(double) == 0, "the numbers follow the head");

void *shard_host_workspace(int64_t count, shard_dtype dtype)
{
    shard_tensor *memory = shard_tensor_make(SHARD_SHAPE(count), dtype, shard_cpu());
    return memory ? shard_tensor_memory(memory) : NULL;
}

static bool splits_classes(const shard_tensor *x)
{
    return shard_dtype_is_float(x->dtype) && x->shape.ndim > 0 && shard_is_split(x, x->shape.ndim - 1);
}

/* ---- reading the arguments ---- */

static bool check_labels_fit(const shard_class_rows *rows, const shard_tensor *labels)
{
    const shard_tensor *logits = rows->logits;
    shard_shape shape = logits->shape;
    shape.ndim--;
    if (!shard_shape_equal(&labels->shape, &shape)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: labels of shape %s for logits of shape %s", rows->function,
                    shard_shape_text(&labels->shape), shard_shape_text(&logits->shape));
        return false;
    }
    bool alike = shard_placement_equal(&labels->placement, &logits->placement);
    return shard_is_replicated(labels) || alike || shard_refuse_placement(rows->function, labels);
}

static bool read_logits(shard_class_rows *rows)
{
    shard_tensor *logits = rows->logits;
    if (!shard_check_operands(rows->function, SHARD_INPUTS(logits)))
        return false;
    int ndim = logits->shape.ndim;
    if (ndim != 1 && ndim != 2) {
        shard_error(SHARD_ERROR_SHAPE, "%s: logits of shape %s; [rows, classes] or [classes] is needed (shard_flatten)",
                    rows->function, shard_shape_text(&logits->shape));
        return false;
    }
    if (logits->placement.kind == SHARD_PARTIAL)
        return shard_refuse_placement(rows->function, logits);
    int64_t cols = logits->shape.dim[ndim - 1];
    rows->shape.rows = shard_shape_product(&logits->shape, 0, ndim - 1);
    rows->shape.cols = rows->shape.classes = cols;
    if (rows->group) {
        rows->shape.col0 = logits->placement.start;
        rows->shape.classes = logits->placement.whole;
    }
    return true;
}

static bool read_labels(shard_class_rows *rows, shard_tensor *labels)
{
    if (labels->dtype != SHARD_INT64) {
        shard_error(SHARD_ERROR_SHAPE, "%s: labels are %s; int64 is needed (shard_cast)", rows->function,
                    shard_dtype_name(labels->dtype));
        return false;
    }
    if (!check_labels_fit(rows, labels))
        return false;
    int64_t count = rows->shape.rows;
    int64_t *label = shard_host_workspace(count, SHARD_INT64);
    if (!label || shard_copy_to_host(labels, label, (size_t)count * sizeof *label) != SHARD_OK)
        return false;
    for (int64_t i = 0; i < count; i++) {
        if (label[i] == rows->shape.ignore_index || (label[i] >= 0 && label[i] < rows->shape.classes))
            continue;
        shard_error(SHARD_ERROR_ARGUMENT, "%s: label %" PRId64 " at row %" PRId64 " is outside [0, %" PRId64 ")", rows->function,
                    label[i], i, rows->shape.classes);
        return false;
    }
    rows->label = label;
    return true;
}

bool shard_class_rows_read(shard_class_rows *rows, shard_tensor *logits, shard_tensor *target, int64_t ignore_index)
{
    rows->logits = logits;
    rows->shape.ignore_index = ignore_index;
    const shard_tensor *known = logits ? logits : target;
    if (known && splits_classes(known))
        rows->group = known->placement.group;
    if (!shard_check_operand(rows->function, logits) || !shard_check_operand(rows->function, target) || !read_logits(rows))
        return false;
    return shard_dtype_is_float(target->dtype) || read_labels(rows, target);
}

shard_tensor *shard_class_rows_make(const shard_class_rows *rows, shard_dtype dtype)
{
    shard_shape shape = rows->logits->shape;
    shape.ndim--;
    shard_tensor *x = shard_tensor_make(shape, dtype, shard_device_of(rows->logits));
    if (x && !rows->group)
        x->placement = rows->logits->placement;
    return x;
}

/* ---- what the members tell each other ---- */

static part_head own_head(const shard_class_rows *rows)
{
    const shard_cross_entropy_shape *shape = &rows->shape;
    const int64_t options[] = {(int64_t)rows->options, shape->ignore_index, shape->classes, rows->label != NULL};
    return (part_head){.labels = rows->label ? shard_hash_words(SHARD_HASH_START, rows->label, shape->rows) : 0,
                       .options = shard_hash_words(SHARD_HASH_START, options, sizeof options / sizeof *options),
                       .start = shape->col0,
                       .size = shape->cols};
}

/* All members see the same heads, so that all come to the same error. */
static shard_status check_heads(const shard_class_rows *rows)
{
    part_head first = {0}, head;
    int64_t next = 0;
    for (int member = 0; member < rows->members; member++) {
        memcpy(&head, rows->part + member * rows->stride - HEAD_DOUBLES, sizeof head);
        if (member == 0)
            first = head;
        int rank = shard_group_world_rank(rows->group, member), rank0 = shard_group_world_rank(rows->group, 0);
        if (head.options != first.options)
            return shard_error(
                SHARD_ERROR_MISMATCH,
                "%s: rank %d has other options or another number of classes than rank %d; they must be the same on "
                "every member",
                rows->function, rank, rank0);
        if (head.labels != first.labels)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "%s: rank %d has other labels than rank %d; labels must be the same whole ones on every member",
                               rows->function, rank, rank0);
        if (head.start != next)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "%s: rank %d has the logits from class %" PRId64 " on where class %" PRId64 " comes next",
                               rows->function, rank, head.start, next);
        next += head.size;
    }
    if (next != rows->shape.classes)
        return shard_error(SHARD_ERROR_MISMATCH, "%s: the members have the logits of %" PRId64 " classes of %" PRId64,
                           rows->function, next, rows->shape.classes);
    return SHARD_OK;
}

/* Room for all, with the own part filled in; NULL with the error set. */
static double *make_parts(shard_class_rows *rows, shard_tensor *own, int64_t *counts)
{
    int64_t numbers = shard_numel(own);
    rows->stride = HEAD_DOUBLES + numbers;
    double *memory = shard_host_workspace(rows->stride * rows->members, SHARD_FLOAT64);
    if (!memory)
        return NULL;
    rows->part = memory + HEAD_DOUBLES;
    int member = shard_group_rank(rows->group);
    double *mine = rows->part + member * rows->stride;
    part_head head = own_head(rows);
    memcpy(mine - HEAD_DOUBLES, &head, sizeof head);
    for (int i = 0; i < rows->members; i++)
        counts[i] = rows->stride;
    return shard_copy_to_host(own, mine, (size_t)numbers * sizeof *mine) == SHARD_OK ? memory : NULL;
}

shard_status shard_class_rows_gather(shard_class_rows *rows, shard_tensor *own)
{
    rows->members = shard_group_size(rows->group);
    int64_t *counts = own ? shard_host_workspace(rows->members, SHARD_INT64) : NULL;
    double *memory = counts ? make_parts(rows, own, counts) : NULL;
    if (!memory)
        return shard_group_fail(rows->group);
    if (rows->members == 1)
        return SHARD_OK;
    const double *mine = memory + shard_group_rank(rows->group) * rows->stride;
    SHARD_TRY(shard_group_all_gather(rows->group, NULL, mine, memory, counts, SHARD_FLOAT64));
    return check_heads(rows);
}
