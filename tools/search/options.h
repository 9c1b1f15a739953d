/* The arguments of shard-search. */
#ifndef TOOLS_SEARCH_OPTIONS_H
#define TOOLS_SEARCH_OPTIONS_H

#include <shard/base.h>

enum { METRIC_IP = 0, METRIC_COSINE };

typedef struct settings {
    const char *checkpoint, *tensor; /* NULL: not given */
    bool skip_checksums, help;
    /* of a search */
    int metric;
    bool keep_dtype;
    const char *names, *device, *queries, *output; /* NULL: not given */
    int64_t k, batch;                              /* k: 0: as table.k */
    /* of an export */
    const char *npy, *faiss; /* NULL: not given */
    bool cosine;
} settings;

/* Reads the arguments, of `export` those behind that word. ARGUMENT: unknown options, values that are not valid. */
shard_status options_read(settings *o, bool exports, int argc, char **argv);
/* MISMATCH if ranks have different options. Collective over the world. */
shard_status options_check_identical(const settings *o, bool exports);
/* Prints the help of both commands. */
void options_print_help(void);

#endif
