#include "distributed/identical.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/printable.h"
#include "comm/comm.h"
#include "comm/majority.h"

#include <stdlib.h>
#include <string.h>

typedef struct summary {
    uint64_t hash;
    int64_t bytes;
} summary;

shard_status shard_identical_lines_add(shard_identical_lines *lines, char *line)
{
    size_t bytes = line ? strlen(line) + 1 : 0;
    shard_status status =
        line ? shard_grow(&lines->text, &lines->capacity, lines->bytes + (int64_t)bytes, 1) : shard_last_status();
    if (status == SHARD_OK) {
        memcpy(lines->text + lines->bytes, line, bytes);
        lines->bytes += (int64_t)bytes;
    }
    free(line);
    return status;
}

/* usual: the lines of the ranks that `found` names. */
static void report_difference(const shard_identical_lines *mine, const char *usual, int64_t usual_bytes,
                              const shard_majority *found, const char *what)
{
    int64_t at = 0;
    while (at < mine->bytes && at < usual_bytes && strcmp(mine->text + at, usual + at) == 0)
        at += (int64_t)strlen(usual + at) + 1;
    if (at >= mine->bytes && at >= usual_bytes)
        return;
    char shown[2][150];
    const char *here = at < mine->bytes ? mine->text + at : "nothing more";
    const char *there = at < usual_bytes ? usual + at : "nothing more";
    size_t left_out = shard_show_from(here, there, 100);
    const char *dots = left_out ? "..." : "";
    shard_error(SHARD_ERROR_MISMATCH, "%s: here it is %s%s, on %s %s%s", what, dots,
                shard_printable(shown[0], sizeof shown[0], here + left_out), found->usual_ranks, dots,
                shard_printable(shown[1], sizeof shown[1], there + left_out));
}

static shard_status find_difference(const shard_identical_lines *mine, int64_t usual_bytes, const shard_majority *found,
                                    shard_group *group, const char *what)
{
    bool sends = shard_group_rank(group) == found->usual;
    char *text = sends ? mine->text : shard_calloc((size_t)usual_bytes, 1);
    if (shard_group_broadcast(group, NULL, text, usual_bytes, SHARD_UINT8, found->usual) == SHARD_OK && !sends)
        report_difference(mine, text, usual_bytes, found, what);
    if (!sends)
        free(text);
    return shard_agree(group);
}

shard_status shard_identical_lines_check(shard_identical_lines *lines, shard_group *group, const char *what)
{
    int size = shard_group_size(group);
    summary mine = {.hash = shard_hash_bytes(SHARD_HASH_START, lines->text, lines->bytes), .bytes = lines->bytes};
    summary *all = shard_calloc((size_t)size, sizeof *all);
    shard_status status = shard_group_exchange(group, &mine, sizeof mine, all);
    shard_majority found;
    if (status == SHARD_OK && shard_find_majority(group, all, sizeof *all, sizeof *all, &found))
        status = find_difference(lines, all[found.usual].bytes, &found, group, what);
    free(all);
    free(lines->text);
    *lines = (shard_identical_lines){0};
    return status;
}
