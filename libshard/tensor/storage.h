/* Device memory that tensors are views of. */
#ifndef SHARD_TENSOR_STORAGE_H
#define SHARD_TENSOR_STORAGE_H

#include <shard/tensor.h>

#include "base/error.h"
#include "base/memory.h"
#include "device/device.h"

typedef struct shard_storage shard_storage;

/* Materializes the values of a storage (shard_storage_materialize), which can be evicted: the memory may be freed
 * (shard_storage_release) while `evictable` is true, when no operation has a pointer into it. No operation writes to
 * such memory. The values of a local one need no other rank: they are materialized when a pointer is needed, and may be
 * written to. */
typedef struct shard_materializer {
    bool evictable, local;
    bool transient; /* the memory may be freed while tensors on it are there */
    /* Allocates the memory (shard_storage_allocate) and starts to fill it. Collective if values of other ranks are
     * needed, also after an error. */
    shard_status (*start)(struct shard_materializer *);
    /* Waits until the memory is filled; called before it is used. NULL: `start` has filled it. */
    shard_status (*wait)(struct shard_materializer *);
    /* Ends what `start` started and frees the memory (shard_storage_free_memory) if it is there. Called by any thread. NULL:
     * frees the memory alone. */
    void (*evict)(struct shard_materializer *);
    /* Evicts, then frees this struct. */
    void (*destroy)(struct shard_materializer *);
} shard_materializer;

/* The pitch of padded rows, in bytes (padding.c). pitch 0: the rows are dense. */
typedef struct shard_padding {
    size_t rows, width, pitch;
} shard_padding;

/* Device memory that one or more tensors are views of. */
struct shard_storage {
    int references;
    shard_device *device;
    void *memory;                     /* NULL: not allocated */
    size_t bytes;                     /* at least 1: an empty tensor has memory too */
    shard_memory_kind kind;           /* ACTIVATIONS by default; shard_storage_set_kind changes it */
    uint64_t version;                 /* counts writes to the whole storage; see shard_tensor_version */
    uint64_t digest, digest_version;  /* a hash of the values at a version, which op/head_gradient.c keeps here; 0: none */
    uint64_t capture;                 /* shard_graph_number at the time it was made, or its memory was allocated */
    shard_materializer *materializer; /* NULL: the values are only in this memory */
    void *arrival;                    /* event of the device's copy_in_async that no operation has waited for; NULL: none */
    shard_padding padding;            /* of rows that no operation needed dense so far */
    bool foreign;                     /* the memory is a caller's and is not returned to the device; `release` frees it: */
    shard_release_memory *release;    /* NULL: nothing */
    void *release_context;
    struct shard_storage *next_padded; /* the next storage that was padded in this thread's capture */
};

shard_storage *shard_storage_make(shard_device *device, size_t bytes);
/* Whether there is one reference to the storage, whose memory is no caller's: its only tensor may overwrite it. */
static inline bool shard_storage_is_own(const shard_storage *storage)
{
    return storage->references == 1 && !storage->foreign;
}
/* Sets the kind that the storage's memory is counted as. */
void shard_storage_set_kind(shard_storage *storage, shard_memory_kind kind);
/* Sets the kind of a storage unless a more specific one is set. */
void shard_storage_become(shard_storage *storage, shard_memory_kind kind);
void shard_storage_unref(shard_storage *storage);
/* Fills the storage with zeros; allocates it if necessary. */
shard_status shard_storage_zero(shard_storage *storage);
/* Makes the values of a storage with a materializer be in its memory, which is not evictable then. Collective if its
 * start is; without a materializer it does nothing. */
shard_status shard_storage_materialize(shard_storage *storage);
/* Whether a pointer may be taken: there is no materializer, or a local one, or the values are materialized and not
 * evictable. */
static inline bool shard_storage_is_usable(const shard_storage *storage)
{
    const shard_materializer *materializer = storage->materializer;
    return !materializer || materializer->local || (storage->memory && !materializer->evictable);
}
/* Outside of captures: ARGUMENT for a result of a captured graph that was never replayed, whose memory is not there. */
shard_status shard_storage_check_replayed(const shard_storage *storage);
/* The storage's memory, allocated if necessary; NULL with the error set. The storage is usable. No collective. */
void *shard_storage_memory(shard_storage *storage);
/* As shard_storage_memory, but rows may be padded. */
void *shard_storage_made(shard_storage *storage);
/* Makes padded rows dense. Pointers of shard_tensor_rows are invalid afterwards. */
shard_status shard_storage_make_dense(shard_storage *storage);
/* Called when a padded storage is freed, in the thread that padded it. */
void shard_storage_forget_padding(const shard_storage *storage);
/* Allocates memory with undefined content, counted by its kind; NULL with the error set. */
void *shard_storage_allocate(shard_storage *storage);
/* Evicts: frees the memory until it is needed again; the content is lost. */
void shard_storage_release(shard_storage *storage);
/* Frees the memory; called by shard_materializer.evict. */
void shard_storage_free_memory(shard_storage *storage);

#endif
