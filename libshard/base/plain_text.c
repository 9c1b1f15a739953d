#include "base/plain_text.h"

#include <locale.h>
#include <stdio.h>

int shard_plain_vsnprintf(char *text, size_t bytes, const char *format, va_list arguments)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", NULL), before = uselocale(plain);
    int length = vsnprintf(text, bytes, format, arguments);
    uselocale(before);
    freelocale(plain);
    return length;
}

int shard_plain_snprintf(char *text, size_t bytes, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = shard_plain_vsnprintf(text, bytes, format, arguments);
    va_end(arguments);
    return length;
}
