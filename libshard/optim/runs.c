/* Runs: local ranges that are adjacent in memory, so that a device updates or measures them in one call, and tensors for them. */
#include "optim/optimizer.h"

bool shard_runs_same_list(const shard_run *a, const shard_run *b)
{
    return shard_device_of(a->array[0]) == shard_device_of(b->array[0]) && a->array[0]->dtype == b->array[0]->dtype;
}

/* Elements from one tensor to another one of its dtype and storage; large if that is first. */
static size_t distance_of(const shard_tensor *from, const shard_tensor *to)
{
    return (to->offset - from->offset) / shard_dtype_size(from->dtype);
}

/* Whether `next` follows `run` in each array, and has the same factors of a step. */
static bool follows(const shard_run *run, const shard_run *next)
{
    const shard_update *a = &run->update, *b = &next->update;
    bool same = a->lr == b->lr && a->factors == b->factors && a->weight_decay == b->weight_decay && a->step == b->step &&
                a->trust_ratio == b->trust_ratio && a->key == b->key && a->columns <= 1 && b->columns <= 1;
    size_t distance = distance_of(run->array[0], next->array[0]), size = shard_dtype_size(run->array[0]->dtype);
    bool adjacent = same && shard_runs_same_list(run, next) && next->array[0]->offset >= run->array[0]->offset &&
                    (distance - (size_t)a->size) * size < SHARD_FLAT_ALIGNMENT;
    for (int i = 0; i < SHARD_RUN_ARRAYS && run->array[i] && adjacent; i++)
        adjacent = run->array[i]->storage == next->array[i]->storage && distance_of(run->array[i], next->array[i]) == distance;
    return adjacent;
}

int64_t shard_runs_join(shard_run *all, int64_t count)
{
    int64_t joined = 0;
    for (int64_t i = 0; i < count; i++) {
        shard_run *whole = joined ? &all[joined - 1] : NULL;
        if (!whole || !follows(whole, &all[i])) {
            all[joined++] = all[i];
            continue;
        }
        size_t distance = all[i].array[0]->offset - whole->array[0]->offset;
        whole->update.size = (int64_t)(distance / shard_dtype_size(whole->array[0]->dtype)) + all[i].update.size;
    }
    return joined;
}

/* ---- tensors of runs ---- */

/* The shape and placement of one number for each row of the range. */
static shard_tensor *make_rows(const shard_local_range *range, shard_dtype dtype, int64_t columns)
{
    const shard_tensor *of = range->tensor;
    bool flat = shard_flat_range_of(of) != NULL;
    shard_shape shape = columns == 1 ? of->shape : SHARD_SHAPE(flat ? shard_numel(of) / columns : of->shape.dim[0]);
    shard_tensor *made = shard_tensor_make(shape, dtype, shard_device_of(of));
    if (made)
        made->placement = of->placement;
    return made;
}

static shard_status mark_flat_range(shard_tensor *like, const shard_flat_range *of, int64_t columns)
{
    shard_flat_range range = *of;
    range.start /= columns;
    if (columns > 1)
        range.shape = SHARD_SHAPE(of->shape.dim[0]);
    return shard_tensor_set_flat_range(like, &range);
}

/* A tensor of that dtype in that memory for the range's elements, or for its rows of `columns` elements. With storage NULL it is
 * zeros, whose memory is allocated when it is first needed. */
static shard_tensor *make_like(const shard_local_range *range, shard_dtype dtype, int64_t columns, shard_storage *storage,
                               size_t offset)
{
    shard_tensor *like = shard_keep(make_rows(range, dtype, columns));
    if (!like || !shard_make_leaf(like))
        return shard_tensor_unref(like), NULL;
    const shard_leaf *of = shard_leaf_of(range->tensor);
    like->leaf->replicas = of->replicas;
    like->leaf->optional = !storage;
    if (!storage) {
        like->leaf->recipe = (shard_recipe){.kind = SHARD_CONSTANT};
        shard_storage_set_kind(like->storage, SHARD_MEMORY_OPTIMIZER_STATE);
    }
    bool marked = !of->flat_range || mark_flat_range(like, of->flat_range, columns) == SHARD_OK;
    if (marked && (!storage || shard_tensor_move(like, storage, offset) == SHARD_OK))
        return like;
    shard_tensor_unref(like);
    return NULL;
}

shard_run shard_run_to_make(shard_slot *slot, shard_dtype dtype, int64_t columns, shard_tensor **made)
{
    shard_run run = {.slot = slot, .array = {slot->range.tensor}, .update.columns = columns, .made = made, .dtype = dtype};
    run.update.size = shard_numel(slot->range.tensor);
    run.update.key = slot->parameter->requires_grad ? 0 : (uint64_t)(uintptr_t)slot; /* it follows no other one */
    return run;
}

/* Of runs that follow each other. */
static shard_status make_together(const shard_run *runs, int64_t count)
{
    bool frozen = !runs[0].slot->parameter->requires_grad;
    const shard_tensor *first = runs[0].array[0], *last = runs[count - 1].array[0];
    size_t value = shard_dtype_size(first->dtype), all = (last->offset + shard_tensor_bytes(last) - first->offset) / value;
    size_t size = shard_dtype_size(runs[0].dtype);
    int64_t columns = runs[0].update.columns;
    shard_storage *storage = frozen ? NULL : shard_storage_make(shard_device_of(first), all / (size_t)columns * size);
    if (storage)
        shard_storage_set_kind(storage, SHARD_MEMORY_OPTIMIZER_STATE);
    shard_status status = storage ? shard_storage_zero(storage) : shard_last_status();
    for (int64_t i = 0; i < count; i++) {
        size_t element = (runs[i].array[0]->offset - first->offset) / value;
        if (status == SHARD_OK)
            *runs[i].made = make_like(&runs[i].slot->range, runs[i].dtype, columns, storage, element * size);
        status = *runs[i].made ? SHARD_OK : shard_last_status();
    }
    shard_storage_unref(storage);
    return status;
}

shard_status shard_runs_make(shard_run *runs, int64_t count)
{
    shard_status status = SHARD_OK;
    for (int64_t i = 0, end; i < count && status == SHARD_OK; i = end) {
        for (end = i + 1; end < count && follows(&runs[end - 1], &runs[end]);)
            end++;
        status = make_together(runs + i, end - i);
    }
    return status;
}
