#include "config.h"

#include "json.h"
#include "text.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const gpt_type_sizes gpt_types[] = {
    {"gpt2", 12, 12, 768},   {"gpt2-medium", 24, 16, 1024}, {"gpt2-large", 36, 20, 1280}, {"gpt2-xl", 48, 25, 1600},
    {"gpt-mini", 6, 6, 192}, {"gpt-micro", 4, 4, 128},      {"gpt-nano", 3, 3, 48},       {NULL, 0, 0, 0},
};

/* Members that are numbers, with those that GPT2Config has where a file lacks them. */
typedef struct member {
    const char *name;
    size_t offset;
    bool whole;
    double least, most, missing;
} member;

static const member members[] = {
    {"vocab_size", offsetof(gpt_config, vocab_size), true, 1, INT32_MAX, 50257},
    {"n_positions", offsetof(gpt_config, block_size), true, 1, INT32_MAX, 1024},
    {"n_layer", offsetof(gpt_config, n_layer), true, 1, GPT_MOST_LAYERS, 12},
    {"n_head", offsetof(gpt_config, n_head), true, 1, 1 << 20, 12},
    {"n_embd", offsetof(gpt_config, n_embd), true, 1, 1 << 20, 768},
    {"embd_pdrop", offsetof(gpt_config, embd_pdrop), false, 0, 1, 0.1},
    {"resid_pdrop", offsetof(gpt_config, resid_pdrop), false, 0, 1, 0.1},
    {"layer_norm_epsilon", offsetof(gpt_config, layer_norm_epsilon), false, 0, 1, 1e-5},
};
#define MEMBERS (sizeof members / sizeof *members)

/* Members whose other values are of another network. */
static const struct {
    const char *name, *value;
} fixed[] = {
    {"model_type", "gpt2"},           {"activation_function", "gelu_new"},
    {"scale_attn_weights", "true"},   {"scale_attn_by_inverse_layer_idx", "false"},
    {"add_cross_attention", "false"},
};

static void set(gpt_config *config, const member *of, double value)
{
    void *field = (char *)config + of->offset;
    if (of->whole)
        *(int64_t *)field = (int64_t)value;
    else
        *(double *)field = value;
}

/* The value of a member of `fixed`, as text. */
static shard_status check_fixed(json *reader, const char *name, const char *wanted)
{
    char kind = json_kind(reader);
    const char *value = kind == '"'                  ? json_string(reader, NULL)
                        : kind == 't' || kind == 'f' ? (json_truth(reader) ? "true" : "false")
                                                     : NULL;
    if (reader->failed)
        return shard_last_status();
    if (!value || strcmp(value, wanted) != 0)
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: its %s is %s, and this program has %s alone", reader->path, name,
                           value ? value : "another value", wanted);
    return SHARD_OK;
}

static shard_status read_member(gpt_config *config, json *reader, const char *name, int64_t *n_inner)
{
    for (size_t i = 0; i < MEMBERS; i++) {
        if (strcmp(name, members[i].name) != 0)
            continue;
        double value = json_number(reader);
        if (reader->failed)
            return shard_last_status();
        if (!(value >= members[i].least && value <= members[i].most) || (members[i].whole && value != floor(value)))
            return shard_error(SHARD_ERROR_FORMAT, "%s: its %s is %g, not a number from %g to %g", reader->path, members[i].name,
                               value, members[i].least, members[i].most);
        set(config, &members[i], value);
        return SHARD_OK;
    }
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (strcmp(name, fixed[i].name) == 0)
            return check_fixed(reader, fixed[i].name, fixed[i].value);
    if (strcmp(name, "tie_word_embeddings") == 0)
        config->tie_word_embeddings = json_truth(reader);
    else if (strcmp(name, "n_inner") == 0 && json_kind(reader) == '0')
        *n_inner = (int64_t)json_number(reader);
    else
        json_skip(reader);
    return reader->failed ? shard_last_status() : SHARD_OK;
}

shard_status config_read(gpt_config *config, const char *path)
{
    int64_t bytes, n_inner = 0;
    char *text = text_read(path, &bytes);
    if (!text)
        return shard_last_status();
    *config = (gpt_config){.tie_word_embeddings = true};
    for (size_t i = 0; i < MEMBERS; i++)
        set(config, &members[i], members[i].missing);
    json reader = json_of(text, bytes, path);
    const char *name;
    shard_status status = SHARD_OK;
    json_open(&reader, '{');
    while (status == SHARD_OK && json_next(&reader, '}', &name))
        status = read_member(config, &reader, name, &n_inner);
    if (reader.failed)
        status = shard_last_status();
    if (status == SHARD_OK && config->n_embd % config->n_head)
        status = shard_error(SHARD_ERROR_FORMAT, "%s: its n_embd, %" PRId64 ", is not a multiple of its n_head, %" PRId64, path,
                             config->n_embd, config->n_head);
    if (status == SHARD_OK && n_inner && n_inner != 4 * config->n_embd)
        status = shard_error(SHARD_ERROR_UNSUPPORTED, "%s: its n_inner is %" PRId64 ", and this program has 4 n_embd alone", path,
                             n_inner);
    json_close(&reader);
    free(text);
    return status;
}

/* The shortest text that reads back to the same bits. */
static const char *number_text(char *text, size_t bytes, double value)
{
    snprintf(text, bytes, "%g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, bytes, "%.17g", value);
    return text;
}

shard_status config_write(const gpt_config *config, const char *path, int64_t end_of_text)
{
    char embd[32], resid[32], epsilon[32];
    FILE *file = fopen(path, "w");
    if (!file)
        return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    number_text(embd, sizeof embd, config->embd_pdrop);
    number_text(resid, sizeof resid, config->resid_pdrop);
    number_text(epsilon, sizeof epsilon, config->layer_norm_epsilon);
    fprintf(file,
            "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"attn_pdrop\": 0.0,\n"
            "  \"embd_pdrop\": %s,\n  \"layer_norm_epsilon\": %s,\n  \"model_type\": \"gpt2\",\n  \"n_ctx\": %" PRId64
            ",\n  \"n_embd\": %" PRId64 ",\n  \"n_head\": %" PRId64 ",\n  \"n_layer\": %" PRId64 ",\n  \"n_positions\": %" PRId64
            ",\n  \"resid_pdrop\": %s,\n  \"tie_word_embeddings\": %s,\n  \"vocab_size\": %" PRId64 ",\n",
            embd, epsilon, config->block_size, config->n_embd, config->n_head, config->n_layer, config->block_size, resid,
            config->tie_word_embeddings ? "true" : "false", config->vocab_size);
    if (end_of_text >= 0)
        fprintf(file, "  \"bos_token_id\": %" PRId64 ",\n  \"eos_token_id\": %" PRId64 "\n}\n", end_of_text, end_of_text);
    else
        fprintf(file, "  \"bos_token_id\": null,\n  \"eos_token_id\": null\n}\n");
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed)
        return shard_error(SHARD_ERROR_IO, "%s: %s", path, strerror(errno));
    return SHARD_OK;
}
