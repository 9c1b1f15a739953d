#include "search.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROBES_AT_ONCE 1024

/* The images of both sides: [gallery] first images of identities, [probes] the others. */
typedef struct sides {
    int64_t *first, *other;
    int64_t gallery, probes;
} sides;

static shard_status divide(const int64_t *identity, int64_t images, sides *of)
{
    *of = (sides){.first = calloc((size_t)images + 1, sizeof *of->first), .other = calloc((size_t)images + 1, sizeof *of->other)};
    if (!of->first || !of->other)
        return shard_error(SHARD_ERROR_MEMORY, "no memory for a search of %" PRId64 " images", images);
    for (int64_t i = 0; i < images; i++)
        if (i == 0 || identity[i] != identity[i - 1])
            of->first[of->gallery++] = i;
        else
            of->other[of->probes++] = i;
    return SHARD_OK;
}

/* Features of the images `list` [count], on the default device. NULL with the error set. */
static shard_tensor *gather_rows(const float *features, int64_t size, const int64_t *list, int64_t count)
{
    float *rows = malloc((size_t)(count * size + 1) * sizeof *rows);
    if (!rows) {
        shard_error(SHARD_ERROR_MEMORY, "no memory for %" PRId64 " features", count);
        return NULL;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy(rows + i * size, features + list[i] * size, (size_t)size * sizeof *rows);
    shard_tensor *made = shard_from_host(rows, SHARD_SHAPE(count, size));
    free(rows);
    return made;
}

/* This rank's range of the gallery, as a last layer's weight. */
static shard_tensor *make_weight(const float *features, int64_t size, const sides *of, shard_group *group)
{
    if (shard_group_size(group) <= 1)
        return gather_rows(features, size, of->first, of->gallery);
    shard_range range = shard_split_range(of->gallery, shard_group_size(group), shard_group_rank(group));
    shard_tensor *rows = gather_rows(features, size, of->first + range.start, range.size);
    return rows ? shard_as_split(rows, 0, group, range.start, of->gallery) : NULL;
}

/* How many of the probes were found at the first place, and at the first places. */
static void count_hits(const int64_t *found, int64_t k, const int64_t *probe, int64_t count, const sides *of,
                       const int64_t *identity, int64_t *first, int64_t *any)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t place = 0; place < k; place++)
            if (identity[of->first[found[i * k + place]]] == identity[probe[i]]) {
                *first += place == 0;
                ++*any;
                break;
            }
}

static shard_status search_all(const float *features, int64_t size, const int64_t *identity, const sides *of, shard_group *group,
                               search_result *result)
{
    int64_t k = of->gallery < SEARCH_TOP ? of->gallery : SEARCH_TOP, first = 0, any = 0;
    int64_t *found = calloc((size_t)(PROBES_AT_ONCE * SEARCH_TOP), sizeof *found);
    if (!found)
        shard_error(SHARD_ERROR_MEMORY, "no memory for a search");
    SHARD_SCOPE
    {
        shard_tensor *weight = make_weight(features, size, of, group);
        for (int64_t start = 0; start < of->probes && shard_last_status() == SHARD_OK; start += PROBES_AT_ONCE) {
            int64_t left = of->probes - start, count = left < PROBES_AT_ONCE ? left : PROBES_AT_ONCE;
            SHARD_SCOPE
            {
                shard_tensor *classes = NULL;
                shard_linear_top_k(gather_rows(features, size, of->other + start, count), weight, NULL, k, &classes);
                if (classes && found && shard_copy_to_host(classes, found, (size_t)(count * k) * sizeof *found) == SHARD_OK)
                    count_hits(found, k, of->other + start, count, of, identity, &first, &any);
            }
        }
    }
    free(found);
    result->rank1 = of->probes > 0 ? 100 * (double)first / (double)of->probes : NAN;
    result->rank5 = of->probes > 0 ? 100 * (double)any / (double)of->probes : NAN;
    return shard_last_status();
}

shard_status search_gallery(const float *features, int64_t images, int64_t size, const int64_t *identity, shard_group *group,
                            search_result *result)
{
    sides of;
    *result = (search_result){.rank1 = NAN, .rank5 = NAN};
    if (divide(identity, images, &of) == SHARD_OK) {
        result->gallery = of.gallery;
        result->probes = of.probes;
    }
    shard_status status = shard_agree(group);
    if (status == SHARD_OK)
        status = search_all(features, size, identity, &of, group, result);
    free(of.first);
    free(of.other);
    return status;
}
