#include "description.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* The path of a file in the folder; false with the error set. */
static bool make_path(char *path, const char *folder, const char *name)
{
    if (snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX)
        return true;
    shard_error(SHARD_ERROR_IO, "--output: a path of more than %d bytes", PATH_MAX - 1);
    return false;
}

/* The name of a model's file in the folder; NULL: there is none. Checkpoints of --keep are compared by their settings. */
static const char *find_model(const char *folder)
{
    static const char *const names[] = {"model.safetensors", "best.safetensors", "checkpoint.safetensors"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (make_path(path, folder, names[i]) && access(path, F_OK) == 0)
            return names[i];
    return NULL;
}

/* The error about a folder whose files say nothing of its model. */
static shard_status refuse_unknown(const char *folder, const char *model)
{
    char why[1024];
    snprintf(why, sizeof why, "%s", shard_last_error());
    shard_clear_error();
    return shard_error(SHARD_ERROR_ARGUMENT, "--output %s has a %s of an unknown network (%s): take another folder", folder,
                       model, why);
}

static shard_status check_folder(const gpt_config *config, const tokenizer *tokens, const char *folder)
{
    const char *model = find_model(folder);
    char path[PATH_MAX];
    gpt_config old;
    if (!model || !make_path(path, folder, "config.json"))
        return shard_last_status();
    tokenizer *known = config_read(&old, path) == SHARD_OK ? tokenizer_open(folder) : NULL;
    if (!known)
        return refuse_unknown(folder, model);
    bool same_tokens = tokenizer_hash(known) == tokenizer_hash(tokens), same = config_is_same_network(&old, config);
    tokenizer_close(known);
    if (same && same_tokens)
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT, "--output %s has a %s of another %s: take another folder", folder, model,
                       same ? "vocabulary" : "network");
}

shard_status description_save(const gpt_config *config, const tokenizer *tokens, const char *folder)
{
    char path[PATH_MAX];
    if (check_folder(config, tokens, folder) != SHARD_OK || !make_path(path, folder, "config.json"))
        return shard_last_status();
    shard_status status = config_write(config, path, tokens->end_of_text);
    return status == SHARD_OK ? tokenizer_save(tokens, folder) : status;
}
