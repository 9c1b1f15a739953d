/*
 * What shard_zero_optimizer saves: a rank's memory, in torch's tutorial's model (20 linear layers of
 * one size), is the bytes that its stage needs, and at most 5% more.
 */
#include "support/job.h"

#include "comm/comm.h"
#include "support/options.h"

enum { LAYERS = 20, WIDTH = 96 };

static const double layer_bytes = 4.0 * (WIDTH * WIDTH + WIDTH), all_bytes = LAYERS * 4.0 * (WIDTH * WIDTH + WIDTH);

static shard_module *make_model(void)
{
    shard_module *layers[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        layers[i] = shard_nn_linear(WIDTH, WIDTH);
    return shard_nn_sequential_of(LAYERS, layers);
}

static double now(void)
{
    return (double)shard_get_memory_stats(shard_device_open(NULL)).current;
}

static double peak_of(shard_memory_kind kind)
{
    return (double)shard_get_memory_by_kind(shard_device_open(NULL), kind).peak;
}

static void back(shard_module *model, shard_group *world, int turn)
{
    SHARD_SCOPE
    {
        shard_tensor *x = made_up(SHARD_SHAPE(2, WIDTH), (uint64_t)(10 * turn + shard_group_rank(world)), SHARD_FLOAT32);
        check_ok(shard_backward(shard_mean(shard_forward(model, x))));
    }
}

/* Whether there is a GPU for each rank. */
static bool beside(const shard_group *world)
{
    return world->device_transport && world->device_transport->wait;
}

#define check_bytes(bytes, needed)                                                                                               \
    do {                                                                                                                         \
        ck_assert_double_le(bytes, 1.05 * (needed));                                                                             \
        ck_assert_double_ge(bytes, 0.97 * (needed));                                                                             \
    } while (0)

/* Parameters, gradients and one state, of which each stage shares one more out. */
static void needs_its_share(shard_group *world, void *context)
{
    int stage = *(int *)context;
    double ranks = shard_group_size(world), before = now();
    double values = stage == 3 ? all_bytes / ranks : all_bytes, gradients = stage >= 2 ? all_bytes / ranks : all_bytes;
    double state = stage >= 1 ? all_bytes / ranks : all_bytes;
    shard_module *model = make_model();
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.01, .momentum = 0.9);
    shard_data_parallel *dp = NULL;
    if (stage) {
        shard_reset_peak_memory(shard_device_open(NULL));
        ck_assert_ptr_nonnull(shard_zero_optimizer(sgd, .stage = stage, .bucket_mib = layer_bytes / 1048576));
        check_bytes(now() - before, values + (stage == 1 ? gradients : 0));
        if (stage == 3) /* no rank has ever had the whole model: a layer at a time was made */
            ck_assert_double_le(peak_of(SHARD_MEMORY_PARAMETERS), 1.05 * (values + layer_bytes));
    } else {
        shard_tensors *list = shard_parameters(model);
        dp = shard_data_parallel_create(list);
        shard_tensors_destroy(list);
    }
    shard_reset_peak_memory(shard_device_open(NULL));
    for (int step = 0; step < 3; step++) {
        for (int turn = 0; turn < 2; turn++) { /* what micro-batches add up in is no more */
            back(model, world, turn);
            check_bytes(now() - before, values + gradients + (step ? state : 0));
        }
        check_ok(shard_step(sgd));
        check_bytes(now() - before, values + gradients + state);
    }
    /* On their way: the gradients of one layer and, in stage 3, its values; where sums and
     * gathers go on beside, those of the next one, too. */
    double most = (stage >= 2 ? stage - 1 : 0) * (beside(world) ? 2 : 1);
    ck_assert_double_le(peak_of(SHARD_MEMORY_BUCKETS), 1.05 * most * layer_bytes);
    ck_assert_double_ge(peak_of(SHARD_MEMORY_BUCKETS), most > 0 ? layer_bytes : 0);
    check_bytes(peak_of(SHARD_MEMORY_OPTIMIZER_STATE), state);
    shard_optimizer_destroy(sgd);
    shard_data_parallel_destroy(dp);
    shard_module_destroy(model);
    ck_assert_double_eq(now(), before);
}

START_TEST(test_share)
{
    static const int ranks[] = {2, 4, 8};
    int stage = _i % 4;
    run_job(ranks[_i / 4], needs_its_share, &stage);
}
END_TEST

/* Nor where the replicas have values of their own, which are compared. */
static void compares_in_parts(shard_group *world, void *context)
{
    (void)context;
    shard_module *model = make_model();
    shard_tensors *list = shard_parameters(model);
    shard_reset_peak_memory(shard_device_open(NULL));
    shard_data_parallel *dp =
        shard_data_parallel_create(list, .stage = 3, .init_sync = false, .bucket_mib = layer_bytes / 1048576);
    ck_assert_msg(dp != NULL, "%s", shard_last_error());
    ck_assert_double_le(peak_of(SHARD_MEMORY_PARAMETERS), 1.05 * (all_bytes / shard_group_size(world) + layer_bytes));
    ck_assert_double_le(peak_of(SHARD_MEMORY_WORKSPACE), layer_bytes);
    shard_data_parallel_destroy(dp);
    shard_tensors_destroy(list);
    shard_module_destroy(model);
}

START_TEST(test_compares_in_parts)
{
    run_job(4, compares_in_parts, NULL);
}
END_TEST

/* ---- modules that use what is their children's ---- */

enum { BLOCKS = 6, CHANNELS = 16 };

static const double block_bytes = 4.0 * (9 * CHANNELS * CHANNELS + 2 * CHANNELS);

/* As a ResNet's: the batch norm is used without its shard_forward. */
static shard_tensor *fused_forward(shard_module *block, shard_tensor *x)
{
    shard_tensor *y = shard_forward(shard_module_child(block, "conv"), x);
    return shard_nn_batch_norm_relu(shard_module_child(block, "norm"), y, NULL);
}

/* Neither child's shard_forward is used. */
static shard_tensor *reading_forward(shard_module *block, shard_tensor *x)
{
    const shard_module *norm = shard_module_child(block, "norm");
    shard_tensor *y = shard_conv2d(x, shard_module_tensor(shard_module_child(block, "conv"), "weight"), NULL, .padding = 1);
    return shard_batch_norm(y, shard_module_tensor(norm, "running_mean"), shard_module_tensor(norm, "running_var"),
                            shard_module_tensor(norm, "weight"), shard_module_tensor(norm, "bias"), .training = true,
                            .momentum = 0.1, .eps = 1e-5);
}

static const shard_module_type block_types[] = {{.name = "fused block", .forward = fused_forward},
                                                {.name = "reading block", .forward = reading_forward}};

static shard_module *make_blocks(const shard_module_type *type)
{
    shard_module *blocks[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = shard_module_create(type, NULL);
        check_ok(shard_module_add_child(blocks[i], "conv", shard_nn_conv2d(CHANNELS, CHANNELS, 3, .padding = 1, .bias = false)));
        check_ok(shard_module_add_child(blocks[i], "norm", shard_nn_batch_norm(CHANNELS)));
    }
    return shard_nn_sequential_of(BLOCKS, blocks);
}

static void check_buckets(double most)
{
    shard_memory_stats memory = shard_get_memory_by_kind(shard_device_open(NULL), SHARD_MEMORY_BUCKETS);
    ck_assert_double_le((double)memory.current, 1.05 * most);
    ck_assert_double_le((double)memory.peak, 1.05 * most);
    ck_assert_double_ge((double)memory.peak, block_bytes);
}

/* Of the blocks' values one is whole at a time, where gathers go on beside the next one, too. */
static void lets_blocks_go(shard_group *world, void *context)
{
    shard_module *model = make_blocks(context);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.01);
    ck_assert_ptr_nonnull(shard_zero_optimizer(sgd, .stage = 3, .bucket_mib = block_bytes / 1048576));
    double most = (beside(world) ? 2 : 1) * block_bytes;
    for (int step = 0; step < 3; step++) {
        SHARD_SCOPE
        {
            shard_tensor *x = made_up(SHARD_SHAPE(2, 4, 4, CHANNELS), (uint64_t)step, SHARD_FLOAT32);
            shard_reset_peak_memory(shard_device_open(NULL));
            SHARD_NO_GRAD
            ck_assert_msg(shard_forward(model, x) != NULL, "%s", shard_last_error());
            check_buckets(most);
            shard_reset_peak_memory(shard_device_open(NULL));
            shard_tensor *y = shard_forward(model, x);
            check_buckets(most);
            check_ok(shard_backward(shard_mean(y)));
            check_buckets(2 * most); /* gradients, too */
        }
        check_ok(shard_step(sgd));
    }
    shard_optimizer_destroy(sgd);
    shard_module_destroy(model);
}

START_TEST(test_blocks)
{
    run_job(2, lets_blocks_go, (void *)&block_types[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("zero memory");
    TCase *tcase = test_case(suite, "memory");
    tcase_add_loop_test(tcase, test_share, 0, 12);
    tcase_add_loop_test(tcase, test_blocks, 0, 2);
    tcase_add_test(tcase, test_compares_in_parts);
    return test_run(suite);
}
