/* The matrix that is searched: a tensor of a checkpoint, its rows split over the ranks of the world. */
#ifndef TOOLS_SEARCH_TABLE_H
#define TOOLS_SEARCH_TABLE_H

#include "options.h"

#include <shard/tensor.h>

typedef struct table {
    char *name;
    int64_t rows, width; /* of the whole */
    shard_dtype dtype;   /* in memory */
    double most;         /* the largest number of the dtype */
    int64_t k;           /* rows that are found for a query */
    shard_range range;   /* this rank's rows */
    shard_tensor *local; /* [range.size, width] */
    shard_tensor *split; /* the same memory, placed */
    bool cosine;         /* the rows are normalized */
} table;

/* Loads this rank's rows. Errors: those of pick_tensor and shard_load; ARGUMENT, a row with a number that is not finite.
 * Collective over the world. table_close must follow, after an error too. */
shard_status table_open(table *t, const settings *o);
void table_close(table *t);

/* Copies row `row` to `to` [width] if this rank has it, else does nothing. */
shard_status table_read_row(const table *t, int64_t row, double *to);

#endif
