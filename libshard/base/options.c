#include "base/options.h"

#include <ctype.h>
#include <string.h>

static bool is_zero(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i])
            return false;
    return true;
}

bool shard_read_options(void *options, size_t known, const void *given, const char *type)
{
    size_t size;
    if (!given)
        return true;
    memcpy(&size, given, sizeof size);
    if (size < sizeof size) {
        char init[64] = "";
        for (size_t i = 0; type[i] && i + 1 < sizeof init; i++)
            init[i] = (char)toupper((unsigned char)type[i]);
        shard_error(SHARD_ERROR_ARGUMENT, "%s: size is %zu: initialize the struct with %s_INIT", type, size, init);
        return false;
    }
    if (size > known && !is_zero((const unsigned char *)given + known, size - known)) {
        shard_error(
            SHARD_ERROR_ARGUMENT,
            "%s: size is %zu, and a field behind the %zu bytes that libshard %s knows is set: the program needs the library "
            "that it was compiled for",
            type, size, known, shard_version());
        return false;
    }
    memcpy(options, given, size < known ? size : known);
    memcpy(options, &known, sizeof known);
    return true;
}
