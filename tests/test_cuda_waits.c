/* That training leaves no time in which the GPU has nothing to do: the host queues a step and does not wait for it. */
#include "support/check.h"
#include "support/ranks.h"

#include "device/cuda/cuda.h"

#include <seen.h>
#include <shard/shard.h>

#include <stdlib.h>
#include <string.h>

static shard_device *gpu(void)
{
    shard_device *device = shard_device_open("cuda");
    ck_assert_msg(device != NULL, "%s", shard_last_error());
    return device;
}

/* ---- copies of pageable memory ---- */

enum { COUNT = SHARD_CUDA_STAGED / 4 };

static void fill(int32_t *values, int32_t first)
{
    for (int32_t i = 0; i < COUNT; i++)
        values[i] = first + i;
}

/* Also where the pinned memory is used more than once. */
START_TEST(stages_copies)
{
    enum { COPIES = 3 };
    shard_device *device = gpu();
    const size_t bytes = COUNT * sizeof(int32_t);
    int32_t *values = malloc(bytes), *expected = malloc(bytes);
    void *memory[COPIES];
    for (int i = 0; i < COPIES; i++) {
        int64_t waits = emulation_has_seen.waits;
        ck_assert_ptr_nonnull(memory[i] = device->ops->allocate(device, bytes));
        fill(values, 1000 * i);
        check_ok(device->ops->copy_in(device, memory[i], values, bytes));
        ck_assert_int_eq(emulation_has_seen.waits > waits, i > 0); /* each copy takes all of the pinned memory */
        memset(values, 0, bytes);
    }
    for (int i = 0; i < COPIES; i++) {
        check_ok(device->ops->copy_out(device, values, memory[i], bytes));
        fill(expected, 1000 * i);
        ck_assert(memcmp(values, expected, bytes) == 0);
        device->ops->release(device, memory[i], bytes);
    }
    free(values);
    free(expected);
}
END_TEST

/* ---- steps ---- */

enum { ROWS = 6, IN = 8, CLASSES = 20000 };

typedef struct trainee {
    shard_module *layer;
    shard_optimizer *optimizer;
    double rate; /* of the sampled classes; 0: all */
    bool margin, clips;
} trainee;

static void step(const trainee *t, int64_t number)
{
    int64_t label[ROWS];
    for (int64_t i = 0; i < ROWS; i++)
        label[i] = (number * 1009 + i * 77) % CLASSES;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(ROWS, IN), 0, 1, .device = gpu());
        shard_tensor *labels = shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64, .device = gpu());
        shard_tensor *here = shard_from_host(label, SHARD_SHAPE(ROWS), .dtype = SHARD_INT64, .device = shard_cpu());
        shard_tensor *sample =
            t->rate > 0 ? shard_sample_classes(here, shard_module_tensor(t->layer, "weight"), t->rate, 1, number) : NULL;
        shard_margin_logits_options margin = SHARD_MARGIN_LOGITS_OPTIONS_INIT;
        margin.m2 = 0.5;
        shard_tensor *loss = shard_cross_entropy(shard_forward(t->layer, x), labels, .sample = sample, .normalized = t->margin,
                                                 .margin = t->margin ? &margin : NULL);
        ck_assert_msg(loss != NULL, "%s", shard_last_error());
        check_ok(shard_backward(loss));
    }
    if (t->clips)
        check_ok(shard_clip_grad_norm(t->optimizer, 1, NULL));
    check_ok(shard_step(t->optimizer));
    shard_optimizer_zero_grad(t->optimizer);
}

static void check_steps(trainee *t)
{
    for (int64_t number = 0; number < 4; number++) {
        int64_t waits = emulation_has_seen.waits;
        step(t, number);
        if (number > 0) /* the first one makes states and plans */
            ck_assert_int_eq(emulation_has_seen.waits, waits);
    }
    check_ok(shard_synchronize(gpu()));
    shard_optimizer_destroy(t->optimizer);
    shard_module_destroy(t->layer);
}

START_TEST(linear)
{
    trainee t = {.layer = shard_nn_linear(IN, CLASSES), .clips = true};
    t.optimizer = shard_adamw(t.layer, .lr = 1e-3);
    check_steps(&t);
}
END_TEST

START_TEST(classifier)
{
    trainee t = {.layer = shard_nn_parallel_classifier(IN, CLASSES, NULL), .clips = _i > 0};
    t.optimizer = shard_sgd(t.layer, .lr = 0.1, .momentum = 0.9);
    check_steps(&t);
}
END_TEST

/* The list of the sampled classes has more than 64 KiB. */
START_TEST(sampled_classes)
{
    trainee t = {.layer = shard_nn_parallel_classifier(IN, CLASSES, NULL, .bias = false), .rate = 0.5, .margin = _i > 0};
    t.optimizer = shard_sgd(t.layer, .lr = 0.1, .momentum = 0.9);
    check_steps(&t);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("cuda_waits");
    TCase *all = test_case(suite, "all");
    tcase_add_test(all, stages_copies);
    tcase_add_test(all, linear);
    tcase_add_loop_test(all, classifier, 0, 2);
    tcase_add_loop_test(all, sampled_classes, 0, 2);
    return test_run(suite);
}
