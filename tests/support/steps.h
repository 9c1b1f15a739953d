/* Saves of the steps of a run, one after the other, in each way in which a program saves: to one file, which each step replaces,
 * or to a directory of the last two steps. For tests in which a save ends too soon. */
#ifndef TESTS_SUPPORT_STEPS_H
#define TESTS_SUPPORT_STEPS_H

#include "support/job.h"

typedef enum save_way {
    SAVE_WAITS,            /* shard_save */
    SAVE_FINISHES,         /* shard_save_async, and the finish */
    SAVE_POLLS,            /* the same with polls until it is complete */
    SAVE_CHECKPOINT,       /* shard_save_checkpoint */
    SAVE_CHECKPOINT_ASYNC, /* shard_save_checkpoint_async, and the finish */
    SAVE_WAYS,
    SAVE_WRITER = SAVE_WAYS /* the writer of shard-checkpoint and shard-search; of one rank alone, so none of a job's ways */
} save_way;

typedef struct saved_run {
    save_way way;
    bool direct;      /* enough data that writes bypass the page cache */
    char folder[300]; /* of all files of the run */
} saved_run;

/* Makes the folder, which has that name in the scratch directory. */
saved_run steps_start(const char *name, save_way way, bool direct);
/* The folder of another run of that way. */
saved_run steps_in(const saved_run *of, const char *name);
bool steps_have_directory(const saved_run *s);
/* Whether the file system of the folder has transfers that bypass the page cache. */
bool steps_can_be_direct(const saved_run *s);

/* What a step saves; whole if world is NULL. The caller destroys the list. */
shard_tensors *steps_state(const saved_run *s, shard_group *world, int64_t step);
shard_status steps_save(const saved_run *s, const shard_tensors *list, int64_t step);
/* steps_save of steps_state, which succeeds, and leaves no temporary file and no step but the last two. */
void steps_save_whole(const saved_run *s, shard_group *world, int64_t step);

/* The newest step that can be loaded, from `oldest` on: fails the test unless it is there, bit for bit, and so is, in a
 * directory, the one before it. Collective over world, NULL: of this rank alone. */
int64_t steps_check(const saved_run *s, shard_group *world, int64_t oldest);

/* How many temporary files there are. */
int steps_temporary(const saved_run *s);

#endif
