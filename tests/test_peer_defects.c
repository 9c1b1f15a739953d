/*
 * Defects of other projects, as tests of this one: one case for each, whose comment names the project and the number of its
 * issue. Expected values are those of plain loops in double.
 */
#include "support/host.h"
#include "support/job.h"
#include "support/loss.h"
#include "support/options.h"
#include "support/scratch.h"

#include <shard/head.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 8, IN = 5, CLASSES = 11 };

/* ---- a linear layer and its loss, in double ---- */

typedef struct problem {
    loss_case c;
    loss_data data;
    double x[ROWS * IN], weight[CLASSES * IN], bias[CLASSES];
    double loss[ROWS]; /* or one */
    double dx[ROWS * IN], dweight[CLASSES * IN], dbias[CLASSES];
} problem;

static void fill(double *values, int64_t count, uint64_t seed)
{
    SHARD_SCOPE
    {
        double *made = values_of(made_up(SHARD_SHAPE(count), seed, SHARD_FLOAT64));
        memcpy(values, made, (size_t)count * sizeof *values);
        free(made);
    }
}

/* The gradients are of sum(dy * loss), where dy is that of loss_data. */
static problem solve(loss_case c)
{
    problem p = {.c = c};
    p.c.rows = ROWS;
    p.c.classes = CLASSES;
    p.c.dtype = SHARD_FLOAT64;
    p.data = loss_data_make(&p.c);
    fill(p.x, ROWS * IN, 1);
    fill(p.weight, CLASSES * IN, 2);
    fill(p.bias, CLASSES, 3);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < CLASSES; k++) {
            double *logit = &p.data.logits[r * CLASSES + k];
            *logit = p.bias[k];
            for (int i = 0; i < IN; i++)
                *logit += p.x[r * IN + i] * p.weight[k * IN + i];
        }
    double gradient[ROWS * CLASSES];
    loss_reference(&p.c, &p.data, p.loss, gradient);
    for (int r = 0; r < ROWS; r++)
        for (int k = 0; k < CLASSES; k++) {
            p.dbias[k] += gradient[r * CLASSES + k];
            for (int i = 0; i < IN; i++) {
                p.dx[r * IN + i] += gradient[r * CLASSES + k] * p.weight[k * IN + i];
                p.dweight[k * IN + i] += gradient[r * CLASSES + k] * p.x[r * IN + i];
            }
        }
    return p;
}

typedef struct operands {
    shard_tensor *x, *weight, *bias, *labels, *class_weight, *dy;
    shard_group *group;
} operands;

/* The range of the classes that a rank has; whole for one rank. */
static shard_tensor *classes_of(const double *values, shard_shape whole, shard_group *group)
{
    shard_range range = shard_split_range(whole.dim[0], shard_group_size(group), shard_group_rank(group));
    shard_shape local = whole;
    local.dim[0] = range.size;
    int64_t columns = whole.ndim == 2 ? whole.dim[1] : 1;
    shard_tensor *part = shard_from_host(values + range.start * columns, local, .dtype = SHARD_FLOAT64);
    return shard_group_size(group) > 1 ? shard_as_split(part, 0, group, range.start, whole.dim[0]) : part;
}

static operands operands_of(const problem *p, shard_group *group)
{
    operands o = {.group = group};
    o.x = shard_from_host(p->x, SHARD_SHAPE(ROWS, IN), .dtype = SHARD_FLOAT64, .requires_grad = true);
    o.weight = classes_of(p->weight, SHARD_SHAPE(CLASSES, IN), group);
    o.bias = classes_of(p->bias, SHARD_SHAPE(CLASSES), group);
    shard_set_requires_grad(o.weight, true);
    shard_set_requires_grad(o.bias, true);
    o.labels = shard_from_host(p->data.labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
    o.class_weight = p->c.weighted ? classes_of(p->data.weight, SHARD_SHAPE(CLASSES), group) : NULL;
    bool each = p->c.reduction == SHARD_REDUCTION_NONE;
    o.dy = shard_from_host(p->data.dy, each ? SHARD_SHAPE(ROWS) : SHARD_SCALAR, .dtype = SHARD_FLOAT64);
    return o;
}

static shard_cross_entropy_options options_of(const problem *p, const operands *o)
{
    shard_cross_entropy_options options = SHARD_CROSS_ENTROPY_OPTIONS_INIT;
    options.weight = o->class_weight;
    options.ignore_index = p->c.ignore_index;
    options.label_smoothing = p->c.smoothing;
    options.reduction = p->c.reduction;
    return options;
}

static shard_tensor *loss_of(const problem *p, const operands *o, bool fused)
{
    shard_cross_entropy_options options = options_of(p, o);
    return fused ? shard_linear_cross_entropy_with(o->x, o->weight, o->bias, o->labels, &options, NULL)
                 : shard_cross_entropy_with(shard_parallel_linear(o->x, o->weight, o->bias), o->labels, &options, NULL);
}

#define EXACT 1e-12

static void check_loss(const problem *p, shard_tensor *loss)
{
    ck_assert_msg(loss != NULL, "%s", shard_last_error());
    check_part(shard_detach(loss), p->loss, EXACT);
}

static void check_gradients(const problem *p, const operands *o)
{
    check_part(shard_grad(o->x), p->dx, EXACT);
    check_part(shard_grad(o->weight), p->dweight, EXACT);
    check_part(shard_grad(o->bias), p->dbias, EXACT);
}

/* The loss of logits and the one without, and the gradients of both. */
static void check_both(loss_case c, shard_group *group)
{
    problem p = solve(c);
    for (int fused = 0; fused < 2; fused++)
        SHARD_SCOPE
        {
            operands o = operands_of(&p, group);
            shard_tensor *loss = loss_of(&p, &o, fused);
            check_loss(&p, loss);
            check_ok(shard_backward_from(loss, o.dy));
            check_gradients(&p, &o);
        }
    loss_data_free(&p.data);
}

/* ---- the losses ---- */

/* Megatron-LM #737: under tensor parallelism smoothing was over a rank's classes instead of all of them. */
static void smoothing_is_over_all_classes(shard_group *world, void *context)
{
    (void)context;
    check_both((loss_case){.smoothing = 0.1, .ignore_index = -100}, world);
    check_both((loss_case){.smoothing = 0.3, .ignore_index = -100, .reduction = SHARD_REDUCTION_SUM}, world);
}

/* PyTorch #185167: a class-weighted mean over a sharded batch was the mean of the ranks' means. Here the mean of split rows is
 * refused, and the sum, which is PARTIAL, is divided by the sum of all rows' weights. */
static void weighted_mean_is_of_all_rows(shard_group *world, void *context)
{
    (void)context;
    problem p = solve((loss_case){.weighted = true, .ignoring = true, .ignore_index = -100});
    shard_range rows = shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world));
    SHARD_SCOPE
    {
        operands o = operands_of(&p, NULL);
        shard_tensor *x = shard_scatter_to_group(o.x, 0, world);
        shard_tensor *labels = shard_from_host(p.data.labels + rows.start, SHARD_SHAPE(rows.size), .dtype = SHARD_INT64);
        shard_tensor *logits = shard_linear(x, o.weight, o.bias);
        if (shard_group_size(world) > 1) {
            ck_assert_ptr_null(shard_cross_entropy(logits, labels, .weight = o.class_weight));
            shard_agree(world);
            check_error(SHARD_ERROR_UNSUPPORTED, "*mean*");
        }
        double divisor = 0;
        for (int r = 0; r < ROWS; r++)
            divisor += p.data.labels[r] == -100 ? 0 : p.data.weight[p.data.labels[r]];
        shard_tensor *sum = shard_cross_entropy(logits, labels, .weight = o.class_weight, .reduction = SHARD_REDUCTION_SUM);
        shard_tensor *loss = shard_scale(shard_reduce_from_group(sum, world), 1 / divisor);
        check_loss(&p, loss);
        check_ok(shard_backward_from(loss, o.dy));
        check_part(shard_grad(o.x), p.dx, EXACT);
        check_ok(shard_all_reduce(shard_grad(o.weight), SHARD_SUM, world));
        check_part(shard_grad(o.weight), p.dweight, EXACT);
    }
    loss_data_free(&p.data);
}

/* Megatron-LM #1754: a vocabulary that the ranks do not divide. 11 classes on 2, 3 and 4 ranks. */
static void classes_are_uneven(shard_group *world, void *context)
{
    (void)context;
    check_both((loss_case){.ignore_index = -100}, world);
    check_both((loss_case){.weighted = true, .ignore_index = -100, .reduction = SHARD_REDUCTION_SUM}, world);
}

/* Apple's CCE #52: the bias was added several times to the logit of the label. */
static void bias_of_fused_loss(shard_group *world, void *context)
{
    (void)context;
    problem p = solve((loss_case){.ignoring = true, .ignore_index = -100, .reduction = SHARD_REDUCTION_SUM});
    SHARD_SCOPE
    {
        operands o = operands_of(&p, world);
        shard_tensor *loss = loss_of(&p, &o, true);
        check_loss(&p, loss);
        check_ok(shard_backward_from(loss, o.dy));
        check_part(shard_grad(o.bias), p.dbias, EXACT);
        shard_zero_grad(o.bias);
        shard_set_requires_grad(o.weight, false); /* the bias alone */
        shard_set_requires_grad(o.x, false);
        check_ok(shard_backward_from(loss_of(&p, &o, true), o.dy));
        check_part(shard_grad(o.bias), p.dbias, EXACT);
    }
    loss_data_free(&p.data);
}

/* Liger-Kernel #243: a fused loss took label_smoothing and did not apply it. */
static void fused_loss_is_smoothed(shard_group *world, void *context)
{
    (void)context;
    problem smooth = solve((loss_case){.smoothing = 0.2, .ignore_index = -100}), plain = solve((loss_case){.ignore_index = -100});
    ck_assert(fabs(smooth.loss[0] - plain.loss[0]) > 1e-3);
    loss_data_free(&smooth.data);
    loss_data_free(&plain.data);
    check_both((loss_case){.smoothing = 0.2, .ignore_index = -100, .ignoring = true}, world);
}

/* Liger-Kernel #968: the fused loss of reduction "none" had the gradient of another reduction. Each row has its own dy. */
static void each_row_has_a_gradient(shard_group *world, void *context)
{
    (void)context;
    check_both((loss_case){.reduction = SHARD_REDUCTION_NONE, .ignore_index = -100, .ignoring = true, .smoothing = 0.1}, world);
}

/* TorchShard: parallel_cross_entropy took ignore_index and did not read it. -1 is the index of the ignored rows here, and 4 is
 * a class. */
static void ignored_rows_are_ignored(shard_group *world, void *context)
{
    (void)context;
    check_both((loss_case){.ignoring = true, .ignore_index = -1}, world);
    check_both((loss_case){.ignoring = true, .ignore_index = 4, .weighted = true}, world);
}

/* quack #209: the backward of a fused loss scaled the gradients that the forward had saved, so that a second backward over a
 * retained graph failed or was wrong. Here the record refuses it, and the state of shard/head.h gives the gradient of each dy. */
static void second_backward_is_the_first(shard_group *world, void *context)
{
    (void)context;
    problem p = solve((loss_case){.smoothing = 0.1, .ignore_index = -100});
    SHARD_SCOPE
    {
        operands o = operands_of(&p, world);
        shard_tensor *loss = loss_of(&p, &o, true);
        check_ok(shard_backward_from(loss, o.dy));
        shard_status status = shard_backward_from(loss, o.dy);
        ck_assert_int_ne(status, SHARD_OK);
        shard_agree(world);
        check_error(SHARD_ERROR_ARGUMENT, "*backward*");
        check_gradients(&p, &o); /* the refused one has added nothing */

        shard_cross_entropy_options options = options_of(&p, &o);
        shard_head_saved *saved;
        loss = shard_linear_cross_entropy_forward_with(o.x, o.weight, o.bias, o.labels, &options, &saved, NULL);
        for (int turn = 1; turn <= 3; turn++) {
            shard_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
            check_ok(shard_head_backward(saved, shard_scale(o.dy, turn), &dx, &dweight, &dbias));
            check_part(shard_scale(shard_reduce_from_group(dx, world), 1.0 / turn), p.dx, EXACT);
            check_part(shard_scale(dweight, 1.0 / turn), p.dweight, EXACT);
            check_part(shard_scale(dbias, 1.0 / turn), p.dbias, EXACT);
        }
        shard_head_saved_destroy(saved);
    }
    loss_data_free(&p.data);
}

/* Liger-Kernel #512: training by the fused loss diverged. Each chunk's summand of the weight's gradient was added to a sum of 16
 * bits, so that the error grew with the number of chunks. Many rows, all with one label: the gradient of that row of the weight
 * is a long sum of one sign. The error may be that of one rounding of the sum. */
static void sum_is_rounded_once(shard_group *world, void *context)
{
    (void)context;
    enum { MANY = 4096, FEATURES = 8, FEW = 6 };
    shard_range range = shard_split_range(FEW, shard_group_size(world), shard_group_rank(world));
    int64_t *labels = calloc(MANY, sizeof *labels);
    for (int i = 0; i < MANY; i++)
        labels[i] = 2;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_cast(
            shard_add_scalar(shard_scale(made_up(SHARD_SHAPE(MANY, FEATURES), 4, SHARD_FLOAT32), 0.1), 1), SHARD_BFLOAT16);
        shard_tensor *whole =
            shard_cast(shard_scale(made_up(SHARD_SHAPE(FEW, FEATURES), 5, SHARD_FLOAT32), 0.01), SHARD_BFLOAT16);
        double *xs = values_of(shard_cast(x, SHARD_FLOAT64)), *ws = values_of(shard_cast(whole, SHARD_FLOAT64));
        double expected[FEW * FEATURES] = {0}, loss = 0;
        for (int r = 0; r < MANY; r++) {
            double e[FEW], sum = 0;
            for (int k = 0; k < FEW; k++) {
                double z = 0;
                for (int i = 0; i < FEATURES; i++)
                    z += xs[r * FEATURES + i] * ws[k * FEATURES + i];
                sum += e[k] = exp(z);
            }
            loss -= log(e[2] / sum);
            for (int k = 0; k < FEW; k++)
                for (int i = 0; i < FEATURES; i++)
                    expected[k * FEATURES + i] += (e[k] / sum - (k == 2)) * xs[r * FEATURES + i];
        }
        shard_tensor *part = shard_narrow(whole, 0, range.start, range.size);
        if (shard_group_size(world) > 1)
            part = shard_as_split(part, 0, world, range.start, FEW);
        part = shard_detach(part);
        shard_set_requires_grad(part, true);
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(MANY), .dtype = SHARD_INT64);
        shard_tensor *y = shard_linear_cross_entropy(x, part, NULL, target, .reduction = SHARD_REDUCTION_SUM);
        ck_assert_double_eq_tol(shard_item(y), loss, 1e-2 * loss);
        check_ok(shard_backward(y));
        double *found = values_of(shard_cast(shard_detach(shard_grad(part)), SHARD_FLOAT64));
        for (int64_t i = 0; i < range.size * FEATURES; i++) {
            double want = expected[range.start * FEATURES + i];
            ck_assert_msg(fabs(found[i] - want) <= 0x1p-8 * fabs(want) + 0.1, "element %lld is %g, not %g", (long long)i,
                          found[i], want);
        }
        free(xs);
        free(ws);
        free(found);
    }
    free(labels);
}

/* torchtitan #1750: the loss of one batch changed with the tensor-parallel size. All sizes that the world has. */
static void loss_is_that_of_any_size(shard_group *world, void *context)
{
    (void)context;
    int size = shard_group_size(world);
    for (int part = 1; part <= size; part++) {
        if (size % part != 0)
            continue;
        shard_group *group = shard_group_split(world, shard_group_rank(world) / part);
        ck_assert_msg(group != NULL, "%s", shard_last_error());
        check_both((loss_case){.smoothing = 0.1, .ignore_index = -100, .ignoring = true}, group);
        shard_group_destroy(group);
    }
}

/* TorchShard, Megatron-LM and others took the world for the group of a split layer. The group of two ranks in the middle; the
 * other ranks do something else meanwhile. */
static void group_is_not_the_world(shard_group *world, void *context)
{
    (void)context;
    int rank = shard_group_rank(world);
    shard_group *middle = shard_group_create(world, (int[]){1, 2}, 2);
    check_ok(shard_last_status());
    for (int turn = 0; turn < 2; turn++)
        check_both((loss_case){.smoothing = 0.1, .weighted = turn == 1, .ignore_index = -100},
                   rank == 1 || rank == 2 ? middle : NULL);
    check_ok(shard_agree(world));
    if (middle)
        shard_group_destroy(middle);
}

/* ---- training ---- */

/* Clipping took the norm of a rank's parameters, without those of the split layer on the other ranks. */
static void norm_has_the_split_layer(shard_group *world, void *context)
{
    (void)context;
    problem p = solve((loss_case){.ignore_index = -100});
    double squares = 0, norm, clipped;
    for (int i = 0; i < CLASSES * IN; i++)
        squares += p.dweight[i] * p.dweight[i];
    for (int i = 0; i < CLASSES; i++)
        squares += p.dbias[i] * p.dbias[i];
    for (int i = 0; i < ROWS * IN; i++) /* x is a parameter that all ranks have: it counts once */
        squares += p.dx[i] * p.dx[i];
    SHARD_SCOPE
    {
        operands o = operands_of(&p, world);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "x", o.x));
        check_ok(shard_tensors_add(list, "weight", o.weight));
        check_ok(shard_tensors_add(list, "bias", o.bias));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        o.dy = shard_full(SHARD_SCALAR, p.data.dy[0], .dtype = SHARD_FLOAT64);
        check_ok(shard_backward_from(loss_of(&p, &o, false), o.dy));
        check_ok(shard_clip_grad_norm(sgd, 0.5 * sqrt(squares), &norm));
        ck_assert_double_eq_tol(norm, sqrt(squares), 1e-12);
        check_ok(shard_clip_grad_norm(sgd, INFINITY, &clipped));
        ck_assert_double_eq_tol(clipped, 0.5 * norm, 1e-5);
        check_ok(shard_step(sgd));
        double factor = 0.5 * norm / (norm + 1e-6), weight[CLASSES * IN];
        for (int i = 0; i < CLASSES * IN; i++)
            weight[i] = p.weight[i] - factor * p.dweight[i];
        check_part(shard_detach(o.weight), weight, 1e-12);
        shard_optimizer_destroy(sgd);
    }
    loss_data_free(&p.data);
}

typedef struct resumption {
    int stage, steps;
    bool load, save;
} resumption;

/* Steps of Adam by the gradients of the whole problem, which each rank computes; in double. */
static void resume(shard_group *world, void *context)
{
    const resumption *r = context;
    problem p = solve((loss_case){.ignore_index = -100});
    SHARD_SCOPE
    {
        operands o = operands_of(&p, NULL);
        shard_tensors *list = shard_tensors_create(), *all = shard_tensors_create();
        shard_tensor *const parameters[] = {o.weight, o.bias};
        for (int i = 0; i < 2;
             i++) { /* pytorch #1489: state was found by its place. The run that goes on lists them in reverse. */
            int at = r->load ? 1 - i : i;
            check_ok(shard_tensors_add(list, at ? "bias" : "weight", parameters[at]));
        }
        shard_optimizer *adam = shard_adam(list, .lr = 0.05);
        if (r->stage > 0)
            ck_assert_msg(shard_zero_optimizer(adam, .stage = r->stage) != NULL, "%s", shard_last_error());
        shard_tensors *state = shard_optimizer_state_dict(adam);
        check_ok(shard_tensors_extend(all, "", list));
        check_ok(shard_tensors_extend(all, "optimizer.", state));
        shard_tensors_destroy(state);
        if (r->load)
            check_ok(shard_load(all, scratch_path("resumed")));
        for (int i = 0; i < r->steps; i++)
            SHARD_SCOPE
            {
                check_ok(shard_backward(loss_of(&p, &o, false)));
                check_ok(shard_step(adam));
            }
        check_ok(shard_save(all, scratch_path(r->save ? "resumed" : shard_group_size(world) == 1 ? "single" : "other"), NULL));
        shard_tensors_destroy(all);
        shard_optimizer_destroy(adam);
        shard_tensors_destroy(list);
    }
    loss_data_free(&p.data);
}

/* DeepSpeed #5405: a checkpoint of ZeRO cannot be resumed on another number of ranks. */
static void resume_on(int before, int after, int stage)
{
    run_job(1, resume, &(resumption){.steps = 6});
    run_job(before, resume, &(resumption){.stage = stage, .steps = 3, .save = true});
    run_job(after, resume, &(resumption){.stage = stage, .steps = 3, .load = true});
    const char *names[] = {"weight", "bias", "optimizer.weight.exp_avg", "optimizer.weight.exp_avg_sq", "optimizer.bias.step"};
    double *values[2][5];
    SHARD_SCOPE
    {
        for (int f = 0; f < 2; f++) {
            const char *path = scratch_path(f ? "other" : "single");
            shard_tensors *file = shard_inspect(path, NULL);
            check_ok(shard_load(file, path));
            for (int i = 0; i < 5; i++)
                values[f][i] = values_of(shard_cast(shard_tensors_find(file, names[i]), SHARD_FLOAT64));
            for (int i = 0; f == 1 && i < 5; i++)
                for (int64_t k = 0; k < shard_numel(shard_tensors_find(file, names[i])); k++)
                    ck_assert_msg(fabs(values[0][i][k] - values[1][i][k]) <= 1e-12, "%s [%lld] is %.17g, not %.17g", names[i],
                                  (long long)k, values[1][i][k], values[0][i][k]);
            shard_tensors_destroy(file);
        }
        for (int i = 0; i < 10; i++)
            free(values[i / 5][i % 5]);
    }
}

START_TEST(test_resume)
{
    static const struct {
        int before, after;
    } numbers[] = {{2, 3}, {3, 2}, {4, 2}};
    resume_on(numbers[_i].before, numbers[_i].after, 1 + _i % 3);
    printf("cases: 1\n");
}
END_TEST

/* torchtitan #4382: state that was made before the first step, as for a load, changed that step. */
static void state_before_the_first_step(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    double *found[2];
    for (int kind = 0; kind < 2; kind++) {
        for (int early = 0; early < 2; early++)
            SHARD_SCOPE
            {
                shard_tensor *p = made_up_leaf(SHARD_SHAPE(7), 1, SHARD_FLOAT64);
                shard_tensors *list = shard_tensors_create();
                check_ok(shard_tensors_add(list, "p", p));
                shard_optimizer *optimizer =
                    kind ? adam_of_list(list, .lr = 0.1) : sgd_of_list(list, .lr = 0.1, .momentum = 0.9, .dampening = 0.5);
                if (early)
                    shard_tensors_destroy(shard_optimizer_state_dict(optimizer));
                for (int i = 0; i < 2; i++) {
                    check_ok(shard_backward(shard_sum(shard_mul(p, p))));
                    check_ok(shard_step(optimizer));
                }
                found[early] = values_of(shard_detach(p));
                shard_optimizer_destroy(optimizer);
            }
        ck_assert_mem_eq(found[0], found[1], 7 * sizeof(double));
        free(found[0]);
        free(found[1]);
    }
}

/* pytorch #112583: a weight that was used without gradients first had none of its later use in the same autocast. */
static void evaluates_before_it_trains(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    double *found[2];
    for (int first = 0; first < 2; first++)
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(ROWS, IN), 1, SHARD_FLOAT32), *y = NULL;
            shard_tensor *weight = made_up_leaf(SHARD_SHAPE(CLASSES, IN), 2, SHARD_FLOAT32);
            SHARD_AUTOCAST(SHARD_BFLOAT16)
            {
                if (first)
                    SHARD_NO_GRAD ck_assert_ptr_nonnull(shard_linear(x, weight, NULL));
                y = shard_sum(shard_linear(x, weight, NULL));
            }
            check_ok(shard_backward(y));
            found[first] = values_of(shard_grad(weight));
        }
    ck_assert_mem_eq(found[0], found[1], CLASSES * IN * sizeof(double));
    free(found[0]);
    free(found[1]);
}

/* Megatron-LM #1594: the loss wrote its gradient over logits that another use of them needed. In both orders of the uses. */
static void logits_are_used_twice(shard_group *world, void *context)
{
    (void)context;
    problem p = solve((loss_case){.ignore_index = -100, .reduction = SHARD_REDUCTION_SUM});
    for (int order = 0; order < 2; order++)
        SHARD_SCOPE
        {
            operands o = operands_of(&p, world);
            shard_tensor *logits = shard_linear(shard_copy_to_group(o.x, world), o.weight, o.bias), *squares = NULL, *loss = NULL;
            for (int i = 0; i < 2; i++)
                if (i == order)
                    squares = shard_sum(shard_mul(logits, logits));
                else
                    loss = shard_cross_entropy(logits, o.labels, .reduction = SHARD_REDUCTION_SUM);
            if (shard_group_size(world) > 1)
                squares = shard_reduce_from_group(squares, world);
            check_ok(shard_backward_from(shard_add(loss, squares), o.dy));
            double dweight[CLASSES * IN];
            for (int c = 0; c < CLASSES; c++)
                for (int k = 0; k < IN; k++) {
                    dweight[c * IN + k] = p.dweight[c * IN + k];
                    for (int r = 0; r < ROWS; r++)
                        dweight[c * IN + k] += p.data.dy[0] * 2 * p.data.logits[r * CLASSES + c] * p.x[r * IN + k];
                }
            check_part(shard_grad(o.weight), dweight, EXACT);
        }
    loss_data_free(&p.data);
}

/* ---- on ranks ---- */

static const struct {
    ranks_body *body;
    int ranks[4];
} cases[] = {
    {smoothing_is_over_all_classes, {1, 2, 3, 4}},
    {weighted_mean_is_of_all_rows, {1, 2, 3, 4}},
    {classes_are_uneven, {2, 3, 4}},
    {bias_of_fused_loss, {1, 2, 3}},
    {fused_loss_is_smoothed, {1, 2, 3}},
    {each_row_has_a_gradient, {1, 2, 3}},
    {ignored_rows_are_ignored, {1, 2, 3}},
    {second_backward_is_the_first, {1, 2, 3}},
    {sum_is_rounded_once, {1, 2}},
    {loss_is_that_of_any_size, {4}},
    {group_is_not_the_world, {3, 4}},
    {norm_has_the_split_layer, {1, 2, 3}},
    {state_before_the_first_step, {1}},
    {evaluates_before_it_trains, {1}},
    {logits_are_used_twice, {1, 2, 3}},
};
enum { CASES = sizeof cases / sizeof *cases };

START_TEST(test_defect)
{
    int count = 0;
    for (; count < 4 && cases[_i].ranks[count]; count++)
        run_job(cases[_i].ranks[count], cases[_i].body, NULL);
    printf("cases: %d\n", count);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("peer defects");
    TCase *tcase = test_case(suite, "peer defects");
    tcase_add_loop_test(tcase, test_defect, 0, CASES);
    tcase_add_loop_test(tcase, test_resume, 0, 3);
    int result = test_run(suite);
    scratch_close();
    return result;
}
