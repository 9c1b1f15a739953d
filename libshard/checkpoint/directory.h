/* The end of a save into a directory of checkpoints. */
#ifndef SHARD_CHECKPOINT_DIRECTORY_H
#define SHARD_CHECKPOINT_DIRECTORY_H

#include <shard/checkpoint.h>

/* Keeps `keep` checkpoints of the directory: that of this step, and the newest before it. A
 * checkpoint that cannot be removed is a line of the log. */
void shard_directory_remove_old(const char *directory, int64_t step, int64_t keep);

/* Has the first rank's thread call that when the save is complete; keep 0: not. The save owns directory. */
void shard_async_save_keep(shard_async_save *save, char *directory, int64_t step, int64_t keep);

#endif
