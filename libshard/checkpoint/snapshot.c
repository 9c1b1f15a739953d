#include "checkpoint/snapshot.h"

#include "base/math.h"
#include "base/memory.h"
#include "checkpoint/ranges.h"

#include <stdlib.h>

/* Large runs lie in memory as in the file, modulo the unit of direct writes. */
#define UNIT 4096
#define LARGE ((int64_t)256 << 10)
/* Small runs begin at multiples of this, so that elements never lie in two blocks. */
#define ALIGNMENT 64

static shard_status add_block(shard_snapshot *snapshot)
{
    SHARD_TRY(shard_grow(&snapshot->blocks, &snapshot->block_capacity, snapshot->block_count + 1, sizeof *snapshot->blocks));
    void *block = shard_block_allocate();
    if (!block)
        return shard_last_status();
    snapshot->blocks[snapshot->block_count++] = block;
    snapshot->used = 0;
    return SHARD_OK;
}

/* The first place from `used` on that equals `place` modulo the unit. */
static int64_t align(int64_t used, int64_t place, int64_t bytes)
{
    int64_t unit = bytes < LARGE ? ALIGNMENT : UNIT, wanted = bytes < LARGE ? 0 : place % unit;
    return used + (wanted - used % unit + unit) % unit;
}

void *shard_snapshot_add(shard_snapshot *snapshot, int64_t index, int64_t begin, int64_t place, int64_t *bytes)
{
    int64_t start = align(snapshot->used, place, *bytes);
    if (shard_grow(&snapshot->runs, &snapshot->capacity, snapshot->count + 1, sizeof *snapshot->runs) != SHARD_OK)
        return NULL;
    if (snapshot->block_count == 0 || start >= SHARD_BLOCK_BYTES) {
        if (add_block(snapshot) != SHARD_OK)
            return NULL;
        start = align(0, place, *bytes);
    }
    int64_t block = snapshot->block_count - 1;
    *bytes = shard_min(*bytes, SHARD_BLOCK_BYTES - start);
    snapshot->used = start + *bytes;
    char *values = (char *)snapshot->blocks[block] + start;
    snapshot->runs[snapshot->count++] = (shard_snapshot_run){index, begin, *bytes, values, block};
    return values;
}

void shard_snapshot_release(shard_snapshot *snapshot, int64_t block)
{
    shard_block_free(snapshot->blocks[block]);
    snapshot->blocks[block] = NULL;
}

void shard_snapshot_free(shard_snapshot *snapshot)
{
    for (int64_t block = 0; block < snapshot->block_count; block++)
        shard_snapshot_release(snapshot, block);
    free(snapshot->blocks);
    free(snapshot->runs);
    *snapshot = (shard_snapshot){0};
}
