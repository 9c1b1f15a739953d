#include "training_run.h"

shard_status training_open_device(const training_options *wanted)
{
    shard_set_default_device(wanted->device ? shard_device_open(wanted->device) : NULL);
    return shard_last_status() == SHARD_OK ? SHARD_OK : shard_agree(shard_world());
}

shard_mesh *training_mesh(const head_options *head)
{
    int ranks = shard_group_size(shard_world()), size = head->model_parallel_size ? (int)head->model_parallel_size : ranks;
    return shard_mesh_create(.model = head->enable_model_parallel ? size : 1);
}

int64_t training_count_parameters(shard_module *model, int64_t *local)
{
    shard_tensors *parameters = shard_parameters(model);
    int64_t count = 0;
    *local = 0;
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_shape whole = shard_tensor_whole_shape(shard_tensors_at(parameters, i));
        int64_t product = 1;
        for (int d = 0; d < whole.ndim; d++)
            product *= whole.dim[d];
        count += product;
        *local += shard_numel(shard_tensors_at(parameters, i));
    }
    shard_tensors_destroy(parameters);
    return count;
}

shard_status training_sum(double *numbers, int64_t count)
{
    shard_status status = SHARD_OK;
    SHARD_SCOPE
    {
        shard_tensor *sums =
            shard_from_host(numbers, SHARD_SHAPE(count), .dtype = SHARD_FLOAT64, .device = shard_device_open("cpu"));
        status = shard_all_reduce(sums, SHARD_SUM, shard_world());
        if (status == SHARD_OK)
            status = shard_copy_to_host(sums, numbers, (size_t)count * sizeof *numbers);
    }
    return status;
}

void training_introduce_ranks(progress *shown, const shard_mesh *mesh, const char *more)
{
    int ranks = shard_group_size(shard_world()), model = shard_group_size(shard_mesh_model_group(mesh));
    if (ranks > 1)
        progress_say(shown, "%d ranks (%s): %d data parallel x %d model parallel%s", ranks, shard_group_transport(shard_world()),
                     ranks / model, model, more);
}

metrics *training_metrics(const training_options *wanted, shard_module *model, int64_t num_classes, const char *samples,
                          bool resumed)
{
    metrics_model of = {.num_classes = num_classes, .samples = samples};
    training_count_parameters(model, &of.local_parameters);
    return metrics_open(
        (metrics_options){.path = wanted->metrics, .tensorboard = wanted->tensorboard, .append = resumed && !wanted->evaluate},
        of);
}
