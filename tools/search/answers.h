/* The answers of a run, lines of JSON that rank 0 writes: to a file, or to standard output, whose reader may let it wait. */
#ifndef TOOLS_SEARCH_ANSWERS_H
#define TOOLS_SEARCH_ANSWERS_H

#include "queries.h"

#include "checkpoint/new_file.h"

typedef struct answers {
    const char *path; /* NULL: standard output */
    shard_new_file new;
    int64_t written; /* bytes of the file */
    int digits;      /* of a score */
    char *text;      /* for standard output: from `begin` to before `end` it is not written yet */
    int64_t begin, end, capacity;
} answers;

/* A file is at its path after answers_finish alone. answers_close must follow, after an error too. */
shard_status answers_open(answers *a, const char *path, shard_dtype dtype);
/* Writes the answers to a batch: score and row [b->count, k]. names may be NULL. Those for standard output are written by
 * answers_flush. */
shard_status answers_write(answers *a, const batch *b, const row_names *names, int64_t k, const double *score,
                           const int64_t *row);
/* Writes to standard output what it takes within `wait` milliseconds. *left: there is more. */
shard_status answers_flush(answers *a, int wait, bool *left);
shard_status answers_finish(answers *a);
void answers_close(answers *a);

#endif
