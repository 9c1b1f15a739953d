/* conv2d: images [n, h, w, c]. */
#include "op/autocast.h"
#include "base/options.h"
#include "op/op.h"

#include <inttypes.h>

enum { X, WEIGHT, BIAS };

typedef struct conv_context {
    shard_conv_shape shape;
} conv_context;

static shard_status input_gradient(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const shard_conv_shape *shape = &((const conv_context *)node->context)->shape;
    shard_tensor *weight = shard_saved_operand(node, WEIGHT, dy->dtype);
    shard_tensor *to = weight ? shard_gradient_of_type(node, X, dy->dtype) : NULL;
    void *memory[3];
    if (!to || !shard_load(SHARD_INPUTS(weight, dy, to), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(dy, conv2d_backward_data, shape, memory[0], memory[1], memory[2], dy->dtype));
    dx[X] = shard_gradient_as_input(node, X, to);
    return dx[X] ? SHARD_OK : shard_last_status();
}

static shard_status weight_gradient(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    const shard_conv_shape *shape = &((const conv_context *)node->context)->shape;
    shard_tensor *x = shard_saved_operand(node, X, dy->dtype);
    bool with_bias = shard_wants(node, BIAS);
    shard_tensor *to = x ? shard_gradient_of_type(node, WEIGHT, dy->dtype) : NULL;
    shard_tensor *to_bias = to && with_bias ? shard_gradient_of_type(node, BIAS, dy->dtype) : NULL;
    void *memory[4];
    if (!to || (with_bias && !to_bias) || !shard_load(SHARD_INPUTS(x, dy, to, to_bias), memory))
        return shard_last_status();
    SHARD_TRY(SHARD_RUN(dy, conv2d_backward_weight, shape, memory[0], memory[1], memory[2], memory[3], dy->dtype));
    dx[WEIGHT] = shard_gradient_as_input(node, WEIGHT, to);
    dx[BIAS] = shard_gradient_as_input(node, BIAS, to_bias);
    return dx[WEIGHT] && (dx[BIAS] || !with_bias) ? SHARD_OK : shard_last_status();
}

/* Called if no gradient of the weight is needed. */
static shard_status bias_gradient(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    bool accumulate;
    dx[BIAS] = shard_gradient_target(node, BIAS, &accumulate);
    void *memory[2];
    if (!dx[BIAS] || !shard_load(SHARD_INPUTS(dy, dx[BIAS]), memory))
        return shard_last_status();
    return SHARD_RUN(dy, sum_rows, shard_shape_product(&dy->shape, 0, 3), dy->shape.dim[3], 0, memory[0], dy->dtype, accumulate,
                     memory[1], dx[BIAS]->dtype);
}

static shard_status conv2d_backward(shard_node *node, shard_tensor *dy, shard_tensor **dx)
{
    if (shard_wants(node, WEIGHT))
        SHARD_TRY(weight_gradient(node, dy, dx));
    else if (shard_wants(node, BIAS))
        SHARD_TRY(bias_gradient(node, dy, dx));
    return shard_wants(node, X) ? input_gradient(node, dy, dx) : SHARD_OK;
}

static const shard_node_type conv2d_type = {.name = "conv2d", .backward = conv2d_backward};

static bool check_shapes(const char *function, const shard_tensor *x, const shard_tensor *weight, const shard_tensor *bias,
                         int64_t groups)
{
    if (x->shape.ndim != 4 || weight->shape.ndim != 4) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: x of shape %s and a weight of shape %s; [n, h, w, c] and [out, c / groups, kh, kw] are "
                    "needed",
                    function, shard_tensor_shape_text(x), shard_tensor_shape_text(weight));
        return false;
    }
    int64_t in = x->shape.dim[3], out = weight->shape.dim[0];
    if (groups < 1 || in % groups || out % groups || in / groups != weight->shape.dim[1]) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: x of shape %s has %" PRId64 " channels, the weight of shape %s takes %" PRId64 " in each of "
                    "%" PRId64 " groups; both numbers of channels must be multiples of the groups",
                    function, shard_tensor_shape_text(x), in, shard_tensor_shape_text(weight), weight->shape.dim[1], groups);
        return false;
    }
    if (bias && (bias->shape.ndim != 1 || bias->shape.dim[0] != out)) {
        shard_error(SHARD_ERROR_SHAPE, "%s: a bias of shape %s for %" PRId64 " output channels; [out] is needed", function,
                    shard_tensor_shape_text(bias), out);
        return false;
    }
    return true;
}

bool shard_check_windows(const char *function, const char *direction, int64_t stride, int64_t padding, int64_t dilation)
{
    if (stride >= 1 && stride <= INT32_MAX && padding >= 0 && padding <= INT32_MAX && dilation >= 1 && dilation <= INT32_MAX)
        return true;
    shard_error(SHARD_ERROR_ARGUMENT,
                "%s: stride %" PRId64 ", padding %" PRId64 ", dilation %" PRId64
                " along the %s; stride and dilation must be at least 1, padding at least 0, and all at most %d",
                function, stride, padding, dilation, direction, INT32_MAX);
    return false;
}

/* The output's size along one dimension; false with the error set. */
static bool output_size(const char *function, const char *direction, int64_t size, int64_t kernel, int64_t stride,
                        int64_t padding, int64_t dilation, int64_t *output)
{
    if (!shard_check_windows(function, direction, stride, padding, dilation))
        return false;
    int64_t reach;
    bool fits = kernel > 0 && shard_multiply(kernel - 1, dilation, &reach) && size <= INT64_MAX / 2 && reach < size + 2 * padding;
    if (!fits) {
        shard_error(SHARD_ERROR_SHAPE,
                    "%s: a kernel of %s %" PRId64 " (dilation %" PRId64 ") on images of %s %" PRId64 " (padding "
                    "%" PRId64 "); a kernel of at least 1 that fits into an image with its padding is needed",
                    function, direction, kernel, dilation, direction, size, padding);
        return false;
    }
    *output = (size + 2 * padding - reach - 1) / stride + 1;
    return true;
}

static bool resolve(const char *function, const shard_tensor *x, const shard_tensor *weight, const shard_conv2d_options *options,
                    shard_conv_shape *shape)
{
    int64_t dilation = options->dilation;
    *shape = (shard_conv_shape){
        .n = x->shape.dim[0],
        .h = x->shape.dim[1],
        .w = x->shape.dim[2],
        .c = x->shape.dim[3],
        .o = weight->shape.dim[0],
        .kh = weight->shape.dim[2],
        .kw = weight->shape.dim[3],
        .stride_h = options->stride_h == -1 ? options->stride : options->stride_h,
        .stride_w = options->stride_w == -1 ? options->stride : options->stride_w,
        .pad_h = options->padding_h == -1 ? options->padding : options->padding_h,
        .pad_w = options->padding_w == -1 ? options->padding : options->padding_w,
        .dilation_h = dilation,
        .dilation_w = dilation,
        .groups = options->groups,
    };
    return output_size(function, "height", shape->h, shape->kh, shape->stride_h, shape->pad_h, dilation, &shape->oh) &&
           output_size(function, "width", shape->w, shape->kw, shape->stride_w, shape->pad_w, dilation, &shape->ow);
}

static shard_tensor *conv2d(shard_tensor **input, int inputs, const shard_conv2d_options *options)
{
    static const char function[] = "shard_conv2d";
    shard_tensor *operand[BIAS + 1] = {NULL};
    shard_autocast_product(inputs, input, operand);
    shard_tensor *x = operand[X], *weight = operand[WEIGHT], *bias = operand[BIAS];
    shard_conv_shape shape;
    if (!shard_check_operands(function, inputs, operand) || !check_shapes(function, x, weight, bias, options->groups) ||
        !resolve(function, x, weight, options, &shape) || !shard_check_carried(function, x, 1) ||
        !shard_check_carried(function, weight, 0) || (bias && !shard_check_carried(function, bias, 0)))
        return NULL;
    shard_tensor *y = shard_tensor_make(SHARD_SHAPE(shape.n, shape.oh, shape.ow, shape.o), x->dtype, shard_device_of(x));
    void *memory[4];
    if (!y || !shard_load(SHARD_INPUTS(x, weight, bias, y), memory))
        return shard_result(y, shard_last_status());
    y->placement = x->placement;
    y = shard_result(y, SHARD_RUN(x, conv2d, &shape, memory[0], memory[1], memory[2], memory[3], x->dtype));
    shard_node *node = shard_record(&conv2d_type, y, inputs, input, sizeof(conv_context));
    if (node) {
        ((conv_context *)node->context)->shape = shape;
        if (shard_wants(node, WEIGHT))
            shard_save_operand(node, X, input[X], x);
        if (shard_wants(node, X))
            shard_save_operand(node, WEIGHT, input[WEIGHT], weight);
    }
    return y;
}

shard_tensor *shard_conv2d_with(shard_tensor *x, shard_tensor *weight, shard_tensor *bias, const shard_conv2d_options *given)
{
    SHARD_READ_OPTIONS(shard_conv2d_options, SHARD_CONV2D_OPTIONS_INIT, options, given);
    if (!options_ok)
        return NULL;
    shard_scope scope;
    shard_scope_open(&scope);
    shard_tensor *y = shard_scope_return(conv2d((shard_tensor *[]){x, weight, bias}, bias ? 3 : 2, &options), &scope);
    shard_scope_close(&scope);
    return y;
}
