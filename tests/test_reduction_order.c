/*
 * When gradients are reduced: while backward runs, each bucket as soon as it is full, and a
 * step of it behind that; in one order on all ranks, in whatever order they come by.
 */
#include "support/host.h"
#include "support/job.h"

#include "autograd/autograd.h"
#include "comm/comm.h"
#include "comm/registry.h"
#include "support/options.h"

#include <stdlib.h>
#include <string.h>

/* ---- what happens in a backward, in letters ---- */

static char seen[200];

static void note(char letter)
{
    size_t length = strlen(seen);
    ck_assert_uint_lt(length + 1, sizeof seen);
    seen[length] = letter;
}

/* x, whose gradient is on its way when this is noted. */
static shard_status note_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    note(*(const char *)node->context);
    dx[0] = dy;
    return SHARD_OK;
}

static const shard_node_type mark_type = {.name = "mark", .backward = note_backward};

static shard_tensor *mark(shard_tensor *x, char letter)
{
    shard_tensor *y = shard_detach(x);
    shard_node *node = shard_record(&mark_type, y, SHARD_INPUTS(x), 1);
    ck_assert_ptr_nonnull(node);
    *(char *)node->context = letter;
    return y;
}

/* A transport on which something could go on in between: s is what was started, w waited for, g
 * gathered. */
static const shard_transport *real;
static shard_transport noting;

static const shard_transport **transport_of(shard_group *group)
{
    return shard_device_open(NULL)->ops->host_memory ? &group->transport : &group->device_transport;
}

static shard_status note_post(shard_group *group, const shard_collective *call, shard_request **request)
{
    shard_request *own = NULL;
    bool reduces = call->kind == SHARD_COLLECTIVE_ALL_REDUCE || call->kind == SHARD_COLLECTIVE_REDUCE_SCATTER;
    if (reduces)
        note('s');
    if (call->kind == SHARD_COLLECTIVE_ALL_GATHER)
        note('g');
    shard_status status = real->post(group, call, &own);
    if (status == SHARD_OK && own)
        status = real->wait(group, own);
    if (reduces)
        *request = (shard_request *)seen;
    return status;
}

static shard_status note_wait(shard_group *group, shard_request *request)
{
    (void)group;
    ck_assert_ptr_eq(request, (shard_request *)seen);
    note('w');
    return SHARD_OK;
}

/* From now on the group notes what it does; until stop_noting. */
static void start_noting(shard_group *group)
{
    noting = *(real = *transport_of(group));
    noting.post = note_post;
    noting.wait = note_wait;
    *transport_of(group) = &noting;
}

static void stop_noting(shard_group *group)
{
    *transport_of(group) = real;
}

enum { LAYERS = 3, WIDTH = 40 };

typedef struct overlap_case {
    int stage; /* 0: data parallel */
    bool overlap;
    const char *seen;
} overlap_case;

/* Backward comes by layer 3, then 2, then 1, and notes each when it is done with the one's weight:
 * by then its reduction has been started. Behind '|' is the step. Where something follows a
 * reduction, that is waited for once the next one is under way: a step, after which the values are
 * gathered, or that the gradient's memory goes. Stage 3 gathers what its forward needs, and again
 * what its backward does, but for the last layer's. */
static const overlap_case overlap_cases[] = {
    {0, false, "s3s2s1www|"},
    {1, false, "s3s2s1www|ggg"},
    {1, true, "s3swg2swg1wg|"},
    {2, false, "s3sw2sw1w|ggg"},
    {2, true, "s3swg2swg1wg|"},
    {3, false, "s3gsw2gsw1w|"},
    {3, true, "s3gsw2gsw1w|"},
};
#define OVERLAP_CASES ((int)(sizeof overlap_cases / sizeof *overlap_cases))

static void reduces_during_backward(shard_group *world, void *context)
{
    const overlap_case *c = context;
    double mib = 4.0 * (WIDTH * WIDTH + WIDTH) / 1048576;
    shard_module *layer[LAYERS];
    shard_tensors *list = shard_tensors_create();
    for (int i = 0; i < LAYERS; i++) {
        char prefix[] = {(char)('1' + i), '.', 0};
        layer[i] = shard_nn_linear(WIDTH, WIDTH);
        shard_tensors *own = shard_parameters(layer[i]);
        check_ok(shard_tensors_extend(list, prefix, own));
        shard_tensors_destroy(own);
    }
    shard_data_parallel *dp = c->stage ? NULL : shard_data_parallel_create(list, .bucket_mib = mib);
    shard_optimizer *sgd = sgd_of_list(list, .lr = 0.01);
    if (c->stage)
        ck_assert_ptr_nonnull(shard_zero_optimizer(sgd, .stage = c->stage, .overlap = c->overlap, .bucket_mib = mib));
    for (int step = 0; step < 2; step++) /* from the first one on */
        SHARD_SCOPE
        {
            shard_tensor *x = made_up_leaf(SHARD_SHAPE(2, WIDTH), 3, SHARD_FLOAT32);
            if (step == 0 && shard_device_open(NULL) != shard_cpu()) /* replicas are compared once: not noted */
                check_ok(shard_device_transport_choose(world, &(shard_collective){.device = shard_device_open(NULL)}));
            start_noting(world);
            for (int i = 0; i < LAYERS; i++)
                x = shard_forward(layer[i], mark(x, (char)('1' + i)));
            shard_tensor *loss = shard_mean(x);
            memset(seen, 0, sizeof seen);
            check_ok(shard_backward(loss));
            note('|');
            check_ok(shard_step(sgd));
            stop_noting(world);
            ck_assert_msg(strcmp(seen, c->seen) == 0, "step %d: %s, not %s", step, seen, c->seen);
        }
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(dp);
    for (int i = 0; i < LAYERS; i++)
        shard_module_destroy(layer[i]);
}

START_TEST(test_overlap)
{
    overlap_case c = overlap_cases[_i];
    run_job(2, reduces_during_backward, &c);
}
END_TEST

/* ---- ranks that come by in different orders ---- */

enum { PARAMETERS = 5, SIZE = 300 };

typedef struct order_case {
    int stage; /* 0: data parallel */
    bool overlap;
} order_case;

static const order_case order_cases[] = {{0, false}, {1, false}, {1, true}, {2, false}, {2, true}};
#define ORDER_CASES ((int)(sizeof order_cases / sizeof *order_cases))

/* Each parameter is a bucket, all of one size. Rank r's backward comes by them in an order of its
 * own, and not by number r: the gradients are those of the parameters all the same. */
static void reduces_in_one_order(shard_group *world, void *context)
{
    const order_case *c = context;
    int rank = shard_group_rank(world), size = shard_group_size(world);
    SHARD_SCOPE
    {
        shard_tensor *p[PARAMETERS];
        shard_tensors *list = shard_tensors_create();
        for (int i = 0; i < PARAMETERS; i++) {
            char name[] = {(char)('a' + i), '.', 'p', 0};
            p[i] = shard_zeros(SHARD_SHAPE(SIZE), .requires_grad = true);
            check_ok(shard_tensors_add(list, name, p[i]));
        }
        shard_data_parallel *dp = c->stage ? NULL : shard_data_parallel_create(list, .bucket_mib = 1e-6);
        shard_optimizer *sgd = sgd_of_list(list, .lr = 1.0);
        if (c->stage)
            ck_assert_ptr_nonnull(shard_zero_optimizer(sgd, .stage = c->stage, .overlap = c->overlap, .bucket_mib = 1e-6));
        for (int step = 1; step <= 3; step++) {
            SHARD_SCOPE
            {
                shard_tensor *loss = shard_zeros(SHARD_SCALAR);
                for (int i = 0; i < PARAMETERS; i++) {
                    int at = (step + (rank % 2 ? i * 2 + rank : PARAMETERS - i + rank)) % PARAMETERS;
                    if (at != rank)
                        loss = shard_add(loss, shard_scale(shard_sum(p[at]), (rank + 1) * (1 << at)));
                }
                check_ok(shard_backward(loss));
            }
            check_ok(shard_step(sgd));
            for (int i = 0; i < PARAMETERS; i++) {
                double sum = size * (size + 1) / 2.0 - (i < size ? i + 1 : 0);
                ck_assert_double_eq_tol(value_at(p[i], SIZE - 1), -step * sum * (1 << i) / size, 1e-4);
            }
        }
        shard_optimizer_destroy(sgd);
        shard_data_parallel_destroy(dp);
    }
}

START_TEST(test_order)
{
    order_case c = order_cases[_i / 2];
    run_job(2 + _i % 2, reduces_in_one_order, &c);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("reduction order");
    TCase *tcase = test_case(suite, "order");
    tcase_add_loop_test(tcase, test_overlap, 0, OVERLAP_CASES);
    tcase_add_loop_test(tcase, test_order, 0, 2 * ORDER_CASES);
    return test_run(suite);
}
