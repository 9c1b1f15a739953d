#include "json_file.h"

#include "text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static json_t *parse(const char *text, int64_t bytes, const char *path)
{
    json_error_t error;
    json_t *made = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!made && json_error_code(&error) == json_error_out_of_memory)
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory for %" PRId64 " bytes of JSON", path, bytes);
    else if (!made)
        shard_error(SHARD_ERROR_FORMAT, "%s: line %d: %s", path, error.line, error.text);
    else if (!json_is_object(made))
        shard_error(SHARD_ERROR_FORMAT, "%s: not an object of JSON", path);
    if (json_is_object(made))
        return made;
    json_decref(made);
    return NULL;
}

json_t *json_file_open(const char *path, int64_t most_bytes)
{
    int64_t bytes;
    char *text = text_read(path, most_bytes, &bytes);
    json_t *made = text ? parse(text, bytes, path) : NULL;
    free(text);
    return made;
}

const char *json_value_text(const json_t *value, char *text, size_t bytes)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        snprintf(text, bytes, "an object");
        break;
    case JSON_ARRAY:
        snprintf(text, bytes, "an array");
        break;
    case JSON_STRING:
        snprintf(text, bytes, "%s", json_string_value(value));
        break;
    case JSON_INTEGER:
        snprintf(text, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        snprintf(text, bytes, "%g", json_real_value(value));
        break;
    default:
        snprintf(text, bytes, "%s", json_is_null(value) ? "null" : json_is_true(value) ? "true" : "false");
    }
    return text;
}
