#include "verification.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define THRESHOLDS 400
#define THRESHOLD_STEP 0.01

/* The first of the thresholds that is above the distance: those from it on accept the pair. */
static int first_that_accepts(double distance)
{
    int at = distance > 0 ? (int)fmin(distance / THRESHOLD_STEP, THRESHOLDS) : 0;
    at = at > 0 ? at - 1 : 0; /* the quotient is rounded */
    while (at < THRESHOLDS && !(distance < at * THRESHOLD_STEP))
        at++;
    return at;
}

/* Fold f has pairs [begin, end): sizes differ by one at most, larger ones first. */
static void find_fold(int64_t pairs, int fold, int64_t *begin, int64_t *end)
{
    int64_t size = pairs / VERIFICATION_FOLDS, more = pairs % VERIFICATION_FOLDS;
    *begin = fold * size + (fold < more ? fold : more);
    *end = *begin + size + (fold < more);
}

/* right[t]: how many of the pairs threshold t judges as they are. */
static void count_right(const double *distance, const uint8_t *same, int64_t begin, int64_t end, int64_t right[THRESHOLDS])
{
    for (int t = 0; t < THRESHOLDS; t++)
        right[t] = 0;
    for (int64_t i = begin; i < end; i++) {
        int first = first_that_accepts(distance[i]);
        for (int t = same[i] ? first : 0; t < (same[i] ? THRESHOLDS : first); t++)
            right[t]++;
    }
}

double verification_accuracy(const double *distance, const uint8_t *same, int64_t pairs, double *deviation)
{
    int64_t right[VERIFICATION_FOLDS][THRESHOLDS], all[THRESHOLDS] = {0};
    double sum = 0, squares = 0;
    if (deviation)
        *deviation = NAN;
    if (pairs < VERIFICATION_FOLDS)
        return NAN;
    for (int fold = 0; fold < VERIFICATION_FOLDS; fold++) {
        int64_t begin, end;
        find_fold(pairs, fold, &begin, &end);
        count_right(distance, same, begin, end, right[fold]);
        for (int t = 0; t < THRESHOLDS; t++)
            all[t] += right[fold][t];
    }
    for (int fold = 0; fold < VERIFICATION_FOLDS; fold++) {
        int64_t begin, end;
        int best = 0;
        for (int t = 1; t < THRESHOLDS; t++)
            if (all[t] - right[fold][t] > all[best] - right[fold][best])
                best = t;
        find_fold(pairs, fold, &begin, &end);
        double percent = 100 * (double)right[fold][best] / (double)(end - begin);
        sum += percent;
        squares += percent * percent;
    }
    double mean = sum / VERIFICATION_FOLDS;
    if (deviation)
        *deviation = sqrt(fmax(0, squares / VERIFICATION_FOLDS - mean * mean));
    return mean;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The percentage of sorted numbers below a bound. */
static double part_below(const double *sorted, int64_t count, double bound)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (sorted[middle] < bound)
            low = middle + 1;
        else
            high = middle;
    }
    return 100 * (double)low / (double)count;
}

double verification_tar(double *same, int64_t same_count, double *different, int64_t different_count, double far)
{
    double place = far * (double)different_count;
    if (same_count == 0 || !(place >= 1) || place > (double)different_count)
        return NAN;
    qsort(same, (size_t)same_count, sizeof *same, compare);
    qsort(different, (size_t)different_count, sizeof *different, compare);
    int64_t before = (int64_t)place;
    double tar = before < different_count ? part_below(same, same_count, different[before]) : 100;
    double next = before + 1 < different_count ? part_below(same, same_count, different[before + 1]) : 100;
    return tar + (place - (double)before) * (next - tar);
}

static void measure_tar(double *same, int64_t same_count, double *different, int64_t different_count, verification *result)
{
    result->same = same_count;
    result->different = different_count;
    for (int i = 0; i < VERIFICATION_FARS; i++)
        result->tar[i] = verification_tar(same, same_count, different, different_count, verification_far[i]);
}

static shard_status no_memory(int64_t pairs)
{
    return shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " pairs", pairs);
}

shard_status verification_of_pairs(const double *distance, const uint8_t *same, int64_t pairs, verification *result)
{
    double *divided = calloc((size_t)pairs + 1, sizeof *divided);
    int64_t of_same = 0, of_different = 0, same_count = 0;
    *result = (verification){0};
    if (!divided)
        return no_memory(pairs);
    for (int64_t i = 0; i < pairs; i++)
        same_count += same[i];
    for (int64_t i = 0; i < pairs; i++)
        divided[same[i] ? of_same++ : same_count + of_different++] = distance[i];
    result->accuracy = verification_accuracy(distance, same, pairs, &result->deviation);
    measure_tar(divided, of_same, divided + same_count, of_different, result);
    free(divided);
    return SHARD_OK;
}

shard_status verification_of_lists(double *same, int64_t same_count, double *different, int64_t different_count,
                                   verification *result)
{
    int64_t each = same_count < different_count ? same_count : different_count;
    double *distance = calloc((size_t)(2 * each) + 1, sizeof *distance);
    uint8_t *is_same = calloc((size_t)(2 * each) + 1, 1);
    *result = (verification){0};
    for (int64_t i = 0; i < each && distance && is_same; i++) {
        distance[2 * i] = same[i];
        distance[2 * i + 1] = different[i];
        is_same[2 * i] = 1;
    }
    bool made = distance && is_same;
    if (made) {
        result->accuracy = verification_accuracy(distance, is_same, 2 * each, &result->deviation);
        measure_tar(same, same_count, different, different_count, result);
    }
    free(distance);
    free(is_same);
    return made ? SHARD_OK : no_memory(2 * each);
}
