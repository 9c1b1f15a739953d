#include "op/deferred_linear.h"

#include <stdlib.h>
#include <string.h>

typedef struct deferred {
    shard_materializer materializer; /* first: a storage's materializer points to this struct */
    shard_storage *storage;          /* that has it */
    shard_shape shape;
    shard_dtype dtype, autocast;
    const shard_node_type *type; /* of the node that has the result; a view on the storage has another one or none */
    shard_tensor *input[SHARD_LINEAR_OPERANDS], *operand[SHARD_LINEAR_OPERANDS];
    uint64_t version[SHARD_LINEAR_OPERANDS]; /* of the inputs */
    shard_linear_compute *compute;
} deferred;

/* An input that was written to since; NULL: none. */
static const shard_tensor *written(const deferred *d)
{
    for (int i = 0; i < SHARD_LINEAR_OPERANDS; i++)
        if (d->input[i] && shard_tensor_version(d->input[i]) != d->version[i])
            return d->input[i];
    return NULL;
}

static shard_status start(shard_materializer *materializer)
{
    const deferred *d = (deferred *)materializer;
    const shard_tensor *input = written(d);
    if (input)
        return shard_error(
            SHARD_ERROR_ARGUMENT,
            "shard_nn_parallel_classifier: its logits, of shape %s, are computed when their values are needed, and "
            "a tensor of shape %s that they depend on was written to since: use them before shard_step",
            shard_shape_text(&d->shape), shard_shape_text(&input->shape));
    shard_tensor *y = shard_storage_allocate(d->storage) ? shard_tensor_on(d->storage, 0, d->shape, d->dtype) : NULL;
    bool enabled = shard_set_grad_enabled(false);
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *operand[SHARD_LINEAR_OPERANDS] = {NULL};
    shard_status status = y ? SHARD_OK : shard_last_status();
    for (int i = 0; i < SHARD_LINEAR_OPERANDS && status == SHARD_OK; i++) {
        operand[i] = d->operand[i] ? shard_cast(d->operand[i], d->dtype) : NULL;
        status = d->operand[i] && !operand[i] ? shard_last_status() : SHARD_OK;
    }
    if (status == SHARD_OK)
        status = d->compute(operand, y);
    shard_scope_close(&scope);
    shard_set_grad_enabled(enabled);
    shard_tensor_unref(y);
    return status;
}

static void destroy(shard_materializer *materializer)
{
    deferred *d = (deferred *)materializer;
    shard_storage_free_memory(d->storage);
    for (int i = 0; i < SHARD_LINEAR_OPERANDS; i++) {
        shard_tensor_unref(d->input[i]);
        shard_tensor_unref(d->operand[i]);
    }
    free(d);
}

shard_status shard_defer_linear(shard_tensor *y, const shard_node_type *type, shard_tensor *const *input,
                                shard_tensor *const *operand, shard_linear_compute *compute)
{
    deferred *d = shard_calloc(1, sizeof *d);
    if (!d)
        return shard_last_status();
    *d = (deferred){.materializer = {.start = start, .destroy = destroy, .local = true},
                    .storage = y->storage,
                    .shape = y->shape,
                    .dtype = y->dtype,
                    .autocast = shard_autocast_dtype(),
                    .type = type,
                    .compute = compute};
    for (int i = 0; i < SHARD_LINEAR_OPERANDS; i++) {
        d->input[i] = input[i] ? shard_tensor_ref(input[i]) : NULL;
        d->operand[i] = operand[i] ? shard_tensor_ref(operand[i]) : NULL;
        d->version[i] = input[i] ? shard_tensor_version(input[i]) : 0;
    }
    y->storage->materializer = &d->materializer;
    return SHARD_OK;
}

bool shard_deferred_linear(const shard_tensor *y, shard_tensor **input, shard_dtype *autocast)
{
    const shard_materializer *materializer = y->storage->materializer;
    if (!materializer || materializer->start != start || shard_tensor_version(y) != 0)
        return false;
    const deferred *d = (const deferred *)materializer;
    const shard_node *node = (const shard_node *)y->history;
    if (!node || node->type != d->type || written(d))
        return false;
    memcpy(input, d->input, sizeof d->input);
    *autocast = d->autocast;
    return true;
}
