/* The dictionary: words.txt has a line "word count" for each class, sorted by the words' bytes. And the test: test.txt has a line
 * "typed correction" for each misspelled word. prepare writes both. */
#ifndef SPELL_WORDS_H
#define SPELL_WORDS_H

#include <shard/base.h>

#define WORDS_MOST_BYTES 63 /* of a word */

typedef struct words {
    int64_t count;
    char *text;     /* the words, each ended by a 0 */
    int64_t *begin; /* [count], in text */
    int64_t *times; /* [count], how often the word is in the text that prepare read */
} words;

/* Misspelled words; class[i] is the number of the correction of typed word i. */
typedef struct typed_words {
    int64_t count;
    char *text;
    int64_t *begin, *class;
} typed_words;

/* Reads a dictionary of at least two words. NULL with the error set: IO; MEMORY; FORMAT, with the line and the text that is
 * wrong. */
words *words_open(const char *path);
void words_close(words *dictionary);

/* Reads a test of at least one word. Each correction is in the dictionary, else FORMAT. NULL with the error set as above. */
typed_words *words_open_typed(const char *path, const words *dictionary);
void words_close_typed(typed_words *typed);

static inline const char *words_at(const words *dictionary, int64_t class)
{
    return dictionary->text + dictionary->begin[class];
}

static inline const char *words_typed_at(const typed_words *typed, int64_t index)
{
    return typed->text + typed->begin[index];
}

/* The class of the word; -1 if it is not in the dictionary. */
int64_t words_find(const words *dictionary, const char *word);

/* A hash of the words, with their counts or without. */
uint64_t words_hash(const words *dictionary, bool counts);

/* MISMATCH if ranks have different words, counts or tests (NULL: none). Collective over the world. */
shard_status words_check_identical(const words *dictionary, const typed_words *typed);

#endif
