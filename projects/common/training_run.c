#include "training_run.h"

#include <inttypes.h>
#include <stdlib.h>

shard_status training_open_device(const training_options *wanted)
{
    shard_set_default_device(wanted->device ? shard_device_open(wanted->device) : NULL);
    return shard_last_status() == SHARD_OK ? SHARD_OK : shard_agree(shard_world());
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

int64_t *training_gather_samples(const int64_t *samples, int64_t count, shard_group *group, int64_t *all)
{
    int64_t *gathered = NULL;
    *all = 0;
    SHARD_SCOPE
    {
        shard_tensor *own =
            shard_from_host(samples, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_tensor *whole = shard_gather_from_group(own, 0, group);
        *all = whole ? shard_numel(whole) : 0;
        gathered = whole ? calloc((size_t)*all + 1, sizeof *gathered) : NULL;
        if (whole && !gathered)
            shard_error(SHARD_ERROR_MEMORY, "no memory for the numbers of %" PRId64 " samples", *all);
        if (gathered)
            shard_copy_to_host(whole, gathered, (size_t)*all * sizeof *gathered);
    }
    if (shard_last_status() == SHARD_OK)
        return gathered;
    free(gathered);
    return NULL;
}

shard_status training_set_values(shard_tensor *parameter, const float *values)
{
    if (!parameter)
        return shard_last_status();
    int64_t count = shard_numel(parameter);
    shard_dtype dtype = shard_tensor_dtype(parameter);
    size_t bytes = (size_t)count * shard_dtype_size(dtype);
    void *cast = calloc(bytes + 1, 1);
    if (!cast)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " initial values", count);
    shard_status status = SHARD_OK;
    SHARD_NO_GRAD
    SHARD_SCOPE
    {
        status = shard_copy_to_host(shard_cast(shard_from_host(values, SHARD_SHAPE(count)), dtype), cast, bytes);
    }
    if (status == SHARD_OK)
        status = shard_copy_from_host(parameter, cast, bytes);
    free(cast);
    return status;
}

void training_introduce_ranks(progress *shown, const shard_mesh *mesh, const char *more)
{
    int ranks = shard_group_size(shard_world()), model = shard_group_size(shard_mesh_model_group(mesh));
    if (ranks > 1)
        progress_say(shown, "%d ranks (%s): %d data parallel x %d model parallel%s", ranks, shard_group_transport(shard_world()),
                     ranks / model, model, more);
}

/* ---- its objects ---- */

void training_run_begin(training_run *run, const training_options *wanted, const char *samples)
{
    *run = (training_run){.options = wanted, .samples = samples, .at.best = -1, .progress = progress_start(wanted->print_freq)};
}

shard_status training_run_make_mesh(training_run *run, const head_options *head)
{
    int ranks = shard_group_size(shard_world()), size = head->model_parallel_size ? (int)head->model_parallel_size : ranks;
    run->mesh = shard_mesh_create(.model = head->enable_model_parallel ? size : 1);
    run->model_group = shard_mesh_model_group(run->mesh);
    shard_manual_seed((uint64_t)run->options->seed);
    return run->mesh ? SHARD_OK : shard_last_status();
}

shard_status training_run_resume(training_run *run)
{
    if (!run->options->resume)
        return SHARD_OK;
    shard_tensors *all = training_collect(run->model, &run->optimizers);
    shard_status status = training_checkpoint_resume(&run->checkpoint, all, &run->at, &run->resumed, &run->progress);
    shard_tensors_destroy(all);
    return status;
}

/* Of options that are legitimate, and easily not what was meant. */
static void warn(training_run *run)
{
    const training_options *wanted = run->options;
    int64_t steps = wanted->epochs * run->checkpoint.epoch_steps, warmup = run->optimizers.schedule.warmup_steps;
    steps = wanted->steps && wanted->steps < steps ? wanted->steps : steps;
    if (!wanted->output)
        progress_say(&run->progress, "without --output neither checkpoints nor the model are saved");
    if (warmup > steps)
        progress_say(&run->progress,
                     "the warmup has %" PRId64 " steps and the run %" PRId64 ": the learning rate does not reach --lr", warmup,
                     steps);
}

shard_status training_run_open_files(training_run *run, int64_t num_classes)
{
    const training_options *wanted = run->options;
    bool goes_on = run->resumed && !wanted->evaluate;
    metrics_options files = {.path = wanted->metrics,
                             .tensorboard = wanted->tensorboard,
                             .append = run->resumed || wanted->evaluate,
                             .goes_on = goes_on ? run->at.step + 1 : 0};
    metrics_model of = {.num_classes = num_classes, .samples = run->samples};
    if (training_checkpoint_prepare(&run->checkpoint, &run->at) != SHARD_OK)
        return shard_last_status();
    training_count_parameters(run->model, &of.local_parameters);
    run->metrics = metrics_open(files, of);
    if (run->checkpoint.epoch_steps > 0)
        warn(run);
    return shard_agree(shard_world()); /* one rank alone may write them */
}

void training_run_close(training_run *run)
{
    training_checkpoint_close(&run->checkpoint); /* a save is left only after an error */
    metrics_close(run->metrics);
    training_optimizers_close(&run->optimizers);
    shard_data_parallel_destroy(run->data_parallel);
    shard_module_destroy(run->model);
    shard_mesh_destroy(run->mesh);
    *run = (training_run){0};
}
