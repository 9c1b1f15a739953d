/* The command line: the table of its options, and which of them fit together. */
#include "options.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#define AT(field) .offset = offsetof(options, field)

#define GPT_MINI 4 /* in gpt_types */
#define BETA2 0.95

static const command_choice tokenizers[] = {{"auto", OPTIONS_AUTO}, {"char", OPTIONS_CHAR}, {"bpe", OPTIONS_BPE}, {NULL, 0}};
static const command_choice answers[] = {{"auto", OPTIONS_AUTO}, {"yes", true}, {"no", false}, {NULL, 0}};
static const command_choice types[] = {{"auto", OPTIONS_AUTO}, {"gpt2", 0},     {"gpt2-medium", 1},
                                       {"gpt2-large", 2},      {"gpt2-xl", 3},  {"gpt-mini", GPT_MINI},
                                       {"gpt-micro", 5},       {"gpt-nano", 6}, {NULL, 0}};

static const command_option table[] = {
    {COMMAND_HEADING, "Text", NULL},
    {COMMAND_CHOICE, "tokenizer",
     "char: a token is a character; bpe: bytes, of which the most frequent pairs of TEXT are merged, as GPT-2's; auto: that of "
     "--init-from, else char",
     "KIND", AT(tokenizer), .choices = tokenizers},
    {COMMAND_WHOLE, "vocab-size",
     "tokens of --tokenizer bpe: 256 bytes, merges, and <|endoftext|>; 0: those of --init-from, else 4096", "N", AT(vocab_size),
     .most = 1 << 24},

    {COMMAND_HEADING, "Model", NULL},
    {COMMAND_CHOICE, "model-type",
     "gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt-mini, gpt-micro or gpt-nano; auto: the sizes of --init-from, else gpt-mini",
     "TYPE", AT(model_type), .choices = types},
    {COMMAND_WHOLE, "n-layer", "layers of attention and MLP; 0: as --model-type", "N", AT(n_layer), .most = GPT_MOST_LAYERS},
    {COMMAND_WHOLE, "n-head", "heads of a layer; 0: as --model-type", "N", AT(n_head), .most = 1 << 20},
    {COMMAND_WHOLE, "n-embd", "features of a token, a multiple of the heads; 0: as --model-type", "N", AT(n_embd),
     .most = 1 << 20},
    {COMMAND_WHOLE, "block-size", "tokens that the model sees; 0: those of --init-from, else 128", "N", AT(block_size),
     .most = 1 << 24},
    {COMMAND_CHOICE, "tie-word-embeddings",
     "whether the head's weight is the token embedding's: yes or no; auto: as in --init-from, else yes", "ANSWER",
     AT(tie_word_embeddings), .choices = answers},
    {COMMAND_NUMBER, "embd-pdrop", "dropout of the embeddings; -1: that of --init-from, else 0.1", "P", AT(embd_pdrop),
     .least = OPTIONS_AUTO, .most = GPT_MOST_DROPOUT},
    {COMMAND_NUMBER, "resid-pdrop", "dropout of attention's and MLP's results; -1: that of --init-from, else 0.1", "P",
     AT(resid_pdrop), .least = OPTIONS_AUTO, .most = GPT_MOST_DROPOUT},
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
    TRAINING_NON_FINITE_ROW(options, training),
    {COMMAND_NUMBER, "beta2", "of Adam, AdamW and LAMB", "X", AT(training.beta2), .least = 1e-9, .most = 0.999999999},
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
    .tokenizer = OPTIONS_AUTO,
    .model_type = OPTIONS_AUTO,
    .tie_word_embeddings = OPTIONS_AUTO,
    .embd_pdrop = OPTIONS_AUTO,
    .resid_pdrop = OPTIONS_AUTO,
    .accumulate = 1,
    .training = {TRAINING_DEFAULTS, .epochs = 1, .batch = 64, .optimizer = TRAINING_ADAMW, .clip_grad = 1, .lr = 0.0005,
                 .beta2 = BETA2, .weight_decay = 0.1, .lr_schedule = SHARD_SCHEDULE_COSINE},
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
             "  or:  shardrun -n 4 mingpt --enable-model-parallel [options] TEXT\n\n"
             "Trains a GPT on a text: a file, of which the last tenth is for validation, or a folder with train.txt and\n"
             "val.txt (projects/minGPT/prepare makes them of Debian's package descriptions) or with wikitext. Embedding,\n"
             "attention, MLP and head can be split over ranks. The same text is in the same step on any number of ranks.\n"
             "Files are those of GPT-2 in Hugging Face's transformers. With --generate it continues a text, and TEXT is left\n"
             "out. Defaults are in parentheses.\n",
    .closing = "\nCtrl-C finishes the step, saves a checkpoint if there is an --output, and ends; a second one ends at once.\n"
               "With --generate it prints the text as far as it is, and ends.\n",
};

/* ---- options of training and of generation ---- */

/* Options that --generate has for itself, and those of training that it has, too. */
static const char *const of_generation[] = {"generate",  "prompt",      "max-new-tokens", "num-samples",
                                            "do-sample", "temperature", "top-k",          NULL};
static const char *const of_both[] = {"tokenizer",
                                      "vocab-size",
                                      "model-type",
                                      "n-layer",
                                      "n-head",
                                      "n-embd",
                                      "block-size",
                                      "tie-word-embeddings",
                                      "init-from",
                                      "device",
                                      "enable-model-parallel",
                                      "model-parallel-size",
                                      "seed",
                                      "help",
                                      "enable-amp-mode",
                                      "memory-report",
                                      NULL};

static bool is_among(const char *name, const char *const *names)
{
    while (*names && strcmp(*names, name) != 0)
        names++;
    return *names != NULL;
}

/* Whether an option has another value than its default. offset: of its struct in the options. */
static bool is_set(const options *parsed, const command_option *option, size_t offset)
{
    static const size_t bytes[] = {
        [COMMAND_FLAG] = sizeof(bool),
        [COMMAND_HELP] = sizeof(bool),
        [COMMAND_TEXT] = sizeof(const char *),
        [COMMAND_WHOLE] = sizeof(int64_t),
        [COMMAND_NUMBER] = sizeof(double),
        [COMMAND_CHOICE] = sizeof(int),
        [COMMAND_ROWS] = 0,
    };
    offset += option->offset;
    return memcmp((const char *)parsed + offset, (const char *)&defaults + offset, bytes[option->kind]) != 0;
}

/* The first of the options that are set and that `refused` is true of; NULL: none. */
static const char *find_set(const options *parsed, bool (*refused)(const char *name))
{
    static const command_option none = {0};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        bool whole = table[i].kind == COMMAND_ROWS;
        for (const command_option *row = whole ? table[i].rows : &table[i]; row->name; row = whole ? row + 1 : &none)
            if (row->kind != COMMAND_HEADING && is_set(parsed, row, whole ? table[i].offset : 0) && refused(row->name))
                return row->name;
    }
    return NULL;
}

static bool is_of_generation(const char *name)
{
    return is_among(name, of_generation);
}

static bool is_of_training(const char *name)
{
    return !is_among(name, of_generation) && !is_among(name, of_both);
}

static shard_status check_training(const options *parsed)
{
    const training_options *training = &parsed->training;
    const char *other = find_set(parsed, is_of_generation);
    if (other)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s needs --generate: without it TEXT is trained on", other);
    if (!parsed->text)
        return shard_error(SHARD_ERROR_ARGUMENT, "give a TEXT, a file or a folder; see --help");
    if (training->evaluate && !training->resume && !parsed->init_from)
        return shard_error(SHARD_ERROR_ARGUMENT, "--evaluate needs a model: give --resume its FILE, or --init-from its DIR");
    if (training->beta2 != BETA2 && (training->optimizer == TRAINING_SGD || training->optimizer == TRAINING_LARS))
        return shard_error(SHARD_ERROR_ARGUMENT, "--beta2 needs --optimizer adam, adamw or lamb; leave it out");
    if (training->batch % parsed->accumulate)
        return shard_error(SHARD_ERROR_ARGUMENT, "--accumulate %" PRId64 " does not divide a --batch-size of %" PRId64,
                           parsed->accumulate, training->batch);
    return SHARD_OK;
}

static shard_status check_generation(const options *parsed)
{
    const char *other = find_set(parsed, is_of_training);
    if (!parsed->init_from)
        return shard_error(SHARD_ERROR_ARGUMENT, "--generate needs a model: give --init-from its DIR");
    if (parsed->text)
        return shard_error(SHARD_ERROR_ARGUMENT, "--generate trains nothing: \"%s\" belongs to no option; see --prompt",
                           parsed->text);
    if (other)
        return shard_error(SHARD_ERROR_ARGUMENT, "--%s is of training: leave it out with --generate", other);
    if (parsed->temperature != defaults.temperature && !parsed->do_sample)
        return shard_error(SHARD_ERROR_ARGUMENT, "--temperature needs --do-sample: without it the most probable token is taken");
    if (parsed->top_k && !parsed->do_sample)
        return shard_error(SHARD_ERROR_ARGUMENT, "--top-k needs --do-sample: without it the most probable token is taken");
    return SHARD_OK;
}

/* ARGUMENT for options that no other one makes a use of. */
static shard_status check_model(const options *parsed)
{
    const double drop[] = {parsed->embd_pdrop, parsed->resid_pdrop};
    for (int i = 0; i < 2; i++)
        if (drop[i] < 0 && drop[i] != OPTIONS_AUTO)
            return shard_error(SHARD_ERROR_ARGUMENT, "--%s %g: not a number from 0 to %g, or -1",
                               i ? "resid-pdrop" : "embd-pdrop", drop[i], GPT_MOST_DROPOUT);
    if (parsed->vocab_size && !parsed->init_from && parsed->tokenizer != OPTIONS_BPE)
        return shard_error(SHARD_ERROR_ARGUMENT, "--vocab-size needs --tokenizer bpe: characters are those of TEXT");
    return SHARD_OK;
}

shard_status options_check(void *values)
{
    const options *parsed = values;
    shard_status status = training_options_check(&parsed->training);
    if (status == SHARD_OK)
        status = head_options_check(&parsed->parallel, &parsed->training);
    if (status == SHARD_OK)
        status = check_model(parsed);
    if (status != SHARD_OK)
        return status;
    return parsed->generate ? check_generation(parsed) : check_training(parsed);
}

/* ---- the network ---- */

static shard_status compare(const char *option, int64_t given, int64_t of_file)
{
    if (given == 0 || given == of_file)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "--%s %" PRId64 ": the model of --init-from has %" PRId64 "; leave the option out",
                       option, given, of_file);
}

/* The same of an option that is a choice. */
static shard_status compare_choice(const char *option, const command_choice *choices, int given, int of_file)
{
    if (given == OPTIONS_AUTO || given == of_file)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "--%s %s: the model of --init-from has %s; leave the option out", option,
                       command_choice_name(choices, given), command_choice_name(choices, of_file));
}

/* The sizes of the options: each its own, or that of the model type. */
static void take_sizes(const options *wanted, int type, gpt_config *config)
{
    config->n_layer = wanted->n_layer ? wanted->n_layer : gpt_types[type].n_layer;
    config->n_head = wanted->n_head ? wanted->n_head : gpt_types[type].n_head;
    config->n_embd = wanted->n_embd ? wanted->n_embd : gpt_types[type].n_embd;
}

static shard_status compare_type(const options *wanted, const gpt_config *config)
{
    gpt_config given;
    if (wanted->model_type == OPTIONS_AUTO)
        return SHARD_OK;
    take_sizes(wanted, wanted->model_type, &given);
    if (given.n_layer == config->n_layer && given.n_head == config->n_head && given.n_embd == config->n_embd)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "--model-type %s: the model of --init-from has %" PRId64 " layers, %" PRId64 " heads and %" PRId64
                       " features; leave the option out",
                       gpt_types[wanted->model_type].name, config->n_layer, config->n_head, config->n_embd);
}

static shard_status config_of_file(const options *wanted, const tokenizer *tokens, gpt_config *config)
{
    char path[PATH_MAX];
    int64_t count = tokenizer_size(tokens);
    if (snprintf(path, sizeof path, "%s/config.json", wanted->init_from) >= (int)sizeof path)
        return shard_error(SHARD_ERROR_IO, "--init-from: a path of more than %d bytes", PATH_MAX - 1);
    shard_status status = config_read(config, path);
    if (status == SHARD_OK)
        status = compare_choice("tokenizer", tokenizers, wanted->tokenizer, tokens->has_pairs ? OPTIONS_BPE : OPTIONS_CHAR);
    if (status == SHARD_OK)
        status = compare("vocab-size", wanted->vocab_size, count);
    if (status == SHARD_OK)
        status = compare("n-layer", wanted->n_layer, config->n_layer);
    if (status == SHARD_OK)
        status = compare("n-head", wanted->n_head, config->n_head);
    if (status == SHARD_OK)
        status = compare("n-embd", wanted->n_embd, config->n_embd);
    if (status == SHARD_OK)
        status = compare("block-size", wanted->block_size, config->block_size);
    if (status == SHARD_OK)
        status = compare_type(wanted, config);
    if (status == SHARD_OK)
        status = compare_choice("tie-word-embeddings", answers, wanted->tie_word_embeddings, config->tie_word_embeddings);
    if (status == SHARD_OK && count > config->vocab_size)
        status = shard_error(SHARD_ERROR_FORMAT, "%s: its vocab_size is %" PRId64 ", and vocab.json has %" PRId64 " tokens", path,
                             config->vocab_size, count);
    return status;
}

shard_status options_config(const options *wanted, const tokenizer *tokens, gpt_config *config)
{
    shard_status status = SHARD_OK;
    if (wanted->init_from) {
        status = config_of_file(wanted, tokens, config);
    } else {
        *config = (gpt_config){.vocab_size = tokenizer_size(tokens),
                               .block_size = wanted->block_size ? wanted->block_size : 128,
                               .embd_pdrop = GPT_DROPOUT,
                               .resid_pdrop = GPT_DROPOUT,
                               .layer_norm_epsilon = 1e-5,
                               .tie_word_embeddings = wanted->tie_word_embeddings != false};
        take_sizes(wanted, wanted->model_type == OPTIONS_AUTO ? GPT_MINI : wanted->model_type, config);
    }
    if (wanted->embd_pdrop != OPTIONS_AUTO)
        config->embd_pdrop = wanted->embd_pdrop;
    if (wanted->resid_pdrop != OPTIONS_AUTO)
        config->resid_pdrop = wanted->resid_pdrop;
    if (status == SHARD_OK && config->n_embd % config->n_head)
        status = shard_error(SHARD_ERROR_ARGUMENT, "--n-embd %" PRId64 " is not a multiple of --n-head %" PRId64, config->n_embd,
                             config->n_head);
    return status;
}
