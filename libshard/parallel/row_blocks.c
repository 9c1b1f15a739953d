/*
 * A row block is a flat range of the unit. One is in memory at a time, or two if one is communicated
 * while the device computes with the other.
 */
#include "parallel/row_blocks.h"

#include <stdlib.h>

/* The values or the gradient of one block. */
typedef struct block {
    shard_range range;
    shard_storage *memory;
    bool arriving; /* the values are being prefetched */
    shard_request *request;
    shard_unit_sum sum;
} block;

struct shard_row_blocks {
    shard_rows rows; /* first: the matrix's rows point to this struct */
    shard_unit *unit;
    shard_tensor *matrix;
    shard_row_blocks_options options;
    block values[2], gradients[2];
    int gradient;     /* the next one */
    double scale;     /* of the gradient */
    int64_t streamed; /* the number of elements streamed in this backward */
};

static int64_t width_of(const shard_tensor *matrix)
{
    return matrix->shape.dim[1];
}

bool shard_row_blocks_suit(const shard_tensor *parameter, size_t bytes)
{
    bool split = shard_is_split(parameter, 0) || shard_is_split(parameter, 1);
    int ranks = split ? shard_group_size(parameter->placement.group) : 1;
    shard_shape whole = shard_tensor_whole_shape(parameter);
    if (whole.ndim != 2 || whole.dim[1] < ranks) /* every shard has columns */
        return false;
    int64_t rows = shard_is_split(parameter, 0) ? whole.dim[0] / ranks : whole.dim[0];
    return rows > 2 * SHARD_ROW_BLOCK &&
           (size_t)shard_parameter_even_size(parameter) * shard_dtype_size(parameter->dtype) > bytes;
}

/* The last block includes the unit's padding. */
static shard_range range_of(const shard_row_blocks *blocks, int64_t first, int64_t count)
{
    int64_t width = width_of(blocks->matrix), end = first + count;
    int64_t to = end == blocks->matrix->shape.dim[0] ? blocks->unit->size : end * width;
    return (shard_range){.start = first * width, .size = to - first * width};
}

static char *allocate(const shard_row_blocks *blocks, block *b)
{
    shard_storage_unref(b->memory);
    b->memory = shard_unit_storage(blocks->unit, b->range.size, SHARD_MEMORY_BUCKETS);
    return b->memory ? shard_storage_memory(b->memory) : NULL;
}

static void release(block *b)
{
    shard_storage_unref(b->memory);
    *b = (block){0};
}

/* Sets the memory of a block after its rows to zero. */
static void zero_padding(const shard_row_blocks *blocks, const block *b, int64_t count, char *memory)
{
    const shard_unit *unit = blocks->unit;
    int64_t size = count * width_of(blocks->matrix);
    if (memory && b->range.size != size)
        unit->device->ops->zero(unit->device, memory + shard_unit_bytes(unit, size),
                                shard_unit_bytes(unit, b->range.size - size));
}

/* ---- values ---- */

static void start_values(shard_row_blocks *blocks, block *b, int64_t first, int64_t count)
{
    b->range = range_of(blocks, first, count);
    b->arriving = true;
    b->request = shard_unit_gather(blocks->unit, b->range, allocate(blocks, b));
}

static const void *values(shard_rows *rows, int64_t first, int64_t count)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    int64_t all = blocks->matrix->shape.dim[0], next = first + count;
    if (first == 0)
        shard_unshard_evict_idle(blocks->options.order);
    int at = blocks->values[1].arriving;
    block *now = &blocks->values[at], *other = &blocks->values[!at];
    release(other);
    if (!now->arriving)
        start_values(blocks, now, first, count);
    shard_request *request = now->request;
    now->arriving = false;
    now->request = NULL;
    shard_status status = shard_unit_wait(blocks->unit, request);
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

/* Makes a block's values as on all ranks, and keeps this rank's elements of them. */
static shard_status move_block(shard_row_blocks *blocks, int64_t first, int64_t count, bool broadcast)
{
    shard_unit *unit = blocks->unit;
    block *b = &blocks->values[0];
    b->range = range_of(blocks, first, count);
    char *all = allocate(blocks, b);
    if (all && shard_tensor_copy_rows(blocks->matrix, first, count, all) == SHARD_OK)
        zero_padding(blocks, b, count, all);
    if (broadcast)
        shard_group_broadcast(unit->group, unit->device, all, b->range.size, unit->dtype, 0);
    SHARD_TRY(shard_last_status());
    return shard_unit_keep(unit, b->range, all);
}

shard_status shard_row_blocks_move_values(shard_row_blocks *blocks, bool broadcast)
{
    shard_tensor *matrix = blocks->matrix;
    int64_t rows = matrix->shape.dim[0];
    for (int64_t first = 0, count; first < rows; first += count) {
        count = shard_rows_in_block(blocks->rows.block, first, rows);
        move_block(blocks, first, count, broadcast);
    }
    values_end(&blocks->rows);
    SHARD_TRY(shard_agree(blocks->unit->group)); /* from here on all ranks gather the values */
    shard_tensor_unref(matrix->leaf->local_range);
    matrix->leaf->local_range = NULL;
    shard_tensor_put(matrix, blocks->unit->values, 0, NULL);
    return SHARD_OK;
}

/* ---- gradients ---- */

/* Waits for the current sum of a block. */
static shard_status end(shard_row_blocks *blocks, block *b)
{
    shard_status status = shard_unit_end_reduce(blocks->unit, &b->sum);
    release(b);
    return status;
}

static void reduce(shard_row_blocks *blocks, block *b, char *gradient)
{
    b->sum = (shard_unit_sum){.range = b->range, .gradient = gradient};
    blocks->streamed = b->range.start + b->range.size;
    shard_unit_reduce(blocks->unit, &b->sum);
    if (b->sum.request)
        blocks->gradient = !blocks->gradient;
    else
        end(blocks, b);
}

static bool gradient_begin(shard_rows *rows, const shard_pending_sums *pending)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    return blocks->options.begin(blocks->options.context, pending, &blocks->scale);
}

static block *next_gradient(shard_row_blocks *blocks, int64_t first, int64_t count)
{
    block *b = &blocks->gradients[blocks->gradient];
    end(blocks, b);
    b->range = range_of(blocks, first, count);
    return b;
}

static void *gradient(shard_rows *rows, int64_t first, int64_t count)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    return allocate(blocks, next_gradient(blocks, first, count));
}

static void gradient_take(shard_rows *rows, int64_t count)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    const shard_unit *unit = blocks->unit;
    block *b = &blocks->gradients[blocks->gradient];
    char *memory = b->memory ? b->memory->memory : NULL;
    if (memory && blocks->scale != 1.0)
        unit->device->ops->axpby(unit->device, count * width_of(blocks->matrix), blocks->scale, memory, 0.0, memory, unit->dtype);
    zero_padding(blocks, b, count, memory);
    reduce(blocks, b, memory);
}

static shard_status gradient_end(shard_rows *rows)
{
    shard_row_blocks *blocks = (shard_row_blocks *)rows;
    end(blocks, &blocks->gradients[blocks->gradient]);
    return end(blocks, &blocks->gradients[!blocks->gradient]);
}

bool shard_row_blocks_streamed(const shard_row_blocks *blocks)
{
    return blocks->streamed == blocks->unit->size;
}

void shard_row_blocks_stream_rest(shard_row_blocks *blocks, char *all)
{
    int64_t rows = blocks->matrix->shape.dim[0];
    for (int64_t first = blocks->streamed / width_of(blocks->matrix), count; !shard_row_blocks_streamed(blocks); first += count) {
        count = shard_rows_in_block(blocks->rows.block, first, rows);
        block *b = next_gradient(blocks, first, count);
        reduce(blocks, b, all ? all + shard_unit_bytes(blocks->unit, b->range.start) : NULL);
    }
    gradient_end(&blocks->rows);
}

void shard_row_blocks_rearm(shard_row_blocks *blocks)
{
    blocks->streamed = 0;
}

/* ---- creation and destruction ---- */

shard_row_blocks *shard_row_blocks_create(shard_unit *unit, shard_tensor *matrix, const shard_row_blocks_options *options)
{
    shard_row_blocks *blocks = shard_calloc(1, sizeof *blocks);
    if (!blocks)
        return NULL;
    size_t least = SHARD_ROW_BLOCK * shard_unit_bytes(unit, width_of(matrix));
    *blocks =
        (shard_row_blocks){.rows = {.block = SHARD_ROW_BLOCK * (int64_t)(options->bytes > least ? options->bytes / least : 1),
                                    .values = unit->local_values ? values : NULL,
                                    .values_end = values_end,
                                    .gradient_begin = gradient_begin,
                                    .gradient = gradient,
                                    .gradient_take = gradient_take,
                                    .gradient_end = gradient_end},
                           .unit = unit,
                           .matrix = matrix,
                           .options = *options};
    matrix->leaf->rows = &blocks->rows;
    return blocks;
}

void shard_row_blocks_destroy(shard_row_blocks *blocks)
{
    if (!blocks)
        return;
    blocks->matrix->leaf->rows = NULL;
    free(blocks);
}
