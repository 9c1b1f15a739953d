#!/usr/bin/env python3
"""Writes losses.txt: losses that PyTorch's functions make up, and their gradients, in float64.

The format is that of make_operations.py. Other tensors of a case: labels, weight (of the
classes), row_weight, positive (pos_weight), target, pairs (of the ones in target: rows, then
classes), norms, mean and std (after the call), m2 and m3 (the rows' margins).
"""
import math
import os

import torch
import torch.nn.functional as F

torch.manual_seed(5)
ROWS, CLASSES, S = 6, 7, 64.0
lines = []
labels = torch.tensor([4, 0, -100, 2, 6, 2])
counts = labels >= 0


def write(name, tensor):
    words = [name, str(tensor.dim())] + [str(size) for size in tensor.shape]
    lines.append(" ".join(words + ["%.17g" % value for value in tensor.detach().flatten().tolist()]))


def case(name, operation, x, **others):
    lines.append("case " + name)
    leaf = x.clone().requires_grad_()
    y = operation(leaf)
    dy = torch.rand(y.shape, dtype=torch.float64) + 0.5
    y.backward(dy)
    for key, tensor in (("x0", x), ("y", y), ("dy", dy), ("d0", leaf.grad), *others.items()):
        write(key, tensor)


def cross_entropy():
    x = 3 * torch.randn(ROWS, CLASSES, dtype=torch.float64)
    weight, rows = torch.rand(CLASSES, dtype=torch.float64) + 0.25, torch.rand(ROWS, dtype=torch.float64)

    def loss(x, weight=None, rows=None, z=0.0, scale=1.0, cap=0.0, smoothing=0.0, mean=True):
        x = scale * x
        x = cap * torch.tanh(x / cap) if cap else x
        each = F.cross_entropy(x, labels, weight=weight, reduction="none", label_smoothing=smoothing)
        each = each + z * torch.logsumexp(x, 1) ** 2 * counts
        rows = torch.ones(ROWS, dtype=torch.float64) if rows is None else rows
        own = torch.ones(ROWS, dtype=torch.float64) if weight is None else weight[labels.clamp(min=0)]
        return (rows * each).sum() / ((rows * own * counts).sum() if mean else 1)

    case("row_weight", lambda x: loss(x, weight, rows), x, labels=labels, weight=weight, row_weight=rows)
    case("z_loss", lambda x: loss(x, z=0.01, mean=False), x, labels=labels)
    case("logit_scale", lambda x: loss(x, weight, scale=2.5), x, labels=labels, weight=weight)
    case("soft_cap", lambda x: loss(x, cap=1.5, smoothing=0.1), x, labels=labels)
    case("all", lambda x: loss(x, weight, rows, 0.01, 2.5, 1.5, 0.1), x, labels=labels, weight=weight, row_weight=rows)


def margins():
    """CombinedMarginLoss and ArcFace of insightface (recognition/arcface_torch/losses.py) with autograd through the angle."""
    x = 1.9 * torch.rand(ROWS, CLASSES, dtype=torch.float64) - 0.95
    x[4, 6] = -0.97  # its angle passes pi by a margin of 0.5
    place = torch.zeros(ROWS, CLASSES, dtype=torch.bool)
    place[counts, labels[counts]] = True

    def combined(x, m1, m2, m3):
        return S * torch.where(place, torch.cos(m1 * torch.acos(x) + m2) - m3, x)

    def arcface(x, m, easy):
        other = x - m * math.sin(math.pi - m)
        changed = torch.where(x > 0, torch.cos(torch.acos(x) + m), x) if easy else torch.where(
            x > math.cos(math.pi - m), torch.cos(torch.acos(x) + m), other)
        return S * torch.where(place, changed, x)

    case("combined", lambda x: combined(x, 1.25, 0.3, 0.2), x, labels=labels)
    case("cosine", lambda x: combined(x, 1, 0.5, 0), x, labels=labels)
    case("arcface", lambda x: arcface(x, 0.5, False), x, labels=labels)
    case("easy", lambda x: arcface(x, 0.5, True), x, labels=labels)
    case("cosface", lambda x: combined(x, 1, 0, 0.4), x, labels=labels)


def adaface(name, m=0.4, h=0.333, t_alpha=0.01, eps=1e-3):
    """AdaFace's head (github.com/mk-minchul/AdaFace, head.py), without the clamp of the cosines."""
    x = 1.9 * torch.rand(ROWS, CLASSES, dtype=torch.float64) - 0.95
    x[4, 6] = 0.9999
    norms = torch.tensor([18.0, 0.0001, 25, 300, 21, 19.5], dtype=torch.float64)
    safe = norms.clip(0.001, 100)
    mean = safe.mean() * t_alpha + (1 - t_alpha) * 20
    std = safe.std() * t_alpha + (1 - t_alpha) * 100
    scaler = ((safe - mean) / (std + eps) * h).clip(-1, 1)
    m2, m3 = -m * scaler, m + m * scaler
    one = torch.zeros(ROWS, CLASSES, dtype=torch.float64)
    one[counts, labels[counts]] = 1

    def head(x):
        angle = torch.clip(torch.acos(x) + one * m2[:, None], eps, math.pi - eps)
        return S * torch.where(one > 0, torch.cos(angle) - one * m3[:, None], x)

    case(name, head, x, labels=labels, norms=norms, mean=mean, std=std, m2=m2, m3=m3)


def binary():
    x = 4 * torch.randn(ROWS, CLASSES, dtype=torch.float64)
    weight, positive = torch.rand(CLASSES, dtype=torch.float64) + 0.25, 4 * torch.rand(CLASSES, dtype=torch.float64)
    target = (torch.rand(ROWS, CLASSES) < 0.3).to(torch.float64)
    target[2] = 0
    pairs = target.to_sparse().coalesce().indices()
    soft = torch.rand(ROWS, CLASSES, dtype=torch.float64)
    bce = F.binary_cross_entropy_with_logits
    case("binary_mean", lambda x: bce(x, target), x, target=target, pairs=pairs)
    case("binary_sum", lambda x: bce(x, target, weight, reduction="sum", pos_weight=positive), x, target=target, pairs=pairs,
         weight=weight, positive=positive)
    case("binary_none", lambda x: bce(x, target, weight, reduction="none", pos_weight=positive), x, target=target, pairs=pairs,
         weight=weight, positive=positive)
    case("binary_soft", lambda x: bce(x, soft, pos_weight=positive), x, target=soft, positive=positive)


def main():
    cross_entropy()
    margins()
    adaface("adaface")
    binary()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "losses.txt"), "w") as file:
        file.write("\n".join(lines) + "\nend\n")


if __name__ == "__main__":
    main()
