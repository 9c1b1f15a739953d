/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include "files.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- data ---- */

static shard_status open_data(trainer *run)
{
    const options *wanted = run->options;
    char path[PATH_MAX];
    if (files_join(path, "DIR", wanted->directory, "words.txt") == SHARD_OK)
        run->dictionary = words_open(path);
    if (run->dictionary && !wanted->correct && files_join(path, "DIR", wanted->directory, "test.txt") == SHARD_OK &&
        (access(path, F_OK) == 0 || wanted->training.evaluate))
        run->test = words_open_typed(path, run->dictionary);
    if (shard_last_status() == SHARD_OK)
        run->pairs = pairs_create(run->dictionary, wanted->uniform, wanted->power, (uint64_t)wanted->training.seed);
    shard_status status = shard_agree(shard_world()); /* one rank alone may have no file */
    return status == SHARD_OK ? words_check_identical(run->dictionary, run->test) : status;
}

static shard_status make_samplers(trainer *run)
{
    const training_options *wanted = &run->options->training;
    run->epoch_pairs = run->options->pairs ? run->options->pairs : run->dictionary->count;
    run->sampler = shard_group_sampler_create(run->epoch_pairs, .batch = wanted->batch, .group = shard_world(),
                                              .last_batch = SHARD_LAST_BATCH_EXACT);
    if (run->test)
        run->test_sampler = shard_group_sampler_create(run->test->count, .batch = wanted->batch, .group = shard_world(),
                                                       .last_batch = SHARD_LAST_BATCH_EXACT);
    int64_t of_train = shard_group_sampler_max_local_batch(run->sampler),
            of_test = shard_group_sampler_max_local_batch(run->test_sampler), most = of_train > of_test ? of_train : of_test;
    run->samples = calloc((size_t)most + 1, sizeof *run->samples);
    if (!run->samples)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for a batch of %" PRId64 " pairs", most);
    return shard_last_status();
}

/* ---- features ---- */

shard_tensor *trainer_features(trainer *run, const char *const *word, int64_t count, double norm)
{
    shard_tensor *x = NULL;
    SHARD_AUTOCAST((shard_dtype)run->options->training.amp)
    {
        x = shard_scale(network_encode(run->base.model, word, count), norm);
    }
    return shard_gather_from_group(x, 0, run->base.model_group);
}

shard_status trainer_set_rows(trainer *run)
{
    shard_status status = SHARD_OK;
    SHARD_AUTOCAST((shard_dtype)run->options->training.amp)
    {
        status = network_set_rows(run->base.model, run->dictionary);
    }
    return status;
}

/* ---- the network and what trains it ---- */

static shard_status make_network(trainer *run)
{
    const head_options *head = &run->options->head;
    if (training_run_make_mesh(&run->base, head) != SHARD_OK)
        return shard_last_status();
    run->base.model = network_make(run->options, run->pairs, head->enable_model_parallel ? run->base.model_group : NULL);
    return run->base.model ? SHARD_OK : shard_last_status();
}

/* The last layer's gradients are averaged apart from the others: none exist while rows are tied. */
static shard_status make_data_parallel(trainer *run)
{
    const double bucket_mib = run->options->training.bucket_mib;
    shard_tensors *all = shard_parameters(run->base.model), *encoder = shard_tensors_create(), *head = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(all); i++) {
        const char *name = shard_tensors_name(all, i);
        shard_tensors_add(strncmp(name, NETWORK_HEAD, strlen(NETWORK_HEAD)) == 0 ? head : encoder, name,
                          shard_tensors_at(all, i));
    }
    run->base.data_parallel = shard_data_parallel_create(encoder, .bucket_mib = bucket_mib);
    run->head_data_parallel = shard_data_parallel_create(head, .bucket_mib = bucket_mib);
    shard_tensors_destroy(all);
    shard_tensors_destroy(encoder);
    shard_tensors_destroy(head);
    return shard_last_status();
}

/* The last layer's optimizer is one of its own, as it does not step while rows are tied. */
static shard_status make_optimizers(trainer *run)
{
    const training_options *wanted = &run->options->training;
    head_options head = run->options->head;
    head.own = true;
    if (wanted->zero == 3 && shard_group_size(shard_mesh_data_group(run->base.mesh)) > 1)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "--enable-zero-optim 3 partitions replicas of the last layer, whose rows are set to the words' features: "
            "split it over all ranks with --enable-model-parallel, or take 2");
    shard_tensors *parameters = shard_parameters(run->base.model);
    shard_status status = training_optimizers_open(&run->base.optimizers, wanted, &head, parameters, NETWORK_HEAD,
                                                   shard_group_sampler_steps(run->sampler));
    shard_tensors_destroy(parameters);
    return status == SHARD_OK ? make_data_parallel(run) : status;
}

static void introduce(trainer *run)
{
    int64_t own;
    progress_say(&run->base.progress,
                 "%" PRId64 " words; %" PRId64 " pairs an epoch, %" PRId64 " misspelled words for validation; %" PRId64
                 " parameters",
                 run->dictionary->count, run->epoch_pairs, run->test ? run->test->count : 0,
                 training_count_parameters(run->base.model, &own));
    training_introduce_ranks(&run->base.progress, run->base.mesh, "");
}

bool trainer_is_tied(const trainer *run)
{
    return run->base.at.epoch < run->options->tied_epochs;
}

static bool validates(const trainer *run)
{
    return run->test && run->options->training.val_interval > 0;
}

/* ---- checkpoints ---- */

static shard_status describe(trainer *run)
{
    const options *wanted = run->options;
    training_checkpoint *of = &run->base.checkpoint;
    *of = (training_checkpoint){.options = &wanted->training,
                                .best_name = "best_top1",
                                .most_best = 100,
                                .epoch_steps = options_train(wanted) ? shard_group_sampler_steps(run->sampler) : 0,
                                .latest_model = !validates(run)};
    training_checkpoint_set(of, "arch", NULL, TRAINING_ALWAYS, "spell");
    training_checkpoint_set_integer(of, "features", "--features", TRAINING_ALWAYS, wanted->features);
    training_checkpoint_set_integer(of, "dim", "--dim", TRAINING_ALWAYS, wanted->dim);
    training_checkpoint_set_integer(of, "channels", "--channels", TRAINING_ALWAYS, wanted->channels);
    training_checkpoint_set_number(of, "scale", "--scale", TRAINING_ALWAYS, wanted->scale);
    training_checkpoint_set_integer(of, "words", "DIR", TRAINING_ALWAYS, run->dictionary->count);
    training_checkpoint_set_hash(of, "dictionary", "DIR", TRAINING_ALWAYS, words_hash(run->dictionary, false));
    training_checkpoint_set_options(of, &wanted->head);
    training_checkpoint_set_number(of, "sample_rate", "--sample-rate", TRAINING_GOES_ON, wanted->sample_rate);
    training_checkpoint_set_integer(of, "tied_epochs", "--tied-epochs", TRAINING_GOES_ON, wanted->tied_epochs);
    training_checkpoint_set_integer(of, "pairs", "--pairs", TRAINING_WITHIN_EPOCH, run->epoch_pairs);
    training_checkpoint_set_number(of, "uniform", "--uniform", TRAINING_WITHIN_EPOCH, wanted->uniform);
    training_checkpoint_set_number(of, "power", "--power", TRAINING_WITHIN_EPOCH, wanted->power);
    training_checkpoint_set_hash(of, "counts", "DIR", TRAINING_WITHIN_EPOCH, words_hash(run->dictionary, true));
    return training_checkpoint_set_integer(of, "neighbours", "--neighbours", TRAINING_WITHIN_EPOCH, wanted->neighbours);
}

/* The last layer's rows of a checkpoint within a tied epoch are those of the epoch before: a run that makes use of them sets
 * them as the end of the epoch does. It has no --tied-epochs of its own. */
static shard_status set_rows_within_epoch(trainer *run)
{
    const char *path = run->options->training.resume;
    shard_metadata *found = NULL;
    shard_tensors_destroy(shard_inspect(path, &found));
    const char *epochs = found ? shard_metadata_get(found, "tied_epochs") : NULL;
    bool tied = epochs && run->base.at.epoch < strtoll(epochs, NULL, 10);
    shard_metadata_destroy(found);
    shard_status status = shard_agree(shard_world()); /* one rank alone may have failed to read it */
    return status == SHARD_OK && tied ? trainer_set_rows(run) : status;
}

/* ---- all of it ---- */

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted};
    training_run_begin(&run->base, &wanted->training, "pairs");
    if (wanted->correct) /* standard output has its lines alone */
        run->base.progress.shown = false;
    shard_status status = wanted->correct && shard_group_size(shard_world()) > 1
                              ? shard_error(SHARD_ERROR_ARGUMENT, "--correct is for one rank: leave shardrun out")
                              : open_data(run);
    if (status == SHARD_OK)
        status = make_network(run);
    if (status == SHARD_OK)
        status = make_samplers(run);
    if (status == SHARD_OK && options_train(wanted))
        status = make_optimizers(run);
    if (status == SHARD_OK)
        status = describe(run);
    if (status == SHARD_OK)
        introduce(run);
    if (status == SHARD_OK)
        status = training_run_resume(&run->base);
    if (status == SHARD_OK && options_train(wanted) && !run->base.resumed && wanted->tied_epochs == 0)
        status = trainer_set_rows(run);
    if (status == SHARD_OK && !options_train(wanted) && run->base.at.epoch_step > 0)
        status = set_rows_within_epoch(run);
    if (status == SHARD_OK)
        status = training_run_open_files(&run->base, run->dictionary->count);
    return status;
}

void trainer_close(trainer *run)
{
    shard_group_sampler_destroy(run->sampler);
    shard_group_sampler_destroy(run->test_sampler);
    shard_data_parallel_destroy(run->head_data_parallel);
    training_run_close(&run->base);
    pairs_destroy(run->pairs);
    words_close(run->dictionary);
    words_close_typed(run->test);
    free(run->samples);
    *run = (trainer){0};
}
