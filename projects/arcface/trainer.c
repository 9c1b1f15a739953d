/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include "training_loss.h"
#include "training_run.h"

#include <inttypes.h>

int64_t trainer_steps(const trainer *run)
{
    return run->data.train ? run->data.images / run->options->training.batch : 0;
}

/* ---- the network and what trains it ---- */

static shard_status make_network(trainer *run)
{
    const options *wanted = run->options;
    run->mesh = training_mesh(&wanted->head);
    run->model_group = shard_mesh_model_group(run->mesh);
    if (!run->mesh)
        return shard_last_status();
    shard_manual_seed((uint64_t)wanted->training.seed);
    run->network = network_make(wanted, run->data.identities, wanted->head.enable_model_parallel ? run->model_group : NULL);
    if (run->network && wanted->sync_bn)
        shard_nn_sync_batch_norm(run->network, shard_world());
    return shard_last_status();
}

/* A batch norm that is not synchronised uses its rank's images; the first replica's running statistics count. */
static shard_status make_optimizers(trainer *run)
{
    const options *wanted = run->options;
    if (trainer_steps(run) == 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "%" PRId64 " training images are less than a --batch-size of %" PRId64,
                           run->data.images, wanted->training.batch);
    shard_tensors *parameters = shard_parameters(run->network), *state = shard_state_dict(run->network);
    shard_status status = training_optimizers_open(&run->optimizers, &wanted->training, &wanted->head, parameters,
                                                   NETWORK_CLASSIFIER ".", trainer_steps(run));
    if (status == SHARD_OK)
        run->data_parallel =
            shard_data_parallel_create(parameters, .bucket_mib = wanted->training.bucket_mib, .buffers = state,
                                       .buffer_mode = wanted->sync_bn ? SHARD_BUFFERS_LEAVE : SHARD_BUFFERS_BROADCAST);
    if (status == SHARD_OK)
        training_loss_open(&run->optimizers, state);
    shard_tensors_destroy(parameters);
    shard_tensors_destroy(state);
    return shard_last_status();
}

static void introduce(trainer *run)
{
    const options *wanted = run->options;
    int64_t own;
    progress_say(&run->progress, "%s of width %" PRId64 ", features of %" PRId64 " numbers; %" PRId64 " parameters",
                 options_arch(wanted), wanted->width, wanted->embedding_size, training_count_parameters(run->network, &own));
    training_introduce_ranks(&run->progress, run->mesh, wanted->sync_bn ? ", synchronised batch norms" : "");
    if (run->data.train)
        progress_say(&run->progress, "%" PRId64 " training images of %" PRId64 " identities; %" PRId64 " steps an epoch",
                     run->data.images, run->data.identities, trainer_steps(run));
    for (int i = 0; i < run->data.count; i++)
        progress_say(&run->progress, "validation on %s: %" PRId64 " images", run->data.sets[i].name,
                     validation_set_images(&run->data.sets[i]).images);
}

/* ---- checkpoints ---- */

static shard_status describe(trainer *run)
{
    const options *wanted = run->options;
    training_checkpoint *of = &run->checkpoint;
    *of = (training_checkpoint){.options = &wanted->training,
                                .best_name = "best_accuracy",
                                .most_best = 100,
                                .epoch_steps = trainer_steps(run),
                                .latest_model = wanted->training.val_interval == 0,
                                .otherwise = ", or take its values alone by --pretrained"};
    training_checkpoint_set(of, "arch", "--network", TRAINING_ALWAYS, options_arch(wanted));
    training_checkpoint_set_integer(of, "width", "--width", TRAINING_ALWAYS, wanted->width);
    training_checkpoint_set_integer(of, "embedding_size", "--embedding-size", TRAINING_ALWAYS, wanted->embedding_size);
    training_checkpoint_set_integer(of, "image_size", "--image-size", TRAINING_ALWAYS, wanted->image_size);
    training_checkpoint_set_integer(of, "identities", "DIR", TRAINING_GOES_ON, run->data.identities);
    training_checkpoint_set_options(of, &wanted->head);
    if (run->data.train)
        margin_options_describe(&wanted->margin, of);
    return training_checkpoint_set_integer(of, "images", "DIR", TRAINING_WITHIN_EPOCH, run->data.images);
}

/* --resume, or else --pretrained. */
static shard_status load(trainer *run)
{
    const options *wanted = run->options;
    shard_status status = SHARD_OK;
    if (wanted->training.resume) {
        shard_tensors *all = training_collect(run->network, &run->optimizers);
        status = training_checkpoint_resume(&run->checkpoint, all, &run->at, &run->resumed, &run->progress);
        shard_tensors_destroy(all);
    }
    if (status == SHARD_OK && !run->resumed && wanted->pretrained) {
        status = network_load(run->network, wanted->pretrained);
        if (status == SHARD_OK)
            progress_say(&run->progress, "values of %s", wanted->pretrained);
    }
    return status;
}

/* ---- all of it ---- */

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.own = *wanted, .at.best = -1, .progress = progress_start(wanted->training.print_freq)};
    run->options = &run->own;
    shard_status status = data_open(&run->data, run->options);
    if (run->data.count == 0)
        run->own.training.val_interval = 0;
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
        status = training_checkpoint_prepare(&run->checkpoint, &run->at);
    if (status == SHARD_OK) {
        run->metrics = training_metrics(&run->options->training, run->network, run->data.identities, "images", run->resumed);
        status = run->metrics ? SHARD_OK : shard_last_status();
    }
    return status == SHARD_OK ? shard_agree(shard_world()) : status;
}

void trainer_close(trainer *run)
{
    training_checkpoint_close(&run->checkpoint); /* a save is left only after an error */
    metrics_close(run->metrics);
    training_optimizers_close(&run->optimizers);
    shard_data_parallel_destroy(run->data_parallel);
    shard_module_destroy(run->network);
    shard_mesh_destroy(run->mesh);
    data_close(&run->data);
    *run = (trainer){0};
}
