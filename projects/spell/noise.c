#include "noise.h"

#include <stdbool.h>
#include <string.h>

#define MOST_LETTERS 80 /* 63 bytes, and what three errors add */

/* A word while it changes: letters are code points, or bytes that are not UTF-8. */
typedef struct letters {
    uint32_t of[MOST_LETTERS];
    int count;
} letters;

/* ---- UTF-8 ---- */

static int decode_one(const unsigned char *text, uint32_t *letter)
{
    int more = text[0] >= 0xf0 && text[0] < 0xf8   ? 3
               : text[0] >= 0xe0 && text[0] < 0xf0 ? 2
               : text[0] >= 0xc0 && text[0] < 0xe0 ? 1
                                                   : 0;
    *letter = more == 0 ? text[0] : text[0] & (0x3fu >> more);
    for (int i = 1; i <= more; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            *letter = text[0];
            return 1;
        }
        *letter = *letter << 6 | (text[i] & 0x3fu);
    }
    return more + 1;
}

static int decode(const char *text, uint32_t *letter, int most)
{
    int count = 0;
    while (*text && count < most)
        text += decode_one((const unsigned char *)text, &letter[count++]);
    return count;
}

static void encode(const letters *word, char *text)
{
    unsigned char *to = (unsigned char *)text, *end = to + NOISE_MOST_BYTES - 3;
    for (int i = 0; i < word->count && to < end; i++) {
        uint32_t c = word->of[i];
        int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
        *to++ = (unsigned char)(more == 0 ? c : (0xf0u << (3 - more) & 0xf0u) | c >> 6 * more);
        for (int k = more - 1; k >= 0; k--)
            *to++ = (unsigned char)(0x80u | (c >> 6 * k & 0x3fu));
    }
    *to = '\0';
}

/* ---- choices ---- */

static int draw(random_stream *stream, int below)
{
    return (int)(random_next(stream) % (uint64_t)below);
}

/* A place in the word, in [0, below). Four times of five it is not the first one, if there is another. */
static int draw_place(random_stream *stream, int below)
{
    bool spared = draw(stream, 5) > 0;
    return spared && below > 1 ? 1 + draw(stream, below - 1) : draw(stream, below);
}

/* ---- the keyboard ---- */

/* Four times the coordinates of the keys a to z: across, and down by row. */
static const signed char key_across[26] = {1,  19, 11, 9, 8,  13, 17, 21, 28, 25, 29, 33, 27,
                                           23, 32, 36, 0, 12, 5,  16, 24, 15, 4,  7,  20, 3};
static const signed char key_down[26] = {4, 8, 8, 4, 0, 4, 4, 4, 0, 4, 4, 4, 8, 8, 0, 0, 0, 0, 4, 0, 0, 8, 0, 8, 0, 8};

static int key_weight(int from, int to)
{
    int across = key_across[from] - key_across[to], down = key_down[from] - key_down[to];
    int square = across * across + down * down; /* 16 is the distance of two keys of a row */
    return from == to ? 0 : square <= 25 ? 24 : square <= 64 ? 4 : 1;
}

/* A letter near `from` on the keyboard; any letter for others than a to z. */
static uint32_t draw_near(random_stream *stream, uint32_t from)
{
    if (from < 'a' || from > 'z')
        return 'a' + (uint32_t)draw(stream, 26);
    int total = 0, key = (int)(from - 'a');
    for (int i = 0; i < 26; i++)
        total += key_weight(key, i);
    int chosen = draw(stream, total);
    for (int i = 0; i < 26; i++) {
        chosen -= key_weight(key, i);
        if (chosen < 0)
            return 'a' + (uint32_t)i;
    }
    return from;
}

/* ---- errors ---- */

static void delete_at(letters *word, int at, int count)
{
    memmove(word->of + at, word->of + at + count, sizeof *word->of * (size_t)(word->count - at - count));
    word->count -= count;
}

static void insert_at(letters *word, int at, const uint32_t *letter, int count)
{
    if (word->count + count > MOST_LETTERS)
        return;
    memmove(word->of + at + count, word->of + at, sizeof *word->of * (size_t)(word->count - at));
    memcpy(word->of + at, letter, sizeof *letter * (size_t)count);
    word->count += count;
}

static void leave_out(random_stream *stream, letters *word)
{
    if (word->count > 1)
        delete_at(word, draw_place(stream, word->count), 1);
}

static void add(random_stream *stream, letters *word)
{
    int at = draw_place(stream, word->count + 1);
    uint32_t letter = draw_near(stream, word->of[at > 0 ? at - 1 : at]);
    insert_at(word, at, &letter, 1);
}

static bool is_vowel(uint32_t letter)
{
    return letter == 'a' || letter == 'e' || letter == 'i' || letter == 'o' || letter == 'u';
}

static void substitute(random_stream *stream, letters *word)
{
    int at = draw_place(stream, word->count);
    word->of[at] = draw_near(stream, word->of[at]);
}

static void transpose(random_stream *stream, letters *word)
{
    if (word->count < 2)
        return;
    int at = draw_place(stream, word->count - 1);
    uint32_t first = word->of[at];
    word->of[at] = word->of[at + 1];
    word->of[at + 1] = first;
}

/* Half of the time, and where no letter is double, it doubles one; else a double one becomes single. */
static void change_doubling(random_stream *stream, letters *word)
{
    int doubles = 0;
    bool double_one = draw(stream, 2) == 0;
    for (int i = 1; i < word->count; i++)
        doubles += word->of[i] == word->of[i - 1];
    if (doubles == 0 || double_one) {
        int at = draw_place(stream, word->count);
        uint32_t letter = word->of[at];
        insert_at(word, at, &letter, 1);
        return;
    }
    int chosen = draw(stream, doubles);
    for (int i = 1; i < word->count; i++)
        if (word->of[i] == word->of[i - 1] && chosen-- == 0) {
            delete_at(word, i, 1);
            return;
        }
}

/* ---- phonetic errors ---- */

/* Both directions, except where the second is written for the first alone. */
static const struct {
    const char *first, *second;
    bool forward_only;
} sounds[] = {
    {"ie", "ei", 0},     {"ph", "f", 0},      {"c", "k", 0},     {"c", "s", 0},      {"s", "z", 0},       {"ck", "k", 0},
    {"able", "ible", 0}, {"ance", "ence", 0}, {"ant", "ent", 0}, {"er", "or", 0},    {"er", "ar", 0},     {"tion", "sion", 0},
    {"tion", "cion", 0}, {"y", "i", 0},       {"ou", "u", 0},    {"ea", "ee", 0},    {"ea", "e", 0},      {"gh", "", 1},
    {"wh", "w", 0},      {"qu", "kw", 0},     {"x", "ks", 0},    {"sc", "s", 0},     {"sc", "c", 0},      {"ch", "k", 0},
    {"ch", "tch", 0},    {"dge", "ge", 0},    {"g", "j", 0},     {"v", "f", 0},      {"b", "p", 0},       {"d", "t", 0},
    {"al", "el", 0},     {"el", "le", 0},     {"ely", "ly", 0},  {"lly", "ly", 0},   {"ally", "ly", 0},   {"ary", "ery", 0},
    {"re", "er", 0},     {"our", "or", 0},    {"ise", "ize", 0}, {"ious", "ous", 0}, {"eous", "ious", 0}, {"ai", "ia", 0},
    {"ui", "iu", 0},     {"oi", "io", 0},     {"rh", "r", 0},    {"th", "t", 0},     {"sh", "ch", 0},     {"kn", "n", 1},
    {"mn", "m", 1},      {"mb", "m", 1},      {"e", "", 1},      {"h", "", 1},       {"'", "", 1},        {"-", "", 1},
    {"y", "ie", 0},      {"ies", "ys", 0},    {"ed", "d", 0},    {"ing", "eing", 0}, {"de", "di", 0},     {"per", "pre", 0},
    {"ß", "ss", 0},      {"ä", "ae", 0},      {"ö", "oe", 0},    {"ü", "ue", 0},     {"ä", "a", 0},       {"ö", "o", 0},
    {"ü", "u", 0},       {"tz", "z", 0},      {"dt", "t", 0},    {"ä", "e", 0},      {"äu", "eu", 0},     {"é", "e", 0},
    {"è", "e", 0},       {"ê", "e", 0},       {"ë", "e", 0},     {"à", "a", 0},      {"â", "a", 0},       {"î", "i", 0},
    {"ï", "i", 0},       {"ô", "o", 0},       {"û", "u", 0},     {"ù", "u", 0},      {"ç", "c", 0},       {"eau", "au", 0},
    {"au", "o", 0},      {"é", "è", 0},       {"œ", "oe", 0},
};
enum { SOUNDS = sizeof sounds / sizeof *sounds, MOST_SITES = 512 };

typedef struct site {
    short at, sound;
    bool back;
} site;

static bool is_at(const letters *word, int at, const uint32_t *of, int count)
{
    return at + count <= word->count && memcmp(word->of + at, of, sizeof *of * (size_t)count) == 0;
}

static int find_sites(const letters *word, site *found)
{
    uint32_t of[8];
    int sites = 0;
    for (int i = 0; i < SOUNDS; i++)
        for (int back = 0; back <= !sounds[i].forward_only; back++) {
            int count = decode(back ? sounds[i].second : sounds[i].first, of, 8);
            for (int at = 0; at < word->count && sites < MOST_SITES; at++)
                if (is_at(word, at, of, count))
                    found[sites++] = (site){(short)at, (short)i, back};
        }
    return sites;
}

/* One of the sounds of the word; half of the time, and in a word without any, another vowel. */
static void confuse(random_stream *stream, letters *word)
{
    static const char vowels[] = "aeiou";
    site found[MOST_SITES];
    int sites = find_sites(word, found), at = draw_place(stream, word->count);
    bool vowel = draw(stream, 2) == 0;
    if (vowel || sites == 0) {
        for (int i = 0; i < word->count && !is_vowel(word->of[at]); i++)
            at = (at + 1) % word->count;
        word->of[at] = is_vowel(word->of[at]) ? (uint32_t)vowels[draw(stream, 5)] : draw_near(stream, word->of[at]);
        return;
    }
    site chosen = found[draw(stream, sites)];
    const char *from = chosen.back ? sounds[chosen.sound].second : sounds[chosen.sound].first;
    const char *to = chosen.back ? sounds[chosen.sound].first : sounds[chosen.sound].second;
    uint32_t of[8];
    int removed = decode(from, of, 8), added = decode(to, of, 8);
    if (word->count - removed + added < 1)
        return;
    delete_at(word, chosen.at, removed);
    insert_at(word, chosen.at, of, added);
}

void noise_apply(random_stream *stream, const char *word, char *typed)
{
    /* How often of 100 each kind is drawn. */
    static const struct {
        int chance;
        void (*make)(random_stream *stream, letters *word);
    } kinds[] = {{26, leave_out}, {12, add}, {14, substitute}, {16, transpose}, {12, change_doubling}, {20, confuse}};
    letters changed;
    changed.count = decode(word, changed.of, MOST_LETTERS);
    int chance = draw(stream, 100), errors = chance < 4 ? 0 : chance < 76 ? 1 : chance < 96 ? 2 : 3;
    for (int i = 0; i < errors && changed.count > 0; i++) {
        int kind = 0, chosen = draw(stream, 100);
        while (chosen >= kinds[kind].chance)
            chosen -= kinds[kind++].chance;
        kinds[kind].make(stream, &changed);
    }
    encode(&changed, typed);
}
