/* Input that comes by and by: a file, a pipe, a terminal. */
#ifndef TOOLS_SEARCH_LINES_H
#define TOOLS_SEARCH_LINES_H

#include <shard/base.h>

typedef struct lines {
    const char *path; /* the caller's; NULL: standard input */
    int descriptor;   /* -1: closed */
    char *buffer;
    size_t begin, end, capacity; /* of what was read and not taken yet */
    bool ended;                  /* there is no more to read */
    bool waiting;                /* the last call has returned nothing since nothing has come, not since it ended */
    int64_t line;                /* lines that were taken */
} lines;

/* Opens a file; NULL is standard input. Errors: IO. lines_close must follow, after an error too. */
shard_status lines_open(lines *from, const char *path);
void lines_close(lines *from);
/* The name for messages. */
const char *lines_path(const lines *from);

/* Waits up to `wait` milliseconds (-1: without a limit) each time that it reads, until `bytes` are there or it has ended.
 * *there: how many there are, at lines_at. */
shard_status lines_fill(lines *from, size_t bytes, int wait, size_t *there);
const char *lines_at(const lines *from);
void lines_take(lines *from, size_t bytes);

/* Takes the next line, without its end; valid until the next call. *text is NULL at the end, or, with from->waiting, if no whole
 * line has come within `wait` milliseconds. Errors: IO; FORMAT, a line of more than `most` bytes. */
shard_status lines_next(lines *from, size_t most, int wait, const char **text, size_t *bytes);

#endif
