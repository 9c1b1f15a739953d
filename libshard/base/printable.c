/* Text of unknown content, for one line of a log or a terminal. */
#include "base/printable.h"

#include <shard/base.h>

#include <stdio.h>
#include <string.h>

/* The code point that the text begins with; 0: it is not UTF-8, or the end. */
static uint32_t code_point(const unsigned char *at, size_t *bytes)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    *bytes = at[0] < 0x80 ? 1 : at[0] < 0xc0 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf8 ? 4 : 0;
    if (*bytes < 2)
        return *bytes ? at[0] : 0;
    uint32_t code = at[0] & (0x7fu >> *bytes);
    for (size_t i = 1; i < *bytes; i++) {
        if ((at[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (at[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code < 0xe000;
    return code < least[*bytes] || surrogate || code > 0x10ffff ? 0 : code;
}

/* Characters that control a terminal, break a line, change the direction of writing or are invisible, so that two names look the
 * same. */
static const struct {
    uint32_t first, last;
} escaped[] = {
    {0x1, 0x1f},        {0x7f, 0x9f},     /* C0, DEL, C1 */
    {0xad, 0xad},       {0x61c, 0x61c},   /* soft hyphen, Arabic letter mark */
    {0x180e, 0x180e},   {0x200b, 0x200f}, /* no width, joiners, marks of direction */
    {0x2028, 0x202e},   {0x2060, 0x206f}, /* separators of lines, embeddings, overrides, isolates */
    {0xfeff, 0xfeff},   {0xfff9, 0xfffb}, /* no width, annotations */
    {0xe0000, 0xe007f},                   /* tags */
};

/* Bytes of the character that the text begins with; 0 if it is not UTF-8 or is escaped. */
static size_t character_bytes(const unsigned char *at)
{
    size_t bytes;
    uint32_t code = code_point(at, &bytes);
    for (size_t i = 0; i < sizeof escaped / sizeof *escaped && code; i++)
        if (code >= escaped[i].first && code <= escaped[i].last)
            code = 0;
    return code ? bytes : 0;
}

bool shard_printable_cut(char *to, size_t bytes, const char *text)
{
    size_t used = 0;
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        char escape[8];
        size_t length = character_bytes(at), taken = length ? length : 1;
        const char *shown = (const char *)at;
        if (length == 0) {
            const char letter = *at == '\n' ? 'n' : *at == '\t' ? 't' : *at == '\r' ? 'r' : '\0';
            length = (size_t)(letter ? snprintf(escape, sizeof escape, "\\%c", letter)
                                     : snprintf(escape, sizeof escape, "\\x%02x", *at));
            shown = escape;
        }
        if (length >= bytes - used)
            break;
        memcpy(to + used, shown, length);
        used += length;
        at += taken;
    }
    to[used] = '\0';
    return !*at;
}

const char *shard_printable(char *to, size_t bytes, const char *text)
{
    if (!to || bytes == 0)
        return "";
    shard_printable_cut(to, bytes, text ? text : "");
    return to;
}

const char *shard_quoted(const char *name)
{
    enum { BUFFERS = 6, SHOWN = 96 };
    static _Thread_local char buffers[BUFFERS][SHOWN + 8];
    static _Thread_local unsigned turn;
    char *text = buffers[turn++ % BUFFERS];
    text[0] = '"';
    bool whole = shard_printable_cut(text + 1, SHOWN + 1, name);
    strcat(text, whole ? "\"" : "...\"");
    return text;
}

size_t shard_show_from(const char *left, const char *right, size_t shown)
{
    enum { BEFORE = 40 };
    size_t at = 0;
    while (left[at] && left[at] == right[at])
        at++;
    if (at < shown || at < BEFORE)
        return 0;
    for (at -= BEFORE; at > 0 && (left[at] & 0xc0) == 0x80;)
        at--;
    return at;
}
