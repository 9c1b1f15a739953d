#include "checkpoint/new_file.h"

#include "base/memory.h"
#include "base/random.h"

#include <inttypes.h>
#include <stdlib.h>

shard_status shard_new_file_prepare(shard_new_file *new, const char *path)
{
    *new = (shard_new_file){.mode = SHARD_NEW_FILE_NO_MODE, .lock = -1, .target = shard_file_follow(path)};
    return new->target ? SHARD_OK : shard_last_status();
}

void shard_new_file_forget(shard_new_file *new)
{
    free(new->temporary);
    new->temporary = NULL;
}

shard_status shard_new_file_name(shard_new_file *new, uint64_t token)
{
    free(new->temporary);
    new->temporary = shard_format("%s.tmp.%016" PRIx64, new->target, token);
    return new->temporary ? SHARD_OK : shard_last_status();
}

shard_status shard_new_file_create(shard_new_file *new, bool *again)
{
    *again = false;
    SHARD_TRY(shard_file_check_target(new->target, &new->mode));
    shard_file_remove_leftovers(new->target);
    /* Readable by no more users than the file that it replaces; writable for the ranks. */
    mode_t mode = new->mode == SHARD_NEW_FILE_NO_MODE ? 0666 : new->mode | 0600;
    SHARD_TRY(shard_file_create(&new->file, new->temporary, mode, new->folder, again));
    if (*again)
        shard_new_file_forget(new);
    else
        new->lock = shard_file_keep_lock(&new->file);
    return SHARD_OK;
}

shard_status shard_new_file_begin(shard_new_file *new, const char *path)
{
    SHARD_TRY(shard_new_file_prepare(new, path));
    for (bool again = true; again;) {
        SHARD_TRY(shard_new_file_name(new, shard_random_secret()));
        SHARD_TRY(shard_new_file_create(new, &again));
    }
    return SHARD_OK;
}

shard_status shard_new_file_close(shard_new_file *new)
{
    if (new->mode != SHARD_NEW_FILE_NO_MODE)
        shard_file_set_mode(&new->file, new->mode);
    if (shard_last_status() == SHARD_OK)
        shard_file_sync(&new->file);
    shard_file_close(&new->file);
    return shard_last_status();
}

shard_status shard_new_file_replace(shard_new_file *new)
{
    shard_status status = shard_file_replace(new->temporary, new->target, &new->replaced);
    if (new->replaced)
        shard_new_file_forget(new);
    return status;
}

shard_status shard_new_file_finish(shard_new_file *new)
{
    SHARD_TRY(shard_new_file_close(new));
    return shard_new_file_replace(new);
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
