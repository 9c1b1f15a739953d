/* State dicts of whole tensors from lists of split ones. */
#include "checkpoint/ranges.h"
#include "checkpoint/safetensors.h"

#include "comm/function.h"

#include <shard/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>

/* Copies rows from host memory into a tensor's memory, by way of device memory if that is not the host's. */
static shard_status place(shard_tensor *whole, int64_t element, size_t pitch, const char *from, size_t width, size_t rows)
{
    const shard_device_ops *ops = shard_ops(whole);
    shard_device *device = shard_device_of(whole);
    char *memory = shard_tensor_memory_to_write(whole);
    if (!memory || width == 0)
        return shard_last_status();
    memory += (size_t)element * shard_dtype_size(whole->dtype);
    if (shard_is_host_memory(whole))
        return ops->copy_rows(device, memory, pitch, from, width, width, rows);
    if (rows == 1)
        return ops->copy_in(device, memory, from, width);
    void *staged = shard_device_allocate(device, SHARD_MEMORY_WORKSPACE, width * rows);
    if (!staged)
        return shard_last_status();
    shard_status status = ops->copy_in(device, staged, from, width * rows);
    if (status == SHARD_OK)
        status = ops->copy_rows(device, memory, pitch, staged, width, width, rows);
    if (status == SHARD_OK)
        status = ops->synchronize(device);
    shard_device_release(device, SHARD_MEMORY_WORKSPACE, staged, width * rows);
    return status;
}

static shard_status take(void *context, const shard_block *block)
{
    shard_tensor *whole = context; /* NULL: not needed on this rank */
    const char *from = block->data;
    for (int rank = 0; rank < block->ranks && whole; rank++) {
        size_t size = shard_dtype_size(whole->dtype), width = (size_t)block->count[rank] * size;
        SHARD_TRY(place(whole, block->row * block->pitch + block->first[rank], (size_t)block->pitch * size, from, width,
                        (size_t)block->rows));
        from += (size_t)block->rows * width;
    }
    return SHARD_OK;
}

static bool has_world_rank(const shard_group *group, int world_rank)
{
    for (int rank = 0; rank < shard_group_size(group); rank++)
        if (shard_group_world_rank(group, rank) == world_rank)
            return true;
    return false;
}

/* Adds the whole tensor to the list if `wanted`. Collective over a split tensor's group, if one of its ranks wants
 * it. */
static shard_status collect_whole(shard_tensors *list, const char *name, shard_tensor *tensor, int root, bool wanted)
{
    if (tensor->placement.kind != SHARD_SPLIT)
        return wanted ? shard_tensors_add(list, name, tensor) : SHARD_OK;
    if (root >= 0 && !has_world_rank(tensor->placement.group, root))
        return SHARD_OK;
    shard_tensor *whole =
        wanted ? shard_tensor_make(shard_tensor_whole_shape(tensor), tensor->dtype, shard_device_of(tensor)) : NULL;
    if (whole)
        shard_tensors_add(list, name, whole);
    shard_gather_blocks(name, tensor, take, whole);
    shard_release(whole);
    return shard_last_status();
}

/* Gathers the tensor that a flat range belongs to, as a new tensor. Collective over the flat range's group. */
static shard_tensor *gather_flat_ranges(const char *name, shard_tensor *tensor)
{
    const shard_flat_range *range = shard_flat_range_of(tensor);
    int size = shard_group_size(range->group);
    int64_t *counts = shard_calloc((size_t)size, sizeof *counts);
    shard_tensor *all = shard_tensor_make(range->shape, tensor->dtype, shard_device_of(tensor));
    shard_range *ranges = shard_flat_ranges(name, tensor, NULL);
    for (int rank = 0; rank < size && counts; rank++)
        counts[rank] = ranges ? ranges[rank].size : 0;
    free(ranges);
    if (all)
        all->placement = range->placement;
    const void *mine = shard_tensor_memory(tensor);
    void *memory = all ? shard_tensor_memory_to_write(all) : NULL;
    shard_status status = shard_group_all_gather(range->group, shard_device_of(tensor), mine, memory, counts, tensor->dtype);
    free(counts);
    if (status == SHARD_OK)
        return all;
    shard_release(all);
    return NULL;
}

static shard_status collect(shard_tensors *list, const char *name, shard_tensor *tensor, int root, bool wanted)
{
    if (shard_tensor_is_idle(tensor)) /* the same on all ranks */
        return wanted ? shard_tensors_add_idle(list, name, shard_tensor_whole_shape(tensor), tensor, NULL) : SHARD_OK;
    if (!shard_flat_range_of(tensor))
        return collect_whole(list, name, tensor, root, wanted);
    const shard_placement *placement = &shard_flat_range_of(tensor)->placement;
    bool joint = placement->kind == SHARD_SPLIT && (root < 0 || has_world_rank(placement->group, root));
    shard_tensor *all = gather_flat_ranges(name, tensor);
    /* The shards' group also has ranks of other flat ranges: after an error of one, none enters its next collective. */
    shard_status status = joint ? shard_agree(placement->group) : shard_last_status();
    if (status == SHARD_OK)
        status = collect_whole(list, name, all, root, wanted);
    shard_release(all);
    return status;
}

shard_tensors *shard_collect_state_dict(const shard_tensors *tensors, int root)
{
    SHARD_FUNCTION("shard_collect_state_dict");
    shard_group *world = shard_world();
    shard_tensors *kept = shard_tensors_kept(tensors, true);
    shard_tensors *list = shard_tensors_create();
    char argument[32];
    snprintf(argument, sizeof argument, "root %d", root);
    if (root < -1 || root >= shard_group_size(world))
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_collect_state_dict: root %d of %d ranks: ranks count from 0, and -1 is all of them", root,
                    shard_group_size(world));
    bool wanted = root == -1 || root == shard_group_rank(world);
    if (shard_tensors_check_identical("shard_collect_state_dict", kept, argument) == SHARD_OK)
        for (int64_t i = 0; i < shard_tensors_count(kept); i++)
            collect(list, shard_tensors_name(kept, i), shard_tensors_at(kept, i), root, wanted);
    shard_tensors_destroy(kept);
    if (shard_agree(world) == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}
