#include "json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- UTF-8 ---- */

int utf8_write(char *to, uint32_t code)
{
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xC0, 0xE0, 0xF0};
    for (int i = more; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3F));
    to[0] = (char)(lead[more] | code);
    return more + 1;
}

int64_t utf8_read(const char *at, const char *end, int *bytes)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    unsigned char lead = (unsigned char)*at;
    int more = lead < 0x80 ? 0 : lead >> 5 == 6 ? 1 : lead >> 4 == 14 ? 2 : lead >> 3 == 30 ? 3 : -1;
    *bytes = 1;
    if (more < 0 || end - at <= more)
        return -1;
    uint32_t code = more == 0 ? lead : lead & (0x3Fu >> more);
    for (int i = 1; i <= more; i++) {
        if (((unsigned char)at[i] & 0xC0) != 0x80)
            return -1;
        code = code << 6 | ((unsigned char)at[i] & 0x3F);
    }
    if (code < least[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
        return -1;
    *bytes = more + 1;
    return code;
}

/* ---- reading ---- */

json json_of(const char *text, int64_t bytes, const char *path)
{
    return (json){.begin = text, .at = text, .end = text + bytes, .path = path};
}

void json_close(json *reader)
{
    free(reader->string);
    reader->string = NULL;
}

void json_fail(json *reader, const char *what)
{
    int line = 1;
    for (const char *at = reader->begin; at < reader->at && at < reader->end; at++)
        line += *at == '\n';
    if (!reader->failed)
        shard_error(SHARD_ERROR_FORMAT, "%s: line %d: %s", reader->path, line, what);
    reader->failed = true;
}

static char peek(json *reader)
{
    while (reader->at < reader->end && strchr(" \t\r\n", *reader->at) && *reader->at)
        reader->at++;
    return reader->failed || reader->at == reader->end ? '\0' : *reader->at;
}

static void expect(json *reader, char wanted)
{
    char what[] = "expected ' '";
    what[sizeof what - 3] = wanted;
    if (peek(reader) == wanted)
        reader->at++;
    else
        json_fail(reader, what);
}

void json_open(json *reader, char bracket)
{
    expect(reader, bracket);
    reader->first = true;
}

bool json_next(json *reader, char closing, const char **name)
{
    bool first = reader->first;
    reader->first = false;
    if (peek(reader) == closing) {
        reader->at++;
        return false;
    }
    if (!first)
        expect(reader, ',');
    if (name && !reader->failed) {
        *name = json_string(reader, NULL);
        expect(reader, ':');
    }
    return !reader->failed;
}

static bool has_room(json *reader, size_t used)
{
    if (used + 8 <= reader->room)
        return true;
    size_t room = 2 * reader->room + 64;
    char *larger = realloc(reader->string, room);
    if (!larger) {
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory for a text of %zu bytes", reader->path, used);
        reader->failed = true;
        return false;
    }
    reader->string = larger;
    reader->room = room;
    return true;
}

/* The four digits of \u; -1 if they are none. */
static int32_t read_unit(json *reader)
{
    int32_t unit = 0;
    if (reader->end - reader->at < 4)
        return -1;
    for (int i = 0; i < 4; i++, reader->at++) {
        const char *digits = "0123456789abcdef", *digit = strchr(digits, *reader->at | 0x20);
        if (!digit || !*digit)
            return -1;
        unit = 16 * unit + (int32_t)(digit - digits);
    }
    return unit;
}

/* Behind \u: a code point, of one unit or of a pair of surrogates. */
static int64_t read_escaped_code(json *reader)
{
    int32_t unit = read_unit(reader);
    if (unit < 0xD800 || unit >= 0xE000)
        return unit;
    if (unit >= 0xDC00 || reader->end - reader->at < 2 || reader->at[0] != '\\' || reader->at[1] != 'u')
        return -1;
    reader->at += 2;
    int32_t low = read_unit(reader);
    return low >= 0xDC00 && low < 0xE000 ? 0x10000 + (((int64_t)unit - 0xD800) << 10) + (low - 0xDC00) : -1;
}

/* The bytes of the character or escape at reader->at, appended; 0 with the error set. */
static int read_character(json *reader, char *to)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    if (*reader->at != '\\') {
        int bytes;
        if ((unsigned char)*reader->at < 0x20 || utf8_read(reader->at, reader->end, &bytes) < 0) {
            json_fail(reader, "a string with a control character, or malformed UTF-8");
            return 0;
        }
        memcpy(to, reader->at, (size_t)bytes);
        reader->at += bytes;
        return bytes;
    }
    const char *name = reader->at + 1 < reader->end ? strchr(names, reader->at[1]) : NULL;
    if (name && *name) {
        reader->at += 2;
        *to = values[name - names];
        return 1;
    }
    bool escaped = reader->at + 1 < reader->end && reader->at[1] == 'u';
    reader->at += escaped ? 2 : 0;
    int64_t code = escaped ? read_escaped_code(reader) : -1;
    if (code < 0)
        json_fail(reader, "a string with an escape that is none");
    return code < 0 ? 0 : utf8_write(to, (uint32_t)code);
}

const char *json_string(json *reader, int64_t *bytes)
{
    size_t used = 0;
    expect(reader, '"');
    while (!reader->failed && reader->at < reader->end && *reader->at != '"')
        if (has_room(reader, used))
            used += (size_t)read_character(reader, reader->string + used);
    if (!reader->failed && reader->at == reader->end)
        json_fail(reader, "a string without its end");
    if (reader->failed || !has_room(reader, used))
        return NULL;
    reader->at++;
    reader->string[used] = '\0';
    if (bytes)
        *bytes = (int64_t)used;
    return reader->string;
}

double json_number(json *reader)
{
    char text[64];
    size_t length = 0;
    peek(reader);
    while (!reader->failed && reader->at < reader->end && length < sizeof text - 1 && *reader->at &&
           strchr("+-.eE0123456789", *reader->at))
        text[length++] = *reader->at++;
    text[length] = '\0';
    char *end;
    double value = strtod(text, &end);
    if (length == 0 || *end)
        json_fail(reader, "expected a number");
    return reader->failed ? 0 : value;
}

static bool take_word(json *reader, const char *word)
{
    size_t length = strlen(word);
    if (peek(reader) != *word || (size_t)(reader->end - reader->at) < length || memcmp(reader->at, word, length) != 0)
        return false;
    reader->at += length;
    return true;
}

bool json_truth(json *reader)
{
    bool truth = take_word(reader, "true");
    if (!truth && !take_word(reader, "false"))
        json_fail(reader, "expected true or false");
    return truth;
}

char json_kind(json *reader)
{
    char next = peek(reader);
    return next && strchr("{[\"tfn", next) ? next : next == '-' || (next >= '0' && next <= '9') ? '0' : '\0';
}

static void skip(json *reader, int depth)
{
    const char *name;
    char kind = json_kind(reader);
    if (depth == JSON_DEPTH || !kind) {
        json_fail(reader, depth == JSON_DEPTH ? "objects and arrays nest too deep" : "expected a value");
    } else if (kind == '{' || kind == '[') {
        json_open(reader, kind);
        while (json_next(reader, kind == '{' ? '}' : ']', kind == '{' ? &name : NULL))
            skip(reader, depth + 1);
    } else if (kind == '"') {
        json_string(reader, NULL);
    } else if (kind == '0') {
        json_number(reader);
    } else if (!take_word(reader, "null")) {
        json_truth(reader);
    }
}

void json_skip(json *reader)
{
    skip(reader, 0);
}
