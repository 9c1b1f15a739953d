/* The command line: the table of its options, and which of them fit together. */
#include "options.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

#define AT(field) .offset = offsetof(options, field)

static const command_choice tokenizers[] = {{"char", OPTIONS_CHAR}, {"bpe", OPTIONS_BPE}, {NULL, 0}};
static const command_choice answers[] = {{"yes", true}, {"no", false}, {NULL, 0}};
static const command_choice types[] = {{"gpt2", 0},     {"gpt2-medium", 1}, {"gpt2-large", 2}, {"gpt2-xl", 3},
                                       {"gpt-mini", 4}, {"gpt-micro", 5},   {"gpt-nano", 6},   {NULL, 0}};

static const command_option table[] = {
    {COMMAND_HEADING, "Text", NULL},
    {COMMAND_CHOICE, "tokenizer",
     "char: a token is a character; bpe: bytes, of which the most frequent pairs of TEXT are merged, as GPT-2's", "KIND",
     AT(tokenizer), .choices = tokenizers},
    {COMMAND_WHOLE, "vocab-size", "tokens of --tokenizer bpe: 256 bytes, merges, and <|endoftext|>", "N", AT(vocab_size),
     .least = 257, .most = 1 << 24},

    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_CHOICE, "model-type", "gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt-mini, gpt-micro or gpt-nano", "TYPE",
     AT(model_type), .choices = types},
    {COMMAND_WHOLE, "n-layer", "layers of attention and MLP; 0: as --model-type", "N", AT(n_layer), .most = GPT_MOST_LAYERS},
    {COMMAND_WHOLE, "n-head", "heads of a layer; 0: as --model-type", "N", AT(n_head), .most = 1 << 20},
    {COMMAND_WHOLE, "n-embd", "features of a token, a multiple of the heads; 0: as --model-type", "N", AT(n_embd),
     .most = 1 << 20},
    {COMMAND_WHOLE, "block-size", "tokens that the model sees; 0: 128", "N", AT(block_size), .most = 1 << 24},
    {COMMAND_CHOICE, "tie-word-embeddings", "whether the head's weight is the token embedding's: yes or no", "ANSWER",
     AT(tie_word_embeddings), .choices = answers},
    {COMMAND_NUMBER, "embd-pdrop", "dropout of the embeddings", "P", AT(embd_pdrop), .most = 0.99},
    {COMMAND_NUMBER, "resid-pdrop", "dropout of attention's and MLP's results", "P", AT(resid_pdrop), .most = 0.99},
    {COMMAND_TEXT, "init-from",
     "begin with a model of Hugging Face's transformers, or of --output: config.json, model.safetensors, vocab.json and, for "
     "byte pairs, merges.txt",
     "DIR", AT(init_from)},
    {COMMAND_FLAG, "enable-model-parallel", "split the vocabulary, the heads and the MLP over ranks",
     AT(parallel.enable_model_parallel)},
    {COMMAND_WHOLE, "model-parallel-size", "ranks that one model is split over; 0: all. The rest is data parallel", "N",
     AT(parallel.model_parallel_size), .most = 1e6},

    {COMMAND_HEADING, "Computing", NULL},
    TRAINING_DEVICE_ROW(options, training),
    TRAINING_COMPUTING_ROWS(options, training),

    {COMMAND_HEADING, "Training", NULL},
    TRAINING_ROWS(options, training, "blocks"),
    {COMMAND_NUMBER, "beta2", "of Adam and AdamW", "X", AT(training.beta2), .least = 1e-9, .most = 0.999999999},
    {COMMAND_WHOLE, "accumulate", "a step's batch goes through the model in N parts, for less memory", "N", AT(accumulate),
     .least = 1, .most = 1e9},

    {COMMAND_HEADING, "Generation", NULL},
    {COMMAND_FLAG, "generate", "continue a text by the model of --init-from, and do not train", AT(generate)},
    {COMMAND_TEXT, "prompt", "the text; without it a line's end", "TEXT", AT(prompt)},
    {COMMAND_WHOLE, "max-new-tokens", "tokens that are added", "N", AT(max_new_tokens), .most = 1e9},
    {COMMAND_WHOLE, "num-samples", "continuations", "N", AT(num_samples), .least = 1, .most = 1e6},
    {COMMAND_FLAG, "do-sample", "draw each token by its probability, else take the most probable one", AT(do_sample)},
    {COMMAND_NUMBER, "temperature", "of --do-sample: logits are divided by it", "X", AT(temperature), .least = 1e-6, .most = 1e6},
    {COMMAND_WHOLE, "top-k", "of --do-sample: only the K most probable tokens; 0: all", "K", AT(top_k), .most = INT32_MAX},

    {COMMAND_HEADING, "Validation and files", NULL},
    TRAINING_VALIDATION_ROWS(options, training, "--resume or --init-from"),
    TRAINING_FILE_ROWS(options, training),
    TRAINING_SAVE_ASYNC_ROW(options, training),
    TRAINING_CHECK_REPLICAS_ROW(options, training),
    {COMMAND_HELP, "help", "print this", .letter = 'h', AT(help)},
};

static const options defaults = {
    .vocab_size = 4096,
    .model_type = 4,
    .tie_word_embeddings = true,
    .embd_pdrop = 0.1,
    .resid_pdrop = 0.1,
    .accumulate = 1,
    .training = {.bucket_mib = TRAINING_BUCKET_MIB,
                 .epochs = 1,
                 .batch = 64,
                 .optimizer = TRAINING_ADAMW,
                 .clip_grad = 1,
                 .lr = 0.0005,
                 .momentum = 0.9,
                 .beta2 = 0.95,
                 .weight_decay = 0.1,
                 .lr_schedule = SHARD_SCHEDULE_COSINE,
                 .lr_step_size = 30,
                 .val_interval = 1,
                 .print_freq = 10},
    .parallel = HEAD_DEFAULTS,
    .max_new_tokens = 200,
    .num_samples = 1,
    .temperature = 1,
};

const command_line options_line = {
    .options = table,
    .count = (int)(sizeof table / sizeof *table),
    .defaults = &defaults,
    .bytes = sizeof defaults,
    .operand = "TEXT",
    .operand_offset = offsetof(options, text),
    .usage = "Usage: mingpt [options] TEXT\n"
             "       shardrun -n 4 mingpt --enable-model-parallel [options] TEXT\n\n"
             "Trains a GPT on a text: a file, of which the last tenth is for validation, or a folder with train.txt and\n"
             "val.txt (projects/minGPT/prepare makes them of Debian's package descriptions) or with wikitext. Embedding,\n"
             "attention, MLP and head can be split over ranks. The same text is in the same step on any number of ranks.\n"
             "Files are those of GPT-2 in Hugging Face's transformers. With --generate it continues a text, and TEXT is left\n"
             "out. Defaults are in parentheses.\n",
    .closing = "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n",
};

static shard_status check_training(const options *parsed)
{
    const training_options *training = &parsed->training;
    if (!parsed->text)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a TEXT, a file or a folder; see --help");
    if (training->evaluate && !training->resume && !parsed->init_from)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs a model: give --resume its FILE, or --init-from its DIR");
    if (training->batch % parsed->accumulate)
        return shard_error(SHARD_ERROR_ARGUMENT, "--accumulate %" PRId64 " does not divide a --batch-size of %" PRId64,
                           parsed->accumulate, training->batch);
    return SHARD_OK;
}

static shard_status check_generation(const options *parsed)
{
    if (!parsed->init_from)
        return shard_error(SHARD_ERROR_ARGUMENT, "--generate needs a model: give --init-from its DIR");
    if (parsed->text)
        return shard_error(SHARD_ERROR_ARGUMENT, "--generate trains nothing: \"%s\" belongs to no option; see --prompt",
                           parsed->text);
    if (parsed->top_k && !parsed->do_sample)
        return shard_error(SHARD_ERROR_ARGUMENT, "--top-k needs --do-sample: without it the most probable token is taken");
    return SHARD_OK;
}

shard_status options_check(void *values)
{
    const options *parsed = values;
    shard_status status = training_options_check(&parsed->training);
    if (status == SHARD_OK)
        status = head_options_check(&parsed->parallel, &parsed->training);
    if (status != SHARD_OK)
        return status;
    return parsed->generate ? check_generation(parsed) : check_training(parsed);
}

static shard_status compare(const char *option, int64_t given, int64_t of_file)
{
    if (given == 0 || given == of_file)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "--%s %" PRId64 ": the model of --init-from has %" PRId64 "; leave the option out",
                       option, given, of_file);
}

static shard_status config_of_file(const options *wanted, int64_t vocab_size, gpt_config *config)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/config.json", wanted->init_from) >= (int)sizeof path)
        return shard_error(SHARD_ERROR_IO, "--init-from: a path of more than %d bytes", PATH_MAX - 1);
    shard_status status = config_read(config, path);
    if (status == SHARD_OK)
        status = compare("n-layer", wanted->n_layer, config->n_layer);
    if (status == SHARD_OK)
        status = compare("n-head", wanted->n_head, config->n_head);
    if (status == SHARD_OK)
        status = compare("n-embd", wanted->n_embd, config->n_embd);
    if (status == SHARD_OK)
        status = compare("block-size", wanted->block_size, config->block_size);
    if (status == SHARD_OK && vocab_size > config->vocab_size)
        status = shard_error(SHARD_ERROR_FORMAT, "%s: its vocab_size is %" PRId64 ", and vocab.json has %" PRId64 " tokens", path,
                             config->vocab_size, vocab_size);
    return status;
}

shard_status options_config(const options *wanted, int64_t vocab_size, gpt_config *config)
{
    shard_status status = SHARD_OK;
    if (wanted->init_from) {
        status = config_of_file(wanted, vocab_size, config);
    } else {
        const gpt_type_sizes *type = &gpt_types[wanted->model_type];
        *config = (gpt_config){.vocab_size = vocab_size,
                               .block_size = wanted->block_size ? wanted->block_size : 128,
                               .n_layer = wanted->n_layer ? wanted->n_layer : type->n_layer,
                               .n_head = wanted->n_head ? wanted->n_head : type->n_head,
                               .n_embd = wanted->n_embd ? wanted->n_embd : type->n_embd,
                               .layer_norm_epsilon = 1e-5,
                               .tie_word_embeddings = wanted->tie_word_embeddings};
    }
    config->embd_pdrop = wanted->embd_pdrop;
    config->resid_pdrop = wanted->resid_pdrop;
    if (status == SHARD_OK && config->n_embd % config->n_head)
        status = shard_error(SHARD_ERROR_ARGUMENT, "--n-embd %" PRId64 " is not a multiple of --n-head %" PRId64, config->n_embd,
                             config->n_head);
    return status;
}
