#include "margin.h"

#include <shard/nn.h>
#include <shard/op.h>

/* Those of AdaFace's head.py at the start. */
#define FIRST_MEAN 20
#define FIRST_STD 100

shard_status margin_add_buffers(shard_module *module, const margin_options *wanted)
{
    SHARD_SCOPE
    {
        if (wanted->adaptive) {
            shard_module_add_buffer(module, "batch_mean", shard_full(SHARD_SHAPE(1), FIRST_MEAN));
            shard_module_add_buffer(module, "batch_std", shard_full(SHARD_SHAPE(1), FIRST_STD));
        }
    }
    return shard_last_status();
}

/* The groups have batches of their own, and one mean and deviation of them all. The second call leaves both as they are. */
static void adapt(shard_margin_logits_options *made, const margin_options *wanted, shard_module *module, shard_tensor *features,
                  shard_group *data_group)
{
    shard_tensor *mean = shard_module_tensor(module, "batch_mean"), *std = shard_module_tensor(module, "batch_std");
    SHARD_NO_GRAD
    {
        shard_dtype dtype = shard_tensor_dtype(features);
        shard_tensor *x = shard_cast(shard_detach(features), dtype == SHARD_FLOAT64 ? dtype : SHARD_FLOAT32);
        shard_tensor *norms = shard_sqrt(shard_sum_dim(shard_mul(x, x), 1, false));
        shard_tensor *all = shard_gather_from_group(norms, 0, data_group);
        shard_adaface_margins(all, mean, std, NULL, .m = wanted->m, .h = wanted->h);
        made->row_m2 = shard_adaface_margins(norms, mean, std, &made->row_m3, .m = wanted->m, .h = wanted->h, .t_alpha = 0);
    }
    made->rule = SHARD_MARGIN_CLAMP;
}

shard_status margin_make(shard_margin_logits_options *made, const margin_options *wanted, shard_module *module,
                         shard_tensor *features, shard_group *data_group)
{
    *made = (shard_margin_logits_options)SHARD_MARGIN_LOGITS_OPTIONS_INIT;
    made->scale = wanted->scale;
    made->m1 = wanted->m1;
    made->m2 = wanted->m2;
    made->m3 = wanted->m3;
    if (wanted->adaptive)
        adapt(made, wanted, module, features, data_group);
    return shard_last_status();
}
