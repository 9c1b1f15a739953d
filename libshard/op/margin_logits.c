/*
 * Logits with a margin at the labels' columns: ArcFace, CosFace and combined margins, and AdaFace's margins of rows. If
 * the logits are split by classes, each rank handles the labels in its range, without communication. The backward
 * needs the labels and one number for each row.
 */
#include "base/options.h"
#include "op/label_margins.h"

#include <math.h>

static const shard_class_faults faults = SHARD_CLASS_FAULTS("shard_margin_logits");

_Static_assert((int)SHARD_MARGIN_LINEAR == SHARD_ANGLE_LINEAR && (int)SHARD_MARGIN_CLAMP == SHARD_ANGLE_CLAMP &&
                   (int)SHARD_MARGIN_EASY == SHARD_ANGLE_EASY && (int)SHARD_MARGIN_COSINE == SHARD_ANGLE_COSINE,
               "the kernels have the rules of the interface");

typedef struct margin_context {
    shard_cross_entropy_shape shape;
    shard_margin margin;
} margin_context;

/* The tensors that a node saves. */
enum { LABELS, SLOPE };

static shard_status margin_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const margin_context *c = node->context;
    shard_cross_entropy_shape shape = c->shape;
    shard_tensor *labels = shard_saved(node, LABELS), *slope = shard_saved(node, SLOPE);
    dx[0] = labels && slope ? shard_gradient_over(node, 0, dy) : NULL;
    void *memory[2], *rows[2];
    if (!dx[0] || !shard_load(SHARD_INPUTS(labels, slope), memory))
        return shard_last_status();
    bool loaded =
        dx[0] == dy ? shard_load_rows(SHARD_INPUTS(dy), rows, &shape.pitch) : shard_load_alike(dy, dx[0], rows, &shape.pitch);
    if (!loaded)
        return shard_last_status();
    return SHARD_RUN(dy, margin_logits_backward, &shape, &c->margin, memory[0], memory[1], rows[0], rows[dx[0] == dy ? 0 : 1],
                     dy->dtype);
}

static const shard_node_type margin_type = {.name = "margin_logits", .backward = margin_backward};

bool shard_margin_check(const char *function, const shard_margin_logits_options *options)
{
    const double numbers[] = {options->scale, options->m1, options->m2, options->m3};
    static const char *const names[] = {"scale", "m1", "m2", "m3"};
    for (int i = 0; i < 4; i++)
        if (!isfinite(numbers[i]) || (i < 2 && numbers[i] <= 0)) {
            shard_error(SHARD_ERROR_ARGUMENT, "%s: %s %g; a finite number%s is needed", function, names[i], numbers[i],
                        i < 2 ? " above 0" : "");
            return false;
        }
    if ((unsigned)options->rule <= SHARD_MARGIN_COSINE)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no rule %d", function, (int)options->rule);
    return false;
}

static bool read_labels(shard_class_rows *rows, shard_tensor *cosines, shard_tensor *labels, int64_t ignore_index)
{
    if (!shard_class_rows_read_labels(rows, cosines, labels, ignore_index))
        return false;
    void *memory;
    return shard_load(SHARD_INPUTS(labels), &memory) &&
           SHARD_RUN(labels, check_index, rows->shape.rows, memory, rows->shape.classes, ignore_index, &faults.label, NULL) ==
               SHARD_OK;
}

static shard_tensor *margin_logits(shard_tensor *cosines, shard_tensor *labels, const shard_margin_logits_options *options)
{
    shard_class_rows rows = {.function = "shard_margin_logits", .faults = &faults};
    shard_label_margins margins = {.margin.scale = options->scale};
    if (!read_labels(&rows, cosines, labels, options->ignore_index) || !shard_label_margins_read(&rows, options, &margins))
        return NULL;
    margin_context c = {.shape = rows.shape, .margin = margins.margin};
    shard_tensor *y = shard_tensor_like(cosines), *slope = shard_workspace(cosines, rows.shape.rows, SHARD_FLOAT64);
    void *memory[4], *xy[2];
    if (!y || !slope || !shard_load(SHARD_INPUTS(labels, margins.row_m2, margins.row_m3, slope), memory) ||
        !shard_load_alike(cosines, y, xy, &c.shape.pitch))
        return NULL;
    y = shard_result(y, SHARD_RUN(cosines, margin_logits, &c.shape, &c.margin, xy[0], memory[0], memory[1], memory[2], xy[1],
                                  memory[3], cosines->dtype));
    shard_node *node = shard_record(&margin_type, y, SHARD_INPUTS(cosines), sizeof c);
    if (node) {
        *(margin_context *)node->context = c;
        shard_save_for_backward(node, LABELS, labels);
        shard_save_for_backward(node, SLOPE, slope);
    }
    return y;
}

static shard_tensor *in_scope(shard_tensor *cosines, shard_tensor *labels, const shard_margin_logits_options *options)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(margin_logits(cosines, labels, options), &scope);
    shard_scope_close(&scope);
    return y;
}

shard_tensor *shard_margin_logits_with(shard_tensor *cosines, shard_tensor *labels, const shard_margin_logits_options *given)
{
    SHARD_READ_OPTIONS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS_INIT, options, given);
    bool failed = (!options.row_m2 || !options.row_m3) && shard_last_status() != SHARD_OK; /* NULL may be a failed maker's */
    return options_ok && !failed ? in_scope(cosines, labels, &options) : NULL;
}

shard_tensor *shard_margin_logits_of(shard_tensor *cosines, shard_tensor *labels, const shard_margin_logits_options *given,
                                     int64_t ignore_index)
{
    SHARD_READ_OPTIONS(shard_margin_logits_options, SHARD_MARGIN_LOGITS_OPTIONS_INIT, options, given);
    options.ignore_index = ignore_index;
    return options_ok ? in_scope(cosines, labels, &options) : NULL;
}
