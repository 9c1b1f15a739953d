#include "checkpoint/new_file.h"

#include "base/memory.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdlib.h>

char *shard_new_file_name(const char *target, uint64_t token)
{
    return shard_format("%s.tmp.%016" PRIx64, target, token);
}

shard_status shard_new_file_begin(shard_new_file *new, const char *path)
{
    *new = (shard_new_file){.mode = SHARD_NEW_FILE_NO_MODE, .lock = -1, .target = shard_file_follow(path)};
    if (!new->target)
        return shard_last_status();
    SHARD_TRY(shard_file_check_target(new->target, &new->mode));
    shard_file_remove_leftovers(new->target);
    for (bool exists = true; exists;) {
        char *name = shard_new_file_name(new->target, shard_random_secret());
        if (!name)
            return shard_last_status();
        /* Readable by no more users than the file that it replaces. */
        mode_t mode = new->mode == SHARD_NEW_FILE_NO_MODE ? 0666 : new->mode | 0600;
        shard_status status = shard_file_create(&new->file, name, mode, &exists);
        if (status == SHARD_OK && !exists)
            new->temporary = name;
        else
            free(name);
        SHARD_TRY(status);
    }
    new->lock = shard_file_keep_lock(&new->file);
    return SHARD_OK;
}

shard_status shard_new_file_finish(shard_new_file *new)
{
    if (new->mode != SHARD_NEW_FILE_NO_MODE)
        shard_file_set_mode(&new->file, new->mode);
    SHARD_TRY(shard_file_sync(&new->file));
    SHARD_TRY(shard_file_close(&new->file));
    SHARD_TRY(shard_file_replace(new->temporary, new->target));
    free(new->temporary);
    new->temporary = NULL;
    return SHARD_OK;
}

void shard_new_file_end(shard_new_file *new)
{
    shard_file_close(&new->file);
    if (new->temporary)
        shard_file_remove(new->temporary);
    shard_file_unlock(new->lock);
    free(new->temporary);
    free(new->target);
    *new = (shard_new_file){.lock = -1};
}

shard_status shard_new_file_write(const char *path, const void *data, int64_t bytes)
{
    shard_new_file new;
    shard_status status = shard_new_file_begin(&new, path);
    if (status == SHARD_OK)
        status = shard_file_write(&new.file, data, bytes, 0, NULL);
    if (status == SHARD_OK)
        status = shard_new_file_finish(&new);
    shard_new_file_end(&new);
    return status;
}
