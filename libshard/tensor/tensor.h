/* The inside of a tensor, for the folders right of this one. */
#ifndef SHARD_TENSOR_TENSOR_H
#define SHARD_TENSOR_TENSOR_H

#include <shard/tensor.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/random.h"
#include "comm/comm.h"
#include "device/device.h"

typedef struct shard_storage shard_storage;

/* Makes and fills memory when it is needed. While evictable, nobody has a pointer into the memory,
 * and shard_storage_release may evict it. Such memory is not written to. */
typedef struct shard_materializer {
    bool evictable;
    /* Makes the memory (shard_storage_allocate) and begins to fill it; collective where values
     * of other ranks are needed, also after an error. */
    shard_status (*start)(struct shard_materializer *);
    /* Before the memory is used: waits for what was started. */
    shard_status (*wait)(struct shard_materializer *);
    /* Frees the memory (shard_storage_give_back) if it is there, and ends what was started. Any thread. */
    void (*evict)(struct shard_materializer *);
    void (*destroy)(struct shard_materializer *); /* evicts, and frees the materializer */
} shard_materializer;

/* Groups over which a gradient is to be summed: autograd/contribution.h. Those of a mesh
 * are two; each has one member in common with each other one. */
#define SHARD_CONTRIBUTION_GROUPS 4
typedef struct shard_contribution {
    int count;
    shard_group *group[SHARD_CONTRIBUTION_GROUPS];
} shard_contribution;

/* A weight that is too large to have all its rows, or their gradient, in memory at once: it is streamed in
 * row blocks (shard_rows_in_block), from the first to the last. The calls for a block are collective, and
 * entered for each, also after an error. */
typedef struct shard_rows {
    int64_t block; /* rows of one; a multiple of SHARD_ROW_BLOCK */
    /* The values of a block, until those of the next one are asked for; NULL with the error
     * set. NULL entry: the values are all there. */
    const void *(*values)(struct shard_rows *, int64_t first, int64_t count);
    void (*values_end)(struct shard_rows *);
    /* Whether a gradient with these pending sums may be streamed now; else it is made as any other. */
    bool (*gradient_begin)(struct shard_rows *, const shard_contribution *);
    /* Memory for that of a block, in the weight's type; then it is taken from there. */
    void *(*gradient)(struct shard_rows *, int64_t first, int64_t count);
    shard_status (*gradient_take)(struct shard_rows *, int64_t first, int64_t count);
    shard_status (*gradient_end)(struct shard_rows *);
} shard_rows;

/* How rows of a matrix lie apart in memory, in bytes (padding.c); pitch 0: they do not. */
typedef struct shard_padding {
    size_t rows, width, pitch;
} shard_padding;

/* Device memory that one or more tensors are views of. */
struct shard_storage {
    int shares;
    shard_device *device;
    void *memory;           /* NULL until it is needed */
    size_t bytes;           /* at least 1: an empty tensor has memory too */
    shard_memory_kind kind; /* ACTIVATIONS, unless shard_storage_set_kind says otherwise */
    uint64_t version;       /* counts writes to all of it; see shard_tensor_version */
    uint64_t capture;       /* shard_graph_number when it was made */
    shard_materializer *materializer; /* NULL: the memory is the only place of its content */
    void *arrival;          /* of the device's copy_in_async, which nothing has waited for yet; NULL: none */
    shard_padding padding;  /* of rows that nobody has asked to be dense yet */
    bool foreign;           /* the memory is a caller's, and so never given back to the device: */
    shard_release_memory *release; /* instead; NULL: nothing */
    void *release_context;
    struct shard_storage *next_padded; /* of those that were padded in this thread's capture */
};

/* Counts the writes to a tensor that was moved into memory where others are, and to its views. */
typedef struct shard_writes {
    int shares;
    uint64_t count;
} shard_writes;

/* How a tensor's values are to be made once they are needed: initialisation is a
 * function of the element's index in the whole tensor, so that a layer can be
 * split before it ever had memory. */
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

/* The range that a tensor is of another one, whose elements the ranks of a group have partitioned:
 * those from `start` on, counted row-major. The ranks' ranges follow each other; they
 * may be empty. */
typedef struct shard_flat_range {
    shard_group *group;
    int64_t start;
    shard_shape shape; /* of the other one, which may itself be a part of a whole: */
    shard_placement placement;
} shard_flat_range;

/* What made a tensor: the autograd folder's record begins with this. */
typedef struct shard_history {
    void (*drop)(struct shard_history *);
} shard_history;

/* What was made of a tensor's values where they are: let go when they move, or the tensor goes. */
typedef struct shard_derived {
    void (*drop)(struct shard_derived *);
} shard_derived;

/* One who looks on when a leaf's gradient is complete: its owner's, in the leaf's list. */
typedef struct shard_watch {
    void (*function)(shard_tensor *leaf, void *context);
    void *context;
    struct shard_watch *next; /* who came later */
} shard_watch;

struct shard_tensor {
    int shares; /* one of the scope or the caller, the rest of lists, records, views */
    shard_storage *storage;
    size_t offset;        /* bytes into the storage */
    shard_writes *writes; /* a share; NULL: all writes count as the storage's */
    shard_shape shape;
    shard_dtype dtype;
    shard_placement placement;
    shard_recipe recipe;

    /* The record of what made it, or (a leaf) its gradient. */
    shard_history *history;
    bool requires_grad;
    bool has_grad; /* grad holds a value (its memory may stay when it does not) */
    shard_tensor *grad;
    int grad_pending; /* uses that backward has yet to come by */
    /* When that reaches 0: for those who look on, then for who does something with the gradient. */
    shard_watch *grad_watches;
    void (*grad_ready)(shard_tensor *leaf, void *context);
    void *grad_ready_context;

    shard_contribution contribution; /* of a gradient; empty: it counts in full on each rank */

    shard_group *replicas;
    shard_flat_range *slice; /* NULL: it is no range of another tensor */
    shard_tensor *kept;      /* of a tensor with a materializer, the slice that this rank keeps; a share */
    bool optional;      /* zeros until it is written to: until then no file has it, and none need have it */
    shard_derived *derived;
    shard_rows *rows; /* of a weight that is streamed in row blocks; belongs to its engine */

    /* The scope that releases it, if any. */
    shard_scope *scope;
    bool unscoped; /* made where no scope was open */
    shard_tensor *next, *previous;
};

/* A tensor of the thread's innermost scope; requires_grad is not set. */
shard_tensor *shard_tensor_make(shard_shape shape, shard_dtype dtype, shard_device *device);
/* Gives the tensor other values: they are made now if it has memory, also where ranks keep parts of it (its own
 * part is made then), else when they are needed. Counts as a write. */
shard_status shard_tensor_set_recipe(shard_tensor *tensor, shard_recipe recipe);
/* Makes the values of the tensor's recipe in memory; of a matrix, those of that part of the whole. */
shard_status shard_recipe_follow(shard_tensor *tensor, void *memory);
shard_status shard_recipe_follow_in(const shard_tensor *tensor, const shard_region *region, void *memory);
/* Errors of that public function where no distribution has these parameters. */
shard_status shard_check_uniform(const char *function, double low, double high);
shard_status shard_check_normal(const char *function, double mean, double std);
/* Same, with x's shape, dtype, device and placement. NULL in, NULL out. */
shard_tensor *shard_tensor_like(const shard_tensor *x);
/* A tensor of nobody's scope on other memory, which is not touched; the caller's share. */
shard_tensor *shard_tensor_on(shard_storage *storage, size_t offset, shard_shape shape, shard_dtype dtype);
/* The same where x is, in its shape; writes to one count for both. */
shard_tensor *shard_tensor_beside(const shard_tensor *x);
/* Says that it is a range of another tensor. */
shard_status shard_tensor_set_slice(shard_tensor *tensor, const shard_flat_range *slice);
/* A view of x's storage from an element on, as another shape; no history, whole. */
shard_tensor *shard_tensor_view(shard_tensor *x, int64_t element, shard_shape shape);
/* Makes a tensor a view of other memory: parameters move into buckets so.
 * Its values are copied (or made there, if they were not made yet), and its
 * writes are its own, not those of what is beside it. */
shard_status shard_tensor_move(shard_tensor *tensor, shard_storage *storage, size_t offset);
/* The same where its values are already, or come from. */
shard_status shard_tensor_put(shard_tensor *tensor, shard_storage *storage, size_t offset);
/* A matrix's rows [first, first + count), made if they were not, as they are in it: in other
 * memory of its device, and without memory for all. */
shard_status shard_tensor_copy_rows(shard_tensor *matrix, int64_t first, int64_t count, void *to);

/* Parameters that share memory begin on multiples of these bytes, with zeros between. */
#define SHARD_FLAT_ALIGNMENT 64

shard_storage *shard_storage_make(shard_device *device, size_t bytes);
/* What it counts as from now on. */
void shard_storage_set_kind(shard_storage *storage, shard_memory_kind kind);
/* The same, of memory that nothing more is known of than that tensors hold it. */
void shard_storage_become(shard_storage *storage, shard_memory_kind kind);
void shard_storage_unref(shard_storage *storage);
/* Makes all of it zeros, allocated if it was not. */
shard_status shard_storage_zero(shard_storage *storage);
/* Its memory, allocated if it was not; NULL with the error set. */
void *shard_storage_memory(shard_storage *storage);
/* The same, in which rows may be apart. */
void *shard_storage_made(shard_storage *storage);
/* Moves rows that are apart together. Pointers that shard_tensor_rows gave are wrong then. */
shard_status shard_storage_make_dense(shard_storage *storage);
/* It goes, in the thread that padded it. */
void shard_storage_forget_padding(const shard_storage *storage);
/* Memory with undefined content, counted by its kind; NULL with the error set. */
void *shard_storage_allocate(shard_storage *storage);
/* Its memory ahead of need: allocated, and beginning to be filled. Whether it is. */
bool shard_storage_begin(shard_storage *storage);
/* Gives the memory back until it is needed again; its content is lost. */
void shard_storage_release(shard_storage *storage);
/* The same, for a materializer. */
void shard_storage_give_back(shard_storage *storage);

/* Its memory, allocated and filled by its recipe if it was not yet. NULL with
 * the error set; a pointer that may not be used for a tensor of no elements. */
void *shard_tensor_memory(shard_tensor *tensor);
/* The same for writing: values saved for backward become stale. UNSUPPORTED where there is
 * a materializer. */
void *shard_tensor_memory_to_write(shard_tensor *tensor);

/* Has the rows of a tensor that has no memory yet, its last dimension's elements, lie `pitch` elements
 * apart, until somebody asks for its memory otherwise than by shard_tensor_rows. */
void shard_tensor_pad_rows(shard_tensor *tensor, int64_t pitch);
/* As shard_tensor_memory, but of rows that may be *pitch elements apart. Memory of other tensors on the
 * same storage is asked for before this, not behind it: it moves rows that are not so in that tensor. */
void *shard_tensor_rows(shard_tensor *tensor, int64_t *pitch);

/* Grows with each write to the tensor: a value saved for backward is stale if it has. */
static inline uint64_t shard_tensor_version(const shard_tensor *tensor)
{
    return tensor->storage->version + (tensor->writes ? tensor->writes->count : 0);
}
/* Counts one. */
static inline void shard_tensor_count_write(shard_tensor *tensor)
{
    ++*(tensor->writes ? &tensor->writes->count : &tensor->storage->version);
}

shard_tensor *shard_tensor_ref(shard_tensor *tensor);
/* Lets go of a share taken by shard_tensor_ref; NULL is fine. */
void shard_tensor_unref(shard_tensor *tensor);

/* Forgets what a list has from index `count` on. */
void shard_tensors_truncate(shard_tensors *list, int64_t count);

static inline const shard_device_ops *shard_ops(const shard_tensor *tensor)
{
    return tensor->storage->device->ops;
}
static inline shard_device *shard_device_of(const shard_tensor *tensor)
{
    return tensor->storage->device;
}
/* Optional, and still not written to. */
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
/* dim counted from the front, or an error that names the function. */
shard_status shard_resolve_dim(const char *function, const shard_shape *shape, int dim, int *resolved);
/* "[2, 3]" for messages; one of a few static buffers of the thread. */
const char *shard_shape_text(const shard_shape *shape);
/* "whole", "split along 1", "partial"; likewise. */
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
/* Which part of the whole the tensor is, as a matrix; an error if it is split
 * along a dimension that is neither the first nor the last. */
shard_status shard_tensor_region(const shard_tensor *tensor, shard_region *region);

#endif
