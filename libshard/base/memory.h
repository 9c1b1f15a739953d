/* Small host allocations (structures, lists) and checked sizes. Tensors are allocated from their device's pool
 * instead. */
#ifndef SHARD_BASE_MEMORY_H
#define SHARD_BASE_MEMORY_H

#include <shard/base.h>

/* The C library's functions by which these allocate; tests replace them. */
typedef struct shard_memory_calls {
    void *(*calloc)(size_t count, size_t size);
    void *(*realloc)(void *memory, size_t bytes);
} shard_memory_calls;
extern const shard_memory_calls *shard_memory_calls_used;

/* Zeroed memory; NULL with the error set if there is none left or the size overflows. Freed by free(). */
void *shard_calloc(size_t count, size_t size);

/* Makes room for count elements; *array keeps its content, *capacity grows by halves. */
shard_status shard_grow(void *array, int64_t *capacity, int64_t count, size_t size);

char *shard_strdup(const char *text);
/* With a decimal point in any locale (plain_text.h). */
char *shard_format(const char *format, ...) SHARD_PRINTF(1, 2);

/* *product = a * b for sizes that are not negative; false if it overflows. */
bool shard_multiply(int64_t a, int64_t b, int64_t *product);

#endif
