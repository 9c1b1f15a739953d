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

shard_module *shard_nn_sequential_of(int count, shard_module **modules)
{
    if (count > 0 && !modules) {
        shard_null_argument("shard_nn_sequential_of", "modules");
        return NULL;
    }
    if (count < 0)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_nn_sequential_of: %d modules", count);
    shard_module *module = shard_module_create(&sequential_type, NULL);
    shard_status status = module ? SHARD_OK : shard_last_status();
    for (int i = 0; i < count; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        bool again = false; /* it was in the list before, and is a child already or destroyed */
        for (int j = 0; j < i; j++)
            again = again || modules[j] == modules[i];
        if (status == SHARD_OK)
            status = shard_module_add_child(module, name, modules[i]);
        else if (!again)
            shard_module_abandon(modules[i]);
    }
    return shard_module_checked(module, status);
}
