/*
 * A folder as a disk may have it after the power has gone. The calls of all ranks of a save are recorded, in one order, each with
 * its file. For a moment of the save the folder is made anew: its files and directories as before the save, changed by the calls
 * before the moment. A write that was not synced is there, missing, torn, or in another order; so is a name (made, renamed,
 * removed) whose directory was not synced.
 */
#ifndef TESTS_SUPPORT_DISK_H
#define TESTS_SUPPORT_DISK_H

#include "support/file_calls.h"

/* Takes the folder's files as they are now, and gives the ranks that are started from now on a record in shared memory. */
void disk_start(const char *folder);
/* The hook of each rank: enters the call, and leaves syncs out. */
file_call_hook disk_watch;
/* After the ranks have ended. Returns the number of calls. */
int disk_end(void);
/* The number of the first call that renames a file. */
int disk_rename(void);
/* How many writes have bypassed the page cache. */
int disk_direct_writes(void);
void disk_free(void);

/* Before the call of that number. local: a sync of one rank is for the writes of all ranks; else, as on a file system of several
 * hosts, for those of this rank. */
typedef struct disk_moment {
    int end;
    bool local;
} disk_moment;

/* Makes the folder, which is empty but for what an earlier call has made. Draws by rand(). Returns whether it differs from the
 * folder before the save. */
bool disk_make(const disk_moment *m, const char *folder);
/* Whether the first rename, and what it needs, must have happened (1), cannot have (0) or may have (-1). */
int disk_is_renamed(const disk_moment *m);

#endif
