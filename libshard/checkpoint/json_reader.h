/*
 * Reads JSON (RFC 8259) piece by piece, in as much memory as the strings that the caller takes. For headers of
 * files from anywhere: a tree of what is not asked for would take many times the memory of the text.
 */
#ifndef SHARD_CHECKPOINT_JSON_READER_H
#define SHARD_CHECKPOINT_JSON_READER_H

#include "base/error.h"

typedef struct json_reader {
    const char *start, *at, *end;
    const char *wrong; /* what is, at `at`; NULL: nothing, or no memory was left */
} json_reader;

json_reader json_reader_start(const char *text, size_t bytes);

/* The next character behind spaces; '\0' at the end. */
char json_reader_next(json_reader *reader);
/* Takes the character that must come next, behind spaces. */
shard_status json_reader_take(json_reader *reader, char character);
/* Whether another member of an object or an array follows: takes the comma between two, the first time nothing,
 * and at the end `end`. An error ends it, too. */
bool json_reader_more(json_reader *reader, char end, bool first);

/* A string, in UTF-8 and without a NUL; freed by free(). NULL with the error in the reader, or MEMORY. */
char *json_reader_string(json_reader *reader);
/* A number that must be an integer; *is_integer says whether it is. */
shard_status json_reader_number(json_reader *reader, int64_t *value, bool *is_integer);
/* Any value, which is checked and left out. */
shard_status json_reader_skip(json_reader *reader);

#endif
