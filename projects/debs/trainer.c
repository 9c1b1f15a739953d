/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include "files.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

/* ---- data ---- */

static xmc_data *open_set(const options *wanted, const char *name)
{
    char path[PATH_MAX];
    return files_join(path, "DIR", wanted->directory, name) == SHARD_OK ? xmc_open(path) : NULL;
}

static shard_status open_data(trainer *run)
{
    const options *wanted = run->options;
    run->train = open_set(wanted, "train.txt");
    run->test = run->train ? open_set(wanted, "test.txt") : NULL;
    if (run->test && (run->train->features != run->test->features || run->train->labels != run->test->labels))
        shard_error(SHARD_ERROR_FORMAT,
                    "%s: train.txt has %" PRId64 " features and %" PRId64 " labels, test.txt %" PRId64 " and %" PRId64,
                    wanted->directory, run->train->features, run->train->labels, run->test->features, run->test->labels);
    else if (run->test && run->train->labels < MEASURES_TOP)
        shard_error(SHARD_ERROR_FORMAT, "%s: %" PRId64 " labels, and P@%d needs %d", wanted->directory, run->train->labels,
                    MEASURES_TOP, MEASURES_TOP);
    if (run->test)
        run->inverse = measures_inverse_propensities(run->train, wanted->propensity_a, wanted->propensity_b);
    shard_status status = shard_agree(shard_world()); /* one rank alone may have no file */
    if (status == SHARD_OK)
        status = xmc_check_identical(run->train, "train.txt");
    return status == SHARD_OK ? xmc_check_identical(run->test, "test.txt") : status;
}

static shard_status make_samplers(trainer *run)
{
    const training_options *wanted = &run->options->training;
    run->sampler = shard_group_sampler_create(run->train->points, .batch = wanted->batch, .group = shard_world(), .shuffle = true,
                                              .seed = (uint64_t)wanted->seed, .last_batch = SHARD_LAST_BATCH_EXACT);
    run->test_sampler = shard_group_sampler_create(run->test->points, .batch = wanted->batch, .group = shard_world(),
                                                   .last_batch = SHARD_LAST_BATCH_EXACT);
    int64_t of_train = shard_group_sampler_max_local_batch(run->sampler),
            of_test = shard_group_sampler_max_local_batch(run->test_sampler), most = of_train > of_test ? of_train : of_test;
    run->points = calloc((size_t)most + 1, sizeof *run->points);
    if (!run->points)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for a batch of %" PRId64 " points", most);
    return shard_last_status();
}

shard_tensor *trainer_features(trainer *run, const xmc_data *data, const int64_t *points, int64_t count, uint64_t dropout_key)
{
    const options *wanted = run->options;
    shard_tensor *x = NULL;
    SHARD_AUTOCAST((shard_dtype)wanted->training.amp)
    {
        x = network_features(run->base.model, wanted, data, points, count, dropout_key);
    }
    return shard_cast(shard_gather_from_group(x, 0, run->base.model_group), head_dtype(&wanted->head, &wanted->training));
}

/* ---- the network and what trains it ---- */

static shard_status make_network(trainer *run)
{
    const head_options *head = &run->options->head;
    if (training_run_make_mesh(&run->base, head) != SHARD_OK)
        return shard_last_status();
    run->base.model = network_make(run->options, run->train, head->enable_model_parallel ? run->base.model_group : NULL);
    return run->base.model ? SHARD_OK : shard_last_status();
}

static shard_status make_optimizers(trainer *run)
{
    const options *wanted = run->options;
    shard_tensors *parameters = shard_parameters(run->base.model);
    shard_status status = training_optimizers_open(&run->base.optimizers, &wanted->training, &wanted->head, parameters,
                                                   NETWORK_HEAD, shard_group_sampler_steps(run->sampler));
    if (status == SHARD_OK)
        run->base.data_parallel = shard_data_parallel_create(parameters, .bucket_mib = wanted->training.bucket_mib);
    shard_tensors_destroy(parameters);
    return shard_last_status();
}

static void introduce(trainer *run)
{
    int64_t own;
    progress_say(&run->base.progress,
                 "%" PRId64 " points for training, %" PRId64 " for validation; %" PRId64 " features, %" PRId64 " labels; %" PRId64
                 " parameters",
                 run->train->points, run->test->points, run->train->features, run->train->labels,
                 training_count_parameters(run->base.model, &own));
    training_introduce_ranks(&run->base.progress, run->base.mesh, "");
}

/* ---- checkpoints ---- */

static shard_status describe(trainer *run)
{
    const options *wanted = run->options;
    training_checkpoint *of = &run->base.checkpoint;
    *of = (training_checkpoint){.options = &wanted->training,
                                .best_name = "best_p1",
                                .most_best = 100,
                                .epoch_steps = wanted->training.evaluate ? 0 : shard_group_sampler_steps(run->sampler),
                                .latest_model = wanted->training.val_interval == 0};
    training_checkpoint_set(of, "arch", NULL, TRAINING_ALWAYS, "debs");
    training_checkpoint_set_integer(of, "hidden", "--hidden", TRAINING_ALWAYS, wanted->hidden);
    training_checkpoint_set_integer(of, "layers", "--layers", TRAINING_ALWAYS, wanted->layers);
    training_checkpoint_set_integer(of, "features", "DIR", TRAINING_ALWAYS, run->train->features);
    training_checkpoint_set_integer(of, "labels", "DIR", TRAINING_ALWAYS, run->train->labels);
    training_checkpoint_set_hash(of, "training_set", "DIR", TRAINING_ALWAYS, run->train->hash);
    training_checkpoint_set_missing(of, ""); /* in files of older trainers, as that of the two below */
    training_checkpoint_set_options(of, &wanted->head);
    training_checkpoint_set_number(of, "dropout", "--dropout", TRAINING_WITHIN_EPOCH, wanted->dropout);
    training_checkpoint_set_missing(of, "");
    training_checkpoint_set_number(of, "feature_dropout", "--feature-dropout", TRAINING_WITHIN_EPOCH, wanted->feature_dropout);
    training_checkpoint_set_missing(of, "");
    return training_checkpoint_set_integer(of, "points", "DIR", TRAINING_WITHIN_EPOCH, run->train->points);
}

/* ---- all of it ---- */

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted};
    training_run_begin(&run->base, &wanted->training, "points");
    shard_status status = open_data(run);
    if (status == SHARD_OK)
        status = make_network(run);
    if (status == SHARD_OK)
        status = make_samplers(run);
    if (status == SHARD_OK && !wanted->training.evaluate)
        status = make_optimizers(run);
    if (status == SHARD_OK)
        status = describe(run);
    if (status == SHARD_OK)
        introduce(run);
    if (status == SHARD_OK)
        status = training_run_resume(&run->base);
    if (status == SHARD_OK)
        status = training_run_open_files(&run->base, run->train->labels);
    return status;
}

void trainer_close(trainer *run)
{
    shard_group_sampler_destroy(run->sampler);
    shard_group_sampler_destroy(run->test_sampler);
    training_run_close(&run->base);
    xmc_close(run->train);
    xmc_close(run->test);
    free(run->inverse);
    free(run->points);
    *run = (trainer){0};
}
