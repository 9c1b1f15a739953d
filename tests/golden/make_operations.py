#!/usr/bin/env python3
"""Writes operations.txt: results and gradients of operations by PyTorch, in float64.

Words separated by blanks. "case NAME", then one line for each tensor: its name, its
number of dimensions, their sizes, its elements. x0, x1, ... are the operands, y the
result, dy what backward is given, d0, d1, ... the gradients of the operands;
running_mean and running_var are those after the call. Images are [n, h, w, c].
Operands and dy have few bits, so that float32 has them too. Ends with "end".
"""
import os

import torch
import torch.nn.functional as F

torch.manual_seed(11)
lines = []


def numbers(*shape):
    """Odd multiples of 1/32 in a random order: all different, none 0."""
    count = torch.Size(shape).numel()
    return ((2 * torch.randperm(count) + 1 + count % 2 - count) / 32).to(torch.float64).reshape(shape)


def write(name, tensor):
    words = [name, str(tensor.dim())] + [str(size) for size in tensor.shape]
    lines.append(" ".join(words + ["%.17g" % value for value in tensor.detach().flatten().tolist()]))


def case(name, operation, *operands, images=(), state=None):
    """images: which operands are [n, c, h, w], and "y" if the result is."""
    lines.append("case " + name)
    leaves = [x.clone().requires_grad_() for x in operands]
    y = operation(*leaves)
    dy = numbers(*y.shape)
    y.backward(dy)

    def last(key, tensor):
        return tensor.permute(0, 2, 3, 1) if key in images else tensor

    for i, x in enumerate(operands):
        write("x%d" % i, last(i, x))
    write("y", last("y", y))
    write("dy", last("y", dy))
    for i, x in enumerate(leaves):
        write("d%d" % i, last(i, x.grad))
    for key, tensor in (state or {}).items():
        write(key, tensor)


def elements():
    x = numbers(5, 7) / 2
    case("relu", F.relu, x)
    case("gelu", F.gelu, x)
    case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), x)
    case("softmax", lambda x: F.softmax(x, -1), numbers(2, 3, 5))
    case("log_softmax", lambda x: F.log_softmax(x, -1), numbers(2, 3, 5))
    case("add", torch.add, numbers(2, 3, 5), numbers(3, 5))
    case("mul", torch.mul, numbers(2, 3, 5), numbers(5))
    case("sum", torch.sum, numbers(3, 6))
    case("mean", torch.mean, numbers(3, 6))
    case("permute", lambda x: x.permute(2, 0, 1), numbers(2, 3, 4))
    case("narrow", lambda x: x.narrow(0, 1, 2), numbers(4, 3))


def products():
    case("matmul", torch.matmul, numbers(4, 6), numbers(6, 5))
    case("matmul_batch", torch.matmul, numbers(2, 3, 4), numbers(2, 4, 5))
    case("matmul_one", torch.matmul, numbers(2, 3, 4), numbers(4, 5))
    case("linear", F.linear, numbers(4, 6), numbers(5, 6))
    case("linear_bias", F.linear, numbers(2, 3, 6), numbers(5, 6), numbers(5))
    index = torch.tensor([[4, 0, 2], [2, 4, 1]])
    case("embedding", lambda w: F.embedding(index, w), numbers(5, 3))
    case("embedding_padding", lambda w: F.embedding(index, w, padding_idx=2), numbers(5, 3))


def images():
    def conv(name, x, weight, bias=None, **options):
        operands = [numbers(*x), numbers(*weight)] + ([numbers(bias)] if bias else [])
        case(name, lambda *t: F.conv2d(*t, **options), *operands, images=(0, "y"))

    conv("conv2d_1x1", (2, 3, 4, 4), (5, 3, 1, 1), 5)
    conv("conv2d_3x3", (2, 2, 4, 5), (3, 2, 3, 3), 3, padding=1)
    conv("conv2d_stride", (2, 2, 7, 6), (3, 2, 3, 3), stride=2, padding=1)
    conv("conv2d_stem", (1, 3, 9, 9), (2, 3, 7, 7), stride=2, padding=3)
    conv("conv2d_directions", (1, 2, 7, 8), (3, 2, 2, 3), 3, stride=(2, 3), padding=(1, 2))
    conv("conv2d_dilation", (1, 2, 6, 7), (3, 2, 3, 3), dilation=2, padding=2)
    conv("conv2d_groups", (1, 4, 4, 4), (6, 2, 3, 3), 6, groups=2, padding=1)
    conv("conv2d_depthwise", (1, 4, 5, 5), (4, 1, 3, 3), groups=4, padding=1, stride=2)

    def pool(name, function, *arguments, **options):
        case(name, lambda x: function(x, *arguments, **options), numbers(1, 2, 6, 7), images=(0, "y"))

    pool("max_pool", F.max_pool2d, 3, stride=2, padding=1)
    pool("max_pool_ceil", F.max_pool2d, 3, stride=2, ceil_mode=True)
    pool("max_pool_default", F.max_pool2d, 2)
    pool("avg_pool", F.avg_pool2d, 3, stride=2, padding=1)
    pool("avg_pool_inside", F.avg_pool2d, 3, stride=2, padding=1, count_include_pad=False)
    pool("avg_pool_ceil", F.avg_pool2d, 3, stride=2, padding=1, ceil_mode=True)
    pool("avg_pool_ceil_inside", F.avg_pool2d, 4, stride=3, padding=2, ceil_mode=True, count_include_pad=False)
    case("global_avg_pool", lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), numbers(2, 3, 3, 4), images=(0,))


def norms():
    case("layer_norm", lambda x: F.layer_norm(x, (6,)), numbers(4, 6))
    case("layer_norm_affine", lambda x, w, b: F.layer_norm(x, (6,), w, b, eps=0.01), numbers(2, 3, 6), numbers(6), numbers(6))

    def batch(name, affine=True, residual=False, relu=False, **options):
        mean, var = torch.full((3,), 0.25, dtype=torch.float64), torch.full((3,), 1.5, dtype=torch.float64)

        def operation(x, *others):
            weight, bias = others[:2] if affine else (None, None)
            y = F.batch_norm(x, mean, var, weight, bias, **options)
            if residual:
                y = y + others[-1]
            return F.relu(y) if relu else y

        x = numbers(2, 3, 2, 3)
        operands = [x] + ([numbers(3), numbers(3)] if affine else []) + ([numbers(*x.shape)] if residual else [])
        where = (0, "y") + ((len(operands) - 1,) if residual else ())
        case(name, operation, *operands, images=where, state={"running_mean": mean, "running_var": var})

    batch("batch_norm", training=True)
    batch("batch_norm_plain", affine=False, training=True, momentum=0.3, eps=0.01)
    batch("batch_norm_relu", relu=True, training=True)
    batch("batch_norm_residual_relu", residual=True, relu=True, training=True)
    batch("batch_norm_eval", training=False)
    batch("batch_norm_eval_residual_relu", residual=True, relu=True, training=False)


def modules():
    case("nn_flatten", lambda x: x.flatten(1), numbers(2, 3, 2, 3), images=(0,))
    case("nn_flatten_1x1", lambda x: x.flatten(1), numbers(2, 3, 1, 1), images=(0,))
    case("nn_flatten_3d", lambda x: x.flatten(1), numbers(2, 3, 2))


def activations():
    x = numbers(5, 7) * 2
    case("silu", F.silu, x)
    case("leaky_relu", lambda x: F.leaky_relu(x, 0.25), x)
    case("softplus", lambda x: F.softplus(x, 2, 1), x)


def sums():
    case("logsumexp", lambda x: torch.logsumexp(x, 1), numbers(2, 3, 5))
    case("logsumexp_last", lambda x: torch.logsumexp(x, -1, keepdim=True), numbers(2, 3, 5))


elements()
products()
images()
norms()
modules()
sums()
activations()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "operations.txt"), "w") as file:
    file.write("\n".join(lines + ["end", ""]))
