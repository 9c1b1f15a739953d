/* The processes that a process has started, directly or not. */
#ifndef TOOLS_DESCENDANTS_H
#define TOOLS_DESCENDANTS_H

#include <sys/types.h>

typedef struct process_list {
    pid_t *ids; /* allocated by malloc */
    int count, capacity;
} process_list;

/* The living descendants of this process, from /proc, without those in `except` and their descendants. Empty without
 * /proc or memory. The caller frees ids. */
process_list find_descendants(const process_list *except);

#endif
