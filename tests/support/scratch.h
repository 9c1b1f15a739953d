/* A directory of the test program's own for files, gone when it ends. */
#ifndef TESTS_SUPPORT_SCRATCH_H
#define TESTS_SUPPORT_SCRATCH_H

#include <stddef.h>

/* In main, around test_run. */
void scratch_open(void);
void scratch_close(void);

/* The path of a file there; one of a few static buffers. */
const char *scratch_path(const char *name);

/* Fails the test if it cannot be done. */
void write_file(const char *path, const void *data, size_t bytes);
/* Its content; freed by free(). Fails the test if it is not there. */
void *read_file(const char *path, size_t *bytes);

/* How many files of the directory have this in their names. */
int scratch_count(const char *part);

#endif
