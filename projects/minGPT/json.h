/*
 * Reads JSON from memory, a value at a time:
 *
 *     json reader = json_of(text, bytes, path);
 *     char *name;
 *     json_open(&reader, '{');
 *     while (json_next(&reader, '}', &name))
 *         number = json_number(&reader);
 *     if (reader.failed) ...
 *
 * After an error, which has the path and the line, all functions return 0 or NULL. Strings are ended by a 0; the reader frees
 * them. Objects and arrays nest up to JSON_DEPTH in what json_skip passes over.
 */
#ifndef MINGPT_JSON_H
#define MINGPT_JSON_H

#include <shard/base.h>

#define JSON_DEPTH 64

typedef struct json {
    const char *begin, *at, *end, *path;
    char *string; /* the last one that was read */
    size_t room;
    bool first, failed;
} json;

json json_of(const char *text, int64_t bytes, const char *path);
void json_close(json *reader);

/* Sets the error (FORMAT), with the line that the reader is in. */
void json_fail(json *reader, const char *what);

/* Begins an object, '{', or an array, '['. */
void json_open(json *reader, char bracket);
/* Whether another member of an object, whose name *name becomes, or another element of an array (name NULL) follows. False at the
 * closing bracket, which is read. name is valid until the next string. */
bool json_next(json *reader, char closing, const char **name);

/* The next value, of its kind. A string is valid until the next one; *bytes is its length. */
double json_number(json *reader);
bool json_truth(json *reader);
const char *json_string(json *reader, int64_t *bytes);
/* Passes over a value of any kind. */
void json_skip(json *reader);

/* The kind of the next value: '{', '[', '"', 't', 'f', 'n' or '0' for a number; 0 at the end or after an error. */
char json_kind(json *reader);

/* Appends UTF-8 of a code point to `to`, which has room for 4 bytes; returns their number. */
int utf8_write(char *to, uint32_t code);
/* The code point at `at` < end, and its bytes in *bytes; -1 for malformed UTF-8. */
int64_t utf8_read(const char *at, const char *end, int *bytes);

#endif
