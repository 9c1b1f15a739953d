/* Rows of logits with their labels: checks, and the exchanges between ranks. */
#include "op/class_rows.h"

#include "base/hash.h"

#include <inttypes.h>

/* The part of a rank's call that the ranks compare. */
typedef struct part_head {
    uint64_t options;
    int64_t start, size;
    shard_dtype dtype;
} part_head;

/* Follows the numbers of a rank. */
#define DIGEST_DOUBLES ((int64_t)(sizeof(shard_label_digest) / sizeof(double)))
_Static_assert(sizeof(shard_label_digest) % sizeof(double) == 0, "a rank's numbers are doubles");

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
        shard_error(SHARD_ERROR_SHAPE, "%s: labels of shape %s for logits of shape %s, of which classes are the last dimension",
                    rows->function, shard_shape_text(&labels->shape), shard_shape_text(&logits->shape));
        return false;
    }
    bool same = shard_placement_equal(&labels->placement, &logits->placement);
    return shard_is_local(labels) || same || shard_refuse_placement(rows->function, labels);
}

static bool read_logits(shard_class_rows *rows)
{
    shard_tensor *logits = rows->logits;
    if (!shard_check_operands(rows->function, SHARD_INPUTS(logits)))
        return false;
    int ndim = logits->shape.ndim;
    if (ndim == 0) {
        shard_error(SHARD_ERROR_SHAPE, "%s: logits of shape %s; [..., classes] is needed", rows->function,
                    shard_shape_text(&logits->shape));
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
    rows->labels = labels;
    return check_labels_fit(rows, labels);
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

/* ---- exchanges between ranks ---- */

static part_head local_head(const shard_class_rows *rows)
{
    const shard_cross_entropy_shape *shape = &rows->shape;
    const int64_t options[] = {(int64_t)rows->options, shape->ignore_index, shape->classes, rows->labels != NULL};
    return (part_head){.options = shard_hash_words(SHARD_HASH_START, options, sizeof options / sizeof *options),
                       .start = shape->col0,
                       .size = shape->cols,
                       .dtype = rows->logits->dtype};
}

/* All ranks check the same headers, so that all get the same error. */
static shard_status check_heads(const shard_class_rows *rows, const part_head *head)
{
    int64_t next = 0;
    for (int member = 0; member < rows->members; member++) {
        int rank = shard_group_world_rank(rows->group, member), rank0 = shard_group_world_rank(rows->group, 0);
        if (head[member].options != head[0].options)
            return shard_error(
                SHARD_ERROR_MISMATCH,
                "%s: options or the number of classes on rank %d differ from those on rank %d; they must be the same on "
                "every rank",
                rows->function, rank, rank0);
        if (head[member].dtype != head[0].dtype)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "%s: rank %d has logits of %s, rank %d of %s; they must be of one type, autocast on or off, on "
                               "every rank",
                               rows->function, rank, shard_dtype_name(head[member].dtype), rank0,
                               shard_dtype_name(head[0].dtype));
        if (head[member].start != next)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "%s: rank %d has the logits from class %" PRId64 " on where class %" PRId64 " comes next",
                               rows->function, rank, head[member].start, next);
        next += head[member].size;
    }
    if (next != rows->shape.classes)
        return shard_error(SHARD_ERROR_MISMATCH, "%s: the ranks have the logits of %" PRId64 " classes of %" PRId64,
                           rows->function, next, rows->shape.classes);
    return SHARD_OK;
}

static shard_label_digest *digest_of(const shard_class_rows *rows, double *part)
{
    return (shard_label_digest *)(part + rows->stride - DIGEST_DOUBLES);
}

/* Checks the labels and writes their digest behind this rank's numbers. */
static bool check_labels(const shard_class_rows *rows, shard_tensor *parts, const int64_t *label)
{
    shard_label_digest *digest = digest_of(rows, rows->local);
    double rank = shard_group_world_rank(rows->group, shard_group_rank(rows->group));
    return SHARD_RUN(parts, check_index, rows->shape.rows, label, rows->shape.classes, rows->shape.ignore_index,
                     &rows->faults->label, &digest->hash) == SHARD_OK &&
           SHARD_RUN(parts, fill, 1, rank, &digest->rank, SHARD_INT64) == SHARD_OK;
}

bool shard_class_rows_open(shard_class_rows *rows, int64_t width)
{
    rows->members = shard_group_size(rows->group);
    rows->stride = rows->shape.rows * width + (rows->compared ? 0 : DIGEST_DOUBLES);
    shard_tensor *parts = shard_workspace(rows->logits, rows->stride * rows->members, SHARD_FLOAT64);
    void *memory[2];
    if (!parts || !shard_load(SHARD_INPUTS(parts, rows->labels), memory))
        return false;
    rows->part = memory[0];
    rows->local = rows->part + shard_group_rank(rows->group) * rows->stride;
    return rows->compared || !rows->labels || check_labels(rows, parts, memory[1]);
}

static shard_status gather_parts(const shard_class_rows *rows)
{
    int64_t counts[rows->members];
    for (int i = 0; i < rows->members; i++)
        counts[i] = rows->stride;
    return shard_group_all_gather(rows->group, shard_device_of(rows->logits), rows->local, rows->part, counts, SHARD_FLOAT64);
}

shard_status shard_class_rows_gather(shard_class_rows *rows, bool ready)
{
    if (!ready)
        return shard_group_fail(rows->group);
    if (rows->members == 1 || rows->compared)
        return rows->members == 1 ? SHARD_OK : gather_parts(rows);
    part_head head = local_head(rows), heads[rows->members];
    SHARD_TRY(shard_group_exchange(rows->group, &head, sizeof head, heads));
    SHARD_TRY(check_heads(rows, heads));
    SHARD_TRY(gather_parts(rows));
    rows->compared = true;
    if (!rows->labels)
        return SHARD_OK;
    return SHARD_RUN(rows->logits, compare_digests, rows->members, (size_t)rows->stride * sizeof(double),
                     digest_of(rows, rows->part), &rows->faults->difference);
}

bool shard_class_rows_pick(shard_class_rows *rows)
{
    void *memory[2];
    return shard_class_rows_open(rows, 1) && shard_load(SHARD_INPUTS(rows->labels), memory + 1) &&
           shard_load_rows(SHARD_INPUTS(rows->logits), memory, &rows->shape.pitch) &&
           SHARD_RUN(rows->logits, pick_target, &rows->shape, memory[0], memory[1], rows->local, rows->logits->dtype) == SHARD_OK;
}

shard_tensor *shard_class_rows_add_picked(const shard_class_rows *rows)
{
    shard_tensor *logit = shard_workspace(rows->logits, rows->stride, SHARD_FLOAT64);
    void *memory = logit ? shard_tensor_memory(logit) : NULL;
    if (!memory)
        return NULL;
    return shard_result(logit, SHARD_RUN(logit, sum_rows, rows->members, rows->stride, 0, rows->part, SHARD_FLOAT64, false, memory,
                                         SHARD_FLOAT64));
}
