/* Uses of shard_zero_optimizer and of data parallel that would silently train otherwise than one process does: each is
 * refused with an error. */
#include "support/host.h"
#include "support/job.h"

#include "comm/comm.h"
#include "optim/optimizer.h"
#include "support/options.h"

#include <stdlib.h>

enum { SIZE = 50 };

static shard_tensor *leaf(void)
{
    return shard_ones(SHARD_SHAPE(SIZE), .requires_grad = true);
}

static shard_tensors *list_of_one(const char *name, shard_tensor *tensor)
{
    shard_tensors *list = shard_tensors_create();
    check_ok(shard_tensors_add(list, name, tensor));
    return list;
}

static shard_tensors *list_of(shard_tensor *p, shard_tensor *q)
{
    shard_tensors *list = list_of_one("p", p);
    if (q)
        check_ok(shard_tensors_add(list, "q", q));
    return list;
}

static shard_data_parallel *average(shard_tensors *parameters)
{
    shard_data_parallel *dp = shard_data_parallel_create(parameters);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    shard_tensors_destroy(parameters);
    return dp;
}

static shard_optimizer *zero_of(shard_tensors *parameters, int stage)
{
    shard_optimizer *sgd = sgd_of_list(parameters, .lr = 1.0), *shared = shard_zero_optimizer(sgd, .stage = stage);
    ck_assert_msg(shared && shared == sgd, "%s", shard_last_error());
    return shared;
}

/* A gradient of rank + 1 for each element. */
static shard_status back(shard_tensor *p, shard_tensor *q)
{
    double factor = shard_group_rank(shard_world()) + 1;
    shard_tensor *loss = shard_scale(shard_sum(p), factor);
    return shard_backward(q ? shard_add(loss, shard_scale(shard_sum(q), factor)) : loss);
}

/* Fails unless p has moved `steps` times by the average. */
static void check_averaged(shard_tensor *p, int steps)
{
    double mean = (shard_group_size(shard_world()) + 1) / 2.0;
    ck_assert_double_eq(value_at(p, 0), 1 - steps * mean);
    ck_assert_double_eq(value_at(p, SIZE - 1), 1 - steps * mean);
}

/* Data parallel keeps what an optimizer that is gone had partitioned: the next one steps its ranges. */
static void outlives_the_optimizer(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf();
        shard_data_parallel *dp = average(list_of(p, NULL));
        shard_optimizer *first = zero_of(list_of(p, NULL), *(int *)context);
        check_ok(back(p, NULL));
        check_ok(shard_step(first));
        shard_optimizer_destroy(first);
        shard_optimizer *second = sgd_of_list(list_of(p, NULL), .lr = 1.0);
        check_ok(back(p, NULL));
        check_ok(shard_step(second));
        check_averaged(p, 2);
        shard_optimizer_destroy(second);
        shard_data_parallel_destroy(dp);
        dp = average(list_of(p, NULL));
        second = sgd_of_list(list_of(p, NULL), .lr = 1.0);
        check_ok(back(p, NULL));
        check_ok(shard_step(second));
        check_averaged(p, 3);
        shard_optimizer_destroy(second);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_gone)
{
    int stage = _i + 1;
    run_job(2, outlives_the_optimizer, &stage);
}
END_TEST

/* Parameters that data parallel does not have are added to its engine; those of two engines cannot become one. */
static void adds_what_data_parallel_lacks(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context % 3 + 1;
    bool first = *(int *)context / 3;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_data_parallel *dp = average(list_of_one("p or q", first ? p : q));
        shard_optimizer *sgd = zero_of(list_of(p, q), stage);
        for (int step = 1; step <= 2; step++) {
            check_ok(back(p, q));
            check_ok(shard_step(sgd));
            check_averaged(p, step);
            check_averaged(q, step);
        }
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);

        shard_data_parallel *two[] = {average(list_of_one("p", p = leaf())), average(list_of_one("q", q = leaf()))};
        sgd = sgd_of_list(list_of(p, q), .lr = 1.0);
        ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = stage));
        check_error(SHARD_ERROR_ARGUMENT,
                    "*shard_zero_optimizer: \"q\" is under a shard_data_parallel, and others * another one*");
        shard_optimizer_destroy(sgd);
        for (int i = 0; i < 2; i++)
            shard_data_parallel_destroy(two[i]);
    }
}

START_TEST(test_adds)
{
    run_job(2, adds_what_data_parallel_lacks, &_i);
}
END_TEST

/* Data parallel goes while its averaging is off: that of what it had left to shard_zero_optimizer is on
 * again. */
static void averages_again(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf();
        shard_data_parallel *dp = average(list_of(p, NULL));
        shard_optimizer *sgd = zero_of(list_of(p, NULL), *(int *)context);
        shard_data_parallel_set_sync(dp, false);
        shard_data_parallel_destroy(dp);
        check_ok(back(p, NULL));
        check_ok(shard_step(sgd));
        check_averaged(p, 1);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_again)
{
    int stage = _i + 1;
    run_job(2, averages_again, &stage);
}
END_TEST

/* One parameter with two optimizers of any stages: the second one is refused, at once or as a
 * group of parameters, and the first goes on. */
static void shares_once(shard_group *world, void *context)
{
    (void)world;
    int stage[] = {1 + *(int *)context % 3, 1 + *(int *)context / 3};
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_optimizer *first = zero_of(list_of(p, q), stage[0]);
        shard_optimizer *second = sgd_of_list(list_of(q, NULL), .lr = 1.0), *third = zero_of(shard_tensors_create(), stage[1]);
        ck_assert_ptr_null(shard_zero_optimizer(second, .stage = stage[1]));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_zero_optimizer: \"p\" is partitioned already, by * another optimizer*");
        check_fails(add_group_of(third, list_of(p, NULL)), SHARD_ERROR_ARGUMENT,
                    "*shard_optimizer_add_param_group: \"p\" is partitioned already*");
        ck_assert_int_eq(third->count, 0);
        ck_assert_int_eq(third->group_count, 1);
        shard_optimizer_destroy(second);
        shard_optimizer_destroy(third);
        for (int step = 1; step <= 2; step++) {
            check_ok(back(p, q));
            check_ok(shard_step(first));
            check_averaged(p, step);
            check_averaged(q, step);
        }
        shard_optimizer_destroy(first);
    }
}

START_TEST(test_once)
{
    run_job(2, shares_once, &_i);
}
END_TEST

/* A parameter that was frozen is whole on all ranks, and its gradient each one's own. */
static void notices_what_was_frozen(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_set_requires_grad(q, false);
        shard_optimizer *sgd = zero_of(list_of(p, q), (*(int *)context - 1) % 3 + 1);
        check_ok(back(p, q));
        check_ok(shard_step(sgd));
        shard_set_requires_grad(q, true);
        check_ok(back(p, q));
        shard_step(sgd);
        check_error(SHARD_ERROR_ARGUMENT, "*shard_step: \"q\" has a gradient that no rank averages: it was frozen*or call "
                                          "shard_optimizer_add_param_group with an empty list before the backward");
        shard_optimizer_zero_grad(sgd);
        check_averaged(p, 1);
        check_averaged(q, 0);
        if (*(int *)context > 3) { /* as it says */
            check_ok(add_group_of(sgd, shard_tensors_create()));
            ck_assert_int_eq(sgd->group_count, 1); /* an empty list adds no group */
            check_ok(back(p, q));
            check_ok(shard_step(sgd));
            check_averaged(p, 2);
            check_averaged(q, 1);
            shard_optimizer_destroy(sgd);
            return;
        }
        shard_data_parallel *dp = average(list_of(q, NULL)); /* who does */
        check_ok(back(p, q));
        check_ok(shard_step(sgd));
        check_averaged(p, 2);
        check_averaged(q, 1);
        shard_data_parallel_destroy(dp);
        shard_optimizer_destroy(sgd);
    }
}

/* The same where shard_data_parallel_create has partitioned the others. */
static void notices_what_was_left_out(shard_group *world, void *context)
{
    int stage = *(int *)context;
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_tensors *list = list_of(p, NULL), *rest = list_of(q, NULL);
        shard_data_parallel *dp[2] = {shard_data_parallel_create(list, .stage = stage)};
        shard_optimizer *sgd = sgd_of_list(list_of(p, q), .lr = 1.0);
        check_ok(back(p, q));
        check_fails(shard_step(sgd), SHARD_ERROR_ARGUMENT,
                    "*shard_step: \"q\" has a gradient that no rank averages: it was frozen or not in the list *"
                    "or call shard_data_parallel_create for it*before the backward");
        shard_optimizer_zero_grad(sgd);
        dp[1] = shard_data_parallel_create(rest, .stage = stage); /* as it says */
        check_ok(back(p, q));
        check_ok(shard_step(sgd));
        check_averaged(p, 1);
        check_averaged(q, 1);
        shard_optimizer_destroy(sgd);
        for (int i = 0; i < 2; i++)
            shard_data_parallel_destroy(dp[i]);
        shard_tensors_destroy(list);
        shard_tensors_destroy(rest);
    }
}

START_TEST(test_left_out)
{
    int stage = _i + 1;
    run_job(2, notices_what_was_left_out, &stage);
}
END_TEST

START_TEST(test_frozen)
{
    int stage = _i + 1;
    run_job(2, notices_what_was_frozen, &stage);
}
END_TEST

/* shard_zero_grad of a parameter forgets its gradient, which a step or none follows. */
static void forgets_gradients(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf();
        shard_data_parallel *dp = average(list_of(p, NULL));
        shard_optimizer *sgd = stage ? zero_of(list_of(p, NULL), stage) : sgd_of_list(list_of(p, NULL), .lr = 1.0);
        for (int turn = 0; turn < 2; turn++) {
            check_ok(back(p, NULL));
            ck_assert((stage > 1) == !shard_grad(p));
            shard_zero_grad(p);
            double norm;
            check_ok(shard_clip_grad_norm(sgd, 1e9, &norm));
            ck_assert_double_eq(norm, 0);
            if (turn == 0)
                check_ok(shard_step(sgd));
        }
        check_ok(back(p, NULL));
        check_ok(shard_step(sgd));
        check_averaged(p, 1);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_forgets)
{
    run_job(2, forgets_gradients, &_i);
}
END_TEST

/* A step by what each rank has accumulated for itself: where that would be lost, or in part, it is
 * refused; parts that were summed each time are stepped by. */
static void steps_by_local_gradients(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context % 3 + 1;
    bool averaged_before = *(int *)context / 3;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf();
        shard_optimizer *sgd = zero_of(list_of(p, NULL), stage);
        shard_data_parallel *dp = average(list_of(p, NULL));
        if (averaged_before)
            check_ok(back(p, NULL));
        shard_data_parallel_set_sync(dp, false);
        check_ok(back(p, NULL));
        shard_step(sgd);
        if (stage == 1) {
            check_error(SHARD_ERROR_ARGUMENT, "*shard_step: \"p\" has a gradient that no rank has averaged*_set_sync off*");
            check_averaged(p, 0);
            shard_optimizer_zero_grad(sgd);
            check_ok(back(p, NULL));
            shard_data_parallel_set_sync(dp, true);
            check_ok(back(p, NULL));
            check_ok(shard_step(sgd));
        }
        check_averaged(p, stage == 1 || averaged_before ? 2 : 1);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_local)
{
    run_job(2, steps_by_local_gradients, &_i);
}
END_TEST

/* A gradient that is there would be lost, if only on one rank. After a step there is none. */
static void comes_after_backward(shard_group *world, void *context)
{
    (void)world;
    int stage = *(int *)context % 3 + 1;
    bool first = *(int *)context / 3;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_optimizer *sgd = first ? sgd_of_list(list_of(p, NULL), .lr = 1.0) : zero_of(shard_tensors_create(), stage);
        if (shard_group_rank(world) == 1)
            check_ok(back(p, q));
        if (first)
            ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = stage));
        else
            add_group_of(sgd, list_of(p, NULL));
        check_joint_error(SHARD_ERROR_ARGUMENT,
                          first ? "rank 1: shard_zero_optimizer: \"p\" has a gradient already*before backward or after shard_step"
                                : "rank 1: shard_optimizer_add_param_group: \"p\" has a gradient already*");
        shard_zero_grad(p);
        if (!first) { /* nothing of it was added: it can be added now */
            check_ok(add_group_of(sgd, list_of(p, NULL)));
            check_ok(back(p, NULL));
            check_ok(shard_step(sgd));
            check_averaged(p, 1);
            check_ok(add_group_of(sgd, shard_tensors_create()));
            shard_optimizer_destroy(sgd);
            p = leaf();
        } else {
            shard_optimizer_destroy(sgd);
        }
        shard_zero_grad(q);
        shard_data_parallel *dp = average(list_of(q, NULL));
        sgd = zero_of(list_of(p, NULL), stage);
        check_ok(back(p, q));
        check_ok(add_group_of(sgd, shard_tensors_create())); /* a gradient that is in a bucket stays */
        check_ok(shard_step(sgd));
        check_averaged(p, 1);
        shard_zero_grad(q);
        check_fails(add_group_of(sgd, list_of_one("q", q)), SHARD_ERROR_ARGUMENT,
                    "*shard_optimizer_add_param_group: \"q\" is under a shard_data_parallel, and others * partitioned already*");
        shard_data_parallel_destroy(dp);
        check_ok(add_group_of(sgd, list_of_one("q", q)));
        check_ok(back(p, q));
        check_ok(shard_step(sgd));
        check_averaged(p, 2);
        check_averaged(q, 1);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_after_backward)
{
    run_job(2, comes_after_backward, &_i);
}
END_TEST

/* A state dict that is there, if only on one rank, would be filled in vain. */
static void finds_state_dicts(shard_group *world, void *context)
{
    int stage = *(int *)context;
    int size = shard_group_size(world);
    SHARD_SCOPE
    {
        for (int lists = 0; lists < 2; lists++) {
            shard_tensor *p = leaf();
            shard_optimizer *sgd = sgd_of_list(list_of(p, NULL), .lr = 1.0, .momentum = 0.5);
            shard_tensors *state = shard_optimizer_state_dict(sgd);
            fill_made_up(shard_tensors_find(state, "p.momentum_buffer"), 3);
            double *momentum = values_of(shard_tensors_find(state, "p.momentum_buffer"));
            if (!lists || shard_group_rank(world) != size - 1) {
                shard_tensors_destroy(state);
                state = NULL;
            }
            if (lists && size > 1) {
                ck_assert_ptr_null(shard_zero_optimizer(sgd, .stage = stage));
                check_joint_error(SHARD_ERROR_ARGUMENT,
                                  "*rank 1: shard_zero_optimizer: the state of \"p\" is in a state dict*destroy*before*");
            } else {
                ck_assert_ptr_eq(shard_zero_optimizer(sgd, .stage = stage), sgd);
                shard_tensors *mine = shard_optimizer_state_dict(sgd), *whole = shard_collect_state_dict(mine, -1);
                check_part(shard_tensors_find(whole, "p.momentum_buffer"), momentum, 0); /* it has gone along */
                shard_tensors_destroy(mine);
                shard_tensors_destroy(whole);
            }
            shard_tensors_destroy(state);
            shard_optimizer_destroy(sgd);
            free(momentum);
        }
        shard_tensor *p = leaf(), *q = leaf();
        shard_set_requires_grad(q, false);
        shard_optimizer *sgd = sgd_of_list(list_of(p, q), .lr = 1.0, .momentum = 0.5);
        ck_assert_ptr_nonnull(shard_zero_optimizer(sgd, .stage = stage));
        shard_tensors *state = shard_optimizer_state_dict(sgd);
        shard_set_requires_grad(q, true);
        if (size > 1)
            check_fails(add_group_of(sgd, shard_tensors_create()), SHARD_ERROR_ARGUMENT,
                        "*shard_optimizer_add_param_group: the state of \"q\" is in a state dict*destroy*before*");
        shard_tensors_destroy(state);
        check_ok(add_group_of(sgd, shard_tensors_create()));
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_state_dicts)
{
    int stage = _i + 1;
    run_job(1, finds_state_dicts, &stage);
    run_job(2, finds_state_dicts, &stage);
}
END_TEST

/* Lists in another order on one rank, of as many bytes. */
static void compares_lists(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_tensors *list = shard_tensors_create();
        bool other = shard_group_rank(world) == 2;
        check_ok(shard_tensors_add(list, other ? "q" : "p", other ? q : p));
        check_ok(shard_tensors_add(list, other ? "p" : "q", other ? p : q));
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        ck_assert_ptr_null(shard_zero_optimizer(sgd));
        check_joint_error(
            SHARD_ERROR_MISMATCH,
            "*rank 2: shard_zero_optimizer: the replicas differ: here it is \"q\" float32 *on ranks 0 and 1 \"p\"*");
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_compares)
{
    run_job(3, compares_lists, NULL);
}
END_TEST

/* What is frozen begins as the first replica's, also in a group that comes later; and the first
 * backward compares all that is whole on every rank, before anything has moved. */
static void begins_alike(shard_group *world, void *context)
{
    int stage = *(int *)context % 3 + 1, rank = shard_group_rank(world);
    bool later = *(int *)context / 3;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *frozen = shard_full(SHARD_SHAPE(SIZE), rank + 2.0);
        shard_optimizer *sgd = zero_of(list_of(p, later ? NULL : frozen), stage);
        if (later)
            check_ok(add_group_of(sgd, list_of_one("frozen", frozen)));
        ck_assert_double_eq(value_at(frozen, SIZE - 1), 2);
        check_ok(back(p, NULL));
        check_ok(shard_step(sgd));
        check_averaged(p, 1);
        shard_optimizer_destroy(sgd);

        p = leaf();
        sgd = zero_of(list_of(p, frozen), stage);
        float values[SIZE] = {0};
        if (rank == 1)
            check_ok(shard_copy_from_host(stage < 3 ? p : frozen, values, sizeof values));
        back(p, NULL);
        shard_step(sgd);
        check_joint_error(SHARD_ERROR_MISMATCH,
                          stage < 3 ? "rank 1: shard_backward: the replicas differ: here it is \"p\" * with values of *"
                                    : "rank 1: shard_backward: the replicas differ: here it is \"q\" *frozen with *");
        shard_optimizer_zero_grad(sgd);
        if (stage < 3 && rank == 0)
            check_averaged(p, 0);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_begins_alike)
{
    run_job(2, begins_alike, &_i);
}
END_TEST

/* A broadcast that fails from the second one on. */
static const shard_transport *real;
static int broadcasts;

static shard_status fail_second(shard_group *group, const shard_collective *call, shard_request **request)
{
    if (call->kind == SHARD_COLLECTIVE_BROADCAST && broadcasts++)
        return shard_error(SHARD_ERROR_PEER, "the second broadcast");
    return real->post(group, call, request);
}

/* What data parallel had cannot be put into buckets again: no engine has it then, and backward says so. */
static void fails_to_partition(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = shard_ones(SHARD_SHAPE(5000), .requires_grad = true);
        shard_tensor *q = shard_ones(SHARD_SHAPE(5000), .requires_grad = true);
        shard_data_parallel *dp = average(list_of(p, q));
        shard_optimizer *sgd = sgd_of_list(list_of(p, NULL), .lr = 1.0);
        shard_transport failing = *(real = world->transport);
        failing.post = fail_second;
        world->transport = &failing;
        ck_assert_ptr_null(shard_zero_optimizer(sgd, .bucket_mib = 1e-3));
        check_error(SHARD_ERROR_PEER, "*the second broadcast*");
        world->transport = real;
        shard_optimizer_destroy(sgd);
        ck_assert_ptr_null(q->leaf->grad_ready);
        ck_assert_ptr_null(q->leaf->grad_ready_context);
        back(q, NULL);
        check_error(SHARD_ERROR_ARGUMENT, "*data parallel: no engine *shape [[]5000] * make the data parallel anew*");
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_fails_to_partition)
{
    run_job(2, fails_to_partition, NULL);
}
END_TEST

/* Another optimizer's gradients would be lost in the buckets. */
static void has_another_s_gradient(shard_group *world, void *context)
{
    (void)world;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_data_parallel *dp = average(list_of(p, q));
        shard_optimizer *first = sgd_of_list(list_of_one("p", p), .lr = 1.0), *second = sgd_of_list(list_of_one("q", q), .lr = 1.0);
        check_ok(back(p, q));
        check_ok(shard_step(first));
        ck_assert_ptr_null(shard_zero_optimizer(first, .stage = *(int *)context));
        check_error(SHARD_ERROR_ARGUMENT, "*shard_zero_optimizer: a parameter of another optimizer* has a gradient*");
        shard_optimizer_destroy(first);
        check_ok(shard_step(second));
        check_averaged(q, 1);
        shard_optimizer_destroy(second);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_another_s_gradient)
{
    int stage = _i + 1;
    run_job(2, has_another_s_gradient, &stage);
}
END_TEST

/* New parameters cannot be put into buckets: the engine goes on without them. */
static void fails_to_add(shard_group *world, void *context)
{
    (void)context;
    SHARD_SCOPE
    {
        shard_tensor *p = leaf(), *q = leaf();
        shard_tensors *added = list_of_one("q", q);
        shard_data_parallel *dp = average(list_of_one("p", p));
        shard_optimizer *sgd = zero_of(list_of_one("p", p), 1);
        shard_transport failing = *(real = world->transport);
        failing.post = fail_second;
        broadcasts = 1;
        world->transport = &failing;
        ck_assert_int_ne(shard_optimizer_add_param_group(sgd, added), SHARD_OK);
        check_error(SHARD_ERROR_PEER, "*the second broadcast*");
        world->transport = real;
        shard_optimizer_destroy(sgd);
        shard_tensors_destroy(added);
        ck_assert_ptr_null(q->leaf->grad_ready);
        sgd = sgd_of_list(list_of_one("p", p), .lr = 1.0);
        check_ok(back(p, NULL));
        check_ok(shard_step(sgd));
        check_averaged(p, 1);
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_fails_to_add)
{
    run_job(2, fails_to_add, NULL);
}
END_TEST

/* In stage 3 one rank fails between two layers of an evaluation, while the other one gathers the second. After the error each
 * pass gathers the same layers on both. */
static void recovers(shard_group *world, void *context)
{
    (void)context;
    shard_module *layers[] = {shard_nn_linear(20, 20), shard_nn_linear(20, 20)};
    shard_module *model = shard_nn_sequential(layers[0], layers[1]);
    shard_tensors *parameters = shard_parameters(model);
    SHARD_SCOPE
    {
        shard_tensor *x = shard_ones(SHARD_SHAPE(3, 20));
        shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 1.0);
        double want = shard_item(shard_sum(shard_forward(model, x)));
        ck_assert_ptr_eq(shard_zero_optimizer(sgd, .stage = 3, .bucket_mib = 1e-3), sgd);
        for (int pass = 0; pass < 3; pass++) {
            SHARD_NO_GRAD
            {
                shard_tensor *middle = shard_forward(layers[0], x);
                if (pass == 1 && shard_group_rank(world) == 1)
                    middle = (shard_error(SHARD_ERROR_MEMORY, "no memory for the middle"), NULL);
                shard_tensor *sum = shard_sum(shard_forward(layers[1], middle));
                shard_status status = shard_agree(world);
                ck_assert_int_eq(status == SHARD_OK, pass != 1);
                if (pass != 1)
                    ck_assert_double_eq(shard_item(sum), want);
            }
            shard_clear_error();
        }
        shard_optimizer_destroy(sgd);
    }
    shard_tensors_destroy(parameters);
    shard_module_destroy(model);
}

START_TEST(test_recovers)
{
    run_job(2, recovers, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero refuses");
    TCase *tcase = test_case(suite, "refuses");
    tcase_add_loop_test(tcase, test_gone, 0, 3);
    tcase_add_loop_test(tcase, test_again, 0, 3);
    tcase_add_loop_test(tcase, test_adds, 0, 6);
    tcase_add_loop_test(tcase, test_once, 0, 9);
    tcase_add_loop_test(tcase, test_left_out, 0, 3);
    tcase_add_loop_test(tcase, test_frozen, 0, 6);
    tcase_add_loop_test(tcase, test_forgets, 0, 4);
    tcase_add_loop_test(tcase, test_local, 0, 6);
    tcase_add_loop_test(tcase, test_after_backward, 0, 6);
    tcase_add_loop_test(tcase, test_state_dicts, 0, 3);
    tcase_add_test(tcase, test_compares);
    tcase_add_loop_test(tcase, test_begins_alike, 0, 6);
    tcase_add_test(tcase, test_fails_to_partition);
    tcase_add_loop_test(tcase, test_another_s_gradient, 0, 3);
    tcase_add_test(tcase, test_fails_to_add);
    tcase_add_test(tcase, test_recovers);
    return test_run(suite);
}
