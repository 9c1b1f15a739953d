/* The inside of a tensor, for the folders that come after this one. */
#ifndef SHARD_TENSOR_TENSOR_H
#define SHARD_TENSOR_TENSOR_H

#include <shard/tensor.h>

#include "base/random.h"
#include "comm/comm.h"
#include "tensor/storage.h"

/* The groups over which a gradient has pending sums: autograd/pending_sums.h. A mesh has two groups; each of its groups
 * has one rank in common with each other one. */
#define SHARD_PENDING_GROUPS 4
typedef struct shard_pending_sums {
    int count;
    shard_group *group[SHARD_PENDING_GROUPS];
} shard_pending_sums;

/* A weight whose values or gradient are too large to be in memory at once: they are streamed in row blocks
 * (shard_rows_in_block), from the first to the last. The functions for a block are collective. They are called for
 * each block, also after an error. */
typedef struct shard_rows {
    int64_t block; /* rows of a block; a multiple of SHARD_ROW_BLOCK */
    /* The values of a block, valid until the next call; NULL with the error set. The function is NULL if all values
     * are in memory. */
    const void *(*values)(struct shard_rows *, int64_t first, int64_t count);
    void (*values_end)(struct shard_rows *);
    /* Whether the gradient, with these pending sums, can be streamed now. If false it is computed as one tensor. */
    bool (*gradient_begin)(struct shard_rows *, const shard_pending_sums *);
    /* Memory for the gradient of a block, in the weight's type. gradient_take then reads it. */
    void *(*gradient)(struct shard_rows *, int64_t first, int64_t count);
    shard_status (*gradient_take)(struct shard_rows *, int64_t first, int64_t count);
    shard_status (*gradient_end)(struct shard_rows *);
} shard_rows;

/* Counts the writes to a tensor that was moved into memory with other tensors, and to its views. */
typedef struct shard_writes {
    int references;
    uint64_t count;
} shard_writes;

/* How the values of a tensor are made when they are first needed. A value depends on the element's index in the
 * whole tensor, so that a layer can be split before its parameters have memory. */
typedef enum shard_recipe_kind {
    SHARD_NO_RECIPE = 0,
    SHARD_CONSTANT,
    SHARD_UNIFORM,
    SHARD_NORMAL,
    SHARD_TRUNCATED_NORMAL,
} shard_recipe_kind;
typedef struct shard_recipe {
    shard_recipe_kind kind;
    double a, b;      /* value; low, high; mean, std */
    double low, high; /* of a truncated normal */
    shard_draw draw;
    bool pads; /* the row zero_row of the whole matrix is zeros */
    int64_t zero_row;
} shard_recipe;

/* A flat range of another tensor whose elements are partitioned over a group: the elements from `start` on, counted
 * row-major. The ranges of the ranks follow each other; a range may be empty. */
typedef struct shard_flat_range {
    shard_group *group;
    int64_t start;
    shard_shape shape; /* of the other tensor, which may itself be a local shard */
    shard_placement placement;
} shard_flat_range;

/* The record of the operation that made a tensor; the nodes of autograd/ begin with this. */
typedef struct shard_history {
    void (*drop)(struct shard_history *);
} shard_history;

/* Data computed from a tensor's values at their current address. Released when the values move or the tensor is
 * freed. */
typedef struct shard_derived {
    void (*drop)(struct shard_derived *);
} shard_derived;

/* A callback for when a leaf's gradient is complete, in the leaf's list. */
typedef struct shard_watch {
    void (*function)(shard_tensor *leaf, void *context);
    void *context;
    struct shard_watch *next; /* the next callback, in the order of registration */
} shard_watch;

struct shard_tensor {
    int references; /* one for the scope or the caller, the others for lists, records and views */
    shard_storage *storage;
    size_t offset;        /* bytes into the storage */
    shard_writes *writes; /* a reference; NULL: all writes are counted by the storage */
    shard_shape shape;
    shard_dtype dtype;
    shard_placement placement;
    shard_recipe recipe;

    /* The record of the operation that made it; of a leaf, its gradient. */
    shard_history *history;
    bool requires_grad;
    bool has_grad; /* grad holds a value (its memory may stay when it does not) */
    shard_tensor *grad;
    int grad_uses; /* uses whose gradients backward has not added yet */
    /* Called when grad_uses reaches 0: first the watches, then grad_ready, which may change the gradient. */
    shard_watch *grad_watches;
    void (*grad_ready)(shard_tensor *leaf, void *context);
    void *grad_ready_context;

    shard_pending_sums pending; /* of a gradient; empty: it is complete on each rank */

    shard_group *replicas;
    shard_flat_range *slice; /* NULL: the tensor is no flat range of another tensor */
    shard_tensor *kept;      /* of a tensor with a materializer: the flat range that this rank keeps; a reference */
    bool optional;           /* zeros until it is first written to; until then files do not have it and need not have it */
    shard_derived *derived;
    shard_rows *rows; /* of a weight that is streamed in row blocks; reset by the code that set it */

    /* The scope that releases it; NULL: none. */
    shard_scope *scope;
    bool unscoped; /* made where no scope was open */
    shard_tensor *next, *previous;
};

/* Makes a tensor in the thread's innermost scope; requires_grad is not set. */
shard_tensor *shard_tensor_make(shard_shape shape, shard_dtype dtype, shard_device *device);
/* Sets the recipe of the tensor's values. They are made now if the tensor has memory, also if ranks keep flat ranges
 * of it (each rank makes its flat range), else when they are first needed. Counts as a write. */
shard_status shard_tensor_set_recipe(shard_tensor *tensor, shard_recipe recipe);
/* Writes the values of the tensor's recipe to memory; `_in`: of a matrix, the values of a region of the whole. */
shard_status shard_recipe_follow(shard_tensor *tensor, void *memory);
shard_status shard_recipe_follow_in(const shard_tensor *tensor, const shard_region *region, void *memory);
/* ARGUMENT, in the name of the public function, if no distribution has these parameters. */
shard_status shard_check_uniform(const char *function, double low, double high);
shard_status shard_check_normal(const char *function, double mean, double std);
/* Makes a tensor with x's shape, dtype, device and placement. NULL in, NULL out. */
shard_tensor *shard_tensor_like(const shard_tensor *x);
/* Makes a tensor on other memory, which is not touched, outside of any scope. The caller gets a reference. */
shard_tensor *shard_tensor_on(shard_storage *storage, size_t offset, shard_shape shape, shard_dtype dtype);
/* Makes a tensor on x's memory with x's shape, as shard_tensor_on. Both count their writes together. */
shard_tensor *shard_tensor_beside(const shard_tensor *x);
/* Sets the flat range of another tensor that this tensor is. */
shard_status shard_tensor_set_slice(shard_tensor *tensor, const shard_flat_range *slice);
/* A view of x's storage from an element on, with another shape; without history, local. */
shard_tensor *shard_tensor_view(shard_tensor *x, int64_t element, shard_shape shape);
/* Makes the tensor a view of other memory, as when parameters move into buckets. Its values are copied, or made
 * there if they were not made before. Its writes are counted apart from those of the storage's other tensors. */
shard_status shard_tensor_move(shard_tensor *tensor, shard_storage *storage, size_t offset);
/* As shard_tensor_move, without copying values: they are there, or are written there later. */
shard_status shard_tensor_put(shard_tensor *tensor, shard_storage *storage, size_t offset);
/* Copies rows [first, first + count) of a matrix to other memory of its device, in the matrix's dtype. Makes the
 * values of a recipe, without memory for the whole matrix. */
shard_status shard_tensor_copy_rows(shard_tensor *matrix, int64_t first, int64_t count, void *to);

/* Parameters on one storage begin on multiples of these bytes, with zeros between. */
#define SHARD_FLAT_ALIGNMENT 64

/* The tensor's memory, allocated and filled by its recipe if necessary. NULL with the error set. The pointer of an
 * empty tensor may not be used. */
void *shard_tensor_memory(shard_tensor *tensor);
/* The tensor's memory for writing: values that were saved for backward become stale. UNSUPPORTED for a storage with
 * a materializer. */
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
/* Whether the tensor is optional and was not written to. */
static inline bool shard_tensor_is_idle(const shard_tensor *tensor)
{
    return tensor->optional && shard_tensor_version(tensor) == 0;
}

/* ---- shapes ---- */

/* Product of dim[from ... to), 1 for none. Never overflows for a tensor's shape. */
int64_t shard_shape_product(const shard_shape *shape, int from, int to);
bool shard_shape_equal(const shard_shape *a, const shard_shape *b);
/* Checks ndim, sizes, and that the elements' bytes can be counted. */
shard_status shard_shape_check(const shard_shape *shape, shard_dtype dtype, int64_t *numel);
/* Sets *resolved to dim, counted from the front; an error names the function. */
shard_status shard_resolve_dim(const char *function, const shard_shape *shape, int dim, int *resolved);
/* "[2, 3]", for messages; one of a few static buffers of the thread. */
const char *shard_shape_text(const shard_shape *shape);
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
