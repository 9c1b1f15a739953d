/* The queries of a run, which rank 0 reads a batch at a time: lines of JSON or a .npy file. */
#ifndef TOOLS_SEARCH_QUERIES_H
#define TOOLS_SEARCH_QUERIES_H

#include "lines.h"
#include "names.h"
#include "npy.h"

/* A query of a batch that is not the index of a row. */
enum { QUERY_VECTOR = -1, QUERY_WRONG = -2 };

typedef struct batch {
    int64_t count, most;
    bool last;      /* no queries follow */
    int64_t *row;   /* [most]: a row, or one of the above */
    double *vector; /* [most, width]; 0 where the query is none */
    json_t **query; /* [most]: a query as the answer repeats it, or the answer to a wrong one */
} batch;

/* NULL memory on ranks that read nothing but row and vector: all have these. */
shard_status batch_open(batch *b, int64_t most, int64_t width);
void batch_close(batch *b);
/* Removes the queries. */
void batch_clear(batch *b, int64_t width);

typedef struct queries {
    lines from;
    const row_names *names; /* NULL: there are none */
    int64_t rows, width;
    double most;   /* the largest number of a vector */
    int64_t taken; /* queries so far */
    bool answers;  /* a wrong query is answered, and is not an error */
    bool begun;    /* the first bytes were seen */
    bool npy;
    npy_header header;
    double *raw; /* [width] of a .npy file: a row in its type, aligned, which the input is not */
} queries;

/* path: NULL or "-" is standard input. The caller sets names, rows, width and most. */
shard_status queries_open(queries *q, const char *path);
void queries_close(queries *q);
/* Reads the queries that have come, up to b->most; none if nothing comes within `wait` milliseconds. Errors: IO; FORMAT,
 * ARGUMENT, SHAPE, a wrong query of a file, with its line or its row in the file. */
shard_status queries_read(queries *q, batch *b, int wait);

#endif
