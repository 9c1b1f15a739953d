#include "description.h"

#include "files.h"

#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* The name of a model's file in the folder; NULL: there is none. Checkpoints of --keep are compared by their settings. */
static const char *find_model(const char *folder)
{
    static const char *const names[] = {"model.safetensors", "best.safetensors", "checkpoint.safetensors"};
    char path[PATH_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (files_join(path, "--output", folder, names[i]) == SHARD_OK && access(path, F_OK) == 0)
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
    if (!model || files_join(path, "--output", folder, "config.json") != SHARD_OK)
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
    if (check_folder(config, tokens, folder) != SHARD_OK || files_join(path, "--output", folder, "config.json") != SHARD_OK)
        return shard_last_status();
    shard_status status = config_write(config, path, tokens->end_of_text);
    return status == SHARD_OK ? tokenizer_save(tokens, folder) : status;
}
