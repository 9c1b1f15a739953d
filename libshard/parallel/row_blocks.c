/*
 * A block is a range of the bucket, of which each rank has what lies in its part: the
 * all-gathers and reduce-scatters of all blocks move as much as one of the bucket, and
 * need memory for one block at a time, or for two where one is under way while ranks
 * compute with the other.
 */
#include "parallel/row_blocks.h"

#include "parallel/engine.h"
#include "parallel/unshard.h"

#include <stdlib.h>

typedef struct block {
    bool under_way;
    int64_t start, size; /* elements of the bucket */
    char *from;          /* those of a gradient */
    shard_storage *memory;
    shard_request *request;
} block;

struct shard_row_blocks {
    shard_rows rows; /* first: the weight's is this */
    shard_bucket *bucket;
    int64_t *counts; /* [members of the bucket's group] */
    block values[2], gradients[2];
    int gradient; /* the one that is next */
    double scale; /* of the gradient */
    int64_t taken; /* elements whose gradient was, in this backward */
};

static int64_t width_of(const shard_tensor *weight)
{
    return weight->shape.dim[1];
}

static const shard_tensor *weight_of(const shard_row_blocks *blocks)
{
    return blocks->bucket->members[0].parameter;
}

bool shard_row_blocks_suit(const shard_tensor *parameter, size_t bytes)
{
    int members = shard_is_split(parameter, 0) || shard_is_split(parameter, 1) ? shard_group_size(parameter->placement.group) : 1;
    shard_shape whole = shard_tensor_whole_shape(parameter);
    if (whole.ndim != 2 || whole.dim[1] < members) /* no part is without columns */
        return false;
    int64_t rows = shard_is_split(parameter, 0) ? whole.dim[0] / members : whole.dim[0];
    return rows > 2 * SHARD_ROW_BLOCK && (size_t)shard_share_of(parameter) * shard_dtype_size(parameter->dtype) > bytes;
}

/* ---- ranges ---- */

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t bytes_of(const shard_row_blocks *blocks, int64_t elements)
{
    return (size_t)elements * shard_dtype_size(blocks->bucket->dtype);
}

/* The last block has the bucket's padding, too. */
static void set_range(const shard_row_blocks *blocks, block *b, int64_t first, int64_t count)
{
    const shard_tensor *weight = weight_of(blocks);
    bool is_last = first + count == weight->shape.dim[0];
    b->start = first * width_of(weight);
    b->size = (is_last ? blocks->bucket->size : (first + count) * width_of(weight)) - b->start;
}

/* How much of the block each member has. */
static const int64_t *count_parts(shard_row_blocks *blocks, const block *b)
{
    const shard_bucket *bucket = blocks->bucket;
    for (int64_t member = 0, start = 0; member < shard_group_size(bucket->group); start += bucket->parts[member++]) {
        int64_t from = larger(start, b->start), to = smaller(start + bucket->parts[member], b->start + b->size);
        blocks->counts[member] = larger(to - from, 0);
    }
    return blocks->counts;
}

/* Where the own part of the block begins, as an element of the own part; and its size. */
static int64_t local_start(const shard_row_blocks *blocks, const block *b)
{
    return larger(b->start - blocks->bucket->local_start, 0);
}
static int64_t own_size(const shard_row_blocks *blocks, const block *b)
{
    const shard_bucket *bucket = blocks->bucket;
    return larger(smaller(bucket->local_start + bucket->own, b->start + b->size) - larger(bucket->local_start, b->start), 0);
}

static char *part_memory(const shard_row_blocks *blocks, shard_storage *own, const block *b)
{
    char *memory = own_size(blocks, b) ? shard_storage_memory(own) : NULL;
    return memory ? memory + bytes_of(blocks, local_start(blocks, b)) : NULL;
}

/* Where the own part is in the block's gradient. */
static char *own_of(const shard_row_blocks *blocks, const block *b)
{
    return b->from ? b->from + bytes_of(blocks, larger(blocks->bucket->local_start - b->start, 0)) : NULL;
}

static char *allocate(const shard_row_blocks *blocks, block *b)
{
    shard_storage_unref(b->memory);
    b->memory = shard_storage_make(blocks->bucket->device, bytes_of(blocks, b->size));
    if (!b->memory)
        return NULL;
    shard_storage_set_kind(b->memory, SHARD_MEMORY_BUCKETS);
    return shard_storage_memory(b->memory);
}

static void release(block *b)
{
    shard_storage_unref(b->memory);
    *b = (block){0};
}

/* ---- values ---- */

static void start_values(shard_row_blocks *blocks, block *b, int64_t first, int64_t count)
{
    const shard_bucket *bucket = blocks->bucket;
    set_range(blocks, b, first, count);
    char *all = allocate(blocks, b), *mine = part_memory(blocks, bucket->local_values, b);
    b->under_way = true;
    b->request = shard_group_all_gather_start(bucket->group, bucket->device, mine ? mine : all, all, count_parts(blocks, b),
                                              bucket->dtype);
}

static const void *values(shard_rows *rows, int64_t first, int64_t count)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    const shard_tensor *weight = weight_of(blocks);
    int64_t all = weight->shape.dim[0], next = first + count;
    if (first == 0)
        shard_unshard_evict_idle();
    int at = blocks->values[1].under_way; /* the one that was started ahead */
    block *now = &blocks->values[at], *other = &blocks->values[!at];
    release(other);
    if (!now->under_way)
        start_values(blocks, now, first, count);
    shard_request *request = now->request;
    now->under_way = false;
    now->request = NULL;
    shard_status status = shard_group_wait(blocks->bucket->group, blocks->bucket->device, request);
    if (request && next < all)
        start_values(blocks, other, next, shard_rows_in_block(rows->block, next, all));
    return status == SHARD_OK ? shard_storage_memory(now->memory) : NULL;
}

static void values_end(shard_rows *rows)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    release(&blocks->values[0]);
    release(&blocks->values[1]);
}

/* Makes a block as all are to have it, and keeps the own part of it. */
static shard_status move_block(shard_row_blocks *blocks, int64_t first, int64_t count, bool broadcast)
{
    const shard_bucket *bucket = blocks->bucket;
    const shard_device_ops *ops = bucket->device->ops;
    shard_tensor *weight = bucket->members[0].parameter;
    block *b = &blocks->values[0];
    int64_t size = count * width_of(weight);
    set_range(blocks, b, first, count);
    char *all = allocate(blocks, b);
    if (all && shard_tensor_copy_rows(weight, first, count, all) == SHARD_OK && b->size > size)
        ops->zero(bucket->device, all + bytes_of(blocks, size), bytes_of(blocks, b->size - size));
    if (broadcast)
        shard_group_broadcast(bucket->group, bucket->device, all, b->size, bucket->dtype, 0);
    SHARD_TRY(shard_last_status());
    size_t bytes = bytes_of(blocks, own_size(blocks, b));
    char *own = part_memory(blocks, bucket->local_values, b);
    const char *from = all + bytes_of(blocks, larger(bucket->local_start - b->start, 0));
    return bytes ? ops->copy_rows(bucket->device, own, bytes, from, bytes, bytes, 1) : SHARD_OK;
}

shard_status shard_row_blocks_move_values(shard_row_blocks *blocks, bool broadcast)
{
    shard_tensor *weight = blocks->bucket->members[0].parameter;
    int64_t rows = weight->shape.dim[0];
    for (int64_t first = 0, count; first < rows; first += count) {
        count = shard_rows_in_block(blocks->rows.block, first, rows);
        move_block(blocks, first, count, broadcast);
    }
    values_end(&blocks->rows);
    shard_tensor_unref(weight->kept);
    weight->kept = NULL;
    SHARD_TRY(shard_last_status());
    return shard_tensor_put(weight, blocks->bucket->values, 0);
}

/* ---- gradients ---- */

/* Waits for a block that is under way; adds its sum to what the own part has. */
static shard_status settle(shard_row_blocks *blocks, block *b)
{
    const shard_bucket *bucket = blocks->bucket;
    if (!b->under_way)
        return shard_last_status();
    shard_status status = shard_group_wait(bucket->group, bucket->device, b->request);
    int64_t size = own_size(blocks, b);
    if (status == SHARD_OK && bucket->adds && size)
        status = bucket->device->ops->axpby(bucket->device, size, 1.0, own_of(blocks, b), 1.0,
                                            part_memory(blocks, bucket->local_gradients, b), bucket->dtype);
    release(b);
    return status;
}

/* The block at b->from. */
static void take(shard_row_blocks *blocks, block *b)
{
    const shard_bucket *bucket = blocks->bucket;
    char *sum = bucket->adds ? own_of(blocks, b) : part_memory(blocks, bucket->local_gradients, b);
    b->under_way = true;
    b->request = shard_group_reduce_scatter_start(bucket->group, bucket->device, b->from, own_size(blocks, b) ? sum : b->from,
                                                  count_parts(blocks, b), bucket->dtype, SHARD_SUM);
    blocks->taken = b->start + b->size;
    if (!b->request)
        settle(blocks, b);
    else
        blocks->gradient = !blocks->gradient;
}

static bool gradient_begin(shard_rows *rows, const shard_contribution *contribution)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    return shard_engine_begin_rows(blocks->bucket, contribution, &blocks->scale);
}

static void *gradient(shard_rows *rows, int64_t first, int64_t count)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    block *b = &blocks->gradients[blocks->gradient];
    settle(blocks, b);
    set_range(blocks, b, first, count);
    return b->from = allocate(blocks, b);
}

static shard_status gradient_take(shard_rows *rows, int64_t first, int64_t count)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    block *b = &blocks->gradients[blocks->gradient];
    shard_device *device = blocks->bucket->device;
    shard_dtype dtype = blocks->bucket->dtype;
    int64_t size = count * width_of(weight_of(blocks));
    (void)first;
    if (b->from && blocks->scale != 1.0)
        device->ops->axpby(device, size, blocks->scale, b->from, 0.0, b->from, dtype);
    if (b->from && b->size > size)
        device->ops->zero(device, b->from + bytes_of(blocks, size), bytes_of(blocks, b->size - size));
    take(blocks, b);
    return shard_last_status();
}

static shard_status gradient_end(shard_rows *rows)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    settle(blocks, &blocks->gradients[blocks->gradient]);
    return settle(blocks, &blocks->gradients[!blocks->gradient]);
}

bool shard_row_blocks_passed(const shard_row_blocks *blocks)
{
    return blocks->taken == blocks->bucket->size;
}

void shard_row_blocks_take_whole(shard_row_blocks *blocks, char *all)
{
    const shard_tensor *weight = weight_of(blocks);
    int64_t rows = weight->shape.dim[0];
    for (int64_t first = blocks->taken / width_of(weight), count; !shard_row_blocks_passed(blocks); first += count) {
        count = shard_rows_in_block(blocks->rows.block, first, rows);
        block *b = &blocks->gradients[blocks->gradient];
        settle(blocks, b);
        set_range(blocks, b, first, count);
        b->from = all ? all + bytes_of(blocks, b->start) : NULL;
        take(blocks, b);
    }
    gradient_end(&blocks->rows);
}

void shard_row_blocks_rearm(shard_row_blocks *blocks)
{
    blocks->taken = 0;
}

/* ---- life ---- */

shard_row_blocks *shard_row_blocks_create(shard_bucket *bucket, size_t bytes)
{
    shard_row_blocks *blocks = shard_calloc(1, sizeof *blocks);
    int64_t *counts = blocks ? shard_calloc((size_t)shard_group_size(bucket->group), sizeof *counts) : NULL;
    if (!counts) {
        free(blocks);
        return NULL;
    }
    shard_tensor *weight = bucket->members[0].parameter;
    size_t least = SHARD_ROW_BLOCK * (size_t)width_of(weight) * shard_dtype_size(bucket->dtype);
    *blocks = (shard_row_blocks){.rows = {.block = SHARD_ROW_BLOCK * (int64_t)(bytes > least ? bytes / least : 1),
                                          .values = bucket->local_values ? values : NULL,
                                          .values_end = values_end,
                                          .gradient_begin = gradient_begin,
                                          .gradient = gradient,
                                          .gradient_take = gradient_take,
                                          .gradient_end = gradient_end},
                                 .bucket = bucket,
                                 .counts = counts};
    weight->rows = &blocks->rows;
    return blocks;
}

void shard_row_blocks_destroy(shard_row_blocks *blocks)
{
    if (!blocks)
        return;
    shard_tensor *weight = blocks->bucket->members[0].parameter;
    if (weight->rows == &blocks->rows)
        weight->rows = NULL;
    free(blocks->counts);
    free(blocks);
}
