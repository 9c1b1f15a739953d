/* max_pool2d, avg_pool2d, global_avg_pool2d: images [n, h, w, c]. */
#include "op/op.h"

#include "base/options.h"

#include <inttypes.h>

typedef struct pool_context {
    shard_pool_shape shape;
} pool_context;

/* ---- maximum ---- */

static shard_status max_pool_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const pool_context *context = node->context;
    shard_tensor *argmax = shard_saved(node, 0);
    dx[0] = argmax ? shard_make_gradient(node, 0) : NULL;
    void *memory[3];
    if (!dx[0] || !shard_load(SHARD_INPUTS(dy, argmax, dx[0]), memory))
        return shard_last_status();
    return SHARD_RUN(dy, max_pool_backward, &context->shape, memory[0], memory[1], memory[2], dy->dtype);
}

static const shard_node_type max_pool_type = {.name = "max_pool2d", .backward = max_pool_backward};

static shard_status max_pool(shard_tensor *x, shard_tensor *y, const shard_pool_shape *shape)
{
    bool records = shard_will_record(SHARD_INPUTS(x));
    shard_tensor *argmax = records ? shard_workspace(x, shard_numel(y), SHARD_INT32) : NULL;
    void *memory[3];
    if ((records && !argmax) || !shard_load(SHARD_INPUTS(x, y, argmax), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(x, max_pool, shape, memory[0], memory[1], memory[2], x->dtype));
    shard_node *node = shard_record(&max_pool_type, y, SHARD_INPUTS(x), sizeof(pool_context));
    if (node)
        ((pool_context *)node->context)->shape = *shape;
    shard_save_for_backward(node, 0, argmax);
    return SHARD_OK;
}

/* ---- average ---- */

static shard_status avg_pool_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const pool_context *context = node->context;
    dx[0] = shard_make_gradient(node, 0);
    void *memory[2];
    if (!dx[0] || !shard_load(SHARD_INPUTS(dy, dx[0]), memory))
        return shard_last_status();
    return SHARD_RUN(dy, avg_pool_backward, &context->shape, memory[0], memory[1], dy->dtype);
}

static const shard_node_type avg_pool_type = {.name = "avg_pool2d", .backward = avg_pool_backward};

static shard_status avg_pool(shard_tensor *x, shard_tensor *y, const shard_pool_shape *shape)
{
    void *memory[2];
    if (!shard_load(SHARD_INPUTS(x, y), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(x, avg_pool, shape, memory[0], memory[1], x->dtype));
    shard_node *node = shard_record(&avg_pool_type, y, SHARD_INPUTS(x), sizeof(pool_context));
    if (node)
        ((pool_context *)node->context)->shape = *shape;
    return SHARD_OK;
}

/* ---- both ---- */

static bool check_images(const char *function, shard_tensor *x)
{
    if (!shard_check_operands(function, SHARD_INPUTS(x)))
        return false;
    if (x->shape.ndim != 4 || x->shape.dim[1] > INT32_MAX || x->shape.dim[2] > INT32_MAX ||
        x->shape.dim[1] * x->shape.dim[2] > INT32_MAX) {
        shard_error(SHARD_ERROR_SHAPE, "%s: x has shape %s; images [n, h, w, c] of fewer than 2^31 pixels are needed", function,
                    shard_tensor_shape_text(x));
        return false;
    }
    if (x->shape.dim[1] == 0 || x->shape.dim[2] == 0) {
        shard_error(SHARD_ERROR_SHAPE, "%s: images of %" PRId64 " x %" PRId64 " have no pixels", function, x->shape.dim[1],
                    x->shape.dim[2]);
        return false;
    }
    return shard_check_carried(function, x, 1);
}

/* Rounded up, the last window may extend past the padding, but begins inside of the image or the padding before it,
 * as in PyTorch. Below 1 there is no window. */
static int64_t output_size(int64_t size, int64_t kernel, int64_t stride, int64_t padding, bool ceil_mode)
{
    int64_t room = size + 2 * padding - kernel, count = room / stride + 1;
    if (room < 0)
        return ceil_mode && room > -stride;
    if (ceil_mode && room % stride && count * stride < size + padding)
        count++;
    return count;
}

static bool resolve(const char *function, const shard_tensor *x, int64_t kernel, const shard_pool2d_options *options,
                    shard_pool_shape *shape)
{
    int64_t h = x->shape.dim[1], w = x->shape.dim[2], stride = options->stride == -1 ? kernel : options->stride;
    int64_t padding = options->padding;
    if (kernel < 1 || kernel > INT32_MAX || stride < 1 || stride > INT32_MAX || padding < 0 || padding > kernel / 2) {
        shard_error(SHARD_ERROR_ARGUMENT,
                    "%s: kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64
                    "; kernel and stride must be at least 1, and the "
                    "padding from 0 to half the kernel",
                    function, kernel, stride, padding);
        return false;
    }
    int64_t oh = output_size(h, kernel, stride, padding, options->ceil_mode);
    int64_t ow = output_size(w, kernel, stride, padding, options->ceil_mode);
    if (oh < 1 || ow < 1) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: a kernel of %" PRId64 " on images of %" PRId64 " x %" PRId64 " with padding %" PRId64
                    "; it must fit into an image with its padding",
                    function, kernel, h, w, padding);
        return false;
    }
    *shape = (shard_pool_shape){
        .n = x->shape.dim[0],
        .h = h,
        .w = w,
        .c = x->shape.dim[3],
        .kh = kernel,
        .kw = kernel,
        .oh = oh,
        .ow = ow,
        .stride_h = stride,
        .stride_w = stride,
        .pad_h = padding,
        .pad_w = padding,
        .count_include_pad = options->count_include_pad,
    };
    return true;
}

typedef shard_status pooling(shard_tensor *x, shard_tensor *y, const shard_pool_shape *shape);

static shard_tensor *pool(pooling *compute, shard_tensor *x, shard_shape y_shape, const shard_pool_shape *shape)
{
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_tensor_make(y_shape, x->dtype, shard_device_of(x));
    if (y) {
        y->placement = x->placement;
        y = shard_scope_return(shard_result(y, compute(x, y, shape)), &scope);
    }
    shard_scope_close(&scope);
    return y;
}

static shard_tensor *pool2d(const char *function, pooling *compute, shard_tensor *x, int64_t kernel,
                            const shard_pool2d_options *options)
{
    shard_pool_shape shape;
    if (!check_images(function, x) || !resolve(function, x, kernel, options, &shape))
        return NULL;
    return pool(compute, x, SHARD_SHAPE(shape.n, shape.oh, shape.ow, shape.c), &shape);
}

shard_tensor *shard_max_pool2d_with(shard_tensor *x, int64_t kernel, const shard_pool2d_options *given)
{
    SHARD_READ_OPTIONS(shard_pool2d_options, SHARD_POOL2D_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return pool2d("shard_max_pool2d", max_pool, x, kernel, &options);
}

shard_tensor *shard_avg_pool2d_with(shard_tensor *x, int64_t kernel, const shard_pool2d_options *given)
{
    SHARD_READ_OPTIONS(shard_pool2d_options, SHARD_POOL2D_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    return pool2d("shard_avg_pool2d", avg_pool, x, kernel, &options);
}

shard_tensor *shard_global_avg_pool2d(shard_tensor *x)
{
    if (!check_images("shard_global_avg_pool2d", x))
        return NULL;
    int64_t n = x->shape.dim[0], h = x->shape.dim[1], w = x->shape.dim[2], c = x->shape.dim[3];
    shard_pool_shape shape = {.n = n,
                              .h = h,
                              .w = w,
                              .c = c,
                              .kh = h,
                              .kw = w,
                              .oh = 1,
                              .ow = 1,
                              .stride_h = 1,
                              .stride_w = 1,
                              .count_include_pad = true};
    return pool(avg_pool, x, SHARD_SHAPE(n, c), &shape);
}
