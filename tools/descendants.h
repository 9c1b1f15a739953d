/* The processes that a process has started, and those that they have started. */
#ifndef TOOLS_DESCENDANTS_H
#define TOOLS_DESCENDANTS_H

#include <sys/types.h>

typedef struct process_list {
    pid_t *ids; /* of malloc */
    int count, capacity;
} process_list;

/* The living descendants of this process, as /proc shows them, without those in `except` and what
 * descends from them. Empty where there is no /proc or no memory. The caller frees ids. */
process_list find_descendants(const process_list *except);

#endif
