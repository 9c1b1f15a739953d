/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- data ---- */

static shard_status write_path(const options *wanted, const char *name, char *path)
{
    if (snprintf(path, PATH_MAX, "%s/%s", wanted->directory, name) < PATH_MAX)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_IO, "DIR: a path of more than %d bytes", PATH_MAX - 1);
}

static bool trains(const trainer *run)
{
    return !run->options->evaluate && !run->options->correct;
}

static shard_status open_data(trainer *run)
{
    const options *wanted = run->options;
    char path[PATH_MAX];
    if (write_path(wanted, "words.txt", path) == SHARD_OK)
        run->dictionary = words_open(path);
    if (run->dictionary && !wanted->correct && write_path(wanted, "test.txt", path) == SHARD_OK &&
        (access(path, F_OK) == 0 || wanted->evaluate))
        run->test = words_open_typed(path, run->dictionary);
    if (shard_last_status() == SHARD_OK)
        run->pairs = pairs_create(run->dictionary, wanted->uniform, wanted->power, (uint64_t)wanted->training.seed);
    shard_status status = shard_agree(shard_world()); /* one rank alone may have no file */
    return status == SHARD_OK ? words_agree(run->dictionary, run->test) : status;
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

int64_t *trainer_gather_samples(trainer *run, const int64_t *samples, int64_t count, int64_t *all)
{
    int64_t *gathered = NULL;
    *all = 0;
    SHARD_SCOPE
    {
        shard_tensor *own =
            shard_from_host(samples, SHARD_SHAPE(count), .dtype = SHARD_INT64, .device = shard_device_open("cpu"));
        shard_tensor *whole = shard_gather_from_group(own, 0, run->model_group);
        *all = whole ? shard_numel(whole) : 0;
        gathered = whole ? calloc((size_t)*all + 1, sizeof *gathered) : NULL;
        if (whole && !gathered)
            shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " samples", *all);
        if (gathered)
            shard_copy_to_host(whole, gathered, (size_t)*all * sizeof *gathered);
    }
    if (shard_last_status() == SHARD_OK)
        return gathered;
    free(gathered);
    return NULL;
}

shard_tensor *trainer_features(trainer *run, const char *const *word, int64_t count)
{
    shard_tensor *x = shard_scale(network_encode(run->network, word, count), run->options->scale);
    return shard_gather_from_group(x, 0, run->model_group);
}

shard_status trainer_sum(double *numbers, int64_t count)
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

/* ---- the network and what trains it ---- */

static shard_status make_network(trainer *run)
{
    const head_options *head = &run->options->head;
    int ranks = shard_group_size(shard_world());
    int size = !head->enable_model_parallel ? 1 : head->model_parallel_size ? (int)head->model_parallel_size : ranks;
    run->mesh = shard_mesh_create(.model = size);
    run->model_group = shard_mesh_model_group(run->mesh);
    if (!run->mesh)
        return shard_last_status();
    shard_manual_seed((uint64_t)run->options->training.seed);
    run->network = network_make(run->options, run->pairs, head->enable_model_parallel ? run->model_group : NULL);
    return run->network ? SHARD_OK : shard_last_status();
}

/* The final layer's optimizer is one of its own, as it does not step while rows are tied. */
static shard_status make_optimizers(trainer *run)
{
    const training_options *wanted = &run->options->training;
    head_options head = run->options->head;
    head.lr = head.lr > 0 ? head.lr : wanted->lr;
    shard_tensors *parameters = shard_parameters(run->network);
    shard_status status = training_optimizers_open(&run->optimizers, wanted, &head, parameters, NETWORK_HEAD,
                                                   shard_group_sampler_steps(run->sampler));
    if (status == SHARD_OK)
        run->data_parallel = shard_data_parallel_create(parameters);
    shard_tensors_destroy(parameters);
    return shard_last_status();
}

/* The whole network's parameters, and those of this rank. */
static int64_t count_parameters(const trainer *run, int64_t *own)
{
    shard_tensors *parameters = shard_parameters(run->network);
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

static void introduce(trainer *run)
{
    int64_t own;
    int ranks = shard_group_size(shard_world()), model = shard_group_size(run->model_group);
    progress_say(&run->progress,
                 "%" PRId64 " words; %" PRId64 " pairs an epoch, %" PRId64 " misspelled words for validation; %" PRId64
                 " parameters",
                 run->dictionary->count, run->epoch_pairs, run->test ? run->test->count : 0, count_parameters(run, &own));
    if (ranks > 1)
        progress_say(&run->progress, "%d ranks (%s): %d data parallel x %d model parallel", ranks,
                     shard_group_transport(shard_world()), ranks / model, model);
}

bool trainer_is_tied(const trainer *run)
{
    return run->at.epoch < run->options->tied_epochs;
}

/* ---- checkpoints ---- */

static void set_number(training_checkpoint *of, const char *name, const char *option, training_when when, double value)
{
    char text[64];
    snprintf(text, sizeof text, "%.17g", value);
    training_checkpoint_set(of, name, option, when, text);
}

static shard_status describe(trainer *run)
{
    static const char *const roundings[] = {"nearest", "stochastic", "kahan"};
    const options *wanted = run->options;
    const training_options *training = &wanted->training;
    training_checkpoint *of = &run->checkpoint;
    *of = (training_checkpoint){.options = training,
                                .best_name = "best_top1",
                                .most_best = 100,
                                .epoch_steps = trains(run) ? shard_group_sampler_steps(run->sampler) : 0};
    bool half = wanted->head.dtype == SHARD_BFLOAT16;
    training_checkpoint_set(of, "arch", NULL, TRAINING_ALWAYS, "spell");
    training_checkpoint_set_integer(of, "features", "--features", TRAINING_ALWAYS, wanted->features);
    training_checkpoint_set_integer(of, "dim", "--dim", TRAINING_ALWAYS, wanted->dim);
    training_checkpoint_set_integer(of, "channels", "--channels", TRAINING_ALWAYS, wanted->channels);
    training_checkpoint_set_integer(of, "words", "DIR", TRAINING_ALWAYS, run->dictionary->count);
    set_number(of, "scale", "--scale", TRAINING_ALWAYS, wanted->scale);
    training_checkpoint_set(of, "optimizer", "--optimizer", TRAINING_GOES_ON, training_optimizer_name(training));
    training_checkpoint_set(of, "head_optimizer", "--head-optimizer", TRAINING_GOES_ON,
                            head_optimizer_name(&wanted->head, training));
    training_checkpoint_set(of, "head_dtype", "--head-dtype", TRAINING_GOES_ON,
                            shard_dtype_name((shard_dtype)wanted->head.dtype));
    training_checkpoint_set(of, "head_rounding", "--head-rounding", TRAINING_GOES_ON,
                            half ? roundings[wanted->head.rounding] : "none");
    training_checkpoint_set_integer(of, "batch_size", "--batch-size", TRAINING_WITHIN_EPOCH, training->batch);
    training_checkpoint_set_integer(of, "seed", "--seed", TRAINING_WITHIN_EPOCH, training->seed);
    training_checkpoint_set_integer(of, "pairs", "--pairs", TRAINING_WITHIN_EPOCH, run->epoch_pairs);
    set_number(of, "uniform", "--uniform", TRAINING_WITHIN_EPOCH, wanted->uniform);
    set_number(of, "power", "--power", TRAINING_WITHIN_EPOCH, wanted->power);
    training_checkpoint_set_integer(of, "neighbours", "--neighbours", TRAINING_WITHIN_EPOCH, wanted->neighbours);
    return training_checkpoint_set_integer(of, "tied_epochs", "--tied-epochs", TRAINING_GOES_ON, wanted->tied_epochs);
}

/* The network's tensors, and the optimizers' if there are any. */
static shard_tensors *collect(const trainer *run)
{
    shard_tensors *all = shard_state_dict(run->network);
    training_optimizers_add_state(&run->optimizers, all, "optimizer.");
    return all;
}

shard_status trainer_save(trainer *run, bool best)
{
    shard_tensors *all = collect(run), *model = shard_state_dict(run->network);
    shard_status status = shard_last_status();
    if (status == SHARD_OK)
        status = training_checkpoint_save(&run->checkpoint, all, model, &run->at, best);
    shard_tensors_destroy(all);
    shard_tensors_destroy(model);
    return status;
}

static shard_status resume(trainer *run)
{
    shard_tensors *all = collect(run);
    shard_status status = training_checkpoint_resume(&run->checkpoint, all, &run->at, &run->resumed, &run->progress);
    shard_tensors_destroy(all);
    return status;
}

/* ---- all of it ---- */

static shard_status open_metrics(trainer *run)
{
    const training_options *wanted = &run->options->training;
    metrics_model model = {.num_classes = run->dictionary->count, .samples = "pairs"};
    count_parameters(run, &model.local_parameters);
    metrics_options files = {.path = wanted->metrics, .tensorboard = wanted->tensorboard, .append = run->resumed && trains(run)};
    run->metrics = metrics_open(files, model);
    return run->metrics ? SHARD_OK : shard_last_status();
}

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted, .at.best = -1, .progress = progress_start(wanted->training.print_freq)};
    shard_status status = wanted->correct && shard_group_size(shard_world()) > 1
                              ? shard_error(SHARD_ERROR_ARGUMENT, "--correct is for one rank: leave shardrun out")
                              : open_data(run);
    if (status == SHARD_OK)
        status = make_network(run);
    if (status == SHARD_OK)
        status = make_samplers(run);
    if (status == SHARD_OK && trains(run))
        status = make_optimizers(run);
    if (status == SHARD_OK)
        status = describe(run);
    if (status == SHARD_OK && !wanted->correct)
        introduce(run);
    if (status == SHARD_OK && wanted->training.resume)
        status = resume(run);
    if (status == SHARD_OK && trains(run) && !run->resumed && wanted->tied_epochs == 0)
        status = network_set_rows(run->network, run->dictionary);
    if (status == SHARD_OK)
        status = training_checkpoint_prepare(&run->checkpoint, &run->at);
    if (status == SHARD_OK)
        status = open_metrics(run);
    return status == SHARD_OK ? shard_agree(shard_world()) : status;
}

void trainer_close(trainer *run)
{
    metrics_close(run->metrics);
    training_optimizers_close(&run->optimizers);
    shard_data_parallel_destroy(run->data_parallel);
    shard_module_destroy(run->network);
    shard_group_sampler_destroy(run->sampler);
    shard_group_sampler_destroy(run->test_sampler);
    shard_mesh_destroy(run->mesh);
    pairs_destroy(run->pairs);
    words_close(run->dictionary);
    words_close_typed(run->test);
    free(run->samples);
    *run = (trainer){0};
}
