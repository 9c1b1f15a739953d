/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include "training_loss.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static shard_status make_mesh(trainer *run)
{
    const options *wanted = run->options;
    if (training_run_make_mesh(&run->base, &wanted->head) != SHARD_OK)
        return shard_last_status();
    run->batch_group = wanted->same_batch_in_group ? shard_mesh_data_group(run->base.mesh) : shard_world();
    run->feature_group = wanted->same_batch_in_group ? NULL : run->base.model_group;
    return SHARD_OK;
}

/*
 * Whether the last layer is a classifier. --head auto takes it for a layer that is split by column, or has options that a
 * classifier has by itself (head.c) or alone (a stash). It does not where a classifier's gradient would be computed as a whole
 * and a plain layer's is streamed in row blocks (ZeRO 2 and 3 over replicas of the layer), or where the gradient is needed as a
 * whole in any case (LARS, LAMB). Sampled classes need a classifier. A step that is captured (--cuda-graph) has the plain layer.
 */
static bool is_fused(const trainer *run)
{
    const options *wanted = run->options;
    bool by_row = wanted->head.enable_model_parallel && wanted->model_parallel_dim == SHARD_SPLIT_ROW;
    bool streamed = wanted->training.zero >= 2 && shard_group_size(shard_mesh_data_group(run->base.mesh)) > 1;
    bool own = head_is_special(wanted) || wanted->head.stash != HEAD_STASH;
    bool saves = (wanted->head.enable_model_parallel || own) && !by_row && !streamed &&
                 !head_is_layerwise(&wanted->head, &wanted->training);
    bool fused = wanted->head_kind == HEAD_FUSED || (wanted->head_kind == HEAD_AUTO && (saves || wanted->margin.sample_rate < 1));
    return fused && !wanted->cuda_graph;
}

static shard_status make_model(trainer *run)
{
    const options *wanted = run->options;
    if (!is_fused(run) && head_options_check_stash(&wanted->head, "the linear layer that --head auto makes here") != SHARD_OK)
        return shard_last_status();
    run->base.model = shard_resnet(wanted->arch, run->data.num_classes, .stem = (shard_resnet_stem)wanted->stem,
                                   .width = wanted->width, .dtype = (shard_dtype)wanted->training.dtype);
    if (!run->base.model)
        return shard_last_status();
    shard_group *model_group = run->base.model_group;
    shard_resnet_gather_features(run->base.model, run->feature_group);
    if (wanted->sync_bn)
        shard_nn_sync_batch_norm(run->base.model, run->batch_group);
    if (head_is_special(wanted))
        return head_open(run, is_fused(run));
    if (is_fused(run))
        return shard_convert_parallel_classifier(&run->base.model, "fc", wanted->head.enable_model_parallel ? model_group : NULL,
                                                 NULL);
    if (wanted->head.enable_model_parallel)
        return shard_convert_parallel_linear(&run->base.model, "fc", (shard_split)wanted->model_parallel_dim, model_group, NULL);
    return SHARD_OK;
}

/* A batch norm of one value has no statistics. The last feature map of small images is one pixel, so that a rank with one image
 * in the last batch of an epoch would end the run there. */
static shard_status check_last_batch(const trainer *run)
{
    const options *wanted = run->options;
    int64_t rest = run->data.train_images % (wanted->training.batch / wanted->accumulate), last = train_steps(run);
    int64_t ranks = wanted->sync_bn ? 1 : shard_group_size(run->batch_group);
    bool pixel = wanted->image_size <= (wanted->stem == SHARD_RESNET_STEM_IMAGENET ? 32 : 8);
    if (!pixel || rest == 0 || rest >= 2 * ranks || (wanted->training.steps && wanted->training.steps < last))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "the last batch of an epoch has %" PRId64
                       " images: a rank with one of them has no statistics for a batch norm "
                       "at --image-size %" PRId64 "; take another --batch-size%s",
                       rest, wanted->image_size, !wanted->sync_bn && rest > 1 ? ", or --sync-bn" : "");
}

static shard_status make_optimizers(trainer *run)
{
    const options *wanted = run->options;
    shard_tensors *parameters = shard_parameters(run->base.model);
    shard_status status =
        training_optimizers_open(&run->base.optimizers, &wanted->training, &wanted->head, parameters, "fc.", train_steps(run));
    /* After the optimizers, so that no rank ever has gradients that it does not keep. A batch norm that is not
     * synchronized uses its rank's images. */
    shard_tensors *state = status == SHARD_OK ? shard_state_dict(run->base.model) : NULL;
    if (status == SHARD_OK)
        run->base.data_parallel =
            shard_data_parallel_create(parameters, .bucket_mib = wanted->training.bucket_mib, .buffers = state,
                                       .buffer_mode = wanted->sync_bn ? SHARD_BUFFERS_LEAVE : SHARD_BUFFERS_BROADCAST);
    if (status == SHARD_OK)
        status = training_loss_open(&run->base.optimizers, state);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    return status;
}

static void introduce(trainer *run)
{
    const options *wanted = run->options;
    int64_t own;
    char layer[96] = "";
    for (int i = 0; i < wanted->notes.count; i++) {
        char note[256];
        command_write_note(wanted->notes.of[i], note, sizeof note);
        progress_say(&run->base.progress, "%s", note);
    }
    progress_say(&run->base.progress, "%s, %" PRId64 " classes, %" PRId64 " parameters%s", wanted->arch, run->data.num_classes,
                 training_count_parameters(run->base.model, &own), is_fused(run) ? ", fused head" : "");
    if (shard_group_size(run->base.model_group) > 1)
        snprintf(layer, sizeof layer, ", the last layer split by %s",
                 wanted->model_parallel_dim == SHARD_SPLIT_COLUMN ? "column" : "row");
    snprintf(layer + strlen(layer), sizeof layer - strlen(layer), "%s", wanted->sync_bn ? ", synchronized batch norms" : "");
    training_introduce_ranks(&run->base.progress, run->base.mesh, layer);
    if (run->data.train)
        progress_say(&run->base.progress, "%" PRId64 " training images, %" PRId64 " for validation; %" PRId64 " steps an epoch",
                     run->data.train_images, run->data.val_images, train_steps(run));
    else
        progress_say(&run->base.progress, "%" PRId64 " images for validation", run->data.val_images);
    image_folder_report(run->data.train_folder, &run->base.progress);
    image_folder_report(run->data.val_folder, &run->base.progress);
}

/* Two steps' batches: those of one step are read after the next step is queued. */
static shard_status make_results(trainer *run)
{
    shard_device *device = shard_device_open(NULL);
    run->queues = strcmp(shard_device_name(device), "cpu") != 0;
    run->results = results_open(device, 2 * run->options->accumulate);
    return run->results ? SHARD_OK : shard_last_status();
}

/* ---- checkpoints ---- */

shard_status trainer_describe(trainer *run)
{
    const options *wanted = run->options;
    training_checkpoint *of = &run->base.checkpoint;
    *of = (training_checkpoint){.options = &wanted->training,
                                .best_name = "best_top1",
                                .most_best = 100,
                                .epoch_steps = wanted->training.evaluate ? 0 : train_steps(run),
                                .latest_model = wanted->training.val_interval == 0,
                                .otherwise = ", or take its values alone by --pretrained"};
    training_checkpoint_set(of, "arch", "--arch", TRAINING_ALWAYS, wanted->arch);
    training_checkpoint_set(of, "stem", "--stem", TRAINING_ALWAYS, options_stem_name(wanted));
    training_checkpoint_set_integer(of, "width", "--width", TRAINING_ALWAYS, wanted->width);
    training_checkpoint_set_missing(of, OPTIONS_WIDTH_TEXT);
    training_checkpoint_set_integer(of, "num_classes", "--num-classes", TRAINING_ALWAYS, run->data.num_classes);
    training_checkpoint_set_integer(of, "image_size", "--image-size", TRAINING_REPORTED, wanted->image_size);
    training_checkpoint_set(of, "validation_crop", "--shift", TRAINING_REPORTED, wanted->shift > 0 ? "none" : "center");
    margin_options_describe(&wanted->margin, of);
    training_checkpoint_set_options(of, &wanted->head);
    training_checkpoint_set_integer(of, "accumulate", "--accumulate", TRAINING_WITHIN_EPOCH, wanted->accumulate);
    return training_checkpoint_set_integer(of, "train_images", "DIR", TRAINING_WITHIN_EPOCH, run->data.train_images);
}

/* ---- all of it ---- */

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted};
    training_run_begin(&run->base, &wanted->training, "images");
    shard_status status = make_mesh(run);
    if (status == SHARD_OK)
        status = dataset_open(&run->data, wanted, run->batch_group);
    if (status == SHARD_OK)
        status = dataset_check_identical(&run->data);
    if (status == SHARD_OK)
        status = make_model(run);
    if (status == SHARD_OK)
        status = trainer_describe(run);
    if (status == SHARD_OK && !wanted->training.evaluate)
        status = check_last_batch(run);
    if (status == SHARD_OK && !wanted->training.evaluate)
        status = make_optimizers(run);
    if (status == SHARD_OK && wanted->cuda_graph && !wanted->training.evaluate)
        status = graph_open(run);
    if (status == SHARD_OK)
        status = make_results(run);
    if (status == SHARD_OK)
        introduce(run);
    if (status == SHARD_OK)
        status = training_run_resume(&run->base);
    if (status == SHARD_OK && wanted->pretrained && !run->base.resumed)
        status = pretrained_load(run, wanted->pretrained);
    if (status == SHARD_OK)
        status = training_run_open_files(&run->base, run->data.num_classes);
    return status;
}

void trainer_close(trainer *run)
{
    graph_close(run);
    results_close(run->results);
    head_close(run);
    training_run_close(&run->base);
    dataset_close(&run->data);
    *run = (trainer){0};
}
