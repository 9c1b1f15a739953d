/* Rows of logits with their labels: checks, and the exchanges between ranks. */
#include "op/class_rows.h"

#include "base/hash.h"
#include "comm/majority.h"
#include "op/autocast.h"

#include <inttypes.h>
#include <stdlib.h>

/* The part of a rank's call that the ranks compare. */
typedef struct part_head {
    uint64_t options;
    int64_t rows, start, size;
    shard_dtype dtype;
} part_head;

/* Digests of the labels and, if there are any, of the row weights follow the numbers of a rank. */
#define DIGEST_DOUBLES ((int64_t)(sizeof(shard_label_digest) / sizeof(double)))
_Static_assert(sizeof(shard_label_digest) % sizeof(double) == 0, "a rank's numbers are doubles");

static bool splits_classes(const shard_tensor *x)
{
    return shard_dtype_is_float(x->dtype) && x->shape.ndim > 0 && shard_is_split(x, x->shape.ndim - 1);
}

/* ---- reading the arguments ---- */

/* x: one number for each row. */
static bool check_rows_fit(const shard_class_rows *rows, const shard_tensor *x, const char *name)
{
    const shard_tensor *logits = rows->logits;
    shard_shape shape = logits->shape;
    shape.ndim--;
    if (!shard_shape_equal(&x->shape, &shape)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: %s of shape %s for logits of shape %s, of which classes are the last dimension",
                    rows->function, name, shard_shape_text(&x->shape), shard_shape_text(&logits->shape));
        return false;
    }
    bool same = shard_placement_equal(&x->placement, &logits->placement);
    return shard_is_local(x) || same || shard_refuse_placement(rows->function, x);
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
    const shard_device *device = shard_device_of(rows->logits), *other = shard_device_of(labels);
    if (other != device) {
        shard_error(SHARD_ERROR_SHAPE, "%s: labels are on %s, logits on %s; one device is needed (shard_to_device)",
                    rows->function, other->name, device->name);
        return false;
    }
    rows->labels = labels;
    return check_rows_fit(rows, labels, "labels");
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

bool shard_class_rows_read_labels(shard_class_rows *rows, shard_tensor *logits, shard_tensor *labels, int64_t ignore_index)
{
    return shard_class_rows_read(rows, logits, labels, ignore_index) && (rows->labels || read_labels(rows, labels));
}

/* Whether x is floating, on the logits' device, and requires no gradient, as it gets none. */
static bool check_constant(const shard_class_rows *rows, shard_tensor *x, const char *name)
{
    const shard_device *device = shard_device_of(rows->logits);
    if (!shard_dtype_is_float(x->dtype) || shard_device_of(x) != device)
        shard_error(SHARD_ERROR_SHAPE, "%s: %s are %s on %s; a floating dtype on %s is needed", rows->function, name,
                    shard_dtype_name(x->dtype), shard_device_of(x)->name, device->name);
    else if (shard_will_record(SHARD_INPUTS(x)))
        shard_error(SHARD_ERROR_UNSUPPORTED, "%s: %s require a gradient, but get none; shard_detach them", rows->function, name);
    else
        return true;
    return false;
}

bool shard_class_rows_read_weight(const shard_class_rows *rows, shard_tensor *weight, const char *name, shard_tensor **local)
{
    const shard_cross_entropy_shape *shape = &rows->shape;
    *local = NULL;
    if (!weight)
        return true;
    if (!check_constant(rows, weight, name))
        return false;
    const shard_placement *placement = &weight->placement;
    int64_t size = weight->shape.ndim == 1 ? weight->shape.dim[0] : -1;
    bool whole = shard_is_local(weight) && size == shape->classes;
    bool part = rows->group && shard_is_split(weight, 0) && shard_group_same(placement->group, rows->group) &&
                placement->start == shape->col0 && placement->whole == shape->classes && size == shape->cols;
    if (!whole && !part) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: %s of shape %s that are %s, for classes [%" PRId64 ", %" PRId64 ") of %" PRId64
                    "; give the weights of all classes or of the local classes (shard_as_split)",
                    rows->function, name, shard_shape_text(&weight->shape), shard_placement_text(placement), shape->col0,
                    shape->col0 + shape->cols, shape->classes);
        return false;
    }
    *local = shard_cast(part ? weight : shard_tensor_view(weight, shape->col0, SHARD_SHAPE(shape->cols)), rows->logits->dtype);
    return *local != NULL;
}

bool shard_class_rows_widen(const shard_class_rows *rows, shard_tensor *x, const char *name, shard_tensor **wide)
{
    *wide = NULL;
    if (!x)
        return true;
    if (!check_constant(rows, x, name) || !check_rows_fit(rows, x, name))
        return false;
    *wide = shard_workspace(x, rows->shape.rows, SHARD_FLOAT64);
    void *memory[2];
    return *wide && shard_load(SHARD_INPUTS(x, *wide), memory) &&
           SHARD_RUN(*wide, cast, rows->shape.rows, memory[0], x->dtype, memory[1], SHARD_FLOAT64) == SHARD_OK;
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

static bool is_half(const shard_tensor *x)
{
    return x && shard_dtype_is_float(x->dtype) && shard_dtype_size(x->dtype) == 2;
}

void shard_class_rows_promote(int weights, shard_tensor **x)
{
    enum { LOGITS, TARGET, FIRST_WEIGHT };
    bool wider = false;
    for (int i = FIRST_WEIGHT; i < FIRST_WEIGHT + weights; i++)
        wider = wider || (x[i] && shard_dtype_is_float(x[i]->dtype) && !is_half(x[i]));
    wider = wider && is_half(x[LOGITS]);
    for (int i = LOGITS; i <= TARGET && wider; i++) {
        shard_tensor *wide = is_half(x[i]) ? shard_cast(x[i], SHARD_FLOAT32) : NULL;
        x[i] = wide ? wide : x[i];
    }
    shard_autocast_promote(FIRST_WEIGHT + weights, x);
}

shard_tensor *shard_class_rows_gradient(shard_node *node, shard_tensor *logits, int64_t pitch)
{
    return shard_storage_is_own(logits->storage) ? shard_detach(logits) : shard_gradient_of_rows(node, 0, pitch);
}

/* ---- exchanges between ranks ---- */

static part_head local_head(const shard_class_rows *rows)
{
    const shard_cross_entropy_shape *shape = &rows->shape;
    const int64_t options[] = {(int64_t)rows->options, shape->ignore_index, shape->classes, rows->labels != NULL,
                               rows->weight ? (int64_t)rows->weight->dtype : -1};
    return (part_head){.options = shard_hash_words(SHARD_HASH_START, options, sizeof options / sizeof *options),
                       .rows = shape->rows,
                       .start = shape->col0,
                       .size = shape->cols,
                       .dtype = (rows->x ? rows->x : rows->logits)->dtype};
}

/* All of a head but the range of classes is the same on every rank. */
static shard_status check_common(const shard_class_rows *rows, const part_head *head)
{
    const char *operand = rows->x ? "x" : "logits";
    shard_majority found;
    if (shard_find_majority(rows->group, &head->dtype, sizeof head->dtype, sizeof *head, &found))
        return shard_error(SHARD_ERROR_MISMATCH,
                           "%s: rank %d has %s of %s, %s of %s; they must be of one type, autocast on or off, on every rank",
                           rows->function, shard_group_world_rank(rows->group, found.odd), operand,
                           shard_dtype_name(head[found.odd].dtype), found.usual_ranks, shard_dtype_name(head[found.usual].dtype));
    if (shard_find_majority(rows->group, &head->rows, sizeof head->rows, sizeof *head, &found))
        return shard_error(SHARD_ERROR_MISMATCH,
                           "%s: rank %d has %s of %" PRId64 " rows, %s of %" PRId64 "; every rank needs the same rows",
                           rows->function, shard_group_world_rank(rows->group, found.odd), operand, head[found.odd].rows,
                           found.usual_ranks, head[found.usual].rows);
    if (shard_find_majority(rows->group, &head->options, sizeof head->options, sizeof *head, &found))
        return shard_error(
            SHARD_ERROR_MISMATCH,
            "%s: options or the number of classes on %s differ from those on %s; they must be the same on every rank",
            rows->function, found.odd_ranks, found.usual_ranks);
    return SHARD_OK;
}

/* All ranks check the same headers, so that all get the same error. */
static shard_status check_heads(const shard_class_rows *rows, const part_head *head)
{
    int64_t next = 0;
    SHARD_TRY(check_common(rows, head));
    for (int rank = 0; rank < rows->ranks; rank++) {
        if (head[rank].start != next)
            return shard_error(SHARD_ERROR_MISMATCH,
                               "%s: rank %d has the logits from class %" PRId64 " on where class %" PRId64 " comes next",
                               rows->function, shard_group_world_rank(rows->group, rank), head[rank].start, next);
        next += head[rank].size;
    }
    if (next != rows->shape.classes)
        return shard_error(SHARD_ERROR_MISMATCH, "%s: the ranks have the logits of %" PRId64 " classes of %" PRId64,
                           rows->function, next, rows->shape.classes);
    return SHARD_OK;
}

static int64_t digests(const shard_class_rows *rows)
{
    return (rows->labels || rows->pairs) + (rows->row_weight != NULL);
}

static shard_label_digest *digest_of(const shard_class_rows *rows, double *part, int64_t i)
{
    return (shard_label_digest *)(part + rows->stride - (digests(rows) - i) * DIGEST_DOUBLES);
}

static bool sign_digest(const shard_class_rows *rows, shard_label_digest *digest)
{
    double rank = shard_group_world_rank(rows->group, shard_group_rank(rows->group));
    return SHARD_RUN(rows->logits, fill, 1, rank, &digest->rank, SHARD_INT64) == SHARD_OK;
}

/* Checks the labels, and of several ranks writes their digest behind this rank's numbers. */
static bool check_labels(const shard_class_rows *rows, const int64_t *label)
{
    shard_label_digest *digest = rows->ranks > 1 ? digest_of(rows, rows->local, 0) : NULL;
    return SHARD_RUN(rows->logits, check_index, rows->shape.rows, label, rows->shape.classes, rows->shape.ignore_index,
                     &rows->faults->label, digest ? &digest->hash : NULL) == SHARD_OK &&
           (!digest || sign_digest(rows, digest));
}

/* Writes the digest of pairs that have been checked. */
static bool digest_pairs(const shard_class_rows *rows)
{
    shard_label_digest *digest = digest_of(rows, rows->local, 0);
    void *memory;
    return shard_load(SHARD_INPUTS(rows->pairs), &memory) &&
           SHARD_RUN(rows->pairs, check_index, shard_numel(rows->pairs), memory, INT64_MAX, 0, &rows->faults->label,
                     &digest->hash) == SHARD_OK &&
           sign_digest(rows, digest);
}

/* Writes the digest of the row weights' bytes, as indices that are all in range. */
static bool digest_weights(const shard_class_rows *rows)
{
    shard_label_digest *digest = digest_of(rows, rows->local, digests(rows) - 1);
    int64_t bytes = rows->shape.rows * (int64_t)sizeof(double);
    shard_tensor *index = shard_workspace(rows->row_weight, bytes, SHARD_INT64);
    void *memory[2];
    return index && shard_load(SHARD_INPUTS(rows->row_weight, index), memory) &&
           SHARD_RUN(index, cast, bytes, memory[0], SHARD_UINT8, memory[1], SHARD_INT64) == SHARD_OK &&
           SHARD_RUN(index, check_index, bytes, memory[1], 256, 0, &rows->faults->weight_difference, &digest->hash) == SHARD_OK &&
           sign_digest(rows, digest);
}

bool shard_class_rows_open(shard_class_rows *rows, int64_t count)
{
    rows->ranks = shard_group_size(rows->group);
    rows->stride = count + (rows->compared || rows->ranks == 1 ? 0 : digests(rows) * DIGEST_DOUBLES);
    shard_tensor *parts = shard_workspace(rows->logits, rows->stride * rows->ranks, SHARD_FLOAT64);
    void *memory[2];
    if (!parts || !shard_load(SHARD_INPUTS(parts, rows->labels), memory))
        return false;
    rows->part = memory[0];
    rows->local = rows->part + shard_group_rank(rows->group) * rows->stride;
    if (rows->compared)
        return true;
    if (rows->ranks == 1)
        return !rows->labels || check_labels(rows, memory[1]);
    return (!rows->labels || check_labels(rows, memory[1])) && (!rows->pairs || digest_pairs(rows)) &&
           (!rows->row_weight || digest_weights(rows));
}

static shard_status compare_heads(const shard_class_rows *rows)
{
    part_head head = local_head(rows), *heads = shard_calloc((size_t)rows->ranks, sizeof *heads);
    if (!heads)
        return shard_group_fail(rows->group);
    shard_status status = shard_group_exchange(rows->group, &head, sizeof head, heads);
    if (status == SHARD_OK)
        status = check_heads(rows, heads);
    free(heads);
    return status;
}

static shard_status gather_parts(const shard_class_rows *rows)
{
    return shard_group_all_gather_equal(rows->group, shard_device_of(rows->logits), rows->local, rows->part, rows->stride,
                                        SHARD_FLOAT64);
}

bool shard_class_rows_go_on(const shard_class_rows *rows)
{
    return shard_last_status() == SHARD_OK || shard_will_record(SHARD_INPUTS(rows->logits, rows->x, rows->weight));
}

shard_status shard_class_rows_gather(shard_class_rows *rows, bool ready)
{
    if (!ready)
        return shard_group_fail(rows->group);
    bool compared = rows->compared;
    rows->compared = true;
    if (rows->ranks == 1)
        return shard_class_rows_go_on(rows) ? SHARD_OK : shard_last_status();
    if (compared)
        return gather_parts(rows);
    SHARD_TRY(compare_heads(rows));
    SHARD_TRY(gather_parts(rows));
    size_t stride = (size_t)rows->stride * sizeof(double);
    if (rows->labels || rows->pairs)
        SHARD_TRY(SHARD_RUN(rows->logits, compare_digests, rows->ranks, stride, digest_of(rows, rows->part, 0),
                            &rows->faults->difference));
    if (!rows->row_weight)
        return SHARD_OK;
    return SHARD_RUN(rows->logits, compare_digests, rows->ranks, stride, digest_of(rows, rows->part, digests(rows) - 1),
                     &rows->faults->weight_difference);
}

bool shard_class_rows_pick(shard_class_rows *rows)
{
    void *memory[2];
    return shard_class_rows_open(rows, rows->shape.rows) && shard_load(SHARD_INPUTS(rows->labels), memory + 1) &&
           shard_load_rows(SHARD_INPUTS(rows->logits), memory, &rows->shape.pitch) &&
           SHARD_RUN(rows->logits, pick_target, &rows->shape, memory[0], memory[1], rows->local, rows->logits->dtype) == SHARD_OK;
}

shard_tensor *shard_class_rows_add_picked(const shard_class_rows *rows)
{
    shard_tensor *logit = shard_workspace(rows->logits, rows->stride, SHARD_FLOAT64);
    void *memory = logit ? shard_tensor_memory(logit) : NULL;
    if (!memory)
        return NULL;
    return shard_result(
        logit, SHARD_RUN(logit, sum_rows, rows->ranks, rows->stride, 0, rows->part, SHARD_FLOAT64, false, memory, SHARD_FLOAT64));
}
