#include "tokenizer.h"

#include "array.h"
#include "hash.h"
#include "utf8.h"
#include "words.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- making ---- */

/* Bytes that GPT-2 writes as they are in vocab.json come first. */
static bool is_plain(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

tokenizer *tokenizer_make(bool with_bytes)
{
    tokenizer *made = calloc(1, sizeof *made);
    if (!made) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for a tokenizer");
        return NULL;
    }
    made->has_pairs = with_bytes;
    made->end_of_text = -1;
    for (int plain = 1; plain >= 0 && with_bytes; plain--)
        for (int byte = 0; byte < 256; byte++)
            if (is_plain(byte) == plain)
                made->of_byte[byte] = (int32_t)string_set_add(&made->vocabulary, (char[]){(char)byte}, 1);
    if (shard_last_status() == SHARD_OK)
        return made;
    tokenizer_close(made);
    return NULL;
}

shard_status tokenizer_add_merge(tokenizer *of, int32_t left, int32_t right)
{
    int64_t sizes[2];
    const char *bytes[2] = {tokenizer_text(of, left, &sizes[0]), tokenizer_text(of, right, &sizes[1])};
    char *joined = malloc((size_t)(sizes[0] + sizes[1]) + 1);
    if (!joined)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for a token of %" PRId64 " bytes", sizes[0] + sizes[1]);
    memcpy(joined, bytes[0], (size_t)sizes[0]);
    memcpy(joined + sizes[0], bytes[1], (size_t)sizes[1]);
    int64_t token = string_set_add(&of->vocabulary, joined, sizes[0] + sizes[1]);
    free(joined);
    if (token < 0 || array_grow(&of->pair[0], &of->room[0], of->merges + 1, sizeof(int32_t)) != SHARD_OK ||
        array_grow(&of->pair[1], &of->room[1], of->merges + 1, sizeof(int32_t)) != SHARD_OK ||
        array_grow(&of->merged, &of->room[2], of->merges + 1, sizeof(int32_t)) != SHARD_OK)
        return shard_last_status();
    of->pair[0][of->merges] = left;
    of->pair[1][of->merges] = right;
    of->merged[of->merges] = (int32_t)token;
    if (number_map_find(&of->rank, pair_key(left, right)) < 0)
        number_map_set(&of->rank, pair_key(left, right), of->merges);
    of->merges++;
    return shard_last_status();
}

void tokenizer_close(tokenizer *of)
{
    if (!of)
        return;
    string_set_free(&of->vocabulary);
    number_map_free(&of->rank);
    free(of->pair[0]);
    free(of->pair[1]);
    free(of->merged);
    free(of);
}

/* ---- characters ---- */

static bool *mark_characters(const char *text, int64_t bytes)
{
    bool *seen = calloc(0x110000, sizeof *seen);
    if (!seen) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the characters of a text");
        return NULL;
    }
    int size;
    for (const char *at = text, *end = text + bytes; at < end; at += size) {
        int64_t code = utf8_read(at, end, &size);
        if (code >= 0)
            seen[code] = true;
    }
    return seen;
}

tokenizer *tokenizer_of_characters(const char *text, int64_t bytes)
{
    tokenizer *made = tokenizer_make(false);
    bool *seen = made ? mark_characters(text, bytes) : NULL;
    char character[4];
    for (uint32_t code = 0; seen && code < 0x110000; code++)
        if (seen[code])
            string_set_add(&made->vocabulary, character, utf8_write(character, code));
    free(seen);
    if (made && shard_last_status() == SHARD_OK)
        return made;
    tokenizer_close(made);
    return NULL;
}

static shard_status encode_characters(const tokenizer *of, const char *text, int64_t bytes, const char *name, int32_t *tokens,
                                      int64_t *count)
{
    int size, line = 1;
    for (const char *at = text, *end = text + bytes; at < end; at += size) {
        utf8_read(at, end, &size);
        int64_t token = string_set_find(&of->vocabulary, at, size);
        if (token < 0) {
            return shard_error(SHARD_ERROR_FORMAT, "%s: line %d: the vocabulary has no character \"%.*s\"", name, line, size, at);
        }
        tokens[(*count)++] = (int32_t)token;
        line += *at == '\n';
    }
    return SHARD_OK;
}

/* ---- byte pairs ---- */

/* The tokens of a word while its pairs are merged: a linked list that begins with token[0]. */
typedef struct merging {
    const tokenizer *of;
    int32_t *token;
    int64_t *next, *before; /* -1: none */
    int64_t room[3];
    queue queue; /* ranks and positions of pairs */
} merging;

static bool offer(merging *word, int64_t at)
{
    if (at < 0 || word->next[at] < 0)
        return true;
    int64_t rank = number_map_find(&word->of->rank, pair_key(word->token[at], word->token[word->next[at]]));
    return rank < 0 || queue_push(&word->queue, (queue_entry){(uint64_t)rank, (uint64_t)at}) == SHARD_OK;
}

static bool begin_word(merging *word, const char *bytes, int64_t size)
{
    if (array_grow(&word->token, &word->room[0], size, sizeof *word->token) != SHARD_OK ||
        array_grow(&word->next, &word->room[1], size, sizeof *word->next) != SHARD_OK ||
        array_grow(&word->before, &word->room[2], size, sizeof *word->before) != SHARD_OK)
        return false;
    for (int64_t i = 0; i < size; i++) {
        word->token[i] = word->of->of_byte[(unsigned char)bytes[i]];
        word->next[i] = i + 1 < size ? i + 1 : -1;
        word->before[i] = i - 1;
    }
    bool good = true;
    for (int64_t i = 0; i < size && good; i++)
        good = offer(word, i);
    return good;
}

/* Merges the pair of the lowest rank, the leftmost first, until no merge has a pair. Entries of the queue whose tokens were
 * merged by then are skipped. */
static bool merge_word(merging *word)
{
    queue_entry entry;
    bool good = true;
    while (good && queue_pop(&word->queue, &entry)) {
        int64_t at = (int64_t)entry.second, next = word->next[at];
        if (word->token[at] < 0 || next < 0 ||
            number_map_find(&word->of->rank, pair_key(word->token[at], word->token[next])) != (int64_t)entry.first)
            continue;
        word->token[at] = word->of->merged[entry.first];
        word->token[next] = -1;
        word->next[at] = word->next[next];
        if (word->next[at] >= 0)
            word->before[word->next[at]] = at;
        good = offer(word, word->before[at]) && offer(word, at);
    }
    return good;
}

static bool encode_words(merging *word, const char *text, const char *end, int32_t *tokens, int64_t *count)
{
    while (text < end) {
        const char *after = words_end(text, end);
        if (!begin_word(word, text, after - text) || !merge_word(word))
            return false;
        for (int64_t at = 0; at >= 0; at = word->next[at])
            tokens[(*count)++] = word->token[at];
        text = after;
    }
    return true;
}

static shard_status encode_pairs(const tokenizer *of, const char *text, int64_t bytes, int32_t *tokens, int64_t *count)
{
    merging word = {.of = of};
    const char *end = text + bytes;
    bool good = true;
    while (text < end && good) {
        const char *special =
            of->end_of_text < 0 ? NULL : memmem(text, (size_t)(end - text), TOKENIZER_END, strlen(TOKENIZER_END));
        good = encode_words(&word, text, special ? special : end, tokens, count);
        if (special)
            tokens[(*count)++] = of->end_of_text;
        text = special ? special + strlen(TOKENIZER_END) : end;
    }
    free(word.token);
    free(word.next);
    free(word.before);
    queue_free(&word.queue);
    return good ? SHARD_OK : shard_last_status();
}

/* ---- use ---- */

int32_t *tokenizer_encode(const tokenizer *of, const char *text, int64_t bytes, const char *name, int64_t *count)
{
    int32_t *tokens = malloc(((size_t)bytes + 1) * sizeof *tokens);
    *count = 0;
    if (!tokens) {
        shard_error(SHARD_ERROR_MEMORY, "%s: no memory for the tokens of %" PRId64 " bytes", name, bytes);
        return NULL;
    }
    shard_status status =
        of->has_pairs ? encode_pairs(of, text, bytes, tokens, count) : encode_characters(of, text, bytes, name, tokens, count);
    if (status != SHARD_OK) {
        free(tokens);
        return NULL;
    }
    int32_t *less = realloc(tokens, ((size_t)*count + 1) * sizeof *tokens);
    if (less)
        tokens = less;
    return tokens;
}

int64_t tokenizer_size(const tokenizer *of)
{
    return of->vocabulary.count;
}

const char *tokenizer_text(const tokenizer *of, int64_t token, int64_t *bytes)
{
    return string_set_at(&of->vocabulary, token, bytes);
}

uint64_t tokenizer_hash(const tokenizer *of)
{
    uint64_t hash = HASH_START;
    for (int64_t i = 0; i < of->vocabulary.count; i++) {
        int64_t size;
        const char *bytes = tokenizer_text(of, i, &size);
        hash = hash_word(hash_bytes(hash, bytes, size), 0xFF); /* not a byte of UTF-8 */
    }
    for (int64_t i = 0; i < of->merges; i++)
        hash = hash_word(hash, pair_key(of->pair[0][i], of->pair[1][i]));
    return hash;
}
