#include "support/head.h"

#include "support/kernels.h"
#include "support/loss.h"
#include "support/sampled.h"

#include "tensor/tensor.h"

#include <shard/autograd.h>
#include <shard/distributed.h>

#include <math.h>
#include <string.h>

enum { PAIRS = 5 };

const struct head_types head_dtypes[HEAD_DTYPES] = {{SHARD_FLOAT32, SHARD_FLOAT32},
                                                    {SHARD_BFLOAT16, SHARD_BFLOAT16},
                                                    {SHARD_BFLOAT16, SHARD_FLOAT32},
                                                    {SHARD_FLOAT64, SHARD_FLOAT64}};

static shard_tensor *noise_like(shard_shape shape, int64_t start, uint64_t seed, shard_dtype dtype, double low, double high)
{
    double value[HEAD_CLASSES * HEAD_IN];
    int64_t count = shard_shape_product(&shape, 0, shape.ndim);
    for (int64_t i = 0; i < count; i++)
        value[i] = round_to(dtype, low + (high - low) * (noise(seed, start + i) + 1) / 2);
    return tensor_of(value, shape, dtype);
}

static bool is_binary(head_form form)
{
    return form == BINARY || form == GRADIENT_ONLY;
}

shard_tensor *head_target(head_form form, int batch)
{
    static const int64_t pair[2 * PAIRS] = {0, 0, 2, 3, 6, 4, 300, 17, 150, 0};
    int64_t label[HEAD_ROWS];
    for (int64_t i = 0; i < HEAD_ROWS; i++)
        label[i] = i == 3 ? -100 : ((i + batch) * 7919 + HEAD_CLASSES - 1) % HEAD_CLASSES;
    return is_binary(form) ? shard_from_host(pair, SHARD_SHAPE(2, PAIRS), .dtype = SHARD_INT64) : labels_of(label, HEAD_ROWS);
}

static void set_options(head_call *c, shard_dtype wide)
{
    const shard_cross_entropy_options softmax = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    const shard_margin_logits_options margin = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    const shard_binary_cross_entropy_options binary = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    c->softmax = softmax;
    c->margin = margin;
    c->binary = binary;
    c->margin.scale = 8;
    c->margin.m2 = 0.3;
    if (c->form == PLAIN || c->form == CAPPED)
        c->softmax.label_smoothing = 0.1;
    if (c->form == PLAIN || c->form == SAMPLE)
        c->softmax.weight = noise_like(SHARD_SHAPE(HEAD_CLASSES), 0, 4, wide, 0.5, 1.5);
    if (c->form == EACH_ROW)
        c->softmax.reduction = SHARD_REDUCTION_NONE;
    if (c->form == CAPPED) {
        c->softmax.soft_cap = 2;
        c->softmax.logit_scale = 1.5;
        c->softmax.z_loss = 0.01;
    }
    c->softmax.normalized = c->form == MARGIN || c->form == SAMPLE_MARGIN;
    c->softmax.margin = c->softmax.normalized ? &c->margin : NULL;
    c->binary.pos_weight = noise_like(SHARD_SHAPE(HEAD_CLASSES), 0, 5, wide, 0.5, 1.5);
    c->binary.row_weight = noise_like(SHARD_SHAPE(HEAD_ROWS), 0, 6, wide, 0.5, 1.5);
    c->binary.reduction = SHARD_REDUCTION_BATCH_MEAN;
    c->binary.gradient_only = c->form == GRADIENT_ONLY;
}

void head_make(head_call *c, head_form form, int d, shard_group *group)
{
    shard_range range = shard_split_range(HEAD_CLASSES, shard_group_size(group), shard_group_rank(group));
    shard_tensor *weight = noise_like(SHARD_SHAPE(range.size, HEAD_IN), range.start * HEAD_IN, 2, head_dtypes[d].weight, -1, 1);
    shard_tensor *bias = noise_like(SHARD_SHAPE(range.size), range.start, 3, head_dtypes[d].weight, -1, 1);
    *c = (head_call){.form = form,
                     .x = noise_like(SHARD_SHAPE(HEAD_ROWS, HEAD_IN), 0, 1, head_dtypes[d].x, -1, 1),
                     .weight = shard_as_split(weight, 0, group, range.start, HEAD_CLASSES),
                     .bias = form == PLAIN || form == EACH_ROW || form == SAMPLE || form == BINARY
                                 ? shard_as_split(bias, 0, group, range.start, HEAD_CLASSES)
                                 : NULL,
                     .target = head_target(form, 0)};
    set_options(c, head_dtypes[d].x == SHARD_FLOAT64 ? SHARD_FLOAT64 : SHARD_FLOAT32);
    if (form == SAMPLE || form == SAMPLE_MARGIN)
        c->softmax.sample = shard_sample_classes(c->target, c->weight, 0.3, 3, 4);
}

void head_set_requires(const head_call *c, bool on)
{
    shard_set_requires_grad(c->x, on);
    shard_set_requires_grad(c->weight, on);
    shard_set_requires_grad(c->bias, on);
}

static void read_rank(shard_tensor *rank, head_result *r)
{
    if (rank)
        check_ok(shard_copy_to_host(rank, r->rank, sizeof r->rank));
}

shard_tensor *head_dy(shard_tensor *loss)
{
    ck_assert_msg(loss, "%s", shard_last_error());
    shard_shape shape = loss->shape;
    return noise_like(shape, 0, 7, loss->dtype, 0.5, 2);
}

void head_record(const head_call *c, int batches, head_result *r)
{
    memset(r, 0, sizeof *r);
    head_set_requires(c, true);
    for (int i = 0; i < batches; i++) {
        shard_tensor *rank = NULL, *target = i ? head_target(c->form, i) : c->target;
        shard_tensor *loss = is_binary(c->form)
                                 ? shard_linear_binary_cross_entropy_with(c->x, c->weight, c->bias, target, &c->binary)
                                 : shard_linear_cross_entropy_with(c->x, c->weight, c->bias, target, &c->softmax,
                                                                   c->form == RANKED ? &rank : NULL);
        check_ok(shard_backward_from(loss, head_dy(loss)));
        read_values(loss, r->loss);
        read_rank(rank, r);
    }
    read_values(shard_grad(c->x), r->dx);
    read_values(shard_grad(c->weight), r->dweight);
    if (c->bias)
        read_values(shard_grad(c->bias), r->dbias);
    shard_tensor *leaf[] = {c->x, c->weight, c->bias};
    for (int i = 0; i < 3; i++)
        shard_zero_grad(leaf[i]);
    head_set_requires(c, false);
}

shard_tensor *head_forward(const head_call *c, shard_tensor *target, shard_head_saved **saved, head_result *r)
{
    shard_tensor *rank = NULL, *loss;
    if (is_binary(c->form))
        loss = shard_linear_binary_cross_entropy_forward_with(c->x, c->weight, c->bias, target, &c->binary, saved);
    else
        loss = shard_linear_cross_entropy_forward_with(c->x, c->weight, c->bias, target, &c->softmax, saved,
                                                       c->form == RANKED ? &rank : NULL);
    ck_assert_msg(loss, "%s", shard_last_error());
    ck_assert(!shard_requires_grad(loss));
    read_values(loss, r->loss);
    read_rank(rank, r);
    return loss;
}

void head_read_features(shard_tensor *dx, shard_group *group, head_result *r)
{
    if (shard_group_size(group) > 1) {
        ck_assert_int_eq(dx->placement.kind, SHARD_PARTIAL);
        ck_assert(dx->placement.group == group);
        dx = shard_reduce_from_group(dx, group);
    }
    read_values(dx, r->dx);
}

void head_read_parameters(const head_call *c, shard_tensor *dweight, shard_tensor *dbias, head_result *r)
{
    ck_assert(shard_placement_equal(&dweight->placement, &c->weight->placement));
    read_values(dweight, r->dweight);
    ck_assert_int_eq(dbias != NULL, c->bias != NULL);
    if (dbias)
        read_values(dbias, r->dbias);
}

void head_run(const head_call *c, shard_group *group, const shard_head_backward_options *options, head_result *r)
{
    shard_head_saved *saved = NULL;
    memset(r, 0, sizeof *r);
    shard_tensor *loss = head_forward(c, c->target, &saved, r), *dx, *dweight = NULL, *dbias = NULL;
    ck_assert_msg(shard_head_backward_with(saved, head_dy(loss), options, &dx, &dweight, &dbias) == SHARD_OK, "%s",
                  shard_last_error());
    ck_assert_int_eq(dx->dtype, c->x->dtype);
    ck_assert_int_eq(dweight->dtype, c->weight->dtype);
    ck_assert(!dbias || dbias->dtype == c->bias->dtype);
    head_read_features(dx, group, r);
    head_read_parameters(c, dweight, dbias, r);
    shard_head_saved_destroy(saved);
}

void head_check_bits(const char *what, const double *found, const double *expected, int64_t count, head_form form, int d)
{
    const bool exact = products_are_exact();
    for (int64_t i = 0; i < count; i++)
        if (exact ? memcmp(&found[i], &expected[i], sizeof *found) != 0
                  : !is_within(found[i], expected[i], 0.01 * (1 + fabs(expected[i]))))
            ck_abort_msg("%s[%lld] is %.17g, not %.17g: form %d, dtypes %d", what, (long long)i, found[i], expected[i], (int)form,
                         d);
}

void head_check_results(const head_result *found, const head_result *expected, const head_call *c, int d, int ranks)
{
    head_check_bits("loss", found->loss, expected->loss, HEAD_ROWS, c->form, d);
    head_check_bits("dweight", found->dweight, expected->dweight, HEAD_CLASSES * HEAD_IN, c->form, d);
    head_check_bits("dbias", found->dbias, expected->dbias, HEAD_CLASSES, c->form, d);
    ck_assert_mem_eq(found->rank, expected->rank, sizeof found->rank);
    if (ranks == 1 || !c->softmax.normalized) {
        head_check_bits("dx", found->dx, expected->dx, HEAD_ROWS * HEAD_IN, c->form, d);
        return;
    }
    check_doubles(found->dx, expected->dx, HEAD_ROWS * HEAD_IN, 8 * ranks * unit(head_dtypes[d].x), 0, "form %d, dtypes %d: dx",
                  (int)c->form, d);
}
