#include "checkpoint/summing.h"

#include "base/crc64.h"
#include "base/thread.h"

/* Of less data the checksum takes no longer than the start of a thread. */
#define THREADED_LEAST ((int64_t)2 << 20)

static void *run(void *context)
{
    shard_summing *summing = context;
    summing->crc = shard_crc64(0, summing->data, summing->bytes);
    return NULL;
}

void shard_summing_start(shard_summing *summing, const void *data, int64_t bytes)
{
    *summing = (shard_summing){.data = data, .bytes = bytes};
    summing->threaded = bytes >= THREADED_LEAST && shard_thread_start(&summing->thread, run, summing) == 0;
}

void shard_summing_finish(shard_summing *summing, uint64_t *crc)
{
    if (summing->threaded)
        pthread_join(summing->thread, NULL);
    else if (summing->data)
        run(summing);
    *crc = shard_crc64_shift(*crc, summing->bytes) ^ summing->crc;
    *summing = (shard_summing){0};
}
