#include "comm/straggler.h"

#include "base/clock.h"
#include "base/memory.h"

#include <stdlib.h>

/* Fewer collectives say little: one is that of a save or a first step. */
#define CHECKS_LEAST 10
/* Between the reports of a straggler are 1, 2, 4, ... periods, at most so many. */
#define QUIET_MOST 64

/* ---- the time that this thread computes ---- */

static _Thread_local struct {
    int depth;      /* collectives that it is in */
    double entered; /* when it came to the outermost one */
    double started; /* when it left its first one; 0: it has not */
    double inside;  /* seconds in collectives since */
} course;

void shard_straggler_enter(void)
{
    if (course.depth++ == 0)
        course.entered = shard_seconds();
}

void shard_straggler_leave(void)
{
    if (--course.depth > 0)
        return;
    double now = shard_seconds();
    if (course.started == 0)
        course.started = now;
    else
        course.inside += now - course.entered;
}

double shard_straggler_computed(void)
{
    double until = course.depth > 0 ? course.entered : shard_seconds();
    return course.started == 0 ? 0 : until - course.started - course.inside;
}

/* ---- comparing ---- */

shard_stragglers *shard_stragglers_create(int size)
{
    return shard_calloc(1, sizeof(shard_stragglers) + 3 * (size_t)size * sizeof(double));
}

static int ascending(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static double value_at(const double *first, size_t stride, int rank)
{
    return *(const double *)((const char *)first + (size_t)rank * stride);
}

/* Sets the rank that computed longest, and the median of the others. */
static void find_slowest(const double *computed, int size, double *sorted, shard_straggler *found)
{
    found->rank = 0;
    for (int rank = 0; rank < size; rank++) {
        sorted[rank] = computed[rank];
        found->rank = computed[rank] > computed[found->rank] ? rank : found->rank;
    }
    qsort(sorted, (size_t)size, sizeof *sorted, ascending);
    found->computed = sorted[size - 1];
    found->median = sorted[(size - 2) / 2];
}

/* Whether it is this period's turn; after each report the next one is longer away. */
static bool is_due(shard_stragglers *s)
{
    if (s->left > 0) {
        s->left--;
        return false;
    }
    s->quiet = s->quiet == 0 ? 1 : s->quiet < QUIET_MOST ? 2 * s->quiet : QUIET_MOST;
    s->left = s->quiet;
    return true;
}

bool shard_stragglers_find(shard_stragglers *s, int size, const double *computed, size_t stride, double seconds,
                           shard_straggler *found)
{
    double now = shard_seconds();
    bool begins = s->since == 0, is_one = false;
    if (!begins && (++s->checks < CHECKS_LEAST || now - s->since < seconds))
        return false;
    found->period = now - s->since;
    double *room = s->before + size;
    for (int rank = 0; rank < size; rank++)
        room[rank] = value_at(computed, stride, rank) - s->before[rank];
    if (!begins) {
        find_slowest(room, size, room + size, found);
        is_one = found->computed > found->period / 2 && found->computed >= SHARD_STRAGGLER_FACTOR * found->median;
    }
    if (!is_one)
        s->quiet = s->left = 0;
    s->since = now;
    s->checks = 0;
    for (int rank = 0; rank < size; rank++)
        s->before[rank] = value_at(computed, stride, rank);
    return is_one && is_due(s);
}
