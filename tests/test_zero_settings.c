/* Settings of shard_zero_optimizer, and of the optimizers that it takes, that differ on the last rank: each is refused. */
#include "support/job.h"
#include "support/options.h"

#include "base/memory.h"

#include <stdlib.h>

enum { SIZE = 50 };

static shard_tensor *leaf(void)
{
    return shard_ones(SHARD_SHAPE(SIZE), .requires_grad = true);
}

static shard_tensors *list_of(const char *name, shard_tensor *tensor)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, name, tensor));
    return list;
}

typedef struct case_of_settings {
    int optimizer; /* 0: SGD; 1: Adam; 2: AdamW; 3: LARS; 4: LAMB */
    shard_sgd_options sgd;
    shard_adam_options adam;
    shard_lars_options lars;
    shard_lamb_options lamb;
    zero_way zero;
    shard_param_group_options group;
    double lr;
    const char *error; /* from "here it is" on */
} case_of_settings;

static shard_optimizer *optimizer_of(const case_of_settings *c, shard_tensors *list)
{
    return c->optimizer == 0   ? WITH_LIST_AND(shard_sgd_with, list, &c->sgd)
           : c->optimizer == 1 ? WITH_LIST_AND(shard_adam_with, list, &c->adam)
           : c->optimizer == 2 ? WITH_LIST_AND(shard_adamw_with, list, &c->adam)
           : c->optimizer == 3 ? WITH_LIST_AND(shard_lars_with, list, &c->lars)
                               : WITH_LIST_AND(shard_lamb_with, list, &c->lamb);
}

#define USUAL                                                                                                                    \
    .sgd = SHARD_SGD_OPTIONS_INIT, .adam = SHARD_ADAM_OPTIONS_INIT, .lars = SHARD_LARS_OPTIONS_INIT,                             \
    .lamb = SHARD_LAMB_OPTIONS_INIT, .group = SHARD_PARAM_GROUP_OPTIONS_INIT
static const case_of_settings different[] = {
    {USUAL, .zero.stage = 2, .error = "stage 2, on ranks 0 and 1 stage 1"},
    {USUAL, .zero.partition = SHARD_ZERO_WHOLE,
     .error = "partition SHARD_ZERO_WHOLE, on ranks 0 and 1 partition SHARD_ZERO_EVEN"},
    {USUAL, .zero.bucket_mib = 0.5, .error = "bucket_mib 0.5, on ranks 0 and 1 bucket_mib 25"},
    {USUAL, .zero.overlap = true, .error = "overlap true, on ranks 0 and 1 overlap false"},
    {USUAL, .sgd.lr = 0.1, .error = "lr 0.1, on ranks 0 and 1 lr 0.001"},
    {USUAL, .lr = 0.25, .error = "lr 0.25, on ranks 0 and 1 lr 0.001"},
    {USUAL, .sgd.weight_decay = 0.5, .error = "weight_decay 0.5, on ranks 0 and 1 weight_decay 0"},
    {USUAL, .sgd.decay_1d = false, .error = "decay_1d false, on ranks 0 and 1 decay_1d true"},
    {USUAL, .sgd.momentum = 0.9, .error = "momentum 0.9,*on ranks 0 and 1 momentum 0,*"},
    {USUAL, .sgd.dampening = 0.5, .error = "*dampening 0.5,*on ranks 0 and 1 *dampening 0,*"},
    {USUAL, .group.lr_scale = 2, .error = "lr_scale 2 and * of group 1, on ranks 0 and 1 lr_scale 1 and * of group 1"},
    {USUAL, .group.weight_decay = 2, .error = "*weight_decay 2 of group 1, on ranks 0 and 1 *weight_decay -1 of group 1"},
    {USUAL, .group.weight_decay = 0, .error = "*weight_decay 0 of group 1, on ranks 0 and 1 *weight_decay -1 of group 1"},
    {USUAL, .group.decay_1d = 1, .error = "decay_1d 1 of group 1, on ranks 0 and 1 decay_1d -1 of group 1"},
    {USUAL, .group.decay_1d = 0, .error = "decay_1d 0 of group 1, on ranks 0 and 1 decay_1d -1 of group 1"},
    {USUAL, .optimizer = 1, .error = "optimizer shard_adam, on ranks 0 and 1 optimizer shard_sgd"},
};
/* Of the same optimizer, then. */
static const case_of_settings others[] = {
    {USUAL, .optimizer = 1, .adam.beta1 = 0.5, .error = "beta1 0.5,*on ranks 0 and 1 beta1 0.9,*"},
    {USUAL, .optimizer = 1, .adam.beta2 = 0.5, .error = "* beta2 0.5,*on ranks 0 and 1 *beta2 0.999,*"},
    {USUAL, .optimizer = 2, .adam.eps = 0.5, .error = "* eps 0.5,*on ranks 0 and 1 *eps 1e-08,*"},
    {USUAL, .optimizer = 2, .adam.amsgrad = true, .error = "* amsgrad true,*on ranks 0 and 1 *amsgrad false"},
    {USUAL, .optimizer = 3, .lars.momentum = 0.5, .error = "momentum 0.5,*on ranks 0 and 1 momentum 0,*"},
    {USUAL, .optimizer = 3, .lars.dampening = 0.5, .error = "* dampening 0.5,*on ranks 0 and 1 *dampening 0,*"},
    {USUAL, .optimizer = 3, .lars.trust_coefficient = 0.5,
     .error = "* trust_coefficient 0.5,*on ranks 0 and 1 *trust_coefficient 0.001,*"},
    {USUAL, .optimizer = 3, .lars.eps = 0.5, .error = "* eps 0.5,*on ranks 0 and 1 *eps 0,*"},
    {USUAL, .optimizer = 3, .lars.adapt_1d = true, .error = "adapt_1d true, on ranks 0 and 1 adapt_1d false"},
    {USUAL, .optimizer = 4, .lamb.beta1 = 0.5, .error = "beta1 0.5,*on ranks 0 and 1 beta1 0.9,*"},
    {USUAL, .optimizer = 4, .lamb.beta2 = 0.5, .error = "* beta2 0.5,*on ranks 0 and 1 *beta2 0.999,*"},
    {USUAL, .optimizer = 4, .lamb.eps = 0.5, .error = "* eps 0.5,*on ranks 0 and 1 *eps 1e-06"},
};

/* Of the first rank's case on all others. */
static void refuse_case(shard_group *world, const case_of_settings *c, bool same_optimizer)
{
    case_of_settings usual = {USUAL, .optimizer = same_optimizer ? c->optimizer : 0};
    bool last = shard_group_rank(world) == shard_group_size(world) - 1;
    const case_of_settings *mine = last ? c : &usual;
    char *pattern = shard_format("*rank 2: shard_zero_optimizer: the ranks' settings differ: here it is %s", c->error);
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_optimizer *optimizer = optimizer_of(mine, list_of("p", p));
        shard_tensors *list = list_of("q", q);
        check_ok(shard_optimizer_add_param_group_with(optimizer, list, &mine->group));
        shard_tensors_destroy(list);
        if (mine->lr > 0)
            check_ok(shard_optimizer_set_lr(optimizer, mine->lr));
        ck_assert_ptr_null(zero_with(optimizer, mine->zero));
        ck_assert_int_eq(shard_last_status(), last ? SHARD_ERROR_MISMATCH : SHARD_ERROR_PEER);
        check_joint_error(SHARD_ERROR_MISMATCH, pattern);
        shard_optimizer_destroy(optimizer);
    }
    free(pattern);
}

static void compares_settings(shard_group *world, void *context)
{
    (void)context;
    for (size_t i = 0; i < sizeof different / sizeof *different; i++)
        refuse_case(world, &different[i], false);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        refuse_case(world, &others[i], true);
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        bool last = shard_group_rank(world) == 2;
        shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(list_of("p", p), .lr = 1.0), .stage = 2);
        ck_assert_msg(sgd != NULL, "%s", shard_last_error());
        add_group_of(sgd, list_of("q", q), .lr_scale = last ? 0.5 : 1); /* later, too */
        check_joint_error(SHARD_ERROR_MISMATCH,
                          "*rank 2: shard_zero_optimizer: the ranks' settings differ: *lr_scale 0.5 and * lr_scale 1 and *");
        shard_optimizer_destroy(sgd);
        sgd = sgd_of_list(list_of("p", p));
        ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = last ? 4 : 1));
        check_joint_error(SHARD_ERROR_ARGUMENT, "*shard_zero_optimizer: there is no stage 4*");
        shard_optimizer_destroy(sgd);
        sgd = sgd_of_list(list_of("p", p));
        shard_zero_optimizer_options defaults = SHARD_ZERO_OPTIMIZER_OPTIONS_INIT;
        ck_assert_msg(shard_zero_optimizer_with(sgd, last ? NULL : &defaults) == sgd, "%s", shard_last_error());
        shard_optimizer_destroy(sgd);
    }
}

/* A module of the first rank alone has a group of its own; the others add it with an empty list. */
static void adds_groups_without_parameters(shard_group *world, void *context)
{
    bool first = shard_group_rank(world) == 0;
    shard_group *alone = shard_group_split(world, shard_group_rank(world));
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_optimizer *sgd = sgd_of_list(list_of("p", p), .lr = 1.0);
        if (*(int *)context)
            ck_assert(shard_zero_optimizer(sgd, .stage = 1) == sgd);
        shard_tensor_set_replica_group(q, alone);
        check_ok(add_group_of(sgd, first ? list_of("q", q) : shard_tensors_create(), .lr_scale = 0.5));
        check_ok(shard_backward(shard_sum(first ? shard_add(p, q) : p)));
        check_ok(shard_step(sgd));
        ck_assert_double_eq(shard_item(shard_sum(q)), first ? SIZE / 2.0 : SIZE);
        shard_optimizer_destroy(sgd);
    }
    shard_group_destroy(alone);
}

START_TEST(test_groups_without_parameters)
{
    run_job(3, adds_groups_without_parameters, &_i);
}
END_TEST

START_TEST(test_settings)
{
    run_job(3, compares_settings, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero settings");
    TCase *tcase = test_case(suite, "refuses");
    tcase_add_test(tcase, test_settings);
    tcase_add_loop_test(tcase, test_groups_without_parameters, 0, 2);
    return test_run(suite);
}
