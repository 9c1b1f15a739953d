/* A model of how people misspell: it makes the word as typed from the word as meant. */
#ifndef SPELL_NOISE_H
#define SPELL_NOISE_H

#include "random.h"

#define NOISE_MOST_BYTES 255 /* of a result, of a word of at most 63 */

/*
 * Writes `word`, UTF-8, with errors into typed, of NOISE_MOST_BYTES + 1. It depends on the stream alone. 0, 1, 2 or 3 errors have
 * the chances 4, 72, 20 and 4 percent. Each is of one of these kinds:
 *
 *     deletion        a letter is left out
 *     insertion       a letter is added, near its neighbour on the keyboard
 *     substitution    a letter becomes another one, by the distance of the keys of a QWERTY keyboard
 *     transposition   two adjacent letters change places
 *     doubling        a letter is doubled, or a double one becomes single
 *     phonetic        letters become others of a similar sound, as ie and ei, or lose their accent
 *
 * The first letter is spared four times of five. Letters are code points; a byte that is not UTF-8 is read as Latin-1.
 */
void noise_apply(random_stream *stream, const char *word, char *typed);

#endif
