/* The inside of a tensor, for the folders that come after this one. */
#ifndef SHARD_TENSOR_TENSOR_H
#define SHARD_TENSOR_TENSOR_H

#include <shard/tensor.h>

#include "comm/comm.h"
#include "tensor/leaf.h"
#include "tensor/storage.h"

/* The groups over which a gradient has pending sums: autograd/pending_sums.h. A mesh has a group for each of its axes, at most
 * four; each of them has one rank in common with each other one. */
#define SHARD_PENDING_GROUPS 4
typedef struct shard_pending_sums {
    int count;
    shard_group *group[SHARD_PENDING_GROUPS];
} shard_pending_sums;

/* Counts the writes to a tensor that was moved into memory with other tensors, and to its views. */
typedef struct shard_writes {
    int references;
    uint64_t count;
} shard_writes;

/* The record of the operation that made a tensor; the nodes of autograd/ begin with this. */
typedef struct shard_history {
    void (*unref)(struct shard_history *);
} shard_history;

struct shard_tensor {
    int references; /* one for the scope or the caller, the others for lists, records and views */
    shard_storage *storage;
    size_t offset;        /* bytes into the storage */
    shard_writes *writes; /* a reference; NULL: all writes are counted by the storage */
    shard_shape shape;
    shard_dtype dtype;
    shard_placement placement;
    shard_pending_sums pending; /* of a gradient; empty: it is complete on each rank */
    bool requires_grad;
    shard_history *history; /* of the operation that made it; NULL: no operation */
    shard_leaf *leaf;       /* NULL: the tensor has nothing of a leaf */

    /* The scope that releases it; NULL: none. */
    shard_scope *scope;
    bool unscoped; /* made where no scope was open, and neither released nor kept since */
    shard_tensor *next, *previous;
};

/* The placement of a leaf's gradient: the leaf's, but a PARTIAL leaf, a summand, has the gradient of the sum, which is whole. */
static inline shard_placement shard_gradient_placement(const shard_tensor *leaf)
{
    static const shard_placement local = {.kind = SHARD_LOCAL};
    return leaf->placement.kind == SHARD_PARTIAL ? local : leaf->placement;
}

/* Makes a tensor in the thread's innermost scope; requires_grad is not set. */
shard_tensor *shard_tensor_make(shard_shape shape, shard_dtype dtype, shard_device *device);
/* shard_empty_with for another maker, which errors name. */
shard_tensor *shard_empty_for(const char *function, shard_shape shape, const shard_tensor_options *options);
/* Makes a tensor with x's shape, dtype, device and placement. NULL in, NULL out. */
shard_tensor *shard_tensor_like(const shard_tensor *x);
/* Makes a tensor on other memory, which is not touched, outside of any scope. The caller gets a reference. */
shard_tensor *shard_tensor_on(shard_storage *storage, size_t offset, shard_shape shape, shard_dtype dtype);
/* A view of x's storage from an element on, with another shape; without history, local. */
shard_tensor *shard_tensor_view(shard_tensor *x, int64_t element, shard_shape shape);
/* Makes the tensor a view of other memory, as when parameters move into buckets. Its values are copied, or made
 * there if they were not made before. Its writes are counted apart from those of the storage's other tensors. */
shard_status shard_tensor_move(shard_tensor *tensor, shard_storage *storage, size_t offset);
/* shard_tensor_move in two steps, of which the second one cannot fail and takes *writes, or the caller frees that. */
shard_status shard_tensor_prepare_move(shard_tensor *tensor, shard_storage *storage, size_t offset, shard_writes **writes);
/* Without the first step: values are there, or are written there later. writes NULL: no other tensor has the storage. */
void shard_tensor_put(shard_tensor *tensor, shard_storage *storage, size_t offset, shard_writes *writes);
/* Copies rows [first, first + count) of a matrix to other memory of its device, in the matrix's dtype. Makes the
 * values of a recipe, without memory for the whole matrix. */
shard_status shard_tensor_copy_rows(shard_tensor *matrix, int64_t first, int64_t count, void *to);

/* Parameters on one storage begin on multiples of these bytes, with zeros between. */
#define SHARD_FLAT_ALIGNMENT 64

/* Makes the tensor's values be in memory, for the operation that needs them: gathers those that ranks partition. They
 * stay until the tensor's module has been used. Collective over the unit's group for a storage with a materializer,
 * else local. */
static inline shard_status shard_tensor_materialize(shard_tensor *tensor)
{
    SHARD_TRY(shard_storage_check_replayed(tensor->storage));
    return tensor->storage->materializer ? shard_storage_materialize(tensor->storage) : SHARD_OK;
}
/* The tensor's memory, allocated and filled by its recipe if necessary. No collective: ARGUMENT for a storage whose
 * values must be materialized first. NULL with the error set. The pointer of an empty tensor may not be used. */
void *shard_tensor_memory(shard_tensor *tensor);
/* shard_tensor_materialize, then shard_tensor_memory: for code that reads values. */
void *shard_tensor_values(shard_tensor *tensor);
/* The tensor's memory for writing: values that were saved for backward become stale. UNSUPPORTED for a storage with
 * a materializer that is not local. */
void *shard_tensor_memory_to_write(shard_tensor *tensor);

/* Sets the pitch of a tensor that has no memory yet: its rows, of the last dimension's elements, are `pitch`
 * elements apart until the memory is needed dense (any call but shard_tensor_rows). */
void shard_tensor_pad_rows(shard_tensor *tensor, int64_t pitch);
/* As shard_tensor_memory, but rows may be *pitch elements apart. Call it after the functions for the memory of other
 * tensors on the same storage: these make rows dense that are not padded in that tensor. */
void *shard_tensor_rows(shard_tensor *tensor, int64_t *pitch);

/* Grows with each write to the tensor; a saved tensor whose version has changed is stale. */
static inline uint64_t shard_tensor_version(const shard_tensor *tensor)
{
    return tensor->storage->version + (tensor->writes ? tensor->writes->count : 0);
}
/* Counts a write. */
static inline void shard_tensor_count_write(shard_tensor *tensor)
{
    ++*(tensor->writes ? &tensor->writes->count : &tensor->storage->version);
}

shard_tensor *shard_tensor_ref(shard_tensor *tensor);
/* Releases a reference of shard_tensor_ref. NULL is fine. */
void shard_tensor_unref(shard_tensor *tensor);

/* Removes the list's entries from index `count` on. */
void shard_tensors_truncate(shard_tensors *list, int64_t count);

/* The index of the list's first entry with the tensor; -1: there is none. */
int64_t shard_tensors_index(const shard_tensors *list, const shard_tensor *tensor);

/* Whether there is no other reference to the tensor and its memory, which is no caller's: it may be overwritten. */
static inline bool shard_tensor_is_own(const shard_tensor *x)
{
    return x->references == 1 && shard_storage_is_own(x->storage);
}

static inline size_t shard_tensor_bytes(const shard_tensor *tensor)
{
    return (size_t)shard_numel(tensor) * shard_dtype_size(tensor->dtype);
}

static inline const shard_device_ops *shard_ops(const shard_tensor *tensor)
{
    return tensor->storage->device->ops;
}
static inline shard_device *shard_device_of(const shard_tensor *tensor)
{
    return tensor->storage->device;
}
/* The leaf part to read; of a tensor without one, an empty part. */
static inline const shard_leaf *shard_leaf_of(const shard_tensor *tensor)
{
    return tensor->leaf ? tensor->leaf : &shard_no_leaf;
}

static inline bool shard_has_grad(const shard_tensor *tensor)
{
    return shard_leaf_of(tensor)->has_grad;
}
/* The flat range of another tensor that the tensor is, or NULL. */
static inline const shard_flat_range *shard_flat_range_of(const shard_tensor *tensor)
{
    return shard_leaf_of(tensor)->flat_range;
}
/* The flat range of the tensor that this rank has, if its values are partitioned; else NULL. */
static inline shard_tensor *shard_local_range_of(const shard_tensor *tensor)
{
    return shard_leaf_of(tensor)->local_range;
}

/* Whether the tensor is optional and was not written to. */
static inline bool shard_tensor_is_idle(const shard_tensor *tensor)
{
    return shard_leaf_of(tensor)->optional && shard_tensor_version(tensor) == 0;
}

/* Whether the values of the tensor's recipe were not made yet. */
static inline bool shard_has_recipe(const shard_tensor *tensor)
{
    return tensor->leaf && tensor->leaf->recipe.kind != SHARD_NO_RECIPE;
}

/* ---- shapes ---- */

/* Product of dim[from ... to), 1 for none. Never overflows for a tensor's shape. */
int64_t shard_shape_product(const shard_shape *shape, int from, int to);
bool shard_shape_equal(const shard_shape *a, const shard_shape *b);
/* Checks ndim, sizes, and that the elements' bytes can be counted; an error names the function. */
shard_status shard_shape_check(const char *function, const shard_shape *shape, shard_dtype dtype, int64_t *numel);
/* Sets *resolved to dim, counted from the front; an error names the function. */
shard_status shard_resolve_dim(const char *function, const shard_shape *shape, int dim, int *resolved);
/* "[2, 3]", for messages; one of a few static buffers of the thread. */
const char *shard_shape_text(const shard_shape *shape);
/* The same of a tensor; of a split one also its whole shape and its dimension. */
const char *shard_tensor_shape_text(const shard_tensor *x);
/* "local", "split along 1", "partial", for messages; one of a few static buffers of the thread. */
const char *shard_placement_text(const shard_placement *placement);

/* ---- placement ---- */

static inline bool shard_is_split(const shard_tensor *x, int dim)
{
    return x->placement.kind == SHARD_SPLIT && x->placement.dim == dim;
}
static inline bool shard_is_local(const shard_tensor *x)
{
    return x->placement.kind == SHARD_LOCAL;
}
bool shard_placement_equal(const shard_placement *a, const shard_placement *b);
/* The region of the whole tensor that the tensor is, as a matrix. An error if it is split along a dimension that is
 * neither the first nor the last. */
shard_status shard_tensor_region(const shard_tensor *tensor, shard_region *region);

#endif
