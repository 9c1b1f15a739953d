/*
 * Times a training step of a last layer, shard_nn_parallel_classifier against shard_nn_parallel_linear:
 *
 *     bench_head [classes [features [adam]]]
 *
 * Forward, loss, backward with the features' gradient, and a step of SGD with momentum (or Adam), of float32 on all threads.
 * The two take turns; the shortest step of each counts. The limit is what the machine needs for the step's four products at the
 * rate of one that fits into the cache.
 */
#include "clock.h"

#include "device/device.h"

#include <shard/shard.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 5 };

static void check(bool well)
{
    if (well)
        return;
    fprintf(stderr, "bench_head: %s\n", shard_last_error());
    exit(1);
}

typedef struct head {
    shard_module *layer;
    shard_optimizer *optimizer;
} head;

static head head_make(bool classifier, bool adam, int64_t features, int64_t classes)
{
    head h = {classifier ? shard_nn_parallel_classifier(features, classes, NULL)
                         : shard_nn_parallel_linear(features, classes, SHARD_SPLIT_COLUMN, NULL)};
    check(h.layer);
    h.optimizer = adam ? shard_adam(h.layer, .lr = 1e-3) : shard_sgd(h.layer, .lr = 0.1, .momentum = 0.9);
    check(h.optimizer);
    return h;
}

static double step(const head *h, int64_t batch, int64_t features, int64_t classes)
{
    int64_t *label = malloc((size_t)batch * sizeof *label);
    double seconds = 0;
    check(label != NULL);
    for (int64_t i = 0; i < batch; i++)
        label[i] = i * 104729 % classes;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(batch, features), 0.0, 1.0);
        shard_tensor *target = shard_from_host(label, SHARD_SHAPE(batch), .dtype = SHARD_INT64);
        shard_set_requires_grad(x, true);
        double before = now();
        check(shard_backward(shard_cross_entropy(shard_forward(h->layer, x), target)) == SHARD_OK);
        check(shard_step(h->optimizer) == SHARD_OK);
        seconds = now() - before;
    }
    free(label);
    return seconds;
}

/* FLOP/s of a product of the batch whose operands fit into the cache. */
static double rate(int64_t batch, int64_t features)
{
    shard_matmul_shape shape = {.batch = 1, .m = batch, .n = 768, .k = features, .transpose_b = true};
    shard_device *cpu = shard_cpu();
    size_t sizes[3] = {(size_t)(batch * features) * 4, (size_t)(768 * features) * 4, (size_t)(batch * 768) * 4};
    void *memory[3];
    double best = 1e9;
    for (int i = 0; i < 3; i++) {
        memory[i] = cpu->ops->allocate(cpu, sizes[i]);
        check(memory[i] != NULL);
        memset(memory[i], 0x3c, sizes[i]);
    }
    for (int run = 0; run < 50; run++) {
        double before = now();
        check(cpu->ops->matmul(cpu, &shape, memory[0], memory[1], memory[2], SHARD_FLOAT32) == SHARD_OK);
        double seconds = now() - before;
        best = seconds < best ? seconds : best;
    }
    for (int i = 0; i < 3; i++)
        cpu->ops->release(cpu, memory[i], sizes[i]);
    return 2.0 * (double)batch * 768 * (double)features / best;
}

/* MiB of logits, gradients and workspace. */
static double peak_of(const head *h, int64_t batch, int64_t features, int64_t classes)
{
    shard_memory_kind kinds[] = {SHARD_MEMORY_GRADIENTS, SHARD_MEMORY_ACTIVATIONS, SHARD_MEMORY_WORKSPACE};
    double sum = 0;
    shard_reset_peak_memory(shard_cpu());
    step(h, batch, features, classes);
    for (int i = 0; i < 3; i++)
        sum += (double)shard_get_memory_by_kind(shard_cpu(), kinds[i]).peak;
    return sum / (1 << 20);
}

static void bench(bool adam, int64_t batch, int64_t features, int64_t classes)
{
    double best[2] = {1e9, 1e9}, peak[2];
    head both[2] = {head_make(false, adam, features, classes), head_make(true, adam, features, classes)};
    for (int run = 0; run <= RUNS; run++)
        for (int i = 0; i < 2; i++) {
            double seconds = step(&both[i], batch, features, classes);
            if (run > 0 && seconds < best[i])
                best[i] = seconds;
        }
    for (int i = 0; i < 2; i++) {
        peak[i] = peak_of(&both[i], batch, features, classes);
        shard_optimizer_destroy(both[i].optimizer);
        shard_module_destroy(both[i].layer);
    }
    double limit = 4 * 2.0 * (double)batch * (double)features * (double)classes / rate(batch, features);
    printf("%8lld classes, %4lld features, batch %4lld, %s: plain %8.1f ms, classifier %8.1f ms, ratio %.2f; limit %8.1f ms; "
           "logits and gradients %7.1f and %7.1f MiB\n",
           (long long)classes, (long long)features, (long long)batch, adam ? "Adam" : "SGD ", 1e3 * best[0], 1e3 * best[1],
           best[0] / best[1], 1e3 * limit, peak[0], peak[1]);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int64_t batches[] = {32, 64, 128, 256};
    int64_t classes = argc > 1 ? atoll(argv[1]) : 100000, features = argc > 2 ? atoll(argv[2]) : 512;
    check(shard_init(&argc, &argv) == SHARD_OK);
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        bench(argc > 3 && strcmp(argv[3], "adam") == 0, batches[i], features, classes);
    return shard_finalize();
}
