/*
 * The merges of a text's most frequent pairs (Sennrich, Haddow, Birch 2016), of bytes and within words. Each distinct word is
 * kept once, with the number of times that it is in the text. A queue orders the pairs by count; an entry
 * of a pair whose count has changed since is put back with the present count.
 */
#include "tokenizer.h"

#include "array.h"
#include "words.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A pair of tokens: how often it is in the text, and the words in which it is or was. */
typedef struct pair_state {
    uint64_t key;
    int64_t count;
    int32_t *word;
    int64_t words, room;
    bool raised; /* its count has become larger since the last merge */
} pair_state;

typedef struct training {
    tokenizer *made;
    string_set words;
    int64_t *times; /* [words] */
    int64_t times_room;
    int32_t *token;    /* of all words, at words.begin */
    int32_t *size;     /* [words]: tokens of each */
    number_map number; /* of pairs, in `pair` */
    pair_state *pair;
    int64_t pairs, pair_room;
    int64_t *raised; /* numbers of pairs */
    int64_t raises, raised_room;
    queue queue;
} training;

/* ---- words ---- */

static shard_status count_words(training *state, const char *text, int64_t bytes)
{
    const char *end = text + bytes;
    while (text < end) {
        const char *after = words_end(text, end);
        int64_t known = state->words.count, word = string_set_add(&state->words, text, after - text);
        if (word < 0 || array_grow(&state->times, &state->times_room, word + 1, sizeof *state->times) != SHARD_OK)
            return shard_last_status();
        state->times[word] = word == known ? 1 : state->times[word] + 1;
        text = after;
    }
    if (state->words.count > INT32_MAX)
        return shard_error(SHARD_ERROR_ARGUMENT, "%" PRId64 " distinct words; at most %d", state->words.count, INT32_MAX);
    int64_t all = state->words.count ? state->words.begin[state->words.count] : 0;
    state->token = malloc(((size_t)all + 1) * sizeof *state->token);
    state->size = malloc(((size_t)state->words.count + 1) * sizeof *state->size);
    if (!state->token || !state->size)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " words", state->words.count);
    for (int64_t i = 0; i < all; i++)
        state->token[i] = state->made->of_byte[(unsigned char)state->words.bytes[i]];
    for (int64_t i = 0; i < state->words.count; i++)
        state->size[i] = (int32_t)(state->words.begin[i + 1] - state->words.begin[i]);
    return SHARD_OK;
}

/* ---- pairs ---- */

/* Changes the count of a pair by a word's times; a pair whose count grows gets the word. */
static bool count_pair(training *state, int32_t left, int32_t right, int64_t word, int64_t change)
{
    uint64_t key = pair_key(left, right);
    int64_t number = number_map_find(&state->number, key);
    if (number < 0) {
        number = state->pairs;
        if (array_grow(&state->pair, &state->pair_room, number + 1, sizeof *state->pair) != SHARD_OK ||
            number_map_set(&state->number, key, number) != SHARD_OK)
            return false;
        state->pair[state->pairs++] = (pair_state){.key = key};
    }
    pair_state *pair = &state->pair[number];
    pair->count += change;
    if (change < 0)
        return true;
    if (!pair->raised) {
        if (array_grow(&state->raised, &state->raised_room, state->raises + 1, sizeof *state->raised) != SHARD_OK)
            return false;
        state->raised[state->raises++] = number;
        pair->raised = true;
    }
    if (pair->words && pair->word[pair->words - 1] == word)
        return true;
    if (array_grow(&pair->word, &pair->room, pair->words + 1, sizeof *pair->word) != SHARD_OK)
        return false;
    pair->word[pair->words++] = (int32_t)word;
    return true;
}

static bool enqueue(training *state, const pair_state *pair)
{
    return queue_push(&state->queue, (queue_entry){~(uint64_t)pair->count, pair->key}) == SHARD_OK;
}

static bool enqueue_raised(training *state)
{
    bool good = true;
    for (int64_t i = 0; i < state->raises && good; i++) {
        state->pair[state->raised[i]].raised = false;
        good = enqueue(state, &state->pair[state->raised[i]]);
    }
    state->raises = 0;
    return good;
}

static bool count_pairs(training *state)
{
    bool good = true;
    for (int64_t word = 0; word < state->words.count && good; word++) {
        const int32_t *token = state->token + state->words.begin[word];
        for (int32_t i = 0; i + 1 < state->size[word] && good; i++)
            good = count_pair(state, token[i], token[i + 1], word, state->times[word]);
    }
    return good && enqueue_raised(state);
}

/* ---- merging ---- */

static bool merge_in_word(training *state, int64_t word, int32_t left, int32_t right, int32_t merged)
{
    int32_t *token = state->token + state->words.begin[word], size = state->size[word], kept = 0;
    int64_t times = state->times[word];
    bool good = true;
    for (int32_t i = 0; i < size && good; kept++) {
        bool found = i + 1 < size && token[i] == left && token[i + 1] == right;
        if (found && kept > 0)
            good =
                count_pair(state, token[kept - 1], left, word, -times) && count_pair(state, token[kept - 1], merged, word, times);
        if (found && good && i + 2 < size)
            good = count_pair(state, right, token[i + 2], word, -times) && count_pair(state, merged, token[i + 2], word, times);
        token[kept] = found ? merged : token[i];
        i += found ? 2 : 1;
    }
    state->size[word] = kept;
    return good;
}

static bool merge_pair(training *state, int64_t number)
{
    pair_state pair = state->pair[number]; /* the array moves when pairs are added */
    int32_t left = (int32_t)(pair.key >> 32), right = (int32_t)pair.key;
    if (tokenizer_add_merge(state->made, left, right) != SHARD_OK)
        return false;
    int32_t merged = state->made->merged[state->made->merges - 1];
    bool good = true;
    state->pair[number].word = NULL;
    state->pair[number].words = state->pair[number].room = 0;
    for (int64_t i = 0; i < pair.words && good; i++)
        good = merge_in_word(state, pair.word[i], left, right, merged);
    free(pair.word);
    state->pair[number].count = 0;
    return good && enqueue_raised(state);
}

static bool merge_most_frequent(training *state, int64_t size)
{
    queue_entry entry;
    bool good = true;
    while (good && tokenizer_size(state->made) < size && queue_pop(&state->queue, &entry)) {
        int64_t number = number_map_find(&state->number, entry.second), count = state->pair[number].count;
        if (count < 2)
            continue;
        good = count == (int64_t)~entry.first ? merge_pair(state, number) : enqueue(state, &state->pair[number]);
    }
    return good;
}

tokenizer *tokenizer_of_pairs(const char *text, int64_t bytes, int64_t size)
{
    if (size < 257 || size > INT32_MAX) {
        shard_error(SHARD_ERROR_ARGUMENT, "%" PRId64 " tokens of byte pairs: at least 257, the bytes and " TOKENIZER_END, size);
        return NULL;
    }
    training state = {.made = tokenizer_make(true)};
    bool good = state.made && count_words(&state, text, bytes) == SHARD_OK && count_pairs(&state) &&
                merge_most_frequent(&state, size - 1);
    if (good)
        state.made->end_of_text = (int32_t)string_set_add(&state.made->vocabulary, TOKENIZER_END, strlen(TOKENIZER_END));
    for (int64_t i = 0; i < state.pairs; i++)
        free(state.pair[i].word);
    free(state.pair);
    free(state.raised);
    number_map_free(&state.number);
    queue_free(&state.queue);
    string_set_free(&state.words);
    free(state.times);
    free(state.token);
    free(state.size);
    if (good && state.made->end_of_text >= 0)
        return state.made;
    tokenizer_close(state.made);
    return NULL;
}
