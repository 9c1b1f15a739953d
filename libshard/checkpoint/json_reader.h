/*
 * Reads JSON (RFC 8259) value by value, and allocates only the strings that the caller takes. A reader that makes a tree
 * takes 4.5 GB (jansson) for a header of 99 MB of "[],[],...". Neither a limit on the depth nor the limit on the header's
 * length, which the format sets, bounds that.
 */
#ifndef SHARD_CHECKPOINT_JSON_READER_H
#define SHARD_CHECKPOINT_JSON_READER_H

#include "base/error.h"

typedef struct json_reader {
    const char *start, *at, *end;
    const char *wrong; /* the error, at `at`; NULL: none, or no memory was left */
} json_reader;

json_reader json_reader_start(const char *text, size_t bytes);

/* The next character after spaces; '\0' at the end. */
char json_reader_next(json_reader *reader);
/* Takes the character that must come next, after spaces. */
shard_status json_reader_take(json_reader *reader, char character);
/* Whether another entry of an object or an array follows. Takes the comma between two entries, nothing before the
 * first, and at the end `end`. An error ends it too. */
bool json_reader_more(json_reader *reader, char end, bool first);

/* A string, in UTF-8 and without a NUL; freed by free(). NULL with the error in the reader, or MEMORY. */
char *json_reader_string(json_reader *reader);
/* The same without memory: `text` is the reader's text, in which the string then stands decoded at this place. */
char *json_reader_string_in_place(json_reader *reader, char *text);
/* Reads a number. *is_integer: it is a 64-bit integer, set in *value. Other numbers are real and are skipped: those
 * with a point or an exponent, those beyond 64 bits, and, as in the safetensors package, -0. */
shard_status json_reader_number(json_reader *reader, int64_t *value, bool *is_integer);
/* Bytes of the UTF-8 character at `at`, which is before the end; 0 if it is not one. */
int json_reader_character_bytes(const json_reader *reader);
/* Checks and skips any value. */
shard_status json_reader_skip(json_reader *reader);

#endif
