#!/usr/bin/env python3
"""Writes optimizers.txt: parameters after each of a few steps of PyTorch's optimizers, in float64.

The format is that of operations.txt. Case "start" has the values of a weight and a bias
that all begin with (weight0, bias0) and their gradients of step 1, 2, ... (weight_gradient1, ...);
the others have the values after each step (weight1, ...), "norm1" ... the norms of all
gradients where they are clipped.
"""
import os

import torch

torch.manual_seed(12)
STEPS = 5
lines = []


def write(name, tensor):
    words = [name, str(tensor.dim())] + [str(size) for size in tensor.shape]
    lines.append(" ".join(words + ["%.17g" % value for value in tensor.detach().flatten().tolist()]))


def numbers(*shape):
    """Multiples of 1/64, so that float32 has them too."""
    return torch.randint(-96, 97, shape).to(torch.float64) / 64


SHAPES = {"weight": (3, 5), "bias": (3,)}
START = {name: numbers(*shape) for name, shape in SHAPES.items()}
GRADIENTS = [{name: numbers(*shape) for name, shape in SHAPES.items()} for _ in range(STEPS)]


def start():
    lines.append("case start")
    for name in SHAPES:
        write(name + "0", START[name])
        for step in range(STEPS):
            write("%s_gradient%d" % (name, step + 1), GRADIENTS[step][name])


def case(name, make, clip=None):
    lines.append("case " + name)
    parameters = {key: START[key].clone().requires_grad_() for key in SHAPES}
    optimizer = make(list(parameters.values()))
    for step in range(STEPS):
        for key, parameter in parameters.items():
            parameter.grad = GRADIENTS[step][key].clone()
        if clip:
            norm = clip(list(parameters.values()))
            if norm is not None:
                write("norm%d" % (step + 1), norm)
        optimizer.step()
        for key, parameter in parameters.items():
            write("%s%d" % (key, step + 1), parameter)


def optimizers():
    optim = torch.optim
    case("sgd", lambda p: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=True))
    case("adam", lambda p: optim.Adam(p, lr=0.1))
    case("adam_decay", lambda p: optim.Adam(p, lr=0.1, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.05))
    case("adam_amsgrad", lambda p: optim.Adam(p, lr=0.1, betas=(0.8, 0.6), weight_decay=0.05, amsgrad=True))
    case("adamw", lambda p: optim.AdamW(p, lr=0.1))
    case("adamw_amsgrad", lambda p: optim.AdamW(p, lr=0.1, betas=(0.8, 0.6), weight_decay=0.3, amsgrad=True))


def clipped():
    norm, value = torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad_value_
    sgd = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.05)
    case("clip_norm", sgd, lambda p: norm(p, 3.7))
    case("clip_norm_inf", sgd, lambda p: norm(p, 1.25, norm_type=float("inf")))
    case("clip_norm_3", sgd, lambda p: norm(p, 1.5, norm_type=3))
    case("clip_value", sgd, lambda p: value(p, 0.75))
    case("clip_norm_adam", lambda p: torch.optim.Adam(p, lr=0.1, eps=0.1), lambda p: norm(p, 0.5))


start()
optimizers()
clipped()
lines.append("end")
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "optimizers.txt"), "w") as file:
    file.write("\n".join(lines) + "\n")
