/*
 * Every loss of a head x float32 and bfloat16 x without logits, in one tile of classes and in several, and with them x ranks: 1,
 * 2, 3, 4 along the classes, and 2 x 2 along rows and classes. Loss and gradients are compared with loops over logits in double,
 * which are written here after docs/losses.md.
 */
#include "support/kernels.h"
#include "support/loss.h"
#include "support/sampled.h"

#include "device/head.h"

#include <shard/shard.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, IN = 5, CLASSES = 13, IGNORED = -7 };
enum { WHOLE_STASH = 1000 /* a stash_share of these small weights that keeps all logits */ };
#define RATE 0.4 /* of sampled classes */
enum { TILE = 3 /* classes of a tile, of which each rank has several; 0: one tile */ };

typedef struct loss_kind {
    const char *name;
    bool binary, probabilities, biased, weighted, positive, row_weighted, ignoring, normalized, margins, row_margins, sampled,
        corrected;
    double smoothing, z_loss, logit_scale /* 0: 1 */, soft_cap, scale, m1, m2, m3;
} loss_kind;

static const loss_kind kinds[] = {
    {.name = "softmax"},
    {.name = "bias", .biased = true},
    {.name = "smoothing and z-loss", .biased = true, .smoothing = 0.1, .z_loss = 0.05},
    {.name = "probabilities", .probabilities = true, .biased = true, .smoothing = 0.1},
    {.name = "logit scale", .biased = true, .logit_scale = 0.5},
    {.name = "soft cap", .biased = true, .soft_cap = 1.5},
    {.name = "soft cap, smoothing, logit scale", .soft_cap = 1.5, .smoothing = 0.1, .logit_scale = 2},
    {.name = "weights", .biased = true, .weighted = true, .row_weighted = true, .ignoring = true},
    {.name = "weights, smoothing, z-loss",
     .weighted = true,
     .row_weighted = true,
     .ignoring = true,
     .smoothing = 0.2,
     .z_loss = 0.05},
    {.name = "normalized", .normalized = true, .logit_scale = 4},
    {.name = "ArcFace", .normalized = true, .margins = true, .scale = 8, .m1 = 1, .m2 = 0.5},
    {.name = "CosFace", .normalized = true, .margins = true, .scale = 8, .m1 = 1, .m3 = 0.4},
    {.name = "AdaFace", .normalized = true, .margins = true, .row_margins = true, .scale = 8, .m1 = 1},
    {.name = "combined margin",
     .normalized = true,
     .margins = true,
     .scale = 8,
     .m1 = 1.1,
     .m2 = 0.2,
     .m3 = 0.1,
     .smoothing = 0.1},
    {.name = "sample", .sampled = true, .biased = true, .weighted = true, .smoothing = 0.1},
    {.name = "sample, corrected", .sampled = true, .corrected = true, .biased = true},
    {.name = "sample, ArcFace", .sampled = true, .normalized = true, .margins = true, .scale = 8, .m1 = 1, .m2 = 0.5},
    {.name = "binary", .binary = true, .biased = true},
    {.name = "binary, weights", .binary = true, .biased = true, .weighted = true, .positive = true, .row_weighted = true},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static const shard_reduction reductions[2][3] = {{SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM, SHARD_REDUCTION_NONE},
                                                 {SHARD_REDUCTION_MEAN, SHARD_REDUCTION_SUM, SHARD_REDUCTION_BATCH_MEAN}};

/* The ranks: classes are split over `model`, rows over `data`, of which this rank has part `part` of `parts`. */
typedef struct layout {
    shard_group *model, *data;
    int parts, part;
} layout;

typedef struct problem {
    const loss_kind *kind;
    shard_dtype dtype;
    shard_reduction reduction;
    bool fused;
} problem;

/* Values that both dtypes have. */
typedef struct values {
    double x[ROWS * IN], weight[CLASSES * IN], bias[CLASSES], class_weight[CLASSES], positive[CLASSES], row_weight[ROWS],
        dy[ROWS], m2[ROWS], m3[ROWS];
    double probability[ROWS * CLASSES];
    int64_t label[ROWS];
    bool one[ROWS * CLASSES];
} values;

typedef struct result {
    double loss[ROWS], dx[ROWS * IN], dweight[CLASSES * IN], dbias[CLASSES];
} result;

static void fill(double *to, int64_t count, uint64_t seed, double low, double high)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = round_to(SHARD_BFLOAT16, low + (high - low) * (noise(seed, i) + 1) / 2);
}

static values make_values(const loss_kind *k)
{
    values v;
    fill(v.x, ROWS * IN, 1, -1, 1);
    fill(v.weight, CLASSES * IN, 2, -1, 1);
    fill(v.bias, CLASSES, 3, -1, 1);
    fill(v.class_weight, CLASSES, 4, 0.5, 1.5);
    fill(v.positive, CLASSES, 5, 1, 3);
    fill(v.row_weight, ROWS, 6, 0.5, 1.5);
    fill(v.dy, ROWS, 7, 0.5, 1.5);
    fill(v.probability, ROWS * CLASSES, 8, 0, 0.15);
    for (int64_t i = 0; i < ROWS; i++) {
        v.m2[i] = k->m2;
        v.m3[i] = k->m3;
    }
    if (k->row_margins) {
        fill(v.m2, ROWS, 9, -0.4, 0.4);
        fill(v.m3, ROWS, 10, 0, 0.6);
    }
    for (int64_t i = 0; i < ROWS; i++)
        v.label[i] = k->ignoring && i % 3 == 1 ? IGNORED : (i * 5 + 12) % CLASSES;
    for (int64_t i = 0; i < ROWS * CLASSES; i++)
        v.one[i] = (i * 31 + 7) % 5 == 0;
    return v;
}

/* ---- the reference ---- */

/* A row's logits before scale and cap, and what they are made of. */
typedef struct row {
    const loss_kind *k;
    const bool *counts, *labelled; /* [CLASSES] */
    const double *x;
    int64_t label;
    double m2, m3;                                       /* of the label's margin */
    double norm, logit[CLASSES], norms[CLASSES], cosine; /* of the label */
} row;

static double norm_of(const double *x)
{
    double sum = 0;
    for (int i = 0; i < IN; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static void compute_logits(row *r, const values *v)
{
    const loss_kind *k = r->k;
    r->norm = k->normalized ? norm_of(r->x) : 1;
    for (int c = 0; c < CLASSES; c++) {
        r->norms[c] = k->normalized ? norm_of(v->weight + c * IN) : 1;
        r->logit[c] = (k->biased ? v->bias[c] : 0) - (k->corrected && !r->labelled[c] ? log(RATE) : 0);
        for (int i = 0; i < IN; i++)
            r->logit[c] += r->x[i] / r->norm * v->weight[c * IN + i] / r->norms[c];
        if (k->margins && c == r->label) {
            r->cosine = r->logit[c];
            double angle = k->m1 * acos(r->cosine) + r->m2;
            ck_assert(angle > 0 && angle < acos(-1)); /* elsewhere the rules of margins differ: test_margin_logits */
            r->logit[c] = cos(angle) - r->m3;
        }
        r->logit[c] *= k->margins ? k->scale : 1;
    }
}

/* Adds the gradients of the logits' operands; dz [CLASSES] by the logits of compute_logits. */
static void add_gradients(const row *r, const values *v, const double *dz, double *dx, result *to)
{
    const loss_kind *k = r->k;
    double dunit[IN] = {0}, along = 0;
    for (int c = 0; c < CLASSES; c++) {
        double d = dz[c] * (k->margins ? k->scale : 1), dot = 0, drow[IN];
        if (k->margins && c == r->label)
            d *= k->m1 * sin(k->m1 * acos(r->cosine) + r->m2) / sin(acos(r->cosine));
        to->dbias[c] += d;
        for (int i = 0; i < IN; i++) {
            dunit[i] += d * v->weight[c * IN + i] / r->norms[c];
            drow[i] = d * r->x[i] / r->norm;
            dot += drow[i] * v->weight[c * IN + i] / r->norms[c];
        }
        for (int i = 0; i < IN; i++)
            to->dweight[c * IN + i] +=
                k->normalized ? (drow[i] - dot * v->weight[c * IN + i] / r->norms[c]) / r->norms[c] : drow[i];
    }
    for (int i = 0; i < IN; i++)
        along += dunit[i] * r->x[i] / r->norm;
    for (int i = 0; i < IN; i++)
        dx[i] = k->normalized ? (dunit[i] - along * r->x[i] / r->norm) / r->norm : dunit[i];
}

/* The loss of a row, and dz by its logits. */
static double softmax_row(const row *r, const values *v, int i, double *dz)
{
    const loss_kind *k = r->k;
    double x[CLASSES], slope[CLASSES], sum = 0, loss = 0, total = 0, count = 0;
    for (int c = 0; c < CLASSES; c++) {
        double scale = k->logit_scale != 0 ? k->logit_scale : 1, z = scale * r->logit[c];
        x[c] = k->soft_cap != 0 ? k->soft_cap * tanh(z / k->soft_cap) : z;
        slope[c] = k->soft_cap != 0 ? scale * (1 - pow(x[c] / k->soft_cap, 2)) : scale;
        sum += r->counts[c] ? exp(x[c]) : 0;
        count += r->counts[c];
    }
    double lse = log(sum), factor = k->row_weighted ? v->row_weight[i] : 1;
    for (int c = 0; c < CLASSES; c++) {
        double p = k->probabilities ? v->probability[i * CLASSES + c] : c == r->label;
        double q = (k->weighted ? v->class_weight[c] : 1) * ((1 - k->smoothing) * p + k->smoothing / count);
        dz[c] = r->counts[c] ? -factor * q * slope[c] : 0;
        loss += r->counts[c] ? q * (lse - x[c]) : 0;
        total += r->counts[c] ? q : 0;
    }
    for (int c = 0; c < CLASSES; c++)
        dz[c] += r->counts[c] ? factor * (total + 2 * k->z_loss * lse) * exp(x[c] - lse) * slope[c] : 0;
    return factor * (loss + k->z_loss * lse * lse);
}

static double binary_row(const row *r, const values *v, int i, double *dz)
{
    const loss_kind *k = r->k;
    double loss = 0;
    for (int c = 0; c < CLASSES; c++) {
        double factor = (k->row_weighted ? v->row_weight[i] : 1) * (k->weighted ? v->class_weight[c] : 1);
        double positive = k->positive ? v->positive[c] : 1, z = r->logit[c];
        loss += factor * (v->one[i * CLASSES + c] ? positive * log(1 + exp(-z)) : log(1 + exp(z)));
        dz[c] = factor * (v->one[i * CLASSES + c] ? -positive / (1 + exp(z)) : 1 / (1 + exp(-z)));
    }
    return loss;
}

static double divisor_of(const problem *p, const values *v, int first, int rows)
{
    const loss_kind *k = p->kind;
    double sum = 0;
    if (k->binary)
        return p->reduction == SHARD_REDUCTION_MEAN ? rows * CLASSES : p->reduction == SHARD_REDUCTION_BATCH_MEAN ? rows : 1;
    for (int i = first; i < first + rows; i++)
        if (v->label[i] != IGNORED)
            sum +=
                (k->weighted && !k->probabilities ? v->class_weight[v->label[i]] : 1) * (k->row_weighted ? v->row_weight[i] : 1);
    return p->reduction == SHARD_REDUCTION_MEAN ? sum : 1;
}

/* Adds the gradients of `factor` times the loss of these rows. */
static void refer(const problem *p, const values *v, int first, int rows, double factor, result *to)
{
    const loss_kind *k = p->kind;
    bool each = p->reduction == SHARD_REDUCTION_NONE, all[CLASSES], labelled[CLASSES] = {false}, *flags = NULL;
    memset(all, true, sizeof all);
    if (k->sampled)
        flags = flags_of(labels_of(v->label + first, rows), CLASSES, RATE, 3, 4);
    for (int i = first; i < first + rows; i++)
        if (v->label[i] >= 0)
            labelled[v->label[i]] = true;
    double divisor = divisor_of(p, v, first, rows), sum = 0;
    for (int i = first; i < first + rows; i++) {
        row r = {.k = k,
                 .counts = flags ? flags : all,
                 .labelled = labelled,
                 .x = v->x + i * IN,
                 .label = v->label[i],
                 .m2 = v->m2[i],
                 .m3 = v->m3[i]};
        double dz[CLASSES];
        if (!k->binary && r.label == IGNORED)
            continue;
        compute_logits(&r, v);
        to->loss[i] = k->binary ? binary_row(&r, v, i, dz) : softmax_row(&r, v, i, dz);
        sum += to->loss[i];
        for (int c = 0; c < CLASSES; c++)
            dz[c] *= factor / divisor * v->dy[each ? i : 0];
        add_gradients(&r, v, dz, to->dx + i * IN, to);
    }
    for (int i = first; i < first + rows && !each; i++)
        to->loss[i] = sum / divisor;
    free(flags);
}

/* ---- the library ---- */

static shard_tensor *leaf_of(const double *numbers, shard_shape shape, shard_dtype dtype)
{
    shard_tensor *leaf = tensor_of(numbers, shape, dtype);
    shard_set_requires_grad(leaf, true);
    return leaf;
}

static shard_tensor *part_of(const double *numbers, shard_shape shape, shard_dtype dtype, int dim, shard_group *group,
                             int64_t start)
{
    shard_tensor *part = shard_as_split(tensor_of(numbers, shape, dtype), dim, group, start, CLASSES);
    shard_set_requires_grad(part, dim == 0);
    return part;
}

/* Pairs or probabilities or labels of these rows; probabilities of the classes of the range. */
static shard_tensor *target_of(const problem *p, const values *v, int first, int rows, shard_group *model, shard_range range)
{
    int64_t pair[2 * ROWS * CLASSES], count = 0, at = 0;
    double probability[ROWS * CLASSES];
    if (p->kind->probabilities) {
        for (int i = 0; i < rows; i++)
            memcpy(probability + i * range.size, v->probability + (first + i) * CLASSES + range.start,
                   (size_t)range.size * sizeof *probability);
        return part_of(probability, SHARD_SHAPE(rows, range.size), p->dtype, 1, model, range.start);
    }
    if (!p->kind->binary)
        return labels_of(v->label + first, rows);
    for (int i = first * CLASSES; i < (first + rows) * CLASSES; i++)
        count += v->one[i];
    for (int i = first * CLASSES; i < (first + rows) * CLASSES; i++)
        if (v->one[i]) {
            pair[at] = i / CLASSES - first;
            pair[count + at++] = i % CLASSES;
        }
    return shard_from_host(pair, SHARD_SHAPE(2, count), .dtype = SHARD_INT64);
}

/* The factors of the loss, of the type that it takes them in. */
typedef struct factors {
    shard_tensor *weight, *positive, *row_weight, *m2, *m3;
} factors;

static factors factors_of(const problem *p, const values *v, int first, int rows)
{
    const loss_kind *k = p->kind;
    shard_dtype dtype = p->fused ? SHARD_FLOAT32 : p->dtype;
    return (factors){k->weighted ? tensor_of(v->class_weight, SHARD_SHAPE(CLASSES), dtype) : NULL,
                     k->positive ? tensor_of(v->positive, SHARD_SHAPE(CLASSES), dtype) : NULL,
                     k->row_weighted ? tensor_of(v->row_weight + first, SHARD_SHAPE(rows), SHARD_FLOAT32) : NULL,
                     k->row_margins ? tensor_of(v->m2 + first, SHARD_SHAPE(rows), SHARD_FLOAT64) : NULL,
                     k->row_margins ? tensor_of(v->m3 + first, SHARD_SHAPE(rows), SHARD_FLOAT64) : NULL};
}

static shard_tensor *dense_logits(const loss_kind *k, shard_tensor *x, shard_tensor *weight, shard_tensor *bias)
{
    return k->normalized ? shard_linear(shard_normalize(x, -1, 1e-12), shard_normalize(weight, -1, 1e-12), NULL)
                         : shard_linear(x, weight, bias);
}

static shard_tensor *softmax_loss(const problem *p, const factors *f, shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                                  shard_tensor *target)
{
    const loss_kind *k = p->kind;
    shard_cross_entropy_options options = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    shard_margin_logits_options margin = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    margin.scale = k->scale;
    margin.m1 = k->m1;
    margin.m2 = k->m2;
    margin.m3 = k->m3;
    margin.row_m2 = f->m2;
    margin.row_m3 = f->m3;
    margin.rule = k->row_margins ? SHARD_MARGIN_CLAMP : margin.rule;
    options.weight = f->weight;
    options.row_weight = f->row_weight;
    options.ignore_index = IGNORED;
    options.label_smoothing = k->smoothing;
    options.reduction = p->reduction;
    options.z_loss = k->z_loss;
    options.logit_scale = k->logit_scale != 0 ? k->logit_scale : 1;
    options.soft_cap = k->soft_cap;
    options.sample = k->sampled ? shard_sample_classes(target, weight, RATE, 3, 4) : NULL;
    options.sample_correction = k->corrected ? shard_sample_correction(options.sample, target, RATE) : NULL;
    options.normalized = k->normalized && p->fused;
    options.margin = k->margins ? &margin : NULL;
    options.stash_share = p->reduction == SHARD_REDUCTION_SUM ? 0 : WHOLE_STASH;
    return p->fused ? shard_linear_cross_entropy_with(x, weight, bias, target, &options, NULL)
                    : shard_cross_entropy_with(dense_logits(k, x, weight, bias), target, &options, NULL);
}

static shard_tensor *loss_of(const problem *p, const factors *f, shard_tensor *x, shard_tensor *weight, shard_tensor *bias,
                             shard_tensor *target)
{
    if (!p->kind->binary)
        return softmax_loss(p, f, x, weight, bias, target);
    shard_binary_cross_entropy_options options = SHARD_BINARY_CROSS_ENTROPY_OPTIONS_INIT;
    options.pos_weight = f->positive;
    options.weight = f->weight;
    options.row_weight = f->row_weight;
    options.reduction = p->reduction;
    options.stash_share = p->reduction == SHARD_REDUCTION_SUM ? 0 : WHOLE_STASH;
    return p->fused ? shard_linear_binary_cross_entropy_with(x, weight, bias, target, &options)
                    : shard_binary_cross_entropy_with_logits_with(shard_linear(x, weight, bias), target, &options);
}

/* The loss of this rank's rows, and the gradients of `factor` times the sum over all. */
static void compute(const problem *p, const values *v, const layout *at, int first, int rows, double factor, shard_range range,
                    result *to)
{
    shard_tensor *x = leaf_of(v->x + first * IN, SHARD_SHAPE(rows, IN), p->dtype), *bias = NULL;
    shard_tensor *weight =
        part_of(v->weight + range.start * IN, SHARD_SHAPE(range.size, IN), p->dtype, 0, at->model, range.start);
    if (p->kind->biased)
        bias = part_of(v->bias + range.start, SHARD_SHAPE(range.size), p->dtype, 0, at->model, range.start);
    factors f = factors_of(p, v, first, rows);
    shard_tensor *loss = loss_of(p, &f, x, weight, bias, target_of(p, v, first, rows, at->model, range));
    ck_assert_msg(loss, "%s: %s", p->kind->name, shard_last_error());
    bool each = p->reduction == SHARD_REDUCTION_NONE;
    shard_tensor *dy = tensor_of(v->dy + (each ? first : 0), each ? SHARD_SHAPE(rows) : SHARD_SCALAR, shard_tensor_dtype(loss));
    read_values(loss, to->loss + first);
    for (int i = 1; i < rows && !each; i++)
        to->loss[first + i] = to->loss[first];
    check_ok(shard_backward(shard_reduce_from_group(shard_scale(shard_sum(shard_mul(loss, dy)), factor), at->data)));
    shard_tensor *summed[] = {shard_grad(weight), shard_grad(bias)};
    for (int i = 0; i < 2 && at->parts > 1; i++)
        if (summed[i])
            check_ok(shard_all_reduce(summed[i], SHARD_SUM, at->data));
    read_values(shard_grad(x), to->dx + first * IN);
    read_values(shard_grad(weight), to->dweight + range.start * IN);
    if (bias)
        read_values(shard_grad(bias), to->dbias + range.start);
}

/* ---- the comparison ---- */

/* Relative to the largest of the expected numbers: roundings of sums of some float32, of which there are more than of a bfloat16,
 * which is rounded where it is stored. */
static void compare(const problem *p, const layout *at, const char *what, const double *found, const double *expected,
                    int64_t count, double of_stash)
{
    double tolerance = (p->dtype == SHARD_FLOAT32 ? 16 : 6) * unit(p->dtype) + of_stash;
    check_doubles(found, expected, count, tolerance, 0, "%s, %s, %s, reduction %d, %d x %d ranks: %s", p->kind->name,
                  shard_dtype_name(p->dtype), p->fused ? "fused" : "dense", (int)p->reduction, at->parts,
                  shard_group_size(at->model), what);
}

static void check_problem(const problem *p, const layout *at)
{
    const values v = make_values(p->kind);
    result expected = {0}, found = {0};
    bool mean = p->reduction == SHARD_REDUCTION_MEAN || p->reduction == SHARD_REDUCTION_BATCH_MEAN;
    int rows = ROWS / at->parts, first = at->part * rows;
    shard_range range = shard_split_range(CLASSES, shard_group_size(at->model), shard_group_rank(at->model));
    SHARD_SCOPE
    {
        for (int part = 0; part < at->parts; part++)
            refer(p, &v, part * rows, rows, mean ? 1.0 / at->parts : 1, &expected);
        compute(p, &v, at, first, rows, mean ? 1.0 / at->parts : 1, range, &found);
    }
    bool stashes =
        p->fused && p->reduction != SHARD_REDUCTION_SUM && !p->kind->normalized && !p->kind->margins && !p->kind->sampled;
    double of_stash = stashes && !on_other_device() ? 3e-5 : 0; /* which rounds logits */
    compare(p, at, "loss", found.loss + first, expected.loss + first, rows, 0);
    compare(p, at, "dx", found.dx + first * IN, expected.dx + first * IN, rows * IN, 0);
    compare(p, at, "dweight", found.dweight + range.start * IN, expected.dweight + range.start * IN, range.size * IN, of_stash);
    if (p->kind->biased)
        compare(p, at, "dbias", found.dbias + range.start, expected.dbias + range.start, range.size, of_stash);
}

static void check_all(const layout *at)
{
    for (int k = 0; k < KINDS; k++)
        for (int way = 0; way < 2; way++)
            for (int i = 0; i < 6; i++) {
                const problem p = {&kinds[k], i % 2 ? SHARD_BFLOAT16 : SHARD_FLOAT32, reductions[kinds[k].binary][i / 2],
                                   way == 0};
                if (kinds[k].probabilities && p.fused) /* which have logits in any case */
                    continue;
                for (shard_head_tile = p.fused ? TILE : 0; shard_head_tile >= 0; shard_head_tile -= TILE)
                    check_problem(&p, at);
                shard_head_tile = 0;
            }
}

static void along_classes(shard_group *world, void *context)
{
    (void)context;
    const layout at = {world, NULL, 1, 0};
    check_all(&at);
}

START_TEST(test_along_classes)
{
    run_ranks(_i + 1, along_classes);
}
END_TEST

static void along_rows_and_classes(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    layout at = {shard_group_split(world, rank / 2), shard_group_split(world, rank % 2), 2, rank / 2};
    ck_assert_msg(at.model && at.data, "%s", shard_last_error());
    check_all(&at);
    shard_group_destroy(at.model);
    shard_group_destroy(at.data);
}

START_TEST(test_along_rows_and_classes)
{
    run_ranks(4, along_rows_and_classes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("head_matrix");
    TCase *tcase = test_case(suite, "head_matrix");
    tcase_add_loop_test(tcase, test_along_classes, 0, 4);
    tcase_add_test(tcase, test_along_rows_and_classes);
    return test_run(suite);
}
