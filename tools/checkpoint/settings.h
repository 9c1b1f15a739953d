/* The arguments of shard-checkpoint. */
#ifndef TOOLS_CHECKPOINT_SETTINGS_H
#define TOOLS_CHECKPOINT_SETTINGS_H

#include <shard/base.h>

/* Exit codes. */
enum { EXIT_DIFFERS = 1, EXIT_USAGE = 2, EXIT_OTHER = 3 };

/* The values of an option that may be given several times. */
typedef struct texts {
    const char **at;
    int64_t count, capacity;
    bool *used; /* [count], set by the functions below; NULL: none was looked for */
} texts;

typedef struct settings {
    char **files;
    int file_count;
    const char *output; /* NULL: not given */
    bool values, drop_metadata, skip_checksums;
    bool has_tolerance;
    double tolerance;
    int64_t max_bytes; /* 0: not given */
    bool casts, allow_overflow;
    shard_dtype dtype;
    texts prefix_remove, prefix_add; /* one at most */
    texts rename, drop, keep, dim;
} settings;

/* Reads the arguments after the command's name. Prints an error of the usage, or the help, and exits. */
void settings_read(settings *s, const char *command, int count, char **arguments);
void settings_free(settings *s);

extern const char settings_help[];

/* Prints the help to standard output, and exits. */
_Noreturn void settings_print_help(void);

/* The index of the value that applies to the name, of several the one with the longest NAME; -1 if there is none. A value is
 * "NAME=TEXT": a tensor's name, or, if it ends with a point, the beginning of names. *bytes is the length of NAME, which is
 * counted as used. */
int64_t settings_find(texts *list, const char *name, size_t *bytes);
/* Whether the name begins with one of the values, all of which are counted as used. */
bool settings_has_prefix(texts *list, const char *name);
/* ARGUMENT: a value that no name was found for. */
shard_status settings_check_used(const texts *list, const char *option);

#endif
