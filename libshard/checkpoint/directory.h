/* Saves into a directory of checkpoints. */
#ifndef SHARD_CHECKPOINT_DIRECTORY_H
#define SHARD_CHECKPOINT_DIRECTORY_H

#include <shard/checkpoint.h>

/* A save of this process that has begun and not ended: others leave its step alone. */
typedef struct shard_directory_save {
    const char *directory; /* NULL: it has not begun */
    int64_t step;
    struct shard_directory_save *after; /* of the list */
} shard_directory_save;

/* Puts a save of the directory into the list, from before its folders are made until it has ended. */
void shard_directory_save_begin(shard_directory_save *save, const char *directory, int64_t step);
void shard_directory_save_end(shard_directory_save *save);

/* Keeps `keep` checkpoints of the directory, that of this step and the newest before it; 0: all of them. Removes what saves have
 * left that did not end. A checkpoint that cannot be removed is a line of the log. */
void shard_directory_remove_old(const char *directory, int64_t step, int64_t keep);

/* Has the first rank's thread call that when the save is complete. The save owns directory. */
void shard_async_save_keep(shard_async_save *save, char *directory, int64_t step, int64_t keep);

#endif
