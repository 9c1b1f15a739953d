#include "checkpoint/json_reader.h"

#include "base/memory.h"

#include <string.h>

/* The depth of arrays and objects in a skipped value: with the two around it 127, as in the safetensors package. */
#define DEPTH_MOST 125

json_reader json_reader_start(const char *text, size_t bytes)
{
    return (json_reader){.start = text, .at = text, .end = text + bytes};
}

/* Sets the first error. FORMAT; the caller makes the text. */
static shard_status fail(json_reader *reader, const char *wrong)
{
    if (!reader->wrong)
        reader->wrong = wrong;
    return SHARD_ERROR_FORMAT;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char peek(const json_reader *reader)
{
    return reader->at < reader->end ? *reader->at : '\0';
}

char json_reader_next(json_reader *reader)
{
    while (reader->at < reader->end && (*reader->at == ' ' || *reader->at == '\n' || *reader->at == '\r' || *reader->at == '\t'))
        reader->at++;
    return peek(reader);
}

shard_status json_reader_take(json_reader *reader, char character)
{
    if (json_reader_next(reader) != character || reader->at == reader->end)
        return fail(reader, reader->at == reader->end ? "it ends too early" : "another character is needed here");
    reader->at++;
    return SHARD_OK;
}

bool json_reader_more(json_reader *reader, char end, bool first)
{
    if (json_reader_next(reader) == end && reader->at < reader->end) {
        reader->at++;
        return false;
    }
    return first || json_reader_take(reader, ',') == SHARD_OK;
}

/* ---- strings ---- */

int json_reader_character_bytes(const json_reader *reader)
{
    const unsigned char *at = (const unsigned char *)reader->at;
    int bytes = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : at[0] < 0xf5 ? 4 : 0;
    if (bytes > reader->end - reader->at)
        return 0;
    for (int i = 1; i < bytes; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    bool too_long = (at[0] == 0xe0 && at[1] < 0xa0) || (at[0] == 0xf0 && at[1] < 0x90);
    bool surrogate = at[0] == 0xed && at[1] >= 0xa0, too_large = at[0] == 0xf4 && at[1] >= 0x90;
    return bytes > 2 && (too_long || surrogate || too_large) ? 0 : bytes;
}

static int hexadecimal(char c)
{
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The four digits of \uXXXX; -1: they are not hexadecimal digits. */
static int code_unit(json_reader *reader)
{
    int unit = 0;
    for (int i = 0; i < 4; i++, reader->at++) {
        int digit = hexadecimal(peek(reader));
        if (digit < 0)
            return -1;
        unit = unit << 4 | digit;
    }
    return unit;
}

static size_t encode(unsigned code, char *to)
{
    if (code < 0x80)
        return to[0] = (char)code, 1;
    size_t bytes = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = bytes - 1; i > 0; i--, code >>= 6)
        to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)((0xf00 >> bytes & 0xff) | code);
    return bytes;
}

/* The bytes of the escape after a backslash; 0 with the error set. */
static size_t read_escape(json_reader *reader, char to[4])
{
    static const char letters[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char letter = peek(reader);
    const char *known = letter ? strchr(letters, letter) : NULL;
    reader->at += reader->at < reader->end;
    if (known)
        return to[0] = values[known - letters], 1;
    int unit = letter == 'u' ? code_unit(reader) : -1;
    if (unit < 0)
        return fail(reader, "an unknown escape"), 0;
    unsigned code = (unsigned)unit;
    if (unit >= 0xd800 && unit < 0xdc00 && reader->end - reader->at >= 6 && reader->at[0] == '\\' && reader->at[1] == 'u') {
        reader->at += 2;
        int low = code_unit(reader);
        code = low >= 0xdc00 && low < 0xe000 ? 0x10000 + ((unsigned)(unit - 0xd800) << 10) + (unsigned)(low - 0xdc00) : 0xd800;
    }
    if (code >= 0xd800 && code < 0xe000)
        return fail(reader, "half of a surrogate pair"), 0;
    if (code == 0)
        return fail(reader, "a NUL character in a string"), 0;
    return encode(code, to);
}

/* Reads up to the closing quote, into `to` unless that is NULL. */
static shard_status read_string(json_reader *reader, char *to)
{
    if (json_reader_take(reader, '"') != SHARD_OK)
        return SHARD_ERROR_FORMAT;
    while (reader->at < reader->end && *reader->at != '"') {
        char escaped[4];
        const char *from = reader->at;
        size_t bytes = (unsigned char)*from < 0x20 ? 0 : (size_t)json_reader_character_bytes(reader);
        if (bytes == 0)
            return fail(reader, (unsigned char)*from < 0x20 ? "a control character in a string" : "bytes that are not UTF-8");
        reader->at += bytes;
        if (*from == '\\') {
            bytes = read_escape(reader, escaped);
            from = escaped;
            if (bytes == 0)
                return SHARD_ERROR_FORMAT;
        }
        if (to) {
            memmove(to, from, bytes); /* in place `to` may be one byte behind */
            to += bytes;
        }
    }
    SHARD_TRY(json_reader_take(reader, '"'));
    if (to)
        *to = '\0'; /* in place it may stand on the closing quote */
    return SHARD_OK;
}

/* A string is not longer than its text. */
char *json_reader_string(json_reader *reader)
{
    json_reader_next(reader);
    json_reader ahead = *reader;
    if (read_string(&ahead, NULL) != SHARD_OK) {
        *reader = ahead;
        return NULL;
    }
    char *text = shard_calloc((size_t)(ahead.at - reader->at), 1);
    if (text)
        read_string(reader, text);
    return text;
}

char *json_reader_string_in_place(json_reader *reader, char *text)
{
    json_reader_next(reader);
    char *to = text + (reader->at - reader->start);
    return read_string(reader, to) == SHARD_OK ? to : NULL;
}

/* ---- numbers and the rest ---- */

static bool skip_digits(json_reader *reader)
{
    const char *first = reader->at;
    while (is_digit(peek(reader)))
        reader->at++;
    return reader->at > first;
}

shard_status json_reader_number(json_reader *reader, int64_t *value, bool *is_integer)
{
    json_reader_next(reader);
    bool negative = peek(reader) == '-', fits = true;
    reader->at += negative;
    const char *first = reader->at;
    if (!skip_digits(reader) || (*first == '0' && reader->at - first > 1))
        return fail(reader, "a value is needed here");
    int64_t sum = 0;
    for (const char *digit = first; digit < reader->at && fits; digit++)
        fits = !__builtin_mul_overflow(sum, 10, &sum) && !__builtin_sub_overflow(sum, *digit - '0', &sum);
    fits = fits && (negative || sum != INT64_MIN);
    *is_integer = fits && (!negative || sum != 0);
    if (peek(reader) == '.') {
        *is_integer = false;
        reader->at++;
        if (!skip_digits(reader))
            return fail(reader, "digits are needed here");
    }
    if (peek(reader) == 'e' || peek(reader) == 'E') {
        *is_integer = false;
        reader->at++;
        reader->at += peek(reader) == '+' || peek(reader) == '-';
        if (!skip_digits(reader))
            return fail(reader, "digits are needed here");
    }
    *value = negative || !fits ? sum : -sum;
    return SHARD_OK;
}

static shard_status skip_word(json_reader *reader)
{
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) {
        size_t length = strlen(words[i]);
        if ((size_t)(reader->end - reader->at) >= length && memcmp(reader->at, words[i], length) == 0) {
            reader->at += length;
            return SHARD_OK;
        }
    }
    return fail(reader, "a value is needed here");
}

static shard_status skip(json_reader *reader, int depth)
{
    char next = json_reader_next(reader), end = next == '{' ? '}' : ']';
    int64_t value;
    bool is_integer;
    if (next == '"')
        return read_string(reader, NULL);
    if (next == '-' || is_digit(next))
        return json_reader_number(reader, &value, &is_integer);
    if (next != '{' && next != '[')
        return skip_word(reader);
    if (depth == DEPTH_MOST)
        return fail(reader, "values within values, beyond the maximum depth");
    reader->at++;
    for (bool first = true; json_reader_more(reader, end, first); first = false) {
        if (next == '{' && (read_string(reader, NULL) != SHARD_OK || json_reader_take(reader, ':') != SHARD_OK))
            return SHARD_ERROR_FORMAT;
        if (skip(reader, depth + 1) != SHARD_OK)
            return SHARD_ERROR_FORMAT;
    }
    return reader->wrong ? SHARD_ERROR_FORMAT : SHARD_OK;
}

shard_status json_reader_skip(json_reader *reader)
{
    return skip(reader, 0);
}
