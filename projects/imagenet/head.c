/*
 * A last layer of its own dtype, with a margin or with sampled classes. It takes fc's place in the model, which then returns
 * features, and computes the loss from them. In training that is the loss of the layer's logits; in validation the loss and the
 * accuracy over all classes without a margin, whose sums are wide also for a weight of 16 bits.
 */
#include "trainer.h"

#include "margin.h"

#include <inttypes.h>
#include <stdlib.h>

#define NORM_EPS 1e-12

struct head {
    shard_module *layer; /* has fc's parameters; a classifier if it is fused */
    shard_tensor *unit;  /* of a validation: the weight with rows of norm 1; NULL: not made */
    shard_dtype dtype;
    bool fused, by_row;
};

bool head_is_special(const options *wanted)
{
    bool narrow = head_dtype(&wanted->head, &wanted->training) != (shard_dtype)wanted->training.dtype;
    return narrow || wanted->margin.cosines || wanted->margin.sample_rate < 1;
}

/* ---- the module in fc's place ---- */

static shard_tensor *pass_features(shard_module *module, shard_tensor *x)
{
    (void)module;
    return x;
}

static void destroy(shard_module *module)
{
    struct head *head = shard_module_data(module);
    shard_module_destroy(head->layer);
    shard_release(head->unit);
    free(head);
}

static const shard_module_type head_type = {.name = "head", .forward = pass_features, .destroy = destroy};

/* Its parameters are the layer's, by the same names; its buffers are the margin's. */
static shard_module *make_module(struct head *head, const margin_options *margin)
{
    shard_module *module = shard_module_create(&head_type, head);
    if (!module) /* it has destroyed the head */
        return NULL;
    shard_tensor *bias = shard_module_optional(head->layer, "bias");
    shard_module_add_parameter(module, "weight", shard_module_tensor(head->layer, "weight"));
    if (bias)
        shard_module_add_parameter(module, "bias", bias);
    margin_add_buffers(module, margin);
    if (shard_last_status() == SHARD_OK)
        return module;
    shard_module_destroy(module);
    return NULL;
}

shard_status head_open(trainer *run, bool fused)
{
    const options *wanted = run->options;
    bool splits = wanted->head.enable_model_parallel, bias = !wanted->margin.cosines && wanted->margin.sample_rate == 1;
    shard_split split = splits ? (shard_split)wanted->model_parallel_dim : SHARD_SPLIT_NONE;
    shard_group *group = splits ? run->base.model_group : NULL;
    shard_tensor *replaced = shard_module_tensor(shard_module_child(run->base.model, "fc"), "weight");
    int64_t features = shard_tensor_size(replaced, 1), classes = run->data.num_classes;
    struct head *head = calloc(1, sizeof *head);
    if (!head)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for the last layer");
    head->dtype = head_dtype(&wanted->head, &wanted->training);
    head->fused = fused;
    head->by_row = split == SHARD_SPLIT_ROW;
    head->layer = fused ? shard_nn_parallel_classifier(features, classes, group, .bias = bias, .dtype = head->dtype)
                        : shard_nn_parallel_linear(features, classes, split, group, .bias = bias, .dtype = head->dtype);
    shard_status status = shard_module_set_child(run->base.model, "fc", make_module(head, &wanted->margin));
    run->head = status == SHARD_OK ? head : NULL;
    return status;
}

/* ---- sampled classes ---- */

void head_close(trainer *run)
{
    shard_release(run->sample.classes);
    shard_release(run->sample.correction);
    run->sample = (class_sample){NULL};
}

shard_status head_draw(trainer *run)
{
    const options *wanted = run->options;
    int64_t first = run->base.at.epoch_step * wanted->training.batch, left = run->data.train_images - first;
    int64_t count = left < wanted->training.batch ? left : wanted->training.batch;
    int64_t *labels = calloc((size_t)count, sizeof *labels);
    if (!labels)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " labels", count);
    loader_labels(run->data.train, run->base.at.epoch, first, count, labels);
    head_close(run);
    SHARD_SCOPE
    {
        class_sample_draw(&run->sample, labels, count, shard_module_tensor(run->head->layer, "weight"),
                          wanted->margin.sample_rate, wanted->margin.sample_correction, (uint64_t)wanted->training.seed,
                          run->base.at.step);
        shard_keep(run->sample.classes);
        shard_keep(run->sample.correction);
    }
    free(labels);
    return shard_last_status();
}

/* ---- losses ---- */

static shard_tensor *unit_rows(shard_tensor *x)
{
    return shard_normalize(x, 1, NORM_EPS);
}

/* A classifier's weight that ZeRO 3 streams in row blocks gives logits in memory, whose rows cannot be normalized any more. */
static shard_tensor *cosine_loss(trainer *run, shard_tensor *x, shard_tensor *labels, double label_smoothing)
{
    const options *wanted = run->options;
    const struct head *head = run->head;
    shard_tensor *weight = shard_module_tensor(head->layer, "weight");
    shard_margin_logits_options margin;
    shard_cross_entropy_options set = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    margin_make(&margin, &wanted->margin, shard_module_child(run->base.model, "fc"), x, shard_mesh_data_group(run->base.mesh));
    set.reduction = SHARD_REDUCTION_SUM;
    set.label_smoothing = label_smoothing;
    set.sample = run->sample.classes;
    set.normalized = head->fused;
    set.stash_share = wanted->head.stash;
    set.margin = &margin;
    if (head->fused && wanted->training.zero == 3)
        return shard_linear_cross_entropy_with(x, weight, NULL, labels, &set, NULL);
    shard_tensor *logits =
        head->fused ? shard_forward(head->layer, x) : shard_parallel_linear(unit_rows(x), unit_rows(weight), NULL);
    if (!head->fused && head->dtype == SHARD_BFLOAT16)
        logits = shard_cast(logits, SHARD_FLOAT32); /* a loss has its logits' dtype */
    shard_tensor *loss = shard_cross_entropy_with(logits, labels, &set, NULL);
    shard_release(logits);
    return loss;
}

/* Neither a margin nor a sample has the labels' ranks of all classes. */
static shard_tensor *training_loss(trainer *run, shard_tensor *x, shard_tensor *labels, double label_smoothing,
                                   shard_tensor **ranks)
{
    const options *wanted = run->options;
    struct head *head = run->head;
    if (wanted->margin.cosines)
        return cosine_loss(run, x, labels, label_smoothing);
    shard_tensor *logits = shard_forward(head->layer, x), *loss;
    if (!head->fused && head->dtype == SHARD_BFLOAT16)
        logits = shard_cast(logits, SHARD_FLOAT32); /* a loss has its logits' dtype */
    if (run->sample.classes)
        loss = shard_cross_entropy(logits, labels, .reduction = SHARD_REDUCTION_SUM, .label_smoothing = label_smoothing,
                                   .sample = run->sample.classes, .sample_correction = run->sample.correction,
                                   .stash_share = wanted->head.stash);
    else
        loss = shard_cross_entropy_with_rank(logits, labels, ranks, .reduction = SHARD_REDUCTION_SUM,
                                             .label_smoothing = label_smoothing, .stash_share = wanted->head.stash);
    shard_release(logits); /* the backward writes the gradient over them */
    return loss;
}

/* The normalized weight is made once in a validation. */
static shard_tensor *validation_loss(trainer *run, shard_tensor *x, shard_tensor *labels, shard_tensor **ranks)
{
    const options *wanted = run->options;
    struct head *head = run->head;
    bool cosines = wanted->margin.cosines;
    double scale = cosines ? wanted->margin.scale : 1;
    shard_dtype wide = head->dtype == SHARD_BFLOAT16 ? SHARD_FLOAT32 : head->dtype;
    shard_tensor *weight = shard_module_tensor(head->layer, "weight"), *bias = shard_module_optional(head->layer, "bias");
    if (cosines && !head->unit)
        head->unit = shard_keep(unit_rows(weight));
    if (cosines) {
        weight = head->unit;
        x = unit_rows(x);
    }
    if (head->by_row)
        return shard_cross_entropy_with_rank(shard_cast(shard_parallel_linear(x, weight, bias), wide), labels, ranks,
                                             .reduction = SHARD_REDUCTION_SUM, .logit_scale = scale);
    return shard_linear_cross_entropy_with_rank(x, weight, bias, labels, ranks, .reduction = SHARD_REDUCTION_SUM,
                                                .logit_scale = scale);
}

void head_end_validation(trainer *run)
{
    if (!run->head)
        return;
    shard_release(run->head->unit);
    run->head->unit = NULL;
}

shard_tensor *head_loss(trainer *run, shard_tensor *features, shard_tensor *labels, double label_smoothing, shard_tensor **ranks)
{
    const options *wanted = run->options;
    shard_dtype dtype = run->head->dtype, own = (shard_dtype)wanted->training.dtype;
    shard_tensor *loss = NULL;
    *ranks = NULL;
    SHARD_AUTOCAST(head_autocast(&wanted->head, &wanted->training))
    {
        shard_tensor *x = dtype == own ? features : shard_cast(features, dtype);
        loss = shard_module_is_training(run->base.model) ? training_loss(run, x, labels, label_smoothing, ranks)
                                                         : validation_loss(run, x, labels, ranks);
    }
    return loss;
}
