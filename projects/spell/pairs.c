#include "pairs.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- chances ---- */

static void sum_chances(pairs *of, double uniform, double power)
{
    double total = 0, sum = 0, even = 1 / (double)of->dictionary->count;
    for (int64_t i = 0; i < of->dictionary->count; i++) {
        of->cumulative[i] = of->dictionary->times[i] > 0 ? pow((double)of->dictionary->times[i], power) : 0;
        total += of->cumulative[i];
    }
    for (int64_t i = 0; i < of->dictionary->count; i++) {
        sum += total > 0 ? uniform * even + (1 - uniform) * of->cumulative[i] / total : even;
        of->cumulative[i] = sum;
    }
}

/* ---- order ---- */

/* A word, by its last bytes. */
typedef struct ending {
    const char *word;
    int32_t length, class;
} ending;

static int compare_endings(const void *a, const void *b)
{
    const ending *x = a, *y = b;
    int32_t shorter = x->length < y->length ? x->length : y->length;
    for (int32_t i = 1; i <= shorter; i++) {
        int order = (unsigned char)x->word[x->length - i] - (unsigned char)y->word[y->length - i];
        if (order != 0)
            return order;
    }
    return x->length - y->length;
}

static shard_status sort_by_end(pairs *of)
{
    int64_t count = of->dictionary->count;
    ending *endings = calloc((size_t)count, sizeof *endings);
    if (!endings)
        return shard_error(SHARD_ERROR_MEMORY, "no memory to sort %" PRId64 " words", count);
    for (int64_t i = 0; i < count; i++) {
        const char *word = words_at(of->dictionary, i);
        endings[i] = (ending){word, (int32_t)strlen(word), (int32_t)i};
    }
    qsort(endings, (size_t)count, sizeof *endings, compare_endings);
    for (int64_t i = 0; i < count; i++) {
        of->by_end[i] = endings[i].class;
        of->place[endings[i].class] = (int32_t)i;
    }
    free(endings);
    return SHARD_OK;
}

pairs *pairs_create(const words *dictionary, double uniform, double power, uint64_t seed)
{
    size_t count = (size_t)dictionary->count;
    pairs *of = calloc(1, sizeof *of);
    if (of)
        *of = (pairs){dictionary, calloc(count, sizeof *of->cumulative), calloc(count, sizeof *of->by_end),
                      calloc(count, sizeof *of->place), seed};
    shard_status status = of && of->cumulative && of->by_end && of->place
                              ? sort_by_end(of)
                              : shard_error(SHARD_ERROR_MEMORY, "no memory for the chances of %zu classes", count);
    if (status != SHARD_OK) {
        pairs_destroy(of);
        return NULL;
    }
    sum_chances(of, uniform, power);
    return of;
}

void pairs_destroy(pairs *of)
{
    if (!of)
        return;
    free(of->cumulative);
    free(of->by_end);
    free(of->place);
    free(of);
}

double pairs_chance(const pairs *of, int64_t class)
{
    return of->cumulative[class] - (class > 0 ? of->cumulative[class - 1] : 0);
}

/* ---- drawing ---- */

enum { OF_CLASS = 0, OF_NOISE = 1 }; /* purposes of random numbers */

static int64_t draw_class(const pairs *of, random_stream *stream)
{
    int64_t low = 0, high = of->dictionary->count - 1;
    double drawn = random_uniform(stream) * of->cumulative[high];
    while (low < high) { /* the first class with drawn below its cumulative chance */
        int64_t middle = low + (high - low) / 2;
        if (of->cumulative[middle] > drawn)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

int64_t pairs_draw_class(const pairs *of, int64_t run, int64_t epoch, int64_t index)
{
    int64_t of_run = index / run, last = of->dictionary->count - 1;
    random_stream stream = random_start(random_hash(of->seed, OF_CLASS, 0), (uint64_t)epoch, (uint64_t)of_run);
    int64_t class = draw_class(of, &stream);
    bool by_end = of_run % 2 == 1;
    int64_t at = (by_end ? of->place[class] : class) - run / 2 + index % run;
    at = at < 0 ? 0 : at > last ? last : at;
    return by_end ? of->by_end[at] : at;
}

void pairs_draw(const pairs *of, int64_t run, int64_t epoch, int64_t index, pair *drawn)
{
    random_stream stream = random_start(random_hash(of->seed, OF_NOISE, 0), (uint64_t)epoch, (uint64_t)index);
    drawn->class = pairs_draw_class(of, run, epoch, index);
    noise_apply(&stream, words_at(of->dictionary, drawn->class), drawn->typed);
}
