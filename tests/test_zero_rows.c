/*
 * Weights larger than a bucket, under shard_zero_optimizer: their rows pass by in blocks, with the
 * same result as without, and memory for one block at a time.
 */
#include "support/host.h"
#include "support/zero.h"

#include "comm/comm.h"
#include "op/rows.h"
#include "support/options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FEATURES = 5, IN = 17, CLASSES = 20011, ROWS = 14 };

typedef struct rows_case {
    int data, model;
    shard_split split;
    zero_way options;
    shard_dtype autocast; /* float32: off */
    bool adds;            /* several micro-batches a step */
} rows_case;

/* 0.1 MiB is less than a block of 4096 rows; of 0.7 there are two and a half in a bucket. */
static rows_case cases[] = {
    {1, 1, SHARD_SPLIT_NONE, {.stage = 3, .bucket_mib = 0.1}, 0, true},
    {2, 1, SHARD_SPLIT_NONE, {.stage = 2, .bucket_mib = 0.1}, 0, false},
    {3, 1, SHARD_SPLIT_NONE, {.stage = 2, .bucket_mib = 0.7}, 0, true},
    {3, 1, SHARD_SPLIT_NONE, {.stage = 3, .bucket_mib = 0.1}, 0, true},
    {2, 1, SHARD_SPLIT_NONE, {.stage = 3, .bucket_mib = 0.7, .partition = SHARD_ZERO_WHOLE}, 0, true},
    {3, 1, SHARD_SPLIT_NONE, {.stage = 2, .bucket_mib = 0.1, .partition = SHARD_ZERO_WHOLE, .overlap = true}, 0, false},
    {4, 1, SHARD_SPLIT_NONE, {.stage = 3, .bucket_mib = 0.1, .overlap = true}, 0, false},
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 2, .bucket_mib = 0.1}, 0, true},
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 3, .bucket_mib = 0.1}, 0, true},
    {2, 2, SHARD_SPLIT_ROW, {.stage = 3, .bucket_mib = 0.1}, 0, true},
    {3, 2, SHARD_SPLIT_COLUMN, {.stage = 3, .bucket_mib = 0.1, .partition = SHARD_ZERO_WHOLE}, 0, false},
    {2, 1, SHARD_SPLIT_NONE, {.stage = 2, .bucket_mib = 0.1}, SHARD_BFLOAT16, true},
    {2, 1, SHARD_SPLIT_NONE, {.stage = 3, .bucket_mib = 0.1}, SHARD_BFLOAT16, true},
    {2, 2, SHARD_SPLIT_COLUMN, {.stage = 3, .bucket_mib = 0.1}, SHARD_FLOAT16, false},
};
#define CASES ((int)(sizeof cases / sizeof *cases))

static shard_module *make_model(shard_split split, shard_group *group)
{
    shard_manual_seed(3);
    shard_module *model = shard_nn_sequential(shard_nn_linear(FEATURES, IN), shard_nn_gelu(), shard_nn_linear(IN, IN),
                                              shard_nn_parallel_linear(IN, CLASSES, split, group));
    ck_assert_msg(model != NULL, "%s", shard_last_error());
    return model;
}

static void back(shard_module *model, shard_group *group, shard_dtype autocast, int turn)
{
    int64_t labels[ROWS];
    int last = shard_module_child_count(model) - 1, rank = shard_group_rank(shard_world());
    for (int i = 0; i < ROWS; i++)
        labels[i] = (rank * ROWS + i + turn) * 1009 % CLASSES;
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), (uint64_t)(100 * turn + rank), SHARD_FLOAT32), *loss = NULL;
        shard_tensor *target = shard_from_host(labels, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64);
        SHARD_AUTOCAST(autocast)
        {
            for (int i = 0; i < last; i++)
                x = shard_forward(shard_module_child_at(model, i), x);
            x = shard_forward(shard_module_child_at(model, last), shard_gather_from_group(x, 0, group));
            loss = shard_parallel_cross_entropy(x, shard_gather_from_group(target, 0, group));
        }
        check_ok(shard_backward(loss));
    }
}

static bool is_exact(const shard_group *world)
{
    return strcmp(shard_group_transport(world), "shm") == 0 && !getenv("SHARD_DEVICE");
}

/* How far the steps may be off: those of 16 bits differ where a sum over classes is rounded. */
static double bound(const rows_case *c, const shard_group *world)
{
    if (c->autocast)
        return 2e-4;
    return is_exact(world) ? 0 : 1e-6;
}

static void equals_the_optimizer(shard_group *world, void *context)
{
    const rows_case *c = context;
    shard_dtype autocast = c->autocast ? c->autocast : SHARD_FLOAT32;
    shard_mesh *mesh = shard_mesh_create(.model = c->model);
    shard_group *group = shard_mesh_model_group(mesh);
    shard_module *a = make_model(c->split, group), *b = make_model(c->split, group);
    shard_tensors *list = shard_parameters(a);
    shard_data_parallel *dp = shard_data_parallel_create(list);
    shard_tensors_destroy(list);
    shard_optimizer *alone = sgd_of_list(shard_parameters(a), .lr = 0.2, .momentum = 0.9);
    shard_optimizer *shared = zero_with(sgd_of_list(shard_parameters(b), .lr = 0.2, .momentum = 0.9), c->options);
    ck_assert_msg(dp && shared, "%s", shard_last_error());
    const shard_rows *rows = shard_module_tensor(shard_module_child_at(b, 3), "weight")->leaf->rows;
    ck_assert_int_eq(rows != NULL, c->data > 1);
    ck_assert_int_eq(rows && rows->values, c->data > 1 && c->options.stage == 3);
    for (int step = 0; step < (getenv("SHARD_DEVICE") ? 2 : 4); step++) { /* emulation takes its time */
        for (int turn = 0; turn < (c->adds ? 2 : 1); turn++) {
            back(a, group, autocast, 2 * step + turn);
            back(b, group, autocast, 2 * step + turn);
        }
        check_ok(shard_step(alone));
        check_ok(shard_step(shared));
        /* What micro-batches add up to is averaged once here, and each of them there. */
        check_models_equal(a, b, c->adds ? fmax(bound(c, world), 1e-6) : bound(c, world));
    }
    SHARD_SCOPE SHARD_NO_GRAD
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), 5, SHARD_FLOAT32);
        check_close(shard_forward(a, x), shard_forward(b, x), fmax(10 * bound(c, world), 1e-6));
    }
    shard_optimizer_destroy(alone);
    shard_optimizer_destroy(shared);
    shard_data_parallel_destroy(dp);
    shard_module_destroy(a);
    shard_module_destroy(b);
    shard_mesh_destroy(mesh);
}

START_TEST(test_equals)
{
    run_job(cases[_i].data * cases[_i].model, equals_the_optimizer, &cases[_i]);
}
END_TEST

/* ---- memory ---- */

enum { MANY = 60000, WIDE = 32 };

static shard_memory_stats stats(void)
{
    return shard_get_memory_stats(shard_device_open(NULL));
}

/* Values, gradient and two states of a layer that is all there is, in its bytes: the most that
 * a step needs, of which each stage shares one more out. */
static void needs_its_share(shard_group *world, void *context)
{
    double layer = 4.0 * MANY * (WIDE + 1), block = 4.0 * SHARD_ROW_BLOCK * WIDE, ranks = shard_group_size(world),
           least = INFINITY;
    (void)context;
    for (int stage = 0; stage < 4; stage++) {
        int64_t before = stats().current;
        shard_reset_peak_memory(shard_device_open(NULL));
        shard_module *model = shard_nn_linear(WIDE, MANY);
        shard_optimizer *adam = adamw_of_list(shard_parameters(model), .lr = 0.01);
        shard_tensors *list = shard_parameters(model);
        shard_data_parallel *dp = NULL;
        if (stage)
            ck_assert_ptr_nonnull(shard_zero_optimizer(adam, .stage = stage, .bucket_mib = 0.1));
        else
            dp = shard_data_parallel_create(list);
        shard_tensors_destroy(list);
        if (stage == 3) /* nor are the values made as a whole */
            ck_assert_double_le((double)(stats().peak - before), 1.05 * layer / ranks + 2 * block + 4.0 * MANY);
        for (int step = 0; step < 3; step++) {
            if (step == 2) /* all there is has been made */
                shard_reset_peak_memory(shard_device_open(NULL));
            SHARD_SCOPE
            {
                uint64_t seed = (uint64_t)(10 * step + shard_group_rank(world));
                shard_tensor *x = made_up_leaf(SHARD_SHAPE(1, WIDE), seed, SHARD_FLOAT32);
                shard_tensor *y = shard_forward(model, x), *loss = shard_sum(y);
                shard_release(y);
                check_ok(shard_backward(loss));
            }
            check_ok(shard_step(adam));
        }
        double peak = (double)(stats().peak - before) / layer, under_way = 2 * block / layer;
        double values = stage == 3 ? 1 / ranks : 1, gradients = stage >= 2 ? 1 / ranks : 1, state = stage ? 2 / ranks : 2;
        /* y and its gradient, of one row; where collectives go on beside, a block more of each */
        double needed = values + gradients + state + 2.0 / WIDE;
        double passing = (stage < 2 ? 0 : stage == 2 ? 2 : 4) * (under_way + 1.0 / (WIDE + 1)); /* the bias is whole */
        ck_assert_msg(peak >= needed - 3.0 / WIDE && peak <= 1.03 * needed + passing,
                      "stage %d needs %.3f times the layer, and takes %.3f", stage, needed, peak);
        ck_assert_double_lt(peak, least);
        least = peak;
        shard_optimizer_destroy(adam);
        shard_data_parallel_destroy(dp);
        shard_module_destroy(model);
        ck_assert_int_eq(stats().current, before);
    }
}

START_TEST(test_memory)
{
    run_job(2 + 2 * _i, needs_its_share, NULL);
}
END_TEST

/* ---- what does not pass by ---- */

/* How the weight is used: by two layers, by others than linear, after its turn in backward, not at all,
 * not by each rank. */
typedef enum use { TWICE, BY_MATMUL, LATE, NEVER, NOT_ON_ALL, USES } use;

static shard_tensor *use_weight(shard_tensor *weight, use how, int turn)
{
    int rank = shard_group_rank(shard_world());
    shard_tensor *x = made_up(SHARD_SHAPE(3, IN), (uint64_t)(10 * turn + rank), SHARD_FLOAT32);
    if (how == NEVER || (how == NOT_ON_ALL && (rank + turn) % 2))
        return shard_zeros(SHARD_SCALAR);
    if (how == BY_MATMUL)
        return shard_sum(shard_matmul(x, shard_transpose(weight, 0, 1)));
    shard_tensor *y = shard_linear(x, weight, NULL);
    return how == TWICE ? shard_add(shard_sum(y), shard_mean(shard_linear(shard_scale(x, 0.5), weight, NULL))) : shard_sum(y);
}

static void falls_back(shard_group *world, void *context)
{
    use how = (use)(*(int *)context % USES);
    int stage = 2 + *(int *)context / USES;
    shard_tensor *p[2][2];
    shard_optimizer *optimizer[2];
    shard_data_parallel *dp = NULL;
    SHARD_SCOPE
    {
        for (int i = 0; i < 2; i++) {
            shard_tensors *list = shard_tensors_create();
            p[i][0] = made_up_leaf(SHARD_SHAPE(CLASSES, IN), 1, SHARD_FLOAT32);
            p[i][1] = made_up_leaf(SHARD_SHAPE(IN), 2, SHARD_FLOAT32);
            bool first = how != NOT_ON_ALL; /* then its turn is after the other's */
            check_ok(shard_tensors_add(list, first ? "weight" : "other", p[i][first ? 0 : 1]));
            check_ok(shard_tensors_add(list, first ? "other" : "weight", p[i][first ? 1 : 0]));
            if (i == 0)
                dp = shard_data_parallel_create(list);
            optimizer[i] = sgd_of_list(list, .lr = 0.1, .momentum = 0.9);
        }
        ck_assert_ptr_nonnull(shard_zero_optimizer(optimizer[1], .stage = stage, .bucket_mib = 0.1));
        for (int step = 0; step < 3; step++)
            for (int i = 0; i < 2; i++) {
                SHARD_SCOPE
                {
                    shard_tensor *late = how == LATE || how == NOT_ON_ALL ? shard_sum(shard_mul(p[i][1], p[i][1])) : NULL;
                    shard_tensor *y = use_weight(p[i][0], how, step);
                    check_ok(shard_backward(shard_add(y, late ? late : shard_sum(shard_mul(p[i][1], p[i][1])))));
                }
                check_ok(shard_step(optimizer[i]));
            }
        check_close(p[0][0], p[1][0], is_exact(world) ? 0 : 1e-6);
        check_close(p[0][1], p[1][1], is_exact(world) ? 0 : 1e-6);
        shard_optimizer_destroy(optimizer[0]);
        shard_optimizer_destroy(optimizer[1]);
        shard_data_parallel_destroy(dp);
        ck_assert_ptr_null(p[1][0]->leaf->rows);
        SHARD_SCOPE /* and is a weight as any then */
            check_close(shard_linear(made_up(SHARD_SHAPE(2, IN), 5, SHARD_FLOAT32), p[1][0], NULL),
                        shard_linear(made_up(SHARD_SHAPE(2, IN), 5, SHARD_FLOAT32), p[0][0], NULL), is_exact(world) ? 0 : 1e-6);
    }
}

START_TEST(test_falls_back)
{
    run_job(3, falls_back, &(int){_i});
}
END_TEST

/* Between other layers; and frozen in the end. */
static void stands_in_the_middle(shard_group *world, void *context)
{
    int stage = *(int *)context;
    shard_module *model[2];
    shard_optimizer *optimizer[2];
    shard_data_parallel *dp = NULL;
    for (int i = 0; i < 2; i++) {
        shard_manual_seed(5);
        model[i] = shard_nn_sequential(shard_nn_linear(IN, IN), shard_nn_linear(IN, CLASSES), shard_nn_relu(),
                                       shard_nn_linear(CLASSES, 3), shard_nn_linear(3, 3));
        optimizer[i] = sgd_of_list(shard_parameters(model[i]), .lr = 0.1);
    }
    shard_tensors *list = shard_parameters(model[0]);
    dp = shard_data_parallel_create(list);
    shard_tensors_destroy(list);
    ck_assert_ptr_nonnull(shard_zero_optimizer(optimizer[1], .stage = stage, .bucket_mib = 0.1));
    for (int step = 0; step < 3; step++)
        for (int i = 0; i < 2; i++) {
            shard_set_requires_grad(shard_module_tensor(shard_module_child_at(model[i], 1), "weight"), step < 2);
            SHARD_SCOPE
            {
                shard_tensor *x = made_up(SHARD_SHAPE(ROWS, IN), (uint64_t)(10 * step + shard_group_rank(world)), SHARD_FLOAT32);
                check_ok(shard_backward(shard_mean(shard_forward(model[i], x))));
            }
            check_ok(shard_step(optimizer[i]));
        }
    check_models_equal(model[0], model[1], is_exact(world) ? 0 : 1e-6);
    for (int i = 0; i < 2; i++) {
        shard_optimizer_destroy(optimizer[i]);
        shard_module_destroy(model[i]);
    }
    shard_data_parallel_destroy(dp);
}

START_TEST(test_middle)
{
    run_job(3, stands_in_the_middle, &(int){2 + _i});
}
END_TEST

/* A 16-bit weight of another type than autocast's is cast as a whole, as any. */
static void is_of_16_bits(shard_group *world, void *context)
{
    (void)world;
    shard_dtype autocast = *(shard_dtype *)context;
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_full(SHARD_SHAPE(CLASSES, IN), 0.25, .dtype = SHARD_BFLOAT16, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "weight", weight));
        shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(list, .lr = 0.5), .stage = 3, .bucket_mib = 0.1);
        ck_assert_ptr_nonnull(weight->leaf->rows);
        SHARD_AUTOCAST(autocast)
        {
            shard_tensor *y = shard_linear(shard_ones(SHARD_SHAPE(1, IN)), weight, NULL);
            ck_assert_msg(y != NULL, "%s", shard_last_error());
            ck_assert_int_eq(shard_tensor_dtype(y), autocast);
            ck_assert_double_eq(value_at(y, CLASSES - 1), 0.25 * IN);
            check_ok(shard_backward(shard_sum(y)));
        }
        check_ok(shard_step(sgd));
        ck_assert_double_eq(value_at(weight, 7), 0.25 - 0.5);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_16_bits)
{
    run_job(2, is_of_16_bits, &(shard_dtype){_i ? SHARD_FLOAT16 : SHARD_BFLOAT16});
}
END_TEST

/* The sum over the blocks of rows is rounded once: each later block adds less than half a unit of the first one's. */
static void rounds_once(shard_group *world, void *context)
{
    (void)world;
    (void)context;
    static float dy[CLASSES];
    dy[0] = 1;
    for (int i = 1; i < 4; i++) /* the last block has the rest of the rows */
        dy[i * SHARD_ROW_BLOCK] = 0x1.8p-9f;
    SHARD_SCOPE
    {
        shard_tensor *weight = shard_ones(SHARD_SHAPE(CLASSES, IN), .dtype = SHARD_BFLOAT16, .requires_grad = true);
        shard_tensors *list = shard_tensors_create();
        check_ok(shard_tensors_add(list, "weight", weight));
        shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(list, .lr = 0.5), .stage = 3, .bucket_mib = 0.1);
        ck_assert_ptr_nonnull(weight->leaf->rows);
        shard_tensor *x = shard_ones(SHARD_SHAPE(1, IN), .dtype = SHARD_BFLOAT16, .requires_grad = true);
        check_ok(shard_backward_from(shard_linear(x, weight, NULL),
                                     shard_cast(shard_from_host(dy, SHARD_SHAPE(1, CLASSES)), SHARD_BFLOAT16)));
        ck_assert_double_eq(value_at(shard_grad(x), 0), 1.0078125); /* of 1.0087890625 */
        shard_optimizer_zero_grad(sgd);
        shard_optimizer_destroy(sgd);
    }
}

START_TEST(test_rounds_once)
{
    run_job(2, rounds_once, NULL);
}
END_TEST

/* What is updated during backward keeps the values that it still needs, though it is not reached. */
static void is_frozen_under_overlap(shard_group *world, void *context)
{
    shard_module *model = shard_nn_sequential(shard_nn_linear(3, 3), shard_nn_linear(3, 3), shard_nn_linear(3, 3));
    shard_optimizer *sgd = shard_zero_optimizer(sgd_of_list(shard_parameters(model), .lr = 0.1), .stage = *(int *)context,
                                                .bucket_mib = 1e-6, .overlap = true);
    ck_assert_ptr_nonnull(sgd);
    double *before = NULL;
    for (int step = 0; step < 2; step++) {
        if (step == 1) { /* the values of a partitioned weight are there for a use */
            SHARD_SCOPE
            {
                before = values_of(shard_add_scalar(shard_module_tensor(shard_module_child_at(model, 1), "weight"), 0));
            }
        }
        shard_set_requires_grad(shard_module_tensor(shard_module_child_at(model, 1), "weight"), step == 0);
        shard_set_requires_grad(shard_module_tensor(shard_module_child_at(model, 1), "bias"), step == 0);
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(2, 3), (uint64_t)shard_group_rank(world), SHARD_FLOAT32);
            check_ok(shard_backward(shard_sum(shard_forward(model, x))));
        }
        check_ok(shard_step(sgd));
    }
    SHARD_SCOPE
    {
        double *after = values_of(shard_add_scalar(shard_module_tensor(shard_module_child_at(model, 1), "weight"), 0));
        ck_assert_mem_eq(before, after, 9 * sizeof *before);
        free(after);
    }
    free(before);
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
}

START_TEST(test_frozen_under_overlap)
{
    run_job(2, is_frozen_under_overlap, &(int){1 + _i});
}
END_TEST

/* ---- failure ---- */

/* In the middle of each pass of blocks, of four: forward, the input's gradient, the weight's. */
enum { FAILURES = 3 };

static shard_device_ops failing;
static const shard_device_ops *working;
static int until_failure;

static bool fails_now(void)
{
    return --until_failure == 0;
}

static shard_status failing_linear(shard_device *device, const shard_linear_shape *shape, const void *x, const void *weight,
                                   const void *bias, void *y, shard_dtype dtype)
{
    if (shape->out > IN && fails_now())
        return shard_error(SHARD_ERROR_DEVICE, "a product that failed");
    return working->linear(device, shape, x, weight, bias, y, dtype);
}

static shard_status failing_matmul(shard_device *device, const shard_matmul_shape *shape, const void *a, const void *b, void *c,
                                   shard_dtype dtype)
{
    if ((shape->k > IN || shape->m > IN) && fails_now())
        return shard_error(SHARD_ERROR_DEVICE, "a product that failed");
    return working->matmul(device, shape, a, b, c, dtype);
}

static void fails_jointly(shard_group *world, void *context)
{
    int stage = 2 + *(int *)context / FAILURES, pass = *(int *)context % FAILURES;
    shard_module *model = make_model(SHARD_SPLIT_NONE, NULL);
    shard_optimizer *sgd =
        shard_zero_optimizer(sgd_of_list(shard_parameters(model), .lr = 0.1), .stage = stage, .bucket_mib = 0.1);
    ck_assert_ptr_nonnull(sgd);
    back(model, NULL, SHARD_FLOAT32, 0);
    check_ok(shard_step(sgd));
    shard_device *device = shard_device_open(NULL);
    working = device->ops;
    failing = *working;
    failing.linear = failing_linear;
    failing.matmul = failing_matmul;
    if (shard_group_rank(world) == 1) {
        /* Stage 2 has all values, so that its products with them are one each. */
        until_failure = stage == 3 ? 3 + 4 * pass : pass < 2 ? 1 + pass : 4;
        device->ops = &failing;
    }
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(ROWS, FEATURES), 3, SHARD_FLOAT32);
        shard_tensor *y = shard_forward(model, x);
        if (y)
            shard_backward(shard_sum(y));
        shard_step(sgd);
    }
    device->ops = working;
    check_joint_error(SHARD_ERROR_DEVICE, "rank 1: a product that failed*");
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
}

START_TEST(test_fails_jointly)
{
    run_job(3, fails_jointly, &(int){_i});
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero rows");
    TCase *tcase = test_case(suite, "rows");
    tcase_add_loop_test(tcase, test_equals, 0, CASES);
    tcase_add_loop_test(tcase, test_memory, 0, 2);
    tcase_add_loop_test(tcase, test_falls_back, 0, 2 * USES - 1); /* in stage 3 who does not use it misses its gather */
    tcase_add_loop_test(tcase, test_middle, 0, 2);
    tcase_add_loop_test(tcase, test_16_bits, 0, 2);
    tcase_add_test(tcase, test_rounds_once);
    tcase_add_loop_test(tcase, test_frozen_under_overlap, 0, 3);
    tcase_add_loop_test(tcase, test_fails_jointly, 0, 2 * FAILURES);
    return test_run(suite);
}
