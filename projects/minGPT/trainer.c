/* Makes and destroys the objects of a run. */
#include "trainer.h"

#include "files.h"
#include "identical.h"
#include "description.h"
#include "hash.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the text ---- */

static tokenizer *make_tokenizer(const options *wanted, const text_sets *text)
{
    if (wanted->init_from)
        return tokenizer_open(wanted->init_from);
    if (wanted->tokenizer == OPTIONS_BPE)
        return tokenizer_of_pairs(text->text[TEXT_TRAIN], text->bytes[TEXT_TRAIN],
                                  wanted->vocab_size ? wanted->vocab_size : OPTIONS_VOCAB_SIZE);
    int64_t bytes;
    char *joined = text_join(text, &bytes);
    tokenizer *made = joined ? tokenizer_of_characters(joined, bytes) : NULL;
    free(joined);
    return made;
}

static void write_summary(const void *of, int64_t index, char *text)
{
    const trainer *run = of;
    uint64_t hash = tokenizer_hash(run->tokenizer);
    (void)index;
    for (int set = 0; set < TEXT_SETS; set++)
        for (int64_t i = 0; i < run->sets[set].count; i++)
            hash = hash_word(hash, (uint32_t)run->sets[set].token[i]);
    snprintf(text, IDENTICAL_BYTES, "%" PRId64 " and %" PRId64 " tokens of %" PRId64 ", hash %016" PRIx64,
             run->sets[TEXT_TRAIN].count, run->sets[TEXT_VAL].count, tokenizer_size(run->tokenizer), hash);
}

static shard_status open_text(trainer *run)
{
    text_sets text = {0};
    if (run->options->generate)
        run->tokenizer = tokenizer_open(run->options->init_from);
    else if (text_open(&text, run->options->text) == SHARD_OK)
        run->tokenizer = make_tokenizer(run->options, &text);
    for (int set = 0; set < TEXT_SETS && run->tokenizer && text.text[set]; set++) {
        run->sets[set].bytes = text.bytes[set];
        run->sets[set].token =
            tokenizer_encode(run->tokenizer, text.text[set], text.bytes[set], text.path[set], &run->sets[set].count);
        if (!run->sets[set].token)
            break;
    }
    text_close(&text);
    shard_status status = shard_agree(shard_world()); /* the file may be missing on one rank alone */
    if (status != SHARD_OK)
        return status;
    identical_list summary = {.count = 1, .write = write_summary, .of = run};
    return check_identical("the tokens of TEXT", "give all ranks the same files", summary);
}

/* Counts the blocks: of training those that fit at any shift, of validation all. An epoch has whole batches of all training
 * blocks in a random order, so that each epoch leaves other blocks out. */
static shard_status count_blocks(trainer *run)
{
    int64_t size = run->config.block_size, batch = run->options->training.batch;
    token_set *training = &run->sets[TEXT_TRAIN], *validation = &run->sets[TEXT_VAL];
    training->blocks = training->count > size ? (training->count - size) / size : 0;
    validation->blocks = (validation->count - 1) / size;
    if (validation->blocks == 0)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%" PRId64 " tokens for validation are less than a block of %" PRId64 " and a target: take a smaller "
                           "--block-size or a longer text",
                           validation->count, size);
    if (run->options->training.evaluate)
        return SHARD_OK;
    if (training->blocks < batch)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "%" PRId64 " tokens for training are %" PRId64 " blocks of %" PRId64
                           ", less than a --batch-size of %" PRId64,
                           training->count, training->blocks, size, batch);
    run->steps = training->blocks / batch;
    return SHARD_OK;
}

static shard_status make_samplers(trainer *run)
{
    const training_options *wanted = &run->options->training;
    int64_t part = wanted->batch / run->options->accumulate;
    shard_group *group = shard_mesh_data_group(run->base.mesh);
    if (count_blocks(run) != SHARD_OK)
        return shard_last_status();
    if (part < shard_group_size(group) && !wanted->evaluate)
        return shard_error(SHARD_ERROR_ARGUMENT,
                           "--batch-size and --accumulate: %" PRId64 " blocks at a time for %d ranks that are "
                           "data parallel; each needs one",
                           part, shard_group_size(group));
    if (!wanted->evaluate)
        run->sampler = shard_group_sampler_create(run->sets[TEXT_TRAIN].blocks, .batch = part, .group = group, .shuffle = true,
                                                  .seed = (uint64_t)wanted->seed, .last_batch = SHARD_LAST_BATCH_EXACT);
    run->val_sampler = shard_group_sampler_create(run->sets[TEXT_VAL].blocks, .batch = part, .group = group,
                                                  .last_batch = SHARD_LAST_BATCH_EXACT);
    run->blocks = calloc((size_t)part + 1, sizeof *run->blocks);
    if (!run->blocks)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for a batch of %" PRId64 " blocks", part);
    return shard_last_status();
}

shard_status trainer_blocks(const trainer *run, int set, int64_t shift, const int64_t *blocks, int64_t count,
                            shard_tensor **tokens, shard_tensor **targets)
{
    int64_t size = run->config.block_size, *number = calloc((size_t)(2 * count * size) + 1, sizeof *number);
    if (!number)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " blocks of %" PRId64 " tokens", count, size);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < size; k++) {
            const int32_t *token = run->sets[set].token + shift + blocks[i] * size + k;
            number[i * size + k] = token[0];
            number[(count + i) * size + k] = token[1];
        }
    *tokens = shard_from_host(number, SHARD_SHAPE(count, size), .dtype = SHARD_INT64);
    *targets = shard_from_host(number + count * size, SHARD_SHAPE(count, size), .dtype = SHARD_INT64);
    free(number);
    return shard_last_status();
}

/* ---- the network and its optimizers ---- */

/* Loads model.safetensors of --init-from, or the latest checkpoint: before a validation earlier versions had that alone. */
static shard_status load_network(trainer *run)
{
    static const char *const names[] = {"model.safetensors", "checkpoint.safetensors"};
    const char *folder = run->options->init_from;
    char path[2][PATH_MAX], newest[PATH_MAX];
    double having[2]; /* ranks that see the file: all take the same one */
    int64_t step;
    for (int i = 0; i < 2; i++) {
        if (files_join(path[i], "--init-from", folder, names[i]) != SHARD_OK)
            return shard_last_status();
        having[i] = access(path[i], F_OK) == 0;
    }
    if (training_sum(having, 2) != SHARD_OK)
        return shard_last_status();
    for (int i = 0; i < 2; i++)
        if (having[i] > 0)
            return gpt_load(run->base.model, path[i]);
    if (shard_latest_checkpoint(folder, INT64_MAX, &step, newest, sizeof newest) != SHARD_OK)
        return shard_last_status();
    if (step < 0)
        return shard_error(SHARD_ERROR_IO, "--init-from %s: there is no %s, %s or step-N/%s", folder, names[0], names[1],
                           names[1]);
    return gpt_load(run->base.model, newest);
}

static shard_status make_network(trainer *run)
{
    const options *wanted = run->options;
    options_config(wanted, run->tokenizer, &run->config);
    shard_status status = shard_agree(shard_world()); /* config.json may be malformed on one rank alone */
    if (status != SHARD_OK)
        return status;
    if (training_run_make_mesh(&run->base, &wanted->parallel) != SHARD_OK)
        return shard_last_status();
    run->base.model = gpt_make(&run->config, wanted->parallel.enable_model_parallel ? run->base.model_group : NULL);
    return run->base.model && wanted->init_from ? load_network(run) : shard_last_status();
}

/* Weight decay as minGPT: not of biases, layer norms and embeddings. */
static shard_status make_optimizers(trainer *run)
{
    const options *wanted = run->options;
    shard_tensors *all = shard_parameters(run->base.model), *decayed = shard_tensors_create(), *others = shard_tensors_create();
    for (int64_t i = 0; i < shard_tensors_count(all); i++) {
        const char *name = shard_tensors_name(all, i);
        bool embedding = strstr(name, "wte.") || strstr(name, "wpe.");
        shard_tensors_add(embedding ? others : decayed, name, shard_tensors_at(all, i));
    }
    shard_status status =
        training_optimizers_open(&run->base.optimizers, &wanted->training, &wanted->parallel, decayed, "lm_head.", run->steps);
    if (status == SHARD_OK)
        status = shard_optimizer_add_param_group(run->base.optimizers.of[0], others, .weight_decay = 0);
    if (status == SHARD_OK)
        run->base.data_parallel = shard_data_parallel_create(all, .bucket_mib = wanted->training.bucket_mib);
    shard_tensors_destroy(all);
    shard_tensors_destroy(decayed);
    shard_tensors_destroy(others);
    return shard_last_status();
}

static void introduce(trainer *run)
{
    const gpt_config *c = &run->config;
    int64_t own, parameters = training_count_parameters(run->base.model, &own);
    progress_say(&run->base.progress,
                 "%" PRId64 " tokens for training, %" PRId64 " for validation, of %" PRId64 " %s; %" PRId64 " blocks an epoch",
                 run->sets[TEXT_TRAIN].count, run->sets[TEXT_VAL].count, tokenizer_size(run->tokenizer),
                 run->tokenizer->has_pairs ? "byte pairs" : "characters", run->sets[TEXT_TRAIN].blocks);
    progress_say(&run->base.progress,
                 "%" PRId64 " layers, %" PRId64 " heads, %" PRId64 " features, blocks of %" PRId64 " tokens; %" PRId64
                 " parameters",
                 c->n_layer, c->n_head, c->n_embd, c->block_size, parameters);
    training_introduce_ranks(&run->base.progress, run->base.mesh, "");
}

/* ---- checkpoints ---- */

static shard_status describe(trainer *run)
{
    const options *wanted = run->options;
    const gpt_config *c = &run->config;
    training_checkpoint *of = &run->base.checkpoint;
    *of = (training_checkpoint){.options = &wanted->training,
                                .best_name = "best_probability",
                                .most_best = 100,
                                .epoch_steps = run->steps,
                                .latest_model = wanted->training.val_interval == 0};
    training_checkpoint_set(of, "arch", NULL, TRAINING_ALWAYS, "mingpt");
    training_checkpoint_set_integer(of, "n_layer", "--n-layer", TRAINING_ALWAYS, c->n_layer);
    training_checkpoint_set_integer(of, "n_head", "--n-head", TRAINING_ALWAYS, c->n_head);
    training_checkpoint_set_integer(of, "n_embd", "--n-embd", TRAINING_ALWAYS, c->n_embd);
    training_checkpoint_set_integer(of, "block_size", "--block-size", TRAINING_ALWAYS, c->block_size);
    training_checkpoint_set(of, "tie_word_embeddings", "--tie-word-embeddings", TRAINING_ALWAYS,
                            c->tie_word_embeddings ? "yes" : "no");
    training_checkpoint_set_hash(of, "vocabulary", "TEXT and --tokenizer", TRAINING_ALWAYS, tokenizer_hash(run->tokenizer));
    training_checkpoint_set_options(of, &wanted->parallel);
    training_checkpoint_set_integer(of, "accumulate", "--accumulate", TRAINING_WITHIN_EPOCH, wanted->accumulate);
    return training_checkpoint_set_integer(of, "train_tokens", "TEXT", TRAINING_WITHIN_EPOCH, run->sets[TEXT_TRAIN].count);
}

/* A checkpoint has the model in the layout of transformers, and the optimizer's state in that of the network. */
static shard_status resume(trainer *run)
{
    shard_tensors *all = gpt_export(run->base.model), *model = shard_tensors_create();
    shard_tensors_extend(model, "", all);
    training_optimizers_add_state(&run->base.optimizers, all, TRAINING_OPTIMIZER);
    shard_status status =
        training_checkpoint_resume(&run->base.checkpoint, all, &run->base.at, &run->base.resumed, &run->base.progress);
    if (status == SHARD_OK && (run->base.resumed || run->options->training.evaluate))
        status = gpt_import(run->base.model, model);
    shard_tensors_destroy(all);
    shard_tensors_destroy(model);
    return status;
}

/* The files that transformers needs next to model.safetensors. */
static shard_status save_description(const trainer *run)
{
    const char *output = run->options->training.output;
    if (output && shard_group_rank(shard_world()) == 0)
        description_save(&run->config, run->tokenizer, output);
    return shard_agree(shard_world());
}

/* ---- all of it ---- */

static shard_status open_files(trainer *run)
{
    shard_status status = describe(run);
    if (status == SHARD_OK)
        introduce(run);
    if (status == SHARD_OK && run->options->training.resume)
        status = resume(run);
    if (status == SHARD_OK)
        status = training_run_open_files(&run->base, run->config.vocab_size);
    return status == SHARD_OK ? save_description(run) : status;
}

shard_status trainer_open(trainer *run, const options *wanted)
{
    *run = (trainer){.options = wanted};
    training_run_begin(&run->base, &wanted->training, "tokens");
    shard_status status = open_text(run);
    if (status == SHARD_OK)
        status = make_network(run);
    if (status == SHARD_OK && wanted->generate)
        return shard_agree(shard_world());
    if (status == SHARD_OK)
        status = make_samplers(run);
    if (status == SHARD_OK && !wanted->training.evaluate)
        status = make_optimizers(run);
    if (status == SHARD_OK)
        status = open_files(run);
    return status;
}

void trainer_close(trainer *run)
{
    shard_group_sampler_destroy(run->sampler);
    shard_group_sampler_destroy(run->val_sampler);
    training_run_close(&run->base);
    tokenizer_close(run->tokenizer);
    for (int set = 0; set < TEXT_SETS; set++)
        free(run->sets[set].token);
    free(run->blocks);
    *run = (trainer){0};
}
