/* The mode, and the casts that it asks for. */
#include "op/autocast.h"

#include "op/op.h"

#include <stdlib.h>

/* A leaf's values in 16 bits, good for as long as it is the same memory of the same version. */
typedef struct copy {
    shard_tensor *leaf, *values; /* own shares; of the storage too: no other one gets its address */
    shard_storage *storage;
    size_t offset;
    uint64_t version;
} copy;

static _Thread_local struct {
    shard_dtype dtype; /* float32: off */
    copy *copies;
    int64_t count, capacity;
} autocast;

static void drop_copy(const copy *c)
{
    shard_tensor_drop(c->leaf);
    shard_tensor_drop(c->values);
    shard_storage_drop(c->storage);
}

static void drop_copies(void)
{
    for (int64_t i = 0; i < autocast.count; i++)
        drop_copy(&autocast.copies[i]);
    free(autocast.copies);
    autocast.copies = NULL;
    autocast.count = autocast.capacity = 0;
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
        drop_copies();
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

static bool is_narrow(shard_dtype dtype)
{
    return dtype == SHARD_BFLOAT16 || dtype == SHARD_FLOAT16;
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
    return x->requires_grad && !x->history && !x->storage->filler;
}

/* Of leaves that nobody else has any more, or that have moved. */
static void drop_useless_copies(void)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < autocast.count; i++) {
        const copy *c = &autocast.copies[i];
        if (c->leaf->shares == 1 || c->storage != c->leaf->storage)
            drop_copy(c);
        else
            autocast.copies[kept++] = *c;
    }
    autocast.count = kept;
}

/* The leaf's place among the copies, a new one if it has none. */
static copy *find_copy(shard_tensor *leaf)
{
    for (int64_t i = 0; i < autocast.count; i++)
        if (autocast.copies[i].leaf == leaf)
            return &autocast.copies[i];
    drop_useless_copies();
    if (shard_grow(&autocast.copies, &autocast.capacity, autocast.count + 1, sizeof *autocast.copies) != SHARD_OK)
        return NULL;
    copy *c = &autocast.copies[autocast.count++];
    *c = (copy){.leaf = shard_tensor_share(leaf)};
    return c;
}

static shard_tensor *copy_of_leaf(shard_tensor *leaf)
{
    copy *c = find_copy(leaf);
    if (!c)
        return NULL;
    bool current = c->values && c->values->dtype == autocast.dtype && c->storage == leaf->storage && c->offset == leaf->offset &&
                   c->version == leaf->storage->version;
    if (!current) {
        shard_tensor_drop(c->values);
        c->values = shard_keep(cast_values(leaf, autocast.dtype));
        shard_storage_drop(c->storage);
        c->storage = leaf->storage;
        c->storage->shares++;
        c->offset = leaf->offset;
        c->version = leaf->storage->version;
    }
    return c->values;
}

void shard_autocast_product(int count, shard_tensor **input, shard_tensor **operand)
{
    for (int i = 0; i < count; i++) {
        shard_tensor *x = input[i];
        if (x && is_on() && is_narrow(x->dtype))
            input[i] = x = x->dtype == autocast.dtype ? x : shard_cast(x, autocast.dtype);
        operand[i] = x;
        if (x && is_on() && x->dtype == SHARD_FLOAT32)
            operand[i] = is_kept(x) ? copy_of_leaf(x) : cast_values(x, autocast.dtype);
    }
}

void shard_save_operand(shard_node *node, int slot, shard_tensor *input, shard_tensor *operand)
{
    shard_save_for_backward(node, slot, input && input->storage->filler ? input : operand);
}

shard_tensor *shard_saved_operand(shard_node *node, int slot, shard_dtype dtype)
{
    shard_tensor *saved = shard_saved(node, slot);
    return saved && saved->dtype != dtype ? cast_values(saved, dtype) : saved;
}

/* ---- the rest ---- */

shard_dtype shard_autocast_wide_type(shard_dtype dtype)
{
    return is_on() && is_narrow(dtype) ? SHARD_FLOAT32 : dtype;
}

shard_tensor *shard_autocast_wide(shard_tensor *x)
{
    return x && shard_autocast_wide_type(x->dtype) != x->dtype ? shard_cast(x, SHARD_FLOAT32) : x;
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
