#include "words.h"

#include "unicode_table.h"
#include "utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

typedef enum kind { KIND_OTHER = 0, KIND_LETTER, KIND_NUMBER, KIND_SPACE, KIND_END } kind;

static bool is_in(const unicode_range *ranges, size_t count, uint32_t code)
{
    size_t low = 0, all = count;
    while (count > 0) { /* the first range that does not end before the code is in [low, low + count] */
        size_t half = count / 2;
        if (ranges[low + half].last < code) {
            low += half + 1;
            count -= half + 1;
        } else {
            count = half;
        }
    }
    return low < all && ranges[low].first <= code && code <= ranges[low].last;
}

static bool is_space(uint32_t code)
{
    return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

/* The kind of the character at `at`, and its bytes. */
static kind kind_at(const char *at, const char *end, int *bytes)
{
    *bytes = 0;
    if (at == end)
        return KIND_END;
    unsigned char byte = (unsigned char)*at;
    if (byte < 0x80) {
        *bytes = 1;
        bool letter = (byte | 0x20) >= 'a' && (byte | 0x20) <= 'z';
        return letter ? KIND_LETTER : byte >= '0' && byte <= '9' ? KIND_NUMBER : is_space(byte) ? KIND_SPACE : KIND_OTHER;
    }
    int64_t code = utf8_read(at, end, bytes);
    if (code < 0)
        return KIND_OTHER;
    if (is_in(unicode_letters, sizeof unicode_letters / sizeof *unicode_letters, (uint32_t)code))
        return KIND_LETTER;
    if (is_in(unicode_numbers, sizeof unicode_numbers / sizeof *unicode_numbers, (uint32_t)code))
        return KIND_NUMBER;
    return is_space((uint32_t)code) ? KIND_SPACE : KIND_OTHER;
}

/* The bytes of a contraction, as 's; 0 if the text at `at` is not one. */
static int contraction(const char *at, const char *end)
{
    static const char *const endings[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t length = strlen(endings[i]);
        if ((size_t)(end - at) >= length && memcmp(at, endings[i], length) == 0)
            return (int)length;
    }
    return 0;
}

/* All white space but its last character, if something else follows; at least one character. */
static const char *end_of_space(const char *at, const char *end)
{
    const char *last = at, *next = at;
    int bytes;
    kind found = kind_at(at, end, &bytes);
    while (found == KIND_SPACE) {
        last = next;
        next += bytes;
        found = kind_at(next, end, &bytes);
    }
    return found == KIND_END || last == at ? next : last;
}

const char *words_end(const char *at, const char *end)
{
    int bytes, first;
    if (*at == '\'' && contraction(at, end))
        return at + contraction(at, end);
    const char *next = at + (*at == ' '); /* a space belongs to the word that follows it */
    kind wanted = kind_at(next, end, &first);
    if (wanted == KIND_SPACE || wanted == KIND_END)
        return end_of_space(at, end);
    next += first;
    while (kind_at(next, end, &bytes) == wanted)
        next += bytes;
    return next;
}
