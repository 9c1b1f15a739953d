/* The words of a text, as GPT-2 divides it before byte pairs are merged within each word. */
#ifndef MINGPT_WORDS_H
#define MINGPT_WORDS_H

#include <stdint.h>

/*
 * The end of the word that begins at `at` < end, in valid UTF-8. A word is the first of these that fits, GPT-2's pattern:
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * \p{L} and \p{N} are the letters and numbers of unicode_table.h, and \s has Unicode's property White_Space.
 */
const char *words_end(const char *at, const char *end);

#endif
