/*
 * Ways to share a training run out, all with all: data parallel and layers split by row and by
 * column, on any mesh; float32 and autocast, of float16 with a gradient scaler; without ZeRO and
 * with its stages 1, 2 and 3.
 * After some steps the loss and the parameters are those of one process on the whole batch.
 */
#include "support/host.h"
#include "support/job.h"
#include "support/options.h"

#include <math.h>
#include <stdio.h>

enum { FEATURES = 6, HIDDEN = 40, CLASSES = 11, ROWS = 24, STEPS = 6 };

typedef struct mesh_case {
    int data, model;
    shard_split split;
    bool float16; /* in it, too */
} mesh_case;

static mesh_case meshes[] = {
    {1, 1, SHARD_SPLIT_NONE},         {2, 1, SHARD_SPLIT_NONE, true},   {3, 1, SHARD_SPLIT_NONE},
    {4, 1, SHARD_SPLIT_NONE},         {8, 1, SHARD_SPLIT_NONE},         {1, 2, SHARD_SPLIT_ROW, true},
    {1, 3, SHARD_SPLIT_ROW},          {1, 4, SHARD_SPLIT_ROW},          {1, 8, SHARD_SPLIT_ROW},
    {1, 2, SHARD_SPLIT_COLUMN, true}, {1, 3, SHARD_SPLIT_COLUMN},       {1, 4, SHARD_SPLIT_COLUMN},
    {1, 8, SHARD_SPLIT_COLUMN},       {2, 2, SHARD_SPLIT_ROW, true},    {2, 2, SHARD_SPLIT_COLUMN, true},
    {4, 2, SHARD_SPLIT_ROW},          {2, 4, SHARD_SPLIT_COLUMN},
};

/* What a run came to: its last loss, and the parameters in float64, whole. */
typedef struct outcome {
    double loss;
    int left_out, grown; /* steps, by the scaler; and after which its factor was larger */
    shard_tensors *parameters;
} outcome;

static shard_module *make_model(shard_group *group, shard_split split)
{
    shard_manual_seed(3);
    shard_module *model = shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN), shard_nn_gelu(), shard_nn_linear(HIDDEN, HIDDEN),
                                              shard_nn_relu(), shard_nn_parallel_linear(HIDDEN, CLASSES, split, group));
    ck_assert_msg(model != NULL, "%s", shard_last_error());
    return model;
}

/* The mean loss of the group's rows: this rank has `mine`. */
static shard_tensor *loss_of(shard_module *model, shard_range mine, shard_group *group, int step)
{
    int64_t labels[ROWS];
    for (int64_t i = 0; i < ROWS; i++)
        labels[i] = (i + step) * 5 % CLASSES;
    shard_tensor *x =
        shard_narrow(made_up(SHARD_SHAPE(ROWS, FEATURES), (uint64_t)(20 + step), SHARD_FLOAT32), 0, mine.start, mine.size);
    shard_tensor *target = shard_from_host(labels + mine.start, SHARD_SHAPE(mine.size), .dtype = SHARD_INT64);
    int last = shard_module_child_count(model) - 1;
    for (int i = 0; i < last; i++)
        x = shard_forward(shard_module_child_at(model, i), x);
    x = shard_forward(shard_module_child_at(model, last), shard_gather_from_group(x, 0, group));
    return shard_parallel_cross_entropy(x, shard_gather_from_group(target, 0, group));
}

/* From a factor that is too large, and grows again. */
static shard_grad_scaler *make_scaler(shard_dtype dtype)
{
    return dtype == SHARD_FLOAT16 ? shard_grad_scaler_create(.init_scale = 0x1p24, .growth_interval = 2) : NULL;
}

/* Trains with each rank's rows; stage -1: one process, all rows on every rank. A step that was left
 * out is made again. */
static outcome train(const mesh_case *c, shard_dtype dtype, int stage)
{
    bool single = stage < 0;
    outcome out = {0};
    shard_mesh *mesh = single ? NULL : shard_mesh_create(.model = c->model);
    shard_group *world = shard_world(), *group = single ? NULL : shard_mesh_model_group(mesh);
    shard_module *model = make_model(group, single ? SHARD_SPLIT_NONE : c->split);
    shard_tensors *parameters = shard_parameters(model);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.1, .momentum = 0.9, .weight_decay = 0.01);
    shard_grad_scaler *scaler = make_scaler(dtype);
    shard_data_parallel *dp = NULL;
    if (stage > 0)
        sgd = shard_zero_optimizer(sgd, .stage = stage, .bucket_mib = 0.002);
    else if (stage == 0)
        dp = shard_data_parallel_create(parameters, .bucket_mib = 0.002);
    check_ok(shard_last_status());
    shard_range mine = {0, ROWS};
    if (!single)
        mine = shard_split_range(ROWS, shard_group_size(world), shard_group_rank(world));
    for (int step = 0; step < STEPS; step += !shard_optimizer_skipped(sgd)) {
        double scale = shard_grad_scaler_get_scale(scaler);
        SHARD_SCOPE
        {
            shard_tensor *loss = NULL;
            SHARD_AUTOCAST(dtype)
            {
                loss = loss_of(model, mine, group, step);
            }
            check_ok(shard_backward(shard_grad_scaler_scale(scaler, loss)));
            shard_tensor *sum = shard_cast(loss, SHARD_FLOAT64); /* of groups of as many rows */
            if (!single) {
                check_ok(shard_all_reduce(sum, SHARD_SUM, world));
                out.loss = value_at(sum, 0) / shard_group_size(world);
            } else {
                out.loss = value_at(sum, 0);
            }
        }
        check_ok(shard_grad_scaler_step(scaler, sgd));
        check_ok(shard_grad_scaler_update(scaler));
        out.left_out += shard_optimizer_skipped(sgd);
        out.grown += shard_grad_scaler_get_scale(scaler) > scale;
        ck_assert_msg(out.left_out < 30, "the factor does not come to where gradients are finite");
    }
    shard_grad_scaler_destroy(scaler);
    out.parameters = shard_tensors_create();
    shard_tensors *whole = shard_collect_state_dict(parameters, -1);
    ck_assert_msg(whole != NULL, "%s", shard_last_error());
    for (int64_t i = 0; i < shard_tensors_count(whole); i++)
        SHARD_NO_GRAD
    SHARD_SCOPE
    check_ok(
        shard_tensors_add(out.parameters, shard_tensors_name(whole, i), shard_cast(shard_tensors_at(whole, i), SHARD_FLOAT64)));
    shard_tensors_destroy(whole);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(parameters);
    shard_module_destroy(model);
    shard_mesh_destroy(mesh);
    return out;
}

static void check_outcome(const char *what, const outcome *out, const outcome *wanted, double tolerance)
{
    ck_assert_msg(fabs(out->loss / wanted->loss - 1) < tolerance, "%s: loss %.9f, not %.9f", what, out->loss, wanted->loss);
    for (int64_t i = 0; i < shard_tensors_count(wanted->parameters); i++)
        check_close(shard_tensors_at(out->parameters, i), shard_tensors_at(wanted->parameters, i), tolerance);
}

static const struct {
    shard_dtype dtype;
    double tolerance, rounding; /* of the ranks to the process in the same types, and of that to float32's */
} types[] = {{SHARD_FLOAT32, 2e-6, 1e-15}, {SHARD_BFLOAT16, 2e-3, 1e-2}, {SHARD_FLOAT16, 3e-4, 3e-4}};

static void compares(shard_group *world, void *context)
{
    const mesh_case *c = context;
    outcome wide = {0};
    (void)world;
    for (int d = 0; d < 2 + c->float16; d++) {
        const char *name = shard_dtype_name(types[d].dtype);
        bool scaled = types[d].dtype == SHARD_FLOAT16;
        outcome one = train(c, types[d].dtype, -1);
        wide = d ? wide : one;
        ck_assert_msg(!d || one.loss != wide.loss, "autocast computes in float32");
        check_outcome(name, &one, &wide, types[d].rounding);
        for (int stage = 0; stage <= 3; stage++) {
            char what[40];
            snprintf(what, sizeof what, "%s, stage %d", name, stage);
            outcome all = train(c, types[d].dtype, stage);
            ck_assert_msg((all.left_out > 2) == scaled && (all.grown > 0) == scaled, "%s: left out %d times, grown %d", what,
                          all.left_out, all.grown);
            check_outcome(what, &all, &one, types[d].tolerance);
            shard_tensors_destroy(all.parameters);
        }
        if (d)
            shard_tensors_destroy(one.parameters);
    }
    shard_tensors_destroy(wide.parameters);
}

START_TEST(test_combinations)
{
    run_job(meshes[_i].data * meshes[_i].model, compares, &meshes[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("combinations");
    TCase *tcase = test_case(suite, "combinations");
    tcase_add_loop_test(tcase, test_combinations, 0, (int)(sizeof meshes / sizeof *meshes));
    return test_run(suite);
}
