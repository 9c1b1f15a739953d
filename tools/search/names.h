/* Names of rows, on rank 0. */
#ifndef TOOLS_SEARCH_NAMES_H
#define TOOLS_SEARCH_NAMES_H

#include <jansson.h>
#include <shard/base.h>

typedef struct row_names {
    int64_t count, capacity;
    json_t **at;      /* [count], strings */
    int64_t *by_name; /* [count], rows in the order of their names, of equal names the lower one first */
} row_names;

/* Reads a file of one name a line, one for each of `rows` rows. Errors: IO; FORMAT, a line that is not UTF-8 or has a NUL;
 * SHAPE, another number of lines. names_free must follow, after an error too. */
shard_status names_read(row_names *n, const char *path, int64_t rows);
void names_free(row_names *n);

/* The row of that name; -1 if there is none. *second is another row of that name, or -1. */
int64_t names_find(const row_names *n, const char *name, int64_t *second);

#endif
