/* The autocast mode, and its casts. */
#include "op/autocast.h"

#include "base/dtype.h"
#include "device/graph.h"
#include "op/op.h"

#include <pthread.h>
#include <stdlib.h>

/* The 16-bit values of a leaf, valid while the leaf's memory has that version. The leaf owns the copy and releases
 * it when its values move or it is freed. The values are also freed when autocast is switched off in the thread that
 * used them last, or when that thread ends. */
typedef struct copy {
    shard_derived derived; /* first: points to the leaf's */
    shard_tensor *values;  /* NULL: none */
    uint64_t version;
    uint64_t capture;          /* of the capture that made it: replays do not update it, and other captures do not know it */
    struct copy *next, **link; /* in the thread's list of copies with values */
} copy;

static _Thread_local struct {
    shard_dtype dtype; /* float32: off */
    copy *copies;
} autocast;

/* Protects all lists: a leaf and its copy may move from thread to thread. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_key_t at_thread_end;

static void unlink_copy(copy *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
}

static void forget_values(copy *c)
{
    if (!c->values)
        return;
    unlink_copy(c);
    shard_tensor_unref(c->values);
    c->values = NULL;
}

static void release_copy(shard_derived *derived)
{
    pthread_mutex_lock(&lock);
    forget_values((copy *)derived);
    pthread_mutex_unlock(&lock);
    free(derived);
}

static void forget_all_values(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    while (autocast.copies)
        forget_values(autocast.copies);
    pthread_mutex_unlock(&lock);
}

static void make_key(void)
{
    pthread_key_create(&at_thread_end, forget_all_values);
}

static void link_copy(copy *c)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_key);
    pthread_setspecific(at_thread_end, &autocast); /* any value but NULL */
    c->link = &autocast.copies;
    c->next = autocast.copies;
    if (c->next)
        c->next->link = &c->next;
    autocast.copies = c;
}

shard_dtype shard_set_autocast(shard_dtype dtype)
{
    shard_dtype before = autocast.dtype;
    if (dtype != SHARD_FLOAT32 && dtype != SHARD_BFLOAT16 && dtype != SHARD_FLOAT16) {
        shard_error(SHARD_ERROR_ARGUMENT, "shard_set_autocast: %s; bfloat16, float16, or float32 for off is needed",
                    shard_dtype_name(dtype));
        return before;
    }
    autocast.dtype = dtype;
    if (dtype == SHARD_FLOAT32)
        forget_all_values(NULL);
    return before;
}

shard_dtype shard_autocast_dtype(void)
{
    return autocast.dtype;
}

static bool is_on(void)
{
    return autocast.dtype != SHARD_FLOAT32;
}

/* ---- products ---- */

static shard_tensor *cast_values(shard_tensor *x, shard_dtype dtype)
{
    bool recording = shard_set_grad_enabled(false);
    shard_tensor *values = shard_cast(x, dtype);
    shard_set_grad_enabled(recording);
    return values;
}

static bool is_kept(const shard_tensor *x)
{
    return x->requires_grad && !x->history && !x->storage->materializer;
}

/* The leaf's copy; a new one if it has none. */
static copy *find_copy(shard_tensor *leaf)
{
    if (!leaf->leaf->derived) {
        copy *c = shard_calloc(1, sizeof *c);
        if (!c)
            return NULL;
        c->derived.release = release_copy;
        leaf->leaf->derived = &c->derived;
    }
    return (copy *)leaf->leaf->derived;
}

/* The copy's values if they are current; they move to this thread's list. */
static shard_tensor *current_values(copy *c, const shard_tensor *leaf)
{
    pthread_mutex_lock(&lock);
    if (c->values && c->values->dtype == autocast.dtype && c->version == shard_tensor_version(leaf) &&
        c->capture == shard_graph_number()) {
        unlink_copy(c);
        link_copy(c);
    } else {
        forget_values(c);
    }
    pthread_mutex_unlock(&lock);
    return c->values;
}

static shard_tensor *copy_of_leaf(shard_tensor *leaf)
{
    copy *c = find_copy(leaf);
    if (!c || current_values(c, leaf))
        return c ? c->values : NULL;
    shard_tensor *values = shard_keep(cast_values(leaf, autocast.dtype));
    if (!values)
        return NULL;
    c->version = shard_tensor_version(leaf);
    c->capture = shard_graph_number();
    pthread_mutex_lock(&lock);
    c->values = values;
    link_copy(c);
    pthread_mutex_unlock(&lock);
    return values;
}

void shard_autocast_product(int count, shard_tensor **input, shard_tensor **operand)
{
    for (int i = 0; i < count; i++) {
        shard_tensor *x = input[i];
        if (x && is_on() && shard_dtype_is_half(x->dtype))
            input[i] = x = x->dtype == autocast.dtype ? x : shard_cast(x, autocast.dtype);
        operand[i] = x;
        if (x && is_on() && x->dtype == SHARD_FLOAT32)
            operand[i] = is_kept(x) ? copy_of_leaf(x) : cast_values(x, autocast.dtype);
    }
}

void shard_save_operand(shard_node *node, int slot, shard_tensor *input, shard_tensor *operand)
{
    shard_save_for_backward(node, slot, input && input->storage->materializer ? input : operand);
}

shard_tensor *shard_saved_operand(shard_node *node, int slot, shard_dtype dtype)
{
    shard_tensor *saved = shard_saved(node, slot);
    return saved && saved->dtype != dtype ? cast_values(saved, dtype) : saved;
}

/* ---- other operations ---- */

shard_tensor *shard_autocast_wide(shard_tensor *x)
{
    return x && is_on() && shard_dtype_is_half(x->dtype) ? shard_cast(x, SHARD_FLOAT32) : x;
}

static shard_dtype wider(shard_dtype a, shard_dtype b)
{
    if (a == SHARD_FLOAT64 || b == SHARD_FLOAT64)
        return SHARD_FLOAT64;
    return a == b ? a : SHARD_FLOAT32;
}

void shard_autocast_promote(int count, shard_tensor **x)
{
    const shard_tensor *first = NULL;
    shard_dtype widest = SHARD_FLOAT32;
    for (int i = 0; i < count && is_on(); i++) {
        if (!x[i] || !shard_dtype_is_float(x[i]->dtype))
            continue;
        widest = first ? wider(widest, x[i]->dtype) : x[i]->dtype;
        first = x[i];
    }
    for (int i = 0; i < count && first; i++) {
        bool narrower = x[i] && shard_dtype_is_float(x[i]->dtype) && x[i]->dtype != widest;
        shard_tensor *y = narrower ? shard_cast(x[i], widest) : NULL;
        x[i] = y ? y : x[i];
    }
}
