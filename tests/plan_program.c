/* A head alone, for check_shard_plan.py:
 *   plan_program CLASSES FEATURES BATCH fused|plain none|momentum|adamw|rowwise-adagrad|rowwise-adam float32|bfloat16|kahan \
 *     STASH
 *
 * Makes some steps, and prints the memory report of rank 0. kahan: bfloat16 with compensation. STASH is .stash_share of the
 * loss. */
#include <shard/shard.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

static shard_optimizer *make_optimizer(shard_module *layer, const char *state, shard_rounding rounding)
{
    if (strcmp(state, "adamw") == 0)
        return shard_adamw(layer, .lr = 1e-3, .rounding = rounding);
    if (strcmp(state, "rowwise-adagrad") == 0)
        return shard_rowwise_adagrad(layer, .lr = 1e-3, .rounding = rounding);
    if (strcmp(state, "rowwise-adam") == 0)
        return shard_rowwise_adam(layer, .lr = 1e-3, .rounding = rounding);
    return shard_sgd(layer, .lr = 0.1, .momentum = strcmp(state, "none") == 0 ? 0 : 0.9, .rounding = rounding);
}

/* Each rank has its rows of the features, which the group gathers. */
static void step(shard_module *layer, shard_optimizer *optimizer, int64_t rows, int64_t features, int64_t classes,
                 shard_dtype dtype, double stash)
{
    shard_group *world = shard_world();
    int64_t *label = calloc((size_t)rows + 1, sizeof *label);
    for (int64_t i = 0; i < rows; i++)
        label[i] = (i + 1) * 104729 % classes;
    SHARD_SCOPE
    {
        shard_tensor *x = shard_normal(SHARD_SHAPE(rows, features), 0.0, 1.0, .dtype = dtype);
        shard_tensor *target = shard_gather_from_group(shard_from_host(label, SHARD_SHAPE(rows), .dtype = SHARD_INT64), 0, world);
        shard_set_requires_grad(x, true);
        shard_tensor *gathered = shard_gather_from_group(x, 0, world);
        shard_tensor *logits = shard_forward(layer, gathered);
        shard_tensor *loss = shard_parallel_cross_entropy(logits, target, .stash_share = stash);
        shard_release(logits);
        shard_backward(loss);
        shard_step(optimizer);
    }
    free(label);
}

int main(int argc, char **argv)
{
    shard_init(&argc, &argv);
    if (argc != 8) {
        fprintf(stderr, "usage: plan_program CLASSES FEATURES BATCH HEAD STATE DTYPE STASH\n");
        return 2;
    }
    int64_t classes = atoll(argv[1]), features = atoll(argv[2]), batch = atoll(argv[3]);
    bool fused = strcmp(argv[4], "fused") == 0, kahan = strcmp(argv[6], "kahan") == 0;
    shard_dtype dtype = strcmp(argv[6], "float32") == 0 ? SHARD_FLOAT32 : SHARD_BFLOAT16;
    shard_group *world = shard_world();
    shard_module *layer = fused ? shard_nn_parallel_classifier(features, classes, world, .dtype = dtype)
                                : shard_nn_parallel_linear(features, classes, SHARD_SPLIT_COLUMN, world, .dtype = dtype);
    shard_optimizer *optimizer = make_optimizer(layer, argv[5], kahan ? SHARD_ROUNDING_KAHAN : SHARD_ROUNDING_NEAREST);
    for (int i = 0; i < STEPS; i++)
        step(layer, optimizer, batch / shard_group_size(world), features, classes, dtype, atof(argv[7]));
    if (shard_group_rank(world) == 0 && shard_last_status() == SHARD_OK)
        shard_memory_report(shard_device_open(NULL), stdout);
    shard_optimizer_destroy(optimizer);
    shard_module_destroy(layer);
    return shard_finalize();
}
