/* Writes JSON (RFC 8259) as a text that grows; the counterpart of json_reader.h. */
#ifndef SHARD_CHECKPOINT_JSON_WRITER_H
#define SHARD_CHECKPOINT_JSON_WRITER_H

#include "base/error.h"

typedef struct json_writer {
    char *text; /* [bytes], freed by free() */
    int64_t bytes, capacity;
    shard_status status; /* MEMORY: nothing is added any more */
} json_writer;

/* Adds a text as it is. */
void json_writer_add(json_writer *writer, const char *text);
/* Adds a string in quotes; it must be UTF-8. Only quotes, backslashes and control characters are escaped. */
void json_writer_string(json_writer *writer, const char *text);
void json_writer_integer(json_writer *writer, int64_t value);

/* The text with a NUL at its end; NULL with the error set. */
const char *json_writer_end(json_writer *writer);

bool json_is_utf8(const char *text);

#endif
