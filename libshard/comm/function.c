#include "comm/function.h"

#include "base/hash.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local shard_function current;

const shard_function *shard_current_function(void)
{
    return &current;
}

bool shard_enter_function(const char *name)
{
    if (current.name)
        return false;
    current.name = name;
    current.agreed[0] = '\0';
    current.hash = shard_hash_text(SHARD_HASH_START, name);
    return true;
}

void shard_leave_function(const bool *outermost)
{
    if (!*outermost)
        return;
    current.name = NULL;
    current.hash = 0;
    current.agreed[0] = '\0';
}

void shard_agree_on(const char *format, ...)
{
    char text[SHARD_FUNCTION_AGREED - 8];
    if (!current.name)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    current.hash = shard_hash_text(current.hash, text);
    size_t used = strlen(current.agreed);
    if (used + strlen(text) + sizeof "; " <= sizeof current.agreed)
        sprintf(current.agreed + used, "%s%s", used ? "; " : "", text);
}

void shard_agree_on_shape(int ndim, const int64_t *dim)
{
    char text[128] = "";
    size_t used = 0;
    for (int i = 0; i < ndim && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%" PRId64, i ? ", " : "", dim[i]);
    shard_agree_on("shape [%s]", text);
}
