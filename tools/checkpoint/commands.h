/* The commands. Each prints its results; an error is the thread's. */
#ifndef TOOLS_CHECKPOINT_COMMANDS_H
#define TOOLS_CHECKPOINT_COMMANDS_H

#include "settings.h"

shard_status command_inspect(settings *s);
/* *damaged, *differ: the exit code is 1, without an error. */
shard_status command_verify(settings *s, bool *damaged);
shard_status command_diff(settings *s, bool *differ);
shard_status command_merge(settings *s);
shard_status command_split(settings *s);
shard_status command_convert(settings *s);
shard_status command_join(settings *s);

#endif
