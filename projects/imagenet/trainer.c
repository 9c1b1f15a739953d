/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include <inttypes.h>
#include <string.h>

/* Counts the parameters of the whole model and of this rank. */
static int64_t count_parameters(trainer *run, int64_t *own)
{
    shard_tensors *parameters = shard_parameters(run->model);
    int64_t count = 0;
    *own = 0;
    for (int64_t i = 0; i < shard_tensors_count(parameters); i++) {
        shard_shape whole = shard_tensor_whole_shape(shard_tensors_at(parameters, i));
        int64_t product = 1;
        for (int d = 0; d < whole.ndim; d++)
            product *= whole.dim[d];
        count += product;
        *own += shard_numel(shard_tensors_at(parameters, i));
    }
    shard_tensors_destroy(parameters);
    return count;
}

static shard_status make_mesh(trainer *run)
{
    const options *wanted = run->options;
    int ranks = shard_group_size(shard_world());
    int model_size = !wanted->enable_model_parallel ? 1 : wanted->model_parallel_size ? (int)wanted->model_parallel_size : ranks;
    run->mesh = shard_mesh_create(.model = model_size);
    if (!run->mesh)
        return shard_last_status();
    run->batch_group = wanted->same_batch_in_group ? shard_mesh_data_group(run->mesh) : shard_world();
    run->feature_group = wanted->same_batch_in_group ? NULL : shard_mesh_model_group(run->mesh);
    return SHARD_OK;
}

/*
 * Whether the final layer is a classifier. --head auto takes it for a layer that is split by column or has options that a
 * classifier has by itself (head.c), unless its gradient would be computed as a whole where a plain layer's is streamed in row
 * blocks (ZeRO 2 and 3 over replicas of the layer), or is needed as a whole in any case (LARS, LAMB). Sampled classes need it. A
 * step that is captured (--cuda-graph) has the plain layer.
 */
static bool is_fused(const trainer *run)
{
    const options *wanted = run->options;
    bool by_row = wanted->enable_model_parallel && wanted->model_parallel_dim == SHARD_SPLIT_ROW;
    bool streamed = wanted->zero >= 2 && shard_group_size(shard_mesh_data_group(run->mesh)) > 1;
    bool saves = (wanted->enable_model_parallel || head_is_special(wanted)) && !by_row && !streamed &&
                 !optimizers_head_is_layerwise(wanted);
    bool fused = wanted->head == HEAD_FUSED || (wanted->head == HEAD_AUTO && (saves || wanted->sample_rate < 1));
    return fused && !wanted->cuda_graph;
}

static shard_status make_model(trainer *run)
{
    const options *wanted = run->options;
    shard_manual_seed((uint64_t)wanted->seed);
    run->model = shard_resnet(wanted->arch, run->data.num_classes, .stem = (shard_resnet_stem)wanted->stem,
                              .width = wanted->width, .dtype = (shard_dtype)wanted->dtype);
    if (!run->model)
        return shard_last_status();
    shard_group *model_group = shard_mesh_model_group(run->mesh);
    shard_resnet_gather_features(run->model, run->feature_group);
    if (wanted->sync_bn)
        shard_nn_sync_batch_norm(run->model, run->batch_group);
    if (head_is_special(wanted))
        return head_open(run, is_fused(run));
    if (is_fused(run))
        return shard_convert_parallel_classifier(&run->model, "fc", wanted->enable_model_parallel ? model_group : NULL, NULL);
    if (wanted->enable_model_parallel)
        return shard_convert_parallel_linear(&run->model, "fc", (shard_split)wanted->model_parallel_dim, model_group, NULL);
    return SHARD_OK;
}

static shard_status make_optimizer(trainer *run)
{
    const options *wanted = run->options;
    shard_status status = optimizers_open(run);
    if (status != SHARD_OK)
        return status;
    /* After the optimizer, so that no rank ever has gradients that it does not keep. A batch norm that is not
     * synchronised uses its rank's images. */
    shard_tensors *parameters = shard_parameters(run->model), *state = shard_state_dict(run->model);
    run->data_parallel =
        shard_data_parallel_create(parameters, .bucket_mib = wanted->bucket_mib, .buffers = state,
                                   .buffer_mode = wanted->sync_bn ? SHARD_BUFFERS_LEAVE : SHARD_BUFFERS_BROADCAST);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    if (wanted->amp == SHARD_FLOAT16)
        run->scaler = shard_grad_scaler_create();
    else if (wanted->non_finite == NON_FINITE_SKIP)
        run->scaler = shard_grad_scaler_create(.init_scale = 1, .growth_interval = INT64_MAX);
    return non_finite_open(run);
}

static void introduce(trainer *run)
{
    const options *wanted = run->options;
    int64_t own;
    int ranks = shard_group_size(shard_world()), model_size = shard_group_size(shard_mesh_model_group(run->mesh));
    for (int i = 0; i < wanted->notes.count; i++) {
        char note[256];
        command_write_note(wanted->notes.of[i], note, sizeof note);
        progress_say(&run->progress, "%s", note);
    }
    progress_say(&run->progress, "%s, %" PRId64 " classes, %" PRId64 " parameters%s", wanted->arch, run->data.num_classes,
                 count_parameters(run, &own), is_fused(run) ? ", fused head" : "");
    if (ranks > 1)
        progress_say(&run->progress, "%d ranks (%s): %d data parallel x %d model parallel%s%s", ranks,
                     shard_group_transport(shard_world()), ranks / model_size, model_size,
                     model_size == 1                                    ? ""
                     : wanted->model_parallel_dim == SHARD_SPLIT_COLUMN ? ", the final layer split by column"
                                                                        : ", the final layer split by row",
                     wanted->sync_bn ? ", synchronised batch norms" : "");
    if (run->data.train)
        progress_say(&run->progress, "%" PRId64 " training images, %" PRId64 " for validation; %" PRId64 " steps an epoch",
                     run->data.train_images, run->data.val_images, train_steps(run));
    else
        progress_say(&run->progress, "%" PRId64 " images for validation", run->data.val_images);
}

/* Two steps' batches: those of one step are read after the next step is queued. */
static shard_status make_results(trainer *run)
{
    shard_device *device = shard_device_open(NULL);
    run->queues = strcmp(shard_device_name(device), "cpu") != 0;
    run->results = results_open(device, 2 * run->options->accumulate);
    return run->results ? SHARD_OK : shard_last_status();
}

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted, .at.best_top1 = -1, .progress = progress_start(wanted->print_freq)};
    shard_status status = make_mesh(run);
    if (status == SHARD_OK)
        status = dataset_open(&run->data, wanted, run->batch_group);
    if (status == SHARD_OK)
        status = dataset_agree(&run->data);
    if (status == SHARD_OK)
        status = make_model(run);
    if (status == SHARD_OK && wanted->pretrained)
        status = checkpoint_pretrained(run, wanted->pretrained);
    if (status == SHARD_OK && !wanted->evaluate)
        status = make_optimizer(run);
    if (status == SHARD_OK && wanted->cuda_graph && !wanted->evaluate)
        status = graph_open(run);
    if (status == SHARD_OK)
        status = make_results(run);
    if (status == SHARD_OK)
        introduce(run);
    if (status == SHARD_OK && wanted->resume)
        status = options_resume_auto(wanted) ? checkpoint_resume_auto(run) : checkpoint_resume(run, wanted->resume);
    if (status == SHARD_OK)
        status = checkpoint_prepare(run);
    if (status == SHARD_OK) {
        metrics_model model = {.num_classes = run->data.num_classes, .samples = "images"};
        count_parameters(run, &model.local_parameters);
        metrics_options files = {
            .path = wanted->metrics, .tensorboard = wanted->tensorboard, .append = run->resumed && !wanted->evaluate};
        run->metrics = metrics_open(files, model);
        status = run->metrics ? SHARD_OK : shard_last_status();
    }
    return status == SHARD_OK ? shard_agree(shard_world()) : status;
}

void trainer_close(trainer *run)
{
    saves_finish(run); /* some are left only after an error */
    metrics_close(run->metrics);
    graph_close(run);
    results_close(run->results);
    shard_grad_scaler_destroy(run->scaler);
    non_finite_close(run);
    optimizers_close(run);
    shard_release(run->sample);
    shard_data_parallel_destroy(run->data_parallel);
    shard_module_destroy(run->model);
    shard_mesh_destroy(run->mesh);
    dataset_close(&run->data);
    *run = (trainer){0};
}
