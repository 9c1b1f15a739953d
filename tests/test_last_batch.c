/* Training over an epoch's uneven end, on any ranks, is that of one process: shard_last_batch. */
#include "support/job.h"
#include "support/options.h"

#include <math.h>

enum { FEATURES = 5, HIDDEN = 6, CLASSES = 7, BATCH = 12, EPOCHS = 2 };

typedef struct mesh_case {
    int data, model;
    bool gathered; /* each rank its own samples, gathered in the model group */
} mesh_case;

typedef struct run_case {
    int64_t samples;
    shard_last_batch last_batch;
    shard_dtype dtype;
} run_case;

static shard_tensor *inputs(const int64_t *samples, int64_t count, shard_dtype dtype)
{
    double values[BATCH * FEATURES];
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < FEATURES; j++)
            values[i * FEATURES + j] = 2 * sin((double)(samples[i] * FEATURES + j + 1) * 7.1);
    return shard_cast(shard_from_host(values, SHARD_SHAPE(count, FEATURES), .dtype = SHARD_FLOAT64), dtype);
}

static shard_tensor *labels(const int64_t *samples, int64_t count)
{
    int64_t values[BATCH];
    for (int64_t i = 0; i < count; i++)
        values[i] = samples[i] * 11 % CLASSES;
    return shard_from_host(values, SHARD_SHAPE(count), .dtype = SHARD_INT64);
}

static shard_module *make_model(const run_case *c, shard_group *group)
{
    shard_manual_seed(5);
    return shard_nn_sequential(shard_nn_linear(FEATURES, HIDDEN, .dtype = c->dtype), shard_nn_relu(),
                               shard_nn_parallel_linear(HIDDEN, CLASSES, group ? SHARD_SPLIT_COLUMN : SHARD_SPLIT_NONE, group,
                                                        .dtype = c->dtype));
}

static shard_group_sampler *sample(const run_case *c, shard_group *group)
{
    return shard_group_sampler_create(c->samples, .batch = BATCH, .group = group, .shuffle = true, .seed = 3,
                                      .last_batch = c->last_batch);
}

/* The plain mean over the whole of each step: with PAD of as many samples as `members` divide. */
static shard_module *train_alone(const run_case *c, int members)
{
    shard_module *model = make_model(c, NULL);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.1, .momentum = 0.9);
    shard_group_sampler *order = sample(c, NULL);
    int64_t all = c->last_batch == SHARD_LAST_BATCH_EXACT ? c->samples : (c->samples + members - 1) / members * members;
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (int64_t start = 0; start < all; start += BATCH) {
            int64_t batch[BATCH], count = 0;
            for (; count < BATCH && start + count < all; count++)
                batch[count] = shard_group_sampler_sample_at(order, epoch, (start + count) % c->samples);
            SHARD_SCOPE
            {
                shard_tensor *logits = shard_forward(model, inputs(batch, count, c->dtype));
                check_ok(shard_backward(shard_cross_entropy(logits, labels(batch, count))));
            }
            check_ok(shard_step(sgd));
        }
    shard_group_sampler_destroy(order);
    shard_optimizer_destroy(sgd);
    return model;
}

/* As a program does it. */
static shard_tensor *loss_of(const run_case *c, shard_tensor *logits, shard_tensor *target, shard_group *data,
                             const shard_group_sampler *sampler)
{
    if (c->last_batch == SHARD_LAST_BATCH_PAD)
        return shard_parallel_cross_entropy(logits, target);
    shard_tensor *loss = shard_parallel_cross_entropy(logits, target, .reduction = SHARD_REDUCTION_SUM);
    return shard_scale(loss, (double)shard_group_size(data) / (double)shard_group_sampler_last_batch_size(sampler));
}

static shard_module *train(const run_case *c, shard_mesh *mesh, shard_group *sampling)
{
    shard_group *group = shard_mesh_model_group(mesh), *data = shard_mesh_data_group(mesh);
    shard_module *model = make_model(c, group);
    shard_tensors *parameters = shard_parameters(model);
    shard_optimizer *sgd = sgd_of_list(shard_parameters(model), .lr = 0.1, .momentum = 0.9);
    shard_data_parallel *parallel = shard_data_parallel_create(parameters);
    shard_group_sampler *sampler = sample(c, sampling);
    int64_t batch[BATCH], count;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        check_ok(shard_group_sampler_set_epoch(sampler, epoch));
        while (shard_group_sampler_next(sampler, batch, &count)) {
            SHARD_SCOPE
            {
                shard_tensor *x = inputs(batch, count, c->dtype), *target = labels(batch, count);
                if (sampling != data) {
                    x = shard_gather_from_group(x, 0, group);
                    target = shard_gather_from_group(target, 0, group);
                }
                check_ok(shard_backward(loss_of(c, shard_forward(model, x), target, data, sampler)));
            }
            check_ok(shard_step(sgd));
        }
    }
    shard_group_sampler_destroy(sampler);
    shard_data_parallel_destroy(parallel);
    shard_optimizer_destroy(sgd);
    shard_tensors_destroy(parameters);
    return model;
}

static void compare(const run_case *c, shard_mesh *mesh, shard_group *sampling)
{
    shard_module *alone = train_alone(c, shard_group_size(sampling)), *together = train(c, mesh, sampling);
    shard_tensors *whole = shard_parameters(alone), *got = shard_parameters(together);
    shard_tensors *expected = shard_relocate_state_dict(got, whole);
    ck_assert_int_eq(shard_tensors_count(expected), 4);
    for (int64_t i = 0; i < 4; i++)
        check_close(shard_tensors_at(got, i), shard_tensors_at(expected, i), c->dtype == SHARD_FLOAT64 ? 1e-12 : 1e-6);
    shard_tensors_destroy(expected);
    shard_tensors_destroy(got);
    shard_tensors_destroy(whole);
    shard_module_destroy(together);
    shard_module_destroy(alone);
}

static void trains_alike(shard_group *world, void *context)
{
    const mesh_case *c = context;
    shard_mesh *mesh = shard_mesh_create(.model = c->model);
    ck_assert_int_eq(shard_group_size(shard_mesh_data_group(mesh)), c->data);
    static const int64_t ends[] = {0, 1, 3, 7};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        for (int exact = 0; exact < 2; exact++)
            for (int single = 0; single < 2; single++) {
                run_case run = {.samples = BATCH + ends[i],
                                .last_batch = exact ? SHARD_LAST_BATCH_EXACT : (shard_last_batch)0, /* PAD, if nothing is said */
                                .dtype = single ? SHARD_FLOAT32 : SHARD_FLOAT64};
                compare(&run, mesh, c->gathered ? world : shard_mesh_data_group(mesh));
            }
    shard_mesh_destroy(mesh);
}

START_TEST(test_uneven_ends)
{
    static mesh_case meshes[] = {{1, 1, false}, {2, 1, false}, {3, 1, false}, {4, 1, false},
                                 {2, 2, false}, {1, 2, true},  {2, 2, true}};
    run_job(meshes[_i].data * meshes[_i].model, trains_alike, &meshes[_i]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tail");
    TCase *tcase = test_case(suite, "tail");
    tcase_add_loop_test(tcase, test_uneven_ends, 0, 7);
    return test_run(suite);
}
