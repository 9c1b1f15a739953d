/* Storage: device memory of tensors, allocated and filled when it is needed. */
#include "tensor/storage.h"

#include "device/graph.h"

#include <stdlib.h>

shard_storage *shard_storage_make(shard_device *device, size_t bytes)
{
    shard_storage *storage = shard_calloc(1, sizeof *storage);
    if (storage)
        *storage = (shard_storage){.references = 1,
                                   .device = device,
                                   .bytes = bytes ? bytes : 1,
                                   .kind = SHARD_MEMORY_ACTIVATIONS,
                                   .capture = shard_graph_number()};
    return storage;
}

void shard_storage_set_kind(shard_storage *storage, shard_memory_kind kind)
{
    shard_memory_count *memory = storage->device->memory;
    if (storage->memory && !storage->foreign && kind != storage->kind) {
        shard_memory_count_add(&memory[storage->kind], -(int64_t)storage->bytes);
        shard_memory_count_add(&memory[kind], (int64_t)storage->bytes);
    }
    storage->kind = kind;
}

void shard_storage_become(shard_storage *storage, shard_memory_kind kind)
{
    if (storage->kind == SHARD_MEMORY_ACTIVATIONS || storage->kind == SHARD_MEMORY_WORKSPACE)
        shard_storage_set_kind(storage, kind);
}

void *shard_storage_allocate(shard_storage *storage)
{
    storage->capture = shard_graph_number();
    return storage->memory = shard_device_allocate(storage->device, storage->kind, storage->bytes);
}

shard_status shard_storage_check_replayed(const shard_storage *storage)
{
    bool of_graph = storage->capture && storage->memory && !storage->foreign && !storage->device->ops->host_memory;
    if (!of_graph || shard_is_capturing() || shard_graph_is_replayed(storage->capture))
        return SHARD_OK;
    return shard_error(SHARD_ERROR_ARGUMENT,
                       "a tensor of %zu bytes on %s is a result of a captured graph that has not run: it has a value after the "
                       "first shard_graph_replay",
                       storage->bytes, storage->device->name);
}

/* A replay would materialize such memory again. */
static shard_status refuse_in_capture(const shard_storage *storage)
{
    if (storage->device->ops->host_memory || storage->capture == shard_graph_number())
        return SHARD_OK;
    return shard_graph_refuse("the first use of a tensor that was made before the capture");
}

/* Makes the device's later work wait for the copy; the host does not wait. */
static shard_status wait_arrival(shard_storage *storage, bool used)
{
    SHARD_TRY(storage->device->ops->wait_arrival(storage->device, storage->arrival, used));
    storage->arrival = NULL;
    return SHARD_OK;
}

static bool may_begin(const shard_storage *storage)
{
    return !shard_is_capturing() || refuse_in_capture(storage) == SHARD_OK;
}

shard_status shard_storage_materialize(shard_storage *storage)
{
    shard_materializer *materializer = storage->materializer;
    if (!materializer)
        return SHARD_OK;
    if (!storage->memory && !may_begin(storage))
        return shard_last_status();
    shard_status status = storage->memory ? SHARD_OK : materializer->start(materializer);
    materializer->evictable = false;
    if (status == SHARD_OK && materializer->wait)
        status = materializer->wait(materializer);
    if (status != SHARD_OK)
        shard_storage_release(storage);
    return status;
}

void *shard_storage_made(shard_storage *storage)
{
    bool computed = storage->materializer && storage->materializer->local;
    if (!storage->memory && computed && shard_storage_materialize(storage) != SHARD_OK)
        return NULL;
    if (!storage->memory && (!may_begin(storage) || !shard_storage_allocate(storage)))
        return NULL;
    if (storage->arrival && wait_arrival(storage, true) != SHARD_OK)
        return NULL;
    return storage->memory;
}

void *shard_storage_memory(shard_storage *storage)
{
    return shard_storage_make_dense(storage) == SHARD_OK ? shard_storage_made(storage) : NULL;
}

void shard_storage_release(shard_storage *storage)
{
    if (storage->materializer && storage->materializer->evict)
        storage->materializer->evict(storage->materializer);
    else
        shard_storage_free_memory(storage);
}

/* Synchronizes first: queued operations may still use the memory. */
static void release_foreign(shard_storage *storage)
{
    if (!storage->device->ops->host_memory)
        storage->device->ops->synchronize(storage->device);
    if (storage->release)
        storage->release(storage->release_context);
    storage->foreign = false;
}

void shard_storage_free_memory(shard_storage *storage)
{
    if (storage->arrival)
        wait_arrival(storage, false);
    storage->arrival = NULL;
    if (storage->foreign)
        release_foreign(storage);
    else
        shard_device_release(storage->device, storage->kind, storage->memory, storage->bytes);
    storage->memory = NULL;
}

void shard_storage_unref(shard_storage *storage)
{
    if (!storage || --storage->references)
        return;
    if (storage->materializer)
        storage->materializer->destroy(storage->materializer);
    else
        shard_storage_free_memory(storage);
    if (storage->padding.pitch)
        shard_storage_forget_padding(storage);
    free(storage);
}

shard_status shard_storage_zero(shard_storage *storage)
{
    char *memory = shard_storage_memory(storage);
    storage->version++;
    return memory ? storage->device->ops->zero(storage->device, memory, storage->bytes) : shard_last_status();
}
