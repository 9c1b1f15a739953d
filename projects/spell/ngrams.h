/*
 * The features of a word: its bytes' n-grams, hashed to rows of a table. With a mark before the first and after the last byte,
 * ^word$, they are
 *
 *     runs      of 1 to 4 adjacent bytes; those of 1 without the marks
 *     skips     of two bytes with one between
 *
 * Row 0 is padding and no feature's.
 */
#ifndef SPELL_NGRAMS_H
#define SPELL_NGRAMS_H

#include <stdint.h>

#define NGRAMS_MOST 320 /* features of a word; those of a longer one than 63 bytes end there */

/* Writes the rows of the word's features, each in [1, rows), into row, of NGRAMS_MOST; their number. The same feature is there as
 * often as it is in the word. rows is at least 2. */
int ngrams_list(const char *word, int64_t rows, int64_t *row);

#endif
