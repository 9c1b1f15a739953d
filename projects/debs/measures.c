#include "measures.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static bool has(const int32_t *ones, int64_t count, int64_t label)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (ones[middle] < label)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ones[low] == label;
}

/* The largest inverse propensities of the point's labels, largest first; 0 where there are no more. */
static void find_best(const int32_t *ones, int64_t count, const double *inverse, double *best)
{
    for (int i = 0; i < MEASURES_TOP; i++)
        best[i] = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = inverse[ones[i]];
        for (int place = 0; place < MEASURES_TOP; place++) {
            if (value <= best[place])
                continue;
            double moved = best[place];
            best[place] = value;
            value = moved;
        }
    }
}

void measures_add(measures *sum, const int64_t *predicted, const int32_t *ones, int64_t count, const double *inverse)
{
    double best[MEASURES_TOP], hits = 0, gain = 0, ideal = 0;
    find_best(ones, count, inverse, best);
    for (int place = 0, index = 0; place < MEASURES_TOP; place++) {
        bool hit = has(ones, count, predicted[place]);
        hits += hit;
        gain += hit ? inverse[predicted[place]] : 0;
        ideal += best[place];
        if (place + 1 != measures_k[index])
            continue;
        sum->hits[index] += hits;
        sum->gain[index] += gain;
        sum->ideal[index] += ideal;
        sum->recall[index] += count > 0 ? hits / (double)count : 0;
        index++;
    }
    sum->points++;
    sum->labelled += count > 0;
}

static double percent(double part, double whole)
{
    return whole > 0 ? 100 * part / whole : 0;
}

double measures_precision(const measures *sum, int k_index)
{
    return percent(sum->hits[k_index], sum->points * measures_k[k_index]);
}

double measures_propensity_scored(const measures *sum, int k_index)
{
    return percent(sum->gain[k_index], sum->ideal[k_index]);
}

double measures_recall(const measures *sum, int k_index)
{
    return percent(sum->recall[k_index], sum->labelled);
}

double *measures_inverse_propensities(const xmc_data *train, double a, double b)
{
    double *inverse = calloc((size_t)train->labels, sizeof *inverse), factor = (log((double)train->points) - 1) * pow(b + 1, a);
    if (!inverse) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for the propensities of %" PRId64 " labels", train->labels);
        return NULL;
    }
    for (int64_t i = 0; i < train->label_begin[train->points]; i++)
        inverse[train->label[i]]++;
    for (int64_t i = 0; i < train->labels; i++) {
        double points = inverse[i];
        inverse[i] = 1 + factor * pow(points + b, -a);
        if (isfinite(inverse[i]))
            continue;
        shard_error(SHARD_ERROR_ARGUMENT,
                    "--propensity-a %g, --propensity-b %g: the propensity of label %" PRId64 ", of %.0f training points, has no "
                    "finite inverse: take a larger --propensity-b",
                    a, b, i, points);
        free(inverse);
        return NULL;
    }
    return inverse;
}
