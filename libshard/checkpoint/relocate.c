/* Local shards from state dicts of whole tensors: each rank has all whole tensors, or one rank sends them in blocks. */
#include "base/printable.h"
#include "checkpoint/fit.h"
#include "base/math.h"
#include "base/options.h"
#include "checkpoint/ranges.h"
#include "comm/function.h"

#include <shard/checkpoint.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

shard_status shard_tensors_add_idle(shard_tensors *list, const char *name, shard_shape shape, const shard_tensor *idle,
                                    const shard_tensor *shard)
{
    shard_tensor *zeros = shard_zeros(shape, .dtype = idle->dtype, .device = shard_device_of(idle));
    if (!zeros)
        return shard_last_status();
    zeros->leaf->optional = true;
    if (shard)
        zeros->placement = shard->placement;
    shard_status status =
        shard && shard_flat_range_of(shard) ? shard_tensor_set_flat_range(zeros, shard_flat_range_of(shard)) : SHARD_OK;
    if (status == SHARD_OK)
        status = shard_tensors_add(list, name, zeros);
    shard_release(zeros);
    return status;
}

static bool is_partitioned(const shard_tensor *tensor)
{
    return tensor->placement.kind == SHARD_SPLIT || shard_flat_range_of(tensor);
}

/* An empty tensor of the shape and placement of like. */
static shard_tensor *make_shard(const shard_tensor *like, shard_dtype dtype, shard_device *device)
{
    shard_tensor *shard = shard_tensor_make(like->shape, dtype, device);
    if (!shard)
        return NULL;
    shard->placement = like->placement;
    if (!shard_flat_range_of(like) || shard_tensor_set_flat_range(shard, shard_flat_range_of(like)) == SHARD_OK)
        return shard;
    shard_release(shard);
    return NULL;
}

/* The whole tensor for one of like; NULL with the error set. */
static shard_tensor *find_whole(const shard_tensors *whole, const char *name, const shard_tensor *like)
{
    shard_tensor *from = shard_tensors_find(whole, name);
    if (!from)
        return shard_fail_null(SHARD_ERROR_ARGUMENT, "shard_relocate_state_dict: there is no %s", shard_quoted(name));
    bool partitioned = shard_flat_range_of(from) || shard_local_range_of(from);
    if (partitioned || from->placement.kind != SHARD_LOCAL)
        return shard_fail_null(
            SHARD_ERROR_SHAPE,
            "shard_relocate_state_dict: %s is %s, and a whole tensor is needed: call shard_collect_state_dict first",
            shard_quoted(name), partitioned ? "partitioned by shard_zero_optimizer" : shard_placement_text(&from->placement));
    shard_shape shape = shard_tensor_whole_shape(like);
    if (shard_fit_shapes(&from->shape, &shape))
        return from;
    return shard_fail_null(SHARD_ERROR_SHAPE, "shard_relocate_state_dict: %s is %s, not %s", shard_quoted(name),
                           shard_shape_text(&from->shape), shard_shape_text(&shape));
}

/* ---- every rank has the whole tensors ---- */

/* State that nothing needs yet: files do not have it. */
static bool may_be_missing(const shard_tensors *whole, const char *name, const shard_tensor *like)
{
    return shard_tensor_is_idle(like) && !shard_tensors_find(whole, name);
}

static shard_status take(shard_tensors *list, const char *name, const shard_tensor *like, const shard_tensors *whole)
{
    SHARD_TRY(shard_check_saved("shard_relocate_state_dict", name, like));
    if (may_be_missing(whole, name, like))
        return shard_tensors_add_idle(list, name, like->shape, like, is_partitioned(like) ? like : NULL);
    shard_tensor *from = find_whole(whole, name, like);
    if (!from)
        return shard_last_status();
    if (!is_partitioned(like))
        return shard_tensors_add(list, name, from);
    if (shard_tensor_is_idle(from))
        return shard_tensors_add_idle(list, name, like->shape, from, like);
    shard_tensor *shard = make_shard(like, from->dtype, shard_device_of(from));
    char *memory = shard ? shard_tensor_memory_to_write(shard) : NULL;
    shard_status status = memory ? shard_values_copy(like, from, memory) : shard_last_status();
    if (status == SHARD_OK)
        status = shard_tensors_add(list, name, shard);
    shard_release(shard);
    return status;
}

static shard_status take_all(shard_tensors *list, const shard_tensors *like, const shard_tensors *whole)
{
    if (!whole)
        return shard_null_argument("shard_relocate_state_dict", "whole");
    for (int64_t i = 0; i < shard_tensors_count(like); i++)
        SHARD_TRY(take(list, shard_tensors_name(like, i), shard_tensors_at(like, i), whole));
    return SHARD_OK;
}

/* ---- one rank has them ---- */

/* The root's description of a whole tensor: its dtype, and whether it is idle. */
enum { IDLE = 0x80, DTYPE = 0x7f };

static shard_status describe(const shard_tensors *like, const shard_tensors *whole, uint8_t *kinds)
{
    if (!whole)
        return shard_null_argument("shard_relocate_state_dict", "whole");
    for (int64_t i = 0; i < shard_tensors_count(like); i++) {
        const char *name = shard_tensors_name(like, i);
        const shard_tensor *of = shard_tensors_at(like, i), *from = of;
        if (!may_be_missing(whole, name, of) && !(from = find_whole(whole, name, of)))
            return shard_last_status();
        kinds[i] = (uint8_t)(from->dtype | (shard_tensor_is_idle(from) ? IDLE : 0));
    }
    return SHARD_OK;
}

/* Copies elements [at, at + count) of the whole that are in the extent, which follow each other in the local memory,
 * from `block` to `to`. Returns how many; *element is the local index of the first. */
static int64_t pick(const shard_extent *extent, int64_t at, int64_t count, const char *block, char *to, size_t size,
                    int64_t *element)
{
    int64_t number = 0, row = extent->pitch > 0 && at > extent->start ? (at - extent->start) / extent->pitch : 0;
    for (; row < extent->rows && extent->start + row * extent->pitch < at + count; row++) {
        int64_t start = extent->start + row * extent->pitch, end = start + extent->width;
        int64_t from = shard_max(start, at), until = shard_min(end, at + count);
        if (from >= until)
            continue;
        if (number == 0)
            *element = extent->element + row * extent->width + from - start;
        memcpy(to + (size_t)number * size, block + (size_t)(from - at) * size, (size_t)(until - from) * size);
        number += until - from;
    }
    return number;
}

/* Copies elements [at, at + count) of the whole into this rank's shard. */
static shard_status place(shard_tensor *shard, int64_t at, int64_t count, const char *block, char *picked)
{
    char *memory = shard_tensor_memory_to_write(shard);
    size_t size = shard_dtype_size(shard->dtype);
    shard_extent extents[SHARD_EXTENTS];
    int number = shard_extents_of(shard, extents);
    for (int i = 0; i < number && memory; i++) {
        int64_t element, elements = pick(&extents[i], at, count, block, picked, size, &element);
        if (elements)
            SHARD_TRY(shard_ops(shard)->copy_in(shard_device_of(shard), memory + (size_t)element * size, picked,
                                                (size_t)elements * size));
    }
    return shard_last_status();
}

typedef struct receiving {
    shard_group *world;
    int root;
    char *block, *picked; /* staging */
} receiving;

/* A rank that fails continues until all ranks have the error. */
static shard_status send(receiving *r, shard_tensor *from, shard_tensor *shard, int64_t numel, shard_dtype dtype)
{
    int64_t size = (int64_t)shard_dtype_size(dtype), most = SHARD_BLOCK_BYTES / size;
    for (int64_t at = 0; at < numel; at += most) {
        int64_t count = numel - at < most ? numel - at : most;
        const void *values = from && r->block ? shard_values_read(from, at, count, r->block) : NULL;
        if (values && values != r->block)
            memcpy(r->block, values, (size_t)(count * size));
        SHARD_TRY(shard_group_broadcast(r->world, NULL, r->block, count, dtype, r->root));
        if (shard)
            place(shard, at, count, r->block, r->picked);
    }
    return SHARD_OK;
}

/* Collective over the world; the status is the same on all ranks if the world's is. */
static shard_status receive(receiving *r, shard_tensors *list, const char *name, const shard_tensor *like, shard_tensor *from,
                            uint8_t kind)
{
    shard_shape shape = shard_tensor_whole_shape(like);
    shard_dtype dtype = (shard_dtype)(kind & DTYPE);
    bool shared = from && !is_partitioned(like);
    shard_tensor *shard = shared ? from : make_shard(like, dtype, shard_device_of(like));
    shard_status status = SHARD_OK;
    if (shard && kind & IDLE)
        shared ? shard_tensors_add(list, name, shard) : shard_tensors_add_idle(list, name, like->shape, shard, like);
    else if (shard)
        shard_tensors_add(list, name, shard);
    if (!(kind & IDLE))
        status = send(r, from, shared ? NULL : shard, shard_shape_product(&shape, 0, shape.ndim), dtype);
    if (!shared)
        shard_release(shard);
    return status;
}

static shard_status receive_all(shard_tensors *list, const shard_tensors *like, const shard_tensors *whole, int root)
{
    receiving r = {.world = shard_world(), .root = root, .block = shard_block_allocate(), .picked = shard_block_allocate()};
    int64_t count = shard_tensors_count(like);
    bool is_root = shard_group_rank(r.world) == root;
    uint8_t *kinds = shard_calloc((size_t)count, sizeof *kinds);
    if (is_root && kinds)
        describe(like, whole, kinds);
    shard_status status = shard_group_broadcast(r.world, NULL, kinds, count, SHARD_UINT8, root);
    for (int64_t i = 0; i < count && status == SHARD_OK; i++) {
        const char *name = shard_tensors_name(like, i);
        status = receive(&r, list, name, shard_tensors_at(like, i), is_root ? shard_tensors_find(whole, name) : NULL, kinds[i]);
    }
    free(kinds);
    shard_block_free(r.block);
    shard_block_free(r.picked);
    return shard_agree(r.world);
}

static shard_status relocate_together(shard_tensors *list, const shard_tensors *like, const shard_tensors *whole, int root)
{
    char argument[32];
    snprintf(argument, sizeof argument, "root %d", root);
    SHARD_TRY(shard_tensors_check_identical("shard_relocate_state_dict", like, argument));
    return receive_all(list, like, whole, root);
}

shard_tensors *shard_relocate_state_dict_with(const shard_tensors *like, const shard_tensors *whole,
                                              const shard_relocate_options *given)
{
    SHARD_FUNCTION("shard_relocate_state_dict");
    SHARD_READ_OPTIONS(shard_relocate_options, SHARD_RELOCATE_OPTIONS_INIT, options, given);
    int size = shard_group_size(shard_world()), root = options.root;
    if (root < -1 || root >= size)
        shard_error(SHARD_ERROR_ARGUMENT,
                    "shard_relocate_state_dict: root %d of %d ranks: ranks count from 0, and -1 is all of them", root, size);
    else if (!like)
        shard_null_argument("shard_relocate_state_dict", "like");
    shard_tensors *kept = shard_tensors_kept(like, true), *list = shard_tensors_create();
    shard_status status = shard_last_status();
    if (root != -1)
        status = relocate_together(list, kept, whole, root);
    else if (status == SHARD_OK)
        status = take_all(list, kept, whole);
    shard_tensors_destroy(kept);
    if (status == SHARD_OK)
        return list;
    shard_tensors_destroy(list);
    return NULL;
}
