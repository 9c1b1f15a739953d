/* The training pairs: a word as typed, by the noise model, and its class. A pair depends on the seed and its index alone, so that
 * a step has the same pairs on any number of ranks. */
#ifndef SPELL_PAIRS_H
#define SPELL_PAIRS_H

#include "noise.h"
#include "words.h"

typedef struct pairs {
    const words *dictionary; /* borrowed */
    double *cumulative;      /* [classes]: the chance of this class and those before it */
    int32_t *by_end;         /* [classes]: the classes, sorted by the words' bytes from the last to the first */
    int32_t *place;          /* [classes]: of the class in by_end */
    uint64_t seed;
} pairs;

typedef struct pair {
    int64_t class;
    char typed[NOISE_MOST_BYTES + 1];
} pair;

/* A class is drawn with the chance uniform / classes + (1 - uniform) * times^power / (the sum of times^power of all), where times
 * is its count in the text; uniform alone if no word has a count. NULL with the error set (MEMORY). */
pairs *pairs_create(const words *dictionary, double uniform, double power, uint64_t seed);
void pairs_destroy(pairs *of);

/* The chance of the class. */
double pairs_chance(const pairs *of, int64_t class);

/* Pair `index` of an epoch. Of each `run` pairs on end one class is drawn, and the pairs are of it and of its neighbours in the
 * dictionary, which is sorted in turns by the words' first and last bytes. So a batch has words that are easily taken for each
 * other. With a run of 1 each class is drawn. */
void pairs_draw(const pairs *of, int64_t run, int64_t epoch, int64_t index, pair *drawn);
/* Its class alone. */
int64_t pairs_draw_class(const pairs *of, int64_t run, int64_t epoch, int64_t index);

#endif
