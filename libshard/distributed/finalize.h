/* The end of the job for folders that distributed/ does not call. */
#ifndef SHARD_DIST_FINALIZE_H
#define SHARD_DIST_FINALIZE_H

/* Has shard_finalize call the function first, before it reads the thread's error. A process has one such function. */
void shard_at_finalize(void (*function)(void));

#endif
