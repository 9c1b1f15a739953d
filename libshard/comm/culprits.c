#include "comm/culprits.h"

#include "base/memory.h"
#include "comm/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Marks in `reached` the ranks that `rank` waits for, directly or through others, and itself.
 * Whether one of them does not answer. */
static bool reach(const shard_waits *waits, int rank, bool *reached, int *queue)
{
    int first = 0, last = 0;
    bool silent = false;
    reached[rank] = true;
    queue[last++] = rank;
    while (first < last) {
        int waiting = queue[first++];
        if (!waits->answers(waits->context, waiting)) {
            silent = true;
            continue;
        }
        for (int other = 0; other < waits->size; other++)
            if (!reached[other] && waits->waits_for(waits->context, waiting, other)) {
                reached[other] = true;
                queue[last++] = other;
            }
    }
    return silent;
}

int shard_find_culprits(const shard_waits *waits, int rank, bool *culprits)
{
    int witness = -1;
    bool *reached = shard_calloc((size_t)waits->size, sizeof *reached);
    int *queue = shard_calloc((size_t)waits->size, sizeof *queue);
    memset(culprits, 0, (size_t)waits->size * sizeof *culprits);
    bool silent = reached && queue && reach(waits, rank, reached, queue);
    for (int waiting = 0; waiting < waits->size && reached && queue; waiting++) {
        if (!reached[waiting] || !waits->answers(waits->context, waiting) || (!silent && witness >= 0))
            continue;
        for (int other = 0; other < waits->size; other++) {
            if (other == waiting || !waits->waits_for(waits->context, waiting, other) ||
                (silent && waits->answers(waits->context, other)))
                continue;
            culprits[other] = true;
            witness = witness < 0 ? waiting : witness;
        }
    }
    free(reached);
    free(queue);
    return witness;
}

void shard_write_culprits(int size, const bool *culprits, const char *doing, const char *waited_in, char *text, size_t bytes)
{
    enum { MOST = 199 }; /* characters of a call: other ranks may write to the texts */
    text[0] = '\0';
    shard_group_name_ranks(&(shard_group){.size = size}, culprits, text, bytes);
    size_t used = strlen(text);
    snprintf(text + used, bytes - used, " did not come to %.*s within %.0f s (SHARD_TIMEOUT)%s%.*s", MOST, doing,
             shard_comm_timeout(), waited_in ? ", but waited in " : "", MOST, waited_in ? waited_in : "");
}
