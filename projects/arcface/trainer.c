/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include "training_loss.h"

#include <inttypes.h>
#include <string.h>

/* Steps of an epoch: those of whole batches, as insightface. Of the rest a rank may have one image, of which a batch norm has no
 * statistics. */
static int64_t count_steps(const trainer *run)
{
    return run->data.train ? run->data.images / run->options->training.batch : 0;
}

/* ---- the network and what trains it ---- */

static shard_status make_network(trainer *run)
{
    const options *wanted = run->options;
    if (training_run_make_mesh(&run->base, &wanted->head) != SHARD_OK)
        return shard_last_status();
    run->base.model =
        network_make(wanted, run->data.identities, wanted->head.enable_model_parallel ? run->base.model_group : NULL);
    shard_nn_sync_dropout(run->base.model, shard_world());
    if (run->base.model && wanted->sync_bn)
        shard_nn_sync_batch_norm(run->base.model, shard_world());
    return shard_last_status();
}

/* A batch norm that is not synchronized uses its rank's images; the first replica's running statistics count. */
static shard_status make_optimizers(trainer *run)
{
    const options *wanted = run->options;
    if (count_steps(run) == 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "%" PRId64 " training images are less than a --batch-size of %" PRId64,
                           run->data.images, wanted->training.batch);
    shard_tensors *parameters = shard_parameters(run->base.model), *state = shard_state_dict(run->base.model);
    shard_status status = training_optimizers_open(&run->base.optimizers, &wanted->training, &wanted->head, parameters,
                                                   NETWORK_CLASSIFIER ".", count_steps(run));
    if (status == SHARD_OK)
        run->base.data_parallel =
            shard_data_parallel_create(parameters, .bucket_mib = wanted->training.bucket_mib, .buffers = state,
                                       .buffer_mode = wanted->sync_bn ? SHARD_BUFFERS_LEAVE : SHARD_BUFFERS_BROADCAST);
    if (status == SHARD_OK)
        training_loss_open(&run->base.optimizers, state);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    return shard_last_status();
}

static void introduce(trainer *run)
{
    const options *wanted = run->options;
    int64_t own;
    progress_say(&run->base.progress, "%s of width %" PRId64 ", features of %" PRId64 " numbers; %" PRId64 " parameters",
                 options_arch(wanted), wanted->width, wanted->embedding_size, training_count_parameters(run->base.model, &own));
    training_introduce_ranks(&run->base.progress, run->base.mesh, wanted->sync_bn ? ", synchronized batch norms" : "");
    if (run->data.train)
        progress_say(&run->base.progress, "%" PRId64 " training images of %" PRId64 " identities; %" PRId64 " steps an epoch",
                     run->data.images, run->data.identities, count_steps(run));
    for (int i = 0; i < run->data.count; i++)
        progress_say(&run->base.progress, "validation on %s: %" PRId64 " images", run->data.sets[i].name,
                     validation_set_images(&run->data.sets[i]).images);
    image_folder_report(run->data.folder, &run->base.progress);
    for (int i = 0; i < run->data.count; i++)
        image_folder_report(run->data.sets[i].folder, &run->base.progress);
}

/* ---- checkpoints ---- */

static shard_status describe(trainer *run)
{
    const options *wanted = run->options;
    training_checkpoint *of = &run->base.checkpoint;
    *of = (training_checkpoint){.options = &wanted->training,
                                .best_name = "best_accuracy",
                                .most_best = 100,
                                .epoch_steps = count_steps(run),
                                .latest_model = wanted->training.val_interval == 0 || run->data.count == 0,
                                .otherwise = ", or take its values alone by --pretrained"};
    training_checkpoint_set(of, "arch", "--network", TRAINING_ALWAYS, options_arch(wanted));
    training_checkpoint_set_integer(of, "width", "--width", TRAINING_ALWAYS, wanted->width);
    training_checkpoint_set_integer(of, "embedding_size", "--embedding-size", TRAINING_ALWAYS, wanted->embedding_size);
    training_checkpoint_set_integer(of, "image_size", "--image-size", TRAINING_ALWAYS, wanted->image_size);
    training_checkpoint_set(of, "flip", "--no-flip", TRAINING_ALWAYS, wanted->no_flip ? "no" : "yes");
    training_checkpoint_set_missing(of, ""); /* in files of older trainers */
    training_checkpoint_set_integer(of, "identities", "DIR", TRAINING_GOES_ON, run->data.identities);
    training_checkpoint_set_hash(of, "identities_hash", "DIR", TRAINING_GOES_ON, data_hash_identities(&run->data));
    training_checkpoint_set_missing(of, ""); /* in files of older trainers */
    training_checkpoint_set_options(of, &wanted->head);
    if (run->data.train)
        margin_options_describe(&wanted->margin, of);
    return training_checkpoint_set_integer(of, "images", "DIR", TRAINING_WITHIN_EPOCH, run->data.images);
}

/* Features of images and their mirror images are others than those of images alone. A file may lack the setting. */
static void report_flip(trainer *run)
{
    const options *wanted = run->options;
    shard_metadata *found = NULL;
    shard_tensors_destroy(shard_inspect(wanted->pretrained, &found));
    const char *flip = found ? shard_metadata_get(found, "flip") : NULL, *own = wanted->no_flip ? "no" : "yes";
    if (flip && strcmp(flip, own) != 0)
        progress_say(&run->base.progress, "%s: its flip is %s, this run's is %s (--no-flip)", wanted->pretrained, flip, own);
    shard_metadata_destroy(found);
}

/* --resume, or else --pretrained. */
static shard_status load(trainer *run)
{
    const options *wanted = run->options;
    shard_status status = training_run_resume(&run->base);
    if (status == SHARD_OK && !run->base.resumed && wanted->pretrained) {
        status = network_load(run->base.model, wanted->pretrained);
        if (status == SHARD_OK && wanted->training.evaluate)
            report_flip(run);
        if (status == SHARD_OK)
            progress_say(&run->base.progress, "values of %s", wanted->pretrained);
    }
    return status;
}

/* ---- all of it ---- */

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted};
    training_run_begin(&run->base, &wanted->training, "images");
    shard_status status = data_open(&run->data, run->options);
    if (status == SHARD_OK)
        status = make_network(run);
    if (status == SHARD_OK && !wanted->training.evaluate)
        status = make_optimizers(run);
    if (status == SHARD_OK)
        status = describe(run);
    if (status == SHARD_OK)
        introduce(run);
    if (status == SHARD_OK)
        status = load(run);
    if (status == SHARD_OK)
        status = training_run_open_files(&run->base, run->data.identities);
    return status;
}

void trainer_close(trainer *run)
{
    training_run_close(&run->base);
    data_close(&run->data);
    *run = (trainer){0};
}
