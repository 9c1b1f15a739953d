#!/usr/bin/env python3
"""Writes embeddings.txt: PyTorch's embedding with its options, in float64.

The format is that of operations.txt. Case "start" has weight, index and the result's gradient dy; the
others have the result y, the weight after the forward (max_norm changes it) and the weight's gradient.
"""
import os

import torch

torch.manual_seed(21)
lines = []


def write(name, tensor):
    words = [name, str(tensor.dim())] + [str(size) for size in tensor.shape]
    lines.append(" ".join(words + ["%.17g" % value for value in tensor.detach().flatten().tolist()]))


def numbers(*shape):
    """Multiples of 1/64, so that float32 has them too."""
    return torch.randint(-96, 97, shape).to(torch.float64) / 64


WEIGHT, INDEX, DY = numbers(7, 5), torch.tensor([[4, 0, 2, 2], [6, 2, 0, 5]]), numbers(2, 4, 5)
lines.append("case start")
write("weight", WEIGHT)
write("index", INDEX.to(torch.float64))
write("dy", DY)


def case(name, **options):
    weight = WEIGHT.clone().requires_grad_(True)
    y = torch.nn.functional.embedding(INDEX, weight, **options)
    y.backward(DY)
    lines.append("case " + name)
    write("y", y)
    write("weight", weight)
    write("gradient", weight.grad)


inf = float("inf")
case("plain")
case("padding", padding_idx=2)
case("max_norm", max_norm=1.5)
case("max_norm_1", max_norm=2.5, norm_type=1.0)
case("max_norm_inf", max_norm=0.75, norm_type=inf)
case("by_frequency", scale_grad_by_freq=True)
case("all", padding_idx=0, max_norm=1.25, norm_type=3.0, scale_grad_by_freq=True)

with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "embeddings.txt"), "w") as file:
    file.write("\n".join(lines) + "\n")
