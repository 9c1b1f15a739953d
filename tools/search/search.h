/* The commands of shard-search. */
#ifndef TOOLS_SEARCH_SEARCH_H
#define TOOLS_SEARCH_SEARCH_H

#include "options.h"

/* Loads the tensor and answers all queries. Collective over the world. */
shard_status command_search(const settings *o);
/* Writes the tensor to files of other programs, on one rank. */
shard_status command_export(const settings *o);

#endif
