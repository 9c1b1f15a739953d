/* Linked into a plugin: the functions of base/ by their own names, which call the library that loaded the plugin. */
#include "base/plugin.h"

#include <stdarg.h>
#include <stdio.h>

static const shard_plugin_base *library;

bool shard_plugin_begin(const shard_plugin_base *base)
{
    if (base->version != SHARD_PLUGIN_VERSION) {
        base->error(SHARD_ERROR_UNAVAILABLE,
                    "a plugin of version %d.%d.%d was found by a library of another version: install both of the same one",
                    SHARD_VERSION_MAJOR, SHARD_VERSION_MINOR, SHARD_VERSION_PATCH);
        return false;
    }
    library = base;
    return true;
}

shard_status shard_error(shard_status status, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return library->error(status, "%s", text);
}

shard_status shard_null_argument(const char *function, const char *argument)
{
    return library->null_argument(function, argument);
}

shard_status shard_last_status(void)
{
    return library->last_status();
}

const char *shard_last_error(void)
{
    return library->last_error();
}

void shard_clear_error(void)
{
    library->clear_error();
}

void shard_log_message(shard_log_level level, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    library->log(level, "%s", text);
}

const char *shard_env_string(const char *name, const char *fallback)
{
    return library->env_string(name, fallback);
}

shard_status shard_env_integer(const char *name, int64_t fallback, int64_t low, int64_t high, int64_t *value)
{
    return library->env_integer(name, fallback, low, high, value);
}

void *shard_calloc(size_t count, size_t size)
{
    return library->calloc(count, size);
}
