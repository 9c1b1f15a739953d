/* Files in JSON, by jansson. */
#ifndef MINGPT_JSON_FILE_H
#define MINGPT_JSON_FILE_H

#include <shard/base.h>

#include <jansson.h>

/*
 * The object that a file has, which the caller releases by json_decref. jansson takes up to 80 times the file's size for it, so
 * that a file of more than most_bytes is refused. NULL with the error set: IO; MEMORY; FORMAT, those of text_read, or with the
 * line: a file that is not JSON, a name that an object has twice, a number out of range, a string with a 0, or more than 2048
 * levels of objects and arrays.
 */
json_t *json_file_open(const char *path, int64_t most_bytes);

/* A value for an error: a string, number or constant as it is, "an array" or "an object". Returns `text`, which it writes. */
const char *json_value_text(const json_t *value, char *text, size_t bytes);

#endif
