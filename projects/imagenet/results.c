#include "results.h"

#include <shard/autograd.h>
#include <shard/op.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* memory: the loss, then the ranks. */
typedef struct slot {
    shard_event *copied;
    double *memory;
    int64_t rows, room; /* ranks there are, and that the memory has room for */
    bool ranked;        /* false: the ranks are not known */
} slot;

struct results {
    shard_device *device;
    int64_t most, first, count;
    slot *slots; /* [most], a ring */
};

static size_t slot_bytes(int64_t room)
{
    return sizeof(double) + (size_t)room * sizeof(int64_t);
}

results *results_open(shard_device *device, int64_t most)
{
    results *queue = calloc(1, sizeof *queue);
    slot *slots = calloc((size_t)most, sizeof *slots);
    if (!queue || !slots) {
        free(queue);
        free(slots);
        shard_error(SHARD_ERROR_MEMORY, "no memory for the results of %" PRId64 " batches", most);
        return NULL;
    }
    *queue = (results){.device = device, .most = most, .slots = slots};
    for (int64_t i = 0; i < most; i++)
        if (!(slots[i].copied = shard_event_create(device))) {
            results_close(queue);
            return NULL;
        }
    return queue;
}

void results_close(results *queue)
{
    if (!queue)
        return;
    for (int64_t i = 0; i < queue->most; i++) {
        slot *of = queue->slots + i;
        if (of->copied)
            shard_event_synchronize(of->copied);
        shard_event_destroy(of->copied);
        shard_device_free_host(queue->device, of->memory, slot_bytes(of->room));
    }
    free(queue->slots);
    free(queue);
}

static shard_status make_room(const results *queue, slot *into, int64_t rows)
{
    if (into->memory && rows <= into->room)
        return SHARD_OK;
    shard_device_free_host(queue->device, into->memory, slot_bytes(into->room));
    into->memory = shard_device_allocate_host(queue->device, slot_bytes(rows));
    into->room = into->memory ? rows : 0;
    return into->memory ? SHARD_OK : shard_last_status();
}

shard_status results_put(results *queue, shard_tensor *loss, shard_tensor *ranks)
{
    if (queue->count == queue->most)
        return shard_error(SHARD_ERROR_INTERNAL, "results of %" PRId64 " batches were not read", queue->most);
    slot *into = queue->slots + (queue->first + queue->count) % queue->most;
    int64_t rows = ranks ? shard_numel(ranks) : 0;
    shard_status status = make_room(queue, into, rows);
    SHARD_SCOPE {
        shard_tensor *wide = shard_cast(shard_detach(loss), SHARD_FLOAT64);
        if (status == SHARD_OK)
            status = shard_copy_to_host_async(wide, into->memory, sizeof(double));
    }
    if (status == SHARD_OK && ranks)
        status = shard_copy_to_host_async(ranks, into->memory + 1, (size_t)rows * sizeof(int64_t));
    if (status == SHARD_OK)
        status = shard_event_record(into->copied);
    if (status != SHARD_OK)
        return status;
    into->rows = rows;
    into->ranked = ranks != NULL;
    queue->count++;
    return SHARD_OK;
}

shard_status results_take(results *queue, batch_sums *sums)
{
    *sums = (batch_sums){0};
    if (queue->count == 0)
        return shard_error(SHARD_ERROR_INTERNAL, "no batch has results");
    const slot *from = queue->slots + queue->first;
    shard_status status = shard_event_synchronize(from->copied);
    if (status != SHARD_OK)
        return status;
    const int64_t *rank = (const int64_t *)(from->memory + 1);
    sums->loss = from->memory[0];
    sums->top1 = sums->top5 = from->ranked ? 0 : NAN;
    for (int64_t i = 0; i < from->rows; i++) {
        sums->top1 += rank[i] < 1;
        sums->top5 += rank[i] < 5;
    }
    queue->first = (queue->first + 1) % queue->most;
    queue->count--;
    return SHARD_OK;
}
