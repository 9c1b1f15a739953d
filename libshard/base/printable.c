/* Text of unknown content, for one line of a log or a terminal. */
#include <shard/base.h>

#include <stdio.h>
#include <string.h>

static bool is_within(const unsigned char *at, const char *low, const char *high, size_t bytes)
{
    return memcmp(at, low, bytes) >= 0 && memcmp(at, high, bytes) <= 0;
}

/* Bytes of the character that the text begins with; 0 if it is not UTF-8, or controls a terminal: C0, DEL, C1, line
 * separators and changes of the direction of writing. */
static size_t character_bytes(const unsigned char *at)
{
    size_t bytes = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if (bytes == 1)
        return at[0] >= 0x20 && at[0] < 0x7f;
    if (bytes == 2)
        return is_within(at, "\xc2\x80", "\xc2\x9f", 2) ? 0 : 2;
    if (bytes == 3) /* too long, surrogates, U+2028 to U+202E, U+2066 to U+2069 */
        return is_within(at, "\xe0\x80\x80", "\xe0\x9f\xbf", 3) || is_within(at, "\xed\xa0\x80", "\xed\xbf\xbf", 3) ||
                       is_within(at, "\xe2\x80\xa8", "\xe2\x80\xae", 3) || is_within(at, "\xe2\x81\xa6", "\xe2\x81\xa9", 3)
                   ? 0
                   : 3;
    return bytes == 4 && is_within(at, "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf", 4) ? 4 : 0;
}

const char *shard_printable(char *to, size_t bytes, const char *text)
{
    size_t used = 0;
    if (!to || bytes == 0)
        return "";
    for (const unsigned char *at = (const unsigned char *)(text ? text : ""); *at;) {
        char escape[8];
        size_t length = character_bytes(at), taken = length ? length : 1;
        const char *piece = (const char *)at;
        if (length == 0) {
            const char letter = *at == '\n' ? 'n' : *at == '\t' ? 't' : *at == '\r' ? 'r' : '\0';
            length = (size_t)(letter ? snprintf(escape, sizeof escape, "\\%c", letter)
                                     : snprintf(escape, sizeof escape, "\\x%02x", *at));
            piece = escape;
        }
        if (length >= bytes - used)
            break;
        memcpy(to + used, piece, length);
        used += length;
        at += taken;
    }
    to[used] = '\0';
    return to;
}
