/*
 * Reads JSON (RFC 8259) value by value; only the strings that the caller takes need memory. jansson, which writes
 * headers and keeps metadata, can only parse a text into a tree: one of a header of 99 MB of "[],[],..." takes 4.5 GB,
 * and neither its limit of depth nor one on the header's length, which the format sets, bounds that.
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
/* A number. *is_integer: it is an integer of 64 bits, *value. Others are real numbers and left out: those with a point
 * or an exponent, those beyond 64 bits, and, as in the safetensors package, -0. */
shard_status json_reader_number(json_reader *reader, int64_t *value, bool *is_integer);
/* Any value, which is checked and left out. */
shard_status json_reader_skip(json_reader *reader);

#endif
