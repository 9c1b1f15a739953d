/* The answers of a run, lines of JSON that rank 0 writes. */
#ifndef TOOLS_SEARCH_ANSWERS_H
#define TOOLS_SEARCH_ANSWERS_H

#include "queries.h"

#include "checkpoint/new_file.h"

typedef struct answers {
    const char *path; /* NULL: standard output */
    shard_new_file new;
    int64_t written; /* bytes of the file */
    int digits;      /* of a score */
} answers;

/* A file is at its path after answers_finish alone. answers_close must follow, after an error too. */
shard_status answers_open(answers *a, const char *path, shard_dtype dtype);
/* Writes the answers to a batch: score and row [b->count, k]. names may be NULL. */
shard_status answers_write(answers *a, const batch *b, const row_names *names, int64_t k, const double *score,
                           const int64_t *row);
shard_status answers_finish(answers *a);
void answers_close(answers *a);

#endif
