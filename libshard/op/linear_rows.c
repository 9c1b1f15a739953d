#include "op/linear_rows.h"

/* One product, row block by row block of the weight. A matrix has x's rows and `out` columns; a block is a range of
 * these columns. */
typedef struct blocks {
    shard_device *device;
    shard_rows *of;
    shard_dtype dtype;      /* of the computation */
    shard_dtype stored;     /* of the weight */
    int64_t rows, in, out;  /* of x and the weight */
    int64_t pitch, pitch_x; /* of the matrix of out columns, and of x */
    shard_tensor *cast;     /* the largest block's rows of the weight, in dtype */
    int64_t first, count;   /* of the current block */
} blocks;

/* Starts before the first block; an error is the thread's. */
static blocks start_blocks(const shard_tensor *wide, const shard_tensor *weight, int64_t rows)
{
    blocks b = {.device = shard_device_of(wide),
                .of = weight->leaf->rows,
                .dtype = wide->dtype,
                .stored = weight->dtype,
                .rows = rows,
                .in = weight->shape.dim[1],
                .out = weight->shape.dim[0]};
    int64_t largest = b.out < 2 * b.of->block ? b.out : 2 * b.of->block - 1;
    if (b.dtype != b.stored)
        b.cast = shard_workspace(wide, largest * b.in, b.dtype);
    return b;
}

static bool next_block(blocks *b)
{
    b->first += b->count;
    b->count = shard_rows_in_block(b->of->block, b->first, b->out);
    return b->first < b->out;
}

/* The block's values in the type of the computation; NULL with the error set. Also called after an error, as it is
 * collective. */
static const void *values_of(const blocks *b)
{
    const void *values = b->of->values(b->of, b->first, b->count);
    if (!values || b->dtype == b->stored)
        return values;
    void *cast = b->cast ? shard_tensor_memory(b->cast) : NULL;
    bool done = cast && b->device->ops->cast(b->device, b->count * b->in, values, b->stored, cast, b->dtype) == SHARD_OK;
    return done ? cast : NULL;
}

/* The address of the block's columns of a matrix, or of its elements of a row. */
static void *columns_of(const blocks *b, const void *matrix)
{
    return (char *)matrix + (size_t)b->first * shard_dtype_size(b->dtype);
}

static shard_status forward_block(const blocks *b, const void *x, const void *bias, void *y)
{
    const void *values = values_of(b);
    const shard_linear_shape shape = {.rows = b->rows, .in = b->in, .out = b->count, .pitch_x = b->pitch_x, .pitch_y = b->pitch};
    SHARD_TRY(shard_last_status());
    return b->device->ops->linear(b->device, &shape, x, values, bias ? columns_of(b, bias) : NULL, columns_of(b, y), b->dtype);
}

shard_status shard_linear_rows(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, shard_tensor *y)
{
    blocks b = start_blocks(x, weight, shard_shape_product(&x->shape, 0, x->shape.ndim - 1));
    void *memory[3] = {NULL};
    int64_t pitch[2] = {0};
    if (shard_load(SHARD_INPUTS(bias), memory))
        shard_load_rows(SHARD_INPUTS(x, y), memory + 1, pitch);
    b.pitch_x = pitch[0];
    b.pitch = pitch[1];
    while (next_block(&b))
        forward_block(&b, memory[1], memory[0], memory[2]);
    b.of->values_end(b.of);
    shard_release(b.cast);
    return shard_last_status();
}

/* sum += the block's columns of dy times the block's values. */
static shard_status input_block(const blocks *b, const void *dy, void *sum, shard_dtype sum_type)
{
    const void *values = values_of(b);
    SHARD_TRY(shard_last_status());
    shard_matmul_shape shape = {.batch = 1,
                                .m = b->rows,
                                .n = b->in,
                                .k = b->count,
                                .accumulate = b->first > 0,
                                .wide_c = sum_type != b->dtype,
                                .ld_a = b->pitch};
    return b->device->ops->matmul(b->device, &shape, columns_of(b, dy), values, sum, b->dtype);
}

shard_status shard_linear_rows_input_gradient(shard_tensor *dy, shard_tensor *weight, shard_tensor *to)
{
    blocks b = start_blocks(dy, weight, shard_shape_product(&dy->shape, 0, dy->shape.ndim - 1));
    /* The sum over the blocks is rounded once. */
    bool narrow = to && shard_dtype_size(to->dtype) == 2;
    shard_tensor *sum = narrow ? shard_workspace(to, shard_numel(to), SHARD_FLOAT32) : to;
    void *memory[3] = {NULL};
    if (sum && shard_load(SHARD_INPUTS(sum, to), memory + 1))
        shard_load_rows(SHARD_INPUTS(dy), memory, &b.pitch);
    while (next_block(&b))
        input_block(&b, memory[0], memory[1], narrow || !to ? SHARD_FLOAT32 : to->dtype);
    b.of->values_end(b.of);
    shard_release(b.cast);
    SHARD_TRY(shard_last_status());
    return narrow ? SHARD_RUN(to, cast, shard_numel(to), memory[1], SHARD_FLOAT32, memory[2], to->dtype) : SHARD_OK;
}

static shard_status weight_block(const blocks *b, const void *dy, const void *x, void *gradient)
{
    SHARD_TRY(shard_last_status());
    shard_matmul_shape shape = {.batch = 1,
                                .m = b->count,
                                .n = b->in,
                                .k = b->rows,
                                .transpose_a = true,
                                .wide_c = b->stored != b->dtype,
                                .ld_a = b->pitch,
                                .ld_b = b->pitch_x};
    return b->device->ops->matmul(b->device, &shape, columns_of(b, dy), x, gradient, b->dtype);
}

shard_status shard_linear_rows_weight_gradient(shard_tensor *dy, shard_tensor *weight, shard_tensor *x)
{
    blocks b = start_blocks(dy, weight, shard_shape_product(&dy->shape, 0, dy->shape.ndim - 1));
    void *memory[2] = {NULL};
    int64_t pitch[2] = {0};
    shard_load_rows(SHARD_INPUTS(dy, x), memory, pitch);
    b.pitch = pitch[0];
    b.pitch_x = pitch[1];
    while (next_block(&b)) {
        weight_block(&b, memory[0], memory[1], b.of->gradient(b.of, b.first, b.count));
        b.of->gradient_take(b.of, b.count);
    }
    shard_release(b.cast);
    return b.of->gradient_end(b.of);
}
