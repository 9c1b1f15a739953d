/* What ranks tell each other of the public function that they are in: a difference in it, or in
 * what all are to have the same in it, is an error that names the function and the values. */
#include "support/job.h"

#include "base/error.h"
#include "support/comma.h"
#include "support/options.h"
#include "support/scratch.h"

#include <shard/distributed.h>
#include <shard/nn.h>
#include <shard/optim.h>

#include <locale.h>
#include <stdlib.h>

/* Rank 1 does `what` otherwise than ranks 0 and 2. */
typedef struct difference {
    void (*act)(shard_optimizer *optimizer, bool odd);
    const char *text;
} difference;

static void other_rate(shard_optimizer *optimizer, bool odd)
{
    shard_optimizer_set_lr(optimizer, odd ? 0.3 : 0.2);
    shard_step(optimizer);
    shard_optimizer_set_lr(optimizer, 0.2);
}

static void other_clip_value(shard_optimizer *optimizer, bool odd)
{
    shard_clip_grad_value(optimizer, odd ? 0.5 : 1.0);
    shard_step(optimizer);
    shard_optimizer_zero_grad(optimizer);
}

/* The value 0 clips, too. */
static void no_clip_value(shard_optimizer *optimizer, bool odd)
{
    if (!odd)
        shard_clip_grad_value(optimizer, 0);
    shard_step(optimizer);
    shard_optimizer_zero_grad(optimizer);
}

static void other_norm(shard_optimizer *optimizer, bool odd)
{
    shard_clip_grad_norm(optimizer, odd ? 0.5 : 1.0, NULL);
}

static void other_momentum(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "w", shard_ones(SHARD_SHAPE(3)));
    shard_optimizer *other = sgd_of_list(list, .lr = 0.1, .momentum = odd ? 0.8 : 0.9);
    shard_step(other);
    shard_optimizer_destroy(other);
}

static void step_of_groups(shard_param_group_options options)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "w", shard_ones(SHARD_SHAPE(3)));
    shard_optimizer *other = adamw_of_list(shard_tensors_create());
    shard_optimizer_add_param_group_with(other, list, &options);
    shard_tensors_destroy(list);
    shard_step(other);
    shard_optimizer_destroy(other);
}

static void other_group_decay(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    step_of_groups((shard_param_group_options){SHARD_PARAM_GROUP_OPTIONS_VALUES, .weight_decay = odd ? 0 : -1});
}

static void other_group_decay_1d(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    step_of_groups((shard_param_group_options){SHARD_PARAM_GROUP_OPTIONS_VALUES, .decay_1d = odd ? 0 : -1});
}

static void other_decay_1d(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "w", shard_ones(SHARD_SHAPE(3)));
    shard_optimizer *other = adamw_of_list(list, .decay_1d = !odd);
    shard_step(other);
    shard_optimizer_destroy(other);
}

static void other_conversion(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_module *module = shard_nn_embedding(6, 2, -1);
    if (odd)
        shard_all_reduce(shard_ones(SHARD_SHAPE(2)), SHARD_SUM, shard_world());
    else
        shard_convert_parallel_embedding(&module, NULL, SHARD_SPLIT_ROW, shard_world(), NULL);
    shard_module_destroy(module);
}

static void other_layer(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_range part = shard_split_range(6, 3, shard_group_rank(shard_world()));
    shard_tensor *weight = shard_as_split(shard_ones(SHARD_SHAPE(2, part.size)), 1, shard_world(), part.start, 6);
    shard_tensor *table = shard_as_split(shard_ones(SHARD_SHAPE(part.size, 2)), 0, shard_world(), part.start, 6);
    if (odd)
        shard_parallel_linear(shard_ones(SHARD_SHAPE(3, 6)), weight, NULL);
    else
        shard_parallel_embedding(table, shard_zeros(SHARD_SHAPE(3), .dtype = SHARD_INT64), -1);
}

/* One rank's loss does not depend on what is copied: its backward sums nothing. */
static void other_branch(shard_optimizer *optimizer, bool odd)
{
    shard_tensor *x = made_up_leaf(SHARD_SHAPE(3), 1, SHARD_FLOAT32);
    shard_tensor *y = shard_copy_to_group(x, shard_world());
    shard_backward(shard_sum(odd ? x : y));
    if (odd)
        shard_step(optimizer);
}

static void other_kind(shard_optimizer *optimizer, bool odd)
{
    shard_tensors *list = shard_tensors_create();
    shard_tensors_add(list, "w", shard_ones(SHARD_SHAPE(3)));
    shard_optimizer *other = adam_of_list(list, .lr = 0.1);
    shard_step(odd ? other : optimizer);
    shard_optimizer_destroy(other);
}

static void other_shape_of_all_reduce(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_all_reduce(shard_ones(odd ? SHARD_SHAPE(2, 3) : SHARD_SHAPE(3, 2)), SHARD_SUM, shard_world());
}

static void other_shape_of_reduce(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_reduce_from_group(shard_ones(odd ? SHARD_SHAPE(4, 1) : SHARD_SHAPE(4)), shard_world());
}

static void other_shape_of_broadcast(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_broadcast(shard_ones(odd ? SHARD_SHAPE(2, 3) : SHARD_SHAPE(6)), 0, shard_world());
}

static void other_function(shard_optimizer *optimizer, bool odd)
{
    if (odd)
        shard_step(optimizer);
    else
        shard_agree(shard_world());
}

static void other_mesh(shard_optimizer *optimizer, bool odd)
{
    if (odd)
        shard_mesh_destroy(shard_mesh_create(.model = 3));
    else
        shard_step(optimizer);
}

static void other_count(shard_optimizer *optimizer, bool odd)
{
    (void)optimizer;
    shard_all_reduce(shard_ones(SHARD_SHAPE(odd ? 3 : 4)), SHARD_SUM, shard_world());
}

static const difference differences[] = {
    {other_rate, "rank 1 calls shard_step with lr 0.3 while ranks 0 and 2 call shard_step with lr 0.2"},
    {other_clip_value, "rank 1 calls shard_step with clip value 0.5 while ranks 0 and 2 call shard_step with clip value 1"},
    {no_clip_value, "rank 1 calls shard_step with no clip value while ranks 0 and 2 call shard_step with clip value 0"},
    {other_norm,
     "rank 1 calls shard_clip_grad_norm * with max_norm 0.5 while ranks 0 and 2 call shard_clip_grad_norm * with max_norm 1"},
    {other_momentum, "rank 1 calls shard_step with momentum 0.8, * while ranks 0 and 2 call shard_step with momentum 0.9, *"},
    {other_kind,
     "rank 1 calls shard_step with optimizer shard_adam while ranks 0 and 2 call shard_step with optimizer shard_sgd"},
    {other_group_decay,
     "rank 1 calls shard_step with * weight_decay 0 of group 1 while ranks 0 and 2 call * weight_decay -1 of group 1"},
    {other_group_decay_1d,
     "rank 1 calls shard_step with decay_1d 0 of group 1 while ranks 0 and 2 call * with decay_1d -1 of group 1"},
    {other_decay_1d, "rank 1 calls shard_step with decay_1d false while ranks 0 and 2 call shard_step with decay_1d true"},
    {other_conversion, "rank 1 calls shard_all_reduce * while ranks 0 and 2 call shard_convert_parallel_embedding*"},
    {other_layer, "rank 1 calls shard_parallel_linear * while ranks 0 and 2 call shard_parallel_embedding *"},
    {other_branch, "rank 1 calls shard_step while ranks 0 and 2 call shard_backward *"},
    {other_shape_of_all_reduce,
     "rank 1 calls shard_all_reduce of 6 float32* with shape [[]2, 3] while ranks 0 and 2 call * with shape [[]3, 2]"},
    {other_shape_of_reduce, "rank 1 calls shard_reduce_from_group (all_reduce of 4 float32*) with shape [[]4, 1] while ranks 0 "
                            "and 2 call * with shape [[]4]"},
    {other_shape_of_broadcast,
     "rank 1 calls shard_broadcast of 6 float32 from rank 0* with shape [[]2, 3] while * with shape [[]6]"},
    {other_function, "rank 1 calls shard_step while ranks 0 and 2 call shard_agree"},
    {other_mesh, "rank 1 calls shard_mesh_create while ranks 0 and 2 call shard_step"},
    {other_count, "rank 1 calls shard_all_reduce of 3 float32* while ranks 0 and 2 call shard_all_reduce of 4 float32*"},
};
#define DIFFERENCES ((int)(sizeof differences / sizeof *differences))

static void differ(shard_group *world, void *context)
{
    const difference *which = context;
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        shard_tensors_add(list, "w", shard_ones(SHARD_SHAPE(3)));
        shard_optimizer *optimizer = sgd_of_list(list, .lr = 0.1);
        which->act(optimizer, shard_group_rank(world) == 1);
        check_error(SHARD_ERROR_MISMATCH, which->text);
        check_ok(shard_step(optimizer)); /* forgiven, the ranks go on together */
        shard_optimizer_destroy(optimizer);
    }
}

START_TEST(test_differences)
{
    run_job(3, differ, (void *)&differences[_i]);
}
END_TEST

/* ---- what need not be identical ---- */

/* Rank 1 has a decimal comma: settings are compared, not their texts in a rank's locale. */
static void compares_numbers(shard_group *world, void *context)
{
    (void)context;
    bool odd = shard_group_rank(world) == 1;
    if (odd)
        take_decimal_comma();
    SHARD_SCOPE
    {
        shard_tensors *list = shard_tensors_create();
        shard_tensors_add(list, "w", shard_ones(SHARD_SHAPE(3), .requires_grad = true));
        shard_optimizer *optimizer = sgd_of_list(list, .lr = 0.1, .momentum = 0.9);
        shard_normalize(shard_as_split(shard_ones(SHARD_SHAPE(2, 1)), 1, world, shard_group_rank(world), 3), 1, 0.25);
        check_ok(shard_last_status());
        check_ok(shard_clip_grad_norm(optimizer, 0.5, NULL));
        check_ok(shard_step(optimizer));
        zero_with(optimizer, (zero_way){.stage = 1, .bucket_mib = 0.5});
        check_ok(shard_last_status());
        shard_optimizer_destroy(optimizer);
    }
    ck_assert_str_eq(localeconv()->decimal_point, odd ? "," : ".");
}

START_TEST(test_locales)
{
    if (make_decimal_comma())
        run_job(3, compares_numbers, NULL);
}
END_TEST

/* Sums rows over a pair of ranks, of which the other pair has another number, then something over all. */
static shard_tensor *uneven_forward(shard_module *module, shard_tensor *x)
{
    shard_mesh *mesh = *(shard_mesh **)shard_module_data(module);
    shard_tensor *rows = shard_reduce_from_group(x, shard_mesh_model_group(mesh));
    shard_all_reduce(shard_ones(SHARD_SHAPE(3)), SHARD_SUM, shard_world());
    return rows;
}

static const shard_module_type uneven_type = {.name = "uneven", .forward = uneven_forward};

static void reduce_uneven(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_mesh *mesh = shard_mesh_create(.model = 2);
        shard_module *module = shard_module_create(&uneven_type, &mesh);
        shard_tensor *x = shard_ones(SHARD_SHAPE(2 + shard_group_rank(world) / 2, 3));
        shard_forward(module, x);
        check_ok(shard_last_status());
        shard_module_destroy(module);
        shard_mesh_destroy(mesh);
    }
}

/* The identical arguments of one group's collectives in a function are not compared in later collectives of other groups. */
START_TEST(test_groups_differ)
{
    run_job(4, reduce_uneven, NULL);
}
END_TEST

/* ---- torch's `if rank == 0: save` ---- */

static void save_on_one(shard_group *world, void *context)
{
    (void)context;
    shard_tensors *list = shard_tensors_create();
    shard_tensor *w = shard_ones(SHARD_SHAPE(3));
    shard_tensors_add(list, "w", w);
    shard_release(w);
    if (shard_group_rank(world) == 0)
        shard_save(list, "build_no_such_folder/model.safetensors", NULL);
    else
        shard_barrier(world);
    check_error(SHARD_ERROR_MISMATCH, "rank 1 calls shard_barrier while rank 0 calls shard_save *.local*");
    shard_tensors_destroy(list);
}

START_TEST(test_save_on_one)
{
    run_job(2, save_on_one, NULL);
}
END_TEST

/* Shapes over one group are no concern of another group's members, in one function too. */
static shard_tensor *sums_then_gathers(shard_module *module, shard_tensor *x)
{
    const shard_mesh *mesh = *(shard_mesh *const *)shard_module_data(module);
    return shard_gather_from_group(shard_reduce_from_group(x, shard_mesh_data_group(mesh)), -1, shard_mesh_model_group(mesh));
}

static void two_groups(shard_group *world, void *context)
{
    static const shard_module_type type = {.name = "two groups", .forward = sums_then_gathers};
    (void)context;
    shard_mesh *mesh = shard_mesh_create(.model = 2);
    shard_module *module = shard_module_create(&type, &mesh);
    SHARD_SCOPE
    {
        int member = shard_group_rank(world) % 2;
        shard_tensor *y = shard_forward(module, shard_ones(SHARD_SHAPE(3, 2 + member)));
        check_ok(shard_last_status());
        ck_assert_int_eq(shard_tensor_size(y, 1), 5);
    }
    shard_module_destroy(module);
    shard_mesh_destroy(mesh);
}

START_TEST(test_two_groups)
{
    run_job(4, two_groups, NULL);
}
END_TEST

int main(void)
{
    scratch_open();
    Suite *suite = suite_create("function");
    TCase *tcase = test_case(suite, "differences");
    tcase_add_loop_test(tcase, test_differences, 0, DIFFERENCES);
    TCase *groups = test_case(suite, "groups");
    tcase_add_test(groups, test_groups_differ);
    tcase_add_test(groups, test_locales);
    TCase *save = test_case(suite, "save");
    tcase_add_test(save, test_save_on_one);
    tcase_add_test(tcase, test_two_groups);
    int failed = test_run(suite);
    scratch_close();
    return failed;
}
