/* One module after the other. */
#include "nn/nn.h"

#include <stdio.h>

static shard_tensor *sequential_forward(shard_module *module, shard_tensor *x)
{
    for (int i = 0; i < shard_module_child_count(module); i++)
        x = shard_forward(shard_module_child_at(module, i), x);
    return x;
}

static const shard_module_type sequential_type = {.name = "sequential", .forward = sequential_forward};

/* Destroys those of the modules from i on that have no parent, each once. All are looked at before one is destroyed, with those
 * below it. */
static void abandon_from(shard_module **modules, int i, int count)
{
    if (i == count)
        return;
    bool again = false;
    for (int j = 0; j < i; j++)
        again = again || modules[j] == modules[i];
    bool owned = again || !modules[i] || shard_module_has_parent(modules[i]);
    abandon_from(modules, i + 1, count);
    if (!owned)
        shard_module_destroy(modules[i]);
}

shard_module *shard_nn_sequential_of(int count, shard_module **modules)
{
    static const char function[] = "shard_nn_sequential_of";
    if (count > 0 && !modules) {
        shard_null_argument(function, "modules");
        return NULL;
    }
    if (count < 0)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "%s: %d modules; at least 0 are needed", function, count);
    shard_module *module = shard_module_create(&sequential_type, NULL);
    shard_status status = module ? SHARD_OK : shard_last_status();
    for (int i = 0; i < count && status == SHARD_OK; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        status = shard_module_append(function, module, name, modules[i]);
    }
    if (status != SHARD_OK)
        abandon_from(modules, 0, count);
    return shard_module_checked(module, status);
}
