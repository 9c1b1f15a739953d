/* Strings by name next to the tensors. */
#include "checkpoint/metadata.h"

#include "base/error.h"
#include "base/memory.h"
#include "checkpoint/safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shard_metadata {
    json_t *object;
};

static shard_metadata *create_with(json_t *object)
{
    shard_metadata *metadata = shard_calloc(1, sizeof *metadata);
    if (metadata && object) {
        metadata->object = object;
        return metadata;
    }
    free(metadata);
    json_decref(object);
    return shard_fail_null(SHARD_ERROR_MEMORY, "no memory for metadata");
}

shard_metadata *shard_metadata_create(void)
{
    return create_with(json_object());
}

shard_metadata *shard_metadata_from_json(json_t *object)
{
    return create_with(object ? json_copy(object) : json_object());
}

json_t *shard_metadata_json(const shard_metadata *metadata)
{
    return metadata ? metadata->object : NULL;
}

void shard_metadata_destroy(shard_metadata *metadata)
{
    if (metadata)
        json_decref(metadata->object);
    free(metadata);
}

shard_status shard_metadata_set(shard_metadata *metadata, const char *name, const char *value)
{
    if (!metadata || !name || !value)
        return shard_null_argument("shard_metadata_set", !metadata ? "metadata" : !name ? "name" : "value");
    if (json_object_set_new(metadata->object, name, json_string(value)) != 0)
        return shard_error(SHARD_ERROR_ARGUMENT, "shard_metadata_set: %s and its value must be UTF-8", shard_quoted(name));
    return SHARD_OK;
}

shard_status shard_metadata_set_integer(shard_metadata *metadata, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    return shard_metadata_set(metadata, name, text);
}

/* jansson prints and reads numbers with a point in any locale. */
shard_status shard_metadata_set_number(shard_metadata *metadata, const char *name, double value)
{
    if (!isfinite(value))
        return shard_metadata_set(metadata, name, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    json_t *real = json_real(value);
    char *text = json_dumps(real, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    json_decref(real);
    shard_status status =
        text ? shard_metadata_set(metadata, name, text) : shard_error(SHARD_ERROR_MEMORY, "no memory for metadata");
    free(text);
    return status;
}

const char *shard_metadata_get(const shard_metadata *metadata, const char *name)
{
    return metadata && name ? json_string_value(json_object_get(metadata->object, name)) : NULL;
}

/* value points to the caller's number. */
static shard_status get_text(const shard_metadata *metadata, const char *name, const char *function, const void *value,
                             const char **text)
{
    if (!metadata || !name || !value)
        return shard_null_argument(function, !metadata ? "metadata" : !name ? "name" : "value");
    *text = shard_metadata_get(metadata, name);
    return *text ? SHARD_OK : shard_error(SHARD_ERROR_ARGUMENT, "%s: there is no metadata %s", function, shard_quoted(name));
}

shard_status shard_metadata_get_integer(const shard_metadata *metadata, const char *name, int64_t *value)
{
    const char *text;
    SHARD_TRY(get_text(metadata, name, "shard_metadata_get_integer", value, &text));
    json_t *number = json_loads(text, JSON_DECODE_ANY, NULL);
    bool right = json_is_integer(number);
    if (right)
        *value = json_integer_value(number);
    json_decref(number);
    return right ? SHARD_OK
                 : shard_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_integer: metadata %s is %s, which is not an integer",
                               shard_quoted(name), shard_quoted(text));
}

static bool is_word(const char *text, double *value)
{
    static const struct {
        const char *word;
        double value;
    } words[] = {{"nan", NAN}, {"inf", INFINITY}, {"-inf", -INFINITY}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0)
            return *value = words[i].value, true;
    return false;
}

shard_status shard_metadata_get_number(const shard_metadata *metadata, const char *name, double *value)
{
    const char *text;
    SHARD_TRY(get_text(metadata, name, "shard_metadata_get_number", value, &text));
    if (is_word(text, value))
        return SHARD_OK;
    json_t *number = json_loads(text, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, NULL);
    bool right = json_is_real(number);
    if (right)
        *value = json_real_value(number);
    json_decref(number);
    return right ? SHARD_OK
                 : shard_error(SHARD_ERROR_ARGUMENT, "shard_metadata_get_number: metadata %s is %s, which is not a number",
                               shard_quoted(name), shard_quoted(text));
}
