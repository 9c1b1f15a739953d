#include "config.h"

#include "command_line.h"
#include "files.h"
#include "json_file.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

const gpt_type_sizes gpt_types[] = {
    {"gpt2", 12, 12, 768},   {"gpt2-medium", 24, 16, 1024}, {"gpt2-large", 36, 20, 1280}, {"gpt2-xl", 48, 25, 1600},
    {"gpt-mini", 6, 6, 192}, {"gpt-micro", 4, 4, 128},      {"gpt-nano", 3, 3, 48},       {NULL, 0, 0, 0},
};

/* Members that are numbers. missing: the value of GPT2Config, for a file without the member. */
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
    {"embd_pdrop", offsetof(gpt_config, embd_pdrop), false, 0, GPT_MOST_DROPOUT, GPT_DROPOUT},
    {"resid_pdrop", offsetof(gpt_config, resid_pdrop), false, 0, GPT_MOST_DROPOUT, GPT_DROPOUT},
    {"layer_norm_epsilon", offsetof(gpt_config, layer_norm_epsilon), false, 0, 1, 1e-5},
};
#define MEMBERS (sizeof members / sizeof *members)

#define CONFIG_MOST_BYTES (1 << 20)

/* Members that have one value in every GPT-2; a file may lack them. */
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

static shard_status read_number(gpt_config *config, const json_t *object, const member *of, const char *path)
{
    const json_t *found = json_object_get(object, of->name);
    char text[64];
    if (!found) {
        set(config, of, of->missing);
        return SHARD_OK;
    }
    double value = json_number_value(found);
    if (!json_is_number(found) || !(value >= of->least && value <= of->most) || (of->whole && value != floor(value)))
        return shard_error(SHARD_ERROR_FORMAT, "%s: its %s is %s, not %s from %g to %g", path, of->name,
                           json_value_text(found, text, sizeof text), of->whole ? "an integer" : "a number", of->least, of->most);
    set(config, of, value);
    return SHARD_OK;
}

static shard_status check_fixed(const json_t *object, const char *name, const char *wanted, const char *path)
{
    const json_t *found = json_object_get(object, name);
    char text[64];
    if (!found || strcmp(json_value_text(found, text, sizeof text), wanted) == 0)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: its %s is %s, and this program has %s alone", path, name, text, wanted);
}

static shard_status read_tied(gpt_config *config, const json_t *object, const char *path)
{
    const json_t *tied = json_object_get(object, "tie_word_embeddings");
    char text[64];
    if (tied && !json_is_boolean(tied))
        return shard_error(SHARD_ERROR_FORMAT, "%s: its tie_word_embeddings is %s, not true or false", path,
                           json_value_text(tied, text, sizeof text));
    config->tie_word_embeddings = !tied || json_is_true(tied);
    return SHARD_OK;
}

static shard_status check_sizes(const gpt_config *config, const json_t *object, const char *path)
{
    const json_t *inner = json_object_get(object, "n_inner");
    char text[64];
    if (config->n_embd % config->n_head)
        return shard_error(SHARD_ERROR_FORMAT, "%s: its n_embd, %" PRId64 ", is not a multiple of its n_head, %" PRId64, path,
                           config->n_embd, config->n_head);
    if (inner && !json_is_null(inner) && !(json_is_integer(inner) && json_integer_value(inner) == 4 * config->n_embd))
        return shard_error(SHARD_ERROR_UNSUPPORTED, "%s: its n_inner is %s, and this program has 4 n_embd, %" PRId64 ", alone",
                           path, json_value_text(inner, text, sizeof text), 4 * config->n_embd);
    return SHARD_OK;
}

shard_status config_read(gpt_config *config, const char *path)
{
    json_t *object = json_file_open(path, CONFIG_MOST_BYTES);
    shard_status status = object ? SHARD_OK : shard_last_status();
    *config = (gpt_config){0};
    for (size_t i = 0; i < MEMBERS && status == SHARD_OK; i++)
        status = read_number(config, object, &members[i], path);
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed && status == SHARD_OK; i++)
        status = check_fixed(object, fixed[i].name, fixed[i].value, path);
    if (status == SHARD_OK)
        status = read_tied(config, object, path);
    if (status == SHARD_OK)
        status = check_sizes(config, object, path);
    json_decref(object);
    return status;
}

typedef struct writing {
    const gpt_config *config;
    int64_t end_of_text;
} writing;

static void write_members(const void *state, FILE *file)
{
    const writing *from = state;
    const gpt_config *config = from->config;
    char embd[32], resid[32], epsilon[32];
    command_write_number(embd, sizeof embd, config->embd_pdrop);
    command_write_number(resid, sizeof resid, config->resid_pdrop);
    command_write_number(epsilon, sizeof epsilon, config->layer_norm_epsilon);
    fprintf(file,
            "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"attn_pdrop\": 0.0,\n"
            "  \"embd_pdrop\": %s,\n  \"layer_norm_epsilon\": %s,\n  \"model_type\": \"gpt2\",\n  \"n_ctx\": %" PRId64
            ",\n  \"n_embd\": %" PRId64 ",\n  \"n_head\": %" PRId64 ",\n  \"n_layer\": %" PRId64 ",\n  \"n_positions\": %" PRId64
            ",\n  \"resid_pdrop\": %s,\n  \"tie_word_embeddings\": %s,\n  \"vocab_size\": %" PRId64 ",\n",
            embd, epsilon, config->block_size, config->n_embd, config->n_head, config->n_layer, config->block_size, resid,
            config->tie_word_embeddings ? "true" : "false", config->vocab_size);
    if (from->end_of_text >= 0)
        fprintf(file, "  \"bos_token_id\": %" PRId64 ",\n  \"eos_token_id\": %" PRId64 "\n}\n", from->end_of_text,
                from->end_of_text);
    else
        fprintf(file, "  \"bos_token_id\": null,\n  \"eos_token_id\": null\n}\n");
}

shard_status config_write(const gpt_config *config, const char *path, int64_t end_of_text)
{
    return files_save(path, write_members, &(writing){config, end_of_text});
}

bool config_is_same_network(const gpt_config *a, const gpt_config *b)
{
    return a->vocab_size == b->vocab_size && a->block_size == b->block_size && a->n_layer == b->n_layer &&
           a->n_head == b->n_head && a->n_embd == b->n_embd && a->layer_norm_epsilon == b->layer_norm_epsilon &&
           a->tie_word_embeddings == b->tie_word_embeddings;
}
